"""What is found below a remote folder has its own path, and what cannot have one is named and not read."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import ckptconv
from ckptconv.bulk.discover import discover
from ckptconv.errors import CkptError, UnsafeCheckpoint, UsageError
from ckptconv.storage import files, lookups

ODD = ["b//x", "b/c//abs", "b/c/../x", "b/./x", "b/a\0b/x", "b/x?versionId=1"]
ZARR = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "<f4", "compressor": None, "fill_value": None,
        "order": "C", "filters": None}  # fmt: skip


@pytest.fixture
def store() -> Iterator[dict[str, Any]]:
    """The keys of a store in memory."""
    fs = fsspec.filesystem("memory")
    before = dict(fs.store)
    fs.store.clear()
    yield fs.store
    fs.store.clear()
    fs.store.update(before)


def put(store: dict[str, Any], key: str, raw: bytes = b"x") -> None:
    from fsspec.implementations.memory import MemoryFile

    store["/" + key] = MemoryFile(fsspec.filesystem("memory"), "/" + key, raw)


@pytest.fixture
def raw(tmp_path: Path) -> bytes:
    ckptconv.save({"w": np.ones(3, "f4")}, tmp_path / "in.safetensors")
    return (tmp_path / "in.safetensors").read_bytes()


@pytest.mark.parametrize("key", ODD)
def test_a_key_that_is_no_path(key: str, store: dict[str, Any], raw: bytes) -> None:
    """`b//x` was the folder b again, without end; `c//abs` was read as c/abs; a NUL ended the whole zoo."""
    put(store, "b/ok.safetensors", raw)
    put(store, key, raw)
    with pytest.raises(UnsafeCheckpoint, match="reads as more than a path"):
        list(files.walk("memory://b"))
    wrong: dict[str, CkptError] = {}
    levels = list(files.walk("memory://b", lambda _, path, e: wrong.update({path: e})))
    assert [(level.path, list(level.files)) for level in levels] == [("", ["ok.safetensors"])]
    (label,) = wrong
    assert not {"", ".", ".."}.intersection(label.split("/"))
    assert "\0" not in label
    found = discover(["memory://b"])
    assert [f.name for f in found if not f.problem] == ["ok"]
    assert len(found) == 2


@pytest.mark.parametrize("key", ["b//x", "b/a\0b/x"])
def test_in_a_checkpoint_it_is_refused(key: str, store: dict[str, Any]) -> None:
    put(store, "b/w/.zarray", json.dumps(ZARR).encode())
    put(store, "b/w/0", np.ones(3, "<f4").tobytes())
    put(store, key)
    with pytest.raises(UnsafeCheckpoint, match="reads as more than a path"):
        ckptconv.open("memory://b")


def test_deep_keys_take_little(store: dict[str, Any]) -> None:
    """Of 100 keys with 500 folders each all 50,000 folders were listed, in 50 MB."""
    for i in range(100):
        put(store, f"b/{i:06}" + "/a" * 500 + "/m.safetensors")
    tracemalloc.start()
    wrong: list[str] = []
    assert len(list(files.walk("memory://b", lambda _, path, e: wrong.append(e.message)))) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(wrong) == 100
    assert "501 folders deep" in wrong[0]
    assert peak < 64 * sum(map(len, store))


def test_an_empty_object_stands_for_a_folder(store: dict[str, Any]) -> None:
    put(store, "b/", b"")
    put(store, "b/c/", b"")
    put(store, "b/c/x")
    assert [(level.path, list(level.files)) for level in files.walk("memory://b")] == [("", []), ("c", ["x"])]


@pytest.mark.parametrize("prefix", ["file://", ""])
def test_paths_in_a_local_folder(prefix: str, raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "long-folder").mkdir()
    (tmp_path / "long-folder" / "x.safetensors").write_bytes(raw)
    found = discover([f"{prefix}{tmp_path}/"])
    assert [f.name for f in found] == ["in", "long-folder/x"]


@pytest.mark.parametrize(
    "pattern", ["memory://b/*/x*", "memory:///b/*/*.safetensors", "memory:///*/*/x*", "memory://b/**/*.safetensors"]
)
def test_paths_that_match_in_a_store(pattern: str, store: dict[str, Any], raw: bytes) -> None:
    put(store, "b/aa/x.safetensors", raw)
    put(store, "b/", b"")
    put(store, "b/run#3/x?y.safetensors", raw)
    found = [(f.name.removeprefix("b/"), bool(f.problem)) for f in discover([pattern])]
    assert found == [("aa/x", False), ("run#3/x?y", False)]
    assert [list(ckptconv.open(f.source)) for f in discover([pattern]) if not f.problem] == [["w"]] * 2


def test_a_pattern_goes_down_only(tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path with `..` below the output folder was a damaged line of the ledger."""
    (tmp_path / "d").mkdir()
    with pytest.raises(UsageError, match="goes down only"):
        discover([f"{tmp_path}/*/../*.safetensors"])
    (tmp_path / "a::b" / "d").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="goes down only"):
        discover(["a::b/*/../../*.safetensors"])  # no chain, though it looks like one
    assert [f.name for f in discover([f"{tmp_path}/d/../*.safetensors"])] == ["in"]


def test_a_name_that_looks_like_a_url_is_a_name(tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file `file:b` ended a zoo of all; in a folder `file:`, what an absolute path leads to was taken for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.safetensors").unlink()
    below = tmp_path / "file:" / str(tmp_path).strip("/")
    below.mkdir(parents=True)
    for path in (tmp_path / "file:b.safetensors", below / "c.safetensors"):
        path.write_bytes(raw)
    assert [f.source for f in discover(["*.safetensors"])] == ["./file:b.safetensors"]
    (found,) = discover(["file:/**/c.safetensors"])
    assert (found.source, found.problem) == (f"file:{tmp_path}/c.safetensors", None)


def test_what_is_a_version_in_one_store_is_a_name_in_another() -> None:
    lookups.check_path("run#3/x#7", "s3://b")
    lookups.check_path("run#3/x", "gs://b")
    with pytest.raises(UnsafeCheckpoint):
        lookups.check_path("run#3/x#7", "gs://b")
