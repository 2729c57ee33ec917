"""The README's tables are made from the code, and the pages it points to exist."""

from __future__ import annotations

import re
import runpy

from kit import ROOT


def test_its_tables_are_not_stale() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "make_readme.py"))["page"]()
    assert (ROOT / "README.md").read_text() == page, "stale: run python tools/make_readme.py"


def test_its_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "converters" / "README.md", *(ROOT / "docs").glob("*.md")]
    links = [(p, link) for p in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", p.read_text())]
    assert [f"{p.name}: {link}" for p, link in links if not (p.parent / link).exists()] == []
    assert len(links) > 5
