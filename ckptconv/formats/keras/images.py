"""What the inputs of a layer are, by the config of the model: torch has the channels of images first, and flattens so.

    flat_     a flattened image, whose elements Keras has as h w c and torch as c h w
    mixed_    in part one, one whose axes were permuted, or other axes than the kernel's: only a rule for it knows
    maybe_    perhaps one: a layer that is not known here stands between
    shaped_   anything, but its outputs are shaped into an image

These prefix the class of a layer in `details["kinds"]`: flat_dense. An image comes out of a convolution, a pooling or
an input of four axes; what has its features last in Keras (of an Embedding, an LSTM, an input of rows) has them last in
torch, too, and is flattened alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

BEHIND = ("flat_", "mixed_", "maybe_")
PREFIXES = (*BEHIND, "shaped_")
# What a layer gives: "" for features last on both sides, an image as h w c, as c h w like torch's, in another order of
# axes, or perhaps no longer as one; or what prefixes the layers behind it
IMAGE, FIRST, PERMUTED, UNSURE = "image", "first", "permuted", "unsure"
FLATTENED = {"dense", "batch_normalization", "layer_normalization", "p_re_lu"}  # with rules for flattened images
PASSING = {
    "dropout", "activation", "re_lu", "leaky_re_lu", "elu", "p_re_lu", "softmax", "thresholded_re_lu", "identity",
    "gaussian_noise", "gaussian_dropout", "alpha_dropout", "activity_regularization", "batch_normalization",
    "sync_batch_normalization", "layer_normalization", "group_normalization", "unit_normalization",
    "rms_normalization", "normalization", "rescaling", "masking", "repeat_vector", "input_layer",
    "spatial_dropout1d", "spatial_dropout2d", "spatial_dropout3d",
}  # fmt: skip
IMAGING = re.compile(
    r"(?:conv|depthwise_conv|separable_conv|max_pooling|average_pooling|up_sampling|zero_padding|cropping|locally_connected"
    r"|conv_lstm)[123]d(?:_transpose)?|random_\w+|resizing|center_crop"
)
FRESH = re.compile(
    r"embedding|lstm|gru|simple_rnn|rnn|bidirectional|\w*attention|global_\w+|einsum_dense|\w+_vectorization|\w*lookup"
    r"|category_encoding|hashing|discretization"
)
MERGING = {"concatenate", "add", "multiply", "average", "maximum", "minimum", "subtract", "dot"}
MAX_MODELS = 32  # within each other
MAX_ROWS = 8  # between a dense layer and the image that its outputs become

Found = dict[int, tuple[str, tuple[int, int] | None]]  # by the identity of a layer's row: prefix, height and width
Known = Mapping[int, tuple[str, tuple[int, int] | None]]


class Flow(NamedTuple):
    """What a layer gives; of a flattened image its height and width, if they are known; of a dense layer the rows."""

    form: str
    image: tuple[int, int] | None = None
    rows: tuple[int, ...] = ()


def snake(name: str) -> str:
    """Spell a class as Keras does in paths: LSTMCell -> lstm_cell, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def prefix(kind: str) -> str:
    """What the inputs of a layer of this class are: the prefix, or ''."""
    return next((p for p in PREFIXES if kind.startswith(p)), "")


def bare(kind: str) -> str:
    """A class without such a prefix."""
    return kind.removeprefix(prefix(kind))


def behind(config: Any) -> Known:
    """The layers of a model's config, and of models in it, whose inputs are such: {id(row): (prefix, image)}."""
    found: Found = {}
    _model(config, [], found, 0)
    return found


def _model(config: Any, given: Sequence[Flow], found: Found, depth: int) -> Flow:
    """What a model gives; `given` is what it is called with, if another model calls it."""
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers") if isinstance(inner, dict) else None
    if not isinstance(layers, list) or not isinstance(inner, dict) or depth > MAX_MODELS:
        return Flow("maybe_" if any(f.form in BEHIND for f in given) else "")
    called = [n for n, _ in _parents(inner.get("input_layers"))]
    flows = {n: _joined(given[i :: len(called)]) for i, n in enumerate(called) if given}
    last = _joined(given) if given else None  # of a chain
    for row in layers:
        own = row.get("config") if isinstance(row, dict) else None
        name = own.get("name") if isinstance(own, dict) else None
        if not isinstance(own, dict) or not isinstance(name, str) or not isinstance(row.get("class_name"), str):
            continue
        parents = list(_parents(row.get("inbound_nodes")))
        taken = [flows.get(p, Flow(IMAGE)) for p, _ in parents]
        if config.get("class_name") == "Sequential":
            taken = [last or _entered(own)]
        elif not parents:
            taken = [flows.get(name) or _entered(own)]
        if isinstance(own.get("layers"), list):
            known = parents or name in flows or (last and config.get("class_name") == "Sequential")
            last = _model(row, taken if known else [], found, depth + 1)
        else:
            last = _layer(row, own, _joined(taken), next((s for _, s in parents if s), None) or _built(row), found)
        flows[name] = last
    ends = [flows[e] for e, _ in _parents(inner.get("output_layers")) if e in flows]
    return _joined(ends or [last or Flow("")])


def _layer(
    row: Mapping[str, Any],
    own: Mapping[str, Any],
    before: Flow,
    shape: Sequence[Any] | None,
    found: Found,
) -> Flow:
    """What a layer gives, and what its prefix is. shape: of its input, if that is known."""
    kind, inner = snake(row["class_name"]), own.get("layer")
    if kind == "time_distributed" and isinstance(inner, dict) and isinstance(inner.get("class_name"), str):
        kind, own = snake(inner["class_name"]), inner["config"] if isinstance(inner.get("config"), dict) else {}
        shape = shape[1:] if shape else None
    if text := _prefix(kind, own, before):
        found[id(row)] = text, before.image
    target = own.get("target_shape")
    if kind == "reshape" and isinstance(target, list) and len(target) > 2 and target[:-1] != [1] * (len(target) - 1):
        found.update({r: ("shaped_", None) for r in before.rows if r not in found})
    made = _given(kind, own, before, shape)
    rows = (id(row),) if kind == "dense" else (*before.rows, id(row)) if kind in PASSING and before.rows else ()
    return made._replace(rows=() if made.form or len(rows) > MAX_ROWS else rows)


def _entered(own: Mapping[str, Any]) -> Flow:
    """What comes in from outside: an image if it has four axes, or if nobody says."""
    shape = own.get("batch_shape") or own.get("batch_input_shape")
    return Flow("" if isinstance(shape, list) and len(shape) < 4 else IMAGE)


def _joined(several: Iterable[Flow]) -> Flow:
    """What a layer takes that takes several: those that it is called with in turn, or that it merges."""
    seen = set(several)
    if len(seen) == 1:
        return seen.pop()
    if any(f.form in BEHIND for f in seen):
        return Flow("mixed_")
    return Flow(max((f.form for f in seen), default=""))


def _prefix(kind: str, own: Mapping[str, Any], before: Flow) -> str:
    if kind == "einsum_dense" and not is_usual(own.get("equation")):
        return "mixed_"
    if before.form not in BEHIND:
        return "maybe_" if before.form == UNSURE and kind == "dense" else ""
    if before.form == "flat_" and kind in FLATTENED:
        return "flat_"
    return "mixed_" if before.form == "mixed_" or FRESH.fullmatch(kind) else "maybe_"


def _given(kind: str, own: Mapping[str, Any], before: Flow, shape: Sequence[Any] | None) -> Flow:
    """What a layer gives for what it takes."""
    flat, target = before.form in BEHIND, own.get("target_shape")
    if kind == "flatten" or (kind == "reshape" and isinstance(target, list) and len(target) == 1):
        return before if flat else _flattened(before, own, shape)
    if kind == "reshape":
        tokens = before.form == IMAGE and shape and isinstance(target, list) and target[-1:] == [*shape[-1:]]
        return Flow("" if tokens or not before.form else UNSURE)
    if kind == "permute":
        return Flow("mixed_" if flat else PERMUTED if before.form else "")
    if IMAGING.fullmatch(kind):
        return Flow(FIRST if own.get("data_format") == "channels_first" else IMAGE)
    if FRESH.fullmatch(kind) or (kind == "dense" and flat):
        return Flow("")
    if kind in PASSING or kind in MERGING or kind == "dense":
        return Flow("mixed_") if flat and kind in MERGING else before
    return Flow("maybe_" if flat else UNSURE if before.form else "")


def _flattened(before: Flow, own: Mapping[str, Any], shape: Sequence[Any] | None) -> Flow:
    """A flattened image, unless it has one pixel, or has its features where torch has them."""
    first = own.get("data_format") == "channels_first"
    if not before.form or (before.form == FIRST and not first):
        return Flow("")
    if before.form == PERMUTED or (before.form == IMAGE and first):
        return Flow("mixed_")
    axes = (shape[2:] if first else shape[1:-1]) if shape else []
    if not axes or not all(type(n) is int and n > 0 for n in axes):
        return Flow("flat_")
    return Flow("flat_", (prod(axes[:-1]), axes[-1])) if prod(axes) > 1 else Flow("")


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


def _built(row: Mapping[str, Any]) -> list[Any] | None:
    """The shape of a layer's input, for which it was built."""
    built = row.get("build_config")
    shape = built.get("input_shape") if isinstance(built, dict) else None
    return shape if isinstance(shape, list) else None


def _parents(value: Any, depth: int = 0) -> Iterator[tuple[str, list[Any] | None]]:
    """The names of layers in an inbound_nodes list, and the shapes of what they give, if it says so.

    Keras 3 writes keras_history and shape, those before [name, node, tensor, ...].
    """
    shape = None
    if isinstance(value, dict):
        history, shape = value.get("keras_history"), value.get("shape")
        value = [history] if history else list(value.values())
    if not isinstance(value, list) or depth > 16:
        return
    if len(value) > 2 and isinstance(value[0], str) and type(value[1]) is type(value[2]) is int:
        yield value[0], None
        return
    for v in value:
        for name, known in _parents(v, depth + 1):
            yield name, known or (shape if isinstance(shape, list) else None)
