"""JAX releases of vision models: what a converter makes of their npz is what timm's own loader makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import same

import ckptconv
from ckptconv import api, rules

VISION = Path(__file__).parents[1] / "fixtures" / "vision"
CASES = sorted(p.stem for p in VISION.glob("*.npz"))


@pytest.mark.parametrize("case", CASES)
def test_equals_timm(case: str, tmp_path: Path) -> None:
    name, out = case.partition("--")[0], tmp_path / "out.safetensors"
    ckptconv.convert(VISION / f"{case}.npz", out, change=api.Change(name))
    got, want = ckptconv.open(out), ckptconv.open(VISION / f"{case}.safetensors")
    assert sorted(got) == sorted(want)
    assert [n for n in want if not same(got[n].numpy(), want[n].numpy())] == []
    ckptconv.convert(out, tmp_path / "back.npz", change=api.Change(name, inverse=True))
    back, before = ckptconv.open(tmp_path / "back.npz"), ckptconv.open(VISION / f"{case}.npz")
    assert sorted(back) == sorted(before)
    assert [n for n in before if not same(back[n].numpy(), before[n].numpy())] == []


@pytest.mark.parametrize("case", CASES)
def test_is_recognised_by_its_names(case: str) -> None:
    assert rules.auto(ckptconv.open(VISION / f"{case}.npz")).name == case.partition("--")[0]
