"""Split names into words, measure their similarity, and assign all pairs at once, not greedily.

bert/encoder/layer_3/attention/self/query/kernel    bert encoder layer # attention self query weight
encoder.layer.3.attention.self.query.weight              encoder layer # attention self query weight
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ..errors import MissingExtra
from ..moves.copy import Array
from .pairs import COPY, WORDS, folded, leaf, parent

# Names of variables in different frameworks. The last word decides what a tensor is.
LEAVES = {
    "kernel": "weight", "gamma": "weight", "scale": "weight", "embeddings": "weight", "embedding": "weight",
    "w": "weight", "weights": "weight", "g": "weight", "beta": "bias", "b": "bias", "biases": "bias", "offset": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var", "mean": "running_mean", "var": "running_var",
    "avg_mean": "running_mean", "avg_var": "running_var", "rm": "running_mean", "riv": "running_var", "s": "weight",
    "running_std": "running_var", "moving_var": "running_var", "variance": "running_var",  # Keras 1 calls it std
    "w_0": "weight", "b_0": "bias", "w_1": "running_mean", "w_2": "running_var",  # in Paddle's programs
    "depthwise_kernel": "depthwise_weight", "pointwise_kernel": "pointwise_weight",
    "recurrent_kernel": "weight_hh", "recurrent_bias": "bias_hh",
}  # fmt: skip
SAME = {
    "attn": "attention", "att": "attention", "embedding": "embeddings", "emb": "embeddings", "layernorm": "norm",
    "ln": "norm", "bn": "norm", "batchnorm": "norm", "layers": "layer", "blocks": "block", "linear": "dense",
    "fc": "dense", "conv2d": "conv", "conv1d": "conv", "stages": "stage", "groups": "group", "experts": "expert",
    "convolution": "conv", "normalization": "norm", "batch": "", "crossattention": "cross",
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "encdec": "encoder",
    "bw": "backward", "bwd": "backward", "reverse": "backward", "fw": "forward", "fwd": "forward",
    "ff": "mlp", "ffn": "mlp", "feedforward": "mlp", "dw": "depthwise", "pw": "pointwise", "sep": "separable",
    "pos": "position", "shortcut": "downsample", "router": "gate", "dwconv": "depthwise",
}  # fmt: skip
SEPARATORS = re.compile(r"[/.]+")
AVERAGE = re.compile(r"(?:/~)?/(mean|var)_ema(?:/~)?/average$")
NOISE = re.compile(r"(?i)(conv|pool)[123]d|(?<![a-z])w(?=[qkvo](?![a-z]))")  # conv2d is conv, wq is q
PLURAL = 4  # letters; a longer word may be a plural
KINDS = {"weight", "bias", "running_mean", "running_var", "weight_hh", "weight_ih", "bias_ih", "bias_hh"}
RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh))(?:_l[0-9]+)?(_reverse)?")  # of torch
VARIABLES = sorted({*LEAVES, *KINDS}, key=lambda v: -len(v))
IN_FRONT = re.compile(r"(?i)([wb])(?:_(?=.)|(?=[0-9]))", re.S)  # variable before its module: W_conv1, b2
APART = 4  # letters of a variable that may follow a word directly: conv1bias, headbias
MAX_CLASS = 500  # tensors or modules on a side of which all pairs are compared
SAME_NUMBERS, IN_ORDER = 0.3, 0.1  # weights of a name's numbers and its position; its words count 0 to 1
T = TypeVar("T")


def in_segments(names: Sequence[str]) -> dict[str, str]:
    """Split the module and the variable of each name into segments; names without a clue are unchanged.

    conv1/kernel/value, conv1/bias/value      a last segment that all share is dropped:  conv1/kernel, conv1/bias
    bn1_running_mean, bn1RunningMean, bn1runningmean                                  bn1/running_mean
    net/W_fc1, net/b_fc1, old/w2, old/b2                                              net/fc1/w, old/2/b
    """
    new = {n: COPY.sub("", n) for n in names}
    bare = new
    while len(last := {leaf(n) for n in bare.values()}) == 1 and not last & {*LEAVES, *KINDS} and all(bare.values()):
        bare = {n: parent(name) for n, name in bare.items()}
    new = bare if _named(bare) else new
    if len({parent(n) for n in new.values()}) == 1 or not _named(new):
        homes = {n: parent(name) and f"{parent(name)}/" for n, name in new.items()}
        new = {n: homes[n] + _variable_apart(name[len(homes[n]) :]) for n, name in new.items()}
        new = new if _named(new) else {}
    return new if len({*new.values()}) == len(names) else {n: n for n in names}


def _named(names: Mapping[str, str]) -> bool:
    """Tell whether most of the new names end in the name of a variable."""
    return sum(leaf(n) in LEAVES or leaf(n) in KINDS for n in names.values()) > len(names) / 2


def _variable_apart(name: str) -> str:
    """Split the variable off a name without segments: the longest known one that it ends in, or W_, b_."""
    for variable in VARIABLES if name.lower() not in VARIABLES else ():
        for end in {variable, variable.replace("_", "")}:
            cut = len(name) - len(end)
            if cut > 0 and name.lower().endswith(end):
                before = name[cut - 1]
                if before in "_-" or before.isdigit() or name[cut].isupper() or len(end) >= APART:
                    return f"{name[:cut].rstrip('_-')}/{variable}"
    m = IN_FRONT.match(name)
    return f"{name[m.end() :]}/{m[1]}" if m else name


@lru_cache(maxsize=2**16)
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name in order, with # for numbers and one spelling for synonyms."""
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
    """Rename Haiku's norm/~/mean_ema/average to the usual norm/mean."""
    return AVERAGE.sub(r"/\1", name) if name.endswith("average") else name


def _leaf(last: str) -> list[str]:
    if m := RECURRENT.fullmatch(last.lower()):
        return ["backward", m[1]] if m[2] else [m[1]]
    return [last.lower()] if last.lower() in KINDS else _split(last)


@lru_cache(maxsize=2**16)
def _split(segment: str) -> list[str]:
    segment = NOISE.sub(r"\1", segment)
    found = ["#" if w.isdigit() else w.lower() for w in WORDS.findall(segment)]
    out = [x for w in found if (x := SAME.get(w, _singular(w)))]
    return [w for k, w in enumerate(out) if w != "layer" or out[k + 1 : k + 2] != ["norm"]]


def _singular(word: str) -> str:
    """Make tokens token; keep bias and class."""
    plural = len(word) > PLURAL and word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))
    return word[:-1] if plural and word not in SAME.values() else word


def likeness(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> Array:
    """Compute the similarity of all names of a to all of b: the cosine of their features, rare ones weighing more.

    Features are words, pairs of neighbouring words, and the last word.
    """
    try:
        from scipy import sparse
    except ImportError:
        raise MissingExtra("matching by names needs scipy; pip install 'ckptconv[match]'") from None
    rows = []
    for text in (*a, *b):
        bare = [w for w in text if w != "#"]
        rows.append(Counter([*bare, *(f"{x} {y}" for x, y in pairwise(bare)), f"{bare[-1] if bare else ''} $"]))
    seen = Counter(f for r in rows for f in r)
    index = {f: i for i, f in enumerate(seen)}
    weight = np.array([math.log(1 + len(rows) / n) * (0.5 if " " in f else 1) for f, n in seen.items()])
    at = np.array([index[f] for r in rows for f in r])
    counts = np.array([n for r in rows for n in r.values()]) * weight[at]
    table = sparse.csr_array((counts, at, np.cumsum([0, *map(len, rows)])), shape=(len(rows), len(index)))
    norm = np.sqrt(np.asarray((table * table).sum(axis=1)).reshape(-1))
    table = sparse.diags_array(1 / np.maximum(norm, 1e-12)) @ table
    return np.asarray((table[: len(a)] @ table[len(a) :].T).toarray(), "f4")


def assigned(gain: Array) -> list[tuple[int, int]]:
    """Return the pairs with the greatest sum of gains."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(gain, maximize=True)
    return [(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True) if gain[r, c] > 0]


def alike(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, str]]:
    """Pair tensors that differ only in their names: by words, then by numbers, then in order."""
    if len(a) == len(b) == 1:
        return [(a[0], b[0])]
    out = []
    for x, y in slices(a, b):
        gain = 1 + likeness([words(n) for n in x], [words(n) for n in y])
        gain += SAME_NUMBERS * np.array([[folded(m)[1] == folded(n)[1] for n in y] for m in x])
        gain -= IN_ORDER * np.abs(np.subtract.outer(np.linspace(0, 1, len(x)), np.linspace(0, 1, len(y))))
        out += [(x[r], y[c]) for r, c in assigned(gain)]
    return out


def slices(a: Sequence[T], b: Sequence[T]) -> Iterator[tuple[Sequence[T], Sequence[T]]]:
    """Slice both sequences so that all pairs in a slice can be compared; only huge models need several slices."""
    count = -(-max(len(a), len(b)) // MAX_CLASS)
    for k in range(count):
        x, y = (many[len(many) * k // count : len(many) * (k + 1) // count] for many in (a, b))
        if x and y:
            yield x, y
