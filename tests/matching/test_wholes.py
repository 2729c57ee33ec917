"""One tensor on one side, many on the other: parts on an axis of their own, twins, layers of experts; by names alone.

The target is freshly initialised. The rules must give the truth, lint, and lead back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kit import in_memory

from ckptconv.matching.orders.cuts import PARTS
from ckptconv.matching.proposal import propose as match
from ckptconv.matching.rules import toml
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

Arrays = dict[str, Any]
Both = tuple[Arrays, Arrays]
LAYERS, WIDTH = 3, 10


def drawn(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype("f4")


def einsums(rng: np.random.Generator) -> Both:
    """Gemma in Flax: heads first, key and value on an axis of their own, gate and up too."""
    a, b = {}, {}
    for i in range(LAYERS):
        q, kv, out = drawn(rng, 4, WIDTH, 6), drawn(rng, 2, 1, WIDTH, 6), drawn(rng, 4, 6, WIDTH)
        mlp, down = drawn(rng, 2, WIDTH, 28), drawn(rng, 28, WIDTH)
        home, at = f"transformer/layer_{i}", f"layers.{i}"
        a |= {f"{home}/attn/q_einsum/w": q, f"{home}/attn/kv_einsum/w": kv, f"{home}/attn/attn_vec_einsum/w": out}
        a |= {f"{home}/mlp/gating_einsum": mlp, f"{home}/mlp/linear": down}
        b |= {f"{at}.self_attn.q_proj.weight": q.transpose(0, 2, 1).reshape(-1, WIDTH)}
        b |= {f"{at}.self_attn.{n}_proj.weight": kv[k, 0].T for k, n in enumerate("kv")}
        b |= {f"{at}.self_attn.o_proj.weight": out.reshape(-1, WIDTH).T}
        b |= {f"{at}.mlp.{n}_proj.weight": mlp[k].T for k, n in enumerate(("gate", "up"))}
        b |= {f"{at}.mlp.down_proj.weight": down.T}
    return a, b


def twins(rng: np.random.Generator) -> Both:
    """WaveNet of TensorFlow 1: a filter and a gate, which are one convolution in torch; the words say nothing."""
    a, b = {}, {}
    for i in range(LAYERS):
        parts = [drawn(rng, 2, 12, WIDTH) for _ in range(2)]
        biases = [drawn(rng, WIDTH) for _ in range(2)]
        skip = drawn(rng, 1, WIDTH, 14)
        home, at = f"net/stack/layer{i}", f"wn.{i}"
        for name, w, bias in zip(("filter", "gate"), parts, biases, strict=True):
            a |= {f"{home}/{name}": w, f"{home}/{name}_bias": bias}
        a[f"{home}/skip"] = skip
        b[f"{at}.in_layer.weight"] = np.concatenate([w.transpose(2, 1, 0) for w in parts])
        b[f"{at}.in_layer.bias"] = np.concatenate(biases)
        b[f"{at}.skip.weight"] = skip.transpose(2, 1, 0)
    return a, b


def scanned(rng: np.random.Generator) -> Both:
    """Flax with scanned layers, each of which has a fused QKV."""
    qkv, bias, out = (drawn(rng, LAYERS, *n) for n in ((WIDTH, 3 * WIDTH), (3 * WIDTH,), (14, WIDTH)))
    b = {f"layers.{i}.out.weight": w.T for i, w in enumerate(out)}
    for i in range(LAYERS):
        for n, w, v in zip("qkv", np.split(qkv[i], 3, 1), np.split(bias[i], 3), strict=True):
            b |= {f"layers.{i}.{n}_proj.weight": w.T, f"layers.{i}.{n}_proj.bias": v}
    return {"layers/qkv/kernel": qkv, "layers/qkv/bias": bias, "layers/out/kernel": out}, b


def experts(rng: np.random.Generator) -> Both:
    """Flax with scanned layers, each of which has experts."""
    wi, wo, out = (drawn(rng, *n) for n in ((4, LAYERS, WIDTH, 28), (4, LAYERS, 28, WIDTH), (LAYERS, 14, WIDTH)))
    b = {f"layers.{i}.out.weight": w.T for i, w in enumerate(out)}
    for n, w in (("wi", wi), ("wo", wo)):
        b |= {f"layers.{i}.experts.{e}.{n}.weight": w[e, i].T for i in range(LAYERS) for e in range(4)}
    return {"layers/moe/wi": wi, "layers/moe/wo": wo, "layers/out/kernel": out}, b


CASES: dict[str, tuple[Callable[[np.random.Generator], Both], int]] = {  # and how many pairs doubt the order of parts
    "einsums": (einsums, 6),
    "twins": (twins, 6),
    "scanned": (scanned, 0),
    "experts": (experts, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_by_names_alone(case: str) -> None:
    make, parted = CASES[case]
    source, want = make(np.random.default_rng(1))
    _, fresh = make(np.random.default_rng(2))
    found = match(in_memory(source), in_memory(fresh), values=False)
    assert not found.source_only
    assert not found.target_only
    there = library.parse(toml(found), "test")
    assert lint(there) == []
    after = apply(there, in_memory(source))
    assert {n: t.numpy().tobytes() for n, t in after.items()} == {n: x.tobytes() for n, x in want.items()}
    again = apply(there.inverse, after)
    assert {n: t.numpy().tobytes() for n, t in again.items()} == {n: x.tobytes() for n, x in source.items()}
    assert sum(PARTS in p.why for p in found.pairs) == parted
    assert all(p.real for p in found.pairs if PARTS in p.why)
