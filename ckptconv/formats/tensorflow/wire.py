"""Walk a protobuf message in a file without reading its contents: a graph of gigabytes takes one read per node.

message = { varint (number << 3 | wire), value }      wire 0: varint, 1: 8 bytes, 2: varint size and bytes, 5: 4 bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...errors import CorruptCheckpoint
from ...storage.ranges import Ranges
from .table import read_varint

WINDOW = 65536
_FIXED = {1: 8, 5: 4}


class Field(NamedTuple):
    """One field: the bytes [start, start+size) of the file, or for wire 0 the value in `size`."""

    number: int
    wire: int
    start: int
    size: int


def fields(f: Ranges, start: int, end: int) -> Iterator[Field]:
    """The fields of the message at [start, end), in order; CorruptCheckpoint if it is not a message."""
    at, window, base = start, b"", start
    while at < end:
        if at + 20 > base + len(window) and base + len(window) < end:
            window, base = f.read(at, min(WINDOW, end - at)), at
        try:
            tag, i = read_varint(window, at - base)
            wire = tag & 7
            size = _FIXED.get(wire, 0)
            if wire in (0, 2):
                size, i = read_varint(window, i)
        except IndexError:
            raise _broken(f, at) from None
        begin = base + i
        after = begin + (size if wire else 0)
        if wire not in (0, 1, 2, 5) or not tag >> 3 or after > end:
            raise _broken(f, at)
        yield Field(tag >> 3, wire, begin, size)
        at = after


def messages(f: Ranges, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """The ranges (start, end) of all messages, strings or bytes with one field number."""
    for field in fields(f, start, end):
        if field.number == number and field.wire == 2:
            yield field.start, field.start + field.size


def _broken(f: Ranges, at: int) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"is not a protobuf message (at byte {at}; truncated?)", url=f.url)
