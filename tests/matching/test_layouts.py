"""The layouts that shapes and names allow: which are tried, in which order, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ckptconv.matching.orders import axes
from ckptconv.matching.orders.axes import Order, Shape, convention


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
    assert said(axes.simple(a, b)) == wanted


def test_the_inverse_of_an_order() -> None:
    assert Order("(a b) c -> c a b", (("b", 2),)).inverse == Order("c a b -> (a b) c", (("b", 2),))
    assert Order().inverse == Order()


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


# --- one tensor that becomes several ----------------------------------------------------------------------------------


# --- cells of a matrix for each gate ----------------------------------------------------------------------------------
