"""The location of a tensor's bytes, as strided boxes of stored data, and the geometry of such boxes.

    Part   a strided box of one piece of stored data, and the strided box of the tensor that it fills
    data   Span (bytes of a file) | Coded (bytes that a format must decode) | Held (an array in memory)
    Piece  elements [lo, hi) of a tensor, and their place in a job

    clip(part, lo, hi)             the parts of a part that fill elements [lo, hi) of its tensor
    fuse(shape, strides, steps)    merge axes that are contiguous on both sides
    is_contiguous(part)            whether source and destination are each one contiguous run
    slabs(part, limit)             the part in pieces of at most `limit` bytes, in the order of the source
    sliced(tensor, ranges)         the parts of a slice: `tensor[2:4, :, 0]` reads only what it needs
    moved(part, places)            a part as parts of other tensors, to which its elements go

All offsets and strides of a part count *elements* of `Part.dtype`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import LOOSE, DType
from ..errors import CorruptCheckpoint, LayoutError

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """The fields of a tensor that the kernel needs; `checkpoint.Tensor` adds the methods for users.

    name; shape: in elements; parts: where the elements are stored.
    """

    name: str
    dtype: DType
    shape: Shape
    parts: tuple[Part, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor when C-contiguous; 0 for strings, whose lengths are not known before they are read."""
        return self.count * self.dtype.itemsize


class Piece(NamedTuple):
    """Elements [lo, hi) of a tensor, to be written at byte `at` of the job as dtype `to`."""

    tensor: str
    to: DType
    lo: int
    hi: int
    at: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return (self.hi - self.lo) * self.to.itemsize


MAX_ELEMENTS = 2**63 - 1
FILL_RATIO, MAX_FILL = 1100, 2**32  # bytes that a repeated value may fill: per stored byte, and in any file
MAX_AXES = 64  # NumPy's limit; the product of millions of sizes would take too long


class Span(NamedTuple):
    """Bytes [start, start+size) of the file at the path or URL `url`, and a checksum of exactly these bytes.

    check: 'crc32c:%08x', 'crc32:%08x', or for a complete tensor its content hash 'xxh3:DIGITS:DTYPE:[3,4]'; '' is none.
    """

    url: str
    start: int
    size: int
    check: str = ""


class Coded(NamedTuple):
    """Bytes that `decode(coded)` of a module yields in C order, little-endian (for strings: one item per element).

    module: its full name, so that any process can import it. url: path or URL of the file. key: says which data to
    decode; only the module interprets it, and it can be hashed and pickled. size: the number of decoded bytes. chunk:
    bytes that the format's library decodes at once, if the file determines that.
    """

    module: str
    url: str
    key: Any
    size: int
    chunk: int = 0


class Held(NamedTuple):
    """A NumPy `array` in memory, C-contiguous (an object array of bytes for strings)."""

    array: np.ndarray[Any, Any]

    @classmethod
    def of(cls, raw: bytes | bytearray) -> Held:
        """Wrap bytes in memory without a copy."""
        import numpy as np

        return cls(np.frombuffer(raw, np.uint8))


Data = Span | Coded | Held


class Part(NamedTuple):
    """A strided box of `data` and the strided box of the tensor that it fills, both in elements of `dtype`.

    data: a Span, Coded or Held. dtype: of the stored elements. shape: of the box. offset, strides: its first element
    and its strides in `data`. start, steps: the same in the tensor, as flat C-order indices. ops: names in
    `moves.cast.OPS`, applied in order to the stored elements (swap bytes, conjugate, negate ...). Elements of dtypes in
    `dtypes.LOOSE` are first brought to the one byte that stands for each.
    """

    data: Data
    dtype: DType
    shape: Shape
    offset: int
    strides: Shape
    start: int
    steps: Shape
    ops: tuple[str, ...] = ()

    def changes(self, to: DType) -> bool:
        """Tell whether the bytes of elements change on the way to dtype `to`: by a cast, an operation, or `LOOSE`."""
        return bool(self.ops) or self.dtype != to or self.dtype.name in LOOSE


def c_strides(shape: Sequence[int]) -> Shape:
    """The strides of a C-contiguous array of this shape, in elements."""
    return _c_strides(tuple(shape))


@lru_cache(maxsize=4096)  # a model has a few dozen shapes for its thousands of tensors, which share their strides
def _c_strides(shape: Shape) -> Shape:
    out = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        out[i - 1] = out[i] * shape[i]
    return tuple(out)


def checked_count(
    shape: Sequence[int], *, url: str | None = None, tensor: str | None = None, arrays: bool = True
) -> int:
    """Count the elements of a shape from a file.

    CorruptCheckpoint if it has too many axes, a negative size, or more than 2^63 elements. arrays: NumPy must allow the
    shape, too; it limits the product of the non-zero sizes.
    """
    if len(shape) > MAX_AXES:
        raise CorruptCheckpoint(f"its shape has {len(shape)} axes, more than {MAX_AXES}", url=url, tensor=tensor)
    total = 1
    for size in shape:
        if size < 0:
            raise CorruptCheckpoint(f"shape {list(shape)} has a negative dimension", url=url, tensor=tensor)
        total *= size
        if total > MAX_ELEMENTS:
            raise CorruptCheckpoint(f"shape {list(shape)} has more than 2^63 elements", url=url, tensor=tensor)
    if arrays and total == 0 and is_vast(shape):
        raise CorruptCheckpoint(f"shape {list(shape)} is empty, yet exceeds 2^63 bytes", url=url, tensor=tensor)
    return total


def is_vast(shape: Sequence[int]) -> bool:
    """Tell whether NumPy cannot have an array of this shape, even if it is empty."""
    return prod(size for size in shape if size) * 16 > MAX_ELEMENTS


# --- the geometry of boxes: no NumPy here, as a conversion that only copies never imports it ------------------------


def clip(part: Part, lo: int, hi: int) -> list[Part]:
    """Cut a part down to the elements [lo, hi) of the tensor that it fills; exact for any range.

    Along the axis with the largest step in the tensor, indices that are completely inside stay one piece; the one or
    two that are partly inside are cut further.
    """
    _, count, extent = _geometry(part.shape, part.strides, part.steps)
    if not count or part.start >= hi or part.start + extent <= lo:
        return []
    if part.start >= lo and part.start + extent <= hi:
        return [part]
    axis = max((i for i, n in enumerate(part.shape) if n > 1), key=lambda i: part.steps[i])
    step, size = part.steps[axis], part.shape[axis]
    inside = extent - (size - 1) * step  # the reach of one index
    first = min(size, max(0, -((part.start - lo) // step)))  # first index that begins inside
    last = max(first, min(size, (hi - part.start - inside) // step + 1))  # first index that ends outside
    before = clip(cut(part, axis, first - 1, first), lo, hi) if first > 0 else []
    middle = [cut(part, axis, first, last)] if last > first else []
    return before + middle + (clip(cut(part, axis, last, last + 1), lo, hi) if last < size else [])


def cut(part: Part, axis: int, a: int, b: int) -> Part:
    """Keep indices [a, b) of one axis."""
    return part._replace(
        shape=(*part.shape[:axis], b - a, *part.shape[axis + 1 :]),
        offset=part.offset + a * part.strides[axis],
        start=part.start + a * part.steps[axis],
    )


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the elements from the first to the last one of a box, which must not be empty."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


class Box(NamedTuple):
    """Fused axes: sizes, source strides and destination steps, by descending destination step."""

    shape: Shape
    strides: Shape
    steps: Shape


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
def _geometry(shape: Shape, strides: Shape, steps: Shape) -> tuple[bool, int, int]:
    """Return whether a box is one run on both sides, its number of elements, and its reach in the tensor."""
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


def sliced(t: Stored, ranges: Sequence[tuple[int, int]]) -> tuple[Part, ...]:
    """Return the parts that fill the box [lo, hi) of each axis.

    Spans lose their checksums, which cover all bytes, because only some bytes are read.
    """
    sizes = [hi - lo for lo, hi in ranges]
    axes = zip(ranges, c_strides(t.shape), sizes, c_strides(sizes), strict=True)
    digits = tuple(Digit(lo * stride, stride, size, step) for (lo, _), stride, size, step in axes)
    first, rows, n, _ = digits[0] if digits else (0, 1, 1, 1)  # first drop what these rows do not reach
    near = (p for part in t.parts for p in clip(part, first, first + rows * n))
    found = (p for part in near for _, p in moved(part, ((0, 0, digits),)))
    return tuple(p._replace(data=p.data._replace(check="")) if isinstance(p.data, Span) else p for p in found)


# --- parts of one tensor as parts of another ------------------------------------------------------------------------


MAX_PIECES = 2**16  # of one part; only steps that do not divide one another need more, which no sensible layout has


class Digit(NamedTuple):
    """One digit of a flat index: (index - offset) // stride, which must be below `size`.

    Each unit is `step` elements in another tensor; the remainder of the division makes the next digit.
    """

    offset: int
    stride: int
    size: int
    step: int


class Affine(NamedTuple):
    """start + sum(index[k] * steps[k]) over the axes of a region."""

    start: int
    steps: Shape


class Region(NamedTuple):
    """Elements of one part, whose positions are all affine.

    source: in the stored data. target: in the other tensor, as far as it is known. rest: the remainder of the flat
    index, for the digits from number `level` on.
    """

    counts: Shape
    source: Affine
    target: Affine
    rest: Affine
    level: int


Place = tuple[int, int, tuple[Digit, ...]]  # a tensor, and the element there whose digits are all 0


def moved(part: Part, places: tuple[Place, ...]) -> Iterator[tuple[int, Part]]:
    """Yield the elements of a part as parts of other tensors, each with its tensor, by the digits of flat indices.

    LayoutError if there are too many parts.
    """
    for tensor, at, shape, strides, start, steps in _moved(part.shape, part.strides, part.start, part.steps, places):
        yield tensor, Part(part.data, part.dtype, shape, part.offset + at, strides, start, steps, part.ops)


@lru_cache(maxsize=4096)
def _moved(
    shape: Shape, strides: Shape, start: int, steps: Shape, places: tuple[Place, ...]
) -> tuple[tuple[int, int, Shape, Shape, int, Shape], ...]:
    """Cut a box into boxes with constant steps in a target: (target, source offset, shape, strides, start, steps).

    A box is any affine set of flat C-order indices of its tensor: a partition, a view, or the result of a layout.

    Example: `(h w c) o -> o (c h w)` with h=2, w=2, c=3 moves [12, 5] to [5, 12], where h, w, c, o make steps of 2, 1,
    4, 12. The source lies in C order: one box, and the flat index of its element [i, j] is 5i + j. Its digits count
    units of 30, 15, 5 and 1; k and l are indices that cuts add:

        counts          rest            target
        [12, 5]         5i + j          0
        [6, 5, 2]       5i + j + 30k    0                   a unit of h is 30 and 5i + j reaches 59: it carries, so i
                                                            is cut into rows of 6, counted by k
        [6, 5, 2]       5i + j          2k                  h
        [3, 5, 2, 2]    5i + j + 15l    2k                  a unit of w is 15 and 5i + j reaches 29: cut again
        [3, 5, 2, 2]    5i + j          2k + l              w
        [3, 5, 2, 2]    j               4i + 2k + l         c
        [3, 5, 2, 2]    0               4i + 12j + 2k + l   o

    The result is one box with steps [4, 12, 2, 1] in the target; `_tidy` puts the widest first.
    """
    out = []
    for tensor, first, digits in places:
        regions = [Region(shape, Affine(0, strides), Affine(first, (0,) * len(shape)), Affine(start, steps), 0)]
        while regions:
            region = regions.pop()
            if region.level < len(digits):
                regions += reversed(_resolve(region, digits[region.level]))
            elif (k := _backward(region)) is not None:
                regions += _split(region, k, region.counts[k] // 2)  # in the end, each index is a region
            else:
                out.append((tensor, *_tidy(region)))
            if len(out) + len(regions) > MAX_PIECES:
                raise LayoutError(f"needs more than {MAX_PIECES} pieces for one part; convert in two steps")
    return tuple(out)


def _backward(region: Region) -> int | None:
    """Find an axis that runs backward in the target, which the kernel cannot do; None if there is none."""
    return next((k for k, n in enumerate(region.counts) if n > 1 and region.target.steps[k] < 0), None)


def _tidy(region: Region) -> tuple[int, Shape, Shape, int, Shape]:
    """Drop axes of one element; put the axis with the widest step in the target first."""
    order = sorted((k for k, n in enumerate(region.counts) if n != 1), key=lambda k: -region.target.steps[k])
    axes = (region.counts, region.source.steps, region.target.steps)
    counts, strides, steps = (tuple(a[k] for k in order) for a in axes)
    return region.source.start, counts, strides, region.target.start, steps


def _resolve(region: Region, digit: Digit) -> list[Region]:
    """Resolve one digit. Return several regions if some elements carry or lie elsewhere, none if all lie elsewhere."""
    value, high = Affine(region.rest.start - digit.offset, region.rest.steps), digit.size * digit.stride
    last = value.start + _reach(region.counts, value)
    if last < 0 or value.start >= high:
        return []
    if value.start < 0 or last >= high:
        return _split(region, *_crossing(region.counts, value, 0 if value.start < 0 else high))
    rest = Affine(value.start % digit.stride, tuple(s % digit.stride for s in value.steps))
    if rest.start + _reach(region.counts, rest) < digit.stride:
        steps = tuple(a + s // digit.stride * digit.step for a, s in zip(region.target.steps, value.steps, strict=True))
        target = Affine(region.target.start + value.start // digit.stride * digit.step, steps)
        return [Region(region.counts, region.source, target, rest, region.level + 1)]
    k, first = _crossing(region.counts, rest, digit.stride)
    step = rest.steps[k]
    return _split(region, k, first, digit.stride // step if digit.stride % step == 0 and rest.start < step else 0)


def _reach(counts: Shape, value: Affine) -> int:
    """Return the largest value of a coordinate above its start."""
    return sum((n - 1) * s for n, s in zip(counts, value.steps, strict=True))


def _crossing(counts: Shape, value: Affine, bound: int) -> tuple[int, int]:
    """Return the axis along which a coordinate crosses a bound, and the first index beyond it."""
    order = sorted((k for k, n in enumerate(counts) if n > 1 and value.steps[k]), key=lambda k: -value.steps[k])
    for k in order:
        first = -(-(bound - value.start) // value.steps[k])
        if 0 < first < counts[k]:
            return k, first
    return order[0], counts[order[0]] // 2  # no axis crosses by itself


def _split(region: Region, k: int, first: int, period: int = 0) -> list[Region]:
    """Split axis k before index `first`; if it carries every `period` indices, fold it into rows of that length."""
    n, counts = region.counts[k], region.counts
    if period and n % period == 0:
        rows = (*counts[:k], period, *counts[k + 1 :], n // period)
        return [_reindexed(region, rows, lambda v: Affine(v.start, (*v.steps, v.steps[k] * period)))]
    first = n // period * period if period else first
    beyond = (*counts[:k], n - first, *counts[k + 1 :])
    return [
        region._replace(counts=(*counts[:k], first, *counts[k + 1 :])),
        _reindexed(region, beyond, lambda v: Affine(v.start + v.steps[k] * first, v.steps)),
    ]


def _reindexed(region: Region, counts: Shape, change: Callable[[Affine], Affine]) -> Region:
    """Give a region new axes; `change` rewrites every position in terms of them."""
    return Region(counts, change(region.source), change(region.target), change(region.rest), region.level)
