"""An HDF5 file inside a zip: its position if it is stored, a private copy of it if it is deflated.

    PK 03 04 ... name extra | bytes        local header; a stored member's bytes are the HDF5 file itself

zip.py reads the directory, as strictly as for all formats. In addition, members that claim more than `RATIO` times
their packed size are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import printable
from ...storage.checksum import crc
from ...storage.files import Reader
from ...storage.ranges import Slice, Spool
from ..containers import inflate, zip
from ..containers.zip import Member
from .child import FileImage

PIECE = 2**20
WEIGHTS = {b"{": 240, b"[": 90, b",": 40}  # bytes of memory that a parsed value takes, by the byte that begins it


def members(url: str) -> dict[str, Member]:
    """The directory of the zip at `url`, checked against the local headers."""
    with Reader(url) as file:
        return zip.members(file)


def read(url: str, name: str, limit: int) -> bytes:
    """Read a small member completely and check its CRC; CorruptCheckpoint if it is larger than `limit` bytes."""
    member = members(url)[name]
    if member.size > limit:
        raise CorruptCheckpoint(f"{name} has {member.size} bytes; at most {limit} are allowed here", url=url)
    if member.size > 16 * member.packed + 2**24:
        raise UnsafeCheckpoint(f"{name} expands from {member.packed} to {member.size} bytes", url=url)
    return b"".join(_pieces(url, member))


def read_json(url: str, name: str, limit: int) -> bytes:
    """Read a JSON member; UnsafeCheckpoint if its parsed content would be out of proportion to its size."""
    raw = read(url, name, limit)
    weight = 4 * len(raw) + sum(cost * raw.count(sign) for sign, cost in WEIGHTS.items())
    if weight > 64 * members(url)[name].packed + 2**27:
        raise UnsafeCheckpoint(f"{name} would take some {weight >> 20} MB of memory", url=url)
    return raw


def _pieces(url: str, m: Member) -> Iterator[bytes]:
    """The unpacked bytes; CorruptCheckpoint if their number or CRC differs from that in the directory."""
    size = value = 0
    with Reader(url) as file:
        stored = (file.read(at, min(PIECE, m.start + m.size - at)) for at in range(m.start, m.start + m.size, PIECE))
        for piece in stored if m.method == zip.STORED else inflate.unpack(file, m.start, m.packed):
            size, value = size + len(piece), crc("crc32", piece, value)
            if size > m.size:
                break
            yield piece
    if (size, value) != (m.size, m.crc):
        text = f"{printable(m.name)} unpacks to bytes that do not match its size and CRC-32"
        raise CorruptCheckpoint(text, url=url)


def place(url: str, name: str) -> int:
    """The offset of a stored member's bytes in the zip; -1 if it is deflated."""
    member = members(url)[name]
    return member.start if member.method == zip.STORED else -1


def image(url: str, name: str) -> FileImage:
    """The bytes of a member that the HDF5 library can read: a range of the zip, or a private unpacked copy."""
    with Reader(url) as file:
        label = f"{url} {file.stamp} {name}"
    member = members(url)[name]
    if member.method == zip.STORED:
        return FileImage(label, url, member.size, lambda: Slice(Reader(url), member.start, member.size), member.size)
    spool = _spooled(label, url, name)
    return FileImage(label, url, member.size, lambda: spool, member.packed)


@lru_cache(maxsize=2)
def _spooled(label: str, url: str, name: str) -> Spool:
    """Unpack a member into a temporary file; its size is already known and bounded."""
    spool = Spool(url)
    with spool.filled() as file:
        for piece in _pieces(url, members(url)[name]):
            file.write(piece)
    return spool
