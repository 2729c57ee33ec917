"""Axis patterns against numpy: whatever a pattern says, transpose, reshape, split and concatenate must agree."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples

from ckptconv.checkpoint import Tensor, contiguous, held, view
from ckptconv.dtypes import DTYPES
from ckptconv.errors import LayoutError
from ckptconv.formats.tiling import joined
from ckptconv.moves import part
from ckptconv.moves.part import Held, Part, c_strides
from ckptconv.rules import layout


def read(shape: tuple[int, ...], parts: tuple[Part, ...]) -> np.ndarray[Any, Any]:
    """Interpret parts element by element, and check that they cover the tensor exactly once."""
    out = np.full(math.prod(shape), -1, np.int64)
    for p in parts:
        data = p.data.array.reshape(-1)
        for index in product(*map(range, p.shape)):
            src = p.offset + sum(i * s for i, s in zip(index, p.strides, strict=True))
            dst = p.start + sum(i * s for i, s in zip(index, p.steps, strict=True))
            assert out[dst] == -1
            out[dst] = data[src]
    assert (out >= 0).all()
    return out.reshape(shape)


def tensor(shape: tuple[int, ...], first: int = 0) -> Tensor:
    array = np.arange(first, first + math.prod(shape), dtype=np.int64).reshape(shape)
    return contiguous("t", DTYPES["int64"], shape, Held(array))


def move(pattern: str, *tensors: Tensor, **sizes: int) -> list[np.ndarray[Any, Any]]:
    return [read(*out) for out in layout.parse(pattern).apply(tensors, sizes)]


def value(t: Tensor) -> np.ndarray[Any, Any]:
    return read(t.shape, t.parts)


def gates(x: np.ndarray[Any, Any], order: list[int]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.split(x, len(order), 1)[i] for i in order], 1).T


ONE = [
    ("h w i o -> o i h w", (2, 3, 4, 5), {}, lambda x: x.transpose(3, 2, 0, 1)),
    ("... i o -> o i ...", (3, 4), {}, lambda x: x.T),
    ("... i o -> o i ...", (2, 3, 4), {}, lambda x: x.transpose(2, 1, 0)),
    ("h w c m -> (c m) 1 h w", (2, 3, 4, 5), {}, lambda x: x.transpose(2, 3, 0, 1).reshape(20, 1, 2, 3)),
    ("(h w c) o -> o (c h w)", (24, 5), {"h": 2, "w": 3}, lambda x: x.reshape(6, 4, 5).T.reshape(5, 24)),
    ("d h k -> (h k) d", (3, 4, 5), {}, lambda x: x.reshape(3, 20).T),
    ("1 n -> n", (1, 6), {}, lambda x: x[0]),
    ("n -> 1 1 n", (6,), {}, lambda x: x[None, None]),
    ("->", (), {}, lambda x: x),
    ("-> 1", (), {}, lambda x: x[None]),
    ("x (h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o) x", (3, 8), {}, lambda x: gates(x, [0, 2, 1, 3])),
    ("(m + n) d -> (n + m) d", (6, 3), {"m": 2}, lambda x: np.concatenate([x[2:], x[:2]])),
    ("a ((b + c) d) -> d a (c + b)", (2, 15), {"b": 1, "d": 3},
     lambda x: np.roll(x, -3, 1).reshape(2, 5, 3).transpose(2, 0, 1)),
    ("a b -> b a", (0, 3), {}, lambda x: x.T),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "shape", "sizes", "want"), ONE, ids=[f"{p} {s}" for p, s, _, _ in ONE])
def test_one_tensor_to_one(pattern: str, shape: tuple[int, ...], sizes: dict[str, int], want: Any) -> None:
    t = tensor(shape)
    (got,) = move(pattern, t, **sizes)
    expected = want(value(t))
    assert got.shape == expected.shape
    assert (got == expected).all()


@pytest.mark.parametrize(("pattern", "shape", "sizes", "want"), ONE)
def test_texts_move_as_numbers_do(pattern: str, shape: tuple[int, ...], sizes: dict[str, int], want: Any) -> None:
    texts = np.array([b"%d" % i for i in range(math.prod(shape))] + [b""], object)[:-1].reshape(shape)
    ((made, parts),) = layout.parse(pattern).apply([held("t", texts)], sizes)
    assert np.array_equal(Tensor("t", DTYPES["string"], made, parts).numpy(), want(texts))


def test_two_tensors_exchange_blocks() -> None:
    a, b = tensor((2, 5)), tensor((3, 5), 100)
    got = move("x (p + q), y (p + q) -> (x + y) p, q (y + x)", a, b, p=1)
    x = np.concatenate([value(a), value(b)])
    assert (got[0] == x[:, :1]).all()
    assert (got[1] == np.concatenate([value(b)[:, 1:], value(a)[:, 1:]]).T).all()


SIZES = st.integers(1, 4)


@st.composite
def permutations(draw: st.DrawFn) -> tuple[str, tuple[int, ...], dict[str, int], list[int], list[int], list[int]]:
    """Random axes, grouped at random on both sides, permuted."""
    n = draw(st.integers(1, 5))
    dims = draw(st.lists(SIZES, min_size=n, max_size=n))
    order = draw(st.permutations(range(n)))
    cuts = [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for _ in range(2)]

    def side(axes: list[int], cut: list[bool]) -> tuple[str, list[int]]:
        groups: list[list[int]] = []
        for a, c in zip(axes, cut, strict=True):
            if c or not groups:
                groups.append([a])
            else:
                groups[-1].append(a)
        text = " ".join("(" + " ".join(f"a{x}" for x in g) + ")" for g in groups)
        return text, [math.prod(dims[x] for x in g) for g in groups]

    left, shape = side(list(range(n)), cuts[0])
    right, out = side(list(order), cuts[1])
    return f"{left} -> {right}", tuple(shape), {f"a{i}": d for i, d in enumerate(dims)}, dims, list(order), out


@examples(150)
@given(permutations(), st.data())
def test_any_permutation_of_any_boxes(case: Any, data: st.DataObject) -> None:
    """Partitions, views and layouts applied before must all come out right."""
    pattern, shape, sizes, dims, order, out = case
    whole = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[axis]))
    boxes = []
    for low, high in ((0, cut), (cut, shape[axis])):
        if low < high:
            box = np.ascontiguousarray(whole.take(range(low, high), axis))
            at = [0] * len(shape)
            at[axis] = low
            boxes.append((held("t", box), tuple(at)))
    flipped = np.ascontiguousarray(whole.T)
    sources = [
        joined("t", shape, boxes, ""),
        view("t", DTYPES["int64"], shape, Held(flipped), offset=0, strides=c_strides(flipped.shape)[::-1]),
    ]
    want = whole.reshape(dims).transpose(order).reshape(out)
    for source in sources:
        (got,) = move(pattern, source, **sizes)
        assert (got == want).all()
        ((made, parts),) = layout.parse(pattern).apply([source], sizes)
        again = Tensor("t", DTYPES["int64"], made, parts)
        (back,) = [read(*o) for o in layout.parse(pattern).inverse.apply([again], sizes)]
        assert (back == whole).all()


@examples(100)
@given(st.lists(SIZES, min_size=1, max_size=4), SIZES, SIZES, st.data())
def test_any_concatenation(terms: list[int], rows: int, inner: int, data: st.DataObject) -> None:
    """A sum of products, split, reordered, joined, and undone; the source is itself cut anywhere."""
    order = data.draw(st.permutations(range(len(terms))))
    names = [f"t{i}" for i in range(len(terms))]
    sizes = {"r": rows, "m": inner, **dict(zip(names, terms, strict=True))}
    width = sum(terms) * inner
    whole = np.arange(rows * width, dtype=np.int64).reshape(rows, width)
    cut = data.draw(st.integers(0, width))
    ends = [(a, b) for a, b in ((0, cut), (cut, width)) if a < b]
    boxes = [(held("t", np.ascontiguousarray(whole[:, a:b])), (0, a)) for a, b in ends]
    source = joined("t", whole.shape, boxes, "")
    left = "r (" + " + ".join(f"({n} m)" for n in names) + ")"
    right = "(" + " + ".join(f"(m {names[i]})" for i in order) + ") r"
    pieces = np.split(whole, np.cumsum(terms)[:-1] * inner, 1)
    want = np.concatenate([pieces[i].reshape(rows, terms[i], inner).T.reshape(-1, rows) for i in order])
    (got,) = move(f"{left} -> {right}", source, **sizes)
    assert (got == want).all()
    split = layout.parse(f"{left} -> " + ", ".join(f"m {n} r" for n in names))
    made = [Tensor("t", DTYPES["int64"], *o) for o in split.apply([source], sizes)]
    for piece, t, n in zip(pieces, made, terms, strict=True):
        assert (value(t) == piece.reshape(rows, n, inner).transpose(2, 1, 0)).all()
    (back,) = [read(*o) for o in split.inverse.apply(made, sizes)]
    assert (back == whole).all()


def test_nothing_moves() -> None:
    t = tensor((2, 3))
    assert layout.parse("a b -> a b").noop
    assert layout.parse("a b -> a b").apply([t])[0][1] is t.parts


@pytest.mark.slow
def test_steps_that_never_divide_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "MAX_PIECES", 2**12)
    box = Part(Held(None), DTYPES["float32"], (2**30,), 0, (1,), 0, (3,))
    odd = Tensor("t", DTYPES["float32"], (3 * 2**30,), (box,))
    with pytest.raises(LayoutError, match="pieces"):
        layout.parse("(a b) -> b a").apply([odd], {"a": 3 * 2**28})


FLIPS = [
    ("... i o -> o i ...", "...", (3, 5, 2, 4), {}, lambda x: x[::-1, ::-1].transpose(3, 2, 0, 1)),
    ("h w i o -> o i h w", "w", (3, 5, 2, 4), {}, lambda x: x[:, ::-1].transpose(3, 2, 0, 1)),
    ("(h w) c -> c (h w)", "h w", (6, 4), {"w": 3}, lambda x: x[::-1].T),
    ("(h w) c -> c (w h)", "h", (6, 4), {"w": 3}, lambda x: x.reshape(2, 3, 4)[::-1].T.reshape(4, 6)),
    ("c -> c", "c", (7,), {}, lambda x: x[::-1]),
    ("h c -> h c", "h", (1, 3), {}, lambda x: x),
]


@pytest.mark.parametrize(("pattern", "flip", "shape", "sizes", "want"), FLIPS, ids=[f"{p} {f}" for p, f, *_ in FLIPS])
def test_flipped_axes(pattern: str, flip: str, shape: tuple[int, ...], sizes: dict[str, int], want: Any) -> None:
    t, flips = tensor(shape), frozenset(flip.split())
    there, back = layout.parse(pattern), layout.parse(pattern).inverse
    ((made, parts),) = replace(there, flips=flips).apply([t], sizes)
    assert np.array_equal(read(made, parts), want(value(t)))
    ((same, parts),) = replace(back, flips=flips).apply([replace(t, shape=made, parts=parts)], sizes)
    assert np.array_equal(read(same, parts), value(t))


def test_an_axis_that_is_too_long_to_be_flipped() -> None:
    with pytest.raises(LayoutError, match="pieces"):
        replace(layout.parse("c -> c"), flips=frozenset("c")).apply([tensor((2**17,))])
