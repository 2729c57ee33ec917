"""Several tensors as one: stacked along an axis, copies that must be equal, and exact sums. Pure; no tensor is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from ..checkpoint import Tensor, contiguous, origin
from ..errors import LayoutError
from ..moves import derived
from ..moves.part import Part
from . import layout as layouts
from . import operations
from .assign import Place


def stacked(tensors: Mapping[Place, Tensor]) -> Tensor:
    """Stack tensors of one shape along new first axes, on which each has its place."""
    first = _first_of_alike([t for _, t in sorted(tensors.items())])
    counts = tuple(max(index) + 1 for index in zip(*tensors, strict=True))
    if prod(counts) != len(tensors):
        raise LayoutError(f"{len(tensors)} tensors do not fill a grid of {' x '.join(map(str, counts))}")
    ordered = [t for _, t in sorted(tensors.items())]
    parts = [p._replace(start=p.start + i * first.count) for i, t in enumerate(ordered) for p in t.parts]
    return replace(first, shape=(*counts, *first.shape), parts=tuple(parts))


def unstacked(tensor: Tensor, axes: int) -> Iterator[tuple[Place, tuple[int, ...], tuple[Part, ...]]]:
    """Split a tensor along its first axes: each tensor with its place; the inverse of `stacked`."""
    pattern = layouts.parse("(before + 1 + after) ... -> before ..., ..., after ...")
    counts, rest = tensor.shape[:axes], tensor.shape[axes:]
    flat = replace(tensor, shape=(prod(counts), *rest))
    for i, place in enumerate(product(*map(range, counts))):
        yield (place, *pattern.apply([flat], {"before": i})[1])


def same(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor for equal copies, which compares them when it is read."""
    first = _first_of_alike(tensors)
    if first.dtype.kind == "s":
        raise LayoutError("copies are compared by bytes, which strings do not have")
    if not first.count or all(origin(t) == origin(first) for t in tensors):
        return first
    return contiguous(first.name, first.dtype, first.shape, derived.compared(tensors), role=first.role)


def summed(tensors: Sequence[Tensor], *, zeros: bool) -> Tensor:
    """The sum of tensors, which checks that it is exact when it is read."""
    first = _first_of_alike(tensors)
    if first.dtype.kind != "f":
        raise LayoutError(f"`sum` adds floating-point numbers, not {first.dtype}")
    if not first.count:
        return first
    return contiguous(first.name, first.dtype, first.shape, derived.summed(tensors, zeros=zeros), role=first.role)


def filled(like: Tensor, numbers: Sequence[float]) -> tuple[Part, ...]:
    """The parts of a tensor, with a constant in each of equal blocks along its first axis."""
    for number in numbers:
        operations.fits(f"fill:{number!r}", like.parts)
    size = like.count // len(numbers)
    return tuple(
        p._replace(start=p.start + i * size, ops=(*p.ops, f"fill:{number!r}"))
        for i, (number, block) in enumerate(zip(numbers, _blocks(like, len(numbers)), strict=True))
        for p in block.parts
    )


def without(kept: Tensor, constant: Tensor, numbers: Sequence[float]) -> Tensor:
    """A tensor for which another was `filled`; that it holds these numbers is checked when the tensor is read."""
    if constant.shape != kept.shape:
        raise LayoutError(f"{constant.name} is {list(constant.shape)}, but {kept.name} is {list(kept.shape)}")
    for i, (number, block) in enumerate(zip(numbers, _blocks(constant, len(numbers)), strict=True)):
        operations.fits(f"fill:{number!r}", block.parts)
        start = i * block.shape[0] if i else 0
        data = derived.without(kept, block, number, start=start, filled=True)
        kept = contiguous(kept.name, kept.dtype, kept.shape, data, role=kept.role) if kept.count else kept
    return kept


def _blocks(t: Tensor, count: int) -> list[Tensor]:
    """Equal blocks along the first axis."""
    if count == 1:
        return [t]
    axes = [f"n.b{i}" for i in range(count)]
    pattern = layouts.parse(f"({' + '.join(axes)}) ... -> {', '.join(f'{a} ...' for a in axes)}")
    return [replace(t, shape=shape, parts=parts) for shape, parts in pattern.apply([t])]


def _first_of_alike(tensors: Sequence[Tensor]) -> Tensor:
    """The first of tensors, which must have one shape and one dtype."""
    first = tensors[0]
    if odd := [t for t in tensors if t.shape != first.shape or t.dtype != first.dtype]:
        a, b = (f"{t.name} is {list(t.shape)} {t.dtype}" for t in (odd[0], first))
        raise LayoutError(f"{a}, but {b}")
    return first


__all__ = ["filled", "same", "stacked", "summed", "unstacked", "without"]
