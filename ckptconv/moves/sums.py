"""Sums of tensors that are exact: read side by side, added, and every element checked, as rounding would go unnoticed.

summed([a, b], ...)  data that is a + b; whoever reads it learns of elements that round (ConversionError)
                     or, with `zeros`, that is a itself: all others must be zeros, so that the sum can be undone
of(data)             the terms again
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import ConversionError, CorruptCheckpoint
from ..messages import listing, many, printable
from . import recorded
from .log import CHUNK
from .part import Coded, Data, Held, Stored
from .read import windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array

WHY = {
    False: "the sum of these is not exact: what cannot be added without rounding",
    True: "`sum` takes the first of these, as all others must be zeros: what is not zero",
}


def summed(terms: Sequence[Stored], *, zeros: bool) -> Data:
    """The sum of tensors of one shape and one dtype of floats, which differ in name, in C order.

    They are read, in bounded memory, whenever it is; ConversionError then names what cannot be added exactly. Arrays in
    memory have no name by which another process could read them: they are added now.
    """
    if recorded.in_memory(terms):
        import numpy as np

        first = terms[0]
        with Sources() as sources:
            raw = np.concatenate([np.zeros(0, "u1"), *_added(terms, zeros, sources)])
        return Held(raw.view(first.dtype.np).reshape(first.shape))
    key = json.dumps([zeros, recorded.rows(terms)], separators=(",", ":"))
    return Coded(__name__, recorded.url(terms), key, terms[0].nbytes)


def of(data: Data) -> list[Stored]:
    """The terms that reading the data adds; none if it is other data."""
    if not isinstance(data, Coded) or data.module != __name__:
        return []
    return recorded.tensors(json.loads(data.key)[1])


def decode(coded: Coded) -> Iterator[Array]:
    """Yield the bytes of the sum; see `summed`."""
    with Sources() as sources:
        yield from _added(of(coded), json.loads(coded.key)[0], sources)
        for url in sources.changed():
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)


def _added(terms: Sequence[Stored], zeros: bool, sources: Sources) -> Iterator[Array]:
    import numpy as np

    first, at = terms[0], 0
    odd: dict[str, tuple[int, int]] = {}  # by the term that cannot be added: the first element, how many
    for views in zip(*(windows(t, sources, CHUNK) for t in terms), strict=True):
        total, *others = (v.view(first.dtype.np) for v in views)
        for t, other in zip(terms[1:], others, strict=True):
            # a negative zero is no zero here: the inverse would not write it
            total, bad = (total, _bits(other) != 0) if zeros else _plus(total, other)
            if count := int(np.count_nonzero(bad)):
                place, before = odd.get(t.name, (at + int(np.flatnonzero(bad)[0]), 0))
                odd[t.name] = place, before + count
        at += len(total)
        if not odd:
            yield total.view("u1")
    if odd:
        rows = [
            f"{printable(name)}, {many(count, 'element')}, the first at "
            f"{[int(i) for i in np.unravel_index(place, first.shape)]}"
            for name, (place, count) in odd.items()
        ]
        raise ConversionError(f"{' + '.join(printable(t.name) for t in terms)}: {WHY[zeros]}:\n{listing(rows)}")


def _bits(a: Array) -> Array:
    return a.view(f"u{a.dtype.itemsize}")


def _plus(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, and where it is not exact: what rounding takes away is found exactly, after Knuth's 2Sum."""
    import numpy as np

    with np.errstate(all="ignore"):
        x, y = a.astype("f8"), b.astype("f8")
        wide = x + y
        part = wide - x
        lost = (x - (wide - part)) + (y - part)
        total = wide.astype(a.dtype)
        return total, ~((lost == 0) & (total.astype("f8") == wide) & np.isfinite(wide))


__all__ = ["decode", "of", "summed"]
