"""What tests share beside fixtures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape, dtype and every bit: NaN payloads and -0.0 count."""
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and list(map(bytes, a.flat)) == list(map(bytes, b.flat))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
