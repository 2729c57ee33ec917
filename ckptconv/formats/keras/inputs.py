"""What each layer of a Keras model takes, by the model's config: torch flattens an image as c h w, Keras as h w c.

    plain       features that torch has in the same order
    image       h w c with its features last: torch has them first, each layer for itself, so that no kernel changes
    flattened   an image that Flatten or Reshape made a row of; its size is known if convolutions and poolings tell it
    unknown     everything else that came from an image: other classes, wrappers, Permute, channels_first, reuse

One pass over the layers in the order of the config. What enters a model is an image if it has four axes, and what a
dense layer or a Reshape made of an image is one ("pixels" here), but nobody knows how torch flattens it.
What has its features last in Keras (of an Embedding, an LSTM, rows) has them last in torch, too: it is flattened alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import Any, NamedTuple, cast

from ...checkpoint.details import LayerInput, State
from .naming import MAX_DEPTH, RECURRENT, all_rows, kind_of_row, rows_of

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

    state: str
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
    _model(config, None, inputs, Flow("unknown" if images else "plain"))
    return inputs


def _model(config: Any, given: Flow | None, inputs: dict[int, LayerInput], missing: Flow, depth: int = 0) -> Flow:
    """What a model gives for what it is called with. missing: what a layer gives that is not listed before its use."""
    rows = rows_of(config) if depth <= MAX_DEPTH else []
    names = {row["config"]["name"] for row in rows}
    in_chain = not any(row.get("inbound_nodes") for row in rows)
    flows: dict[str, Flow] = {}
    last = given
    for row in rows:
        kind, calls = kind_of_row(row), row.get("inbound_nodes")
        if not in_chain:
            taken = [_joined([flows.get(n, missing) for n in _named(c, names)], kind) for c in _listed(calls)]
            last = _joined(taken, "") if taken else given
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
        known = RECURRENT if kind == "bidirectional" else {"dense", *PASSING, *FRESH}
        if kind_of_row(inner) in known and (before.state == "plain" or kind == "bidirectional"):
            kind, own = kind_of_row(inner), inner["config"]
        elif before.state != missing.state:
            before = UNKNOWN
    if kind == "einsum_dense" and not is_usual(own.get("equation")):
        before = UNKNOWN
    state = "image" if before.state == "pixels" else before.state
    if kind == "dense" or kind in PASSING or kind in FRESH or CONVOLUTIONS.fullmatch(kind):
        height, width = before.axes if state == "flattened" and before.axes else (0, 0)
        inputs[id(row)] = LayerInput(cast("State", state), height, width)
    elif state in ("flattened", "unknown"):
        inputs[id(row)] = LayerInput("unknown")
    axes = [-1] if kind == "flatten" else _listed(own.get("target_shape"))[:MAX_AXES]
    if kind == "reshape" and sum(n != 1 for n in axes[:-1]) and axes[-1] != 1:
        inputs |= {i: inputs[i]._replace(into_image=True) for i in before.dense}
    if own.get("data_format") == "channels_first" and not POOLING.fullmatch(kind):
        return UNKNOWN
    if kind in ("flatten", "reshape"):
        return _reshaped(axes, before)
    if kind == "dense":
        return Flow("pixels" if state in ("image", "unknown") else "plain", dense=frozenset([id(row)]))
    return _given(kind, own, before)


def _given(kind: str, own: Mapping[str, Any], before: Flow) -> Flow:
    """What a layer gives that neither multiplies nor reshapes what it takes."""
    doubtful = before.state in ("flattened", "unknown")
    if CONVOLUTIONS.fullmatch(kind) or (SPATIAL.fullmatch(kind) and not doubtful):
        frames = kind.startswith("conv_lstm") and own.get("return_sequences")
        return UNKNOWN if frames else Flow("image", _axes_after(kind, own, before.axes))
    if kind in FRESH or (POOLING.fullmatch(kind) and not (doubtful and kind.endswith("1d"))):
        return Flow("plain")
    if kind in PASSING or kind in MERGING or kind == "concatenate":
        return before
    return before._replace(axes=()) if before.state == "plain" else UNKNOWN


def _reshaped(axes: Sequence[Any], before: Flow) -> Flow:
    """What Flatten and Reshape give. axes: but for the batch."""
    if before.state == "plain":
        return before._replace(axes=tuple(axes) if _are_lengths(axes) else ())
    if before.state == "flattened" and len(axes) == 1:
        return before
    if before.state == "image" and len(axes) == 1:
        size = (prod(before.axes[:-2]), prod(before.axes[-2:-1])) if before.axes else ()
        return Flow("plain") if prod(size) == 1 and size else Flow("flattened", size)
    if before.state == "image" and len(axes) == 2 and axes[-1:] == [*before.axes[-1:]]:
        return Flow("pixels")  # a row for each
    return UNKNOWN


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
    """What a layer of this class takes that takes several; of '', what is given to the same layer in turn."""
    if len(several) == 1:
        return several[0]
    states = {f.state for f in several}
    dense = frozenset(islice((i for f in several for i in f.dense), MAX_DENSE))
    if states == {"plain"}:
        return Flow("plain", dense=dense)
    same = len({(f.state, f.axes) for f in several}) == 1 and kind != "concatenate"
    images = states - {"plain"}
    if images and images <= {"image", "pixels"} and (images == states or kind in MERGING):
        return Flow("pixels" if "pixels" in images else "image", several[0].axes if same else (), dense)
    return several[0] if same else UNKNOWN


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = own.get("batch_shape") or own.get("batch_input_shape")
    axes = shape[1:] if isinstance(shape, list) and len(shape) <= MAX_AXES else []
    plain = isinstance(shape, list) and len(shape) <= 3
    return Flow("plain" if plain else "image", tuple(axes) if _are_lengths(axes) else ())


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
