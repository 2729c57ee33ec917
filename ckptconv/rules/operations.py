"""The operations of a rule: which there are, what undoes each, and what they are once sizes are known. Pure.

    sum                                  adds the sources, which rounds: nothing undoes it
    neg  conj  swap                      the inverse is the operation itself
    add:X  mul:X                         undone by add:-X, and by mul:1/X if X is a power of two
    mul:sqrt(k)  mul:rsqrt(k)            times the root of an axis of the layout, or of a product of axes: sqrt(h k)
    div:sqrt(k)  div:sqrt(k):bfloat16    divided by it; the root is first rounded to bfloat16

The last ones round, in float32, once: so do programs that keep 1/sqrt(k) in the weights of a query. Their inverses are
mul:rsqrt, mul:sqrt and again mul:sqrt, which round as well.

What a dtype does not have is refused when the plan is made: a sign, fractions, numbers beyond it. Results that it does
not have are refused when they are computed, by moves/cast.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple

from ..checkpoint import NoteKind, Tensor, contiguous, origin
from ..dtypes import NO_ZERO, SATURATES, DType
from ..errors import ConversionError, LayoutError, UsageError
from ..messages import did_you_mean
from ..moves import derived
from ..moves.part import Part
from . import layout as layouts
from .templates import Template

_NUMBER = re.compile(r"(?:add|mul|fill):(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)")
_ROOT = re.compile(r"(mul:sqrt|mul:rsqrt|div:sqrt)\(([A-Za-z_][\w.]*(?: [A-Za-z_][\w.]*)*)\)(:bfloat16)?")
OWN_INVERSE = ("neg", "conj", "swap")
KINDS = {"neg": "fc", "add": "fc", "mul": "fc"}  # of dtypes; others take all that are numbers
_LACKING = {"neg": NO_ZERO, "add": SATURATES, "mul": SATURATES}  # the first has no sign
_UNDONE = {"mul:sqrt": "mul:rsqrt", "mul:rsqrt": "mul:sqrt", "div:sqrt": "mul:sqrt"}


class Of(NamedTuple):
    """A size taken from a tensor of the source: the length of one of its axes."""

    name: Template
    axis: int

    def length(self, shape: Sequence[int]) -> int | None:
        """The length of the axis in a shape, counted from its end if negative; None if it has no such axis."""
        return shape[self.axis] if -len(shape) <= self.axis < len(shape) else None


class Resize(NamedTuple):
    """The length of an axis of a rule's target, and what it was; `pads` or crops, and with which value."""

    pads: bool
    axis: int
    to: int | str | Of
    before: int | str | Of | None = None
    value: float = 0.0
    unchecked: bool = False  # the inverse of a pad cuts off whatever is there

    def __str__(self) -> str:
        return f"{'pad' if self.pads else 'crop'} axis {self.axis}"


def scales(op: str) -> bool:
    """Whether an operation depends on the size of an axis."""
    return _ROOT.fullmatch(op) is not None


def check(op: str, axes: Collection[str]) -> None:
    """Refuse an operation that does not exist, or whose axes the layout does not have."""
    if m := _ROOT.fullmatch(op):
        if odd := sorted(set(m[2].split()) - set(axes)):
            raise UsageError(f"the operation {op!r} refers to {odd[0]}, which is not an axis of the layout")
        return
    if op in OWN_INVERSE:
        return
    if m := _NUMBER.fullmatch(op):
        if math.isinf(float(m[1])):
            raise UsageError(f"the operation {op!r} has a number beyond those of 64 bits")
        return
    hint = did_you_mean(op, [*OWN_INVERSE, "add:X", "fill:X", "mul:X", *(f"{w}(AXIS)" for w in _UNDONE)], "operations")
    raise UsageError(f"unknown operation {op!r}{hint}")


def inverse(op: str) -> str:
    """The operation that undoes `op`, exactly unless it takes the size of an axis; UsageError if there is none."""
    name, _, x = op.partition(":")
    if op in OWN_INVERSE:
        return op
    if m := _ROOT.fullmatch(op):
        return f"{_UNDONE[m[1]]}({m[2]}){m[3] or ''}"
    if name == "add":
        return f"add:{x[1:]}" if x.startswith("-") else f"add:-{x}"
    if name == "mul" and float(x):
        value = abs(Fraction(x))
        if {value.numerator & (value.numerator - 1), value.denominator & (value.denominator - 1)} == {0}:
            return f"mul:{1 / float(x)!r}"
    raise UsageError(f"the operation {op!r} cannot be undone exactly")


def resolved(op: str, sources: Sequence[Tensor], sizes: Mapping[str, int]) -> str:
    """The operation with a number in place of axes; LayoutError if it is not for the dtypes of the tensors."""
    m = _ROOT.fullmatch(op)
    if m is None:
        fits(op, [p for t in sources for p in t.parts])
        return op
    if odd := [t for t in sources if t.dtype.kind != "f" or t.dtype.name == SATURATES]:
        raise LayoutError(f"{op} is for floating-point numbers, not {odd[0].dtype}")
    root = math.sqrt(math.prod(sizes[axis] for axis in m[2].split()))
    if not root:
        return "times:1.0"  # an axis without elements: there is nothing to scale
    import numpy as np

    value = np.float32(1 / root if m[1] == "mul:rsqrt" else root)
    if m[3]:
        import ml_dtypes

        value = np.float32(ml_dtypes.bfloat16(value))
    return f"{'over' if m[1] == 'div:sqrt' else 'times'}:{float(value)!r}"


def fits(op: str, parts: Sequence[Part]) -> None:
    """LayoutError if the elements of some parts cannot take an operation, or its number."""
    name, _, x = op.partition(":")
    for kind in {p.dtype for p in parts}:
        if kind.kind not in KINDS.get(name, "iufcb") or kind.name == _LACKING.get(name):
            raise LayoutError(f"{op} is not for {kind}")
        if x:
            constant(float(x), kind, f"`{name}`")


def constant(x: float, kind: DType, what: str) -> Any:
    """A number as an element of a dtype; LayoutError, with what it is for, if the dtype cannot hold it."""
    from ..moves.cast import element

    try:
        return element(x, kind)
    except ConversionError as e:
        raise LayoutError(f"{e.message} of {what}") from e


# --- Several tensors as one: stacked along an axis, copies that must be equal, sums. Pure ---


def stacked(tensors: Mapping[tuple[int, ...], Tensor]) -> Tensor:
    """Stack tensors of one shape along new first axes, on which each has its place."""
    places, ordered = zip(*sorted(tensors.items()), strict=True)  # which fill a grid: a group is complete
    first = _first_of_alike(ordered)
    counts = tuple(max(index) + 1 for index in zip(*places, strict=True))
    parts = [p._replace(start=p.start + i * first.count) for i, t in enumerate(ordered) for p in t.parts]
    return replace(first, shape=(*counts, *first.shape), parts=tuple(parts))


def unstacked(tensor: Tensor, axes: int) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Split a tensor along its first axes: each tensor with its place; the inverse of `stacked`."""
    counts, rest = tensor.shape[:axes], tensor.shape[axes:]
    count = prod(counts)
    flat = replace(tensor, shape=(count, *rest))
    for i, place in enumerate(product(*map(range, counts))):
        _, one, _ = _split(flat, 0, i, 1, count - i - 1)
        yield place, replace(one, shape=rest)


def _joint(axis: int, count: int) -> layouts.Layout:
    """The layout that splits an axis into `count` pieces n0, n1, ..., and inverted joins them."""
    before = "".join(f"a{k} " for k in range(axis))
    targets = ", ".join(f"{before}n{i} ..." for i in range(count))
    return layouts.parse(f"{before}({' + '.join(f'n{i}' for i in range(count))}) ... -> {targets}")


def _split(t: Tensor, axis: int, *lengths: int) -> list[Tensor]:
    """The pieces of a tensor of which an axis is cut into these lengths."""
    made = _joint(axis, len(lengths)).apply([t], {f"n{i}": n for i, n in enumerate(lengths)})
    return [replace(t, shape=shape, parts=parts) for shape, parts in made]


def copied(tensors: Sequence[Tensor]) -> Tensor:
    """The first of copies; that they are equal is checked when it is read."""
    first = _first_of_alike(tensors)
    if first.dtype.kind == "s":
        raise LayoutError("copies are compared by bytes, which strings do not have")
    if not first.count or all(origin(t) == origin(first) for t in tensors):
        return first
    return contiguous(first.name, first.dtype, first.shape, derived.compared(tensors), role=first.role)


def summed(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, computed when it is read."""
    first = _first_of_alike(tensors)
    if first.dtype.kind != "f" or first.dtype.name == SATURATES:
        raise LayoutError(f"`sum` adds floating-point numbers, not {first.dtype}")
    return contiguous(first.name, first.dtype, first.shape, derived.summed(tensors)) if first.count else first


def filled(like: Tensor, numbers: Sequence[float]) -> tuple[Part, ...]:
    """The parts of a tensor, with a constant in each of equal blocks along its first axis."""
    for number in numbers:
        fits(f"fill:{number!r}", like.parts)
    size = like.count // len(numbers)
    return tuple(
        p._replace(start=p.start + i * size, ops=(*p.ops, f"fill:{number!r}"))
        for i, (number, block) in enumerate(_blocks(like, numbers))
        for p in block.parts
    )


def without(kept: Tensor, constant: Tensor, numbers: Sequence[float]) -> Tensor:
    """A tensor for which another was `filled`; that it holds these numbers is checked when the tensor is read."""
    if constant.shape != kept.shape:
        raise LayoutError(f"{constant.name} is {list(constant.shape)}, but {kept.name} is {list(kept.shape)}")
    for i, (number, block) in enumerate(_blocks(constant, numbers)):
        fits(f"fill:{number!r}", block.parts)
        start = i * block.shape[0] if i else 0
        data = derived.without(kept, block, number, start=start, filled=True)
        kept = contiguous(kept.name, kept.dtype, kept.shape, data, role=kept.role) if kept.count else kept
    return kept


def _blocks(t: Tensor, numbers: Sequence[float]) -> Iterator[tuple[float, Tensor]]:
    """The numbers, each with one of equal blocks along the first axis."""
    count = len(numbers)
    return zip(numbers, [t] if count == 1 else _split(t, 0, *[prod(t.shape[:1]) // count] * count), strict=True)


def _first_of_alike(tensors: Sequence[Tensor]) -> Tensor:
    """The first of tensors, which must have one shape and one dtype."""
    first = tensors[0]
    if odd := [t for t in tensors if t.shape != first.shape or t.dtype != first.dtype]:
        a, b = (f"{t.name} is {list(t.shape)} {t.dtype}" for t in (odd[0], first))
        raise LayoutError(f"{a}, but {b}")
    return first


# --- Change the length of one axis: `crop` cuts its end off, `pad` puts one value there. Pure; no tensor is read ---
#
#     crop = { axis = 0, to = 30522 }                 the inverse pads: what was cut off is lost
#     pad = { axis = 0, to = 30528, value = 0 }       the inverse crops, and checks that only padding is cut off
#     pad = { axis = 0, to = 48, unchecked = true }   the inverse cuts off whatever is there, with a note
#
# The axis is one of the rule's target. `from` is the length before; else the metadata records it for the inverse.


ADDED, TIMES = 2**26, 8  # bytes that a recorded length may add to a tensor: so many, or so many times its own


def resized(
    how: Resize, t: Tensor, to: int | None, before: int | None, *, backward: bool
) -> tuple[Tensor, tuple[NoteKind, str] | None]:
    """The tensor with its axis `to` long, and a note on what became of it; LayoutError if it was not `before` long.

    backward: to undo what `how` does.
    """
    if how.axis >= len(t.shape):
        raise LayoutError(f"axis {how.axis} does not exist: the tensor has {len(t.shape)}")
    length, pads = t.shape[how.axis], how.pads != backward
    if before is not None and length != before:
        raise LayoutError(f"axis {how.axis} is {length} long, not {before} as `{'to' if backward else 'from'}` says")
    if to is None:
        raise LayoutError(f"the length of axis {how.axis} before is not recorded; give it as `from`")
    if to == length:
        return t, None
    if (to > length) != pads:
        raise LayoutError(f"axis {how.axis} is {length} long: to {'pad' if pads else 'crop'} it to {to} is impossible")
    text = f"axis {how.axis} is {'padded' if pads else 'cropped'} from {length} to {to}"
    if pads:
        if t.dtype.kind in "sx":
            raise LayoutError(f"{t.dtype} is not padded: its elements are not numbers")
        shape = (*t.shape[: how.axis], to - length, *t.shape[how.axis + 1 :])
        end = replace(t, shape=shape, parts=(derived.constant(constant(how.value, t.dtype, "`pad`"), t.dtype, shape),))
        ((whole, parts),) = _joint(how.axis, 2).inverse.apply([t, end])
        note: NoteKind = "lossy" if backward else "hint"
        lost = ": what the crop cut off is lost" * backward
        return replace(t, shape=whole, parts=parts), (note, f"{text} with {how.value:g}{lost}")
    kept, rest = _split(t, how.axis, to, length - to)
    if not backward or how.unchecked:
        return kept, ("lossy", f"{text}: what is beyond is lost")
    if rest.count:
        data = derived.without(kept, rest, how.value, axis=how.axis, start=to)
        kept = contiguous(t.name, t.dtype, kept.shape, data)
    return kept, ("hint", f"{text}: what is cut off must be {how.value:g}, which is checked when it is read")


def bounded(how: Resize, t: Tensor, recorded: int | None) -> None:
    """Refuse a length that metadata, which is from a file, records if it would make a small tensor huge."""
    others = prod(n for k, n in enumerate(t.shape) if k != how.axis)
    if (recorded or 0) * others * t.dtype.itemsize > t.nbytes + max(ADDED, TIMES * t.nbytes):
        raise LayoutError(
            f"axis {how.axis} was {recorded} long, as the metadata records: more than is taken from there; give it as "
            "`from` if that is right"
        )
