"""The directory of a zip, looked at by pieces before it is read whole: where its end says it is there may be nothing.

    "PK\\1\\2" ... lengths of name, extra field and comment     46 bytes for each member       APPNOTE.TXT 6.3.10
    "PK\\6\\6" ... "PK\\6\\7" ... "PK\\5\\6"                      end records, which say how large the directory is

A file of a terabyte takes no room on the disk if it is a hole, and its end may say that the hole is the directory.
"""

from __future__ import annotations

import struct

from .paths import is_remote
from .ranges import Ranges

END, END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")  # between the two
_ENTRY = struct.Struct("<4s24x3H12x")  # signature, lengths of name, extra field and comment
_LONGEST = END.size + 2**16  # bytes of an end record with its comment
_WINDOW = 2**20  # bytes; a smaller directory is read at once


def is_there(f: Ranges) -> bool:
    """Whether the directory consists of entries where the end of the zip says it is; also if there is no end at all."""
    if _is_sent(f):
        return True
    tail = f.read(max(0, f.size - _LONGEST), min(f.size, _LONGEST))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        return True
    size, end = END.unpack_from(tail, at)[5], f.size - len(tail) + at
    wide = end - LOCATOR.size - END64.size
    if wide >= 0 and (record := f.read(wide, END64.size)).startswith(b"PK\6\6"):
        size, end = END64.unpack(record)[8], wide
    return is_at(f, end - size, size)


def _is_sent(f: Ranges) -> bool:
    """Whether a server must send each byte, also of what it says is a hole."""
    return is_remote(f.url)


def is_at(f: Ranges, start: int, size: int) -> bool:
    """Whether a directory consists of entries; small ones, and what a server must send, are not looked at."""
    if size <= _WINDOW or _is_sent(f):
        return True
    if start < 0:
        return False
    at, end, first, window = start, start + size, start, b""
    while at < end:
        if at + _ENTRY.size > first + len(window):
            first, window = at, f.read(at, min(_WINDOW, end - at))
        if len(window) - (at - first) < _ENTRY.size:
            return False
        magic, name, extra, comment = _ENTRY.unpack_from(window, at - first)
        if magic != b"PK\1\2":
            return False
        at += _ENTRY.size + name + extra + comment
    return at == end
