"""Open members of local archives by path, as if they were files; none is extracted to a named file.

    agent.zip/policy.pth         a stored member is read in place, a deflated one is unpacked
    m.nemo/./weights.ckpt        a tar: a range of it
    model.tar.gz/weights.th      a range of the unpacked archive (gzip, bzip2, xz)
    x.npy.gz/x.npy               the only file, if the unpacked data is not a tar

Data is unpacked to an unnamed temporary file, once for each version of the archive; its size is at most `RATIO` times
the packed size plus `ROOM` bytes. `zipfile` and `tarfile` set no limit on headers, so this module does.
Specifications: APPNOTE.TXT 6.3.10 (zip), POSIX pax (ustar and its extended headers), RFC 1952 (gzip).
"""

from __future__ import annotations

import os
import posixpath
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from stat import S_ISLNK
from typing import IO, Any, NamedTuple, cast

from ..errors import CorruptCheckpoint, UnsafeCheckpoint
from ..messages import printable
from .paths import local
from .ranges import FileObject, Spool, Stamp, stamp_of, zipped

RATIO, ROOM = 100, 2**28
PIECE = 2**16  # bytes of packed data at a time
MAX_MEMBERS, MAX_HEADER = 2**16, 2**14  # members of an archive; bytes of all headers of one in a tar
MAX_LZMA = 2**27  # bytes of memory; `xz -9` needs 65 MiB
HEADER = struct.Struct("<26x2H")  # header of a zip member: the lengths of its name and its extra field
BLOCK = 512  # bytes of a tar header
PACKED = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
Where = tuple[int, int, Any]  # start and bytes of a member, and what opens a packed one; bytes < 0: refuse it


class Place(NamedTuple):
    """A member: `size` bytes at `start` of an open file. stamp: of the archive at `path`."""

    file: Spool
    start: int
    size: int
    path: str
    stamp: Stamp


def place(url: str) -> Place | None:
    """Find the archive member that a path names; None if the file is not an archive or has no such member."""
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
        raise UnsafeCheckpoint("is a link, a device, encrypted or in an unknown compression; it is not read", url=url)
    if packed:
        return Place(_inflated(path, stamp, packed), 0, size, path, stamp)
    if start + size > file.size:
        raise CorruptCheckpoint(f"ends at byte {file.size} of the archive, not at {start + size} (truncated?)", url=url)
    return Place(file, start, size, path, stamp)


def listed(path: str) -> list[str]:
    """List the regular files in the archive at a path; [] if it is not an archive."""
    members = _contents(path, stamp_of(os.stat(path)))[1] if os.path.isfile(path) else {}
    return [name for name, (_, size, _) in members.items() if size >= 0]


def names(folder: str) -> list[str]:
    """List the names directly below an archive, or below a folder in it."""
    path, below = _split(folder) or ("", "")
    root = posixpath.normpath(below) + "/" if below else ""
    return sorted({n.removeprefix(root).partition("/")[0] for n in listed(path) if n.startswith(root)})


def _split(url: str) -> tuple[str, str] | None:
    """Split a path into the regular file that it begins with, and the rest."""
    path = above = local(url)
    while above and not os.path.isdir(above):
        if os.path.isfile(above):
            return above, path[len(above) + 1 :]
        above = os.path.dirname(above)
    return None


@lru_cache(maxsize=4)
def _contents(path: str, stamp: Stamp) -> tuple[Spool, dict[str, Where]]:
    """Open the file that holds the members, and locate each of them in it."""
    file, members = Spool(path, path), dict[str, Where]()
    head, rows = file.read(0, 6), list[tuple[str, Where]]()
    if magic := next((m for m in PACKED if head.startswith(m)), b""):
        file = _spooled(path, file.size, _unpacked(file, magic))
        rows = [(os.path.splitext(os.path.basename(path))[0], (0, file.size, None))]
    is_tar = file.read(257, 5) == b"ustar"
    for name, where in _zip(file) if head.startswith(b"PK\3\4") else _tar(file) if is_tar else rows:
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
    """Unpack a deflated member of the archive."""

    def pieces() -> Iterator[bytes]:
        with _damaged(path), opened() as f:
            yield from iter(partial(f.read, PIECE), b"")

    return _spooled(path, stamp[0], pieces())


@contextmanager
def _damaged(url: str) -> Iterator[None]:
    """Turn errors of the libraries and of this module's parsing into CorruptCheckpoint."""
    import lzma
    import tarfile
    import zipfile
    import zlib

    errors = OSError, EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError, struct.error
    try:
        yield
    except (*errors, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError) as e:
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


def _unpacked(file: Spool, magic: bytes) -> Iterator[bytes]:
    """Decompress gzip, bzip2 or xz data, perhaps in several streams."""
    import bz2
    import lzma
    import zlib

    start: dict[bytes, Callable[[], Any]] = {
        b"\x1f\x8b": partial(zlib.decompressobj, 31), b"BZh": bz2.BZ2Decompressor,
        b"\xfd7zXZ\0": partial(lzma.LZMADecompressor, memlimit=MAX_LZMA),
    }  # fmt: skip
    source = FileObject(file)
    with _damaged(file.url):
        data = source.read(PIECE)
        while data and data.strip(b"\0"):
            decoder = start[magic]()
            while not decoder.eof:
                out = decoder.decompress(data, PIECE)
                data = getattr(decoder, "unconsumed_tail", b"")  # of zlib; the others buffer the rest
                if out:
                    yield out
                elif not (data or decoder.eof or (data := source.read(PIECE))):
                    raise EOFError("it ends too early")
            data = decoder.unused_data or source.read(PIECE)


# --- the directories of archives --------------------------------------------------------------------------------------


def _zip(file: Spool) -> Iterator[tuple[str, Where]]:
    import zipfile

    with _damaged(file.url):
        z = zipped(file)
        for info in z.infolist():
            header = file.read(info.header_offset, HEADER.size)
            start = info.header_offset + HEADER.size + sum(HEADER.unpack(header))
            mode, packed = info.external_attr >> 16, info.compress_type != zipfile.ZIP_STORED
            strange = info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if not info.filename.endswith("/"):
                size = -1 if strange or S_ISLNK(mode) else info.file_size
                yield info.filename, (start, size, partial(z.open, info) if packed else None)


def _tar(file: Spool) -> Iterator[tuple[str, Where]]:
    import tarfile

    with _damaged(file.url):
        source = FileObject(file, MAX_HEADER)
        tar = tarfile.TarFile(fileobj=cast(IO[bytes], source))
        while info := tar.next():
            if not info.isdir():
                yield info.name, (info.offset_data, info.size if info.isreg() and not info.issparse() else -1, None)
            source.left = MAX_HEADER
            tar.members.clear()  # type: ignore[attr-defined]  # keep neither millions of members nor global headers
            tar.pax_headers.clear()  # type: ignore[attr-defined]
        if file.read(tar.offset, BLOCK).strip(b"\0"):
            raise ValueError(f"no header of a member is at byte {tar.offset}")
