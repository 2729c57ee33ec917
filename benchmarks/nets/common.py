"""What the ports of match_ports.py share: how frameworks name a layer's tensors and order their axes."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
State = Mapping[str, Array]


class Port(NamedTuple):
    """A module and inputs; `title` names the original and its framework.

    inputs: the only one, or all by name. store: the module's weights as the original stores them, if ports.json does
    not have them by the name of the port.
    """

    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor] | dict[str, Tensor]]
    store: Callable[[State], Arrays] | None = None


def stored(name: str) -> Callable[[State], Arrays]:
    """A port's weights as its original stores them, by its rows in ports.json, each the source of one array:

    "features.0.0.weight 2 3 1 0"       a tensor of the port, its axes in this order; `: 3 4` reshapes what comes of it
    {"shape": ..., "index": ...}        of all elements of the port, in order and counted from 1, these; 0 is a zero
    {"shape": ..., "dtype": ..., ...}   what the original has beside its weights
    """

    def store(state: State) -> Arrays:
        flat = np.concatenate([np.zeros(1, "f4"), *(x.reshape(-1) for x in state.values())])
        return {key: _array(row, state, flat) for key, row in _rows()[name].items()}

    return store


@cache
def _rows() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("ports.json").read_text("utf-8"))
    return found


def _array(row: Any, state: State, flat: Array) -> Array:
    if isinstance(row, str):
        way, _, shape = row.partition(" : ")
        name, *axes = way.split()
        x = state[name].transpose(*map(int, axes)) if axes else state[name]
        return x.reshape(tuple(map(int, shape.split()))) if shape else x
    raw = zlib.decompress(b64decode(row.get("index") or row["zlib"]))
    if "index" in row:
        return flat[np.cumsum(np.frombuffer(raw, "<i4"))].reshape(row["shape"])
    return np.frombuffer(raw, row["dtype"]).reshape(row["shape"])


def kernel(w: Array) -> Array:
    """torch's weight as TensorFlow's kernel: Linear and Conv alike."""
    return w.transpose(*range(2, w.ndim), 1, 0)


NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def norm(s: State, at: str, name: str, words: Mapping[str, str] = NORM) -> Arrays:
    """A Keras BatchNormalization or LayerNormalization; with SCALE a Flax LayerNorm."""
    return {f"{name}/{k}": s[f"{at}.{w}"] for w, k in words.items() if f"{at}.{w}" in s}


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


def quiet(module: nn.Module) -> None:
    """Zero torch's second bias, which the originals have not."""
    for name, p in module.named_parameters():
        if name.rpartition(".")[2].startswith("bias_hh"):
            nn.init.zeros_(p)


def bias(s: State, at: str, tail: str) -> Array:
    return s[f"{at}.bias_ih_l{tail}"] + s[f"{at}.bias_hh_l{tail}"]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.lstm = nn.LSTM(10, 16, num_layers=2, batch_first=True)
        self.out = nn.Linear(16, 40)
        quiet(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0])
