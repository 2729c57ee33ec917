"""The layouts that shapes and names allow: which are tried, in which order, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ckptconv.matching.orders.axes import Order, Shape, convention


def said(found: Iterable[Order]) -> list[str]:
    """Layouts, each with the sizes that it needs behind a semicolon."""
    return ["; ".join([o.text, *(f"{k}={n}" for k, n in o.sizes)]) for o in found]


# --- one tensor that becomes one --------------------------------------------------------------------------------------


def test_the_inverse_of_an_order() -> None:
    assert Order("(a b) c -> c a b", (("b", 2),)).inverse == Order("c a b -> (a b) c", (("b", 2),))
    assert Order().inverse == Order()


# --- what names say ---------------------------------------------------------------------------------------------------

CONVENTIONS: dict[str, tuple[tuple[Shape, str], tuple[Shape, str], str | None]] = {
    "dense": (((2, 3), "kernel"), ((3, 2), "weight"), "i o -> o i"),
    "wrong shape": (((2, 3), "kernel"), ((2, 3), "weight"), None),
    "time before frequencies": (((3, 5, 4, 4), "kernel"), ((4, 4, 5, 3), "weight"), "h w i o -> o i w h"),
    "depthwise of one": (((3, 3, 1, 4), "depthwise_kernel"), ((4, 1, 3, 3), "weight"), "h w c m -> (c m) 1 h w; m=4"),
    "depthwise of many": (((3, 5, 4, 2), "depthwise_weights"), ((8, 1, 3, 5), "weight"), "h w c m -> (c m) 1 h w; m=2"),
    "depthwise, turned": (((3, 5, 4, 2), "depthwise_kernel"), ((8, 1, 5, 3), "weight"), None),
    "an axis of one goes": (((7, 1, 2, 4), "kernel"), ((4, 2, 7), "weight"), "h 1 i o -> o i h"),
    "an axis of one comes": (((7, 2, 4), "kernel"), ((4, 2, 7, 1), "weight"), "k i o -> o i k 1"),
    "into heads": (((5, 2, 3), "kernel"), ((6, 5), "weight"), "a b c -> (b c) a; c=3"),
    "out of heads": (((2, 3, 5), "kernel"), ((5, 6), "weight"), "a b c -> c (a b); b=3"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions(case: str) -> None:
    (a, leaf_a), (b, leaf_b), wanted = CONVENTIONS[case]
    found = convention(a, b, leaf_a, leaf_b)
    assert (found and said([found])[0]) == wanted if wanted is not None else found is None
