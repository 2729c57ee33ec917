"""The neutral tensor dict: names, dtypes, shapes and where the bytes lie. No tensor is read here.

    Checkpoint = {name: Tensor} + metadata + ties + notes
    Tensor     = name, dtype, shape, parts                      (logical, C order, little-endian)
    Part       = a strided box of one piece of stored data, and the strided box of the tensor it fills
    data       = Span (bytes of a file) | Coded (bytes a format must decode) | Held (an array in memory)

A plain tensor has one part whose strides are C-contiguous on both sides. A torch view is one part with other
source strides; a partitioned variable is several parts; a transposed, split or concatenated tensor is again only
parts. All offsets and strides of a part count *elements* of `Part.dtype`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from .dtypes import DTYPES, DType, of_numpy
from .moves.part import Data, Held, Part, c_strides

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic collector, which would walk hundreds of thousands of fresh tensors again and again, for nothing.

    Of the time to convert 200,000 tensors that was a quarter.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Note(NamedTuple):
    """Something a person should know, of some tensors by name.

    kind: skipped, dropped (it was asked for), damaged, lossy, assumed, unread, tied, hint.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A reference to one tensor; `numpy()` reads it. `role` is '' for a weight, else slot, step, average, state."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    role: str = ""

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor when C-contiguous (0 for strings, whose length only reading tells)."""
        return self.count * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """Read the tensor whole; strings come as an object array of bytes."""
        from .moves.read import read_array

        return read_array(self)

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)


def origin(t: Tensor) -> tuple[object, ...]:
    """What a tensor is made of; equal for two that are the same stored elements, moved and changed in the same way."""

    def place(data: Data) -> object:
        return (data.array.ctypes.data, data.array.nbytes) if isinstance(data, Held) else data

    return (t.dtype, t.shape, *((place(p.data), *p[1:]) for p in t.parts))


def plain(
    name: str, kind: DType, shape: Sequence[int], data: Data, *, ops: tuple[str, ...] = (), role: str = ""
) -> Tensor:
    """Make a tensor whose elements lie in `data` whole and in C order."""
    shape = tuple(shape)
    strides = c_strides(shape)
    return Tensor(name, kind, shape, (Part(data, kind, shape, 0, strides, 0, strides, ops),), role)


def view(
    name: str,
    kind: DType,
    shape: Sequence[int],
    data: Data,
    *,
    offset: int,
    strides: Sequence[int],
    ops: tuple[str, ...] = (),
    role: str = "",
) -> Tensor:
    """Make a tensor that looks at `data` through an offset and strides (elements, not negative, already validated)."""
    shape = tuple(shape)
    return Tensor(name, kind, shape, (Part(data, kind, shape, offset, tuple(strides), 0, c_strides(shape), ops),), role)


def tiled(
    name: str, kind: DType, shape: Sequence[int], tiles: Sequence[tuple[Sequence[int], Sequence[int], Data]], *,
    ops: tuple[str, ...] = (),
) -> Tensor:  # fmt: skip
    """Make a tensor from boxes `(start, shape, data)` that cover it without overlap, each C-contiguous in its data."""
    steps = c_strides(shape)
    parts = tuple(
        Part(data, kind, tuple(box), 0, c_strides(box), sum(a * b for a, b in zip(at, steps, strict=True)), steps, ops)
        for at, box, data in tiles
    )
    return Tensor(name, kind, tuple(shape), parts)


def held(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """Wrap an array (any strides and byte order) as a tensor; UsageError if no dtype fits."""
    import numpy as np

    if array.dtype == object:
        return plain(name, DTYPES["string"], array.shape, Held(array))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    kind = of_numpy(array.dtype)
    data = np.asarray(array, order="C").reshape(array.shape)
    narrow = (kind.name,) if kind.name in ("int4", "uint4", "int2", "uint2") else ()  # ml_dtypes leaves high bits open
    return plain(name, kind, array.shape, Held(data), ops=narrow)


@dataclass(frozen=True)
class Checkpoint(Mapping[str, Tensor]):
    """An ordered mapping from names to tensors, with what else a file says.

    `ties` groups names that share one tensor (each name is in `tensors`); `urls` are all files it was read from;
    `details` is what else a format knows, as JSON-able values, for inspection and for its own writer.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    ties: tuple[tuple[str, ...], ...] = ()
    format: str = ""
    urls: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def owners(self) -> dict[str, str]:
        """For each name the first that it is tied to; what a converter has changed apart owns itself again."""
        out = {name: name for name in self.tensors}
        for group in self.ties:
            first: dict[tuple[object, ...], str] = {}
            there = (name for name in group if name in out)
            out |= {name: first.setdefault(origin(self.tensors[name]), name) for name in there}
        return out

    def with_tensors(self, tensors: Mapping[str, Tensor], *notes: Note) -> Checkpoint:
        """Copy with other tensors; ties keep only names that are still there."""
        groups = (tuple(n for n in g if n in tensors) for g in self.ties)
        return replace(
            self, tensors=dict(tensors), ties=tuple(g for g in groups if len(g) > 1), notes=(*self.notes, *notes)
        )
