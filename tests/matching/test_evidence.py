"""Outputs that hold too little prove nothing: among hundreds of weights some give a few classes by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.errors import UsageError
from ckptconv.matching.check.prove import ENOUGH, bits

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (np.zeros((4, 8)), 0), (np.full(9, 0.3), 0), (np.arange(8) % 2, 8), (np.repeat([0.0, 1, 2, 3], 4), 32),
        (np.array([[0.3]]), 10), (np.array([0.1, 0.2, 0.3]), 30), (np.array([1e-12, 3e-12, 4e-12]), 30),
        (np.array([0, 1 - 1e-9, 1, 1e-30]), 4), (np.array([0.1, 0.2, 0.3, 0, 0]), 34), (np.array([True, False]), 2),
    ],
)  # fmt: skip
def test_bits(outputs: Array, expected: float) -> None:
    assert bits({"": [outputs]}, 1e-4) == pytest.approx(expected)
    assert bits({"": [outputs], "x": [outputs]}, 1e-4) == pytest.approx(2 * expected)


NAMES = ("dense_in", "dense_mid", "logits")


def original(seed: int, rows: int) -> tuple[dict[str, Array], Array, Array]:
    """Three square layers of which the last by name runs first, inputs, and logits."""
    r = np.random.default_rng(seed)
    made = {f"net/{n}/weights": (r.normal(size=(8, 8)) * 0.5).astype("f4") for n in NAMES}
    made |= {f"net/{n}/biases": (r.normal(size=8) * 0.5).astype("f4") for n in NAMES}
    x = (r.normal(size=(rows, 8)) * 0.5).astype("f4")
    h = x
    for name in ("logits", "dense_in", "dense_mid"):
        h = np.maximum(h, 0) if h is not x else h
        h = h @ made[f"net/{name}/weights"] + made[f"net/{name}/biases"]
    return made, x, h


@pytest.mark.parametrize("ending", ["argmax", "sign", "same"])
def test_nothing_is_searched_or_proved_with_a_few_classes(ending: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="--check runs a module of torch")

    class Net(torch.nn.Module):  # type: ignore[name-defined, misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.out = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            h = self.out(torch.relu(self.fc2(torch.relu(self.fc1(x)))))
            return {"argmax": lambda: h.argmax(-1), "sign": lambda: (h > 0).float(), "same": lambda: h * 0}[ending]()

    for seed in range(4):
        made, x, h = original(seed, rows=2 if ending == "argmax" else 1)
        source = tmp_path / f"{seed}.npz"
        ckptconv.save(made, source)
        y = {"argmax": h.argmax(-1), "sign": (h > 0).astype("f4"), "same": h * 0}[ending]
        if len(np.unique(y)) == 1:
            with pytest.raises(UsageError, match="all outputs are the same number, which proves nothing"):
                ckptconv.match(source, Net(), check=({"x": x}, {"y": y}))
            continue
        assert bits({"": [y]}, 1e-4) < ENOUGH
        found = ckptconv.match(source, Net(), check=({"x": x}, {"y": y}))
        assert found.proof is not None
        assert "the outputs hold too little to prove weights" in str(found.proof)
        assert found.proof.tried == 0
        assert not [p for p in found.proposal.pairs if p.evidence == "proved"]
