"""Twelve small networks, spelled as each of twenty frameworks and habits names and lays out their tensors.

A network is a list of modules: where it stands in the torch module, its kind, and its sizes. `spelled` gives the arrays
that a convention stores for the arrays of the torch module, and the name there of each tensor of torch's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Module(NamedTuple):
    """One module. path: where torch has it. kind: conv, dense, bn, ln or emb. sizes: out and in, or features."""

    path: str
    kind: str
    sizes: tuple[int, ...]
    bias: bool = True


def conv(path: str, out: int, into: int, size: int = 3, *, bias: bool = True) -> Module:
    return Module(path, "conv", (out, into, size, size), bias)


def dense(path: str, out: int, into: int) -> Module:
    return Module(path, "dense", (out, into))


def norm(path: str, size: int, kind: str = "bn") -> Module:
    return Module(path, kind, (size,))


def _blocks(bias: bool) -> list[Module]:
    """Two stages of two residual blocks each, the first of the second stage with a shortcut."""
    out = [conv("stem.conv", 8, 3, bias=bias), norm("stem.bn", 8)]
    for stage, (width, into) in enumerate([(8, 8), (16, 8)]):
        for block in range(2):
            at, first = f"layer{stage + 1}.{block}", into if block == 0 else width
            out += [conv(f"{at}.conv1", width, first, bias=bias), norm(f"{at}.bn1", width)]
            out += [conv(f"{at}.conv2", width, width, bias=bias), norm(f"{at}.bn2", width)]
            if first != width:
                out += [conv(f"{at}.down.conv", width, first, 1, bias=bias), norm(f"{at}.down.bn", width)]
    return [*out, dense("head", 10, 16)]


NETWORKS: dict[str, list[Module]] = {
    "plain": [conv("conv1", 8, 3), conv("conv2", 16, 8), dense("fc", 10, 16)],
    "norms of one size": [
        m for i in (1, 2, 3) for m in (conv(f"conv{i}", 8, 3 if i == 1 else 8), norm(f"bn{i}", 8))
    ] + [dense("fc", 10, 8)],
    "no biases": [
        m for i in (1, 2, 3) for m in (conv(f"conv{i}", 8, 3 if i == 1 else 8, bias=False), norm(f"bn{i}", 8))
    ] + [dense("fc", 10, 8)],
    "layers of other sizes": [dense("fc1", 32, 20), dense("fc2", 16, 32), dense("fc3", 5, 16)],
    "square layers": [dense(f"fc{i}", 12, 12) for i in (1, 2, 3, 4)],
    "twelve layers": [dense(f"layers.{i}", 8, 8) for i in range(12)],
    "residual": _blocks(True),
    "residual, no biases": _blocks(False),
    "vgg": [
        m for i, (o, n) in enumerate([(8, 3), (8, 8), (16, 8), (16, 16)], 1)
        for m in (conv(f"conv{i}", o, n), norm(f"bn{i}", o))
    ] + [dense("fc1", 24, 16), dense("fc2", 24, 24), dense("fc3", 10, 24)],
    "autoencoder": [dense("enc1", 16, 32), dense("enc2", 8, 16), dense("dec1", 16, 8), dense("dec2", 32, 16)],
    "layer norms": [m for i in (1, 2, 3) for m in (norm(f"norm{i}", 12, "ln"), dense(f"fc{i}", 12, 12))],
    "words": [Module("emb", "emb", (40, 12)), dense("fc1", 24, 12), norm("norm", 24, "ln"), dense("fc2", 3, 24)],
}  # fmt: skip

ROLES = {  # of a kind: torch's names
    "conv": ("weight", "bias"), "dense": ("weight", "bias"), "emb": ("weight",),
    "bn": ("weight", "bias", "running_mean", "running_var"), "ln": ("weight", "bias"),
}  # fmt: skip
LIKE_KERAS = {
    "conv": {"weight": "kernel", "bias": "bias"}, "dense": {"weight": "kernel", "bias": "bias"},
    "emb": {"weight": "embeddings"}, "ln": {"weight": "gamma", "bias": "beta"},
    "bn": {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"},
}  # fmt: skip


def leaves(**more: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {kind: {**roles, **more.get(kind, {})} for kind, roles in LIKE_KERAS.items()}


W = {"weight": "W", "bias": "b"}
LOWER = {"weight": "w", "bias": "b"}


class Convention(NamedTuple):
    """How names are made and axes laid out.

    words: what a kind is called where a framework names modules by their kind. name: of the module's own path, its
    kind's word, how many of the kind came before, and the leaf, a name. leaves: of each kind and role. flipped: whether
    kernels are stored with outputs last, as TensorFlow does.
    """

    name: Callable[[str, str, int, str], str]
    leaves: Mapping[str, Mapping[str, str]]
    words: Mapping[str, str] = {}
    flipped: bool = True
    dense_flipped: bool | None = None


def under(path: str) -> str:
    return path.replace(".", "_")


def camel(path: str) -> str:
    words = re.split(r"[._]", path)
    return words[0] + "".join(w[:1].upper() + w[1:] for w in words[1:])


def counted(word: str, count: int) -> str:
    return f"{word}_{count}" if count else word


KINDS1 = {"conv": "convolution2d", "dense": "dense", "bn": "batchnormalization", "ln": "layernorm", "emb": "embedding"}
KINDS2 = {"conv": "conv2d", "dense": "dense", "bn": "batch_normalization", "ln": "layer_normalization",
          "emb": "embedding"}  # fmt: skip
FLAX = {"conv": "Conv", "dense": "Dense", "bn": "BatchNorm", "ln": "LayerNorm", "emb": "Embed"}
HAIKU = {"conv": "conv2_d", "dense": "linear", "bn": "batch_norm", "ln": "layer_norm", "emb": "embed"}
LINEN = leaves(bn={"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"},
               ln={"weight": "scale", "bias": "bias"}, emb={"weight": "embedding"})  # fmt: skip
OFFSET = {"weight": "scale", "bias": "offset"}
TORCH = {kind: {r: r for r in roles} for kind, roles in ROLES.items()}

CONVENTIONS: dict[str, Convention] = {
    "torch, other words": Convention(
        lambda p, k, i, leaf: f"net.{p.replace('conv', 'c').replace('fc', 'linear')}.{leaf}", TORCH, flipped=False
    ),
    "Keras 1": Convention(
        lambda p, k, i, leaf: f"{k}_{i + 1}_{leaf}",
        leaves(conv=W, dense=W, emb={"weight": "W"}, bn={"running_mean": "running_mean", "running_var": "running_std"}),
        KINDS1,
    ),
    "Keras 2": Convention(lambda p, k, i, leaf: f"{k}_{i + 1}/{leaf}:0", LIKE_KERAS, KINDS2),
    "Keras 3": Convention(lambda p, k, i, leaf: f"{counted(k, i)}/{leaf}", LIKE_KERAS, KINDS2),
    "slim": Convention(
        lambda p, k, i, leaf: f"net/{p.replace('.', '/')}/{leaf}",
        leaves(conv={"weight": "weights", "bias": "biases"}, dense={"weight": "weights", "bias": "biases"}),
    ),
    "Sonnet": Convention(
        lambda p, k, i, leaf: f"net/{p.replace('.', '/')}/{leaf}",
        leaves(conv=LOWER, dense=LOWER, bn=OFFSET | {"running_mean": "moving_mean/average",
               "running_var": "moving_variance/average"}, ln=OFFSET),
    ),
    "Haiku": Convention(
        lambda p, k, i, leaf: f"net/~/{counted(k, i)}/{leaf}",
        leaves(conv=LOWER, dense=LOWER, ln=OFFSET,
               bn=OFFSET | {"running_mean": "~/mean_ema/average", "running_var": "~/var_ema/average"}),
        HAIKU,
    ),
    "Flax linen": Convention(
        lambda p, k, i, leaf: f"{'batch_stats' if leaf in ('mean', 'var') else 'params'}.{k}_{i}.{leaf}", LINEN, FLAX
    ),
    "Flax NNX": Convention(lambda p, k, i, leaf: f"{p.replace('.', '/')}/{leaf}/value", LINEN),
    "MXNet": Convention(
        lambda p, k, i, leaf: f"net0_{k}{i}_{leaf}",
        leaves(conv=TORCH["conv"], dense=TORCH["dense"], emb=TORCH["emb"],
               bn={"running_mean": "running_mean", "running_var": "running_var"}),
        {"conv": "conv", "dense": "dense", "bn": "batchnorm", "ln": "layernorm", "emb": "embedding"},
        flipped=False,
    ),
    "Chainer": Convention(
        lambda p, k, i, leaf: f"{p.replace('.', '/')}/{leaf}",
        leaves(conv=W, dense=W, emb={"weight": "W"}, bn={"running_mean": "avg_mean", "running_var": "avg_var"}),
        flipped=False,
    ),
    "Caffe2": Convention(
        lambda p, k, i, leaf: f"{under(p)}_{leaf}",
        leaves(conv=LOWER, dense=LOWER, emb={"weight": "w"}, ln={"weight": "s", "bias": "b"},
               bn={"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}),
        flipped=False,
    ),
    "tensorpack": Convention(
        lambda p, k, i, leaf: f"{p.replace('.', '/')}/{leaf}",
        leaves(conv=W, dense=W, emb={"weight": "W"},
               bn={"running_mean": "mean/EMA", "running_var": "variance/EMA"}),
    ),
    "Lasagne": Convention(
        lambda p, k, i, leaf: f"{p}.{leaf}",
        leaves(conv=W, dense=W, emb={"weight": "W"}, bn={"running_mean": "mean", "running_var": "inv_std"}),
        flipped=False, dense_flipped=True,
    ),
    "Paddle": Convention(
        lambda p, k, i, leaf: f"{k}_{i}.{leaf}",
        leaves(**{kind: {"weight": "w_0", "bias": "b_0"} for kind in ("conv", "dense", "ln", "emb")},
               bn={"weight": "w_0", "bias": "b_0", "running_mean": "w_1", "running_var": "w_2"}),
        {"conv": "conv2d", "dense": "linear", "bn": "batch_norm2d", "ln": "layer_norm", "emb": "embedding"},
        flipped=False, dense_flipped=True,
    ),
    "tf.train.Checkpoint as arrays": Convention(
        lambda p, k, i, leaf: f"net/{p.replace('.', '/')}/{leaf}/.ATTRIBUTES/VARIABLE_VALUE", LIKE_KERAS
    ),
    "joined by _": Convention(lambda p, k, i, leaf: f"{under(p)}_{leaf}", LIKE_KERAS),
    "torch, joined by _": Convention(lambda p, k, i, leaf: f"{under(p)}_{leaf}", TORCH, flipped=False),
    "camel case": Convention(lambda p, k, i, leaf: camel(f"{p}.{leaf}"), LIKE_KERAS),
    "joined by nothing": Convention(lambda p, k, i, leaf: f"{p.replace('.', '')}{leaf}", LIKE_KERAS),
}  # fmt: skip


def state(network: Sequence[Module], seed: int = 0) -> Arrays:
    """Arrays of a torch module of this network, by its names."""
    rng, out = np.random.default_rng(seed), Arrays()
    for m in network:
        for role in ROLES[m.kind]:
            if role == "bias" and not m.bias:
                continue
            shape = m.sizes if role == "weight" else m.sizes[:1]
            out[f"{m.path}.{role}"] = rng.standard_normal(shape).astype("f4")
    return out


def spelled(network: Sequence[Module], arrays: Arrays, convention: Convention) -> tuple[Arrays, dict[str, str]]:
    """What a convention stores of these arrays, and the name there of each."""
    out, names, count = Arrays(), dict[str, str](), Counter[str]()
    flat = convention.flipped if convention.dense_flipped is None else convention.dense_flipped
    for m in network:
        for role in ROLES[m.kind]:
            full = f"{m.path}.{role}"
            if full not in arrays:
                continue
            array, leaf = arrays[full], convention.leaves[m.kind][role]
            if m.kind == "conv" and role == "weight" and convention.flipped:
                array = array.transpose(2, 3, 1, 0)
            elif m.kind == "dense" and role == "weight" and flat:
                array = array.T
            name = convention.name(m.path, convention.words.get(m.kind, m.kind), count[m.kind], leaf)
            out[name], names[full] = np.ascontiguousarray(array), name
        count[m.kind] += 1
    return out, names
