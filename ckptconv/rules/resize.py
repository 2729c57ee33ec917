"""Change the length of one axis: `crop` cuts its end off, `pad` puts one value there. Pure; no tensor is read.

    crop = { axis = 0, to = 30522 }                 the inverse pads: what was cut off is lost
    pad = { axis = 0, to = 30528, value = 0 }       the inverse crops, and checks that only padding is cut off
    pad = { axis = 0, to = 48, front = true }       at the beginning of the axis instead
    pad = { axis = 0, to = 48, unchecked = true }   the inverse cuts off whatever is there, with a note

The axis is one of the rule's target. `from` is the length before; else the metadata records it for the inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ..checkpoint import NoteKind, Tensor, contiguous
from ..errors import LayoutError
from ..moves import derived
from ..moves.part import Part
from . import layout as layouts
from . import operations

if TYPE_CHECKING:
    from .converter import Resize

ADDED, TIMES = 2**26, 8  # bytes that a recorded length may add to a tensor: so many, or so many times its own


def forward(resize: Resize, t: Tensor, to: int, before: int | None) -> Tensor:
    """The tensor with its axis `to` long; LayoutError if it was not `before` long, or is too long or too short."""
    length = _length(resize, t)
    if before is not None and length != before:
        raise LayoutError(f"axis {resize.axis} is {length} long, not {before} as `from` says")
    if (to - length) * (1 if resize.pads else -1) < 0:
        what, other = ("pad", "longer") if resize.pads else ("crop", "shorter")
        raise LayoutError(f"`{what}` to {to}: axis {resize.axis} is {other} than that, {length}")
    return _padded(t, resize, to) if resize.pads else _cut(t, resize, to)[0]


def backward(resize: Resize, t: Tensor, to: int, before: int | None) -> Tensor:
    """The tensor as it was before `forward` made its axis `to` long."""
    length = _length(resize, t)
    if length != to:
        raise LayoutError(f"axis {resize.axis} is {length} long, not {to} as `to` says")
    if before is None:
        raise LayoutError(f"the length of axis {resize.axis} before is not recorded; give it as `from`")
    if (before - length) * (-1 if resize.pads else 1) < 0:
        raise LayoutError(f"axis {resize.axis} is {length} long and was {before}: that is not what the rule does")
    if not resize.pads:
        return _padded(t, resize, before)
    kept, rest = _cut(t, resize, before)
    if not rest.count or resize.unchecked:
        return kept
    start = 0 if resize.front else before
    return contiguous(
        t.name, t.dtype, kept.shape, derived.without(kept, rest, resize.value, axis=resize.axis, start=start)
    )


def bounded(resize: Resize, t: Tensor, recorded: int | None) -> None:
    """Refuse a length that metadata, which is from a file, records if it would make a small tensor huge."""
    more = (recorded or 0) - _length(resize, t)
    others = prod(n for k, n in enumerate(t.shape) if k != resize.axis)
    if more * others * t.dtype.itemsize > max(ADDED, TIMES * t.nbytes):
        raise LayoutError(
            f"axis {resize.axis} is {_length(resize, t)} long and was {recorded}, as the metadata records: more than "
            "is taken from there; give it as `from` if that is right"
        )


def described(resize: Resize, old: Sequence[int], new: Sequence[int], *, backward: bool) -> tuple[NoteKind, str] | None:
    """What became of a tensor, for a note; None if nothing did."""
    was, now = old[resize.axis], new[resize.axis]
    if was == now:
        return None
    what = f"axis {resize.axis} is {'padded' if now > was else 'cropped'} from {was} to {now}"
    if now > was:
        what += f" with {resize.value:g}"
        return ("lossy", f"{what}: what the crop cut off is lost") if backward else ("hint", what)
    if backward and not resize.unchecked:
        return "hint", f"{what}: what is cut off must be {resize.value:g}, which is checked when it is read"
    return "lossy", f"{what}: what is beyond is lost"


def _length(resize: Resize, t: Tensor) -> int:
    if resize.axis >= len(t.shape):
        raise LayoutError(f"axis {resize.axis} does not exist: the tensor has {len(t.shape)}")
    return t.shape[resize.axis]


def _names(axis: int, count: int, along: str) -> str:
    """The axes of a tensor in a layout, `along` for the one that changes."""
    return " ".join(along if k == axis else f"a{k}" for k in range(count))


def _cut(t: Tensor, resize: Resize, to: int) -> tuple[Tensor, Tensor]:
    """The part of a tensor that is kept, with its axis `to` long, and the rest: behind it, or in front of it."""
    names = ("y", "x") if resize.front else ("x", "y")
    sides = [_names(resize.axis, len(t.shape), x) for x in (f"({' + '.join(names)})", "x", "y")]
    pattern = layouts.parse(f"{sides[0]} -> {sides[1]}, {sides[2]}")
    kept, rest = (replace(t, shape=s, parts=p) for s, p in pattern.apply([t], {"x": to}))
    return kept, rest


def _padded(t: Tensor, resize: Resize, to: int) -> Tensor:
    """The tensor with one value at the end of an axis, or at its beginning."""
    if to == (length := _length(resize, t)):
        return t
    shape = (*t.shape[: resize.axis], to - length, *t.shape[resize.axis + 1 :])
    end = replace(t, shape=shape, parts=_constant(t, shape, resize.value))
    both = "(y + x)" if resize.front else "(x + y)"
    sides = [_names(resize.axis, len(t.shape), x) for x in ("x", "y", both)]
    ((whole, parts),) = layouts.parse(f"{sides[0]}, {sides[1]} -> {sides[2]}").apply([t, end])
    return replace(t, shape=whole, parts=parts)


def _constant(t: Tensor, shape: Sequence[int], value: float) -> tuple[Part, ...]:
    if t.dtype.kind in "sx":
        raise LayoutError(f"{t.dtype} is not padded: its elements are not numbers")
    element = operations.constant(value, t.dtype, "`pad`")
    return (derived.constant(element, t.dtype, tuple(shape)),)


__all__ = ["backward", "bounded", "described", "forward"]
