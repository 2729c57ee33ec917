"""Folders whose files are links elsewhere, as DVC and scratch disks make them: refused, unless the person allows it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.errors import UnsafeCheckpoint
from ckptconv.storage import paths

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


# --- paths as texts ---------------------------------------------------------------------------------------------------

PARTS = {  # folder, base name, and the name of the file itself
    "a": (".", "a", "a"),
    "/b/a": ("/b", "a", "a"),
    "b/a": ("b", "a", "a"),
    "b/a?x#y": ("b", "a?x#y", "a?x#y"),
    "file:///b/a": ("/b", "a", "a"),
    "s3://k/b/a": ("s3://k/b", "a", "a"),
    "s3://k/b/a?x": ("s3://k/b", "a?x", "a?x"),
    "s3://k/a": ("s3://k", "a", "a"),
    "memory://a": ("memory://", "a", "a"),
    "https://h/b/a?sig=1/2#z": ("https://h/b", "a?sig=1/2#z", "a"),
    "https://h/b/a#z?y/": ("https://h/b", "a#z?y/", "a"),
    "http://h/a?q": ("http://h", "a?q", "a"),
    "http://[::1]:8/b/a?q::r/s": ("http://[::1]:8/b", "a?q::r/s", "a"),
    "zip://b/a::http://[::1]/c.zip": ("zip://b::http://[::1]/c.zip", "a", "a"),
    "zip://b/a::https://h/c.zip?q=1": ("zip://b::https://h/c.zip?q=1", "a", "a"),
    "zip://a::s3://k/c.zip": ("zip://::s3://k/c.zip", "a", "a"),
}


@pytest.mark.parametrize("url", PARTS)
def test_paths_are_split_and_joined(url: str) -> None:
    folder, base, name = PARTS[url]
    assert paths.split(url) == (folder, base)
    assert paths.file_name(url) == name
    assert paths.is_remote(url) is ("://" in url and not url.startswith("file:"))
    assert paths.is_http(url) is url.startswith("http")


@pytest.mark.parametrize(
    ("folder", "names", "joined"),
    [
        ("b", ("a",), "b/a"), ("/", ("a", "c"), "/a/c"), ("file:///b", ("a",), "/b/a"),
        ("s3://k/b", ("a", "c"), "s3://k/b/a/c"),
        ("s3://k/b//", ("a",), "s3://k/b/a"), ("memory://", ("a",), "memory://a"),
        ("zip://b::https://h/c.zip", ("a",), "zip://b/a::https://h/c.zip"), ("zip://::s3://k/c", ("a",), "zip://a::s3://k/c"),
    ],
)  # fmt: skip
def test_paths_are_joined(folder: str, names: tuple[str, ...], joined: str) -> None:
    assert paths.join(folder, *names) == joined


@pytest.mark.parametrize("name", ["", ".", "..", "b/a", "b\\a", "a\0"])
def test_only_plain_names_are_beside(name: str) -> None:
    for url in ("/b/index", "s3://k/index", "https://h/index"):
        with pytest.raises(UnsafeCheckpoint, match="which is not a plain name beside it"):
            paths.sibling(url, name)


def test_names_in_addresses() -> None:
    """On the web they are escaped; elsewhere what could be more than a name is refused."""
    assert paths.sibling("https://h/b/index?q", "a b?c#d%25:é") == "https://h/b/a b%3Fc%23d%2525%3A%C3%A9"
    assert paths.sibling("https://h/index", "$&'()*+,;=@[]{}^~`|!") == "https://h/$&'()*+,;=@[]{}^~`|!"
    assert paths.sibling("s3://k/index", "a b%:") == "s3://k/a b%:"
    assert paths.sibling("/b/index", "a?b#c::d") == "/b/a?b#c::d"
    for name in ("a?b", "a#b", "a::b"):
        with pytest.raises(UnsafeCheckpoint, match="which reads as more than a name there"):
            paths.sibling("s3://k/index", name)
