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


@pytest.mark.filterwarnings("ignore")
def test_torchscript(tmp_path: Path) -> None:
    """Attributes and constants."""
    whole = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.quint8)
    channels = torch.quantize_per_channel(
        torch.arange(4.0).reshape(2, 2), torch.tensor([0.5, 1.0]), torch.tensor([1, 2]), 0, torch.qint8
    )

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("q", whole)
            self.register_buffer("c", channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.q.dequantize() + self.c.dequantize().sum()

    made = torch.jit.script(Module().eval())
    for file, names in (("m.pt", ["q", "c"]), ("frozen.pt", ["constants.0", "constants.1"])):
        torch.jit.save(made if file == "m.pt" else torch.jit.freeze(made), tmp_path / file)
        pieces = ckptconv.open(tmp_path / file)
        assert any("densify=True computes them" in n.text for n in pieces.notes)
        got = ckptconv.open(tmp_path / file, densify=True)
        assert not any("densify=True computes them" in n.text for n in got.notes)
        assert sorted(got) == sorted(names)
        wanted = sorted((t.dequantize().tolist() for t in (whole, channels)), key=str)
        assert sorted((t.numpy().tolist() for t in got.values()), key=str) == wanted
