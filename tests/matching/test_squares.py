"""Channels = height = width: an order of axes that nothing tells is marked, and outputs settle it."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv

pytest.importorskip("scipy", reason="matching by names is an extra")
torch = pytest.importorskip("torch", reason="--check runs a module of torch")
from torch import nn  # noqa: E402

N = 4
Arrays = dict[str, Any]


class Behind(nn.Module):
    """A dense layer behind an image of N x N x N, as wide as the image; the port may permute it first.

    A normalisation or an activation with weights may stand between the two, and one behind.
    """

    def __init__(self, permuted: bool = False, between: Any = nn.Identity, after: Any = nn.Identity) -> None:
        super().__init__()
        self.permuted = permuted
        self.conv1, self.conv2 = nn.Conv2d(N, N, 3, padding=1), nn.Conv2d(N, N, 3, padding=1)
        self.between = between()
        self.fc, self.after, self.out = nn.Linear(N**3, N**3), after(), nn.Linear(N**3, N)

    def forward(self, x: Any) -> Any:
        x = self.conv2(self.conv1(x).relu()).relu()
        x = x.permute(0, 2, 3, 1) if self.permuted else x
        return self.out(self.after(self.fc(self.between(x.flatten(1)))).relu())


class Before(nn.Module):
    """A dense layer in front of an image."""

    def __init__(self, first: bool = True, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain
        if first:
            self.fc = nn.Linear(N**3, N**3)
        self.conv1, self.conv2 = nn.ConvTranspose2d(N, N, N, 2), nn.Conv2d(N, 3, 3)
        if not first:
            self.fc = nn.Linear(N**3, N**3)

    def forward(self, x: Any) -> Any:
        y = self.fc(x).relu()
        y = y.reshape(-1, N, N, N)
        return self.conv2(self.conv1(y.permute(0, 3, 1, 2) if self.plain else y).relu())


VECTORS = {"running_mean": "moving_mean", "running_var": "moving_variance", "bias": "beta", "weight": "gamma"}


def vectors(module: Any, dense: str) -> Arrays:
    """The normalisations as Keras stores them, behind an image or not."""
    out: Arrays = {}
    for name in ("between", "after"):
        for k, t in getattr(module, name, nn.Identity()).state_dict().items():
            if k in VECTORS:
                turns = name == "between" and dense == "behind"
                out[f"{name}/{VECTORS[k]}"] = (
                    t.numpy().reshape(N, N, N).transpose(1, 2, 0).reshape(-1) if turns else t.numpy()
                )
    return out


def stored(module: Any, dense: str) -> Arrays:
    """As Keras stores it; `dense` is where fc stands: behind an image, before one, or neither."""
    out = vectors(module, dense)
    for name in ("fc", "conv1", "conv2", "out"):
        if not hasattr(module, name):
            continue
        w, b = (getattr(module, name).get_parameter(k).detach().numpy().copy() for k in ("weight", "bias"))
        if name == "fc" and dense == "behind":
            w = w.reshape(-1, N, N, N).transpose(0, 2, 3, 1).reshape(len(w), -1)
        if name == "fc" and dense == "before":
            w, b = (x.reshape(N, N, N, -1).transpose(1, 2, 0, 3).reshape(x.shape) for x in (w, b))
        out |= {f"{name}/kernel": w.transpose(2, 3, 1, 0) if w.ndim == 4 else w.T, f"{name}/bias": b}
    return {n: np.ascontiguousarray(x) for n, x in out.items()}


def drawn(seed: int, module: Any) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(0, 0.3)
        for name, t in module.named_buffers():
            if "running" in name:
                t.uniform_(0.5, 2)
    return module.eval()


PORTS: dict[str, tuple[Any, str, bool]] = {  # how it is built, where fc stands, whether names alone are right
    "behind an image": (Behind, "behind", True),
    "behind a permuted image": (lambda: Behind(True), "", False),
    **{
        f"{name}, behind {'a permuted' if permuted else 'an'} image": (
            partial(Behind, permuted, partial(kind, N**3)), "" if permuted else "behind", False,
        )
        for name, kind, permuted in (("a batch norm", nn.BatchNorm1d, True), ("a layer norm", nn.LayerNorm, False))
    },
    "between two norms": (
        partial(Behind, False, partial(nn.BatchNorm1d, N**3), partial(nn.LayerNorm, N**3)), "behind", False,
    ),
    "before an image": (Before, "before", True),
    "before an image, defined last": (lambda: Before(first=False), "before", True),
    "before an image that is permuted": (lambda: Before(plain=True), "", False),
}  # fmt: skip


@pytest.mark.parametrize("case", PORTS)
def test_dense_layers_beside_images(case: str, tmp_path: Path) -> None:
    build, dense, by_names = PORTS[case]
    original = drawn(1, build())
    ckptconv.save(stored(original, dense), tmp_path / "a.npz")
    shape = (40, N, N, N) if isinstance(original, Behind) else (40, N**3)
    x = np.random.default_rng(3).normal(size=shape).astype("f4")
    with torch.no_grad():
        wanted = original(torch.from_numpy(x)).numpy()
    found = ckptconv.match(tmp_path / "a.npz", drawn(2, build()), values=False)
    assert bool(wrong(original, found, tmp_path)) is not by_names
    assert wrong(original, found, tmp_path, real=True) == wrong(original, found, tmp_path)
    checked = ckptconv.match(tmp_path / "a.npz", drawn(2, build()), values=False, check=({"x": x}, {"y": wanted}))
    assert checked.proof is not None
    assert checked.proof.found.same
    assert wrong(original, checked, tmp_path) == []


def wrong(original: Any, found: Any, tmp_path: Path, *, real: bool = False) -> list[str]:
    """The tensors that are not the original's with these rules; `real`: those that the rules say to look at."""
    from ckptconv.torch import load_into

    (tmp_path / "r.toml").write_text(found.rules)
    fresh = drawn(5, deepcopy(original))
    load_into(fresh, tmp_path / "a.npz", converter=str(tmp_path / "r.toml"))
    want = original.state_dict()
    marked = {n for p in found.proposal.pairs if p.real and not p.sure for n in p.targets}
    return [
        n
        for n, t in fresh.state_dict().items()
        if t.shape and not torch.equal(t, want[n]) and (n in marked or not real)
    ]
