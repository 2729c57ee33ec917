"""Run one job: read pieces of tensors into a buffer and write it, in bounded memory.

    run_job(job, sources, sink, memory) -> Receipt      one range of one file

A copy goes through a buffer of `BLOCK` bytes: what was read is still in the core's own cache when it is checked and
written. The receipt has the checksums of what was read and written, so that those of whole spans come from combining,
without a second pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..moves.boxes import is_contiguous
from ..moves.gather import (
    Run,
    buffers,
    fill,
    sole_run,
)
from ..moves.log import Log, Loss, Read, Written
from ..moves.part import Coded, Piece
from ..moves.sources import Decoded, Sources, stream
from ..storage.files import is_remote
from .plan import Budget, Job

BLOCK = 256 * 2**10  # through 8 MiB instead, reading, checking and writing take twice the time
PAGE = 4096  # of the page cache; at multiples of BLOCK the kernel takes larger pages, which may not be at hand
REMOTE = 8 * 2**20  # of a remote file: a request costs more than a cache miss


class Receipt(NamedTuple):
    """What a job did: plain data, so that it can come from another process."""

    job: Job
    written: tuple[Written, ...]
    read: tuple[Read, ...]
    loss: dict[str, Loss]


class Sink(Protocol):
    """Where jobs write: `output.Output`, or what an engine's workers use in its place."""

    def write(self, name: str, start: int, data: Any) -> None: ...

    def paths(self) -> dict[str, str]: ...

    def close(self) -> None: ...


def run_job(
    job: Job, sources: Sources, sink: Sink, memory: Budget, *, check: str = "", digest: bool = False
) -> Receipt:
    """Fill the job's range of its file; bytes between pieces stay what they are in a new file, zero."""
    log = Log(check, digest)
    if coded := _sole_stream(job.pieces):
        at = 0
        for view in stream(coded):
            _write(job.pieces[0], at, view, job, sink, log)
            at += len(view)
    else:
        alone = len(job.pieces) == 1  # else all are small, and decoded one by one
        with Decoded(job.pieces[0].parts if alone else (), sources) as decoded:
            for turn in _turns(job.pieces, memory):
                if alone:
                    turn = [turn[0]._replace(parts=decoded.between(turn[0].lo, turn[0].hi))]
                _do(turn, job, sources, sink, memory, log)
    return Receipt(job, tuple(log.written), tuple(log.read), log.loss)


def _write(piece: Piece, at: int, view: memoryview, job: Job, sink: Sink, log: Log) -> None:
    """Checksum and write some bytes of a piece, which begin `at` bytes after its first."""
    log.wrote(piece.tensor, piece.lo * piece.to.itemsize + at, view)
    sink.write(job.file, job.start + piece.at + at, view)


def _do(turn: Sequence[Piece], job: Job, sources: Sources, sink: Sink, memory: Budget, log: Log) -> None:
    """Write what one buffer holds."""
    first, last = turn[0], turn[-1]
    run = sole_run(first) if len(turn) == 1 and first.size > BLOCK else None
    if run is not None:
        _copy(run, first, job, sources, sink, log)
        return
    target = buffers.of("target", last.at + last.size - first.at)
    fill(turn, sources, target, first.at, memory.window, log)
    _put(turn, target, job, sink, log)


def _turns(pieces: Sequence[Piece], memory: Budget) -> Iterator[Sequence[Piece]]:
    """Divide a job into what one buffer holds: small neighbours together, a large piece alone, perhaps in windows."""
    block, together = min(BLOCK, memory.window), list[Piece]()
    for piece in pieces:
        size = piece.size
        if together and piece.at + size - together[0].at > block:
            yield together
            together = []
        if size <= block:
            together.append(piece)
            continue
        item = piece.to.itemsize
        step = _window(piece, block, memory) // item
        for lo in range(piece.lo, piece.hi, step):
            hi = min(piece.hi, lo + step)
            yield [piece._replace(lo=lo, hi=hi, at=piece.at + (lo - piece.lo) * item)]
    if together:
        yield together


def _window(piece: Piece, block: int, memory: Budget) -> int:
    """Bytes of a large piece to process at once: all of them, if sequential reads deliver them in order."""
    if sole_run(piece):
        return piece.size
    return block if all(map(is_contiguous, piece.parts)) else max(memory.window, memory.whole)


# --- copies -----------------------------------------------------------------------------------------------------


def _copy(run: Run, piece: Piece, job: Job, sources: Sources, sink: Sink, log: Log) -> None:
    """Copy one long run, block by block."""
    reader = sources.reader(run.span.url)
    block = REMOTE if is_remote(run.span.url) else BLOCK
    buffer = buffers.of("target", min(block, run.size))
    for at, size in _blocks(job.start + run.at, run.size, block):
        view = buffer[:size]
        reader.into(run.start + at, view)
        if run.span.check:
            log.was_read(run.span, run.start - run.span.start + at, view)
        _write(piece, at, view, job, sink, log)


def _sole_stream(pieces: Sequence[Piece]) -> Coded | None:
    """What to decode if that, whole and in order, is the only piece of a job."""
    if len(pieces) != 1 or len(pieces[0].parts) != 1:
        return None
    (piece,), (part,) = pieces, pieces[0].parts
    same = not part.changes(piece.to) and is_contiguous(part) and part.start == piece.lo
    return part.data if isinstance(part.data, Coded) and same and part.data.size == piece.size else None


def _blocks(start: int, size: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a range of a file where pages begin; (place in the range, size) of each piece, at most `block` bytes.

    A page that two writes share is looked up and locked twice, and such writes take a sixth longer.
    """
    at = 0
    while at < size:
        step = min(block - (start + at) % PAGE, size - at)
        yield at, step
        at += step


# --- filling a buffer -------------------------------------------------------------------------------------------


def _put(turn: Sequence[Piece], target: memoryview, job: Job, sink: Sink, log: Log) -> None:
    """Checksum and write the buffer: a large piece block by block, again to stay in the cache."""
    base = turn[0].at
    if len(target) <= BLOCK:
        for piece in turn:
            at = piece.at - base
            log.wrote(piece.tensor, piece.lo * piece.to.itemsize, target[at : at + piece.size])
        sink.write(job.file, job.start + base, target)
        return
    for piece in turn:
        for at, size in _blocks(job.start + piece.at, piece.size, BLOCK):
            view = target[piece.at - base + at :][:size]
            _write(piece, at, view, job, sink, log)
