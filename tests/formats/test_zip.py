"""A zip, field by field: what the reader refuses of a directory, of local headers and of what lies between members."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit import refused

from ckptconv.formats import zip
from ckptconv.storage.ranges import InMemory

M16, M32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class Part:
    """A member: what lies there, and what its local header and its entry in the directory say otherwise."""

    name: bytes = b"a"
    data: bytes = b"data"
    method: int = 0
    flags: int = 0
    extra: bytes = b""
    after: bytes = b""
    local: dict[str, Any] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)


def made(*parts: Part, end: dict[str, Any] | None = None, more: bytes = b"") -> bytes:
    out, directory = b"", b""
    for p in parts:
        packed = zlib.compress(p.data)[2:-4] if p.method == 8 else p.data
        said = {
            "magic": b"PK\3\4", "flags": p.flags, "method": p.method, "crc": zlib.crc32(p.data), "packed": len(packed),
            "size": len(p.data), "name": p.name, "extra": p.extra, "at": len(out), "disk": 0, "comment": b"",
        }  # fmt: skip
        here = said | p.local
        there = said | {"magic": b"PK\1\2"} | p.entry
        out += struct.pack(
            "<4s5H3L2H", here["magic"], 20, here["flags"], here["method"], 0, 33, here["crc"], here["packed"],
            here["size"], len(here["name"]), here.get("claimed", len(here["extra"])),
        ) + here["name"] + here["extra"] + packed + p.after  # fmt: skip
        directory += struct.pack(
            "<4s6H3L5H2L", there["magic"], 20, 20, there["flags"], there["method"], 0, 33, there["crc"],
            there["packed"], there["size"], len(there["name"]), len(there["extra"]), len(there["comment"]),
            there["disk"], 0, 0, there["at"],
        ) + there["name"] + there["extra"] + there["comment"]  # fmt: skip
    directory += more
    said = {
        "magic": b"PK\5\6", "disk": 0, "first": 0, "here": len(parts), "count": len(parts), "size": len(directory),
        "start": len(out), "comment": b"",
    } | (end or {})  # fmt: skip
    numbers = [said[k] for k in ("disk", "first", "here", "count", "size", "start")]
    last = struct.pack("<4s4H2LH", said["magic"], *numbers, len(said["comment"]))
    return out + directory + last + said["comment"]


def wide(raw: bytes, **said: Any) -> bytes:
    """The same zip with a zip64 record and its locator before the end."""
    body, tail = raw[:-22], struct.unpack("<4s4H2LH", raw[-22:])
    record = {
        "magic": b"PK\6\6", "length": 44, "disk": 0, "first": 0, "here": tail[3], "count": tail[4], "size": tail[5],
        "start": tail[6], "locator": b"PK\6\7", "on": 0, "at": len(body), "disks": 1,
        "narrow": (M16, M16, M32, M32),
    } | said  # fmt: skip
    numbers = [record[k] for k in ("disk", "first", "here", "count", "size", "start")]
    end64 = struct.pack("<4sQ2H2L4Q", record["magic"], record["length"], 45, 45, *numbers)
    locator = struct.pack("<4sLQL", record["locator"], record["on"], record["at"], record["disks"])
    return body + end64 + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *record["narrow"], 0)


def members(raw: bytes, **options: Any) -> dict[str, zip.Member]:
    return zip.members(InMemory("x", raw), **options)


def contents(raw: bytes, piece: int = 2**20) -> dict[str, bytes]:
    return {n: b"".join(zip.contents(InMemory("x", raw), m, piece)) for n, m in members(raw).items()}


ZIP64 = b"\1\0\x10\0" + struct.pack("<2Q", 4, 4)
DESCRIBED = {"crc": 0, "packed": 0, "size": 0}
CRC = zlib.crc32(b"data")
LARGE = {"packed": M32, "size": M32}

REFUSED: dict[str, tuple[bytes, str]] = {
    "21 bytes": (b"PK" + b"\0" * 19, "has 21 bytes, too few for a zip"),
    "no end": (made(Part(), end={"magic": b"PK\5\7"}), "the zip has no central directory"),
    "a comment": (made(Part(), end={"comment": b"x"}), "bytes or a comment follow the end of the zip"),
    "bytes after it": (made(Part()) + b"x", "bytes or a comment follow the end of the zip"),
    "its disk": (made(Part(), end={"disk": 1}), "is one part of a zip split over several disks"),
    "a member's disk": (made(Part(entry={"disk": 1})), "is one part of a zip split over several disks"),
    "wide without a record, a start": (made(Part(), end={"start": M32}), "the zip's zip64 directory is missing"),
    "prepended": (b"x" + made(Part()), r"the zip's directory ends at [0-9]+ instead of [0-9]+: data is prepended to"),
    "cut in front": (made(Part())[1:], "data is missing from it"),
    "before the first member": (made(Part(entry={"at": 1}, after=b"")), "1 bytes are prepended to the zip"),
    "more members than bytes": (made(Part(), end={"here": 2, "count": 2}), "the zip's directory ends early"),
    "a directory that ends early": (
        made(Part(), Part(b"b"), more=b"x" * 45, end={"here": 3, "count": 3}), "the zip's directory ends"
    ),
    "another entry": (made(Part(entry={"magic": b"PK\1\3"})), "the zip's directory is damaged before its byte 46"),
    "more than its members": (made(Part(), more=b"x"), "the zip's directory holds more than its members"),
    "wide sizes that are missing": (made(Part(entry={"size": M32})), "a member's zip64 sizes are missing"),
    "not UTF-8": (made(Part(b"\xff", flags=0x800)), "is not named in UTF-8"),
    "another name, in the directory": (
        made(Part(entry={"extra": b"\x75\x70\x06\0\1\0\0\0\0b"})), "the member .* has the other name b'b'"
    ),
    "another name, locally": (
        made(Part(local={"extra": b"\x75\x70\x06\0\1\0\0\0\0b"})), "the member .* has the other name b'b'"
    ),
    "no sizes without a descriptor": (made(Part(local={"packed": 0, "size": 0})), "has another size in its local"),
    "encrypted": (made(Part(flags=1)), "the member a is encrypted"),
    "with a hidden directory": (made(Part(flags=0x2000)), "the member a is encrypted"),
    "method 12": (made(Part(method=12)), "the member a is compressed by method 12; 0 and 8 are supported"),
    "two sizes": (made(Part(entry={"packed": 3})), "the stored member a has two sizes, 3 and 4"),
    "a bomb": (
        made(Part(data=b"", method=8, entry={"size": 1032 * 2 + 65})), "the member a claims to expand from 2 to 2129"
    ),
    "one name twice": (made(Part(), Part()), "names are taken for one another:\n *a and a"),
    "one name in two cases": (made(Part(b"a"), Part(b"A")), "names are taken for one another:\n *a and A"),
    "an absolute path": (made(Part(b"/a")), "the member '/a' is a path that leaves its folder"),
    "a backslash": (made(Part(b"a\\b")), "is a path that leaves its folder"),
    "a folder above": (made(Part(b"a/../b")), "is a path that leaves its folder"),
    "over another": (made(Part(), Part(b"b", entry={"at": 1})), "the member b overlaps another or the directory"),
    "over the directory": (
        made(Part(entry={"packed": 5, "size": 5}, local={"packed": 5, "size": 5})), "a overlaps another or the"
    ),
    "into the directory": (made(Part(local={"claimed": 4})), "the member a reaches into the directory"),
    "after a member": (made(Part(after=b"x"), Part(b"b")), "1 bytes after the member a do not belong to a member"),
    "a descriptor of 16 without a signature": (
        made(Part(flags=8, local=DESCRIBED, after=struct.pack("<3L", CRC, 4, 4) + b"abcd")), "16 bytes after the member"
    ),
    "another signature": (made(Part(local={"magic": b"PK\3\5"})), "has another signature in its local header than"),
    "another local name": (made(Part(local={"name": b"b"})), "has another name in its local header than in the"),
    "other flags": (made(Part(local={"flags": 8})), "has another method or flags in its local header"),
    "another size": (made(Part(local={"size": 5})), "has another size in its local header"),
    "another CRC": (made(Part(local={"crc": 1})), "has another CRC in its local header"),
    "another CRC beside a descriptor": (
        made(Part(flags=8, local=DESCRIBED | {"crc": 1}, after=struct.pack("<3L", CRC, 4, 4))), "has another CRC in its"
    ),
    "another wide size": (
        made(Part(local=LARGE | {"extra": b"\1\0\x10\0" + struct.pack("<2Q", 4, 5)})), "another size in its local zip64"
    ),
    "a locator of elsewhere": (wide(made(Part()), at=3), "the zip64 locator does not point at the record before it"),
    "another record": (wide(made(Part()), magic=b"PK\6\5"), "the zip64 end record is damaged"),
    "a record of two counts": (wide(made(Part()), here=2), "the zip64 end record is damaged"),
    "two counts": (wide(made(Part()), narrow=(2, 2, M32, M32)), "the zip64 directory says 1 where the zip's end says"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    raw, words = REFUSED[what]
    with refused(words):
        members(raw)


READ: dict[str, bytes] = {
    "plain": made(Part()),
    "deflated": made(Part(method=8)),
    "two in another order": made(Part(b"b"), Part()),
    "wide": wide(made(Part())),
    "sizes in the wide field": made(Part(entry=LARGE | {"extra": ZIP64}, local=LARGE | {"extra": ZIP64})),
    "sizes in the second wide field": made(Part(entry=LARGE | {"extra": b"\1\0\0\0" + ZIP64})),
    "other fields": made(Part(extra=b"\2\0\4\0abcd\3\0\0\0")),
    "the same other name": made(Part(extra=b"\x75\x70\x06\0\1\0\0\0\0a")),
    "a descriptor": made(Part(flags=8, local=DESCRIBED, after=struct.pack("<3L", CRC, 4, 4)), Part(b"b")),
    "a signed descriptor": made(Part(flags=8, local=DESCRIBED, after=b"PK\7\x08" + struct.pack("<3L", CRC, 4, 4))),
    "a wide descriptor": made(Part(flags=8, local=DESCRIBED, after=struct.pack("<L2Q", CRC, 4, 4))),
    "a signed wide descriptor": made(
        Part(flags=8, local=DESCRIBED, after=b"PK\7\x08" + struct.pack("<L2Q", CRC, 4, 4)), Part(b"b")
    ),
    "a descriptor that repeats": made(Part(flags=8, after=struct.pack("<3L", CRC, 4, 4))),
}


@pytest.mark.parametrize("what", READ)
def test_read(what: str) -> None:
    found = contents(READ[what])
    assert found["a"] == b"data"
    assert set(found) <= {"a", "b"}


def test_nothing_at_all() -> None:
    assert members(made()) == {}


def test_the_most_that_deflate_reaches() -> None:
    part = Part(data=b"", method=8, entry={"size": 1032 * 2 + 64}, local={"size": 1032 * 2 + 64})
    assert members(made(part))["a"].size == 2128


def test_names() -> None:
    assert list(members(made(Part("ü".encode()), Part(b"\x82")))) == ["ü", "é"]
    assert list(members(made(Part(b"\xff")))) == [b"\xff".decode("cp437")]
    assert set(members(made(Part(b"a"), Part(b"A"), Part(b"../b")), files=False)) == {"a", "A", "../b"}
    with refused("has a NUL in its name; readers stop there"):
        members(made(Part(b"a\0b")), files=False)
    with refused("names are taken for one another"):
        members(made(Part(), Part()), files=False)


@pytest.mark.parametrize("piece", [1, 2, 3, 2**20])
@pytest.mark.parametrize("method", [0, 8])
def test_contents_in_pieces(piece: int, method: int) -> None:
    assert contents(made(Part(data=b"abcdefg" * 3, method=method)), piece)["a"] == b"abcdefg" * 3
    assert contents(made(Part(data=b"", method=method)), piece)["a"] == b""


def test_contents_that_lie() -> None:
    raw = made(Part(data=b"abcd" * 9, method=8))
    whole = members(raw)["a"]
    for member, words in (
        (whole._replace(size=35), "the member a inflates to more than the 35 bytes announced"),
        (whole._replace(size=37), "the member a inflates to fewer than the 37 bytes announced"),
        (whole._replace(crc=1), "the CRC-32 of a is wrong: the file is damaged"),
        (whole._replace(packed=whole.packed - 1), "the compressed data ends too early"),
        (whole._replace(start=whole.start + 1, packed=whole.packed - 1), "the compressed data is damaged"),
    ):
        with refused(words):
            list(zip.contents(InMemory("x", raw), member))
    assert b"".join(zip.contents(InMemory("x", raw), whole._replace(crc=0))) == b"abcd" * 9


def test_python_reads_what_these_tests_make(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(made(Part(), Part(b"b", method=8)))
    with zipfile.ZipFile(tmp_path / "a.zip") as z:
        assert z.testzip() is None
        assert [z.read(n) for n in z.namelist()] == [b"data", b"data"]


@pytest.mark.slow
def test_more_members_than_two_bytes_count_need_zip64() -> None:
    raw = b"".join(p.data for p in zip.StoredZip("x", {f"t{i}": zip.Content(b"") for i in range(66_000)}).headers({}))
    with zipfile.ZipFile(io.BytesIO(raw)) as z:
        assert z.namelist() == list(members(raw)) == [f"t{i}" for i in range(66_000)]
