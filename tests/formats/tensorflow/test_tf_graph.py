"""SavedModels, frozen graphs and .meta files against the real TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Later, same

import ckptconv
from ckptconv.dtypes import dtype
from ckptconv.errors import StorageError
from ckptconv.formats.tensorflow import messages_pb2 as pb

pytestmark = pytest.mark.xdist_group("tensorflow")
tf = Later("tensorflow")


def run(graph: bytes, names: list[str]) -> dict[str, np.ndarray]:
    definition = tf.compat.v1.GraphDef.FromString(graph)
    with tf.Graph().as_default() as g, tf.compat.v1.Session(graph=g) as session:
        tf.import_graph_def(definition, name="")
        return dict(zip(names, session.run([f"{n}:0" for n in names]), strict=True))


def constant(name: str, code: int, shape: tuple[int, ...], **fields) -> pb.NodeDef:
    node = pb.NodeDef(name=name, op="Const")
    node.attr["dtype"].type = code
    node.attr["value"].tensor.CopyFrom(pb.TensorProto(dtype=code, **fields))
    node.attr["value"].tensor.tensor_shape.SetInParent()
    for n in shape:
        node.attr["value"].tensor.tensor_shape.dim.add(size=n)
    return node


# what the *_val field of each dtype holds for some values, the last of them meant to repeat
VALUES: dict[str, dict[str, object]] = {
    "float32": {"float_val": [1.5, -0.0, float("nan")]},
    "float64": {"double_val": [1.5, float("-inf"), 5e-324]},
    "int32": {"int_val": [1, -(2**31), -1]},
    "int16": {"int_val": [1, -(2**15), -1]},
    "int8": {"int_val": [1, -128, -1]},
    "uint8": {"int_val": [1, 200, 255]},
    "uint16": {"int_val": [1, 2, 65535]},
    "int64": {"int64_val": [1, -(2**63), -1]},
    "uint32": {"uint32_val": [1, 2, 2**32 - 1]},
    "uint64": {"uint64_val": [1, 2, 2**64 - 1]},
    "bool": {"bool_val": [True, False, True]},
    "float16": {"half_val": [0x3C00, 0x8000, 0x7E01]},
    "bfloat16": {"half_val": [0x3F80, 0x8000, 0x7FC1]},
    "complex64": {"scomplex_val": [1.0, 2.0, 3.0, 4.0, -5.0, 6.0]},
    "complex128": {"dcomplex_val": [1.0, 2.0, 3.0, 4.0, -5.0, 6.0]},
    "float8_e5m2": {"float8_val": b"\x3c\x80\x7d"},
    "float8_e4m3fn": {"float8_val": b"\x38\x80\x7f"},
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("shape", [(3,), (2, 4), (3, 1, 3), (0, 2)])
def test_values_of_all_dtypes(tmp_path, kind, shape):
    """k values given: all, or the last repeated up to the end, or none for none."""
    code = dtype(kind).tf
    fields = {} if not np.prod(shape) else VALUES[kind]
    graph = pb.GraphDef(node=[constant("x", code, shape, **fields), constant("none", code, (2, 2))])
    raw = graph.SerializeToString()
    (tmp_path / "g.pb").write_bytes(raw)
    found, want = ckptconv.open(tmp_path / "g.pb", opaque=True), run(raw, ["x", "none"])
    for name, array in want.items():
        assert same(found[name].numpy(), array), name


def test_low_bits_of_contents_are_all_that_counts(tmp_path):
    raw = bytes(range(0, 256, 17))
    for kind, low in (("uint4", raw), ("int2", raw)):
        graph = pb.GraphDef(node=[constant("x", dtype(kind).tf, (16,), tensor_content=low)])
        (tmp_path / "g.pb").write_bytes(graph.SerializeToString())
        want = [b & 15 for b in raw] if kind == "uint4" else [(b & 3) - 4 * (b & 3 > 1) for b in raw]
        assert ckptconv.open(tmp_path / "g.pb", opaque=True)["x"].numpy().astype("i1").tolist() == want


# --- SavedModels ------------------------------------------------------------------------------------------------


def layer(size: int) -> Any:
    made = tf.Module()
    made.kernel = tf.Variable(np.random.default_rng(size).random((size, 2), "f4"), name="kernel")
    made.bias = tf.Variable(tf.zeros(2), name="bias", trainable=False)
    return made


def served(made: Any, call: Callable[[Any], Any]) -> Any:
    """The module with this function of rows of three numbers."""
    made.serve = tf.function(call, input_signature=[tf.TensorSpec((None, 3))])
    return made


def model() -> Any:
    made = tf.Module()
    made.first, made.second = layer(3), layer(4)
    made.once = tf.Variable([1, 2, 3], name="scope/once")
    made.layers = [made.first, made.second]
    return served(made, lambda x: x @ made.first.kernel + np.arange(2, dtype="f4"))


def test_names_of_variables_when_they_are_unique(tmp_path):
    tf.saved_model.save(saved := model(), str(tmp_path / "m"))
    for url in (tmp_path / "m", tmp_path / "m" / "saved_model.pb"):
        found = ckptconv.open(url)
        assert {k: t.shape for k, t in found.items()} == {
            "scope/once": (3,),
            "first/kernel": (3, 2),
            "first/bias": (2,),
            "second/kernel": (4, 2),
            "second/bias": (2,),
        }
        assert sorted(found.details["trainable"]) == ["first/kernel", "scope/once", "second/kernel"]
        assert [n.kind for n in found.notes if n.names and "first/kernel" in n.names] == ["hint"]
        assert same(found["second/kernel"].numpy(), saved.second.kernel.numpy())


def test_a_model_without_variables_has_constants(tmp_path):
    frozen = served(tf.Module(), lambda x: x @ tf.constant(np.arange(6, dtype="f4").reshape(3, 2), name="weights"))
    tf.saved_model.save(frozen, str(tmp_path / "m"))
    found = ckptconv.open(tmp_path / "m")
    (name,) = [n for n in found if n.endswith("/weights")]
    assert same(found[name].numpy(), np.arange(6, dtype="f4").reshape(3, 2))


def test_a_model_whose_variables_are_missing(tmp_path):
    tf.saved_model.save(model(), str(tmp_path / "m"))
    (tmp_path / "m" / "variables" / "variables.index").unlink()
    with pytest.raises(StorageError, match=r"variables\.index is missing"):
        ckptconv.open(tmp_path / "m")


def test_keras_exports_go_by_the_names_of_layers(tmp_path):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="d"), layers.BatchNormalization(name="n")])
    model.export(tmp_path / "m", verbose=False)
    found = ckptconv.open(tmp_path / "m")
    want = {v.path: v.numpy() for v in model.variables if "seed" not in v.path}
    assert {k.removeprefix(model.name + "/") for k in found} == {k.removeprefix(model.name + "/") for k in want}
    for name, array in want.items():
        assert same(found[name if name in found else f"{model.name}/{name}"].numpy(), array)


def test_keras_exports_of_layers_with_one_name(tmp_path):
    """Each variable is given once, whatever the layers of a subclassed model are called."""
    keras = pytest.importorskip("keras")

    class Twins(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(2, name="s") for _ in range(4)]

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Twins()
    model(np.ones((1, 2), "f4"))
    for block in model.blocks[:2]:  # the biases of the others are equal, which makes no two of them one
        block.bias.assign(np.random.default_rng(0).normal(size=2))
    model.export(tmp_path / "m", verbose=False)
    found = ckptconv.open(tmp_path / "m")
    values = sorted(t.numpy().tobytes() for t in found.values())
    assert values == sorted(v.numpy().tobytes() for v in model.variables)
    assert [n for n in found if n.startswith("_")] == []


def test_tf_keras_models(tmp_path):
    keras = pytest.importorskip("tf_keras")
    model = keras.Sequential([keras.layers.Dense(4, name="d", input_shape=(3,)), keras.layers.Dense(1, name="e")])
    model.compile("adam", "mse")
    model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0)
    model.save(tmp_path / "m", save_format="tf")
    found = ckptconv.open(tmp_path / "m")
    for v in model.variables:
        name = v.name.removesuffix(":0")
        assert same(found[name].numpy(), v.numpy())
        assert found[name].role == ""
    assert {t.role for k, t in found.items() if k.startswith("Adam/")} == {"slot"}
    assert {k: found[k].role for k in ("iteration", "learning_rate", "total", "count")} == {
        "iteration": "step", "learning_rate": "state", "total": "state", "count": "state",
    }  # fmt: skip


# --- graphs -----------------------------------------------------------------------------------------------------


def test_a_graph_frozen_by_tensorflow_2(tmp_path):
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    made = model()
    frozen = convert_variables_to_constants_v2(made.serve.get_concrete_function()).graph.as_graph_def()
    (tmp_path / "g.pb").write_bytes(frozen.SerializeToString())
    arrays = [t.numpy() for t in ckptconv.open(tmp_path / "g.pb").values()]
    assert any(same(a, made.first.kernel.numpy()) for a in arrays)


def test_a_graph_frozen_by_tensorflow_1(tmp_path):
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 8, 8, 3))
        kernel = v1.get_variable("conv/kernel", (3, 3, 3, 4), use_resource=False)
        scale = v1.get_variable("scale", (), use_resource=False)
        y = tf.nn.conv2d(x, kernel, 1, "SAME") * scale
        y = tf.reduce_mean(tf.reshape(y, (-1, 64, 4)), axis=1, name="out")
        session.run(v1.global_variables_initializer())
        frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["out"])
        want = session.run({"conv/kernel": kernel, "scale": scale})
    (tmp_path / "g.pb").write_bytes(frozen.SerializeToString())
    found = ckptconv.open(tmp_path / "g.pb")
    assert not any("is truncated" in note.text for note in found.notes)
    assert set(found) == set(want)
    assert all(same(found[n].numpy(), np.asarray(a)) for n, a in want.items())


def test_a_training_graph_without_its_checkpoint_names_what_is_missing(tmp_path):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("w", (2, 3))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "m"))
    assert list(ckptconv.open(tmp_path / "m.meta")) == ["w"]
    Path(tmp_path / "m.index").unlink()
    with pytest.raises(StorageError, match=r"m\.index"):
        ckptconv.open(tmp_path / "m.meta")


def test_a_constant_that_is_left_out_for_a_variable_is_not_one_that_was_looked_at(tmp_path: Path) -> None:
    """It may differ; shapes and axes, which are no weights, were looked at."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        tf.constant(np.ones((8, 8), "f4"), name="w")
        kept = v1.get_variable("kept", (8, 8))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(tmp_path / "model"))
        builder.add_meta_graph_and_variables(session, ["serve"], saver=v1.train.Saver({"w": kept}))
        builder.save()
    notes = ckptconv.open(tmp_path / "model", opaque=True).notes
    assert [n.names for n in notes if n.unread] == [("w",)]
    assert not any(n.unread for n in ckptconv.open(tmp_path / "model").notes if n.kind == "skipped")
