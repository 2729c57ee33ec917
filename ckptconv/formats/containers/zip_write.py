"""Lay out a zip of stored members (zip.py) before any data exists."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...storage.directory import END, END64, LOCATOR
from .zip import ENTRY, LOCAL, MAX16, MAX32, STORED, UTF8

_DATE = 0x21  # 1980-01-01: output does not depend on the clock


class PlacedMember(NamedTuple):
    """A stored member to write: its local header at `at`, its `size` bytes at `start`."""

    name: bytes
    at: int
    start: int
    size: int
    extra: bytes = b""  # extra fields of its entry in the directory


def lay_out(sizes: Iterable[tuple[str, int]], align: int = 64) -> tuple[list[PlacedMember], int]:
    """Place members one after the other with aligned bytes; return them and the offset of the directory."""
    out, at = [], 0
    for text, size in sizes:
        name = text.encode()
        bare = at + LOCAL.size + len(name) + (20 if size >= MAX32 else 0)
        start = bare + 4
        start += -start % align  # at least four bytes: an extra field has a header
        out.append(PlacedMember(name, at, start, size))
        at = start + size
    return out, at


def local_header(e: PlacedMember, crc: int) -> bytes:
    """All bytes from `e.at` to `e.start`."""
    big = e.size >= MAX32
    size = MAX32 if big else e.size
    extra = struct.pack("<2H2Q", 1, 16, e.size, e.size) if big else b""
    pad = e.start - e.at - LOCAL.size - len(e.name) - len(extra) - 4
    extra += struct.pack("<2H", 0x4246, pad) + bytes(pad)  # "FB", as torch pads
    head = LOCAL.pack(
        b"PK\3\4", 45 if big else 20, _flags(e.name), STORED, 0, _DATE, crc, size, size, len(e.name), len(extra)
    )
    return head + e.name + extra


def directory(entries: Sequence[PlacedMember], crcs: Mapping[bytes, int], at: int) -> bytes:
    """The directory that begins at byte `at`, with its end records; its size does not depend on the checksums."""
    raw = b"".join(_directory_entry(e, crcs.get(e.name, 0)) for e in entries)
    count, size, end = len(entries), len(raw), at + len(raw)
    if count >= MAX16 or at >= MAX32 or size >= MAX32:
        raw += END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
        raw += LOCATOR.pack(b"PK\6\7", 0, end, 1)
        count, size, at = min(count, MAX16), min(size, MAX32), min(at, MAX32)
    return raw + END.pack(b"PK\5\6", 0, 0, count, count, size, at, 0)


def _directory_entry(e: PlacedMember, crc: int) -> bytes:
    wide = [n for n in (e.size, e.size, e.at) if n >= MAX32]
    extra = (struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b"") + e.extra
    size, at = min(e.size, MAX32), min(e.at, MAX32)
    version = 45 if wide else 20
    head = ENTRY.pack(
        b"PK\1\2", version, version, _flags(e.name), STORED, 0, _DATE, crc, size, size, len(e.name), len(extra),
        0, 0, 0, 0, at,
    )  # fmt: skip
    return head + e.name + extra


def _flags(name: bytes) -> int:
    return 0 if name.isascii() else UTF8
