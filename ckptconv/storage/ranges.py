"""Objects with `read(start, size)`, the only interface through which the program reads stored bytes.

Ranges                        the protocol; storage.files.Reader is the usual one
Slice(ranges, start, size)    a range of another, as if it were a file: a member of an archive
InMemory(url, data)           bytes that were decoded or built
Spool()                       a temporary file without a name
FileObject(ranges, left)      any of them for a library that needs a seekable file object
zipped(ranges)                any of them as a zip, for its names and deflated members
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ..errors import CorruptCheckpoint
from .faults import spooling

if TYPE_CHECKING:
    from zipfile import ZipFile

Stamp = tuple[int, ...]  # equal as long as a file is the same one and unchanged
MAX_DIRECTORY = 2**26  # bytes of a zip's directory, which is read at once; enough for half a million members


class Ranges(Protocol):
    """`size` bytes of the file `url` (or made from it); `read` gives exactly `size` bytes or raises a CkptError."""

    @property
    def url(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, start: int, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def stamp_of(status: os.stat_result) -> Stamp:
    """Return numbers that change when a file changes; ctime, the last one, cannot be set back."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


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
    """A private copy of the contents of `url` in an unnamed local file, which disappears with this object.

    Once filled, it is safe to share between threads. existing: an existing local file to open instead.
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
    """Ranges as a read-only, seekable file object.

    left: how many bytes may still be read, ValueError beyond: parsers of the standard library read whatever size a
    header gives, in one piece.
    """

    def __init__(self, ranges: Ranges, left: int = sys.maxsize) -> None:
        self._ranges, self._at, self.left = ranges, 0, left

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
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._ranges.size - self._at)
        size = rest if size < 0 else min(size, rest)
        self.left -= size
        if self.left < 0:
            raise ValueError("a header or directory is larger than any archive needs")
        data = self._ranges.read(self._at, size)
        self._at += size
        return data


def zipped(f: Ranges) -> ZipFile:
    """Open a zip and read its directory, if that has a sensible size."""
    from zipfile import ZipFile

    source = FileObject(f, MAX_DIRECTORY + 2**18)
    z = ZipFile(cast(IO[bytes], source))
    source.left = sys.maxsize  # members are read in pieces
    return z
