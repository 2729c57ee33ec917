"""What the ports of match_ports.py share: how frameworks name a layer's tensors and order their axes."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import (
    LSTM,
    BatchNorm1d,
    BatchNorm2d,
    Conv1d,
    Conv2d,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    Parameter,
    RNNBase,
    Sequential,
)
from torch.nn.functional import scaled_dot_product_attention

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
State = Mapping[str, Array]


class Port(NamedTuple):
    """A module and inputs; `title` names the original and its framework.

    inputs: the only one, or all by name. store: the module's weights as the original stores them, if ports.json does
    not have them by the name of the port.
    """

    title: str
    build: Callable[[], Module]
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


# --- inputs -----------------------------------------------------------------------------------------------------------


def numbers(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def image(channels: int, size: int) -> Callable[[], tuple[Tensor, ...]]:
    return numbers(2, channels, size, size)


def ids(count: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(0, count, (2, 10)),)


# --- modules ----------------------------------------------------------------------------------------------------------


class Net(Module):
    """A module of named parts, and a function that computes with them: of the module and its inputs, all tensors.

    A list of parts becomes a Sequential, whose members are named by numbers.
    """

    def __init__(self, compute: Callable[..., Any] | None = None, /, **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, Sequential(*part) if isinstance(part, list) else part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        assert self.compute
        return self.compute(self, *inputs, **named)


def conv(i: int, o: int, k: int = 3, stride: int = 1, **more: Any) -> Conv2d:
    """A convolution that keeps the size of images, or divides it by the stride."""
    return Conv2d(i, o, k, stride, **{"padding": k // 2, **more})


def conv0(i: int, o: int, k: int = 3, stride: int = 1, **more: Any) -> Conv2d:
    """The same without a bias."""
    return conv(i, o, k, stride, bias=False, **more)


def conv1d(i: int, o: int, k: int = 1, **more: Any) -> Conv1d:
    return Conv1d(i, o, k, **{"padding": "same", **more})


def dense0(i: int, o: int) -> Linear:
    return Linear(i, o, bias=False)


def bn(n: int) -> BatchNorm2d:
    """With the epsilon of Keras."""
    return BatchNorm2d(n, 1e-3)


def bn1d(n: int) -> BatchNorm1d:
    return BatchNorm1d(n, 1e-3)


def norm(n: int) -> LayerNorm:
    return LayerNorm(n, 1e-6)


def both(i: int, o: int, kind: type[RNNBase] = LSTM, layers: int = 1) -> RNNBase:
    """A recurrent layer that reads in both directions."""
    return kind(i, o, layers, batch_first=True, bidirectional=True)


def attend(q: Tensor, k: Tensor, v: Tensor, size: int, **how: Any) -> Tensor:
    """Attention of heads of a size: of batch, position, and all heads in one axis."""
    q, k, v = (x.unflatten(-1, (-1, size)).transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).flatten(2)


def own(attention: Module, x: Tensor) -> Tensor:
    """What nn.MultiheadAttention makes of an input by itself."""
    return attention(x, x, x, need_weights=False)[0]


def parameter(*shape: int) -> Parameter:
    return Parameter(torch.randn(shape))


def pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def rows(x: Tensor) -> Tensor:
    """The places of an image in a row, their channels last."""
    return x.flatten(2).transpose(1, 2)


def basic(i: int, o: int, stride: int) -> Net:
    def compute(s, x):
        y = s.bn2(s.conv2(s.bn1(s.conv1(x)).relu()))
        return (y + (s.downsample(x) if s.downsample else x)).relu()

    return Net(
        compute, conv1=conv0(i, o, 3, stride), bn1=BatchNorm2d(o), conv2=conv0(o, o), bn2=BatchNorm2d(o),
        downsample=[conv0(i, o, 1, stride), BatchNorm2d(o)] if stride > 1 else None,
    )  # fmt: skip


def resnet18() -> Net:
    """The names of torchvision's ResNet-18."""

    def compute(s, x):
        x = s.bn1(s.conv1(x)).relu()
        return s.fc(pooled(s.layer3(s.layer2(s.layer1(x)))))

    return Net(
        compute, conv1=conv0(3, 8), bn1=BatchNorm2d(8), layer1=[basic(8, 8, 1), basic(8, 8, 1)],
        layer2=[basic(8, 16, 2), basic(16, 16, 1)], layer3=[basic(16, 32, 2), basic(32, 32, 1)], fc=Linear(32, 10),
    )  # fmt: skip


def second(rnn: RNNBase, value: float = 0.0, gate: int = 1) -> None:
    """Zero torch's second bias, which the originals have not; that of a gate may hold a number that they add."""
    with torch.no_grad():
        for name, p in rnn.named_parameters():
            if name.startswith("bias_hh"):
                p.zero_()
                p.unflatten(0, (-1, rnn.hidden_size))[gate] = value


def lstm(forget: float = 0.0) -> Net:
    net = Net(
        lambda s, x: s.out(s.lstm(s.embed(x))[0]), embed=Embedding(40, 10),
        lstm=LSTM(10, 16, num_layers=2, batch_first=True), out=Linear(16, 40),
    )  # fmt: skip
    second(net.lstm, forget)
    return net
