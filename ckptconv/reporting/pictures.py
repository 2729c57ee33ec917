"""What a tensor looks like: a histogram, a heat map, and what is odd about its values and where.

scan(t, sources)           reads it once: statistics, odd values, dead rows, the largest |x| of each cell
draw(scanned, sources)     reads it again if need be: the histogram, and outliers with their places
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..errors import UsageError
from ..moves.cast import BLOCK, numbers
from ..moves.copy import Array
from ..moves.read import stretches
from ..moves.sources import Sources
from ..verification.difference import kind_of
from .stats import BINS, FEW, OUTLIER, Stats, Sums, binned, counted, span_of, spread, values

SIDE = 24  # cells of a heat map
KEPT = 4 * 2**20  # bytes of a tensor that is kept between the two readings
SAMPLE = 2**16  # evenly spaced values, for quartiles
LINES = 2**22  # a tensor with more rows or columns is not searched for dead ones


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
    an outlier. span: from where to where the histogram goes. kept: the values, if they are few. ordered: the finite
    ones, sorted, if they are very few. together: of embeddings, the share of the mean row in their square norm.
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
    ordered: Array | None = None
    together: float | None = None


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
    shaded, lines, embedded = _heat(t, heat), _lines(t), _embedded(t)
    step = max(1, t.count // SAMPLE)
    with np.errstate(all="ignore"):
        for flat in values(t, sources):
            zeros, nan, inf = sums.zeros, sums.nan, sums.inf
            sums.take(flat)
            if t.dtype.kind == "f":
                _oddities(odd, flat, at, t, (sums.zeros - zeros, sums.nan - nan, sums.inf - inf))
            sample.append(flat[-at % step :: step].astype(np.float64))
            if shaded:
                shaded.take(flat, at)
            if lines:
                lines.take(flat, at)
            if embedded:
                embedded.take(flat, at)
            if kept is not None:
                kept.append(flat.copy())
            at += flat.size
    measured, together = sums.done(), np.sort(np.concatenate([np.empty(0), *sample]))
    together = together[np.isfinite(together)] if sums.nan or sums.inf else together
    fences = spread(together, outlier) if t.dtype.kind == "f" else None
    dead = [np.flatnonzero(~alive) for alive in (lines.rows, lines.columns)] if lines else [None, None]
    return Scan(
        t, measured, odd, shaded.cells if shaded else None, dead[0], dead[1], fences,
        span_of(measured, together, fences), kept, together if step == 1 else None,
        embedded.share() if embedded else None,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The smallest normal and the largest number of a dtype."""
    import ml_dtypes

    of: Any = ml_dtypes.finfo  # has no types
    found = of(dtype)
    return float(found.smallest_normal), float(found.max)


def _oddities(odd: dict[str, Odd], flat: Array, at: int, t: Tensor, seen: tuple[int, int, int]) -> None:
    """Count what is odd about a window. seen: how many of its values are zero, NaN and infinite."""
    (tiny, most), size, (zeros, nan, inf) = _limits(t.dtype.np), np.abs(flat), seen
    low = size < tiny
    masks = {
        "nan": np.isnan(flat) if nan else None,
        "inf": np.isinf(flat) if inf else None,
        "denormal": low & (size > 0) if np.count_nonzero(low) > zeros else None,
        "saturated": size == most if size.max() >= most or nan else None,
    }
    for kind, mask in masks.items():
        if mask is not None:
            odd[kind] = _more(odd.get(kind, Odd()), mask, at)


def _more(known: Odd, mask: Array, at: int) -> Odd:
    count = int(np.count_nonzero(mask))
    first = at + int(np.argmax(mask)) if count and known.first < 0 else known.first
    return Odd(known.count + count, first)


def _boxes(flat: Array, at: int, width: int) -> Iterator[tuple[Array, int, int]]:
    """A window of a matrix, cut into boxes of whole rows and pieces of rows, each with its first row and column."""
    while flat.size:
        row, column = divmod(at, width)
        size = min(flat.size, width - column) if column or flat.size < width else flat.size // width * width
        yield flat[:size].reshape(-1, min(size, width)), row, column
        flat, at = flat[size:], at + size


class _Lines:
    """Which rows (indices of the first axis) and columns (of the last) have a value that is not zero."""

    def __init__(self, t: Tensor) -> None:
        self.rows, self.columns = np.zeros(t.shape[0], bool), np.zeros(t.shape[-1], bool)
        self.long = t.count // t.shape[0]  # elements of a row

    def take(self, flat: Array, at: int) -> None:
        alive = flat != 0
        for box, row, _ in _boxes(alive, at, self.long):
            self.rows[row : row + len(box)] |= box.any(axis=1)
        if not self.columns.all():
            for box, _, column in _boxes(alive, at, len(self.columns)):
                self.columns[column : column + box.shape[1]] |= box.any(axis=0)


def _lines(t: Tensor) -> _Lines | None:
    searched = len(t.shape) > 1 and t.count and t.dtype.kind == "f" and max(t.shape[0], t.shape[-1]) <= LINES
    return _Lines(t) if searched else None


class _Rows:
    """The sum of the rows of a matrix, and of their squares."""

    def __init__(self, t: Tensor) -> None:
        self.count, self.sums, self.squares = t.shape[0], np.zeros(t.shape[1]), 0.0

    def take(self, flat: Array, at: int) -> None:
        for part, _, column in _boxes(flat, at, len(self.sums)):
            box = part.astype(np.float64)
            self.squares += float(np.square(box).sum())
            self.sums[column : column + box.shape[1]] += box.sum(axis=0)

    def share(self) -> float | None:
        """How much of the square norm is that of the mean row: 1 if all rows are equal."""
        share = float(np.square(self.sums).sum()) / (self.count * self.squares) if self.squares else math.nan
        return share if math.isfinite(share) else None


def _embedded(t: Tensor) -> _Rows | None:
    wanted = len(t.shape) == 2 and t.shape[0] >= FEW and 1 < t.shape[1] <= LINES and t.dtype.kind == "f"
    return _Rows(t) if wanted and not t.role and kind_of(t.name) == "embeddings" else None


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """A tensor as a matrix: its axes are parted where that is closest to a square. A vector is one row."""
    parts = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))] or [(1, math.prod(shape))]
    return min(parts, key=lambda p: max(p) / max(1, min(p)))


class Heat:
    """The largest |x| of each cell of a matrix, whose elements come window by window."""

    def __init__(self, high: int, wide: int, side: int = SIDE) -> None:
        self.high, self.wide = high, wide
        self.cells = np.zeros((min(side, self.high), min(side, self.wide)), np.float64)
        self.starts = -(-np.arange(self.cells.shape[1]) * self.wide // self.cells.shape[1])

    def take(self, flat: Array, at: int) -> None:
        size = np.abs(flat, dtype=np.float64 if flat.itemsize == 8 else np.float32)
        for box, row, column in _boxes(size, at, self.wide):
            first, last = np.searchsorted(self.starts, [column + 1, column + box.shape[1]]) - [1, 0]
            starts = np.maximum(self.starts[first:last], column) - column
            cells = np.maximum.reduceat(box, starts, axis=1)
            lines = (row + np.arange(len(box))) * len(self.cells) // self.high
            begin = np.flatnonzero(np.diff(lines, prepend=-1))
            place = lines[begin], slice(first, last)
            self.cells[place] = np.maximum(self.cells[place], np.maximum.reduceat(cells, begin, axis=0))


def _heat(t: Tensor, wanted: bool) -> Heat | None:
    return Heat(*matrix(t.shape)) if wanted and len(t.shape) > 1 and t.count and t.dtype.kind not in "sx" else None


# --- the second reading -----------------------------------------------------------------------------------------


def draw(scanned: Scan, sources: Sources, span: tuple[float, float] | None = None, *, bars: bool = True) -> Picture:
    """Find the outliers; with `bars` make the histogram, from span[0] to span[1] if it is given."""
    t, fences, span = scanned.tensor, scanned.fences, (span or scanned.span) if bars else None
    counts, beyond, at = np.zeros(BINS + 2, np.int64), Odd(), 0
    outside = fences if fences and _outside(scanned.stats, fences) else None
    if span and not outside and scanned.ordered is not None and math.isfinite(span[1] - span[0]) and span[0] < span[1]:
        counts = binned(scanned.ordered, *span)
    elif span or outside:
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
    return Picture(replace(scanned, kept=None, ordered=None), made, beyond)  # those of all tensors would be many


def _outside(measured: Stats, fences: tuple[float, float]) -> bool:
    return measured.min is not None and (measured.min < fences[0] or (measured.max or 0) > fences[1])


# --- a rectangle of a tensor, seen as a matrix ------------------------------------------------------------------
#
# 50,257 x 4,096        64 x 64 cells, each the largest |x| of 786 x 64 values: the whole tensor is read
# 6,283 x 512           the same for a part of it: that part is read
# 64 x 64               the values themselves

CELLS = 64  # the side of a picture
WINDOW = 2**22  # bytes that are read at once, at most
AT_ONCE = 4096  # pieces of rows
NEAR = 4  # a row is read whole if it is at most this many times longer than what is wanted of it


class Rectangle(NamedTuple):
    """Rows top <= r < bottom and columns left <= c < right of the matrix."""

    top: int
    bottom: int
    left: int
    right: int


class Region(NamedTuple):
    """shape: of the matrix. cells: the largest |x| of each. texts: the values themselves, if each cell is one."""

    shape: tuple[int, int]
    rectangle: Rectangle
    cells: Array
    texts: list[list[str]] | None


def region(t: Tensor, wanted: Sequence[int], sources: Sources) -> Region:
    """Look at a rectangle of a tensor; UsageError if there is none like this."""
    if t.dtype.kind in "sx" or not t.count:
        raise UsageError("these values cannot be drawn", tensor=t.name)
    if len(wanted) != 4:
        raise UsageError("a rectangle has four numbers")
    shape, r = matrix(t.shape), Rectangle(*wanted)
    if not (0 <= r.top < r.bottom <= shape[0] and 0 <= r.left < r.right <= shape[1]):
        raise UsageError(f"no rectangle {list(r)} is in {shape[0]} rows and {shape[1]} columns", tensor=t.name)
    heat, texts = Heat(r.bottom - r.top, r.right - r.left, CELLS), list[str]()
    single = heat.cells.shape == (heat.high, heat.wide)
    at = 0
    with np.errstate(all="ignore"):
        for raw in _rows(t, r, shape[1], sources):
            flat = numbers(raw, t.dtype)
            heat.take(flat, at)
            if single:  # as the dtype prints them: no digit is lost
                texts += [str(x) for x in raw.view(t.dtype.np)]
            at += flat.size
    lines = [texts[k : k + heat.wide] for k in range(0, len(texts), heat.wide)]
    return Region(shape, r, heat.cells, lines if single else None)


def _rows(t: Tensor, r: Rectangle, width: int, sources: Sources) -> Iterator[Array]:
    """The bytes of the rectangle, row by row, some at a time."""
    item, wide = t.dtype.itemsize, r.right - r.left
    most = max(1, WINDOW // item)
    if wide * NEAR >= width <= most:  # the gaps are read as well, and cut out
        lines = range(r.top, r.bottom, step := most // width)
        bands = ([(row * width, min(row + step, r.bottom) * width)] for row in lines)
        for raw in stretches(t, bands, sources):
            yield raw.reshape(-1, width * item)[:, r.left * item : r.right * item].reshape(-1)
        return
    pieces = (
        (row * width + lo, row * width + min(lo + most, r.right))
        for row in range(r.top, r.bottom) for lo in range(r.left, r.right, most)
    )  # fmt: skip
    some = max(1, min(most // wide, AT_ONCE))
    yield from stretches(t, iter(lambda: list(islice(pieces, some)), []), sources)


__all__ = ["Bars", "Heat", "Odd", "Picture", "Region", "Scan", "draw", "matrix", "region", "scan"]
