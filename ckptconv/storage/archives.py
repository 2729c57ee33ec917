"""Members of local archives, by path, as if they were files: nothing is unpacked under a name.

    agent.zip/policy.pth         a stored member is read in place, a deflated one is unpacked
    m.nemo/./weights.ckpt        a tar: a range of it
    model.tar.gz/weights.th      a range of what the archive is unpacked to (gzip, bzip2, xz)
    x.npy.gz/x.npy               the only file in a packed one that is not a tar

What is unpacked goes to a temporary file without a name, once for each archive as it is, and at most `RATIO` times the
packed size and `ROOM` bytes. The headers of tars are read here, because those of `tarfile` take memory without bound.
Specifications: APPNOTE.TXT 6.3.10 (zip), POSIX pax (ustar and its extended headers), RFC 1952 (gzip).
"""

from __future__ import annotations

import io
import os
import posixpath
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from stat import S_ISLNK
from typing import IO, Any, NamedTuple

from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..messages import printable
from .paths import local
from .ranges import FileObject, Spool, has_directory

RATIO, ROOM = 100, 2**28
PIECE = 2**16  # bytes of packed data at a time
MAX_MEMBERS, MAX_HEADER = 2**16, 2**14  # members of an archive; bytes of an extended header of a tar
MAX_LZMA = 2**27  # bytes of memory; `xz -9` needs 65 MiB
HEADER = struct.Struct("<26x2H")  # of a member of a zip: how long its name and its extra field are
BLOCK = 512  # bytes of a header of a tar, which all members are padded to
Where = tuple[int, int, Any]  # start and bytes of a member, and what opens a packed one; bytes < 0: it is not read
Stamp = tuple[int, ...]


class Place(NamedTuple):
    """Where a member is: `size` bytes at `start` of an open file. stamp: of the archive at `path`."""

    file: Spool
    start: int
    size: int
    path: str
    stamp: Stamp


def place(url: str) -> Place | None:
    """Find what a path below a regular file names, None if that is not an archive or has no such member."""
    if not (parts := _split(url)):
        return None
    path, name = parts
    if ".." in name.split("/"):
        raise UnsafeCheckpoint("leads out of a folder in an archive", url=url)
    stamp = stamp_of(os.stat(path))
    file, members = _contents(path, stamp)
    start, size, packed = members.get(posixpath.normpath(name), (-1, 0, None))
    if start < 0:
        return None
    if size < 0:
        raise UnsafeCheckpoint("is a link, a device, encrypted or packed as no checkpoint is; it is not read", url=url)
    if packed:
        return Place(_inflated(path, stamp, packed), 0, size, path, stamp)
    if start + size > file.size:
        raise CorruptCheckpoint(f"ends at byte {file.size} of the archive, not at {start + size} (truncated?)", url=url)
    return Place(file, start, size, path, stamp)


def listed(path: str) -> list[str]:
    """The names of the regular files in the archive at a path, [] if that is not an archive."""
    members = _contents(path, stamp_of(os.stat(path)))[1] if os.path.isfile(path) else {}
    return [name for name, (_, size, _) in members.items() if size >= 0]


def names(folder: str) -> list[str]:
    """The names directly below an archive, or below a folder in it."""
    path, below = (local(folder), "") if os.path.isfile(local(folder)) else _split(folder) or ("", "")
    root = "" if (plain := posixpath.normpath(below or ".")) == "." else plain + "/"
    return sorted({n[len(root) :].partition("/")[0] for n in listed(path) if n.startswith(root)})


def stamp_of(status: os.stat_result) -> Stamp:
    """How a file is told from another state of it; ctime, the last one, cannot be set back."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _split(url: str) -> tuple[str, str] | None:
    """The regular file that a path begins with, and the rest."""
    path = above = local(url)
    while len(parent := os.path.dirname(above)) < len(above) and not os.path.isdir(parent):
        if os.path.isfile(parent):
            return parent, path[len(parent) + 1 :]
        above = parent
    return None


@lru_cache(maxsize=4)
def _contents(path: str, stamp: Stamp) -> tuple[Spool, dict[str, Where]]:
    """The file that holds the members, and where each lies in it."""
    file, members = Spool(path, path), dict[str, Where]()
    head = file.read(0, BLOCK)
    rows: Iterator[tuple[str, Where]] = iter(())
    if head.startswith(b"PK\3\4"):
        rows = _zip(file)
    elif unpack := next((unpack for magic, unpack in PACKED.items() if head.startswith(magic)), None):
        file = _spooled(path, file.size, unpack(file))
        alone = os.path.splitext(os.path.basename(path))[0]
        rows = _tar(file) if _is_tar(file) else iter([(alone, (0, file.size, None))])
    elif _is_tar(file):
        rows = _tar(file)
    for name, where in rows:
        plain = posixpath.normpath(name)
        if name.startswith("/") or "\0" in name or ".." in name.split("/"):
            raise UnsafeCheckpoint(f"the member {printable(name)!r} is a path that leaves its folder", url=path)
        if plain in members or len(members) == MAX_MEMBERS:
            what = f"holds {printable(name)} twice" if plain in members else f"has more than {MAX_MEMBERS} members"
            raise UnsafeCheckpoint(what, url=path)
        members[plain] = where
    if stamp_of(os.stat(path)) != stamp:
        raise CorruptCheckpoint("changed while it was read", url=path)
    return file, members


@lru_cache(maxsize=4)
def _inflated(path: str, stamp: Stamp, opened: Callable[[], IO[bytes]]) -> Spool:
    """What a deflated member of the archive unpacks to."""

    def pieces() -> Iterator[bytes]:
        with _damaged(path), opened() as f:
            yield from iter(partial(f.read, PIECE), b"")

    return _spooled(path, stamp[0], pieces())


@contextmanager
def _damaged(url: str) -> Iterator[None]:
    """Make errors of the libraries, and of parsing here, an error of ours."""
    import lzma
    import zipfile
    import zlib

    errors = OSError, EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError, struct.error
    try:
        yield
    except (*errors, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as e:
        raise CorruptCheckpoint(f"the archive is damaged: {printable(str(e))}", url=url) from None


def _spooled(url: str, packed: int, data: Iterator[bytes]) -> Spool:
    spool, most, size = Spool(url), RATIO * packed + ROOM, 0
    with spool.filled() as out:
        for piece in data:
            size += len(piece)
            if size > most:
                raise UnsafeCheckpoint(f"expands from {packed} to more than {most} bytes; unpack it first", url=url)
            out.write(piece)
    return spool


def _unpacked(file: Spool, module: str) -> Iterator[bytes]:
    """What gzip, bzip2 or xz packed, perhaps in several streams."""
    import bz2
    import gzip
    import lzma

    source = FileObject(file)
    with _damaged(file.url):
        if module == "gzip":
            yield from iter(partial(gzip.GzipFile(fileobj=io.BufferedReader(source)).read, PIECE), b"")
            return
        data = source.read(PIECE) or b""
        while data.strip(b"\0"):
            decoder = bz2.BZ2Decompressor() if module == "bz2" else lzma.LZMADecompressor(memlimit=MAX_LZMA)
            while not decoder.eof:
                if decoder.needs_input and not data and not (data := source.read(PIECE) or b""):
                    raise EOFError("it ends too early")
                yield decoder.decompress(data, PIECE)
                data = b""
            data = decoder.unused_data or source.read(PIECE) or b""


PACKED = {
    magic: partial(_unpacked, module=module)
    for magic, module in ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\xfd7zXZ\0", "xz"))
}


# --- the directories of archives --------------------------------------------------------------------------------------


def _zip(file: Spool) -> Iterator[tuple[str, Where]]:
    import zipfile

    with _damaged(file.url):
        z = zipfile.ZipFile(io.BufferedReader(FileObject(file))) if has_directory(file) else None
        for info in z.infolist() if z else ():
            header = file.read(info.header_offset, HEADER.size)
            start = info.header_offset + HEADER.size + sum(HEADER.unpack(header))
            mode, packed = info.external_attr >> 16, info.compress_type != zipfile.ZIP_STORED
            strange = info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if not info.filename.endswith("/"):
                size = -1 if strange or S_ISLNK(mode) else info.file_size
                yield info.filename, (start, size, partial(z.open, info) if packed and z else None)


def _is_tar(file: Spool) -> bool:
    return file.read(257, 5) == b"ustar"


def _tar(file: Spool) -> Iterator[tuple[str, Where]]:
    """The members of a tar; what an extended header says of the next one counts for its name and size alone."""
    at, extended = 0, dict[str, str]()
    with _damaged(file.url):
        while any(head := file.read(at, BLOCK)):
            blank = head[:148] + b" " * 8 + head[156:]
            if len(head) < BLOCK or sum(blank) != _number(head[148:156]):
                raise ValueError(f"no header of a member is at byte {at} (truncated?)")
            kind, start, size = head[156:157], at + BLOCK, int(extended.pop("size", 0)) or _number(head[124:136])
            if size < 0:
                raise ValueError(f"the member at byte {at} has {size} bytes")
            at = start + (0 if kind in b"123456" else size + -size % BLOCK)  # links and folders have no data
            if kind in b"xL":
                if size > MAX_HEADER:
                    raise ValueError(f"an extended header has {size} bytes")
                text = file.read(start, size)
                extended |= _records(text) if kind == b"x" else {"path": text.rstrip(b"\0").decode()}
            elif kind not in b"gK":
                fields = (head[345:500] if head[257:263] == b"ustar\0" else b"", head[:100])
                name = extended.get("path") or "/".join(f.split(b"\0")[0].decode() for f in fields if f[0])
                if kind != b"5":
                    plain = kind in b"\x0007" and not any(key.startswith("GNU.sparse") for key in extended)
                    yield name, (start, size if plain else -1, None)
                extended = {}


def _number(field: bytes) -> int:
    """A number in octal digits, or in binary after a byte of 128."""
    return int.from_bytes(field[1:], "big") if field[0] == 128 else int(field.strip(b" \0") or b"0", 8)


def _records(text: bytes) -> dict[str, str]:
    """The records of an extended header: b"19 path=weights.th\\n" """
    found, at = dict[str, str](), 0
    while at < len(text):
        end = text.index(b" ", at)
        size = int(text[at:end])
        if at + size <= end:
            raise ValueError("a record of an extended header has no length")
        key, _, value = text[end + 1 : at + size - 1].decode().partition("=")
        found[key], at = value, at + size
    return found
