"""Recurrent cells, whose gates and biases every framework keeps in its own way.

torch       weight_ih [4h, x], weight_hh [4h, h], bias_ih [4h], bias_hh [4h]     LSTM: i f g o     GRU: r z n
Keras       kernel [x, 4h], recurrent_kernel [h, 4h], bias [4h]                  LSTM: i f c o     GRU: z r h
            GRU with reset_after: bias [2, 3h]; CuDNN: bias [8h] or [6h]
Flax        the gates as matrices (gates.py); of the state of a GRU only the candidate has a bias, [h]
TF1         kernel [x + h, 4h], bias [4h], forget_bias added when it runs        LSTM: i j f o
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..modules.units import Unit
from ..pairs import Pair, leaf
from .axes import Order
from .choose import GATES, KEPT_GATES, Judge

GRU = 3  # gates
SUMMED = "the bias is the sum of torch's two: one of them is filled with zeros"
FORGET = "TensorFlow 1 adds a forget_bias when it runs, 1.0 unless the code says otherwise: it is filled in"
RESET = "torch's GRU resets after the matrix; an original without reset_after computes something else"


ZRN = "(h.z + h.r + h.n) -> (h.r + h.z + h.n)"
IJFO = "(h.i + h.j + h.f + h.o)", "(h.i + h.f + h.j + h.o)"


def cell_pairs(a: Unit, b: Unit, judge: Judge) -> list[Pair]:
    """The pairs of a cell of the source and one of torch; what has no counterpart is left out."""
    if not {"weight_ih", "weight_hh"} <= b.members.keys():
        return []
    state = b.members["weight_hh"].shape[-1]
    gates = b.members["weight_ih"].shape[0] // max(1, state)
    return [*_matrices(a, b, judge, gates), *_biases(a, b, gates, state)]


def _pair(source: str, targets: Sequence[str], text: str, why: str, **more: Any) -> Pair:
    return Pair((source,), tuple(targets), Order(text), sure=False, why=(why,), **more)


def _matrices(a: Unit, b: Unit, judge: Judge, gates: int) -> Iterator[Pair]:
    ours = [b.members[role] for role in ("weight_ih", "weight_hh")]
    if "joint" in a.members:
        text = f"(x + y) {IJFO[0]} -> {IJFO[1]} x, {IJFO[1]} y"
        pair = _pair(a.members["joint"].name, [t.name for t in ours], text, KEPT_GATES)
        yield pair._replace(order=Order(text, (("x", ours[0].shape[1]),)))
        return
    for role, t in zip(("weight_ih", "weight_hh"), ours, strict=True):
        theirs = a.members.get(role)
        found = judge.order(theirs, t) if theirs else None
        turned = gates == GRU and theirs is not None and not leaf(theirs.name).startswith("weight_")
        if theirs is None or not (found or turned):
            continue
        order = Order(GATES) if turned or not found else found.order
        pair = _pair(theirs.name, [t.name], "", KEPT_GATES)._replace(order=order)
        flat = judge.after_image(theirs, order) if role == "weight_ih" else None
        yield pair._replace(order=flat.order, real=True, why=(KEPT_GATES, flat.doubt)) if flat else pair


def _biases(a: Unit, b: Unit, gates: int, state: int) -> list[Pair]:
    ours = [b.members[r].name for r in ("bias_ih", "bias_hh") if r in b.members]
    if len(ours) < 2 or "bias_ih" not in a.members:
        return []
    bias, wide, gru = a.members["bias_ih"], gates * state, gates == GRU
    if second := a.members.get("bias_hh"):
        if second.shape == (state,):  # only the candidate's gate has one, and no rule puts zeros before it
            return [_pair(bias.name, ours[:1], ZRN, KEPT_GATES)]
        return [_pair(t.name, [n], "", KEPT_GATES) for t, n in zip((bias, second), ours, strict=True)]
    if "joint" in a.members:
        ones = ((ours[1], (0.0, 1.0, 0.0, 0.0)),)  # of torch's order i f g o
        return [_pair(bias.name, ours[:1], " -> ".join(IJFO), FORGET, real=True, fills=ones)]
    if bias.shape == (wide,):
        fills = ((ours[1], (0.0,)),)
        return [_pair(bias.name, ours[:1], ZRN if gru else "", RESET if gru else SUMMED, real=gru, fills=fills)]
    if bias.shape == (2 * wide,):
        six = "(h.a + h.b + h.c + h.d + h.e + h.f) -> (h.b + h.a + h.c), (h.e + h.d + h.f)"
        return [_pair(bias.name, ours, six if gru else "(a.0 + a.1) -> a.0, a.1", KEPT_GATES)]
    if bias.shape == (2, wide):
        return [_pair(bias.name, ours, f"e {ZRN}" if gru else "e a -> a", KEPT_GATES, axis="e")]
    return []
