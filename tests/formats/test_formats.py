"""Every built-in format passes the contract that third parties are given, and every format converts to every other."""

from __future__ import annotations

import runpy

import pytest
from kit import ROOT, SUBJECTS

from ckptconv.testing import FormatTests


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
class TestFormats(FormatTests):
    pass


def test_the_page_of_formats_is_fresh() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "make_formats.py"))["page"]()
    assert (ROOT / "docs" / "formats.md").read_text() == made, "stale: run python tools/make_formats.py"
