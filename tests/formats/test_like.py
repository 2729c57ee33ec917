"""`like`: the values of one file under the names, order and metadata of another, which the target's framework loads."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.errors import ConversionError, UsageError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("tensorflow")]
TEMPLATE = {"b": np.zeros(2, "f4"), "a": np.zeros((2, 3), "f4"), "n.num_batches_tracked": np.array(0)}
TEMPLATE["global_step"] = np.array(7)
GIVEN = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones(2, "f4")}


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.npz", "x.msgpack", "x.ckpt", "x.hdf5"])
def test_names_order_and_metadata_are_those_of_the_template(name: str, tmp_path: Path) -> None:
    ckptconv.save(TEMPLATE, tmp_path / f"t{name}")
    template = ckptconv.open(tmp_path / f"t{name}")
    done = ckptconv.convert(GIVEN, tmp_path / name, like=tmp_path / f"t{name}")
    found = ckptconv.open(tmp_path / name)
    assert list(found) == list(template)
    assert all(np.array_equal(found[n].numpy(), a) for n, a in (GIVEN | {"global_step": 7}).items())
    assert [len(n.names) for n in done.notes if "values stay: 1 buffer, 1 step counter" in n.text] == [2]
    assert ckptconv.verify(GIVEN, tmp_path / name, like=template).tensors == 4


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": GIVEN["a"]}, "tensors; partial=True keeps what only it has:\n  b: only the template has it"),
        (GIVEN | {"c": np.ones(1)}, "\n  c: only the source gives it"),
        (
            GIVEN | {"a": np.ones((3, 2), "f4"), "global_step": np.int32(7)},
            r"other tensors:\n  a: the source gives float32 3x2, the template has float32 2x3",
        ),
        (
            GIVEN | {"b": np.ones(2, "f2")},
            r"tensors; dtype='float32' casts floats:\n  b: the source gives float16 2, the template has",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_that_lists_it(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=says):
        ckptconv.convert(given, tmp_path / "x.npz", like=TEMPLATE)
    assert not list(tmp_path.iterdir())


def test_the_template_keeps_what_a_part_lacks(tmp_path: Path) -> None:
    done = ckptconv.convert(
        {"a": GIVEN["a"], "a/Adam": np.ones((2, 3))}, tmp_path / "x.npz", like=TEMPLATE, partial=True
    )
    assert ckptconv.open(tmp_path / "x.npz")["b"].numpy().tolist() == [0, 0]
    kept = [n.names for n in done.notes if "stay: 1 weight, 1 buffer, 1 step counter" in n.text]
    assert kept == [("b", "n.num_batches_tracked", "global_step")]


def test_the_command_line_finds_the_rules(cli: Run, tmp_path: Path) -> None:
    """And refuses what is doubtful, with the command that shows it."""
    pytest.importorskip("scipy", reason="`match` needs it")
    torch = {"fc1.weight": np.ones((4, 3), "f4"), "fc1.bias": np.ones(4, "f4"), "fc2.weight": np.ones((2, 4), "f4")}
    keras = {"fc1/kernel": np.zeros((3, 4), "f4"), "fc1/bias": np.zeros(4, "f4"), "fc2/kernel": np.zeros((4, 2), "f4")}
    ckptconv.save(torch | {"bn.num_batches_tracked": np.array(3)}, tmp_path / "m.pt")
    ckptconv.save(keras, tmp_path / "fresh.npz")
    done = cli("m.pt", "-o", "x.npz", "--like", "fresh.npz")
    assert (done.returncode, list(ckptconv.open(tmp_path / "x.npz"))) == (0, list(keras))
    ckptconv.save(keras | {"fc3/kernel": np.zeros((2, 2), "f4")}, tmp_path / "more.npz")
    done = cli("m.pt", "-o", "y.npz", "--like", "more.npz")
    assert done.returncode == 6
    assert (
        "1 tensor missing in the source; `ckptconv match m.pt more.npz --no-values -o rules.toml` shows" in done.stderr
    )


def test_a_template_gives_the_names_that_the_inverse_cannot_know(cli: Run, tmp_path: Path) -> None:
    """Flax calls weight kernel, scale or embedding; a state dict that was trained in PyTorch has no record of it."""
    shapes = {"emb/embedding": (5, 4), "norm/scale": (4,), "0/dense/kernel": (4, 3), "0/dense/bias": (3,)}
    fresh = {f"params/{n}": np.zeros(s, "f4") for n, s in shapes.items()}
    state = {n.split("/")[-2]: np.random.default_rng(0).normal(size=s).astype("f4") for n, s in shapes.items()}
    bias, kernel = np.ones(3, "f4"), np.arange(12, dtype="f4").reshape(3, 4)
    trained = {"emb.weight": state["emb"], "norm.weight": state["norm"], "0.dense.weight": kernel, "0.dense.bias": bias}
    trained["norm.num_batches_tracked"] = np.array(3)
    ckptconv.save(fresh, tmp_path / "fresh.msgpack")
    ckptconv.save(trained, tmp_path / "m.pt")
    back = ("m.pt", "-o", "x.msgpack", "-c", "hf-flax", "--inverse")
    assert "give a file of the framework as --like" in cli(*back).stderr
    assert cli(*back, "--like", "fresh.msgpack").returncode == 0
    found = ckptconv.open(tmp_path / "x.msgpack")
    assert list(found) == list(ckptconv.open(tmp_path / "fresh.msgpack"))
    want = (state["emb"], state["norm"], kernel.T, bias)
    assert all(np.array_equal(found[n].numpy(), a) for n, a in zip(fresh, want, strict=True))
    ckptconv.save(trained | {"more.weight": bias}, tmp_path / "m.pt", force=True)
    assert "with --exclude more.weight, or" in cli(*back, "--like", "fresh.msgpack", "--force").stderr


@pytest.mark.parametrize(
    ("name", "framework", "suffix"),
    [
        ("conv_batch_norm", "tf_keras", "h5"), ("nested_frozen", "keras", "weights.h5"),
        ("bidirectional", "tf_keras", "h5"), ("custom_with_a_state", "keras", "weights.h5"),
    ],
)  # fmt: skip
def test_keras_loads_it(name: str, framework: str, suffix: str, tmp_path: Path) -> None:
    """Values from a file that keeps no order, into one as Keras wrote it."""
    k = pytest.importorskip(framework)
    from keras_trips import built, loads

    model, inputs = built(k, name)
    values = [np.asarray(v) for v in model.weights]
    model.save_weights(str(tmp_path / f"values.{suffix}"))
    for v in model.weights:
        v.assign(np.zeros(tuple(v.shape), "f4").astype(np.asarray(v).dtype))
    model.save_weights(str(tmp_path / f"fresh.{suffix}"))
    for v, a in zip(model.weights, values, strict=True):
        v.assign(a)
    found = ckptconv.open(tmp_path / f"values.{suffix}")
    ckptconv.save({n: found[n].numpy() for n in sorted(found, reverse=True)}, tmp_path / "x.npz")
    ckptconv.convert(tmp_path / "x.npz", tmp_path / f"out.{suffix}", like=tmp_path / f"fresh.{suffix}")
    assert loads(model, inputs, tmp_path / f"out.{suffix}")


def test_tensorflow_restores_its_objects(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    def module(start: float) -> Any:
        made = tf.Module()
        made.many = [tf.Variable([start, start]), tf.Variable([[start + 1]])]
        made.named = {"a/b": tf.Variable([start + 2])}
        return made

    was, now = module(0.0), module(10.0)
    values = tf.train.Checkpoint(m=was).save(str(tmp_path / "a"))
    fresh = tf.train.Checkpoint(m=now).save(str(tmp_path / "b"))
    found = ckptconv.open(values, weights_only=True)
    ckptconv.convert({n: found[n].numpy() for n in found}, tmp_path / "c", like=fresh, to="tf")
    tf.train.Checkpoint(m=now).restore(str(tmp_path / "c")).assert_consumed()
    assert now.many[1].numpy().tolist() == [[1.0]]
    assert now.named["a/b"].numpy().tolist() == [2.0]


def test_a_graph_restores_what_was_matched(cli: Run, tmp_path: Path) -> None:
    """By a Saver of TensorFlow 1 with its Adam slots; names of variables as the tutorials have them."""
    v1 = pytest.importorskip("tensorflow").compat.v1
    pytest.importorskip("scipy", reason="`match` needs it")
    rng = np.random.default_rng(0)
    state = {f"fc{k}.{n}": rng.normal(size=s[: 2 - (n == "bias")]).astype("f4") for n in ("weight", "bias")
             for k, s in ((1, (5, 4)), (2, (3, 5)))}  # fmt: skip
    ckptconv.save(state, tmp_path / "m.pt")
    with v1.Graph().as_default(), v1.Session() as session:
        of = {n: v1.get_variable(n, s) for n, s in {"w1": (4, 5), "b1": 5, "w2": (5, 3), "b2": 3}.items()}
        x = rng.normal(size=(2, 4)).astype("f4")
        y = (x @ of["w1"] + of["b1"]) @ of["w2"] + of["b2"]
        v1.train.AdamOptimizer().minimize(y, v1.train.get_or_create_global_step())
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "fresh"))
        done = cli("m.pt", "-o", "out", "--to", "tf", "--like", "fresh")
        assert done.returncode == 0, done.stderr
        v1.train.Saver().restore(session, str(tmp_path / "out"))
        want = (x @ state["fc1.weight"].T + state["fc1.bias"]) @ state["fc2.weight"].T + state["fc2.bias"]
        assert np.allclose(session.run(y), want, atol=1e-5)


MODELS = """
def torch():
    from torch import nn
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2))

def keras(k):
    layers = k.layers
    return k.Sequential([k.Input((5, 5, 3)), layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(2)])

def keras3():
    import keras as k
    return keras(k)

def keras2():
    import tf_keras as k
    return keras(k)

def parameters():
    import numpy as np
    dense = {"kernel": np.zeros((36, 2), "f4"), "bias": np.zeros(2, "f4")}
    conv = {"kernel": np.zeros((3, 3, 3, 4), "f4"), "bias": np.zeros(4, "f4")}
    return {"params": {"Conv_0": conv, "Dense_0": dense}}
"""


@pytest.mark.parametrize(("kind", "suffix"), [("keras3", "weights.h5"), ("keras2", "h5"), ("torch", "pt")])
def test_a_model_is_a_template(
    kind: str, suffix: str, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own config says where a feature map is flattened, so that only the order is assumed, which is said."""
    pytest.importorskip("scipy", reason="`match` needs it")
    torch = pytest.importorskip("torch")
    if kind != "torch":
        pytest.importorskip({"keras3": "keras", "keras2": "tf_keras"}[kind])
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    models = importlib.import_module("models")
    own, x = models.torch(), np.random.default_rng(0).normal(size=(2, 5, 5, 3)).astype("f4")
    want = own(torch.tensor(x).permute(0, 3, 1, 2)).detach().numpy()
    ckptconv.save(own, tmp_path / "m.pt")
    done = cli("m.pt", "-o", f"cli.{suffix}", "--like", f"models:{kind}")
    assert done.returncode == 0, done.stderr
    planned = cli("m.pt", "-o", f"no.{suffix}", "--like", f"models:{kind}", "--dry-run").stderr
    for said in done.stderr, planned:
        assert (f"show the other order: `ckptconv match m.pt models:{kind}" in said) == (kind != "torch"), said
    model = getattr(models, kind)()
    found = ckptconv.match(tmp_path / "m.pt", model)
    ckptconv.convert(tmp_path / "m.pt", tmp_path / f"py.{suffix}", converter=found, like=model)
    for name in "cli", "py":
        if kind == "torch":
            model.load_state_dict(torch.load(tmp_path / f"{name}.pt"))
            assert np.array_equal(model(torch.tensor(x).permute(0, 3, 1, 2)).detach().numpy(), want)
        else:
            model.load_weights(str(tmp_path / f"{name}.{suffix}"))
            assert np.allclose(np.asarray(model(x)), want, atol=1e-5)


def test_parameters_in_memory_are_a_template(cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="`match` needs it")
    (tmp_path / "models.py").write_text(MODELS)
    given = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "fc.weight": (2, 36), "fc.bias": (2,)}
    ckptconv.save({n: np.ones(s, "f4") for n, s in given.items()}, tmp_path / "m.pt")
    refused = cli("m.pt", "-o", "x.msgpack", "--like", "models:parameters")
    assert "`ckptconv match m.pt models:parameters --no-values -o rules.toml` shows them" in refused.stderr
    assert cli("match", "m.pt", "models:parameters", "-o", "rules.toml").returncode == 0
    assert cli("m.pt", "-o", "x.msgpack", "-c", "rules.toml", "--like", "models:parameters").returncode == 0
    assert [t.shape for t in ckptconv.open(tmp_path / "x.msgpack").values()] == [(3, 3, 3, 4), (4,), (36, 2), (2,)]
    assert "models:no: module 'models' has no attribute 'no'" in cli("m.pt", "-o", "y.pt", "--like", "models:no").stderr


def test_a_model_without_weights_says_so(tmp_path: Path) -> None:
    k = pytest.importorskip("keras")
    with pytest.raises(UsageError, match="the Keras model has no weights yet: build it, or call it once"):
        ckptconv.convert(GIVEN, tmp_path / "x.weights.h5", like=k.Sequential([k.layers.Dense(2)]))
