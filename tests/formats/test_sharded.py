"""Hugging Face layouts: the same model from its index, a shard, its folder, and through the cache's symlinks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint

ARRAYS = {f"layer.{i}.weight": np.full((5, 20), i, "f4") for i in range(6)} | {"bias": np.arange(3, dtype="i8")}
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ckptconv.save(ARRAYS, tmp_path / "m", to="hf", max_shard_size=1000)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [*SHARDS, INDEX]
    (tmp_path / "m" / "config.json").write_text("{}")
    return tmp_path / "m"


def assert_whole(found: Checkpoint) -> None:
    assert set(found) == set(ARRAYS)
    assert all((found[n].numpy() == a).all() for n, a in ARRAYS.items())


@pytest.mark.parametrize("name", ["", INDEX, *SHARDS, "model.safetensors"])
def test_read_from_anywhere(folder: Path, name: str) -> None:
    found = ckptconv.open(folder / name)
    assert_whole(found)
    assert sorted(Path(u).name for u in found.urls) == [*SHARDS, INDEX]
    assert [note.kind for note in found.notes] == (["hint"] if name in SHARDS else [])


def test_a_shard_alone_when_asked(folder: Path) -> None:
    assert set(ckptconv.open(folder / SHARDS[0], from_="safetensors", partial=True)) == {
        "layer.0.weight",
        "layer.1.weight",
    }


def test_the_hub_cache(folder: Path) -> None:
    """snapshots/REV holds links to ../../blobs/HASH."""
    cache = folder.parent / "models--org--name"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "rev").mkdir(parents=True)
    for i, file in enumerate([*SHARDS, INDEX]):
        shutil.copy(folder / file, cache / "blobs" / f"{i:040x}")
        (cache / "snapshots" / "rev" / file).symlink_to(f"../../blobs/{i:040x}")
    for name in ("", INDEX, SHARDS[2]):
        assert_whole(ckptconv.open(cache / "snapshots" / "rev" / name))


def test_all_that_is_missing_is_named(folder: Path) -> None:
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[2]).unlink()
    with pytest.raises(ckptconv.errors.StorageError, match="2 of 3 shards") as caught:
        ckptconv.open(folder)
    assert SHARDS[0] in str(caught.value)
    assert SHARDS[2] in str(caught.value)
    got = ckptconv.open(folder, partial=True)
    assert {note.kind for note in got.notes} == {"skipped"}
    assert {name for note in got.notes for name in note.names} == set(ARRAYS) - set(got)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = dict.fromkeys(["layer.2.weight", "ghost", "phantom"], SHARDS[1])
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ckptconv.CorruptCheckpoint, match=r"(?s)2 of 3 shards.*00001-of.*not named.*00003-of"):
        ckptconv.open(folder)
    with pytest.raises(ckptconv.CorruptCheckpoint, match=r"(?s)2 tensors.*ghost.*phantom"):
        ckptconv.open(folder, partial=True)


def test_the_map_decides_between_two_shards(folder: Path) -> None:
    ckptconv.save({"bias": np.zeros(3, "i8"), "extra": np.ones(1)}, folder / "stale.safetensors")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["extra"] = "stale.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    found = ckptconv.open(folder)
    assert set(found) == {*ARRAYS, "extra"}
    assert found["bias"].numpy().tolist() == [0, 1, 2]
    assert [(note.kind, note.names) for note in found.notes] == [("unread", ("bias (in stale.safetensors)",))]


def test_a_shard_of_another_index_is_not_taken_for_one(folder: Path) -> None:
    shutil.copy(folder / SHARDS[0], folder / "model-00001-of-00009.safetensors")
    with pytest.raises(ckptconv.CorruptCheckpoint, match="not a shard of the index"):
        ckptconv.open(folder / "model-00001-of-00009.safetensors")


def test_one_file_in_a_folder(tmp_path: Path) -> None:
    ckptconv.save(ARRAYS, tmp_path / "m", to="hf")
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["model.safetensors"]
    assert_whole(ckptconv.open(tmp_path / "m"))
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"")
    found = ckptconv.open(tmp_path / "m")
    assert [(note.kind, note.names) for note in found.notes] == [("hint", ("pytorch_model.bin",))]
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "adapter.safetensors")
    (tmp_path / "m" / "pytorch_model.bin").unlink()
    assert_whole(ckptconv.open(tmp_path / "m"))
    shutil.copy(tmp_path / "m" / "adapter.safetensors", tmp_path / "m" / "other.safetensors")
    with pytest.raises(ckptconv.AmbiguousFormat, match=r"(?s)adapter\.safetensors.*other\.safetensors"):
        ckptconv.open(tmp_path / "m")


def test_all_shards_beside_their_index_are_one_model(folder: Path) -> None:
    whole = ckptconv.open(folder)
    report = ckptconv.convert(sorted(folder.glob("*-of-*")), folder.parent / "one.npz")
    assert report.tensors == len(whole)


def test_shards_without_an_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    with pytest.raises(ckptconv.UnknownFormat):
        ckptconv.open(folder)


def test_pickled_shards(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    ckptconv.save({"a": ARRAYS["bias"]}, tmp_path / names[0], to="torch")
    ckptconv.save({"b": ARRAYS["bias"]}, tmp_path / names[1], to="torch")
    weight_map = {"a": names[0], "b": names[1]}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json", tmp_path / names[1]):
        found = ckptconv.open(path)
        assert found.format == "torch"
        assert {n: t.numpy().tolist() for n, t in found.items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_a_folder_replaced_has_no_older_shards(folder: Path) -> None:
    ckptconv.save(ARRAYS, folder, to="hf", max_shard_size=2000, force=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX,
    ]  # fmt: skip
    assert_whole(ckptconv.open(folder))


def test_ties_within_a_shard_are_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    shared = torch.arange(3.0)
    torch.save({"a": shared, "b": shared}, tmp_path / names[0])
    torch.save({"c": torch.ones(2)}, tmp_path / names[1])
    weight_map = {"a": names[0], "b": names[0], "c": names[1]}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert ckptconv.open(tmp_path).ties == (("a", "b"),)
