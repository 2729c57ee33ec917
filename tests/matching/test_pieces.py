"""Cells, fingerprints, paddings, rule files and inputs, each by itself: what becomes of what, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ckptconv import UsageError
from ckptconv.checkpoint import Tensor, held
from ckptconv.matching import cells, parts
from ckptconv.matching.check import prove
from ckptconv.matching.doubt import GATES as GRU
from ckptconv.matching.doubt import KEPT_GATES, Judge
from ckptconv.matching.images import FLAT, FLAT_NOT, SHAPED_IMAGE, Images, vectors
from ckptconv.matching.lengths import _axis, padded
from ckptconv.matching.orders import Order
from ckptconv.matching.pairs import Length, Pair, Proposal, folded, leaf, parent
from ckptconv.matching.prints import Print, fingerprint, fingerprints
from ckptconv.matching.side import Side
from ckptconv.matching.toml import summary, toml
from ckptconv.matching.units import Unit
from ckptconv.moves.sources import Sources

Shape = tuple[int, ...]
FLATTENED = "(s c) o -> o (c s)"
FLAT_GATES = GRU.replace("i (h", "(s c) (h").replace(") i", ") (c s)")


def judge(a: Any, kinds: Any = None, in_front: Any = None, *, module: bool = False) -> Judge:
    return Judge(Images(a, kinds or {}, in_front or {}), module=module)


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
    "LSTM": (4, (12,), ("", BOTH[:1], cells.SUMMED, "", False, (("t.bias_hh", (0.0,)),))),
    "CuDNN LSTM": (4, (24,), ("(a.0 + a.1) -> a.0, a.1", BOTH, KEPT_GATES, "", False, ())),
    "LSTM, stacked": (4, (2, 12), ("e a -> a", BOTH, KEPT_GATES, "e", False, ())),
    "GRU": (3, (9,), ("(h.z + h.r + h.n) -> (h.r + h.z + h.n)", BOTH[:1], cells.RESET, "", True,
                      (("t.bias_hh", (0.0,)),))),
    "CuDNN GRU": (3, (18,), ("(h.a + h.b + h.c + h.d + h.e + h.f) -> (h.b + h.a + h.c), (h.e + h.d + h.f)", BOTH,
                             KEPT_GATES, "", False, ())),
    "GRU, reset after": (3, (2, 9), ("e (h.z + h.r + h.n) -> (h.r + h.z + h.n)", BOTH, KEPT_GATES, "e", False, ())),
    "another length": (3, (10,), None),
    "another shape": (4, (3, 12), None),
}  # fmt: skip


@pytest.mark.parametrize("case", BIASES)
def test_the_bias_of_a_cell(case: str) -> None:
    gates, shape, want = BIASES[case]
    a, b = keras_cell(gates, shape), torch_cell(gates)
    *_, last = cells.cell(a, b, judge(a.members))
    if want is None:
        assert last.targets == ("t.weight_hh",)
        return
    text, targets, why, axis, real, fills = want
    assert last == cells.Piece(("k/bias",), targets, Order(text), why, axis, real, fills)


def test_the_matrices_of_a_cell() -> None:
    for gates, texts in ((4, ["i o -> o i"] * 2), (3, [GRU, GRU])):
        a, b = keras_cell(gates), torch_cell(gates, biased=False)
        found = cells.cell(a, b, judge(a.members))
        assert [(p.sources, p.targets, p.why) for p in found] == [
            (("k/kernel",), ("t.weight_ih",), KEPT_GATES), (("k/recurrent_kernel",), ("t.weight_hh",), KEPT_GATES)
        ]  # fmt: skip
        assert [p.order.text for p in found] == texts


@pytest.mark.parametrize(("gates", "text"), [(4, FLATTENED), (3, FLAT_GATES)])
def test_a_cell_behind_a_flattened_image(gates: int, text: str) -> None:
    """An image of five channels in two rows, if its convolution has as many, and none if it has three."""
    a, b = keras_cell(gates), torch_cell(gates, biased=False)
    wide = tensor("k/kernel", (10, gates * 3)), tensor("t.weight_ih", (gates * 3, 10))
    x, y = (replace(u, members={**u.members, "weight_ih": t}) for u, t in zip((a, b), wide, strict=True))
    plain = Order(GRU if gates == 3 else "i o -> o i")
    for channels, want in (
        (5, (Order(text, (("c", 5),)), FLAT, True)),
        (3, (plain, "", False)),
    ):
        chosen = judge({"c/kernel": tensor("c/kernel", (3, 2, channels))}, module=True)
        found, state = cells.cell(x, y, chosen)
        assert (found.order, found.also, found.real) == want
        assert (state.also, state.real) == ("", False)


CONV: dict[str, tuple[int, ...]] = {"c/kernel": (1, 1, 2, 5), "c/bias": (5,)}
NORM, DENSE = {"n/gamma": (60,)}, {"d/kernel": (60, 6), "d/bias": (6,)}
SQUARE: dict[str, tuple[int, ...]] = {"d/kernel": (60, 60), "d/bias": (60,)}
DECODER: dict[str, tuple[int, ...]] = {"z/kernel": (6, 60), "z/bias": (60,), "t/kernel": (1, 1, 5, 2)}
OWN = {"n.gamma": "batchnorm1d", "c.kernel": "conv2d"}
TURNED = ("(s c) -> (c s)", FLAT)
# The source; the classes of the target ({} of a file) and of the source; what becomes of vectors beside an image.
VECTORS: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, str], str, dict[str, tuple[str, str]]]] = {
    "a normalisation": (CONV | NORM | DENSE, OWN, "", {"n.gamma": TURNED}),
    "all of it": (CONV | NORM | {"n/beta": (60,)} | DENSE, OWN, "", {"n.gamma": TURNED, "n.beta": TURNED}),
    "with one output": (CONV | NORM | {"d/kernel": (60, 1), "d/bias": (1,)}, OWN, "", {"n.gamma": TURNED}),
    "with one input": (CONV | {"e/kernel": (1, 60), "e/bias": (60,)} | NORM | DENSE, OWN, "", {}),
    "defined later": (CONV | DENSE | NORM, OWN, "", {"n.gamma": TURNED}),
    "of a class of one's own": (CONV | NORM | DENSE, {"c.kernel": "conv2d"}, "", {"n.gamma": TURNED}),
    "into a file": (CONV | NORM | DENSE, {}, "", {"n.gamma": ("", FLAT_NOT)}),
    "of an image": (CONV | NORM | DENSE, {"n.gamma": "batchnorm2d"}, "", {}),
    "of another length": (CONV | {"n/gamma": (30,)} | DENSE, OWN, "", {}),
    "of no image": ({"c/kernel": (1, 1, 2, 7)} | NORM | DENSE, OWN, "", {}),
    "as long as the outputs of a layer": (CONV | {"e/kernel": (7, 60), "e/bias": (60,)} | NORM | DENSE, OWN, "", {}),
    "as long as those, but Keras says": (
        CONV | {"e/kernel": (7, 60), "e/bias": (60,)} | NORM | DENSE, OWN, "flat_x", {"n.gamma": ("", FLAT_NOT)},
    ),
    "in front of a square matrix": (CONV | NORM | SQUARE, OWN, "", {"n.gamma": TURNED}),
    "behind it": (CONV | SQUARE | NORM, OWN, "", {"n.gamma": ("", FLAT_NOT)}),
    "behind it, but Keras says": (CONV | SQUARE | NORM, OWN, "flat_batch_normalization", {"n.gamma": TURNED}),
    "a row": (CONV | {"n/scale": (1, 60)} | DENSE, OWN, "", {"n.scale": ("a (s c) -> a (c s)", FLAT)}),
    "joined channels": (CONV | NORM | {"e/kernel": (1, 1, 60, 4)} | DENSE, OWN, "", {}),
    "the bias of heads": (CONV | {"n/kernel": (3, 6, 10), "n/bias": (60,)} | DENSE, OWN, "", {}),
    "channels of a depthwise kernel": (
        CONV | {"e/depthwise_kernel": (3, 3, 5, 12)} | NORM | DENSE, OWN, "", {},
    ),
    "with a decoder": (
        CONV | NORM | DENSE | DECODER, OWN, "", {"n.gamma": TURNED, "z.bias": ("(s c) -> (c s)", SHAPED_IMAGE)},
    ),
    "behind a decoder's": (
        CONV | DENSE | {"z/kernel": (6, 60), "z/bias": (60,)} | NORM | {"t/kernel": (1, 1, 5, 2)}, OWN, "",
        dict.fromkeys(("z.bias", "n.gamma"), ("(s c) -> (c s)", SHAPED_IMAGE)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VECTORS)
def test_vectors_behind_a_flattened_image(case: str) -> None:
    """As the kernel of as many inputs, unless they have the length that a layer gives, or are of an image."""
    source, kinds, keras, want = VECTORS[case]
    a = {n: tensor(n, s) for n, s in source.items()}
    shapes = {n.replace("/", "."): s if s == (1, 60) else s[::-1] for n, s in source.items()}
    b = {n: tensor(n, s) for n, s in shapes.items()}
    sides = Side(a, dict.fromkeys(a, keras)), Side(b, kinds)
    chosen = judge(a, sides[0].kinds, {60: 5} if "z/kernel" in a else {}, module=bool(kinds))
    pairs = []
    for x, y in zip(a.values(), b.values(), strict=True):
        found = chosen.order(x, replace(y, name=y.name.replace("kernel", "weight")))
        assert found is not None
        why = (found.doubt,) if found.doubt else ()
        pairs.append(Pair((x.name,), (y.name,), found.order, "names", not why, why, real=found.real))
    made = {p.targets[0]: p for p in vectors(pairs, sides)}
    assert {n: (p.order.text, *p.why) for n, p in made.items() if not p.sure and "kernel" not in n} == want
    assert [p for p in made.values() if "kernel" in p.sources[0]] == [p for p in pairs if "kernel" in p.sources[0]]
    assert all(p.real and dict(p.order.sizes).get("c", 5) == 5 for n, p in made.items() if n in want and FLAT in p.why)


def test_a_cell_of_torch_stays_what_it_is() -> None:
    for gates in (3, 4):
        a, b = torch_cell(gates), torch_cell(gates)
        found = cells.cell(a, b, judge(a.members))
        names = [f"t.{r}" for r in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        assert found == [cells.Piece((n,), (n,), Order(), KEPT_GATES) for n in names]


def test_a_cell_of_tensorflow_1() -> None:
    a, b = unit("l", joint=("l/kernel", (8, 12)), bias_ih=("l/bias", (12,))), torch_cell(4)
    text = "(x + y) (h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o) x, (h.i + h.f + h.j + h.o) y"
    assert cells.cell(a, b, judge(a.members)) == [
        cells.Piece(("l/kernel",), ("t.weight_ih", "t.weight_hh"), Order(text, (("x", 5),)), KEPT_GATES),
        cells.Piece(
            ("l/bias",), ("t.bias_ih",), Order("(h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o)"), cells.FORGET,
            real=True, fills=(("t.bias_hh", (0.0, 1.0, 0.0, 0.0)),),
        ),
    ]  # fmt: skip


def test_what_has_no_counterpart_is_left_out() -> None:
    a, b = keras_cell(4, (12,), recurrent=False), torch_cell(4)
    assert [p.targets for p in cells.cell(a, b, judge(a.members))] == [("t.weight_ih",), ("t.bias_ih",)]
    bare = torch_cell(4, biased=False)
    assert [p.targets for p in cells.cell(keras_cell(4, (12,)), bare, judge({}))] == [
        ("t.weight_ih",),
        ("t.weight_hh",),
    ]
    one = replace_members(torch_cell(4), without="bias_hh")
    assert len(cells.cell(keras_cell(4, (12,)), one, judge({}))) == 2
    for role in ("weight_ih", "weight_hh"):
        assert cells.cell(keras_cell(4), replace_members(torch_cell(4), without=role), judge({})) == []


def replace_members(of: Unit, *, without: str) -> Unit:
    return replace(of, members={r: t for r, t in of.members.items() if r != without})


# --- fingerprints -------------------------------------------------------------------------------------------------


def printed(array: Any) -> Print:
    with Sources() as sources:
        found = fingerprint(held("t", array), sources)
    assert found is not None
    return found


def test_a_fingerprint_is_of_elements_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for kind in ("f4", "f8", "u1", "i2", "c16"):
        whole = rng.integers(0, 200, 60).astype(kind)
        one = printed(whole)
        assert one == printed(rng.permutation(whole).reshape(5, 12).T)
        assert (one.kind, one.elements, one.constant) == (held("t", whole).dtype.name, 60, False)
        halves = [printed(whole[:25]), printed(whole[25:])]
        assert one.total == sum(h.total for h in halves) % 2**64
        other = whole.copy()
        other[7] += 1
        assert printed(other).total != one.total


def test_a_fingerprint_is_fixed() -> None:
    """It is of the bits, mixed as SplitMix64 does: the state 0 gives the first number that is published for it."""
    assert printed(np.array([0], "u8")).total == 0xE220A8397B1DCDAF
    assert printed(np.array([0, 0], "u1")).total == 2 * 0xE220A8397B1DCDAF % 2**64
    swapped = [printed(np.array([v], "c16")).total for v in (1 + 2j, 2 + 1j)]
    assert swapped[0] != swapped[1]  # both words of an element count, and their order


@pytest.mark.parametrize(
    ("array", "constant"),
    [
        (np.zeros(5, "f4"), True), (np.full((2, 3), 7.0), True), (np.array([0, 0, 1.0]), False), (np.float32(0), True),
        (np.float32(-1), True), (np.float32(1), True), (np.float32(np.nan), True), (np.float32(2), False),
        (np.float64(0.5), False), (np.int64(1), True), (np.int64(7), False), (np.ones((1, 1)), True),
        (np.concatenate([np.zeros(2**20), [1.0]]), False), (np.concatenate([np.zeros(2**21), np.ones(5)]), False),
    ],
)  # fmt: skip
def test_what_proves_nothing(array: Any, constant: bool) -> None:
    assert printed(array).constant is constant


def test_what_has_no_fingerprint() -> None:
    with Sources() as sources:
        assert fingerprint(held("t", np.array([b"a"], object)), sources) is None
        assert fingerprint(replace(tensor("t", (2,)), parts=()), sources) is None
    many = [tensor("a", (2,)), tensor("b", (0, 2)), held("c", np.array([b"a"], object)), tensor("d", (3,))]
    assert list(fingerprints(many, 1)) == list(fingerprints(many, 2)) == ["a", "d"]


# --- wholes and parts: which are tried ------------------------------------------------------------------------------


def like(*names: str, **elements: int) -> dict[str, Print]:
    return {n: Print("float32", elements.get(n[-1], 4), 1, False) for n in names}


@pytest.mark.parametrize(
    ("names", "stacks"),
    [
        (("a.1.w", "a.0.w"), [("a.0.w", "a.1.w")]),
        (("a.1.w", "a.2.w"), []),  # from 0
        (("a.0.w", "a.2.w"), []),  # without a gap
        (("a.0.w",), []),
        (("a.0.w", "a.1.v"), []),
        (("a.0.b.0", "a.1.b.0", "a.0.b.1", "a.1.b.1"),
         [("a.0.b.0", "a.1.b.0"), ("a.0.b.0", "a.0.b.1"), ("a.0.b.1", "a.1.b.1"), ("a.1.b.0", "a.1.b.1")]),
    ],
)  # fmt: skip
def test_slices_are_counted_from_0(names: tuple[str, ...], stacks: list[tuple[str, ...]]) -> None:
    assert sorted(parts._stacks(like(*names))) == sorted(stacks)


def test_slices_have_one_size() -> None:
    assert list(parts._stacks(like("a0", "a1", "a2", **{"1": 5}))) == []


def test_siblings_are_of_one_module_or_of_the_modules_in_one() -> None:
    found = {frozenset(names) for names in parts._siblings(like("m.a.x", "m.a.y", "m.b.z", "n.c.u"))}
    assert found == {frozenset(s) for s in (("m.a.x", "m.a.y"), ("m.a.x", "m.b.z"), ("m.a.y", "m.b.z"),
                                            ("m.a.x", "m.a.y", "m.b.z"))}  # fmt: skip
    for count, some in ((16, True), (17, False)):
        assert bool(list(parts._siblings(like(*(f"m.{k}" for k in range(count)))))) is some
    assert max(map(len, parts._siblings(like(*"abcdef")))) == 4


# --- lengths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "is_padded"),
    [
        (50257, 50304, True), (50304, 50257, True), (50257, 50257, False), (50257, 50305, False), (8, 8, False),
        (8, 72, True), (8, 80, False), (1, 64, True), (512, 576, True), (512, 584, False), (1024, 1152, True),
        (1024, 1160, False), (30522, 30528, True),
    ],
)  # fmt: skip
def test_lengths_that_are_padding(one: int, other: int, is_padded: bool) -> None:
    assert padded(one, other) is is_padded


@pytest.mark.parametrize(
    ("text", "a", "b", "axis"),
    [
        ("", (7, 3), (8, 3), 0), ("", (3, 7), (3, 8), 1), ("", (7, 3), (8, 4), None), ("", (7, 3), (7, 3), None),
        ("i o -> o i", (7, 3), (3, 8), 1), ("i o -> o i", (7, 3), (7, 3), None), ("i -> i", (7, 3), (7, 3), None),
    ],
)  # fmt: skip
def test_the_axis_that_is_padded(text: str, a: Shape, b: Shape, axis: int | None) -> None:
    assert _axis(Order(text), tensor("a", a), tensor("b", b)) == axis


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (Length(0, 7, 8), "pad = { axis = 0, from = 7, to = 8, value = 0 }"),
        (Length(1, 8, 7), "crop = { axis = 1, from = 8, to = 7 }"),
    ],
)
def test_a_length_as_a_rule(length: Length, text: str) -> None:
    assert length.text == text


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts_of_it"),
    [
        ("a/b.c", ("c", "a/b", ("a/b.c", ()))), ("a.b/c:0", ("c", "a.b", ("a.b/c:\0", (0,)))),
        ("Kernel", ("kernel", "", ("Kernel", ()))), ("a/_w:12", ("w", "a", ("a/_w:\0", (12,)))),
        ("l12/007/x3y", ("x3y", "l12/007", ("l\0/007/x\0y", (12, 3)))), ("/w", ("w", "", ("/w", ()))),
    ],
)  # fmt: skip
def test_the_parts_of_a_name(name: str, parts_of_it: Any) -> None:
    assert (leaf(name), parent(name), folded(name)) == parts_of_it


# --- rule files -----------------------------------------------------------------------------------------------------


def test_a_rule_file_as_it_is_written() -> None:
    pairs = [
        Pair(("d.w",), ("D.w",), evidence="values"),
        Pair(("b.w",), ("B.w",), Order("i o -> o i"), "names", False, ("a guess",)),
        Pair(("c.w",), ("C.w",), Order(), "shape", False, ("several fit", "so it is"), tuple("uvwxyz"), real=True),
        Pair(("c.v",), ("C.v",), Order(), "shape", False, ("several fit", "so it is"), tuple("uvwxy"), real=True),
        Pair(("j",), ("J1", "J2"), Order("(x + y) -> x, y", (("x", 5),)), "values",
             fills=(("F", (0.0,)), ("G", (0.0, 1.5)))),
        Pair(("p",), ("P",), evidence="names", sure=False, real=True, why=("longer",), length=Length(0, 7, 8)),
    ]  # fmt: skip
    every = tuple(n for p in pairs for n in p.sources)
    found = Proposal(pairs, (("D.w", "tied"),), {"copy": "d.w"}, ("left{",), ("T1", "T2"), ("a note\x1b",),
                     (*every, "copy", "left{"), "they differ")  # fmt: skip
    assert summary(found) == "9 tensors of the target found, 4 of them assumed, 3 to look at"
    assert (
        toml(found, "a title", "tf", "torch")
        == """\
# Proposed by `ckptconv match`: 9 tensors of the target found, 4 of them assumed, 3 to look at.
# Doubtful as a whole: they differ.
#   2 to look at: several fit; so it is
#   1 to look at: longer
# Without counterpart in the source (2 tensors of the target):
#   T{1..2} (2)
# note: a note\\x1b
title = "a title"
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
# assumed, by names and shapes: a guess
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
# hold what another tensor holds, which is taken
[rule.names]
"copy" = []
"""
    )


def test_the_least_rule_file() -> None:
    found = Proposal([Pair(("a",), ("b",), evidence="proved")], target_only=("c",), every=("a",))
    assert (
        toml(found)
        == """\
# Proposed by `ckptconv match`: 1 tensors of the target found, 0 of them assumed, 0 to look at.
# Without counterpart in the source (1 tensor of the target):
#   c
title = "proposed by ckptconv match"

[[rule]]
# proved: the outputs agree
[rule.names]
"a" = "b"
"""
    )


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\1b"])
def test_names_that_no_rule_file_can_hold(name: str) -> None:
    for side, pair in (("source", Pair((name,), ("b",))), ("target", Pair(("a",), ("b", name)))):
        words = f"the {side} has control characters in its names; no rule file is proposed"
        with pytest.raises(UsageError, match=words):
            toml(Proposal([pair], every=pair.sources))


# --- inputs and outputs ---------------------------------------------------------------------------------------------


def test_what_an_original_computes() -> None:
    def named(found: Any) -> dict[str, list[float]]:
        return {n: a.tolist() for n, a in prove.outputs_of(lambda x: found, {"x": np.ones(1)}).items()}

    assert named(np.array([1.0])) == {"number 1": [1]}
    assert named([np.array([1.0]), np.array([2.0])]) == {"number 1": [1], "number 2": [2]}
    assert named((np.array([1.0]),)) == {"number 1": [1]}
    assert named({"a": np.array([3.0])}) == {"a": [3]}
    for error, words in ((ValueError("one\ntwo"), "ValueError: one$"), (KeyError(), "KeyError: no reason given$")):

        def fails(x: Any, error: Exception = error) -> Any:
            raise error

        with pytest.raises(UsageError, match=f"the original cannot be run with these inputs: {words}"):
            prove.outputs_of(fails, {"x": np.ones(1)})
