"""What the layers of a Keras model take, by its config: plain features, an image, a flattened one, or nobody knows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import legacy

import ckptconv
from ckptconv.checkpoint.details import LayerInput
from ckptconv.formats.keras.naming import all_rows, is_usual, layer_inputs


def layer(text: str) -> dict[str, Any]:
    """Kind:option as a config lists it; name=Kind; Kind(a,b), or in turn Kind(a|b), in a functional model."""
    text, _, inputs = text.partition("(")
    name, _, text = text.rpartition("=")
    kind, *options = text.split(":")
    own: dict[str, Any] = {"name": name or text}
    if kind in ("TimeDistributed", "Bidirectional"):
        own["layer"] = layer(":".join(options))
    elif kind in ("Reshape", "Input"):
        own["target_shape" if kind == "Reshape" else "batch_shape"] = [None] * (kind == "Input") + [*map(int, options)]
    elif options:
        own["data_format"] = options[0]
    calls = [[[n, 0, 0, {}] for n in call.split(",")] for call in inputs.rstrip(")").split("|") if inputs]
    return {"class_name": "InputLayer" if kind == "Input" else kind, "config": own} | (
        {"inbound_nodes": calls} if inputs else {}
    )


def model(*rows: Any, name: str = "m", kind: str = "Sequential", **more: Any) -> dict[str, Any]:
    """Of rows, or of texts of them."""
    made = [one for row in rows for one in (map(layer, row.split()) if isinstance(row, str) else [row])]
    return {"class_name": kind, "config": {"name": name, "layers": made, **more}}


def taken(config: dict[str, Any], name: str = "last") -> LayerInput | None:
    """What the layer of this name takes."""
    found = layer_inputs(config)
    (row,) = [row for row in all_rows(config) if row["config"]["name"] == name]
    return found.get(id(row))


def state(config: dict[str, Any], name: str = "last") -> str:
    found = taken(config, name)
    return found.state if found else ""


CHAINS = {
    # what stands in front of a Dense, by what that then takes
    "flattened": [
        "Flatten", "Flatten Dropout BatchNormalization", "Reshape:-1", "Conv2D Flatten", "Flatten Flatten",
        "Embedding Conv1D Flatten", "Conv2D ReLU Flatten", "Input:28:28:1 Flatten", "Flatten Add",
        "Conv2D MyBlock Conv2D Flatten", "Input:9 Dense Reshape:3:3:1 Conv2D Flatten",
        "Conv1D Dense Flatten",
    ],
    "image": ["", "Conv2D", "Flatten Conv2D", "Conv1D Dense", "Input:4:4:3 Reshape:16:3", "MyBlock Dense"],
    "plain": [
        "Flatten Dense", "GlobalAveragePooling2D Flatten", "Embedding Flatten", "Conv2D MyBlock GlobalMaxPooling2D",
        "LSTM Flatten", "Input:28:28 Flatten", "MultiHeadAttention LayerNormalization Flatten",
        "Input:9 MyBlock Permute Flatten", "Input:9 Dense Reshape:3:3:1 Flatten", "Input:5:4 TimeDistributed:Dense",
        "Input:5:4 TimeDistributed:MyBlock",
        "Conv2D MyBlock Flatten LSTM", "Conv2D TimeDistributed:Flatten LSTM", "Conv2D Flatten Bidirectional:GRU",
        "Input:1:1:3 Flatten",
    ],
    "unknown": [
        "Permute Flatten", "Flatten MyNorm", "Conv2D:channels_first Flatten", "Conv2D Flatten:channels_first",
        "Flatten Lambda Dropout", "MyFlatten", "Conv2D Reshape:5:5", "Flatten Reshape:5:5:3",
        "Conv2D Transpose Flatten", "TimeDistributed:Conv2D Flatten", "TimeDistributed:Conv2D TimeDistributed:Flatten",
        "TimeDistributed:Flatten GlobalAveragePooling1D", "Flatten RepeatVector", "TimeDistributed:Dense",
        "Permute Reshape:5:15 MaxPooling1D", "ConvLSTM2D MyBlock Flatten",
        "Bidirectional:ConvLSTM2D Flatten", "Input:5:4:3 TimeDistributed:Flatten", "MyBlock MaxPooling2D Flatten",
        "Conv2D Cropping2D:channels_first Flatten", "RNN Flatten",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "wanted"), [(chain, wanted) for wanted, chains in CHAINS.items() for chain in chains]
)
def test_a_dense_layer(before: str, wanted: str) -> None:
    """In a chain, in a model within it, behind such a model, and in a functional model."""
    rows, last = [f"{i}={text}" for i, text in enumerate(before.split())], "last=Dense"
    head, body = model(last, name="head"), model(*rows, name="body")
    for layers in [*rows, last], [*rows, head], *([[body, last], [body, head]] if rows else []):
        assert state(model(*layers)) == wanted
    linked = [f"{row}({i - 1})" if i else row for i, row in enumerate([*rows, last])]
    if len(rows) > 1:
        assert state(model(*linked, kind="Functional")) == wanted


@pytest.mark.parametrize("kind", ["LSTM", "Bidirectional:GRU", "MultiHeadAttention", "LayerNormalization", "Conv1D"])
@pytest.mark.parametrize(
    ("before", "wanted"),
    [("Flatten", "flattened"), ("Conv2D Reshape:5:15", "unknown"), ("Input:5:15", "plain"), ("MyBlock", "unknown")],
)
def test_other_layers_with_weights(before: str, wanted: str, kind: str) -> None:
    assert state(model(before, f"last={kind}")) == wanted


@pytest.mark.parametrize(
    ("before", "options", "size"),
    [
        ("Input:4:6:3", "{}", (4, 6)), ("Input:9:6 Conv1D", "{}", (0, 0)), ("Input:4:6:3 UpSampling2D", "{}", (0, 0)),
        ("Input:9:6 Conv1D", '{"kernel_size": [3], "strides": [2], "dilation_rate": [1]}', (1, 4)),
        ("Input:784 Reshape:28:28:1 Conv2D", '{"padding": "same", "strides": [2, 2]}', (14, 14)),
        ("Input:9:8:3 Conv2D", '{"padding": "same", "strides": [2, 3]}', (5, 3)),
        ("Input:9:8:3 Conv2D", '{"kernel_size": [2, 2], "dilation_rate": [2, 1]}', (7, 7)),
        ("Input:9:8:3 Conv2D", '{"strides": 0}', (0, 0)), ("Input:9:8:3 Conv2D", '{"strides": [1]}', (0, 0)),
        ("Input:9:8:3 Conv2D", '{"filters": [[]]}', (8, 6)), ("Input:9:8:3 DepthwiseConv2D", "{}", (8, 6)),
        ("Input:3:3:3:3:3:3:3:3:3:3", "{}", (0, 0)),
        ("Input:9:8:3 Lambda Conv2D", '{"arguments": {"i": 0, "parts": 2}}', (8, 6)),  # of multi_gpu_model
    ],
)  # fmt: skip
def test_the_size_of_a_flattened_image(before: str, options: str, size: tuple[int, int]) -> None:
    """Behind convolutions and poolings with some options."""
    usual = {"kernel_size": [2, 3], "strides": [1, 1], "dilation_rate": [1, 1], "padding": "valid"}
    whole = model(before, "Flatten last=Dense")
    for row in whole["config"]["layers"][1:-2]:
        row["config"] |= usual | json.loads(options)
    assert taken(whole) == LayerInput("flattened", *size)


@pytest.mark.parametrize("axes", [[10**4000] * 5, [2**40, 2], [True, 2], [0, 2]])
def test_an_image_of_no_size_that_can_be(axes: list[Any]) -> None:
    """Products of long integers took minutes."""
    entry = {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, *axes, 5]}}
    assert taken(model(entry, "Flatten last=Dense")) == LayerInput("flattened")


IMAGES = "j=Input:4:4:3 i=Input:4:4:3 lstm=LSTM(j) conv=Conv2D(i) flat=Flatten(i) other=Flatten(j) mine=Mine(conv)"
GRAPHS = [
    # layers behind these, and what the last one takes
    ("x=Subtract(flat,other)", "flattened"), ("x=Concatenate(flat,other)", "unknown"), ("x=Dropout(nobody)", "unknown"),
    ("y=Add(conv,lstm) x=Flatten(y)", "flattened"), ("y=Dropout(x,flat) x=Dropout(y)", "unknown"),  # before its input
    ("x=Maximum(lstm,lstm)", "plain"), ("y=Concatenate(conv,conv) x=Flatten(y)", "flattened"),
    # a layer that is used on two inputs
    ("x=Dropout(flat|lstm)", "unknown"), ("x=Dropout(flat|flat)", "flattened"), ("x=Dropout(lstm|mine)", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "wanted"), GRAPHS)
def test_graphs(rows: str, wanted: str) -> None:
    """A dense layer, and one in a model of its own."""
    assert state(model(IMAGES, rows, "last=Dense(x)", kind="Functional")) == wanted
    inner = model("last=Dense") | {"inbound_nodes": layer("Dense(x)")["inbound_nodes"]}
    assert state(model(IMAGES, rows, inner, kind="Functional")) == wanted


NODES = [
    # how Keras 1 to 3 spell inputs, of an operation in Keras 2 also its operands; a mask or a constant is none
    ('[["f", 0, 0, {}]]', "flattened"), ('[[["f", 0, 0, {}]]]', "flattened"), ("null", "image"), ('{"f": 3}', "image"),
    ('[{"args": [], "kwargs": {"x": {"config": {"keras_history": ["f", 0, 0]}}}}]', "flattened"),
    ('[["f", 0, 0, {"mask": ["p", 0, 0]}]]', "flattened"), ("[" * 16 + '"f"' + "]" * 16, "flattened"),
    ('[["f", 0, 0, {"y": ["p", 0, 0]}]]', "unknown"), ('[["p", 0, 0, {"y": ["p", 0, 0]}]]', "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "wanted"), NODES)
def test_how_a_config_spells_inputs(nodes: str, wanted: str) -> None:
    last = layer("last=Dense") | {"inbound_nodes": json.loads(nodes)}
    assert state(model("i=Input:4:4:3 f=Flatten(i) p=Embedding(i)", last, kind="Functional")) == wanted


NO_LAYERS = [
    "3", '{"class_name": "Conv2D"}', '{"class_name": 3, "config": {"name": "x"}}',
    '{"class_name": "Conv2D", "config": {"name": 3}}', f'{{"class_name": "{"x" * 501}", "config": {{"name": "x"}}}}',
]  # fmt: skip


@pytest.mark.parametrize("between", NO_LAYERS)
def test_what_is_no_layer_does_not_come_between(between: str) -> None:
    assert taken(model("Flatten", json.loads(between), "last=Dense")) == LayerInput("flattened")


def test_a_class_of_a_user_is_none_of_keras() -> None:
    """Nor does anybody know what is in it, unless it follows a flattened image: it may flatten one itself."""
    for kind in "Sequential", "Net":  # which derives from it
        theirs = layer("theirs=BatchNormalization") | {"module": "mine"}
        whole = model("Conv2D", theirs, "Flatten last=Dense", kind=kind)
        assert (taken(whole, "theirs"), state(whole)) == (None, "unknown")
        assert state(model("Flatten", theirs, kind=kind), "theirs") == "unknown"
    whole["config"] = model("Conv2D Flatten last=Dense")["config"]["layers"]  # as Keras wrote it before 2.2.3
    assert state(whole) == "flattened"
    average = layer("Average") | {"module": "keras.src.ops.numpy"}  # along an axis, not of several
    assert state(model("Conv2D", average, "Flatten last=Dense")) == "unknown"


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("Input:9 a=Dense BatchNormalization ReLU Reshape:3:3:2", "a"),
        ("Input:9 a=Dense Reshape:3:3:1 Conv2D", ""), ("Input:9 a=Dense LSTM Reshape:3:3:2 Conv2D", ""),
        ("Conv2D Flatten a=Dense Reshape:3:3:2 Conv2D", "a"), ("Conv2D Lambda a=Dense b=Dense Reshape:2:2:5", "b"),
        ("a=Dense Conv1D", ""), ("i=Input:9 a=Dense(i) b=Dense(i) c=Concatenate(a,b) Reshape:3:3:2(c)", "ab"),
    ],
)  # fmt: skip
def test_what_becomes_an_image(rows: str, names: str) -> None:
    whole = model(rows)
    found = layer_inputs(whole)
    made = [r["config"]["name"] for r in all_rows(whole) if id(r) in found and found[id(r)].into_image]
    assert "".join(made) == names


@pytest.mark.parametrize("around", [False, True])
def test_a_model_that_is_called_often_is_gone_through_once(around: bool) -> None:
    """Within each other, 8 calls of 8 levels would be 16 million; and thousands of outputs."""
    whole = model("i=Input:4", kind="Functional")
    for _ in range(8):
        inner = layer("m=TimeDistributed:Dense") if around else whole
        inner["config"] |= {"layer": whole} if around else {}
        rows = ["i=Input:4", inner | {"inbound_nodes": [[["i", 0, 0, {}]]] * 8}]
        whole = model(*rows, kind="Functional", output_layers=[["m", 7, 0]] * 20_000)
    began = time.process_time()
    assert {one.state for one in layer_inputs(whole).values()} == {"plain"}
    assert time.process_time() - began < 5


# --- the layers of a legacy file's weights -------------------------------------------------------------------------


BESIDE = model(model("Flatten fc=Dense", name="img"), model("Input:9 fc=Dense", name="tab"))
WAYS = model("Flatten bi=Bidirectional:LSTM my=MyLSTM mha=MultiHeadAttention c=Conv2D")
THEIRS = model("Flatten my=MyLSTM")
OWNERS = [
    # the model, the layer that lists a weight, its name, the class of its layer and what that takes
    (BESIDE, "img", "fc/kernel:0", "dense", "unknown"),
    (WAYS, "bi", "bi/forward_lstm/lstm_cell/kernel", "lstm", "flattened"),
    (THEIRS, "my", "my/lstm_cell/kernel", "", "unknown"),
    (WAYS, "mha", "mha/query/kernel", "", "plain"),
    (WAYS, "c", "c/kernel", "conv2d", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "listing", "weight", "kind", "wanted"), OWNERS)
def test_the_layer_of_a_weight(config: Any, listing: str, weight: str, kind: str, wanted: str, tmp_path: Path) -> None:
    got = configured(tmp_path / "a.h5", config, {listing: [weight]})
    states = [one.state for one in got.details["inputs"].values()]
    assert ([*got.details["kinds"].values()], states) == ([kind] * bool(kind), [wanted] * bool(wanted))


def configured(path: Path, config: Any, layers: dict[str, list[str]]) -> ckptconv.Checkpoint:
    config = config if isinstance(config, str) else json.dumps(config)
    legacy(
        path, {n: dict.fromkeys(weights, np.ones((2, 3), "f4")) for n, weights in layers.items()}, model_config=config
    )
    return ckptconv.open(path)


def test_weights_that_no_layer_has_are_sought_at_once(tmp_path: Path) -> None:
    """Each was compared with all layers of its model."""
    began = time.process_time()
    got = configured(tmp_path / "a.h5", model(model(*["d=Dense"] * 500)), {"m": [f"d/w{i}/kernel" for i in range(500)]})
    assert len(got.details["kinds"]) == 500
    assert time.process_time() - began < 5


@pytest.mark.parametrize("config", ["{", "[" * 60_000, "3"])
def test_a_config_that_makes_no_sense(config: str, tmp_path: Path) -> None:
    assert configured(tmp_path / "a.h5", config, {"l": ["l/kernel"]}).details["inputs"] == {}


@pytest.mark.parametrize(
    ("equation", "usual"),
    [
        ("abc,cd->abd", True), ("abc,cde->abde", True),
        (None, True), ("abc,dc->abd", False), ("abc,abd->abcd", False),
        ("abc,acd->abd", False), (3, False), ("a" * 10**6, False),
    ],
)  # fmt: skip
def test_equations_of_inputs_times_kernel(equation: object, usual: bool) -> None:
    assert is_usual(equation) is usual
    whole = model("Input:3:4 last=EinsumDense")
    whole["config"]["layers"][1]["config"]["equation"] = equation
    assert state(whole) == ("plain" if usual else "unknown")
