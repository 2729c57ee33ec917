"""The layouts that shapes and names allow: which are tried, in which order, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from kit import in_memory

import ckptconv
from ckptconv.matching.orders.axes import Order, Shape, convention
from ckptconv.rules.apply import apply
from ckptconv.rules.toml import parse


def said(found: Iterable[Order]) -> list[str]:
    """Layouts, each with the sizes that it needs behind a semicolon."""
    return ["; ".join([o.text, *(f"{k}={n}" for k, n in o.sizes)]) for o in found]


# --- what names say ---------------------------------------------------------------------------------------------------

CONVENTIONS: dict[str, tuple[tuple[Shape, str], tuple[Shape, str], str | None]] = {
    "dense": (((2, 3), "kernel"), ((3, 2), "weight"), "i o -> o i"),
    "wrong shape": (((2, 3), "kernel"), ((2, 3), "weight"), None),
    "time before frequencies": (((3, 5, 4, 4), "kernel"), ((4, 4, 5, 3), "weight"), "a b c d -> d c b a"),
    "depthwise of one": (((3, 3, 1, 4), "depthwise_kernel"), ((4, 1, 3, 3), "weight"), "h w c m -> (c m) 1 h w; m=4"),
    "depthwise of many": (((3, 5, 4, 2), "depthwise_weights"), ((8, 1, 3, 5), "weight"), "h w c m -> (c m) 1 h w; m=2"),
    "depthwise, turned": (((3, 5, 4, 2), "depthwise_kernel"), ((8, 1, 5, 3), "weight"), None),
    "an axis of one goes": (((7, 1, 2, 4), "kernel"), ((4, 2, 7), "weight"), "a 1 c d -> d c a"),
    "an axis of one comes": (((7, 2, 4), "kernel"), ((4, 2, 7, 1), "weight"), "a b c -> c b a 1"),
    "into heads": (((5, 2, 3), "kernel"), ((6, 5), "weight"), "a b c -> (b c) a; c=3"),
    "out of heads": (((2, 3, 5), "kernel"), ((5, 6), "weight"), "a b c -> c (a b); b=3"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONVENTIONS)
def test_conventions(case: str) -> None:
    (a, leaf_a), (b, leaf_b), wanted = CONVENTIONS[case]
    found = convention(a, b, leaf_a, leaf_b)
    assert (found and said([found])[0]) == wanted if wanted is not None else found is None


@pytest.mark.parametrize("back", [False, True])
def test_flax_and_torch_both_ways(back: bool) -> None:
    """Shapes tell Flax's ConvTranspose, whose kernel is reversed; inputs behind a flattened image are asked about."""
    pytest.importorskip("scipy", reason="matching by names is an extra")
    rng = np.random.default_rng(1)
    up, conv, dense = (rng.normal(size=s).astype("f4") for s in ((3, 3, 5, 4), (3, 2, 4, 6), (54, 7)))
    flax = {"ConvTranspose_0/kernel": up, "Conv_0/kernel": conv, "Dense_0/kernel": dense, "Dense_0/bias": dense[0]}
    torch = {"0.weight": up[::-1, ::-1].transpose(2, 3, 0, 1), "1.weight": conv.transpose(3, 2, 0, 1)}
    flat = dense.reshape(9, 6, 7).swapaxes(0, 1).reshape(54, 7) if back else dense  # to a file of torch as it is
    torch |= {"4.weight": flat.T, "4.bias": dense[0]}
    a, b = (
        {n: np.ascontiguousarray(x) for n, x in side.items()} for side in ((torch, flax) if back else (flax, torch))
    )
    found = ckptconv.match(in_memory(a), in_memory(b), values=False)
    made = apply(parse(found.rules, "test"), in_memory(a))
    assert {n: t.numpy().tobytes() for n, t in made.items()} == {n: x.tobytes() for n, x in b.items()}
    doubtful = {t for p in found.proposal.doubtful for t in p.targets}
    assert doubtful == {"Dense_0/kernel" if back else "4.weight"}
