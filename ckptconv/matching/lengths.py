"""Pair tensors of which one axis is longer on one side: a vocabulary that was padded for the machine.

    wte [50257, 768] -> transformer.wte.weight [50304, 768]      pad = { axis = 0, from = 50257, to = 50304 }
    word_embeddings [30528, 768] -> embeddings.weight [30522, 768]      crop

First matrices whose names are alike, or that are the only ones left of their width on both sides; then what is as long
as they: the bias of a head. Always a real doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..rules import layout as layouts
from . import names as by_name
from .named import ALIKE, Known, Sides
from .orders import Order
from .pairs import Length, Pair
from .words import items

MULTIPLE = 8  # what a padded length is a multiple of
LEAST, SHARE = 64, 8  # elements that padding may add: so many, or that part of the length
DOUBT = "the lengths differ, {} and {}: taken to be a vocabulary that was padded"


def by_length(sides: Sides, known: Known) -> list[Pair]:
    """Pairs of what is left, where a length can be padding."""
    out = list(_matrices(sides, known))
    lengths = {(p.length.before, p.length.to) for p in out if p.length}
    done = {n for p in out for n in (*p.sources, *p.targets)}
    flat: list[dict[str, Hashable]] = [
        {n: t.shape[0] for n, t in side.tensors.items() if len(t.shape) == 1 and n not in done} for side in sides
    ]
    for before, to in sorted(lengths):
        groups: list[dict[str, Hashable]] = [
            {n: (before, to) for n, length in many.items() if length == own}
            for many, own in zip(flat, (before, to), strict=True)
        ]
        for found in by_name.match(items(*[groups[0]] * 2), items(*[groups[1]] * 2), unique=known.unique):
            out.append(_pair(found.a, found.b, Order(), Length(0, before, to)))
    return out


def _matrices(sides: Sides, known: Known) -> Iterator[Pair]:
    groups: list[dict[str, Hashable]] = [
        {n: (t.dtype.kind, min(t.shape)) for n, t in side.tensors.items() if len(t.shape) == 2} for side in sides
    ]
    if not set(groups[0].values()) & set(groups[1].values()):
        return
    counts = [Counter(g.values()) for g in groups]
    for found in by_name.match(items(*[groups[0]] * 2), items(*[groups[1]] * 2), unique=known.unique):
        a, b = sides[0].tensors[found.a], sides[1].tensors[found.b]
        old, new = max(a.shape), max(b.shape)
        if not padded(old, new) or b.shape.count(new) > 1:
            continue
        if found.likeness < ALIKE and not counts[0][groups[0][found.a]] == counts[1][groups[1][found.b]] == 1:
            continue
        like = replace(a, shape=tuple(new if n == old else n for n in a.shape))
        judged = known.judge.order(like, b)
        if judged and (axis := _axis(judged.order, a, b)) is not None:
            yield _pair(found.a, found.b, judged.order, Length(axis, old, new))


def padded(one: int, other: int) -> bool:
    """Whether the longer of two lengths can be the shorter one, padded."""
    short, long = sorted((one, other))
    return short < long <= short + max(LEAST, short // SHARE) and long % MULTIPLE == 0


def _axis(order: Order, a: Tensor, b: Tensor) -> int | None:
    """The only axis of the target whose length differs; None if there are more, or if the order does not fit."""
    shape = a.shape
    if order.text:
        try:
            pattern = layouts.parse(order.text)
            shape = pattern.shapes(pattern.solve([a.shape], dict(order.sizes)))[0]
        except LayoutError:
            return None
    odd = [k for k, (m, n) in enumerate(zip(shape, b.shape, strict=True)) if m != n]
    return odd[0] if len(odd) == 1 else None


def _pair(a: str, b: str, order: Order, length: Length) -> Pair:
    why = DOUBT.format(length.before, length.to)
    return Pair((a,), (b,), order, sure=False, real=True, why=(why,), length=length)


__all__ = ["by_length", "padded"]
