"""What frameworks read is what we read, and what they read of what we write: random files over each one's options.

More of them: python fuzz/differential.py FAMILY 20000, or CKPTCONV_EFFORT=10.
"""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from kit import EFFORT, ROOT

CASES = {"numpy": 100, "safetensors": 80, "flax": 80, "hdf5": 25, "tf": 40, "keras": 8}
NEEDS = {"safetensors": "safetensors", "flax": "msgpack", "hdf5": "h5py", "tf": "tensorflow", "keras": "tf_keras"}


@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f in ("tf", "keras"))) for f in CASES])
def test_a_framework_reads_what_we_read(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(family, "numpy"))
    monkeypatch.setattr(sys, "path", [str(ROOT / "fuzz"), *sys.path])
    common = import_module("options.common")
    cases = max(8, int(CASES[family] * EFFORT))
    counts, findings = common.run(family, cases, 0, step=25)  # Keras' models serve 50 seeds each
    assert findings == []
    assert counts["equal"] + counts["the rest equal"] > cases / 2, counts
    assert counts["written, equal"] > cases / 3, counts
