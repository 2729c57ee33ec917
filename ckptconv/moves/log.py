"""The report of a job: ranges written (checksum, digests), ranges of checked spans read, and losses of casts.

Log(check, digest)      filled as blocks are read and written; a range next to the last entry extends that entry
Written, Read, Loss     its entries: plain data, so that they can come from another process
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


class Digester:
    """Compute the digests of the chunks of consecutive views."""

    _chunk: Any = None

    def more(self, digests: tuple[bytes, ...], start: int, view: memoryview) -> tuple[bytes, ...]:
        """The digests including this view; the digest of an incomplete chunk is replaced when the chunk continues."""
        from xxhash import xxh3_128

        while view:
            if start % CHUNK and digests:
                digests = digests[:-1]
            else:
                self._chunk = xxh3_128()
            block, view = view[: CHUNK - start % CHUNK], view[CHUNK - start % CHUNK :]
            self._chunk.update(block)
            digests, start = (*digests, self._chunk.digest()), start + len(block)
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
        if last is None or last.tensor != tensor or last.start + last.size != start:
            last = Written(tensor, start, 0, 0, ())
            self.written.append(last)
        crc = checksum.crc(self.check, view, last.crc) if self.check else 0
        digests = self._write.more(last.digests, start, view) if self.digest else ()
        self.written[-1] = Written(tensor, last.start, last.size + len(view), crc, digests)

    def was_read(self, span: Span, start: int, view: memoryview) -> None:
        kind = span.check.partition(":")[0]
        last = self.read[-1] if self.read else None
        if last is None or last.span is not span or last.start + last.size != start:
            last = Read(span, start, 0, 0)
            self.read.append(last)
        size = last.size + len(view)
        if kind != HASH:
            self.read[-1] = Read(span, last.start, size, checksum.crc(kind, view, last.crc))
        else:
            digests = self._read.more(last.digests, start, view) if last.start % CHUNK == 0 else ()
            self.read[-1] = Read(span, last.start, size, 0, digests)

    def lost(self, tensor: str, loss: Loss) -> None:
        if any(loss):
            self.loss[tensor] = self.loss.get(tensor, Loss()).plus(loss)


def chunk_digests(view: memoryview) -> tuple[bytes, ...]:
    """XXH3 (16 bytes) of every `CHUNK` bytes; the view starts at a multiple of it."""
    from xxhash import xxh3_128_digest

    return tuple(xxh3_128_digest(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))


__all__ = ["Log", "Read", "Written", "chunk_digests"]
