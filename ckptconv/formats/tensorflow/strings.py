"""String tensors of a bundle.

    varint length ...   u32 masked CRC-32C of the lengths, each as u32 (u64 from 2^32 on)   bytes ...

The entry's CRC continues the CRC of the lengths: over the four bytes of that checksum, then over the strings. The
fixed-width integers have the file's endianness. Specification: WriteStringTensor in tensor_bundle.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Literal

from ...errors import CorruptCheckpoint
from ...moves.part import Coded
from ...storage import checksum
from ...storage.checksum import mask, unmask
from ...storage.files import Reader
from .table import read_varint, varint

BLOCK = 4096
Order = Literal["little", "big"]


def coded(url: str, start: int, size: int, count: int, crc: int, swapped: bool) -> Coded:
    """Refer to `count` strings; `crc` is the entry's, unmasked."""
    return Coded(__name__, url, f"{start}:{count}:{crc:08x}:{'big' if swapped else 'little'}", size)


def decode(piece: Coded) -> Iterator[bytes]:
    """Yield the elements; CorruptCheckpoint if a length or checksum is wrong."""
    start, count, crc, order = piece.key.split(":")
    with Reader(piece.url) as f:
        data = f.read(int(start), piece.size)
    return iter(unpack(data, int(count), int(crc, 16), "big" if order == "big" else "little", piece.url))


def unpack(data: bytes, count: int, crc: int, order: Order, url: str) -> list[bytes]:
    if not count and not data:
        return []
    lengths, at = _lengths(data, count, url)
    if (end := at + 4 + sum(lengths)) != len(data):
        raise CorruptCheckpoint(f"{count} strings take {end} bytes, {len(data)} are stored", url=url)
    running = _crc_of(lengths, order)
    if running != unmask(int.from_bytes(data[at : at + 4], order)):
        raise CorruptCheckpoint("the checksum of the strings' lengths is wrong: the file is damaged", url=url)
    if checksum.crc("crc32c", memoryview(data)[at:], running) != crc:
        raise CorruptCheckpoint("the checksum of the strings is wrong: the file is damaged", url=url)
    begins = accumulate(lengths, initial=at + 4)
    return [data[begin : begin + n] for begin, n in zip(begins, lengths, strict=False)]


def _lengths(data: bytes, count: int, url: str) -> tuple[list[int], int]:
    lengths: list[int] = []
    at = 0
    try:
        for _ in range(count):
            length, at = read_varint(data, at)
            lengths.append(length)
    except IndexError:
        raise CorruptCheckpoint(f"the lengths of {count} strings exceed their data", url=url) from None
    return lengths, at


def _crc_of(lengths: Sequence[int], order: Order) -> int:
    """CRC of the lengths as fixed-width integers, a few thousand at once: each is an object before they are joined."""
    running = 0
    for i in range(0, len(lengths), BLOCK):
        fixed = b"".join(n.to_bytes(4 if n < 1 << 32 else 8, order) for n in lengths[i : i + BLOCK])
        running = checksum.crc("crc32c", fixed, running)
    return running


def pack(items: Sequence[bytes]) -> tuple[bytes, int]:
    """Encode strings, little-endian; return the bytes and the entry's CRC, unmasked."""
    lengths = [len(i) for i in items]
    running = _crc_of(lengths, "little")
    tail = mask(running).to_bytes(4, "little") + b"".join(items)
    return b"".join(varint(n) for n in lengths) + tail, checksum.crc("crc32c", tail, running)
