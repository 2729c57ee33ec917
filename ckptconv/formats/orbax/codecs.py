"""Decompress the chunks of zarr and the nodes of OCDBT: zstd, gzip, zlib, blosc, and checksums around them.

    unpack(codecs, f, start, size, announced)      a chunk in pieces; codecs are in the order of compression

The announced size bounds the output. Up to `IN_MEMORY` bytes are unpacked in memory; a larger zstd chunk goes through
temporary files, because the library streams only from file to file.

blosc:

    2, version of the compressor, flags, size of an element u8 | size, size of a block, size packed u32le
    the begin of each block i32le; a block is its streams, each with its size i32le before it

A stream as large as what it gives is stored as it is. The bytes of a block are shuffled: all first bytes of its
elements, then all second ones; or its bits are. Specification: README_CHUNK_FORMAT.rst of c-blosc 1.21, as in zarr.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...storage.checksum import crc
from ...storage.faults import spooling
from ...storage.ranges import Ranges
from ..zip import inflated

PIECE = 2**20
IN_MEMORY = 2**25
# The highest compression ratio that each format allows: a block of zstd repeats one byte 2^17 times.
RATIOS = {"zstd": 2**15, "blosc": 2**15, "gzip": 1032, "zlib": 1032, "crc32c": 1}  # blosc may contain zstd
SMALLEST = 16  # a large frame's blocks of 2^17 bytes can be smaller, yet on average not by more than this


def unpack(codecs: Sequence[str], f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack `size` bytes at `start` in pieces, of which the caller counts the bytes.

    codecs: at most one compressor, then checksums. CorruptCheckpoint if they are damaged.
    """
    *first, last = codecs
    if last == "crc32c":
        check(f, start, size)
        yield from unpack(first, f, start, size - 4, announced) if first else _pieces(f, start, size - 4)
    elif last == "blosc":
        yield from blosc_pieces(f, start, size, announced)
    elif last != "zstd":
        if (yield from inflated(f, start, size, PIECE, 47)):
            raise CorruptCheckpoint("bytes follow the end of the compressed data")
    elif max(size, announced) > IN_MEMORY:
        yield from _streamed(f, start, size, announced)
    else:
        yield unzstd(f.read(start, size), announced)


def _pieces(f: Ranges, start: int, size: int) -> Iterator[bytes]:
    return (f.read(at, min(PIECE, start + size - at)) for at in range(start, start + size, PIECE))


def check(f: Ranges, start: int, size: int) -> None:
    """Compare the CRC-32C at the end of a range with that of the bytes before it."""
    if size < 4:
        raise CorruptCheckpoint(f"{size} bytes at byte {start} hold no checksum")
    value, end = 0, start + size - 4
    for piece in _pieces(f, start, size - 4):
        value = crc("crc32c", piece, value)
    if value != int.from_bytes(f.read(end, 4), "little"):
        raise CorruptCheckpoint(f"the checksum of the bytes {start} to {end} is wrong: the file is damaged")


# --- zstd -------------------------------------------------------------------------------------------------------


def unzstd(raw: bytes, most: int) -> bytes:
    """Unpack in memory; CorruptCheckpoint if the result exceeds `most` bytes."""
    import cramjam

    out = bytearray(min(most, RATIOS["zstd"] * len(raw)))
    try:
        used = cramjam.zstd.decompress_into(raw, out)
    except (cramjam.DecompressionError, OSError, ValueError) as e:
        raise CorruptCheckpoint(f"does not unpack from zstd to at most {most} bytes: {e}") from None
    return bytes(memoryview(out)[:used])


def _streamed(f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack one large frame between two temporary files."""
    import cramjam

    if (most := _bound(f, start, size)) > SMALLEST * announced + IN_MEMORY:
        raise UnsafeCheckpoint(f"{size} bytes of zstd can become {most}, where {announced} are announced")
    with spooling(), tempfile.TemporaryDirectory(prefix="ckptconv-") as folder:
        packed, plain = os.path.join(folder, "zstd"), os.path.join(folder, "plain")
        with open(packed, "wb") as file:
            file.writelines(_pieces(f, start, size))
        try:
            source: Any = cramjam.File(packed, truncate=False)
            cramjam.zstd.decompress_into(source, cramjam.File(plain))
        except (cramjam.DecompressionError, ValueError) as e:
            raise CorruptCheckpoint(f"the compressed data is damaged: {e}") from None
        os.unlink(packed)
        with open(plain, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _bound(f: Ranges, start: int, size: int) -> int:
    """An upper bound for the size of an unpacked zstd frame, from the headers of its blocks (RFC 8878)."""
    end, total = start + size, 0
    head = f.read(start, min(18, size))
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 6:
        raise CorruptCheckpoint(f"no zstd begins at byte {start}")
    flags = head[4]
    single = flags >> 5 & 1
    at = start + 5 + (not single) + (0, 1, 2, 4)[flags & 3] + ((single, 2, 4, 8)[flags >> 6])
    last = 0
    while not last:
        if at + 3 > end:
            raise CorruptCheckpoint("the compressed data ends too early")
        block = int.from_bytes(f.read(at, 3), "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        total += length if kind < 2 else 2**17
        at += 3 + (1 if kind == 1 else length)
    if at + 4 * (flags >> 2 & 1) != end:
        raise CorruptCheckpoint("bytes follow the end of the compressed data")
    return total


# --- blosc, unpacked block by block: a chunk is never in memory as a whole ------------------------------------------

HEAD = 16
SHUFFLED, STORED, BITS, WHOLE = 1, 2, 4, 16  # flags; the upper three bits name the compressor
MAX_BLOCK = 2**25
TURNS = (
    (7, 0x00AA00AA00AA00AA),
    (14, 0x0000CCCC0000CCCC),
    (28, 0x00000000F0F0F0F0),
)  # Hacker's Delight, 7-3
MAX_STREAMS, LEAST_STREAM = 16, 128  # a block is as many streams as an element has bytes, unless they are short


class BloscChunk(NamedTuple):
    """A chunk of blosc: where it lies, and its header."""

    f: Ranges
    start: int
    end: int
    flags: int
    element: int
    block: int

    def bad(self, why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the blosc data at byte {self.start} {why}")

    def read(self, at: int, size: int) -> bytes:
        if size < 0 or at < self.start + HEAD or at + size > self.end:
            raise self.bad("has a stream that lies outside")
        return self.f.read(at, size)


def blosc_pieces(f: Ranges, start: int, size: int, most: int) -> Iterator[bytes]:
    """Unpack `size` bytes at `start`; CorruptCheckpoint if they give more than `most`, or not what they announce."""
    if size < HEAD:
        raise CorruptCheckpoint(f"{size} bytes at byte {start} are too few for blosc")
    version, _, flags, element, plain, block, packed = struct.unpack("<4B3I", f.read(start, HEAD))
    chunk = BloscChunk(f, start, start + size, flags, element, block)
    if version != 2 or flags & 8 or flags & (SHUFFLED | BITS) == SHUFFLED | BITS:  # both: to c-blosc2, more header
        raise chunk.bad(f"has the unknown version {version} or flags {flags}")
    if packed != size or not element or (plain and not 0 < block <= MAX_BLOCK):
        raise chunk.bad("does not end where it says, or has blocks of no or of too many bytes")
    if plain > most:
        raise chunk.bad(f"announces {plain} bytes, where at most {most} fit")
    if flags & STORED:
        if plain != size - HEAD:
            raise chunk.bad("does not end where it says")
        yield from _pieces(f, start + HEAD, plain)
        return
    table = 4 * -(-plain // block) if plain else 0
    if HEAD + table > size:
        raise chunk.bad("is too short for its blocks")
    begins = f.read(start + HEAD, table)
    for i, (at,) in enumerate(struct.iter_unpack("<i", begins)):
        yield _block(chunk, start + at, min(block, plain - i * block))


def _block(chunk: BloscChunk, at: int, size: int) -> bytes:
    """One block, unpacked and with its bytes in their order."""
    element = chunk.element
    divided = size == chunk.block and element <= MAX_STREAMS and size // element >= LEAST_STREAM
    count = element if divided and not chunk.flags & WHOLE else 1
    streams = []
    for _ in range(count):
        (packed,) = struct.unpack("<i", chunk.read(at, 4))
        raw = chunk.read(at + 4, packed)
        at += 4 + packed
        streams.append(raw if packed == size // count else _unpacked(chunk, raw, size // count))
    data = b"".join(streams)
    if len(data) != size:
        raise chunk.bad("has a block whose streams do not fill it")
    return _ordered(data, element, chunk.flags)


def _unpacked(chunk: BloscChunk, raw: bytes, size: int) -> bytes:
    import cramjam

    known: dict[int, Callable[[bytes, bytearray], int]] = {
        1: cramjam.lz4.decompress_block_into,
        2: cramjam.snappy.decompress_raw_into,
        3: cramjam.zlib.decompress_into,
        4: cramjam.zstd.decompress_into,
    }
    if (compressor := chunk.flags >> 5) not in known:
        what = "blosclz" if not compressor else f"its compressor number {compressor}"
        raise chunk.bad(
            f"is packed with {what}, which is not read; save the array with lz4, zstd, zlib or snappy in it"
        )
    out = bytearray(size)
    try:
        used = known[compressor](raw, out)
    except (cramjam.DecompressionError, OSError, ValueError) as e:
        raise chunk.bad(f"does not unpack to {size} bytes: {e}") from None
    if used != size:
        raise chunk.bad(f"has a stream of {used} bytes, where {size} are announced")
    return bytes(out)


def _ordered(data: bytes, element: int, flags: int) -> bytes:
    """Undo the shuffle of bytes, or of bits, of the whole elements; bytes behind them stay."""
    import numpy as np

    count = len(data) // element
    whole, rest = np.frombuffer(data, np.uint8, count * element), data[count * element :]
    if flags & BITS and count % 8 == 0 and count:
        eights = whole.reshape(element, 8, count // 8).swapaxes(1, 2).copy().view("<u8")
        for shift, mask in TURNS:  # eight bytes of eight bits are transposed
            moved = (eights ^ (eights >> shift)) & np.uint64(mask)
            eights ^= moved ^ (moved << shift)
        return eights.view(np.uint8).reshape(element, count).T.tobytes() + rest
    if flags & SHUFFLED and element > 1:
        return whole.reshape(element, count).T.tobytes() + rest
    return data
