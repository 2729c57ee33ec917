"""What a stranger laid where our own files go: nothing is followed, finished, replaced or removed that is not ours."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv import api
from ckptconv.bulk import run
from ckptconv.errors import CkptError, StorageError
from ckptconv.output import own, staging
from ckptconv.output.append_log import AppendLog
from ckptconv.output.destination import OutputFile

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links, pipes and owners are another matter on Windows")
NAMES = [
    ".out.safetensors.deadbeef.part",
    ".out.safetensors.deadbeef.part/out.safetensors",
    ".out.safetensors.deadbeef.part/.ckptconv",
    ".out.safetensors.deadbeef.part.old",
    ".out.safetensors.deadbeef.publish",
    ".out.safetensors.resume.part",
    ".out.safetensors.resume.part/out.safetensors",
    ".out.safetensors.resume.part/out.safetensors.old",
    ".out.safetensors.resume.part/.ckptconv",
    ".out.safetensors.resume.part/.old",
    ".out.safetensors.resume.journal",
    ".ckptconv-zoo.jsonl",
    ".ckptconv-zoo.1-of-1.jsonl",
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


def link_to_file(path: Path, home: Path) -> None:
    path.symlink_to(home / "victim")


def link_to_folder(path: Path, home: Path) -> None:
    path.symlink_to(home)


def dangling(path: Path, home: Path) -> None:
    path.symlink_to(home / "new")


def hard_link(path: Path, home: Path) -> None:
    path.hardlink_to(home / "victim")


def pipe(path: Path, home: Path) -> None:
    os.mkfifo(path)


def door(path: Path, home: Path) -> None:
    where = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(where)


def folder(path: Path, home: Path) -> None:
    path.mkdir()
    (path / "theirs").write_text("theirs")
    (path / "link").symlink_to(home)


def foreign_file(path: Path, home: Path) -> None:
    path.write_text("a line of somebody else, not ended")


Lay = Callable[[Path, Path], None]
LAID: list[Lay] = [link_to_file, link_to_folder, dangling, hard_link, pipe, door, folder, foreign_file]


def laid_out(tmp_path: Path, name: str, lay: Lay) -> tuple[Path, Path]:
    """A checkpoint's folder in which a stranger laid something, and a home that he wants to reach."""
    home, repo = tmp_path / "home", tmp_path / "repo"
    home.mkdir()
    (home / "victim").write_text("mine")
    (home / "out.safetensors").write_text("mine")
    ckptconv.save(values(), repo / "src.npz")
    path = repo / name
    path.parent.mkdir(exist_ok=True)
    lay(path, home)
    return home, repo


def seen(folder: Path) -> dict[str, str]:
    """What is in a folder, and who may read it."""
    return {p.name: f"{p.read_bytes()!r} {mode(p):o}" for p in folder.iterdir()} | {".": f"{mode(folder):o}"}


@pytest.mark.many
@pytest.mark.parametrize("lay", LAID)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_followed(name: str, lay: Lay, tmp_path: Path) -> None:
    """Whatever the options: what lies outside stays, and so does what is laid unless it is litter."""
    home, repo = laid_out(tmp_path, name, lay)
    before = seen(home)
    out = repo / "out.safetensors"
    for options in ({}, {"resume": True}, {"force": True}, {"force": True, "resume": True}):
        with suppress(CkptError):
            api.convert(repo / "src.npz", out, target=api.Target(**options))
        assert seen(home) == before, options
    assert_left(repo / name, lay)


@pytest.mark.parametrize("to", ["tf", "safetensors", "torch"])
@pytest.mark.parametrize("lay", LAID)
def test_what_is_replaced_is_kept_nowhere_else(lay: Lay, to: str, tmp_path: Path) -> None:
    """The folder for it, in a temporary folder that a later run knows by its name."""
    home, repo = laid_out(tmp_path, "laid", lay)
    target = api.Target(to, resume=True, force=True, max_shard_size=None if to == "tf" else 1000)
    out = repo / {"tf": "out"}.get(to, f"out.{to}")
    api.convert(repo / "src.npz", out, target=target)
    made = sorted(p.name for p in repo.iterdir() if p.name.startswith("out"))
    for name in made:
        (home / name).write_text("mine")
    before = seen(home)
    (stage := repo / f".{made[-1]}.resume.part").mkdir()
    (repo / "laid").rename(stage / ".old")
    with suppress(CkptError):
        api.convert(repo / "src.npz", out, target=target)
    assert seen(home) == before
    assert len(ckptconv.open(out)) == 2


def test_no_permissions_are_changed_through_a_link(tmp_path: Path) -> None:
    home, repo = laid_out(tmp_path, ".out.npz.resume.part", link_to_folder)
    home.chmod(0o700)
    for allowed in (0o600, 0o640, 0o644):
        (repo / "src.npz").chmod(allowed)
        with pytest.raises(StorageError):
            api.convert(repo / "src.npz", repo / "out.npz", target=api.Target(resume=True))
        assert mode(home) == 0o700


@pytest.mark.slow
@pytest.mark.parametrize("lay", LAID)
@pytest.mark.parametrize("name", NAMES)
def test_a_zoo_follows_nothing(name: str, lay: Lay, tmp_path: Path) -> None:
    home, repo = laid_out(tmp_path, name, lay)
    before = seen(home)
    for again in (False, True):
        with suppress(CkptError):
            run.convert([str(repo / "src.npz")], str(repo), resume=again)
        assert seen(home) == before
    assert_left(repo / name, lay)


def assert_left(path: Path, lay: Lay) -> None:
    """What is not ours is left to whom it belongs."""
    ledger = path.name.endswith((".journal", ".jsonl", ".publish"))
    if ledger or (lay in (pipe, door) and path.parent.name == "repo"):
        assert os.path.lexists(path)
    if lay is foreign_file and ledger:
        assert path.read_text() == "a line of somebody else, not ended"


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_forged_note_and_a_linked_stage_move_nothing(taken: bool, force: bool, tmp_path: Path) -> None:
    home, repo = laid_out(tmp_path, ".out.safetensors.deadbeef.part", link_to_folder)
    move = [".out.safetensors.deadbeef.part/out.safetensors", "out.safetensors"]
    victim = home / "out.safetensors"
    identity = own.identity(str(victim))  # more than a stranger can know
    for files in ({}, {move[0]: identity}, {move[0]: [0, 0, 0]}):
        note = {"first": [], "moves": [move], "last": [], "files": files}
        (repo / ".out.safetensors.deadbeef.publish").write_text(json.dumps(note))
        if taken:
            (repo / "out.safetensors").write_text("there")
            with suppress(CkptError):
                api.convert(repo / "src.npz", repo / "out.safetensors", target=api.Target(force=force))
        else:
            api.convert(repo / "src.npz", repo / "out.safetensors")
            (repo / "out.safetensors").unlink()
        assert victim.read_text() == "mine"


def test_a_file_of_ours_is_emptied_only_if_it_is_ours(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for path in (mine, theirs):
        path.write_text("longer than what is written next")
    os.link(theirs, tmp_path / "second name")
    with open(own.open_file(str(mine), os.O_WRONLY | os.O_TRUNC), "w") as f:
        f.write("short")
    assert mine.read_text() == "short"
    with pytest.raises(OSError, match="second name"):
        own.open_file(str(theirs), os.O_WRONLY | os.O_TRUNC)
    assert theirs.read_text() == "longer than what is written next"


FORGED = {
    "to another name": {"moves": [["{stage}/theirs.npz", "theirs.npz"]]},
    "from another folder": {"moves": [["photos/out.npz", "out.npz"]]},
    "from another mark": {"moves": [[".out.npz.0123abcd.part/out.npz", "out.npz"]]},
    "under another name": {"moves": [["{stage}/theirs.npz", "out.npz"]]},
    "removes another first": {"first": ["mine"]},
    "removes another last": {"last": ["mine"]},
    "removes what lies above": {"last": ["../home/victim"]},
    "changed since": {},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_note_that_knows_every_number_moves_only_the_destination(what: str, tmp_path: Path) -> None:
    """Numbers and times of files can be guessed by who sees the folder: names are checked as well."""
    home, repo = laid_out(tmp_path, "mine", foreign_file)
    stage = ".out.npz.deadbeef.part"
    for name in (f"{stage}/out.npz", f"{stage}/theirs.npz", "photos/out.npz", ".out.npz.0123abcd.part/out.npz"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text("evil")
    note = {"first": [], "moves": [["{stage}/out.npz", "out.npz"]], "last": [], **FORGED[what]}
    note = json.loads(json.dumps(note).replace("{stage}", stage))
    named = [*note["first"], *note["last"], *(made for made, _ in note["moves"])]
    note["files"] = {name: own.identity(str(repo / name)) for name in named}
    if what == "changed since":  # it has its number still; the clock of a file system goes by some milliseconds
        time.sleep(0.02)
        (repo / named[0]).write_text("evil, too")
    (repo / ".out.npz.deadbeef.publish").write_text(json.dumps(note))
    before = seen(home)
    api.convert(repo / "src.npz", repo / "out.npz")
    assert seen(home) == before
    assert (repo / "mine").exists()
    assert (repo / "photos" / "out.npz").exists()
    assert (repo / ".out.npz.deadbeef.publish").exists()
    assert not (repo / "theirs.npz").exists()


@pytest.mark.parametrize("name", ["journal", "part", "part/out.npz", ".ckptconv-zoo.jsonl"])
def test_what_belongs_to_another_user_is_not_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckptconv.save(values(), tmp_path / "src.npz")
    path = tmp_path / (name if name.startswith(".") else f".out.npz.resume.{name}")
    if name == "part":
        path.mkdir()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
    if name == "part/out.npz":  # of a run that stopped, since else it would be cleared away
        own.mark(str(path.parent))
        monkeypatch.setattr(own, "remove", lambda _: False)
    before = seen(path if name == "part" else path.parent).get(path.name)
    theirs, real = os.lstat(path), os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        return os.stat_result((*found[:4], found[4] + 1, *found[5:])) if os.path.samestat(found, theirs) else found

    def convert() -> object:
        if name == ".ckptconv-zoo.jsonl":
            return run.convert([str(tmp_path / "src.npz")], str(tmp_path), resume=True)
        return api.convert(tmp_path / "src.npz", tmp_path / "out.npz", target=api.Target(resume=True))

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(StorageError, match="belongs to another user"):
        convert()
    assert name == "part/out.npz" or not own.remove(str(path))
    assert seen(path if name == "part" else path.parent).get(path.name) == before


def test_a_forged_note_removes_nothing(tmp_path: Path) -> None:
    """Even with a real stage: neither an older shard nor the index, which are the victim's."""
    ckptconv.save(values(), tmp_path / "src.npz")
    stage = tmp_path / ".out.safetensors.deadbeef.part"
    stage.mkdir()
    (stage / "out.safetensors").write_text("evil")
    older = tmp_path / "out-00001-of-00002.safetensors"
    older.write_text("mine")
    move = [".out.safetensors.deadbeef.part/out.safetensors", "out.safetensors"]
    note = {"first": [], "moves": [move], "last": [older.name], "files": {}}
    (tmp_path / ".out.safetensors.deadbeef.publish").write_text(json.dumps(note))
    with pytest.raises(StorageError, match="same name"):
        api.convert(tmp_path / "src.npz", tmp_path / "out.safetensors")
    assert older.read_text() == "mine"
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("marker", [None, b"", b"1 2\n"])
def test_a_refused_run_clears_only_what_is_proved_to_be_ours(marker: bytes | None, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "src.npz")
    (tmp_path / "out.safetensors").write_text("there")
    theirs = tmp_path / ".out.safetensors.0123abcd.part"
    theirs.mkdir()
    (theirs / "photo").write_text("theirs")
    if marker is not None:  # of another folder, or of none
        (theirs / own.MARKER).write_bytes(marker)
    with pytest.raises(StorageError, match="already exists"):
        api.convert(tmp_path / "src.npz", tmp_path / "out.safetensors")
    assert (theirs / "photo").read_text() == "theirs"


def test_a_folder_that_a_killed_run_had_replaced_keeps_what_is_not_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the new folder took its place, before a stranger's file moved over."""
    source = tmp_path / "src.npz"
    ckptconv.save(values(), source)
    npy = api.Target("npy", force=True, verify="none")
    api.convert(source, tmp_path / "out", target=npy)
    (tmp_path / "out" / "README").write_text("mine")
    real, renames = os.replace, [2]

    def killed(*args: object) -> None:
        renames[0] -= 1
        if renames[0] < 0:
            os._exit(9)
        real(*args)  # type: ignore[arg-type]

    pid = os.fork()
    if not pid:
        monkeypatch.setattr(os, "replace", killed)
        api.convert(source, tmp_path / "out", target=npy)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (tmp_path / "out" / "README").exists()
    api.convert(source, tmp_path / "out", target=npy)
    assert (tmp_path / "out" / "README").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["out", "src.npz"]


# --- destinations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["npz", "safetensors", "npy", "tf", "torch"])
@pytest.mark.parametrize("lay", [link_to_file, dangling, pipe, door])
def test_only_a_regular_file_is_replaced(lay: Lay, to: str, tmp_path: Path) -> None:
    base = {"npy": "out.npy", "tf": "out"}.get(to, f"out.{to}")
    home, repo = laid_out(tmp_path, base + (".index" if to == "tf" else ""), lay)
    before = seen(home)
    ckptconv.save({"w": np.ones(3)}, repo / "one.npz")
    for resume in (False, True):
        with pytest.raises(StorageError, match="only a regular file is replaced"):
            api.convert(repo / "one.npz", repo / base, target=api.Target(to, force=True, resume=resume))
    assert seen(home) == before
    assert len(os.listdir(repo)) == 3


def test_force_removes_files_only(tmp_path: Path) -> None:
    """A folder or a link that is called as an older shard is not one."""
    for name, to, keep in [
        ("model.safetensors", "safetensors", "model-00002-of-00009.safetensors"),
        ("x", "tf", "x.data-00007-of-00009"),
    ]:
        (tmp_path / keep / "mydata").mkdir(parents=True)
        (tmp_path / keep / "mydata" / "f").write_text("mine")
        ckptconv.save(values(), tmp_path / name, format=to, force=True)
        assert (tmp_path / keep / "mydata" / "f").read_text() == "mine"


@pytest.mark.parametrize("photo", [b"mine", None])
@pytest.mark.parametrize("resume", [False, True])
def test_an_npy_that_is_not_the_checkpoints_is_not_removed(photo: bytes | None, resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "n"
    ckptconv.save({"w": np.ones(3)}, out, format="npy")
    if photo is None:
        np.save(out / "photo.npy", np.zeros(4))
    else:
        (out / "photo.npy").write_bytes(photo)
    (out / "dir.npy").mkdir()
    (out / "dir.npy" / "f").write_text("mine")
    before = (out / "photo.npy").read_bytes()
    with pytest.raises(StorageError, match=r"2 files there would be read as part"):
        ckptconv.save({"w": np.ones(3)}, out, format="npy", force=True, resume=resume)
    assert (out / "photo.npy").read_bytes() == before
    assert (out / "dir.npy" / "f").read_text() == "mine"


def test_the_state_file_of_a_training_run_stays(tmp_path: Path) -> None:
    """Else the checkpoint that is exported into its folder would be the one that training goes on from."""
    state = 'model_checkpoint_path: "model.ckpt-9000"\nall_model_checkpoint_paths: "model.ckpt-9000"\n'
    ckptconv.save(values(), tmp_path / "model.ckpt-9000", format="tf")
    (tmp_path / "checkpoint").write_text(state)
    plan = ckptconv.dry_run(tmp_path / "model.ckpt-9000", tmp_path / "export", target=api.Target("tf"))
    said = [n for n in plan.notes if n.names == ("checkpoint",)]
    assert len(said) == 1
    assert "stays as it is" in said[0].text
    for options in ({}, {"force": True}, {"force": True, "resume": True}):
        report = api.convert(tmp_path / "model.ckpt-9000", tmp_path / "export", target=api.Target("tf", **options))
        assert said[0] in report.notes
        assert (tmp_path / "checkpoint").read_text() == state
    assert len(ckptconv.open(tmp_path / "export")) == 2
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_the_state_file_of_the_same_checkpoint_is_no_matter(tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "m.ckpt", format="tf")
    again = ckptconv.save(values(), tmp_path / "m.ckpt", format="tf", force=True)
    assert not [n for n in again.notes if "checkpoint" in n.names]


# --- modes and room ---------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("to", "name"), [("safetensors", "o.safetensors"), ("npy", "o"), ("tf", "o.ckpt")])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_private_stays_private(to: str, name: str, resume: bool, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        source = tmp_path / "src.npz"
        ckptconv.save(values(), source)
        out = tmp_path / "out" / name
        for private, replaced, want in [
            (0o644, None, 0o644),
            (0o644, 0o600, 0o600),
            (0o600, None, 0o600),
            (0o640, None, 0o640),
        ]:
            source.chmod(private)
            for path in (tmp_path / "out").rglob("*") if replaced else ():
                if path.is_file():
                    path.chmod(replaced)
            api.convert(source, out, target=api.Target(to, force=True, resume=resume))
            made = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name != "checkpoint"]
            assert {oct(mode(p)) for p in made} == {oct(want)}
            for path in made:
                path.unlink() if replaced or private != 0o644 else None
            if out.is_dir() and not list(out.iterdir()):
                out.rmdir()
    finally:
        os.umask(before)


RENAMED = api.Change(renames=("{x}=a.{x}",))
WAYS: dict[str, Callable[[Path, Path], object]] = {  # from a checkpoint to another that has its values
    "opened": lambda src, out: ckptconv.save(ckptconv.open(src), out),
    "its tensors": lambda src, out: ckptconv.save(dict(ckptconv.open(src)), out),
    "without hashes": lambda src, out: ckptconv.save(ckptconv.open(src), out, verify="none"),
    "prepared": lambda src, out: ckptconv.save(api.prepare([src], api.Select(), api.Change()), out),
    "renamed": lambda src, out: ckptconv.save(api.prepare([src], api.Select(), RENAMED, guard=True), out),
    "written": lambda src, out: api.write(api.prepare([src], api.Select(), api.Change()), out),
    "none of its tensors": lambda src, out: ckptconv.save(ckptconv.open(src).with_tensors({}), out, verify="none"),
    "into a module": lambda src, out: converted(src, "-o", out, "--into", "private_net:net"),
}
NET = """
import torch
def net():
    made = torch.nn.Module()
    made.w = torch.nn.Parameter(torch.zeros(2))
    return made
"""


def converted(*argv: object) -> None:
    from ckptconv.cli.main import main

    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as e:
        main([*map(str, argv)])
    assert not e.value.code


@pytest.mark.parametrize("way", WAYS)
def test_whatever_way_it_went_it_stays_private(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its values are a module's before they are written, or were in memory as soon as it was open."""
    (tmp_path / "private_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    before = os.umask(0o022)
    try:
        for name in ("src.safetensors", "src.msgpack", "src.pt"):
            ckptconv.save({"w": np.ones(2, "f4")}, tmp_path / name)
            for allowed in (0o600, 0o644):
                (tmp_path / name).chmod(allowed)
                WAYS[way](tmp_path / name, tmp_path / f"{name}.{allowed}.safetensors")
                assert mode(tmp_path / f"{name}.{allowed}.safetensors") == allowed
    finally:
        os.umask(before)


def test_what_a_stranger_laid_open_is_closed_before_it_is_filled(tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "src.npz")
    (tmp_path / "src.npz").chmod(0o600)
    stage = tmp_path / ".out.npz.resume.part"
    stage.mkdir()
    (stage / "out.npz").write_bytes(b"")
    stage.chmod(0o777)
    (stage / "out.npz").chmod(0o666)
    seen = set[str]()

    def progress(*_: int) -> None:
        seen.update(oct(mode(p)) for p in (stage, stage / "out.npz") if p.exists())

    given = {"target": api.Target(resume=True), "resources": api.Resources(progress=progress)}
    api.convert(tmp_path / "src.npz", tmp_path / "out.npz", **given)
    assert mode(tmp_path / "out.npz") == 0o600
    assert seen <= {"0o700", "0o600"}


@pytest.mark.parametrize("allowed", [0o777, 0o750, 0o600, 0o666])
def test_its_owner_can_enter_a_temporary_folder(allowed: int, tmp_path: Path) -> None:
    with staging.Output(str(tmp_path), [OutputFile("a", 1)], mode=allowed) as out:
        assert mode(Path(out.paths()["a"]).parent) & 0o700 == 0o700


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As any other user can, who may open it."""
    fcntl = pytest.importorskip("fcntl")
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    yield
    os.close(fd)


def test_a_lock_of_somebody_else_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "PATIENCE", 0.1)
    monkeypatch.setattr(staging, "TRIES", 3)
    ckptconv.save(values(), tmp_path / "src.npz")
    stage = tmp_path / "out" / ".out.npz.resume.part"
    stage.mkdir(parents=True)
    for at, resume, words in (
        (tmp_path / "out", False, "another process has kept it locked"),
        (stage, True, "another process has this temporary folder open"),
    ):
        with locked(at), pytest.raises(StorageError, match=words):
            api.convert(tmp_path / "src.npz", tmp_path / "out" / "out.npz", target=api.Target(resume=resume))
        assert not (tmp_path / "out" / "out.npz").exists()


@pytest.mark.parametrize("to", ["npy", "hf", "orbax"])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_a_link_is_not_written_into(to: str, force: bool, tmp_path: Path) -> None:
    ckptconv.save(values(), tmp_path / "src.npz")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "model-00001-of-00003.safetensors").write_text("mine")
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "out").symlink_to("../victim")
    with pytest.raises(StorageError, match="out: is a link out of its folder"):
        api.convert(tmp_path / "src.npz", tmp_path / "repo" / "out", target=api.Target(to, force=force))
    assert os.listdir(tmp_path / "victim") == ["model-00001-of-00003.safetensors"]


@pytest.mark.parametrize("verb", ["report", "match", "match open"])
def test_pages_and_proposals_are_outputs_too(verb: str, tmp_path: Path) -> None:
    """They are as private as what they show, and lead nowhere else."""
    ckptconv.save(values(), tmp_path / "a.npz")
    ckptconv.save(values(), tmp_path / "b.npz")
    (tmp_path / "a.npz").chmod(0o600)

    def made(out: Path, force: bool = False) -> None:
        if verb == "report":
            ckptconv.report(tmp_path / "a.npz", output=out, force=force)
        else:
            source = ckptconv.open(tmp_path / "a.npz") if verb == "match open" else tmp_path / "a.npz"
            ckptconv.match(source, tmp_path / "b.npz", output=out, force=force)

    before = os.umask(0o022)
    try:
        made(tmp_path / "out.toml")
    finally:
        os.umask(before)
    assert mode(tmp_path / "out.toml") == 0o600
    for at, target in (("dangling", "home/new"), ("link", "out.toml")):
        (tmp_path / at).symlink_to(tmp_path / target)
        for force in (False, True):
            with pytest.raises(StorageError, match=r"is a link|already exists"):
                made(tmp_path / at, force)
    assert not (tmp_path / "home").exists()
    with pytest.raises(ckptconv.UsageError, match=r"a\.npz' is read here"):
        made(tmp_path / "home" / ".." / "a.npz", force=True)


def test_a_ledger_is_its_owners(tmp_path: Path, cli: Run) -> None:
    """And so is the page that shows it."""
    ckptconv.save(values(), tmp_path / "a.npz")
    ckptconv.zoo([tmp_path / "a.npz"], tmp_path / "out")
    assert cli("zoo", "report", "out").returncode == 0
    assert mode(tmp_path / "out" / ".ckptconv-zoo.jsonl") == mode(tmp_path / "out.zoo.html") == 0o600


@pytest.mark.many
@pytest.mark.parametrize("lay", LAID)
@pytest.mark.parametrize("verb", ["report a.npz -o {}", "match a.npz b.npz -o {}", "zoo report zoo -o {}"])
def test_pages_and_proposals_follow_nothing(verb: str, lay: Lay, tmp_path: Path, cli: Run) -> None:
    name = "rules.toml" if verb.startswith("match") else "page.html"
    home = tmp_path / "home"
    home.mkdir()
    (home / "victim").write_text("mine")
    for path in ("a.npz", "b.npz"):
        ckptconv.save({"w": np.arange(4.0)}, tmp_path / path)
    if verb.startswith("zoo"):
        ckptconv.zoo([tmp_path / "a.npz"], tmp_path / "zoo")
    lay(path := tmp_path / name, home)
    before, what, replaced = seen(home), os.lstat(path).st_ino, lay in (hard_link, foreign_file)
    for force in ([], ["--force"]):
        done = cli(*verb.format(name).split(), *force)
        assert done.returncode == (0 if replaced and force else 9)
        assert seen(home) == before
    assert replaced or os.lstat(path).st_ino == what


def test_room_is_asked_for_the_sum_before_work_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard fits, all of them do not."""
    ckptconv.save({f"w{i}": np.ones(1000) for i in range(6)}, tmp_path / "src.npz")
    real = os.statvfs(tmp_path)
    room = os.statvfs_result((real.f_bsize, 512, *real[2:4], 50, *real[5:]))  # 25,600 bytes
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    monkeypatch.setattr(os, "fstatvfs", lambda _: room)
    monkeypatch.setattr(staging.Output, "write", lambda *_: pytest.fail("work began"))
    with pytest.raises(StorageError, match="the disk is full"):
        ckptconv.convert(tmp_path / "src.npz", tmp_path / "o.safetensors", target=api.Target(max_shard_size=10_000))
    assert os.listdir(tmp_path) == ["src.npz"]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(StorageError, match=r"has no locks \(no locks available\)"):
        AppendLog(str(tmp_path / "ledger"), "another run")
    ckptconv.save(values(), tmp_path / "m.npz")  # what needs none goes on
    assert len(ckptconv.open(tmp_path / "m.npz")) == 2


def test_a_log_is_read_from_its_beginning_whatever_was_written(tmp_path: Path) -> None:
    log = AppendLog(str(tmp_path / "new" / "log"), "another run")
    assert (list(log.read()), log.size) == ([], 0)
    for text in (b"one\n", b"two\nthree\n"):
        log.append(text)
    assert list(log.read()) == list(log.read()) == [b"one\n", b"two\n", b"three\n"]
    assert (log.size, log.read_at(4, 3), log.read_at(10, 99)) == (14, b"two", b"ree\n")
    log.cut(8)
    log.append(b"end")
    assert list(log.read()) == [b"one\n", b"two\n", b"end"]
    with pytest.raises(StorageError, match="another run"):
        AppendLog(log.path, "another run")
    log.close()
    log.close()
    assert list(AppendLog(log.path, "another run").read()) == [b"one\n", b"two\n", b"end"]


def test_what_cannot_be_made_durable_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AppendLog(str(tmp_path / "log"), "another run")
    log.append(b"one\n")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            log.append(b"two\n")
    log.append(b"three\n")
    assert list(log.read()) == [b"one\n", b"three\n"]
    with pytest.raises(StorageError):
        log.read_at(-1, 1)
    log.close()


# --- the lock of a temporary folder -------------------------------------------------------------------------------


def test_a_temporary_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 while another run holds it, and for one that was cleared away and made again in the meantime."""
    pytest.importorskip("fcntl")
    path = tmp_path / "stage"
    path.mkdir()
    first = own.lock_folder(str(path))
    assert first >= 0
    assert own.lock_folder(str(path)) == -1
    os.close(first)
    real = own.lock

    def slow(fd: int) -> bool:
        path.rename(tmp_path / f"cleared {again}")
        if again:
            path.mkdir()
        return real(fd)

    monkeypatch.setattr(own, "lock", slow)
    for again in (True, False):
        assert own.lock_folder(str(path)) == -1, again
    monkeypatch.undo()
    path.mkdir()
    os.close(own.lock_folder(str(path)))


def test_a_file_system_without_locks_has_temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int) -> bool:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(own, "lock", none)
    fd = own.lock_folder(str(tmp_path))
    assert os.path.samestat(os.fstat(fd), tmp_path.stat())
    os.close(fd)


def test_what_cannot_be_made_durable_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with staging.Output(str(tmp_path), [OutputFile("m.npz", 3)]) as out:
        out.write("m.npz", 0, b"abc")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            out.fsync()
    assert list(tmp_path.iterdir()) == []
