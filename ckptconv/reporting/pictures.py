"""What a tensor looks like: statistics, a histogram, a heat map, and what is odd about its values and where.

    min  max  mean  std     of the finite values, in float64: deviations of values above 1e150 are infinite
    zeros  nan  inf         counts (-0.0 is a zero; inf includes both signs)

Complex numbers are described by their magnitude, booleans as 0 and 1, strings by their length in bytes. Opaque
elements (two 4-bit floats in a byte) are not described. All is done window by window, in bounded memory.

stats(t, sources)          reads it once: statistics
scan(t, sources)           reads it once: statistics, odd values, dead rows, the largest |x| of each cell
draw(scanned, sources)     reads it again if need be: the histogram, and outliers with their places
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..errors import UsageError
from ..moves.cast import BLOCK, finfo, numbers
from ..moves.copy import Array
from ..moves.read import read_strings, stretches, windows
from ..moves.sources import Sources

SIDE = 24  # cells of a heat map
KEPT = 4 * 2**20  # bytes of a tensor that is kept between the two readings
SAMPLE = 2**16  # evenly spaced values, for quartiles
LINES = 2**22  # a tensor with more rows or columns is not searched for dead ones


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
        self.low: Any = math.inf
        self.high: Any = -math.inf

    def take(self, flat: Array) -> None:
        """Add real numbers."""
        for at in range(0, flat.size, BLOCK):
            self._block(flat[at : at + BLOCK])

    def _block(self, block: Array) -> None:
        self.zeros += block.size - int(np.count_nonzero(block))
        if not (finite := np.isfinite(block)).all():
            nan = int(np.count_nonzero(np.isnan(block)))
            self.nan, self.inf = self.nan + nan, self.inf + int(np.count_nonzero(~finite)) - nan
            block = block[finite]
            if not block.size:
                return
        low, high = block.min().item(), block.max().item()
        self.low, self.high = min(self.low, low), max(self.high, high)
        deviations = block.astype(np.float64)
        mean = float(deviations.mean())
        deviations -= mean
        apart, n, both = mean - self.mean, block.size, self.count + block.size
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
    low, high = map(float, np.quantile(known, (0.25, 0.75), method="lower")) if len(known) >= FEW else (0.0, 0.0)
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
    if not (finite := np.isfinite(block)).all():
        block = block[finite]
    share = block / 2  # of halves: a difference may overflow
    share -= low / 2
    share /= high / 2 - low / 2 or 1.0
    share *= BINS
    place = np.clip(np.floor(share, out=share), -1, BINS, out=share).astype(np.int64)
    place[block == high] = BINS - 1
    return np.bincount(place + 1, minlength=BINS + 2)


# --- pictures -----------------------------------------------------------------------------------------------------


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


class Picture(NamedTuple):
    """What there is to see of a tensor. odd: nan, inf, denormal, saturated and, from the second reading, outliers.

    cells: of the heat map, rows x columns. dead: indices of the rows and of the columns that are all zero, if they were
    searched. fences: what lies outside is an outlier. span: from where to where the histogram goes. kept: the values
    between the two readings, if they are few. bars: None if no value is finite, or none were wanted.
    """

    tensor: Tensor
    stats: Stats
    odd: Mapping[str, Odd]
    cells: Array | None
    dead: Sequence[Array]
    fences: tuple[float, float] | None
    span: tuple[float, float] | None
    kept: Sequence[Array] | None = None
    bars: Bars | None = None


# --- the first reading ------------------------------------------------------------------------------------------


def scan(t: Tensor, sources: Sources, *, heat: bool = True, outlier: float = OUTLIER) -> Picture:
    """Read a tensor once. outlier: how many interquartile ranges from the quartiles a value is an outlier."""
    sums, odd, at, sample = Sums(), dict[str, Odd](), 0, list[Array]()
    kept: list[Array] | None = [] if t.nbytes <= KEPT else None
    cells, lines = heat_of(t) if heat else None, _lines(t)
    step = max(1, t.count // SAMPLE)
    with np.errstate(all="ignore"):
        for flat in values(t, sources):
            sums.take(flat)
            if t.dtype.kind == "f":
                _oddities(odd, flat, at, t)
            sample.append(flat[-at % step :: step].astype(np.float64))
            for taker in filter(None, [cells, *(line for line in lines if not line.cells.all())]):
                taker.take(flat, at)
            if kept is not None:
                kept.append(flat.copy())
            at += flat.size
    measured, together = sums.done(), np.sort(np.concatenate([np.empty(0), *sample]))
    together = together[np.isfinite(together)] if sums.nan or sums.inf else together
    fences = spread(together, outlier) if t.dtype.kind == "f" else None
    dead = [np.flatnonzero(line.cells == 0) for line in lines]
    return Picture(
        t, measured, odd, cells.cells if cells else None, dead, fences,
        span_of(measured, together), kept,
    )  # fmt: skip


def _oddities(odd: dict[str, Odd], flat: Array, at: int, t: Tensor) -> None:
    """Count what is odd about a window."""
    size, info = np.abs(flat), finfo(t.dtype.dtype)
    masks = {"denormal": (size < float(info.smallest_normal)) & (size > 0)}
    if not size.max() < float(info.max):
        masks |= {"nan": np.isnan(flat), "inf": np.isinf(flat), "saturated": size == float(info.max)}
    for kind, mask in masks.items():
        odd[kind] = _more(odd.get(kind, Odd()), mask, at)


def _more(known: Odd, mask: Array, at: int) -> Odd:
    count = int(np.count_nonzero(mask))
    first = at + int(np.argmax(mask)) if count and known.first < 0 else known.first
    return Odd(known.count + count, first)


def _pieces(starts: Array, at: int, size: int) -> tuple[slice, Array]:
    """Which of the pieces that begin at `starts` a window of `size` elements from `at` touches, and where in it."""
    first, last = np.searchsorted(starts, [at + 1, at + size]) - [1, 0]
    return slice(first, last), np.maximum(starts[first:last], at) - at


def _lines(t: Tensor) -> list[Heat]:
    """The largest |x| of each row (index of the first axis), and of each column (of the last)."""
    if len(t.shape) < 2 or not t.count or t.dtype.kind != "f" or max(ends := (t.shape[0], t.shape[-1])) > LINES:
        return []
    return [Heat(ends[0], t.count // ends[0], (LINES, 1)), Heat(t.count // ends[1], ends[1], (1, LINES))]


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """A tensor as a matrix: its axes are parted where that is closest to a square. A vector is one row."""
    parts = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))] or [(1, math.prod(shape))]
    return min(parts, key=lambda p: max(p) / max(1, min(p)))


class Heat:
    """The largest |x| of each cell of a matrix, whose elements come window by window."""

    def __init__(self, high: int, wide: int, sides: tuple[int, int] = (SIDE, SIDE)) -> None:
        self.high, self.wide = high, wide
        self.cells = np.zeros((min(sides[0], high), min(sides[1], wide)), np.float64)
        self.starts = [-(-np.arange(n) * size // n) for n, size in zip(self.cells.shape, (high, wide), strict=True)]

    def take(self, flat: Array, at: int) -> None:
        size = np.abs(flat, dtype=np.float64 if flat.itemsize == 8 else np.float32)
        while size.size:  # whole rows, or a part of one
            row, left = divmod(at, self.wide)
            some = (
                min(self.wide - left, size.size)
                if left or size.size < self.wide
                else size.size // self.wide * self.wide
            )
            block = size[:some].reshape(-1, min(some, self.wide))
            rows, top = _pieces(self.starts[0], row, block.shape[0])
            columns, begin = _pieces(self.starts[1], left, block.shape[1])
            cells = self.cells[rows, columns]
            np.maximum(cells, np.maximum.reduceat(np.maximum.reduceat(block, begin, axis=1), top), out=cells)
            size, at = size[some:], at + some


def heat_of(t: Tensor) -> Heat | None:
    """An empty heat map; None for a tensor that has none."""
    return Heat(*matrix(t.shape)) if len(t.shape) > 1 and t.count and t.dtype.kind not in "sx" else None


# --- the second reading -----------------------------------------------------------------------------------------


def draw(scanned: Picture, sources: Sources, span: tuple[float, float] | None = None, *, bars: bool = True) -> Picture:
    """Find the outliers; with `bars` make the histogram, from span[0] to span[1] if it is given."""
    t, fences, span = scanned.tensor, scanned.fences, (span or scanned.span) if bars else None
    counts, beyond, at = np.zeros(BINS + 2, np.int64), Odd(), 0
    least, most = scanned.stats.min, scanned.stats.max
    outside = fences if fences and least is not None and (least < fences[0] or (most or 0) > fences[1]) else None
    if span or outside:
        for flat in scanned.kept if scanned.kept is not None else values(t, sources):
            for lo in range(0, flat.size, BLOCK):
                block = flat[lo : lo + BLOCK].astype(np.float64)
                if outside:
                    mask = ((block < outside[0]) | (block > outside[1])) & np.isfinite(block)
                    beyond = _more(beyond, mask, at + lo)
                if span:
                    counts += counted(block, *span)
            at += flat.size
    made = Bars(*span, tuple(counts[1:-1].tolist()), int(counts[0]), int(counts[-1])) if span else None
    odd = {**scanned.odd, "outliers": beyond}
    return scanned._replace(kept=None, bars=made, odd=odd)  # what was kept of all tensors would be much


# --- a rectangle of a tensor, seen as a matrix ------------------------------------------------------------------
#
# 50,257 x 4,096        64 x 64 cells, each the largest |x| of 786 x 64 values: the whole tensor is read
# 6,283 x 512           the same for a part of it: that part is read
# 64 x 64               the values themselves

CELLS = 64  # the side of a picture
WINDOW = 2**22  # bytes that are read at once, at most
AT_ONCE = 4096  # pieces of rows


def region(t: Tensor, rectangle: Sequence[int], sources: Sources) -> tuple[Array, list[list[str]] | None]:
    """Look at rows top <= r < bottom and columns left <= c < right of the matrix that a tensor is.

    rectangle: top, bottom, left and right. Returns the largest |x| of each cell, and the values themselves if each is
    one. UsageError if there is none like this.
    """
    shape = matrix(t.shape)
    if t.dtype.kind in "sx" or not t.count:
        raise UsageError("these values cannot be drawn", tensor=t.name)
    if len(rectangle) != 4:
        raise UsageError("a rectangle has four numbers")
    top, bottom, left, right = rectangle
    if not (0 <= top < bottom <= shape[0] and 0 <= left < right <= shape[1]):
        raise UsageError(f"no rectangle {list(rectangle)} is in {shape[0]} rows and {shape[1]} columns", tensor=t.name)
    heat, texts = Heat(bottom - top, right - left, (CELLS, CELLS)), list[str]()
    single = heat.cells.shape == (heat.high, heat.wide)
    at = 0
    with np.errstate(all="ignore"):
        for raw in _rows(t, range(top, bottom), left, right, sources):
            flat = numbers(raw, t.dtype)
            heat.take(flat, at)
            if single:  # as the dtype prints them: no digit is lost
                texts += [str(x) for x in raw.view(t.dtype.dtype)]
            at += flat.size
    lines = [texts[k : k + heat.wide] for k in range(0, len(texts), heat.wide)]
    return heat.cells, lines if single else None


def _rows(t: Tensor, rows: range, left: int, right: int, sources: Sources) -> Iterator[Array]:
    """The bytes of the rectangle, row by row, some at a time."""
    width, most = matrix(t.shape)[1], max(1, WINDOW // t.dtype.itemsize)
    if right - left == width:  # rows that follow each other are one piece
        rows, left, right, width = range(1), rows.start * width, rows.stop * width, 0
    pieces = (
        (row * width + lo, row * width + min(lo + most, right)) for row in rows for lo in range(left, right, most)
    )
    some = max(1, min(most // (right - left), AT_ONCE))
    yield from stretches(t, iter(lambda: list(islice(pieces, some)), []), sources)
