"""The layers that a model's config lists: which feed them, and what becomes of an image in those of Keras.

Classes are in the spelling of paths (Conv2D: conv2d).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

PASSING = {  # element by element, or along the features, which may have weights
    "dropout", "activation", "re_lu", "leaky_re_lu", "elu", "p_re_lu", "softmax", "thresholded_re_lu", "identity",
    "gaussian_noise", "gaussian_dropout", "alpha_dropout", "activity_regularization", "batch_normalization",
    "sync_batch_normalization", "layer_normalization", "group_normalization", "unit_normalization",
    "rms_normalization", "normalization", "rescaling", "masking", "repeat_vector", "input_layer",
    "spatial_dropout1d", "spatial_dropout2d", "spatial_dropout3d",
}  # fmt: skip
IMAGING = re.compile(  # what they give is an image
    r"(?:conv|depthwise_conv|separable_conv|max_pooling|average_pooling|up_sampling|zero_padding|cropping"
    r"|locally_connected|conv_lstm)[123]d(?:_transpose)?|convolution[123]d|atrous_convolution[12]d|deconvolution2d"
    r"|random_(?:flip|rotation|zoom|crop|contrast|brightness|translation|height|width)|resizing|center_crop"
)
ALONG_STEPS = re.compile(r"(?:max_pooling|average_pooling|up_sampling|zero_padding|cropping)1d")  # features stay apart
POOLING = {"attention", "additive_attention"} | {  # of which nothing is left but features
    f"global_{how}_pooling{n}d" for how in ("average", "max") for n in (1, 2, 3)
}
FRESH = {  # their features are their own
    "embedding", "lstm", "gru", "simple_rnn", "rnn", "bidirectional", "einsum_dense", "multi_head_attention",
    "grouped_query_attention", "text_vectorization", "string_lookup", "integer_lookup", "category_encoding", "hashing",
    "discretization", "cu_dnnlstm", "cu_dnngru", "shape",
}  # fmt: skip
MERGING = {"concatenate", "add", "multiply", "average", "maximum", "minimum", "subtract", "dot", "merge"}
APPENDING = {"concatenate", "dot", "merge"}  # of these, what does not go element by element
ELEMENTWISE = {  # operations of Keras 3 and functions of TensorFlow
    "true_divide", "divide", "negative", "absolute", "abs", "square", "sqrt", "rsqrt", "exp", "log", "power", "pow",
    "clip", "clip_by_value", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "swish", "softplus", "softsign",
    "hard_sigmoid", "hard_swish", "leaky_relu", "selu", "cast", "mul", "sub", "truediv", "add_v2", "hard_silu",
}  # fmt: skip
EFFECTS = {  # of a layer, by its class: beside those that give an image, and those that are not known, ''
    "pooled": POOLING, "own": FRESH, "merged": MERGING, "same": PASSING | ELEMENTWISE,
}  # fmt: skip
MAX_NAME = 500  # characters of a layer's name
MASKS = ("mask", "attention_mask")  # arguments of a layer that are no elements of its input
OUR_OWN = ("keras", "tf_keras", "tensorflow")  # packages whose classes are Keras'


def is_name(value: Any) -> TypeGuard[str]:
    """Whether a value can be the name of a class or a layer; it prefixes many names, so its length is limited."""
    return isinstance(value, str) and len(value) <= MAX_NAME


def snake(name: str) -> str:
    """Spell a class as Keras does in paths: LSTMCell -> lstm_cell, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def effect(kind: str) -> str:
    """What a layer makes of its inputs: image, a key of `EFFECTS`, or '' if that is not known here."""
    if IMAGING.fullmatch(kind):
        return "image"
    return next((what for what, kinds in EFFECTS.items() if kind in kinds), "")


def kind_of_row(row: Mapping[str, Any]) -> str:
    """The class of a layer that a config lists, of a function of TensorFlow its name; '' if it is no layer.

    A class of a user's own is spelled with a dot, so that it is none of Keras' whatever it is called.
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


class Call(NamedTuple):
    """One use of a layer: (name, call, output) of each of its inputs, and the shape of the first, if it is known.

    all: whether these are all uses of a model as one, which is gone through once.
    """

    parents: list[tuple[str, int, int]]
    shape: Sequence[Any] | None
    all: bool = False


def calls_of(row: Mapping[str, Any]) -> list[Call]:
    """The uses of a layer, at least one; of an input, one without parents."""
    nodes = row.get("inbound_nodes")
    several = [list(parents_of(node)) for node in (nodes if isinstance(nodes, list) else ())]
    several = [node for node in several if node]
    if kind_of_row(row) in MERGING and several and all(len(node) == 1 for node in several):
        several = [[parent for node in several for parent in node]]  # as some versions spell one use of several inputs
    if several and _holds_model(row):
        return [Call([p for node in several for p, _ in node], None, all=True)]
    if len(several) < 2:  # else it may have been built for another use
        parents = several[0] if several else []
        return [Call([p for p, _ in parents], next((s for _, s in parents if s), None) or built(row))]
    return [Call([p for p, _ in node], next((s for _, s in node if s), None)) for node in several]


def _holds_model(row: Mapping[str, Any]) -> bool:
    """Whether it is a model, or a layer around one."""
    inner = row["config"].get("layer")
    around = inner.get("config") if isinstance(inner, dict) else None
    return isinstance(row["config"].get("layers"), list) or (isinstance(around, dict) and "layers" in around)


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


def built(row: Mapping[str, Any]) -> list[Any] | None:
    """The shape of a layer's input, for which it was built."""
    built = row.get("build_config")
    shape = built.get("input_shape") if isinstance(built, dict) else None
    return shape if isinstance(shape, list) else None


def parents_of(value: Any, depth: int = 0) -> Iterator[tuple[tuple[str, int, int], list[Any] | None]]:
    """The layers in an inbound_nodes list, each with its call and output, and the shape of that, if it says so.

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
            yield (value[0], value[1], value[2]), None
        value = value[3:]  # Keras 2 has what else is called with, such as the second operand, behind the first
    for v in value:
        for parent, known in parents_of(v, depth + 1):
            yield parent, known or (shape if isinstance(shape, list) else None)
