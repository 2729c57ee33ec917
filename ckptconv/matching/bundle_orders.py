"""How the axes of a bundle go: of tensors that one side holds as one and the other in pieces.

[12, 768, 64] -> blocks.{e*}.query.weight [64, 768]      e i o -> o i
[768, 2304] -> q, k, v [768, 768]                        i (o.0 + o.1 + o.2) -> o.0 i, o.1 i, o.2 i
kv_einsum/w [2, 4, 768, 64] -> k, v [256, 768]           (n.0 + n.1) a b c -> (n.0 a c) b, (n.1 a c) b
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from ..checkpoint import Tensor
from . import cuts, orders
from .doubt import Judge, Judged
from .images import Images
from .orders import LETTERS, Order
from .side import Bundle, Side

FUSED = "query, key and value are taken to lie behind each other in this order"
PARTS = "the parts of a tensor are taken to lie behind each other in this order"
QKV = 3


class Found(NamedTuple):
    """The layout that cuts or joins a bundle, the capture of a stack ('' for a fusion), and `Pair.each`."""

    judged: Judged
    axis: str = ""
    each: tuple[int, int] | None = None

    @property
    def inverse(self) -> Found:
        each = self.each and (self.each[1], self.each[0])
        return Found(self.judged._replace(order=self.judged.order.inverse), self.axis, each)


def order(a: Tensor, b: Tensor, sides: tuple[Side, Side], judge: Judge) -> Found | None:
    """How the axes of two tensors go, one of which is a bundle, or both; None if there is no way.

    `a` is a tensor of the source and `b` one of the target.
    """
    x, y = sides[0].bundles.get(a.name), sides[1].bundles.get(b.name)
    if y is not None and (x is None or y.kind == "fused"):
        return _cut(a, replace(b, shape=y.shape), y, judge, x)
    if x is None:
        return None
    back = _cut(b, replace(a, shape=x.shape), x, Judge(Images({}, {}, {})), y)
    return back and back.inverse


def _cut(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Found | None:
    """How one tensor becomes the pieces; it can be a stack of its own."""
    if stack or bundle.layers > 1:
        return _layered(whole, piece, bundle, judge, stack)
    count = len(bundle.names)
    for axis, n in enumerate(whole.shape):
        if bundle.kind == "stacked" and n == count:
            rest = _without(whole, axis)
            if found := judge.order(rest, piece):
                return Found(found._replace(order=cuts.within(found.order, len(rest.shape), "e", axis)), "e")
        if bundle.kind == "fused" and n % count == 0:
            part = replace(whole, shape=(*whole.shape[:axis], n // count, *whole.shape[axis + 1 :]))
            if found := judge.order(part, piece):
                why = FUSED if count == QKV and n > count else "" if bundle.counted else PARTS
                return Found(Judged(_fused(found.order, len(part.shape), axis, count), why, bool(why)))
    return None


def _layered(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Found | None:
    """How one tensor for all layers becomes pieces in each layer; or one in each layer pieces for all layers."""
    if bundle.kind != "fused" or (stack and (stack.kind != "stacked" or bundle.layers > 1)):
        return None
    layers = len(stack.names) if stack else bundle.layers
    if stack:
        whole = replace(whole, shape=stack.shape)
    for axis, n in enumerate((piece if stack else whole).shape):
        if n != layers:
            continue
        one = (whole, _without(piece, axis)) if stack else (_without(whole, axis), piece)
        single = bundle._replace(names=bundle.names[:: bundle.layers], shape=one[1].shape, layers=1)
        if found := _cut(*one, single, judge, None):
            text = cuts.every_layer(found.judged.order, axis, left=not stack)
            return Found(found.judged._replace(order=text), "e", (layers, 1) if stack else (1, layers))
    return None


def _without(t: Tensor, axis: int) -> Tensor:
    return replace(t, shape=t.shape[:axis] + t.shape[axis + 1 :])


def _fused(order: Order, rank: int, axis: int, count: int) -> Order:
    """The order of one piece as one of the whole, whose axis `axis` holds all pieces behind each other."""
    letters = " ".join(LETTERS[:rank])
    left, _, right = (order.text or f"{letters} -> {letters}").partition("->")
    tokens = orders.tokens(left)
    if tokens[axis] == "1":  # the parts have an axis of their own
        first, *others = orders.tokens(right)
        tokens[axis], right = "n", " ".join([f"(n {first.strip('()')})", *others])
    inside = re.findall("[a-z]", tokens[axis])
    named = [orders.suffixed(tokens[axis].strip("()"), inside, i) for i in range(count)]
    text = " ".join([*tokens[:axis], f"({' + '.join(named)})", *tokens[axis + 1 :]])
    rights = [orders.suffixed(right.strip(), inside, i) for i in range(count)]
    return Order(f"{text} -> {', '.join(rights)}", order.sizes)
