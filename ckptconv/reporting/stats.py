"""Describe values: statistics of a tensor, window by window, in bounded memory.

    min  max  mean  std     of the finite values; sums are kept as exact fractions of float64 sums of small blocks
    zeros  nan  inf         counts (-0.0 is a zero; inf includes both signs)

Complex numbers are described by their magnitude, booleans as 0 and 1, strings by their length in bytes. Opaque
elements (two 4-bit floats in a byte) are not described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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


__all__ = ["Stats", "Sums", "stats", "values"]
