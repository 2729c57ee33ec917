"""What a name says: its words in the order in which they stand, numbers as #, spellings made one.

bert/encoder/layer_3/attention/self/query/kernel    bert encoder layer # attention self query weight    (3,)
encoder.layer.3.attention.self.query.weight              encoder layer # attention self query weight    (3,)
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache

from .pairs import COPY, WORDS, Item, folded, leaf, parent

# Variables by what they are called in one place and the other. The last word decides what a tensor is.
LEAVES = {
    "kernel": "weight", "gamma": "weight", "scale": "weight", "embeddings": "weight", "embedding": "weight",
    "w": "weight", "weights": "weight", "g": "weight", "beta": "bias", "b": "bias", "biases": "bias", "offset": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var", "mean": "running_mean", "var": "running_var",
    "depthwise_kernel": "depthwise_weight", "pointwise_kernel": "pointwise_weight",
    "recurrent_kernel": "weight_hh", "recurrent_bias": "bias_hh",
}  # fmt: skip
SAME = {
    "attn": "attention", "att": "attention", "embedding": "embeddings", "emb": "embeddings", "layernorm": "norm",
    "ln": "norm", "bn": "norm", "batchnorm": "norm", "layers": "layer", "blocks": "block", "linear": "dense",
    "fc": "dense", "conv2d": "conv", "conv1d": "conv", "stages": "stage", "groups": "group", "experts": "expert",
    "convolution": "conv", "normalization": "norm", "batch": "", "self": "self", "crossattention": "cross",
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "encdec": "encoder",
    "bw": "backward", "bwd": "backward", "reverse": "backward", "fw": "forward", "fwd": "forward",
    "ff": "mlp", "ffn": "mlp", "feedforward": "mlp", "dw": "depthwise", "pw": "pointwise", "sep": "separable",
    "pos": "position", "shortcut": "downsample", "router": "gate", "dwconv": "depthwise",
}  # fmt: skip
SEPARATORS = re.compile(r"[/.]+")
AVERAGE = re.compile(r"(?:/~)?/(mean|var)_ema(?:/~)?/average$")
RANK = re.compile(r"(?i)(conv|pool)[123]d")
LETTERS = 4  # of a word that may be a plural, at least
KINDS = {"weight", "bias", "running_mean", "running_var", "weight_hh", "weight_ih", "bias_ih", "bias_hh"}
RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh))(?:_l[0-9]+)?(_reverse)?")  # of torch


@lru_cache(maxsize=2**16)
def words(name: str) -> tuple[str, ...]:
    """The words of a name in the order they stand, numbers as #, spellings made one."""
    name = averaged(COPY.sub("", name))
    *scopes, last = SEPARATORS.split(name)
    out: list[str] = []
    for segment in scopes:
        out += _split(segment)
    last = last.lstrip("_") or last
    parameter = LEAVES.get(last.lower())
    out += ["norm"] if last.lower() in ("gamma", "beta") and "norm" not in out[-2:] else []
    return (*out, *([parameter] if parameter else _leaf(last)))


def averaged(name: str) -> str:
    """Haiku's norm/~/mean_ema/average as norm/mean, as others call it."""
    return AVERAGE.sub(r"/\1", name) if name.endswith("average") else name


def _leaf(last: str) -> list[str]:
    if m := RECURRENT.fullmatch(last.lower()):
        return ["backward", m[1]] if m[2] else [m[1]]
    return [last.lower()] if last.lower() in KINDS else _split(last)


@lru_cache(maxsize=2**16)
def _split(segment: str) -> list[str]:
    segment = RANK.sub(r"\1", segment)
    found = ["#" if w.isdigit() else w.lower() for w in WORDS.findall(segment)]
    out = [x for w in found if (x := SAME.get(w, _singular(w)))]
    return [w for k, w in enumerate(out) if w != "layer" or out[k + 1 : k + 2] != ["norm"]]


def _singular(word: str) -> str:
    """tokens as token; bias and class stay."""
    plural = len(word) > LETTERS and word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))
    return word[:-1] if plural and word not in SAME.values() else word


def items(names: Iterable[str], groups: Mapping[str, Hashable]) -> list[Item]:
    """The tensors as this module sees them."""
    every = list(names)
    cells = {n.rpartition("recurrent_kernel")[0] for n in every if "recurrent_kernel" in n}
    out = []
    for at, name in enumerate(every):
        text, home, last = name, parent(name), leaf(name)
        if cells and last in ("kernel", "bias") and f"{home}/" in cells:
            text = f"{parent(text)}/{'weight_ih' if last == 'kernel' else 'bias_ih'}"
        out.append(Item(name, words(text), folded(text)[1], groups[name], at / max(1, len(every) - 1)))
    return out
