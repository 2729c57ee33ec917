"""What Keras 3 and TF-Keras save, we read under their names; what we write, their load_weights takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import h5py
import numpy as np
import pytest
from kit import Later, legacy, same

import ckptconv
from ckptconv.formats.keras import naming

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras, tf_keras = Later("keras"), Later("tf_keras")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("tensorflow")]


def fill(model: Any) -> list[np.ndarray]:
    """Give every variable values of its own and return them."""
    for i, v in enumerate(model.weights):
        if "seed" not in v.name:
            rng = np.random.default_rng(crc32(f"{i}{v.name}".encode()))
            v.assign(rng.normal(size=tuple(v.shape)).astype("f4"))
    return values(model)


def values(model: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in model.weights]


def reload(model: Any, path: Path, wanted: list[np.ndarray]) -> None:
    """The file gives a model of this architecture back all its values."""
    for v in model.weights:
        v.assign(np.zeros(tuple(v.shape), "f4"))
    model.load_weights(str(path))
    assert [same(a, b) for a, b in zip(values(model), wanted, strict=True)] == [True] * len(wanted)


def functional(k: Any) -> Any:
    L = k.layers  # noqa: N806
    inner = k.Sequential([k.Input((4,)), L.Dense(4, name="wide"), L.Dense(4, use_bias=False, name="thin")], name="enc")
    x, s = k.Input((4,)), k.Input((5, 4))
    shared = L.Dense(4, name="shared")
    y = inner(inner(shared(shared(x))))
    y = L.BatchNormalization(name="bn")(y)
    z = L.Bidirectional(L.GRU(2, name="gru"), name="both")(s)
    c = L.Flatten()(L.SeparableConv1D(3, 2, name="sep")(s))
    a = L.Flatten()(L.LayerNormalization(name="ln")(L.MultiHeadAttention(2, 2, name="att")(s, s)))
    return k.Model([x, s], L.Dense(2, name="head")(L.Concatenate()([y, z, c, a])), name="net")


def sequential(k: Any) -> Any:
    L = k.layers  # noqa: N806
    return k.Sequential(
        [k.Input((8, 8, 3)), L.Conv2D(4, 3, name="c1"), L.DepthwiseConv2D(3, name="dw"), L.PReLU(name="p"),
         L.Conv2DTranspose(2, 3, name="up"), L.Flatten(), L.Dropout(0.5), L.Dense(3, name="out")], name="seq",
    )  # fmt: skip


def recurrent(k: Any) -> Any:
    L = k.layers  # noqa: N806
    return k.Sequential(
        [k.Input((5,)), L.Embedding(7, 4, name="emb"), L.LSTM(3, return_sequences=True, name="l"),
         L.SimpleRNN(2, name="s"), L.Dense(1, name="o")], name="rec",
    )  # fmt: skip


MODELS = {f.__name__: f for f in (functional, sequential, recurrent)}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    keras.utils.clear_session()
    return MODELS[request.param](keras)


@pytest.fixture(params=MODELS)
def older(request: pytest.FixtureRequest) -> Any:
    tf_keras.backend.clear_session()
    return MODELS[request.param](tf_keras)


def test_keras3_both_ways(model: Any, tmp_path: Path) -> None:
    """Names are paths of variables; the lists of a legacy file, and what several layers share, survive."""
    kept = fill(model)
    for file, target in (("a.keras", "b.weights.h5"), ("a.weights.h5", ""), ("a.h5", "b.h5")):
        (model.save_weights if "weights" in file else model.save)(tmp_path / file)
        got = ckptconv.open(tmp_path / file)
        own = "" if file == "a.h5" else model.name + "/"  # legacy lists hold whole paths
        wanted = {v.path.removeprefix(own): np.asarray(v) for v in model.weights}
        assert {n for n, a in wanted.items() if not same(got[n].numpy(), a)} == set()
        assert {n for n, t in got.items() if not t.role} == {n for n in wanted if "seed" not in n}
        if target:
            ckptconv.convert(tmp_path / file, tmp_path / target)
            reload(model, tmp_path / target, kept)


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_keras3_names_of_quantised_layers(mode: str, tmp_path: Path) -> None:
    """As Keras creates them, so that a cast knows the scales; numbers if it stores more than a scale for each."""
    L = keras.layers  # noqa: N806
    x = keras.Input((6,), dtype="int32")
    y = L.Dense(8, name="d")(L.Embedding(10, 8, name="e")(x))
    y = L.EinsumDense("abc,cd->abd", (None, 8), name="s", bias_axes="d")(y)
    y = L.EinsumDense("abc,dc->abd", (None, 8), name="odd")(y)
    y = L.MultiHeadAttention(2, 4, name="m")(y, y)
    net = keras.Model(x, L.Dense(3, use_bias=False, name="o")(y))
    plain = {v.path.removeprefix(net.name + "/"): np.array(v.numpy()) for v in net.weights}
    net.quantize(mode)
    names = {v.path.removeprefix(net.name + "/") for v in net.variables}
    for file in ("a.keras", "a.weights.h5"):
        (net.save_weights if "weights" in file else net.save)(tmp_path / file)
        got = ckptconv.open(tmp_path / file)
        assert len(got) == len(names)
        assert set(got) == names
        if mode == "float8":
            ckptconv.convert(
                tmp_path / file, tmp_path / "b.npz", converter="keras-torch", include=["[edo]/*"], force=True
            )
            assert set(ckptconv.open(tmp_path / "b.npz")) == {"e.weight", "d.weight", "d.bias", "o.weight"}
            continue
        done = ckptconv.convert(tmp_path / file, tmp_path / "b.npz", dtype="float16", force=True)
        kept = {n for note in done.notes if note.kind == "lossy" for n in note.names if n in got}
        assert kept == {n for n in got if n.endswith("_scale")}
        dense = ckptconv.open(tmp_path / file, densify=True)
        left = {"odd", "s"} if "weights" in file else {"odd"}  # only a config tells the equation
        assert {n.split("/")[0] for n, t in dense.items() if t.dtype.name == "int8"} == left
        for n, t in dense.items():
            if n.split("/")[0] not in left:  # at most half a step of 1/127 from what was quantised
                assert abs(t.numpy() - plain[n]).max() <= abs(plain[n]).max() / 253, n


def test_tf_keras_both_ways(older: Any, tmp_path: Path) -> None:
    wanted = fill(older)
    older.save_weights(tmp_path / "a.h5")
    got = ckptconv.open(tmp_path / "a.h5")
    names = [v.name.removesuffix(":0") for v in older.weights]
    found = [got[n if n in got else next(m for m in got if m.endswith("/" + n))].numpy() for n in names]
    assert [same(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * len(wanted)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    reload(older, tmp_path / "b.h5", wanted)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.safetensors")  # the lists are lost, the order is not a file's
    same_names = ckptconv.open(tmp_path / "a.safetensors")
    assert set(same_names) == set(got)


def test_tf_keras_loads_what_we_write_of_its_new_files(older: Any, tmp_path: Path) -> None:
    """It looks for groups of variables that are empty, too, which other formats on the way do not hold."""
    wanted = fill(older)
    older.save_weights(tmp_path / "a.weights.h5")
    older.save(tmp_path / "a.keras")
    ckptconv.convert(tmp_path / "a.keras", tmp_path / "b.npz")
    for source in ("a.weights.h5", "a.keras", "b.npz"):
        ckptconv.convert(tmp_path / source, tmp_path / "c.weights.h5", force=True)
        reload(older, tmp_path / "c.weights.h5", wanted)
    ckptconv.convert(tmp_path / "a.weights.h5", tmp_path / "d.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5") as theirs, h5py.File(tmp_path / "d.weights.h5") as ours:
        assert everything(theirs) == everything(ours)


def everything(file: Any) -> set[str]:
    """The paths of all groups and datasets."""
    found: set[str] = set()
    file.visit(found.add)
    return found


def test_whole_model_with_its_optimizer(tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="d"), keras.layers.Dense(1, name="e")])
    net.compile("adam", "mse")
    net.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, epochs=2)
    for file in ("a.h5", "a.keras"):
        net.save(tmp_path / file)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    ours, theirs = (keras.models.load_model(tmp_path / f, compile=False) for f in ("b.h5", "a.h5"))
    assert all(same(a, b) for a, b in zip(values(ours), values(theirs), strict=True))
    assert ours.get_config() == theirs.get_config()
    ckptconv.convert(tmp_path / "a.keras", tmp_path / "b.weights.h5")
    net.optimizer.iterations.assign(0)
    net.load_weights(tmp_path / "b.weights.h5")
    assert int(net.optimizer.iterations.numpy()) == 2


def test_subclassed_model(tmp_path: Path) -> None:
    class Block(keras.layers.Layer):
        def __init__(self, **kw: Any) -> None:
            super().__init__(**kw)
            self.inner = keras.layers.Dense(3, name="own")
            self.many = [keras.layers.Dense(3), keras.layers.Dense(3, name="second")]

        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(3,), name="scale")

        def call(self, x: Any) -> Any:
            for layer in (self.inner, *self.many):
                x = layer(x)
            return x * self.scale

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = Block(name="b0"), [Block(), Block(name="b2")]

        def call(self, x: Any) -> Any:
            for block in (self.first, *self.rest):
                x = block(x)
            return x

    net = Net()
    net(np.ones((1, 3), "f4"))
    wanted = fill(net)
    net.save_weights(tmp_path / "a.weights.h5")
    got = ckptconv.open(tmp_path / "a.weights.h5")
    assert len(got) == len(net.weights)
    paths = {v.path.split("/", 1)[1]: np.asarray(v) for v in net.weights if not v.path.endswith("/scale")}
    assert all(same(got[n].numpy(), a) for n, a in paths.items())
    assert {n for n in got if n.endswith("var_0")} == {"b0/var_0", "block/var_0", "b2/var_0"}
    ckptconv.convert(tmp_path / "a.weights.h5", tmp_path / "b.weights.h5")
    reload(net, tmp_path / "b.weights.h5", wanted)


def test_more_names_than_one_attribute_holds(tmp_path: Path) -> None:
    """Their list of names is split over several attributes, and so is ours."""
    k = tf_keras
    layers = [k.layers.Dense(1, use_bias=False, name=f"layer_with_a_long_name_{'x' * 500}_{i}") for i in range(130)]
    x = k.Input((1,))
    net = k.Model(x, [layer(x) for layer in layers])
    wanted = fill(net)
    net.save_weights(tmp_path / "a.h5")
    got = ckptconv.open(tmp_path / "a.h5")
    assert len(got) == 130
    with h5py.File(tmp_path / "a.h5") as f:
        assert {"layer_names0", "layer_names1"} <= set(f.attrs)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    reload(net, tmp_path / "b.h5", wanted)


def layers() -> dict[str, tuple[Any, tuple[int, ...]]]:
    """A layer of each class whose variables the table of names has, and the shape of its input."""
    make = keras.layers
    out = {
        "EinsumDense": (make.EinsumDense("ab,bc->ac", output_shape=2, bias_axes="c"), (1, 3)),
        "ReversibleEmbedding": (make.ReversibleEmbedding(3, 2), (1, 3)),
        "Embedding": (make.Embedding(3, 2), (1, 3)), "GroupNormalization": (make.GroupNormalization(1), (1, 2, 3)),
        **{f"{n}Normalization": (getattr(make, f"{n}Normalization")(), (1, 3)) for n in ("Batch", "Layer", "RMS", "")},
        "Dense": (make.Dense(2), (1, 3)), "PReLU": (make.PReLU(), (1, 3)),
        **{f"{n}Cell": (getattr(make, f"{n}Cell")(2), (1, 3)) for n in ("LSTM", "GRU", "SimpleRNN")},
    }  # fmt: skip
    for kind, arguments, most in (
        ("Conv{}D", (2, 1), 3), ("Conv{}DTranspose", (2, 1), 3), ("DepthwiseConv{}D", (1,), 2),
        ("SeparableConv{}D", (2, 1), 2),
    ):  # fmt: skip
        for axes in range(1, most + 1):
            name = kind.format(axes)
            out[name] = getattr(make, name)(*arguments), (1, *(3,) * axes, 2)
    return out


def test_variables_are_created_in_the_order_of_the_table() -> None:
    known = {
        "conv_lstm_cell": naming.VARIABLES["lstm_cell"],
        "seed_generator": (keras.random.SeedGenerator(1).state.name,),
    }
    for name, (layer, shape) in layers().items():
        layer.build(shape)
        known[naming.snake(name)] = tuple(v.name for v in layer.weights)
    assert known == naming.VARIABLES
    for switch, name, kind in (
        ("use_bias", "bias", keras.layers.Dense(2, use_bias=False)),
        ("scale", "gamma", keras.layers.BatchNormalization(scale=False)),
        ("center", "beta", keras.layers.BatchNormalization(center=False)),
    ):
        kind.build((1, 3))
        assert name not in [v.name for v in kind.weights]
        assert naming.OPTIONAL[name] == switch
        assert kind.get_config()[switch] is False
    recurrent = [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN]
    cells = {naming.snake(k.__name__): naming.snake(type(k(2).cell).__name__) for k in recurrent}
    assert cells == naming.RECURRENT


KERAS1 = {  # layers of TF-Keras that load a file of Keras 1, and the shapes in it
    "tf": (lambda k: k.Conv2D(4, 3, name="c"), (8, 8, 2), {"c_W": (3, 3, 2, 4), "c_b": (4,)}),
    "th": (
        lambda k: k.Conv2D(4, 3, name="c", data_format="channels_first"), (2, 8, 8),
        {"c_W_1:0": (4, 2, 3, 3), "c_b_1:0": (4,)},
    ),
    "1d": (lambda k: k.Conv1D(4, 3, name="convolution1d_1"), (9, 2),
           {"convolution1d_1_W": (3, 1, 2, 4), "convolution1d_1_b": (4,)}),
    "bn": (lambda k: k.BatchNormalization(name="b"), (4,),
           {f"b_{v}": (4,) for v in ("gamma", "beta", "running_mean", "running_std")}),
    "dense": (lambda k: k.Dense(6, name="d"), (5,), {"d_W": (5, 6), "d_b": (6,)}),
    "embedding": (lambda k: k.Embedding(9, 6, name="embedding_1"), (5,), {"embedding_1_W": (9, 6)}),
    "lstm": (lambda k: k.LSTM(6, name="x"), (5, 3),
             {f"x_{v}_{g}": s for g in "icfo" for v, s in zip("WUb", [(3, 6), (6, 6), (6,)], strict=True)}),
    "gru": (lambda k: k.GRU(6, name="x", reset_after=False), (5, 3),
            {f"x_{v}_{g}": s for g in "zrh" for v, s in zip("WUb", [(3, 6), (6, 6), (6,)], strict=True)}),
    "both": (lambda k: k.Bidirectional(k.LSTM(6, name="x"), name="x"), (5, 3),
             {f"{d}_x_{v}_{g}": s for d in ("forward", "backward") for g in "icfo"
              for v, s in zip("WUb", [(3, 6), (6, 6), (6,)], strict=True)}),
    "joined lstm": (lambda k: k.LSTM(6, name="x"), (5, 3), {"x_W": (3, 24), "x_U": (6, 24), "x_b": (24,)}),
    "joined gru": (lambda k: k.GRU(6, name="x", reset_after=False), (5, 3),
                   {"x_W": (3, 18), "x_U": (6, 18), "x_b": (18,)}),
    "rnn": (lambda k: k.SimpleRNN(6, name="x"), (5, 3), {"x_W": (3, 6), "x_U": (6, 6), "x_b": (6,)}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KERAS1)
def test_a_file_of_keras_1_becomes_what_tf_keras_loads_from_it(kind: str, tmp_path: Path) -> None:
    layer, shape, stored = KERAS1[kind]
    model = tf_keras.Sequential([tf_keras.layers.Input(shape), layer(tf_keras.layers)])
    values = {n: abs(np.random.default_rng(i).normal(size=s)).astype("f4") for i, (n, s) in enumerate(stored.items())}
    for backend in ("", "theano") if kind in ("tf", "th", "1d", "dense") else ("",):
        legacy(tmp_path / "a.h5", {model.layers[0].name: values}, **({"backend": backend} if backend else {}))
        model.load_weights(tmp_path / "a.h5")
        model.save_weights(tmp_path / "b.h5")
        got, wanted = (read_by_keras_torch(tmp_path / f) for f in ("a.h5", "b.h5"))
        flips = tuple(range(2, 4 - (kind == "1d"))) if backend and kind != "dense" else ()
        assert {n: same(np.flip(a, flips if a.ndim > 2 else ()), wanted[n]) for n, a in got.items()} == dict.fromkeys(
            wanted, True
        )


def read_by_keras_torch(path: Path) -> dict[str, np.ndarray]:
    made = path.with_suffix(".npz")
    ckptconv.convert(path, made, converter="keras-torch", force=True)
    return dict(np.load(made))
