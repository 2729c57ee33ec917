"""A file of JSON lines that one process appends to: locked, so that two runs cannot share it, and durable line by line.

The journal of a conversion and the ledger of a zoo are such files. A kill leaves at most one unfinished line.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ..errors import StorageError
from ..storage.faults import refused
from . import own


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

    def read(self) -> bytes:
        """The content of the file."""
        with open(self._fd, "rb", closefd=False) as f:
            f.seek(0)
            return f.read()

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


__all__ = ["AppendLog"]
