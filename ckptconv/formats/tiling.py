"""Pieces of tensors: tiles of one, such as the chunks of a distributed tensor, and sequences that hold several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from operator import attrgetter
from typing import NamedTuple

from ..checkpoint import Tensor, contiguous
from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..moves.part import Part, c_strides, clip

COMPARISONS = 256  # of a tile with others, on average; a grid of 150 by 150 needs fewer


class Tile(NamedTuple):
    """A box of a tensor that is stored by itself: the index of its first element, and its shape."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


def overlap(tiles: Sequence[Tile]) -> tuple[Tile, Tile] | None:
    """The first two tiles that share an element, found by sweeping along the axis that separates them best.

    None of them is empty.
    """
    if len(tiles) < 2:
        return None
    rank = len(tiles[0].start)
    if not rank:
        return tiles[0], tiles[1]
    axis = max(range(rank), key=lambda i: len({b.start[i] for b in tiles}))
    active: list[Tile] = []
    budget = COMPARISONS * (len(tiles) + 100)
    for b in sorted(tiles, key=lambda b: b.start[axis]):
        active = [a for a in active if a.start[axis] + a.shape[axis] > b.start[axis]]
        budget -= len(active)
        if budget < 0:
            raise UnsafeCheckpoint(f"{len(tiles)} tiles lie so that checking them for overlaps takes too long")
        for a in active:
            if all(p < q + m and q < p + n for p, n, q, m in zip(a.start, a.shape, b.start, b.shape, strict=True)):
                return a, b
        active.append(b)
    return None


def check_tiling(name: str, shape: tuple[int, ...], tiles: Sequence[Tile], url: str) -> None:
    """Refuse chunks that reach out of the tensor, overlap, or do not fill it (ranks and signs are checked before)."""
    for at, size in tiles:
        if any(a + n > whole for a, n, whole in zip(at, size, shape, strict=True)):
            raise CorruptCheckpoint(
                f"a chunk at {list(at)} of size {list(size)} reaches out of it", url=url, tensor=name
            )
    filled = [b for b in tiles if prod(b.shape)]
    twice = overlap(filled)
    if twice:
        raise CorruptCheckpoint(f"its chunk at {list(twice[1].start)} overlaps another", url=url, tensor=name)
    if sum(prod(b.shape) for b in filled) != prod(shape):
        raise CorruptCheckpoint(f"its chunks do not fill its shape {list(shape)}", url=url, tensor=name)


def joined(name: str, shape: tuple[int, ...], pieces: Sequence[tuple[Tensor, tuple[int, ...]]], url: str) -> Tensor:
    """One tensor of pieces, each with the index of its first element; they must tile it."""
    steps, first = c_strides(shape), pieces[0][0]
    for t, start in pieces:
        if t.dtype != first.dtype or {len(start), len(t.shape)} != {len(shape)} or min(start, default=0) < 0:
            what = f"its chunk at {list(start)} is {t.dtype}{list(t.shape)}, not a part of {first.dtype}{list(shape)}"
            raise CorruptCheckpoint(what, url=url, tensor=name)
    check_tiling(name, shape, [Tile(start, t.shape) for t, start in pieces], url)
    if not prod(shape):
        return contiguous(name, first.dtype, shape, first.parts[0].data)
    parts = (
        part._replace(start=sum(a * b for a, b in zip(start, steps, strict=True)), steps=steps)
        for t, start in pieces
        for part in t.parts
        if t.count
    )
    return Tensor(name, first.dtype, shape, tuple(parts))


def cut(sequence: Sequence[Part], lo: int, hi: int, at: int = 0) -> Iterator[Part]:
    """Elements [lo, hi) of parts of which each continues the one before, as parts of a tensor from element `at` on."""
    for i in range(max(0, bisect_right(sequence, lo, key=attrgetter("start")) - 1), len(sequence)):
        if sequence[i].start >= hi:
            return
        yield from (part._replace(start=part.start - lo + at) for part in clip(sequence[i], lo, hi))
