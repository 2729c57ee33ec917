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
from kit import Later, same

import ckptconv
from ckptconv.errors import CkptError
from ckptconv.rules import library
from ckptconv.rules.apply import apply

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras, tf_keras, tf, v1 = (Later(n) for n in ("keras", "tf_keras", "tensorflow", "tensorflow.compat.v1"))
torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("tensorflow")]
SHAPES = {"image": (6, 7, 4), "line": (6, 4), "volume": (4, 5, 6, 2), "words": (5,), "row": (4,)}
KERAS = {"keras": keras, "tf_keras": tf_keras}
FILES = ["up.keras", "up.h5"]


@pytest.fixture(params=KERAS)
def k(request: pytest.FixtureRequest) -> Any:
    """Keras 3, and Keras 2."""
    made = KERAS[request.param]
    made.backend.clear_session()
    return made


def first(x: torch.Tensor) -> torch.Tensor:
    """Channels first, as torch has them."""
    return x.movedim(-1, 1)


# how a torch module is called: on what Keras calls its layer with
CALLS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "plain": lambda m, x: m(x),
    "images": lambda m, x: m(first(x)).movedim(1, -1),
    "sequence": lambda m, x: m(x)[0],
    "heads": lambda m, x: m(x).unflatten(-1, (2, 3)),
    "attention": lambda m, x: m(x, x, x)[0],
}


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


NAMED = {n: vars(nn)[n] for n in dir(nn)} | {"ResetBefore": ResetBefore, "separable": separable, "nn": nn, "Both": Both}


def rows(text: str) -> dict[str, list[str]]:
    """A table by its first column."""
    cells = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    return {name: rest for name, *rest in cells}


# What it is, the Keras layer, the shape of its input, the torch module, how it is called. All are called `up`, which
# tells nothing.
LAYERS = rows("""
Dense                  | Dense(4, name="up")                                              | line   | Linear(4, 4)        | plain
Dense without bias     | Dense(3, use_bias=False, name="up")                              | line   | Linear(4, 3, False) | plain
Conv1D                 | Conv1D(4, 3, name="up")                                          | line   | Conv1d(4, 4, 3)     | images
Conv2D                 | Conv2D(4, (4, 3), name="up")                                     | image  | Conv2d(4, 4, (4, 3)) | images
Conv2D in groups       | Conv2D(6, 3, groups=2, name="up")                                | image  | Conv2d(4, 6, 3, groups=2) | images
Conv3D                 | Conv3D(2, (2, 3, 4), name="up")                                  | volume | Conv3d(2, 2, (2, 3, 4)) | images
Conv1DTranspose        | Conv1DTranspose(4, 3, 2, name="up")                              | line   | ConvTranspose1d(4, 4, 3, 2) | images
Conv2DTranspose        | Conv2DTranspose(4, (4, 3), 2, name="up")                         | image  | ConvTranspose2d(4, 4, (4, 3), 2) | images
Conv3DTranspose        | Conv3DTranspose(2, (2, 3, 4), name="up")                         | volume | ConvTranspose3d(2, 2, (2, 3, 4)) | images
DepthwiseConv1D        | DepthwiseConv1D(3, depth_multiplier=2, name="up")                | line   | Conv1d(4, 8, 3, groups=4) | images
DepthwiseConv2D        | DepthwiseConv2D((3, 2), depth_multiplier=3, name="up")           | image  | Conv2d(4, 12, (3, 2), groups=4) | images
SeparableConv1D        | SeparableConv1D(5, 3, depth_multiplier=2, name="up")             | line   | separable(nn.Conv1d, 4, 5, 2) | images
SeparableConv2D        | SeparableConv2D(5, 3, depth_multiplier=2, name="up")             | image  | separable(nn.Conv2d, 4, 5, 2) | images
BatchNormalization     | BatchNormalization(name="up")                                    | image  | BatchNorm2d(4, eps=1e-3) | images
BatchNormalization without scale and center | BatchNormalization(scale=False, center=False, name="up") | image | BatchNorm2d(4, eps=1e-3) | images
LayerNormalization     | LayerNormalization(name="up")                                    | line   | LayerNorm(4, eps=1e-3) | plain
LayerNormalization without scale | LayerNormalization(scale=False, name="up")             | line   | LayerNorm(4, eps=1e-3) | plain
GroupNormalization     | GroupNormalization(2, name="up")                                 | image  | GroupNorm(2, 4, eps=1e-3) | images
Embedding              | Embedding(9, 9, name="up")                                       | words  | Embedding(9, 9)     | plain
PReLU                  | PReLU(shared_axes=[1, 2], name="up")                             | image  | PReLU(4)            | images
LSTM                   | LSTM(4, return_sequences=True, name="up")                        | line   | LSTM(4, 4, batch_first=True) | sequence
GRU                    | GRU(4, return_sequences=True, name="up")                         | line   | GRU(4, 4, batch_first=True) | sequence
GRU that resets before | GRU(4, return_sequences=True, reset_after=False, name="up")      | line   | ResetBefore(4, 4)   | sequence
SimpleRNN              | SimpleRNN(4, return_sequences=True, name="up")                   | line   | RNN(4, 4, batch_first=True) | sequence
RNN of a cell          | RNN(LSTMCell(3), return_sequences=True, name="up")               | line   | LSTM(4, 3, batch_first=True) | sequence
Bidirectional LSTM     | Bidirectional(LSTM(4, return_sequences=True, name="in"), name="up") | line | LSTM(4, 4, batch_first=True, bidirectional=True) | sequence
Bidirectional GRU      | Bidirectional(GRU(4, return_sequences=True, name="in"), name="up")  | line | GRU(4, 4, batch_first=True, bidirectional=True) | sequence
Bidirectional SimpleRNN | Bidirectional(SimpleRNN(4, return_sequences=True, name="in"), name="up") | line | RNN(4, 4, batch_first=True, bidirectional=True) | sequence
EinsumDense            | EinsumDense("abc,cd->abd", (None, 4), bias_axes="d", name="up")  | line   | Linear(4, 4)        | plain
EinsumDense into heads | EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", name="up") | line | Linear(4, 6)     | heads
TimeDistributed        | TimeDistributed(Dense(3, name="dense"), name="up")               | line   | Linear(4, 3)        | plain
""")  # noqa: E501


def fill(model: Any) -> None:
    for i, v in enumerate(model.weights):
        value = np.random.default_rng(crc32(f"{i}".encode())).normal(size=tuple(v.shape)).astype("f4")
        v.assign(np.abs(value) if "variance" in v.name else value)


def inputs(shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, 9, (3, *shape)) if shape == SHAPES["words"] else rng.normal(size=(3, *shape)).astype("f4")


def agrees(call: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray, want: Any) -> bool:
    """Whether a function of torch gives what Keras gave."""
    want = np.asarray(want)
    with torch.no_grad():
        got = call(torch.from_numpy(x)).numpy()
    return bool(np.abs(got - want).max() < 1e-5 * max(1, np.abs(want).max()))


def converted(path: Path, converter: str = "keras-torch", **params: int) -> dict[str, torch.Tensor]:
    """What a converter makes; the way back restores every byte."""
    before, there = ckptconv.open(path), library.load(converter)
    after = apply(there, before, params)
    back = apply(there.inverse, after)
    kept = [n for n in before if not before[n].role]
    assert sorted(back) == sorted(kept)
    assert [n for n in kept if not same(back[n].numpy(), before[n].numpy())] == []
    return {n.removeprefix("sequential."): torch.from_numpy(t.numpy().copy()) for n, t in after.items()}


def filled(module: Any, state: dict[str, torch.Tensor], prefix: str = "") -> Any:
    """Loaded strictly, with what has this prefix."""
    module.load_state_dict({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)})
    return module.eval()


@pytest.mark.parametrize("shape", sorted({row[1] for row in LAYERS.values()}))
def test_layers(k: Any, shape: str, tmp_path: Path) -> None:
    """Side by side in one model."""
    names, x = {n: getattr(k.layers, n) for n in dir(k.layers)}, k.Input(SHAPES[shape])
    rows = {f"up{i}": (what, *row) for i, (what, row) in enumerate(LAYERS.items()) if row[1] == shape}
    model = k.Model(x, {up: eval(row[1].replace('"up"', f'"{up}"'), names)(x) for up, row in rows.items()})
    fill(model)
    wanted = model(inputs(SHAPES[shape]))
    for file in FILES:
        model.save(str(tmp_path / file))
        state, wrong = converted(tmp_path / file), []
        for up, (what, _, _, module, how) in rows.items():
            prefix = f"{up}."
            if what == "TimeDistributed" and (k, file) != (tf_keras, "up.h5"):
                prefix += "layer." if k is tf_keras else "dense."
            loaded = filled(eval(module, NAMED), state, prefix)
            if not agrees(lambda x, m=loaded, how=how: CALLS[how](m, x), inputs(SHAPES[shape]), wanted[up]):
                wrong.append(what)
        assert wrong == []


def test_attention(k: Any, tmp_path: Path) -> None:
    x = k.Input((5, 6))
    model = k.Model(x, k.layers.MultiHeadAttention(2, 3, name="att")(x, x))
    fill(model)
    for file in FILES:
        model.save(str(tmp_path / file))
        module = filled(nn.MultiheadAttention(6, 2, batch_first=True), converted(tmp_path / file), "att.")
        assert agrees(lambda x, m=module: CALLS["attention"](m, x), inputs((5, 6)), model(inputs((5, 6))))


def test_flatten_then_dense(k: Any, tmp_path: Path) -> None:
    """The config tells that a Flatten comes before, and the size of its images."""
    layers, x = k.layers, k.Input((4, 5, 3))
    y = layers.Dropout(0.5)(layers.Flatten()(layers.Conv2D(3, 2, name="0")(x)))
    model = k.Model(x, layers.Dense(36, name="4")(layers.Dense(36, name="3")(layers.BatchNormalization(name="2")(y))))
    fill(model)
    for file in FILES:
        model.save(str(tmp_path / file))
        with pytest.raises(CkptError, match="by the file, height is 3; 4 was"):
            apply(library.load("keras-torch"), ckptconv.open(tmp_path / file), {"height": 4})
        parts = [nn.Conv2d(3, 3, 2), nn.Flatten(), nn.BatchNorm1d(36, eps=1e-3), nn.Linear(36, 36), nn.Linear(36, 36)]
        module = filled(nn.Sequential(*parts), converted(tmp_path / file))
        assert agrees(lambda x, m=module: m(first(x)), inputs((4, 5, 3)), model(inputs((4, 5, 3))))


def test_what_torch_cannot_hold_is_refused(tmp_path: Path) -> None:
    """No layer of torch resets before the product, and what an EinsumDense contracts is not in its weights."""
    layers = keras.layers
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((6, 4)), layers.GRU(4, reset_after=False, name="up")])
    model.save(str(tmp_path / "gru.keras"))
    with pytest.raises(RuntimeError, match=r"Missing key.*bias_hh_l0"):
        filled(nn.GRU(4, 4), converted(tmp_path / "gru.keras"), "up.")
    for shape, equation, kernel, words in (
        ((5, 2, 3), "abcd,cde->abe", (None, 4), r"up/kernel.*(lacks up/bias|EinsumDense)"),
        ((5, 6), "abc,dc->abd", (None, 6), "up/kernel.*what its EinsumDense sums over"),
    ):
        model = keras.Sequential([keras.Input(shape), layers.EinsumDense(equation, kernel, name="up")])
        model.save(str(tmp_path / "einsum.keras"))
        with pytest.raises(CkptError, match=words):
            apply(library.load("keras-torch"), ckptconv.open(tmp_path / "einsum.keras"))
    model.save_weights(str(tmp_path / "turned.weights.h5"))
    made = apply(library.load("keras-torch"), ckptconv.open(tmp_path / "turned.weights.h5"))
    assert any("does not tell its equation" in n.text for n in made.notes)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Bidirectional"])
def test_a_cell_that_takes_flattened_images(k: Any, kind: str, tmp_path: Path) -> None:
    layers, x, both = k.layers, k.Input((3, 4, 5, 2)), kind == "Bidirectional"
    y = layers.TimeDistributed(layers.Flatten())(layers.TimeDistributed(layers.Conv2D(3, 2, name="c"), name="t")(x))
    cell = layers.Bidirectional(layers.LSTM(4), name="r") if both else getattr(layers, kind)(4, name="r")
    model = k.Model(x, cell(y))
    fill(model)
    model.save(str(tmp_path / "net.keras"))
    with pytest.raises(CkptError, match=r"(?s)param='height=NUMBER' param='width=NUMBER'.*r/.*kernel"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "net.keras"))
    made = apply(library.load("keras-torch"), ckptconv.open(tmp_path / "net.keras"), {"height": 3, "width": 4})
    conv = nn.Conv2d(2, 3, 2)
    rnn = nn.GRU(36, 4, batch_first=True) if kind == "GRU" else nn.LSTM(36, 4, batch_first=True, bidirectional=both)
    for prefix, module in (("t.", conv), ("r.", rnn)):
        own = {n.rpartition(".")[2]: t.numpy().copy() for n, t in made.items() if n.startswith(prefix)}
        module.load_state_dict({n: torch.from_numpy(a) for n, a in own.items()})

    def call(x: torch.Tensor) -> torch.Tensor:
        out = rnn(conv(first(x.flatten(0, 1))).flatten(1).unflatten(0, (-1, 3)))[0]
        return torch.cat([out[:, -1, :4], out[:, 0, 4:]], 1)

    assert agrees(call, inputs((3, 4, 5, 2)), model(inputs((3, 4, 5, 2))))


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


def test_a_flatten_merged_with_something_else_is_refused(tmp_path: Path) -> None:
    layers = keras.layers
    keras.backend.clear_session()
    x, z = keras.Input((4, 5, 3)), keras.Input((4,))
    y = layers.Dense(2, name="up")(layers.Concatenate()([layers.Flatten()(x), z]))
    keras.Model([x, z], y).save(str(tmp_path / "up.keras"))
    with pytest.raises(CkptError, match="up/kernel"):
        apply(library.load("keras-torch"), ckptconv.open(tmp_path / "up.keras"), {"height": 4, "width": 5})


# --- TensorFlow 1 -----------------------------------------------------------------------------------------------


def rolled(*made: Any) -> Callable[[Any], Any]:
    """The outputs of cells over a sequence: one, several on top of each other."""

    def run(x: Any) -> Any:
        cell = made[0] if len(made) == 1 else names()["MultiRNNCell"](made)
        return v1.nn.dynamic_rnn(cell, x, dtype="float32", scope="up")[0]

    return run


def both_ways(there: Any, back: Any) -> Callable[[Any], Any]:
    return lambda x: tf.concat(v1.nn.bidirectional_dynamic_rnn(there, back, x, dtype="float32", scope="up")[0], -1)


def slim(op: Callable[[Any, Any], Any], shape: list[int], weights: str = "weights", bias: int = 0) -> Any:
    """A layer as contrib and slim name it."""

    def run(x: Any) -> Any:
        with v1.variable_scope("up"):
            y = op(x, v1.get_variable(weights, shape))
            return y + v1.get_variable("biases", [bias or shape[-1]])

    return run


def names() -> dict[str, Any]:
    """The layers and cells of TensorFlow 1, and the functions above."""
    from tf_keras.src.layers.rnn import legacy_cells
    from tf_keras.src.legacy_tf_layers import convolutional, core, normalization

    own = {"tf": tf, "v1": v1, "rolled": rolled, "both_ways": both_ways, "slim": slim}
    return {**vars(core), **vars(convolutional), **vars(normalization), **vars(legacy_cells), **own}


# What it is, its outputs for x, the shape of x, the torch module, how it is called.
GRAPHS = rows("""
dense                | dense(x, 4, name="up")                                 | line  | Linear(4, 4)    | plain
conv2d               | conv2d(x, 4, 3, name="up")                             | image | Conv2d(4, 4, 3) | images
conv2d_transpose     | conv2d_transpose(x, 4, 3, 2)                           | image | ConvTranspose2d(4, 4, 3, 2) | images
separable_conv2d     | separable_conv2d(x, 5, 3, depth_multiplier=2, name="up") | image | separable(nn.Conv2d, 4, 5, 2) | images
batch_normalization  | batch_normalization(x, name="up")                      | image | BatchNorm2d(4, eps=1e-3) | images
slim fully_connected | slim(tf.matmul, [4, 4])(x)                             | row   | Linear(4, 4)    | plain
slim conv2d          | slim(lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"), [3, 2, 4, 4])(x) | image | Conv2d(4, 4, (3, 2)) | images
slim depthwise       | slim(lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "VALID"), [3, 2, 4, 2], "depthwise_weights", 8)(x) | image | Conv2d(4, 8, (3, 2), groups=4) | images
embedding            | tf.nn.embedding_lookup(v1.get_variable("up/embeddings", [9, 9]), x) | words | Embedding(9, 9) | plain
BasicLSTMCell        | rolled(BasicLSTMCell(4))(x)                            | line  | LSTM(4, 4, batch_first=True) | sequence
LSTMCell             | rolled(LSTMCell(3))(x)                                 | line  | LSTM(4, 3, batch_first=True) | sequence
LSTMCell without forget bias | rolled(LSTMCell(4, forget_bias=0.0))(x)        | line  | LSTM(4, 4, batch_first=True) | sequence
CuDNN's cell         | rolled(LSTMCell(4, forget_bias=0.0, name="cudnn_compatible_lstm_cell"))(x) | line | LSTM(4, 4, batch_first=True) | sequence
MultiRNNCell         | rolled(LSTMCell(4), LSTMCell(4))(x)                    | line  | LSTM(4, 4, 2, batch_first=True) | sequence
bidirectional        | both_ways(BasicLSTMCell(4), BasicLSTMCell(4))(x)       | line  | LSTM(4, 4, batch_first=True, bidirectional=True) | sequence
BasicRNNCell         | rolled(BasicRNNCell(4))(x)                             | line  | RNN(4, 4, batch_first=True) | sequence
GRUCell              | rolled(GRUCell(4))(x)                                  | line  | ResetBefore(4, 4) | sequence
bidirectional GRUCell | both_ways(GRUCell(3), GRUCell(3))(x)                  | line  | Both(4, 3)      | sequence
""")  # noqa: E501


@pytest.mark.parametrize("layer", GRAPHS)
def test_tensorflow_layer(layer: str, tmp_path: Path) -> None:
    made, shape, module, how = GRAPHS[layer]
    x = inputs(SHAPES[shape])
    with v1.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(x.dtype, x.shape)
        out = eval(made, names() | {"x": given})
        for i, v in enumerate(v1.global_variables()):
            value = np.random.default_rng(i).normal(size=tuple(v.shape))
            v.load(np.abs(value) if "variance" in v.name else value, session)
        want = session.run(out, {given: x})
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)
    params = {"forget_bias": 0} if layer == "LSTMCell without forget bias" else {}
    prefix = "conv2d_transpose." if layer == "conv2d_transpose" else "up."
    loaded = filled(eval(module, NAMED), converted(tmp_path / "model.ckpt", "tf-torch", **params), prefix)
    assert agrees(lambda x: CALLS[how](loaded, x), x, want)


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
    with tf.Graph().as_default(), v1.Session() as session:
        rolled(names()["BasicLSTMCell"](2))(v1.placeholder("float32", (1, 2, 3)))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "lstm.ckpt"), write_meta_graph=False)
    for source in (fixtures / "g2p_en", tmp_path / "lstm.ckpt"):
        weights, forced = {"weights_only": True}, {"force": True}
        ckptconv.convert(source, there, **weights, converter="tf-torch", **forced)
        ckptconv.convert(there, back, converter="tf-torch", inverse=True, **forced)
        before, reader = ckptconv.open(source, weights_only=True), tf.train.load_checkpoint(str(back))
        assert sorted(reader.get_variable_to_shape_map()) == sorted(before)
        assert [n for n in before if not same(reader.get_tensor(n), before[n].numpy())] == []
    assert ckptconv.open(there)["up.bias_hh_l0"].numpy().tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
