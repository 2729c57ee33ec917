"""A rectangle of a tensor, seen as a matrix: the largest |x| of each of its cells, down to single values.

    50,257 x 4,096        64 x 64 cells, each the largest |x| of 786 x 64 values: the whole tensor is read
    6,283 x 512           the same for a part of it: that part is read
    64 x 64               the values themselves

Memory is bounded: what is read at once is at most WINDOW bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..checkpoint import Tensor
from ..errors import UsageError
from ..moves.cast import numbers
from ..moves.copy import Array
from ..moves.read import stretches
from ..moves.sources import Sources
from .pictures import Heat, matrix

CELLS = 64  # the side of a picture
WINDOW = 2**22  # bytes
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
    shape, r = matrix(t.shape), Rectangle(*wanted)
    if t.dtype.kind in "sx" or not t.count:
        raise UsageError("these values cannot be drawn", tensor=t.name)
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
    whole = wide * NEAR >= width  # then the gaps are read as well, and cut out
    most = max(1, WINDOW // item)
    if (width if whole else wide) > most:
        parts = (
            [(row * width + lo, row * width + min(lo + most, r.right))]
            for row in range(r.top, r.bottom) for lo in range(r.left, r.right, most)
        )  # fmt: skip
        yield from stretches(t, parts, sources)
    elif whole:
        blocks = range(r.top, r.bottom, step := most // width)
        lines = ([(row * width, min(row + step, r.bottom) * width)] for row in blocks)
        for raw in stretches(t, lines, sources):
            yield raw.reshape(-1, width * item)[:, r.left * item : r.right * item].reshape(-1)
    else:
        blocks = range(r.top, r.bottom, step := min(most // wide, AT_ONCE))
        groups = (
            [(k * width + r.left, k * width + r.right) for k in range(row, min(row + step, r.bottom))] for row in blocks
        )
        yield from stretches(t, groups, sources)


__all__ = ["CELLS", "Rectangle", "Region", "region"]
