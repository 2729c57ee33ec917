"""Zip archives as checkpoints use them: members located by positioned reads, and laid out before any data exists.

    "PK\\3\\4" version flags method time date crc packed size |name| |extra| name extra   then the member's bytes
    "PK\\1\\2" ...                                              one directory entry per member
    "PK\\6\\6" ... "PK\\6\\7" ...                                 zip64: end record and its locator, where needed
    "PK\\5\\6" disk disk count count bytes offset |comment|      end of the directory

The reader is so strict that no other reader can see other members. Sizes and checksums come from the directory (torch
writes zeros into local headers), the beginning of the bytes from the local header. Readers differ on duplicates (first
or last), case, prefixes, comments and headers that disagree, so that a scanner can see other data than is loaded: all
of these are refused.
Specification: APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..messages import listing, printable
from ..storage.checksum import crc
from ..storage.directory import END, END64, LOCATOR, is_at
from ..storage.files import ahead
from ..storage.ranges import Ranges

STORED, DEFLATED = 0, 8
RATIO = 1032  # what deflate can reach at most
LOCAL, ENTRY = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED, UTF8, DESCRIPTOR = 0x2041, 0x800, 0x8
_OTHER_NAME = 0x7075  # an extra field: the name in UTF-8, which Python 3.13 takes instead
SIGNED = b"PK\7\x08"
_HEAD = 1024  # bytes behind a local header that are fetched with it from a remote file: an .npy begins with a head
_WINDOW = 2**18  # local headers closer together than this are read at once


class Member(NamedTuple):
    """One file of an archive: `packed` bytes at `start`, which unpack to `size` bytes with the checksum `crc`."""

    name: str
    start: int
    packed: int
    size: int
    crc: int
    method: int
    extra: bytes = b""  # the extra fields of its entry in the directory


# --- reading ----------------------------------------------------------------------------------------------------


def members(f: Ranges, *, files: bool = True) -> dict[str, Member]:
    """Read and check the complete directory; members are in its order.

    files: names are those of files, so they must not leave their folder or differ in case only; otherwise any text is
    allowed.
    """
    start, size, count = _end(f)
    if count * ENTRY.size > size:
        raise CorruptCheckpoint(f"claims to have {count} members, which need more than {size} bytes", url=f.url)
    if not is_at(f, start, size):
        raise CorruptCheckpoint("the zip has no directory where its end says it is", url=f.url)
    entries = list(_central(f.read(start, size), count, f.url))
    check_names([e.name for e in entries], f.url, files)
    entries_by_place = sorted(entries, key=lambda e: e.at)
    ahead(f, ((e.at, max(0, min(start - e.at, LOCAL.size + len(e.raw) + _HEAD))) for e in entries_by_place))
    starts = _payloads(f, entries_by_place, start)
    return {e.name: Member(e.name, starts[e.name], e.packed, e.size, e.crc, e.method, e.extra) for e in entries}


class _Entry(NamedTuple):
    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int  # of the local header
    extra: bytes


def _end(f: Ranges) -> tuple[int, int, int]:
    """Find the central directory, which must end the file; return its start, size and number of members."""
    if f.size < END.size:
        raise CorruptCheckpoint(f"has {f.size} bytes, too few for a zip (truncated?)", url=f.url)
    at = f.size - END.size
    magic, disk, first, here, count, size, start, comment = END.unpack(f.read(at, END.size))
    if magic != b"PK\5\6" or comment:
        near = f.read(max(0, f.size - 66000), min(f.size, 66000)).rfind(b"PK\5\6")
        if near < 0 or near > min(f.size, 66000) - END.size:
            raise CorruptCheckpoint("the zip has no central directory (truncated?)", url=f.url)
        raise UnsafeCheckpoint("bytes or a comment follow the end of the zip; no framework writes them", url=f.url)
    if disk or first or here != count:
        raise CorruptCheckpoint("is one part of a zip split over several disks", url=f.url)
    before = f.read(at - LOCATOR.size, LOCATOR.size) if at >= LOCATOR.size else b""
    if before.startswith(b"PK\6\7"):
        at, start, size, count = _end64(f, before, at - LOCATOR.size, (start, size, count))
    elif MAX32 in (start, size) or count == MAX16:
        raise CorruptCheckpoint("the zip's zip64 directory is missing", url=f.url)
    if start + size != at:
        what = "is prepended to it" if start + size < at else "is missing from it"
        raise UnsafeCheckpoint(f"the zip's directory ends at {start + size} instead of {at}: data {what}", url=f.url)
    return start, size, count


def _end64(f: Ranges, locator: bytes, end: int, narrow: tuple[int, ...]) -> tuple[int, int, int, int]:
    _, disk, at, disks = LOCATOR.unpack(locator)
    if disk or disks > 1 or at + END64.size != end:
        raise CorruptCheckpoint("the zip64 locator does not point at the record before it", url=f.url)
    magic, length, _, _, disk, first, here, count, size, start = END64.unpack(f.read(at, END64.size))
    if magic != b"PK\6\6" or length != END64.size - 12 or disk or first or here != count:
        raise CorruptCheckpoint("the zip64 end record is damaged", url=f.url)
    for wide, small, full in zip((start, size, count), narrow, (MAX32, MAX32, MAX16), strict=True):
        if small not in (full, wide):
            raise UnsafeCheckpoint(f"the zip64 directory says {wide} where the zip's end says {small}", url=f.url)
    return at, start, size, count


def _central(data: bytes, count: int, url: str) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + ENTRY.size > len(data):
            raise CorruptCheckpoint("the zip's directory ends early", url=url)
        (magic, _, _, flags, method, _, _, crc, packed, size, n, extra, comment, disk, _, _, where) = ENTRY.unpack_from(
            data, at
        )
        at += ENTRY.size
        end = at + n + extra + comment
        if magic != b"PK\1\2" or end > len(data):
            raise CorruptCheckpoint(f"the zip's directory is damaged before its byte {at}", url=url)
        raw = data[at : at + n]
        if MAX32 in (packed, size, where):
            size, packed, where = zip64_values(data[at + n : at + n + extra], [size, packed, where], url)
        if disk not in (0, MAX16):
            raise CorruptCheckpoint("is one part of a zip split over several disks", url=url)
        name = member_name(raw, flags, url)
        check_other_name(data[at + n : at + n + extra], raw, url)
        if flags & ENCRYPTED:
            raise UnsafeCheckpoint(f"the member {printable(name)} is encrypted", url=url)
        if method not in (STORED, DEFLATED):
            text = f"the member {printable(name)} is compressed by method {method}; 0 and 8 are supported"
            raise CorruptCheckpoint(text, url=url)
        if method == STORED and packed != size:
            raise CorruptCheckpoint(f"the stored member {printable(name)} has two sizes, {packed} and {size}", url=url)
        if size > RATIO * packed + 64:
            text = f"the member {printable(name)} claims to expand from {packed} to {size} bytes"
            raise UnsafeCheckpoint(text, url=url)
        yield _Entry(name, raw, flags, method, crc, packed, size, where, data[at + n : at + n + extra])
        at = end
    if at != len(data):
        raise UnsafeCheckpoint("the zip's directory holds more than its members", url=url)


def fields(extra: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the extra fields of one kind."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == wanted and at + 4 + size <= len(extra):
            yield extra[at + 4 : at + 4 + size]
        at += 4 + size


def check_other_name(extra: bytes, raw: bytes, url: str) -> None:
    """Refuse an extra field with another name, which some readers use."""
    for field in fields(extra, _OTHER_NAME):
        if field[5:] not in (raw, b""):
            text = f"the member {printable(repr(raw)[:200])} has the other name {printable(repr(field[5:])[:200])}"
            raise UnsafeCheckpoint(text, url=url)


def zip64_values(extra: bytes, values: list[int], url: str) -> list[int]:
    """Replace the values that are 0xffffffff by those of the zip64 extra field, in order."""
    for field in fields(extra, 1):
        words = [w for (w,) in struct.iter_unpack("<Q", field[: len(field) // 8 * 8])]
        if len(words) >= values.count(MAX32):
            rest = iter(words)
            return [next(rest) if v == MAX32 else v for v in values]
    raise CorruptCheckpoint("a member's zip64 sizes are missing", url=url)


def member_name(raw: bytes, flags: int, url: str) -> str:
    """A name in UTF-8, which torch writes without the flag; otherwise in code page 437."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        if flags & UTF8:
            raise CorruptCheckpoint(f"the member {raw!r:.200} is not named in UTF-8", url=url) from None
        name = raw.decode("cp437")
    return name


def check_names(names: list[str], url: str, files: bool) -> None:
    """Refuse duplicate names; for files also names that differ in case only and paths that leave the folder.

    torch's reader ignores case.
    """
    seen: dict[str, str] = {}
    twins = []
    for name in names:
        if "\0" in name and not files:
            raise UnsafeCheckpoint(f"the member {printable(name)!r} has a NUL in its name; readers stop there", url=url)
        if files and (not name or name.startswith("/") or set("\\\0") & set(name) or ".." in name.split("/")):
            raise UnsafeCheckpoint(f"the member {printable(name)!r} is a path that leaves its folder", url=url)
        folded = name.casefold() if files else name
        if folded in seen:
            twins.append(f"{seen[folded]} and {name}")
        seen[folded] = name
    if twins:
        raise UnsafeCheckpoint(f"members whose names are taken for one another:\n{listing(twins)}", url=url)


def _payloads(f: Ranges, entries: list[_Entry], directory: int) -> dict[str, int]:
    """Check each local header against the directory; return the payloads' offsets. `entries` are sorted by offset."""
    out: dict[str, int] = {}
    gaps: list[tuple[int, int, _Entry]] = []
    at, window, first = 0, b"", 0
    for i, e in enumerate(entries):
        if i == 0 and e.at != 0:
            raise UnsafeCheckpoint(f"{e.at} bytes are prepended to the zip", url=f.url)
        need = LOCAL.size + len(e.raw)
        if e.at < at or e.at + need + e.packed > directory:
            raise UnsafeCheckpoint(f"the member {printable(e.name)} overlaps another or the directory", url=f.url)
        if e.at > at:
            gaps.append((at, e.at, entries[i - 1]))
        if e.at + need > first + len(window):
            first, window = e.at, f.read(e.at, _reach(entries, i, directory) - e.at)
        header = window[e.at - first : e.at - first + need]
        extra = _check_local(header, e, f.url)
        start = e.at + need + extra
        if extra > 4:
            piece = window[e.at + need - first : start - first]
            _check_extra(piece if len(piece) == extra else f.read(e.at + need, extra), header, e, f.url)
        at = start + e.packed
        if at > directory:
            raise CorruptCheckpoint(f"the member {printable(e.name)} reaches into the directory", url=f.url)
        out[e.name] = start
    if at < directory and entries:
        gaps.append((at, directory, entries[-1]))
    for gap in gaps:
        _check_gap(f, *gap)
    return out


def _check_gap(f: Ranges, start: int, end: int, before: _Entry) -> None:
    """Only the descriptor of a member may follow it; with other bytes a sequential reader could see other members."""
    if before.flags & DESCRIPTOR and end - start in (12, 16, 20, 24):
        descriptor = f.read(start, end - start).removeprefix(SIGNED)
        sizes = "<3L" if len(descriptor) == 12 else "<L2Q"
        if len(descriptor) in (12, 20) and struct.unpack(sizes, descriptor) == (before.crc, before.packed, before.size):
            return
    text = f"{end - start} bytes after the member {printable(before.name)} do not belong to a member"
    raise UnsafeCheckpoint(text, url=f.url)


def _reach(entries: list[_Entry], i: int, directory: int) -> int:
    """The end of a read that includes the headers of small neighbours."""
    end = entries[i].at
    for e in map(entries.__getitem__, range(i, len(entries))):
        if e.at - end > 4096 or e.at - entries[i].at > _WINDOW:
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
    if method != e.method or (flags ^ e.flags) & (ENCRYPTED | DESCRIPTOR):
        wrong.append("method or flags")
    if not _same_sizes(size, packed, e):
        wrong.append("size")
    if crc != e.crc and (crc or not e.flags & DESCRIPTOR):
        wrong.append("CRC")
    if wrong:
        raise UnsafeCheckpoint(
            f"the member {printable(e.name)} has another {', '.join(wrong)} in its local header than in the directory",
            url=url,
        )
    return int(extra)


def _same_sizes(size: int, packed: int, e: _Entry) -> bool:
    """Whether the sizes in a local header are those of the directory, or left open for a descriptor or zip64 field."""
    blank = (0, MAX32) if e.flags & DESCRIPTOR or MAX32 in (packed, size) else ()
    return size in (e.size, *blank) and packed in (e.packed, *blank)


def _check_extra(extra: bytes, header: bytes, e: _Entry, url: str) -> None:
    """Compare name and sizes in the local extra field with the directory."""
    check_other_name(extra, e.raw, url)
    packed, size = struct.unpack_from("<2L", header, 18)
    wide = MAX32 in (packed, size) and not e.flags & DESCRIPTOR
    if wide and zip64_values(extra, [size, packed], url) != [e.size, e.packed]:
        text = f"the member {printable(e.name)} has another size in its local zip64 field than in the directory"
        raise UnsafeCheckpoint(text, url=url)


# --- unpack the members of a zip (zip.py), piece by piece -----------------------------------------------------------


def unpack(f: Ranges, start: int, packed: int, piece: int = 2**20) -> Iterator[bytes]:
    """Inflate a deflated member in pieces of at most about `piece` bytes; the caller counts and checks them."""
    from zlib_ng import zlib_ng  # zlib, faster, and with the same messages

    inflate = zlib_ng.decompressobj(-15)
    at, end, rest = start, start + packed, b""
    try:
        while not inflate.eof:
            if not rest and at < end:
                rest = f.read(at, min(piece, end - at))
                at += len(rest)
            out = inflate.decompress(rest, piece)
            rest = inflate.unconsumed_tail
            if out:
                yield out
            elif not rest and at == end and not inflate.eof:  # zlib holds output back: only now is there no more
                raise CorruptCheckpoint("the compressed data ends too early", url=f.url)
    except zlib_ng.error as e:  # type: ignore[misc]  # its stub says that this is an exception, not a class
        raise CorruptCheckpoint(f"the compressed data is damaged: {e}", url=f.url) from None


def contents(f: Ranges, m: Member, piece: int = 2**20) -> Iterator[bytes]:
    """A member's unpacked bytes; CorruptCheckpoint if their number or CRC-32 differs from that in the directory."""
    raw = unpack(f, m.start, m.packed, piece) if m.method != STORED else _stored(f, m, piece)
    left, value = m.size, 0
    for data in raw:
        left -= len(data)
        if left < 0:
            break
        value = crc("crc32", data, value)
        yield data
    if left:
        which = "more" if left < 0 else "fewer"
        text = f"the member {printable(m.name)} inflates to {which} than the {m.size} bytes announced"
        raise CorruptCheckpoint(text, url=f.url)
    if m.crc and value != m.crc:
        raise CorruptCheckpoint(f"the CRC-32 of {printable(m.name)} is wrong: the file is damaged", url=f.url)


def _stored(f: Ranges, m: Member, piece: int) -> Iterator[bytes]:
    for at in range(0, m.size, piece):
        yield f.read(m.start + at, min(piece, m.size - at))


# ------------------------------------------------------------------------------------------------------------------
# The complete members of a truncated zip, which has lost its directory (zip.py), found by their local headers.
#
# A local header contains the sizes, or leaves them to a descriptor after the bytes, as torch does:
#
#     "PK\7\10" crc packed size      u32 each, or the sizes u64; another header follows, or the directory
#
# A member ends at the first descriptor that states the number of bytes before it. Members after an incomplete one are
# lost, because nothing shows where they begin.


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


# --- lay out a zip of stored members (zip.py) before any data exists ------------------------------------------------


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
