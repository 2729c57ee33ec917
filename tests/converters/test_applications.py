"""Keras Applications: every name and shape that Keras saves becomes one that torchvision or timm loads, and goes back.

fixtures/names/applications lists them by model; benchmarks/keras_applications.py, which wrote them, also compares
outputs (docs/keras-applications.md).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit import FIXTURES, ROOT

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply

NAMES = FIXTURES / "names" / "applications"
TABLE = ROOT / "docs" / "keras-applications.md"


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    rows = (line.rpartition(" [") for line in path.read_text().splitlines())
    return {name: tuple(json.loads("[" + shape)) for name, _, shape in rows}


def models() -> list[tuple[str, str, str]]:
    """Model, torch model, converter: the rows of the table of results."""
    rows = [[cell.strip(" `") for cell in line.split("|")[1:4]] for line in TABLE.read_text().splitlines()]
    found = [(a, b, c) for a, b, c in (r for r in rows if len(r) == 3) if c.startswith("keras-")]
    return [row for row in found if (NAMES / f"keras-{row[0]}.txt").exists()]


def checkpoint(named: dict[str, tuple[int, ...]]) -> Checkpoint:
    """Tensors of these shapes, each of one number repeated, so that large ones cost nothing."""
    held = Held(np.zeros(1, np.float32))
    return Checkpoint({n: stretched(n, s, held) for n, s in named.items()})


def stretched(name: str, shape: tuple[int, ...], held: Held) -> Tensor:
    one = contiguous(name, DTYPES["float32"], (1,), held)
    part = one.parts[0]
    steps = tuple(int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape)))
    whole = part._replace(shape=shape, strides=(0,) * len(shape), steps=steps)
    return replace(one, shape=shape, parts=(whole,))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "target", "name"), models())
def test_names_and_shapes(model: str, target: str, name: str) -> None:
    before = checkpoint(shapes(NAMES / f"keras-{model}.txt"))
    there = library.load(name)
    after = apply(there, before)
    want = shapes(NAMES / f"{target.replace(' ', '-')}.txt")
    assert {n: t.shape for n, t in after.items()} == want
    back = apply(there.inverse, after)
    assert {n: t.shape for n, t in back.items()} == {n: t.shape for n, t in before.items()}


@pytest.mark.parametrize("model", ["inception-v3", "inception-resnet-v2"])
def test_a_weights_h5_has_no_name_for_the_only_parameter_of_a_norm(model: str) -> None:
    named = shapes(NAMES / f"keras-{model.title().replace('-', '').replace('net', 'Net')}.txt")
    found = checkpoint({n.replace("/beta", "/var_0"): s for n, s in named.items()})
    assert len(apply(library.load(f"keras-{model}"), found)) > len(named)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), sorted({(m, c) for m, _, c in models()}))
def test_found_by_its_names(model: str, name: str) -> None:
    assert library.auto(checkpoint(shapes(NAMES / f"keras-{model}.txt"))).name == name


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["MobileNetV3Small", "EfficientNetB0"])
def test_as_keras_2_spells_it(model: str, tmp_path: Path) -> None:
    """Weight files of Keras 2, like those that Keras Applications downloads, become the same."""
    applications = pytest.importorskip("tf_keras.applications", reason="TF-Keras is not installed")
    target, name = next((t, c) for m, t, c in models() if m == model)
    build = getattr(applications, model)
    build(weights=None, input_shape=(64, 64, 3)).save_weights(str(tmp_path / "model.h5"))
    after = apply(library.load(name), ckptconv.open(tmp_path / "model.h5"))
    assert {n: t.shape for n, t in after.items()} == shapes(NAMES / f"{target.replace(' ', '-')}.txt")
