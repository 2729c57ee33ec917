"""Recurrent cells that hold a matrix for each gate, as one: Keras 1, Flax, and much that was written by hand.

    lstm_1_W_i, lstm_1_U_i, lstm_1_b_i, lstm_1_W_c, ...         kernel [x, 4h], recurrent_kernel [h, 4h], bias [4h]
    LSTMCell_0/ii/kernel, LSTMCell_0/hi/{kernel,bias}, ...      the gates of the inputs have no bias
    GRUCell_0/ir/{kernel,bias}, GRUCell_0/hn/{kernel,bias}      of those of the state only the candidate's has one

The bundles are in the order of Keras: i f c o, and z r h. cells.py pairs them like any other cell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from . import orders
from .orders import LETTERS, Order
from .side import Bundle, Side

LSTM, GRU = "ifco", "zrh"
ROLES = {"x": "kernel", "h": "recurrent_kernel", "b": "bias", "bx": "bias", "bh": "recurrent_bias"}
SPELLED = (
    (re.compile(r"(.+?)[/_.](W|U|b)_?([ifcgozrhn])"), {"W": "x", "U": "h", "b": "b"}),
    (re.compile(r"(.+?)[/_.][wW]_?([xh])_?([ifcgozrn])"), {"x": "x", "h": "h"}),
)
DENSE = re.compile(r"(.+)/([ih])([ifgorzn])/(kernel|bias)")
SAME = {"g": "c", "n": "h"}  # the candidate has two names


def gated(side: Side) -> Side:
    """The side with the gates of each cell in one tensor of each kind."""
    cells: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for name in side.tensors:
        if found := _parsed(name):
            home, role, gate = found
            cells[home][role, SAME.get(gate, gate)] = name
    first: dict[str, list[tuple[str, Bundle]]] = defaultdict(list)
    gone: set[str] = set()
    for home, named in cells.items():
        made = _bundles(home, named, side)
        for bundle in made.values():
            gone |= {*bundle.names}
        if made:
            first[next(n for n in named.values() if n in gone)] += made.items()
    if not first:
        return side
    out = {}
    for name, t in side.tensors.items():
        for new, bundle in first.get(name, ()):
            *rest, last = bundle.shape
            shape = (*rest, last * len(bundle.names))
            out[new] = replace(side.tensors[bundle.names[0]], name=new, shape=shape, parts=())
        if name not in gone:
            out[name] = t
    bundles = {new: bundle for many in first.values() for new, bundle in many}
    return replace(side, tensors=out, bundles={**side.bundles, **bundles})


def _parsed(name: str) -> tuple[str, str, str] | None:
    """The cell of a tensor, what it is there (x, h: for inputs, state; b, bx, bh: biases), and its gate."""
    if m := DENSE.fullmatch(name):
        role = {"i": "x", "h": "h"}[m[2]]
        return m[1], role if m[4] == "kernel" else f"b{role}", m[3]
    for pattern, roles in SPELLED:
        if m := pattern.fullmatch(name):
            return m[1], roles[m[2]], m[3]
    return None


def _bundles(home: str, named: Mapping[tuple[str, str], str], side: Side) -> dict[str, Bundle]:
    """The bundles of one cell; none if its matrices are not complete or not of one shape."""
    gates = {gate for role, gate in named if role in "xh"}
    order = next((o for o in (LSTM, GRU) if set(o) == gates), "")
    out: dict[str, Bundle] = {}
    for role, leaf in ROLES.items():
        names = tuple(named.get((role, g), "") for g in order)
        shapes = {side.tensors[n].shape for n in names if n}
        new = f"{home}/{leaf}"
        if names and all(names) and len(shapes) == 1 and new not in side.tensors:
            out[new] = Bundle(names, "gates", shapes.pop())
    last = named.get(("bh", "h"), "")
    if order == GRU and last and f"{home}/bias" in out and f"{home}/recurrent_bias" not in {*out, *side.tensors}:
        out[f"{home}/recurrent_bias"] = Bundle((last,), "gates", side.tensors[last].shape)  # r and z have none
    if f"{home}/bias" not in out and f"{home}/recurrent_bias" in out:  # the only bias is that of both
        out[f"{home}/bias"] = out.pop(f"{home}/recurrent_bias")
    return out if {f"{home}/kernel", f"{home}/recurrent_kernel"} <= set(out) else {}


def parted(order: Order, bundle: Bundle) -> Order:
    """An order of the whole as one of its gates, which lie behind each other along the last axis."""
    rank, count = len(bundle.shape), len(bundle.names)
    if count == 1:
        return order
    letters = " ".join(LETTERS[:rank])
    left, _, right = (order.text or f"{letters} -> {letters}").partition("->")
    *rest, last = orders.tokens(left)
    if "+" in last:
        terms = [t.strip() for t in last.strip("()").split("+")]
    else:
        terms = [f"{last}.{k}" for k in range(count)]
        right = re.sub(rf"\b{last}\b", f"({' + '.join(terms)})", right)
    return Order(f"{', '.join(' '.join([*rest, t]) for t in terms)} -> {right.strip()}", order.sizes)


__all__ = ["gated", "parted"]
