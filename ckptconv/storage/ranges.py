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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Protocol

from ..errors import CorruptCheckpoint
from .faults import spooling


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

    Filled once; then safe to share between threads.
    """

    def __init__(self, url: str = "") -> None:
        import tempfile

        self.url, self.size = url, 0
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
