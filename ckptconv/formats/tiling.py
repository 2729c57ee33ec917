"""Tiles of a tensor: the slices of a partitioned variable, the chunks of a distributed tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..errors import UnsafeCheckpoint

COMPARISONS = 256  # of a tile with others, on average; a grid of 150 by 150 needs fewer


class Tile(NamedTuple):
    """A box of a tensor that is stored by itself: the index of its first element, and its shape."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


def overlap(tiles: Iterable[Tile]) -> tuple[Tile, Tile] | None:
    """The first two tiles that share an element, found by sweeping along the axis that separates them best."""
    tiles = [b for b in tiles if all(b.shape)]
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
