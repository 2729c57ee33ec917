"""Compute data from tensors whenever it is read, in bounded memory.

compared([a, b])             a's bytes; copies that differ are an error (ConversionError)
summed([a, b])               a + b, rounded as their dtype rounds
without(kept, rest, 0.0)     kept's bytes; padding that is not this value, bit for bit, is an error
dense("w", ...)              the dense form of a sparse or quantised tensor
derived(data)                the operation and its sources again
constant(0, kind, [6, 4])    the part of a tensor that holds one value everywhere

The key of such data is its `Derived`. Another process cannot read arrays in memory, so data made of them is computed at
once, except the few numbers of a quantised tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, CorruptCheckpoint
from ..messages import listing, printable
from .log import CHUNK
from .part import Coded, Data, Held, Part, Stored, c_strides
from .read import read_array, windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array

SPOOL = 2**23  # bytes of a packed source that are held in memory


@dataclass(frozen=True, eq=False)
class Derived:
    """A row of `OPERATIONS`, the tensors that it reads, and its parameters."""

    op: str
    sources: tuple[Stored, ...]
    params: tuple[Any, ...] = ()

    @property
    def how(self) -> str:
        """Describe the operation in a few words."""
        if self.op == "compared":
            return f"compare {len(self.sources)} copies"
        if self.op == "summed":
            return f"add {len(self.sources)}"
        if self.op == "without":
            return "compare a constant" if self.params[-1] else "cut padding off"
        return "make dense"


def derived(data: Data) -> Derived | None:
    """Return how data is computed; None if it is stored in a file or an array."""
    return data.key if isinstance(data, Coded) and isinstance(data.key, Derived) else None


def _later(op: str, tensors: Iterable[Stored], params: tuple[Any, ...], size: int) -> Coded:
    """Make data of `size` bytes that is computed when it is read, from plain sources that any process can use."""
    sources = tuple(Stored(t.name, t.dtype, t.shape, t.parts) for t in tensors)
    url = next((p.data.url for t in sources for p in t.parts if not isinstance(p.data, Held)), "")
    return Coded(__name__, url, Derived(op, sources, params), size)


def _now_or_later(op: str, tensors: Sequence[Stored], *params: Any) -> Data:
    """Make data as large as the first source: computed when it is read, or at once if a source is in memory."""
    made = _later(op, tensors, params, tensors[0].nbytes)
    if not any(isinstance(p.data, Held) for t in tensors for p in t.parts):
        return made
    return Held.of(b"".join(piece.tobytes() for piece in decode(made)))


def decode(data: Coded) -> Iterator[Array]:
    """Yield the bytes of computed data."""
    made: Derived = data.key
    with Sources(SPOOL) as sources:
        yield from OPERATIONS[made.op](made.sources, sources, *made.params)
        sources.refuse_changed()


# --- copies -------------------------------------------------------------------------------------------------------


def compared(copies: Sequence[Stored]) -> Data:
    """Return the bytes of the first copy, in C order. All have one shape and dtype, and different names."""
    return _now_or_later("compared", copies)


def _compared(copies: Sequence[Stored], sources: Sources) -> Iterator[Array]:
    import numpy as np

    first, at = copies[0], 0
    odd: dict[str, int] = {}  # by the copy that differs: the first element
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


def summed(terms: Sequence[Stored]) -> Data:
    """Add tensors of one shape and one float dtype from left to right; the bytes are in C order."""
    return _now_or_later("summed", terms)


def _summed(terms: Sequence[Stored], sources: Sources) -> Iterator[Array]:
    import numpy as np

    for views in zip(*(windows(t, sources, CHUNK) for t in terms), strict=True):
        with np.errstate(all="ignore"):
            yield reduce(np.add, [v.view(terms[0].dtype.dtype) for v in views]).view("u1")


# --- padding ------------------------------------------------------------------------------------------------------


def constant(element: Any, kind: DType, shape: tuple[int, ...]) -> Part:
    """Make a part that repeats one element of this dtype."""
    return Part(Held(element), kind, shape, 0, (0,) * len(shape), 0, c_strides(shape))


def is_constant(part: Part) -> bool:
    return isinstance(part.data, Held) and bool(part.shape) and not any(part.strides)


def without(
    kept: Stored, padding: Stored, value: float, *, axis: int = 0, start: int = 0, filled: bool = False
) -> Data:
    """Return the bytes of `kept`, in C order; reading raises ConversionError if `padding` is not `value` everywhere.

    axis, start: where the padding begins in its tensor, for the message. filled: it is a tensor of its own that the
    rule had filled in.
    """
    return _now_or_later("without", (kept, padding), value, axis, start, filled)


def _without(
    both: Sequence[Stored], sources: Sources, value: float, axis: int, start: int, filled: bool
) -> Iterator[Array]:
    import numpy as np

    from .cast import element

    kept, padding = both
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
            found = elements[odd[0]].view(padding.dtype.dtype)[0]
            raise ConversionError(
                f"{printable(padding.name)}: {what}: at {index} it is {found}, not {value:g}; {way} all the same"
            )
        at += len(elements)
    yield from windows(kept, sources, CHUNK)


# --- dense tensors of sparse and quantised ones ---------------------------------------------------------------------
#
# {"": q, "scale": s, "zero_point": z}                  (q - z) * s; per channel if there is an axis
# {"": q, "scale": s}                                   q / s, as Keras does
# {"indices": i, "values": v}                           sums of the values of each index, 0 elsewhere
# {"crow_indices": r, "col_indices": c, "values": v}    the same, compressed by rows, or by columns (ccol, row)
#
# A file can claim any shape, so the dense elements are never all in memory. Indices and values are, up to `MOST` of
# them. Values of one index keep their order, since sums of floats depend on it. Results equal torch's, bit for bit.

WINDOW = 2**16  # elements that are read at once
BLOCK = 2**18  # elements that are computed at once
MOST = 2**23  # indices and values of a sparse tensor
Pieces = Mapping[str, Stored]


def dense(name: str, shape: tuple[int, ...], kind: DType, pieces: Pieces, axis: int | None = None) -> Data:
    """Return the elements of a sparse or quantised tensor; CorruptCheckpoint if its pieces do not fit together.

    axis: the axis of the channels, if each has its own scale.
    """
    _check(name, shape, pieces, axis)
    return _later(
        "dense", (replace(t, name=part) for part, t in pieces.items()), (name, shape, axis), prod(shape) * kind.itemsize
    )


def _check(name: str, shape: tuple[int, ...], pieces: Pieces, axis: int | None) -> None:
    """Raise CorruptCheckpoint if the pieces do not fit together."""
    if "" in pieces:
        if "zero_point" not in pieces:
            return
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
    """Say why (axes, n) indices and (n, ...) values do not fit; '' if they do."""
    indices, values = pieces["indices"].shape, pieces["values"].shape
    if len(indices) != 2 or indices[0] > len(shape):
        return f"negative or too many indices {list(indices)}"
    return "" if values == (indices[1], *shape[indices[0] :]) else f"values of shape {list(values)}"


def _odd_blocks(shape: tuple[int, ...], pieces: Pieces) -> str:
    """Say why compressed indices and n values, or n blocks of values, do not fit; '' if they do."""
    outer, inner, values = (t.shape for t in pieces.values())
    if len(outer) != 1 or len(inner) != 1 or len(values) not in (1, 3) or len(shape) != 2:
        return "batches of compressed sparse tensors are not computed"
    height, width = values[1:] or (1, 1)
    if not height or not width or shape[0] % height or shape[1] % width:
        return f"blocks of {height} x {width} do not divide it"
    majors = shape[0] // height if "crow_indices" in pieces else shape[1] // width
    return "" if outer == (majors + 1,) and inner == values[:1] else f"{list(outer)} and {list(inner)} indices"


def _dense(
    tensors: Sequence[Stored], sources: Sources, name: str, shape: tuple[int, ...], axis: int | None
) -> Iterator[Array]:
    """Yield the dense elements in order; ConversionError if a sparse tensor has too many values to be held."""
    pieces = {t.name: t for t in tensors}
    q = pieces.pop("", None)
    count = sum(t.count for t in pieces.values())
    if count > MOST:
        text = f"is not computed: it has {count:,} indices, values or scales, more than {MOST:,}"
        raise ConversionError(f"{text}; save its to_dense() or dequantize()", tensor=name)
    held = {part: read_array(t, sources) for part, t in pieces.items()}
    yield from _dequantised(q, held, axis, sources) if q else _summed_up(name, shape, held, pieces["values"])


def _dequantised(q: Stored, held: Mapping[str, Array], axis: int | None, sources: Sources) -> Iterator[Array]:
    import numpy as np

    scale, zero = (held[part].reshape(-1) for part in ("scale", "zero_point" if len(held) > 1 else "scale"))
    kind = np.float32 if zero.dtype.kind == "f" else np.float64  # as torch subtracts
    wide = np.float32 if axis is None else kind  # with integer zeros, scales of channels are doubles, one is a float
    inner = prod(q.shape[axis + 1 :]) if axis is not None else 1
    lo = 0
    for view in windows(q, sources, WINDOW * q.dtype.itemsize):
        values = view.view(q.dtype.dtype)
        channel = np.arange(lo, lo + len(values)) // inner % len(scale)
        with np.errstate(all="ignore"):
            if "zero_point" in held:
                made = (values.astype(kind) - zero[channel].astype(kind)).astype(wide) * scale[channel].astype(wide)
            else:
                made = values.astype(np.float32) / scale[channel].astype(np.float32)
            yield made.astype(np.float32)
        lo += len(values)


def _summed_up(name: str, shape: tuple[int, ...], held: Mapping[str, Array], values: Stored) -> Iterator[Array]:
    """Add up the values of each index, block by block."""
    import numpy as np

    from .cast import HALVES

    try:
        at = _places(shape, held)
    except ValueError as e:
        raise CorruptCheckpoint(f"its sparse indices do not fit its shape {list(shape)}: {e}", tensor=name) from None
    # torch adds blocks of half floats as float32, but not single values
    blocks = "indices" not in held and len(values.shape) == 3 and values.dtype.name in HALVES
    wide = DTYPES["float32"].dtype if blocks else values.dtype.dtype
    order = np.argsort(at, kind="stable")
    at, elements, size = at[order], held["values"].reshape(-1)[order], prod(shape)
    for lo in range(0, size, BLOCK):
        first, last = np.searchsorted(at, (lo, lo + BLOCK))
        out = np.zeros(min(BLOCK, size - lo), wide)
        with np.errstate(all="ignore"):
            np.add.at(out, at[first:last] - lo, elements[first:last])
            yield out.astype(values.dtype.dtype, copy=False).view("u1")


def _places(shape: tuple[int, ...], held: Mapping[str, Array]) -> Array:
    """Return the flat index of each value; ValueError says what is out of bounds.

    Each column of indices places one value or several: a block, or all values along the axes without indices.
    """
    import numpy as np

    values = held["values"]
    if "indices" in held:
        indices, each = held["indices"].astype(np.int64), values.shape[1:]
        sizes, strides = shape[: len(indices)], c_strides(shape)[: len(indices)]
        inside = np.arange(prod(each))
    else:
        height, width = values.shape[1:] or (1, 1)
        indices = _expanded(held)
        sizes, strides = (shape[0] // height, shape[1] // width), (height * shape[1], width)
        inside = (np.arange(height).reshape(-1, 1) * shape[1] + np.arange(width)).reshape(-1)
    if (indices < 0).any():
        raise ValueError("negative or too many indices")
    for axis, size in enumerate(sizes):
        for beyond in indices[axis][indices[axis] >= size]:
            raise ValueError(f"index {beyond} is out of bounds for axis {axis} of size {size}")
    at: Array = (np.array(strides, np.int64) @ indices).reshape(-1, 1) + inside
    return at.reshape(-1)


def _expanded(held: Mapping[str, Array]) -> Array:
    """Expand indices that are compressed by rows or columns into rows and columns, (2, n)."""
    import numpy as np

    by_row = "crow_indices" in held
    starts = held["crow_indices" if by_row else "ccol_indices"].astype(np.int64)
    minor = held["col_indices" if by_row else "row_indices"].astype(np.int64)
    if starts[0] or (np.diff(starts) < 0).any() or starts[-1] != len(minor):
        raise ValueError("the compressed indices do not rise from 0 to the number of values")
    major = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.stack((major, minor) if by_row else (minor, major))


OPERATIONS: dict[str, Callable[..., Iterator[Array]]] = {
    "compared": _compared,
    "summed": _summed,
    "without": _without,
    "dense": _dense,
}
