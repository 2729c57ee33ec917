"""Folders whose files are links elsewhere, as DVC and scratch disks make them: refused, unless the person allows it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ckptconv

ARRAYS = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones(5, "i8")}
KINDS = {
    "one file": ("hf", "m", None),
    "shards": ("hf", "m", 30),
    "tensorflow": ("tf", "m/model.ckpt", None),
    "npy": ("npy", "m", None),
}


def linked(folder: Path, kind: str) -> Path:
    """A checkpoint all of whose files are links into a cache, under other names."""
    format, at, shards = KINDS[kind]
    (folder / "m").mkdir()
    ckptconv.save(ARRAYS, folder / at, format=format, max_shard_size=shards)
    for i, file in enumerate(sorted((folder / "m").iterdir())):
        to = folder / "cache" / "files" / f"{i:02x}" / f"{i:030x}"
        to.parent.mkdir(parents=True)
        file.rename(to)
        file.symlink_to(to)
    return folder / at


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = linked(tmp_path, kind)
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="symlink that leaves the checkpoint's folder"):
        ckptconv.open(source)
    monkeypatch.setenv("CKPTCONV_LINKS", os.pathsep.join(["/nowhere", str(tmp_path / "cache")]))
    found = ckptconv.open(source)
    assert {n: t.numpy().tolist() for n, t in found.items()} == {n: a.tolist() for n, a in ARRAYS.items()}


@pytest.mark.parametrize("roots", ["", ".", "relative/cache", "{}/cach", "{}/cache/files/deeper"])
def test_other_folders_stay_closed(roots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = linked(tmp_path, "shards")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CKPTCONV_LINKS", roots.format(tmp_path))
    with pytest.raises(ckptconv.UnsafeCheckpoint, match=f"CKPTCONV_LINKS={tmp_path}/cache/files/0"):
        ckptconv.open(source)
