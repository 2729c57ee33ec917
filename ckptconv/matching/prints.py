"""Fingerprints of content that no order of elements changes.

    sum over all elements of mix(bits), modulo 2^64, and their number

Equal for all permutations of a tensor, and additive: a fused QKV has the sum of its parts. Tensors are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..moves.read import each, windows
from ..moves.sources import Sources

Array = np.ndarray[Any, Any]
WORD = 2**64
COMMON = {"0.0", "1.0", "nan"}  # single numbers with which many tensors begin their training


class Print(NamedTuple):
    """Content up to the order of elements; a constant (zeros, ones) proves nothing."""

    kind: str
    elements: int
    total: int
    constant: bool


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit words that leaves no structure for sums to cancel (Steele et al., SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def fingerprint(t: Tensor, sources: Sources) -> Print | None:
    """Read a tensor once; None for one without a fixed number of bytes per element."""
    if t.dtype.kind == "s" or not t.parts:
        return None
    item, total, first, constant = t.dtype.itemsize, 0, None, True
    for raw in windows(t, sources):
        bits = raw.view(f"u{min(item, 8)}").reshape(-1, max(1, item // 8))
        wide = np.add.reduce(bits.astype("u8") * np.arange(1, bits.shape[1] + 1, dtype="u8"), axis=1, dtype="u8")
        first = wide[0] if first is None else first
        constant = constant and bool((wide == first).all())
        if t.count == 1:  # one number is as good as a fingerprint, unless it is one that everything begins with
            constant = str(_number(raw, t)) in COMMON
        total += int(np.add.reduce(_mixed(wide + np.uint64(0x9E3779B97F4A7C15)), dtype="u8"))
    return Print(t.dtype.name, t.count, total % WORD, constant)


def fingerprints(tensors: Iterable[Tensor], workers: int) -> dict[str, Print]:
    """The fingerprints of all tensors that have one."""
    rows = [t for t in tensors if t.count]
    found = zip(rows, each(rows, fingerprint, workers), strict=True)
    return {t.name: p for t, p in found if p is not None}


def _number(raw: Array, t: Tensor) -> float:
    return abs(complex(raw.view(t.dtype.np)[0]))
