"""What a tensor looks like: a histogram, a heat map, and what is odd about its values and where.

    scan(t, sources)           reads it once: statistics, odd values, dead rows, the largest |x| of each cell
    draw(scanned, sources)     reads it again if need be: the histogram, and outliers with their places

A histogram of a few outliers would be one bar and a void. Its bars span what most values span, and what lies below and
above is counted. Outliers are measured by the middle half of the values, which they cannot move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..moves.cast import BLOCK
from ..moves.copy import Array
from ..moves.sources import Sources
from .stats import Stats, Sums, values

BINS = 32  # of a histogram
SIDE = 24  # cells of a heat map
KEPT = 4 * 2**20  # bytes of a tensor that is kept between the two readings
SAMPLE = 2**16  # evenly spaced values, for quartiles
LINES = 2**22  # a tensor with more rows or columns is not searched for dead ones
OUTLIER = 15.0  # times the interquartile range: about 20 standard deviations of a normal distribution
FEW = 16  # values that have no outliers


@dataclass(frozen=True)
class Odd:
    """How many values are of a kind, and where the first of them is, a flat index; -1 if there is none."""

    count: int = 0
    first: int = -1


class Bars(NamedTuple):
    """A histogram with equal bins from low to high; below and above count the finite values outside."""

    low: float
    high: float
    counts: tuple[int, ...]
    below: int = 0
    above: int = 0


@dataclass(frozen=True)
class Scan:
    """What the first reading found. odd: nan, inf, denormal and saturated. cells: of the heat map, rows x columns.

    rows, columns: indices of the dead ones, all zero; None where they were not searched. fences: what lies outside is
    an outlier. span: from where to where the histogram goes. kept: the values, if they are few.
    """

    tensor: Tensor
    stats: Stats
    odd: Mapping[str, Odd]
    cells: Array | None
    rows: Array | None
    columns: Array | None
    fences: tuple[float, float] | None
    span: tuple[float, float] | None
    kept: Sequence[Array] | None


class Picture(NamedTuple):
    """What there is to see of a tensor."""

    scan: Scan
    bars: Bars | None  # None if no value is finite, or none were wanted
    outliers: Odd


# --- the first reading ------------------------------------------------------------------------------------------


def scan(t: Tensor, sources: Sources, *, heat: bool = True, outlier: float = OUTLIER) -> Scan:
    """Read a tensor once. outlier: how many interquartile ranges from the quartiles a value is an outlier."""
    sums, odd, at, sample = Sums(), dict[str, Odd](), 0, list[Array]()
    kept: list[Array] | None = [] if t.nbytes <= KEPT else None
    shaded, lines = _heat(t, heat), _lines(t)
    step = max(1, t.count // SAMPLE)
    with np.errstate(all="ignore"):
        for flat in values(t, sources):
            before = sums.nan, sums.inf
            sums.take(flat)
            if t.dtype.kind == "f":
                _oddities(odd, flat, at, t, (sums.nan - before[0], sums.inf - before[1]))
            sample.append(flat[-at % step :: step].astype(np.float64))
            if shaded:
                shaded.take(flat, at)
            if lines:
                lines.take(flat != 0, at)
            if kept is not None:
                kept.append(flat.copy())
            at += flat.size
    measured, together = sums.done(), np.sort(np.concatenate([np.empty(0), *sample]))
    together = together[np.isfinite(together)]
    fences = _spread(together, outlier) if t.dtype.kind == "f" else None
    dead = [np.flatnonzero(~alive) for alive in (lines.rows, lines.columns)] if lines else [None, None]
    return Scan(
        t, measured, odd, shaded.cells if shaded else None, dead[0], dead[1], fences,
        _span(measured, together, fences), kept,
    )  # fmt: skip


def _oddities(odd: dict[str, Odd], flat: Array, at: int, t: Tensor, unwell: tuple[int, int]) -> None:
    import ml_dtypes

    of: Any = ml_dtypes.finfo  # has no types
    limits, size = of(t.dtype.np), np.abs(flat)
    tiny, most = float(limits.smallest_normal), float(limits.max)
    masks = {
        "nan": np.isnan(flat) if unwell[0] else None,
        "inf": np.isinf(flat) if unwell[1] else None,
        "denormal": (size < tiny) & (size > 0),
        "saturated": size == most,
    }
    for kind, mask in masks.items():
        if mask is not None:
            odd[kind] = _more(odd.get(kind, Odd()), mask, at)


def _more(known: Odd, mask: Array, at: int) -> Odd:
    count = int(np.count_nonzero(mask))
    first = at + int(np.argmax(mask)) if count and known.first < 0 else known.first
    return Odd(known.count + count, first)


def _boxes(at: int, size: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """A window of a matrix, cut into whole rows and pieces of rows: start, stop, row and column of each box."""
    lo, end = at, at + size
    while lo < end:
        row, column = divmod(lo, width)
        hi = min(end, lo + width - column if column else max(lo + width, end // width * width))
        yield lo - at, hi - at, row, column
        lo = hi


class _Lines:
    """Which rows (indices of the first axis) and columns (of the last) have a value that is not zero."""

    def __init__(self, t: Tensor) -> None:
        self.rows, self.columns = np.zeros(t.shape[0], bool), np.zeros(t.shape[-1], bool)
        self.long = t.count // t.shape[0]  # elements of a row

    def take(self, alive: Array, at: int) -> None:
        if not self.columns.all():
            for lo, hi, _, column in _boxes(at, alive.size, wide := len(self.columns)):
                if (hi - lo) % wide:
                    self.columns[column : column + hi - lo] |= alive[lo:hi]
                else:
                    self.columns |= alive[lo:hi].reshape(-1, wide).any(axis=0)
        if not self.rows.all():
            for lo, hi, row, _ in _boxes(at, alive.size, self.long):
                if (hi - lo) % self.long:
                    self.rows[row] |= alive[lo:hi].any()
                else:
                    box = alive[lo:hi].reshape(-1, self.long)
                    self.rows[row : row + len(box)] |= box.any(axis=1)


def _lines(t: Tensor) -> _Lines | None:
    searched = len(t.shape) > 1 and t.count and t.dtype.kind == "f" and max(t.shape[0], t.shape[-1]) <= LINES
    return _Lines(t) if searched else None


class _Heat:
    """The largest |x| of each cell of a matrix: the axes are parted where it is closest to a square."""

    def __init__(self, t: Tensor) -> None:
        parts = [(math.prod(t.shape[:k]), math.prod(t.shape[k:])) for k in range(1, len(t.shape))]
        self.high, self.wide = min(parts, key=lambda p: max(p) / min(p))
        self.cells = np.zeros((min(SIDE, self.high), min(SIDE, self.wide)), np.float64)
        self.starts = -(-np.arange(self.cells.shape[1]) * self.wide // self.cells.shape[1])

    def take(self, flat: Array, at: int) -> None:
        size = np.abs(flat, dtype=np.float64 if flat.itemsize == 8 else np.float32)
        for lo, hi, row, column in _boxes(at, flat.size, self.wide):
            if (hi - lo) % self.wide:
                first, last = np.searchsorted(self.starts, [column + 1, column + hi - lo]) - [1, 0]
                starts = np.maximum(self.starts[first:last], column) - column
                self._join(np.maximum.reduceat(size[lo:hi], starts)[None, :], row, slice(first, last))
            else:
                box = np.maximum.reduceat(size[lo:hi].reshape(-1, self.wide), self.starts, axis=1)
                self._join(box, row, slice(None))

    def _join(self, box: Array, row: int, columns: slice) -> None:
        """Add the largest values of some rows, in some of the cells' columns."""
        cell = (row + np.arange(len(box))) * len(self.cells) // self.high
        starts = np.flatnonzero(np.diff(cell, prepend=-1))
        most = np.maximum.reduceat(box, starts, axis=0)
        place = cell[starts], columns
        self.cells[place] = np.maximum(self.cells[place], most)


def _heat(t: Tensor, wanted: bool) -> _Heat | None:
    return _Heat(t) if wanted and len(t.shape) > 1 and t.count and t.dtype.kind not in "sx" else None


# --- what most values span --------------------------------------------------------------------------------------


def _spread(sample: Array, reach: float) -> tuple[float, float] | None:
    """The quartiles of the values that are not zero, with `reach` times their distance on both sides.

    Values of one sign are taken by their logarithms, and low ones are not outside: variances span decades.
    """
    known = sample[sample != 0]
    if len(known) < FEW:
        return None
    positive = bool(known[0] > 0)
    low, high = np.quantile(np.log(known) if positive else known, (0.25, 0.75))
    if not high > low:
        return None
    if positive:
        return -math.inf, float(np.exp(min(700.0, high + reach * (high - low))))
    return float(low - reach * (high - low)), float(high + reach * (high - low))


def _span(measured: Stats, sample: Array, fences: tuple[float, float] | None) -> tuple[float, float] | None:
    """From where to where a histogram goes: all values, or what most of them span if it would be one bar and a void."""
    if measured.min is None or measured.max is None:
        return None
    low, high = float(measured.min), float(measured.max)
    if fences and (low < fences[0] or high > fences[1]) and (near := _spread(sample, 3)):
        low, high = max(low, near[0]), min(high, near[1])
    inside = sample[(sample >= low) & (sample <= high)]
    measurable = len(inside) and low < high and math.isfinite(high - low)
    if measurable and _counted(inside, low, high).max() > 0.8 * len(inside):
        first, last = np.quantile(inside, (0.01, 0.99)).tolist()
        if first < last:
            low, high = max(low, first - (last - first) / 4), min(high, last + (last - first) / 4)
    return low, high


# --- the second reading -----------------------------------------------------------------------------------------


def draw(scanned: Scan, sources: Sources, span: tuple[float, float] | None = None, *, bars: bool = True) -> Picture:
    """Find the outliers; with `bars` make the histogram, from span[0] to span[1] if it is given."""
    t, fences, span = scanned.tensor, scanned.fences, (span or scanned.span) if bars else None
    counts, beyond, at = np.zeros(BINS + 2, np.int64), Odd(), 0
    outside = fences if fences and _outside(scanned.stats, fences) else None
    if span or outside:
        for flat in scanned.kept if scanned.kept is not None else values(t, sources):
            for lo in range(0, flat.size, BLOCK):
                block = flat[lo : lo + BLOCK].astype(np.float64)
                if outside:
                    mask = ((block < outside[0]) | (block > outside[1])) & np.isfinite(block)
                    beyond = _more(beyond, mask, at + lo)
                if span:
                    counts += _counted(block, *span)
            at += flat.size
    made = Bars(*span, tuple(counts[1:-1].tolist()), int(counts[0]), int(counts[-1])) if span else None
    return Picture(replace(scanned, kept=None), made, beyond)  # the values of all tensors together are many


def _outside(measured: Stats, fences: tuple[float, float]) -> bool:
    return measured.min is not None and (measured.min < fences[0] or (measured.max or 0) > fences[1])


def _counted(block: Array, low: float, high: float) -> Array:
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


__all__ = ["BINS", "SIDE", "Bars", "Odd", "Picture", "Scan", "draw", "scan"]
