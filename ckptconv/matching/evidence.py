"""How much outputs can prove: a search of hundreds of weights finds some that give a few classes by chance."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..verification.outputs import Array, Outputs

FLOAT = 10  # bits of a float that is compared to one in a thousand
ENOUGH = 25  # bits: those of 400 tries, and 16 more, so that none of them agrees by chance in 60,000 checks


def bits(outputs: Outputs, tolerance: float) -> float:
    """What outputs hold at a tolerance relative to the largest, in bits; none if all are the same number.

    Whole numbers, such as classes and what is 0 or 1, count as one of those that occur; other floats as floats.
    """
    return sum(_bits(a, tolerance) for several in outputs.values() for a in several)


def _bits(a: Array, tolerance: float) -> float:
    import numpy as np

    flat = a.reshape(-1).astype("f8")
    step = float(np.max(np.abs(flat), initial=0.0)) * tolerance
    rounded = np.round(flat / step) if step else flat
    distinct = len(np.unique(rounded))
    if distinct == 1 < flat.size:
        return 0.0
    whole = np.abs(flat - np.round(flat)) <= step
    return FLOAT * len(np.unique(rounded[~whole])) + np.count_nonzero(whole) * log2(distinct)


__all__ = ["ENOUGH", "bits"]
