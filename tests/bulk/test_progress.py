"""The progress page of a zoo, also of ledgers that a stranger wrote."""

from __future__ import annotations

import json
import re
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from kit import Run

import ckptconv
from ckptconv.bulk.ledger import NAME, Ledger, LedgerEntry
from ckptconv.bulk.summary import failures, zoo_status
from ckptconv.reporting.html import zoo_name as default_name, zoo_page as page


def entry(at: str, state: Any, **more: Any) -> LedgerEntry:
    return LedgerEntry(at, state, f"/in/{at}", (("f", 1000, 1),), "o", **more)


def ledger(folder: Path, *entries: LedgerEntry, name: str = NAME) -> str:
    with closing(Ledger(str(folder / name), resume=True)) as book:
        book.append(entries)
    return str(folder)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes = set[str](), set[str]()
        self.words = list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shown(folder: str) -> Elements:
    return Elements(made(folder))


def made(folder: str) -> str:
    found = zoo_status(folder)
    return page(folder, 0.5, found.lines()[-2:], {"Failures by cause": failures(found.failed)})


def test_what_a_page_says(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(3):
        ckptconv.save({"w": [1.0] * 10 ** (n + 1)}, tmp_path / "in" / f"m{n}.npz")
    (tmp_path / "in" / "bad.npz").write_bytes(b"PK\3\4 and no more")
    out = str(tmp_path / "out")
    ckptconv.zoo(tmp_path / "in", out, jobs=1)
    found = zoo_status(out)
    assert (found.done, dict(found.formats), found.rate) == (3, {"npz": 3}, 3 / 60)
    words = " ".join(" ".join(shown(out).words).split())
    for text in (
        "3 of 4 checkpoints converted",
        "Failures by cause",
        "bad.npz",
    ):
        assert text in words


def test_shares_and_what_is_left(tmp_path: Path) -> None:
    ledger(tmp_path, entry("a", "done", ended=6000, seconds=2.0), name=".ckptconv-zoo.1-of-2.jsonl")
    ledger(tmp_path, *(entry(f"{n:02}", "planned") for n in range(99)), name=".ckptconv-zoo.2-of-2.jsonl")
    words = " ".join(shown(str(tmp_path)).words)
    assert "1 of 100 checkpoints converted" in words
    assert "1.0 per minute" in words
    assert "<title>99 % of out<" in page("out", 0.999, ["", ""], {}), "not all"


EVIL = "</style><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u202e\x1b[31m\ud800 {{ url }}"


def test_names_and_messages_are_text(tmp_path: Path) -> None:
    entries = [
        entry(EVIL, "done", format=EVIL, size=5), entry("b" + EVIL, "failed", error=EVIL, message=EVIL),
        entry("c" + EVIL, "planned"), entry("long", "failed", error="E", message="x" * 10**6),
    ]  # fmt: skip
    folder = tmp_path / "<b>&"
    folder.mkdir()
    found = shown(ledger(folder, *entries))
    assert not found.tags & {"script", "img", "iframe", "object", "embed", "link", "a", "form", "b>"}
    assert not [a for a in found.attributes if a.startswith("on") or a in ("src", "href", "style")]
    text = made(str(folder))
    assert not re.search("[\u202e\x1b\ud800]", text)
    assert len(text) < 60_000
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")


def test_on_the_command_line(tmp_path: Path, cli: Run) -> None:
    (tmp_path / "out").mkdir()
    ledger(tmp_path / "out", entry("a", "done"))
    assert "out.zoo.html: " in cli("zoo", "report", "out/").stderr
    ledger(tmp_path / "out", entry("c", "failed", error="E", message="a link; follow_links=True follows it"))
    assert cli("zoo", "report", "out").returncode == 9, "it exists"
    assert cli("zoo", "report", "out", "--force", "-q").stderr == ""
    assert "a link; --follow-links follows it" in (tmp_path / "out.zoo.html").read_text()
    assert "a link; --follow-links follows it" in cli("zoo", "status", "out").stderr
    said = json.loads(cli("zoo", "report", "out", "-o", "page.html", "--json").stdout)
    assert said == {"output": "page.html", "bytes": (tmp_path / "page.html").stat().st_size}
    assert cli("zoo", "report", "page.html", "-o", "page.html", "--force").returncode != 0, "a ledger is not replaced"
    assert "has no ledger" in cli("zoo", "report", ".").stderr
    (tmp_path / NAME).write_text("{}\n")
    assert "line 1 of the ledger is damaged" in cli("zoo", "report", ".").stderr


def test_names_of_pages() -> None:
    assert [default_name(f) for f in ("out", "a/out/", "/x/l.jsonl")] == ["out.zoo.html"] * 2 + ["l.jsonl.zoo.html"]
