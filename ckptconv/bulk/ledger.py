"""The ledger of a zoo: JSON lines beside the outputs, appended by one process only, each batch in one durable write.

    {"at": "a/m.safetensors", "state": "planned", "source": "/in/a/m.h5", "files": [...], "options": "5f..."}
    {"at": "a/m.safetensors", "state": "done", ..., "format": "keras", "tensors": 12, "size": 4096, "seconds": 0.01}
    {"at": "b/x.safetensors", "state": "failed", ..., "error": "CorruptCheckpoint", "message": "..."}

The last line about an output counts. `planned` is written before the output is touched, so that an output with no line
here is a stranger's and never replaced; `done` after it is durable. A line that a kill left unfinished is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import CorruptCheckpoint, StorageError
from ..output.append_log import Lines
from ..storage.files import Reader

NAME = ".ckptconv-zoo.jsonl"
BEGIN = b'{"at":"'  # of every line


class Entry(NamedTuple):
    """One line: an output (its path below the zoo), its state, where it comes from, and what became of it."""

    at: str
    state: str  # planned, done, failed
    source: str
    files: tuple[tuple[str, int, int], ...]  # name, size, mtime in ns
    options: str
    ours: bool = False  # nothing was there when it was planned, or we wrote it: it may be replaced
    hash: str = ""  # of all bytes of all source files
    format: str = ""
    tensors: int = 0
    size: int = 0
    seconds: float = 0.0
    written: tuple[tuple[str, int], ...] = ()  # name below the zoo, size
    proof: str = ""  # a hash of all bytes written, where they were verified whole
    error: str = ""
    message: str = ""

    def line(self) -> bytes:
        kept = {k: v for k, v in self._asdict().items() if v or k == "files"}
        return json.dumps(kept, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"

    @classmethod
    def of(cls, made: dict[str, Any]) -> Entry:
        made["files"] = tuple((str(n), int(s), int(t)) for n, s, t in made["files"])
        made["written"] = tuple((str(n), int(s)) for n, s in made.get("written", ()))
        return cls(**made)


def _parse(raw: bytes, path: str) -> dict[str, Entry]:
    entries = {}
    for number, line in enumerate(raw.split(b"\n")[:-1], 1):
        try:
            entry = Entry.of(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise CorruptCheckpoint(f"line {number} of the ledger is damaged", url=path) from None
        entries[entry.at] = entry
    return entries


class Ledger:
    """The last entry of each output, and the open file to append to; locked, so that two runs cannot share it."""

    def __init__(self, path: str, *, resume: bool) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self._lines = Lines(path, "another run is at work in this folder")
        try:
            self._load(resume)
        except BaseException:  # an interrupt, too, lets the lock go
            self.close()
            raise

    def _load(self, resume: bool) -> None:
        raw = self._lines.read()
        if raw and not resume:
            raise StorageError("a zoo was converted here before; resume=True goes on with it", url=self.path)
        self.entries = _parse(raw, self.path)
        torn = raw[raw.rfind(b"\n") + 1 :]
        if torn[: len(BEGIN)] != BEGIN[: len(torn)]:
            raise CorruptCheckpoint("the last line of the ledger is damaged", url=self.path)
        if torn:  # killed while it wrote: forget that line
            self._lines.cut(len(raw) - len(torn))

    @staticmethod
    def read(path: str) -> dict[str, Entry]:
        """The last entry of each output, without locking or changing anything."""
        with Reader(path) as f:
            return _parse(f.read(0, f.size), path)

    def append(self, entries: Iterable[Entry]) -> None:
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
