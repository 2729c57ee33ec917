"""The layouts that shapes and names allow: which are tried, in which order, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ckptconv.checkpoint import held
from ckptconv.matching import cuts, gates, orders
from ckptconv.matching.conventions import convention
from ckptconv.matching.orders import Order, Shape
from ckptconv.matching.side import Bundle, Side


def said(found: Iterable[Order]) -> list[str]:
    """Layouts, each with the sizes that it needs behind a semicolon."""
    return ["; ".join([o.text, *(f"{k}={n}" for k, n in o.sizes)]) for o in found]


# --- one tensor that becomes one --------------------------------------------------------------------------------------

SIMPLE: dict[str, tuple[Shape, Shape, list[str]]] = {
    "as it is": ((4,), (4,), ["", "a -> a"]),
    "of other sizes": ((4,), (5,), []),
    "half as long": ((8,), (4,), []),
    "twice as long": ((4,), (8,), []),
    "turned": ((2, 3), (3, 2), ["i o -> o i", "o i -> i o", "a b -> b a"]),
    "square": ((3, 3), (3, 3), ["", "i o -> o i", "o i -> i o", "a b -> b a", "a b -> a b"]),
    "kernel of one axis": ((7, 2, 3), (3, 2, 7), ["k i o -> o i k", "o i k -> k i o", "a b c -> c b a"]),
    "kernel of two": ((1, 2, 3, 4), (4, 3, 1, 2), ["h w i o -> o i h w", "a b c d -> d c a b", "1 b c d -> d c 1 b"]),
    "depthwise": ((7, 2, 1), (2, 1, 7), ["k c 1 -> c 1 k", "a b c -> b c a", "a b 1 -> b 1 a"]),
    "image": ((2, 3, 4, 1), (4, 1, 2, 3), ["h w c 1 -> c 1 h w", "a b c d -> c d a b", "a b c 1 -> c 1 a b"]),
    "two axes in one": ((2, 3, 5), (6, 5), ["a b c -> (a b) c; b=3", "a b c -> (b a) c; a=2"]),
    "two axes of one": ((6, 5), (2, 3, 5), ["(a b) c -> a b c; b=3", "(b a) c -> a b c; a=2"]),
    "axes that others stand between": ((2, 3, 5), (3, 10), ["a b c -> b (a c); c=5", "a b c -> b (c a); a=2"]),
    "all axes in one": ((2, 3), (6,), ["a b -> (a b); b=3", "a b -> (b a); a=2"]),
    "of one count, but not of one product": ((2, 6), (3, 4), []),
    "ones that go": ((1, 1, 9), (9,), ["1 1 c -> c"]),
    "ones that come": ((9,), (1, 9, 1), ["a -> 1 a 1"]),
    "a one that comes behind a product": ((2, 3), (6, 1), ["a b -> (a b) 1; b=3", "a b -> (b a) 1; a=2"]),
    "a number": ((), (), ["", "->"]),
    "a number in brackets": ((1,), (), ["1 ->"]),
    "more axes than are tried": ((2,) * 6, (2,) * 6, [""]),
    "more axes than are merged": ((2,) * 6, (64,), []),
    "fewer axes than are cut": ((64,), (2,) * 6, []),
}  # fmt: skip


@pytest.mark.parametrize("case", SIMPLE)
def test_orders_of_axes(case: str) -> None:
    a, b, wanted = SIMPLE[case]
    assert said(orders.simple(a, b)) == wanted


def test_five_axes_are_tried_in_all_orders() -> None:
    assert "a b c d f -> f d a b c" in said(orders.simple((2, 1, 2, 3, 5), (5, 3, 2, 1, 2)))
    assert len([o for o in said(orders.simple((2,) * 5, (2,) * 5)) if o.startswith("a b c d f -> ")]) == 120


@pytest.mark.parametrize(
    ("text", "a", "b", "does"),
    [
        ("i o -> o i", (2, 3), (3, 2), True),
        ("i o -> o i", (2, 3), (2, 3), False),
        ("i o -> o i", (2, 3, 1), (3, 2), False),
        ("i o -> o i", (2, 3), (3, 2, 1), False),
        ("k c 1 -> c 1 k", (5, 4, 1), (4, 1, 5), True),
        ("k c 1 -> c 1 k", (5, 4, 2), (4, 2, 5), False),
        ("k c 1 -> c 1 k", (5, 4, 2), (4, 1, 5), False),
    ],
)
def test_a_layout_fits_shapes(text: str, a: Shape, b: Shape, does: bool) -> None:
    assert orders.fits(text, a, b) is does


@pytest.mark.parametrize(
    ("a", "texts", "count"),
    [
        ((3, 3), ["", "a b -> a b", "i o -> o i", "a b -> b a"], 2),
        ((3, 1), ["", "a b -> b a", "a 1 -> 1 a", "a 1 -> a"], 1),
        ((3,), ["", "a -> a 1", "a -> 1 a"], 1),
        ((1, 3, 4), ["", "1 b c -> b c", "a b c -> b c a", "a b c -> c b a"], 2),
        ((6, 4), ["(a b) c -> c a b", "(a b) c -> c b a", "a b -> b a"], 3),
    ],
)
def test_orders_that_do_the_same_count_once(a: Shape, texts: Sequence[str], count: int) -> None:
    assert orders.distinct([Order(t) for t in texts], a) == count


def test_the_inverse_of_an_order() -> None:
    assert Order("(a b) c -> c a b", (("b", 2),)).inverse == Order("c a b -> (a b) c", (("b", 2),))
    assert Order().inverse == Order()


@pytest.mark.parametrize(
    ("side", "axes"),
    [
        ("", []),
        ("a 1 b", ["a", "1", "b"]),
        ("(a b) c", ["(a b)", "c"]),
        ("c (a.0 + a.1)", ["c", "(a.0 + a.1)"]),
        ("(d (e + f)) g", ["(d (e + f))", "g"]),
        ("((a b) c) d", ["((a b) c)", "d"]),
    ],
)
def test_the_axes_of_a_side(side: str, axes: list[str]) -> None:
    assert orders.tokens(side) == axes


# --- what names say ---------------------------------------------------------------------------------------------------

CONVENTIONS: dict[str, tuple[tuple[Shape, str], tuple[Shape, str], str | None]] = {
    "dense": (((2, 3), "kernel"), ((3, 2), "weight"), "i o -> o i"),
    "dense, square": (((3, 3), "kernel"), ((3, 3), "weight"), "i o -> o i"),
    "dense, back": (((3, 2), "weight"), ((2, 3), "kernel"), "o i -> i o"),
    "kernels on both sides": (((2, 3), "kernel"), ((2, 3), "w"), ""),
    "kernels of other shapes": (((2, 3), "kernel"), ((3, 2), "w"), None),
    "weights on both sides": (((3, 3), "weight"), ((3, 3), "weight"), ""),
    "Haiku's w": (((2, 3), "w"), ((3, 2), "weight"), "i o -> o i"),
    "TF-Slim's weights": (((3, 3, 2, 4), "weights"), ((4, 2, 3, 3), "weight"), "h w i o -> o i h w"),
    "pointwise": (((1, 1, 2, 4), "pointwise_weights"), ((4, 2, 1, 1), "weight"), "h w i o -> o i h w"),
    "wrong shape": (((2, 3), "kernel"), ((2, 3), "weight"), None),
    "image": (((3, 5, 2, 4), "kernel"), ((4, 2, 3, 5), "weight"), "h w i o -> o i h w"),
    "time before frequencies": (((3, 5, 4, 4), "kernel"), ((4, 4, 5, 3), "weight"), "h w i o -> o i w h"),
    "volume": (((3, 5, 7, 2, 4), "kernel"), ((4, 2, 3, 5, 7), "weight"), "d h w i o -> o i d h w"),
    "one axis": (((3, 2, 4), "kernel"), ((4, 2, 3), "weight"), "k i o -> o i k"),
    "of one input": (((3, 5, 4, 1), "kernel"), ((4, 1, 3, 5), "weight"), "h w c 1 -> c 1 h w"),
    "depthwise": (((3, 3, 4, 1), "depthwise_kernel"), ((4, 1, 3, 3), "weight"), "h w c 1 -> c 1 h w"),
    "depthwise of one channel": (((3, 3, 1, 1), "depthwise_kernel"), ((1, 1, 3, 3), "weight"), "h w c 1 -> c 1 h w"),
    "depthwise of one": (((3, 3, 1, 4), "depthwise_kernel"), ((4, 1, 3, 3), "weight"), "h w c m -> (c m) 1 h w; m=4"),
    "depthwise of many": (((3, 5, 4, 2), "depthwise_weights"), ((8, 1, 3, 5), "weight"), "h w c m -> (c m) 1 h w; m=2"),
    "depthwise of another count": (((3, 5, 4, 2), "depthwise_kernel"), ((6, 1, 3, 5), "weight"), None),
    "depthwise, turned": (((3, 5, 4, 2), "depthwise_kernel"), ((8, 1, 5, 3), "weight"), None),
    "an axis of one goes": (((7, 1, 2, 4), "kernel"), ((4, 2, 7), "weight"), "h 1 i o -> o i h"),
    "the other axis goes": (((1, 7, 2, 4), "kernel"), ((4, 2, 7), "weight"), "1 w i o -> o i w"),
    "two axes of one go": (((1, 1, 2, 4), "kernel"), ((4, 2), "weight"), "1 1 i o -> o i"),
    "no axis of one": (((7, 3, 2, 4), "kernel"), ((4, 2, 7), "weight"), None),
    "one input is no axis of one": (((7, 3, 1, 4), "kernel"), ((4, 7, 3), "weight"), None),
    "nor is one output": (((7, 3, 4, 1), "kernel"), ((4, 7, 3), "weight"), None),
    "an axis of one comes": (((7, 2, 4), "kernel"), ((4, 2, 7, 1), "weight"), "k i o -> o i k 1"),
    "before the others": (((7, 2, 4), "kernel"), ((4, 2, 1, 7), "weight"), "k i o -> o i 1 k"),
    "two axes come": (((2, 4), "kernel"), ((4, 2, 1, 1), "weight"), "i o -> o i 1 1"),
    "into heads": (((5, 2, 3), "kernel"), ((6, 5), "weight"), "a b c -> (b c) a; c=3"),
    "out of heads": (((2, 3, 5), "kernel"), ((5, 6), "weight"), "a b c -> c (a b); b=3"),
    "heads of another width": (((5, 2, 3), "kernel"), ((7, 5), "weight"), None),
    "a vector": (((5,), "kernel"), ((5,), "weight"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions(case: str) -> None:
    (a, leaf_a), (b, leaf_b), wanted = CONVENTIONS[case]
    found = convention(a, b, leaf_a, leaf_b)
    assert (found and said([found])[0]) == wanted if wanted is not None else found is None


# --- what no shape shows ----------------------------------------------------------------------------------------------

THREE = ["a.0 + a.2 + a.1", "a.1 + a.0 + a.2", "a.1 + a.2 + a.0", "a.2 + a.0 + a.1", "a.2 + a.1 + a.0"]
HIDDEN: dict[str, tuple[Shape, Shape, list[str]]] = {
    "two blocks": ((4,), (4,), ["(a.0 + a.1) -> (a.1 + a.0)", "(ax ay) -> (ay ax); ay=2"]),
    "three blocks": ((9,), (9,), [*(f"(a.0 + a.1 + a.2) -> ({x})" for x in THREE), "(ax ay) -> (ay ax); ay=3"]),
    "on either axis": (
        (6, 4),
        (4, 6),
        [
            *(f"(a.0 + a.1 + a.2) b -> b ({x})" for x in THREE),
            "(a.0 + a.1) b -> b (a.1 + a.0)",
            "(ax ay) b -> b (ay ax); ay=2",
            "(ax ay) b -> b (ay ax); ay=3",
            "a (b.0 + b.1) -> (b.1 + b.0) a",
            "a (bx by) -> (by bx) a; by=2",
        ],
    ),
    "blocks of one element": ((2, 3), (3, 2), []),
    "primes": ((5, 5), (5, 5), []),
    "another length": ((4,), (6,), []),
    "another rank": ((4, 3), (12,), []),
    "numbers": ((), (), []),
    "four axes": ((4, 1, 1, 1), (4, 1, 1, 1), []),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_what_no_shape_shows(case: str) -> None:
    a, b, wanted = HIDDEN[case]
    assert said(cuts.hidden(a, b)) == wanted


def test_four_gates_are_tried_in_all_orders() -> None:
    found = said(cuts.hidden((8, 1, 1), (1, 1, 8)))
    assert len([o for o in found if o.startswith("(a.0 + a.1 + a.2 + a.3) b c -> ")]) == 2 * 23  # b and c are alike
    assert "(a.0 + a.1 + a.2 + a.3) b c -> b c (a.0 + a.2 + a.1 + a.3)" in found
    assert not any("+ a.3" in o for o in said(cuts.hidden((4,), (4,))))


def test_divisors() -> None:
    known = {1: [], 2: [], 4: [2], 9: [3], 12: [2, 3, 4, 6], 13: [], 36: [2, 3, 4, 6, 9, 12, 18]}
    assert {n: cuts.divisors(n) for n in known} == known
    many = cuts.divisors(2**7 * 3**3 * 5**2 * 7 * 11)
    assert many[:9] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(many) == cuts.MAX_DIVISORS == 64


# --- one tensor that becomes several ----------------------------------------------------------------------------------

SPLIT: dict[str, tuple[Shape, list[Shape], list[str]]] = {
    "unevenly": ((5,), [(2,), (3,)], ["(n0 + n1) -> n0, n1; n0=2"]),
    "in three": ((9,), [(2,), (3,), (4,)], ["(n0 + n1 + n2) -> n0, n1, n2; n0=2; n1=3"]),
    "evenly": ((3, 4), [(3, 2), (3, 2)], [
        "a (n.0 + n.1) -> a n.0, a n.1",
    ]),
    "turned": ((7, 3), [(3, 3), (3, 4)], [
        "(n0 + n1) b -> b n0, b n1; n0=3",
    ]),
    "gates inside": ((7, 4), [(4, 3), (4, 4)], [
        "(n0 + n1) b -> b n0, b n1; n0=3",
        "(n0 + n1) (b.0 + b.1) -> (b.1 + b.0) n0, (b.1 + b.0) n1; n0=3",
    ]),
    "square": ((4, 4), [(2, 4), (2, 4)], [
        "(n.0 + n.1) b -> n.0 b, n.1 b",
        "(n.0 + n.1) (b.0 + b.1) -> n.0 (b.1 + b.0), n.1 (b.1 + b.0)",
        "a (n.0 + n.1) -> n.0 a, n.1 a",
        "(a.0 + a.1) (n.0 + n.1) -> n.0 (a.1 + a.0), n.1 (a.1 + a.0)",
    ]),
    "one row by itself": ((4, 3), [(3, 3), (3,)], ["(n0 + 1) b -> n0 b, b", "(n0 + 1) b -> b n0, b"]),
    "one row before others": ((6, 3), [(3,), (2, 3), (3, 3)], ["(1 + n1 + n2) b -> b, n1 b, n2 b; n1=2"]),
    "two rows by themselves": ((2, 3), [(3,), (3,)], []),
    "a part of another rank": ((4, 3), [(3, 3), (1, 1, 3)], []),
    "along the last of three": ((2, 3, 10), [(2, 3, 5), (2, 3, 5)], ["a b (n.0 + n.1) -> a b n.0, a b n.1"]),
    "four axes": ((2, 1, 1, 1), [(1, 1, 1, 1)] * 2, []),
    "too short": ((6,), [(2,), (3,)], []),
    "of another width": ((5, 3), [(2, 3), (3, 4)], []),
}  # fmt: skip


@pytest.mark.parametrize("case", SPLIT)
def test_cuts(case: str) -> None:
    whole, parts, wanted = SPLIT[case]
    assert said(cuts.split(whole, parts)) == wanted


CONCATENATED: dict[str, tuple[Shape, Shape, tuple[int, int, int], list[str]]] = {
    "behind each other": ((3, 4), (3, 2), (1, 2, 1), ["a (n.0 + n.1) -> a n.0, a n.1"]),
    "by heads": ((3, 8), (3, 4), (1, 2, 2), ["a (x (y.0 + y.1)) -> a (x y.0), a (x y.1); x=2"]),
    "by heads, turned": ((3, 8), (4, 3), (1, 2, 2), ["a (x (y.0 + y.1)) -> (x y.0) a, (x y.1) a; x=2"]),
    "by heads, along the first axis": (
        (12, 5), (4, 5), (0, 3, 2), ["(x (y.0 + y.1 + y.2)) b -> (x y.0) b, (x y.1) b, (x y.2) b; x=2"],
    ),
    "by heads, of another shape": ((3, 8), (3, 5), (1, 2, 2), []),
    "into axes of their own": ((5, 12), (5, 2, 3), (1, 2, 1), [
        "a (b.0 c.0 + b.1 c.1) -> a b.0 c.0, a b.1 c.1; c=3",
        "a (c.0 b.0 + c.1 b.1) -> a b.0 c.0, a b.1 c.1; b=2",
    ]),
    "into axes of their own, along the first": ((12, 5), (2, 3, 5), (0, 2, 1), [
        "(a.0 b.0 + a.1 b.1) c -> a.0 b.0 c, a.1 b.1 c; b=3",
        "(b.0 a.0 + b.1 a.1) c -> a.0 b.0 c, a.1 b.1 c; a=2",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", CONCATENATED)
def test_equal_parts(case: str) -> None:
    whole, part, (axis, count, heads), wanted = CONCATENATED[case]
    assert said(cuts.concatenated(whole, part, axis, count, heads)) == wanted


def test_slices_of_a_stack() -> None:
    assert said(cuts.stacked((2, 3, 7), (3, 7), "e", 0)) == ["e a b -> a b"] * 2
    assert said(cuts.stacked((3, 2, 5), (5, 3), "e", 1)) == ["i e o -> o i", "o e i -> i o", "a e b -> b a"]
    assert said(cuts.stacked((5, 4, 2), (5, 4), "e", 2))[-2:] == [
        "a (b.0 + b.1) e -> a (b.1 + b.0)", "a (bx by) e -> a (by bx); by=2",
    ]  # fmt: skip
    assert said(cuts.stacked((2, 3, 7), (3, 8), "e", 0)) == []


@pytest.mark.parametrize(
    ("order", "axis", "wanted"),
    [
        (Order(), 0, "e a b -> a b"),
        (Order(), 1, "a e b -> a b"),
        (Order(), 2, "a b e -> a b"),
        (Order("(x y) z -> z x y", (("y", 2),)), 1, "(x y) e z -> z x y; y=2"),
        (Order("i o -> o i"), 0, "e i o -> o i"),
    ],
)
def test_an_order_of_slices_as_one_of_the_whole(order: Order, axis: int, wanted: str) -> None:
    assert said([cuts.within(order, 2, "e", axis)]) == [wanted]


def test_index_sets() -> None:
    assert list(cuts.subsets(3, (1, 2))) == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]


# --- cells of a matrix for each gate ----------------------------------------------------------------------------------


def side(**names: Shape) -> Side:
    return Side({n: held(n, np.zeros(shape, "f4")) for n, shape in names.items()})


def cell(spelled: str, roles: str, order: str, shapes: Sequence[Shape]) -> dict[str, Shape]:
    return {spelled.format(r, g): s for r, s in zip(roles, shapes, strict=True) for g in order}


KERAS1 = cell("top/rnn_{}_{}", "WUb", "icfo", [(3, 2), (2, 2), (2,)])
WHOLE: dict[str, tuple[dict[str, Shape], dict[str, tuple[str, Shape]]]] = {
    "Keras 1": (KERAS1, {
        "top/rnn/kernel": ("top/rnn_W_i top/rnn_W_f top/rnn_W_c top/rnn_W_o", (3, 8)),
        "top/rnn/recurrent_kernel": ("top/rnn_U_i top/rnn_U_f top/rnn_U_c top/rnn_U_o", (2, 8)),
        "top/rnn/bias": ("top/rnn_b_i top/rnn_b_f top/rnn_b_c top/rnn_b_o", (8,)),
    }),
    "without biases": (cell("g/{}{}", "WU", "rzh", [(3, 2), (2, 2)]), {
        "g/kernel": ("g/Wz g/Wr g/Wh", (3, 6)), "g/recurrent_kernel": ("g/Uz g/Ur g/Uh", (2, 6)),
    }),
    "the candidate is g": (cell("c.W_{}_{}", "xh", "ifgo", [(3, 2), (2, 2)]), {
        "c/kernel": ("c.W_x_i c.W_x_f c.W_x_g c.W_x_o", (3, 8)),
        "c/recurrent_kernel": ("c.W_h_i c.W_h_f c.W_h_g c.W_h_o", (2, 8)),
    }),
    "by hand": (cell("c.w{}{}", "xh", "rzn", [(3, 2), (2, 2)]), {
        "c/kernel": ("c.wxz c.wxr c.wxn", (3, 6)), "c/recurrent_kernel": ("c.whz c.whr c.whn", (2, 6)),
    }),
    "Flax": (
        cell("L/{}{}/kernel", "ih", "ifgo", [(3, 2), (2, 2)]) | cell("L/{}{}/bias", "h", "ifgo", [(2,)]), {
        "L/kernel": ("L/ii/kernel L/if/kernel L/ig/kernel L/io/kernel", (3, 8)),
        "L/recurrent_kernel": ("L/hi/kernel L/hf/kernel L/hg/kernel L/ho/kernel", (2, 8)),
        "L/bias": ("L/hi/bias L/hf/bias L/hg/bias L/ho/bias", (8,)),
    }),
    "biases of both": (
        cell("L/{}{}/kernel", "ih", "rzn", [(3, 2), (2, 2)]) | cell("L/{}{}/bias", "ih", "rzn", [(2,), (2,)]), {
        "L/kernel": ("L/iz/kernel L/ir/kernel L/in/kernel", (3, 6)),
        "L/recurrent_kernel": ("L/hz/kernel L/hr/kernel L/hn/kernel", (2, 6)),
        "L/bias": ("L/iz/bias L/ir/bias L/in/bias", (6,)),
        "L/recurrent_bias": ("L/hz/bias L/hr/bias L/hn/bias", (6,)),
    }),
    "a bias for one gate only": (
        cell("L/{}{}/kernel", "ih", "rzn", [(3, 2), (2, 2)]) | {"L/hn/bias": (2,)}, {
        "L/kernel": ("L/iz/kernel L/ir/kernel L/in/kernel", (3, 6)),
        "L/recurrent_kernel": ("L/hz/kernel L/hr/kernel L/hn/kernel", (2, 6)),
        "L/hn/bias": ("", (2,)),
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_the_gates_of_a_cell_are_one_tensor(case: str) -> None:
    tensors, wanted = WHOLE[case]
    found = gates.gated(side(first=(1,), **tensors, last=(1,)))
    assert list(found.tensors) == ["first", *wanted, "last"]
    assert {n: t.shape for n, t in found.tensors.items()} == {"first": (1,), "last": (1,)} | {
        n: shape for n, (_, shape) in wanted.items()
    }
    assert all(t.name == n for n, t in found.tensors.items())
    assert {n: (" ".join(b.names), b.kind) for n, b in found.bundles.items()} == {
        n: (names, "gates") for n, (names, _) in wanted.items() if names
    }
    for name, bundle in found.bundles.items():
        assert wanted[name][1] == (*bundle.shape[:-1], bundle.shape[-1] * len(bundle.names))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"top/rnn_W_i": None}, "a matrix is missing"),
        ({"top/rnn_W_i": (3, 3)}, "matrices of two shapes"),
        ({f"top/rnn_U_{g}": None for g in "icfo"}, "no matrices for the state"),
        ({"top/rnn_W_r": (3, 2), "top/rnn_U_r": (2, 2)}, "five gates"),
        ({"top/rnn/kernel": (1,)}, "the name is another's"),
    ],
)
def test_what_is_not_a_whole_cell_stays(change: dict[str, Shape | None], why: str) -> None:
    tensors = {n: s for n, s in (KERAS1 | change).items() if s is not None}
    was = side(**tensors)
    assert gates.gated(was) is was, why


def test_bundles_that_there_were_stay() -> None:
    was = replace(side(**KERAS1), bundles={"x": Bundle(("y",), "fused", (1,))})
    assert set(gates.gated(was).bundles) == {"x", "top/rnn/kernel", "top/rnn/recurrent_kernel", "top/rnn/bias"}


@pytest.mark.parametrize(
    ("order", "shape", "wanted"),
    [
        (Order(), (5, 2), "a b.0, a b.1, a b.2 -> a (b.0 + b.1 + b.2)"),
        (Order("i o -> o i"), (5, 2), "i o.0, i o.1, i o.2 -> (o.0 + o.1 + o.2) i"),
        (Order("i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"), (5, 2), "i h.z, i h.r, i h.n -> (h.r + h.z + h.n) i"),
        (Order("x -> x", (("y", 2),)), (2,), "x.0, x.1, x.2 -> (x.0 + x.1 + x.2); y=2"),
    ],
)
def test_the_order_of_a_whole_as_one_of_its_gates(order: Order, shape: Shape, wanted: str) -> None:
    assert said([gates.parted(order, Bundle(("p", "q", "r"), "gates", shape))]) == [wanted]


def test_the_letter_of_a_stack_is_no_axis_of_its_slices() -> None:
    (order, *_) = cuts.stacked((4, 2, 3, 2, 5, 6), (2, 3, 2, 5, 6), "e", 0)
    left = order.text.partition("->")[0].split()
    assert left[0] == "e"
    assert len(set(left)) == 6
