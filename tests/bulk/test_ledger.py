"""The ledger of a zoo, how workers share its resources, and what its summary says."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv import zoo
from ckptconv.bulk import run, summary
from ckptconv.bulk.discover import discover
from ckptconv.bulk.ledger import Ledger, LedgerEntry, read
from ckptconv.errors import CorruptCheckpoint, StorageError, UsageError


def head(number: int) -> bytes:
    return b'{"at":"","file":%d}\n' % number


ENTRY = LedgerEntry(
    "a/m.npz", "done", "/in/a", (("a", 3, 4),), "5f", True, "h", "npz", 2, 9, 0.5, (("a/m.npz", 9, 0),), "p"
)


def test_a_line_of_the_ledger() -> None:
    assert LedgerEntry("a", "planned", "s", (), "o").line() == (
        b'{"at":"a","state":"planned","source":"s","files":[],"options":"o"}\n'
    )
    assert LedgerEntry("\u00e9\n", "planned", "", (), "").line().isascii()


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 40])
def test_a_torn_line_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.touch()
    first = head(path.stat().st_ino)
    path.write_bytes(first + ENTRY.line() + ENTRY._replace(at="b").line()[:cut])
    with closing(Ledger(str(path), resume=True)) as book:
        assert book.entries == {ENTRY.at: ENTRY}
        book.append([])
        book.append(iter([ENTRY._replace(at="c"), ENTRY._replace(state="failed")]))
        assert {k: e.state for k, e in book.entries.items()} == {ENTRY.at: "failed", "c": "done"}
    assert path.read_bytes().count(b"\n") == 4
    assert read(str(path))[0] == {ENTRY.at: ENTRY._replace(state="failed"), "c": ENTRY._replace(at="c")}
    for torn in (first[:cut], first + ENTRY.line()[:cut]):
        path.write_bytes(torn)
        with closing(Ledger(str(path), resume=bool(torn))) as book:
            book.append([ENTRY])
        assert path.read_bytes() == first + ENTRY.line()
        assert read(str(path))[1]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (ENTRY.line() + b"stranger", "the last line of the ledger is damaged"),
        (ENTRY.line() + b"{}\n", "line 2 of the ledger is damaged"),
        (b"[]\n" + ENTRY.line(), "line 1 of the ledger is damaged"),
        (b"[" * 10**5 + b"\n", "line 1 of the ledger is damaged"),
    ],
)
def test_a_damaged_ledger_is_refused_and_let_go(raw: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpoint, match=words):
        Ledger(str(path), resume=True)
    assert path.read_bytes() == raw
    path.write_bytes(b"")
    Ledger(str(path), resume=False).close()  # nobody holds the lock


@pytest.mark.parametrize("at", ["a", "\u00e9/\udcff", 'quo"te', "back\\slash", "line\nbreak", "x" * 10**5])
def test_every_name_has_its_line(at: str, tmp_path: Path) -> None:
    entry = ENTRY._replace(at=at, source=at * 3)
    with closing(Ledger(str(tmp_path / "ledger"), resume=False)) as book:
        book.append([ENTRY, entry, ENTRY._replace(state="failed")])
        assert book.entries[at] == entry
        assert "none" not in book.entries
    assert read(str(tmp_path / "ledger"))[0] == {at: entry, ENTRY.at: ENTRY._replace(state="failed")}


# --- what a run is given --------------------------------------------------------------------------------------------

MIB = 2**20


@pytest.mark.parametrize(
    ("tasks", "workers", "memory", "wanted"),
    [
        (3, 8, 1024 * MIB, (3, 1024 * MIB // 3, 2)),  # idle workers lend their threads
        (8, 8, 48 * MIB, (3, 16 * MIB, 2)),  # memory for three
    ],
)
def test_workers_share_the_memory(
    tasks: int, workers: int, memory: int, wanted: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(run.pool, "run", lambda *given: asked.append(given) or [])
    for n in range(tasks):
        ckptconv.save({"w": np.zeros(1)}, tmp_path / "in" / f"{n}.npz", sync=False)
    zoo([tmp_path / "in"], tmp_path / "out", jobs=workers, max_memory=memory)
    ((do, todo, count, _),) = asked
    config = do.args[0]
    assert (len(todo), count, config.memory, config.threads) == (tasks, *wanted)


@pytest.mark.parametrize("remote", ["s3://bucket/out", "gs://bucket/out"])
def test_a_remote_folder_needs_a_ledger_here(remote: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs ledger=FILE on this machine: object stores cannot append"):
        zoo([str(tmp_path)], remote)


@pytest.mark.parametrize(
    ("pattern", "follow", "want"),
    [
        ("a//x.pt*", False, ["a/x.pt"]), ("*.pt", False, ["x.pt"]),
        ("*/*.pt", False, ["a/x.pt", "b/j.pt"]),
        ("a/**/x.pt", False, ["a/c/x.pt", "a/x.pt"]),
        ("**/j.pt", False, ["b/j.pt"]), ("d/**/*.pt", False, []),
        ("d/**/*.pt", True, ["d/far/j.pt"]),
    ],
)  # fmt: skip
def test_globs_are_those_of_a_shell(
    pattern: str, follow: bool, want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x.pt", ".h/j.pt", "a/x.pt", "a/c/x.pt", "b/j.pt", "d/n"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("a/z", "d/far"):
        (tmp_path / name).symlink_to(tmp_path / "b", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    for root in ("", f"{tmp_path}/"):
        try:
            found = discover([root + pattern], follow=follow)
        except StorageError:
            found = []
        assert sorted(f.source.removeprefix(f"{tmp_path}/").removeprefix("./") for f in found if not f.problem) == want


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["."], ["y"]), ([".."], ["one/x", "sub/y"]), ([".", "../one"], ["one/x", "y"]),
        (["../one/", "../sub//"], ["one/x", "sub/y"]), (["..", "../one/x.npz"], ["sub/y", "x"]),
    ],
)  # fmt: skip
def test_folders_that_are_named_by_dots_have_no_name(
    sources: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several folders each has its own name before its checkpoints; `.` and `..` name none."""
    for name in ("one/x.npz", "sub/y.npz"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"PK")
    monkeypatch.chdir(tmp_path / "sub")
    assert [f.name for f in discover(sources)] == names


# --- what is said at the end ---


@pytest.mark.parametrize(("causes", "more"), [(20, None), (21, "1 more causes")])
def test_the_summary_shows_twenty_causes(causes: int, more: str | None) -> None:
    letters = ["".join(p) for p in itertools.islice(itertools.product("abcde", repeat=3), causes)]
    failed = tuple(LedgerEntry("", "failed", t, (), "", message=t) for t in letters)
    text = str(summary.Summary(4, 2, failed, 3000, 2.0))
    assert text.count("failed: 1 checkpoint: ") == 20
    assert ("more causes" in text) is bool(more)
    assert (more or "") in text
    assert "warning" not in text
    assert text.endswith(f"4 converted, 2 up to date, {causes} failed; 3.0 kB in 2.0 s (2 per second)")
