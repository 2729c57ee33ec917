"""The neutral tensor dict: names, dtypes, shapes and where the bytes lie. No tensor is read here.

    Checkpoint = {name: Tensor} + metadata + ties + notes
    Tensor     = name, dtype, shape, parts                      (logical, C order, little-endian)
    Part       = a strided box of one piece of stored data, and the strided box of the tensor it fills
    data       = Span (bytes of a file) | Coded (bytes a format must decode) | Held (an array in memory)

An ordinary tensor has one part whose strides are C-contiguous on both sides. A torch view is one part with other
source strides; a partitioned variable is several parts; a transposed, split or concatenated tensor is again only
parts. All offsets and strides of a part count *elements* of `Part.dtype`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..messages import brief, did_you_mean, in_bytes, in_shape, many, printable, redacted, shortened, table
from .details import Details, Entry, Graph, Move
from .tensor import Role, Tensor, contiguous, held, origin, tiled, view

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


@dataclass(frozen=True, repr=False)
class Checkpoint(Mapping[str, Tensor]):
    """An ordered mapping from names to tensors, with what else a file says.

    `ties` groups names that share one tensor (each name is in `tensors`); `urls` are all files it was read from;
    `moved` says where a converter took each tensor from; `hashes` are the digests that the file carries, by name.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    ties: tuple[tuple[str, ...], ...] = ()
    format: str = ""
    urls: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    details: Details = field(default_factory=Details)
    hashes: dict[str, str] = field(default_factory=dict)
    moved: Mapping[str, Move] = field(default_factory=dict)

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


__all__ = [
    "Checkpoint",
    "Details",
    "Entry",
    "Graph",
    "Move",
    "Note",
    "NoteKind",
    "Role",
    "Tensor",
    "contiguous",
    "held",
    "origin",
    "tiled",
    "uncollected",
    "view",
]
