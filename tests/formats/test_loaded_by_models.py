"""What we write is proved by a program that loads it into a model of its own, not by the names in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("tensorflow")]


def values(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


# --- tf.train.Checkpoint ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def module(tf: Any, start: int = 0) -> Any:
    """Shared variables, lists, names with a slash, an integer: what an object graph can say."""
    m = tf.Module()
    m.w = tf.Variable(values(start, (3, 4)))
    m.many = [tf.Variable(values(start + 1, (4,))), tf.Variable(values(start + 2, (4,)))]
    m.inner = tf.Module()
    m.inner.again, m.inner.step = m.w, tf.Variable(start + 7, dtype=tf.int64)
    m.named = {"a/b": tf.Variable(values(start + 3, (2,))), "c.d": tf.Variable(values(start + 4, (2,)))}
    return m


def flat(m: Any) -> list[np.ndarray]:
    return [v.numpy() for v in (m.w, *m.many, m.inner.step, *m.named.values())]


def assert_restored(tf: Any, path: Path, **objects: Any) -> None:
    status = tf.train.Checkpoint(**objects).read(str(path))
    status.assert_existing_objects_matched()
    status.assert_consumed()


@pytest.mark.parametrize("limit", [None, 40], ids=["whole", "shards"])
def test_checkpoint_reads_objects(tf: Any, tmp_path: Path, limit: int | None) -> None:
    was, now = module(tf), module(tf, 100)
    tf.train.Checkpoint(m=was).write(str(tmp_path / "a"))
    ckptconv.convert(tmp_path / "a.index", tmp_path / "b.ckpt", max_shard_size=limit)
    assert_restored(tf, tmp_path / "b.ckpt", m=now)
    assert all(np.array_equal(a, b) for a, b in zip(flat(was), flat(now), strict=True))
    assert set(ckptconv.open(tmp_path / "b.ckpt")) == set(ckptconv.open(tmp_path / "a.index"))
    ckptconv.verify(tmp_path / "a.index", tmp_path / "b.ckpt")


@pytest.mark.parametrize("which", ["keras", "tf_keras"])
def test_checkpoint_reads_a_model_and_its_optimizer(tf: Any, which: str, tmp_path: Path) -> None:
    k = pytest.importorskip(which, reason=f"{which} is not installed")

    def trained(epochs: int) -> Any:
        L = k.layers  # noqa: N806
        net = k.Sequential([k.Input((4,)), L.Dense(4), L.BatchNormalization(), L.Dense(1)])
        net.compile("adam", "mse")
        net.fit(values(1, (8, 4)), values(2, (8, 1)), epochs=epochs, verbose=0)
        return net

    was, now = trained(3), trained(1)
    x = values(3, (5, 4))
    tf.train.Checkpoint(net=was).save(str(tmp_path / "a"))
    ckptconv.convert(tmp_path / "a-1.index", tmp_path / "b.ckpt")
    tf.train.Checkpoint(net=now).restore(str(tmp_path / "b.ckpt")).assert_existing_objects_matched()
    assert np.array_equal(was(x), now(x))
    assert int(now.optimizer.iterations) == 3
    ckptconv.convert(tmp_path / "a-1.index", tmp_path / "c.ckpt", weights_only=True)
    fresh = trained(2)
    tf.train.Checkpoint(net=fresh).read(str(tmp_path / "c.ckpt")).expect_partial()
    assert np.array_equal(was(x), fresh(x))
    assert int(fresh.optimizer.iterations) == 2


def test_a_note_says_where_the_graph_is_lost(tf: Any, tmp_path: Path) -> None:
    tf.train.Checkpoint(m=module(tf)).write(str(tmp_path / "a"))
    done = ckptconv.convert(tmp_path / "a.index", tmp_path / "b.ckpt", rename=["m/w=m/weight"])
    assert [n.kind for n in done.notes] == ["dropped"]
    assert "tf.train.Checkpoint cannot read the result" in done.notes[0].text
    reader = tf.train.load_checkpoint(str(tmp_path / "b.ckpt"))
    assert np.array_equal(reader.get_tensor("m/weight"), values(0, (3, 4)))


def test_saver_restores(tf: Any, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        one = v1.get_variable("scope/one", (3, 4))
        parts = v1.get_variable("parts", (6, 2), partitioner=v1.fixed_size_partitioner(3))
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        was = session.run([one, *parts])
        saver.save(session, str(tmp_path / "a"), write_meta_graph=False)
        for number, via in enumerate(("b.ckpt", "c.safetensors", "d.npz")):
            ckptconv.convert(tmp_path / "a.index", tmp_path / via)
            if number:
                ckptconv.convert(tmp_path / via, tmp_path / f"{via}.ckpt")
            session.run(v1.global_variables_initializer())
            saver.restore(session, str(tmp_path / (f"{via}.ckpt" if number else via)))
            assert all(np.array_equal(a, b) for a, b in zip(was, session.run([one, *parts]), strict=True))


def test_the_order_of_layers_does_not_disturb_tensorflow(tf: Any, tmp_path: Path) -> None:
    """It is a field of the header that TensorFlow does not know."""
    tf_keras = pytest.importorskip("tf_keras", reason="TF-Keras is not installed")
    net = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(2, name="z")])
    net.save_weights(str(tmp_path / "a.h5"))
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.ckpt")
    assert tf.train.list_variables(str(tmp_path / "b.ckpt")) == [("z/bias", [2]), ("z/kernel", [4, 2])]
    assert "ckptconv.keras" in ckptconv.open(tmp_path / "b.ckpt").metadata
    assert np.array_equal(tf.train.load_variable(str(tmp_path / "b.ckpt"), "z/kernel"), net.get_weights()[0])


# --- torch --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def network(torch: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    nn = torch.nn
    net = nn.ModuleDict(
        {"emb": nn.Embedding(7, 4), "bn": nn.BatchNorm1d(4), "rnn": nn.LSTM(4, 3, 2, bidirectional=True),
         "enc": nn.TransformerEncoderLayer(4, 2, 8), "out": nn.Linear(4, 7, bias=False)}
    )  # fmt: skip
    net["out"].weight = net["emb"].weight
    net["bn"].num_batches_tracked += seed
    return net


@pytest.mark.parametrize("via", ["b.pt", "b.safetensors", "b.npz", "b.ckpt", "b.hdf5", "b.msgpack"])
def test_torch_loads_strictly(torch: Any, via: str, tmp_path: Path) -> None:
    was, now = network(torch, 1), network(torch, 2)
    torch.save(was.state_dict(), tmp_path / "a.pt")
    ckptconv.convert(tmp_path / "a.pt", tmp_path / via)
    if not via.endswith(".pt"):
        ckptconv.convert(tmp_path / via, tmp_path / "b.pt")
    now.load_state_dict(torch.load(tmp_path / "b.pt", weights_only=True), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(was.state_dict().values(), now.state_dict().values(), strict=True))
