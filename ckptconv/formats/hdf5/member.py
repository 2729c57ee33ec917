"""An HDF5 file inside a zip: where it lies if it is stored, a private copy of it if it is deflated.

    PK 03 04 ... name extra | bytes        local header; a stored member's bytes are the HDF5 file itself

Refused: members of one name (also when only case differs), encryption, a local header that tells another story than
the directory, and members that claim more than `RATIO` times their packed size.
"""

from __future__ import annotations

import struct
import tempfile
import zipfile
import zlib
from functools import lru_cache
from threading import Lock
from typing import IO, NamedTuple

from ckptconv.errors import CorruptCheckpoint, UnsafeCheckpoint, printable
from ckptconv.formats.hdf5.child import Window
from ckptconv.formats.hdf5.scan import RATIO
from ckptconv.store import Reader, fileobj

LOCAL = struct.Struct("<4s5H3I2H")
MAX_MEMBERS = 10_000


class Member(NamedTuple):
    start: int  # of the data in the zip
    packed: int
    size: int
    stored: bool


def members(url: str) -> dict[str, Member]:
    """The directory of the zip at `url`, checked against the local headers."""
    out: dict[str, Member] = {}
    seen: set[str] = set()
    with Reader(url) as file, fileobj(url) as handle:
        try:
            rows = zipfile.ZipFile(handle).infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as e:
            raise CorruptCheckpoint(f"is no sound zip: {e}", url=url) from e
        if len(rows) > MAX_MEMBERS:
            raise UnsafeCheckpoint(f"has {len(rows)} members, more than {MAX_MEMBERS}", url=url)
        for row in rows:
            if row.filename.casefold() in seen:
                raise UnsafeCheckpoint(f"holds {printable(row.filename)} twice", url=url)
            seen.add(row.filename.casefold())
            out[row.filename] = _member(file, row, url)
    return out


def _member(file: Reader, row: zipfile.ZipInfo, url: str) -> Member:
    name = printable(row.filename)
    if row.flag_bits & 0x41:
        raise UnsafeCheckpoint(f"{name} is encrypted", url=url)
    if row.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnsafeCheckpoint(f"{name} is packed by method {row.compress_type}; only deflate is read", url=url)
    stored = row.compress_type == zipfile.ZIP_STORED
    if stored and row.compress_size != row.file_size:
        raise CorruptCheckpoint(f"{name} is stored but has two sizes", url=url)
    if row.file_size > RATIO * row.compress_size:
        raise UnsafeCheckpoint(f"{name} claims {row.file_size} bytes out of {row.compress_size}", url=url)
    mark, _, _, method, *_, length, extra = LOCAL.unpack(file.read(row.header_offset, LOCAL.size))
    at = row.header_offset + LOCAL.size
    twin = file.read(at, length)
    if mark != b"PK\x03\x04" or method != row.compress_type or twin != row.orig_filename.encode(_codec(row)):
        raise UnsafeCheckpoint(f"{name} has a local header that differs from the directory", url=url)
    start = at + length + extra
    if start + row.compress_size > file.size:
        raise CorruptCheckpoint(f"{name} ends at {start + row.compress_size} in a file of {file.size}", url=url)
    return Member(start, row.compress_size, row.file_size, stored)


def _codec(row: zipfile.ZipInfo) -> str:
    return "utf-8" if row.flag_bits & 0x800 else "cp437"


def read(url: str, name: str, limit: int) -> bytes:
    """Read a small member whole, its CRC checked; CorruptCheckpoint if it is larger than `limit`."""
    found = members(url)[name]
    if found.size > limit:
        raise CorruptCheckpoint(f"{name} has {found.size} bytes, at most {limit} are sensible here", url=url)
    with fileobj(url) as handle, zipfile.ZipFile(handle) as archive:
        try:
            return archive.read(name)
        except (zipfile.BadZipFile, zlib.error, OSError, ValueError) as e:
            raise CorruptCheckpoint(f"{name} cannot be unpacked: {e}", url=url) from e


def place(url: str, name: str) -> int:
    """Where a stored member's bytes begin in the zip; -1 if it is deflated."""
    found = members(url)[name]
    return found.start if found.stored else -1


class Slice(NamedTuple):
    """A stored member as a source of its own."""

    file: Reader
    start: int

    def read(self, start: int, size: int) -> bytes:
        return self.file.read(self.start + start, size)

    def close(self) -> None:
        self.file.close()


class Spool(NamedTuple):
    """An unpacked copy in an unnamed temporary file, shared by all that read it."""

    file: IO[bytes]
    lock: Lock

    def read(self, start: int, size: int) -> bytes:
        with self.lock:
            self.file.seek(start)
            return self.file.read(size)

    def close(self) -> None:
        """Stay open for the next; the file goes with the last reference."""


def window(url: str, name: str) -> Window:
    """What the HDF5 library sees of a member: a range of the zip, or a private unpacked copy."""
    with Reader(url) as file:
        label = f"{url} {file.stamp} {name}"
    found = members(url)[name]
    if found.stored:
        return Window(label, url, found.size, lambda: Slice(Reader(url), found.start))
    spool = _spooled(label, url, name)
    return Window(label, url, found.size, lambda: spool)


@lru_cache(maxsize=2)
def _spooled(label: str, url: str, name: str) -> Spool:
    """Unpack a member; its size is known and bounded beforehand."""
    limit = members(url)[name].size
    spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the Spool does
    try:
        with fileobj(url) as handle, zipfile.ZipFile(handle) as archive, archive.open(name) as packed:
            while piece := packed.read(1 << 20):
                spool.write(piece)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError) as e:
        raise CorruptCheckpoint(f"{name} cannot be unpacked: {e}", url=url) from e
    if spool.tell() != limit:
        raise CorruptCheckpoint(f"{name} unpacks to {spool.tell()} bytes, not the {limit} it claims", url=url)
    return Spool(spool, Lock())
