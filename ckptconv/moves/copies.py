"""Tensors that must be equal copies: read side by side, compared bit for bit, and passed on as one.

compared([a, b])     data that is a's bytes; whoever reads it learns of copies that differ (ConversionError)
of(data)             the copies again
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import ConversionError, CorruptCheckpoint
from ..messages import listing, printable
from . import recorded
from .log import CHUNK
from .part import Coded, Data, Held, Stored
from .read import read_array, windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array


def compared(copies: Sequence[Stored]) -> Data:
    """The bytes of the first of tensors of one shape and dtype, which differ in name, in C order.

    The copies are read, in bounded memory, whenever it is; ConversionError then names those that differ. Arrays in
    memory have no name by which another process could read them: they are compared now.
    """
    if recorded.in_memory(copies):
        with Sources() as sources:
            for _ in _equal(copies, sources):
                pass
            return Held(read_array(copies[0], sources))
    key = json.dumps(recorded.rows(copies), separators=(",", ":"))
    return Coded(__name__, recorded.url(copies), key, copies[0].nbytes)


def of(data: Data) -> list[Stored]:
    """The copies that reading the data compares; none if it is other data."""
    if not isinstance(data, Coded) or data.module != __name__:
        return []
    return recorded.tensors(json.loads(data.key))


def decode(coded: Coded) -> Iterator[Array]:
    """Yield the bytes that all copies have in common; see `compared`."""
    with Sources() as sources:
        yield from _equal(of(coded), sources)
        for url in sources.changed():
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)


def _equal(copies: Sequence[Stored], sources: Sources) -> Iterator[Array]:
    import numpy as np

    first, at = copies[0], 0
    odd: dict[str, int] = {}
    for view, *others in zip(*(windows(t, sources, CHUNK) for t in copies), strict=True):
        for t, other in zip(copies[1:], others, strict=True):
            if t.name not in odd and not np.array_equal(view, other):
                odd[t.name] = (at + int(np.flatnonzero(view != other)[0])) // first.dtype.itemsize
        at += len(view)
        if not odd:
            yield view
    if odd:
        places = [
            f"{printable(name)}, first at {[int(i) for i in np.unravel_index(place, first.shape)]}"
            for name, place in odd.items()
        ]
        raise ConversionError(
            f"not the equal copies of {printable(first.name)} that the rule asks for:\n{listing(places)}"
        )


__all__ = ["compared", "decode", "of"]
