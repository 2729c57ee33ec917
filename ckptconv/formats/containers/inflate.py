"""Unpack the members of a zip (zip.py), piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import CorruptCheckpoint
from ...messages import printable
from ...storage.checksum import crc
from ...storage.ranges import Ranges
from .zip import STORED, Member


def unpack(f: Ranges, start: int, packed: int, piece: int = 2**20) -> Iterator[bytes]:
    """Inflate a deflated member in pieces of at most about `piece` bytes; the caller counts and checks them."""
    from zlib_ng import zlib_ng  # zlib, faster, and with the same messages

    inflate = zlib_ng.decompressobj(-15)
    at, end, rest = start, start + packed, b""
    try:
        while not inflate.eof:
            if not rest and at < end:
                rest = f.read(at, min(piece, end - at))
                at += len(rest)
            out = inflate.decompress(rest, piece)
            rest = inflate.unconsumed_tail
            if out:
                yield out
            elif not rest and at == end and not inflate.eof:  # zlib holds output back: only now is there no more
                raise CorruptCheckpoint("the compressed data ends too early", url=f.url)
    except zlib_ng.error as e:  # type: ignore[misc]  # its stub says that this is an exception, not a class
        raise CorruptCheckpoint(f"the compressed data is damaged: {e}", url=f.url) from None


def contents(f: Ranges, m: Member, piece: int = 2**20) -> Iterator[bytes]:
    """A member's unpacked bytes; CorruptCheckpoint if their number or CRC-32 differs from that in the directory."""
    raw = unpack(f, m.start, m.packed, piece) if m.method != STORED else _stored(f, m, piece)
    left, value = m.size, 0
    for data in raw:
        left -= len(data)
        if left < 0:
            break
        value = crc("crc32", data, value)
        yield data
    if left:
        which = "more" if left < 0 else "fewer"
        text = f"the member {printable(m.name)} inflates to {which} than the {m.size} bytes announced"
        raise CorruptCheckpoint(text, url=f.url)
    if m.crc and value != m.crc:
        raise CorruptCheckpoint(f"the CRC-32 of {printable(m.name)} is wrong: the file is damaged", url=f.url)


def _stored(f: Ranges, m: Member, piece: int) -> Iterator[bytes]:
    for at in range(0, m.size, piece):
        yield f.read(m.start + at, min(piece, m.size - at))
