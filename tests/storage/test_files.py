"""Reading local files: what the system refuses, what shrinks, what is no file, and reads in pieces."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import refused

import ckptconv
from ckptconv.errors import CkptError, StorageError
from ckptconv.storage import faults, files
from ckptconv.storage.files import Reader, read_all
from ckptconv.storage.ranges import InMemory, Slice


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(b"0123456789")
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("start", "size", "words"),
    [
        (0, 11, r"bytes 0 to 11 are needed but the file has 10"),
        (10, 1, r"bytes 10 to 11 are needed but the file has 10"),
        (-1, 2, r"bytes -1 to 1 are needed but the file has 10"),
        (5, -1, r"bytes 5 to 4 are needed but the file has 10"),
    ],
)
def test_bytes_that_are_not_there(path: Path, start: int, size: int, words: str) -> None:
    with Reader(str(path)) as f:
        assert (f.read(0, 10), f.read(10, 0)) == (b"0123456789", b"")
        with refused(words):
            f.read(start, size)
        if size >= 0:
            with refused(words):
                f.into(start, memoryview(bytearray(size)))


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="reads by another call here")
def test_reads_that_fail_or_come_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, preadv = os.pread, os.preadv

    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with Reader(str(path)) as f:
        target = memoryview(bytearray(10))
        monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
        monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:3]], at))
        f.into(0, target)
        assert f.read(0, 10) == bytes(target) == b"0123456789"
        monkeypatch.setattr(os, "pread", fail)
        monkeypatch.setattr(os, "preadv", fail)
        for read in (lambda: f.read(0, 1), lambda: f.into(0, target)):
            with pytest.raises(StorageError, match="input/output error"):
                read()
        monkeypatch.undo()
        os.truncate(path, 4)
        with refused("ends at byte 4, it shrank while it was read"):
            f.into(0, target)
        with refused("shrank while it was read"):
            f.read(0, 10)


def test_what_is_no_file(tmp_path: Path, path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="is a folder, a file is needed"):
        Reader(str(tmp_path / "folder"))
    with pytest.raises(StorageError, match="no such file"):
        Reader(str(tmp_path / "none"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StorageError, match="is a pipe or a device, a file is needed"):
            Reader(str(tmp_path / "pipe"))
    with pytest.raises(StorageError, match="no such file"), files.fileobj(str(tmp_path / "none")):
        pass
    assert read_all(str(path), 10) == b"0123456789"
    with refused("has 10 bytes, at most 9 are sensible here"):
        read_all(str(path), 9)
    assert files.names(str(tmp_path / "none")) == files.names(str(path)) == []


@pytest.mark.parametrize(("start", "size"), [(0, 4), (-1, 1), (1, -1), (3, 1)])
def test_slices(start: int, size: int) -> None:
    part = Slice(InMemory("x", b"0123456789"), 2, 3)
    assert (part.read(0, 3), part.read(3, 0), part.read(1, 1)) == (b"234", b"", b"3")
    with refused(f"bytes {start} to {start + size} of an archive of 3"):
        part.read(start, size)


def test_shards_of_an_older_checkpoint_take_the_name(tmp_path: Path) -> None:
    """A single file is not put beside the shards of another checkpoint, by which it would be taken for another."""
    tensors = {n: np.ones(100) for n in "ab"}
    ckptconv.save(tensors, tmp_path / "model.safetensors", max_shard_size=1000)
    there = {p.name for p in tmp_path.iterdir()}
    assert len(there) == 3
    with pytest.raises(StorageError, match="belongs to a checkpoint of the same name; force=True replaces it"):
        ckptconv.save(tensors, tmp_path / "model.safetensors")
    assert {p.name for p in tmp_path.iterdir()} == there
    ckptconv.save(tensors, tmp_path / "model.safetensors", force=True)
    assert {p.name for p in tmp_path.iterdir()} == {"model.safetensors"}


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    """Such as /proc, which answers that there is no such file."""
    missing = FileNotFoundError(2, "No such file or directory")
    assert faults.refused(missing, str(tmp_path)).message == "no file can be created in this folder"
    assert faults.refused(missing, str(tmp_path / "x")).message == "no such file or folder"


def test_closing_a_slice_closes_the_file(path: Path) -> None:
    whole = Reader(str(path))
    Slice(whole, 1, 2).close()
    with pytest.raises((OSError, ValueError, CkptError)):
        whole.read(0, 1)
