"""What lies where our own files go: nothing is followed, and nothing is replaced or removed that is not ours."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.api import reading, writing
from ckptconv.api.options import Options
from ckptconv.errors import CkptError, StorageError
from ckptconv.output import own, staging
from ckptconv.output.destination import OutputFile

NAMES = [
    ".out.safetensors.part",
    ".out.safetensors.part/out.safetensors",
    ".out.safetensors.resume.part",
    ".out.safetensors.resume.part/out.safetensors",
    ".out.safetensors.resume.journal",
    ".ckptconv-zoo.jsonl",
    "out.safetensors",
    "out.safetensors.index.json",
    "out-00002-of-00009.safetensors",
]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A pipe that is waited for is a failure, not a test without end."""

    def waited(*_: object) -> None:
        pytest.fail("a minute went by")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def values() -> dict[str, np.ndarray]:
    return {"$(touch executed)": np.arange(6.0), "w": np.ones((40, 50), "f4")}


def folder(path: Path, home: Path) -> None:
    path.mkdir()
    (path / "theirs").write_text("theirs")
    (path / "link").symlink_to(home)


Lay = Callable[[Path, Path], None]
LAID: dict[str, Lay] = {
    "link to a file": lambda path, home: path.symlink_to(home / "victim"),
    "link to a folder": lambda path, home: path.symlink_to(home),
    "link to nothing": lambda path, home: path.symlink_to(home / "new"),
    "hard link": lambda path, home: path.hardlink_to(home / "victim"),
    "pipe": lambda path, home: os.mkfifo(path),
    "folder": folder,
    "file": lambda path, home: path.write_text("a line of somebody else, not ended") and None,
}


def laid_out(tmp_path: Path, name: str, lay: str) -> tuple[Path, Path]:
    """A checkpoint's folder in which an attacker laid something, and a home that he wants to reach."""
    home, repo = tmp_path / "home", tmp_path / "repo"
    home.mkdir()
    (home / "victim").write_text("mine")
    (home / "out.safetensors").write_text("mine")
    ckptconv.save(values(), repo / "src.npz")
    path = repo / name
    path.parent.mkdir(exist_ok=True)
    LAID[lay](path, home)
    return home, repo


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def seen(folder: Path) -> dict[str, str]:
    """What is in a folder, and who may read it."""
    return {p.name: f"{p.read_bytes()!r} {mode(p):o}" for p in folder.iterdir()} | {".": f"{mode(folder):o}"}


@pytest.mark.many
@pytest.mark.parametrize("lay", LAID)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_followed(name: str, lay: str, tmp_path: Path) -> None:
    """Whatever the options: what lies outside stays, and so does a journal or a ledger of somebody else."""
    home, repo = laid_out(tmp_path, name, lay)
    before = seen(home)
    for options in ({}, {"resume": True}, {"force": True}, {"force": True, "resume": True}):
        with suppress(CkptError):
            writing.convert(repo / "src.npz", repo / "out.safetensors", **options)
        assert seen(home) == before, options
    for again in (False, True) if name.endswith(".jsonl") else ():
        with suppress(CkptError):
            ckptconv.zoo([str(repo / "src.npz")], str(repo), resume=again)
        assert seen(home) == before
    if name.endswith((".journal", ".jsonl")):
        assert os.path.lexists(repo / name)
        assert lay != "file" or (repo / name).read_text() == "a line of somebody else, not ended"


def test_a_file_of_ours_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    os.link(tmp_path / "theirs", tmp_path / "second name")
    with pytest.raises(OSError, match="second name"):
        own.open_file(str(tmp_path / "theirs"), os.O_WRONLY)


# --- destinations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["npz", "npy", "tf"])
@pytest.mark.parametrize("lay", ["link to a file", "link to nothing", "pipe"])
def test_only_a_regular_file_is_replaced(lay: str, to: str, tmp_path: Path) -> None:
    base = {"npy": "out.npy", "tf": "out"}.get(to, f"out.{to}")
    home, repo = laid_out(tmp_path, base + (".index" if to == "tf" else ""), lay)
    before = seen(home)
    ckptconv.save({"w": np.ones(3)}, repo / "one.npz")
    for resume in (False, True):
        with pytest.raises(StorageError, match="only a regular file is replaced"):
            writing.convert(repo / "one.npz", repo / base, to=to, force=True, resume=resume)
    assert seen(home) == before
    assert len(os.listdir(repo)) == 3


def test_force_removes_files_only(tmp_path: Path) -> None:
    """A folder that is called as an older shard is not one."""
    for name, to, keep in [
        ("model.safetensors", "safetensors", "model-00002-of-00009.safetensors"),
        ("x", "tf", "x.data-00007-of-00009"),
    ]:
        (tmp_path / keep / "mydata").mkdir(parents=True)
        ckptconv.save(values(), tmp_path / name, to=to, force=True)
        assert (tmp_path / keep / "mydata").is_dir()


@pytest.mark.parametrize("other", ["photo.npy", "README"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_one_checkpoint_has_no_other_files(other: str, resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "n"
    ckptconv.save({"w": np.ones(3)}, out, to="npy")
    ckptconv.save({"w": np.ones(3)}, out, to="npy", force=True, resume=resume)
    (out / other).write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"1 file there would be read .*\n *" + other):
        ckptconv.save({"w": np.ones(3)}, out, to="npy", force=True, resume=resume)
    assert (out / other).read_bytes() == b"mine"


@pytest.mark.parametrize("at", ["memory://strangers/arrays", "local"])
def test_arrays_of_an_older_folder_are_seen_whatever_they_are_called(at: str, tmp_path: Path) -> None:
    at = at if "://" in at else str(tmp_path / at)
    ckptconv.save({"zebra": np.ones(3), "yak": np.ones(2)}, at, to="npy")
    with pytest.raises(StorageError, match=r"zebra|yak|already"):
        ckptconv.save({"ant": np.ones(3)}, at, to="npy")


def test_the_state_file_of_a_training_run_stays(tmp_path: Path) -> None:
    """Else the checkpoint that is exported into its folder would be the one that training goes on from."""
    state = 'model_checkpoint_path: "model.ckpt-9000"\nall_model_checkpoint_paths: "model.ckpt-9000"\n'
    ckptconv.save(values(), tmp_path / "model.ckpt-9000", to="tf")
    (tmp_path / "checkpoint").write_text(state)
    plan = ckptconv.dry_run(tmp_path / "model.ckpt-9000", tmp_path / "export", to="tf")
    (said,) = [n for n in plan.notes if n.names == ("checkpoint",)]
    assert "stays unchanged" in said.text
    for options in ({}, {"force": True}, {"force": True, "resume": True}):
        report = writing.convert(tmp_path / "model.ckpt-9000", tmp_path / "export", to="tf", **options)
        assert said in report.notes
        assert (tmp_path / "checkpoint").read_text() == state
    assert len(ckptconv.open(tmp_path / "export")) == 2
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("to", ["npy", "hf", "orbax"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_a_link_is_not_written_into(to: str, force: bool, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "src.npz")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "model-00001-of-00003.safetensors").write_text("mine")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "out").symlink_to("../victim")
    with pytest.raises(StorageError, match="out: is a link out of its folder"):
        writing.convert(tmp_path / "src.npz", tmp_path / "repo" / "out", to=to, force=force)
    assert os.listdir(tmp_path / "victim") == ["model-00001-of-00003.safetensors"]


# --- modes and room ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "name"), [("safetensors", "o.safetensors"), ("npy", "o"), ("tf", "o.ckpt")])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("private", "replaced", "want"), [(0o644, None, 0o644), (0o644, 0o600, 0o600), (0o600, None, 0o600), (0o640,) * 3]
)
def test_what_is_private_stays_private(
    to: str, name: str, resume: bool, private: int, replaced: int | None, want: int, tmp_path: Path
) -> None:
    """As with `cp`: the permissions of the source, without what the umask takes; and those of what is replaced."""
    source, out = tmp_path / "src.npz", tmp_path / "out"
    ckptconv.save(values(), source)
    before = os.umask(0o022)
    try:
        if replaced:
            ckptconv.save(values(), out / name, to=to)
            for path in out.rglob("*"):
                path.chmod(replaced) if path.is_file() else None
        source.chmod(private)
        writing.convert(source, out / name, to=to, force=True, resume=resume)
    finally:
        os.umask(before)
    made = [p for p in out.rglob("*") if p.is_file() and p.name != "checkpoint"]
    assert {oct(mode(p)) for p in made} == {oct(want)}
    assert to != "npy" or resume or mode(out / name) in (0o755, 0o700 | want | (want & 0o044) >> 2)


WAYS: dict[str, Callable[[Path, Path], object]] = {  # from a checkpoint to another that has its values
    "opened": lambda src, out: ckptconv.save(ckptconv.open(src), out),
    "its tensors": lambda src, out: ckptconv.save(dict(ckptconv.open(src)), out),
    "without hashes": lambda src, out: ckptconv.save(ckptconv.open(src), out, verify=False),
    "prepared": lambda src, out: ckptconv.save(reading.prepare([src], Options()), out),
    "written": lambda src, out: writing.write(reading.prepare([src], Options()), out),
    "a report": lambda src, out: ckptconv.report(src, destination=out),
    "a proposal": lambda src, out: ckptconv.match(src, src, destination=out),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["src.safetensors", "src.msgpack", "src.pt"])
def test_whatever_way_it_went_it_stays_private(way: str, name: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        ckptconv.save({"w": np.ones(2, "f4")}, tmp_path / name)
        for allowed in (0o600, 0o644):
            (tmp_path / name).chmod(allowed)
            out = tmp_path / f"{allowed}.{ {'a proposal': 'toml', 'a report': 'html'}.get(way, 'safetensors') }"
            WAYS[way](tmp_path / name, out)
            assert mode(out) == allowed
    finally:
        os.umask(before)


def test_a_ledger_is_its_owners(tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "a.npz")
    ckptconv.zoo([tmp_path / "a.npz"], tmp_path / "out")
    assert mode(tmp_path / "out" / ".ckptconv-zoo.jsonl") == 0o600


@pytest.mark.many
@pytest.mark.parametrize("lay", LAID)
@pytest.mark.parametrize("verb", ["report a.npz -o {}", "match a.npz b.npz -o {}"])
def test_pages_and_proposals_follow_nothing(verb: str, lay: str, tmp_path: Path, cli: Run) -> None:
    name = "rules.toml" if verb.startswith("match") else "page.html"
    home = tmp_path / "home"
    home.mkdir()
    (home / "victim").write_text("mine")
    for path in ("a.npz", "b.npz"):
        ckptconv.save({"w": np.arange(4.0)}, tmp_path / path)
    LAID[lay](tmp_path / name, home)
    before, replaced = seen(home), lay in ("hard link", "file")
    for force in ([], ["--force"]):
        done = cli(*verb.format(name).split(), *force)
        assert done.returncode == (0 if replaced and force else 9)
        assert seen(home) == before
    if lay == "link to nothing":
        done = cli(*verb.format("../" + tmp_path.name + "/a.npz").split(), "--force")
        assert done.returncode == 2


def test_room_is_asked_for_the_sum_before_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard fits, all of them do not."""
    ckptconv.save({f"w{i}": np.ones(1000) for i in range(6)}, tmp_path / "src.npz")
    real = os.statvfs(tmp_path)
    room = os.statvfs_result((real.f_bsize, 512, *real[2:4], 50, *real[5:]))  # 25,600 bytes
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    monkeypatch.setattr(staging.Output, "write", lambda *_: pytest.fail("work began"))
    with pytest.raises(StorageError, match="the disk is full"):
        ckptconv.convert(tmp_path / "src.npz", tmp_path / "o.safetensors", max_shard_size=10_000)
    assert os.listdir(tmp_path) == ["src.npz"]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs none goes on; what is there already may be a living run's."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(StorageError, match=r"has no locks \(no locks available\)"):
        own.AppendLog(str(tmp_path / "ledger"), "another run")
    ckptconv.save(values(), tmp_path / "m.npz")
    (tmp_path / ".n.npz.part").mkdir()
    with pytest.raises(StorageError, match="was left by another run; remove it if none is writing here"):
        ckptconv.save(values(), tmp_path / "n.npz")


def test_what_cannot_be_made_durable_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(staging.Output(str(tmp_path), [OutputFile("m.npz", 3)])) as out:
        out.write("m.npz", 0, b"abc")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            out.fsync()
    assert list(tmp_path.iterdir()) == []
