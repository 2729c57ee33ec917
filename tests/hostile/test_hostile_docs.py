"""SECURITY.md and docs/hostile.md name tests, generators and numbers that are there."""

from __future__ import annotations

import re

import hostile
from kit import ROOT

from ckptconv.formats.pytorch.tensors import TORCH


def test_every_promise_names_tests_that_exist() -> None:
    table = (ROOT / "SECURITY.md").read_text().split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", row.rsplit(" | ", 1)[1])
        assert named, row
        path = ""
        for file, test in named:
            path = file or path
            assert f"\ndef {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_test_that_a_page_names_is_there() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for p in pages for name in re.findall(r"\btests/[\w/]+\.py", p.read_text(encoding="utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert len(named) > 20


def test_the_numbers_in_the_promises_are_true() -> None:
    text, page = ((ROOT / name).read_text() for name in ("SECURITY.md", "docs/hostile.md"))
    assert f"a machine that knows {len(TORCH)} names" in text
    assert f"| {len(hostile.files('pytorch'))} files, each under an audit hook" in text
    assert f"knows a table of {len(TORCH)} names" in page
    over = re.search(r"over (\d+) files, each with its expected error", text)
    assert over
    assert int(over[1]) < sum(len(hostile.files(kind)) for kind in hostile.KINDS)
