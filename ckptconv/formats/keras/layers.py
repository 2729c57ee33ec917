"""The layers of Keras by what becomes of an image in them; all in the spelling of paths (Conv2D: conv2d)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
POOLING = {"attention", "additive_attention"} | {  # of which nothing is left but features
    f"global_{how}_pooling{n}d" for how in ("average", "max") for n in (1, 2, 3)
}
FRESH = {  # their features are their own
    "embedding", "lstm", "gru", "simple_rnn", "rnn", "bidirectional", "einsum_dense", "multi_head_attention",
    "grouped_query_attention", "text_vectorization", "string_lookup", "integer_lookup", "category_encoding", "hashing",
    "discretization", "cu_dnnlstm", "cu_dnngru",
}  # fmt: skip
MERGING = {"concatenate", "add", "multiply", "average", "maximum", "minimum", "subtract", "dot", "merge"}
ELEMENTWISE = {  # operations of Keras 3 and functions of TensorFlow
    "true_divide", "divide", "negative", "absolute", "abs", "square", "sqrt", "rsqrt", "exp", "log", "power", "pow",
    "clip", "clip_by_value", "relu", "relu6", "sigmoid", "tanh", "gelu", "silu", "swish", "softplus", "softsign",
    "hard_sigmoid", "hard_swish", "leaky_relu", "selu", "cast", "mul", "sub", "truediv", "add_v2", "hard_silu",
}  # fmt: skip
OUR_OWN = ("keras", "tf_keras", "tensorflow")  # packages whose classes are Keras'


def snake(name: str) -> str:
    """Spell a class as Keras does in paths: LSTMCell -> lstm_cell, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def kind_of_row(row: Mapping[str, Any]) -> str:
    """The class of a layer that a config lists, of a function of TensorFlow its name; '' if it is no layer.

    A class of a user's own is spelled with a dot, so that it is none of Keras' whatever it is called.
    """
    own, name = row.get("config"), row.get("class_name")
    if not isinstance(own, dict) or not isinstance(own.get("name"), str) or not isinstance(name, str):
        return ""
    kind, module, function = snake(name), row.get("module"), own.get("function")
    if kind == "tf_op_lambda" and isinstance(function, str):
        return function.rpartition(".")[2].strip("_")
    theirs = module.partition(".")[0] not in OUR_OWN if isinstance(module, str) else bool(row.get("registered_name"))
    return f".{kind}" if theirs and not isinstance(own.get("layers"), list) else kind or "."
