"""Folders whose files are links elsewhere, as DVC and scratch disks make them: refused, unless the person allows it."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit import FIXTURES, Run

import ckptconv
from ckptconv.errors import CkptError, UnsafeCheckpoint
from ckptconv.storage import files, paths

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
    ckptconv.save(ARRAYS, folder / at, to=format, max_shard_size=shards)
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


# --- one file of a set is a link: only what was typed itself is followed ----------------------------------------------


def copied(*patterns: str) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        for at in (p for pattern in patterns for p in sorted(FIXTURES.glob(pattern))):
            (shutil.copytree if at.is_dir() else shutil.copy)(at, home / at.name)

    return make


def saved(name: str, **how: object) -> Callable[[Path], None]:
    return lambda home: ckptconv.save(ARRAYS, home / name, **how) and None


def bundle(home: Path) -> None:
    """With a state file."""
    copied("tf/sharded.*[0-9x]")(home)
    (home / "checkpoint").write_text('model_checkpoint_path: "sharded"\n')


def tables(home: Path) -> None:
    copied("tf/v1s-*")(home)
    (home / "checkpoint").write_text('model_checkpoint_path: "v1s-?????-of-00003"\n')


def unpacked(home: Path) -> None:
    with zipfile.ZipFile(FIXTURES / "keras" / "net.keras") as z:
        z.extractall(home)


def gpt(home: Path) -> None:
    (home / "params_shapes.json").write_text("[[2, 3], [4, 3]]")
    for i in range(2):
        np.save(home / f"params_{i}.npy", np.arange(9, dtype="f4"))


SETS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {  # typed, beside its files: "" is its folder
    "bundle": (bundle, ("", "sharded")),
    "tables": (tables, ("v1s",)),  # not by its folder
    "SavedModel": (copied("tf/saved/*"), ("",)),
    "shards": (saved("model.safetensors", max_shard_size=30), ("", "model.safetensors")),
    "torch shards": (saved("pytorch_model.bin", max_shard_size=30), ("", "pytorch_model.bin")),
    "Keras shards": (copied("keras/shards*"), ()),
    "Keras folder": (unpacked, ("",)),
    "dcp": (copied("torch/dcp/*", "torch/dcp/.metadata"), ("",)),
    "gpt": (gpt, ("",)),
    "npy": (saved("", to="npy"), ("",)),
    "orbax": (copied("orbax/mesh_chunks/*"), ("",)),
    "zarr": (copied("orbax/zarr/files/v2.gzip"), ("",)),
}


def read(typed: Path) -> tuple[set[str], CkptError | None]:
    """The files that are read to open a path and for all tensors, links resolved, and how it ends."""
    error = None
    with files.record_stamps() as seen:
        try:
            for t in ckptconv.open(typed).values():
                t.numpy()
        except CkptError as e:
            error = e
    return {os.path.realpath(paths.local(url)) for url in seen}, error


@pytest.mark.parametrize("kind", SETS)
def test_a_link_that_nobody_typed_stays_in_the_folder(kind: str, tmp_path: Path) -> None:
    make, others = SETS[kind]
    home, victim = tmp_path / "got", tmp_path / "victim"
    home.mkdir()
    victim.mkdir()
    make(home)
    names = [p.name for p in home.iterdir() if p.is_file()]
    whole = {typed: read(typed) for typed in (home / name for name in (*others, *names))}
    assert not any(whole[home / name][1] for name in others)
    there, refused = [p for p in sorted(home.rglob("*")) if p.is_file()], set()
    for i, linked in enumerate([*([p] for p in there[:4]), there]):
        outside = {p: victim / f"{i}-{n}-{p.name}" for n, p in enumerate(linked)}
        for file, to in outside.items():
            file.rename(to)
            file.symlink_to(to)
        for typed in whole:
            used, error = read(typed)
            assert used & {str(to) for file, to in outside.items() if file != typed} == set(), typed
            if whole[typed][0] & {str(file) for file in linked if file != typed}:
                assert isinstance(error, UnsafeCheckpoint), (typed, linked)
                refused.add(typed)
        for file, to in outside.items():
            to.replace(file)
    assert refused >= {home / name for name in others}


@pytest.mark.parametrize("name", ["m.index", "m.meta", "checkpoint"])
def test_a_link_that_is_typed_is_followed(name: str, tmp_path: Path) -> None:
    """It alone: what lies beside its target is no more the checkpoint's than other files are."""
    home, victim = tmp_path / "got", tmp_path / "victim"
    for folder in (home, victim):
        ckptconv.save(ARRAYS, folder / "m", to="tf")
    (victim / "m.meta").write_bytes(b"")
    (home / name).unlink(missing_ok=True)
    (home / name).symlink_to(victim / name)
    assert set(ckptconv.open(home / name)) == set(ARRAYS)
    data = "m.data-00000-of-00001"
    (home / data).unlink()
    (home / data).symlink_to(victim / data)
    with pytest.raises(UnsafeCheckpoint, match=f"{data} is a symlink that leaves"):
        ckptconv.open(home / name)


# --- paths as texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["file://c.npz", "file://host/c.npz", "file://./c.npz", "file://"])
def test_urls_of_files_elsewhere(url: str, cli: Run, tmp_path: Path) -> None:
    """They were paths below the working folder: ./host/c.npz."""
    ckptconv.save(ARRAYS, tmp_path / "a.npz")
    (tmp_path / "m.jsonl").write_text(json.dumps({"source": url}))
    for call in (
        ["a.npz", "-o", url, "--to", "npz"],
        ["inspect", url],
        ["zoo", url, "-o", "o"],
        ["zoo", "a.npz", "-o", url],
    ):
        done = cli(*call)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is not a file on this machine: write file:///PATH" in done.stderr
    assert "is not a file on this machine" in cli("zoo", "m.jsonl", "-o", "out").stderr
    made = {p.name for p in tmp_path.iterdir()} - {"a.npz", "m.jsonl"}
    assert made <= {"o", "out"}  # with the ledgers of the zoos


@pytest.mark.parametrize("url", ["file://{}/", "file://localhost{}/"])
def test_urls_of_files_here(url: str, cli: Run, tmp_path: Path) -> None:
    ckptconv.save(ARRAYS, tmp_path / "a.npz")
    url = url.format(tmp_path)
    assert cli(f"{url}a.npz", "-o", f"{url}b%20c.npz").returncode == 0
    (tmp_path / "m.jsonl").write_text(json.dumps({"source": f"{url}b%20c.npz"}))
    assert cli("zoo", f"{url}m.jsonl", "-o", f"{url}out").returncode == 0
    assert {*ckptconv.open(tmp_path / "out" / "b%20c.safetensors")} == {*ARRAYS}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b%20c.npz", "m.jsonl", "out"]


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
    for name in ("a?b", "a#b"):
        with pytest.raises(UnsafeCheckpoint, match="which reads as more than a name there"):
            paths.sibling("s3://k/index", name)


def test_the_advice_is_one_word_of_a_shell(tmp_path: Path) -> None:
    target = tmp_path / "a;touch pwned;#"
    target.mkdir()
    home = tmp_path / "home"
    ckptconv.save({f"w{i}": np.ones(50) for i in range(3)}, home / "m.safetensors", max_shard_size=600)
    shard = next(p for p in home.iterdir() if p.suffix == ".safetensors")
    shutil.move(shard, target / "x")
    shard.symlink_to(target / "x")
    with pytest.raises(ckptconv.UnsafeCheckpoint, match=r"CKPTCONV_LINKS='[^']*a;touch pwned;#'"):
        ckptconv.open(next(home.glob("*.json")))
