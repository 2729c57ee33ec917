"""What the layers of a Keras model take, by its config: plain features, an image, a flattened one, or nobody knows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint.details import LayerInput
from ckptconv.formats.keras.inputs import MAX_DENSE, is_usual, layer_inputs


def layer(text: str, name: str = "") -> dict[str, Any]:
    """Kind:option:option as a config lists it."""
    kind, *options = text.split(":")
    own: dict[str, Any] = {"name": name or text}
    if kind in ("TimeDistributed", "SpectralNormalization"):
        own["layer"] = layer(":".join(options))
    elif kind in ("Reshape", "Input"):
        own["target_shape" if kind == "Reshape" else "batch_shape"] = [None] * (kind == "Input") + [*map(int, options)]
    elif options:
        own["data_format"] = options[0]
    return {"class_name": "InputLayer" if kind == "Input" else kind, "config": own}


def model(*rows: dict[str, Any], name: str = "m", kind: str = "Sequential", **more: Any) -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "layers": [*rows], **more}}


def called(text: str, *parents: str, name: str = "") -> dict[str, Any]:
    """A layer of a functional model that takes these."""
    return layer(text, name) | {"inbound_nodes": [[[n, 0, 0, {}] for n in parents]]}


def taken(config: dict[str, Any], name: str) -> LayerInput | None:
    """What the layer of this name takes."""
    found = layer_inputs(config)

    def rows(config: dict[str, Any]) -> Any:
        for row in config["config"]["layers"]:
            yield row
            if "layers" in row["config"]:
                yield from rows(row)

    (row,) = [row for row in rows(config) if row["config"]["name"] == name]
    return found.get(id(row))


CHAINS = [
    # what stands in front of a Dense, and what that then takes
    ("Flatten", "flattened"), ("Flatten Dropout BatchNormalization", "flattened"), ("Reshape:-1", "flattened"),
    ("Conv2D Flatten", "flattened"), ("Flatten Flatten", "flattened"), ("Embedding Conv1D Flatten", "flattened"),
    ("Conv2D Relu Flatten", "flattened"), ("Input:28:28:1 Flatten", "flattened"), ("Flatten Add", "flattened"),
    ("Conv2D MyBlock Conv2D Flatten", "flattened"), ("SpectralNormalization:Conv2D Flatten", "flattened"),
    ("Input:9 Dense Reshape:3:3:1 Conv2D Flatten", "flattened"),
    ("", "image"), ("Conv2D", "image"), ("Flatten Conv2D", "image"), ("Conv1D Dense", "image"),
    ("TimeDistributed:Dense", "image"),
    ("Flatten Dense", "plain"), ("GlobalAveragePooling2D Flatten", "plain"), ("Embedding Flatten", "plain"),
    ("Conv2D MyBlock GlobalMaxPooling2D", "plain"), ("LSTM Flatten", "plain"), ("Input:28:28 Flatten", "plain"),
    ("MultiHeadAttention LayerNormalization Flatten", "plain"), ("Input:9 MyBlock Permute Flatten", "plain"),
    ("Input:9 Dense Reshape:3:3:1 Flatten", "plain"), ("Input:5:4 TimeDistributed:MyBlock", "plain"),
    ("Conv2D MyBlock Flatten LSTM", "plain"), ("Conv2D TimeDistributed:Flatten LSTM", "plain"),
    # nobody knows
    ("Permute Flatten", "unknown"), ("Flatten MyNorm", "unknown"),
    ("Conv2D:channels_first Flatten", "unknown"), ("Conv2D Flatten:channels_first", "unknown"),
    ("Flatten Lambda Dropout", "unknown"), ("MyFlatten", "unknown"), ("Conv2D Reshape:5:5", "unknown"),
    ("Flatten Reshape:5:5:3", "unknown"), ("Conv2D Transpose Flatten", "unknown"), ("Conv1D Dense Flatten", "unknown"),
    ("TimeDistributed:Conv2D Flatten", "unknown"), ("TimeDistributed:Conv2D TimeDistributed:Flatten", "unknown"),
    ("TimeDistributed:Flatten GlobalAveragePooling1D", "unknown"), ("Flatten RepeatVector", "unknown"),
    ("Permute Reshape:5:15 MaxPooling1D", "unknown"), ("ConvLSTM2D MyBlock Flatten", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "state"), CHAINS)
def test_a_dense_layer(before: str, state: str) -> None:
    """In a chain, in a model within it, behind such a model, and in a functional model."""
    rows, last = [layer(text, f"{i}") for i, text in enumerate(before.split())], layer("Dense", "last")
    head, body = model(last, name="head"), model(*rows, name="body")
    for layers in [*rows, last], [*rows, head], *([[body, last], [body, head]] if rows else []):
        found = taken(model(*layers), "last")
        assert found is not None
        assert found.state == state
    linked = [row | {"inbound_nodes": [[[f"{i - 1}", 0, 0, {}]]] if i else []} for i, row in enumerate(rows)]
    if rows:
        found = taken(model(*linked, called("Dense", f"{len(rows) - 1}", name="last"), kind="Functional"), "last")
        assert found is not None
        assert found.state == state


@pytest.mark.parametrize("kind", ["LSTM", "Bidirectional", "MultiHeadAttention", "LayerNormalization", "Conv1D"])
@pytest.mark.parametrize(
    ("before", "state"),
    [("Flatten", "flattened"), ("Conv2D Reshape:5:15", "unknown"), ("Input:5:15", "plain"), ("MyBlock", "unknown")],
)
def test_other_layers_with_weights(before: str, state: str, kind: str) -> None:
    found = taken(model(*map(layer, before.split()), layer(kind, "last")), "last")
    assert found == LayerInput(state)  # type: ignore[arg-type]


SIZES = [
    ("Input:4:6:3 Flatten", (4, 6)), ("Input:4:6:3 Conv2D Flatten", (3, 4)), ("Input:9:6 Conv1D Flatten", (0, 0)),
    ("Input:2:4:6:3 Flatten", (8, 6)), ("Input:4:6:3 UpSampling2D Flatten", (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "size"), SIZES)
def test_the_size_of_a_flattened_image(before: str, size: tuple[int, int]) -> None:
    """As the layers of the config compute it, unless the file has it: of the Flatten, or of what it takes."""
    rows = [*map(layer, before.split()), layer("Dense", "last")]
    for row in rows:
        if row["class_name"].startswith("Conv"):
            row["config"] |= {"kernel_size": [2, 3], "strides": [1, 1], "dilation_rate": [1, 1], "padding": "valid"}
    assert taken(model(*rows), "last") == LayerInput("flattened", *size)
    rows[-2]["build_config"] = {"input_shape": [None, 5, 7, 3]}
    assert taken(model(*rows), "last") == LayerInput("flattened", 5, 7)
    rows[-2]["build_config"] = {"input_shape": [None, 1, 1, 3]}
    assert taken(model(*rows), "last") == LayerInput("plain")


@pytest.mark.parametrize(
    ("padding", "strides", "dilation", "size"),
    [("same", [2, 3], 1, (5, 3)), ("valid", [1, 1], [2, 1], (7, 7)), ("valid", [2, 2], 1, (4, 4)),
     ("valid", 0, 1, (0, 0)), ("valid", [1, 2**40], 1, (0, 0)), ("valid", [1], 1, (0, 0))],
)  # fmt: skip
def test_how_a_convolution_changes_the_size(padding: str, strides: Any, dilation: Any, size: tuple[int, int]) -> None:
    conv = layer("Conv2D")
    conv["config"] |= {"kernel_size": [2, 2], "strides": strides, "dilation_rate": dilation, "padding": padding}
    found = taken(model(layer("Input:9:8:3"), conv, layer("Flatten"), layer("Dense", "last")), "last")
    assert found == LayerInput("flattened", *size)


@pytest.mark.parametrize("axes", [[10**4000] * 125, [10**4000, 2], [2**40, 2], [True, 2], [0, 2], ["3", 4]])
def test_an_image_of_no_size_that_can_be(axes: list[Any]) -> None:
    """Products of long integers took minutes."""
    flatten = layer("Flatten") | {"build_config": {"input_shape": [None, *axes, 5]}}
    assert taken(model(layer("Conv2D"), flatten, layer("Dense", "last")), "last") == LayerInput("flattened")


FLAT, BOTH = called("Flatten", "i", name="a"), called("Flatten", "j", name="b")
MERGED = [
    ([called("Subtract", "a", "b")], "flattened"), ([called("Concatenate", "a", "b")], "unknown"),
    ([called("Subtract", "a", "i")], "unknown"), ([called("Dropout", "nobody")], "unknown"),
    ([called("Add", "Conv2D", "LSTM"), called("Flatten", "Add")], "flattened"),
    ([called("Concatenate", "Conv2D", "LSTM"), called("Flatten", "Concatenate")], "unknown"),
    ([called("Dropout", "z", "a", name="d"), called("Dropout", "d", name="z")], "unknown"),  # called before its input
    ([called("Maximum", "LSTM", "LSTM")], "plain"), ([called("Dot", "a", "b")], "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "state"), MERGED)
def test_what_is_merged_or_used_twice(rows: list[dict[str, Any]], state: str) -> None:
    begin = [called("Conv2D", "i"), called("LSTM", "j"), layer("Input:4:4:3", "i"), layer("Input:4:4:3", "j")][::-1]
    last = called("Dense", rows[-1]["config"]["name"], name="last")
    found = taken(model(*begin, FLAT, BOTH, *rows, last, kind="Functional"), "last")
    assert found is not None
    assert found.state == state


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [("flat", "vector", "unknown"), ("flat", "flat", "flattened"), ("vector", "vector", "plain"),
     ("vector", "unknown", "unknown"), ("image", "vector", "image")],
)  # fmt: skip
def test_a_layer_that_is_used_on_two_inputs(first: str, second: str, state: str) -> None:
    """As it is, and as a model."""
    rows = [
        layer("Input:4:4:3", "i"), called("Conv2D", "i", name="image"), called("Flatten", "image", name="flat"),
        called("GlobalAveragePooling2D", "i", name="vector"), called("Mine", "i", name="unknown"),
    ]  # fmt: skip
    for last in layer("Dense", "last"), model(layer("Dense", "last")):
        used = last | {"inbound_nodes": [[[first, 0, 0, {}]], [[second, 0, 0, {}]]]}
        found = taken(model(*rows, used, kind="Functional"), "last")
        assert found is not None
        assert found.state == state


NODES = [
    # how Keras 1 to 3 spell inputs, of an operation in Keras 2 also its operands; a mask or a constant is none
    ([["f", 0, 0, {}]], "flattened"), ([[["f", 0, 0, {}]]], "flattened"), ([["f", 0]], "image"), (None, "image"),
    ([{"args": [{"config": {"keras_history": ["f", 0, 0]}}]}], "flattened"),
    ([{"args": [], "kwargs": {"x": {"config": {"keras_history": ["f", 0, 0]}}}}], "flattened"),
    ([["f", 0, 0, {"mask": ["p", 0, 0]}]], "flattened"), ([["f", 0, 0, {"y": 2.0, "name": None}]], "flattened"),
    ([["f", 0, 0, {"y": ["p", 0, 0]}]], "unknown"), ([["p", 0, 0, {"y": ["p", 0, 0]}]], "plain"),
    ([["_CONSTANT_VALUE", -1, 2, {"y": ["p", 0, 0], "name": None}]], "plain"),
]  # fmt: skip


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


NODES += [(nested(["f", 0, 0], 16), "flattened"), (nested([], 5000), "image")]


@pytest.mark.parametrize(("nodes", "state"), NODES)
def test_how_a_config_spells_inputs(nodes: object, state: str) -> None:
    rows = [layer("Input:4:4:3", "i"), called("Flatten", "i", name="f"), called("Embedding", "i", name="p")]
    found = taken(model(*rows, layer("Dense", "last") | {"inbound_nodes": nodes}, kind="Functional"), "last")
    assert found is not None
    assert found.state == state


def test_a_shape_that_stands_beside_an_input() -> None:
    flatten = layer("Flatten", "f")
    tensor = {"class_name": "__keras_tensor__", "config": {"shape": [None, 2, 3, 4], "keras_history": ["i", 0, 0]}}
    flatten["inbound_nodes"] = [{"args": [tensor], "kwargs": {}}]
    whole = model(layer("Input:4:4:3", "i"), flatten, called("Dense", "f", name="last"), kind="Functional")
    assert taken(whole, "last") == LayerInput("flattened", 2, 3)


@pytest.mark.parametrize(
    "between",
    [
        3, {}, {"class_name": "Conv2D"}, {"class_name": 3, "config": {"name": "x"}}, {"config": {"name": "x"}},
        {"class_name": "Conv2D", "config": {"name": 3}}, {"class_name": "Conv2D", "config": 3},
    ],
)  # fmt: skip
def test_what_is_no_layer_does_not_come_between(between: Any) -> None:
    rows = [layer("Flatten"), layer("Dense")]
    assert layer_inputs(model(rows[0], between, rows[1])) == {id(rows[1]): LayerInput("flattened")}


def test_a_class_of_a_user_is_none_of_keras() -> None:
    """Nor does anybody know what is in it, unless it follows a flattened image: it may flatten one itself."""
    for kind in "Sequential", "Net":  # which derives from it
        theirs = layer("Attention", "theirs") | {"module": "mine"}
        whole = model(layer("Conv2D"), theirs, layer("Flatten"), layer("Dense", "last"), kind=kind)
        assert (taken(whole, "theirs"), taken(whole, "last")) == (None, LayerInput("unknown"))
        assert taken(model(layer("Flatten"), theirs, kind=kind), "theirs") == LayerInput("unknown")
    average = layer("Average") | {"module": "keras.src.ops.numpy"}  # along an axis, not of several
    whole = model(layer("Conv2D"), average, layer("Flatten"), layer("Dense", "last"))
    assert taken(whole, "last") == LayerInput("unknown")


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("Input:9 Dense:a BatchNormalization ReLU Reshape:3:3:2", "a"), ("Input:9 Dense:a Reshape:4:2 Conv1D", "a"),
        ("Input:9 Dense:a Reshape:3:3:1 Conv2D", ""), ("Input:9 Dense:a Reshape:4:2 LSTM", ""), ("Dense:a Conv1D", ""),
        ("Input:9 Dense:a LSTM Reshape:3:3:2 Conv2D", ""), ("Conv2D Flatten Dense:a Reshape:3:3:2 Conv2D", "a"),
        ("Conv2D Lambda Dense:a Dense:b Reshape:2:2:5", "b"), ("Input:9 Dense:a Reshape:1:1:2 Conv2D", ""),
    ],
)  # fmt: skip
def test_what_becomes_an_image(rows: str, names: str) -> None:
    made = [layer("Dense", text[-1]) if text.startswith("Dense") else layer(text) for text in rows.split()]
    found = layer_inputs(model(*made))
    assert "".join(r["config"]["name"] for r in made if id(r) in found and found[id(r)].into_image) == names


def test_of_many_layers_that_become_one_image_some_are_told() -> None:
    rows = [layer("Input:9", "i"), *(called("Dense", "i", name=f"d{i}") for i in range(40))]
    rows += [called("Add", *(f"d{i}" for i in range(40))), called("Reshape:3:3:2", "Add")]
    assert sum(one.into_image for one in layer_inputs(model(*rows, kind="Functional")).values()) == MAX_DENSE


@pytest.mark.parametrize("around", [False, True])
def test_a_model_that_is_called_often_is_gone_through_once(around: bool) -> None:
    """Within each other, 8 calls of 8 levels would be 16 million; and thousands of outputs."""
    whole = model(layer("Input:4", "i"), kind="Functional")
    for _ in range(8):
        inner = layer("TimeDistributed:Dense", "m") if around else whole
        inner["config"] |= {"layer": whole} if around else {}
        rows = [layer("Input:4", "i"), inner | {"inbound_nodes": [[["i", 0, 0, {}]]] * 8}]
        whole = model(*rows, kind="Functional", output_layers=[["m", 7, 0]] * 20_000)
    began = time.process_time()
    assert {one.state for one in layer_inputs(whole).values()} == {"plain"}
    assert time.process_time() - began < 5


# --- the layers of a legacy file's weights -------------------------------------------------------------------------


FC = layer("Dense", "fc")
BESIDE = model(model(layer("Flatten"), FC, name="img"), model(layer("Input:9"), FC, name="tab"))
IN_ONE = model(model(model(layer("Flatten"), FC, name="a"), model(layer("Input:9"), FC, name="b"), name="both"))
CELL = {"class_name": "RNN", "config": {"name": "rnn", "cell": layer("LSTMCell", "lstm_cell")}}
WAYS = model(
    layer("Flatten"), {"class_name": "Bidirectional", "config": {"name": "bi", "layer": CELL}}, layer("MyLSTM", "my"),
    layer("MultiHeadAttention", "mha"), layer("Conv2D", "c"),
)  # fmt: skip
THEIRS = model(layer("Flatten"), layer("MyLSTM", "my"))
OWNERS = [
    # the model, the layer that lists a weight, its name, the class of its layer and what that takes
    (BESIDE, "img", "fc/kernel:0", "dense", "flattened"), (BESIDE, "tab", "top/tab/fc/kernel", "dense", "plain"),
    (BESIDE, "gone", "fc/kernel", "dense", "unknown"), (BESIDE, "img", "dense_7/kernel", "", ""),
    (IN_ONE, "both", "a/fc/kernel", "dense", "unknown"),
    (WAYS, "bi", "bi/forward_rnn/lstm_cell/kernel", "", "flattened"),
    (WAYS, "my", "my/lstm_cell/kernel", "", ""), (THEIRS, "my", "my/lstm_cell/kernel", "", "unknown"),
    (WAYS, "mha", "mha/query/kernel", "", "plain"),
    (WAYS, "c", "c/kernel", "conv2d", "plain"), (WAYS, "c", "other/kernel", "conv2d", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "listing", "weight", "kind", "state"), OWNERS)
def test_the_layer_of_a_weight(config: Any, listing: str, weight: str, kind: str, state: str, tmp_path: Path) -> None:
    got = legacy(tmp_path / "a.h5", config, {listing: [weight]})
    states = [one.state for one in got.details["inputs"].values()]
    assert ([*got.details["kinds"].values()], states) == ([kind] * bool(kind), [state] * bool(state))


def legacy(path: Path, config: Any, layers: dict[str, list[str]]) -> ckptconv.Checkpoint:
    with h5py.File(path, "w") as f:
        f.attrs["layer_names"] = [n.encode() for n in layers]
        f.attrs["model_config"] = json.dumps(config)
        for name, weights in layers.items():
            f.create_group(name).attrs["weight_names"] = [w.encode() for w in weights]
            for weight in weights:
                f[name][weight] = np.ones((2, 3), "f4")
    return ckptconv.open(path)


def test_weights_that_no_layer_has_are_sought_at_once(tmp_path: Path) -> None:
    """Each was compared with all layers of its model."""
    rows = [layer("Dense", "d") for i in range(500)]
    began = time.process_time()
    got = legacy(tmp_path / "a.h5", model(model(*rows)), {"m": [f"d/w{i}/kernel" for i in range(500)]})
    assert len(got.details["kinds"]) == 500
    assert time.process_time() - began < 5


@pytest.mark.parametrize("config", ["{", "[" * 100_000, "3"])
def test_a_config_that_makes_no_sense(config: str, tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", {}, {"l": ["l/kernel"]})
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f.attrs["model_config"] = config[:60_000]
    assert ckptconv.open(tmp_path / "a.h5").details["inputs"] == {}


@pytest.mark.parametrize(
    ("equation", "usual"),
    [
        ("abc,cd->abd", True), ("...c,cd->...d", True), ("abc,cde->abde", True), ("abcd,cde->abe", True), (None, True),
        ("abc,dc->abd", False), ("abc,bd->adc", False), ("abc,abd->abcd", False), ("abc,cd->adb", False),
        ("abc,acd->abd", False), ("abc", False), (3, False), ("a" * 10**6, False),
    ],
)  # fmt: skip
def test_equations_of_inputs_times_kernel(equation: object, usual: bool) -> None:
    assert is_usual(equation) is usual
    einsum = layer("EinsumDense", "last")
    einsum["config"]["equation"] = equation
    assert taken(model(layer("Input:3:4"), einsum), "last") == LayerInput("plain" if usual else "unknown")
