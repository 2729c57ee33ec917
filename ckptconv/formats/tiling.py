"""Boxes that tile a tensor: slices of a partitioned variable, chunks of a distributed one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..errors import UnsafeCheckpoint

COMPARISONS = 256  # of a box with others, on average; a grid of 150 by 150 needs fewer


class Box(NamedTuple):
    """Where a piece lies in the whole tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


def overlap(boxes: Iterable[Box]) -> tuple[Box, Box] | None:
    """The first two boxes that share an element, found by sweeping along the axis that separates best."""
    boxes = [b for b in boxes if all(b.shape)]
    if len(boxes) < 2:
        return None
    rank = len(boxes[0].start)
    if not rank:
        return boxes[0], boxes[1]
    axis = max(range(rank), key=lambda i: len({b.start[i] for b in boxes}))
    active: list[Box] = []
    budget = COMPARISONS * (len(boxes) + 100)
    for b in sorted(boxes, key=lambda b: b.start[axis]):
        active = [a for a in active if a.start[axis] + a.shape[axis] > b.start[axis]]
        budget -= len(active)
        if budget < 0:
            raise UnsafeCheckpoint(f"{len(boxes)} boxes lie so that checking them for overlaps takes too long")
        for a in active:
            if all(p < q + m and q < p + n for p, n, q, m in zip(a.start, a.shape, b.start, b.shape, strict=True)):
                return a, b
        active.append(b)
    return None
