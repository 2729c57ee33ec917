"""What the ports of match_ports.py share: how frameworks name a layer's tensors and order their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
State = Mapping[str, Array]


class Port(NamedTuple):
    """A module, its weights as the original stores them, and inputs; `title` names the original and its framework."""

    title: str
    build: Callable[[], nn.Module]
    store: Callable[[State], Arrays]
    inputs: Callable[[], tuple[Tensor, ...]]


def kernel(w: Array) -> Array:
    """torch's weight as TensorFlow's kernel: Linear and Conv alike."""
    return w.transpose(*range(2, w.ndim), 1, 0)


def gates(w: Array, order: tuple[int, ...]) -> Array:
    """The blocks along the last axis in another order."""
    blocks = np.split(w, len(order), axis=-1)
    return np.concatenate([blocks[k] for k in order], axis=-1)


NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
SCALE = {"weight": "scale", "bias": "bias"}


def norm(s: State, at: str, name: str, words: Mapping[str, str] = NORM) -> Arrays:
    """A Keras BatchNormalization or LayerNormalization; with SCALE a Flax LayerNorm."""
    return {f"{name}/{k}": s[f"{at}.{w}"] for w, k in words.items() if f"{at}.{w}" in s}


def dense(s: State, at: str, name: str, weight: str = "kernel", bias: str = "bias") -> Arrays:
    """A Dense or Conv layer."""
    out = {f"{name}/{weight}": kernel(s[f"{at}.weight"])}
    return out | ({f"{name}/{bias}": s[f"{at}.bias"]} if f"{at}.bias" in s else {})


def depthwise(s: State, at: str, name: str, leaf: str = "depthwise_kernel", inputs: int = 0) -> Arrays:
    """A DepthwiseConv2D; `inputs` are its channels if it makes several of each."""
    w = s[f"{at}.weight"]
    inputs = inputs or w.shape[0]
    made = w.reshape(inputs, -1, *w.shape[2:]).transpose(2, 3, 0, 1)
    return {f"{name}/{leaf}": made} | ({f"{name}/bias": s[f"{at}.bias"]} if f"{at}.bias" in s else {})


def keras(layers: Iterable[Arrays]) -> Arrays:
    """Layers as a Keras file holds them: each variable under its layer's name twice."""
    out: Arrays = {}
    for layer in layers:
        for name, x in layer.items():
            home, _, leaf = name.rpartition("/")
            out[f"{home}/{home}/{leaf}"] = x
    return out


def flat(layers: Iterable[Arrays]) -> Arrays:
    """Layers in the order in which they were made."""
    return {name: x for layer in layers for name, x in layer.items()}


def image(channels: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, channels, size, size),)


def ids(count: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(0, count, (2, 10)),)
