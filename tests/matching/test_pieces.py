"""Cells, fingerprints, paddings, rule files and inputs, each by itself: what becomes of what, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ckptconv import UsageError
from ckptconv.checkpoint import Tensor, held
from ckptconv.matching.modules.units import Unit
from ckptconv.matching.orders import choose as cells
from ckptconv.matching.orders.axes import Order
from ckptconv.matching.orders.choose import FLAT, GATES as GRU, KEPT_GATES, Judge
from ckptconv.matching.pairs import Length, Pair, Proposal, Side
from ckptconv.matching.rules import toml

Shape = tuple[int, ...]
FLATTENED = "(s c) o -> o (c s)"
FLAT_GATES = GRU.replace("i (h", "(s c) (h").replace(") i", ") (c s)")


def judge(a: Any, *, module: bool = False) -> Judge:
    return Judge(Side(a), {}, module=module)


def tensor(name: str, shape: Shape, kind: str = "f4") -> Tensor:
    return held(name, np.zeros(shape, kind))


def unit(home: str, **members: tuple[str, Shape]) -> Unit:
    return Unit(home, {role: tensor(name, shape) for role, (name, shape) in members.items()}, (home,), 0, 0)


# --- cells: inputs 5, states 3 ------------------------------------------------------------------------------------


def torch_cell(gates: int, *, biased: bool = True) -> Unit:
    shapes: dict[str, Shape] = {"weight_ih": (gates * 3, 5), "weight_hh": (gates * 3, 3)}
    shapes |= {"bias_ih": (gates * 3,), "bias_hh": (gates * 3,)} if biased else {}
    return unit("rnn", **{role: (f"t.{role}", shape) for role, shape in shapes.items()})


def keras_cell(gates: int, bias: Shape | None = None, *, recurrent: bool = True) -> Unit:
    members: dict[str, tuple[str, Shape]] = {"weight_ih": ("k/kernel", (5, gates * 3))}
    if recurrent:
        members["weight_hh"] = ("k/recurrent_kernel", (3, gates * 3))
    if bias:
        members["bias_ih"] = ("k/bias", bias)
    return unit("k", **members)


GRU = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"
BOTH = ("t.bias_ih", "t.bias_hh")
BIASES = {
    # gates, the bias of the source: what it becomes
    "LSTM": (4, (12,), ("", BOTH[:1], cells.SUMMED, None, False, (("t.bias_hh", (0.0,)),))),
    "CuDNN LSTM": (4, (24,), ("(a.0 + a.1) -> a.0, a.1", BOTH, KEPT_GATES, None, False, ())),
    "GRU": (3, (9,), ("(h.z + h.r + h.n) -> (h.r + h.z + h.n)", BOTH[:1], cells.RESET, None, True,
                      (("t.bias_hh", (0.0,)),))),
    "CuDNN GRU": (3, (18,), ("(h.a + h.b + h.c + h.d + h.e + h.f) -> (h.b + h.a + h.c), (h.e + h.d + h.f)", BOTH,
                             KEPT_GATES, None, False, ())),
    "GRU, reset after": (3, (2, 9), ("e (h.z + h.r + h.n) -> (h.r + h.z + h.n)", BOTH, KEPT_GATES, (1, 2), False, ())),
    "another length": (3, (10,), None),
}  # fmt: skip


@pytest.mark.parametrize("case", BIASES)
def test_the_bias_of_a_cell(case: str) -> None:
    gates, shape, want = BIASES[case]
    a, b = keras_cell(gates, shape), torch_cell(gates)
    *matrices, last = cells.cell_pairs(a, b, judge(a.members))
    doubt = cells.CUDNN if case.startswith("CuDNN") else KEPT_GATES
    assert {(p.why, p.real) for p in matrices} == {((doubt,), doubt != KEPT_GATES)}
    if want is None:
        assert last.targets == ("t.weight_hh",)
        return
    text, targets, why, each, real, fills = want
    assert last == Pair(("k/bias",), targets, Order(text), "names", False, (why,), (), real, fills, None, each)


@pytest.mark.parametrize(("gates", "text"), [(4, FLATTENED), (3, FLAT_GATES)])
def test_a_cell_behind_a_flattened_image(gates: int, text: str) -> None:
    """An image of five channels in two rows, if its convolution has as many, and none if it has three."""
    a, b = keras_cell(gates), torch_cell(gates, biased=False)
    wide = tensor("k/kernel", (10, gates * 3)), tensor("t.weight_ih", (gates * 3, 10))
    x, y = (replace(u, members={**u.members, "weight_ih": t}) for u, t in zip((a, b), wide, strict=True))
    plain = Order(GRU if gates == 3 else "i o -> o i")
    for channels, want in (
        (5, (Order(text, (("c", 5),)), (KEPT_GATES, FLAT), True)),
        (3, (plain, (KEPT_GATES,), False)),
    ):
        chosen = judge({"c/kernel": tensor("c/kernel", (3, 2, channels))}, module=True)
        found, state = cells.cell_pairs(x, y, chosen)
        assert (found.order, found.why, found.real) == want
        assert (state.why, state.real) == ((KEPT_GATES,), False)


# --- rule files -----------------------------------------------------------------------------------------------------


def test_a_rule_file_as_it_is_written() -> None:
    pairs = [
        Pair(("d.w",), ("D.w",), evidence="values"),
        Pair(("b.w",), ("B.w",), Order("i o -> o i"), "names", False, ("a guess",)),
        Pair(("c.w",), ("C.w",), Order(), "names", False, ("several fit", "so it is"), tuple("uvwxyz"), real=True),
        Pair(("c.v",), ("C.v",), Order(), "names", False, ("several fit", "so it is"), tuple("uvwxy"), real=True),
        Pair(("j",), ("J1", "J2"), Order("(x + y) -> x, y", (("x", 5),)), "values",
             fills=(("F", (0.0,)), ("G", (0.0, 1.5)))),
        Pair(("p",), ("P",), evidence="names", sure=False, real=True, why=("longer",), length=Length(0, 7, 8)),
    ]  # fmt: skip
    every = tuple(n for p in pairs for n in p.sources)
    found = Proposal(pairs, (("D.w", "tied"),), {"copy": "d.w"}, ("left{",), ("T1", "T2"), ("a note\x1b",),
                     (*every, "copy", "left{"), "they differ")  # fmt: skip
    assert (
        toml(found, "tf", "torch")
        == """\
# Proposed by `ckptconv match`: 9 tensors of the target found: 5 by values, 1 assumed, 3 to look at.
# Doubtful as a whole: they differ.
#   2 to look at: several fit; so it is
#   1 to look at: longer
# Without counterpart in the source (2 tensors of the target):
#   T{1..2} (2)
# note: a note\\x1b
title = "tf to torch"
source = "tf"
target = "torch"

[[rule]]
# look at this: several fit; so it is
[rule.names]
# could also be u, v, w, x, y
"c.v" = "C.v"
# could also be u, v, w, x, y, ...
"c.w" = "C.w"

[[rule]]
# look at this: longer
pad = { axis = 0, from = 7, to = 8, value = 0 }
[rule.names]
"p" = "P"

[[rule]]
# assumed: a guess
layout = "i o -> o i"
[rule.names]
"b.w" = "B.w"

[[rule]]
# values: equal bit for bit
[rule.names]
"d.w" = "D.w"

[[rule]]
# values: equal bit for bit
from = "j"
to = ["J1", "J2"]
layout = "(x + y) -> x, y"
sizes = { x = 5 }
fill = { "F" = 0.0, "G" = [0.0, 1.5] }

[[tie]]  # one tensor under several names
names = ["D.w", "tied"]

[[rule]]
# without counterpart in the target: left out
[rule.names]
"left{{" = []

[[rule]]
# copies of another tensor, which is taken: left out
[rule.names]
"copy" = []
"""
    )


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\1b"])
def test_names_that_no_rule_file_can_hold(name: str) -> None:
    for side, pair in (("source", Pair((name,), ("b",))), ("target", Pair(("a",), ("b", name)))):
        words = f"the {side} has control characters in its names; no rule file is proposed"
        with pytest.raises(UsageError, match=words):
            toml(Proposal([pair], every=pair.sources))
