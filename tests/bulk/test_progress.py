"""What `zoo status` tells of a zoo, also of ledgers that a stranger wrote."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

from kit import Run

import ckptconv
from ckptconv.bulk.ledger import NAME, Ledger, LedgerEntry
from ckptconv.bulk.summary import zoo_status


def entry(at: str, state: Any, **more: Any) -> LedgerEntry:
    return LedgerEntry(at, state, f"/in/{at}", (("f", 1000, 1),), "o", **more)


def ledger(folder: Path, *entries: LedgerEntry, name: str = NAME) -> str:
    with closing(Ledger(str(folder / name), resume=True)) as book:
        book.append(entries)
    return str(folder)


def test_what_is_done_and_what_failed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(3):
        ckptconv.save({"w": [1.0] * 10 ** (n + 1)}, tmp_path / "in" / f"m{n}.npz")
    (tmp_path / "in" / "bad.npz").write_bytes(b"PK\3\4 and no more")
    out = str(tmp_path / "out")
    ckptconv.zoo(tmp_path / "in", out, jobs=1)
    found = zoo_status(out)
    assert (found.done, dict(found.formats), found.rate) == (3, {"npz": 3}, 3 / 60)
    assert "3 of 4 checkpoints converted" in str(found)
    assert "bad.npz" in str(found)


def test_shares_and_what_is_left(tmp_path: Path) -> None:
    ledger(tmp_path, entry("a", "done", ended=6000, seconds=2.0), name=".ckptconv-zoo.1-of-2.jsonl")
    ledger(tmp_path, *(entry(f"{n:02}", "planned") for n in range(99)), name=".ckptconv-zoo.2-of-2.jsonl")
    words = str(zoo_status(str(tmp_path)))
    assert "1 of 100 checkpoints converted" in words
    assert "1.0 per minute" in words


EVIL = "</style>&amp;\u202e\x1b[31m\ud800 {{ url }}"


def test_names_and_messages_are_text(tmp_path: Path, cli: Run) -> None:
    entries = [
        entry(EVIL, "done", format=EVIL, size=5), entry("b" + EVIL, "failed", error=EVIL, message=EVIL),
        entry("c" + EVIL, "planned"), entry("long", "failed", error="E", message="x" * 10**6),
    ]  # fmt: skip
    folder = tmp_path / "<b>&"
    folder.mkdir()
    text = cli("zoo", "status", ledger(folder, *entries)).stderr
    assert "1 of 4 checkpoints" in text
    assert not re.search("[\u202e\x1b\ud800]", text)
    assert len(text) < 60_000


def test_on_the_command_line(tmp_path: Path, cli: Run) -> None:
    (tmp_path / "out").mkdir()
    ledger(tmp_path / "out", entry("c", "failed", error="E", message="a link; follow_links=True follows it"))
    assert "a link; --follow-links follows it" in cli("zoo", "status", "out").stderr
    assert "has no ledger" in cli("zoo", "status", ".").stderr
    (tmp_path / NAME).write_text("{}\n")
    assert "line 1 of the ledger is damaged" in cli("zoo", "status", ".").stderr
