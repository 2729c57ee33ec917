"""The directory of a zip, looked at by pieces before it is read whole: where its end says it is there may be nothing.

    "PK\\1\\2" ... lengths of name, extra field and comment     46 bytes for each member       APPNOTE.TXT 6.3.10
    "PK\\6\\6" ... "PK\\6\\7" ... "PK\\5\\6"                      end records, which say how large the directory is

A file of a terabyte takes no room on the disk if it is a hole, and its end may say that the hole is the directory.
"""

from __future__ import annotations

import struct
from typing import Protocol

END, END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
ENTRY = struct.Struct("<4s24x3H12x")  # signature, lengths of name, extra field and comment
LOCATOR = 20  # bytes between the two end records
LONGEST = END.size + 2**16  # bytes of an end record with its comment
WINDOW = 2**20  # bytes; a smaller directory is read at once


class _Ranges(Protocol):
    @property
    def size(self) -> int: ...
    def read(self, start: int, size: int, /) -> bytes: ...


def is_there(f: _Ranges) -> bool:
    """Whether the directory consists of entries where the end of the zip says it is; also if there is no end at all."""
    tail = f.read(max(0, f.size - LONGEST), min(f.size, LONGEST))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        return True
    size, end = END.unpack_from(tail, at)[5], f.size - len(tail) + at
    wide = end - LOCATOR - END64.size
    if wide >= 0 and (record := f.read(wide, END64.size)).startswith(b"PK\6\6"):
        size, end = END64.unpack(record)[8], wide
    return size <= WINDOW or (size <= end and _consists_of_entries(f, end - size, end))


def _consists_of_entries(f: _Ranges, at: int, end: int) -> bool:
    first, window = at, b""
    while at < end:
        if at + ENTRY.size > first + len(window):
            first, window = at, f.read(at, min(WINDOW, end - at))
        if len(window) - (at - first) < ENTRY.size:
            return False
        magic, name, extra, comment = ENTRY.unpack_from(window, at - first)
        if magic != b"PK\1\2":
            return False
        at += ENTRY.size + name + extra + comment
    return at == end


__all__ = ["is_there"]
