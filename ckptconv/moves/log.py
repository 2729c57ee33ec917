"""The report of a job: ranges written (checksum, digests), ranges of checked spans read, and losses of casts.

Log(check, digest)      filled as blocks are read and written; a range next to the last entry extends that entry
Record, Loss            its entries: plain data, so that they can come from another process
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


class Record(NamedTuple):
    """A range of bytes that was written or read, its checksum, and the digests of its chunks.

    of: the name of the tensor that was written, or the span that was read.
    """

    of: Any
    start: int
    size: int
    crc: int
    digests: tuple[bytes, ...] = ()


class Digester:
    """Compute the digests of the chunks of consecutive views."""

    _chunk: Any = None

    def more(self, digests: tuple[bytes, ...], start: int, view: memoryview) -> tuple[bytes, ...]:
        """Extend the digests by a view; the digest of an incomplete chunk is replaced when the chunk continues."""
        from xxhash import xxh3_128

        at, size = 0, len(view)
        while at < size:
            if start % CHUNK and digests:
                digests = digests[:-1]
            else:
                self._chunk = xxh3_128()
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
    written: list[Record] = field(default_factory=list)
    read: list[Record] = field(default_factory=list)
    loss: dict[str, Loss] = field(default_factory=dict)
    _writing: Digester = field(default_factory=Digester)
    _reading: Digester = field(default_factory=Digester)

    def wrote(self, tensor: str, start: int, view: memoryview) -> None:
        _extend(self.written, tensor, start, view, self.check, self._writing if self.digest else None)

    def was_read(self, span: Span, start: int, view: memoryview) -> None:
        kind = span.check.partition(":")[0]
        hashed = kind == HASH
        _extend(self.read, span, start, view, "" if hashed else kind, self._reading if hashed else None)

    def lost(self, tensor: str, loss: Loss) -> None:
        if any(loss):
            self.loss[tensor] = self.loss.get(tensor, Loss()).plus(loss)


def _extend(
    records: list[Record], of: str | Span, start: int, view: memoryview, check: str, digester: Digester | None
) -> None:
    """Record some bytes. Digests are of chunks that begin at multiples of `CHUNK` in the tensor or span."""
    last = records[-1] if records else None
    if last is not None and last.of == of and last.start + last.size == start:
        _, first, size, crc, digests = records.pop()
    else:
        first, size, crc, digests = start, 0, 0, ()
    if check:
        crc = checksum.crc(check, view, crc)
    if digester and first % CHUNK == 0:
        digests = digester.more(digests, start, view)
    records.append(Record(of, first, size + len(view), crc, digests))


def chunk_digests(view: memoryview) -> tuple[bytes, ...]:
    """XXH3 (16 bytes) of every `CHUNK` bytes; the view starts at a multiple of it."""
    return Digester().more((), 0, view)
