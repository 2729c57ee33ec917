"""A zip's directory, read so strictly that no other reader can see other members than we do.

    50 4b 03 04  local header (30 bytes), name, extra; the payload; perhaps a data descriptor    one per member
    50 4b 01 02  central header (46 bytes), name, extra, comment                                 one per member
    [50 4b 06 06 zip64 end (56 bytes)][50 4b 06 07 locator (20 bytes)]
    50 4b 05 06  end (22 bytes)

Sizes and checksums come from the central directory (torch writes zeros into local headers), payload offsets from the
local header. Readers differ on duplicates (first or last), case, prefixes, comments and disagreeing headers, and what
a scanner saw is then not what torch loads: all of these are refused. Specification: PKWARE APPNOTE.TXT.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint, listing, printable
from ...store import Reader

LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END64 = struct.Struct("<4sQHHIIQQQQ")
LOCATOR = struct.Struct("<4sIQI")
END = struct.Struct("<4sHHHHIIH")
FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the zip64 field"
ENCRYPTED, STREAMED = 0x2041, 0x8  # flag bits; streamed: a data descriptor follows
WINDOW = 2**18  # local headers closer together than this are read at once


class Member(NamedTuple):
    """One file of the archive: where its stored bytes lie, and their CRC-32 (0: not recorded)."""

    name: str
    start: int
    size: int
    crc: int
    method: int  # 0: stored


def members(f: Reader) -> dict[str, Member]:
    """Read and check the whole directory, in the order in which it lists the members."""
    start, size, count = _end(f)
    if count * CENTRAL.size > size:
        raise CorruptCheckpoint(f"says it has {count} members, which need more than {size} bytes", url=f.url)
    entries = list(_central(f.read(start, size), count, f.url))
    _check_names([e.name for e in entries], f.url)
    starts = _payloads(f, sorted(entries, key=lambda e: e.at), start)
    return {e.name: Member(e.name, starts[e.name], e.size, e.crc, e.method) for e in entries}


class _Entry(NamedTuple):
    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int  # of the local header


def _end(f: Reader) -> tuple[int, int, int]:
    """Find the central directory: its start, size and number of members. It must be the last thing in the file."""
    if f.size < END.size:
        raise CorruptCheckpoint(f"has {f.size} bytes, too few for a zip", url=f.url)
    at = f.size - END.size
    magic, disk, first, here, count, size, start, comment = END.unpack(f.read(at, END.size))
    if magic != b"PK\5\6" or comment:
        near = f.read(max(0, f.size - 66000), min(f.size, 66000)).rfind(b"PK\5\6")
        if near < 0:
            raise CorruptCheckpoint("the zip has no central directory (truncated?)", url=f.url)
        raise UnsafeCheckpoint("bytes or a comment follow the end of the zip; torch never writes them", url=f.url)
    if disk or first or here != count:
        raise CorruptCheckpoint("is one part of a zip split over several disks", url=f.url)
    before = f.read(at - LOCATOR.size, LOCATOR.size) if at >= LOCATOR.size else b""
    if before.startswith(b"PK\6\7"):
        at, start, size, count = _end64(f, before, at - LOCATOR.size, (start, size, count))
    elif FULL32 in (start, size) or count == FULL16:
        raise CorruptCheckpoint("the zip's zip64 directory is missing", url=f.url)
    if start + size != at:
        what = "is prepended to it" if start + size < at else "is missing from it"
        raise UnsafeCheckpoint(f"the zip's directory ends at {start + size} instead of {at}: data {what}", url=f.url)
    return start, size, count


def _end64(f: Reader, locator: bytes, end: int, narrow: tuple[int, ...]) -> tuple[int, int, int, int]:
    _, disk, at, disks = LOCATOR.unpack(locator)
    if disk or disks > 1 or at + END64.size != end:
        raise CorruptCheckpoint("the zip64 locator does not point at the record before it", url=f.url)
    magic, length, _, _, disk, first, here, count, size, start = END64.unpack(f.read(at, END64.size))
    if magic != b"PK\6\6" or length != END64.size - 12 or disk or first or here != count:
        raise CorruptCheckpoint("the zip64 end record is damaged", url=f.url)
    for wide, small, full in zip((start, size, count), narrow, (FULL32, FULL32, FULL16), strict=True):
        if small not in (full, wide):
            raise UnsafeCheckpoint(f"the zip64 directory says {wide} where the zip's end says {small}", url=f.url)
    return at, start, size, count


def _central(data: bytes, count: int, url: str) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + CENTRAL.size > len(data):
            raise CorruptCheckpoint("the zip's directory ends early", url=url)
        (magic, _, _, flags, method, _, _, crc, packed, size, n, extra, comment, disk, _, _, where) = (
            CENTRAL.unpack_from(data, at)
        )
        at += CENTRAL.size
        end = at + n + extra + comment
        if magic != b"PK\1\2" or end > len(data):
            raise CorruptCheckpoint(f"the zip's directory is damaged before its byte {at}", url=url)
        raw = data[at : at + n]
        if FULL32 in (packed, size, where):
            size, packed, where = _wide(data[at + n : at + n + extra], [size, packed, where], url)
        if disk not in (0, FULL16):
            raise CorruptCheckpoint("is one part of a zip split over several disks", url=url)
        name = _name(raw, url)
        if flags & ENCRYPTED:
            raise UnsafeCheckpoint(f"the member {printable(name)} is encrypted", url=url)
        if method == 0 and packed != size:
            raise CorruptCheckpoint(f"the stored member {printable(name)} has two sizes, {packed} and {size}", url=url)
        yield _Entry(name, raw, flags, method, crc, packed, size, where)
        at = end
    if at != len(data):
        raise UnsafeCheckpoint("the zip's directory holds more than its members", url=url)


def _wide(extra: bytes, values: list[int], url: str) -> list[int]:
    """Replace the values that are 0xffffffff by those of the zip64 extra field, in order."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1 and at + 4 + size <= len(extra):
            words = [w for (w,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + size // 8 * 8])]
            need = values.count(FULL32)
            if len(words) >= need:
                rest = iter(words)
                return [next(rest) if v == FULL32 else v for v in values]
        at += 4 + size
    raise CorruptCheckpoint("a member's zip64 sizes are missing", url=url)


def _name(raw: bytes, url: str) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptCheckpoint(f"the member {raw!r} is not named in UTF-8", url=url) from None
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
        raise UnsafeCheckpoint(f"the member {printable(name)!r} is named like a path out of its folder", url=url)
    return name


def _check_names(names: list[str], url: str) -> None:
    """No name twice, not even in another case: torch's reader takes the first and ignores case."""
    seen: dict[str, str] = {}
    twins = []
    for name in names:
        folded = name.casefold()
        if folded in seen:
            twins.append(f"{seen[folded]} and {name}")
        seen[folded] = name
    if twins:
        raise UnsafeCheckpoint(f"members whose names are taken for one another:\n{listing(twins)}", url=url)


def _payloads(f: Reader, entries: list[_Entry], directory: int) -> dict[str, int]:
    """Check each local header against the directory; tell where the payloads begin. `entries` are sorted by place."""
    out: dict[str, int] = {}
    at, window, first = 0, b"", 0
    for i, e in enumerate(entries):
        if i == 0 and e.at != 0:
            raise UnsafeCheckpoint(f"{e.at} bytes are prepended to the zip", url=f.url)
        need = LOCAL.size + len(e.raw)
        if e.at < at or e.at + need + e.packed > directory:
            raise UnsafeCheckpoint(f"the member {printable(e.name)} overlaps another or the directory", url=f.url)
        if e.at + need > first + len(window):
            first, window = e.at, f.read(e.at, _reach(entries, i, directory) - e.at)
        header = window[e.at - first : e.at - first + need]
        start = e.at + need + _check_local(header, e, f.url)
        at = start + e.packed
        if at > directory:
            raise CorruptCheckpoint(f"the member {printable(e.name)} reaches into the directory", url=f.url)
        out[e.name] = start
    return out


def _reach(entries: list[_Entry], i: int, directory: int) -> int:
    """How far to read so that the headers of small neighbours come along."""
    end = entries[i].at
    for e in entries[i:]:
        if e.at - end > 4096 or e.at - entries[i].at > WINDOW:
            break
        end = e.at
        last = e
    return min(directory, end + LOCAL.size + len(last.raw))


def _check_local(header: bytes, e: _Entry, url: str) -> int:
    """Compare a local header with the directory's entry; return the length of its extra field."""
    magic, _, flags, method, _, _, crc, packed, size, n, extra = LOCAL.unpack_from(header)
    wrong = []
    if magic != b"PK\3\4":
        wrong.append("signature")
    if n != len(e.raw) or header[LOCAL.size :] != e.raw:
        wrong.append("name")
    if method != e.method or (flags ^ e.flags) & (ENCRYPTED | STREAMED):
        wrong.append("method or flags")
    blank = (0, FULL32) if e.flags & STREAMED or FULL32 in (packed, size) else ()
    if (size != e.size and size not in blank) or (packed != e.packed and packed not in blank):
        wrong.append("size")
    if crc not in (e.crc, 0):
        wrong.append("CRC")
    if wrong:
        raise UnsafeCheckpoint(
            f"the member {printable(e.name)} has another {', '.join(wrong)} in its local header than in the directory",
            url=url,
        )
    return int(extra)


__all__ = ["Member", "members"]
