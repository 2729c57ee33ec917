"""JAX releases: what a converter makes of them is what the loaders of timm and transformers make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import FIXTURES, same

import ckptconv
from ckptconv.rules import library

FILES = {p.stem: p for p in (*sorted(FIXTURES.glob("vision/*.npz")), *sorted(FIXTURES.glob("t5x/*.msgpack")))}


@pytest.mark.parametrize("case", FILES)
def test_equals_the_old_loader(case: str, tmp_path: Path) -> None:
    name, source, out = case.partition("--")[0], FILES[case], tmp_path / "out.safetensors"
    ckptconv.convert(source, out, converter=name)
    got, want = ckptconv.open(out), ckptconv.open(source.with_suffix(".safetensors"))
    assert sorted(got) == sorted(want)
    assert [n for n in want if not same(got[n].numpy(), want[n].numpy())] == []
    ckptconv.convert(out, tmp_path / "back.npz", converter=name, inverse=True)
    back, before = ckptconv.open(tmp_path / "back.npz"), ckptconv.open(source)
    assert sorted(back) == sorted(before)
    assert [n for n in before if not same(back[n].numpy(), before[n].numpy())] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_is_recognised_by_its_names(case: str) -> None:
    assert library.auto(ckptconv.open(FILES[case])).name == case.partition("--")[0]
