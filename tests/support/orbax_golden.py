"""The arrays that fixtures/make/by_orbax.py and by_tensorstore.py save beside what they write."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ckptconv


def expected(file: Path, prefix: str = "") -> dict[str, tuple[str, np.ndarray]]:
    """Dtypes and bits by name."""
    with np.load(file) as npz:
        found = {}
        for key in npz.files:
            name, _, kind = key.removeprefix(prefix).partition(":")
            if key.startswith(prefix):
                found[name] = kind or npz[key].dtype.name, npz[key]
        return found


def assert_equal(found: ckptconv.Checkpoint, want: dict[str, tuple[str, np.ndarray]]) -> None:
    assert set(found) == set(want)
    for name, t in found.items():
        kind, values = want[name]
        assert (t.dtype.name, t.shape) == (kind, values.shape), name
        assert t.numpy().tobytes() == values.tobytes(), name
