"""Describe values: statistics of a tensor, window by window, in bounded memory.

    min  max  mean  std     of the finite values, in float64: deviations of values above 1e150 are infinite
    zeros  nan  inf         counts (-0.0 is a zero; inf includes both signs)

Complex numbers are described by their magnitude, booleans as 0 and 1, strings by their length in bytes. Opaque
elements (two 4-bit floats in a byte) are not described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..moves.cast import BLOCK, numbers
from ..moves.copy import Array
from ..moves.read import read_strings, windows
from ..moves.sources import Sources


class Stats(NamedTuple):
    """Statistics of a tensor's values; min, max, mean and std are None if no value is finite."""

    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    zeros: int
    nan: int
    inf: int


class Sums:
    """Running count, mean, and sum of squared deviations from the mean, of the finite values, block by block."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nan = self.inf = 0
        self.mean = self.squares = 0.0
        self.low: Any = None
        self.high: Any = None

    def take(self, flat: Array) -> None:
        """Add real numbers."""
        for at in range(0, flat.size, BLOCK):
            self._block(flat[at : at + BLOCK])

    def _block(self, block: Array) -> None:
        size = block.size
        self.zeros += size - int(np.count_nonzero(block))
        low, high = block.min().item(), block.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            nan = int(np.count_nonzero(np.isnan(block)))
            block = block[np.isfinite(block)]
            self.nan, self.inf = self.nan + nan, self.inf + size - block.size - nan
            if not block.size:
                return
            low, high = block.min().item(), block.max().item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        base, wide = 0, block
        if block.dtype.kind in "iu" and block.itemsize == 8:  # so that large neighbours stay distinct
            base, wide = low, block.view(np.uint64) - np.uint64(low % 2**64)
        deviations = wide.astype(np.float64)
        mean = float(deviations.mean())
        deviations -= mean
        apart, n, both = base + mean - self.mean, block.size, self.count + block.size
        np.square(deviations, out=deviations)  # a dot product would start the threads of BLAS without gain
        self.squares += float(deviations.sum()) + apart * apart * (self.count / both) * n
        self.mean, self.count = self.mean + apart * (n / both), both

    def done(self) -> Stats:
        if not self.count:
            return Stats(None, None, None, None, self.zeros, self.nan, self.inf)
        std = math.sqrt(self.squares / self.count)
        return Stats(self.low, self.high, self.mean, std, self.zeros, self.nan, self.inf)


# --- elements as numbers ----------------------------------------------------------------------------------------


def values(t: Tensor, sources: Sources) -> Iterator[Array]:
    """The tensor's elements as real numbers, flat and in order, window by window."""
    if t.dtype.kind == "s":
        lengths = [len(s) for s in read_strings(t).reshape(-1)]
        yield np.array(lengths, np.int64)
        return
    for raw in windows(t, sources):
        yield numbers(raw, t.dtype)


def stats(t: Tensor, sources: Sources) -> Stats:
    """Read a tensor once and describe its values."""
    sums = Sums()
    with np.errstate(all="ignore"):
        for flat in values(t, sources):
            sums.take(flat)
    return sums.done()


# --- What most values of a tensor span: quartiles, fences for outliers, and the bins of a histogram ---
#
# A histogram of a few outliers would be one bar and a void. Its bars span what most values span, and what lies below
# and above is counted. Outliers are measured by the middle half of the values, which they cannot move.


BINS = 32  # of a histogram
OUTLIER = 15.0  # times the interquartile range: about 20 standard deviations of a normal distribution
FEW = 16  # values that have no outliers


def spread(sample: Array, reach: float) -> tuple[float, float] | None:
    """The quartiles of the values that are not zero, with `reach` times their distance on both sides.

    Values of one sign are taken by their logarithms, and low ones are not outside: variances span decades.
    """
    quartiles = _quartiles(sample)
    if quartiles is None:
        return None
    low, high = quartiles
    if sample[0] >= 0:
        return -math.inf, math.exp(min(700.0, math.log(high) + reach * math.log(high / low)))
    return low - reach * (high - low), high + reach * (high - low)


def _quartiles(ordered: Array) -> tuple[float, float] | None:
    """The quartiles of sorted values without zeros; None if they are few, or equal."""
    known = ordered[ordered != 0]
    last = len(known) - 1
    low, high = (float(known[last // 4]), float(known[3 * last // 4])) if last >= FEW - 1 else (0.0, 0.0)
    return (low, high) if low < high else None


def span_of(measured: Stats, sample: Array) -> tuple[float, float] | None:
    """From where to where a histogram goes: all values, or four times as far as the middle half on each side."""
    if measured.min is None or measured.max is None:
        return None
    low, high = float(measured.min), float(measured.max)
    if quartiles := _quartiles(sample):
        reach = 4 * (quartiles[1] - quartiles[0])
        low, high = max(low, quartiles[0] - reach), min(high, quartiles[1] + reach)
    return low, high


def counted(block: Array, low: float, high: float) -> Array:
    """How many finite values are below, in each bin, and above."""
    block = block[np.isfinite(block)]
    if low == high:
        place = np.where(block < low, -1, np.where(block > high, BINS, 0))
    else:
        scale = max(abs(low), abs(high)) if high - low == math.inf else 1.0
        share = (block / scale - low / scale) / (high / scale - low / scale)
        place = np.clip(np.floor(share * BINS), -1, BINS).astype(np.int64)
        place[block == high] = BINS - 1
    return np.bincount(place + 1, minlength=BINS + 2)
