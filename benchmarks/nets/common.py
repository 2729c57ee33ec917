"""What the ports of match_ports.py share: how frameworks name a layer's tensors and order their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
State = Mapping[str, Array]


class Port(NamedTuple):
    """A module, its weights as the original stores them, and inputs; `title` names the original and its framework.

    inputs: the only one, or all by name.
    """

    title: str
    build: Callable[[], nn.Module]
    store: Callable[[State], Arrays]
    inputs: Callable[[], tuple[Tensor] | dict[str, Tensor]]


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


LSTM = "ifgo"  # torch's order of gates


class Basic(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet18(nn.Module):
    """The names of torchvision's ResNet-18."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Basic(8, 8, 1), Basic(8, 8, 1))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16, 1))
        self.layer3 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def basic_blocks() -> Iterator[tuple[int, str, int, int]]:
    """The blocks of ResNet18: count, name, stage and number."""
    for k in range(6):
        yield k, f"layer{k // 2 + 1}.{k % 2}", k // 2, k % 2


def quiet(module: nn.Module) -> None:
    """Zero torch's second bias, which the originals have not."""
    for name, p in module.named_parameters():
        if name.rpartition(".")[2].startswith("bias_hh"):
            nn.init.zeros_(p)


def bias(s: State, at: str, tail: str) -> Array:
    return s[f"{at}.bias_ih_l{tail}"] + s[f"{at}.bias_hh_l{tail}"]


def matrices(s: State, at: str, tail: str) -> tuple[Array, Array]:
    return s[f"{at}.weight_ih_l{tail}"].T, s[f"{at}.weight_hh_l{tail}"].T


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.lstm = nn.LSTM(10, 16, num_layers=2, batch_first=True)
        self.out = nn.Linear(16, 40)
        quiet(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0])


def keras_gru(s: State, at: str, name: str, tail: str = "") -> Arrays:
    two = np.stack([s[f"{at}.bias_ih_l0{tail}"], s[f"{at}.bias_hh_l0{tail}"]])
    return {
        f"{name}/kernel": gates(s[f"{at}.weight_ih_l0{tail}"].T, (1, 0, 2)),
        f"{name}/recurrent_kernel": gates(s[f"{at}.weight_hh_l0{tail}"].T, (1, 0, 2)),
        f"{name}/bias": gates(two, (1, 0, 2)),
    }
