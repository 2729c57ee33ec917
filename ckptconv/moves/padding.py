"""Padding: one value at an end of a tensor, and cutting it off, where it must hold that value, bit for bit.

constant(0, kind, [6, 4])    the part of a tensor that holds one value everywhere
without(kept, rest, 0.0)     data that is kept's bytes; whoever reads it learns of padding that is not (ConversionError)
of(data)                     the two again

A constant that a rule filled in is left out in the same way: it is a tensor of its own, or a block of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..errors import ConversionError, CorruptCheckpoint
from ..messages import printable
from . import recorded
from .log import CHUNK
from .part import Coded, Data, Held, Part, Stored, c_strides
from .read import read_array, windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array


def constant(element: Any, kind: DType, shape: tuple[int, ...]) -> Part:
    """A part that is one element of this dtype, read again and again."""
    return Part(Held(element), kind, shape, 0, (0,) * len(shape), 0, c_strides(shape))


def is_constant(part: Part) -> bool:
    return isinstance(part.data, Held) and bool(part.shape) and not any(part.strides)


def without(
    kept: Stored, padding: Stored, value: float, *, axis: int = 0, start: int = 0, filled: bool = False
) -> Data:
    """The bytes of `kept`, in C order. `padding` is read whenever they are.

    axis, start: along which axis of which tensor it lies, and where it begins. filled: that tensor is not the one that
    is kept, but one that the rule filled in.

    ConversionError if an element of it is not `value`. Memory is bounded. Arrays in memory are compared now.
    """
    both = (kept, padding)
    if recorded.in_memory(both):
        with Sources() as sources:
            _check(padding, value, axis, start, filled, sources)
            return Held(read_array(kept, sources))
    key = json.dumps([value, axis, start, filled, recorded.rows(both)], separators=(",", ":"))
    return Coded(__name__, recorded.url(both), key, kept.nbytes)


def of(data: Data) -> list[Stored]:
    """What is kept and what is cut off as padding; nothing if it is other data."""
    if not isinstance(data, Coded) or data.module != __name__:
        return []
    return recorded.tensors(json.loads(data.key)[-1])


def how(data: Data) -> str:
    """A few words for what becomes of the padding; '' if it is other data."""
    if not isinstance(data, Coded) or data.module != __name__:
        return ""
    *_, filled, _rows = json.loads(data.key)
    return "compare a constant" if filled else "cut padding off"


def decode(coded: Coded) -> Iterator[Array]:
    """Yield the bytes that are kept; see `without`."""
    kept, padding = of(coded)
    with Sources() as sources:
        value, axis, start, filled, _ = json.loads(coded.key)
        _check(padding, value, axis, start, filled, sources)
        yield from windows(kept, sources, CHUNK)
        for url in sources.changed():
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)


def _check(padding: Stored, value: float, axis: int, start: int, filled: bool, sources: Sources) -> None:
    """Refuse padding, which begins at `start` of the axis, that is not the value."""
    import numpy as np

    from .cast import element

    want = element(value, padding.dtype).reshape(1).view("u1")
    at = 0
    for view in windows(padding, sources, CHUNK):
        elements = view.reshape(-1, len(want))
        if len(odd := np.flatnonzero((elements != want).any(axis=1))):
            index = [int(i) for i in np.unravel_index(at + int(odd[0]), padding.shape)]
            if start:
                index[axis] += start
            found = elements[odd[0]].view(padding.dtype.np)[0]
            what, way = (
                ("it would be left out, but is not what `fill` adds", "exclude= leaves it out")
                if filled
                else ("what would be cut off is not padding", "a rule with `crop` cuts it off")
            )
            raise ConversionError(
                f"{printable(padding.name)}: {what}: at {index} it is {found}, not {value:g}; {way} all the same"
            )
        at += len(elements)


__all__ = ["constant", "decode", "how", "is_constant", "of", "without"]
