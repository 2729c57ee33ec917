"""docs/hostile.md names files that are there and expected, and leaves few out."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase

from kit import ROOT

from ckptconv.formats.pytorch.globals import TORCH

HOME = ROOT / "fixtures" / "hostile"
EXPECTED = {
    f"{path.parent.name}/{name}" for path in HOME.glob("*/expected.json") for name in json.loads(path.read_text())
}
ROWS = [line for line in (ROOT / "docs" / "hostile.md").read_text().splitlines() if line.startswith("| ")]
NAMED = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1]) if "tests/" not in name]


def test_every_file_named_is_expected() -> None:
    assert [name for name in NAMED if not any(fnmatchcase(file, name) for file in EXPECTED)] == []
    assert len(NAMED) > 150


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
    text = (ROOT / "SECURITY.md").read_text()
    expected = json.loads((HOME / "pytorch" / "expected.json").read_text())
    for page, before, count, after in (
        (text, "a machine that knows ", len(TORCH), " names"),
        (text, "| ", len(expected), " files, each under an audit hook"),
        ((ROOT / "docs" / "hostile.md").read_text(), "knows a table of ", len(TORCH), " names"),
    ):
        assert f"{before}{count}{after}" in page
    over = re.search(r"over (\d+) files, each with its expected error", text)
    assert over
    assert int(over[1]) < len(EXPECTED)


def test_every_attack_has_a_file() -> None:
    rows = [row for row in ROWS if not row.startswith(("| incident", "| :--"))]
    assert [row for row in rows if "`" not in row.rsplit("|", 2)[1]] == []


def test_most_files_are_named() -> None:
    left = [file for file in EXPECTED if not any(fnmatchcase(file, name) for name in NAMED)]
    assert len(left) < len(EXPECTED) / 3, sorted(left)
