"""Where the elements of tensors are in memory: in what space of addresses, between which bytes."""

from __future__ import annotations

from typing import NamedTuple


class Box(NamedTuple):
    """Where a tensor's elements are: bytes [start, end) of one space of addresses, and the strides in elements."""

    space: str
    start: int
    end: int
    strides: tuple[int, ...]


class Area(NamedTuple):
    """Bytes [start, end) of one space of addresses, and the names of the tensors that are there."""

    space: str
    start: int
    end: int
    names: tuple[str, ...]
