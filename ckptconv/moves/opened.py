"""What is known of a tensor since its file was opened: it is compared whenever the tensor is read as an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..dtypes import DType
from ..errors import CorruptCheckpoint
from ..storage.files import Reader, Stamp, is_remote
from .part import Coded, Data, Part, Span, Stored
from .read import hash_array, read_array
from .sources import Sources

if TYPE_CHECKING:
    from typing import TypeGuard

    from .copy import Array


@dataclass(frozen=True, slots=True)
class Opened:
    """What a file said when it was opened.

    stamps: how those of all files begin that were looked at. hash, of: the content hash that the file carries of the
    tensor of this dtype, this shape and these parts, if its only span does not have it as its check.
    """

    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    hash: str = ""
    of: tuple[DType, tuple[int, ...], tuple[Part, ...]] | None = None

    def __reduce__(self) -> tuple[type[Opened], tuple[object, ...]]:
        """Without stamps: on another machine the same file has others."""
        return Opened, ({}, self.hash, self.of)

    def hash_of(self, t: Stored) -> str:
        """The hash that a tensor must have; '' if there is none, or if it was made of the one that was opened."""
        kind, shape, parts = self.of or (None, None, None)
        return self.hash if (t.dtype, t.shape) == (kind, shape) and t.parts is parts else ""

    def read(self, t: Stored) -> Array:
        """Read a tensor whole; CorruptCheckpoint if its file was changed since, or if it does not match its hash."""
        with Sources(stamps=self.stamps) as sources:
            array = read_array(t, sources)
        refuse_changed([t], self.stamps)
        if (known := self.hash_of(t)) and hash_array(t, array) != known:
            raise CorruptCheckpoint("its content does not match its hash", tensor=t.name)
        return array


def refuse_changed(tensors: Iterable[Stored], stamps: Mapping[str, Stamp]) -> None:
    """CorruptCheckpoint if a file that tensors are in is no longer the one that was opened."""
    for url in {d.url for d in (p.data for t in tensors for p in t.parts) if _unseen(d)} & stamps.keys():
        with Reader(url) as now:
            if now.stamp[: len(stamps[url])] != stamps[url]:
                raise CorruptCheckpoint("changed since it was opened", url=url)


def _unseen(data: Data) -> TypeGuard[Span | Coded]:
    """Whether reading alone does not tell that a file was changed: a store names its version with each answer."""
    return isinstance(data, Coded) or (isinstance(data, Span) and not is_remote(data.url))


def stamps_of(opened: Iterable[Opened]) -> Mapping[str, Stamp]:
    """The stamps of all files; CorruptCheckpoint if one was opened before and after it was changed."""
    known: dict[str, Stamp] = {}
    for stamps in {id(o.stamps): o.stamps for o in opened}.values():
        for url, stamp in stamps.items():
            if known.setdefault(url, stamp) != stamp:
                raise CorruptCheckpoint("changed since it was opened by one of these tensors", url=url)
    return known


__all__ = ["Opened", "refuse_changed", "stamps_of"]
