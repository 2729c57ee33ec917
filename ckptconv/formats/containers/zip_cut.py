"""The complete members of a truncated zip, which has lost its directory (zip.py), found by their local headers.

A local header contains the sizes, or leaves them to a descriptor after the bytes, as torch does:

    "PK\\7\\10" crc packed size      u32 each, or the sizes u64; another header follows, or the directory

A member ends at the first descriptor that states the number of bytes before it. Members after an incomplete one are
lost, because nothing shows where they begin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ...storage.ranges import Ranges
from .zip import (
    DEFLATED,
    DESCRIPTOR,
    ENCRYPTED,
    LOCAL,
    MAX32,
    RATIO,
    SIGNED,
    STORED,
    Member,
    check_names,
    check_other_name,
    member_name,
    zip64_values,
)

_PIECE = 2**20
_LONGEST = 28  # bytes of a descriptor and of the signature that follows it
_FORMS = (struct.Struct("<4s3L"), struct.Struct("<4sL2Q"))


def whole_members(f: Ranges) -> dict[str, Member]:
    """The members before the first incomplete one; names are checked as for a directory."""
    found = list(_members(f))
    check_names([m.name for m in found], f.url, True)
    return {m.name: m for m in found}


def _members(f: Ranges) -> Iterator[Member]:
    at = 0
    while at + LOCAL.size <= f.size:
        magic, _, flags, method, _, _, crc, packed, size, n, extra = LOCAL.unpack(f.read(at, LOCAL.size))
        start = at + LOCAL.size + n + extra
        if magic != b"PK\3\4" or flags & ENCRYPTED or method not in (STORED, DEFLATED) or start > f.size:
            return
        raw, more = f.read(at + LOCAL.size, n), f.read(at + LOCAL.size + n, extra)
        check_other_name(more, raw, f.url)
        if flags & DESCRIPTOR:
            described = _described(f, start)
            if described is None:
                return
            crc, packed, size, at = described
        else:
            size, packed = zip64_values(more, [size, packed], f.url) if MAX32 in (size, packed) else (size, packed)
            at = start + packed
        if at > f.size or size > RATIO * packed + 64 or (method == STORED and size != packed):
            return
        yield Member(member_name(raw, flags, f.url), start, packed, size, crc, method)


def _described(f: Ranges, start: int) -> tuple[int, int, int, int] | None:
    """CRC and sizes of the bytes at `start`, from the descriptor after them, and the end of that descriptor."""
    at = start
    while at + _FORMS[0].size <= f.size:
        window = f.read(at, min(_PIECE + _LONGEST, f.size - at))
        found = window.find(SIGNED)
        while 0 <= found < _PIECE:
            for form in _FORMS:
                after = found + form.size
                if after > len(window):
                    break
                _, crc, packed, size = form.unpack_from(window, found)
                if packed == at + found - start and _begins(window[after : after + 4]):
                    return crc, packed, size, at + after
            found = window.find(SIGNED, found + 1)
        at += _PIECE
    return None


def _begins(data: bytes) -> bool:
    """Whether a header may begin with these bytes, as far as they are there."""
    return b"PK\3\4".startswith(data) or b"PK\1\2".startswith(data)
