"""Folders of safetensors in which each process of a distributed run saved its parts of tensors: joined, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import refused
from safetensors.numpy import save_file

import ckptconv
from ckptconv.checkpoint import Checkpoint

WHOLE = np.arange(24, dtype="f4").reshape(4, 6)
TOP, BOTTOM = (WHOLE[:2], [0, 0]), (WHOLE[2:], [2, 0])
Part = tuple[Any, Any]  # of a tensor, and where it begins
Shard = dict[str, Part]


def shard(number: int, index: int = 1, of: int = 1) -> str:
    return f"shard-{number:05d}-model-{index:05d}-of-{of:05d}.safetensors"


def saved(folder: Path, shards: dict[str, Shard], **metadata: str) -> Path:
    """A folder as torch writes it, without torch."""
    folder.mkdir(exist_ok=True)
    for file, parts in shards.items():
        info = json.dumps({name: {"saved_offsets": start} for name, (_, start) in parts.items() if start is not None})
        about = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": info, **metadata}
        save_file({name: np.array(a, order="C") for name, (a, _) in parts.items()}, folder / file, about)
    return folder


def grid(rows: int, columns: int) -> dict[str, Shard]:
    """The matrix in blocks, one in each shard."""
    cut = [(i, j) for i in range(0, 4, 4 // rows) for j in range(0, 6, 6 // columns)]
    block = {(i, j): WHOLE[i : i + 4 // rows, j : j + 6 // columns] for i, j in cut}
    return {shard(k): {"w": (block[at], list(at))} for k, at in enumerate(cut, 1)}


def assert_joined(found: Checkpoint) -> None:
    assert {n: t.shape for n, t in found.items()} == {"w": (4, 6)}
    assert (found["w"].numpy() == WHOLE).all()
    assert (found["w"][1:3, 2:5] == WHOLE[1:3, 2:5]).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 1), (4, 1), (1, 2), (1, 6), (2, 3), (4, 6)])
def test_parts_are_joined(rows: int, columns: int, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", grid(rows, columns))
    found = ckptconv.open(folder)
    assert_joined(found)
    assert found.metadata == {"format": "pt"}  # what is said of parts is not true of the whole
    assert [n.kind for n in found.notes] == ["assumed"]
    assert f"joined from {rows * columns} shard" in found.notes[0].text
    for to in ("a.safetensors", "a.npz", "a.pt"):
        ckptconv.convert(folder, tmp_path / to)
        assert_joined(ckptconv.open(tmp_path / to))
        assert ckptconv.verify(folder, tmp_path / to)


def test_tensors_lie_where_they_lie(tmp_path: Path) -> None:
    """Some whole in one shard, some in parts, in files by a plan; of nothing, of no axis; not of each process."""
    shards: dict[str, Shard] = {
        shard(1, 1, 2): {"w": TOP, "one": (np.float32(3), []), "none": (np.zeros((0, 3)), [0, 0])},
        shard(1, 2, 2): {"b": (np.arange(2), [0])},
        shard(4, 1, 2): {"w": BOTTOM, "none": (np.zeros((0, 3)), [0, 3]), "own": (np.arange(3), [0])},
        shard(4, 2, 2): {"b": (np.arange(2, 5), [2]), "empty": (np.zeros((0,)), [0])},
    }
    found = ckptconv.open(saved(tmp_path / "m", shards))
    assert {n: t.shape for n, t in found.items()} == {
        "w": (4, 6), "one": (), "none": (0, 6), "b": (5,), "own": (3,), "empty": (0,),
    }  # fmt: skip
    assert found["b"].numpy().tolist() == [0, 1, 2, 3, 4]
    assert found["one"].numpy() == 3
    assert found["none"].numpy().shape == (0, 6)
    assert len(found.urls) == 4


def test_a_shard_stands_for_its_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", grid(2, 1))
    found = ckptconv.open(folder / shard(1))
    assert_joined(found)
    assert [(n.kind, n.names) for n in found.notes][:1] == [("hint", (shard(1),))]


def test_a_part_is_not_read_as_a_tensor(tmp_path: Path) -> None:
    """Whoever asks for the file alone, or has given it another name, is told what it is."""
    folder = saved(tmp_path / "m", grid(2, 1))
    with refused(r"holds only parts of tensors, .* give the folder with all:\n *w, from \[2, 0\] on"):
        ckptconv.open(folder / shard(2), from_="safetensors")
    shutil.copy(folder / shard(2), tmp_path / "x.safetensors")
    with refused("give the folder with all, under the names that torch gave them"):
        ckptconv.open(tmp_path / "x.safetensors")


def test_whole_tensors_of_a_distributed_run(tmp_path: Path) -> None:
    """Under a name of their own, and if what the metadata says cannot be understood."""
    for i, info in enumerate(
        ('{"w": {"saved_offsets": [0, 0]}}', "{", "3", '{"w": 2}', '{"x": {"saved_offsets": [2]}}')
    ):
        save_file({"w": WHOLE}, tmp_path / f"{i}.safetensors", {"DCP_SHARDING_INFO": info})
        assert_joined(ckptconv.open(tmp_path / f"{i}.safetensors"))


def test_the_first_shard_alone_may_be_a_part(tmp_path: Path) -> None:
    """What it says is what a file of whole tensors says; an index, or a tensor without axes, leaves no doubt."""
    folder = saved(tmp_path / "m", grid(2, 1))
    shutil.copy(folder / shard(1), tmp_path / "x.safetensors")
    ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    for found in (
        ckptconv.open(folder / shard(1), from_="safetensors"),
        ckptconv.open(tmp_path / "x.safetensors"),
        ckptconv.open(tmp_path / "y.safetensors"),
    ):
        assert found["w"].shape == (2, 6)
        assert ["holds only the first part of each" in n.text for n in found.notes if n.kind == "assumed"] == [True]
    whole = "model-00001-of-00001.safetensors"
    saved(tmp_path / "i", {whole: {"w": (WHOLE, [0, 0])}, "one.safetensors": {"s": (np.float32(3), [])}})
    (tmp_path / "i" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": whole}}))
    ckptconv.convert(tmp_path / "i", tmp_path / "z.safetensors")
    for path in (tmp_path / "i" / whole, tmp_path / "z.safetensors", tmp_path / "i" / "one.safetensors"):
        assert not [n for n in ckptconv.open(path).notes if n.kind == "assumed"]


REFUSED: dict[str, tuple[dict[str, Shard], str]] = {
    "a hole": ({shard(1): {"w": TOP}, shard(2): {"w": (WHOLE[3:], [3, 0])}}, r"do not fill its shape \[4, 6\]"),
    "an overlap": ({shard(1): {"w": TOP}, shard(2): {"w": (WHOLE[1:], [1, 0])}}, r"its chunk at \[1, 0\] overlaps"),
    "other dtypes": ({shard(1): {"w": TOP}, shard(2): {"w": (WHOLE[2:].astype("f2"), [2, 0])}}, "different dtypes"),
    "other axes": ({shard(1): {"w": TOP}, shard(2): {"w": (np.ones(3, "f4"), [3])}}, "numbers of axes"),
    "too few numbers": ({shard(1): {"w": (WHOLE, [0])}}, r"its DCP_SHARDING_INFO does not say where this begins"),
    "a negative number": ({shard(1): {"w": (WHOLE, [0, -1])}}, "does not say where the parts of tensors begin"),
    "a huge number": ({shard(1): {"w": (WHOLE, [0, 2**62])}, shard(2): {"w": TOP}}, "elements"),
    "two checkpoints": ({shard(1): {"w": TOP}, shard(2, 1, 2): {"w": BOTTOM}}, "holds shards of several checkpoints"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    shards, why = REFUSED[what]
    folder = saved(tmp_path / "m", shards)
    with refused(why):
        ckptconv.open(folder)
    with refused(why):
        ckptconv.open(folder / next(iter(shards)))


@pytest.mark.parametrize("info", ["[", "3", "[]", '{"w": 1}', '{"w": {}, "w": {}}'])
def test_metadata_that_is_not_what_torch_writes(info: str, tmp_path: Path) -> None:
    with refused("JSON is not valid|does not say where"):
        ckptconv.open(saved(tmp_path / "m", {shard(1): {"w": TOP}}, DCP_SHARDING_INFO=info))


def test_a_part_of_a_dtype_that_is_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", {shard(1): {"w": (np.ones(2, "f4"), [0])}})
    metadata = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [2]}})}
    entry = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}
    text = json.dumps({"__metadata__": metadata, "w": entry}).encode()
    (folder / shard(2)).write_bytes(len(text).to_bytes(8, "little") + text + bytes(3))
    found = ckptconv.open(folder)
    assert not found
    assert [n.names for n in found.notes if n.kind == "skipped"] == [("w",)]


def test_other_models_of_the_folder(tmp_path: Path) -> None:
    """A hint names what lies beside the shards; where a model has a usual name, it is the folder's."""
    folder = saved(tmp_path / "m", grid(2, 1))
    ckptconv.save({"x": WHOLE}, folder / "adapter.safetensors")
    found = ckptconv.open(folder)
    assert_joined(found)
    assert [n.names for n in found.notes if n.kind == "hint"] == [("adapter.safetensors",)]
    ckptconv.save({"x": WHOLE}, folder / "model.safetensors")
    assert set(ckptconv.open(folder)) == {"x"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (1, 3), (2, 2)])
def test_as_torch_joins_them(rows: int, columns: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    consolidate = pytest.importorskip("torch.distributed.checkpoint._consolidate_hf_safetensors")
    folder = saved(tmp_path / "m", grid(rows, columns))
    (tmp_path / "whole").mkdir()
    consolidate.consolidate_safetensors_files(str(folder), str(tmp_path / "whole"), {"w": 1})
    assert_joined(ckptconv.open(tmp_path / "whole"))
    alone = next((tmp_path / "whole").glob("*.safetensors"))
    assert not ckptconv.open(alone, from_="safetensors").notes
    assert ckptconv.diff(folder, tmp_path / "whole").same


@pytest.mark.filterwarnings("ignore")
def test_what_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    state = {"a.w": torch.arange(12.0).reshape(4, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path / "m"), save_distributed=True)
    checkpoint.save(state, storage_writer=writer)
    found = ckptconv.open(tmp_path / "m")
    assert {n: t.shape for n, t in found.items()} == {"a.w": (4, 3), "b": (2,)}
    assert found["a.w"].numpy().tolist() == state["a.w"].tolist()
