"""A slice of a tensor as parts of the same stored data, so that `tensor[2:4, :, 0]` reads only what it needs.

t[2:4] of a [6, 3] tensor     the part [6, 3] at 0 becomes the part [2, 3] at element 6 of its data
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .boxes import cut
from .part import Part, Span, Stored, c_strides

Range = tuple[int, int]


def box(t: Stored, ranges: Sequence[Range]) -> tuple[Part, ...] | None:
    """The parts that fill the box [lo, hi) of each axis; None if a part's axes are not those of the tensor.

    Spans lose their checksums, which cover all bytes, because only some bytes are read.
    """
    if not prod(hi - lo for lo, hi in ranges):
        return ()
    parts = [_within(p, t.shape, ranges) for p in t.parts if prod(p.shape)]
    return None if None in parts else tuple(p for found in parts if found is not None for p in found)


def _within(part: Part, shape: tuple[int, ...], ranges: Sequence[Range]) -> list[Part] | None:
    """The intersection of a part with the box: [] if it is empty, None if the part's axes are not the tensor's."""
    strides = c_strides(shape)
    first = [part.start // s % n for s, n in zip(strides, shape, strict=True)]
    extent = [1] * len(shape)
    axes = {}  # axis of the part -> axis of the tensor
    for i, (n, step) in enumerate(zip(part.shape, part.steps, strict=True)):
        if n > 1:
            axis = next((k for k, s in enumerate(strides) if s == step and shape[k] > 1), None)
            if axis is None or extent[axis] > 1 or first[axis] + n > shape[axis]:
                return None
            axes[i], extent[axis] = axis, n
    low = [max(lo, a) for (lo, _), a in zip(ranges, first, strict=True)]
    high = [min(hi, a + n) for (_, hi), a, n in zip(ranges, first, extent, strict=True)]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return []
    for i, axis in axes.items():
        part = cut(part, i, low[axis] - first[axis], high[axis] - first[axis])
    steps = c_strides([hi - lo for lo, hi in ranges])
    start = sum((a - lo) * s for a, (lo, _), s in zip(low, ranges, steps, strict=True))
    data = part.data._replace(check="") if isinstance(part.data, Span) else part.data
    return [
        part._replace(
            data=data, start=start, steps=tuple(steps[axes[i]] if i in axes else 1 for i in range(len(part.steps)))
        )
    ]
