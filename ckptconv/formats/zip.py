"""Zip archives as checkpoints use them: members located by positioned reads, and laid out before any data exists.

    "PK\\3\\4" version flags method time date crc packed size |name| |extra| name extra   then the member's bytes
    "PK\\1\\2" ...                                              one directory entry per member
    "PK\\6\\6" ... "PK\\6\\7" ...                                 zip64: end record and its locator, where needed
    "PK\\5\\6" disk disk count count bytes offset |comment|      end of the directory

Readers disagree about archives that contradict themselves; whatever two readers could see differently is refused.
Specification: APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..store import Reader

STORED, DEFLATED = 0, 8
RATIO = 1032  # what deflate can reach at most
_LOCAL, _ENTRY, _END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4H2LH")
_END64, _LOCATOR = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _UTF8, _DESCRIPTOR = 0x1, 0x800, 0x8
_DATE = 0x21  # 1980-01-01: output does not depend on the clock


class Member(NamedTuple):
    """One file of an archive: `packed` bytes at `start` that are `size` bytes of checksum `crc` when unpacked."""

    name: str
    start: int
    packed: int
    size: int
    crc: int
    method: int


# --- reading ----------------------------------------------------------------------------------------------------


def members(f: Reader) -> list[Member]:
    """All members in the order of the directory; CorruptCheckpoint where the archive contradicts itself."""
    start, size, count = _find_directory(f)
    raw = f.read(start, size)
    found, headers = [], []
    at = 0
    for _ in range(count):
        member, header, at = _entry(raw, at, f.url)
        found.append(member)
        headers.append(header)
    if at != size:
        raise CorruptCheckpoint(f"the zip directory has {size - at} bytes beyond its {count} entries", url=f.url)
    out = [_located(f, m, h) for m, h in zip(found, headers, strict=True)]
    _check_apart(out, headers, start, f.url)
    return out


def _find_directory(f: Reader) -> tuple[int, int, int]:
    """Start, size and number of entries of the directory, which must end where its end record begins."""
    tail = f.read(max(0, f.size - _MAX16 - 22), min(f.size, _MAX16 + 22))
    at = tail.rfind(b"PK\5\6")
    while at >= 0 and (at + 22 > len(tail) or at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") != len(tail)):
        at = tail.rfind(b"PK\5\6", 0, at)
    if at < 0:
        raise CorruptCheckpoint("has no end of a zip directory (truncated?)", url=f.url)
    _, disk, disk2, here, count, size, start, _ = _END.unpack_from(tail, at)
    end = f.size - len(tail) + at
    if end >= 20 and (locator := f.read(end - 20, 20))[:4] == b"PK\6\7":
        _, _, at64, _ = _LOCATOR.unpack(locator)
        magic, _, _, _, disk, disk2, here, count, size, start = _END64.unpack(f.read(at64, _END64.size))
        if magic != b"PK\6\6" or at64 + _END64.size != end - 20:
            raise CorruptCheckpoint("the zip64 end record is not where its locator says", url=f.url)
        end = at64
    if disk or disk2 or here != count:
        raise CorruptCheckpoint("is one part of a zip archive in several parts", url=f.url)
    if start + size != end or count * _ENTRY.size > size:
        raise CorruptCheckpoint(f"the zip directory does not fill bytes {start} to {end}", url=f.url)
    return start, size, count


def _entry(raw: bytes, at: int, url: str) -> tuple[Member, int, int]:
    """One entry of the directory: the member, its local header's offset, and where the next entry begins."""
    if at + _ENTRY.size > len(raw):
        raise CorruptCheckpoint("the zip directory ends within an entry", url=url)
    magic, _, _, flags, method, _, _, crc, packed, size, n, extra, comment, disk, _, _, header = _ENTRY.unpack_from(
        raw, at
    )
    end = at + _ENTRY.size + n + extra + comment
    if magic != b"PK\1\2" or end > len(raw) or disk not in {0, _MAX16}:
        raise CorruptCheckpoint("an entry of the zip directory is damaged", url=url)
    name = _text(raw[at + _ENTRY.size : at + _ENTRY.size + n], flags, url)
    size, packed, header = _zip64(raw[at + _ENTRY.size + n : end - comment], (size, packed, header), name, url)
    if flags & _ENCRYPTED:
        raise UnsafeCheckpoint("the archive is encrypted", url=url, tensor=name)
    if method not in {STORED, DEFLATED}:
        raise CorruptCheckpoint(f"is compressed by method {method}; 0 and 8 are known", url=url, tensor=name)
    if method == STORED and packed != size:
        raise CorruptCheckpoint(f"is stored, yet its {size} bytes take {packed}", url=url, tensor=name)
    if size > RATIO * packed + 64:
        raise UnsafeCheckpoint(f"claims to expand from {packed} to {size} bytes", url=url, tensor=name)
    return Member(name, 0, packed, size, crc, method), header, end


def _text(raw: bytes, flags: int, url: str) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise CorruptCheckpoint(f"the member's name {raw!r} is not UTF-8", url=url) from None
    if "\0" in name:
        raise CorruptCheckpoint(f"the member's name {name!r} holds a NUL byte", url=url)
    return name


def _zip64(extra: bytes, fields: tuple[int, ...], name: str, url: str) -> list[int]:
    """Replace 32-bit fields that are all ones by the 64-bit ones of the extra block."""
    block = b""
    at = 0
    while at + 4 <= len(extra):
        kind, n = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            block = extra[at + 4 : at + 4 + n]
        at += 4 + n
    out = []
    for value in fields:
        if value == _MAX32 and block:
            if len(block) < 8:
                raise CorruptCheckpoint("its zip64 block is too short", url=url, tensor=name)
            value, block = int.from_bytes(block[:8], "little"), block[8:]
        out.append(value)
    return out


def _located(f: Reader, member: Member, header: int) -> Member:
    """Find where the member's bytes begin; its local header must agree with the directory."""
    magic, _, flags, method, _, _, crc, packed, size, n, extra = _LOCAL.unpack(f.read(header, _LOCAL.size))
    raw = f.read(header + _LOCAL.size, n + extra)
    if magic != b"PK\3\4" or method != member.method or _text(raw[:n], flags, f.url) != member.name:
        raise CorruptCheckpoint("its local header disagrees with the directory", url=f.url, tensor=member.name)
    if not flags & _DESCRIPTOR:  # else they follow the data and stand as zero here
        size, packed = _zip64(raw[n:], (size, packed), member.name, f.url)
        if (size, packed, crc) != (member.size, member.packed, member.crc):
            raise CorruptCheckpoint("its local header disagrees with the directory", url=f.url, tensor=member.name)
    return member._replace(start=header + _LOCAL.size + n + extra)


def _check_apart(found: Sequence[Member], headers: Sequence[int], end: int, url: str) -> None:
    """Members begin at the file's start, do not overlap, and no name occurs twice."""
    at = 0
    for header, m in sorted(zip(headers, found, strict=True)):
        if header < at or (at == 0 and header):
            what = "it overlaps the member before it" if at else "other data lies before the archive"
            raise CorruptCheckpoint(f"begins at byte {header}: {what}", url=url, tensor=m.name)
        at = m.start + m.packed
    if at > end:
        raise CorruptCheckpoint("the last member reaches into the zip directory (truncated?)", url=url)
    names = [m.name for m in found]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise CorruptCheckpoint("occurs twice in the archive; readers differ in which they take", url=url, tensor=twice)


def unpack(f: Reader, start: int, packed: int, piece: int = 2**20) -> Iterator[bytes]:
    """Inflate a deflated member in pieces of at most about `piece` bytes; the caller counts and checks them."""
    inflate = zlib.decompressobj(-15)
    at, end, rest = start, start + packed, b""
    try:
        while not inflate.eof:
            if not rest:
                if at == end:
                    raise CorruptCheckpoint("the compressed data ends too early", url=f.url)
                rest = f.read(at, min(piece, end - at))
                at += len(rest)
            out = inflate.decompress(rest, piece)
            rest = inflate.unconsumed_tail
            if out:
                yield out
    except zlib.error as e:
        raise CorruptCheckpoint(f"the compressed data is damaged: {e}", url=f.url) from None


# --- writing ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A stored member to be: its local header at `at`, its `size` bytes at `start`."""

    name: bytes
    at: int
    start: int
    size: int


def lay_out(sizes: Iterable[tuple[str, int]], align: int = 64) -> tuple[list[Entry], int]:
    """Place members one after the other, their bytes aligned; also tell where the directory begins."""
    out, at = [], 0
    for text, size in sizes:
        name = text.encode()
        bare = at + _LOCAL.size + len(name) + (20 if size >= _MAX32 else 0)
        start = bare + 4
        start += -start % align  # at least four bytes: an extra block has a head
        out.append(Entry(name, at, start, size))
        at = start + size
    return out, at


def local_header(e: Entry, crc: int) -> bytes:
    """All bytes from `e.at` to `e.start`."""
    big = e.size >= _MAX32
    size = _MAX32 if big else e.size
    extra = struct.pack("<2H2Q", 1, 16, e.size, e.size) if big else b""
    pad = e.start - e.at - _LOCAL.size - len(e.name) - len(extra) - 4
    extra += struct.pack("<2H", 0x4246, pad) + bytes(pad)  # "FB", as torch pads
    head = _LOCAL.pack(
        b"PK\3\4", 45 if big else 20, _flags(e.name), STORED, 0, _DATE, crc, size, size, len(e.name), len(extra)
    )
    return head + e.name + extra


def directory(entries: Sequence[Entry], crcs: Mapping[bytes, int], at: int) -> bytes:
    """The directory that begins at byte `at`, with its end records; its size does not depend on the checksums."""
    raw = b"".join(_directory_entry(e, crcs.get(e.name, 0)) for e in entries)
    count, size, end = len(entries), len(raw), at + len(raw)
    if count >= _MAX16 or at >= _MAX32 or size >= _MAX32:
        raw += _END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
        raw += _LOCATOR.pack(b"PK\6\7", 0, end, 1)
        count, size, at = min(count, _MAX16), min(size, _MAX32), min(at, _MAX32)
    return raw + _END.pack(b"PK\5\6", 0, 0, count, count, size, at, 0)


def _directory_entry(e: Entry, crc: int) -> bytes:
    wide = [n for n in (e.size, e.size, e.at) if n >= _MAX32]
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    size, at = min(e.size, _MAX32), min(e.at, _MAX32)
    version = 45 if wide else 20
    head = _ENTRY.pack(
        b"PK\1\2", version, version, _flags(e.name), STORED, 0, _DATE, crc, size, size, len(e.name), len(extra),
        0, 0, 0, 0, at,
    )  # fmt: skip
    return head + e.name + extra


def _flags(name: bytes) -> int:
    return 0 if name.isascii() else _UTF8
