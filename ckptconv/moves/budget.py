"""How `--max-memory` is spent."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from .log import CHUNK

WINDOW = 8 * 2**20  # bytes a worker holds of a copy
WHOLE = 32 * 2**20  # bytes of a tensor with a layout change that is moved in one go
CONSTANT = 64 * 2**20  # what the interpreter and the libraries need beside --max-memory


@dataclass(frozen=True)
class Budget:
    """How `--max-memory` is spent: a worker needs a window for the target and one for the source."""

    limit: int
    workers: int
    window: int
    whole: int

    @classmethod
    def of(cls, limit: int, workers: int) -> Budget:
        """Split `limit` bytes; UsageError if it is too little to work with."""
        if limit < 16_000_000:
            raise UsageError("max_memory= must be at least 16MB")
        workers = max(1, min(workers, limit // (12 * 2**20)))
        share = limit // workers
        window = max(CHUNK, min(WINDOW, share // 3) // CHUNK * CHUNK)
        whole = max(window, min(WHOLE, share // 3) // CHUNK * CHUNK)
        return cls(limit, workers, window, whole)
