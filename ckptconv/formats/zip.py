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
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..messages import listing, printable
from ..output.destination import OutputFile
from ..storage.checksum import combine, crc
from ..storage.files import Reader, ahead
from ..storage.ranges import MAX_DIRECTORY, Ranges
from .placement import Patch, Placement, Slot

STORED, DEFLATED = 0, 8
RATIO = 1032  # what deflate can reach at most
LOCAL, ENTRY = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L")
END, END64, LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED, UTF8, DESCRIPTOR = 0x2041, 0x800, 0x8
ZIP64, OTHER_NAME = 1, 0x7075  # extra fields: wide sizes; the name in UTF-8, which Python 3.13 takes instead
SIGNED = b"PK\7\x08"
_HEAD = 1024  # bytes after a local header that are fetched with it from a remote file: an .npy begins with a head
_ROOM = 128  # bytes after the name that are read with a local header: the usual extra field


class Member(NamedTuple):
    """One file of an archive: `packed` bytes at `start`, which unpack to `size` bytes with the checksum `crc`."""

    name: str
    start: int
    packed: int
    size: int
    crc: int
    method: int
    extra: bytes = b""  # the extra fields of its entry in the directory
    raw: bytes = b""  # its name as it is stored
    flags: int = 0


# --- reading ----------------------------------------------------------------------------------------------------


def members(f: Ranges, *, files: bool = True) -> dict[str, Member]:
    """Read and check the complete directory; members are in its order.

    files: names are those of files, so they must not leave their folder or differ in case only; otherwise any text is
    allowed.
    """
    start, size, count = _end(f)
    if size > MAX_DIRECTORY:  # it may be a hole, which takes no room on the disk
        raise CorruptCheckpoint(f"the zip's directory has {size} bytes, at most {MAX_DIRECTORY} are read")
    entries = list(_central(f.read(start, size), count))  # which begin with their headers
    _check_names([e.name for e in entries], files)
    by_place = sorted(entries, key=lambda e: e.start)
    ahead(f, ((e.start, max(0, min(start - e.start, LOCAL.size + len(e.raw) + _HEAD))) for e in by_place))
    starts = _starts(f, by_place, start)
    return {e.name: e._replace(start=starts[e.name]) for e in entries}


@lru_cache(maxsize=8)
def known(url: str, stamp: tuple[int, ...], files: bool = True) -> dict[str, Member]:
    """`members` of a file that is read again and again, as it was when it had this stamp."""
    with Reader(url) as f:
        return members(f, files=files)


def _end(f: Ranges) -> tuple[int, int, int]:
    """Find the central directory, which must end the file; return its start, size and number of members."""
    if f.size < END.size:
        raise CorruptCheckpoint(f"has {f.size} bytes, too few for a zip (truncated?)")
    at = f.size - END.size
    magic, disk, first, here, count, size, start, comment = END.unpack(f.read(at, END.size))
    if magic != b"PK\5\6" or comment:
        near = f.read(max(0, f.size - 66000), min(f.size, 66000))
        if near.rfind(b"PK\5\6", 0, len(near) - END.size + 4) < 0:
            raise CorruptCheckpoint("the zip has no central directory: the file is cut off; download it again")
        raise UnsafeCheckpoint("bytes or a comment follow the end of the zip; no framework writes them")
    if disk or first or here != count:
        raise CorruptCheckpoint("is one part of a zip split over several disks")
    before = f.read(at - LOCATOR.size, LOCATOR.size) if at >= LOCATOR.size else b""
    if before.startswith(b"PK\6\7"):
        _, disk, wide, disks = LOCATOR.unpack(before)
        if disk or disks > 1 or wide + END64.size + LOCATOR.size != at:
            raise CorruptCheckpoint("the zip64 locator does not point at the record before it")
        narrow, at = (start, size, count), wide
        magic, length, _, _, disk, first, here, count, size, start = END64.unpack(f.read(at, END64.size))
        if magic != b"PK\6\6" or length != END64.size - 12 or disk or first or here != count:
            raise CorruptCheckpoint("the zip64 end record is damaged")
        for value, small, full in zip((start, size, count), narrow, (MAX32, MAX32, MAX16), strict=True):
            if small not in (full, value):
                raise UnsafeCheckpoint(f"the zip64 directory says {value} where the zip's end says {small}")
    elif MAX32 in (start, size) or count == MAX16:
        raise CorruptCheckpoint("the zip's zip64 directory is missing")
    if start + size != at:
        what = "is prepended to it" if start + size < at else "is missing from it"
        raise UnsafeCheckpoint(f"the zip's directory ends at {start + size} instead of {at}: data {what}")
    return start, size, count


def _central(data: bytes, count: int) -> Iterator[Member]:
    """The members as the directory describes them, each where its local header begins."""
    at = 0
    for _ in range(count):
        if at + ENTRY.size > len(data):
            raise CorruptCheckpoint("the zip's directory ends early")
        magic, _, _, flags, method, _, _, crc, packed, size, n, more, comment, disk, _, _, where = ENTRY.unpack_from(
            data, at
        )
        at += ENTRY.size
        if magic != b"PK\1\2" or at + n + more + comment > len(data):
            raise CorruptCheckpoint(f"the zip's directory is damaged before its byte {at}")
        raw, extra = data[at : at + n], data[at + n : at + n + more]
        at += n + more + comment
        if MAX32 in (packed, size, where):
            size, packed, where = _zip64(extra, [size, packed, where])
        if disk not in (0, MAX16):
            raise CorruptCheckpoint("is one part of a zip split over several disks")
        m = Member(_name(raw, extra, flags), where, packed, size, crc, method, extra, raw, flags)
        name = printable(m.name)
        if flags & ENCRYPTED:
            raise UnsafeCheckpoint(f"the member {name} is encrypted")
        if method not in (STORED, DEFLATED):
            raise CorruptCheckpoint(f"the member {name} is compressed by method {method}; 0 and 8 are supported")
        if method == STORED and packed != size:
            raise CorruptCheckpoint(f"the stored member {name} has two sizes, {packed} and {size}")
        if size > RATIO * packed + 64:
            raise UnsafeCheckpoint(f"the member {name} claims to expand from {packed} to {size} bytes")
        yield m
    if at != len(data):
        raise UnsafeCheckpoint("the zip's directory holds more than its members")


def fields(extra: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the extra fields of one kind."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == wanted and at + 4 + size <= len(extra):
            yield extra[at + 4 : at + 4 + size]
        at += 4 + size


def _zip64(extra: bytes, values: list[int]) -> list[int]:
    """Replace the values that are 0xffffffff by those of the zip64 extra field, in order."""
    for field in fields(extra, ZIP64):
        words = [w for (w,) in struct.iter_unpack("<Q", field[: len(field) // 8 * 8])]
        if len(words) >= values.count(MAX32):
            rest = iter(words)
            return [next(rest) if v == MAX32 else v for v in values]
    raise CorruptCheckpoint("a member's zip64 sizes are missing")


def _name(raw: bytes, extra: bytes, flags: int) -> str:
    """A name in UTF-8, which torch writes without the flag, otherwise in code page 437; no field may say another."""
    for field in fields(extra, OTHER_NAME):
        if field[5:] not in (raw, b""):
            text = f"the member {printable(repr(raw)[:200])} has the other name {printable(repr(field[5:])[:200])}"
            raise UnsafeCheckpoint(text)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if flags & UTF8:
            raise CorruptCheckpoint(f"the member {raw!r:.200} is not named in UTF-8") from None
        return raw.decode("cp437")


def _check_names(names: Sequence[str], files: bool) -> None:
    """Refuse duplicate names; for files also names that differ in case only and paths that leave the folder.

    torch's reader ignores case.
    """
    seen: dict[str, str] = {}
    twins = []
    for name in names:
        if "\0" in name and not files:
            raise UnsafeCheckpoint(f"the member {printable(name)!r} has a NUL in its name; readers stop there")
        if files and (not name or name.startswith("/") or set("\\\0") & set(name) or ".." in name.split("/")):
            raise UnsafeCheckpoint(f"the member {printable(name)!r} is a path that leaves its folder")
        folded = name.casefold() if files else name
        if folded in seen:
            twins.append(f"{seen[folded]} and {name}")
        seen[folded] = name
    if twins:
        raise UnsafeCheckpoint(f"members whose names are taken for one another:\n{listing(twins)}")


def _starts(f: Ranges, entries: Sequence[Member], directory: int) -> dict[str, int]:
    """Check the local headers, and what lies between members; return where the bytes of each begin.

    entries: sorted by the places of their headers. directory: where it begins.
    """
    if entries and entries[0].start:
        raise UnsafeCheckpoint(f"{entries[0].start} bytes are prepended to the zip")
    starts: dict[str, int] = {}
    at, before = 0, entries[0] if entries else None
    for e in entries:
        if e.start < at or e.start + LOCAL.size + len(e.raw) + e.packed > directory:
            raise UnsafeCheckpoint(f"the member {printable(e.name)} overlaps another or the directory")
        _check_gap(f, at, e.start, before)
        starts[e.name] = _local_end(f, e, directory)
        at, before = starts[e.name] + e.packed, e
        if at > directory:
            raise CorruptCheckpoint(f"the member {printable(e.name)} reaches into the directory")
    _check_gap(f, at, directory, before)
    return starts


def _check_gap(f: Ranges, start: int, end: int, before: Member | None) -> None:
    """Only the descriptor of a member may follow it; with other bytes a sequential reader could see other members."""
    if start == end or before is None:
        return
    if before.flags & DESCRIPTOR and end - start in (12, 16, 20, 24):
        descriptor = f.read(start, end - start).removeprefix(SIGNED)
        sizes = "<3L" if len(descriptor) == 12 else "<L2Q"
        if len(descriptor) in (12, 20) and struct.unpack(sizes, descriptor) == (before.crc, before.packed, before.size):
            return
    text = f"{end - start} bytes after the member {printable(before.name)} do not belong to a member"
    raise UnsafeCheckpoint(text)


def _local_end(f: Ranges, e: Member, directory: int) -> int:
    """Compare a local header with the directory's entry; return where it ends.

    Its sizes and CRC may be left open for a descriptor, and its sizes for a zip64 field.
    """
    need, open_ = LOCAL.size + len(e.raw), e.flags & DESCRIPTOR
    head = f.read(e.start, min(need + _ROOM, directory - e.start))
    magic, _, flags, method, _, _, crc, packed, size, n, more = LOCAL.unpack_from(head)
    blank = (0, MAX32) if open_ or MAX32 in (packed, size) else ()
    differs = {
        "signature": magic != b"PK\3\4",
        "name": n != len(e.raw) or head[LOCAL.size : need] != e.raw,
        "method or flags": method != e.method or (flags ^ e.flags) & (ENCRYPTED | DESCRIPTOR),
        "size": size not in (e.size, *blank) or packed not in (e.packed, *blank),
        "CRC": crc != e.crc and (crc or not open_),
    }
    if wrong := ", ".join(what for what, does in differs.items() if does):
        text = f"the member {printable(e.name)} has another {wrong} in its local header than in the directory"
        raise UnsafeCheckpoint(text)
    end: int = e.start + need + more
    if more > 4:
        extra = head[need : need + more] if need + more <= len(head) else f.read(e.start + need, more)
        _name(e.raw, extra, flags)
        wide = MAX32 in (packed, size) and not open_
        if wide and _zip64(extra, [size, packed]) != [e.size, e.packed]:
            text = f"the member {printable(e.name)} has another size in its local zip64 field than in the directory"
            raise UnsafeCheckpoint(text)
    return end


def contents(f: Ranges, m: Member, piece: int = 2**20, *, strict: bool = False) -> Iterator[bytes]:
    """A member's unpacked bytes in pieces of at most about `piece` bytes.

    strict: a CRC-32 of 0 counts as well; torch writes it for one that it did not compute.
    Raises CorruptCheckpoint if their number or CRC-32 differs from that in the directory.
    """
    left, value = m.size, 0
    stored = (f.read(m.start + at, min(piece, m.size - at)) for at in range(0, m.size, piece))
    for data in inflated(f, m.start, m.packed, piece) if m.method != STORED else stored:
        left -= len(data)
        if left < 0:
            break
        value = crc("crc32", data, value)
        yield data
    if left:
        which = "more" if left < 0 else "fewer"
        text = f"the member {printable(m.name)} inflates to {which} than the {m.size} bytes announced"
        raise CorruptCheckpoint(text)
    if (m.crc or strict) and value != m.crc:
        raise CorruptCheckpoint(f"the CRC-32 of {printable(m.name)} is wrong: the file is damaged")


def inflated(f: Ranges, start: int, size: int, piece: int, form: int = -15) -> Generator[bytes, None, int]:
    """Inflate the `size` bytes at `start`; return how many of them follow the end of the compressed data.

    form: what surrounds the data, as zlib numbers it: -15 nothing, 47 what gzip or zlib writes.
    """
    from zlib_ng import zlib_ng  # zlib, faster, and with the same messages

    inflate = zlib_ng.decompressobj(form)
    at, end, rest = start, start + size, b""
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
                raise CorruptCheckpoint("the compressed data ends too early")
    except zlib_ng.error as e:  # type: ignore[misc]  # its stub says that this is an exception, not a class
        raise CorruptCheckpoint(f"the compressed data is damaged: {e}") from None
    return end - at + len(inflate.unused_data)


# --- lay out a zip of stored members before any data exists ---------------------------------------------------------


_DATE = 0x21  # 1980-01-01: output does not depend on the clock
ALIGN = 64  # of the bytes of members


class Content(NamedTuple):
    """What a member holds: a head, and after it the elements of a tensor, which has a name, or nothing."""

    head: bytes
    tensor: str | None = None
    size: int = 0  # bytes of the tensor
    extra: bytes = b""  # extra fields of its entry in the directory


class PlacedMember(NamedTuple):
    """A stored member to write: its local header at `at`, its `size` bytes at `start`."""

    name: bytes
    at: int
    start: int
    size: int
    content: Content


class StoredZip:
    """The layout of a zip whose members are called `contents`, and which begins at byte `start` of a file."""

    def __init__(self, file: str, contents: Mapping[str, Content], start: int = 0) -> None:
        self.file, self.start, self.end = file, start, 0
        self.members: list[PlacedMember] = []
        for text, content in contents.items():
            name, size = text.encode(), len(content.head) + content.size
            begin = self.end + LOCAL.size + len(name) + (20 if size >= MAX32 else 0) + 4  # of the padding's own header
            begin += -begin % ALIGN
            self.members.append(PlacedMember(name, self.end, begin, size, content))
            self.end = begin + size

    def placement(self) -> Placement:
        """Everything but the headers, which need the checksums."""
        places = [(self.start + m.start, *m.content) for m in self.members]
        slots = {name: Slot(self.file, at + len(head), size) for at, head, name, size, _ in places if name is not None}
        patches = [Patch(self.file, at, head) for at, head, *_ in places if head]
        size = self.start + self.end + len(self._directory([0] * len(places)))
        return Placement([OutputFile(self.file, size)], slots, patches, check="crc32")

    def headers(self, checks: Mapping[str, int]) -> list[Patch]:
        """The local headers and the directory, now that the checksum of every tensor is known."""
        crcs = [
            combine("crc32", crc("crc32", head), 0 if name is None else checks.get(name, 0), size)
            for *_, (head, name, size, _) in self.members
        ]
        patches = [
            Patch(self.file, self.start + m.at, _local_header(m, check))
            for m, check in zip(self.members, crcs, strict=True)
        ]
        return [*patches, Patch(self.file, self.start + self.end, self._directory(crcs))]

    def _directory(self, crcs: Sequence[int]) -> bytes:
        """The directory with its end records; its size does not depend on the checksums."""
        raw = b"".join(map(_directory_entry, self.members, crcs))
        at, count, size = self.end, len(self.members), len(raw)
        if count >= MAX16 or at >= MAX32 or size >= MAX32:
            raw += END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
            raw += LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
            count, size, at = min(count, MAX16), min(size, MAX32), min(at, MAX32)
        return raw + END.pack(b"PK\5\6", 0, 0, count, count, size, at, 0)


def _local_header(m: PlacedMember, crc: int) -> bytes:
    """All bytes from `m.at` to `m.start`."""
    big = m.size >= MAX32
    size = MAX32 if big else m.size
    extra = struct.pack("<2H2Q", 1, 16, m.size, m.size) if big else b""
    pad = m.start - m.at - LOCAL.size - len(m.name) - len(extra) - 4
    extra += struct.pack("<2H", 0x4246, pad) + bytes(pad)  # "FB", as torch pads
    head = LOCAL.pack(
        b"PK\3\4", 45 if big else 20, _flags(m.name), STORED, 0, _DATE, crc, size, size, len(m.name), len(extra)
    )
    return head + m.name + extra


def _directory_entry(m: PlacedMember, crc: int) -> bytes:
    wide = [n for n in (m.size, m.size, m.at) if n >= MAX32]
    extra = (struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b"") + m.content.extra
    size, at = min(m.size, MAX32), min(m.at, MAX32)
    version = 45 if wide else 20
    head = ENTRY.pack(
        b"PK\1\2", version, version, _flags(m.name), STORED, 0, _DATE, crc, size, size, len(m.name), len(extra),
        0, 0, 0, 0, at,
    )  # fmt: skip
    return head + m.name + extra


def _flags(name: bytes) -> int:
    return 0 if name.isascii() else UTF8
