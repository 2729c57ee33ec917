"""Data that is computed from tensors whenever it is read, in bounded memory.

compared([a, b])             a's bytes; copies that differ are an error (ConversionError)
without(kept, rest, 0.0)     kept's bytes; padding that is not this value, bit for bit, is an error
dense("w", ...)              the dense form of a sparse or quantised tensor
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
from ..messages import listing, printable
from .log import CHUNK
from .part import Coded, Data, Held, Part, Span, Stored, c_strides
from .read import read_array, windows
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
    ops = {"compared": _compared, "without": _without, "dense": computed}
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


# --- dense tensors of sparse and quantised ones ---------------------------------------------------------------------
#
# {"": q, "scale": s, "zero_point": z}                  (q - z) * s; along an axis: by channels
# {"indices": i, "values": v}                           0 but for values at indices, which add up
# {"crow_indices": r, "col_indices": c, "values": v}    the same by rows, or by columns (ccol, row)
#
# A shape costs nothing to claim, so the dense elements are never held whole. Indices and values are, up to `MOST` of
# them. Values of one index keep their order, since sums of floats depend on it. All arithmetic is torch's, to the bit.

WINDOW = 2**16  # elements that are read at once
BLOCK = 2**18  # elements that are computed at once
MOST = 2**23  # indices and values of a sparse tensor
Pieces = Mapping[str, Stored]


def check(name: str, shape: tuple[int, ...], pieces: Pieces, axis: int | None) -> None:
    """CorruptCheckpoint if the pieces do not fit together. axis: of the channels that have scales of their own."""
    if "" in pieces:
        q, scale, zero = (pieces[k] for k in ("", "scale", "zero_point"))
        want = () if axis is None else (q.shape[axis],)
        if {scale.shape, zero.shape} != {want}:
            along = "" if axis is None else f" along axis {axis}"
            text = f"{list(scale.shape)} scales, {list(zero.shape)} zero points{along}"
            raise CorruptCheckpoint(f"its scales do not fit its shape {list(q.shape)}: {text}", tensor=name)
        return
    odd = _odd_entries(shape, pieces) if "indices" in pieces else _odd_blocks(shape, pieces)
    if odd or any(t.dtype.kind not in "iu" for part, t in pieces.items() if part != "values"):
        text = f"its sparse indices do not fit its shape {list(shape)}: {odd or 'they are not whole numbers'}"
        raise CorruptCheckpoint(text, tensor=name)


def _odd_entries(shape: tuple[int, ...], pieces: Pieces) -> str:
    """What does not fit of (axes, n) indices and (n, ...) values, or ''."""
    indices, values = pieces["indices"].shape, pieces["values"].shape
    if len(indices) != 2 or indices[0] > len(shape):
        return f"negative or too many indices {list(indices)}"
    return "" if values == (indices[1], *shape[indices[0] :]) else f"values of shape {list(values)}"


def _odd_blocks(shape: tuple[int, ...], pieces: Pieces) -> str:
    """What does not fit of indices by rows or columns and n values, or n blocks of values; or ''."""
    outer, inner, values = (t.shape for t in pieces.values())
    if len(outer) != 1 or len(inner) != 1 or len(values) not in (1, 3) or len(shape) != 2:
        return "batches of compressed sparse tensors are not computed"
    height, width = values[1:] or (1, 1)
    if not height or not width or shape[0] % height or shape[1] % width:
        return f"blocks of {height} x {width} do not divide it"
    majors = shape[0] // height if "crow_indices" in pieces else shape[1] // width
    return "" if outer == (majors + 1,) and inner == values[:1] else f"{list(outer)} and {list(inner)} indices"


# --- reading ------------------------------------------------------------------------------------------------------


def computed(tensors: Sequence[Stored], params: list[Any], sources: Sources) -> Iterator[Array]:
    """Yield the dense elements in order; ConversionError if a sparse tensor has too many values to be held."""
    name, shape, axis = params
    pieces = {t.name: t for t in tensors}
    q = pieces.pop("", None)
    count = sum(t.count for t in pieces.values())
    if count > MOST:
        text = f"is not computed: it has {count:,} indices, values or scales, more than {MOST:,}"
        raise ConversionError(f"{text}; save its to_dense() or dequantize()", tensor=name)
    held = {part: read_array(t, sources) for part, t in pieces.items()}
    yield from _dequantised(q, held, axis, sources) if q else _summed_up(name, tuple(shape), held, pieces["values"])


def _dequantised(q: Stored, held: Mapping[str, Array], axis: int | None, sources: Sources) -> Iterator[Array]:
    import numpy as np

    scale, zero = (held[part].reshape(-1) for part in ("scale", "zero_point"))
    kind = np.float32 if zero.dtype.kind == "f" else np.float64  # as torch subtracts
    wide = np.float32 if axis is None else kind  # beside integers, scales of channels are doubles; one alone is a float
    inner = prod(q.shape[axis + 1 :]) if axis is not None else 1
    lo = 0
    for view in windows(q, sources, WINDOW * q.dtype.itemsize):
        values = view.view(q.dtype.np)
        channel = np.arange(lo, lo + len(values)) // inner % len(scale)
        with np.errstate(all="ignore"):
            made = (values.astype(kind) - zero[channel].astype(kind)).astype(wide) * scale[channel].astype(wide)
            yield made.astype(np.float32)
        lo += len(values)


def _summed_up(name: str, shape: tuple[int, ...], held: Mapping[str, Array], values: Stored) -> Iterator[Array]:
    """Add up the values of each index, block by block."""
    import numpy as np

    from .cast import HALVES

    try:
        at = _entries(shape, held) if "indices" in held else _blocks(shape, held)
    except ValueError as e:
        raise CorruptCheckpoint(f"its sparse indices do not fit its shape {list(shape)}: {e}", tensor=name) from None
    # torch adds up blocks of half floats as float32, but not single ones
    blocks = "indices" not in held and len(values.shape) == 3 and values.dtype.name in HALVES
    wide = DTYPES["float32"].np if blocks else values.dtype.np
    order = np.argsort(at, kind="stable")
    at, elements, size = at[order], held["values"].reshape(-1)[order], prod(shape)
    for lo in range(0, size, BLOCK):
        first, last = np.searchsorted(at, (lo, lo + BLOCK))
        out = np.zeros(min(BLOCK, size - lo), wide)
        with np.errstate(all="ignore"):
            np.add.at(out, at[first:last] - lo, elements[first:last])
            yield out.astype(values.dtype.np, copy=False).view("u1")


def _entries(shape: tuple[int, ...], held: Mapping[str, Array]) -> Array:
    """The flat index of each value, by (axes, n) indices; ValueError says what is out of bounds."""
    import numpy as np

    indices, values = held["indices"].astype(np.int64), held["values"]
    axes, each = len(indices), prod(values.shape[1:])
    sizes, strides = (np.array(n[:axes], np.int64).reshape(-1, 1) for n in (shape, c_strides(shape)))
    if (indices < 0).any():
        raise ValueError("negative or too many indices")
    for axis, beyond in zip(*np.nonzero(indices >= sizes), strict=True):
        raise ValueError(f"index {indices[axis, beyond]} is out of bounds for axis {axis} of size {sizes[axis, 0]}")
    at: Array = ((indices * strides).sum(axis=0).reshape(-1, 1) + np.arange(each)).reshape(-1)
    return at


def _blocks(shape: tuple[int, ...], held: Mapping[str, Array]) -> Array:
    """The same by compressed rows or columns, of single values or of blocks."""
    import numpy as np

    by_row, values = "crow_indices" in held, held["values"]
    starts = held["crow_indices" if by_row else "ccol_indices"].astype(np.int64)
    minor = held["col_indices" if by_row else "row_indices"].astype(np.int64)
    if starts[0] or (np.diff(starts) < 0).any() or starts[-1] != len(values) or (minor < 0).any():
        raise ValueError("the compressed indices do not rise from 0 to the number of values")
    height, width = values.shape[1:] or (1, 1)
    count = shape[1] // width if by_row else shape[0] // height
    for beyond in minor[minor >= count]:
        raise ValueError(f"index {beyond} is out of bounds for axis {int(by_row)} of size {count}")
    major = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    row, column = ((n.reshape(-1, 1, 1)) for n in ((major, minor) if by_row else (minor, major)))
    down, across = row * height + np.arange(height).reshape(-1, 1), column * width + np.arange(width)
    at: Array = (down * shape[1] + across).reshape(-1)
    return at
