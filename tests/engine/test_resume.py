"""One conversion, killed: the next run with --resume goes on, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.api import result, writing
from ckptconv.engine import journal, run
from ckptconv.engine.plan import Job
from ckptconv.errors import StorageError, UsageError, VerifyError
from ckptconv.output.staging import Output

KILLS = int(os.environ.get("CKPTCONV_KILLS", "3"))
SMALL = {"max_memory": 16 * 2**20, "jobs": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    r = np.random.default_rng(1)
    values = {f"w{i}": r.standard_normal((225 + i, 999)) * 10.0 ** (i * 20) for i in range(12)}
    values |= {"big": r.standard_normal((1125, 2000)), "empty": np.empty((0, 3), "f4"), "scalar": np.float64(7)}
    folder = tmp_path_factory.mktemp("made")
    ckptconv.save(values, folder / "model.ckpt", to="tf")
    return folder


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """A bundle (checksums to replay) of which some tensors are cast, so that losses are replayed too."""
    return Path(shutil.copytree(made, tmp_path / "in")) / "model.ckpt"


class Stop(Exception):
    pass


def stop(*_: object, **__: object) -> None:
    raise Stop


def stopping(after: int) -> run.Map:
    """A map that does some jobs and then breaks."""

    def some(do: object, jobs: object) -> object:
        for n, job in enumerate(jobs):
            if n == after:
                raise Stop
            yield do(job)

    return some


def counting(seen: list[Job]) -> run.Map:
    def every(do: object, jobs: object) -> object:
        for job in jobs:
            seen.append(job)
            yield do(job)

    return every


def convert(source: Path, dst: Path, use: run.Map | None = None, **target: object) -> result.Report:
    return writing.convert(source, dst, dtype="float32", map=use, **target, **SMALL)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every receipt is durable at once, so that tests can count."""
    monkeypatch.setattr("ckptconv.engine.journal.COMMIT", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out.pt"])
@pytest.mark.parametrize("verify", [None, True])
def test_goes_on_where_it_stopped(source: Path, tmp_path: Path, name: str, verify: str) -> None:
    every: list[Job] = []
    want = convert(source, tmp_path / "want" / name, counting(every))
    out = tmp_path / "out" / name
    with pytest.raises(Stop):
        convert(source, out, stopping(3), resume=True, verify=verify)
    assert not out.exists()
    rest: list[Job] = []
    got = convert(source, out, counting(rest), resume=True, verify=verify)
    assert len(rest) == len(every) - 3
    assert out.read_bytes() == (tmp_path / "want" / name).read_bytes()
    assert os.listdir(out.parent) == [name]
    assert (got.loss, got.verified_bytes) == (want.loss, want.verified_bytes)
    assert got.loss


@pytest.mark.slow
def test_several_files_and_a_sealed_index(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "want" / "m.ckpt", to="tf", max_shard_size=6_000_000)
    for after in (2, 4):
        with pytest.raises(Stop):
            convert(source, tmp_path / "out" / "m.ckpt", stopping(after), resume=True, to="tf",
                    max_shard_size=6_000_000)  # fmt: skip
    convert(source, tmp_path / "out" / "m.ckpt", resume=True, to="tf", max_shard_size=6_000_000)
    want, got = ({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in ("want", "out"))
    assert got == want
    assert len(want) > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "owner", "what", "done"),
    [
        *(("m.ckpt", os, "replace", done) for done in (0, 1, 3)),
        *((name, journal.Journal, "remove", 0) for name in ("m.ckpt", "m.npz")),
    ],
)
def test_stopped_when_all_was_written_it_only_renames(
    source: Path, tmp_path: Path, name: str, owner: object, what: str, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"to": "tf", "max_shard_size": 6_000_000} if name == "m.ckpt" else {}
    convert(source, tmp_path / "want" / name, **how)
    real, left = getattr(owner, what), [done]

    def few(*args: object) -> None:
        if not left[0]:
            raise Stop
        left[0] -= 1
        real(*args)

    with monkeypatch.context() as m:
        m.setattr(owner, what, few)
        with pytest.raises(Stop):
            convert(source, tmp_path / "out" / name, resume=True, **how)
    assert [*(tmp_path / "out").glob(".*.resume.journal")]
    none: list[Job] = []
    convert(source, tmp_path / "out" / name, counting(none), resume=True, **how)
    assert none == []
    want, got = ({p.name: p.read_bytes() for p in (tmp_path / d).iterdir()} for d in ("want", "out"))
    assert got == want


def test_what_came_there_since_it_was_stopped_is_not_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(Stop):
        convert(source, tmp_path / "out.npz", resume=True)
    monkeypatch.undo()
    (tmp_path / "out.npz").write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.npz: already exists; force=True replaces it"):
        convert(source, tmp_path / "out.npz", resume=True)
    assert (tmp_path / "out.npz").read_text() == "mine"
    (tmp_path / "out.npz").unlink()
    none: list[Job] = []
    convert(source, tmp_path / "out.npz", counting(none), resume=True)
    assert none == []
    convert(source, tmp_path / "want" / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "want" / "out.npz").read_bytes()


@pytest.mark.parametrize("verify", [True, None])
@pytest.mark.parametrize("name", ["m.safetensors", "m.npz"])
def test_damage_is_found_before_anything_is_replaced(
    name: str, verify: bool | None, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run was killed after all was confirmed, and before it was renamed; whatever is verified otherwise."""
    out = tmp_path / name
    out.write_bytes(b"old")
    monkeypatch.setattr(Output, "publish", stop)
    with pytest.raises(Stop):
        convert(source, out, resume=True, force=True, verify=verify)
    monkeypatch.undo()
    part = tmp_path / f".{name}.resume.part" / name
    raw = part.read_bytes()
    at = len(raw) - 1 if name == "m.safetensors" else raw.find(b"NUMPY") + 200  # within the values
    part.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    with pytest.raises(VerifyError, match="nothing is published"):
        convert(source, out, resume=True, force=True, verify=verify)
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["in", name]
    convert(source, out, resume=True, force=True, verify=verify)
    assert out.read_bytes() == raw


def test_a_journal_that_came_with_the_source_gives_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a msgpack file are read when it is opened, and no date of it is in the plan: a stranger knows all."""
    monkeypatch.chdir(tmp_path)
    for folder, value in (("his", 666.0), ("mine", 0.5)):
        os.mkdir(folder)
        os.chdir(folder)
        Path("m.msgpack").write_bytes(b"\x81\xa2lr\xcb" + struct.pack(">d", value))
        with monkeypatch.context() as m:
            m.setattr(Output, "publish", stop)
            with pytest.raises(Stop):
                writing.convert("m.msgpack", "m.safetensors", resume=True, verify=True)
        os.chdir(tmp_path)
    names = [".m.safetensors.resume.journal", ".m.safetensors.resume.part/m.safetensors"]
    lines = [Path(folder, names[0]).read_bytes().splitlines(keepends=True) for folder in ("mine", "his")]
    Path("mine", names[0]).write_bytes(b"".join([lines[0][0], *lines[1][1:]]))
    shutil.copyfile(Path("his", names[1]), Path("mine", names[1]))
    shutil.copytree("mine", "victims")
    os.chdir("victims")
    writing.convert("m.msgpack", "m.safetensors", resume=True, verify=True)
    assert ckptconv.open("m.safetensors")["lr"].numpy() == 0.5


Lines = list[bytes]
JOURNAL, PART = ".m.npz.resume.journal", ".m.npz.resume.part"
TAILS: list[tuple[Callable[[Lines], Lines], int]] = [  # what becomes of a journal of four jobs, and how many stay done
    (lambda raw: raw, 4),
    (lambda raw: [*raw, b'{"publish":false}\n', b'{"other":1}\n', b'{"jobs":[['], 4),
    (lambda raw: [raw[0], b'{"publish":true}\n', *raw[1:]], 4),  # and nothing was renamed
    (lambda raw: [*raw[:-1], raw[-1][:-1]], 3),
    (lambda raw: [*raw[:-1], raw[-1][:9]], 3),
    (lambda raw: [*raw[:2], b"\xff\n", *raw[2:]], 1),
    (lambda raw: [*raw[:2], b"[1]\n", *raw[2:]], 1),
    (lambda raw: [*raw[:2], b"[" * 100_000 + b"\n", *raw[2:]], 1),
    (lambda raw: raw[:1], 0),
    (lambda raw: [raw[0][:-1]], 0),  # the head has no end: written again
    (lambda raw: [], 0),
    (lambda raw: [b'{"pl'], 0),
    (lambda raw: [b'{"plan":"0123"}\n', *raw[1:], b'{"publish":true}\n'], 0),
    (lambda raw: [raw[0].replace(b'"file":', b'"file":1'), *raw[1:]], 0),  # a stranger may know the plan
    (lambda raw: [b'{"plan":"0123","files":["a/../../b","\\u0000",{},["a"]]}\n'], 0),
]


def rewritten(path: Path, change: Callable[[Lines], Lines]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def copied(path: Path) -> None:
    """What a tar or cp makes of it: the same bytes in another file."""
    os.replace(path, f"{path}.was")
    shutil.copyfile(f"{path}.was", path)
    os.unlink(f"{path}.was")


SPOILT: list[tuple[Callable[[Path, Path], object], int]] = [  # in the folders of the source and of the output
    *((lambda _, out, change=change: rewritten(out / JOURNAL, change), kept) for change, kept in TAILS),
    (lambda _, out: copied(out / JOURNAL), 0),
    (lambda _, out: (out / PART / "m.npz").unlink(), 0),
    (lambda source, _: os.utime(source / "model.ckpt.data-00000-of-00001", (1, 1)), 0),
]


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """What an undisturbed run makes, and in how many jobs."""
    every, out = list[Job](), tmp_path_factory.mktemp("whole") / "m.npz"
    convert(made / "model.ckpt", out, counting(every))
    return out.read_bytes(), len(every)


def stopped(source: Path, out: Path, **target: object) -> None:
    """A run that does four jobs."""
    with pytest.raises(Stop):
        convert(source, out, stopping(4), resume=True, **target)


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "kept"), SPOILT)
def test_what_was_spoilt_costs_work_never_bytes(
    spoil: Callable[[Path, Path], object], kept: int, source: Path, tmp_path: Path, whole: tuple[bytes, int]
) -> None:
    out, again = tmp_path / "out" / "m.npz", list[Job]()
    stopped(source, out)
    spoil(source.parent, out.parent)
    convert(source, out, counting(again), resume=True)
    assert (out.read_bytes(), len(again)) == (whole[0], whole[1] - kept)
    assert os.listdir(out.parent) == ["m.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"include": ["w*"]}, {"max_memory": 17 * 2**20}, {"version": "0.0.1"}])
def test_another_plan_is_begun_anew(
    changed: dict[str, object], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(source, tmp_path / "m.npz")
    every, again = list[Job](), list[Job]()
    if "version" in changed:
        monkeypatch.setattr(ckptconv, "__version__", changed["version"])
        changed = {}
    how = {"dtype": "float32", **SMALL, **changed}
    writing.convert(source, tmp_path / "want.npz", map=counting(every), **how)
    writing.convert(source, tmp_path / "m.npz", map=counting(again), resume=True, **how)
    assert [j.start for j in again] == [j.start for j in every]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("same", "force", "kept"), [(True, False, None), (True, True, 4), (False, False, None), (False, True, 0)]
)
def test_what_is_there_is_replaced_by_force_only(
    same: bool, force: bool, kept: int | None, source: Path, tmp_path: Path
) -> None:
    """Whether the run that was stopped is this one or another, its journal stays if this one is refused."""
    out, every, again = tmp_path / "m.npz", list[Job](), list[Job]()
    how: dict[str, object] = {} if same else {"include": ["w*"]}
    stopped(source, out)
    out.write_bytes(b"old")
    before = (tmp_path / JOURNAL).read_bytes()
    if kept is None:
        with pytest.raises(FileExistsError, match="already exists; force=True replaces it"):
            convert(source, out, resume=True, **how)
        assert ((tmp_path / JOURNAL).read_bytes(), out.read_bytes()) == (before, b"old")
        return
    convert(source, tmp_path / "want.npz", counting(every), **how)
    convert(source, out, counting(again), resume=True, force=force, **how)
    assert (len(every) - len(again), out.read_bytes()) == (kept, (tmp_path / "want.npz").read_bytes())


def test_the_journal_is_as_documented(source: Path, tmp_path: Path) -> None:
    stopped(source, tmp_path / "m.npz")
    path = tmp_path / JOURNAL
    head, *lines = map(json.loads, path.read_bytes().splitlines())
    status = path.stat()
    assert (list(head), head["file"]) == (["plan", "file"], status.st_ino)
    for line in lines:
        ((file, _, written, read, lossy),) = line["jobs"]
        assert (file, {len(w) for w in written}, {len(r) for r in read}) == ("m.npz", {5}, {5})
        assert set(lossy) <= {w[0] for w in written}
    assert (len(lines), status.st_mode & 0o777) == (4, 0o600)


@pytest.mark.parametrize("text", [b"precious", b'{"plan": "', b"\n", b'{"PLAN":"x"}\n', b'[]\n{"plan":"'])
def test_a_file_that_is_no_journal_stays(text: bytes, source: Path, tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    path.write_bytes(text)
    for force in (False, True, False):  # again: the first let the lock go
        with pytest.raises(StorageError, match="is not a journal of ckptconv, which belongs here; move it away") as e:
            convert(source, tmp_path / "m.npz", resume=True, force=force)
        assert e.value.url == str(path)
    assert path.read_bytes() == text


def test_one_run_at_a_time(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")

    def meanwhile(do: object, jobs: object) -> object:
        with pytest.raises(StorageError, match="another run is writing this destination"):
            convert(source, tmp_path / "m.npz", resume=True)
        yield from map(do, jobs)

    convert(source, tmp_path / "m.npz", meanwhile, resume=True)
    assert (tmp_path / "m.npz").exists()


def test_refusals(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a local destination"):
        convert(source, "memory://x/m.npz", resume=True)  # type: ignore[arg-type]
    convert(source, tmp_path / "m.npz", resume=True)
    with pytest.raises(StorageError, match="already exists"):
        convert(source, tmp_path / "m.npz", resume=True)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_killed_at_any_moment_it_ends_with_the_same_bytes(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, ckptconv.engine.journal as j; j.COMMIT = 0.01; from ckptconv.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, str(source), "--resume", "-q", "--dtype", "float32", "-j", "2"]
    command += ["--max-memory", "16MB", "--to", "tf", "-o"]
    began = time.monotonic()
    subprocess.run([*command, str(tmp_path / "want" / "m.ckpt")], check=True)
    whole = time.monotonic() - began
    want = {p.name: p.read_bytes() for p in (tmp_path / "want").iterdir()}
    chance, kills, runs = random.Random(3), 0, 0
    while kills < KILLS:
        runs += 1
        out = tmp_path / f"out{runs}"
        while not (out / "m.ckpt.index").exists():
            child = subprocess.Popen([*command, str(out / "m.ckpt")], stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.3, 1.3) * whole)
            child.send_signal(signal.SIGKILL)
            kills += child.wait() == -signal.SIGKILL
        if any(p.name.startswith(".") for p in out.iterdir()):  # killed between the last rename and the journal's end
            subprocess.run([*command, str(out / "m.ckpt")], check=True)
        assert {p.name: p.read_bytes() for p in out.iterdir()} == want


STOPPED = """
import os, sys, ckptconv
left, real = int(sys.argv[2]), os.replace
def replace(*args, **more):
    global left
    left -= 1
    if not left:
        os._exit(9)
    return real(*args, **more)
os.replace = replace
ckptconv.convert(sys.argv[1], "h", to="hf", resume=True, force=True, max_shard_size=1200, jobs=1)
"""


@pytest.mark.slow
def test_killed_at_any_rename_of_a_set_it_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another number of shards: older ones are removed last, when nothing is left to be renamed."""
    monkeypatch.chdir(tmp_path)
    values = {f"w{i}": np.full(250, i, "f4") for i in range(4)}
    ckptconv.save(values, "s.npz")
    code, step = 9, 0
    while code:
        step += 1
        shutil.rmtree("h", ignore_errors=True)
        ckptconv.save({n: x + 100 for n, x in values.items()}, "h", to="hf", max_shard_size=2200)
        code = subprocess.run([sys.executable, "-c", STOPPED, "s.npz", str(step)]).returncode
        assert code in (0, 9)
        ckptconv.convert("s.npz", "h", to="hf", resume=True, force=True, max_shard_size=1200, jobs=1)
        got = ckptconv.open("h")
        assert all(np.array_equal(got[n].numpy(), x) for n, x in values.items())
        assert sorted(os.listdir("h")) == [
            *(f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)),
            "model.safetensors.index.json",
        ]
    assert step > 7
