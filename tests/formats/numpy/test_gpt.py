"""GPT of 2018: one run of numbers in several .npy files, and everything that may be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit import same

import ckptconv

LAYER = [[1, 2, 6], [6], [1, 2, 2], [2], [2], [2], [1, 2, 8], [8], [1, 8, 2], [2], [2], [2]]
SHAPES = [[3, 2], [5, 2], *LAYER]


def release(folder: Path, *, dtype: str = "<f4", cuts: int = 10) -> list[np.ndarray]:
    """Write a release of one layer; return its weights in order."""
    total = sum(int(np.prod(s)) for s in SHAPES)
    flat = np.random.default_rng(1).standard_normal(total).astype(dtype)
    for i, part in enumerate(np.array_split(flat, cuts)):
        np.save(folder / f"params_{i}.npy", part)
    (folder / "params_shapes.json").write_text(json.dumps(SHAPES))
    ends = np.cumsum([int(np.prod(s)) for s in SHAPES])[:-1]
    return [a.reshape(s) for a, s in zip(np.split(flat, ends), SHAPES, strict=True)]


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
@pytest.mark.parametrize("cuts", [1, 3, 10, 47])
def test_weights_that_end_anywhere(tmp_path: Path, dtype: str, cuts: int) -> None:
    positions, words, *rest = release(tmp_path, dtype=dtype, cuts=cuts)
    found = ckptconv.open(tmp_path)
    assert found.format == "gpt"
    little = np.dtype(dtype).newbyteorder("<")
    assert same(found["model/we"].numpy(), np.concatenate([words, positions]).astype(little))
    assert same(found["model/h0/attn/c_attn/w"].numpy(), rest[0].astype(little))
    assert same(found["model/h0/ln_2/b"].numpy(), rest[-1].astype(little))
    assert len(found) == 13


def wrong(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def put(i: int, array: np.ndarray) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / f"params_{i}.npy", array)


SIZES = "params_shapes.json"
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "params_3.npy").write_bytes((f / "params_3.npy").read_bytes()[:-4]), "needs .* bytes after byte"),
    (lambda f: (f / "params_9.npy").unlink(), r"needs .* numbers, but params_\*.npy hold"),
    (lambda f: (f / "params_0.npy").unlink(), r"has no params_0\.npy beside the shapes"),
    (put(9, np.zeros((2, 2), "f4")), "not a sequence of numbers"),
    (put(9, np.zeros(9, "f8")), "holds float64, but earlier files hold float32"),
    (wrong(SIZES, "{"), "JSON is not valid"),
    (wrong(SIZES, "[" * 100_000), "nested too deeply"),
    (wrong(SIZES, "[[6], [4, 3]]"), "does not begin with the positions and the words"),
    (wrong(SIZES, "[[3, 2], [5, 3]]"), "does not begin with the positions and the words"),
    (wrong(SIZES, "[[3, 2], [5, -1]]"), r"has the shape \[5, -1\]"),
    (wrong(SIZES, "[[3, 2], [5, 2], [99999999999999999999999]]"), "99999"),
    (wrong(SIZES, json.dumps([*SHAPES, [1]])), "has 15 shapes, which are not those of whole layers"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    release(tmp_path)
    damage(tmp_path)
    with pytest.raises(ckptconv.CorruptCheckpoint, match=words):
        ckptconv.open(tmp_path, from_="gpt")
