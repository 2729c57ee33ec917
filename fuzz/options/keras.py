"""Keras 3 and Keras 2 (tf_keras): small models of random layers and options, in each of the files that Keras writes.

What Keras holds in memory is what we read from its file. What we write of that, at once or by way of safetensors, is
loaded by Keras into the same model, whose weights were set to zero. A model serves SHARED seeds, with other values.

Keras takes 50 ms for that. In most cases it therefore does not write and load itself: other values are put into a file
that it wrote, and are looked for in ours where it looks: at its paths, or at its positions in a legacy file.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import numpy as np

from .common import Case, Choice, Ours, Values, native, some_bytes
from .hdf5 import around

SHARED = 50
LOADED = 10  # one in so many is written and loaded by Keras
FILES = {"keras": ("m.keras", "m.weights.h5", "m.h5", "m.weights.json"), "tf_keras": ("m.h5", "whole.h5")}
NAMES = ("dense", "a b", "x.y", "conv", "0", "layer", "Z", "kernel", "gamma", "block_1", "é")
POLICIES = ("float32", "float32", "float32", "float16", "float64", "bfloat16", "mixed_float16")

REFUSED = {
    "finds weights by object paths": "legacy names in a .weights.h5, whose paths only the model's code knows",
    "order of the model is not known": "an order that is not known, where a guess could not be noticed",
}
LENIENT: dict[str, str] = {}

__all__ = ["LENIENT", "REFUSED", "around", "as_named", "make", "oracle"]


def oracle() -> str:
    import keras
    import tensorflow as tf
    import tf_keras

    return f"keras {keras.__version__}, tf_keras {tf_keras.__version__} on tensorflow {tf.__version__}"


# --- models -----------------------------------------------------------------------------------------------------


class Builder:
    """Random layers of one framework; names are given, so that each variable has a name of its own."""

    def __init__(self, seed: int) -> None:
        import keras
        import tf_keras

        self.rng = random.Random(seed)
        self.two = self.rng.random() < 0.35
        self.k: Any = tf_keras if self.two else keras
        self.count = 0

    def name(self) -> str:
        self.count += 1
        word = self.rng.choice(NAMES)
        word = word.replace(" ", "_").replace("é", "e") if self.two else word  # its scopes are TensorFlow's
        return (
            f"{'n' if self.two else ''}{word}{self.count if self.rng.random() < 0.8 else 20 - self.count}_{self.count}"
        )

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    def model(self) -> Any:
        k = self.k
        k.backend.clear_session()
        policy = self.rng.choice(("float32", "float32", "float16", "float64") if self.two else POLICIES)
        (k.mixed_precision.set_global_policy if self.two else k.config.set_dtype_policy)(policy)
        try:
            return self.made()
        finally:  # the policy is the whole process's
            (k.mixed_precision.set_global_policy if self.two else k.config.set_dtype_policy)("float32")

    def made(self) -> Any:
        k = self.k
        kind = self.rng.choice(("vector", "sequence", "image", "tokens"))
        shape = {"vector": (4,), "sequence": (5, 4), "image": (6, 6, 4), "tokens": (5,)}[kind]
        self.steps = {"tokens": "sequence"}.get(kind, kind)
        first = [self.embedding()] if kind == "tokens" else []
        layers = [*first, *(self.layer(2) for _ in range(self.rng.randint(1, 4)))]
        start = k.Input(shape, dtype="int32" if kind == "tokens" else None)
        if self.flag():
            return k.Sequential([start, *layers], name=self.name())
        x = start
        for layer in layers:
            x = self.applied(layer, x)
        return k.Model(start, x, name=self.name())

    def applied(self, layer: Any, x: Any) -> Any:
        if type(layer).__name__ in ("MultiHeadAttention", "GroupQueryAttention"):
            return layer(x, x)
        if type(layer).__name__ in ("Attention", "AdditiveAttention"):
            return layer([x, x])
        twice = self.rng.random() < 0.15 and type(layer).__name__ != "Embedding"
        return layer(layer(x)) if twice else layer(x)

    def embedding(self) -> Any:
        return self.k.layers.Embedding(self.rng.randint(1, 5), 4, name=self.name())

    def layer(self, depth: int) -> Any:
        """A layer that keeps the shape of what it is given."""
        if depth and self.rng.random() < 0.15:
            return self.inner(depth - 1)
        makers: dict[str, tuple[Callable[[], Any], ...]] = {
            "vector": (self.dense,), "image": (self.conv, self.conv, self.depthwise, self.separable, self.transposed),
            "sequence": (self.recurrent, self.recurrent, self.bidirectional, self.distributed, self.conv1d, self.cells),
        }  # fmt: skip
        general = (self.dense, self.norm, self.batch_norm, self.norm, self.other)
        return self.rng.choice((*general, *makers[self.steps]))()

    def inner(self, depth: int) -> Any:
        """A model as a layer."""
        layers = [self.layer(depth) for _ in range(self.rng.randint(1, 3))]
        start = self.k.Input({"vector": (4,), "sequence": (5, 4), "image": (6, 6, 4)}[self.steps])
        return self.k.Sequential([start, *layers], name=self.name())

    def dense(self) -> Any:
        return self.k.layers.Dense(
            4, use_bias=self.flag(), activation=self.rng.choice((None, "relu")), name=self.name()
        )

    def norm(self) -> Any:
        L, g = self.k.layers, {"center": self.flag(), "scale": True, "name": self.name()}  # noqa: N806
        return L.GroupNormalization(2, **g) if self.steps != "vector" and self.flag() else L.LayerNormalization(**g)

    def batch_norm(self) -> Any:
        center, scale = self.rng.choice(((True, True), (True, False), (False, True), (False, False)))
        return self.k.layers.BatchNormalization(center=center, scale=scale, name=self.name())

    def other(self) -> Any:
        L, name = self.k.layers, self.name()  # noqa: N806
        match self.rng.randrange(4):
            case 0:
                return L.PReLU(name=name)
            case 1:
                return L.Dropout(0.5, name=name)
            case 2:
                return L.Activation("relu", name=name)
        return L.Dense(4, trainable=False, name=name)

    def conv(self) -> Any:
        groups = self.rng.choice((1, 1, 2))
        return self.k.layers.Conv2D(
            4, self.rng.randint(1, 3), padding="same", groups=groups, use_bias=self.flag(), name=self.name()
        )

    def conv1d(self) -> Any:
        L = self.k.layers  # noqa: N806
        return self.rng.choice((L.Conv1D, L.SeparableConv1D, L.Conv1DTranspose))(
            4, 2, padding="same", use_bias=self.flag(), name=self.name()
        )

    def depthwise(self) -> Any:
        return self.k.layers.DepthwiseConv2D(2, padding="same", use_bias=self.flag(), name=self.name())

    def separable(self) -> Any:
        return self.k.layers.SeparableConv2D(
            4, 2, padding="same", depth_multiplier=self.rng.randint(1, 2), use_bias=self.flag(), name=self.name()
        )

    def transposed(self) -> Any:
        return self.k.layers.Conv2DTranspose(4, 2, padding="same", use_bias=self.flag(), name=self.name())

    def recurrent(self, units: int = 4, **more: Any) -> Any:
        L = self.k.layers  # noqa: N806
        kind = self.rng.choice((L.LSTM, L.GRU, L.SimpleRNN))
        if kind is L.GRU:
            more["reset_after"] = self.flag()
        zeros = {"recurrent_initializer": "zeros"}  # the usual one knows no bfloat16
        return kind(units, return_sequences=True, use_bias=self.flag(), name=self.name(), **zeros, **more)

    def bidirectional(self) -> Any:
        return self.k.layers.Bidirectional(self.recurrent(2), name=self.name())

    def distributed(self) -> Any:
        return self.k.layers.TimeDistributed(self.dense(), name=self.name())

    def cells(self) -> Any:
        L = self.k.layers  # noqa: N806
        zeros = {"recurrent_initializer": "zeros"}
        made = [
            self.rng.choice((L.LSTMCell, L.GRUCell, L.SimpleRNNCell))(4, **zeros) for _ in range(self.rng.randint(1, 3))
        ]
        return L.RNN(made if len(made) > 1 else made[0], return_sequences=True, name=self.name())


@lru_cache(maxsize=1)
def built(seed: int) -> tuple[Any, bool]:
    builder = Builder(seed)
    return builder.model(), builder.two


# --- files ------------------------------------------------------------------------------------------------------


def drawn(choose: random.Random, model: Any) -> list[np.ndarray]:
    """Random bits for every weight."""
    out = []
    for v in model.weights:
        held = np.asarray(v)
        raw = some_bytes(choose, held.nbytes)
        out.append(np.frombuffer(raw, held.dtype).reshape(held.shape))
        v.assign(out[-1])
    return out


def spelled(model: Any, two: bool, file: str) -> list[str]:
    """The names of a model's weights as we give them."""
    if two:
        return [v.name.removesuffix(":0") for v in model.weights]
    return [v.path if file == "m.h5" else v.path.removeprefix(model.name + "/") for v in model.weights]


def make(choose: Choice, folder: Path) -> Case:
    model, two = built(choose.number // SHARED)
    files = [f for f in FILES["tf_keras" if two else "keras"] if f != "m.h5" or not has_bfloat16(model)]
    if choose.number % LOADED == 0:
        return case(choose, folder, model, two, choose.choice(files))
    return variant(choose, folder, choose.number // SHARED, choose.choice([f for f in files if f.endswith("h5")]))


def case(choose: random.Random, folder: Path, model: Any, two: bool, file: str) -> Case:
    values = drawn(choose, model)
    path = folder / file
    names = spelled(model, two, file)
    whole = file in ("m.keras", "whole.h5") or (file == "m.h5" and not two)
    if whole:
        model.save(str(path))
    else:
        model.save_weights(str(path), **({"max_shard_size": 0.0001} if file.endswith("json") else {}))

    def read(where: Path) -> Values:
        if where == path:
            return dict(zip(names, values, strict=True))
        for v, a in zip(model.weights, values, strict=True):
            v.assign(np.zeros(a.shape, a.dtype))
        model.load_weights(str(where))
        return {n: np.asarray(v) for n, v in zip(names, model.weights, strict=True)}

    back = "back.h5" if two or choose.random() < (0.95 if file == "m.h5" else 0.3) else "back.weights.h5"
    back = "back.weights.h5" if has_bfloat16(model) else back
    via = folder / choose.choice(("via.safetensors", "via.pt", "via.ckpt")) if choose.random() < 0.4 else None
    how = {"verify": choose.choice(("none", "none", "receipts"))}
    return Case(path, None, read, folder / back, {"weights_only": True}, how, via)


# --- other values in a file of Keras ----------------------------------------------------------------------------


class Written(NamedTuple):
    """A file that Keras wrote, its weights by name, and the name of each place: a path, or a position in the lists."""

    raw: bytes
    weights: Values
    places: dict[Any, str]


def places(f: Any) -> dict[Any, str]:
    """The paths of a file's weights by where Keras looks for them."""
    base = f.get("model_weights", f)
    if "layer_names" not in base.attrs and "layer_names0" not in base.attrs:
        found: dict[Any, str] = {}
        f.visititems(lambda n, d: found.update({n: n}) if isinstance(d, h5py.Dataset) else None)
        return found
    layers = [n.decode() if isinstance(n, bytes) else n for n in base.attrs["layer_names"]]
    lists = [(n, base[n].attrs["weight_names"]) for n in layers]
    lists = [(n, names) for n, names in lists if len(names)]
    text = [
        (i, j, n, w.decode() if isinstance(w, bytes) else w)
        for i, (n, ws) in enumerate(lists)
        for j, w in enumerate(ws)
    ]
    return {(i, j): f"{base.name.strip('/')}/{n}/{w}".strip("/") for i, j, n, w in text}


def stored(dataset: Any, like: np.ndarray) -> np.ndarray:
    """A dataset in the dtype of the weight; Keras stores bfloat16 as opaque bytes."""
    found = np.asarray(dataset[()])
    return found.view(like.dtype) if found.dtype.kind == "V" else native(found)


@lru_cache(maxsize=6)
def written(seed: int, file: str) -> Written:
    """By Keras, with values that tell where each weight is; those that another has too have no place."""
    model, two = built(seed)
    values = drawn(random.Random(seed), model)
    with TemporaryDirectory() as home:
        path = Path(home) / file
        (model.save if file == "whole.h5" or (file == "m.h5" and not two) else model.save_weights)(str(path))
        raw = path.read_bytes()
    weights = dict(zip(spelled(model, two, file), values, strict=True))
    known = {}
    with h5py.File(io.BytesIO(raw), "r") as f:
        for place, name in places(f).items():
            alike = [n for n, a in weights.items() if a.tobytes() == np.asarray(f[name][()]).tobytes()]
            known.update({place: alike[0]} if len(alike) == 1 else {})
    return Written(raw, weights, known)


def variant(choose: random.Random, folder: Path, seed: int, file: str) -> Case:
    """A file of Keras with other values, some datasets in chunks; ours is looked at where Keras would look."""
    source, path = written(seed, file), folder / file
    values = dict(source.weights)
    path.write_bytes(source.raw)
    with h5py.File(path, "r+") as f:
        for place, name in places(f).items():
            if place in source.places:
                known = source.places[place]
                like = values[known]
                values[known] = np.frombuffer(some_bytes(choose, like.nbytes), like.dtype).reshape(like.shape)
                put(choose, f, name, values[known])
    legacy = isinstance(next(iter(places_of(source)), ""), tuple)
    back = "m.h5" if legacy else "m.weights.h5"

    def read(where: Path) -> Values:
        if where == path:
            return values
        with h5py.File(where, "r") as f:
            there = places(f)
            found = {n: stored(f[there[place]], values[n]) for place, n in source.places.items() if place in there}
        return found | {n: a for n, a in values.items() if n not in source.places.values()}

    via = folder / choose.choice(("via.safetensors", "via.pt", "via.ckpt")) if choose.random() < 0.4 else None
    format = choose.choice((None, *["keras" if legacy else "keras3"] * 3))  # None: detected, which takes longer
    how = {"verify": choose.choice(("none", "none", "receipts"))}
    return Case(path, format, read, folder / "back" / back, {"weights_only": True}, how, via)


def places_of(source: Written) -> dict[Any, str]:
    with h5py.File(io.BytesIO(source.raw), "r") as f:
        return places(f)


def put(choose: random.Random, f: Any, name: str, value: np.ndarray) -> None:
    held = f[name]
    value = value.view(held.dtype) if held.dtype.kind == "V" else value
    if choose.random() < 0.2 and value.ndim and value.size:
        attrs, parent = dict(held.attrs), held.parent
        del f[name]
        kept = parent.create_dataset(
            name.removeprefix(parent.name.strip("/") + "/"), data=value, chunks=True, compression="gzip"
        )
        for key, said in attrs.items():
            kept.attrs[key] = said
    elif value.size:
        held[...] = value


def has_bfloat16(model: Any) -> bool:
    """Keras does not load its own legacy files of it."""
    return any("bfloat16" in str(v.dtype) for v in model.weights)


def as_named(mine: Ours, want: Values) -> Values:
    """With our names where a file does not tell Keras's own.

    enc/var_0 is the first weight of enc, of a class that is not known; a model that was built before it became a layer
    begins the paths of its variables itself, where we name all objects on the way.
    """
    known: dict[str, str] = {}
    for name in mine.values.keys() - want.keys():
        prefix, _, number = name.rpartition("/var_")
        own = [n for n in want if f"/{prefix}".endswith("/" + n.rpartition("/")[0])]
        if number.isdigit() and int(number) < len(own):
            known[own[int(number)]] = name
        else:
            known |= {n: name for n in want if name.endswith("/" + n) and n not in mine.values}
    return {known.get(n, n): a for n, a in want.items()}
