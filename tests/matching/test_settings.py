"""Settings of a module that no weight holds: `--check` finds with which of them the outputs agree, and says so."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv

pytest.importorskip("scipy", reason="matching by names is an extra")
torch = pytest.importorskip("torch", reason="--check runs a module of torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from ckptconv.matching.settings import Site  # noqa: E402
from ckptconv.matching.torch import SAME, Calls  # noqa: E402

X = np.random.default_rng(1).normal(size=(2, 3, 12, 12)).astype("f4")


class Norm(nn.Module):
    """A normalisation of its own, whose epsilon no function gets."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(4)), eps

    def forward(self, x: Any) -> Any:
        return x * self.scale / (x.var(-1, keepdim=True) + self.eps).sqrt()


class Net(nn.Module):
    """A net of all that can be set; `how` gives what is not torch's default."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how
        eps, same = how.get("eps", 1e-5), how.get("same", False)
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, eps=eps)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, 2, padding=1 - same), nn.BatchNorm2d(6, eps=eps)
        self.up = nn.ConvTranspose2d(6, 4, 3, 2, padding=1 - same, output_padding=1 - same)
        self.norm = Norm(how.get("own", 1e-5))

    def forward(self, x: Any) -> Any:
        how, same = self.how, self.how.get("same", False)
        y = functional.gelu(self.bn1(self.conv1(x)), approximate=how.get("gelu", "none"))
        y = functional.leaky_relu(
            self.bn2(self.conv2(functional.pad(y, (0, 1, 0, 1)) if same else y)), how.get("by", 0.01)
        )
        y = functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=how.get("align", False))
        if how.get("pool"):
            y = functional.max_pool2d(functional.pad(y, (0, 1, 0, 1), value=-9e9), 3, 2)
        else:
            y = functional.max_pool2d(y, 3, 2, 1)
        y = self.up(y)
        y = y[..., :-1, :-1] if same else y
        y = functional.avg_pool2d(y, 3, 1, 1, count_include_pad=how.get("count", True))
        y = y.permute(0, 2, 3, 1)
        return y + self.norm(y / 50)


def stored(module: Any) -> dict[str, Any]:
    """As Keras stores it."""
    words = {"running_mean": "moving_mean", "running_var": "moving_variance", "scale": "scale"}
    plain, norms = {"weight": "kernel", "bias": "bias"}, {"weight": "gamma", "bias": "beta"}
    out = {}
    for name, t in module.state_dict().items():
        home, _, leaf = name.rpartition(".")
        leaf = (words | (norms if home.startswith("bn") else plain)).get(leaf, "")
        if leaf:
            array = t.numpy().copy()
            out[f"{home}/{leaf}"] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array
    return out


def trained(**how: Any) -> Any:
    torch.manual_seed(5)
    module = Net(**how).eval()
    with torch.no_grad():
        for name, t in module.state_dict().items():
            if t.is_floating_point():
                t.copy_(0.01 + 0.1 * torch.rand_like(t) if "var" in name else t + 0.3 * torch.randn_like(t))
    return module


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "epsilon": ({"eps": 1e-3}, ["batch_norm with eps=0.001, not 1e-05: bn{1..2} (2)"]),
    "an epsilon of its own": ({"own": 1e-3}, ["Norm with eps=0.001, not 1e-05: norm"]),
    "gelu": ({"gelu": "tanh"}, ["gelu with approximate=tanh, not none: (the whole module)"]),
    "slope": ({"by": 0.3}, ["leaky_relu with negative_slope=0.3, not 0.01: (the whole module)"]),
    "corners": ({"align": True}, ["interpolate with align_corners=True, not False: (the whole module)"]),
    "pooling": ({"pool": True}, ["max_pool2d with padding=SAME of TensorFlow, not 1: (the whole module)"]),
    "averages": ({"count": False}, ["avg_pool2d with count_include_pad=False, not True: (the whole module)"]),
    "padding": (
        {"same": True},
        [
            "conv2d with padding=SAME of TensorFlow, not (1, 1): conv2",
            "conv_transpose2d with padding=SAME of TensorFlow, not (1, 1): up",
        ],
    ),
    "several": (
        {"eps": 1e-3, "gelu": "tanh", "by": 0.2},
        [
            "batch_norm with eps=0.001, not 1e-05: bn{1..2} (2)",
            "gelu with approximate=tanh, not none: (the whole module)",
            "leaky_relu with negative_slope=0.2, not 0.01: (the whole module)",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_settings_with_which_the_outputs_agree_are_said(case: str, tmp_path: Path) -> None:
    how, hints = CASES[case]
    original, module = trained(**how), Net()
    ckptconv.save(stored(original), tmp_path / "a.npz")
    with torch.no_grad():
        wanted = original(torch.from_numpy(X)).numpy()
    found = ckptconv.match(tmp_path / "a.npz", module, check=({"x": X}, {"y": wanted}))
    assert found.proof is not None
    assert found.proof.agrees
    assert sorted(found.proof.hints) == hints
    assert {p.evidence for p in found.proposal.pairs if not p.sure} == set()
    assert "hint: set this in the module, as no weight does, and it is the same: 1 output" in str(found)
    assert (module.bn1.eps, module.norm.eps, module.how) == (1e-5, 1e-5, {})  # the module stays as it is
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    if case not in ("gelu", "an epsilon of its own"):  # by less than the tolerance
        assert not found.proof.found.same


def test_what_nothing_explains(tmp_path: Path) -> None:
    original = trained(by=0.77)
    ckptconv.save(stored(original), tmp_path / "a.npz")
    with torch.no_grad():
        wanted = original(torch.from_numpy(X)).numpy()
    proof = ckptconv.match(tmp_path / "a.npz", Net(), check=({"x": X}, {"y": wanted})).proof
    assert proof is not None
    assert not proof.agrees
    assert proof.hints == ()
    assert f"{proof.tuned} settings of the module tried" in str(proof)
    assert 20 < proof.tuned <= 240


def test_resizing_as_tensorflow_1_does_it() -> None:
    module = nn.Upsample(scale_factor=2, mode="bilinear")
    with Calls(module, {Site("", "interpolate", "align_corners"): "TensorFlow 1"}):
        found = module(torch.tensor([[[[0.0, 2.0], [4.0, 6.0]]]]))
    assert found[0, 0].tolist() == [[0, 1, 2, 2], [2, 3, 4, 4], [4, 5, 6, 6], [4, 5, 6, 6]]


class Moving(nn.Module):
    """One function of a line of numbers, by the name that its settings have."""

    def __init__(self, name: str, *given: Any, **options: Any) -> None:
        super().__init__()
        self.name, self.given, self.options = name, given, options

    def forward(self, x: Any) -> Any:
        return getattr(functional, self.name)(x, *self.given, **self.options)


def spread(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The least padding with which TensorFlow gets an output for each stride, the odd one at the end."""
    total, wanted = 0, -(-size // stride)
    while (size + total - dilation * (kernel - 1) - 1) // stride + 1 < wanted:
        total += 1
    return total // 2, total - total // 2


@pytest.mark.parametrize("name", ["conv1d", "max_pool1d", "avg_pool1d"])
def test_padding_is_that_of_tensorflow(name: str) -> None:
    """Where the output has that length already, and the padding is another: else there is nothing to change."""
    site, changes = Site("", name, "padding"), 0
    for size, kernel, stride, dilation in product(range(1, 10), range(1, 5), range(1, 4), range(1, 3)):
        x = torch.arange(1.0, size + 1).reshape(1, 1, size)
        weight = torch.arange(1.0, kernel + 1).reshape(1, 1, kernel)
        given: list[Any] = [weight] if name == "conv1d" else [kernel]
        options = {"stride": stride} | ({} if name == "avg_pool1d" else {"dilation": dilation})
        dilation = options.get("dilation", 1)
        for padding in range(kernel // 2 + 1):
            length = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            if length < 1:
                continue
            with Calls(Moving(name, *given, **options, padding=padding), {site: SAME}) as calls:
                found = calls.module(x)
            pads = spread(size, kernel, stride, dilation)
            differs = length == -(-size // stride) and pads != (padding, padding)
            assert (site in calls.changed) is differs, (size, kernel, stride, dilation, padding)
            if differs:
                changes += 1
                fill = -torch.inf if name == "max_pool1d" else 0.0
                wanted = getattr(functional, name)(functional.pad(x, pads, value=fill), *given, **options)
                if name == "avg_pool1d":
                    wanted = wanted / functional.avg_pool1d(functional.pad(torch.ones_like(x), pads), *given, **options)
                assert torch.equal(found, wanted)
    assert changes > 10
