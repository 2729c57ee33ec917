"""What each layer of a Keras model takes, by the model's config: torch flattens an image as c h w, Keras as h w c.

    plain       features that torch has in the same order
    image       h w c with its features last: torch has them first, each layer for itself, so that no kernel changes
    flattened   an image that Flatten or Reshape made a row of; its size is known if the config has it
    unknown     an image, or what was one, behind a layer whose effect is not known here: TimeDistributed, Permute,
                channels_first, a class that is not Keras' own, a layer that is called before its inputs

One pass over the layers of a model in the order of its config. What enters a model is an image if it has four axes.
What has its features last in Keras (of an Embedding, an LSTM, rows) has them last in torch, too: it is flattened alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from math import prod
from typing import Any, NamedTuple, TypeGuard

from ...checkpoint.details import LayerInput, State

PASSING = {  # element by element, or along the features, which may have weights
    "dropout", "activation", "re_lu", "leaky_re_lu", "elu", "p_re_lu", "softmax", "thresholded_re_lu", "identity",
    "gaussian_noise", "gaussian_dropout", "alpha_dropout", "activity_regularization", "batch_normalization",
    "sync_batch_normalization", "layer_normalization", "group_normalization", "unit_normalization",
    "rms_normalization", "normalization", "rescaling", "masking", "input_layer",
    "spatial_dropout1d", "spatial_dropout2d", "spatial_dropout3d",
    # operations of Keras 3 and functions of TensorFlow
    "true_divide", "divide", "negative", "absolute", "abs", "square", "sqrt", "rsqrt", "exp", "log", "power", "pow",
    "clip", "clip_by_value", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "swish", "softplus", "softsign",
    "hard_sigmoid", "hard_swish", "leaky_relu", "selu", "cast", "mul", "sub", "truediv", "add_v2", "hard_silu",
}  # fmt: skip
MERGING = {"add", "multiply", "average", "maximum", "minimum", "subtract"}  # element by element
APPENDING = {"concatenate", "dot", "merge"}
IMAGING = re.compile(  # what they give is an image
    r"(?:conv|depthwise_conv|separable_conv|max_pooling|average_pooling|up_sampling|zero_padding|cropping"
    r"|locally_connected|conv_lstm)[123]d(?:_transpose)?|convolution[123]d|atrous_convolution[12]d|deconvolution2d"
    r"|random_(?:flip|rotation|zoom|crop|contrast|brightness|translation|height|width)|resizing|center_crop"
)
ALONG_STEPS = re.compile(r"(?:max_pooling|average_pooling|up_sampling|zero_padding|cropping)1d")  # features stay apart
CONVOLVING = re.compile(r"(?:depthwise_|separable_)?conv[123]d|(?:max|average)_pooling[123]d")
POOLING = re.compile(r"global_(?:average|max)_pooling[23]d")  # one feature is left of each channel
POOLING_STEPS = {"attention", "additive_attention", "global_average_pooling1d", "global_max_pooling1d"}
FRESH = {  # their features are their own
    "embedding", "reversible_embedding", "lstm", "gru", "simple_rnn", "rnn", "bidirectional", "einsum_dense",
    "multi_head_attention", "grouped_query_attention", "text_vectorization", "string_lookup", "integer_lookup",
    "category_encoding", "hashing", "discretization", "cu_dnnlstm", "cu_dnngru", "shape",
}  # fmt: skip
MAX_NAME = 500  # characters of a layer's name
MAX_MODELS = 32  # within each other
MAX_DENSE = 32  # dense layers whose outputs become one image
MAX_AXES, MAX_AXIS = 8, 2**31  # of an image
MASKS = ("mask", "attention_mask")  # arguments of a layer that are no elements of its input
OUR_OWN = ("keras", "tf_keras", "tensorflow")  # packages whose classes are Keras'


class Flow(NamedTuple):
    """What a layer gives.

    axes: of an image, but for its features; height and width of a flattened one; () if they are not known. pixels: an
    image whose features a dense layer or a Reshape made, so that nobody knows how torch flattens it. dense: the dense
    layers whose outputs these are. reshaped: into rows since.
    """

    state: State
    axes: tuple[int, ...] = ()
    pixels: bool = False
    dense: tuple[int, ...] = ()
    reshaped: bool = False


def layer_inputs(config: Any) -> dict[int, LayerInput]:
    """What the layers of a config and of the models in it take, by the identity of their rows.

    Layers of other classes than Keras' own are left out, unless their inputs are in doubt: they may flatten themselves.
    """
    reader = _Reader(Flow("unknown" if _has_images(config) else "plain"))
    reader.model(config, None)
    return reader.inputs


def _has_images(config: Any, depth: int = 0) -> bool:
    rows = rows_of(config) if depth <= MAX_MODELS else []
    return any(
        IMAGING.fullmatch(kind_of_row(row))
        or (kind_of_row(row) == "input_layer" and _entered(row["config"]).state == "image")
        or _has_images(row, depth + 1)
        or _has_images({"config": {"layers": [row["config"].get("layer")]}}, depth + 1)
        for row in rows
    )


class _Reader:
    """missing: what a layer gives that is not listed, or listed later than one that it feeds."""

    def __init__(self, missing: Flow) -> None:
        self.missing = missing
        self.inputs: dict[int, LayerInput] = {}

    def model(self, config: Any, given: Flow | None, depth: int = 0) -> Flow:
        """What a model gives, for what it is called with by another one."""
        rows = rows_of(config)
        if not rows or depth > MAX_MODELS:
            return self.missing
        outputs = list(parents_of(config["config"].get("output_layers")))
        in_chain = _is_chain(config, rows, outputs)
        flows: dict[str, Flow] = {}
        last = [given] if given else []
        for row in rows:
            name, shape = row["config"]["name"], built(row)
            if in_chain:
                taken = last
            else:
                nodes = row.get("inbound_nodes")
                parents = list(parents_of(nodes))
                taken = [flows.get(parent, self.missing) for parent, _ in parents] or ([given] if given else [])
                several = isinstance(nodes, list) and len(nodes) > 1  # else it may have been built for another use
                shape = None if several else next((s for _, s in parents if s), shape)
            flows[name] = self.layer(row, taken, shape, depth)
            last = [flows[name]]
        return _joined([flows.get(parent, self.missing) for parent, _ in outputs] or last, appends=True)

    def layer(self, row: Mapping[str, Any], taken: Sequence[Flow], shape: Any, depth: int) -> Flow:
        """What one layer gives; its inputs are put down. shape: of its first input, if that is known."""
        kind, own, inner = kind_of_row(row), row["config"], row["config"].get("layer")
        given = _joined(taken, appends=kind in APPENDING) if taken else None
        if isinstance(own.get("layers"), list):
            return self.model(row, given, depth + 1)
        before = given or _entered(own)
        per_step = kind == "time_distributed"
        if (per_step or kind == "spectral_normalization") and isinstance(inner, dict) and kind_of_row(inner):
            kind, own = kind_of_row(inner), inner["config"]
            shape = shape[1:] if per_step and isinstance(shape, list) else shape
        self.inputs |= {id(row): found} if (found := _taken(kind, own, before, shape)) else {}
        if before.dense and _becomes_image(kind, own, before):
            self.inputs |= {i: self.inputs[i]._replace(into_image=True) for i in before.dense}
        made = _given(kind, own, before, shape)
        if per_step and made.state != "plain" and not made.pixels and kind not in PASSING:
            return Flow("unknown")
        return made._replace(dense=(id(row),)) if kind == "dense" else made


def _taken(kind: str, own: Mapping[str, Any], before: Flow, shape: Any) -> LayerInput | None:
    """What a layer takes; None of a class that is not known here and may flatten an image itself."""
    known = kind in PASSING or kind in FRESH or kind in ("dense", "rnn") or IMAGING.fullmatch(kind)
    if kind == "einsum_dense" and not is_usual(own.get("equation")):
        return LayerInput("unknown")
    if not known:
        return LayerInput("unknown") if before.state in ("flattened", "unknown") else None
    if before.state == "unknown" and kind in PASSING and isinstance(shape, list) and len(shape) > 3:
        return LayerInput("image")  # each channel of which has its weights
    if before.state == "flattened" and before.axes:
        return LayerInput("flattened", before.axes[0], before.axes[1])
    return LayerInput(before.state)


def _given(kind: str, own: Mapping[str, Any], before: Flow, shape: Any) -> Flow:
    """What a layer gives for what it takes."""
    doubtful = before.state in ("flattened", "unknown")
    if kind in ("flatten", "reshape", "permute"):
        return _rearranged(kind, own, before, shape)
    if IMAGING.fullmatch(kind):
        frames = kind.startswith("conv_lstm") and own.get("return_sequences")
        unsure = frames or own.get("data_format") == "channels_first" or (doubtful and ALONG_STEPS.fullmatch(kind))
        return Flow("unknown") if unsure else Flow("image", _axes_after(kind, own, before.axes))
    if POOLING.fullmatch(kind) or kind in FRESH or (kind in POOLING_STEPS and not doubtful):
        return Flow("plain")
    if kind == "dense":
        pixels = before.state in ("image", "unknown")
        return Flow("image" if pixels else "plain", pixels=pixels)
    if kind in PASSING or kind in MERGING or kind in APPENDING or before.state == "plain":
        return before
    return Flow("unknown")


def _rearranged(kind: str, own: Mapping[str, Any], before: Flow, shape: Any) -> Flow:
    """What Flatten, Reshape and Permute give, which leave the elements as they are."""
    first, axes = own.get("data_format") == "channels_first", target_axes(own)
    known = shape if isinstance(shape, list) and 0 < len(shape) <= MAX_AXES else []
    if before.state == "plain" and not (first and len(known) != 2):
        return before._replace(reshaped=kind == "reshape" and 1 not in axes)
    if kind == "flatten" or (kind == "reshape" and len(axes) == 1):
        if before.state == "flattened":
            return before
        if before.state == "image" and not before.pixels and not first:
            return _flattened(known[1:-1] or before.axes)
    if kind == "reshape" and before.state == "image" and len(axes) == 2 and known and axes[-1] == known[-1]:
        return Flow("image", pixels=True)  # a row for each pixel
    return Flow("unknown")


def _axes_after(kind: str, own: Mapping[str, Any], axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of an image after a convolution or a pooling; () if they are not known."""
    rank = len(axes)

    def numbers(value: Any) -> list[int]:
        several = value if isinstance(value, list) else [value] * rank
        return several if len(several) == rank and _are_lengths(several) else []

    size = numbers(own.get("kernel_size") or own.get("pool_size"))
    strides = size if own.get("strides") is None else numbers(own["strides"])
    dilation = numbers(own.get("dilation_rate", 1))
    if not CONVOLVING.fullmatch(kind) or not (rank and size and strides and dilation):
        return ()
    if own.get("padding") in ("same", "causal"):
        return tuple(-(-n // s) for n, s in zip(axes, strides, strict=True))
    return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(axes, size, strides, dilation, strict=True))


def _are_lengths(axes: Sequence[Any]) -> bool:
    return all(type(n) is int and 0 < n < MAX_AXIS for n in axes)


def _flattened(axes: Sequence[Any]) -> Flow:
    """An image flattened whose axes, but for the features, are these."""
    if not axes or not _are_lengths(axes):
        return Flow("flattened")
    return Flow("flattened", (prod(axes[:-1]), axes[-1])) if prod(axes) > 1 else Flow("plain")


def _joined(several: Sequence[Flow], *, appends: bool) -> Flow:
    """What a layer takes that takes several. appends: not element by element."""
    one = several[0]
    if len(several) == 1:
        return one
    states = {f.state for f in several}
    dense = tuple(islice(dict.fromkeys(chain.from_iterable(f.dense for f in several)), MAX_DENSE))
    if states == {"plain"}:
        return Flow("plain", dense=dense, reshaped=any(f.reshaped for f in several))
    if states <= {"plain", "image"}:
        axes = one.axes if len({f.axes for f in several if f.state == "image"}) == 1 else ()
        return Flow("image", axes, any(f.pixels for f in several) or (appends and len(states) > 1), dense)
    alike = states == {"flattened"} and len({f.axes for f in several}) == 1
    return one if alike and not appends else Flow("unknown")


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = own.get("batch_shape") or own.get("batch_input_shape")
    if isinstance(shape, list) and len(shape) < 4:
        return Flow("plain")
    axes = shape[1:-1] if isinstance(shape, list) and len(shape) <= MAX_AXES else []
    return Flow("image", tuple(axes) if _are_lengths(axes) else ())


def _becomes_image(kind: str, own: Mapping[str, Any], before: Flow) -> bool:
    """Whether it makes an image of several pixels and channels of what a dense layer gives."""
    axes = target_axes(own) if kind == "reshape" else []
    if axes:
        return len(axes) > 2 and axes[-1] != 1 and axes[:-1] != [1] * (len(axes) - 1)
    return before.reshaped and IMAGING.fullmatch(kind) is not None


# --- what a config lists ----------------------------------------------------------------------------------------


def rows_of(config: Any) -> list[dict[str, Any]]:
    """The layers that a model's config lists."""
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers") if isinstance(inner, dict) else None
    return [row for row in layers if isinstance(row, dict) and kind_of_row(row)] if isinstance(layers, list) else []


def is_name(value: Any) -> TypeGuard[str]:
    """Whether a value can be the name of a class or a layer; it begins many names, so its length is limited."""
    return isinstance(value, str) and len(value) <= MAX_NAME


def snake(name: str) -> str:
    """Spell a class as Keras does in paths: LSTMCell -> lstm_cell, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def kind_of_row(row: Mapping[str, Any]) -> str:
    """The class of a layer that a config lists, of a function of TensorFlow its name; '' if it is no layer.

    A class that is not Keras' own is spelled with a dot, so that it is none of these whatever it is called.
    """
    own, name = row.get("config"), row.get("class_name")
    if not isinstance(own, dict) or not isinstance(own.get("name"), str) or not isinstance(name, str):
        return ""
    if not is_name(name):
        return "."
    kind, module, function = snake(name), row.get("module"), own.get("function")
    if kind == "tf_op_lambda" and is_name(function):
        return function.rpartition(".")[2].strip("_")
    if kind == "average" and isinstance(module, str) and ".ops." in module:
        return "mean"  # along an axis, not of several as the layer of that name
    theirs = module.partition(".")[0] not in OUR_OWN if is_name(module) else bool(row.get("registered_name"))
    return f".{kind}" if theirs and not isinstance(own.get("layers"), list) else kind or "."


def is_usual(equation: Any) -> bool:
    """Whether an EinsumDense multiplies the last axes of its input by the first of its kernel: abc,cd->abd."""
    if not isinstance(equation, str) or len(equation) > 200:
        return equation is None
    m = re.fullmatch(r"([a-zA-Z.]+),([a-zA-Z]+)->([a-zA-Z.]+)", equation.replace(" ", ""))
    if not m:
        return False
    taken, kernel, given = m.groups()
    gone = "".join(c for c in kernel if c in taken and c not in given)
    new = "".join(c for c in kernel if c in given and c not in taken)
    return kernel == gone + new and taken.endswith(gone) and given.endswith(new)


def target_axes(own: Mapping[str, Any]) -> list[Any]:
    """The axes of a Reshape; none if they are not known."""
    axes = own.get("target_shape")
    return axes if isinstance(axes, list) and len(axes) <= MAX_AXES else []


def built(row: Mapping[str, Any]) -> list[Any] | None:
    """The shape of a layer's input, for which it was built."""
    config = row.get("build_config")
    shape = config.get("input_shape") if isinstance(config, dict) else None
    return shape if isinstance(shape, list) else None


def _is_chain(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], outputs: Sequence[object]) -> bool:
    """Whether the input of each layer is the output of the one before: Sequential, or a class that derives from it."""
    if config.get("class_name") in ("Sequential", "Functional", "Model"):
        return bool(config["class_name"] == "Sequential")
    return not outputs and not any(row.get("inbound_nodes") for row in rows)


def parents_of(value: Any, depth: int = 0) -> Iterator[tuple[str, list[Any] | None]]:
    """The names of the layers in an inbound_nodes list, each with the shape of what it gives, if the list says so.

    Keras 3 writes keras_history and shape, those before [name, call, output, {argument: the like}].
    """
    shape = None
    if isinstance(value, dict):
        history, shape = value.get("keras_history"), value.get("shape")
        value = [history] if history else [v for k, v in value.items() if k not in MASKS]
    if not isinstance(value, list) or depth > 16:
        return
    if len(value) > 2 and isinstance(value[0], str) and type(value[1]) is type(value[2]) is int:
        if value[0] != "_CONSTANT_VALUE":  # of Keras 2, in the place of a layer
            yield value[0], None
        value = value[3:]  # Keras 2 has what else is called with, such as the second operand, behind the first
    for v in value:
        for parent, known in parents_of(v, depth + 1):
            yield parent, known or (shape if isinstance(shape, list) else None)
