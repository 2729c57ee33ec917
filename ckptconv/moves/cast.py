"""Apply named operations to elements, then cast them and count the values that the cast loses.

    transform(raw, kind, ops, to) -> (elements, Loss)

Rounding is to nearest, ties to even, in one step, whatever the two dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import frexp
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..dtypes import LOOSE, NO_ZERO, SATURATES, DType, castable
from ..errors import ConversionError
from .log import Loss

Array = NDArray[Any]
finfo: Any = ml_dtypes.finfo  # has no types
BLOCK = 2**17  # elements processed together: as float64 they fit in the second-level cache


def strict(a: Array, kind: DType) -> Array:
    """Bring elements of a `LOOSE` dtype to the one byte that stands for each; return other arrays unchanged."""
    bits = LOOSE.get(kind.name)
    if bits is None:
        return a
    raw = a.view("u1")
    raw = raw & np.uint8((1 << bits) - 1) if bits > 1 else (raw != 0).view("u1")
    if kind.kind == "i":  # sign-extend: ml_dtypes and its casts expect the high bits to follow the sign
        raw = ((raw.astype("i1") << (8 - bits)) >> (8 - bits)).view("u1")
    out: Array = raw.view(a.dtype)
    return out


def limits(kind: DType) -> tuple[int, int]:
    """Return the smallest and the largest integer of a dtype."""
    bits = int(kind.name.lstrip("uint"))
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind.kind == "i" else (0, (1 << bits) - 1)


def element(x: float, kind: DType) -> Array:
    """Convert a number to an element of a dtype; floats round to nearest.

    ConversionError if the dtype cannot hold it: a fraction, out of range, or so small that it becomes zero.
    """
    with np.errstate(all="ignore"):
        made: Array = strict(np.array([x]).astype(kind.dtype), kind).reshape(())
        back = complex(made.astype("c16"))
    if back == x or (x != x and back != back):
        return made
    if kind.kind not in "fc" or not (0 < abs(x) <= float(finfo(kind.dtype).max) and np.isfinite(back) and back):
        raise ConversionError(f"{kind} cannot hold the number {x:g}")
    return made


def _finite(a: Array, out: Array, how: str) -> Array:
    """Return a result; ConversionError if it is infinite or NaN where its input `a` is finite."""
    if not np.isfinite(out).all() and (lost := np.count_nonzero(np.isfinite(a)) - np.count_nonzero(np.isfinite(out))):
        raise ConversionError(f"{lost} of {a.size} elements are too large to be {how}")
    return out


def _added(a: Array, kind: DType, x: float) -> Array:
    by = element(x, kind)
    with np.errstate(all="ignore"):
        return _finite(a, (a + by).astype(a.dtype), f"added to {x!r}")


def _scaled(a: Array, kind: DType, x: float) -> Array:
    """Multiply the elements by a number; ConversionError if a power of two, which an inverse undoes, is not exact.

    The two parts of complex numbers are scaled and counted separately, since a product with `x` as a complex number
    would make NaN of infinities.
    """
    by = element(x, kind).real
    parts = a.view(by.dtype)
    with np.errstate(all="ignore"):
        out: Array = (parts * by).astype(by.dtype)
        odd = np.count_nonzero((out / by != parts) & (parts == parts)) if abs(frexp(x)[0]) == 0.5 else 0
    if odd:
        many = f"{odd} of {parts.size} elements"
        raise ConversionError(f"mul:{x!r} is not exact for {many}: they are too large or too small")
    return _finite(parts, out, f"scaled by {x!r}").view(a.dtype)


def _rounded(compute: Callable[[Array, Any], Array]) -> Callable[[Array, DType, float], Array]:
    """Make an operation with a number that computes in float32 or wider and rounds once to the elements' dtype."""

    def scale(a: Array, kind: DType, x: float) -> Array:
        wide = np.float64 if a.dtype == np.float64 else np.float32
        with np.errstate(all="ignore"):
            return _finite(a, compute(a.astype(wide), wide(x)).astype(a.dtype), f"scaled by {x!r}")

    return scale


# Element-wise operations on arrays of the stored dtype, by name; "add:1" passes the number 1.
OPS: dict[str, Callable[[Array, DType, float], Array]] = {
    "swap": lambda a, kind, _: a.view(f"u{kind.word}").byteswap().view(a.dtype) if kind.word > 1 else a,
    "conj": lambda a, kind, _: np.conj(a) if kind.kind == "c" else a,
    "neg": lambda a, *_: np.negative(a),
    "add": _added,
    "fill": lambda a, kind, x: np.full_like(a, element(x, kind)),
    "mul": _scaled,
    "times": _rounded(np.multiply),
    "over": _rounded(np.divide),
}


def transform(raw: Array, kind: DType, ops: Sequence[str], to: DType) -> tuple[Array, Loss]:
    """Apply operations to contiguous elements (as carriers) and cast; returns carriers of the target's width."""
    a = strict(raw.view(kind.dtype), kind) if kind.kind != "x" else raw
    for op in ops:
        name, _, number = op.partition(":")
        a = OPS[name](a, kind, float(number or 0))
    loss = Loss()
    if to != kind:
        a, loss = cast(a, kind, to)
        a = strict(a, to)  # ml_dtypes clears the high bits, also of negative numbers
    return np.ascontiguousarray(a).view(to.carrier), loss


def cast(a: Array, kind: DType, to: DType) -> tuple[Array, Loss]:
    """Cast with round-to-nearest-even; count floats that do not fit, ConversionError for integers that do not."""
    if not castable(kind, to):
        raise ConversionError(f"{kind} cannot be cast to {to}")
    if to.kind in "iu":
        return _to_int(a, kind, to), Loss()
    with np.errstate(all="ignore"):
        source = a
        if kind.name == "float64" and to.itemsize < 4:
            a = _round_to_odd(a)  # ml_dtypes converts through float32 and would round twice
        if NO_ZERO in (kind.name, to.name) and kind.itemsize == to.itemsize:
            a = a.astype(np.float32)  # exactly; ml_dtypes does not know these casts
        out = _to_half(a) if (kind.name, to.name) == ("float32", "float16") else a.astype(to.dtype)
        if _holds(to, kind):
            return out, Loss()
        return out, lost(source, out, to)


@cache
def _holds(to: DType, kind: DType) -> bool:
    """Tell whether a cast from `kind` to `to` never makes finite values infinite or NaN, or non-zero ones zero."""
    wide = finfo(to.dtype)
    if kind.kind in "iub":
        largest = 1 if kind.kind == "b" else max(map(abs, limits(kind)))
        return to.name != NO_ZERO and largest <= float(wide.max)
    narrow = finfo(kind.dtype)
    within = float(wide.min) <= float(narrow.min) and float(narrow.max) <= float(wide.max)
    return within and float(wide.smallest_subnormal) <= float(narrow.smallest_subnormal)


def lost(a: Array, out: Array, to: DType) -> Loss:
    """Count the values that a cast made infinite, NaN or zero; both parts of complex numbers count."""
    total, a, out = Loss(), a.reshape(-1), out.reshape(-1)
    with np.errstate(all="ignore"):
        for at in range(0, len(a), BLOCK):
            count = _halves_lost if to.name in HALVES else _lost
            total = total.plus(count(a[at : at + BLOCK], out[at : at + BLOCK], to))
    return total


def _lost(a: Array, out: Array, to: DType) -> Loss:
    """Count by comparing."""
    if out.dtype.kind == "c":
        a, out = (a.view(a.real.dtype), out.view(out.real.dtype)) if a.dtype.kind == "c" else (a, out.real)
    elif a.dtype.kind not in "fcV" or to.name == SATURATES:  # integers; those of ml_dtypes have kind V
        a = a.astype(np.float64)
    lost = ~(np.abs(a) < 7) if to.name == SATURATES else np.isfinite(a) & ~np.isfinite(out)
    return Loss(int(np.count_nonzero(lost)), int(np.count_nonzero((out == 0) & (a != 0) & ~lost)))


HALVES = {"float16": 0x7C00, "bfloat16": 0x7F80}  # the bits of infinity


def _halves_lost(a: Array, out: Array, to: DType) -> Loss:
    """Do the same as `_lost` on the bits of 16-bit floats, five times faster. Zeros stay zeros in a cast."""
    magnitude = out.view(np.uint16) & np.uint16(0x7FFF)
    if not magnitude.size:
        return Loss()
    gone = 0 if magnitude.min() else int(np.count_nonzero(a != 0)) - int(np.count_nonzero(magnitude != 0))
    if magnitude.max() < HALVES[to.name]:
        return Loss(0, gone)
    return Loss(int(np.count_nonzero(np.isfinite(a))) - int(np.count_nonzero(magnitude < HALVES[to.name])), gone)


def _to_half(a: Array) -> Array:
    """Convert float32 to float16 in passes over all elements, which is faster than NumPy's loop.

    For |x| below 2^(e+1), the addition 2^(e+13) + |x| rounds x to 11 significant bits and puts them in the lowest
    place; e is at least -14, where subnormals begin. A half stores e + 14 above these bits. After M. Dukhan,
    github.com/Maratyszcza/FP16.
    """
    if a.ndim != 1 or len(a) > BLOCK:
        return a.astype(np.float16)
    bits = a.view(np.uint32)
    out, power = np.empty((2, len(a)), np.uint32)
    np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=out)
    if out.max(initial=0) >= 0x477FF000:  # 65520, which rounds to infinity
        return a.astype(np.float16)
    np.bitwise_and(bits, np.uint32(0x7F800000), out=power)
    np.maximum(power, np.uint32(0x38800000), out=power)  # 2^-14
    power += np.uint32((13 << 23) + 0x800)  # 0x800: makes e + 14 of e + 140, shifted by ten, in 16 bits
    np.add(out.view(np.float32), power.view(np.float32), out=out.view(np.float32))
    power >>= np.uint32(13)
    out += power
    np.right_shift(bits, np.uint32(16), out=power)
    power &= np.uint32(0x8000)  # the sign
    out |= power
    halves: Array = out.astype(np.uint16).view(np.float16)
    return halves


def _to_int(a: Array, kind: DType, to: DType) -> Array:
    low, high = limits(to)
    if kind.kind == "f":
        raise ConversionError(f"{kind} is not cast to {to}: fractions would be lost")
    if a.size and kind.kind != "b" and (int(a.min()) < low or int(a.max()) > high):
        raise ConversionError(f"values from {int(a.min())} to {int(a.max())} do not fit {to}")
    return a.astype(to.dtype)


def _round_to_odd(a: Array) -> Array:
    """Convert float64 to float32 so that a second rounding to fewer bits gives the correctly rounded result."""
    f = a.astype(np.float32)
    bits = f.view(np.uint32)
    inexact = np.isfinite(a) & np.isfinite(f) & (f.astype(np.float64) != a)
    away = inexact & (np.abs(f.astype(np.float64)) > np.abs(a))
    bits = np.where(away, bits - 1, bits)  # truncate toward zero ...
    return np.where(inexact, bits | 1, bits).astype(np.uint32).view(np.float32)  # ... and mark that bits were cut off


# --- elements as numbers ----------------------------------------------------------------------------------------


def numbers(raw: Array, kind: DType) -> Array:
    """View a window's bytes as real numbers that NumPy can compute with; empty for opaque elements."""
    if kind.kind == "x":
        return np.empty(0, np.float32)
    flat = raw.view(kind.dtype)
    if kind.kind == "c":
        with np.errstate(over="ignore"):
            magnitude: Array = np.abs(flat)
            return magnitude
    if kind.kind == "b":
        return flat.view(np.uint8)
    if kind.kind == "f":
        return flat if kind.itemsize >= 4 else flat.astype(np.float32)
    return flat if flat.dtype.kind in "iu" else flat.astype(np.int8)  # int4 and the like
