"""Folders of outputs are listed once, so that n outputs in one folder cost n, not n squared."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.output import listed, publish
from ckptconv.storage import files


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    names = files.names

    def counted(folder: str, prefix: str = "") -> list[str]:
        made.append(folder)
        return names(folder, prefix)

    monkeypatch.setattr(files, "names", counted)
    return made


def fill(folder: Path, count: int) -> str:
    folder.mkdir()
    for i in range(count):
        (folder / f"old-{i}").touch()
    return str(folder)


def test_an_output_lists_its_folder_before_it_begins_and_before_it_is_published(
    listings: list[str], tmp_path: Path
) -> None:
    ckptconv.save({"w": np.ones(3)}, Path(fill(tmp_path / "out", 3)) / "m.safetensors")
    assert listings == [str(tmp_path / "out")] * 2


def test_a_long_listing_serves_all_outputs_of_a_worker(listings: list[str], tmp_path: Path) -> None:
    out, seen = Path(fill(tmp_path / "out", listed.SHORT + 1)), listed.Seen()
    for i in range(5):
        with listed.once(seen):
            ckptconv.save({"w": np.ones(3)}, out / f"m-{i}.safetensors", verify="none")
    assert listings == [str(out)]
    with listed.once(seen), pytest.raises(ckptconv.StorageError, match="already exists"):
        ckptconv.save({"w": np.ones(3)}, out / "m-0.safetensors")


def test_a_short_listing_is_made_again(listings: list[str], tmp_path: Path) -> None:
    out, seen = fill(tmp_path / "out", 3), listed.Seen()
    for expected in (["old-0", "old-1", "old-2"], ["old-0", "old-1", "old-2", "old-9"]):
        with listed.once(seen):
            assert listed.names(out, "old-") == listed.names(out, "old-") == expected
        (tmp_path / "out" / "old-9").touch()
    assert listings == [out] * 2


@pytest.mark.parametrize(("beginning", "count"), [("", 5), ("a", 3), ("ab", 2), ("b", 1), ("zz", 0), ("A", 1)])
def test_names_that_begin_so(beginning: str, count: int, tmp_path: Path) -> None:
    for name in ("a", "ab", "abc", "b", "A"):
        (tmp_path / name).touch()
    with listed.once():
        found = listed.names(str(tmp_path), beginning)
    assert found == listed.names(str(tmp_path), beginning)
    assert len(found) == count
    assert listed.names(str(tmp_path / "none"), beginning) == []


@pytest.mark.parametrize("folder", ["memory://listed/arrays", "local"])
def test_arrays_of_an_older_folder_are_seen_whatever_they_are_called(folder: str, tmp_path: Path) -> None:
    at = folder if "://" in folder else str(tmp_path / folder)
    ckptconv.save({"zebra": np.ones(3), "yak": np.ones(2)}, at, format="npy")
    with pytest.raises(ckptconv.StorageError, match=r"ckptconv\.json|zebra|yak|already"):
        ckptconv.save({"ant": np.ones(3)}, at, format="npy")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_folder_and_its_files_have_the_permissions_that_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        ckptconv.save({"w": np.ones(3)}, tmp_path / "out", format="npy")
    finally:
        os.umask(old)
    found = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out", *(tmp_path / "out").iterdir())}
    assert found.pop("out") == 0o755
    assert set(found.values()) == {0o644}


def test_a_destination_that_cannot_be_cleared_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(publish, "finish", broken)
    with pytest.raises(ckptconv.StorageError, match=r"(?i)input/output error") as e:
        ckptconv.save({"w": np.ones(3)}, tmp_path / "m.npz")
    assert e.value.url == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
