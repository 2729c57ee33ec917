"""What a check says: what was tried, and which settings of the module no weight holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptconv

torch = pytest.importorskip("torch", reason="--check runs a module of torch")
pytest.importorskip("scipy", reason="matching by names is an extra")


@pytest.mark.parametrize("eps", [1e-5, 1.1e-5, 1e-3])
def test_settings_that_no_weight_holds_are_advised_where_outputs_are_not_equal(eps: float, tmp_path: Path) -> None:
    made = [torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, eps=e)) for e in (eps, 1e-5)]
    original, module = (m.eval() for m in made)
    with torch.no_grad():
        original[1].running_var.mul_(1e-3)
    ckptconv.save({n: t.numpy() for n, t in original.state_dict().items()}, tmp_path / "a.npz")
    x = np.random.default_rng(1).normal(size=(9, 4)).astype("f4")
    y = original(torch.from_numpy(x)).detach().numpy()
    proof = ckptconv.match(tmp_path / "a.npz", module, check=({"x": x}, {"y": y})).proof
    assert proof is not None
    assert proof.found.same is (eps < 1e-4)
    assert [hint.split(":")[0] for hint in proof.hints] == ["batch normalisation"] * (eps != 1e-5)
    assert module[1].eps == 1e-5
