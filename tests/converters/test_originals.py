"""The original TensorFlow releases: what a converter makes of them is what transformers 4.46.3 made of them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FIXTURES, same

import ckptconv
from ckptconv.api import reading
from ckptconv.api.options import Options
from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.moves.part import Held, Span
from ckptconv.rules import library, passes
from ckptconv.rules.apply import apply

ORIGINALS = FIXTURES / "originals"
NAMES = FIXTURES / "names"
FAMILIES = sorted(p.name for p in ORIGINALS.iterdir() if p.is_dir())  # CONVERTER or CONVERTER--VARIANT
KIN = {family.split("-")[0] for family in FAMILIES}  # other names are there for other tests
PUBLISHED = sorted(p.stem for p in NAMES.glob("*.txt") if p.stem.split("-")[0] in KIN)
PARAMS = {"openai-gpt": {"positions": 9}}  # what the published default does not fit


def prefix(family: str) -> Path:
    folder = ORIGINALS / family
    return folder if (folder / "params_shapes.json").exists() else folder / "model.ckpt"


def selected(family: str) -> dict[str, Any]:
    return {"weights_only": True, "ema": family == "mobilenet-v2"}  # whose old loader prefers the averages


def change(family: str, *, inverse: bool = False) -> dict[str, Any]:
    return {"converter": family.split("--")[0], "inverse": inverse, "param": PARAMS.get(family.split("--")[0], {})}


@pytest.mark.many
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_old_loader(family: str, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    ckptconv.convert(prefix(family), out, **selected(family), **change(family))
    got, want = ckptconv.open(out), ckptconv.open(ORIGINALS / family / "expected.safetensors")
    assert sorted(got) == sorted(want)
    assert [n for n in want if not same(got[n].numpy(), want[n].numpy())] == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_way_back_restores_every_tensor(family: str, tmp_path: Path) -> None:
    select, there = selected(family), tmp_path / "there.safetensors"
    ckptconv.convert(prefix(family), there, **select, **change(family))
    ckptconv.convert(there, tmp_path / "back.ckpt", **change(family, inverse=True))
    got, whole = ckptconv.open(tmp_path / "back.ckpt"), reading.prepare([prefix(family)], Options(**select))
    taken = reading.prepare([prefix(family)], Options(**select, **change(family))).moved.values()
    want = {name for move in taken for name in move.sources}
    assert set(got) == want
    assert [n for n in want if not same(got[n].numpy(), whole[n].numpy())] == []


def test_a_size_that_the_way_back_cannot_know_is_asked_for(tmp_path: Path) -> None:
    """BigBird's heads are an axis in TensorFlow and part of one in PyTorch; the output remembers their number."""
    ckptconv.convert(
        prefix("big-bird"),
        tmp_path / "there.safetensors",
        weights_only=True,
        converter="big-bird",
    )
    there = ckptconv.open(tmp_path / "there.safetensors")
    ckptconv.save(dict(there), tmp_path / "bare.safetensors", metadata={})
    back = {"converter": "big-bird", "inverse": True}
    with pytest.raises(ckptconv.UsageError, match="param='heads=NUMBER'"):
        ckptconv.convert(tmp_path / "bare.safetensors", tmp_path / "back.ckpt", **back)
    told = {"converter": "big-bird", "inverse": True, "param": {"heads": 2}}
    ckptconv.convert(tmp_path / "bare.safetensors", tmp_path / "back.ckpt", **told)
    query = "bert/encoder/layer_0/attention/self/query/kernel"
    assert same(ckptconv.open(tmp_path / "back.ckpt")[query].numpy(), ckptconv.open(prefix("big-bird"))[query].numpy())


# --- published names: nothing but names and shapes, as long as the real thing ----------------------------------------

AUTO = {
    "funnel-medium": "funnel",
    "electra-generator": "electra",
}  # what nobody can tell from names, or is in there too


def published(family: str) -> Checkpoint:
    """The tensors of the published checkpoint, without data."""
    out = {}
    for line in (NAMES / f"{family}.txt").read_text().splitlines():
        name, _, shape = line.partition(" ")
        size = tuple(json.loads(shape))
        out[name] = contiguous(name, DTYPES["float32"], size, Span(f"nowhere/{name}", 0, 4 * prod(size)))
    bare = {n.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): t for n, t in out.items()}  # as the object graph calls them
    return passes.roles(Checkpoint({n: t.renamed(n) for n, t in bare.items()}))


@pytest.mark.slow
@pytest.mark.parametrize("family", PUBLISHED)
def test_takes_all_of_the_published_checkpoint(family: str) -> None:
    converter, whole = library.load(family.split("--")[0]), published(family)
    there = apply(converter, whole)
    weights = {n: t.shape for n, t in whole.tensors.items() if not t.role}
    came = {n for move in there.moved.values() for n in move.sources}
    left = [n for note in there.notes if note.kind == "skipped" and "no place" in note.text for n in note.names]
    assert came | {*left} == {*weights}
    back = apply(converter.inverse, there)
    assert {n: t.shape for n, t in back.tensors.items()} == {n: s for n, s in weights.items() if n in came}


@pytest.mark.slow
@pytest.mark.parametrize("family", PUBLISHED)
def test_is_recognised_by_its_names(family: str) -> None:
    name = family.split("--")[0]
    assert library.auto(published(family)).name == AUTO.get(name, name)


@pytest.mark.parametrize(
    ("scope", "head"), [("cls/squad/", "qa_outputs"), ("", "classifier")], ids=["run_squad", "run_classifier"]
)
def test_what_berts_scripts_fine_tuned(scope: str, head: str) -> None:
    whole = published("bert")
    tuned = {n: t for n, t in whole.tensors.items() if not n.startswith("cls/")}
    for name, shape in ((f"{scope}output_weights", (3, 768)), (f"{scope}output_bias", (3,))):
        tuned[name] = contiguous(name, DTYPES["float32"], shape, Held(np.zeros(shape, "f4")))
    checkpoint = passes.roles(Checkpoint(tuned))
    assert library.auto(checkpoint).name == "bert"
    there = apply(library.load("bert"), checkpoint)
    assert {n for n in there if not n.startswith("bert.")} == {f"{head}.weight", f"{head}.bias"}
    assert {*apply(library.load("bert").inverse, there)} == {n for n, t in checkpoint.tensors.items() if not t.role}


# --- TensorFlow ------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize("family", ["t5--gated", "imagegpt", "canine", "bert"])
def test_tensorflow_loads_what_the_way_back_restores(family: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    ckptconv.convert(prefix(family), tmp_path / "there.safetensors", **selected(family), **change(family))
    ckptconv.convert(tmp_path / "there.safetensors", tmp_path / "back.ckpt", **change(family, inverse=True))
    reader = tf.train.load_checkpoint(str(tmp_path / "back.ckpt"))
    before = tf.train.load_checkpoint(str(prefix(family)))
    names = list(reader.get_variable_to_shape_map())
    assert len(names) > 10
    assert [n for n in names if not same(reader.get_tensor(n), before.get_tensor(n))] == []
