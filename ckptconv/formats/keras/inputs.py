"""What each layer of a Keras model takes, by the model's config: torch flattens an image as c h w, Keras as h w c.

    plain       features that torch has in the same order
    image       h w c with its features last: torch has them first, each layer for itself, so that no kernel changes
    flattened   an image that Flatten or Reshape made a row of; its size is known if convolutions and poolings tell it
    unknown     everything else that came from an image: classes that are not listed here, Permute, channels_first,
                layers that are applied to each step, or called several times with inputs that differ

One pass over the layers in the order of the config. What enters a model is an image if it has four axes.
What has its features last in Keras (of an Embedding, an LSTM, rows) has them last in torch, too: it is flattened alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from ...checkpoint.details import LayerInput, State
from .naming import MAX_DEPTH, kind_of_row, rows_of

PASSING = {  # element by element, or along the features, which may have weights
    "dropout", "activation", "re_lu", "leaky_re_lu", "elu", "p_re_lu", "softmax", "thresholded_re_lu", "identity",
    "gaussian_noise", "gaussian_dropout", "batch_normalization", "layer_normalization", "group_normalization",
    "unit_normalization", "rms_normalization", "normalization", "rescaling", "masking", "input_layer",
    "spatial_dropout1d", "spatial_dropout2d", "random_flip", "random_rotation", "random_zoom", "random_contrast",
    "true_divide", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "hard_sigmoid", "hard_silu",
}  # fmt: skip
MERGING = {"add", "multiply", "average", "maximum", "minimum", "subtract"}  # element by element
APPENDING = {"concatenate", "dot"}
RECURRENT = {"lstm", "gru", "simple_rnn"}
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
    """What a layer gives.

    axes: but for the batch, and of a flattened image its height and width; () if they are not known. pixels: an
    image whose features a dense layer or a Reshape made, so that nobody knows how torch flattens it. dense: the dense
    layers whose outputs these are.
    """

    state: State
    axes: tuple[int, ...] = ()
    pixels: bool = False
    dense: tuple[int, ...] = ()


PLAIN, UNKNOWN = Flow("plain"), Flow("unknown")


def layer_inputs(config: Any) -> dict[int, LayerInput]:
    """What the layers of a config and of the models in it take, by the identity of their rows.

    Layers of classes that are not listed here are left out, unless their inputs are in doubt: they may flatten them.
    """
    reader = _Reader(UNKNOWN if _has_images(config) else PLAIN)
    reader.model(config, None)
    return reader.inputs


def _has_images(config: Any, depth: int = 0) -> bool:
    """Whether a layer may take or make images, also in models and wrappers."""
    return any(
        CONVOLUTIONS.fullmatch(kind := kind_of_row(row))
        or (kind == "input_layer" and _entered(row["config"]).state == "image")
        or _has_images(row, depth + 1)
        or _has_images({"config": {"layers": [row["config"].get("layer")]}}, depth + 1)
        for row in (rows_of(config) if depth <= MAX_DEPTH else ())
    )


class _Reader:
    """missing: what a layer gives that is not listed before its use."""

    def __init__(self, missing: Flow) -> None:
        self.missing = missing
        self.inputs: dict[int, LayerInput] = {}

    def model(self, config: Any, given: Flow | None, depth: int = 0) -> Flow:
        """What a model gives for what it is called with."""
        rows = rows_of(config) if depth <= MAX_DEPTH else []
        if not rows:
            return self.missing
        names = {row["config"]["name"] for row in rows}
        in_chain = not any(row.get("inbound_nodes") for row in rows)
        flows: dict[str, Flow] = {}
        last = given
        for row in rows:
            if not in_chain:
                calls = [[*_named(call, names)] for call in _listed(row.get("inbound_nodes"))]
                taken = [_joined([flows.get(n, self.missing) for n in call], kind_of_row(row)) for call in calls]
                last = _same(taken) if taken else given
            last = flows[row["config"]["name"]] = self.layer(row, last, depth)
        outputs = [flows[n] for n in _named(config["config"].get("output_layers"), names)]
        return _same(outputs) if outputs and not in_chain else last or UNKNOWN

    def layer(self, row: Mapping[str, Any], given: Flow | None, depth: int) -> Flow:
        """What one layer gives; what it takes is put down."""
        kind, own = kind_of_row(row), row["config"]
        if isinstance(own.get("layers"), list):
            return self.model(row, given, depth + 1)
        before = given or _entered(own)
        inner = own.get("layer")
        if isinstance(inner, dict):  # a wrapper: of both directions, or for each step
            known = RECURRENT if kind == "bidirectional" else {"dense", *PASSING, *FRESH}
            if kind_of_row(inner) in known and (before.state == "plain" or kind == "bidirectional"):
                kind, own = kind_of_row(inner), inner["config"]
            else:
                kind, before = "", before if before.state == self.missing.state else UNKNOWN
        if kind == "einsum_dense" and not is_usual(own.get("equation")):
            before = UNKNOWN
        if kind == "dense" or kind in PASSING or kind in FRESH or CONVOLUTIONS.fullmatch(kind):
            height, width = before.axes if before.state == "flattened" and before.axes else (0, 0)
            self.inputs[id(row)] = LayerInput(before.state, height, width)
        elif before.state in ("flattened", "unknown"):
            self.inputs[id(row)] = LayerInput("unknown")
        if kind == "reshape" and sum(n != 1 for n in _target(own)[:-1]) and _target(own)[-1] != 1:
            for i in before.dense:
                self.inputs[i] = self.inputs[i]._replace(into_image=True)
        made = _given(kind, own, before)
        return made._replace(dense=(id(row),)) if kind == "dense" else made


def _given(kind: str, own: Mapping[str, Any], before: Flow) -> Flow:
    """What a layer gives for what it takes."""
    doubtful = before.state in ("flattened", "unknown")
    if own.get("data_format") == "channels_first" and not POOLING.fullmatch(kind):
        return UNKNOWN
    if kind == "flatten" or kind == "reshape":
        return _reshaped(_target(own) if kind == "reshape" else [-1], before)
    if CONVOLUTIONS.fullmatch(kind) or (SPATIAL.fullmatch(kind) and not doubtful):
        frames = kind.startswith("conv_lstm") and own.get("return_sequences")
        return UNKNOWN if frames else Flow("image", _axes_after(kind, own, before.axes))
    if kind in FRESH or (POOLING.fullmatch(kind) and not (doubtful and kind.endswith("1d"))):
        return PLAIN
    if kind == "dense":
        pixels = before.state in ("image", "unknown")
        return Flow("image" if pixels else "plain", pixels=pixels)
    if kind in PASSING | MERGING | APPENDING:
        return before
    return before._replace(axes=()) if before.state == "plain" else UNKNOWN


def _reshaped(axes: Sequence[Any], before: Flow) -> Flow:
    """What Flatten and Reshape give. axes: but for the batch."""
    if before.state == "plain":
        return before._replace(axes=tuple(axes) if _are_lengths(axes) else ())
    if before.state == "flattened" and len(axes) == 1:
        return before
    if before.state == "image" and len(axes) == 1 and not before.pixels:
        height, width = prod(before.axes[:-2]), prod(before.axes[-2:-1])
        if before.axes and height * width == 1:
            return PLAIN
        return Flow("flattened", (height, width) if before.axes else ())
    if before.state == "image" and len(axes) == 2 and before.axes and axes[-1] == before.axes[-1]:
        return Flow("image", pixels=True)  # a row for each pixel
    return UNKNOWN


def _axes_after(kind: str, own: Mapping[str, Any], axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of an image after a convolution or a pooling; () if they are not known."""
    rank = len(axes) - 1

    def numbers(value: Any) -> list[int]:
        several = value if isinstance(value, list) else [value] * rank
        return several if len(several) == rank and _are_lengths(several) else []

    size = numbers(own.get("kernel_size") or own.get("pool_size"))
    strides = size if own.get("strides") is None else numbers(own["strides"])
    dilation = numbers(own.get("dilation_rate", 1))
    if rank < 1 or not KEEPS_GRID.fullmatch(kind) or not (size and strides and dilation):
        return ()
    filters = own.get("filters", 0 if "depth_multiplier" in own else axes[-1])
    padded = own.get("padding") in ("same", "causal")
    grid = [
        -(-n // s) if padded else (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(axes, size, strides, dilation, strict=False)
    ]
    return (*grid, filters if type(filters) is int else 0) if _are_lengths(grid) else ()


def _are_lengths(axes: Sequence[Any]) -> bool:
    return all(type(n) is int and 0 < n < MAX_AXIS for n in axes)


def _joined(several: Sequence[Flow], kind: str) -> Flow:
    """What a layer of a class takes that takes several."""
    states = {f.state for f in several}
    dense = tuple(dict.fromkeys(i for f in several for i in f.dense))[:MAX_DENSE]
    if states == {"plain"}:
        return Flow("plain", dense=dense)
    if states == {"image"} or (states == {"plain", "image"} and kind in MERGING):
        images = [f for f in several if f.state == "image"]
        alike = len({f.axes for f in several}) == 1 and kind not in APPENDING  # else one may be repeated along an axis
        axes = images[0].axes if alike else ()
        return Flow("image", axes, any(f.pixels for f in images), dense)
    return _same(several) if kind not in APPENDING else UNKNOWN


def _same(several: Sequence[Flow]) -> Flow:
    """What all of them are; unknown if they differ."""
    alike = {f if f.state != "plain" else PLAIN for f in several}
    return several[0] if len(alike) == 1 else UNKNOWN


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = own.get("batch_shape") or own.get("batch_input_shape")
    axes = shape[1:] if isinstance(shape, list) and len(shape) <= MAX_AXES else []
    image = not isinstance(shape, list) or len(shape) > 3
    return Flow("image" if image else "plain", tuple(axes) if _are_lengths(axes) else ())


def _target(own: Mapping[str, Any]) -> list[Any]:
    """The axes of a Reshape; none if they are not known."""
    axes = own.get("target_shape")
    return axes if isinstance(axes, list) and len(axes) <= MAX_AXES else []


def is_usual(equation: Any) -> bool:
    """Whether an EinsumDense multiplies the last axes of its input by the first of its kernel: abc,cd->abd."""
    if not isinstance(equation, str):
        return equation is None
    return len(equation) < 100 and EQUATION.fullmatch(equation.replace(" ", "")) is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any, names: Collection[str], depth: int = 0) -> Iterator[str]:
    """The names of layers in one call of an inbound_nodes list, but for masks. Every Keras nests them otherwise."""
    if isinstance(value, str) and value in names:
        yield value
    if depth < 16:
        parts = [v for k, v in value.items() if k not in MASKS] if isinstance(value, dict) else _listed(value)
        for part in parts:
            yield from _named(part, names, depth + 1)
