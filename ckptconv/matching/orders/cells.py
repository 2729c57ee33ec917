"""Recurrent cells, whose gates and biases every framework keeps in its own way.

torch       weight_ih [4h, x], weight_hh [4h, h], bias_ih [4h], bias_hh [4h]     LSTM: i f g o     GRU: r z n
Keras       kernel [x, 4h], recurrent_kernel [h, 4h], bias [4h]                  LSTM: i f c o     GRU: z r h
            GRU with reset_after: bias [2, 3h]; CuDNN: bias [8h] or [6h]
Flax        the gates as matrices (gates.py); of the state of a GRU only the candidate has a bias, [h]
TF1         kernel [x + h, 4h], bias [4h], forget_bias added when it runs        LSTM: i j f o
"""

from __future__ import annotations

from typing import NamedTuple

from ..modules.units import Unit
from ..pairs import Length
from .axes import Order
from .choose import GATES, KEPT_GATES, Judge

LSTM, GRU = 4, 3
SUMMED = "the bias is the sum of torch's two: one of them is filled with zeros"
FORGET = "TensorFlow 1 adds a forget_bias when it runs, 1.0 unless the code says otherwise: it is filled in"
LAST = "of the state only the candidate's gate has a bias: zeros are put before it"
RESET = "torch's GRU resets after the matrix; an original without reset_after computes something else"


class Piece(NamedTuple):
    """Tensors of a cell that become others."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    order: Order
    why: str
    axis: str = ""
    real: bool = False
    fills: tuple[tuple[str, tuple[float, ...]], ...] = ()
    length: Length | None = None
    also: str = ""  # another doubt


def cell_pieces(a: Unit, b: Unit, judge: Judge) -> list[Piece]:
    """The pairs of a cell of the source and one of torch; what has no counterpart is left out."""
    if "weight_ih" not in b.members or "weight_hh" not in b.members:
        return []
    state = b.members["weight_hh"].shape[-1]
    gates = b.members["weight_ih"].shape[0] // max(1, state)
    return [*_matrices(a, b, judge, gates), *_biases(a, b, gates, state)]


def _matrices(a: Unit, b: Unit, judge: Judge, gates: int) -> list[Piece]:
    ours = b.members["weight_ih"], b.members["weight_hh"]
    if "joint" in a.members:
        order = Order(
            "(x + y) (h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o) x, (h.i + h.f + h.j + h.o) y",
            (("x", ours[0].shape[1]),),
        )
        return [Piece((a.members["joint"].name,), tuple(t.name for t in ours), order, KEPT_GATES)]
    out = []
    for role, t in zip(("weight_ih", "weight_hh"), ours, strict=True):
        if role not in a.members:
            continue
        found = judge.order(a.members[role], t)
        kernel = not a.members[role].name.rpartition(".")[2].startswith("weight_")
        if found is None and not (gates == GRU and kernel):
            continue
        turned = Order(GATES) if found is None or (gates == GRU and kernel) else found.order
        flat = judge.after_image(a.members[role], turned) if role == "weight_ih" else None
        piece = Piece((a.members[role].name,), (t.name,), turned, KEPT_GATES)
        out.append(piece._replace(order=flat.order, real=True, also=flat.doubt) if flat else piece)
    return out


def _biases(a: Unit, b: Unit, gates: int, state: int) -> list[Piece]:
    ours = tuple(b.members[r].name for r in ("bias_ih", "bias_hh") if r in b.members)
    if len(ours) < 2 or "bias_ih" not in a.members:
        return []
    bias, wide = a.members["bias_ih"], gates * state
    if gates == GRU and "bias_hh" in a.members and a.members["bias_hh"].shape == (state,):
        last = Piece((a.members["bias_hh"].name,), ours[1:], Order(), LAST, length=Length(0, state, wide, front=True))
        return [Piece((bias.name,), ours[:1], Order("(h.z + h.r + h.n) -> (h.r + h.z + h.n)"), KEPT_GATES), last]
    if "bias_hh" in a.members:
        both = zip(("bias_ih", "bias_hh"), ours, strict=True)
        return [Piece((a.members[r].name,), (n,), Order(), KEPT_GATES) for r, n in both]
    if "joint" in a.members:
        fill = (0.0, 1.0, 0.0, 0.0)  # of torch's order i f g o
        order = Order("(h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o)")
        return [Piece((bias.name,), ours[:1], order, FORGET, real=True, fills=((ours[1], fill),))]
    if bias.shape == (wide,):
        order = Order("(h.z + h.r + h.n) -> (h.r + h.z + h.n)") if gates == GRU else Order()
        why = RESET if gates == GRU else SUMMED
        return [Piece((bias.name,), ours[:1], order, why, real=gates == GRU, fills=((ours[1], (0.0,)),))]
    if bias.shape == (2 * wide,):
        text = "(a.0 + a.1) -> a.0, a.1"
        if gates == GRU:
            text = "(h.a + h.b + h.c + h.d + h.e + h.f) -> (h.b + h.a + h.c), (h.e + h.d + h.f)"
        return [Piece((bias.name,), ours, Order(text), KEPT_GATES)]
    if bias.shape == (2, wide):
        text = "e (h.z + h.r + h.n) -> (h.r + h.z + h.n)" if gates == GRU else "e a -> a"
        return [Piece((bias.name,), ours, Order(text), KEPT_GATES, axis="e")]
    return []
