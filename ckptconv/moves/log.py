"""The report of a job: ranges written (checksum, digests), ranges of checked spans read, and losses of casts.

Log(check, digest)      filled as blocks are read and written; a range next to the last entry extends that entry
Written, Read, Loss     its entries: plain data, so that they can come from another process
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from ..storage import checksum
from .part import Span

CHUNK = 4 * 2**20  # bytes; content digests are defined over chunks of this size
HASH = "xxh3"  # the kind of check of a span that holds a whole tensor with a content hash: see part.Span


class Loss(NamedTuple):
    """The losses of a cast: finite values that became infinite or NaN, and non-zero values that became zero."""

    overflow: int = 0
    underflow: int = 0

    def plus(self, other: Loss) -> Loss:
        return Loss(self.overflow + other.overflow, self.underflow + other.underflow)


class Written(NamedTuple):
    """Bytes [start, start+size) of a tensor that were written: their checksum and the digests of their chunks."""

    tensor: str
    start: int
    size: int
    crc: int
    digests: tuple[bytes, ...]


class Read(NamedTuple):
    """A contiguous range of a checked span that was read: its place, length, and checksum or chunk digests."""

    span: Span
    start: int
    size: int
    crc: int
    digests: tuple[bytes, ...] = ()


@cache
def _xxh3() -> Any:
    from xxhash import xxh3_128

    return xxh3_128


class Digester:
    """Compute the digests of the chunks of consecutive views."""

    _chunk: Any = None

    def more(self, digests: tuple[bytes, ...], start: int, view: memoryview) -> tuple[bytes, ...]:
        """The digests including this view; the digest of an incomplete chunk is replaced when the chunk continues."""
        at, size = 0, len(view)
        while at < size:
            if start % CHUNK and digests:
                digests = digests[:-1]
            else:
                self._chunk = _xxh3()()
            block = view[at : at + CHUNK - start % CHUNK]
            self._chunk.update(block)
            digests, start, at = (*digests, self._chunk.digest()), start + len(block), at + len(block)
        return digests


@dataclass
class Log:
    """The report of one job; `check` is the kind of checksum that the target needs, or ''.

    A range next to the last entry extends it, so that a piece written in blocks is one entry.
    """

    check: str = ""
    digest: bool = False
    written: list[Written] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    loss: dict[str, Loss] = field(default_factory=dict)
    _write: Digester = field(default_factory=Digester)
    _read: Digester = field(default_factory=Digester)

    def wrote(self, tensor: str, start: int, view: memoryview) -> None:
        last = self.written[-1] if self.written else None
        if last is not None and last.tensor == tensor and last.start + last.size == start:
            _, first, size, crc, digests = self.written.pop()
        else:
            first, size, crc, digests = start, 0, 0, ()
        if self.check:
            crc = checksum.crc(self.check, view, crc)
        if self.digest:
            digests = self._write.more(digests, start, view)
        self.written.append(Written(tensor, first, size + len(view), crc, digests))

    def was_read(self, span: Span, start: int, view: memoryview) -> None:
        kind = span.check.partition(":")[0]
        last = self.read[-1] if self.read else None
        if last is not None and last.span is span and last.start + last.size == start:
            _, first, size, crc, digests = self.read.pop()
        else:
            first, size, crc, digests = start, 0, 0, ()
        if kind != HASH:
            crc = checksum.crc(kind, view, crc)
        elif first % CHUNK == 0:
            digests = self._read.more(digests, start, view)
        self.read.append(Read(span, first, size + len(view), crc, digests))

    def lost(self, tensor: str, loss: Loss) -> None:
        if any(loss):
            self.loss[tensor] = self.loss.get(tensor, Loss()).plus(loss)


def chunk_digests(view: memoryview) -> tuple[bytes, ...]:
    """XXH3 (16 bytes) of every `CHUNK` bytes; the view starts at a multiple of it."""
    from xxhash import xxh3_128_digest

    return tuple(xxh3_128_digest(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))
