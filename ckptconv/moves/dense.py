"""Dense tensors of sparse and quantised ones, computed block by block whenever they are read.

{"": q, "scale": s, "zero_point": z}                  (q - z) * s; along an axis: by channels
{"indices": i, "values": v}                           0 but for values at indices, which add up
{"crow_indices": r, "col_indices": c, "values": v}    the same by rows, or by columns (ccol, row)

A shape costs nothing to claim, and the pieces may be packed small, so neither is ever held whole: values are read in
windows, and sorted by blocks through a temporary file where they are many. The order of those that meet stays, since
sums of floats depend on it. All arithmetic is torch's, to the bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import DTYPES, DType
from ..errors import CorruptCheckpoint
from ..storage.faults import spooling
from .boxes import sliced
from .decoded import Pool, whole
from .part import Stored, c_strides
from .read import check_reads, read_array, spans_of, stretches, windows
from .sources import Sources

if TYPE_CHECKING:
    from .copy import Array

WINDOW = 2**16  # values that are read at once
BLOCK = 2**18  # elements that are computed at once
WAYS = 256  # into which values are sorted at once
SPOOL = 2**23  # bytes of a packed piece that are held in memory
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
    """Yield the dense elements in order."""
    name, shape, axis = params
    pieces = {t.name: t for t in tensors}
    check_reads((), sources, spans_of({k: t for k, t in pieces.items() if k}))  # '' is checked as it is read
    held = {k: replace(t, parts=whole(t.parts, sources.mine(Pool))) for k, t in pieces.items()}
    reader = Reader(name, tuple(shape), held, sources)
    yield from _dequantised(reader, pieces[""], axis) if "" in held else _summed_up(reader)


class Reader(NamedTuple):
    """Reads ranges of the pieces of one tensor, which are decoded."""

    name: str
    shape: tuple[int, ...]
    pieces: Pieces
    sources: Sources

    def range(self, part: str, lo: int, hi: int) -> Array:
        """Elements [lo, hi) of a piece, in C order."""
        t = self.pieces[part]
        return next(stretches(t, [((lo, hi),)], self.sources)).view(t.dtype.np)

    def bad(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(
            f"its sparse indices do not fit its shape {list(self.shape)}: {what}", tensor=self.name
        )


# --- quantised ----------------------------------------------------------------------------------------------------


def _dequantised(reader: Reader, q: Stored, axis: int | None) -> Iterator[Array]:
    import numpy as np

    kind = np.float32 if reader.pieces["zero_point"].dtype.kind == "f" else np.float64  # as torch subtracts
    wide = np.float32 if axis is None else kind  # beside integers, scales of channels are doubles; one alone is a float
    lo = 0
    for view in windows(q, reader.sources, WINDOW * q.dtype.itemsize):
        values = view.view(q.dtype.np)
        scale, zero = (_of_each(reader, part, lo, lo + len(values), axis) for part in ("scale", "zero_point"))
        with np.errstate(all="ignore"):
            made = (values.astype(kind) - zero.astype(kind)).astype(wide) * scale.astype(wide)
            yield made.astype(np.float32)
        lo += len(values)


def _of_each(reader: Reader, part: str, lo: int, hi: int, axis: int | None) -> Array:
    """The scale or zero point of each of the elements [lo, hi), of which only those channels are read that occur."""
    import numpy as np

    if axis is None:
        return reader.range(part, 0, 1)
    count, inner = reader.shape[axis], prod(reader.shape[axis + 1 :])
    first, last = lo // inner, (hi - 1) // inner  # channels, counted on where the next row of them begins
    start, number = (first % count, last - first + 1) if last - first < count else (0, count)
    head = reader.range(part, start, min(count, start + number))
    found = np.concatenate([head, reader.range(part, 0, number - len(head))]) if len(head) < number else head
    out: Array = found[(np.arange(lo, hi) // inner - start) % count]
    return out


# --- sparse -------------------------------------------------------------------------------------------------------

Placed = Iterable[tuple["Array", "Array"]]  # values, and the flat index of each in what they are part of


def _summed_up(reader: Reader) -> Iterator[Array]:
    from .cast import HALVES

    values, blocks = reader.pieces["values"], "indices" not in reader.pieces
    kind = values.dtype
    # torch adds up blocks of half floats as float32, but not single ones
    wide = DTYPES["float32"] if blocks and len(values.shape) == 3 and kind.name in HALVES else kind
    placed = _blocks(reader) if blocks else _entries(reader)
    for block in _scattered(placed, prod(reader.shape), kind, wide):
        if len(block):
            yield block.view("u1")


def _scattered(placed: Placed, size: int, kind: DType, wide: DType) -> Iterator[Array]:
    """Elements [0, size) block by block: in one, or after the values are sorted by where they go."""
    import numpy as np

    if size <= BLOCK:
        out = np.zeros(size, wide.np)
        with np.errstate(all="ignore"):
            for at, values in placed:
                np.add.at(out, at, values)
            yield out.astype(kind.np, copy=False)
        return
    step = BLOCK
    while step * WAYS < size:
        step *= WAYS
    with Sorted(kind) as parts:
        for at, values in placed:
            parts.add(at, values, step)
        for i in range(-(-size // step)):
            yield from _scattered(parts.of(i), min(step, size - i * step), kind, wide)


class Sorted:
    """Values by the part of the tensor that they go to, in the order in which they came; many are on the disk."""

    def __init__(self, kind: DType) -> None:
        self.kind, self.end = kind, 0
        self.at = defaultdict[int, list[tuple[int, int]]](list)

    def __enter__(self) -> Sorted:
        from tempfile import SpooledTemporaryFile

        self.file = SpooledTemporaryFile(SPOOL, prefix="ckptconv-")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def add(self, at: Array, values: Array, step: int) -> None:
        import numpy as np

        part = at // step
        order = np.argsort(part, kind="stable")
        at, values, part = at[order] % step, values[order], part[order]
        cuts = [*np.flatnonzero(np.diff(part, prepend=-1)).tolist(), len(part)]
        for lo, hi in pairwise(cuts):
            raw = at[lo:hi].tobytes() + values[lo:hi].tobytes()
            with spooling():
                self.file.write(raw)
            self.at[int(part[lo])].append((self.end, hi - lo))
            self.end += len(raw)

    def of(self, part: int) -> Iterator[tuple[Array, Array]]:
        import numpy as np

        for start, count in self.at.pop(part, ()):
            self.file.seek(start)
            raw = np.frombuffer(self.file.read(count * (8 + self.kind.itemsize)), "u1")
            yield raw[: 8 * count].view(np.int64), raw[8 * count :].view(self.kind.np)


def _entries(reader: Reader) -> Iterator[tuple[Array, Array]]:
    """Of (axes, n) indices."""
    import numpy as np

    t, values = reader.pieces["indices"], reader.pieces["values"]
    axes, each = t.shape[0], prod(values.shape[1:])
    sizes, strides = (np.array(n[:axes], np.int64).reshape(-1, 1) for n in (reader.shape, c_strides(reader.shape)))
    for lo in range(0, values.count, step := max(1, WINDOW // max(1, axes))):
        hi = min(values.count, lo + step)
        first, last = lo // each, -(-hi // each)
        parts = sliced(t, [(0, axes), (first, last)]) or ()
        found = read_array(Stored(t.name, t.dtype, (axes, last - first), parts), reader.sources).astype(np.int64)
        if (found < 0).any():
            raise reader.bad("negative or too many indices")
        for axis, beyond in zip(*np.nonzero(found >= sizes), strict=True):
            raise reader.bad(f"index {found[axis, beyond]} is out of bounds for axis {axis} of size {sizes[axis, 0]}")
        entry, inside = np.divmod(np.arange(lo, hi), each)
        yield (found * strides).sum(axis=0)[entry - first] + inside, reader.range("values", lo, hi)


def _blocks(reader: Reader) -> Iterator[tuple[Array, Array]]:
    """Of indices by rows or by columns, of which those of many are in order."""
    import numpy as np

    by_row, values = "crow_indices" in reader.pieces, reader.pieces["values"]
    height, width = values.shape[1:] or (1, 1)
    rows, columns = reader.shape[0] // height, reader.shape[1] // width
    for first, last, major in _majors(reader, "crow_indices" if by_row else "ccol_indices"):
        minor = reader.range("col_indices" if by_row else "row_indices", first, last).astype(np.int64)
        if (minor < 0).any():
            raise reader.bad(RISING)
        for beyond in minor[minor >= (columns if by_row else rows)]:
            text = f"index {beyond} is out of bounds for axis {int(by_row)} of size {columns if by_row else rows}"
            raise reader.bad(text)
        row, column = (major, minor) if by_row else (minor, major)
        start, stop = first * height * width, last * height * width
        for lo in range(start, stop, WINDOW):
            entry, inside = np.divmod(np.arange(lo, min(stop, lo + WINDOW)), height * width)
            down, across = np.divmod(inside, width)
            at = (row[entry - first] * height + down) * reader.shape[1] + column[entry - first] * width + across
            yield at, reader.range("values", lo, lo + len(at))


RISING = "the compressed indices do not rise from 0 to the number of values"


def _majors(reader: Reader, part: str) -> Iterator[tuple[int, int, Array]]:
    """The rows, or columns, of the entries [first, last)."""
    import numpy as np

    total, count = reader.pieces["values"].shape[0], reader.pieces[part].count - 1
    reached = 0
    for lo in range(0, max(1, count), WINDOW):
        starts = reader.range(part, lo, min(count, lo + WINDOW) + 1).astype(np.int64)
        if starts[0] != reached or (np.diff(starts) < 0).any() or starts[-1] > total:
            raise reader.bad(RISING)
        reached = int(starts[-1])
        for first in range(int(starts[0]), reached, WINDOW):
            last = min(reached, first + WINDOW)
            yield first, last, lo + np.searchsorted(starts, np.arange(first, last), side="right") - 1
    if reached != total:
        raise reader.bad(RISING)
