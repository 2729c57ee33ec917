"""Objects with `read(start, size)`: the one interface by which all parts of the program read stored bytes.

Ranges                        the protocol; storage.files.Reader is the usual one
Slice(ranges, start, size)    a range of another, as if it were a file: a member of an archive
InMemory(url, data)           bytes that were decoded, or built
Spool()                       a temporary file without a name
FileObject(ranges)            any of them for a library that needs a seekable file object
"""

from __future__ import annotations

import errno
import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Protocol

from ..errors import CorruptCheckpoint
from .faults import spooling
from .paths import is_remote


class Ranges(Protocol):
    """`size` bytes of the file `url` (or made from it); `read` gives exactly `size` bytes or raises a CkptError."""

    @property
    def url(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Slice(NamedTuple):
    """The bytes [start, start+size) of `ranges`, counted from 0; closing it closes `ranges`."""

    ranges: Ranges
    start: int
    size: int

    @property
    def url(self) -> str:
        return self.ranges.url

    def read(self, start: int, size: int) -> bytes:
        if start < 0 or size < 0 or start + size > self.size:
            raise CorruptCheckpoint(f"bytes {start} to {start + size} of an archive of {self.size}", url=self.url)
        return self.ranges.read(self.start + start, size)

    def close(self) -> None:
        self.ranges.close()


class InMemory:
    """Bytes in memory, made from the file `url`."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url, self.data, self.size = url, data, len(data)

    def read(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]

    def close(self) -> None:
        """Nothing is open."""


class Spool:
    """A private copy of the contents of `url` in a local file without a name, which disappears with this object.

    Filled once; then safe to share between threads. existing: an existing local file to open instead.
    """

    def __init__(self, url: str = "", existing: str = "") -> None:
        import tempfile

        self.url, self.size = url, 0
        if existing:
            self.fd = os.open(existing, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            self.size = os.fstat(self.fd).st_size
            return
        with spooling():
            self.fd, path = tempfile.mkstemp(prefix="ckptconv-")
            os.unlink(path)

    @contextmanager
    def filled(self) -> Iterator[IO[bytes]]:
        with spooling(), os.fdopen(os.dup(self.fd), "wb") as file:
            yield file
            file.flush()
            self.size = os.fstat(self.fd).st_size

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self.fd, size, start)

    def close(self) -> None:
        """Stay open for the next reader; the file disappears with the last reference."""

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class FileObject(io.RawIOBase):
    """Ranges as a read-only, seekable file object."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges, self._at = ranges, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._ranges.size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        want = max(0, min(len(view), self._ranges.size - self._at))
        view[:want] = self._ranges.read(self._at, want)
        self._at += want
        return want


# --- the directory of a zip, looked at by pieces before it is read whole --------------------------------------------
#
#   "PK\1\2" ... lengths of name, extra field and comment     46 bytes for each member       APPNOTE.TXT 6.3.10
#   "PK\6\6" ... "PK\6\7" ... "PK\5\6"                      end records, which say how large the directory is
#
# A file of a terabyte takes no room on the disk if it is a hole, and its end may say that the hole is the directory.

END, END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")  # between the two
_ENTRY = struct.Struct("<4s24x3H12x")  # signature, lengths of name, extra field and comment
_LONGEST = END.size + 2**16  # bytes of an end record with its comment
_WINDOW = 2**20  # bytes; a smaller directory is read at once


def has_directory(f: Ranges) -> bool:
    """Whether the directory consists of entries where the end of the zip says it is; also if there is no end at all."""
    if is_remote(f.url):
        return True
    tail = f.read(max(0, f.size - _LONGEST), min(f.size, _LONGEST))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        return True
    size, end = END.unpack_from(tail, at)[5], f.size - len(tail) + at
    wide = end - LOCATOR.size - END64.size
    if wide >= 0 and (record := f.read(wide, END64.size)).startswith(b"PK\6\6"):
        size, end = END64.unpack(record)[8], wide
    return is_directory(f, end - size, size)


def is_directory(f: Ranges, start: int, size: int) -> bool:
    """Whether a directory consists of entries; small ones, and what a server must send, are not looked at."""
    if size <= _WINDOW or is_remote(f.url):
        return True
    if start < 0:
        return False
    at, end, first, window = start, start + size, start, b""
    while at < end:
        if at + _ENTRY.size > first + len(window):
            first, window = at, f.read(at, min(_WINDOW, end - at))
        if len(window) - (at - first) < _ENTRY.size:
            return False
        magic, name, extra, comment = _ENTRY.unpack_from(window, at - first)
        if magic != b"PK\1\2":
            return False
        at += _ENTRY.size + name + extra + comment
    return at == end
