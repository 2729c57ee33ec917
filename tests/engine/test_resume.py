"""One conversion, killed: the next run with --resume goes on, and ends with the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv import api
from ckptconv.api.options import Verify
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
    ckptconv.save(values, folder / "model.ckpt", format="tf")
    return folder


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """A bundle (checksums to replay) of which some tensors are cast, so that losses are replayed too."""
    return Path(shutil.copytree(made, tmp_path / "in")) / "model.ckpt"


class Stop(Exception):
    pass


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


def convert(source: Path, dst: Path, use: run.Map | None = None, **target: object) -> api.Report:
    return api.convert(source, dst, dtype="float32", map=use, **target, **SMALL)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every receipt is durable at once, so that tests can count."""
    monkeypatch.setattr("ckptconv.engine.journal.COMMIT", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out.pt"])
@pytest.mark.parametrize("verify", ["receipts", "full"])
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


def test_a_journal_that_somebody_removed_is_not_missed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is published by then, and the journal would be removed anyway."""
    publish = journal.Journal.publish

    def removed(self: journal.Journal, out: object) -> None:
        publish(self, out)
        for path in (tmp_path / "out").glob(".*.journal"):
            path.unlink()

    monkeypatch.setattr(journal.Journal, "publish", removed)
    convert(source, tmp_path / "out" / "m.npz", resume=True)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["m.npz"]


def test_what_came_there_since_it_was_stopped_is_not_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: str) -> None:
        raise Stop

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(Stop):
        convert(source, tmp_path / "out.npz", resume=True)
    monkeypatch.undo()
    (tmp_path / "out.npz").write_text("mine")
    with pytest.raises(StorageError, match=r"out\.npz: already exists; force=True replaces it"):
        convert(source, tmp_path / "out.npz", resume=True)
    assert (tmp_path / "out.npz").read_text() == "mine"
    (tmp_path / "out.npz").unlink()
    none: list[Job] = []
    convert(source, tmp_path / "out.npz", counting(none), resume=True)
    assert none == []
    convert(source, tmp_path / "want" / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == (tmp_path / "want" / "out.npz").read_bytes()


@pytest.mark.parametrize("verify", ["full", "receipts"])
@pytest.mark.parametrize("name", ["m.safetensors", "m.npz"])
def test_damage_is_found_before_anything_is_replaced(
    name: str, verify: Verify, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run was killed after all was confirmed, and before it was renamed; whatever is verified otherwise."""

    def stop(*_: object, **__: object) -> None:
        raise Stop

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

    def stop(*_: object, **__: object) -> None:
        raise Stop

    monkeypatch.chdir(tmp_path)
    for folder, value in (("his", 666.0), ("mine", 0.5)):
        os.mkdir(folder)
        os.chdir(folder)
        Path("m.msgpack").write_bytes(b"\x81\xa2lr\xcb" + struct.pack(">d", value))
        with monkeypatch.context() as m:
            m.setattr(Output, "publish", stop)
            with pytest.raises(Stop):
                api.convert("m.msgpack", "m.safetensors", resume=True, verify="full")
        os.chdir(tmp_path)
    names = [".m.safetensors.resume.journal", ".m.safetensors.resume.part/m.safetensors"]
    lines = [Path(folder, names[0]).read_bytes().splitlines(keepends=True) for folder in ("mine", "his")]
    Path("mine", names[0]).write_bytes(b"".join([lines[0][0], *lines[1][1:]]))
    shutil.copyfile(Path("his", names[1]), Path("mine", names[1]))
    shutil.copytree("mine", "victims")
    os.chdir("victims")
    api.convert("m.msgpack", "m.safetensors", resume=True, verify="full")
    assert ckptconv.open("m.safetensors")["lr"].numpy() == 0.5


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def write(source: Path, out: Path) -> None:
        path = out / ".m.npz.resume.journal"
        path.write_bytes(change(path.read_bytes()))

    return write


SPOILT: dict[str, tuple[Callable[[Path, Path], object], int]] = {  # what is done, and how many of four jobs stay done
    "another date": (lambda source, out: os.utime(source / "model.ckpt.data-00000-of-00001", (1, 1)), 0),
    "no temporary file": (lambda source, out: (out / ".m.npz.resume.part" / "m.npz").unlink(), 0),
    "a journal of another beginning": (rewritten(lambda raw: raw[:9] + raw), 0),
    "a journal that is cut": (rewritten(lambda raw: raw[:-20]), 3),
    "a journal with half a line": (rewritten(lambda raw: raw + b'{"jobs": [['), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPOILT)
def test_what_was_spoilt_costs_work_never_bytes(what: str, source: Path, tmp_path: Path) -> None:
    out, (spoil, kept) = tmp_path / "out" / "m.npz", SPOILT[what]
    with pytest.raises(Stop):
        convert(source, out, stopping(4), resume=True)
    spoil(source.parent, out.parent)
    every, again = list[Job](), list[Job]()
    convert(source, tmp_path / "want" / "m.npz", counting(every))
    convert(source, out, counting(again), resume=True)
    assert len(every) - len(again) == kept
    assert out.read_bytes() == (tmp_path / "want" / "m.npz").read_bytes()
    assert os.listdir(out.parent) == ["m.npz"]


@pytest.mark.parametrize("where", [".m.npz.resume.part", ".m.npz.resume.part/m.npz"])
def test_a_link_in_the_place_of_a_part_is_not_followed(where: str, source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "m.npz").write_text("mine")
    link = tmp_path / "out" / where
    link.parent.mkdir(parents=True)
    link.symlink_to(home if link.name.endswith(".part") else home / "m.npz")
    with nullcontext() if link.name == "m.npz" else pytest.raises(StorageError):
        convert(source, tmp_path / "out" / "m.npz", resume=True)
    assert (home / "m.npz").read_text() == "mine"


def test_without_it_nothing_is_left(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "m.npz"
    with pytest.raises(Stop):
        convert(source, out, stopping(4))
    assert not out.parent.exists()


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
