"""The neutral mapping of tensors: names, dtypes, shapes and where the bytes are. No tensor is read here.

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
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..messages import brief, did_you_mean, in_shape, paragraph, printable, redacted, shortened, table
from .details import Details, Entry, Move, compose_moves, joined, named
from .tensor import Role, Tensor, contiguous, counted, held, in_known, in_size, origin, view

if TYPE_CHECKING:
    import numpy as np
    import torch

MUCH = 100_000  # new objects
ROWS = 20  # tensors that print() shows


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic garbage collector, which would scan hundreds of thousands of new tensors repeatedly, in vain.

    Collections took a quarter of the time to convert 200,000 tensors. Many new objects count as old afterwards, because
    otherwise the collector would scan them at once.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if gc.get_count()[0] > MUCH and not gc.get_freeze_count():  # do not unfreeze the caller's objects
                gc.freeze()
                gc.unfreeze()
            gc.enable()


NoteKind = Literal["skipped", "dropped", "damaged", "lossy", "assumed", "unread", "tied", "hint"]


class Note(NamedTuple):
    """Something that the user should know, as a text, and the names of the tensors that it concerns.

    kind: skipped (left out), dropped (left out on request), damaged, lossy (values changed), assumed (a guess of the
    reader), unread (not looked at), tied (names that share one tensor), or hint (what to do). tensors: whether the
    names are those of tensors; False for skipped or unread settings, files and the like.
    """

    kind: NoteKind
    text: str
    names: tuple[str, ...] = ()
    tensors: bool = True

    def __str__(self) -> str:
        """Format the note as the command line prints it."""
        return paragraph(f"{self.kind}: {self.text}" + (f" ({shortened(self.names)})" if self.names else ""))

    @property
    def short(self) -> str:
        """The line with a count instead of the names, unless the names matter or are few."""
        counted = self.text[:1].isdigit()
        if self.kind in ("damaged", "lossy", "assumed", "hint") or (len(self.names) < 3 and not counted):
            return str(self)
        return paragraph(f"{self.kind}: {self.text}" + ("" if counted else f" ({len(self.names):,})"))

    @property
    def unread(self) -> bool:
        """Whether it names tensors of the source that were not read."""
        return self.kind in ("skipped", "unread") and self.tensors and bool(self.names)

    def to_json(self) -> dict[str, Any]:
        """The note as JSON values."""
        return {"kind": self.kind, "text": self.text, "names": self.names}


@dataclass(frozen=True, repr=False)
class Checkpoint(Mapping[str, Tensor]):
    """An ordered mapping from names to tensors, with the other contents of a file. No tensor is read before it is used.

    tensors: the mapping as a dict. metadata: texts by key, as the file has them. ties: groups of names that share one
    tensor; each name is a key. format: the name of the format that was read. urls: all files that were read.
    notes: what the user should know. details: what the format knows beyond tensors, as JSON values. hashes: the content
    hashes that the file carries, under its metadata keys. moved: the source names and the rule of each tensor, if the
    names are not those of the source.
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
        """The tensor with this name; KeyError suggests similar names."""
        try:
            return self.tensors[name]
        except KeyError:
            raise KeyError(f"no tensor is called {name!r}{did_you_mean(str(name), self.tensors, count=3)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, or the default if none has this name."""
        return self.tensors.get(name, default)

    def keys(self) -> KeysView[str]:
        """The names; a notebook shows them."""
        return self.tensors.keys()

    def values(self) -> ValuesView[Tensor]:
        """The tensors, not yet read."""
        return self.tensors.values()

    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors."""
        return self.tensors.items()

    def __dir__(self) -> list[str]:
        """List what users need; packages that make and change checkpoints use more."""
        words = "details format get items keys metadata nbytes notes numpy ties torch urls values"
        return words.split()

    if not TYPE_CHECKING:

        def __getattr__(self, word: str) -> Any:
            what = "; it maps names to tensors: c[name].numpy(), c.numpy(), c.torch(); ckptconv.save writes it"
            raise AttributeError(f"'Checkpoint' object has no attribute {word!r}{'' if word[0] == '_' else what}")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: files are open only while they are read."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors when C-contiguous; tied tensors count once for each name, strings as 0."""
        return sum(t.nbytes for t in self.tensors.values())

    def numpy(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read all tensors into a dict of NumPy arrays; raises what `Tensor.numpy` raises."""
        return {name: t.numpy() for name, t in self.tensors.items()}

    def torch(self) -> dict[str, torch.Tensor]:
        """Read all tensors into a state dict for `module.load_state_dict`; tied names share one tensor.

        Raises what `Tensor.torch` raises.
        """
        owners, out = self.owners(), dict[str, Any]()
        for name, t in self.tensors.items():
            out[name] = out[owners[name]] if owners[name] in out else t.torch()
        return out

    def _head(self) -> str:
        where = f" {brief(printable(redacted(self.urls[0])), 200)!r}" if self.urls else ""
        return f"{self.format}{where}: {counted(len(self), in_size(self.tensors.values()))}".strip()

    def __repr__(self) -> str:
        return f"<Checkpoint {self._head()}>"

    def __str__(self) -> str:
        """A table of the first tensors, for print()."""
        first = list(self.tensors.values())[:ROWS]
        rows = [(brief(printable(t.name), 100), t.dtype.name, in_shape(t.shape), in_size([t])) for t in first]
        more = [f"... and {len(self) - ROWS} more"] if len(self) > ROWS else []
        return "\n".join([self._head(), *table(("name", "dtype", "shape", "size"), rows, "lllr"), *more])

    def _repr_html_(self) -> str:
        """The same table, for notebooks."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def names_in_notes(self, *kinds: NoteKind) -> list[str]:
        """The names that notes of these kinds concern."""
        return [name for note in self.notes if note.kind in kinds for name in note.names]

    def owners(self) -> dict[str, str]:
        """Map each name to the first one of its tie; tensors that a converter changed differently are not tied."""
        out = {name: name for name in self.tensors}
        for group in self.ties:
            first: dict[tuple[object, ...], str] = {}
            there = (name for name in group if name in out)
            out |= {name: first.setdefault(origin(self.tensors[name]), name) for name in there}
        return out

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the source tensors that a tensor was made of."""
        return self.moved[name].sources if name in self.moved else (name,)

    def with_tensors(self, tensors: Mapping[str, Tensor], *notes: Note) -> Checkpoint:
        """Copy with other tensors and further notes; ties keep only names that remain."""
        groups = (tuple(n for n in g if n in tensors) for g in self.ties)
        return replace(
            self, tensors=dict(tensors), ties=tuple(g for g in groups if len(g) > 1), notes=(*self.notes, *notes)
        )


__all__ = [
    "Checkpoint",
    "Details",
    "Entry",
    "Move",
    "Note",
    "NoteKind",
    "Role",
    "Tensor",
    "compose_moves",
    "contiguous",
    "counted",
    "held",
    "in_known",
    "in_size",
    "joined",
    "named",
    "origin",
    "uncollected",
    "view",
]
