"""A file of JSON lines that one process appends to: locked, so that two runs cannot share it, and durable line by line.

The journal of a conversion and the ledger of a zoo are such files. A kill leaves at most one unfinished line.
"""

from __future__ import annotations

import os

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
            self._file = os.fdopen(own.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode), "a+b")
        except OSError as e:
            raise refused(e, path) from e
        try:
            self._lock(busy)
        except BaseException:
            self.close()
            raise

    def _lock(self, busy: str) -> None:
        try:
            alone = own.lock(self._file.fileno())
        except OSError as e:
            why = f"this file system has no locks ({(e.strerror or str(e)).lower()}), so that two runs could meet here"
            raise StorageError(why, url=self.path) from e
        if not alone:
            raise StorageError(busy, url=self.path)

    def read(self) -> bytes:
        """The content of the file."""
        self._file.seek(0)
        return self._file.read()

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes."""
        self._file.truncate(size)

    def append(self, lines: bytes) -> None:
        """Write lines and make them durable."""
        try:
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as e:
            raise refused(e, self.path) from e

    def close(self) -> None:
        self._file.close()


__all__ = ["AppendLog"]
