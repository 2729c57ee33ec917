"""Small models, each built alike in Keras 2 and Keras 3; a function gives (model, shapes of its inputs).

Names are chosen so that the alphabet and the order of creation disagree, and shapes so that many weights are equal in
shape: what is exchanged then loads without an error and gives other outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Built = tuple[Any, tuple[tuple[int, ...], ...]]
MODELS: dict[str, Callable[[Any], Built]] = {}


def model(build: Callable[[Any], Built]) -> Callable[[Any], Built]:
    MODELS[build.__name__] = build
    return build


def chain(k: Any, shape: tuple[int, ...], *layers: Any) -> Built:
    return k.Sequential([k.Input(shape), *layers]), (shape,)


def functional(k: Any, shape: tuple[int, ...], call: Callable[[Any], Any]) -> Built:
    x = k.Input(shape)
    return k.Model(x, call(x)), (shape,)


# --- Sequential -------------------------------------------------------------------------------------------------


@model
def dense_named_backwards(k: Any) -> Built:
    return chain(k, (4,), *(k.layers.Dense(4, name=n) for n in ("z", "m", "a", "layer_10", "layer_9")))


@model
def conv_batch_norm(k: Any) -> Built:
    L = k.layers  # noqa: N806
    pair = lambda n: [L.Conv2D(3, 3, use_bias=False, name=f"conv{n}"), L.BatchNormalization(name=f"bn{n}"), L.ReLU()]  # noqa: E731
    return chain(k, (8, 8, 3), *pair(2), *pair(10), *pair(1))


@model
def norms_of_two_classes(k: Any) -> Built:
    """A LayerNormalization and a GroupNormalization have weights of the same shapes."""
    L = k.layers  # noqa: N806
    return chain(k, (4, 4), L.LayerNormalization(), L.GroupNormalization(2), L.LayerNormalization())


@model
def bidirectional(k: Any) -> Built:
    L = k.layers  # noqa: N806
    return chain(k, (5, 4), L.Bidirectional(L.LSTM(2, return_sequences=True)), L.Bidirectional(L.GRU(2)), L.Dense(4))


@model
def stacked_cells(k: Any) -> Built:
    L = k.layers  # noqa: N806
    return chain(k, (5, 4), L.RNN([L.LSTMCell(4), L.LSTMCell(4), L.LSTMCell(4)]))


@model
def conv_lstm(k: Any) -> Built:
    L = k.layers  # noqa: N806
    return chain(k, (3, 6, 6, 2), L.ConvLSTM2D(2, 2, return_sequences=True), L.ConvLSTM2D(2, 2))


@model
def embedding(k: Any) -> Built:
    L = k.layers  # noqa: N806
    tokens = k.Input((5,), dtype="int32")
    words, places = L.Embedding(3, 4, name="words")(tokens), L.Embedding(3, 4, name="places")(tokens)
    return k.Model(tokens, L.Dense(4)(L.LayerNormalization()(L.Add()([words, places])))), ((5,),)


@model
def spectral(k: Any) -> Built:
    L = k.layers  # noqa: N806
    if "tf_keras" in k.__name__:  # its SpectralNormalization does not work with this TensorFlow
        return chain(k, (4,), L.UnitNormalization(), L.Dense(4), L.Dense(4))
    return chain(k, (4,), L.SpectralNormalization(L.Dense(4)), L.SpectralNormalization(L.Dense(4)))


@model
def frozen(k: Any) -> Built:
    L = k.layers  # noqa: N806
    return chain(k, (4,), L.Dense(4), L.BatchNormalization(trainable=False), L.Dense(4, trainable=False), L.Dense(4))


# --- functional -------------------------------------------------------------------------------------------------


@model
def made_backwards(k: Any) -> Built:
    layers = [k.layers.Dense(4) for _ in range(4)]

    def call(x: Any) -> Any:
        for layer in reversed(layers):
            x = layer(x)
        return x

    return functional(k, (4,), call)


@model
def shared(k: Any) -> Built:
    L = k.layers  # noqa: N806
    one, two = L.Dense(4, name="twice"), L.Dense(4, name="also")
    return functional(k, (4,), lambda x: two(one(two(one(x)))))


@model
def transformer(k: Any) -> Built:
    L = k.layers  # noqa: N806

    def call(x: Any) -> Any:
        for n in (2, 10, 1):
            x = L.LayerNormalization(name=f"z{n}")(L.Add()([x, L.MultiHeadAttention(2, 2, name=f"att{n}")(x, x)]))
            y = L.Dense(4, name=f"down{n}")(L.Dense(8, "gelu", name=f"up{n}")(x))
            x = L.LayerNormalization(name=f"a{n}")(L.Add()([x, y]))
        return x

    return functional(k, (5, 4), call)


# --- nested -----------------------------------------------------------------------------------------------------


def block(k: Any, name: str) -> Any:
    L = k.layers  # noqa: N806
    return k.Sequential([k.Input((4,)), L.Dense(4), L.BatchNormalization(), L.Dense(4)], name=name)


@model
def nested_frozen(k: Any) -> Built:
    inner = block(k, "inner")
    inner.layers[0].trainable = False
    return chain(k, (4,), k.layers.Dense(4), inner, k.layers.Dense(4))


# --- classes of one's own ---------------------------------------------------------------------------------------


@model
def custom_with_a_state(k: Any) -> Built:
    class Keep(k.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.total = self.add_weight(name="total", shape=(shape[-1],), trainable=False)
            self.gain = self.add_weight(name="gain", shape=(shape[-1],))
            super().build(shape)

        def call(self, x: Any) -> Any:
            return x * self.gain + self.total

    return chain(k, (4,), Keep(), k.layers.Dense(4), Keep())


@model
def custom_composite(k: Any) -> Built:
    class Feed(k.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.up, self.down = k.layers.Dense(4, name="up"), k.layers.Dense(4, name="down")

        def call(self, x: Any) -> Any:
            return self.down(self.up(x))

    return chain(k, (4,), Feed(), k.layers.Dense(4), Feed())


@model
def custom_model_with_weights(k: Any) -> Built:
    class Net(k.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.second, self.first = k.layers.Dense(4), k.layers.Dense(4, use_bias=False)
            self.token = self.add_weight(name="token", shape=(4,))

        def call(self, x: Any) -> Any:
            return self.second(self.first(x) + self.token)

    return Net(), ((4,),)
