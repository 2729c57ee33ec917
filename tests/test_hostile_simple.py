"""Hostile safetensors, NumPy, Flax and index files: each gives its error, or opens with its note; nothing runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ckptconv

HOME = Path(__file__).parents[1] / "fixtures" / "hostile"
KINDS = ("safetensors", "numpy", "flax", "sharded")
CASES = [
    (kind, file, error, words)
    for kind in KINDS
    for file, (error, words) in json.loads((HOME / kind / "expected.json").read_text()).items()
]
CODES = {"CorruptCheckpoint": 4, "UnsafeCheckpoint": 5, "UnknownFormat": 3, "NameCollision": 6}


@pytest.mark.parametrize(("kind", "file", "error", "words"), CASES, ids=[f"{k}/{f}" for k, f, _, _ in CASES])
def test_hostile(kind: str, file: str, error: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = HOME / kind / file
    try:
        found = ckptconv.open(path)
        values = {name: t.numpy() for name, t in found.items()}
    except ckptconv.CkptError as e:
        assert type(e).__name__ == error, e
        assert e.exit_code == CODES[error]
        assert re.search(words, str(e)), e
        assert str(path.parent) in str(e), "the message does not say where"
    else:
        assert not error, f"opened: {values}"
        assert words in "".join(note.text for note in found.notes)
        assert all((v == 1).all() for v in values.values())
    assert not list(tmp_path.iterdir())
