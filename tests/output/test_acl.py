"""A private checkpoint stays private where folders and files have access control lists."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv
from ckptconv.output import acl

OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
ANY = 0xFFFFFFFF


def listed(*entries: tuple[int, int] | tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *(*e, ANY)[:3]) for e in entries)


@pytest.mark.parametrize(
    ("entries", "mode", "want"),
    [
        ([], 0o644, 0o044),
        ([(OWNER, 6), (USER, 4, 2000), (GROUP, 0), (MASK, 4), (OTHER, 0)], 0o640, 0),  # the bits are the mask's
        ([(OWNER, 6), (USER, 4, 2000), (GROUP, 4), (MASK, 4), (OTHER, 0)], 0o640, 0o040),
        ([(OWNER, 6), (USER, 4, 2000), (GROUP, 4), (MASK, 4), (OTHER, 4)], 0o644, 0o044),
        ([(OWNER, 6), (USER, 0, 2000), (GROUP, 4), (MASK, 4), (OTHER, 4)], 0o644, 0),  # one is shut out
        ([(OWNER, 6), (GROUP, 4), (NAMED_GROUP, 6, 9), (MASK, 0), (OTHER, 4)], 0o604, 0),  # by the mask
    ],
)
def test_who_may_read_by_a_list(entries: list[tuple[int, int]], mode: int, want: int) -> None:
    assert oct(acl.readers(mode, listed(*entries) if entries else b"")) == oct(want)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that gives all that is made in it to one more user."""
    home = tmp_path / "home"
    home.mkdir()
    given = listed((OWNER, 7), (USER, 7, 2000), (GROUP, 5), (MASK, 7), (OTHER, 5))
    try:
        os.setxattr(home, "system.posix_acl_default", given)
    except (AttributeError, OSError):
        pytest.skip("this file system has no access control lists")
    return home


@pytest.mark.parametrize(("mode", "kept"), [(0o600, 0o600), (0o640, 0o640), (0o644, 0o664)])
@pytest.mark.parametrize("name", ["o.npz", "new/o", "o.html"])
def test_a_folder_that_gives_its_files_to_others(name: str, mode: int, kept: int, folder: Path) -> None:
    source = folder.parent / "in.npz"
    ckptconv.save({"w": np.zeros(3)}, source)
    source.chmod(mode)
    if name.endswith("html"):
        ckptconv.report(source, output=folder / name)
    else:
        ckptconv.convert(source, folder / name, to="npy" if "/" in name else "npz")
    made = folder / name / "w.npy" if "/" in name else folder / name
    assert oct(stat.S_IMODE(made.stat().st_mode)) == oct(kept)
    assert bool(acl.of(os.fspath(made))) == (mode == 0o644), "who may read all of it is whom the folder names"


def test_a_list_of_the_source(folder: Path) -> None:
    """Its group may not read it, though its mode has the bit: that is the mask of the list."""
    source = folder.parent / "in.npz"
    ckptconv.save({"w": np.zeros(3)}, source)
    os.setxattr(source, acl.NAME, listed((OWNER, 6), (USER, 4, 2000), (GROUP, 0), (MASK, 4), (OTHER, 0)))
    assert source.stat().st_mode & 0o040
    ckptconv.convert(source, folder.parent / "o.npz")
    assert oct(stat.S_IMODE((folder.parent / "o.npz").stat().st_mode)) == oct(0o600)


def test_where_permissions_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems make up the mode of a file, and refuse another one."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    ckptconv.save({"w": np.zeros(3)}, tmp_path / "in.npz")
    (tmp_path / "in.npz").chmod(0o600)
    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "chmod", refuse)
        ckptconv.convert(tmp_path / "in.npz", tmp_path / "o.npz")
    finally:
        os.umask(before)
    assert (tmp_path / "o.npz").exists()


def test_where_a_file_system_opens_what_is_made_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no lists of this kind, and gives new files a mode of its own."""
    real = os.open

    def widened(path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        fd = real(path, flags, mode, **more)
        if flags & os.O_CREAT:
            os.fchmod(fd, 0o644)
        return fd

    ckptconv.save({"w": np.zeros(3)}, tmp_path / "in.npz")
    (tmp_path / "in.npz").chmod(0o600)
    monkeypatch.setattr(os, "open", widened)
    monkeypatch.setattr(acl, "drop", lambda fd: False)
    ckptconv.convert(tmp_path / "in.npz", tmp_path / "o.npz")
    assert oct(stat.S_IMODE((tmp_path / "o.npz").stat().st_mode)) == oct(0o600)
