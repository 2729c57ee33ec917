"""What `force` takes away: no source, and nothing without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.errors import StorageError
from ckptconv.storage import files

ARRAYS = {"a": np.ones(1000, "f4"), "b": np.ones(1000, "f4"), "b/Adam": np.ones(1000, "f4")}
SHARDS: dict[str, Any] = {"max_shard_size": 4096}
INDEX = "model.safetensors.index.json"
PART: dict[str, Any] = {"include": "a"}

# what is there and how it is written; the source, the destination and the options
OVER: dict[str, tuple[str, dict[str, Any], str, str, dict[str, Any]]] = {
    "a file": ("m.npz", {}, "m.npz", "m.npz", {}),
    "a file, cast": ("m.npz", {}, "m.npz", "m.npz", {"dtype": "float16"}),
    "a file by its folder": ("model.safetensors", {}, "", "model.safetensors", {"to": "safetensors"}),
    "a bundle": ("m.ckpt", {}, "m.ckpt", "m.ckpt", PART),
    "a bundle by another name": ("m.ckpt", {}, "m.ckpt.index", "m.ckpt", {"to": "tf"}),
    "a bundle of several files": ("m.ckpt", SHARDS, "m.ckpt", "m.ckpt", PART),
    "shards by their set": ("model.safetensors", SHARDS, INDEX, "model.safetensors", {}),
    "shards by the name to which they belong": ("model.safetensors", SHARDS, "model.safetensors", INDEX[:17], PART),
    "a folder": ("model.safetensors", SHARDS, "", "", {"to": "hf"}),
    "one of the shards": ("model.safetensors", SHARDS, INDEX, "model-00002-of-00003.safetensors", {}),
    "resumed": ("model.safetensors", SHARDS, INDEX, "model.safetensors", {"resume": True}),
}


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s") if request.param == "local" else f"memory://{tmp_path.name}/s"


def there(folder: str) -> list[str]:
    return [n for n in files.names(folder) if n != "checkpoint"]


@pytest.mark.parametrize("what", OVER)
def test_no_source_is_written_over(what: str, folder: str) -> None:
    """What an option leaves out or casts would be in no file any more; `dry_run` refuses it as well."""
    saved, how, source, destination, options = OVER[what]
    if "://" in folder and ("resume" in options or not source):
        pytest.skip("is for local folders")
    ckptconv.save(ARRAYS, f"{folder}/{saved}", **how)
    before = there(folder)
    for run in (ckptconv.dry_run, ckptconv.convert):
        with pytest.raises(StorageError, match="the output would replace or remove its own source"):
            run(f"{folder}/{source}".rstrip("/"), f"{folder}/{destination}".rstrip("/"), force=True, **options)
        assert there(folder) == before


def test_an_open_checkpoint_is_not_written_over(folder: str) -> None:
    ckptconv.save(ARRAYS, f"{folder}/m.npz")
    with pytest.raises(StorageError, match="its own source"):
        ckptconv.save(ckptconv.open(f"{folder}/m.npz"), f"{folder}/m.npz", force=True)


def test_what_is_removed_is_said(folder: str) -> None:
    ckptconv.save(ARRAYS, f"{folder}/model.safetensors", **SHARDS)
    ckptconv.save(ARRAYS, f"{folder}/m.npz")
    gone = {INDEX, *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))}
    before = there(folder)
    for run, verb in ((ckptconv.dry_run, "removes"), (ckptconv.convert, "removed")):
        made = run(f"{folder}/m.npz", f"{folder}/model.safetensors", force=True)
        assert [set(n.names) for n in made.notes if n.text.endswith(f"which force=True {verb}")] == [gone]
    assert set(before) - set(there(folder)) == gone
