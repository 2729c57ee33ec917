"""Read pieces of tensors into memory: adjacent copies in one read, strided boxes slab by slab."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConversionError, CorruptCheckpoint
from ..storage.files import is_remote
from ..storage.remote import MAX_REQUEST, RemoteFile
from .boxes import clip, is_contiguous, reach, slabs
from .log import Log, Record
from .part import Coded, Data, Held, Part, Piece, Span, Stored, c_strides
from .sources import Decoded, Sources, decode

if TYPE_CHECKING:
    from .copy import Array

WINDOW = 8 * 2**20  # bytes of a copy that a worker holds
MAX_SPREAD = 4  # read a strided box by its extent if the extent is at most this many times larger


class _Buffers(threading.local):
    """Buffers reused per thread, because the first access to new pages costs as much as copying into them."""

    target = memoryview(b"")
    source = memoryview(b"")

    def of(self, which: str, size: int) -> memoryview:
        buffer: memoryview = getattr(self, which)
        if len(buffer) < size:
            buffer = memoryview(bytearray(size))
            setattr(self, which, buffer)
        return buffer[:size]


buffers = _Buffers()


# --- copies -----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A plain copy: `size` bytes of a file at `start` to byte `at` of the job."""

    span: Span
    start: int
    at: int
    size: int


def sole_run(piece: Piece) -> Run | None:
    """The run of a file that fills the piece, if a single run does."""
    runs = [_as_run(p, piece) for part in piece.parts for p in clip(part, piece.lo, piece.hi)]
    return runs[0] if len(runs) == 1 else None


def _as_run(part: Part, piece: Piece) -> Run | None:
    """The plain copy that is equivalent to a part, or None if elements move or change."""
    span = part.data
    if part.changes(piece.to) or not isinstance(span, Span) or not is_contiguous(part):
        return None
    item, count = piece.to.itemsize, prod(part.shape)
    _inside(part, count, span, piece.tensor)
    return Run(span, span.start + part.offset * item, piece.at + (part.start - piece.lo) * item, count * item)


def _inside(part: Part, reach: int, span: Span, tensor: str) -> None:
    """Check again that a view is within its storage; readers have already validated it."""
    if part.offset < 0 or (part.offset + reach) * part.dtype.itemsize > span.size:
        raise CorruptCheckpoint("a view reaches past its storage", url=span.url, tensor=tensor)


# --- filling a buffer -------------------------------------------------------------------------------------------


def fill(pieces: Sequence[Piece], sources: Sources, target: memoryview, base: int, window: int, log: Log) -> None:
    """Read all pieces into the target, which begins at byte `base` of the job; adjacent copies are read at once."""
    pending, end = list[Run](), base
    for piece in pieces:
        at = piece.at
        if at > end:
            target[end - base : at - base] = bytes(at - end)
        end = at + piece.size
        for whole in piece.parts:
            for part in clip(whole, piece.lo, piece.hi):
                run = _as_run(part, piece)
                if run is None:
                    _move(part, piece, sources, target[at - base : end - base], window, log)
                    continue
                if pending and not _adjoins(pending[-1], run):
                    _read(pending, sources, target, base, log)
                pending.append(run)
    _read(pending, sources, target, base, log)


def _adjoins(a: Run, b: Run) -> bool:
    """Whether b follows a both in the file and in the target."""
    return a.span.url == b.span.url and b.start - a.start == b.at - a.at == a.size


def _read(runs: list[Run], sources: Sources, target: memoryview, base: int, log: Log) -> None:
    """Read adjacent runs at once, log each for its check, and clear the list."""
    if runs:
        first, last = runs[0], runs[-1]
        sources.reader(first.span.url).into(first.start, target[first.at - base : last.at + last.size - base])
        for run in runs:
            if run.span.check:
                view = target[run.at - base : run.at - base + run.size]
                log.was_read(run.span, run.start - run.span.start, view)
        runs.clear()


def _move(part: Part, piece: Piece, sources: Sources, target: memoryview, window: int, log: Log) -> None:
    """Move a part with strides, operations or a cast: read, transform and scatter it slab by slab."""
    from .copy import copy, strided

    if isinstance(part.data, Coded):
        with Decoded((part,), sources) as decoded:
            for ready in decoded.between(part.start, part.start + 1):
                _move(ready, piece, sources, target, window, log)
        return
    changes = part.changes(piece.to)
    # A transposed slab writes runs of as many elements as it has rows: 512 KiB of 16 KiB rows would give runs of 32.
    # A change has temporary arrays of several times the slab.
    for slab in slabs(part, window // 4 if changes else window):
        src = _gather(slab, piece.tensor, sources, log)
        if changes:
            src = _changed(src, slab, piece, log)
        copy(strided(target, piece.to.carrier, slab.start - piece.lo, slab.shape, slab.steps), src)


def _changed(src: Array, part: Part, piece: Piece, log: Log) -> Array:
    """The elements after the part's operations and the cast."""
    from .cast import transform
    from .copy import packed

    try:
        flat, loss = transform(packed(src), part.dtype, part.ops, piece.to)
    except ConversionError as e:
        raise ConversionError(e.message, tensor=piece.tensor) from e
    log.lost(piece.tensor, loss)
    return flat.reshape(part.shape)


def _gather(part: Part, tensor: str, sources: Sources, log: Log) -> Array:
    """The box as a view of bytes that are read for it."""
    from .copy import flat, strided

    item, carrier, data = part.dtype.itemsize, part.dtype.carrier, part.data
    if isinstance(data, Held):
        return strided(flat(data.array), carrier, part.offset, part.shape, part.strides)
    if not isinstance(data, Span):
        raise TypeError("decoded data must be resolved before it is gathered")
    extent, count, reader = reach(part.shape, part.strides), prod(part.shape), sources.reader(data.url)
    _inside(part, extent, data, tensor)
    if extent <= max(MAX_SPREAD * count, 65536 // item):
        raw = buffers.of("source", extent * item)
        reader.into(data.start + part.offset * item, raw)
        if data.check and extent == count:
            log.was_read(data, part.offset * item, raw)
        return strided(raw, carrier, 0, part.shape, part.strides)
    order = sorted(range(len(part.shape)), key=lambda i: -part.strides[i])
    packed = dict(zip(order, c_strides([part.shape[i] for i in order]), strict=True))
    raw, size, at = buffers.of("source", count * item), item, 0
    while order and (part.shape[order[-1]] == 1 or part.strides[order[-1]] * item == size):
        size *= part.shape[order.pop()]
    for start in _starts(part, order):  # often a million, which are not held
        reader.into(data.start + start * item, raw[at : at + size])
        at += size
    return strided(raw, carrier, 0, part.shape, [packed[i] for i in range(len(packed))])


def _starts(part: Part, axes: Sequence[int]) -> Iterator[int]:
    """Where each run begins in the source: one for each index of some axes, the last of which changes first."""
    if not axes:
        yield part.offset
        return
    step, indices = part.strides[axes[-1]], range(part.shape[axes[-1]])
    for start in _starts(part, axes[:-1]):
        for i in indices:
            yield start + i * step


# --- reading into memory ----------------------------------------------------------------------------------------


def read_pieces(pieces: Sequence[Piece], target: memoryview, sources: Sources) -> list[Record]:
    """Read pieces of a tensor into bytes; return the checked ranges that were read."""
    log = Log()
    with fetched(pieces, sources):
        fill(pieces, sources, target, 0, WINDOW, log)
    return log.read


def read_strings(t: Stored) -> Array:
    """Read a string tensor as an object array of bytes."""
    import numpy as np

    flat = np.empty(t.count, object)
    for part in t.parts:
        end = part.offset + reach(part.shape, part.strides) if prod(part.shape) else 0
        texts = _texts(part.data)
        if len(texts) < end:
            raise CorruptCheckpoint("holds fewer texts than its shape says", tensor=t.name)
        _box(flat, part.start, part.shape, part.steps)[...] = _box(texts, part.offset, part.shape, part.strides)
    return flat.reshape(t.shape)


def _box(texts: Array, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """A view of an object array, which must reach as far; `strided` is for buffers of numbers."""
    from numpy.lib.stride_tricks import as_strided

    return as_strided(texts[offset:], shape, [s * texts.itemsize for s in strides])


def _texts(data: Data) -> Array:
    """All texts of some data, since a decoder compares checksums and numbers at the end."""
    import numpy as np

    if isinstance(data, Held):
        return np.fromiter((s.encode() if isinstance(s, str) else bytes(s) for s in data.array.reshape(-1)), object)
    if not isinstance(data, Coded):
        raise TypeError("the strings of a tensor are decoded or held")
    return np.fromiter(decode(data), object)


# --- remote files -----------------------------------------------------------------------------------------------
#
# A job reads in small steps that stay in the cache; over a network every step would be a request. Ranges that are close
# together are fetched in one request, several requests at once, and held in memory while the job runs. A box that is
# spread over much more than its own size (a slice of a transposed tensor) would fetch nearly everything again for every
# job; instead, its tensor is copied once to a local file, which all jobs of this process read.

MAX_FETCHED = 2  # fetch a box by its extent if the extent is at most this many times larger
SMALL_EXTENT = 2**20  # or has at most this many bytes


@contextmanager
def fetched(pieces: Sequence[Piece], sources: Sources) -> Iterator[None]:
    """Hold the ranges of remote files that the pieces need in memory."""
    far: dict[str, tuple[RemoteFile, list[tuple[int, int]]]] = {}
    try:
        for piece in pieces:
            for url, start, size, is_spread in _extents(piece):
                if (file := sources.reader(url).remote) is None:
                    continue
                ranges = far.setdefault(url, (file, []))[1]
                if is_spread:
                    file.spool(start, size)
                elif size <= MAX_REQUEST:
                    ranges.append((start, size))
        for file, ranges in far.values():
            file.hold(ranges)
        yield
    finally:
        for file, _ in far.values():
            file.release()


def is_fetched_whole(piece: Piece) -> bool:
    """Whether a piece of a tensor reads all of a remote one."""
    return any(is_spread for _, _, _, is_spread in _extents(piece))


def _extents(piece: Piece) -> Iterator[tuple[str, int, int, bool]]:
    """(url, start, size, whether it is spread out) for each box of remote tensors: its extent, or the whole tensor."""
    for whole in piece.parts:
        span, item = whole.data, whole.dtype.itemsize
        if not isinstance(span, Span) or not is_remote(span.url):
            continue
        for part in clip(whole, piece.lo, piece.hi):
            extent = reach(part.shape, part.strides) * item
            is_spread = extent > max(MAX_FETCHED * prod(part.shape) * item, SMALL_EXTENT)
            read, size = (whole, reach(whole.shape, whole.strides) * item) if is_spread else (part, extent)
            yield span.url, span.start + read.offset * item, size, is_spread
