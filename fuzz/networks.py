"""Random networks of Keras, computed again by torch from their files: python fuzz/networks.py CASES [SEED].

A network is made of random layers, each beside what a reimplementation in torch would have: images with their channels
first, sequences with their features last. Keras 3 or Keras 2 saves it in each of its formats; what keras-torch makes of
a file is loaded into torch's modules. Both compute the same, or the weights are refused, or a note says that they are
in doubt. All else is a finding. A file without a config does not tell images from rows: there, doubts are a guess.

Which tensor belongs to which module is known by the values of Keras' weights, of which no two are equal, and so not by
the names that are to be tested.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
from torch import nn

import ckptconv
from ckptconv.errors import CkptError
from ckptconv.rules import library

FILES = {"keras": ("m.keras", "m.h5", "m.weights.h5"), "tf_keras": ("m.keras", "m.h5", "w.h5")}
BARE = ("m.weights.h5", "w.h5")  # without a config, where a doubt is a guess
WIDTHS = (5, 7, 11, 13, 17, 19)  # of dense layers: primes, which are no flattened image's size
BATCH = 3
STEPS = (2, 7)  # layers in a row, at least and at most
LARGEST = 400  # elements of a flattened image
DOUBTS = ("assumed", "damaged")  # notes of these kinds say that something may be wrong
USUAL = ("plain convolution",)  # a doubt about what the file does not tell, which has nothing to do with the order


class Value(NamedTuple):
    """What a layer gives: Keras' symbolic tensor, the number of the step that computes it in torch, and its form.

    form: 'vector'; 'sequence', features last on both sides; 'image' of one or two axes, whose channels torch has first;
    'video', a sequence of images. shape: Keras', without the batch.
    """

    keras: Any
    step: int
    form: str
    shape: tuple[int, ...]


def channels_first(x: Any) -> Any:
    return x.movedim(-1, 1)


def channels_last(x: Any) -> Any:
    return x.movedim(1, -1)


def as_torch(form: str, array: np.ndarray) -> Any:
    """An input of Keras' as torch takes it."""
    x = torch.from_numpy(array)
    return channels_first(x) if form == "image" else x.movedim(-1, 2) if form == "video" else x


class Network:
    """A random network, or one within it.

    owners: for each layer with weights of its own, torch's module for it. sizes: of the images that are flattened.
    """

    def __init__(self, rng: random.Random, k: Any, above: Network | None = None) -> None:
        self.rng, self.k, self.L, self.mine = rng, k, k.layers, layers_of_a_user(k)
        self.depth = above.depth + 1 if above else 0
        self.owners: list[tuple[Any, Any]] = above.owners if above else []
        self.sizes: set[tuple[int, int]] = above.sizes if above else set()
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        self.inputs: list[Value] = []
        self.chain: list[Any] | None = []  # the layers, while each takes what the one before gives
        self.said: list[str] = []

    # --- building blocks

    def enter(self, form: str, shape: tuple[int, ...]) -> Value:
        """An input."""
        self.steps.append((lambda x: x, ()))
        value = Value(self.k.Input(shape), len(self.steps) - 1, form, shape)
        self.inputs.append(value)
        return value

    def put(self, made: Any, of: Callable[..., Any], taken: list[Value], form: str, kind: str) -> Value:
        """A step; made: what Keras gives for it."""
        self.said.append(kind)
        self.steps.append((of, tuple(v.step for v in taken)))
        return Value(made, len(self.steps) - 1, form, tuple(made.shape[1:]))

    def use(self, layer: Any, of: Any, value: Value, form: str = "", call: Callable[..., Any] | None = None) -> Value:
        """A layer after another. of: the function, or the module, which `call` turns into one."""
        if isinstance(of, nn.Module):
            self.owners.append((layer, of))
        if self.chain is not None:
            self.chain.append(layer)
        function = call(of) if call else of
        return self.put(layer(value.keras), function, [value], form or value.form, type(layer).__name__)

    def named(self, kind: str, *args: Any, **options: Any) -> Any:
        """A layer with the name that Keras gives it, or one that tells nothing, or that of another layer."""
        choice = self.rng.random()
        if choice < 0.4:
            options["name"] = f"{self.rng.choice('abcdefgh')}{self.rng.randrange(10**9)}"
        elif choice < 0.5:
            options["name"] = f"flat_dense_{self.rng.randrange(10**9)}"
        return getattr(self.L, kind)(*args, **options)

    def run(self, *given: Any) -> Any:
        """What torch computes: the last step's value."""
        values: list[Any] = []
        waiting = list(given)
        for of, taken in self.steps:
            values.append(of(*(values[i] for i in taken)) if taken else waiting.pop(0))
        return values[-1]

    # --- layers, by the form of what they take

    def grow(self, value: Value, count: int) -> Value:
        for _ in range(count):
            value = self.rng.choice(self.possible(value))(value)
        return value

    def possible(self, v: Value) -> list[Callable[[Value], Value]]:
        every = [self.activation, self.constant, self.dropout, self.norm, self.dense]
        if self.depth < 2:
            every += [self.within]
        if v.form == "vector":
            shapeable = self.depth == 0 and self.rng.random() < 0.5
            return [*every, self.dense, self.mlp, self.gate, *([self.shaped, self.repeat] if shapeable else [])]
        if v.form == "sequence":
            return [*every, self.recurrent, self.recurrent, self.attention, self.flatten, self.pooled, self.conv]
        if v.form == "video":
            return [self.conv_of_each, self.flatten_each, self.flatten_each, self.pooled_each, self.model_of_each]
        several = [
            self.conv,
            self.conv,
            self.residual,
            self.flatten,
            self.flatten,
            self.flatten,
            self.pooled,
            self.inner_conv,
        ]
        if len(v.shape) == 3:
            several += [self.excited, self.branches, self.upsampled, self.tokens, self.rows]
        return every + several

    def activation(self, v: Value) -> Value:
        kind, of = self.rng.choice([("relu", torch.relu), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid)])
        if self.rng.random() < 0.5:
            return self.use(self.named("Activation", kind), of, v)
        self.chain = None
        ops = getattr(self.k, "ops", None)
        if ops is None:
            import tensorflow as ops_of_two

            return self.put(getattr(ops_of_two.nn, kind)(v.keras), of, [v], v.form, f"tf.{kind}")
        return self.put(getattr(ops, kind)(v.keras), of, [v], v.form, f"ops.{kind}")

    def constant(self, v: Value) -> Value:
        """Arithmetic with a number, or of a value with itself."""
        self.chain = None
        forms: list[Callable[[Any], Any]] = [
            lambda x: x * 2.0,
            lambda x: 1.0 - x,
            lambda x: x / 3.0,
            lambda x: x + 0.5,
            lambda x: x * x,
            lambda x: x - x * 0.5,
        ]
        of = self.rng.choice(forms)
        return self.put(of(v.keras), of, [v], v.form, "arithmetic")

    def dropout(self, v: Value) -> Value:
        return self.use(self.named("Dropout", 0.3), lambda x: x, v)

    def norm(self, v: Value) -> Value:
        features = v.shape[-1]
        if self.rng.random() < 0.6:
            module = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(v.shape)](features, eps=1e-3)
            last = v.form == "sequence"
            return self.use(
                self.named("BatchNormalization"),
                module,
                v,
                call=lambda m: (lambda x: channels_last(m(channels_first(x)))) if last else m,
            )
        module = nn.LayerNorm(features, eps=1e-3)
        return self.use(self.named("LayerNormalization"), module, v, call=self.on_features(v))

    def on_features(self, v: Value) -> Callable[[Any], Any]:
        """A module that takes features last, for images too."""
        if v.form == "image":
            return lambda m: lambda x: channels_first(m(channels_last(x)))
        return lambda m: m

    def dense(self, v: Value) -> Value:
        out = self.rng.choice(WIDTHS)
        layer = self.named("Dense", out, use_bias=self.rng.random() < 0.8)
        module = nn.Linear(v.shape[-1], out, bias=layer.use_bias)
        if v.form == "sequence" and self.rng.random() < 0.3:
            return self.distributed(layer, module, v)
        return self.use(layer, module, v, call=self.on_features(v))

    def distributed(self, layer: Any, module: Any, v: Value) -> Value:
        self.owners.append((layer, module))
        return self.use(self.named("TimeDistributed", layer), module.forward, v)

    def mlp(self, v: Value) -> Value:
        """A layer of a user's own, of two dense layers."""
        units = self.rng.choice(WIDTHS)
        layer, first, second = self.mine[0](units), nn.Linear(v.shape[-1], units), nn.Linear(units, units)
        self.owners += [(layer.one, first), (layer.two, second)]
        return self.use(layer, lambda x: second(first(x)), v)

    def inner_conv(self, v: Value) -> Value:
        """A layer of a user's own, of a convolution."""
        layer = self.mine[1](5, len(v.shape) - 1)
        module = (nn.Conv1d if len(v.shape) == 2 else nn.Conv2d)(v.shape[-1], 5, 3, padding=1)
        self.owners.append((layer.one, module))
        return self.use(layer, module.forward, v)

    def gate(self, v: Value) -> Value:
        """A dense layer as wide as its input, which it is added to, or multiplied or concatenated with."""
        self.chain = None
        a = self.use(self.named("Dense", v.shape[-1]), nn.Linear(v.shape[-1], v.shape[-1]), v)
        return self.merged(v, a)

    def merged(self, a: Value, b: Value) -> Value:
        """Two values of one shape."""
        self.chain = None
        pair = [a, b] if self.rng.random() < 0.5 else [b, a]
        kind = self.rng.choice(["Add", "Multiply", "Subtract", "Maximum", "Concatenate", "+", "*"])
        axis = 1 if a.form == "image" else -1
        of = {
            "Add": lambda x, y: x + y,
            "+": lambda x, y: x + y,
            "Multiply": lambda x, y: x * y,
            "*": lambda x, y: x * y,
            "Subtract": lambda x, y: x - y,
            "Maximum": torch.maximum,
            "Concatenate": lambda x, y: torch.cat([x, y], axis),
        }[kind]
        keras = [p.keras for p in pair]
        made = of(*keras) if kind in "+*" else self.named(kind)(keras)
        return self.put(made, of, pair, a.form, kind)

    def beside(self, a: Value, b: Value) -> Value:
        """Two vectors, one behind the other."""
        made = self.named("Concatenate")([a.keras, b.keras])
        return self.put(made, lambda x, y: torch.cat([x, y], 1), [a, b], "vector", "Concatenate")

    def shaped(self, v: Value) -> Value:
        """A dense layer whose outputs become an image."""
        h, w, c = self.rng.randint(1, 4), self.rng.randint(1, 4), self.rng.randint(2, 4)
        v = self.use(self.named("Dense", h * w * c), nn.Linear(v.shape[-1], h * w * c), v)
        if self.rng.random() < 0.3:
            v = self.activation(v)
        if self.rng.random() < 0.3:
            v = self.use(self.named("Reshape", (h * w, c)), lambda x: x.unflatten(1, (c, h * w)), v, "image")
            return self.conv(v)  # else it is a sequence
        return self.use(self.named("Reshape", (h, w, c)), lambda x: x.unflatten(1, (c, h, w)), v, "image")

    def repeat(self, v: Value) -> Value:
        return self.use(self.named("RepeatVector", 3), lambda x: x.unsqueeze(1).repeat(1, 3, 1), v, "sequence")

    def flatten(self, v: Value) -> Value:
        size = int(np.prod(v.shape))
        if size > LARGEST:
            return self.pooled(v)
        if v.form == "image":
            self.sizes.add((int(np.prod(v.shape[:-2])), v.shape[-2]))
        if self.rng.random() < 0.2:
            return self.use(self.named("Reshape", (size,)), lambda x: x.flatten(1), v, "vector")
        return self.use(self.named("Flatten"), lambda x: x.flatten(1), v, "vector")

    def pooled(self, v: Value) -> Value:
        axes = len(v.shape) - 1
        if v.form == "image" and min(v.shape[:-1]) > 3 and self.rng.random() < 0.5:
            of = nn.functional.max_pool1d if axes == 1 else nn.functional.max_pool2d
            return self.use(self.named(f"MaxPooling{axes}D", 2), lambda x: of(x, 2), v)
        dims = tuple(range(2, 2 + axes)) if v.form == "image" else (1,)
        return self.use(self.named(f"GlobalAveragePooling{axes}D"), lambda x: x.mean(dims), v, "vector")

    def conv(self, v: Value) -> Value:
        axes, out = len(v.shape) - 1, self.rng.randint(2, 6)
        same = min(v.shape[:-1]) < 4 or self.rng.random() < 0.5
        layer = self.named(f"Conv{axes}D", out, 3, padding="same" if same else "valid")
        module = (nn.Conv1d if axes == 1 else nn.Conv2d)(v.shape[-1], out, 3, padding=1 if same else 0)
        if v.form == "sequence":  # from here on with the channels first
            return self.use(layer, module, v, "image", lambda m: lambda x: m(channels_first(x)))
        return self.use(layer, module, v)

    def upsampled(self, v: Value) -> Value:
        if v.shape[0] * v.shape[1] > 40:
            return self.pooled(v)
        if self.rng.random() < 0.5:
            return self.use(self.named("UpSampling2D"), nn.Upsample(scale_factor=2).forward, v)
        out = self.rng.randint(2, 4)
        return self.use(self.named("Conv2DTranspose", out, 3, 2), nn.ConvTranspose2d(v.shape[-1], out, 3, 2), v)

    def residual(self, v: Value) -> Value:
        self.chain = None
        axes, width = len(v.shape) - 1, v.shape[-1]
        module = (nn.Conv1d if axes == 1 else nn.Conv2d)(width, width, 3, padding=1)
        return self.merged(v, self.use(self.named(f"Conv{axes}D", width, 3, padding="same"), module, v))

    def branches(self, v: Value) -> Value:
        """Two ways to a vector, or to an image."""
        self.chain = None
        a, b = self.conv(v), self.conv(v)
        if a.shape == b.shape and self.rng.random() < 0.5:
            return self.merged(a, b)
        a, b = (self.flatten(x) if self.rng.random() < 0.5 else self.dense(self.flatten(x)) for x in (a, b))
        if a.form != "vector" or b.form != "vector":
            return a
        return self.beside(a, b)

    def excited(self, v: Value) -> Value:
        """Squeeze and excite."""
        self.chain = None
        width = v.shape[-1]
        s = self.use(self.named("GlobalAveragePooling2D"), lambda x: x.mean((2, 3)), v, "vector")
        s = self.use(self.named("Dense", 3), nn.Linear(width, 3), s)
        s = self.use(self.named("Dense", width), nn.Linear(3, width), s)
        s = self.use(self.named("Reshape", (1, 1, width)), lambda x: x[:, :, None, None], s, "image")
        return self.put(self.named("Multiply")([v.keras, s.keras]), lambda x, y: x * y, [v, s], "image", "Multiply")

    def tokens(self, v: Value) -> Value:
        """As a transformer for images has it: a sequence of pixels."""
        h, w, c = v.shape
        return self.use(self.named("Reshape", (h * w, c)), lambda x: x.flatten(2).transpose(1, 2), v, "sequence")

    def rows(self, v: Value) -> Value:
        """A sequence of the rows, or of the columns, of an image."""
        if v.shape[1] * v.shape[2] > LARGEST:
            return self.pooled(v)
        if self.rng.random() < 0.5:
            self.sizes.add((1, v.shape[1]))
            layer = self.named("TimeDistributed", self.L.Flatten())
            return self.use(layer, lambda x: x.transpose(1, 2).flatten(2), v, "sequence")
        v = self.use(self.named("Permute", (2, 1, 3)), lambda x: x.transpose(2, 3), v)
        h, w, c = v.shape
        return self.use(self.named("Reshape", (h, w * c)), lambda x: x.transpose(1, 2).flatten(2), v, "sequence")

    def recurrent(self, v: Value) -> Value:
        kind, of = self.rng.choice([("LSTM", nn.LSTM), ("GRU", nn.GRU), ("SimpleRNN", nn.RNN)])
        out, whole, both = self.rng.choice(WIDTHS), self.rng.random() < 0.5, self.rng.random() < 0.3
        module: Any = of(v.shape[-1], out, batch_first=True, bidirectional=both)
        if both:
            layer = self.named("Bidirectional", getattr(self.L, kind)(out, return_sequences=whole))
        else:
            layer = self.named(kind, out, return_sequences=whole)

        def last(x: Any) -> Any:
            states = module(x)[1]
            state = states[0] if kind == "LSTM" else states
            return torch.cat(list(state), -1)

        of_module = (lambda m: lambda x: m(x)[0]) if whole else lambda _: last
        return self.use(layer, module, v, "sequence" if whole else "vector", of_module)

    def attention(self, v: Value) -> Value:
        self.chain = None
        width = v.shape[-1]
        if width % 2:
            return self.recurrent(v)
        layer, module = (
            self.named("MultiHeadAttention", 2, width // 2),
            nn.MultiheadAttention(width, 2, batch_first=True),
        )
        self.owners.append((layer, module))
        return self.put(layer(v.keras, v.keras), lambda x: module(x, x, x)[0], [v], "sequence", "attention")

    # --- of each image of a sequence

    def conv_of_each(self, v: Value) -> Value:
        out = self.rng.randint(2, 4)
        layer, module = self.L.Conv2D(out, 3, padding="same"), nn.Conv2d(v.shape[-1], out, 3, padding=1)
        self.owners.append((layer, module))
        return self.use(self.named("TimeDistributed", layer), each(module), v)

    def flatten_each(self, v: Value) -> Value:
        self.sizes.add((v.shape[1], v.shape[2]))
        return self.use(self.named("TimeDistributed", self.L.Flatten()), lambda x: x.flatten(2), v, "sequence")

    def pooled_each(self, v: Value) -> Value:
        layer = self.named("TimeDistributed", self.L.GlobalAveragePooling2D())
        return self.use(layer, lambda x: x.mean((3, 4)), v, "sequence")

    def model_of_each(self, v: Value) -> Value:
        inner = Network(self.rng, self.k, self)
        end = inner.flatten(inner.conv(inner.enter("image", v.shape[1:])))
        if end.form != "vector" or self.rng.random() < 0.3:
            end = inner.dense(inner.as_vector(end))
        self.said.append(f"({' '.join(inner.said)})")
        return self.use(self.named("TimeDistributed", inner.model(end)), each(inner.run), v, "sequence")

    # --- models

    def within(self, v: Value) -> Value:
        """A model in this one."""
        inner = Network(self.rng, self.k, self)
        end = inner.grow(inner.enter(v.form, v.shape), self.rng.randint(1, 3))
        self.said.append(f"({' '.join(inner.said)})")
        return self.use(inner.model(end), inner.run, v, end.form)

    def as_vector(self, v: Value) -> Value:
        while v.form != "vector":
            v = self.flatten_each(v) if v.form == "video" else self.flatten(v)
        return v

    def model(self, end: Value) -> Any:
        if self.chain and self.rng.random() < 0.5:
            return self.k.Sequential([self.k.Input(self.inputs[0].shape), *self.chain])
        return self.k.Model([v.keras for v in self.inputs] if len(self.inputs) > 1 else self.inputs[0].keras, end.keras)

    def whole(self) -> Any:
        form, shape = self.rng.choice(
            [
                ("image", (self.rng.randint(4, 8), self.rng.randint(4, 8), self.rng.randint(1, 4))),
                ("image", (8, 8, 3)),
                ("image", (6, 5, 2)),
                ("video", (3, 4, 5, 2)),
                ("sequence", (7, 4)),
                ("vector", (9,)),
            ]
        )
        v = self.enter(form, shape)
        v = self.grow(v, self.rng.randint(*STEPS))
        v = self.as_vector(v)
        if self.rng.random() < 0.2:  # beside something else
            self.chain = None
            width = self.rng.choice([4, v.shape[-1]])
            other = self.use(self.named("Dense", width), nn.Linear(6, width), self.enter("vector", (6,)))
            v = self.merged(v, other) if width == v.shape[-1] else self.beside(v, other)
        v = self.dense(v)
        return self.model(self.dense(v))


def each(of: Callable[..., Any]) -> Callable[[Any], Any]:
    """Of each image of a sequence."""
    return lambda x: of(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@cache
def layers_of_a_user(k: Any) -> tuple[Any, Any]:
    """Layers of a user's own: of two dense layers, and of a convolution."""

    class Mlp(k.layers.Layer):
        def __init__(self, units: int, **options: Any) -> None:
            super().__init__(**options)
            self.units = units
            self.one, self.two = k.layers.Dense(units), k.layers.Dense(units)

        def build(self, shape: Any) -> None:
            self.one.build(shape)
            self.two.build((*shape[:-1], self.units))
            self.built = True

        def call(self, x: Any) -> Any:
            return self.two(self.one(x))

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], self.units)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "units": self.units}

    class Conv(k.layers.Layer):
        def __init__(self, filters: int, axes: int, **options: Any) -> None:
            super().__init__(**options)
            self.filters, self.axes = filters, axes
            self.one = getattr(k.layers, f"Conv{axes}D")(filters, 3, padding="same")

        def build(self, shape: Any) -> None:
            self.one.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            return self.one(x)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], self.filters)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "filters": self.filters, "axes": self.axes}

    return Mlp, Conv


# --- what comes of its files -------------------------------------------------------------------------------------


def fill(model: Any, rng: np.random.Generator) -> None:
    """Values of which no two weights have the same; variances are positive."""
    model.set_weights(
        [
            (rng.uniform(0.5, 1.5, w.shape) if "variance" in v.name else rng.uniform(-1, 1, w.shape)).astype("f4")
            for v, w in zip(model.weights, model.get_weights(), strict=True)
        ]
    )


def loaded(made: Any, before: Any, owners: dict[bytes, Any]) -> None:
    """Every tensor into the module that has the weights which it was made of, strictly."""
    groups: dict[str, dict[str, Any]] = {}
    modules: dict[str, Any] = {}
    for name, tensor in made.items():
        above, _, last = name.rpartition(".")
        group = above.removesuffix(".out_proj")
        tail = f"out_proj.{last}" if above != group else last
        groups.setdefault(group, {})[tail] = torch.from_numpy(tensor.numpy().copy())
        for source in made.moved[name].sources if name in made.moved else (name,):
            if source in before:
                modules[group] = owners[before[source].numpy().tobytes()]
    for group, state in groups.items():
        missing, unexpected = modules[group].load_state_dict(state, strict=False)
        left = [m for m in missing if not m.endswith("num_batches_tracked")]
        if left or unexpected:
            raise ValueError(f"{group}: missing {left}, unexpected {unexpected}")
        modules[group].eval()


def converted(path: Path, sizes: set[tuple[int, int]]) -> Any:
    """The file, and what keras-torch makes of it, which is told the size of the images if it asks."""
    before = ckptconv.open(path)
    try:
        return before, library.change(before, "keras-torch")
    except CkptError as e:
        if "param='height" not in str(e) or len(sizes) != 1:
            raise
        h, w = next(iter(sizes))
        return before, library.change(before, "keras-torch", params={"height": h, "width": w})


def judged(
    path: Path, network: Network, owners: dict[bytes, Any], given: list[Any], want: np.ndarray
) -> tuple[str, str]:
    """A word for what came of one file, and why if it is a finding."""
    try:
        before, made = converted(path, network.sizes)
    except CkptError as e:
        return ("asked" if "param='height" in str(e) else "refused"), ""
    doubts = [n.text for n in made.notes if n.kind in DOUBTS and not any(u in n.text for u in USUAL)]
    try:
        loaded(made, before, owners)
        with torch.no_grad():
            got = network.run(*given).numpy()
    except (ValueError, KeyError, RuntimeError) as e:
        return "NOT LOADED", f"{type(e).__name__}: {e}"
    if np.allclose(got, want, rtol=1e-3, atol=1e-3 * float(np.abs(want).max())):
        return ("right, in doubt" if doubts else "right"), ""
    if doubts:
        return "wrong, in doubt", ""
    return ("wrong, not noticed" if path.name in BARE else "WRONG"), ""


def cases(count: int, seed: int, folder: Path) -> Iterator[tuple[int, str, str, str]]:
    """Seed, file, outcome and what about it."""
    import keras
    import tf_keras

    for number in range(seed, seed + count):
        rng = random.Random(number)
        k = rng.choice([keras, tf_keras])
        k.backend.clear_session()
        network = Network(rng, k)
        model = network.whole()
        numbers = np.random.default_rng(number)
        fill(model, numbers)
        owners = {np.asarray(w).tobytes(): module for layer, module in network.owners for w in layer.weights}
        arrays = [numbers.uniform(-1, 1, (BATCH, *v.shape)).astype("f4") for v in network.inputs]
        want = np.asarray(model(arrays if len(arrays) > 1 else arrays[0]))
        given = [as_torch(v.form, a) for v, a in zip(network.inputs, arrays, strict=True)]
        for file in FILES[k.__name__]:
            path = folder / file
            save = model.save_weights if file in BARE else model.save
            try:
                save(str(path))
            except ValueError:  # of HDF5: two weights have one name
                yield number, f"{k.__name__} {file}", "not saved by Keras", ""
                continue
            outcome, why = judged(path, network, owners, given, want)
            yield number, f"{k.__name__} {file}", outcome, f"{' '.join(network.said)}: {why}"


def run(count: int, seed: int, folder: Path) -> tuple[dict[str, Counter[str]], list[str]]:
    """Make, convert, compute; outcomes for each kind of file, and a line for each finding."""
    outcomes: dict[str, Counter[str]] = {}
    findings = []
    for number, file, outcome, what in cases(count, seed, folder):
        outcomes.setdefault(file, Counter())[outcome] += 1
        if outcome.isupper():
            findings.append(f"seed {number}, {file}: {outcome}: {what}")
    return outcomes, findings


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as home:
        outcomes, findings = run(count, first, Path(home))
    for file, words in sorted(outcomes.items()):
        print(f"{file}: " + ", ".join(f"{n} {word}" for word, n in words.most_common()))
    print("\n".join(findings[:20]))
    sys.exit(bool(findings))
