"""Operations that scale by the root of an axis, and names that stack along several axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kit import same

from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.errors import ConversionError, UnmatchedTensors, UsageError
from ckptconv.moves.part import Held
from ckptconv.rules.apply import apply
from ckptconv.rules.converter import Converter
from ckptconv.rules.library import lint
from ckptconv.rules.toml import parse


def held(**arrays: np.ndarray) -> Checkpoint:
    """Tensors by name; `__` is a slash."""
    named = {n.replace("__", "/"): a for n, a in arrays.items()}
    kinds = {n: DTYPES[a.dtype.name] for n, a in named.items()}
    return Checkpoint({n: contiguous(n, kinds[n], a.shape, Held(a.view(kinds[n].carrier))) for n, a in named.items()})


def scaled(op: str, layout: str = "h k -> k h") -> Converter:
    return parse(f"[[rule]]\nfrom = 'a'\nto = 'b'\nlayout = '{layout}'\nop = '{op}'", "test")


NUMBERS = np.linspace(-3, 3, 28, dtype="f4").reshape(4, 7)
HALF = DTYPES["bfloat16"].dtype
ROOT = np.float32(7**0.5)
# operation: what it is on float32, what its inverse is
SCALES = {
    "mul:sqrt(k)": (lambda a: a * ROOT, lambda a: a * np.float32(1 / 7**0.5)),
    "div:sqrt(k)": (lambda a: a / ROOT, lambda a: a * ROOT),
    "mul:sqrt(h k)": (lambda a: a * np.float32(28**0.5), lambda a: a * np.float32(1 / 28**0.5)),
    "div:sqrt(k):bfloat16": (
        lambda a: a / np.float32(HALF.type(ROOT)),
        lambda a: a * np.float32(HALF.type(ROOT)),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", SCALES)
def test_each_product_is_rounded_once(op: str, dtype: str) -> None:
    kind = DTYPES[dtype].dtype
    forward, backward = SCALES[op]
    before = NUMBERS.astype(kind)
    made = apply(scaled(op), held(a=before))
    want = forward(before.astype("f4")).astype(kind).T
    assert same(made["b"].numpy(), np.ascontiguousarray(want))
    back = apply(scaled(op).inverse, made)
    assert same(back["a"].numpy(), np.ascontiguousarray(backward(want.astype("f4")).astype(kind).T))


def test_float64_is_not_narrowed() -> None:
    before = NUMBERS.astype("f8") / 3
    made = apply(scaled("mul:sqrt(k)"), held(a=before))
    assert same(made["b"].numpy(), np.ascontiguousarray((before * np.float64(ROOT)).T))


def test_what_cannot_be_scaled() -> None:
    big = np.array([[1, 6e4, np.inf], [6e4, np.nan, 0]], "f2")
    made = apply(scaled("mul:sqrt(k)"), held(a=big))["b"]
    with pytest.raises(ConversionError, match=r"2 of 6 elements are too large to be scaled by 1\.73"):
        made.numpy()
    none = apply(scaled("mul:rsqrt(k)"), held(a=np.ones((2, 0), "f4")))
    assert none["b"].shape == (0, 2)


def test_a_crop_may_scale() -> None:
    text = "[[rule]]\nfrom = 'a'\nto = 'b'\nlayout = 'v k -> v k'\nop = 'div:sqrt(k)'\ncrop = { axis = 0, to = 3 }"
    made = apply(parse(text, "test"), held(a=NUMBERS))
    assert same(made["b"].numpy(), NUMBERS[:3] / ROOT)


# --- stacks ----------------------------------------------------------------------------------------------------

BLOCKS = """
[[rule]]
from = ["s/{b*}/w", "t/{r*}/w"]
to = "w.{n*}"
where = { b = ["0", "1", "2"] }
layout = "b i l, rest i -> (l b + rest) i"
[[rule]]
from = "s/{b*}/w"
to = "w.{n*}"
where = { b = ["0", "1", "2"] }
layout = "b i l -> (l b) i"
"""
GRID = """
[[rule]]
from = "x_{e*}/y_{f*}/w"
to = "w.{n*}"
layout = "e f i -> (f e) i"
"""


def count(shape: tuple[int, ...], start: int = 0) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape)), dtype="f4").reshape(shape)


@pytest.mark.parametrize(("layers", "rest"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_blocks_and_what_remains_of_them(layers: int, rest: int) -> None:
    converter = parse(BLOCKS, "test")
    assert lint(converter) == []
    blocks = {f"s__{b}__w": count((2, layers), 100 * b) for b in range(3)}
    others = {f"t__{r}__w": count((2,), 1000 * (r + 1)) for r in range(rest)}
    before = held(**blocks, **others)
    made = apply(converter, before)
    want = [blocks[f"s__{n % 3}__w"][:, n // 3] for n in range(3 * layers)] + list(others.values())
    assert [made[f"w.{n}"].numpy().tolist() for n in range(len(made))] == [w.tolist() for w in want]
    back = apply(converter.inverse, replace(made, metadata={}))
    assert set(back) == set(before)
    assert all(same(back[n].numpy(), before[n].numpy()) for n in before)


def test_a_grid_of_names() -> None:
    converter = parse(GRID, "test")
    before = held(**{f"x_{e}__y_{f}__w": count((2,), 10 * e + f) for e in range(2) for f in range(3)})
    made = apply(converter, before)
    assert [made[f"w.{n}"].numpy()[0] for n in range(6)] == [0, 10, 1, 11, 2, 12]
    lacking = Checkpoint({n: t for n, t in before.items() if n != "x_1/y_1/w"})
    with pytest.raises(UnmatchedTensors, match="lacks x_1/y_1/w"):
        apply(converter, lacking)
    with pytest.raises(UsageError, match="needs param='f=NUMBER'"):
        apply(converter.inverse, replace(made, metadata={}))
    for again in (apply(converter.inverse, made), apply(converter.inverse, replace(made, metadata={}), {"f": 3})):
        assert {n: t.numpy().tolist() for n, t in again.items()} == {n: t.numpy().tolist() for n, t in before.items()}


def test_names_recorded_by_a_one_way_converter_form_a_grid_again() -> None:
    text = "one_way = 'why'\n[[rule]]\nfrom = 'x'\nto = 'w.{e*}.{f*}'\nlayout = 'e f i -> e f i'"
    made = apply(parse(text, "test"), held(x=count((2, 3, 4))))
    assert len(made) == 6
    assert same(apply(parse(text, "test").inverse, made)["x"].numpy(), count((2, 3, 4)))
