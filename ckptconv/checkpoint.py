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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .dtypes import DTYPES, DType, of_numpy
from .messages import brief, did_you_mean, in_bytes, in_shape, many, printable, redacted, shortened, table
from .moves.part import Data, Held, Part, c_strides

if TYPE_CHECKING:
    import numpy as np
    import torch

ROWS, HTML_ROWS = 20, 200  # tensors that a checkpoint shows of itself


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


NoteKind = Literal["skipped", "dropped", "damaged", "lossy", "assumed", "unread", "tied", "hint"]


class Note(NamedTuple):
    """Something a person should know, of some tensors by name. What was asked for is `dropped`, not `skipped`."""

    kind: NoteKind
    text: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f" ({shortened(self.names)})" if self.names else "")


@dataclass(frozen=True, slots=True, repr=False)
class Tensor:
    """A reference to one tensor; nothing is read before it is asked for.

    `numpy()`, `torch()` and numpy.asarray(t) read it whole, `t[0:2, ..., 5]` reads a slice of it (whose checksum, which
    is of the whole, is not compared). `role` is '' for a weight, else slot, step, average, state.
    """

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

    def torch(self) -> torch.Tensor:
        """Read the tensor whole, as a torch tensor of the same dtype; MissingExtra without torch."""
        from .moves.torch import to_torch

        return to_torch(self.numpy(), self.dtype, self.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Read a slice, as numpy would give it: integers, slices and `...` read only what lies in their bounds."""
        from .moves.slices import box

        keys = _per_axis(index, self.shape)
        if keys is None or self.dtype.kind == "s":
            return self.numpy()[index]
        bounds = [(k, k + 1) if isinstance(k, int) else _bounds(k, n) for k, n in zip(keys, self.shape, strict=True)]
        parts = box(self, bounds)
        if parts is None:
            return self.numpy()[index]
        read = replace(self, shape=tuple(hi - lo for lo, hi in bounds), parts=parts).numpy()
        return read[tuple(0 if isinstance(k, int) else slice(None, None, k.step) for k in keys)]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        role = f", {self.role}" if self.role else ""
        dims = "x".join(map(str, self.shape)) or "scalar"
        return f"<Tensor {brief(printable(self.name), 100)!r}: {self.dtype.name} {dims}, {in_bytes(self.nbytes)}{role}>"

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)


def _per_axis(index: Any, shape: tuple[int, ...]) -> list[int | slice] | None:
    """An index of integers, slices and one `...` as one key for each axis; None for all else that numpy takes."""
    keys = list(index) if isinstance(index, tuple) else [index]
    if not all(isinstance(k, (int, slice)) or k is ... for k in keys) or any(isinstance(k, bool) for k in keys):
        return None
    at = next((i for i, k in enumerate(keys) if k is ...), len(keys))
    given = len(keys) - (at < len(keys))
    if given > len(shape) or any(k is ... for k in keys[at + 1 :]):
        return None  # numpy says why
    keys[at : at + 1] = [slice(None)] * (len(shape) - given)
    out: list[int | slice] = []
    for k, n in zip(keys, shape, strict=True):
        if isinstance(k, int) and not -n <= k < n:
            raise IndexError(f"index {k} is out of bounds for an axis of {n}")
        out.append(k % n if isinstance(k, int) else k)
    return out


def _bounds(key: slice, size: int) -> tuple[int, int]:
    """The indices between which a slice lies; a step is taken when they were read."""
    taken = range(*key.indices(size))
    return (min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1) if taken else (0, 0)


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


@dataclass(frozen=True, repr=False)
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
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(f"no tensor is called {name!r}{did_you_mean(str(name), self.tensors, count=3)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, or the default if none has this name."""
        return self.tensors.get(name, default)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed: files are open while they are read."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read all tensors, as a dict of arrays."""
        return {name: t.numpy() for name, t in self.tensors.items()}

    def torch(self) -> dict[str, torch.Tensor]:
        """Read all tensors, as a state dict for `module.load_state_dict`; names that are tied share one tensor."""
        owners, out = self.owners(), dict[str, Any]()
        for name, t in self.tensors.items():
            out[name] = out[owners[name]] if owners[name] in out else t.torch()
        return out

    def _head(self) -> str:
        where = f" {brief(printable(redacted(self.urls[0])), 200)!r}" if self.urls else ""
        return f"{self.format}{where}: {many(len(self), 'tensor')}, {in_bytes(self.nbytes)}".strip()

    def _rows(self, limit: int) -> list[tuple[str, ...]]:
        """Name, dtype, shape and size of the first tensors."""
        first = list(self.tensors.values())[:limit]
        return [(brief(printable(t.name), 100), t.dtype.name, in_shape(t.shape), in_bytes(t.nbytes)) for t in first]

    def __repr__(self) -> str:
        return f"<Checkpoint {self._head()}>"

    def __str__(self) -> str:
        more = [f"... and {len(self) - ROWS} more"] if len(self) > ROWS else []
        return "\n".join([self._head(), *table(("name", "dtype", "shape", "size"), self._rows(ROWS), "lllr"), *more])

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        from html import escape

        cells = ["".join(f"<td>{escape(c)}</td>" for c in row) for row in self._rows(HTML_ROWS)]
        more = f"<p>... and {len(self) - HTML_ROWS} more</p>" if len(self) > HTML_ROWS else ""
        head = "".join(f"<th>{h}</th>" for h in ("name", "dtype", "shape", "size"))
        rows = "".join(f"<tr>{c}</tr>" for c in cells)
        return f"<p>{escape(self._head())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

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
