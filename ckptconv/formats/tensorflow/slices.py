"""Slices of partitioned variables: their keys in OrderedCode, and how they tile the whole.

    key      = unsigned(0) string(name) unsigned(rank) { signed(start) signed(length) } per dimension
    unsigned = one byte n, then n bytes big-endian
    string   = bytes with 00 -> 00 ff and ff -> ff 00, then 00 01
    signed   = L bytes: L one-bits, a zero-bit (of a negative number: inverted), then the value in two's complement

A whole dimension has no length in the message and -1 in the key; a dimension spelled 0,4 of 4 is another key. Keys are
therefore built from the message as it stands. Specification: tensorflow/core/lib/strings/ordered_code.cc,
tensorflow/core/util/saved_tensor_slice_util.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, TypeVar

from ...errors import CorruptCheckpoint
from ...moves.part import Data
from ..tiling import Tile, overlap

if TYPE_CHECKING:
    from . import messages_pb2 as pb


D = TypeVar("D", bound=Data)


def unsigned(value: int) -> bytes:
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(body)]) + body


def string(value: bytes) -> bytes:
    return b"\0\xff".join(piece.replace(b"\xff", b"\xff\0") for piece in value.split(b"\0")) + b"\0\1"


def signed(value: int) -> bytes:
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    return ((value & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")


def key(name: bytes, piece: pb.TensorSliceProto) -> bytes:
    """The table key of one slice of a tensor."""
    out = unsigned(0) + string(name) + unsigned(len(piece.extent))
    for extent in piece.extent:
        out += signed(extent.start) + signed(extent.length if extent.HasField("length") else -1)
    return out


def is_whole(piece: pb.TensorSliceProto) -> bool:
    return not any(extent.HasField("length") for extent in piece.extent)


def tile(piece: pb.TensorSliceProto, shape: Sequence[int]) -> Tile | None:
    """The tile that a slice covers; None if it does not lie within `shape`."""
    if len(piece.extent) != len(shape):
        return None
    start: list[int] = []
    sizes: list[int] = []
    for extent, full in zip(piece.extent, shape, strict=True):
        at, size = (extent.start, extent.length) if extent.HasField("length") else (0, full)
        if at < 0 or size < 0 or at + size > full:
            return None
        start.append(at)
        sizes.append(size)
    return Tile(tuple(start), tuple(sizes))


def spell(piece: Tile) -> str:
    """A tile as NumPy spells it: [0:3, 2:4]."""
    spans = (f"{at}:{at + size}" for at, size in zip(piece.start, piece.shape, strict=True))
    return f"[{', '.join(spans)}]"


def joined(tiles: Sequence[tuple[Tile, D]], shape: Sequence[int], url: str, name: str) -> list[tuple[Tile, D]] | None:
    """The tiles of a tensor, each once; None if they do not cover it; CorruptCheckpoint if two overlap."""
    unique = list(dict.fromkeys(tiles))
    if not unique or sum(prod(b.shape) for b, _ in unique) < prod(shape):
        return None
    twice = overlap([b for b, _ in unique])
    if twice:
        raise CorruptCheckpoint(f"the slices {spell(twice[0])} and {spell(twice[1])} overlap", url=url, tensor=name)
    return unique  # as many elements as there are, none twice
