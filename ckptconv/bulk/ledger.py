"""The ledger of a zoo: JSON lines beside the outputs, appended by one process only, each batch in one durable write.

    {"at": "a/m.safetensors", "state": "planned", "source": "/in/a/m.h5", "files": [...], "options": "5f..."}
    {"at": "a/m.safetensors", "state": "done", ..., "format": "keras", "tensors": 12, "size": 4096, "seconds": 0.01}
    {"at": "b/x.safetensors", "state": "failed", ..., "error": "CorruptCheckpoint", "message": "..."}

The first line holds the number of the file (inode): {"at":"","file":1234}. Whoever sends a folder with a ledger in it
does not know which number it gets here, so that a ledger with another one is not believed. The device is not compared:
network file systems, and some others, have another one after each start and on each machine.

The last line about an output counts. `planned` is written before the output is touched, so that an output without a
line was not written by ckptconv and is never replaced; `done` is written when the output is durable. A last line that
a kill left incomplete is ignored.
"""

from __future__ import annotations

import io
import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

from ..errors import CorruptCheckpoint, StorageError
from ..output import own
from ..output.own import AppendLog, lines
from ..storage.faults import refused
from ..storage.files import is_remote, local, read_all
from .remarks import MOST, Remark

NAME = ".ckptconv-zoo.jsonl"
LEDGERS = NAME.replace(".jsonl", "*.jsonl")  # of all shares
BEGIN = b'{"at":"'  # of every line
HEAD = re.compile(rb'\{"at":"","file":(\d{1,20})\}\n')
STRANGE = (
    "this ledger was not written here: it was copied, moved to another disk or unpacked, an earlier version wrote it, "
    "or the file system has given it another number; it may say anything of the files beside it; force=True converts "
    "everything again"
)
AT = re.compile(rb'\{"at":"([^"\\]*)","state":')
REMARKS = b'"remarks":'  # in a text its quotes would be escaped
BROKEN = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
BATCH = 10_000  # lines that are written together
CHUNK = 2**20
LARGEST = 2**30  # bytes of a ledger elsewhere
MANY = 2**24  # outputs in a ledger that is read
WORD = 100  # characters of a format or of an error's class
COUNT = 2**63  # no number of a ledger is as large


EntryState = Literal["planned", "done", "failed"]


class LedgerEntry(NamedTuple):
    """One line: an output (its path below the output folder), its state, its source and its result."""

    at: str
    state: EntryState
    source: str
    files: tuple[tuple[str, int, int], ...]  # name, size, mtime in ns or a hash of the ETag
    options: str
    ours: bool = False  # the output did not exist when it was planned, or ckptconv wrote it: it may be replaced
    hash: str = ""  # of all bytes of all source files
    format: str = ""
    tensors: int = 0
    size: int = 0
    seconds: float = 0.0
    written: tuple[tuple[str, int, int], ...] = ()  # path below the output folder, size, mtime (0: not known)
    proof: str = ""  # a hash of all bytes written, if all of them were verified
    error: str = ""
    message: str = ""
    ended: int = 0  # seconds since 1970 when it was done or failed
    asked: str = ""  # a hash of what a url asks for and `source` does not show
    remarks: tuple[Remark, ...] = ()  # what was left out or changed

    def line(self) -> bytes:
        values = {k: v for k, v in self._asdict().items() if v or k == "files"}
        return json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"

    @classmethod
    def of(cls, values: dict[str, Any]) -> LedgerEntry:
        """The entry of a line."""
        values["files"] = tuple([(str(n), int(s), int(t)) for n, s, t in values["files"]])
        values["written"] = tuple([(str(n), int(s), int(*t)) for n, s, *t in values.get("written", ())])
        values["remarks"] = tuple([Remark.read(*r) for r in values.get("remarks", ())])
        made = cls(**values)
        if not all(isinstance(v, t) and isinstance(v, bool) == (t is bool) for v, t in zip(made, TYPES, strict=True)):
            raise TypeError("a value of another type")
        numbers = (made.tensors, made.size, made.seconds, made.ended, *(s for _, s, *_ in (*made.files, *made.written)))
        sound = made.state in STATES and all(0 <= n < COUNT for n in numbers)
        sound = sound and max(len(made.format), len(made.error)) <= WORD and len(made.remarks) <= MOST
        if not sound or not all(is_below(name) for name in (made.at, *(n for n, _, _ in made.written))):
            raise ValueError("a value that no run writes")
        return made


STATES = get_args(EntryState)


def is_below(at: str) -> bool:
    """Whether a path is one below a folder, as it is spelled."""
    return bool(at) and at[0] != "/" and "\0" not in at and ".." not in at.split("/")


TYPES = tuple((int, float) if isinstance(v, float) else type(v) for v in LedgerEntry("", "done", "", (), ""))


def head(number: int) -> bytes:
    """The first line of a ledger in the file of this number."""
    return b'{"at":"","file":%d}\n' % number


class Entries(Mapping[str, LedgerEntry]):
    """The last entry of each output: kept is where its line begins, and the line is read when it is asked for.

    read: gives up to so many bytes of the file from a place on. number: the file's, 0 for one elsewhere. A line that is
    not an entry of the ledger is a CorruptCheckpoint, found when its entry is asked for, or at once if it does not
    even begin like one.
    """

    def __init__(self, path: str, read: Callable[[int, int], bytes], number: int = 0) -> None:
        self._path, self._read, self._number = path, read, number
        self._places: dict[str, int] = {}
        self.remarked = set[str]()  # those whose line has remarks
        self._named: int | None = None  # the number in the first line, 0 if there is none; None of an empty file

    @property
    def strange(self) -> StorageError | None:
        """The error if they are of a ledger that was not written here."""
        ours = self._named is None or 0 != self._number == self._named
        return None if ours else StorageError(STRANGE, url=self._path)

    def add(self, raw: Iterable[bytes], start: int = 0) -> bytes:
        """Note the entries of lines that begin at this byte of the file; returns the last one if its end is missing."""
        for number, line in enumerate(raw, 1):
            if not line.endswith(b"\n"):
                if line[: len(BEGIN)] != BEGIN[: len(line)]:
                    raise CorruptCheckpoint("the last line of the ledger is damaged", url=self._path)
                return line
            if start == 0:
                first = HEAD.fullmatch(line)
                self._named = int(first[1]) if first else 0
                if first:
                    start = len(line)
                    continue
            try:
                self._places[at := _at(line)] = start
            except BROKEN:
                raise self._damaged(number) from None
            (self.remarked.add if REMARKS in line else self.remarked.discard)(at)
            start += len(line)
            if len(self._places) > MANY:
                raise CorruptCheckpoint(f"has more than {MANY} outputs", url=self._path)
        return b""

    def __getitem__(self, at: str) -> LedgerEntry:
        start, size = self._places[at], 2**11
        while b"\n" not in (raw := self._read(start, size)) and len(raw) == size:
            size *= 4
        try:
            entry = LedgerEntry.of(json.loads(raw.partition(b"\n")[0].decode()))
            if entry.at == at:
                return entry
        except BROKEN:
            pass
        before = (self._read(k, min(CHUNK, start - k)) for k in range(0, start, CHUNK))
        raise self._damaged(1 + sum(raw.count(b"\n") for raw in before))

    def _damaged(self, number: int) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"line {number} of the ledger is damaged", url=self._path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, at: object) -> bool:
        return at in self._places


def _at(line: bytes) -> str:
    """The output that a line is about."""
    at = m[1].decode() if (m := AT.match(line)) else json.loads(line)["at"]
    if not isinstance(at, str) or not is_below(at):
        raise TypeError("not a path")
    return at


class Ledger:
    """The last entry of each output, and the open file to append to; locked, so that two runs cannot share it."""

    def __init__(self, path: str, *, resume: bool, force: bool = False) -> None:
        """resume: an earlier run's may be there. force: also one that was not written here; it is begun anew."""
        self.path = path
        self._lines = AppendLog(path, "another run is using this folder", 0o600)
        self.entries = Entries(path, self._lines.read_at, self._lines.number)
        try:
            self._load(resume or force, force)
        except BaseException:  # an interrupt also releases the lock
            self.close()
            raise

    def _load(self, resume: bool, force: bool) -> None:
        if self._lines.size and not resume:
            raise StorageError("an earlier conversion has a ledger here; resume=True continues it", url=self.path)
        torn = self.entries.add(self._lines.read())
        if torn:  # killed during a write: drop the incomplete line
            self._lines.cut(self._lines.size - len(torn))
        if strange := self.entries.strange:
            if not force:
                raise strange
            self._lines.cut(0)
            self.entries = Entries(self.path, self._lines.read_at, self._lines.number)

    @staticmethod
    def read(path: str) -> Entries:
        """The last entry of each output, without locking or changing the file."""
        if is_remote(path):
            whole = read_all(path, LARGEST)
            entries = Entries(path, lambda start, size: whole[start : start + size])
            entries.add(lines(io.BytesIO(whole), path))
            return entries
        try:  # a link, a pipe or another user's file is not the ledger of a run of ours
            fd = own.open_file(local(path), os.O_RDONLY)
        except OSError as e:
            raise refused(e, path) from e
        entries = Entries(path, lambda start, size: os.pread(fd, size, start), os.fstat(fd).st_ino)
        weakref.finalize(entries, os.close, fd)
        with open(fd, "rb", closefd=False) as f:
            entries.add(lines(f, path))
        return entries

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Write entries and make them durable."""
        remaining = iter(entries)
        while some := [e.line() for e in islice(remaining, BATCH)]:
            start = self._lines.size
            if start == 0:
                some.insert(0, head(self._lines.number))
            self._lines.append(b"".join(some))
            self.entries.add(some, start)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
