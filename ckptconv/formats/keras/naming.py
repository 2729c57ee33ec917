"""What a model's config tells: names that Keras 3 does not store, of variables and, in older files, of layers; and what
each layer takes, of which torch may have the features in another order.

    layers/dense_1/vars/0   ->  the second Dense of the model, its first variable  ->  enc/kernel

A layer's variables are numbered in the order in which its class creates them, trainable ones first. `VARIABLES` has
that order for the classes of Keras; for others the names can be guessed from the shapes (a matrix and a vector of its
last size are kernel and bias), which is noted as an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeGuard

from ...checkpoint.details import LayerInput, State

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
    **dict.fromkeys(
        ("lstm_cell", "gru_cell", "simple_rnn_cell", "conv_lstm_cell"), ("kernel", "recurrent_kernel", "bias")
    ),
    "p_re_lu": ("alpha",),
    "seed_generator": ("seed_generator_state",),
}
OPTIONAL = {  # variables that a layer's config can switch off
    "bias": "use_bias",
    "gamma": "scale",
    "beta": "center",
}
SCALED = ("dense", "einsum_dense", "embedding")  # classes that int8 and int4 quantise by channels
FLOAT8 = [f"{of}_{what}" for of in ("inputs", "kernel", "outputs_grad") for what in ("scale", "amax_history")]
RECURRENT = {"lstm": "lstm_cell", "gru": "gru_cell", "simple_rnn": "simple_rnn_cell"}
NAMES = {  # of the variables of all layers, older and others' too
    "concat_score_weight", "real_kernel", "imag_kernel", "adapt_mean", "adapt_variance", "moving_stddev",
    "renorm_mean", "renorm_stddev", "vector_u", "sn_u",
}.union(*VARIABLES.values())  # fmt: skip


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
    layers = inner.get("layers") if isinstance(inner, dict) else inner  # a list before Keras 2.2.3
    return [row for row in layers if isinstance(row, dict) and kind_of_row(row)] if isinstance(layers, list) else []


def all_rows(config: Any, depth: int = 0, *, wrapped: bool = True) -> Iterator[dict[str, Any]]:
    """The layers that a model's config lists, with those of the models and, if wanted, of the wrappers among them."""
    for row in rows_of(config) if depth <= MAX_DEPTH else ():
        yield row
        yield from all_rows(row, depth + 1, wrapped=wrapped)
        if wrapped:
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
    """A layer: its class, name and config, and its row in the list, '' and nothing if no config lists it by name."""

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
        return Listed(snake(row["class_name"]), "", own, self.row)


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
        layers = ((listed.get("/".join(words[:n])), words[n - 1]) for n in range(len(words) - 1, 0, -1))
        kinds = ((layer.inner or layer).kind if layer else unnumbered(word) for layer, word in layers)
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
    if kind in SCALED and [len(s) for s in shapes[-6:]] == [0, 1, 0, 1, 0, 1]:
        names, guessed = variables(kind, shapes[:-6], dtypes[:-6], config)
        return [*names, *FLOAT8], guessed
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


# --- what each layer takes: torch flattens an image as c h w, Keras as h w c ---------------------------------------
#
#     plain       features that torch has in the same order
#     image       h w c with its features last: torch has them first, each layer for itself, so that no kernel changes
#     flattened   an image that Flatten or Reshape made a row of; its size is known if convolutions and poolings tell it
#     unknown     everything else that came from an image: other classes, wrappers, Permute, channels_first, reuse
#
# One pass over the layers in the order of the config. What enters a model is an image if it has four axes. What a dense
# layer makes of an image is one whose size is not known, because nobody knows how torch flattens it. What has its
# features last in Keras (of an Embedding, an LSTM, rows) has them last in torch, too: it is flattened alike.

PASSING = {  # element by element, or along the features, which may have weights
    "dropout", "activation", "re_lu", "leaky_re_lu", "elu", "p_re_lu", "softmax", "thresholded_re_lu", "identity",
    "gaussian_noise", "gaussian_dropout", "batch_normalization", "layer_normalization", "group_normalization",
    "unit_normalization", "rms_normalization", "normalization", "rescaling", "masking", "input_layer",
    "spatial_dropout1d", "spatial_dropout2d", "random_flip", "random_rotation", "random_zoom", "random_contrast",
    "true_divide", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "hard_sigmoid", "hard_silu",
}  # fmt: skip
MERGING = {"add", "multiply", "average", "maximum", "minimum", "subtract"}  # element by element
FRESH = {*RECURRENT, "embedding", "einsum_dense", "multi_head_attention", "grouped_query_attention"}  # own features
CONVOLUTIONS = re.compile(r"(?:depthwise_|separable_)?conv(?:_lstm)?[123]d(?:_transpose)?")
SPATIAL = re.compile(r"(?:max_pooling|average_pooling|up_sampling|zero_padding|cropping)[123]d")
KEEPS_GRID = re.compile(r"(?:depthwise_|separable_)?conv[123]d|(?:max|average)_pooling[123]d")
POOLING = re.compile(r"global_(?:average|max)_pooling[123]d")  # one feature is left of each channel
EQUATION = re.compile(r"(.*)(\w+),\2(\w+)->\1\3")  # inputs times kernel: abc,cd->abd
MAX_DENSE = 32  # dense layers whose outputs become one image
MAX_AXES, MAX_AXIS = 8, 2**31  # of an image
MASKS = ("mask", "attention_mask")  # arguments of a layer that are no elements of its input


class Flow(NamedTuple):
    """What a layer gives: its state, its axes but for the batch (those of the image if flattened; () if not known).

    dense: the rows of the dense layers whose outputs these are, by identity.
    """

    state: State
    axes: tuple[int, ...] = ()
    dense: frozenset[int] = frozenset()


UNKNOWN = Flow("unknown")


def layer_inputs(config: Any) -> dict[int, LayerInput]:
    """What the layers of a config and of the models in it take, by the identity of their rows.

    Layers of classes that are not listed here are left out, unless their inputs are in doubt: they may flatten them.
    """
    images = any(
        CONVOLUTIONS.fullmatch(kind := kind_of_row(row))
        or (kind == "input_layer" and _entered(row["config"]).state == "image")
        for row in all_rows(config)
    )
    inputs: dict[int, LayerInput] = {}
    _model(config, None, inputs, UNKNOWN if images else Flow("plain"))
    return inputs


def _model(config: Any, given: Flow | None, inputs: dict[int, LayerInput], missing: Flow, depth: int = 0) -> Flow:
    """What a model gives for what it is called with. missing: what is given by what nobody knows."""
    rows = rows_of(config) if depth <= MAX_DEPTH else []
    names = {row["config"]["name"] for row in rows}
    in_chain = not any(row.get("inbound_nodes") for row in rows)
    flows: dict[str, Flow] = {}
    last = given
    for row in rows:
        if not in_chain:
            calls = _listed(row.get("inbound_nodes"))
            taken = [flows.get(n, missing) for n in _named(calls, names)]
            last = _joined(taken, kind_of_row(row)) if taken else missing if calls else given
        if isinstance(row["config"].get("layers"), list):
            last = _model(row, last, inputs, missing, depth + 1)
        else:
            last = _layer(row, last or _entered(row["config"]), inputs, missing)
        flows[row["config"]["name"]] = last
    outputs = [] if in_chain else [flows[n] for n in _named(config["config"].get("output_layers"), names)]
    return _joined(outputs, "") if outputs else last if rows and last else missing


def _layer(row: Mapping[str, Any], before: Flow, inputs: dict[int, LayerInput], missing: Flow) -> Flow:
    """What one layer gives for what it takes, which is put into `inputs`."""
    kind, own = kind_of_row(row), row["config"]
    inner = own.get("layer")
    if isinstance(inner, dict):  # a wrapper: of both directions, or for each step
        known = RECURRENT if kind == "bidirectional" else {"dense", *PASSING, *FRESH} if before.state == "plain" else ()
        if kind_of_row(inner) in known:
            kind, own = kind_of_row(inner), inner["config"]
        elif before.state != missing.state:
            before = UNKNOWN
    if kind == "einsum_dense" and not is_usual(own.get("equation")):
        before = UNKNOWN
    doubtful, convolves = before.state in ("flattened", "unknown"), CONVOLUTIONS.fullmatch(kind)
    if kind == "dense" or kind in PASSING or kind in FRESH or convolves:
        height, width = before.axes if before.state == "flattened" and before.axes else (0, 0)
        inputs[id(row)] = LayerInput(before.state, height, width)
    elif doubtful:
        inputs[id(row)] = LayerInput("unknown")
    if kind in ("flatten", "reshape"):
        axes = [-1] if kind == "flatten" else _listed(own.get("target_shape"))[:MAX_AXES]
        if sum(n != 1 for n in axes[:-1]) and axes[-1] != 1:
            inputs |= {i: inputs[i]._replace(into_image=True) for i in before.dense}
        return _reshaped(axes, before) if own.get("data_format") != "channels_first" else UNKNOWN
    if kind in FRESH or (POOLING.fullmatch(kind) and not (doubtful and kind.endswith("1d"))):
        return Flow("plain")
    if own.get("data_format") == "channels_first" or kind.startswith("conv_lstm"):
        return UNKNOWN
    if kind == "dense":
        return Flow("image" if before.state in ("image", "unknown") else "plain", dense=frozenset([id(row)]))
    if convolves or (SPATIAL.fullmatch(kind) and not doubtful):
        return Flow("image", _axes_after(kind, own, before.axes))
    given = own.get("arguments")  # of a Lambda of multi_gpu_model, which takes a part of the batch
    if (
        kind in PASSING
        or kind in MERGING
        or kind == "concatenate"
        or (type(given) is dict and given.keys() == {"i", "parts"})
    ):
        return before
    return before._replace(axes=()) if before.state == "plain" else UNKNOWN


def _reshaped(axes: Sequence[Any], before: Flow) -> Flow:
    """What Flatten and Reshape give. axes: but for the batch."""
    if before.state == "plain":
        return before._replace(axes=tuple(axes) if _are_lengths(axes) else ())
    if before.state == "image" and len(axes) == 1:
        size = (prod(before.axes[:-2]), prod(before.axes[-2:-1])) if before.axes else ()
        return Flow("plain") if prod(size) == 1 and size else Flow("flattened", size)
    if before.state == "image" and len(axes) == 2 and axes[-1:] == [*before.axes[-1:]]:
        return Flow("image")  # a row for each
    return before if before.state == "flattened" and len(axes) == 1 else UNKNOWN


def _axes_after(kind: str, own: Mapping[str, Any], axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of an image after a convolution or a pooling; () if they are not known."""
    rank = len(axes) - 1
    lists = [own.get("kernel_size") or own.get("pool_size"), own.get("strides"), own.get("dilation_rate", [1] * rank)]
    if rank < 1 or not KEEPS_GRID.fullmatch(kind) or any(len(_listed(v)) != rank or not _are_lengths(v) for v in lists):
        return ()
    padded = own.get("padding") in ("same", "causal")
    grid = [-(-n // s) if padded else (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(axes, *lists, strict=False)]
    filters = own.get("filters", 0 if "depth_multiplier" in own else axes[-1])
    return (*grid, filters if type(filters) is int else 0) if _are_lengths(grid) else ()


def _are_lengths(axes: Sequence[Any]) -> bool:
    return all(type(n) is int and 0 < n < MAX_AXIS for n in axes)


def _joined(several: Sequence[Flow], kind: str) -> Flow:
    """What a layer of this class takes that takes several, at once or in turn; '' for what a model gives."""
    if len(several) == 1 or (kind != "concatenate" and len(set(several)) == 1):
        return several[0]
    states = {f.state for f in several}
    if states <= {"plain", "image"} and (len(states) == 1 or kind in MERGING):
        dense = frozenset(islice((i for f in several for i in f.dense), MAX_DENSE))
        return Flow("image" if "image" in states else "plain", dense=dense)
    return UNKNOWN


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = _listed(own.get("batch_shape") or own.get("batch_input_shape"))
    axes = shape[1:] if len(shape) <= MAX_AXES and _are_lengths(shape[1:]) else []
    return Flow("plain" if 0 < len(shape) <= 3 else "image", tuple(axes))


def is_usual(equation: Any) -> bool:
    """Whether an EinsumDense multiplies the last axes of its input by the first of its kernel: abc,cd->abd."""
    if not isinstance(equation, str):
        return equation is None
    return len(equation) < 100 and EQUATION.fullmatch(equation.replace(" ", "")) is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any, names: Collection[str], depth: int = 0) -> Iterator[str]:
    """The names of layers in an inbound_nodes list, but for masks. Every Keras nests them otherwise."""
    if isinstance(value, str) and value in names:
        yield value
    if depth < 16:
        parts = [v for k, v in value.items() if k not in MASKS] if isinstance(value, dict) else _listed(value)
        for part in parts:
            yield from _named(part, names, depth + 1)
