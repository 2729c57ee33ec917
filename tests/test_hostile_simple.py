"""Hostile safetensors, NumPy, Flax, TensorFlow and index files give their error or open with a note; nothing runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ckptconv

HOME = Path(__file__).parents[1] / "fixtures" / "hostile"
KINDS = ("safetensors", "numpy", "flax", "sharded", "tf")
CASES = [
    (kind, file, error, words)
    for kind in KINDS
    for file, (error, words) in json.loads((HOME / kind / "expected.json").read_text()).items()
]
CODES = {"CorruptCheckpoint": 4, "UnsafeCheckpoint": 5, "UnknownFormat": 3, "NameCollision": 6, "StorageError": 9}


@pytest.mark.parametrize(("kind", "file", "error", "words"), CASES, ids=[f"{k}/{f}" for k, f, _, _ in CASES])
def test_hostile(kind: str, file: str, error: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = HOME / kind / file
    got = attempt(path)
    if error:
        assert type(got).__name__ == error, got
        assert isinstance(got, ckptconv.CkptError)
        assert got.exit_code == CODES[error]
        assert re.search(words, str(got)), got
        assert str(path.parent) in str(got), "the message does not say where"
    else:
        assert isinstance(got, ckptconv.Checkpoint), got
        assert words in "".join(note.text for note in got.notes)
        assert all((t.numpy() == 1).all() for t in got.values())
    assert not list(tmp_path.iterdir())


def attempt(path: Path) -> ckptconv.Checkpoint | ckptconv.CkptError:
    """Open and read everything."""
    try:
        found = ckptconv.open(path)
        for t in found.values():
            t.numpy()
    except ckptconv.CkptError as e:
        return e
    return found
