"""Unpack blosc, block by block: a chunk is never in memory as a whole.

    2, version of the compressor, flags, size of an element u8 | size, size of a block, size packed u32le
    the begin of each block i32le; a block is its streams, each with its size i32le before it

A stream as large as what it gives is stored as it is. The bytes of a block are shuffled: all first bytes of its
elements, then all second ones; or its bits are. Specification: README_CHUNK_FORMAT.rst of c-blosc 1.21, as in zarr.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import CorruptCheckpoint
from ...storage.ranges import Ranges

HEAD, PIECE = 16, 2**20
SHUFFLED, STORED, BITS, WHOLE = 1, 2, 4, 16  # flags; the upper three bits name the compressor
MAX_BLOCK = 2**25
TURNS = (
    (7, 0x00AA00AA00AA00AA),
    (14, 0x0000CCCC0000CCCC),
    (28, 0x00000000F0F0F0F0),
)  # Hacker's Delight, 7-3
MAX_STREAMS, LEAST_STREAM = 16, 128  # a block is as many streams as an element has bytes, unless they are short


class Chunk(NamedTuple):
    """A chunk of blosc: where it lies, and its header."""

    f: Ranges
    start: int
    end: int
    flags: int
    element: int
    size: int
    block: int

    def bad(self, why: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the blosc data at byte {self.start} {why}", url=self.f.url)


def pieces(f: Ranges, start: int, size: int, most: int) -> Iterator[bytes]:
    """Unpack `size` bytes at `start`; CorruptCheckpoint if they give more than `most`, or not what they announce."""
    chunk = _opened(f, start, size)
    if chunk.size > most:
        raise chunk.bad(f"announces {chunk.size} bytes, where at most {most} fit")
    if chunk.flags & STORED:
        if chunk.size != size - HEAD:
            raise chunk.bad("does not end where it says")
        yield from (f.read(at, min(PIECE, chunk.end - at)) for at in range(start + HEAD, chunk.end, PIECE))
        return
    begins = f.read(start + HEAD, 4 * -(-chunk.size // chunk.block)) if chunk.size else b""
    for i, (at,) in enumerate(struct.iter_unpack("<i", begins)):
        yield _block(chunk, start + at, min(chunk.block, chunk.size - i * chunk.block))


def _opened(f: Ranges, start: int, size: int) -> Chunk:
    if size < HEAD:
        raise CorruptCheckpoint(f"{size} bytes at byte {start} are too few for blosc", url=f.url)
    version, _, flags, element, plain, block, packed = struct.unpack("<4B3I", f.read(start, HEAD))
    chunk = Chunk(f, start, start + size, flags, element, plain, block)
    if version != 2 or flags & 8 or flags & (SHUFFLED | BITS) == SHUFFLED | BITS:  # both: to c-blosc2, more header
        raise chunk.bad(f"has the unknown version {version} or flags {flags}")
    if packed != size or not element or (plain and not 0 < block <= MAX_BLOCK):
        raise chunk.bad("does not end where it says, or has blocks of no or of too many bytes")
    if not flags & STORED and HEAD + 4 * -(-plain // max(block, 1)) > size:
        raise chunk.bad("is too short for its blocks")
    return chunk


def _block(chunk: Chunk, at: int, size: int) -> bytes:
    """One block, unpacked and with its bytes in their order."""
    element = chunk.element
    divided = size == chunk.block and element <= MAX_STREAMS and size // element >= LEAST_STREAM
    count = element if divided and not chunk.flags & WHOLE else 1
    streams = []
    for _ in range(count):
        (packed,) = struct.unpack("<i", _read(chunk, at, 4))
        raw = _read(chunk, at + 4, packed)
        at += 4 + packed
        streams.append(raw if packed == size // count else _unpacked(chunk, raw, size // count))
    data = b"".join(streams)
    if len(data) != size:
        raise chunk.bad("has a block whose streams do not fill it")
    return _ordered(data, element, chunk.flags)


def _read(chunk: Chunk, at: int, size: int) -> bytes:
    if size < 0 or at < chunk.start + HEAD or at + size > chunk.end:
        raise chunk.bad("has a stream that lies outside")
    return chunk.f.read(at, size)


def _unpacked(chunk: Chunk, raw: bytes, size: int) -> bytes:
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


__all__ = ["pieces"]
