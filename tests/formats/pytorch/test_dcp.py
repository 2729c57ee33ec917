"""Folders of torch.distributed.checkpoint that we write: torch loads them, whole and by the shards of two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import process

import ckptconv

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3, bias=False))


def trained(flat: bool) -> dict[str, Any]:
    """A model and its optimizer, as training code saves them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    made = model()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.02)
    made(torch.ones(2, 7)).sum().backward()
    optimizer.step()
    how = StateDictOptions(flatten_optimizer_state_dict=flat)
    weights, state = get_state_dict(made, optimizer, options=how)
    return {**weights, **(state if flat else {"optim": state})}


def zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: zeros(v) for k, v in value.items()}
    if isinstance(value, list):
        return list(map(zeros, value))
    return torch.zeros_like(value) if torch.is_tensor(value) else None


def assert_same(got: Any, wanted: Any) -> None:
    if torch.is_tensor(wanted):
        assert torch.equal(got, wanted)
    elif isinstance(wanted, (dict, list, tuple)):
        assert len(got) == len(wanted)
        for k in wanted if isinstance(wanted, dict) else range(len(wanted)):
            assert_same(got[k], wanted[k])
    else:
        assert got == wanted


@pytest.mark.parametrize("flat", [True, False])
def test_torch_loads_a_training_state(flat: bool, tmp_path: Path) -> None:
    """Every tensor and number, and betas as a list: nothing that a strict load asks for is missing."""
    state = trained(flat)
    dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    done = ckptconv.convert(tmp_path / "a", tmp_path / "b", to="dcp", max_shard_size=100)
    assert not [n for n in done.notes if n.kind == "skipped"]
    assert len(list((tmp_path / "b").glob("__0_*.distcp"))) > 3
    one, other = (ckptconv.open(tmp_path / n) for n in "ab")
    assert [(n, t.role) for n, t in one.items()] == [(n, t.role) for n, t in other.items()]
    assert one.details["values"] == other.details["values"]
    got = zeros(state)
    dcp.load(got, checkpoint_id=tmp_path / "b", no_dist=True)
    assert_same(got, state)


def test_numbers_of_a_model_alone_are_not_written(tmp_path: Path) -> None:
    state = trained(flat=False)
    torch.save({"model": model().state_dict(), "optim": state["optim"], "epoch": 3}, tmp_path / "a.pt")
    done = ckptconv.convert(tmp_path / "a.pt", tmp_path / "b", to="dcp", weights_only=True)
    assert any("epoch" in n.names for n in done.notes if n.kind == "skipped")
    assert "values" not in ckptconv.open(tmp_path / "b").details
    done = ckptconv.convert(tmp_path / "a.pt", tmp_path / "c.distcp", to="dcp")
    assert ckptconv.open(tmp_path / "c.distcp").details["values"]["epoch"] == 3
    assert not any("epoch" in n.names for n in done.notes if n.kind == "skipped")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_two_loads_its_shards(rank: int, tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = model().state_dict() | {"half": torch.randn(5, 4).bfloat16(), "none": torch.zeros(0, 2)}
    torch.save(whole, tmp_path / "a.pt")
    ckptconv.convert(tmp_path / "a.pt", tmp_path / "b", to="dcp")
    with process(rank):
        how = (init_device_mesh("cpu", (2,)), [Shard(0)])
        got = {n: distribute_tensor(torch.zeros_like(t), *how, src_data_rank=None) for n, t in whole.items()}
        dcp.load(got, checkpoint_id=tmp_path / "b", no_dist=True)
    assert all(torch.equal(got[n].to_local(), (*t.chunk(2), t[:0])[rank]) for n, t in whole.items())
