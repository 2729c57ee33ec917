"""Look at files and read them: local ones with positioned reads, others through remote.py. `output` writes them.

    Seen(url)        what detection needs, read once
    Reader(url)      ranges of one file, checked against its size
    exists, is_dir, stat, names, walk      what a path is and what is below it (lookups.py)
    local, split, join, sibling            names (paths.py)

Payload is never mapped into memory: a file that shrinks under a mapping kills the process (SIGBUS).
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from stat import S_ISDIR, S_ISREG
from typing import IO

from ..errors import CorruptCheckpoint
from . import archives
from .faults import refused
from .lookups import Stat, current, exists, is_dir, names, session, stat, walk
from .paths import is_remote, join, local, sibling, split, within
from .ranges import FileObject, Ranges, Stamp, stamp_of, zipped
from .remote import MAX_GAP, RemoteFile

PEEK = 4096  # bytes of a file's head and tail that detection sees
AHEAD = 2**23  # bytes that are prefetched


class Seen:
    """What a format may look at to recognise a checkpoint; read once and shared by all formats.

    url, folder, base: the path, and its folder and base name. is_dir: whether it is a folder.
    size: bytes of the file, -1 if there is no file. head, tail: its first and last `PEEK` bytes, b'' if there is none.
    files: the names in the folder; if the url is not a folder, those next to it that begin with its base name.
    is_zip, members: whether it is a zip, and the names in it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder, self.base = split(url.rstrip("/") if len(url) > 1 else url)
        self.is_dir = is_dir(url)
        self.size, self.head, self.tail = -1, b"", b""
        if not self.is_dir and exists(url):
            with Reader(url) as f:
                self.size = f.size
                self.head = f.read(0, min(PEEK, f.size))
                self.tail = f.read(max(0, f.size - PEEK), min(PEEK, f.size))

    @cached_property
    def files(self) -> list[str]:
        """List names only when asked, so that a folder of a thousand checkpoints is not listed a thousand times."""
        if self.is_dir:
            return names(self.url)
        return names(self.folder, self.base)

    @property
    def is_zip(self) -> bool:
        """Whether it begins or ends like a zip, but not a tar of zips: bytes may precede, a comment may follow it."""
        ends = b"PK\5\6" in self.tail and self.head[257:262] != b"ustar"
        return ends or self.head.startswith(b"PK\3\4")

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The names in the central directory, () if this is not a zip."""
        if not self.is_zip:
            return ()
        import zipfile

        try:
            with Reader(self.url) as f:
                return tuple(zipped(f).namelist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError):
            return ()


# --- reading ----------------------------------------------------------------------------------------------------


# leading numbers of a stamp that stay when a local file gets another link or other permissions while it is open
LASTING = 3


@contextmanager
def record_stamps() -> Iterator[dict[str, Stamp]]:
    """Record the stamp of each file in this context when it is first opened."""
    stamps: dict[str, Stamp] = {}
    with session(stamps=stamps):
        yield stamps


class Reader(AbstractContextManager["Reader"]):
    """Positioned reads of one file, checked against its size; safe to share between threads.

    url, size: of the file, in bytes. StorageError if it does not exist or cannot be read; use it as a context manager.
    """

    def __init__(self, url: str) -> None:
        self._fd, self._start = -1, 0
        self.url = url
        self.remote: RemoteFile | None = None
        self.stamp: Stamp
        if is_remote(url):
            self.remote = RemoteFile(url)
            self.size, self.stamp = self.remote.size, self.remote.stamp
        else:
            self._open(url)
        if (seen := current().stamps) is not None:
            seen.setdefault(url, self.stamp)

    def _open(self, url: str) -> None:
        try:
            # opening a pipe without a writer would block forever
            how = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            try:
                self._fd = os.open(local(url), how)
            except NotADirectoryError:
                if (member := archives.place(url)) is None:
                    raise
                self._fd, self._start = os.dup(member.file.fd), member.start
                self.size, self.stamp = member.size, member.stamp
                return
            status = os.fstat(self._fd)
            if S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder, a file is needed", url)
            if not S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "is a pipe or a device, a file is needed", url)
            self.size = status.st_size
            self.stamp = stamp_of(status)
        except OSError as e:
            self.close()
            raise refused(e, url) from e

    def read(self, start: int, size: int) -> bytes:
        """Read exactly `size` bytes at `start`; CorruptCheckpoint if the file does not hold them."""
        self._check(start, size)
        if self.remote is not None:
            return self.remote.read(start, size)
        try:
            data = os.pread(self._fd, size, self._start + start)
        except OSError as e:
            raise refused(e, self.url) from e
        if len(data) == size:
            return data
        buffer = bytearray(size)  # large reads come in several pieces
        self.into(start, memoryview(buffer))
        return bytes(buffer)

    def into(self, start: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `start`; CorruptCheckpoint if the file does not hold them."""
        self._check(start, len(view))
        if self.remote is not None:
            self.remote.into(start, view)
            return
        at = 0
        while at < len(view):
            try:
                n = os.preadv(self._fd, [view[at:]], self._start + start + at)
            except OSError as e:
                raise refused(e, self.url) from e
            if n == 0:
                raise CorruptCheckpoint(f"ends at byte {start + at}, it shrank while it was read", url=self.url)
            at += n

    def _check(self, start: int, size: int) -> None:
        if start < 0 or size < 0 or start + size > self.size:
            raise CorruptCheckpoint(
                f"bytes {start} to {start + size} are needed but the file has {self.size} (truncated?)", url=self.url
            )

    def close(self, *_: object) -> None:
        """Close the file; closing twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = __exit__ = close


def ahead(f: Ranges, ranges: Iterator[tuple[int, int]]) -> None:
    """Prefetch ranges (start, size) of a remote file in few requests, for the next reads of this thread.

    Up to `AHEAD` bytes, gaps included, are kept while the reader is open. A local file is not prefetched.
    """
    if not isinstance(f, Reader) or f.remote is None:
        return
    wanted, total = list[tuple[int, int]](), 0
    for start, size in ranges:
        total += size + MAX_GAP
        if total > AHEAD:
            break
        wanted.append((start, size))
    f.remote.hold(wanted)


def read_all(url: str, limit: int) -> bytes:
    """Read all of a small file; CorruptCheckpoint if it is larger than `limit` bytes."""
    with Reader(url) as f:
        if f.size > limit:
            raise CorruptCheckpoint(f"has {f.size} bytes, at most {limit} are sensible here", url=url)
        return f.read(0, f.size)


@contextmanager
def fileobj(url: str) -> Iterator[IO[bytes]]:
    """Open a file for libraries that want a seekable file object."""
    with Reader(url) as reader:
        yield io.BufferedReader(FileObject(reader), 2**16)


__all__ = [
    "Reader",
    "Seen",
    "Stamp",
    "Stat",
    "ahead",
    "exists",
    "fileobj",
    "is_dir",
    "is_remote",
    "join",
    "local",
    "names",
    "read_all",
    "record_stamps",
    "sibling",
    "split",
    "stat",
    "walk",
    "within",
]
