"""Describe values: statistics of a tensor, window by window, in bounded memory.

    min  max  mean  std     of the finite values; sums are kept as exact fractions of float64 sums of small blocks
    zeros  nan  inf         counts (-0.0 is a zero; inf includes both signs)

Complex numbers are described by their magnitude, booleans as 0 and 1, strings by their length in bytes. Opaque
elements (two 4-bit floats in a byte) are not described.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..moves.cast import BLOCK, numbers
from ..moves.copy import Array
from ..moves.gather import read_strings
from ..moves.read import windows
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
    """Running count, sum and sum of squared deviations of the finite values; blocks are combined exactly."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nan = self.inf = 0
        self.total = self.spread = Fraction(0)
        self.alone: tuple[float, float] | None = None  # mean and squared deviations of the only block
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
        self._join(block, max(abs(float(low)), abs(float(high))))

    def _join(self, block: Array, peak: float) -> None:
        """Add a block's sums by the formula of Chan, Golub and LeVeque, in fractions."""
        n, scale = block.size, 1.0
        if block.itemsize == 8 and block.dtype.kind in "iu":  # so that large neighbours stay distinct
            wide = (block - block.min()).view(np.uint64).astype(np.float64)
        else:
            wide = block.astype(np.float64)
        if peak > 1e140 or 0 < peak < 1e-140:  # squares would overflow or vanish
            scale = math.ldexp(1.0, math.frexp(peak)[1] - 1)
            wide /= scale
        mean = float(wide.mean())
        wide -= mean
        np.square(wide, out=wide)  # a dot product would start the threads of BLAS without gain
        squares, whole = float(wide.sum()), block.dtype.kind in "iu"
        if not self.count and not whole and scale == 1.0 and (squares > 1e-280 or not squares):
            self.count, self.alone = n, (mean, squares)
            return
        self._parted()
        total = exact_sum(block) if whole else Fraction(mean) * n * Fraction(scale)
        spread = Fraction(squares) * Fraction(scale) ** 2
        if self.count:
            apart = total / n - self.total / self.count
            spread += apart * apart * self.count * n / (self.count + n)
        self.count, self.total, self.spread = self.count + n, self.total + total, self.spread + spread

    def _parted(self) -> None:
        """Make fractions of the only block so far: most tensors have no other, and fractions are slow."""
        if self.alone:
            self.total, self.spread = Fraction(self.alone[0]) * self.count, Fraction(self.alone[1])
            self.alone = None

    def done(self) -> Stats:
        if not self.count:
            return Stats(None, None, None, None, self.zeros, self.nan, self.inf)
        if self.alone:
            mean, squares = self.alone
            return Stats(self.low, self.high, mean, math.sqrt(squares / self.count), self.zeros, self.nan, self.inf)
        average, std = _float(self.total / self.count), _root(self.spread / self.count)
        return Stats(self.low, self.high, average, std, self.zeros, self.nan, self.inf)


def exact_sum(block: Array) -> Fraction:
    """The sum of integers without overflow: halves of 32 bits are summed separately."""
    if block.itemsize < 8:
        return Fraction(int(block.sum(dtype=np.int64)))
    low = int((block & 0xFFFFFFFF).sum(dtype=np.uint64))
    return Fraction((int((block >> 32).sum(dtype=np.int64)) << 32) + low)


def _float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def _root(x: Fraction) -> float:
    """The square root of a fraction, which can be too large or too small for a float."""
    if not x:
        return 0.0
    shift = (x.numerator.bit_length() - x.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(x / Fraction(4) ** shift), shift)


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
    with np.errstate(invalid="ignore"):
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
_STEPS = np.arange(BINS)


def spread(sample: Array, reach: float) -> tuple[float, float] | None:
    """The quartiles of the values that are not zero, with `reach` times their distance on both sides.

    Values of one sign are taken by their logarithms, and low ones are not outside: variances span decades.
    """
    known = sample[sample != 0]
    if len(known) < FEW:
        return None
    positive = bool(known[0] > 0)
    low, high = quantiles(known, (0.25, 0.75), np.log if positive else None)
    if not high > low:
        return None
    if positive:
        return -math.inf, float(np.exp(min(700.0, high + reach * (high - low))))
    return float(low - reach * (high - low)), float(high + reach * (high - low))


def quantiles(ordered: Array, shares: Sequence[float], scale: Callable[[Array], Array] | None = None) -> list[float]:
    """Quantiles of sorted values, as numpy.quantile interpolates them, which would sort again."""
    out = []
    for share in shares:
        at = share * (len(ordered) - 1)
        near = ordered[[math.floor(at), math.ceil(at)]]
        low, high = (near if scale is None else scale(near)).tolist()
        out.append(low + (high - low) * (at - math.floor(at)))
    return out


def span_of(measured: Stats, sample: Array, fences: tuple[float, float] | None) -> tuple[float, float] | None:
    """From where to where a histogram goes: all values, or what most of them span if it would be one bar and a void."""
    if measured.min is None or measured.max is None:
        return None
    low, high = float(measured.min), float(measured.max)
    if fences and (low < fences[0] or high > fences[1]) and (near := spread(sample, 3)):
        low, high = max(low, near[0]), min(high, near[1])
    inside = sample[sample.searchsorted(low) : sample.searchsorted(high, "right")]
    measurable = len(inside) and low < high and math.isfinite(high - low)
    if measurable and binned(inside, low, high).max() > 0.8 * len(inside):
        first, last = quantiles(inside, (0.01, 0.99))
        if first < last:
            low, high = max(low, first - (last - first) / 4), min(high, last + (last - first) / 4)
    return low, high


def binned(ordered: Array, low: float, high: float) -> Array:
    """As `counted`, of sorted finite values: the places of the edges among them tell the counts."""
    places = np.empty(BINS + 3, np.int64)
    places[0], places[-2:] = 0, (ordered.searchsorted(high, "right"), len(ordered))
    places[1:-2] = ordered.searchsorted(low + (high - low) / BINS * _STEPS)
    return places[1:] - places[:-1]


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


__all__ = ["BINS", "FEW", "OUTLIER", "Stats", "Sums", "binned", "counted", "span_of", "spread", "stats", "values"]
