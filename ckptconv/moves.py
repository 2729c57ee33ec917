"""The one kernel: copy a strided box to a strided box, perhaps changing the elements on the way.

    clip(part, lo, hi)         the parts of a part that fill elements [lo, hi) of its tensor
    fuse(shape, a, b)          merge axes that are contiguous on both sides
    copy(dst, src)             two equally shaped views; blocked so that both sides stay in the cache
    transform(...)             named element-wise operations, then a cast that counts what it cannot keep

A transposed copy done naively misses the cache on every element. Going through a scratch tile whose rows are 16
elements too long (so that power-of-two strides do not fall into the same cache set) reads and writes whole lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import ConversionError, UsageError
from .tensor import DType, Part

Array = NDArray[Any]

TILE = 16384  # elements of a scratch tile: 64 KiB of float32, within the second-level cache of any machine
PAD = 16
SHORT = 64  # a run of fewer bytes that is contiguous on both sides is not worth a plain copy


# --- geometry ---------------------------------------------------------------------------------------------------


def clip(part: Part, lo: int, hi: int) -> list[Part]:
    """Cut a part down to the elements [lo, hi) of the tensor it fills; exact for any range.

    Axes are taken by falling destination step: an outer index whose whole inner box lies inside is kept in one piece,
    the at most two that lie partly inside are cut further.
    """
    if 0 in part.shape:
        return []
    extent = sum((n - 1) * s for n, s in zip(part.shape, part.steps, strict=True)) + 1
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


class Box(NamedTuple):
    """Fused axes: sizes, source strides and destination steps, by falling destination step."""

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


# --- copying ----------------------------------------------------------------------------------------------------


def strided(buffer: Any, carrier: str, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """View of a buffer; offset and strides in elements. numpy refuses what would reach past the buffer's end."""
    item = np.dtype(carrier).itemsize
    return np.ndarray(tuple(shape), carrier, buffer, offset * item, tuple(s * item for s in strides))


def copy(dst: Array, src: Array, *, _scratch: Array | None = None) -> None:
    """Copy between equally shaped views of the same element width, whatever their strides."""
    item = src.itemsize
    box = fuse(src.shape, [s // item for s in src.strides], [s // item for s in dst.strides])
    if _plain(box, item):
        np.copyto(dst, src)
        return
    src = np.lib.stride_tricks.as_strided(src, box.shape, [s * item for s in box.strides])
    dst = np.lib.stride_tricks.as_strided(dst, box.shape, [s * item for s in box.steps])
    order = sorted(range(len(box.shape)), key=lambda i: -box.strides[i])  # as the source lies
    sizes = _tile(box)
    pitch = [sizes[i] for i in order]
    scratch = np.empty((*pitch[:-1], pitch[-1] + PAD), src.dtype)[..., : pitch[-1]]
    scratch = scratch.transpose(np.argsort(order))
    for at in product(*(range(0, n, t) for n, t in zip(box.shape, sizes, strict=True))):
        block = tuple(slice(a, a + t) for a, t in zip(at, sizes, strict=True))
        piece = src[block]
        tile = scratch[tuple(slice(0, n) for n in piece.shape)]
        np.copyto(tile, piece)
        np.copyto(dst[block], tile)


def _plain(box: Box, item: int) -> bool:
    """Whether a direct copy already walks both sides along the same short stride."""
    if len(box.shape) < 2:
        return True
    fast = min(range(len(box.shape)), key=lambda i: box.steps[i])
    near = min(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    return fast == near and box.shape[fast] * item >= SHORT


def _tile(box: Box) -> list[int]:
    """Tile sizes: long along the source's and the destination's shortest strides, then filled up with other axes."""
    sizes = [1] * len(box.shape)
    by_src = sorted(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    by_dst = sorted(range(len(box.shape)), key=lambda i: box.steps[i])
    room = TILE
    for axes, most in ((by_src, 256), (by_dst, 64)):
        got = 1
        for i in axes:
            if sizes[i] > 1 or got >= most or room < 2:
                break
            sizes[i] = max(1, min(box.shape[i], most // got, room))
            got *= sizes[i]
            room //= sizes[i]
    for i in by_dst:
        grown = min(box.shape[i], sizes[i] * max(1, room))
        room = room * sizes[i] // grown if grown else room
        sizes[i] = max(1, grown)
    return sizes


# --- elements ---------------------------------------------------------------------------------------------------


def _swap(a: Array, kind: DType) -> Array:
    return a.view(f"u{kind.word}").byteswap().view(a.dtype) if kind.word > 1 else a


def _low_bits(bits: int, signed: bool) -> Callable[[Array, DType], Array]:
    def keep(a: Array, kind: DType) -> Array:
        raw = a.view("u1") & np.uint8((1 << bits) - 1)
        if signed:  # sign-extend: ml_dtypes and its casts expect the high bits to follow the sign
            raw = ((raw.astype("i1") << (8 - bits)) >> (8 - bits)).view("u1")
        out: Array = raw.view(a.dtype)
        return out

    return keep


def _negate(a: Array, kind: DType) -> Array:
    out: Array = np.negative(a)
    return out


# Element-wise operations on arrays of the stored dtype, by name; "add:1" passes 1 to the second table.
OPS: dict[str, Callable[[Array, DType], Array]] = {
    "swap": _swap,
    "conj": lambda a, kind: np.conj(a),
    "neg": _negate,
    "bool": lambda a, kind: (a.view("u1") != 0).view(a.dtype),
    "int4": _low_bits(4, True),
    "uint4": _low_bits(4, False),
    "int2": _low_bits(2, True),
    "uint2": _low_bits(2, False),
    "float4": _low_bits(4, False),
}
ARITHMETIC: dict[str, Callable[[Array, float], Array]] = {
    "add": lambda a, x: (a + np.asarray(x).astype(a.dtype)).astype(a.dtype),
    "mul": lambda a, x: (a * np.asarray(x).astype(a.dtype)).astype(a.dtype),
}


def check_op(name: str) -> None:
    """UsageError if there is no such operation."""
    word, _, number = name.partition(":")
    if name in OPS or (word in ARITHMETIC and _is_number(number)):
        return
    known = ", ".join([*OPS, *(f"{w}:NUMBER" for w in ARITHMETIC)])
    raise UsageError(f"there is no operation {name!r}; there are {known}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Loss(NamedTuple):
    """What a cast could not keep: finite values that became infinite or NaN, and non-zero ones that became zero."""

    overflow: int = 0
    underflow: int = 0


def transform(raw: Array, kind: DType, ops: Sequence[str], to: DType) -> tuple[Array, Loss]:
    """Apply operations to contiguous elements (as carriers) and cast; returns carriers of the target's width."""
    a = raw.view(kind.np) if kind.kind != "x" else raw
    for name in ops:
        if name in OPS:
            a = OPS[name](a, kind)
        else:
            word, _, number = name.partition(":")
            a = ARITHMETIC[word](a, float(number))
    loss = Loss()
    if to != kind:
        a, loss = cast(a, kind, to)
    return np.ascontiguousarray(a).view(to.carrier), loss


def castable(kind: DType, to: DType) -> bool:
    """Whether `cast` knows the way: numbers to wider or narrower numbers of a sort, never strings or opaque bytes."""
    if kind == to:
        return True
    if kind.kind in "sx" or to.kind in "sx" or to.kind == "b":
        return False
    return to.kind == "c" or kind.kind != "c"


def cast(a: Array, kind: DType, to: DType) -> tuple[Array, Loss]:
    """Cast with round-to-nearest-even; integers must fit, floats that do not are counted."""
    if not castable(kind, to):
        raise ConversionError(f"{kind} cannot be cast to {to}")
    if to.kind in "iu":
        return _to_int(a, kind, to), Loss()
    with np.errstate(all="ignore"):
        if kind.name == "float64" and to.itemsize < 4:
            a = _round_to_odd(a)  # through float32 ml_dtypes rounds twice
        out = a.astype(to.np)
        if kind.kind not in "fc" or to.kind == "c" or to.itemsize >= kind.itemsize:
            return out, Loss()
        wide = out.astype(a.dtype)
        lost = np.isfinite(a) & ~np.isfinite(wide)
        gone = (wide == 0) & (a != 0)
    return out, Loss(int(np.count_nonzero(lost)), int(np.count_nonzero(gone)))


def _to_int(a: Array, kind: DType, to: DType) -> Array:
    bits = 8 * to.itemsize if to.name[-1] not in "24" or to.itemsize > 1 else int(to.name[-1])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to.kind == "i" else (0, (1 << bits) - 1)
    if kind.kind == "f":
        raise ConversionError(f"{kind} is not cast to {to}: fractions would be lost")
    if a.size and kind.kind != "b" and (int(a.min()) < low or int(a.max()) > high):
        raise ConversionError(f"values from {int(a.min())} to {int(a.max())} do not fit {to}")
    return a.astype(to.np)


def _round_to_odd(a: Array) -> Array:
    """float64 -> float32 such that a second rounding to fewer bits gives the correctly rounded result."""
    f = a.astype(np.float32)
    bits = f.view(np.uint32)
    inexact = np.isfinite(a) & np.isfinite(f) & (f.astype(np.float64) != a)
    away = inexact & (np.abs(f.astype(np.float64)) > np.abs(a))
    bits = np.where(away, bits - 1, bits)  # truncate toward zero ...
    return np.where(inexact, bits | 1, bits).astype(np.uint32).view(np.float32)  # ... and mark what was cut off
