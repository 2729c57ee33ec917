"""Shards of safetensors in which each process of a distributed run saved its parts of tensors: refused, never whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kit import refused
from safetensors.numpy import save_file

import ckptconv

WHOLE = np.arange(24, dtype="f4").reshape(4, 6)
SHARDS = [f"shard-{i:05d}-model-00001-of-00001.safetensors" for i in (1, 2)]


def saved(file: Path, array: np.ndarray, info: str) -> Path:
    """A file as torch writes it, without torch."""
    file.parent.mkdir(exist_ok=True)
    save_file({"w": array}, file, {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": info})
    return file


def starting(*start: int) -> str:
    return json.dumps({"w": {"saved_offsets": start}})


def test_a_part_is_not_read_as_a_tensor(tmp_path: Path) -> None:
    """Alone, as one of a folder, under the name that torch gave it or another."""
    for name, start in zip(SHARDS, (0, 2), strict=True):
        path = saved(tmp_path / "m" / name, WHOLE[start : start + 2], starting(start, 0))
        with refused(
            "is one shard of those that a distributed run saved; join them with consolidate_safetensors_files"
        ):
            ckptconv.open(path)
    with refused("give all of them as sources|holds|shard"):
        ckptconv.open(tmp_path / "m")
    with refused("is one shard of those"):
        ckptconv.open(saved(tmp_path / "x.safetensors", WHOLE[2:], starting(2, 0)))


def test_the_first_shard_alone_may_be_a_part(tmp_path: Path) -> None:
    """What it says is what a file of whole tensors says; a tensor without axes leaves no doubt."""
    saved(tmp_path / "x.safetensors", WHOLE[:2], starting(0, 0))
    saved(tmp_path / "scalar.safetensors", np.array(1.0, "f4"), starting())
    ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    for name, doubts in (("x", 1), ("y", 1), ("scalar", 0)):
        notes = ckptconv.open(tmp_path / f"{name}.safetensors").notes
        assert [n.kind for n in notes if "holds only the first part of each" in n.text] == ["assumed"] * doubts


@pytest.mark.parametrize("info", ["{", "3", "[]", '{"w": 2}', '{"w": {"saved_offsets": 2}}', starting(0, 0)])
def test_whole_tensors(info: str, tmp_path: Path) -> None:
    """And if what the metadata says cannot be understood."""
    assert (ckptconv.open(saved(tmp_path / "x.safetensors", WHOLE, info))["w"].numpy() == WHOLE).all()


@pytest.mark.filterwarnings("ignore")
def test_as_torch_joins_them(tmp_path: Path) -> None:
    consolidate = pytest.importorskip("torch.distributed.checkpoint._consolidate_hf_safetensors")
    for name, start in zip(SHARDS, (0, 2), strict=True):
        saved(tmp_path / "m" / name, WHOLE[start : start + 2], starting(start, 0))
    (tmp_path / "whole").mkdir()
    consolidate.consolidate_safetensors_files(str(tmp_path / "m"), str(tmp_path / "whole"), {"w": 1})
    found = ckptconv.open(tmp_path / "whole")
    assert (found["w"].numpy() == WHOLE).all()
