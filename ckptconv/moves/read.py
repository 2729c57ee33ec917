"""Read tensors into memory: pieces, whole arrays, windows in bounded memory; content hashes and checksums.

Adjacent copies are one read, strided boxes are moved slab by slab.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..dtypes import DType
from ..errors import ConversionError, CorruptCheckpoint, UsageError
from ..messages import listing, printable, redacted
from ..storage import checksum
from ..storage.files import Reader, Stamp, is_remote
from ..storage.remote import MAX_REQUEST, RemoteFile
from .log import CHUNK, HASH, Log, Record, chunk_digests
from .part import Coded, Data, Held, Part, Piece, Span, Stored, c_strides, clip, is_contiguous, is_vast, reach, slabs
from .sources import Decoded, Sources, decode, is_changed

if TYPE_CHECKING:
    from .copy import Array

S = TypeVar("S")
T = TypeVar("T")

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
    """Return the run of a file that fills the piece, if it is a single one."""
    runs = [_as_run(p, piece) for part in piece.parts for p in clip(part, piece.lo, piece.hi)]
    return runs[0] if len(runs) == 1 else None


def _as_run(part: Part, piece: Piece) -> Run | None:
    """Return the plain copy that is equivalent to a part, or None if elements move or change."""
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
                if pending:
                    last = pending[-1]
                    gap = run.start - last.start - last.size or run.at - last.at - last.size
                    if gap or run.span.url != last.span.url:
                        _read(pending, sources, target, base, log)
                pending.append(run)
    _read(pending, sources, target, base, log)


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
    # A change needs temporary arrays of several times the slab.
    for slab in slabs(part, window // 4 if changes else window):
        src = _gather(slab, piece.tensor, sources, log)
        if changes:
            src = _changed(src, slab, piece, log)
        copy(strided(target, piece.to.carrier, slab.start - piece.lo, slab.shape, slab.steps), src)


def _changed(src: Array, part: Part, piece: Piece, log: Log) -> Array:
    """Apply the part's operations and the cast."""
    from .cast import transform
    from .copy import packed

    try:
        flat, loss = transform(packed(src), part.dtype, part.ops, piece.to)
    except ConversionError as e:
        raise ConversionError(e.message, tensor=piece.tensor) from e
    log.lost(piece.tensor, loss)
    return flat.reshape(part.shape)


def _gather(part: Part, tensor: str, sources: Sources, log: Log) -> Array:
    """Read the bytes of a box and return a view of its shape."""
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
    for start in _starts(part, order):  # often a million, so not a list
        reader.into(data.start + start * item, raw[at : at + size])
        at += size
    return strided(raw, carrier, 0, part.shape, [packed[i] for i in range(len(packed))])


def _starts(part: Part, axes: Sequence[int]) -> Iterator[int]:
    """Yield where each run begins in the source: one for each index of some axes, in C order."""
    if not axes:
        yield part.offset
        return
    step, indices = part.strides[axes[-1]], range(part.shape[axes[-1]])
    for start in _starts(part, axes[:-1]):
        for i in indices:
            yield start + i * step


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
    """View an object array, which must be large enough; `strided` is for buffers of numbers."""
    from numpy.lib.stride_tricks import as_strided

    return as_strided(texts[offset:], shape, [s * texts.itemsize for s in strides])


def _texts(data: Data) -> Array:
    """Decode all texts of some data, since a decoder compares checksums and counts at the end."""
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
            file.hold(())


def is_fetched_whole(piece: Piece) -> bool:
    """Tell whether a piece reads the whole stored data of a remote tensor."""
    return any(is_spread for _, _, _, is_spread in _extents(piece))


def _extents(piece: Piece) -> Iterator[tuple[str, int, int, bool]]:
    """Yield (url, start, size, is_spread) for each box of remote tensors: its extent, or the tensor if it is spread."""
    for whole in piece.parts:
        span, item = whole.data, whole.dtype.itemsize
        if not isinstance(span, Span) or not is_remote(span.url):
            continue
        for part in clip(whole, piece.lo, piece.hi):
            extent = reach(part.shape, part.strides) * item
            is_spread = extent > max(MAX_FETCHED * prod(part.shape) * item, SMALL_EXTENT)
            read, size = (whole, reach(whole.shape, whole.strides) * item) if is_spread else (part, extent)
            yield span.url, span.start + read.offset * item, size, is_spread


# --- the content hash -------------------------------------------------------------------------------------------


def spans_of(tensors: Mapping[str, Stored]) -> dict[Span, str]:
    """Map every span with a checksum to the name of a tensor that uses it."""
    parts = ((p.data, name) for name, t in tensors.items() for p in t.parts)
    return {span: name for span, name in parts if isinstance(span, Span) and span.check}


def content_hash(t: Stored, digests: Iterable[bytes]) -> str:
    """Return the hash of dtype, shape and logical bytes: the same for equal tensors in any format.

    XXH3 of 128 bits, of: 'ckptconv.tensor.1', NUL, the dtype's name, NUL, the shape as JSON without spaces, NUL, then
    the 16-byte XXH3 of each 4 MiB of the tensor's bytes (C order, little-endian).
    """
    return _hashed(_described(t), digests)


def _described(t: Stored) -> str:
    return f"{t.dtype.name}:[{','.join(map(str, t.shape))}]"


def _hashed(described: str, digests: Iterable[bytes]) -> str:
    from xxhash import xxh3_128_hexdigest

    head = f"ckptconv.tensor.1:{described}:".replace(":", "\0")
    return xxh3_128_hexdigest(head.encode() + b"".join(digests))


def hash_check(t: Stored, digits: str) -> str:
    """Return the `check` of a span that holds the complete tensor in C order; `digits` is its content hash."""
    return f"{HASH}:{digits}:{_described(t)}"


def hash_tensor(t: Stored, sources: Sources) -> str:
    """Read a tensor in bounded memory and hash it."""
    if t.dtype.kind == "s":
        return hash_array(t, read_strings(t))
    return content_hash(t, (d for window in windows(t, sources) for d in chunk_digests(memoryview(window))))


def hash_array(t: Stored, array: Array) -> str:
    """Hash a tensor that was read; a string tensor hashes each element's length and bytes."""
    if t.dtype.kind != "s":
        return content_hash(t, chunk_digests(memoryview(array.reshape(-1).view("u1"))))
    packed = bytearray()  # a join would first make an object of each
    for s in array.reshape(-1):
        packed += len(s).to_bytes(8, "little") + s
    return content_hash(t, chunk_digests(memoryview(packed)))


def windows(t: Stored, sources: Sources, size: int = 2 * CHUNK) -> Iterator[Array]:
    """Yield the tensor's bytes in order, `size` at a time, in one reused buffer; verify checksums."""
    step, reads = size // max(1, t.dtype.itemsize), list[Record]()
    yield from stretches(t, ([(lo, min(t.count, lo + step))] for lo in range(0, t.count, step)), sources, reads)
    check_reads(reads, sources, spans_of({t.name: t}))


def stretches(
    t: Stored, groups: Iterable[Sequence[tuple[int, int]]], sources: Sources, reads: list[Record] | None = None
) -> Iterator[Array]:
    """Yield the bytes of some elements: one reused array for each group of ascending ranges [lo, hi).

    Checksums and hashes, which cover all bytes, are not verified; `reads` collects the records that this needs.
    """
    import numpy as np

    buffer = np.empty(0, "u1")
    with Decoded(t.parts, sources) as decoded:
        for group in groups:
            parts, pieces, size = decoded.between(group[0][0], group[-1][1]), list[Piece](), 0
            for lo, hi in group:
                pieces.append(Piece(t.name, t.dtype, lo, hi, size, parts))
                size += pieces[-1].size
            if size > len(buffer):
                buffer = np.empty(size, "u1")
            got = read_pieces(pieces, memoryview(buffer[:size]), sources)
            if reads is not None:
                reads += got
            yield buffer[:size]


def read_array(t: Stored, sources: Sources | None = None) -> Array:
    """Read all of a tensor and verify its checksums; strings become an object array of bytes."""
    if t.dtype.kind == "s":
        return read_strings(t)
    if sources is None:
        with Sources() as own:
            return read_array(t, own)
    import numpy as np

    target = np.empty(t.nbytes, "u1")
    fill_array(t, target, sources)
    if not t.count and is_vast(t.shape):
        raise UsageError(f"NumPy cannot represent the shape {list(t.shape)}, although it is empty", tensor=t.name)
    return target.view(t.dtype.dtype).reshape(t.shape)


def fill_array(t: Stored, target: Array, sources: Sources) -> None:
    """Read a tensor into the `t.nbytes` bytes of `target`, then verify checksums; damaged bytes stay there."""
    reads = read_pieces((Piece(t.name, t.dtype, 0, t.count, 0, t.parts),), memoryview(target), sources)
    check_reads(reads, sources, spans_of({t.name: t}))


# --- checks -----------------------------------------------------------------------------------------------------


def check_reads(reads: Iterable[Record], sources: Sources, spans: Mapping[Span, str]) -> int:
    """Verify every checked span and return the number of bytes; CorruptCheckpoint lists all damaged spans.

    spans: those to verify, with the names of their tensors; missing bytes are read for it.
    """
    verified, bad = 0, dict[Span, str]()
    pieces: dict[Span, list[Record]] = {span: [] for span in spans}
    for r in reads:
        pieces.setdefault(r.of, []).append(r)
    for span, got in pieces.items():
        kind, want = span.check.split(":")[:2]
        value = _value(span, got) or sources.value(span, partial(_read_again, span))
        verified += span.size
        if value != want:
            bad[span] = f"bytes {span.start} to {span.start + span.size}: {kind} is {value}, should be {want}"
    if bad:
        first, *more = dict.fromkeys(spans.get(span) for span in bad)
        if more:  # a single name comes before the message
            bad = {span: f"{spans.get(span)}: {what}" for span, what in bad.items()}
        raise CorruptCheckpoint(_damage(bad), url=next(iter(bad)).url, tensor=None if more else first)
    return verified


def _damage(bad: Mapping[Span, str]) -> str:
    urls = {span.url for span in bad}
    where = [what if len(urls) == 1 else f"{printable(redacted(span.url))} {what}" for span, what in bad.items()]
    hashes = any(span.check.startswith(HASH) for span in bad)
    own = "checksums"
    if hashes:
        own = "hashes; verify=False accepts it, if a program changed values and kept the old hashes"
    return f"does not match the file's own {own}:\n{listing(where)}"


def _value(span: Span, records: Iterable[Record]) -> str:
    """Combine the records of a span into its hash or CRC; '' if they do not cover it."""
    tiles, at = sorted(set(records), key=attrgetter("start", "size")), 0
    for r in tiles:
        if r.start != at:
            return ""
        at += r.size
    if at != span.size:
        return ""
    kind, _, *described = span.check.split(":", 2)
    if kind != HASH:
        crc = checksum.combine_all(kind, ((r.crc, r.size) for r in tiles))
        return f"{crc:08x}" if tiles else ""
    if not tiles or any(r.start % CHUNK or len(r.digests) != -(-r.size // CHUNK) for r in tiles):
        return ""
    return _hashed(described[0], (d for r in tiles for d in r.digests))


def _read_again(span: Span, reader: Reader) -> str:
    log = Log()
    for at in range(0, span.size, CHUNK):
        log.was_read(span, at, memoryview(reader.read(span.start + at, min(CHUNK, span.size - at))))
    return _value(span, log.read or [Record(span, 0, 0, 0)])


# --- files that were opened before --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of a tensor's files when they were opened.

    stamps: the beginnings of the stamps of all files that were read. hash, of: the content hash that the file carries
    for a tensor of this dtype, shape and parts, if it is not the check of the tensor's only span.
    """

    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    hash: str = ""
    of: tuple[DType, tuple[int, ...], tuple[Part, ...]] | None = None

    def __reduce__(self) -> tuple[type[Opened], tuple[object, ...]]:
        """Pickle without stamps, which differ on another machine."""
        return Opened, ({}, self.hash, self.of)

    def hash_of(self, t: Stored) -> str:
        """Return the hash that a tensor must have; '' if there is none, or if the tensor has been changed."""
        kind, shape, parts = self.of or (None, None, None)
        return self.hash if (t.dtype, t.shape) == (kind, shape) and t.parts is parts else ""

    def read(self, t: Stored) -> Array:
        """Read all of a tensor; CorruptCheckpoint if its file was changed, or if it does not match its hash."""
        with Sources(stamps=self.stamps) as sources:
            array = read_array(t, sources)
        refuse_changed([t], self.stamps)
        if (known := self.hash_of(t)) and hash_array(t, array) != known:
            raise CorruptCheckpoint("its content does not match its hash", tensor=t.name)
        return array


def refuse_changed(tensors: Iterable[Stored], stamps: Mapping[str, Stamp]) -> None:
    """Raise CorruptCheckpoint if a file of the tensors has changed since it was opened."""
    stored = (p.data for t in tensors for p in t.parts)  # a store sends its version with each answer
    urls = {d.url for d in stored if isinstance(d, Coded) or (isinstance(d, Span) and not is_remote(d.url))}
    for url in urls & stamps.keys():
        if is_changed(url, stamps[url]):
            raise CorruptCheckpoint("changed since it was opened", url=url)


def stamps_of(opened: Iterable[Opened]) -> Mapping[str, Stamp]:
    """Collect the stamps of all files; CorruptCheckpoint if one was opened both before and after a change."""
    known: dict[str, Stamp] = {}
    for stamps in {id(o.stamps): o.stamps for o in opened}.values():
        for url, stamp in stamps.items():
            if known.setdefault(url, stamp) != stamp:
                raise CorruptCheckpoint("changed since it was opened by one of these tensors", url=url)
    return known


# --- many tensors -----------------------------------------------------------------------------------------------


def each(items: Iterable[S], do: Callable[[S, Sources], T], workers: int = 1) -> list[T]:
    """Apply `do` to all items in `workers` threads; return the results in order."""
    with Sources() as sources:
        if workers < 2:
            return [do(item, sources) for item in items]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers, thread_name_prefix="ckptconv") as pool:
            return list(pool.map(lambda item: do(item, sources), items))
