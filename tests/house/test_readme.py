"""What is generated is not stale, and the pages that links and the menu of the site point to exist."""

from __future__ import annotations

import re
import runpy

import pytest
from kit import ROOT

import ckptconv
from ckptconv.cli.main import EXIT_CODES


def test_generated_parts_are_not_stale() -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "make_readme.py"))["pages"]()
    stale = [p.name for p, text in pages.items() if p.read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"


def test_the_measured_comparison_is_of_the_jobs_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    jobs = runpy.run_path(str(ROOT / "benchmarks" / "comparison.py"))["JOBS"]
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" *") for cell in line.split("|")[1:4]] for line in page.splitlines() if line.startswith("| ")]
    expected = [[job.title if way is job.ways[0] else "", way.tool] for job in jobs for way in job.ways]
    measured = [row for row in rows if len(row) == 3 and row[2] in ("yes", "no")][: len(expected)]
    assert [row[:2] for row in measured] == expected, (
        "run python benchmarks/comparison.py FOLDER --write docs/comparison.md"
    )
    assert len(jobs) == 19


def test_what_help_says_of_exit_codes_is_what_the_page_says() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}
    assert EXIT_CODES.keys() == {code for code in listed if code < 100}
    errors = [e for e in vars(ckptconv.errors).values() if isinstance(e, type) and issubclass(e, ckptconv.CkptError)]
    assert {e.exit_code for e in errors} <= EXIT_CODES.keys()


def test_the_menu_of_the_site_has_each_page() -> None:
    """What `mkdocs build --strict` refuses, without mkdocs: pages outside the menu, and entries without a page."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"^( *)- [^:\n]+:\n(?!\1 )", text, re.M) == []  # a section of nothing
    menu = set(re.findall(r"([\w./-]+\.md)$", text, re.M))
    outside = re.findall(r'"([\w/]+\.md)": "(\w+\.md)"', (ROOT / "tools/site_pages.py").read_text(encoding="utf-8"))
    assert all((ROOT / source).exists() for source, _ in outside)
    docs = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert menu == docs | {place for _, place in outside}


def test_links_lead_somewhere() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / n / "README.md" for n in ("converters", "fixtures")),
    ]
    links = [(p, link) for p in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", p.read_text())]
    assert [f"{p.name}: {link}" for p, link in links if not (p.parent / link).exists()] == []
    assert {"CONTRIBUTING.md", "RELEASING.md", "docs/architecture.md", "docs/decisions/README.md"} <= {
        link for p, link in links if p == ROOT / "README.md"
    }


def test_make_has_the_targets_that_pages_and_workflows_name() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md", ROOT / "README.md", *(ROOT / ".github").rglob("*.yml")]
    said = {verb for p in pages for verb in re.findall(r"(?:^ *|`|run: |&& )make ([a-z]+)", p.read_text(), re.M)}
    assert {"quick", "format", "lint", "test", "docs", "fixtures", "proto", "fuzz", "bench", "build"} <= said
    assert said - made == set()
