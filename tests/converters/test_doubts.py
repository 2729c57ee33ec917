"""What names and shapes do not tell is said where it applies, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.api.memory import to_checkpoint
from ckptconv.checkpoint import Checkpoint
from ckptconv.checkpoint.details import LayerInput, State
from ckptconv.errors import LayoutError, UnmatchedTensors, UsageError
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.assign import PARAMS

Shapes = dict[str, tuple[int, ...]]


def built(shapes: Shapes, format: str = "keras3", **metadata: str) -> Checkpoint:
    whole = to_checkpoint({name: np.zeros(shape, "f4") for name, shape in shapes.items()})
    return replace(whole, format=format, metadata=metadata)


def doubted(found: Checkpoint, words: str) -> list[str]:
    return [name for note in found.notes if note.kind == "assumed" and words in note.text for name in note.names]


CONV: Shapes = {"conv2d/kernel": (3, 3, 3, 8)}
CASES: list[tuple[Shapes, list[str], list[str]]] = [
    # the tensors; whose class and whose Flatten is in doubt
    (CONV | {"dense/kernel": (288, 10)}, [], ["dense/kernel"]),
    (CONV | {"dense/kernel": (8, 10)}, [], []),  # after global pooling
    (CONV | {"a/kernel": (288, 16), "b/kernel": (16, 10)}, [], ["a/kernel"]),
    ({"conv3d_1/kernel": (2, 2, 2, 1, 4), "dense/kernel": (8, 2)}, [], ["dense/kernel"]),
    ({"first/kernel": (3, 4, 8), "dense/kernel": (64, 2)}, ["first/kernel"], ["dense/kernel"]),
    ({"a/query/kernel": (96, 2, 8), "dense/kernel": (64, 2)}, ["a/query/kernel"], []),  # of attention
    ({"stem/kernel": (3, 3, 3, 8), "conv2d_7/kernel": (3, 3, 8, 8)}, ["stem/kernel"], []),
    # an autoencoder: what its decoder gives, its encoder does not take
    (CONV | {"a/kernel": (288, 20), "b/kernel": (20, 2), "c/kernel": (2, 288)}, [], ["a/kernel"]),
    (CONV | {"a/kernel": (8, 32), "b/kernel": (32, 8)}, [], []),  # of a transformer, on the features of the images
]


@pytest.mark.parametrize("converter", ["keras-torch", "tf-torch"])
@pytest.mark.parametrize(("shapes", "classes", "rows"), CASES)
def test_weights_without_a_config(converter: str, shapes: Shapes, classes: list[str], rows: list[str]) -> None:
    found = library.change(built(shapes), converter)
    assert doubted(found, "taken for a plain convolution") == classes
    assert doubted(found, "follows a Flatten") == rows
    assert [n.short.endswith(f"MODULE` ({rows[0]})") for n in found.notes if "Flatten" in n.text] == [True] * len(rows)


def test_a_parameter_that_no_rule_needs_is_refused() -> None:
    hints = str(library.change(built(CONV), "keras-torch").notes)
    assert "the weights do not say which convolutions have padding 'same'" in hints
    with pytest.raises(LayoutError, match="height=6 was given, but no rule that takes a tensor here needs it"):
        library.change(built(CONV), "keras-torch", params={"height": 6})


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3), ("simple_rnn", 1)])
def test_a_recurrent_layer_may_take_flattened_images(kind: str, gates: int) -> None:
    """Of several the others take what the first gives, one direction or both."""
    units: Shapes = {}
    for name, rows in ((kind, 288), (f"{kind}_1", 16), (f"{kind}_2", 32)):
        shapes = {"kernel": (rows, 16 * gates), "recurrent_kernel": (16, 16 * gates)}
        units |= {f"{name}/{kind}_cell/{leaf}": shape for leaf, shape in shapes.items()}
    found = library.change(built(CONV | units | {"policy/kernel": (288, 2)}), "keras-torch")
    assert doubted(found, "follows a Flatten") == [f"{kind}/{kind}_cell/kernel", "policy/kernel"]


def told(whole: Checkpoint, kind: str, state: State, **more: Any) -> Checkpoint:
    """With a config that says it of all layers."""
    inputs = dict.fromkeys(whole, LayerInput(state, **more))
    return replace(whole, details={"kinds": dict.fromkeys(whole, kind), "inputs": inputs})


@pytest.mark.parametrize("state", ["plain", "image"])
def test_a_config_leaves_no_doubt_about_layers_that_it_lists(state: State) -> None:
    """That of a subclassed model lists none."""
    whole = built({"conv2d/kernel": (3, 3, 3, 8), "dense/kernel": (288, 10)}, config="{}")
    assert doubted(library.change(whole, "keras-torch"), "follows a Flatten") == ["dense/kernel"]
    assert not doubted(library.change(told(whole, "", state), "keras-torch"), "follows a Flatten")
    stem = told(built({"stem/kernel": (3, 3, 3, 8)}), "conv2d", "unknown")
    assert not doubted(library.change(stem, "keras-torch"), "plain convolution")


REFUSED: list[tuple[str, Shapes]] = [
    ("conv1d", {"kernel": (3, 8, 4)}), ("conv1d_transpose", {"kernel": (3, 4, 8)}),
    ("depthwise_conv1d", {"kernel": (3, 8, 1)}), ("einsum_dense", {"kernel": (8, 2, 4), "bias": (2, 4)}),
    ("separable_conv1d", {"depthwise_kernel": (3, 8, 1), "pointwise_kernel": (1, 8, 4)}),
    ("einsum_dense", {"kernel": (8, 4)}),
]  # fmt: skip
ASKED: list[tuple[str, Shapes]] = [
    ("dense", {"kernel": (8, 4)}),
    ("lstm_cell", {"kernel": (8, 16)}),
    ("gru_cell", {"kernel": (8, 12)}),
    ("", {"kernel": (8, 4)}),
]


@pytest.mark.parametrize("state", ["plain", "image", "flattened", "unknown"])
@pytest.mark.parametrize(("kind", "shapes"), REFUSED + ASKED)
def test_what_may_take_a_flattened_image_is_asked(kind: str, shapes: Shapes, state: State) -> None:
    whole = told(built({f"up/{leaf}": shape for leaf, shape in shapes.items()}), kind, state)
    rules = library.load("keras-torch")
    if state in ("plain", "image"):
        assert not doubted(apply(rules, whole), "Flatten")
    elif (kind, shapes) in REFUSED:
        with pytest.raises(
            UnmatchedTensors,
            match=r"up/.* - it is not known whether it takes the elements of an image.*a rule for it has",
        ):
            apply(rules, whole)
    else:
        with pytest.raises(
            UsageError, match=r"(?s)param='height=NUMBER'.*height=1 and width=1 if they take none.*up/kernel"
        ):
            apply(rules, whole)
        plain, made = apply(rules, told(whole, kind, "plain")), apply(rules, whole, {"height": 1, "width": 1})
        assert {n: t.numpy().tolist() for n, t in made.items()} == {n: t.numpy().tolist() for n, t in plain.items()}


IMAGES: dict[str, tuple[dict[str, list[int]], dict[str, int], dict[str, tuple[int, int]]]] = {
    # what the file tells, what is given, and what the images are then
    "told": ({"a": [2, 3], "b": [3, 2]}, {}, {"a": (2, 3), "b": (3, 2)}),
    "told and given alike": ({"a": [2, 3], "b": [2, 3]}, {"height": 2, "width": 3}, {"a": (2, 3), "b": (2, 3)}),
    "one told": ({"a": [2, 3], "b": []}, {"height": 3, "width": 2}, {"a": (2, 3), "b": (3, 2)}),
    "none told": ({}, {"height": 3, "width": 2}, {"a": (3, 2), "b": (3, 2)}),
}


def flattened(told: dict[str, list[int]]) -> Checkpoint:
    """Two dense layers behind images of 6 pixels and 2 channels."""
    whole = to_checkpoint({f"{n}/kernel": np.arange(48, dtype="f4").reshape(12, 4) + i for i, n in enumerate("ab")})
    inputs = {f"{n}/kernel": LayerInput("flattened", *told.get(n, ())) for n in "ab"}
    return replace(whole, details={"kinds": dict.fromkeys(whole, "dense"), "inputs": inputs})


@pytest.mark.parametrize("case", IMAGES)
def test_a_given_size_is_that_of_layers_of_which_the_file_tells_none(case: str) -> None:
    told, given, sizes = IMAGES[case]
    before, rules = flattened(told), library.load("keras-torch")
    made = apply(rules, before, given)
    for name, size in sizes.items():
        rows = before[f"{name}/kernel"].numpy().T.reshape(4, *size, 2)
        assert np.array_equal(made[f"{name}.weight"].numpy(), np.moveaxis(rows, -1, 1).reshape(4, 12))
    back = apply(rules.inverse, made)
    assert {n: t.numpy().tolist() for n, t in back.items()} == {n: t.numpy().tolist() for n, t in before.items()}


def test_what_a_file_tells_of_each_layer_leads_back() -> None:
    """A number that is given is for the layers of which none is recorded."""
    rules, whole = library.load("keras-torch"), flattened({"a": [2, 3], "b": [3, 2]})
    made = apply(rules, whole)
    with pytest.raises(LayoutError, match="by the file, height is 2 or 3; 6 was given"):
        apply(rules.inverse, made, {"height": 6, "width": 1})
    record = json.loads(made.metadata[PARAMS])
    assert record["sizes"]["a.weight"] == {"h": 2, "w": 3, "c": 2}
    for odd in ({"a.weight": 3}, {"a.weight": {"h": "2", "w": -1}}, [], {}):
        forged = replace(made, metadata=made.metadata | {PARAMS: json.dumps(record | {"sizes": odd})})
        with pytest.raises(UsageError, match="needs param='height=NUMBER'"):
            apply(rules.inverse, forged)


def test_a_given_size_that_none_can_have_is_refused() -> None:
    before = flattened({"a": [2, 3], "b": [3, 2]})
    with pytest.raises(LayoutError, match="by the file, height is 2 or 3; 2 was given"):
        apply(library.load("keras-torch"), before, {"height": 2, "width": 3})


NORMS = [
    ("batch_normalization", "gamma beta moving_mean moving_variance"),
    ("batch_normalization", "beta moving_mean moving_variance"),
    ("layer_normalization", "gamma beta"),
    ("layer_normalization", "beta"), ("rms_normalization", "scale"),
    ("p_re_lu", "alpha"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "variables"), NORMS)
def test_behind_a_flatten_norms_are_what_they_are_elsewhere(kind: str, variables: str) -> None:
    """But for the order of features: with the constants of what they do without, and the note on eps."""
    h, w, c = 2, 3, 4
    arrays = {f"n/{v}": np.arange(h * w * c, dtype="f4") + i for i, v in enumerate(variables.split())}
    turned = {n: np.moveaxis(a.reshape(h, w, c), -1, 0).reshape(-1) for n, a in arrays.items()}
    rules, before = library.load("keras-torch"), to_checkpoint(arrays)
    made = apply(rules, told(before, kind, "flattened", height=h, width=w))
    plain = apply(rules, told(to_checkpoint(turned), kind, "plain"))
    assert {n: t.numpy().tolist() for n, t in made.items()} == {n: t.numpy().tolist() for n, t in plain.items()}
    assert made.notes == plain.notes
    back = apply(rules.inverse, made)
    assert {n: t.numpy().tolist() for n, t in back.items()} == {n: a.tolist() for n, a in arrays.items()}
    assert doubted(apply(rules, told(before, kind, "unknown")), "whose effect on it is not known") == list(arrays)


def test_of_every_einsum_dense_the_equation_is_in_doubt() -> None:
    names = [f"einsum_dense{end}" for end in ("", "_1", "_1_1", "_out", "_a1")]
    made = apply(library.load("keras-torch"), built({f"{n}/kernel": (3, 4) for n in names}))
    assert doubted(made, "does not tell its equation") == [f"{n}/kernel" for n in names]


def test_what_becomes_an_image_is_noted() -> None:
    whole = built({"a/kernel": (3, 4), "b/kernel": (4, 4)})
    inputs = {"a/kernel": LayerInput("plain", into_image=True), "b/kernel": LayerInput("plain")}
    made = apply(library.load("keras-torch"), replace(whole, details={"inputs": inputs}))
    assert doubted(made, "shaped into an image") == ["a/kernel"]


def test_a_variable_without_a_name_is_refused_with_what_to_do() -> None:
    norm: Shapes = {f"norm/{v}": (3,) for v in ("var_0", "moving_mean", "moving_variance")}
    whole = built({"dense/kernel": (4, 3), "dense/bias": (3,), **norm})
    with pytest.raises(
        ckptconv.ConversionError, match=r"norm/var_0 \[3\] - .* gamma or beta.*: rename it first, or convert the .keras"
    ):
        library.change(whole, "keras-torch")
    with pytest.raises(ckptconv.UsageError, match="keras-torch takes all but 1 of 5, which converter='keras-torch'"):
        library.change(whole, "auto")
    with pytest.raises(
        ckptconv.UsageError,
        match="no converter takes every tensor; `ckptconv match` proposes rules for a model of your own",
    ):
        library.change(built({"x": (2,), "y": (2,)}), "auto")
