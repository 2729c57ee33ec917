"""What is known of a tensor since its file was opened: it is compared whenever the tensor is read as an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import CorruptCheckpoint
from ..storage.files import Reader, Stamp, is_remote
from .part import Held, Part, Stored
from .read import hash_array, read_array
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array


@dataclass(frozen=True, slots=True)
class Opened:
    """What a file said when it was opened.

    stamps: of all files that were looked at. hash, parts: the content hash that the file carries of the tensor with
    these parts, if it is not one that the tensor's only span has as its check; '' if there is none.
    """

    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    hash: str = ""
    parts: tuple[Part, ...] = ()

    def __reduce__(self) -> tuple[type[Opened], tuple[object, ...]]:
        """Without stamps: on another machine the same file has others."""
        return Opened, ({}, self.hash, self.parts)

    def read(self, t: Stored) -> Array:
        """Read a tensor whole; CorruptCheckpoint if its file was changed since, or if it does not match its hash."""
        with Sources(stamps=self.stamps) as sources:
            array = read_array(t, sources)
        for url in {p.data.url for p in t.parts if not isinstance(p.data, Held)} & self.stamps.keys():
            if is_remote(url):
                continue  # a store answers each request with the same object, or with an error
            with Reader(url) as now:
                if now.stamp != self.stamps[url]:
                    raise CorruptCheckpoint("changed since it was opened", url=url)
        if self.hash and t.parts is self.parts and hash_array(t, array) != self.hash:
            raise CorruptCheckpoint("its content does not match its hash", tensor=t.name)
        return array


def stamps_of(opened: Iterable[Opened]) -> Mapping[str, Stamp]:
    """The stamps of all files; CorruptCheckpoint if one was opened before and after it was changed."""
    known: dict[str, Stamp] = {}
    for stamps in {id(o.stamps): o.stamps for o in opened}.values():
        for url, stamp in stamps.items():
            if known.setdefault(url, stamp) != stamp:
                raise CorruptCheckpoint("changed since it was opened by one of these tensors", url=url)
    return known


__all__ = ["Opened", "stamps_of"]
