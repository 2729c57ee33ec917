"""keras-torch and tf-torch: every layer computes in torch what it computed in Keras or TensorFlow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from kit import same

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
tf_keras = pytest.importorskip("tf_keras", reason="TF-Keras is not installed")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

import ckptconv  # noqa: E402
from ckptconv.errors import CkptError  # noqa: E402
from ckptconv.rules import library  # noqa: E402
from ckptconv.rules.apply import apply  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
nn = torch.nn
IMAGE, LINE, VOLUME, WORDS = (6, 7, 4), (6, 4), (4, 5, 6, 2), (5,)


def first(x: torch.Tensor) -> torch.Tensor:
    """Channels first, as torch has them."""
    return x.movedim(-1, 1)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1)


def images(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: last(module(first(x)))


def sequence(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: module(x)[0]


def attention(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: module(x, x, x)[0]


def separable(kind: Any, i: int, o: int, m: int) -> Any:
    """Two convolutions under the names of one."""
    out = nn.Sequential()
    out.add_module("depthwise", kind(i, i * m, 3, groups=i, bias=False))
    out.add_module("pointwise", kind(i * m, o, 1))
    return out


class ResetBefore(nn.Module):
    """The GRU of the original paper, which torch has not: nn.GRU's gates, one bias, reset before the product."""

    def __init__(self, i: int, h: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.zeros(3 * h, i))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(3 * h, h))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(3 * h))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        h = torch.zeros(len(x), self.weight_hh_l0.shape[1])
        u_r, u_z, u_n = self.weight_hh_l0.chunk(3)
        out = []
        for step in x.unbind(1):
            r, z, n = (step @ self.weight_ih_l0.T + self.bias_ih_l0).chunk(3, -1)
            r, z = torch.sigmoid(r + h @ u_r.T), torch.sigmoid(z + h @ u_z.T)
            n = torch.tanh(n + (r * h) @ u_n.T)
            h = (1 - z) * n + z * h
            out.append(h)
        return (torch.stack(out, 1),)


# Keras layer, shape of its input, torch module, how to call it. All layers are called `up`, which tells nothing.
LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Callable[[], Any], Callable[[Any], Any]]] = {
    "Dense": (lambda k: k.Dense(4, name="up"), LINE, lambda: nn.Linear(4, 4), lambda m: m),
    "Dense without bias": (
        lambda k: k.Dense(3, use_bias=False, name="up"),
        LINE,
        lambda: nn.Linear(4, 3, False),
        lambda m: m,
    ),
    "Conv1D": (lambda k: k.Conv1D(4, 3, name="up"), LINE, lambda: nn.Conv1d(4, 4, 3), images),
    "Conv2D": (lambda k: k.Conv2D(4, (4, 3), name="up"), IMAGE, lambda: nn.Conv2d(4, 4, (4, 3)), images),
    "Conv2D in groups": (
        lambda k: k.Conv2D(6, 3, groups=2, name="up"),
        IMAGE,
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        images,
    ),
    "Conv3D": (lambda k: k.Conv3D(2, (2, 3, 4), name="up"), VOLUME, lambda: nn.Conv3d(2, 2, (2, 3, 4)), images),
    "Conv1DTranspose": (
        lambda k: k.Conv1DTranspose(4, 3, 2, name="up"),
        LINE,
        lambda: nn.ConvTranspose1d(4, 4, 3, 2),
        images,
    ),
    "Conv2DTranspose": (
        lambda k: k.Conv2DTranspose(4, (4, 3), 2, name="up"),
        IMAGE,
        lambda: nn.ConvTranspose2d(4, 4, (4, 3), 2),
        images,
    ),
    "Conv3DTranspose": (
        lambda k: k.Conv3DTranspose(2, (2, 3, 4), name="up"),
        VOLUME,
        lambda: nn.ConvTranspose3d(2, 2, (2, 3, 4)),
        images,
    ),
    "DepthwiseConv1D": (
        lambda k: k.DepthwiseConv1D(3, depth_multiplier=2, name="up"),
        LINE,
        lambda: nn.Conv1d(4, 8, 3, groups=4),
        images,
    ),
    "DepthwiseConv2D": (
        lambda k: k.DepthwiseConv2D((3, 2), depth_multiplier=3, name="up"),
        IMAGE,
        lambda: nn.Conv2d(4, 12, (3, 2), groups=4),
        images,
    ),
    "SeparableConv1D": (
        lambda k: k.SeparableConv1D(5, 3, depth_multiplier=2, name="up"),
        LINE,
        lambda: separable(nn.Conv1d, 4, 5, 2),
        images,
    ),
    "SeparableConv2D": (
        lambda k: k.SeparableConv2D(5, 3, depth_multiplier=2, name="up"),
        IMAGE,
        lambda: separable(nn.Conv2d, 4, 5, 2),
        images,
    ),
    "BatchNormalization": (
        lambda k: k.BatchNormalization(name="up"),
        IMAGE,
        lambda: nn.BatchNorm2d(4, eps=1e-3),
        images,
    ),
    "BatchNormalization without scale and center": (
        lambda k: k.BatchNormalization(scale=False, center=False, name="up"),
        IMAGE,
        lambda: nn.BatchNorm2d(4, eps=1e-3),
        images,
    ),
    "LayerNormalization": (
        lambda k: k.LayerNormalization(name="up"),
        LINE,
        lambda: nn.LayerNorm(4, eps=1e-3),
        lambda m: m,
    ),
    "LayerNormalization without scale": (
        lambda k: k.LayerNormalization(scale=False, name="up"),
        LINE,
        lambda: nn.LayerNorm(4, eps=1e-3),
        lambda m: m,
    ),
    "GroupNormalization": (
        lambda k: k.GroupNormalization(2, name="up"),
        IMAGE,
        lambda: nn.GroupNorm(2, 4, eps=1e-3),
        images,
    ),
    "Embedding": (lambda k: k.Embedding(9, 9, name="up"), WORDS, lambda: nn.Embedding(9, 9), lambda m: m),
    "PReLU": (lambda k: k.PReLU(shared_axes=[1, 2], name="up"), IMAGE, lambda: nn.PReLU(4), images),
    "LSTM": (
        lambda k: k.LSTM(4, return_sequences=True, name="up"),
        LINE,
        lambda: nn.LSTM(4, 4, batch_first=True),
        sequence,
    ),
    "GRU": (
        lambda k: k.GRU(4, return_sequences=True, name="up"),
        LINE,
        lambda: nn.GRU(4, 4, batch_first=True),
        sequence,
    ),
    "GRU that resets before": (
        lambda k: k.GRU(4, return_sequences=True, reset_after=False, name="up"),
        LINE,
        lambda: ResetBefore(4, 4),
        sequence,
    ),
    "SimpleRNN": (
        lambda k: k.SimpleRNN(4, return_sequences=True, name="up"),
        LINE,
        lambda: nn.RNN(4, 4, batch_first=True),
        sequence,
    ),
    "RNN of a cell": (
        lambda k: k.RNN(k.LSTMCell(3), return_sequences=True, name="up"),
        LINE,
        lambda: nn.LSTM(4, 3, batch_first=True),
        sequence,
    ),
    **{
        f"Bidirectional {kind}": (
            lambda k, kind=kind: k.Bidirectional(getattr(k, kind)(4, return_sequences=True, name="in"), name="up"),
            LINE,
            lambda kind=kind: getattr(nn, kind.removeprefix("Simple"))(4, 4, batch_first=True, bidirectional=True),
            sequence,
        )
        for kind in ("LSTM", "GRU", "SimpleRNN")
    },
    "EinsumDense": (
        lambda k: k.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d", name="up"),
        LINE,
        lambda: nn.Linear(4, 4),
        lambda m: m,
    ),
    "EinsumDense into heads": (
        lambda k: k.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", name="up"),
        LINE,
        lambda: nn.Linear(4, 6),
        lambda m: lambda x: m(x).unflatten(-1, (2, 3)),
    ),
    "TimeDistributed": (
        lambda k: k.TimeDistributed(k.Dense(3, name="dense"), name="up"),
        LINE,
        lambda: nn.Linear(4, 3),
        lambda m: m,
    ),
}
FILES = {"keras": ["up.keras", "up.h5"], "tf_keras": ["up.keras", "up.h5"]}


def fill(model: Any) -> None:
    for i, v in enumerate(model.weights):
        value = np.random.default_rng(crc32(f"{i}".encode())).normal(size=tuple(v.shape)).astype("f4")
        v.assign(np.abs(value) if "variance" in v.name else value)


def inputs(shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, 9, (3, *shape)) if shape == WORDS else rng.normal(size=(3, *shape)).astype("f4")


def load(module: Any, path: Path, prefix: str = "", converter: str = "keras-torch", **params: int) -> Any:
    """Convert and load, strictly; the way back restores every byte."""
    before, there = ckptconv.open(path), library.load(converter)
    after = apply(there, before, params)
    back = apply(there.inverse, after)
    kept = [n for n in before if not before[n].role]
    assert sorted(back) == sorted(kept)
    assert [n for n in kept if not same(back[n].numpy(), before[n].numpy())] == []
    state = {n.removeprefix("sequential.").removeprefix(prefix): t.numpy().copy() for n, t in after.items()}
    module.load_state_dict({n: torch.from_numpy(a) for n, a in state.items()})
    return module.eval()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", FILES)
def test_layer(name: str, layer: str, tmp_path: Path) -> None:
    k = {"keras": keras, "tf_keras": tf_keras}[name]
    make, shape, module, call = LAYERS[layer]
    k.backend.clear_session()
    model = k.Sequential([k.Input(shape), make(k.layers)])
    fill(model)
    x = inputs(shape)
    want = np.asarray(model(x))
    for file in FILES[name]:
        model.save(str(tmp_path / file))
        prefix = "up.dense." if layer == "TimeDistributed" and (name, file) != ("tf_keras", "up.h5") else "up."
        if layer == "TimeDistributed" and (name, file) == ("tf_keras", "up.keras"):
            prefix = "up.layer."
        loaded = load(module(), tmp_path / file, prefix)
        with torch.no_grad():
            got = call(loaded)(torch.from_numpy(x)).numpy()
        assert np.abs(got - want).max() < 1e-5 * max(1, np.abs(want).max())


@pytest.mark.parametrize("name", FILES)
def test_attention(name: str, tmp_path: Path) -> None:
    k = {"keras": keras, "tf_keras": tf_keras}[name]
    k.backend.clear_session()
    x = k.Input((5, 6))
    model = k.Model(x, k.layers.MultiHeadAttention(2, 3, name="att")(x, x))
    fill(model)
    x = inputs((5, 6))
    want = np.asarray(model(x))
    for file in FILES[name]:
        model.save(str(tmp_path / file))
        module = load(nn.MultiheadAttention(6, 2, batch_first=True), tmp_path / file, "att.")
        with torch.no_grad():
            assert np.abs(attention(module)(torch.from_numpy(x)).numpy() - want).max() < 1e-5


@pytest.mark.parametrize("name", FILES)
def test_flatten_then_dense(name: str, tmp_path: Path) -> None:
    """The config tells that a Flatten comes before, and the size of its images."""
    k = {"keras": keras, "tf_keras": tf_keras}[name]
    k.backend.clear_session()
    layers = k.layers
    x = k.Input((4, 5, 3))
    y = layers.Dropout(0.5)(layers.Flatten()(layers.Conv2D(3, 2, name="0")(x)))
    model = k.Model(x, layers.Dense(36, name="4")(layers.Dense(36, name="3")(layers.BatchNormalization(name="2")(y))))
    fill(model)
    x = inputs((4, 5, 3))
    want = np.asarray(model(x))
    for file in FILES[name]:
        model.save(str(tmp_path / file))
        with pytest.raises(CkptError, match="by the file, height is 3; 4 was"):
            apply(library.load("keras-torch"), ckptconv.open(tmp_path / file), {"height": 4})
        parts = [nn.Conv2d(3, 3, 2), nn.Flatten(), nn.BatchNorm1d(36, eps=1e-3), nn.Linear(36, 36), nn.Linear(36, 36)]
        module = load(nn.Sequential(*parts), tmp_path / file)
        with torch.no_grad():
            got = module(first(torch.from_numpy(x))).numpy()
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_what_torch_cannot_hold_is_refused(tmp_path: Path) -> None:
    """No layer of torch resets before the product, and what an EinsumDense contracts is not in its weights."""
    layers = keras.layers
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input(LINE), layers.GRU(4, reset_after=False, name="up")])
    model.save(str(tmp_path / "gru.keras"))
    with pytest.raises(RuntimeError, match=r"Missing key.*bias_hh_l0"):
        load(nn.GRU(4, 4), tmp_path / "gru.keras", "up.")
    model = keras.Sequential([keras.Input((5, 2, 3)), layers.EinsumDense("abcd,cde->abe", (None, 4), name="up")])
    model.save(str(tmp_path / "einsum.keras"))
    with pytest.raises(CkptError, match=r"up/kernel.*(lacks up/bias|EinsumDense)"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "einsum.keras"))
    model = keras.Sequential([keras.Input((5, 6)), layers.EinsumDense("abc,dc->abd", (None, 6), name="up")])
    model.save(str(tmp_path / "turned.keras"))
    with pytest.raises(CkptError, match=r"up/kernel.*what its EinsumDense sums over"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "turned.keras"))
    model.save_weights(str(tmp_path / "turned.weights.h5"))
    made = apply(library.load("keras-torch"), ckptconv.open(tmp_path / "turned.weights.h5"))
    assert any("does not tell its equation" in n.text for n in made.notes)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Bidirectional"])
@pytest.mark.parametrize("name", FILES)
def test_a_cell_that_takes_flattened_images(name: str, kind: str, tmp_path: Path) -> None:
    k = {"keras": keras, "tf_keras": tf_keras}[name]
    k.backend.clear_session()
    layers = k.layers
    x = k.Input((3, 4, 5, 2))
    y = layers.TimeDistributed(layers.Flatten())(layers.TimeDistributed(layers.Conv2D(3, 2, name="c"), name="t")(x))
    cell = (
        layers.Bidirectional(layers.LSTM(4), name="r")
        if kind == "Bidirectional"
        else getattr(layers, kind)(4, name="r")
    )
    model = k.Model(x, cell(y))
    fill(model)
    model.save(str(tmp_path / "net.keras"))
    with pytest.raises(CkptError, match=r"(?s)param='height=NUMBER' param='width=NUMBER'.*r/.*kernel"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "net.keras"))
    made = apply(library.load("keras-torch"), ckptconv.open(tmp_path / "net.keras"), {"height": 3, "width": 4})
    made = {n: torch.from_numpy(made[n].numpy().copy()) for n in made}
    conv, both = nn.Conv2d(2, 3, 2), kind == "Bidirectional"
    conv.load_state_dict({n.rpartition(".")[2]: t for n, t in made.items() if n.startswith("t.")})
    rnn = nn.GRU(36, 4, batch_first=True) if kind == "GRU" else nn.LSTM(36, 4, batch_first=True, bidirectional=both)
    rnn.load_state_dict({n.rpartition(".")[2]: t for n, t in made.items() if n.startswith("r.")})
    given = inputs((3, 4, 5, 2))
    with torch.no_grad():
        frames = conv(torch.from_numpy(given).flatten(0, 1).movedim(-1, 1)).flatten(1).unflatten(0, (-1, 3))
        out = rnn(frames)[0]
        got = torch.cat([out[:, -1, :4], out[:, 0, 4:]], 1).numpy()
    assert np.abs(got - np.asarray(model(given))).max() < 1e-5


def test_names_of_attributes_and_no_names(tmp_path: Path) -> None:
    """Attention in a checkpoint of Keras 2, whose biases alone were joined; one of Keras 3; weights without names."""
    for k, save in (tf_keras, "save_weights"), (keras, "checkpoint"):
        k.backend.clear_session()
        x = k.Input((5, 6))
        model = k.Model(x, k.layers.Dense(3, name="d")(k.layers.MultiHeadAttention(2, 3, name="a")(x, x)))
        fill(model)
        if save == "checkpoint":
            at = tf.train.Checkpoint(model=model).write(str(tmp_path / save))
        else:
            model.save_weights(at := str(tmp_path / save))
        made = apply(library.load("keras-torch"), ckptconv.open(at, weights_only=True))
        names = Counter(n.rpartition(".")[2] for n in made)
        assert names == {"in_proj_bias": 1, "in_proj_weight": 1, "bias": 2, "weight": 2}
    tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2)]).save_weights(str(tmp_path / "a.weights.h5"))
    with pytest.raises(CkptError, match="names neither its layers nor their variables"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "a.weights.h5"))


def test_each_flatten_has_its_image(tmp_path: Path) -> None:
    """Two of as many elements, of which one size was taken for both; and norms behind one."""
    layers = keras.layers
    keras.backend.clear_session()
    a, b = keras.Input((4, 2, 6)), keras.Input((2, 4, 6))
    norm = layers.LayerNormalization(name="norm")(layers.PReLU(name="slope")(layers.Flatten()(a)))
    model = keras.Model([a, b], [layers.Dense(3, name="a")(norm), layers.Dense(3, name="b")(layers.Reshape((48,))(b))])
    fill(model)
    model.save(str(tmp_path / "two.keras"))
    made = apply(library.load("keras-torch"), ckptconv.open(tmp_path / "two.keras"))
    x, y = inputs((4, 2, 6)), inputs((2, 4, 6))
    behind = {"slope": nn.PReLU(48), "norm": nn.LayerNorm(48, 1e-3), "a": nn.Linear(48, 3)}
    one, two = (nn.ModuleDict(parts) for parts in (behind, {"b": nn.Linear(48, 3)}))
    for parts, given, expected in zip((one, two), (x, y), model([x, y]), strict=True):
        parts.load_state_dict({n: torch.from_numpy(made[n].numpy().copy()) for n in parts.state_dict()})
        module, expected = nn.Sequential(nn.Flatten(), *parts.values()), np.asarray(expected)
        with torch.no_grad():
            got = module(first(torch.from_numpy(given))).numpy()
        assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_flatten_merged_with_something_else_is_refused(tmp_path: Path) -> None:
    layers = keras.layers
    keras.backend.clear_session()
    x, z = keras.Input((4, 5, 3)), keras.Input((4,))
    y = layers.Dense(2, name="up")(layers.Concatenate()([layers.Flatten()(x), z]))
    keras.Model([x, z], y).save(str(tmp_path / "up.keras"))
    with pytest.raises(CkptError, match="up/kernel"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "up.keras"), {"height": 4, "width": 5})


# --- TensorFlow 1 -----------------------------------------------------------------------------------------------


def cells() -> Any:
    from tf_keras.src.layers.rnn import legacy_cells

    return legacy_cells


def tf_layers() -> Any:
    from tf_keras.src.legacy_tf_layers import convolutional, core, normalization

    return {**vars(core), **vars(convolutional), **vars(normalization)}


def rolled(*made: Any) -> Callable[[Any], Any]:
    """The outputs of cells over a sequence: one, several on top of each other."""

    def run(x: Any) -> Any:
        cell = made[0]() if len(made) == 1 else cells().MultiRNNCell([m() for m in made])
        return tf.compat.v1.nn.dynamic_rnn(cell, x, dtype="float32", scope="up")[0]

    return run


def both_ways(make: Any) -> Callable[[Any], Any]:
    return lambda x: tf.concat(
        tf.compat.v1.nn.bidirectional_dynamic_rnn(make(), make(), x, dtype="float32", scope="up")[0], -1
    )


def slim(
    op: Callable[[Any, Any], Any], shape: list[int], weights: str = "weights", bias: int = 0
) -> Callable[[Any], Any]:
    """A layer as contrib and slim name it."""

    def run(x: Any) -> Any:
        with tf.compat.v1.variable_scope("up"):
            y = op(x, tf.compat.v1.get_variable(weights, shape))
            return y + tf.compat.v1.get_variable("biases", [bias or shape[-1]])

    return run


class Both(nn.Module):
    """Two cells of the original GRU, one backwards, under nn.GRU's names."""

    def __init__(self, i: int, h: int) -> None:
        super().__init__()
        self.there, self.back = ResetBefore(i, h), ResetBefore(i, h)

    def load_state_dict(self, state: Any) -> None:
        self.there.load_state_dict({n: t for n, t in state.items() if not n.endswith("_reverse")})
        self.back.load_state_dict({n.removesuffix("_reverse"): t for n, t in state.items() if n.endswith("_reverse")})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.cat([self.there(x)[0], self.back(x.flip(1))[0].flip(1)], -1),)


GRAPHS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Callable[[], Any], Callable[[Any], Any]]] = {
    "dense": (lambda x: tf_layers()["dense"](x, 4, name="up"), LINE, lambda: nn.Linear(4, 4), lambda m: m),
    "conv2d": (lambda x: tf_layers()["conv2d"](x, 4, 3, name="up"), IMAGE, lambda: nn.Conv2d(4, 4, 3), images),
    "conv2d_transpose": (
        lambda x: tf_layers()["conv2d_transpose"](x, 4, 3, 2),
        IMAGE,
        lambda: nn.ConvTranspose2d(4, 4, 3, 2),
        images,
    ),
    "separable_conv2d": (
        lambda x: tf_layers()["separable_conv2d"](x, 5, 3, depth_multiplier=2, name="up"),
        IMAGE,
        lambda: separable(nn.Conv2d, 4, 5, 2),
        images,
    ),
    "batch_normalization": (
        lambda x: tf_layers()["batch_normalization"](x, name="up"),
        IMAGE,
        lambda: nn.BatchNorm2d(4, eps=1e-3),
        images,
    ),
    "slim fully_connected": (slim(tf.matmul, [4, 4]), (4,), lambda: nn.Linear(4, 4), lambda m: m),
    "slim conv2d": (
        slim(lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"), [3, 2, 4, 4]),
        IMAGE,
        lambda: nn.Conv2d(4, 4, (3, 2)),
        images,
    ),
    "slim separable_conv2d, depthwise only": (
        slim(lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "VALID"), [3, 2, 4, 2], "depthwise_weights", 8),
        IMAGE,
        lambda: nn.Conv2d(4, 8, (3, 2), groups=4),
        images,
    ),
    "embedding": (
        lambda x: tf.nn.embedding_lookup(tf.compat.v1.get_variable("up/embeddings", [9, 9]), x),
        WORDS,
        lambda: nn.Embedding(9, 9),
        lambda m: m,
    ),
    "BasicLSTMCell": (
        rolled(lambda: cells().BasicLSTMCell(4)),
        LINE,
        lambda: nn.LSTM(4, 4, batch_first=True),
        sequence,
    ),
    "LSTMCell": (rolled(lambda: cells().LSTMCell(3)), LINE, lambda: nn.LSTM(4, 3, batch_first=True), sequence),
    "LSTMCell without forget bias": (
        rolled(lambda: cells().LSTMCell(4, forget_bias=0.0)),
        LINE,
        lambda: nn.LSTM(4, 4, batch_first=True),
        sequence,
    ),
    "CuDNN's cell": (
        rolled(lambda: cells().LSTMCell(4, forget_bias=0.0, name="cudnn_compatible_lstm_cell")),
        LINE,
        lambda: nn.LSTM(4, 4, batch_first=True),
        sequence,
    ),
    "MultiRNNCell": (
        rolled(lambda: cells().LSTMCell(4), lambda: cells().LSTMCell(4)),
        LINE,
        lambda: nn.LSTM(4, 4, 2, batch_first=True),
        sequence,
    ),
    "bidirectional": (
        both_ways(lambda: cells().BasicLSTMCell(4)),
        LINE,
        lambda: nn.LSTM(4, 4, batch_first=True, bidirectional=True),
        sequence,
    ),
    "BasicRNNCell": (rolled(lambda: cells().BasicRNNCell(4)), LINE, lambda: nn.RNN(4, 4, batch_first=True), sequence),
    "GRUCell": (rolled(lambda: cells().GRUCell(4)), LINE, lambda: ResetBefore(4, 4), sequence),
    "bidirectional GRUCell": (both_ways(lambda: cells().GRUCell(3)), LINE, lambda: Both(4, 3), sequence),
}


@pytest.mark.parametrize("layer", GRAPHS)
def test_tensorflow_layer(layer: str, tmp_path: Path) -> None:
    make, shape, module, call = GRAPHS[layer]
    v1 = tf.compat.v1
    x = inputs(shape)
    with v1.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(x.dtype, x.shape)
        out = make(given)
        for i, v in enumerate(v1.global_variables()):
            value = np.random.default_rng(i).normal(size=tuple(v.shape))
            v.load(np.abs(value) if "variance" in v.name else value, session)
        want = session.run(out, {given: x})
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    params = {"forget_bias": 0} if layer == "LSTMCell without forget bias" else {}
    prefix = "conv2d_transpose." if layer == "conv2d_transpose" else "up."
    loaded = load(module(), tmp_path / "model.ckpt", prefix, "tf-torch", **params)
    with torch.no_grad():
        got = call(loaded)(torch.from_numpy(x)).numpy()
    assert np.abs(got - want).max() < 1e-5 * max(1, np.abs(want).max())


def test_a_real_gru(fixtures: Path) -> None:
    """g2p_en, trained with TensorFlow 1.4: both directions of its encoder and its decoder's cell."""
    before = ckptconv.open(fixtures / "g2p_en")
    there = library.load("tf-torch")
    after = apply(there, before)
    gates, candidate = (before[f"bidirectional_rnn/fw/gru_cell/{p}/kernel"].numpy() for p in ("gates", "candidate"))
    got = after["bidirectional_rnn.weight_ih_l0"].numpy()
    assert same(got, np.ascontiguousarray(np.concatenate([gates[:29], candidate[:29]], 1).T))
    assert {n.rpartition(".")[0] for n in after if ".weight_hh_" in n} == {"bidirectional_rnn", "rnn.attention_wrapper"}
    back = apply(there.inverse, after)
    assert {n: same(t.numpy(), before[n].numpy()) for n, t in back.items()} == {
        n: True for n, t in before.items() if not t.role
    }


def test_through_files_and_back(fixtures: Path, tmp_path: Path) -> None:
    """Constants are written like all else, and TensorFlow loads what comes back."""
    there, back = tmp_path / "there.safetensors", tmp_path / "back.ckpt"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rolled(lambda: cells().BasicLSTMCell(2))(tf.compat.v1.placeholder("float32", (1, 2, 3)))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "lstm.ckpt"), write_meta_graph=False)
    for source in (fixtures / "g2p_en", tmp_path / "lstm.ckpt"):
        weights, forced = {"weights_only": True}, {"force": True}
        ckptconv.convert(source, there, **weights, converter="tf-torch", **forced)
        ckptconv.convert(there, back, converter="tf-torch", inverse=True, **forced)
        before, reader = ckptconv.open(source, weights_only=True), tf.train.load_checkpoint(str(back))
        assert sorted(reader.get_variable_to_shape_map()) == sorted(before)
        assert [n for n in before if not same(reader.get_tensor(n), before[n].numpy())] == []
    assert ckptconv.open(there)["up.bias_hh_l0"].numpy().tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
