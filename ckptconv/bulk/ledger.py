"""The ledger of a zoo: JSON lines beside the outputs, appended by one process only, each batch in one durable write.

    {"at": "a/m.safetensors", "state": "planned", "source": "/in/a/m.h5", "files": [...], "options": "5f..."}
    {"at": "a/m.safetensors", "state": "done", ..., "format": "keras", "tensors": 12, "size": 4096, "seconds": 0.01}
    {"at": "b/x.safetensors", "state": "failed", ..., "error": "CorruptCheckpoint", "message": "..."}

The last line about an output counts. `planned` is written before the output is touched, so that an output without a
line was not written by ckptconv and is never replaced; `done` is written when the output is durable. A last line that
a kill left incomplete is ignored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from ..errors import CorruptCheckpoint, StorageError
from ..output.append_log import AppendLog, lines
from ..storage.files import fileobj

NAME = ".ckptconv-zoo.jsonl"
BEGIN = b'{"at":"'  # of every line


EntryState = Literal["planned", "done", "failed"]


class LedgerEntry(NamedTuple):
    """One line: an output (its path below the output folder), its state, its source and its result."""

    at: str
    state: EntryState
    source: str
    files: tuple[tuple[str, int, int], ...]  # name, size, mtime in ns
    options: str
    ours: bool = False  # the output did not exist when it was planned, or ckptconv wrote it: it may be replaced
    hash: str = ""  # of all bytes of all source files
    format: str = ""
    tensors: int = 0
    size: int = 0
    seconds: float = 0.0
    written: tuple[tuple[str, int], ...] = ()  # path below the output folder, size
    proof: str = ""  # a hash of all bytes written, if all of them were verified
    error: str = ""
    message: str = ""

    def line(self) -> bytes:
        values = {k: v for k, v in self._asdict().items() if v or k == "files"}
        return json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"

    @classmethod
    def of(cls, values: dict[str, Any]) -> LedgerEntry:
        """The entry of a line; equal texts of entries are one object, since a zoo has millions of them."""
        at = values["at"]
        values["files"] = tuple((str(n), int(s), int(t)) for n, s, t in values["files"])
        values["written"] = tuple((at if n == at else str(n), int(s)) for n, s in values.get("written", ()))
        for key in SHARED & values.keys():
            values[key] = sys.intern(values[key])
        made = cls(**values)
        if not all(map(isinstance, made, TYPES)):
            raise TypeError("a value of another type")
        return made


SHARED = {"state", "options", "format", "error"}
TYPES = tuple((int, float) if isinstance(v, float) else type(v) for v in LedgerEntry("", "done", "", (), ""))


def _parse(raw: Iterable[bytes], path: str) -> tuple[dict[str, LedgerEntry], bytes]:
    """The last entry of each output, and the last line if its end is missing."""
    entries: dict[str, LedgerEntry] = {}
    for number, line in enumerate(raw, 1):
        if not line.endswith(b"\n"):
            return entries, line
        try:
            entry = LedgerEntry.of(json.loads(line))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise CorruptCheckpoint(f"line {number} of the ledger is damaged", url=path) from None
        entries[entry.at] = entry
    return entries, b""


class Ledger:
    """The last entry of each output, and the open file to append to; locked, so that two runs cannot share it."""

    def __init__(self, path: str, *, resume: bool) -> None:
        self.path = path
        self.entries: dict[str, LedgerEntry] = {}
        self._lines = AppendLog(path, "another run is using this folder", 0o600)
        try:
            self._load(resume)
        except BaseException:  # an interrupt also releases the lock
            self.close()
            raise

    def _load(self, resume: bool) -> None:
        if self._lines.size and not resume:
            raise StorageError("an earlier conversion has a ledger here; resume=True continues it", url=self.path)
        self.entries, torn = _parse(self._lines.read(), self.path)
        if torn[: len(BEGIN)] != BEGIN[: len(torn)]:
            raise CorruptCheckpoint("the last line of the ledger is damaged", url=self.path)
        if torn:  # killed during a write: drop the incomplete line
            self._lines.cut(self._lines.size - len(torn))

    @staticmethod
    def read(path: str) -> dict[str, LedgerEntry]:
        """The last entry of each output, without locking or changing the file."""
        with fileobj(path) as f:
            return _parse(lines(f, path), path)[0]

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Write a batch and make it durable."""
        entries = list(entries)
        if not entries:
            return
        self._lines.append(b"".join(e.line() for e in entries))
        self.entries.update((e.at, e) for e in entries)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
