"""Divide `max_memory` among workers."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from .log import CHUNK

WINDOW = 8 * 2**20  # bytes of a copy that a worker holds
WHOLE = 32 * 2**20  # bytes of a tensor with a layout change that is moved at once
BASE_MEMORY = 64 * 2**20  # bytes that the interpreter and the libraries need in addition to --max-memory


@dataclass(frozen=True)
class Budget:
    """`max_memory` in bytes, divided: each worker needs a window for the target and one for the source."""

    limit: int
    workers: int
    window: int
    whole: int

    @classmethod
    def of(cls, limit: int, workers: int) -> Budget:
        """Divide `limit` bytes among workers; UsageError if it is less than 16 MB."""
        if limit < 16_000_000:
            raise UsageError("max_memory= must be at least 16MB")
        workers = max(1, min(workers, limit // (12 * 2**20)))
        share = limit // workers
        window = max(CHUNK, min(WINDOW, share // 3) // CHUNK * CHUNK)
        whole = max(window, min(WHOLE, share // 3) // CHUNK * CHUNK)
        return cls(limit, workers, window, whole)
