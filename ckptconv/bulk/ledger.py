"""The ledger of a zoo: JSON lines next to the outputs, appended by one process only, each batch in one durable write.

    {"at": "a/m.safetensors", "state": "planned", "source": "/in/a/m.h5", "files": [...], "options": "5f..."}
    {"at": "a/m.safetensors", "state": "done", ..., "format": "keras", "tensors": 12, "size": 4096, "seconds": 0.01}
    {"at": "b/x.safetensors", "state": "failed", ..., "error": "CorruptCheckpoint", "message": "..."}

The first line holds the inode number of the file: {"at":"","file":1234}. The sender of a folder with a ledger in it
cannot know the number that it gets here, so a ledger with another number is not trusted. The device is not compared,
since it changes between starts and machines on network file systems and some others.

The last line about an output counts. `planned` is written before the output is touched, so an output without a line was
not written by ckptconv and is never replaced; `done` is written when the output is durable. An incomplete last line,
after a kill, is ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

from ..errors import CorruptCheckpoint, StorageError
from ..output import own
from ..output.own import AppendLog, lines
from ..storage.faults import refused
from ..storage.files import local

NAME = ".ckptconv-zoo.jsonl"
LEDGERS = NAME.replace(".jsonl", "*.jsonl")  # of all shares
BEGIN = b'{"at":"'  # every line begins so
HEAD = re.compile(rb'\{"at":"","file":(\d{1,20})\}\n')
STRANGE = (
    "this ledger was not written here: it was copied, moved to another disk or unpacked, an earlier version wrote it, "
    "or the file system has given it another number; it may be wrong about the files next to it; force=True converts "
    "everything again"
)
BROKEN = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
KINDS = ("damaged", "lossy", "assumed", "skipped", "unread", "dropped", "hint")  # of remarks, the most serious first
MOST, LONGEST = 10, 300  # remarks on one conversion, and characters of each of their texts


class Remark(NamedTuple):
    """Something that a conversion left out or changed: its kind, the cause, and what it concerns, such as names."""

    kind: str
    text: str
    what: str


EntryState = Literal["done", "failed", "planned"]
STATES = get_args(EntryState)


class LedgerEntry(NamedTuple):
    """One line: an output (its path below the output folder), its state, its source and its result."""

    at: str
    state: EntryState
    source: str
    files: tuple[tuple[str, int, int], ...]  # name, size, mtime in ns or a hash of the ETag
    options: str = ""  # a hash; none if the options themselves are wrong
    ours: bool = False  # the output did not exist when it was planned, or ckptconv wrote it: it may be replaced
    hash: str = ""  # of all bytes of all source files
    format: str = ""
    tensors: int = 0
    size: int = 0
    seconds: float = 0.0
    written: tuple[tuple[str, int, int], ...] = ()  # path below the output folder, size, mtime
    proof: str = ""  # a hash of all bytes written, if all of them were verified
    error: str = ""
    message: str = ""
    ended: int = 0  # seconds since 1970 when it was done or failed
    remarks: tuple[Remark, ...] = ()  # what was left out or changed

    def line(self) -> bytes:
        values = {k: v for k, v in self._asdict().items() if v or k == "files"}
        return json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"

    @classmethod
    def of(cls, values: dict[str, Any]) -> LedgerEntry:
        """Make the entry of a line."""
        values["files"] = tuple([(str(n), int(s), int(t)) for n, s, t in values["files"]])
        values["written"] = tuple([(str(n), int(s), int(t)) for n, s, t in values.get("written", ())])
        values["remarks"] = tuple([Remark(*map(str, r)) for r in values.get("remarks", ())])
        made = cls(**values)
        if not all(isinstance(v, t) and isinstance(v, bool) == (t is bool) for v, t in zip(made, TYPES, strict=True)):
            raise TypeError("a value of another type")
        paths = (made.at, *(n for n, _, _ in made.written))
        kinds = (r.kind for r in made.remarks)
        if made.state not in STATES or not all(map(is_below, paths)) or not all(map(KINDS.__contains__, kinds)):
            raise ValueError("a value that no run writes")
        return made


def is_below(at: str) -> bool:
    """Tell by its spelling whether a path stays below a folder."""
    return bool(at) and at[0] != "/" and "\0" not in at and ".." not in at.split("/")


TYPES = tuple((int, float) if isinstance(v, float) else type(v) for v in LedgerEntry("", "done", "", (), ""))


class Ledger:
    """The last entry of each output, and the open file to append to; locked, so that two runs cannot share it."""

    def __init__(self, path: str, *, resume: bool, force: bool = False) -> None:
        """resume: accept the ledger of an earlier run. force: replace a ledger that was not written here."""
        self.path = path
        self._lines = AppendLog(path, "another run is using this folder")
        try:
            if self._lines.size and not (resume or force):
                how = "resume=True continues it, force=True starts over"
                raise StorageError(f"holds the results of an earlier run; {how}", url=path)
            self.entries, torn, is_ours = _parsed(self._lines.read(), path, self._lines.number)
            if not (is_ours or force):
                raise StorageError(STRANGE, url=path)
            self._lines.cut(self._lines.size - len(torn) if is_ours else 0)  # a kill during a write leaves half a line
            self.entries = self.entries if is_ours else {}
        except BaseException:  # an interrupt also releases the lock
            self.close()
            raise

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Write entries and make them durable."""
        new = {e.at: e for e in entries}
        head = b"" if self._lines.size or not new else b'{"at":"","file":%d}\n' % self._lines.number
        self._lines.append(head + b"".join(e.line() for e in new.values()))
        self.entries |= new

    def close(self) -> None:
        self._lines.close()


def read(path: str) -> tuple[dict[str, LedgerEntry], bool]:
    """Read the last entry of each output, and whether the ledger was written here, without locking it."""
    try:  # a link, a pipe or another user's file is not the ledger of a run of ours
        fd = own.open_file(local(path), os.O_RDONLY)
    except OSError as e:
        raise refused(e, path) from e
    with open(fd, "rb") as f:
        entries, _, is_ours = _parsed(lines(f, path), path, os.fstat(fd).st_ino)
    return entries, is_ours


def _parsed(raw: Iterable[bytes], path: str, number: int) -> tuple[dict[str, LedgerEntry], bytes, bool]:
    """Return the last entry of each output, an incomplete last line, and whether the first line has this number."""
    entries: dict[str, LedgerEntry] = {}
    is_ours, k = True, 0
    try:
        for k, line in enumerate(raw, 1):
            if not line.endswith(b"\n"):
                if line[: len(BEGIN)] != BEGIN[: len(line)]:
                    raise CorruptCheckpoint("the last line of the ledger is damaged", url=path)
                return entries, line, is_ours
            head = HEAD.fullmatch(line) if k == 1 else None
            is_ours = is_ours if k > 1 else head is not None and 0 != number == int(head[1])
            if not head:
                entry = LedgerEntry.of(json.loads(line))
                entries[entry.at] = entry
    except BROKEN:
        raise CorruptCheckpoint(f"line {k} of the ledger is damaged", url=path) from None
    return entries, b"", is_ours
