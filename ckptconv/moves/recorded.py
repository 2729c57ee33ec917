"""Tensors as text, so that any process can read data that is made of them: see copies.py, padding.py and dense.py."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from ..dtypes import DTYPES
from .part import Coded, Data, Held, Part, Span, Stored


def rows(tensors: Sequence[Stored]) -> list[Any]:
    """Tensors as values that JSON can hold; arrays in memory with all their bytes, so they should be few numbers."""
    return [[t.name, t.dtype.name, t.shape, [[_data(p[0]), p.dtype.name, *p[2:]] for p in t.parts]] for t in tensors]


def _data(data: Data) -> object:
    return [b64encode(data.array.tobytes()).decode()] if isinstance(data, Held) else data


def tensors(found: Sequence[Any]) -> list[Stored]:
    """What `rows` wrote down."""
    return [Stored(name, DTYPES[kind], tuple(shape), tuple(map(_part, parts))) for name, kind, shape, parts in found]


def _part(row: Any) -> Part:
    data, kind, shape, offset, strides, start, steps, ops = row
    stored: Data
    if len(data) == 1:
        stored = Held.of(b64decode(data[0]))
    else:
        stored = Span(*data) if isinstance(data[1], int) else Coded(*data)  # the second field: a start, or a url
    return Part(stored, DTYPES[kind], tuple(shape), offset, tuple(strides), start, tuple(steps), tuple(ops))


def url(tensors: Sequence[Stored]) -> str:
    """A file that the tensors are in; '' if they have no parts."""
    return next((p.data.url for t in tensors for p in t.parts if not isinstance(p.data, Held)), "")


def in_memory(tensors: Sequence[Stored]) -> bool:
    """Whether part of them is an array in memory, which has no name by which another process could read it."""
    return any(isinstance(p.data, Held) for t in tensors for p in t.parts)


__all__ = ["in_memory", "rows", "tensors", "url"]
