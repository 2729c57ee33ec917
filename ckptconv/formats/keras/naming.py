"""Names that Keras 3 does not store: those of the variables of a layer and, in older files, those of the layers.

    layers/dense_1/vars/0   ->  the second Dense of the model, its first variable  ->  enc/kernel

A layer's variables are numbered in the order in which its class creates them, trainable ones first. `VARIABLES` has
that order for the classes of Keras; for others the names can be guessed from the shapes (a matrix and a vector of its
last size are kernel and bias), which is noted as an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...checkpoint.details import LayerInput
from . import quantised
from .inputs import is_name, layer_inputs, snake

TOP = "top_level_model_weights"
OPTIMIZER = "optimizer_weights"


def join(*parts: str) -> str:
    """Join as HDF5 does: empty components and "." are ignored."""
    return "/".join(p for part in parts for p in part.split("/") if p not in ("", "."))


def in_list(name: str) -> str:
    """The name in a list of weights for a tensor of this name: a reader takes one ":0" off."""
    return name + ":0" if name.endswith(":0") else name


Shape = tuple[int, ...]
Inputs = Mapping[int, LayerInput]  # by the identity of a layer's row in the config

MAX_DEPTH = 32  # of models within models
KERNEL = ("kernel", "bias")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("dense", "einsum_dense", "conv1d", "conv2d", "conv3d"), KERNEL),
    **dict.fromkeys(("conv1d_transpose", "conv2d_transpose", "conv3d_transpose"), KERNEL),
    **dict.fromkeys(("depthwise_conv1d", "depthwise_conv2d"), KERNEL),
    **dict.fromkeys(("separable_conv1d", "separable_conv2d"), ("depthwise_kernel", "pointwise_kernel", "bias")),
    **dict.fromkeys(("embedding", "reversible_embedding"), ("embeddings",)),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"),
    "group_normalization": ("gamma", "beta"),
    "rms_normalization": ("scale",),
    "normalization": ("mean", "variance", "count"),
    **dict.fromkeys(("lstm_cell", "gru_cell", "simple_rnn_cell"), ("kernel", "recurrent_kernel", "bias")),
    **dict.fromkeys(("conv_lstm_cell",), ("kernel", "recurrent_kernel", "bias")),
    "p_re_lu": ("alpha",),
    "seed_generator": ("seed_generator_state",),
}
OPTIONAL = {  # variables that a layer's config can switch off
    "bias": "use_bias",
    "gamma": "scale",
    "beta": "center",
}
RECURRENT = {"lstm": "lstm_cell", "gru": "gru_cell", "simple_rnn": "simple_rnn_cell"}


class Listed(NamedTuple):
    """A layer that a model's config lists: its class, name and config, and what it takes, if that is known."""

    kind: str
    name: str
    config: Mapping[str, Any]
    input: LayerInput | None = None


# Variables of other layers: quantised ones, attention, batch normalization of Keras 1.
_MORE = {
    *quantised.NAMES, "concat_score_weight", "vector_u", "sn_u", "adapt_mean", "adapt_variance", "moving_stddev",
    "renorm_mean", "renorm_stddev", "real_kernel", "imag_kernel",
}  # fmt: skip
FIXED = {  # variables that are never trained
    "mean", "variance", "count", "adapt_mean", "adapt_variance", "moving_mean", "moving_variance", "moving_stddev",
    "renorm_mean", "renorm_stddev", "vector_u", "sn_u", "summary", "seed_generator_state", *quantised.FIXED,
}  # fmt: skip
NAMES = {name for names in VARIABLES.values() for name in names} | _MORE


def bare(leaf: str) -> str:
    """A variable's name without the prefix and suffix that frameworks add: "_kernel:0" -> "kernel"."""
    return leaf.removesuffix(":0").lstrip("_")


def configured(
    config: Any, groups: Mapping[str, set[str]], path: str = "", depth: int = 0, known: Inputs | None = None
) -> Iterator[tuple[str, Listed]]:
    """Yield the path of every layer that a model's config.json lists and the file stores, nested models too.

    groups: the names of the groups in each group. Only for those a path is made: layers in nested models with long
    names would have paths that are much longer than the config.
    """
    stored = groups.get(f"{path}layers")
    if stored is None or depth > MAX_DEPTH:
        return
    known = layer_inputs(config) if known is None else known
    for word, found, row in rows(config, known):
        if word in stored:
            here = f"{path}layers/{word}"
            if found:
                yield here, found
            yield from configured(row, groups, here + "/", depth + 1, known)


def listed(config: Any, depth: int = 0, known: Inputs | None = None) -> Iterator[Listed]:
    """Yield all layers with names that a model's config.json lists, nested models too."""
    if depth > MAX_DEPTH:
        return
    known = layer_inputs(config) if known is None else known
    for _, found, row in rows(config, known):
        if found:
            yield found
        yield from listed(row, depth + 1, known)


def rows(config: Any, known: Inputs) -> Iterator[tuple[str, Listed | None, Any]]:
    """Yield (last component of its path, layer, row) of every row of one model's list; a layer has a name."""
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers") if isinstance(inner, dict) else None
    if not isinstance(layers, list):
        return
    met: dict[str, int] = {}
    for row in layers:
        own = row.get("config") if isinstance(row, dict) else None
        if not isinstance(own, dict) or not is_name(row.get("class_name")):
            continue
        kind = snake(row["class_name"])
        number = met[kind] = met.get(kind, -1) + 1
        found = Listed(kind, own["name"], own, known.get(id(row))) if is_name(own.get("name")) else None
        yield kind + (f"_{number}" if number else ""), found, row


def inside(kind: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """The class and name of the layer or cell inside a wrapper; for any other layer, its own class and no name."""
    row = config.get("layer") or config.get("cell")
    if not isinstance(row, dict) or not is_name(row.get("class_name")):
        return kind, ""
    own = row.get("config")
    name = own.get("name") if isinstance(own, dict) else ""
    return snake(row["class_name"]), name if isinstance(name, str) else ""


def wrapped(path: str, listed: Mapping[str, Listed]) -> Listed | None:
    """The layer in a wrapper, by the path of its object, if a config lists the wrapper."""
    above = listed.get(path.removesuffix("/layer")) if path.endswith("/layer") else None
    row = above.config.get("layer") if above else None
    own = row.get("config") if isinstance(row, dict) else None
    if not above or not isinstance(own, dict):
        return None
    kind, name = inside(above.kind, above.config)
    return Listed(kind, name, own, above.input)


def known_kind(path: str, called: str, listed: Mapping[str, str]) -> str:
    """The class of an object that no config lists; for a plain `cell`, that of the recurrent layer around it."""
    if path.endswith("/layer") and (wrapped := listed.get(path.removesuffix("/layer"))):
        return wrapped  # of a wrapper, what it says of the layer inside
    if path.rpartition("/")[2] != "cell" or called:
        return kind_of(path, called)
    words = path.split("/")
    above = (listed.get("/".join(words[:n])) or unnumbered(words[n - 1]) for n in range(len(words) - 1, 0, -1))
    return next((kind for kind in above if kind.removesuffix("_cell") in RECURRENT), "")


def nearest(owner: str, known: Container[str]) -> str:
    """The object itself or the nearest above it that is known; '' if none is."""
    words = owner.split("/")
    return next((p for n in range(len(words), 0, -1) if (p := "/".join(words[:n])) in known), "")


def unnumbered(word: str) -> str:
    """A default name without the number that tells it from others: dense_1 -> dense."""
    return re.sub(r"_\d+$", "", word)


def kind_of(path: str, called: str) -> str:
    """The class of the object at `path`, derived from the path or from its default name; '' if neither shows it."""
    *_, parent, last = ["", "", *path.split("/")]
    for word in (last, called):
        word = unnumbered(word)
        if word in VARIABLES:
            return word
    if last == "cell":
        return next((cell for layer, cell in RECURRENT.items() if layer in parent + called), "lstm_cell")
    return "einsum_dense" if last.endswith("_dense") else ""


def variables(
    kind: str, shapes: Sequence[Shape], dtypes: Sequence[str], config: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """Name the variables of one layer; also return whether the names were guessed from the shapes."""
    count = len(shapes)
    if found := quantised.variables(kind, shapes, dtypes):
        return found, False
    names = [n for n in VARIABLES.get(kind, ()) if config.get(OPTIONAL.get(n, ""), True) is not False]
    if kind == "einsum_dense" and config.get("bias_axes", "") is None:
        names = names[:1]
    if len(names) == count:
        return names, False
    if kind in VARIABLES and not config:
        known = _shorter(kind, shapes)
        if known:
            return known, False
    if kind not in VARIABLES and (guess := _guess(shapes)):
        return guess, True
    return [f"var_{i}" for i in range(count)], False


def _shorter(kind: str, shapes: Sequence[Shape]) -> list[str]:
    """The names for a layer without config and with fewer variables; only if exactly one choice remains."""
    full = VARIABLES[kind]
    if full[-1] == "bias" and len(shapes) == len(full) - 1:
        return list(full[:-1])
    if kind == "batch_normalization" and len(shapes) in (2, 3):  # of three, the first is gamma or beta
        return [*["var_0"][: len(shapes) - 2], "moving_mean", "moving_variance"]
    return []


def _guess(shapes: Sequence[Shape]) -> list[str]:
    if len(shapes) == 2 and len(shapes[0]) > 1 and len(shapes[1]) == 1 and shapes[0][-1] == shapes[1][0]:
        return ["kernel", "bias"]
    return []
