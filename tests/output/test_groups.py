"""A group that may read a source is another one than that of the output: its bits would let others in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

import ckptconv
from ckptconv.output import own

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = pytest.mark.skipif(not ROOT, reason="only root gives files to other groups")


@pytest.mark.parametrize(
    ("mode", "same", "other"),
    [
        (0o600, 0o700, 0o700), (0o640, 0o770, 0o700), (0o660, 0o770, 0o700), (0o644, 0o777, 0o777),
        (0o604, 0o707, 0o700), (0o664, 0o777, 0o777), (0o000, 0o700, 0o700),
    ],
)  # fmt: skip
def test_who_may_read(mode: int, same: int, other: int) -> None:
    found = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, 0, 7, 0, 0, 0, 0))
    assert (oct(own.audience(found, 7)), oct(own.audience(found, 8))) == (oct(same), oct(other))
    assert oct(own.audience(found, -1)) == oct(other), "where new files have several groups"


@pytest.mark.parametrize("what", ["source", "replaced", "top"])
@pytest.mark.parametrize(
    ("theirs", "folder", "setgid", "want"),
    [
        (7, 0, False, 0o600),
        (0, 7, False, 0o640),  # without setgid a new file has our group
        (0, 7, True, 0o600),
        (7, 7, True, 0o640),
        (7, 8, True, 0o600),
    ],
)
def test_bits_of_a_group_are_kept_for_that_group(
    what: str, theirs: int, folder: int, setgid: bool, want: int, tmp_path: Path
) -> None:
    """What is private to a group, as a source or as what is replaced; `top`: the folder is a part of the output."""
    source, out = tmp_path / "src.npz", tmp_path / "home" / "deeper" / "o.npz"
    ckptconv.save({"w": np.zeros(3)}, source)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, -1, folder)
    home.chmod(0o2755 if setgid else 0o755)
    if what == "top":
        out = home
    elif what == "replaced":
        ckptconv.save({"w": np.ones(3)}, out)
    private = out if what == "replaced" else source
    os.chown(private, -1, theirs)
    private.chmod(0o640)
    before = os.umask(0o022)
    try:
        ckptconv.convert(source, out, to="npy" if what == "top" else "npz", force=True)
    finally:
        os.umask(before)
    made = home / "w.npy" if what == "top" else out
    if what == "top" and setgid:
        want = 0o600  # new files have two groups, by where they are made: neither is trusted
    assert oct(stat.S_IMODE(made.stat().st_mode)) == oct(want)
