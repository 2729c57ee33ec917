"""The geometry of strided boxes: the parts of a tensor in a range, and whether moving them is a plain copy.

    clip(part, lo, hi)             the parts of a part that fill elements [lo, hi) of its tensor
    fuse(shape, strides, steps)    merge axes that are contiguous on both sides
    is_contiguous(part)            whether source and destination are each one contiguous run
    slabs(part, limit)             the part in pieces of at most `limit` bytes, in the order of the source
    sliced(tensor, ranges)         the parts of a slice: `tensor[2:4, :, 0]` reads only what it needs

Everything counts elements. No numpy here: a conversion that only copies never imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from .part import Part, Span, Stored, c_strides


def clip(part: Part, lo: int, hi: int) -> list[Part]:
    """Cut a part down to the elements [lo, hi) of the tensor that it fills; exact for any range.

    Axes are processed by descending destination step. Outer indices whose inner box is completely inside stay one
    piece; the at most two that are partly inside are cut further.
    """
    _, count, extent = _geometry(part.shape, part.strides, part.steps)
    if not count:
        return []
    if part.start >= lo and part.start + extent <= hi:
        return [part]
    if part.start >= hi or part.start + extent <= lo:
        return []
    order = sorted(range(len(part.shape)), key=lambda i: -part.steps[i])
    out: list[Part] = []
    _clip(part, order, lo, hi, out)
    return out


def _clip(part: Part, order: Sequence[int], lo: int, hi: int, out: list[Part]) -> None:
    order = [i for i in order if part.shape[i] > 1]
    extent = sum((part.shape[i] - 1) * part.steps[i] for i in order) + 1
    if part.start >= hi or part.start + extent <= lo:
        return
    if part.start >= lo and part.start + extent <= hi:
        out.append(part)
        return
    axis, inner = order[0], order[1:]
    step, size = part.steps[axis], part.shape[axis]
    inside = sum((part.shape[i] - 1) * part.steps[i] for i in inner) + 1
    first = min(size, max(0, -((part.start - lo) // step)))  # first index that begins inside
    last = max(first, min(size, (hi - part.start - inside) // step + 1))  # first index that ends outside
    if first > 0:
        _clip(cut(part, axis, first - 1, first), inner, lo, hi, out)
    if last > first:
        out.append(cut(part, axis, first, last))
    if last < size:
        _clip(cut(part, axis, last, last + 1), inner, lo, hi, out)


def cut(part: Part, axis: int, a: int, b: int) -> Part:
    """Keep indices [a, b) of one axis."""
    return part._replace(
        shape=(*part.shape[:axis], b - a, *part.shape[axis + 1 :]),
        offset=part.offset + a * part.strides[axis],
        start=part.start + a * part.steps[axis],
    )


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one of a box, which must not be empty."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


class Box(NamedTuple):
    """Fused axes: sizes, source strides and destination steps, by descending destination step."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]


def fuse(shape: Sequence[int], strides: Sequence[int], steps: Sequence[int]) -> Box:
    """Drop axes of size one and merge neighbours that are contiguous on both sides; all in elements."""
    axes = sorted((ax for ax in zip(shape, strides, steps, strict=True) if ax[0] != 1), key=lambda ax: (-ax[2], -ax[1]))
    out: list[tuple[int, int, int]] = []
    for n, a, b in axes:
        if out and out[-1][1] == a * n and out[-1][2] == b * n:
            out[-1] = (out[-1][0] * n, a, b)
        else:
            out.append((n, a, b))
    return Box(*(tuple(ax[i] for ax in out) for i in range(3)))


def is_run(box: Box) -> bool:
    """Whether source and destination are both one contiguous run."""
    return not box.shape or (len(box.shape) == 1 and box.strides == (1,) and box.steps == (1,))


@lru_cache(maxsize=4096)  # a model has a few dozen shapes for its thousands of tensors
def _geometry(shape: tuple[int, ...], strides: tuple[int, ...], steps: tuple[int, ...]) -> tuple[bool, int, int]:
    """Whether a box is one run on both sides, the number of its elements, and its reach in the tensor."""
    return is_run(fuse(shape, strides, steps)), prod(shape), 0 if 0 in shape else reach(shape, steps)


def is_contiguous(part: Part) -> bool:
    """Whether the part's elements are one run in the source and fill one run of the tensor."""
    return _geometry(part.shape, part.strides, part.steps)[0]


def slabs(part: Part, limit: int) -> Iterator[Part]:
    """Cut a part into pieces of at most `limit` bytes, along the axes with the largest strides in the source."""
    size = prod(part.shape)
    if size * part.dtype.itemsize <= limit:
        yield part
        return
    axis = max((i for i, n in enumerate(part.shape) if n > 1), key=lambda i: (part.strides[i], part.shape[i]))
    count = part.shape[axis]
    step = max(1, count * limit // (size * part.dtype.itemsize))
    for a in range(0, count, step):
        yield from slabs(cut(part, axis, a, min(count, a + step)), limit)


Range = tuple[int, int]


def sliced(t: Stored, ranges: Sequence[Range]) -> tuple[Part, ...] | None:
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
