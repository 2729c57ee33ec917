"""Which formats are asked about a file: those of its signature, with the answer that all of them would give."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import FIXTURES

from ckptconv.errors import CkptError
from ckptconv.formats import detect

FILES = [p for p in sorted(FIXTURES.rglob("*")) if p.is_dir() or p.suffix not in (".md", ".py", ".sha256", ".toml")]
SAMPLE = FILES[:: max(1, len(FILES) // 60)]


def found(path: Path) -> str:
    try:
        return detect.detect(str(path)).name
    except CkptError as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.parametrize("files", [SAMPLE, pytest.param(FILES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_signature_only_saves_time(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    few = {p: found(p) for p in files}
    monkeypatch.setattr(detect, "SIGNATURES", ())
    monkeypatch.setattr(detect, "FOLDERS", ())
    assert {p: found(p) for p in files} == few


def test_a_signature_spares_imports() -> None:
    """A file of safetensors is not shown to what unpickles, unzips or reads HDF5."""
    file = next(p for p in FILES if p.suffix == ".safetensors")
    asked = {row.name for row in detect._likely(detect.Seen(str(file)))}
    assert asked == {"safetensors", "hf"}
