"""What frameworks read is what we read, and what they read of what we write: random files over each one's options.

More of them: python fuzz/differential.py FAMILY 20000, or CKPTCONV_EFFORT=10.
"""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from kit import EFFORT, ROOT


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize(("family", "cases"), [("hdf5", 10), pytest.param("tf", 12, marks=pytest.mark.slow)])
def test_a_framework_reads_what_we_read(family: str, cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"hdf5": "h5py", "tf": "tensorflow"}[family])
    monkeypatch.setattr(sys, "path", [str(ROOT / "fuzz"), *sys.path])
    cases = max(8, int(cases * EFFORT))
    counts, findings = import_module("options.common").run(family, cases, 0, step=25)
    assert findings == []
    assert counts["equal"] + counts["the rest equal"] > cases / 2, counts
    assert counts["written, equal"] > cases / 3, counts
