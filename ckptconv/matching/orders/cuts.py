"""Lay out tensors that are cut or joined, or changed in ways that shapes do not show, for values to prove.

kernel [48, 7] -> weight [7, 48]                         (a b) o -> o (b a)        flattened the other way
kernel [4, 12] -> weight_ih [12, 4]                      gates in another order
[12, 768, 64] -> blocks.{e*}.query.weight [64, 768]      e i o -> o i
[768, 2304] -> q, k, v [768, 768]                        i (o.0 + o.1 + o.2) -> o.0 i, o.1 i, o.2 i
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from ...checkpoint import Tensor
from ..pairs import Bundle, Side, Sides
from .axes import LETTERS, Order, Shape, suffixed, tokens
from .choose import Judge, Judged

MAX_DIVISORS = 64


def hidden(a: Shape, b: Shape) -> Iterator[Order]:
    """Yield orders that shapes do not show: gates in another order, axes flattened the other way round."""
    if len(a) != len(b) or not a or len(a) > 3:
        return
    names = LETTERS[: len(a)]
    for turn in permutations(range(len(a))):
        if tuple(a[k] for k in turn) != b:
            continue
        for k, n in enumerate(a):
            for before, after in _gates(names[k], n):
                yield _turned(names, turn, {k: (before, after)})
            for d in divisors(n):
                x, y = f"{names[k]}x", f"{names[k]}y"
                yield _turned(names, turn, {k: (f"({x} {y})", f"({y} {x})")})._replace(sizes=((y, d),))


def _turned(names: str, turn: Sequence[int], other: Mapping[int, tuple[str, str]]) -> Order:
    """Make an order of axes, some of which have different names before and after."""
    both = [other.get(k, (x, x)) for k, x in enumerate(names)]
    return Order(f"{' '.join(x for x, _ in both)} -> {' '.join(both[k][1] for k in turn)}")


def _gates(name: str, n: int) -> Iterator[tuple[str, str]]:
    """Yield all other orders of equal blocks: (h.0 + h.1 + h.2), (h.1 + h.0 + h.2)."""
    for count in (4, 3, 2):
        if n % count == 0 and n > count:
            terms = [f"{name}.{i}" for i in range(count)]
            for other in list(permutations(terms))[1:]:
                yield f"({' + '.join(terms)})", f"({' + '.join(other)})"


def divisors(n: int) -> list[int]:
    """Return the first `MAX_DIVISORS` divisors of a number, without 1 and itself."""
    found = [d for d in range(2, int(n**0.5) + 1) if n % d == 0]
    return sorted({*found, *(n // d for d in found)})[:MAX_DIVISORS]


def within(order: Order, rank: int, axis: int) -> Order:
    """Turn the order of slices with `rank` axes into one of their stack, whose axis `axis` counts them."""
    words, right = order.sides(rank)
    return order._replace(text=f"{' '.join([*words[:axis], 'e', *words[axis:]])} -> {right}".strip())


FUSED = "query, key and value are taken to follow each other in this order"
PARTS = "the parts of a tensor are taken to follow each other in this order"
QKV = 3


def bundle_order(a: Tensor, b: Tensor, sides: Sides, judge: Judge) -> Judged | None:
    """Return the order from a source tensor to a target tensor, of which one or both are bundles; None if none fits."""
    x, y = sides[0].bundles.get(a.name), sides[1].bundles.get(b.name)
    if y is not None and (x is None or y.kind == "fused"):
        return _cut_bundle(a, replace(b, shape=y.shape), y, judge, x)
    back = x and _cut_bundle(b, replace(a, shape=x.shape), x, Judge(Side({}), {}), y)
    if not back:
        return None
    return back._replace(order=back.order.inverse, each=back.each and back.each[::-1])


def _cut_bundle(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Judged | None:
    """Return the order from one tensor, which can be a stack itself, to pieces."""
    if stack or bundle.layers > 1:
        return _layered(whole, piece, bundle, judge, stack)
    count = len(bundle.names)
    for axis, n in enumerate(whole.shape):
        if bundle.kind == "stacked" and n == count:
            rest = _without_axis(whole, axis)
            if found := judge.order(rest, piece):
                return found._replace(order=within(found.order, len(rest.shape), axis), each=(1, count))
        if bundle.kind == "fused" and n % count == 0:
            part = replace(whole, shape=(*whole.shape[:axis], n // count, *whole.shape[axis + 1 :]))
            if found := judge.order(part, piece):
                why = FUSED if count == QKV and n > count else "" if bundle.counted else PARTS
                return Judged(fused(found.order, len(part.shape), axis, count), why, bool(why))
    return None


def _layered(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Judged | None:
    """Return the order from one tensor for all layers to pieces in each, or from one per layer to pieces for all."""
    if bundle.kind != "fused" or (stack and (stack.kind != "stacked" or bundle.layers > 1)):
        return None
    layers = len(stack.names) if stack else bundle.layers
    if stack:
        whole = replace(whole, shape=stack.shape)
    for axis, n in enumerate((piece if stack else whole).shape):
        if n != layers:
            continue
        one = (whole, _without_axis(piece, axis)) if stack else (_without_axis(whole, axis), piece)
        single = bundle._replace(names=bundle.names[:: bundle.layers], shape=one[1].shape, layers=1)
        if found := _cut_bundle(*one, single, judge, None):
            ends = [end.split(",") for end in found.order.text.split("->")]
            some = [tokens(t) for t in ends[bool(stack)]]
            ends[bool(stack)] = [" ".join([*w[:axis], "e", *w[axis:]]) for w in some]
            text = " -> ".join(", ".join(t.strip() for t in end) for end in ends)
            return found._replace(order=Order(text, found.order.sizes), each=(layers, 1) if stack else (1, layers))
    return None


def _without_axis(t: Tensor, axis: int) -> Tensor:
    return replace(t, shape=t.shape[:axis] + t.shape[axis + 1 :])


def fused(order: Order, rank: int, axis: int, count: int, heads: int = 1) -> Order:
    """Turn the order of one piece into one of the whole, whose axis `axis` holds all pieces.

    i (q + k + v) -> i q, i k, i v         one after the other
    i (n (q + k + v)) -> i (n q), ...      with several heads, each of which holds a block of every piece
    """
    names, right = order.sides(rank)
    if names[axis] == "1":  # the parts have their own axis
        first, *others = tokens(right)
        names[axis], right = "n", " ".join([f"(n {first.strip('()')})", *others])
    inside = re.findall("[a-z]", names[axis])
    parts = [suffixed(names[axis].strip("()"), inside, i) for i in range(count)]
    terms, sizes = f"({' + '.join(parts)})", order.sizes
    if heads > 1:
        terms, sizes = f"(x {terms})", (*sizes, ("x", heads))
        right = re.sub(rf"\b{names[axis]}\b", f"(x {names[axis]})", right)
    text = " ".join([*names[:axis], terms, *names[axis + 1 :]])
    rights = [suffixed(right, inside, i) for i in range(count)]
    return Order(f"{text} -> {', '.join(rights)}", sizes)


def uneven(order: Order, rank: int, axis: int, sizes: Sequence[int]) -> Order:
    """Do the same with pieces of several sizes; 0 is one row, without that axis.

    a b -> b a         (n0 + 1 + n2) b -> b n0, b, b n2
    """
    names, right = order.sides(rank)
    terms = [f"n{i}" if n else "1" for i, n in enumerate(sizes)]
    rights = [re.sub(rf"\b{names[axis]}\b", t.removeprefix("1"), right) for t in terms]
    text = " ".join([*names[:axis], f"({' + '.join(terms)})", *names[axis + 1 :]])
    known = [(t, n) for t, n in zip(terms, sizes, strict=True) if n][: len(sizes) - 1 - (0 in sizes)]
    return Order(f"{text} -> {', '.join(' '.join(r.split()) for r in rights)}", tuple(known))
