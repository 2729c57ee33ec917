"""What one layer makes of an image, or of what was made of one: whether torch has its elements in the same order.

`images` goes through a whole model with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from .layers import ALONG_STEPS, APPENDING, effect, is_usual

BEHIND = ("flat_", "mixed_", "maybe_")
# What a layer gives: "" for features last on both sides, an image as h w c, as c h w like torch's, several in a row, in
# another order of axes, of features that a dense layer gives for each pixel, for which torch has them last, too, or
# perhaps no longer an image; or what prefixes the layers behind it
IMAGE, FIRST, FRAMES, PERMUTED, PIXELS, UNSURE = "image", "first", "frames", "permuted", "pixels", "unsure"
FLATTENED = {  # with rules for flattened images
    "dense", "batch_normalization", "layer_normalization", "rms_normalization", "p_re_lu", "lstm", "gru", "simple_rnn",
    "bidirectional",
}  # fmt: skip
MAX_AXES, MAX_AXIS = 8, 2**31  # of an image

Image = tuple[int, int] | None  # height and width, if they are known


class Flow(NamedTuple):
    """What a layer gives. steps: a flattened image for each step; rows: of a dense layer and what follows, reshaped."""

    form: str
    image: Image = None
    steps: bool = False
    rows: tuple[int, ...] = ()
    reshaped: bool = False


def taken_as(kind: str, own: Mapping[str, Any], before: Flow, shape: Any) -> str:
    """What the inputs of a layer are: what prefixes its class. shape: of its input, if that is known."""
    if kind == "einsum_dense" and not is_usual(own.get("equation")):
        return "mixed_"
    what = effect(kind)
    if before.form not in BEHIND:
        rows = what == "same" and isinstance(shape, list) and len(shape) == 2  # of which each feature has its weights
        return "maybe_" if before.form == UNSURE and (rows or what in ("", "own")) else ""
    if before.form == "flat_" and kind in FLATTENED:
        return "flat_"
    return "mixed_" if before.form == "mixed_" or (before.form == "flat_" and what == "own") else "maybe_"


def passed_on(kind: str, own: Mapping[str, Any], before: Flow, shape: Any, *, merges: bool) -> Flow:
    """What a layer gives for what it takes."""
    if kind in ("flatten", "reshape", "permute"):
        return _rearranged(kind, own, before, shape)
    if kind.startswith("conv_lstm") and own.get("return_sequences"):
        return Flow(FRAMES)
    what, flat = effect(kind), before.form in BEHIND
    if what == "image" and not (flat and ALONG_STEPS.fullmatch(kind)):
        return Flow(FIRST if own.get("data_format") == "channels_first" else IMAGE)
    if what == "pooled":  # over steps, whose features stay what they are
        return before._replace(steps=False) if flat else Flow("")
    if kind == "dense":
        pixels = before.form in (IMAGE, UNSURE) or (before.form == "maybe_" and before.steps)
        return Flow(PIXELS if pixels else "") if pixels or flat else before
    if what == "own":
        return Flow("")
    if not what:
        return Flow("maybe_", steps=before.steps) if flat else Flow(UNSURE if before.form else "")
    mixed = flat and before.form != "maybe_" and (merges or kind in APPENDING)
    return Flow("mixed_") if mixed else before  # else with a constant


def target_axes(own: Mapping[str, Any]) -> list[Any]:
    """The axes of a Reshape; none if they are not known."""
    axes = own.get("target_shape")
    return axes if isinstance(axes, list) and len(axes) <= MAX_AXES else []


def _rearranged(kind: str, own: Mapping[str, Any], before: Flow, shape: Any) -> Flow:
    """What Flatten, Reshape and Permute give, which leave the elements as they are."""
    flat, axes = before.form in BEHIND, target_axes(own)
    if kind == "permute":
        return before if before.form == "maybe_" else Flow("mixed_" if flat else PERMUTED if before.form else "")
    if kind == "flatten" or len(axes) == 1:
        if not flat:
            return _flattened(before, own, shape)
        mixed = before.steps and before.form != "maybe_"
        return Flow("mixed_") if mixed else before._replace(steps=False)
    last = shape[-1] if isinstance(shape, list) and shape else None
    made = _in_rows(before.form, axes[-1], last) if len(axes) == 2 else UNSURE if before.form else ""
    return Flow(made, steps=made == "maybe_")


def _in_rows(form: str, width: Any, last: Any) -> str:
    """What a Reshape into rows of a width gives. last: how long the last axis was before, if that is known."""
    if form in ("", FIRST) or (form == IMAGE and last == 1) or (form in (IMAGE, PIXELS) and width == last):
        return ""  # as torch has it: of the last, the features of each pixel
    if width == 1:
        return PIXELS
    if form in BEHIND:
        return "maybe_"
    return "maybe_" if width not in (last, -1) and (last is not None or form in (PERMUTED, FRAMES)) else UNSURE


def _flattened(before: Flow, own: Mapping[str, Any], shape: Any) -> Flow:
    """A flattened image, unless it has one pixel, or has its features where torch has them."""
    first, rank = own.get("data_format") == "channels_first", len(shape) if isinstance(shape, list) else 0
    if not before.form:
        return Flow("mixed_" if first and rank > 2 else "")
    if before.form in (UNSURE, PIXELS):
        return Flow("maybe_")
    if before.form in (PERMUTED, FRAMES) or (before.form == IMAGE and first):
        return Flow("mixed_")
    if before.form == FIRST and not first:
        return Flow("")
    axes = (shape[2:] if first else shape[1:-1]) if rank <= MAX_AXES and rank else []
    if not axes or not all(type(n) is int and 0 < n < MAX_AXIS for n in axes):
        return Flow("flat_")
    return Flow("flat_", (prod(axes[:-1]), axes[-1])) if prod(axes) > 1 else Flow("")


__all__ = [
    "BEHIND",
    "FIRST",
    "FRAMES",
    "IMAGE",
    "PIXELS",
    "UNSURE",
    "Flow",
    "Image",
    "passed_on",
    "taken_as",
    "target_axes",
]
