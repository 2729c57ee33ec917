"""What a stranger can put into the tree, the manifest, the output folder or the ledger of a zoo."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import ckptconv
from ckptconv import api
from ckptconv.bulk import planning, room, run
from ckptconv.bulk.discover import discover
from ckptconv.engine.journal import MAX_HEAD
from ckptconv.errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ckptconv.output.append_log import LONGEST

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


def save(path: Path, value: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ckptconv.save({"w": np.full(4, value)}, path)
    return path


# --- trees ------------------------------------------------------------------------------------------------------------


def loops(folder: Path) -> None:
    """Two links to their own folder: 2^40 paths, before the system refuses them."""
    for name in ("x", "y"):
        (folder / name).symlink_to(".")


def deep(folder: Path) -> None:
    save(folder / "/".join("a" * 14) / "m.npz")


def both_ways(folder: Path) -> None:
    for a, b in (("p", "q"), ("q", "p")):
        (folder / a).mkdir()
        for i in range(8):
            (folder / a / f"l{i}").symlink_to(f"../{b}")


@pytest.mark.parametrize("lay", [loops, deep, both_ways])
@pytest.mark.parametrize("pattern", ["**/*.npz", "**/**/**/**/**/**/**/*.npz", "**/a/**/a/**/a/**/*.npz", "**"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_glob_takes_each_folder_once(lay: Callable[[Path], None], pattern: str, follow: bool, tmp_path: Path) -> None:
    save(tmp_path / "t" / "a" / "m.npz")
    lay(tmp_path / "t")
    if "a/**/a" in pattern and lay is not deep:
        with pytest.raises(UsageError, match="nothing matches"):
            discover([str(tmp_path / "t" / pattern)], follow=follow)
        return
    found = discover([str(tmp_path / "t" / pattern)], follow=follow)
    assert all(f.problem is None for f in found)
    assert len({os.path.realpath(f.source) for f in found}) == len(found) >= 1


# --- output folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_an_output_does_not_leave_its_folder_by_a_link(taken: bool, force: bool, tmp_path: Path) -> None:
    """The output folder came with the checkpoints, and holds a link to a folder of the user."""
    save(tmp_path / "in" / "a" / "m.npz")
    home = tmp_path / "home"
    home.mkdir()
    if taken:
        (home / "m.safetensors").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(home)
    done = run.convert([str(tmp_path / "in")], str(tmp_path / "out"), run.Settings(target=api.Target(force=force)))
    assert "a link in the output folder leads out of it" in str(done)
    assert {p.name: p.read_text() for p in home.iterdir()} == ({"m.safetensors": "mine"} if taken else {})


def test_what_a_linked_folder_holds_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the link is allowed, and where it stays inside."""
    save(tmp_path / "in" / "a" / "m.npz")
    for name in ("away", "out/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "m.safetensors").write_text("mine")
    monkeypatch.setenv("CKPTCONV_LINKS", str(tmp_path / "away"))
    for target in ("../away", "b"):
        (tmp_path / "out" / "a").symlink_to(target)
        done = run.convert([str(tmp_path / "in")], str(tmp_path / "out"))
        assert "already exists" in str(done)
        assert (tmp_path / "out" / "a" / "m.safetensors").read_text() == "mine"
        (tmp_path / "out" / "a").unlink()
        (tmp_path / "out" / run.NAME).unlink()


def test_two_ways_to_one_place_clash(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a" / "m.npz", 1.0)
    save(tmp_path / "in" / "b" / "m.npz", 2.0)
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "a").symlink_to("b")
    done = run.convert([str(tmp_path / "in")], str(tmp_path / "out"))
    assert (done.done, len(done.failed)) == (0, 2)
    assert "would both become b/m.safetensors" in str(done)


# --- manifests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"destination": "x/o.npz"}, {"source": "b.npz", "destination": "x/./o.npz"}], "would both become x/o.npz"),
        ([{"destination": "x/o.npz"}, {"source": "b.npz", "destination": "x//o.npz"}], "would both become x/o.npz"),
        ([{"destination": "o.npz"}, {"destination": "o.npz", "dtype": "float16"}], "would both become o.npz"),
        ([{"destination": run.NAME}], "and the ledger would both become"),
        ([{"destination": "./" + run.NAME.upper()}], "and the ledger would both become"),
        ([{"destination": "x" * 300 + "/o.npz"}], "name too long"),
        ([{"destination": "x/" * 3000 + "o.npz"}], "name too long"),
        ([{"source": "t"}], "a row is one checkpoint, and 2 checkpoints are there"),
        ([{"source": "t/*"}], "a row is one checkpoint, and 2 checkpoints are there"),
        ([{"source": "m.jsonl"}], "has an unknown format"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.many
def test_a_row_that_cannot_be_is_a_failure(rows: list[dict[str, str]], says: str, force: bool, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz", "t/c.npz", "t/d.npz", "sound.npz"):
        save(tmp_path / name)
    lines = [{"source": "a.npz", "to": "npz", **row} for row in rows] + [{"source": "sound.npz"}]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    target = run.Settings(target=api.Target(force=force))
    done = run.convert([str(tmp_path / "m.jsonl")], str(tmp_path / "out"), target)
    assert says in str(done)
    assert (done.done, len(done.failed)) == (1, len(rows))
    assert set(run.read_ledger(str(tmp_path / "out"))) >= {"sound.safetensors"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"source": "a\0.npz"}, "holds a NUL"), ({"source": "a\ud800"}, "holds a NUL"),
        ({"destination": "a\0"}, "holds a NUL"), ({"destination": "a\udfff"}, "holds a NUL"),
        ({"destination": "file:///tmp/x"}, "not below"), ({"destination": "s3://b/x"}, "not below"),
        ({"destination": "a/../../x"}, "not below"), ({"destination": "/x"}, "not below"),
        ({"options": [1]}, "must be an object"), ({"max_shard_size": 1e999}, "must be of type int"),
    ],
)  # fmt: skip
def test_a_row_of_nonsense_is_named(row: dict[str, object], says: str, tmp_path: Path) -> None:
    save(tmp_path / "a.npz")
    (tmp_path / "m.jsonl").write_text(json.dumps({"source": "a.npz", **row}))
    with pytest.raises(UsageError, match=f"(?s)1 row of the manifest cannot be parsed.*{says}"):
        planning.plan([str(tmp_path / "m.jsonl")], str(tmp_path / "out"))


# --- ledgers and journals ---------------------------------------------------------------------------------------------

ENTRY = {"at": "a.safetensors", "state": "done", "source": "x", "files": [], "options": ""}


@pytest.mark.parametrize(
    "changed",
    [
        {"at": {}}, {"at": [1]}, {"at": 5}, {"state": [1]}, {"source": None}, {"options": 7}, {"message": {}},
        {"ours": "yes"}, {"files": [["a", float("inf"), 0]]}, {"written": [["a", 1e999]]},
        {"files": [["a", "1" * 5000, 0]]}, {"more": 1},
    ],
)  # fmt: skip
def test_a_forged_ledger_is_damaged(changed: dict[str, object], tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    (tmp_path / run.NAME).write_text(json.dumps({**ENTRY, **changed}) + "\n")
    with pytest.raises(CorruptCheckpoint, match="line 1 of the ledger is damaged"):
        run.convert([str(source)], str(tmp_path), resume=True)
    with pytest.raises(CorruptCheckpoint, match="line 1 of the ledger is damaged"):
        dict(run.read_ledger(str(tmp_path)))


@pytest.mark.parametrize("begin", [b"", b'{"at":"a'])
def test_a_ledger_of_a_terabyte_is_not_read(begin: bytes, tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    with open(tmp_path / run.NAME, "wb") as f:
        f.write(begin)
        f.truncate(2**40)
    with pytest.raises(StorageError, match="an earlier conversion has a ledger here"):
        run.convert([str(source)], str(tmp_path))
    with pytest.raises(CkptError, match=f"a line of more than {LONGEST} bytes"):
        run.convert([str(source)], str(tmp_path), resume=True)


@pytest.mark.parametrize("name", ["\0", "\ud800", "a/../../b", "/", "a/", "", "x" * 3000, {}, ["a"]])
def test_a_forged_journal_names_nothing(name: object, tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    head = json.dumps({"plan": "x", "files": [name]}, separators=(",", ":"))
    (tmp_path / ".o.npz.resume.journal").write_text(head + "\n")
    assert api.convert(source, tmp_path / "o.npz", resume=True).tensors == 1


@pytest.mark.parametrize("name", [".o.npz.resume.journal", ".o.npz.deadbeef.publish"])
def test_a_journal_of_a_terabyte_is_not_read(name: str, tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    with open(tmp_path / name, "wb") as f:
        f.truncate(2**40)
    if name.endswith("journal"):
        with pytest.raises(CkptError, match=f"a line of more than {MAX_HEAD} bytes"):
            api.convert(source, tmp_path / "o.npz", resume=True)
    else:
        assert api.convert(source, tmp_path / "o.npz").tensors == 1
        assert (tmp_path / name).stat().st_size == 2**40


# --- room -------------------------------------------------------------------------------------------------------------


class Space(NamedTuple):
    f_bavail: int
    f_frsize: int = 1


@pytest.mark.many
@pytest.mark.parametrize(
    ("free", "dtype", "missing"),
    [
        (25_000, None, ""),
        (20_000, None, "4.6 kB are missing"),
        (10_000, "float16", ""),
        (5_000, "float16", "are missing"),
    ],
)
def test_the_room_for_all_outputs_is_asked_for_first(
    free: int, dtype: str | None, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has room; what cannot be read needs none."""
    for name in "abc":
        ckptconv.save({"w": np.arange(1000.0)}, tmp_path / "in" / f"{name}.npz")
    (tmp_path / "in" / "damaged.npz").write_bytes(b"PK\3\4")
    monkeypatch.setattr(os, "statvfs", lambda _: Space(free))
    settings = run.Settings(change=api.Change(dtype=dtype))
    if missing:
        with pytest.raises(StorageError, match=f"4 outputs need .* {missing}; nothing was changed"):
            run.convert([str(tmp_path / "in")], str(tmp_path / "out"), settings)
        assert [p.stat().st_size for p in (tmp_path / "out").iterdir()] == [0]  # the ledger
    done = run.convert([str(tmp_path / "in")], str(tmp_path / "out"), settings) if not missing else None
    assert done is None or (done.done, len(done.failed)) == (3, 1)


def test_where_there_is_plenty_nothing_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = planning.plan([str(save(tmp_path / "a.npz"))], str(tmp_path / "out"))
    monkeypatch.setattr(os, "statvfs", lambda _: Space(room.PLENTY * item[0].found.size))
    monkeypatch.setattr(room.pool, "run", lambda *_: pytest.fail("planned"))
    room.check(item, str(tmp_path / "out"), 1)


def test_what_is_replaced_makes_room(tmp_path: Path) -> None:
    (item,) = planning.plan([str(save(tmp_path / "a.npz"))], str(tmp_path / "out"))
    need = room.needed(str(tmp_path / "out"), item)
    ckptconv.convert(tmp_path / "a.npz", tmp_path / "out" / item.at)
    assert need == (tmp_path / "out" / item.at).stat().st_size
    assert room.needed(str(tmp_path / "out"), item) == 0
