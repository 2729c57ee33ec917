"""Hostile safetensors, NumPy, Flax, TensorFlow, index and rule files give their error or open with a note.

Nothing runs, no message is long, and none takes longer than its bytes deserve.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import hostile
import pytest

import ckptconv
from ckptconv.rules import library
from ckptconv.rules.library import lint

KINDS = ("safetensors", "numpy", "flax", "orbax", "sharded", "dcp", "tf", "strangers")
RULES = hostile.files("rules")
CASES = [(hostile.HOME / kind / file, *case) for kind in KINDS for file, case in hostile.files(kind).items()]
CODES = {"CorruptCheckpoint": 4, "UnsafeCheckpoint": 5, "UnknownFormat": 3, "NameCollision": 6, "StorageError": 9}


@pytest.mark.parametrize(("path", "error", "words"), CASES, ids=[str(c[0].relative_to(hostile.HOME)) for c in CASES])
def test_hostile(path: Path, error: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    got = attempt(path)
    assert time.process_time() - began < 5
    assert len(str(got)) < 10_000 or isinstance(got, ckptconv.Checkpoint)
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


@pytest.mark.parametrize("file", RULES)
def test_hostile_rules(file: str) -> None:
    error, words = RULES[file]
    began = time.process_time()
    try:
        lint(library.load(hostile.HOME / "rules" / file))
        said = ""
    except ckptconv.UsageError as e:
        said = str(e)
    assert time.process_time() - began < 5
    assert bool(said) is bool(error), said
    assert re.search(words, said), said
    assert len(said) < 5000


def attempt(path: Path) -> ckptconv.Checkpoint | ckptconv.CkptError:
    """Open and read everything."""
    try:
        found = ckptconv.open(path)
        for t in found.values():
            t.numpy()
    except ckptconv.CkptError as e:
        return e
    return found
