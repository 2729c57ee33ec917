"""Fixtures are what their manifest says, and fixtures/README.md has a row for each folder and each generator."""

from __future__ import annotations

import runpy

from kit import FIXTURES, ROOT


def test_the_manifest_is_not_stale() -> None:
    listed = (FIXTURES / "MANIFEST.sha256").read_text().splitlines()
    found = [line.rstrip("\n") for line in runpy.run_path(str(ROOT / "tools" / "manifest.py"))["lines"]()]
    assert sorted({*listed} ^ {*found}) == [], "if these changes are meant, run: python tools/manifest.py"
    assert len(listed) > 400


def test_the_readme_names_every_folder_and_generator() -> None:
    text = (FIXTURES / "README.md").read_text()
    folders = [f"`{p.name}/`" for p in FIXTURES.iterdir() if p.is_dir() and p.name != "make"]
    generators = [f"`{p.name}`" for p in (FIXTURES / "make").glob("*.py")]
    assert [name for name in (*folders, *generators) if name not in text] == []
