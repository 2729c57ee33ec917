"""Decompress the chunks of zarr and the nodes of OCDBT: zstd, gzip, zlib, blosc, and checksums around them.

    unpack(codecs, f, start, size, announced)      a chunk in pieces; codecs are in the order of compression

The announced size bounds the output. Up to `IN_MEMORY` bytes are unpacked in memory; a larger zstd chunk goes through
temporary files, because the library streams only from file to file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...storage.checksum import crc
from ...storage.faults import spooling
from ...storage.ranges import InMemory, Ranges
from . import blosc

PIECE = 2**20
IN_MEMORY = 2**25
# The highest compression ratio that each format allows: a block of zstd repeats one byte 2^17 times.
RATIOS = {"zstd": 2**15, "blosc": 2**15, "gzip": 1032, "zlib": 1032, "crc32c": 1}  # blosc may contain zstd
SMALLEST = 16  # a large frame's blocks of 2^17 bytes can be smaller, yet on average not by more than this


def ratio(codecs: Sequence[str]) -> int:
    """The highest ratio of unpacked to stored bytes."""
    return max((RATIOS[c] for c in codecs), default=1)


def unpack(codecs: Sequence[str], f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack `size` bytes at `start` in pieces; CorruptCheckpoint unless they give `announced` bytes."""
    last = codecs[-1] if codecs else ""
    if last == "crc32c":
        check(f, start, size)
        yield from unpack(codecs[:-1], f, start, size - 4, announced)
    elif last == "blosc":
        yield from blosc.pieces(f, start, size, announced)
    elif len(codecs) == 1 and last != "zstd":
        yield from _inflate(f, start, size, announced)
    elif len(codecs) == 1 and max(size, announced) > IN_MEMORY:
        yield from _streamed(f, start, size, announced)
    else:
        yield unpacked(codecs, f.read(start, size), announced, f.url)


def unpacked(codecs: Sequence[str], raw: bytes, most: int, url: str) -> bytes:
    """Unpack in memory; CorruptCheckpoint if the result exceeds `most` bytes."""
    for i, codec in reversed(list(enumerate(codecs))):
        limit = most if i == 0 else min(most + 2**16, RATIOS[codec] * len(raw))
        if codec == "zstd":
            raw = _zstd(raw, limit, url)
        elif codec == "crc32c":
            check(InMemory(url, raw), 0, len(raw))
            raw = raw[:-4]
        elif codec == "blosc":
            raw = b"".join(blosc.pieces(InMemory(url, raw), 0, len(raw), limit))
        else:
            raw = b"".join(_inflated(iter([raw]), limit, url))
    return raw


def check(f: Ranges, start: int, size: int) -> None:
    """Compare the CRC-32C at the end of a range with that of the bytes before it."""
    if size < 4:
        raise CorruptCheckpoint(f"{size} bytes at byte {start} hold no checksum", url=f.url)
    value, end = 0, start + size - 4
    for at in range(start, end, PIECE):
        value = crc("crc32c", f.read(at, min(PIECE, end - at)), value)
    if value != int.from_bytes(f.read(end, 4), "little"):
        raise CorruptCheckpoint(f"the checksum of the bytes {start} to {end} is wrong: the file is damaged", url=f.url)


# --- gzip and zlib ----------------------------------------------------------------------------------------------


def _inflate(f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    pieces = (f.read(at, min(PIECE, start + size - at)) for at in range(start, start + size, PIECE))
    return _inflated(pieces, announced, f.url)


def _inflated(pieces: Iterator[bytes], most: int, url: str) -> Iterator[bytes]:
    """Inflate one member of gzip or zlib, which must end at the end of the input."""
    from zlib_ng import zlib_ng

    inflate, left = zlib_ng.decompressobj(47), most
    try:
        for piece in pieces:
            rest = piece
            while rest and not inflate.eof:
                out = inflate.decompress(rest, PIECE)
                rest, left = inflate.unconsumed_tail, left - len(out)
                if left < 0:
                    raise CorruptCheckpoint(f"inflates to more than {most} bytes", url=url)
                yield out
            if inflate.eof and (inflate.unused_data or rest):
                raise CorruptCheckpoint("bytes follow the end of the compressed data", url=url)
        out = b"" if inflate.eof else inflate.flush()
    except zlib_ng.error as e:  # type: ignore[misc]  # as in containers/inflate.py
        raise CorruptCheckpoint(f"the compressed data is damaged: {e}", url=url) from None
    if not inflate.eof or len(out) > left:
        raise CorruptCheckpoint("the compressed data ends too early, or holds more than announced", url=url)
    yield out


# --- zstd -------------------------------------------------------------------------------------------------------


def _zstd(raw: bytes, most: int, url: str) -> bytes:
    import cramjam

    out = bytearray(min(most, RATIOS["zstd"] * len(raw)))
    try:
        used = cramjam.zstd.decompress_into(raw, out)
    except (cramjam.DecompressionError, OSError, ValueError) as e:
        raise CorruptCheckpoint(f"does not unpack from zstd to at most {most} bytes: {e}", url=url) from None
    return bytes(memoryview(out)[:used])


def _streamed(f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack one large frame between two temporary files."""
    import cramjam

    if (most := _bound(f, start, size)) > SMALLEST * announced + IN_MEMORY:
        raise UnsafeCheckpoint(f"{size} bytes of zstd can become {most}, where {announced} are announced", url=f.url)
    with spooling(), tempfile.TemporaryDirectory(prefix="ckptconv-") as folder:
        packed, plain = os.path.join(folder, "zstd"), os.path.join(folder, "plain")
        with open(packed, "wb") as file:
            for at in range(start, start + size, PIECE):
                file.write(f.read(at, min(PIECE, start + size - at)))
        try:
            source: Any = cramjam.File(packed, truncate=False)
            cramjam.zstd.decompress_into(source, cramjam.File(plain))
        except (cramjam.DecompressionError, ValueError) as e:
            raise CorruptCheckpoint(f"the compressed data is damaged: {e}", url=f.url) from None
        os.unlink(packed)
        with open(plain, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _bound(f: Ranges, start: int, size: int) -> int:
    """An upper bound for the size of an unpacked zstd frame, from the headers of its blocks (RFC 8878)."""
    end, total = start + size, 0
    head = f.read(start, min(18, size))
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 6:
        raise CorruptCheckpoint(f"no zstd begins at byte {start}", url=f.url)
    flags = head[4]
    single = flags >> 5 & 1
    at = start + 5 + (not single) + (0, 1, 2, 4)[flags & 3] + ((single, 2, 4, 8)[flags >> 6])
    last = 0
    while not last:
        if at + 3 > end:
            raise CorruptCheckpoint("the compressed data ends too early", url=f.url)
        block = int.from_bytes(f.read(at, 3), "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        total += length if kind < 2 else 2**17
        at += 3 + (1 if kind == 1 else length)
    if at + 4 * (flags >> 2 & 1) != end:
        raise CorruptCheckpoint("bytes follow the end of the compressed data", url=f.url)
    return total
