"""Tensors that one side holds stacked and fused at once, or stacked here and fused there: by names, by values, back."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.matching.search import match
from ckptconv.matching.toml import toml
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.lint import lint

LAYERS, WIDTH, HEADS = 4, 8, 2
Arrays = dict[str, Any]


def attention(seed: int) -> list[Any]:
    """Query, key and value of each layer as torch has them: [layer, part, output, input], with biases beside."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(LAYERS, 3, WIDTH, *rest)).astype("f4") for rest in ((WIDTH,), ())]


def theirs(how: str, seed: int) -> Arrays:
    """Scanned layers as in Flax."""
    w, b = attention(seed)
    home = "params/layers/attention"
    if how == "fused":
        return {
            f"{home}/qkv/kernel": w.transpose(0, 3, 1, 2).reshape(LAYERS, WIDTH, -1),
            f"{home}/qkv/bias": b.reshape(LAYERS, -1),
        } | rest(seed, scanned=True)
    out: Arrays = {}
    for k, part in enumerate(("query", "key", "value")):
        kernel, bias = w[:, k].transpose(0, 2, 1), b[:, k]
        if how == "heads":
            kernel, bias = kernel.reshape(LAYERS, WIDTH, HEADS, -1), bias.reshape(LAYERS, HEADS, -1)
        out |= {f"{home}/{part}/kernel": kernel, f"{home}/{part}/bias": bias}
    return out | rest(seed, scanned=True)


def ours(how: str, seed: int) -> Arrays:
    """A tensor for each layer, as in torch."""
    w, b = attention(seed)
    out: Arrays = {}
    for i in range(LAYERS):
        at = f"layers.{i}.attn"
        if how == "fused":
            out |= {f"{at}.qkv.weight": w[i].reshape(-1, WIDTH), f"{at}.qkv.bias": b[i].reshape(-1)}
        elif how == "interleaved":
            both = [x[i].reshape(3, HEADS, WIDTH // HEADS, *x.shape[3:]).swapaxes(0, 1) for x in (w, b)]
            out |= {f"{at}.qkv.weight": both[0].reshape(-1, WIDTH), f"{at}.qkv.bias": both[1].reshape(-1)}
        else:
            for k, part in enumerate("qkv"):
                out |= {f"{at}.{part}_proj.weight": w[i, k], f"{at}.{part}_proj.bias": b[i, k]}
    return out | rest(seed, scanned=False)


def rest(seed: int, *, scanned: bool) -> Arrays:
    """A normalisation and a dense layer of each layer, and an embedding."""
    rng = np.random.default_rng(seed + 100)
    w, scale, table = (rng.normal(size=s).astype("f4") for s in ((LAYERS, WIDTH, 20), (LAYERS, WIDTH), (30, WIDTH)))
    if scanned:
        home = "params/layers"
        return {f"{home}/mlp/kernel": w, f"{home}/norm/scale": scale, "params/embed/embedding": table}
    out = {f"layers.{i}.mlp.weight": w[i].T for i in range(LAYERS)}
    return out | {f"layers.{i}.norm.weight": scale[i] for i in range(LAYERS)} | {"embed.weight": table}


def checkpoint(arrays: Arrays) -> Checkpoint:
    return Checkpoint({n: held(n, np.ascontiguousarray(a)) for n, a in arrays.items()})


PAIRS = [
    *product(("fused", "heads", "apart"), ("fused", "apart"), (False, True), (False,)),
    *(("fused", "apart", back, True) for back in (False, True)),
    *(("heads", "fused", back, True) for back in (False, True)),
    *(("apart", "interleaved", back, True) for back in (False, True)),  # only values tell that
]


@pytest.mark.parametrize(("flax", "torch", "back", "values"), PAIRS)
def test_layers_and_parts(flax: str, torch: str, back: bool, values: bool) -> None:
    source, want = theirs(flax, 1), ours(torch, 1)
    target = want if values else ours(torch, 2)
    if back:
        source, want = want, source
        target = want if values else theirs(flax, 2)
    found = match(checkpoint(source), checkpoint(target), values=values)
    assert not found.target_only
    assert not found.source_only
    rules = toml(found)
    there = library.parse(rules, "test")
    assert lint(there) == []
    after = apply(there, checkpoint(source))
    assert {n: t.numpy().tobytes() for n, t in after.items()} == {n: a.tobytes() for n, a in want.items()}
    again = apply(there.inverse, after)
    assert {n: t.numpy().tobytes() for n, t in again.items()} == {n: a.tobytes() for n, a in source.items()}
    assert rules.count("layers.{e*}.") >= 2  # patterns over layers
    assert "layers.1." not in rules
    assert all(p.sure for p in found.pairs) is values
    for p in found.pairs:
        if p.each and not values:
            assert p.real  # that query, key and value lie behind each other is always a doubt
