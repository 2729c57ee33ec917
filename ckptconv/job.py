"""One job: bring pieces of tensors into a buffer and write it, in bounded memory.

    run_job(job, sources, sink, memory) -> Receipt      one range of one file
    read_array(tensor)                                  the same moves, into an array

A receipt says what was written (checksum and digests of each piece) and what was read (checksum of each contiguous
range of a checked span), so that checksums of whole spans come from combining, without a second pass over the data.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import checksum
from .errors import ConversionError, CorruptCheckpoint
from .formats import decode
from .moves import Array, Loss, clip, copy, cut, fuse, is_run, strided, transform
from .plan import CHUNK, Job, Memory, Piece
from .store import Reader
from .tensor import Coded, Held, Part, Span, Tensor, c_strides

HANDLES = 64  # open source files at a time
GATHER = 4  # read a strided box by its extent if that is at most this much larger than the box


class Written(NamedTuple):
    """Bytes [start, start+size) of a tensor as written: their checksum and the digests of their chunks."""

    tensor: str
    start: int
    size: int
    crc: int
    digests: tuple[bytes, ...]


class Read(NamedTuple):
    """One contiguous range of a checked span as read: its place in the span, length and checksum."""

    span: Span
    start: int
    size: int
    crc: int


class Receipt(NamedTuple):
    job: Job
    written: tuple[Written, ...]
    read: tuple[Read, ...]
    loss: dict[str, Loss]


class Sink(Protocol):
    """Where jobs write: `store.Output`, or what an engine's workers use in its place."""

    def write(self, name: str, start: int, data: Any) -> None: ...


class Sources:
    """Open files by url; shared by the threads of one process. `spool`: bytes to decode into memory at most."""

    def __init__(self, spool: int = 64 * 2**20) -> None:
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._retired: list[Reader] = []
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._spool = spool

    def reader(self, url: str) -> Reader:
        """The open file; CorruptCheckpoint if it was replaced since it was first opened."""
        with self._lock:
            found = self._readers.get(url)
            if found is not None:
                self._readers.move_to_end(url)
                return found
            found = self._readers[url] = Reader(url)
            if self._stamps.setdefault(url, found.stamp) != found.stamp:
                raise CorruptCheckpoint("changed while it was read", url=url)
            if len(self._readers) > HANDLES:  # another thread may still read from it: closed at the end
                self._retired.append(self._readers.popitem(last=False)[1])
            return found

    def spooled(self, coded: Coded) -> Span | Held:
        """Decode whole: into memory if it is small, else into a temporary file that has no name any more."""
        if coded.size <= self._spool:
            out = np.empty(coded.size, "u1")
            at = 0
            for piece in stream(coded):
                out[at : at + len(piece)] = np.frombuffer(piece, "u1")
                at += len(piece)
            return Held(out)
        with tempfile.NamedTemporaryFile(prefix="ckptconv-", delete=False) as f:
            try:
                for piece in stream(coded):
                    f.write(piece)
                f.flush()
                with self._lock:
                    self._readers[f.name] = Reader(f.name)
            finally:
                os.unlink(f.name)
        return Span(f.name, 0, coded.size)

    def changed(self) -> list[str]:
        """Files that are no longer what they were when they were first read."""
        out = []
        for url, stamp in self._stamps.items():
            with Reader(url) as now:
                if now.stamp != stamp:
                    out.append(url)
        return out

    def close(self) -> None:
        with self._lock:
            for reader in [*self._readers.values(), *self._retired]:
                reader.close()
            self._readers.clear()
            self._retired.clear()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stream(coded: Coded) -> Iterator[memoryview]:
    """Decoded bytes in pieces; CorruptCheckpoint unless they are exactly as many as announced."""
    left = coded.size
    for piece in decode(coded):
        view = memoryview(piece).cast("B")
        left -= len(view)
        if left < 0:
            break
        yield view
    if left:
        amount = "more" if left < 0 else "fewer"
        raise CorruptCheckpoint(f"{coded.key} decodes to {amount} than {coded.size} bytes", url=coded.url)


class _Buffers(threading.local):
    """Reused per thread: touching fresh pages costs as much as copying into them."""

    target: Array = np.empty(0, "u1")
    source: Array = np.empty(0, "u1")

    def of(self, which: str, size: int) -> Array:
        buffer: Array = getattr(self, which)
        if len(buffer) < size:
            raw = np.empty(size + 4096, "u1")
            start = -raw.ctypes.data % 4096
            buffer = raw[start : start + size]
            setattr(self, which, buffer)
        return buffer[:size]


_buffers = _Buffers()


@dataclass
class _Log:
    """What one job reports; `check` is the kind of checksum the target wants, or ''."""

    check: str = ""
    digest: bool = False
    written: list[Written] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    loss: dict[str, Loss] = field(default_factory=dict)

    def wrote(self, tensor: str, start: int, view: Array) -> None:
        crc = checksum.crc(self.check, view) if self.check else 0
        self.written.append(Written(tensor, start, len(view), crc, chunk_digests(view) if self.digest else ()))

    def was_read(self, span: Span, start: int, view: Array) -> None:
        kind = span.check.partition(":")[0]
        self.read.append(Read(span, start, len(view), checksum.crc(kind, view)))

    def lost(self, tensor: str, loss: Loss) -> None:
        if any(loss):
            old = self.loss.get(tensor, Loss())
            self.loss[tensor] = Loss(old.overflow + loss.overflow, old.underflow + loss.underflow)


def chunk_digests(view: Array) -> tuple[bytes, ...]:
    """BLAKE3 (16 bytes) of every `CHUNK` bytes; the view starts at a multiple of it."""
    from blake3 import blake3

    return tuple(blake3(memoryview(view[at : at + CHUNK])).digest(length=16) for at in range(0, len(view), CHUNK))


def run_job(
    job: Job, sources: Sources, sink: Sink, memory: Memory, *, check: str = "", digest: bool = False
) -> Receipt:
    """Fill the job's range of its file; bytes between pieces become zero."""
    log = _Log(check, digest)
    if len(job.pieces) == 1 and job.size > max(memory.window, memory.whole):
        _stream_job(job, sources, sink, memory, log)
    else:
        target = _buffers.of("target", job.size)
        end = 0
        for piece in job.pieces:
            target[end : piece.at] = 0
            end = piece.at + piece.size
        _fill(job.pieces, sources, target, memory, log)
        for piece in job.pieces:
            log.wrote(piece.tensor, piece.lo * piece.to.itemsize, target[piece.at : piece.at + piece.size])
        sink.write(job.file, job.start, target)
    return Receipt(job, tuple(log.written), tuple(log.read), log.loss)


def _stream_job(job: Job, sources: Sources, sink: Sink, memory: Memory, log: _Log) -> None:
    """One decoded tensor larger than a window: decode once, write window after window."""
    (piece,) = job.pieces
    piece = piece._replace(parts=tuple(resolved(p, sources) for p in piece.parts))
    item = piece.to.itemsize
    for lo in range(piece.lo, piece.hi, memory.window // item):
        hi = min(piece.hi, lo + memory.window // item)
        target = _buffers.of("target", (hi - lo) * item)
        _fill((piece._replace(lo=lo, hi=hi, at=0),), sources, target, memory, log)
        log.wrote(piece.tensor, lo * item, target)
        sink.write(job.file, job.start + (lo - piece.lo) * item, target)


def resolved(part: Part, sources: Sources) -> Part:
    """The part with its data decoded, if it must be."""
    return part._replace(data=sources.spooled(part.data)) if isinstance(part.data, Coded) else part


# --- filling a buffer -------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A plain copy: `size` bytes of a file at `start` to byte `at` of the target."""

    url: str
    start: int
    at: int
    size: int


def _fill(pieces: Sequence[Piece], sources: Sources, target: Array, memory: Memory, log: _Log) -> None:
    """Bring all pieces into the target; copies that adjoin on both sides are read in one go."""
    pending = _Run("", 0, 0, 0)
    checks: list[tuple[Span, int, _Run]] = []
    for piece in pieces:
        for whole in piece.parts:
            for part in clip(whole, piece.lo, piece.hi):
                run = _as_run(part, piece)
                if run is None:
                    _move(part, piece, sources, target, memory, log)
                    continue
                span = part.data
                if isinstance(span, Span) and span.check:
                    checks.append((span, run.start - span.start, run))
                if pending.url == run.url and run.start - pending.start == run.at - pending.at == pending.size:
                    pending = pending._replace(size=pending.size + run.size)
                else:
                    _read(pending, sources, target)
                    pending = run
    _read(pending, sources, target)
    for span, start, run in checks:
        log.was_read(span, start, target[run.at : run.at + run.size])


def _as_run(part: Part, piece: Piece) -> _Run | None:
    """The plain copy that a part amounts to, or None if elements move or change."""
    data = part.data
    if part.ops or not isinstance(data, Span) or part.dtype != piece.to:
        return None
    if not is_run(fuse(part.shape, part.strides, part.steps)):
        return None
    item = piece.to.itemsize
    _inside(part, prod(part.shape), data, piece.tensor)
    return _Run(
        data.url,
        data.start + part.offset * item,
        piece.at + (part.start - piece.lo) * item,
        prod(part.shape) * item,
    )


def _inside(part: Part, reach: int, span: Span, tensor: str) -> None:
    """Readers validate views; this is the second lock on the door."""
    if part.offset < 0 or (part.offset + reach) * part.dtype.itemsize > span.size:
        raise CorruptCheckpoint("a view reaches past its storage", url=span.url, tensor=tensor)


def _read(run: _Run, sources: Sources, target: Array) -> None:
    if run.size:
        sources.reader(run.url).into(run.start, memoryview(target)[run.at : run.at + run.size])


def _move(part: Part, piece: Piece, sources: Sources, target: Array, memory: Memory, log: _Log) -> None:
    """Strides, operations or a cast: read the source box, change it, scatter it into the target."""
    part = resolved(part, sources)
    changes = bool(part.ops) or part.dtype != piece.to
    for box in _affordable(part, memory.window // 2 if changes else memory.whole):
        src = _gather(box, piece.tensor, sources, log)
        if changes:
            dense = np.empty(box.shape, box.dtype.carrier)
            copy(dense, src)
            try:
                flat, loss = transform(dense.reshape(-1), box.dtype, box.ops, piece.to)
            except ConversionError as e:
                raise ConversionError(e.message, tensor=piece.tensor) from e
            log.lost(piece.tensor, loss)
            src = flat.reshape(box.shape)
        at = piece.at + (box.start - piece.lo) * piece.to.itemsize
        copy(strided(target[at:], piece.to.carrier, 0, box.shape, box.steps), src)


def _affordable(part: Part, limit: int) -> Iterator[Part]:
    """Halve a part along its longest axis until it takes at most `limit` bytes."""
    if prod(part.shape) * part.dtype.itemsize <= limit:
        yield part
        return
    axis = max(range(len(part.shape)), key=lambda i: part.shape[i])
    half = part.shape[axis] // 2
    yield from _affordable(cut(part, axis, 0, half), limit)
    yield from _affordable(cut(part, axis, half, part.shape[axis]), limit)


def _gather(part: Part, tensor: str, sources: Sources, log: _Log) -> Array:
    """The box as a view of bytes that were read for it."""
    item, carrier, data = part.dtype.itemsize, part.dtype.carrier, part.data
    if isinstance(data, Held):
        raw = np.asarray(data.array).reshape(-1).view("u1")
        return strided(raw, carrier, part.offset, part.shape, part.strides)
    if not isinstance(data, Span):
        raise TypeError("decoded data must be resolved before it is gathered")
    reach = sum((n - 1) * s for n, s in zip(part.shape, part.strides, strict=True)) + 1
    _inside(part, reach, data, tensor)
    reader, count = sources.reader(data.url), prod(part.shape)
    if reach <= max(GATHER * count, 65536 // item):
        raw = _buffers.of("source", reach * item)
        reader.into(data.start + part.offset * item, memoryview(raw))
        if data.check and part.offset == 0 and len(raw) == data.size:
            log.was_read(data, 0, raw)
        return strided(raw, carrier, 0, part.shape, part.strides)
    order = sorted(range(len(part.shape)), key=lambda i: -part.strides[i])
    packed = dict(zip(order, c_strides([part.shape[i] for i in order]), strict=True))
    raw = _buffers.of("source", count * item)
    _gather_runs(part, order, data, reader, memoryview(raw))
    return strided(raw, carrier, 0, part.shape, [packed[i] for i in range(len(order))])


def _gather_runs(part: Part, order: Sequence[int], data: Span, reader: Reader, raw: memoryview) -> None:
    """Read the box run by run into packed memory, outer source axes first."""
    if _dense(part, order):
        reader.into(data.start + part.offset * part.dtype.itemsize, raw)
        return
    axis, inner = order[0], order[1:]
    size = len(raw) // part.shape[axis]
    for i in range(part.shape[axis]):
        row = part._replace(offset=part.offset + i * part.strides[axis])
        _gather_runs(row, inner, data, reader, raw[i * size : (i + 1) * size])


def _dense(part: Part, order: Sequence[int]) -> bool:
    step = 1
    for axis in reversed(order):
        if part.shape[axis] != 1 and part.strides[axis] != step:
            return False
        step *= part.shape[axis]
    return True


# --- reading into memory ----------------------------------------------------------------------------------------


def read_into(t: Tensor, target: Array, sources: Sources, lo: int = 0, hi: int | None = None) -> list[Read]:
    """Read elements [lo, hi) of a tensor into a byte array; returns what there is to check."""
    log = _Log()
    hi = t.count if hi is None else hi
    if hi > lo:
        _fill((Piece(t.name, t.dtype, lo, hi, 0, t.parts),), sources, target, Memory.of(512 * 2**20, 1), log)
    return log.read


def read_strings(t: Tensor) -> Array:
    """Read a string tensor as an object array of bytes."""
    flat = np.empty(t.count, object)
    for part in t.parts:
        items = decode(part.data) if isinstance(part.data, Coded) else _held_strings(part)
        places = np.ndindex(*part.shape)
        for index, item in zip(places, items, strict=True):
            flat[part.start + sum(i * s for i, s in zip(index, part.steps, strict=True))] = item
    return flat.reshape(t.shape)


def _held_strings(part: Part) -> Iterator[bytes]:
    if not isinstance(part.data, Held):
        raise TypeError("the strings of a tensor are decoded or held")
    for item in np.asarray(part.data.array, object).reshape(-1):
        yield item.encode() if isinstance(item, str) else bytes(item)
