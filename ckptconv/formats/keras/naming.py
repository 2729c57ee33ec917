"""Names that Keras 3 does not store: those of the variables of a layer and, in older files, those of the layers.

    layers/dense_1/vars/0   ->  the second Dense of the model, its first variable  ->  enc/kernel

A layer's variables are numbered in the order in which its class creates them, trainable ones first. `VARIABLES` has
that order for the classes of Keras; for others the names can be guessed from the shapes (a matrix and a vector of its
last size are kernel and bias), which is noted as an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

TOP = "top_level_model_weights"
OPTIMIZER = "optimizer_weights"
OUR_OWN = ("keras", "tf_keras", "tensorflow")  # packages whose classes are Keras'
MAX_NAME = 500  # characters of a layer's name; it begins many names
MAX_DEPTH = 32  # of models within models

Shape = tuple[int, ...]

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
SCALED = ("dense", "einsum_dense", "embedding")  # classes that int8 and int4 quantise by channels
RECURRENT = {"lstm": "lstm_cell", "gru": "gru_cell", "simple_rnn": "simple_rnn_cell"}
FIXED = {  # variables that are never trained
    "mean", "variance", "count", "adapt_mean", "adapt_variance", "moving_mean", "moving_variance", "moving_stddev",
    "renorm_mean", "renorm_stddev", "vector_u", "sn_u", "summary", "seed_generator_state",
}  # fmt: skip
NAMES = {"concat_score_weight", "real_kernel", "imag_kernel", *FIXED}.union(*VARIABLES.values()) - {"summary"}


def join(*parts: str) -> str:
    """Join as HDF5 does: empty components and "." are ignored."""
    return "/".join(p for part in parts for p in part.split("/") if p not in ("", "."))


def in_list(name: str) -> str:
    """The name in a list of weights for a tensor of this name: a reader takes one ":0" off."""
    return name + ":0" if name.endswith(":0") else name


def bare(leaf: str) -> str:
    """A variable's name without the prefix and suffix that frameworks add: "_kernel:0" -> "kernel"."""
    return leaf.removesuffix(":0").lstrip("_")


def unnumbered(word: str) -> str:
    """A default name without the number that tells it from others: dense_1 -> dense."""
    return re.sub(r"_\d+$", "", word)


# --- what a model's config lists ----------------------------------------------------------------------------------


def is_name(value: Any) -> TypeGuard[str]:
    """Whether a value can be the name of a class or a layer."""
    return isinstance(value, str) and len(value) <= MAX_NAME


def snake(name: str) -> str:
    """Spell a class as Keras does in paths: LSTMCell -> lstm_cell, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def rows_of(config: Any) -> list[dict[str, Any]]:
    """The layers that a model's config lists: each has a name, a class and a config."""
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers") if isinstance(inner, dict) else None
    return [row for row in layers if isinstance(row, dict) and kind_of_row(row)] if isinstance(layers, list) else []


def all_rows(config: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The layers that a model's config lists, with those of models and wrappers among them."""
    for row in rows_of(config) if depth <= MAX_DEPTH else ():
        yield row
        yield from all_rows(row, depth + 1)
        yield from all_rows({"config": {"layers": [row["config"].get("layer")]}}, depth + 1)


def kind_of_row(row: Mapping[str, Any]) -> str:
    """The class of a layer that a config lists; '' if it is not a layer.

    A class that is not Keras' own is spelled with a dot, so that it is none of these whatever it is called.
    """
    own, name, module = row.get("config"), row.get("class_name"), row.get("module")
    if not isinstance(own, dict) or not is_name(own.get("name")) or not is_name(name):
        return ""
    kind = snake(name)
    if kind == "average" and isinstance(module, str) and ".ops." in module:
        return "mean"  # along an axis, not of several as the layer of that name
    theirs = module.partition(".")[0] not in OUR_OWN if is_name(module) else bool(row.get("registered_name"))
    return f".{kind}" if theirs and not isinstance(own.get("layers"), list) else kind or "."


class Listed(NamedTuple):
    """A layer: its class, name and config, and its row in the list, '' and nothing if no config lists it."""

    kind: str
    name: str
    config: Mapping[str, Any]
    row: Mapping[str, Any]

    @property
    def inner(self) -> Listed | None:
        """The layer or cell inside a wrapper."""
        row = self.config.get("layer") or self.config.get("cell")
        if not isinstance(row, dict) or not is_name(row.get("class_name")):
            return None
        own = row["config"] if isinstance(row.get("config"), dict) else {}
        name = own.get("name")
        return Listed(snake(row["class_name"]), name if is_name(name) else "", own, self.row)


def configured(
    config: Any, groups: Mapping[str, Container[str]], path: str = "", depth: int = 0
) -> Iterator[tuple[str, Listed]]:
    """Yield the path of every layer that a model's config.json lists and the file stores, nested models too.

    groups: the names of the groups in each group. Only for those a path is made: layers in nested models with long
    names would have paths that are much longer than the config.
    """
    stored = groups.get(f"{path}layers", ())
    met: dict[str, int] = {}
    for row in rows_of(config) if stored and depth <= MAX_DEPTH else ():
        kind = snake(row["class_name"])
        number = met[kind] = met.get(kind, -1) + 1
        word = kind + (f"_{number}" if number else "")
        if word in stored:
            here = f"{path}layers/{word}"
            yield here, Listed(kind, row["config"]["name"], row["config"], row)
            yield from configured(row, groups, here + "/", depth + 1)


def nearest(owner: str, known: Container[str]) -> str:
    """The object itself or the nearest above it that is known; '' if none is."""
    words = owner.split("/")
    return next((p for n in range(len(words), 0, -1) if (p := "/".join(words[:n])) in known), "")


def object_at(path: str, name: str, listed: Mapping[str, Listed]) -> Listed:
    """The object at a path: by the config, which lists it or a wrapper of it, or else by the path or default name."""
    above = listed.get(path.removesuffix("/layer"))
    if above:
        return (above.inner if path not in listed else None) or above
    words = path.split("/")
    if words[-1] == "cell" and name.removesuffix("_cell") not in RECURRENT:
        paths = ["/".join(words[:n]) for n in range(len(words) - 1, 0, -1)]
        layers = [listed.get(p) or Listed(unnumbered(p.rpartition("/")[2]), "", {}, {}) for p in paths]
        kinds = [(layer.inner or layer).kind for layer in layers]
        kind = next((kind for kind in kinds if kind.removesuffix("_cell") in RECURRENT), "")
        return Listed(kind, name, {}, {})
    kind = next((word for word in map(unnumbered, (words[-1], name)) if word in VARIABLES), "")
    return Listed(kind or ("einsum_dense" if path.endswith("_dense") else ""), name, {}, {})


# --- variables ----------------------------------------------------------------------------------------------------


def variables(
    kind: str, shapes: Sequence[Shape], dtypes: Sequence[str], config: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """Name the variables of one layer; also return whether the names were guessed from the shapes.

    Those of quantised layers depend on the mode: a scale for each channel is known, others are numbered.
    """
    count, full = len(shapes), VARIABLES.get(RECURRENT.get(kind, kind), ())
    numbered = [f"var_{i}" for i in range(count)]
    names = [n for n in full if config.get(OPTIONAL.get(n, ""), True) is not False]
    if kind == "einsum_dense" and config.get("bias_axes", "") is None:
        names = names[:1]
    if not {"int8", "uint8"}.isdisjoint(dtypes):
        scaled = kind in SCALED and dtypes[0] == "int8" and {"int8", "uint8"}.isdisjoint(dtypes[1:])
        if scaled:
            names = [*names[: count - 1], f"{full[0]}_scale"]
        return (names if scaled and len(names) == count else numbered), False
    if kind == "reversible_embedding" and count == 2:
        names.append("reverse_embeddings")
    if len(names) == count:
        return names, False
    if full and not config:  # a variable is switched off, and only one choice may remain
        if full[-1] == "bias" and count == len(full) - 1:
            return list(full[:-1]), False
        if kind == "batch_normalization" and count in (2, 3):  # of three, the first is gamma or beta
            return [*numbered[: count - 2], "moving_mean", "moving_variance"], False
    if not full and count == 2 and len(shapes[0]) > 1 and shapes[1] == shapes[0][-1:]:
        return [*KERNEL], True
    return numbered, False
