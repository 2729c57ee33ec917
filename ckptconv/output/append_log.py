"""A file of JSON lines that one process appends to: locked, so that two runs cannot share it, and durable line by line.

The journal of a conversion and the ledger of a zoo are such files. A kill leaves at most one unfinished line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from ..errors import CorruptCheckpoint, StorageError
from ..storage.faults import refused
from . import own

LONGEST = 2**26  # bytes of a line


def lines(file: IO[bytes], path: str, longest: int = LONGEST) -> Iterator[bytes]:
    """The lines of such a file; a stranger's may be a single one of a terabyte that takes no room."""
    while line := file.readline(longest + 1):
        if len(line) > longest:
            raise CorruptCheckpoint(f"has a line of more than {longest} bytes, which ckptconv did not write", url=path)
        yield line


class AppendLog:
    """The open file; StorageError with the text `busy` where another run has it, and for what is not a file of ours."""

    def __init__(self, path: str, busy: str, mode: int = 0o666) -> None:
        self.path = path
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            # durable lines are of this run only: a file that a stranger laid here is neither read nor written
            self._fd = own.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
        except OSError as e:
            raise refused(e, path) from e
        try:
            self._lock(busy)
        except BaseException:
            self.close()
            raise

    def _lock(self, busy: str) -> None:
        try:
            alone = own.lock(self._fd)
        except OSError as e:
            why = f"this file system has no locks ({(e.strerror or str(e)).lower()}), so that two runs could meet here"
            raise StorageError(why, url=self.path) from e
        if not alone:
            raise StorageError(busy, url=self.path)

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self._fd).st_size

    @property
    def number(self) -> int:
        """The number of the file (inode), which nobody can predict who sends it; it stays as the file grows."""
        return os.fstat(self._fd).st_ino

    @property
    def identity(self) -> own.Identity:
        """Its device and its number."""
        return [os.fstat(self._fd).st_dev, self.number]

    def read(self, longest: int = LONGEST) -> Iterator[bytes]:
        """The lines of the file, each with its end but perhaps the last one."""
        with open(self._fd, "rb", closefd=False) as f:
            f.seek(0)
            yield from lines(f, self.path, longest)

    def read_at(self, start: int, size: int) -> bytes:
        """Up to so many bytes from a place on."""
        try:
            return os.pread(self._fd, size, start)
        except OSError as e:
            raise refused(e, self.path) from e

    def cut(self, size: int) -> None:
        """Forget what lies behind the first `size` bytes."""
        os.ftruncate(self._fd, size)

    def append(self, lines: bytes) -> None:
        """Write lines and make them durable; StorageError if not all can be, and then none is there."""
        before = os.fstat(self._fd).st_size
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fsync(self._fd)
        except OSError as e:
            with suppress(OSError):
                os.ftruncate(self._fd, before)
            raise refused(e, self.path) from e

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


__all__ = ["AppendLog", "lines"]
