"""Dense tensors of sparse and quantised ones, computed block by block whenever they are read.

{"": q, "scale": s, "zero_point": z}                  (q - z) * s; along an axis: by channels
{"indices": i, "values": v}                           0 but for values at indices, which add up
{"crow_indices": r, "col_indices": c, "values": v}    the same by rows, or by columns (ccol, row)

A shape costs nothing to claim, so the dense elements are never held whole. Indices and values are, up to `MOST` of
them. Values of one index keep their order, since sums of floats depend on it. All arithmetic is torch's, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..errors import ConversionError, CorruptCheckpoint
from .part import Stored, c_strides
from .read import read_array, windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array

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
