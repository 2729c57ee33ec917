"""Every converter that ships: it lints, it leads back, and it does to published names what the old loaders did.

A golden is {"source": {name: shape}, "target": {name: [shape, hash]}, "params": {}}, alone in
fixtures/names/CONVERTER[--VARIANT].json or one of many in fixtures/hf/*.json.gz (made by fixtures/make/pack_hf.py from
the models and loaders of transformers 4.46.3). Sources are filled by their names; a target without hash is one that the
loader computed or lost, and may be absent.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT

from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

FILES = sorted(p for p in (ROOT / "converters").glob("*.toml") if not p.name.startswith("_"))
PERIOD = 2654435761  # odd, so that numbers below 2^24 do not repeat


@cache
def goldens(path: Path) -> dict[str, Any]:
    data = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return {path.stem: data} if "source" in data else dict(data)


def cases() -> Iterator[Any]:
    for path in sorted((ROOT / "fixtures" / "hf").glob("*.json.gz")):
        kind = path.name.split(".")[0]
        for name in goldens(path):
            yield pytest.param(f"hf-{kind}", path, name, id=f"hf-{kind}: {name}")
    for path in sorted((ROOT / "fixtures" / "names").glob("*.json")):
        converter = path.stem.split("--")[0]
        if "source" in goldens(path).get(path.stem, {}):
            yield pytest.param(converter, path, path.stem, id=path.stem)


def filled(shapes: dict[str, list[int]]) -> Checkpoint:
    """A checkpoint whose tensors hold numbers that follow from their names; fixtures/make/golden_hf.py has the same."""
    out = {}
    for name, shape in shapes.items():
        count = np.arange(prod(shape), dtype=np.uint64)
        array = ((zlib.crc32(name.encode()) + count * PERIOD) % 2**24).astype(np.float32).reshape(shape)
        out[name] = contiguous(name, DTYPES["float32"], shape, Held(array))
    return Checkpoint(out)


def digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:12]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_lint(path: Path) -> None:
    converter = library.load(path)
    assert converter.title
    assert converter.name in library.names()
    assert lint(converter) == []
    assert converter.inverse.inverse is converter


@pytest.mark.many
@pytest.mark.parametrize(("name", "path", "key"), list(cases()))
def test_golden(name: str, path: Path, key: str) -> None:
    golden = goldens(path)[key]
    converter = library.load(name)
    before = filled(golden["source"])
    after = apply(converter, before, golden.get("params"))
    want = golden["target"]
    assert {n: list(t.shape) for n, t in after.items()} == {n: want[n][0] for n in after if n in want}
    got = {n: digest(t) for n, t in after.items()}
    assert not {n: g for n, g in got.items() if want[n][1] not in ("", g)}
    held = set(got.values())
    assert not [n for n, (_, h) in want.items() if h and n not in got and h not in held]
    back(converter, before, after, golden.get("params"))


def back(converter: library.Converter, before: Checkpoint, after: Checkpoint, params: Any) -> None:
    """The inverse gives all names, shapes and bytes of what the converter took."""
    restored = apply(converter.inverse, after, params)
    gone = {n for note in after.notes if note.kind == "skipped" for n in note.names}
    assert set(restored) == set(before) - gone
    for name, tensor in restored.items():
        assert tensor.shape == before[name].shape
        assert tensor.numpy().tobytes() == before[name].numpy().tobytes()
