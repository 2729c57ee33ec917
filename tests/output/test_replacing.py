"""What `force` takes away: no source of which something is left out, and nothing without saying so."""

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

# what is there and how it is written; the source, the destination and the options; what is spared, or gone
SPARED: dict[str, tuple[str, dict[str, Any], str, str, dict[str, Any], set[str]]] = {
    "a name of the set": ("model.safetensors", SHARDS, INDEX, "model.safetensors", PART, {"not selected (b, b/Adam)"}),
    "slots": (
        "model.safetensors", SHARDS, INDEX, "model.safetensors", {"weights_only": True}, {"optimizer slot (b/Adam)"},
    ),
    "the name by which it is read": (
        "model.safetensors", SHARDS, "model.safetensors", "model.safetensors", PART, {"not selected"},
    ),
    "a folder": ("model.safetensors", SHARDS, "", "", PART | {"to": "hf"}, {"model-00003-of-00003.safetensors"}),
    "one of the shards": (
        "model.safetensors", SHARDS, INDEX, "model-00002-of-00003.safetensors", PART, {"1 source would be"},
    ),
    "a bundle of several files": ("m.ckpt", SHARDS, "m.ckpt", "m.ckpt", PART, {"m.ckpt.data-00002-of-00003"}),
    "resumed": (
        "model.safetensors", SHARDS, INDEX, "model.safetensors", PART | {"resume": True}, {"not selected"},
    ),
}  # fmt: skip
GONE: dict[str, tuple[str, dict[str, Any], str, str, dict[str, Any], set[str]]] = {
    "a file over itself": ("m.npz", {}, "m.npz", "m.npz", PART, set()),
    "a bundle over itself": ("m.ckpt", {}, "m.ckpt", "m.ckpt", PART, set()),
    "a bundle over itself by another name": ("m.ckpt", {}, "m.ckpt.index", "m.ckpt", PART | {"to": "tf"}, set()),
    "a file over itself by its folder": (
        "model.safetensors", {}, "", "model.safetensors", PART | {"to": "safetensors"}, set(),
    ),
    "all of it": (
        "model.safetensors", SHARDS, INDEX, "model.safetensors", {},
        {INDEX, *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))},
    ),
    "beside it": ("model.safetensors", SHARDS, INDEX, "other.safetensors", PART, set()),
}  # fmt: skip


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s") if request.param == "local" else f"memory://{tmp_path.name}/s"


def there(folder: str) -> list[str]:
    return [n for n in files.names(folder) if n != "checkpoint"]


@pytest.mark.parametrize("what", SPARED)
def test_no_source_is_lost_of_which_something_is_left_out(what: str, folder: str) -> None:
    """Tensors that no option named were in no file any more; `dry_run` says it as well."""
    saved, how, source, destination, options, said = SPARED[what]
    if "://" in folder and ("resume" in options or not source):
        pytest.skip("is for local folders")
    ckptconv.save(ARRAYS, f"{folder}/{saved}", **how)
    before = there(folder)
    for run in (ckptconv.dry_run, ckptconv.convert):
        with pytest.raises(
            StorageError, match="be replaced or removed, and not all that is there is written"
        ) as refused:
            run(f"{folder}/{source}".rstrip("/"), f"{folder}/{destination}".rstrip("/"), force=True, **options)
        assert all(text in str(refused.value) for text in said)
        assert there(folder) == before


@pytest.mark.parametrize("what", GONE)
def test_what_is_removed_is_said(what: str, folder: str) -> None:
    saved, how, source, destination, options, gone = GONE[what]
    ckptconv.save(ARRAYS, f"{folder}/{saved}", **how)
    paths = f"{folder}/{source}", f"{folder}/{destination}"
    before = there(folder)
    for run, verb in ((ckptconv.dry_run, "removes"), (ckptconv.convert, "removed")):
        notes = [n for n in run(*paths, force=True, **options).notes if n.text.endswith(f"which force=True {verb}")]
        assert [set(n.names) for n in notes] == [gone] * bool(gone)
    assert set(before) - set(there(folder)) == gone
    assert list(ckptconv.open(paths[1])) == (["a"] if options else list(ARRAYS))
