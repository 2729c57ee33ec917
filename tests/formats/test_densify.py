"""--densify computes sparse and quantised tensors; without it their pieces are given, with a note."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit import Run

import ckptconv

torch = pytest.importorskip("torch", reason="torch writes the sparse tensors")


def test_on_the_command_line(cli: Run, tmp_path: Path) -> None:
    sparse = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    quantised = torch.quantize_per_tensor(torch.tensor([0.5, 1.0, -1.0]), 0.5, 1, torch.qint8)
    torch.save({"s": sparse, "q": quantised}, tmp_path / "m.pt")
    done = cli("m.pt", "-o", "pieces.npz")
    assert done.returncode == 0
    assert "--densify" in done.stderr
    assert "s" not in ckptconv.open(tmp_path / "pieces.npz")
    assert cli("m.pt", "-o", "dense.npz", "--densify").returncode == 0
    got = ckptconv.open(tmp_path / "dense.npz")
    assert np.array_equal(got["s"].numpy(), sparse.to_dense().numpy())
    assert np.array_equal(got["q"].numpy(), quantised.dequantize().numpy())
    assert cli("verify", "m.pt", "dense.npz", "--densify").returncode == 0
