"""Data that is computed from tensors whenever it is read, in bounded memory.

compared([a, b])             a's bytes; copies that differ are an error (ConversionError)
summed([a, b], ...)          a + b; elements that round are an error, as rounding would go unnoticed
                             or, with `zeros`, a itself: all others must be zeros, so that the sum can be undone
without(kept, rest, 0.0)     kept's bytes; padding that is not this value, bit for bit, is an error
dense("w", ...)              the dense form of a sparse or quantised tensor (dense.py)
derived(data)                the operation and its sources again
constant(0, kind, [6, 4])    the part of a tensor that holds one value everywhere

`Coded.key` holds the sources as JSON, so that any process can read the data. Arrays in memory have no name by which
another process could read them: what is made of them is computed at once.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, CorruptCheckpoint
from ..messages import listing, many, printable
from .dense import check, computed
from .log import CHUNK
from .part import Coded, Data, Held, Part, Span, Stored, c_strides
from .read import windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array

SPOOL = 2**23  # bytes of a packed source that are held in memory


class Derived(NamedTuple):
    """An operation, the tensors that it reads, and its parameters, which JSON can hold."""

    op: str
    sources: list[Stored]
    params: list[Any]

    @property
    def how(self) -> str:
        """A few words for people."""
        match self.op:
            case "compared":
                return f"compare {len(self.sources)} copies"
            case "summed":
                return f"add {len(self.sources)}"
            case "without":
                return "compare a constant" if self.params[-1] else "cut padding off"
        return "make dense"


def derived(data: Data) -> Derived | None:
    """How data is computed; None if a file or an array has it as it is."""
    if not isinstance(data, Coded) or data.module != __name__:
        return None
    op, rows, params = json.loads(data.key)
    sources = [Stored(name, DTYPES[kind], tuple(shape), tuple(map(_part, parts))) for name, kind, shape, parts in rows]
    return Derived(op, sources, params)


def _part(row: Any) -> Part:
    data, kind, shape, offset, strides, start, steps, ops = row
    stored: Data
    if len(data) == 1:
        stored = Held.of(b64decode(data[0]))
    else:
        stored = Span(*data) if isinstance(data[1], int) else Coded(*data)  # the second field: a start, or a url
    return Part(stored, DTYPES[kind], tuple(shape), offset, tuple(strides), start, tuple(steps), tuple(ops))


def _coded(made: Derived, size: int) -> Coded:
    """Data of `size` bytes that is computed when it is read. Arrays in memory are recorded with all their bytes."""

    def data(d: Data) -> object:
        return [b64encode(d.array.tobytes()).decode()] if isinstance(d, Held) else d

    rows = [
        [t.name, t.dtype.name, t.shape, [[data(p[0]), p.dtype.name, *p[2:]] for p in t.parts]] for t in made.sources
    ]
    url = next((p.data.url for t in made.sources for p in t.parts if not isinstance(p.data, Held)), "")
    return Coded(__name__, url, json.dumps([made.op, rows, made.params], separators=(",", ":")), size)


def dense(
    name: str, shape: tuple[int, ...], kind: DType, pieces: Mapping[str, Stored], axis: int | None = None
) -> Data:
    """The elements of a sparse or quantised tensor; CorruptCheckpoint if its pieces do not fit together."""
    check(name, shape, pieces, axis)
    sources = [replace(t, name=part) for part, t in pieces.items()]
    return _coded(Derived("dense", sources, [name, shape, axis]), prod(shape) * kind.itemsize)


def _now_or_later(made: Derived) -> Data:
    """Data as large as the first source: computed when it is read, or at once if a source is in memory."""
    size = made.sources[0].nbytes
    if not any(isinstance(p.data, Held) for t in made.sources for p in t.parts):
        return _coded(made, size)
    out, end = bytearray(size), 0
    with Sources() as sources:
        for piece in _computed(made, sources):
            out[end : end + len(piece)] = piece.data
            end += len(piece)
    return Held.of(out)


def decode(data: Coded) -> Iterator[Array]:
    """Yield the bytes of data that is computed."""
    made = derived(data)
    if made is None:
        raise TypeError("not data that is computed")
    with Sources(SPOOL) as sources:
        yield from _computed(made, sources)
        for url in sources.changed():
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)


def _computed(made: Derived, sources: Sources) -> Iterator[Array]:
    ops = {"compared": _compared, "summed": _summed, "without": _without, "dense": computed}
    return ops[made.op](made.sources, made.params, sources)


# --- copies -------------------------------------------------------------------------------------------------------


def compared(copies: Sequence[Stored]) -> Data:
    """The bytes of the first of tensors of one shape and dtype, which differ in name, in C order."""
    return _now_or_later(Derived("compared", list(copies), []))


def _compared(copies: Sequence[Stored], _: list[Any], sources: Sources) -> Iterator[Array]:
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
        places = [f"{printable(name)}, first at {_index(place, first.shape)}" for name, place in odd.items()]
        raise ConversionError(
            f"not the equal copies of {printable(first.name)} that the rule asks for:\n{listing(places)}"
        )


def _index(place: int, shape: tuple[int, ...]) -> list[int]:
    import numpy as np

    return [int(i) for i in np.unravel_index(place, shape)]


# --- sums ---------------------------------------------------------------------------------------------------------

WHY = {
    False: "the sum of these is not exact: what cannot be added without rounding",
    True: "`sum` takes the first of these, as all others must be zeros: what is not zero",
}


def summed(terms: Sequence[Stored], *, zeros: bool) -> Data:
    """The sum of tensors of one shape and one dtype of floats, which differ in name, in C order."""
    return _now_or_later(Derived("summed", list(terms), [zeros]))


def _summed(terms: Sequence[Stored], params: list[Any], sources: Sources) -> Iterator[Array]:
    import numpy as np

    (zeros,) = params
    first, at = terms[0], 0
    odd: dict[str, tuple[int, int]] = {}  # by the term that cannot be added: the first element, how many
    for views in zip(*(windows(t, sources, CHUNK) for t in terms), strict=True):
        total, *others = (v.view(first.dtype.np) for v in views)
        for t, other in zip(terms[1:], others, strict=True):
            # a negative zero is no zero here: the inverse would not write it
            total, bad = (total, other.view(f"u{other.itemsize}") != 0) if zeros else _plus(total, other)
            if count := int(np.count_nonzero(bad)):
                place, before = odd.get(t.name, (at + int(np.flatnonzero(bad)[0]), 0))
                odd[t.name] = place, before + count
        at += len(total)
        if not odd:
            yield total.view("u1")
    if odd:
        rows = [
            f"{printable(name)}, {many(count, 'element')}, the first at {_index(place, first.shape)}"
            for name, (place, count) in odd.items()
        ]
        raise ConversionError(f"{' + '.join(printable(t.name) for t in terms)}: {WHY[zeros]}:\n{listing(rows)}")


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


# --- padding ------------------------------------------------------------------------------------------------------


def constant(element: Any, kind: DType, shape: tuple[int, ...]) -> Part:
    """A part that is one element of this dtype, read again and again."""
    return Part(Held(element), kind, shape, 0, (0,) * len(shape), 0, c_strides(shape))


def is_constant(part: Part) -> bool:
    return isinstance(part.data, Held) and bool(part.shape) and not any(part.strides)


def without(
    kept: Stored, padding: Stored, value: float, *, axis: int = 0, start: int = 0, filled: bool = False
) -> Data:
    """The bytes of `kept`, in C order; ConversionError when they are read if an element of `padding` is not `value`.

    axis, start: along which axis of which tensor it lies, and where it begins. filled: that tensor is not the one that
    is kept, but one that the rule filled in.
    """
    return _now_or_later(Derived("without", [kept, padding], [value, axis, start, filled]))


def _without(both: Sequence[Stored], params: list[Any], sources: Sources) -> Iterator[Array]:
    import numpy as np

    from .cast import element

    (kept, padding), (value, axis, start, filled) = both, params
    want, at = element(value, padding.dtype).reshape(1).view("u1"), 0
    for view in windows(padding, sources, CHUNK):
        elements = view.reshape(-1, len(want))
        if len(odd := np.flatnonzero((elements != want).any(axis=1))):
            index = _index(at + int(odd[0]), padding.shape)
            if start:
                index[axis] += start
            what, way = (
                ("it would be left out, but is not what `fill` adds", "exclude= leaves it out")
                if filled
                else ("what would be cut off is not padding", "a rule with `crop` cuts it off")
            )
            found = elements[odd[0]].view(padding.dtype.np)[0]
            raise ConversionError(
                f"{printable(padding.name)}: {what}: at {index} it is {found}, not {value:g}; {way} all the same"
            )
        at += len(elements)
    yield from windows(kept, sources, CHUNK)
