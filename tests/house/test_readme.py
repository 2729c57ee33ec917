"""The README's tables are made from the code, and the pages it points to exist."""

from __future__ import annotations

import re
import runpy

from kit import ROOT


def test_its_tables_are_not_stale() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "make_readme.py"))["page"]()
    assert (ROOT / "README.md").read_text() == page, "stale: run python tools/make_readme.py"


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
