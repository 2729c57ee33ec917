"""A file of JSON lines that one process appends to: locked, so that two runs cannot share it, and durable line by line.

The journal of a conversion and the ledger of a zoo are such files. A kill leaves at most one unfinished line.
"""

from __future__ import annotations

import os

from ..errors import StorageError
from ..storage.faults import refused
from . import publish


class Lines:
    """The open file; StorageError saying that it is `busy` where another run has it."""

    def __init__(self, path: str, busy: str) -> None:
        self.path = path
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115 - closed by close()
        except OSError as e:
            raise refused(e, path) from e
        if not publish.lock(self._file.fileno()):
            self.close()
            raise StorageError(busy, url=path)

    def read(self) -> bytes:
        """All that is in it."""
        self._file.seek(0)
        return self._file.read()

    def cut(self, size: int) -> None:
        """Forget what lies behind the first `size` bytes."""
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


__all__ = ["Lines"]
