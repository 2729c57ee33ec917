"""The original TensorFlow releases: what a converter makes of them is what transformers 4.46.3 made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import same

import ckptconv
from ckptconv import api

ORIGINALS = Path(__file__).parents[1] / "fixtures" / "originals"
NAMES = Path(__file__).parents[1] / "fixtures" / "names"
FAMILIES = sorted(p.name for p in ORIGINALS.iterdir() if p.is_dir())  # CONVERTER or CONVERTER--VARIANT
PUBLISHED = sorted(p.stem for p in NAMES.glob("*.txt"))
PARAMS = {"openai-gpt": {"positions": 9}}  # what the published default does not fit


def prefix(family: str) -> Path:
    return ORIGINALS / family / "model.ckpt"


def selected(family: str) -> api.Select:
    return api.Select(weights_only=True, ema=family == "mobilenet-v2")  # whose old loader prefers the averages


def change(family: str, *, inverse: bool = False) -> api.Change:
    return api.Change(family.split("--")[0], inverse=inverse, params=PARAMS.get(family, {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_old_loader(family: str, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    ckptconv.convert(prefix(family), out, select=selected(family), change=change(family))
    got, want = ckptconv.open(out), ckptconv.open(ORIGINALS / family / "expected.safetensors")
    assert sorted(got) == sorted(want)
    assert [n for n in want if not same(got[n].numpy(), want[n].numpy())] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_way_back_restores_every_tensor(family: str, tmp_path: Path) -> None:
    select, there = selected(family), tmp_path / "there.safetensors"
    ckptconv.convert(prefix(family), there, select=select, change=change(family))
    ckptconv.convert(there, tmp_path / "back.ckpt", change=change(family, inverse=True))
    got, whole = ckptconv.open(tmp_path / "back.ckpt"), api.prepare([prefix(family)], select, api.Change())
    taken = api.prepare([prefix(family)], select, change(family)).details["moved"].values()
    want = {name for move in taken for name in move["from"]}
    assert set(got) == want
    assert [n for n in want if not same(got[n].numpy(), whole[n].numpy())] == []


def test_a_size_that_the_way_back_cannot_know_is_asked_for(tmp_path: Path) -> None:
    """BigBird's heads are an axis in TensorFlow and part of one in PyTorch; the output remembers how many there were."""
    ckptconv.convert(
        prefix("big-bird"),
        tmp_path / "there.safetensors",
        select=api.Select(weights_only=True),
        change=api.Change("big-bird"),
    )
    there = ckptconv.open(tmp_path / "there.safetensors")
    ckptconv.save(dict(there), tmp_path / "bare.safetensors", metadata={})
    back = api.Change("big-bird", inverse=True)
    with pytest.raises(ckptconv.UsageError, match="--param heads=NUMBER"):
        ckptconv.convert(tmp_path / "bare.safetensors", tmp_path / "back.ckpt", change=back)
    told = api.Change("big-bird", inverse=True, params={"heads": 2})
    ckptconv.convert(tmp_path / "bare.safetensors", tmp_path / "back.ckpt", change=told)
    query = "bert/encoder/layer_0/attention/self/query/kernel"
    assert same(ckptconv.open(tmp_path / "back.ckpt")[query].numpy(), ckptconv.open(prefix("big-bird"))[query].numpy())
