"""Cells of Flax into those of torch: the module computes what Flax's own arithmetic, written here in NumPy, does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import in_memory

import ckptconv

torch = pytest.importorskip("torch")

INPUTS, STATES = 5, 4
Params = dict[str, Any]


def random(*gates: str, biased: str) -> Params:
    """The parameters of a cell: a dense layer for each gate, of the inputs and of the state."""
    rng = np.random.default_rng(3)
    out: Params = {}
    for gate in gates:
        rows = INPUTS if gate[0] == "i" else STATES
        out[f"{gate}/kernel"] = rng.normal(size=(rows, STATES)).astype("f4")
        if gate in biased.split():
            out[f"{gate}/bias"] = rng.normal(size=STATES).astype("f4")
    return out


def dense(p: Params, gate: str, x: Any) -> Any:
    return x @ p[f"{gate}/kernel"] + p.get(f"{gate}/bias", 0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gru(p: Params, x: Any) -> Any:
    h, out = np.zeros((len(x), STATES), "f4"), []
    for step in x.swapaxes(0, 1):
        r = sigmoid(dense(p, "ir", step) + dense(p, "hr", h))
        z = sigmoid(dense(p, "iz", step) + dense(p, "hz", h))
        n = np.tanh(dense(p, "in", step) + r * dense(p, "hn", h))
        h = (1 - z) * n + z * h
        out.append(h)
    return np.stack(out, 1)


def lstm(p: Params, x: Any) -> Any:
    h = c = np.zeros((len(x), STATES), "f4")
    out = []
    for step in x.swapaxes(0, 1):
        i, f, g, o = (dense(p, f"i{k}", step) + dense(p, f"h{k}", h) for k in "ifgo")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out, 1)


CELLS: dict[str, tuple[Any, Any, Params]] = {
    "GRUCell_0": (torch.nn.GRU, gru, random("ir", "iz", "in", "hr", "hz", "hn", biased="ir iz in hn")),
    "OptimizedLSTMCell_0": (
        torch.nn.LSTM,
        lstm,
        random("ii", "if", "ig", "io", "hi", "hf", "hg", "ho", biased="hi hf hg ho"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_loads_and_leads_back(cell: str, tmp_path: Path) -> None:
    kind, original, params = CELLS[cell]
    source = in_memory({f"params/{cell}/{k}": params[k] for k in sorted(params)})
    module = kind(INPUTS, STATES, batch_first=True)
    found = ckptconv.match(source, module)
    by_hand = "hn/bias" in params  # no rule puts zeros before it
    left = f"params/{cell}/hn/bias"
    assert found.proposal.target_only == (("bias_hh_l0",) if by_hand else ())
    assert found.proposal.source_only == ((left,) if by_hand else ())
    assert not any(p.sure for p in found.proposal.pairs)  # gates are always marked
    (tmp_path / "r.toml").write_text(found.rules)
    ckptconv.torch.load_into(module, source, converter=str(tmp_path / "r.toml"), strict=not by_hand)
    x = np.random.default_rng(4).normal(size=(2, 6, INPUTS)).astype("f4")
    with torch.no_grad():
        if by_hand:
            module.bias_hh_l0.zero_()[2 * STATES :] = torch.from_numpy(params["hn/bias"])
        got = module(torch.from_numpy(x))[0].numpy()
    assert np.abs(got - original(params, x)).max() < 1e-5
    ckptconv.save({n: t.numpy() for n, t in module.state_dict().items()}, tmp_path / "t.safetensors")
    rules = {"converter": str(tmp_path / "r.toml"), "inverse": True, "exclude": ["bias_hh_l0"] * by_hand}
    ckptconv.convert(tmp_path / "t.safetensors", tmp_path / "b.safetensors", **rules)
    back = ckptconv.open(tmp_path / "b.safetensors").numpy()
    assert {n: a.tobytes() for n, a in back.items()} == {n: t.numpy().tobytes() for n, t in source.items() if n != left}
