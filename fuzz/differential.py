"""Random checkpoints through TensorFlow, torch, Keras, safetensors, h5py, NumPy and us: all must read the same values.

    differential.py SECONDS [SEED]
    differential.py FAMILY CASES [SEED]     random files over the options of one framework: see options/__init__.py

Each round makes tensors of random names, dtypes, shapes and values (NaN payloads, -0.0, empty, scalars), or a Keras
model of random layers with such values, then
  - writes them with one framework (of TensorFlow: raw ops, tf.train.Checkpoint or a SavedModel; of Keras: .keras,
    .weights.h5 or legacy .h5), reads them with us;
  - converts that to every other format with us, reads it with that format's framework; what Keras wrote also to
    .weights.h5 and to legacy .h5, which Keras loads into a model that was cleared.
A difference in a name, dtype, shape or bit ends the run with the seed that makes it again.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import ml_dtypes
import numpy as np

import ckptconv
from ckptconv import api

Values = dict[str, np.ndarray]
COMMON = ("float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")
MORE = (*COMMON, "bfloat16")
WORDS = ("dense", "kernel", "bias", "layer_1", "block", "w", "é", "0", "gamma", "LayerNorm", "a b")


def some(choose: random.Random, dtypes: tuple[str, ...], sep: str) -> Values:
    made: Values = {}
    for _ in range(choose.randint(1, 12)):
        name = sep.join(choose.choice(WORDS) for _ in range(choose.randint(1, 4))) + str(len(made))
        shape = tuple(choose.choice((0, 1, 2, 3, 7, 16, 33)) for _ in range(choose.randint(0, 4)))
        kind = choose.choice(dtypes)
        item = np.dtype(getattr(ml_dtypes, kind, kind))
        count = int(np.prod(shape, dtype=np.int64))
        raw = choose.randbytes(count * item.itemsize)
        array = np.frombuffer(raw, "u1") & 1 if kind == "bool" else np.frombuffer(raw, "u1")
        made[name] = array.view(item).reshape(shape)
    return made


class Peer(NamedTuple):
    """How a framework writes and reads a file of this name."""

    file: str
    format: str
    dtypes: tuple[str, ...]
    sep: str
    write: Callable[[Values, Path], None]
    read: Callable[[Path], Values]


def _numpy() -> Peer:
    def read(path: Path) -> Values:
        with np.load(path) as z:
            return {n: z[n] for n in z.files}

    return Peer("m.npz", "npz", COMMON, "/", lambda v, p: np.savez(p, **v), read)


def _safetensors() -> Peer:
    from safetensors.numpy import load_file, save_file

    return Peer("m.safetensors", "safetensors", MORE, ".", lambda v, p: save_file(v, p), lambda p: dict(load_file(p)))


def _torch() -> Peer:
    import torch

    def to(a: np.ndarray) -> torch.Tensor:
        a = np.array(a)
        return (
            torch.from_numpy(a.view("i2")).view(torch.bfloat16) if a.dtype.name == "bfloat16" else torch.from_numpy(a)
        )

    def back(t: torch.Tensor) -> np.ndarray:
        if t.dtype == torch.bfloat16:
            return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return t.numpy()

    def read(path: Path) -> Values:
        return {n: back(t) for n, t in torch.load(path, weights_only=True).items()}

    return Peer("m.pt", "torch", MORE, ".", lambda v, p: torch.save({n: to(a) for n, a in v.items()}, p), read)


def _tensorflow() -> Peer:
    import tensorflow as tf

    def write(values: Values, path: Path) -> None:
        with tf.device("cpu"):
            names, arrays = list(values), [tf.constant(a) for a in values.values()]
            tf.raw_ops.SaveV2(prefix=str(path), tensor_names=names, shape_and_slices=[""] * len(names), tensors=arrays)

    def read(path: Path) -> Values:
        reader = tf.train.load_checkpoint(str(path))
        return {n: np.asarray(reader.get_tensor(n)) for n in reader.get_variable_to_shape_map()}

    return Peer("m.ckpt", "tf", MORE, "/", write, read)


def _h5py() -> Peer:
    """HDF5 by the library that Keras uses for it."""
    import h5py

    def write(values: Values, path: Path) -> None:
        with h5py.File(path, "w") as f:
            for name, a in values.items():
                f[name] = a

    def read(path: Path) -> Values:
        out: Values = {}
        with h5py.File(path) as f:
            f.visititems(lambda n, d: out.__setitem__(n, d[()]) if isinstance(d, h5py.Dataset) else None)
        return {n: np.asarray(a) for n, a in out.items()}

    return Peer("m.hdf5", "hdf5", COMMON, ".", write, read)


# --- what is only a source ---------------------------------------------------------------------------------------

Source = Callable[[random.Random, Path], tuple[Path, str, Values]]


def of(peer: Peer) -> Source:
    """Arrays of random names, as the framework writes them."""

    def make(choose: random.Random, folder: Path) -> tuple[Path, str, Values]:
        values = some(choose, peer.dtypes, choose.choice((peer.sep, ".")))
        peer.write(values, folder / peer.file)
        return folder / peer.file, peer.format, values

    return make


def tf_objects(choose: random.Random, folder: Path) -> tuple[Path, str, Values]:
    """Variables held by objects in objects; names have characters that object paths escape."""
    import tensorflow as tf

    values = some(choose, MORE, "/")
    root = tf.train.Checkpoint()
    for name, a in values.items():
        *above, last = name.split("/")
        at = root
        for part in above:
            if not hasattr(at, part):
                setattr(at, part, tf.train.Checkpoint())
            at = getattr(at, part)
        setattr(at, last, tf.Variable(tf.constant(a)))
    root.write(str(folder / "m"))
    return folder / "m", "tf", values


def tf_saved(choose: random.Random, folder: Path) -> tuple[Path, str, Values]:
    """A SavedModel, whose variables go by their own names."""
    import tensorflow as tf

    values = {n.replace(" ", "_").replace("é", "e"): a for n, a in some(choose, MORE, "/").items()}
    module = tf.Module()
    module.held = [tf.Variable(tf.constant(a), name=n, trainable=choose.random() < 0.5) for n, a in values.items()]
    tf.saved_model.save(module, str(folder / "m"))
    return folder / "m", "tf-graph", values


def keras_model(choose: random.Random, file: str) -> Any:
    """A small model of random layers; every variable has random bits."""
    import keras

    keras.utils.clear_session()
    L = keras.layers  # noqa: N806
    policies = ("float32", "float32", "float16", "float64", "bfloat16")  # Keras does not load its legacy bfloat16
    keras.config.set_dtype_policy(choose.choice(policies[:-1] if file == "m.h5" else policies))
    kind = choose.choice(("dense", "image", "text"))
    bare = file == "m.weights.h5"  # which does not say whether a lone vector is gamma or beta
    words = iter(choose.sample([w.replace(" ", "_") + str(i) for i, w in enumerate(WORDS)], len(WORDS)))
    size, flag = (lambda: choose.randint(1, 7)), (lambda: choose.random() < 0.5)
    if kind == "image":
        layers = [keras.Input((9, 9, 3)), L.Conv2D(size(), 3, use_bias=flag(), name=next(words))]
        layers += [L.DepthwiseConv2D(3, name=next(words)), L.BatchNormalization(scale=flag() or bare), L.Flatten()]
    elif kind == "text":
        zeros = {"recurrent_initializer": "zeros"}  # the usual one knows no bfloat16
        cell = choose.choice((L.LSTM, L.GRU, L.SimpleRNN))
        layers = [keras.Input((5,)), L.Embedding(7, size(), name=next(words))]
        layers.append(cell(size(), return_sequences=True, **zeros))
        layers += [L.Bidirectional(L.LSTM(size(), **zeros), name=next(words))] if flag() else [L.Flatten()]
    else:
        inner = [L.Dense(size(), use_bias=flag()) for _ in range(choose.randint(1, 3))]
        layers = [keras.Input((size(),)), keras.Sequential(inner, name=next(words)), L.LayerNormalization()]
    model = keras.Sequential([*layers, L.Dense(size(), name=next(words))], name="net")
    for v in model.weights:
        kind_of = np.dtype(getattr(ml_dtypes, v.dtype, v.dtype))
        v.assign(np.frombuffer(choose.randbytes(int(np.prod(v.shape)) * kind_of.itemsize), kind_of).reshape(v.shape))
    return model


def keras_written(choose: random.Random, folder: Path) -> tuple[Path, str, Values]:
    """One of the three files that Keras writes; then that Keras loads what we make of it."""
    file = choose.choice(("m.keras", "m.weights.h5", "m.h5"))
    model = keras_model(choose, file)
    (model.save_weights if "weights" in file else model.save)(folder / file)
    own = "" if file == "m.h5" else model.name + "/"  # legacy lists hold whole paths
    held = [(v, v.path.removeprefix(own), np.asarray(v)) for v in model.weights]
    out = folder / ("b.h5" if file == "m.h5" else "b.weights.h5")
    api.convert(folder / file, out, target=api.Target(sync=False))
    for v, _, a in held:
        v.assign(np.zeros(a.shape, a.dtype))
    model.load_weights(out)
    for v, name, a in held:
        if np.asarray(v).tobytes() != a.tobytes():
            raise AssertionError(f"{name}: Keras loads other bits from what was made of {file}")
    return folder / file, "keras" if file == "m.h5" else "keras3", {name: a for _, name, a in held}


def differs(want: Values, got: Values) -> str:
    if want.keys() != got.keys():
        return f"names {sorted(want.keys() ^ got.keys())}"
    for n, a in want.items():
        b = got[n]
        if (a.dtype, a.shape) != (b.dtype, b.shape) or a.tobytes() != b.tobytes():
            return f"{n}: {a.dtype}{a.shape} is {b.dtype}{b.shape}, or other bits"
    return ""


def one(seed: int, peers: list[Peer]) -> int:
    """One round; returns how many comparisons were made."""
    choose, done = random.Random(seed), 0
    make = choose.choice([*map(of, peers), tf_objects, tf_saved, keras_written])
    with tempfile.TemporaryDirectory() as folder:
        source, format, values = make(choose, Path(folder))
        got = {n: t.numpy() for n, t in ckptconv.open(source, format=format).items() if not t.role}
        check(seed, f"{format}, read by us", values, got)
        for reader in peers:
            if not {a.dtype.name for a in values.values()} <= set(reader.dtypes):
                continue
            out = Path(folder) / reader.format / reader.file
            memory = choose.choice((16 << 20, 512 << 20))
            target = api.Target(format=reader.format, verify=choose.choice(("none", "full")), sync=False)
            api.convert(source, out, target=target, resources=api.Resources(memory, choose.randint(1, 3)))
            check(seed, f"{format} to {reader.format}", values, reader.read(out))
            done += 1
    return done + 1


def check(seed: int, what: str, want: Values, got: Values) -> None:
    if why := differs(want, got):
        raise SystemExit(f"seed {seed}: {what}: {why}")


def main() -> None:
    from options import FAMILIES
    from options.common import report

    if sys.argv[1] in FAMILIES:
        sys.exit(report(sys.argv[1], *map(int, sys.argv[2:])))
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    peers = [_numpy(), _safetensors(), _torch(), _tensorflow(), _h5py()]
    end, rounds, done = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        try:
            done += one(seed + rounds, peers)
        except Exception:
            print(f"seed {seed + rounds}:", file=sys.stderr)
            raise
        rounds += 1
    print(f"{rounds} random checkpoints, {done} comparisons, no difference (seeds {seed} to {seed + rounds - 1})")


if __name__ == "__main__":
    main()
