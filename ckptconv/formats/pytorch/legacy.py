"""What torch.save wrote before 1.6: a stream of pickles and storages; and, before 0.1.10, a tar.

    pickle 0x1950a86a20f9469cfc6c      the magic number: 80 02 8a 0a 6c fc 9c 46 f9 20 6a a8 50 19 2e
    pickle 1001                        the protocol
    pickle {"little_endian": True, "protocol_version": 1001, "type_sizes": {...}}
    pickle of the object               a storage is ("storage", class, key, location, numel, view)
    pickle ["140234", ...]             the storages' keys, in the order in which they follow
    i64 numel, numel x itemsize bytes  each, without padding

A view is None or (key, offset, numel): a part of the storage, from which the tensor's offset counts. Big-endian
machines wrote little-endian as well, and only noted what they are.
Specification: torch/serialization.py (_legacy_save, _legacy_load).

torch.save before 0.1.10: a tar of four members.

    sys_info    pickle {"little_endian": True, ...}
    storages    pickle n; n x [pickle (key, location, class), i64 numel, the elements];
                pickle [(view key, root key, offset, numel), ...]
    tensors     pickle m; m x [pickle (key, storage key, class), i32 ndim, 4 bytes, ndim x i64 size,
                ndim x i64 stride, i64 offset]
    pickle      the object; a tensor or storage is its key as a persistent id

Extended headers with times of day stand between them, which say nothing else. All is little-endian for torch.
Specification: torch/serialization.py (legacy_load), POSIX.1-2001 pax.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ...messages import printable
from ...moves.part import Span
from ...storage.files import Reader, Seen
from ..table import Reading
from .flatten import checkpoint
from .globals import TORCH
from .pickle import Truncated, load_some
from .tensors import Storage, StorageType, rebuild
from .values import shown

MAGIC = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\.", re.DOTALL)
PROTOCOL = 1001
FIRST = 2**20  # bytes read at first for the pickles; four times as much each time it does not suffice


def sniff(seen: Seen) -> int:

    return 3 if MAGIC.match(seen.head) or is_tar(seen.head) else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        if not MAGIC.match(f.read(0, min(f.size, 32))):
            return open_tar(f, how)
        stream = _Stream(f, how.opaque)
        _, protocol, system = stream.pickle(), stream.pickle(), stream.pickle()
        if protocol != PROTOCOL or type(system) is not dict or type(system.get("little_endian")) is not bool:
            raise CorruptCheckpoint(f"its protocol is {shown(protocol)}, its system {shown(system)}", url=url)
        start, storages = stream.at, Storages(url)  # their bytes are little-endian, whatever the system was
        stream.pickle(storages)  # which storages there are; where they lie comes after
        size, keys = stream.at - start, stream.pickle()
        if type(keys) is not list or not all(type(k) is str for k in keys):
            raise CorruptCheckpoint("the list of storage keys is damaged", url=url)
        left = f.size - storages.place(f, stream.at, keys, salvage=how.salvage)
        notes = [Note("unread", f"{left} bytes that follow the last storage")] if left > 0 else []
        stream.at = start
        return checkpoint(stream.pickle(storages), size, how, url=url, format="torch-legacy", notes=notes)


class _Stream:
    """Pickles one after the other, whose lengths are known only when they are read."""

    def __init__(self, f: Reader, opaque: bool) -> None:
        self.f, self.opaque = f, opaque
        self.at = 0
        self.window, self.first = b"", 0

    def pickle(self, persistent: Any = None) -> Any:
        """Interpret the next pickle, with as much of the file as it takes."""
        size = max(FIRST, len(self.window))
        while True:
            size = min(size, self.f.size - self.at)
            if not self.first <= self.at <= self.at + size <= self.first + len(self.window):
                self.first, self.window = self.at, self.f.read(self.at, size)
            whole = self.first + len(self.window) == self.f.size
            try:
                value, end = load_some(
                    self.window, self.at - self.first, allowed=TORCH, persistent_load=persistent,
                    opaque=self.opaque, url=self.f.url, partial=not whole,
                )  # fmt: skip
            except Truncated:
                size *= 4
                continue
            self.at = self.first + end
            return value


class Storages:
    """The storages that the object names: collected in a first pass, resolved in a second."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.types: dict[str, tuple[StorageType, int]] = {}
        self.placed: dict[str, Storage] = {}
        self.parts: dict[str, tuple[str, int, int]] = {}  # the views of storages, by their own keys
        self.made: dict[str, Storage] = {}

    def __call__(self, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
            return pid[1]
        if type(pid) is not tuple or len(pid) != 6 or pid[0] != "storage":
            raise CorruptCheckpoint(f"a persistent id is {shown(pid)}, not a storage", url=self.url)
        _, kind, key, _, count, view = pid
        key = str(key) if type(key) is int else key
        if type(kind) is not StorageType or type(key) is not str or type(count) is not int or count < 0:
            raise CorruptCheckpoint(f"a storage is described by {shown(pid)}", url=self.url)
        if self.types.setdefault(key, (kind, count)) != (kind, count):
            raise CorruptCheckpoint(f"the storage {printable(key)} is described in two ways", url=self.url)
        whole = self.placed.get(key) or Storage(kind, key, None, -(-count * kind.bits // 8))
        return whole if view is None else self._part(whole, count, view)

    def _part(self, whole: Storage, count: int, view: Any) -> Storage:
        """A view of a storage: elements offset to offset + size of it."""
        if type(view) is not tuple or len(view) != 3 or type(view[1]) is not int or type(view[2]) is not int:
            raise CorruptCheckpoint(f"a part of a storage is described by {shown(view)}", url=self.url)
        own, offset, size = view
        if offset < 0 or size < 0 or offset + size > count:
            raise CorruptCheckpoint(
                f"a part of a storage is elements {offset} to {offset + size} of {count}", url=self.url
            )
        own, place = str(own) if type(own) is int else own, (whole.key, offset, size)
        if type(own) is not str or own in self.types or self.parts.setdefault(own, place) != place:
            raise UnsafeCheckpoint(f"the part {shown(own)} of a storage is described in two ways", url=self.url)
        part = whole._replace(size=size * whole.type.bits // 8, start=offset)
        return part if whole.data is None else self.made.setdefault(own, part)

    def place(self, f: Reader, at: int, keys: list[str], *, salvage: bool = False) -> int:
        """Walk over the storages that follow the pickles; return where they end. What follows torch does not read.

        With `salvage`, storages behind the end of the file are not an error here but when one of them is read.
        """
        for key in keys:
            if key not in self.types or key in self.placed:
                raise CorruptCheckpoint(f"the storage {printable(key)} is listed, but not once used", url=f.url)
            kind, count = self.types[key]
            cut = salvage and at + 8 > f.size
            found = count if cut else int.from_bytes(f.read(at, 8), "little", signed=True)
            if found != count:
                raise CorruptCheckpoint(
                    f"the storage {printable(key)} has {found} elements where {count} are due", url=f.url
                )
            size = -(-count * kind.bits // 8)
            if at + 8 + size > f.size and not salvage:
                raise CorruptCheckpoint(
                    f"the storage {printable(key)} ends at byte {at + 8 + size} of {f.size} (truncated?)", url=f.url
                )
            self.placed[key] = Storage(kind, key, Span(f.url, at + 8, size), size)
            at += 8 + size
        missing = [k for k in self.types if k not in self.placed]
        if missing:
            raise CorruptCheckpoint(f"{len(missing)} storages are used but not there, {missing[0]!r} first", url=f.url)
        return at


BLOCK = 512
MEMBERS = frozenset({"sys_info", "storages", "tensors", "pickle"})
MAX_COUNT = 2**24


def is_tar(head: bytes) -> bool:
    """A tar whose first member, after an extended header, is one of ours."""
    if head[257:262] == b"ustar" and head[156:157] == b"x" and _octal(head[124:136].strip(b"\0 ")):
        head = head[BLOCK + -(-int(head[124:136].strip(b"\0 "), 8) // BLOCK) * BLOCK :]
    return head[257:262] == b"ustar" and head[:100].rstrip(b"\0").removeprefix(b"./").decode("latin1") in MEMBERS


def open_tar(f: Reader, how: Reading) -> Checkpoint:
    found = dict(_members(f))
    if set(found) != MEMBERS:
        raise CorruptCheckpoint(f"the tar holds {', '.join(sorted(found))}, not a checkpoint", url=f.url)
    start, size = found["sys_info"]
    system = _Cursor(f, start, size).pickle()
    if type(system) is not dict or system.get("little_endian") is False:
        raise CorruptCheckpoint("is of a big-endian machine, which torch does not read either", url=f.url)
    known = _storages(_Cursor(f, *found["storages"]))
    _tensors(_Cursor(f, *found["tensors"]), known)

    def find(pid: Any) -> Any:
        if type(pid) is tuple:
            return pid[1] if len(pid) == 4 and pid[0] == "module" else pid[0] if pid else None
        if type(pid) not in (str, int) or str(pid) not in known:
            raise CorruptCheckpoint(f"the object refers to {shown(pid)}, which is not there", url=f.url)
        return known[str(pid)]

    start, size = found["pickle"]
    root, end = load_some(f.read(start, size), allowed=TORCH, persistent_load=find, opaque=how.opaque, url=f.url)
    if end != size:
        raise UnsafeCheckpoint(f"{size - end} bytes follow the pickle of the object", url=f.url)
    return checkpoint(root, size, how, url=f.url, format="torch-legacy")


def _members(f: Reader) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and places of the tar's files."""
    at, seen = 0, set()
    while at + BLOCK <= f.size:
        head = f.read(at, BLOCK)
        if not head.strip(b"\0"):
            return
        name = head[:100].rstrip(b"\0").decode("latin1").removeprefix("./")
        digits = head[124:136].strip(b"\0 ")
        total = sum(head[:148]) + 8 * 32 + sum(head[156:])
        if head[257:262] != b"ustar" or not _octal(digits) or not _octal(head[148:156].strip(b"\0 ")):
            raise CorruptCheckpoint(f"the tar's header at byte {at} is damaged", url=f.url)
        if int(head[148:156].strip(b"\0 "), 8) != total:
            raise CorruptCheckpoint(f"the tar's header at byte {at} has a wrong checksum", url=f.url)
        size = int(digits, 8)
        if head[156:157] in (b"0", b"\0"):
            if name in seen:
                raise UnsafeCheckpoint(f"the tar holds {shown(name)} twice", url=f.url)
            if at + BLOCK + size > f.size:
                raise CorruptCheckpoint(f"the tar's member {shown(name)} is cut off", url=f.url)
            seen.add(name)
            yield name, (at + BLOCK, size)
        elif head[156:157] == b"x":
            _check_extended(f.read(at + BLOCK, min(size, f.size - at - BLOCK)), f.url)
        elif head[156:157] != b"5":
            raise UnsafeCheckpoint(f"the tar holds a link or device {shown(name)}", url=f.url)
        at += BLOCK + -(-size // BLOCK) * BLOCK


def _check_extended(header: bytes, url: str) -> None:
    """Refuse an extended header that gives more than times and owners: another name, size or link."""
    for line in header.splitlines():
        word = line.partition(b" ")[2].partition(b"=")[0]
        if word not in (b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"):
            raise UnsafeCheckpoint(f"the tar's extended header gives a member another {shown(word)}", url=url)


def _octal(digits: bytes) -> bool:
    return 0 < len(digits) <= 12 and all(c in b"01234567" for c in digits)


class _Cursor:
    """Reads pickles and numbers one after the other out of a member."""

    def __init__(self, f: Reader, start: int, size: int) -> None:
        self.f, self.at, self.end = f, start, start + size

    def pickle(self, most: int = 2**16) -> Any:
        window = self.f.read(self.at, min(self.end - self.at, most))
        try:
            partial = self.at + len(window) < self.end
            value, end = load_some(window, allowed=TORCH, url=self.f.url, partial=partial)
        except Truncated:
            return self.pickle(most * 256)
        self.at += end
        return value

    def numbers(self, code: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + code)
        self.skip(layout.size)
        return layout.unpack(self.f.read(self.at - layout.size, layout.size))

    def skip(self, size: int) -> None:
        if self.at + size > self.end:
            raise CorruptCheckpoint(f"the tar's member ends at {self.end}, {self.at + size} is needed", url=self.f.url)
        self.at += size

    def count(self) -> int:
        n = self.pickle()
        if type(n) is not int or not 0 <= n <= MAX_COUNT:
            raise CorruptCheckpoint(f"the tar holds {shown(n)} entries", url=self.f.url)
        return n


def _add(known: dict[str, Any], key: Any, value: Any, url: str) -> None:
    if known.setdefault(str(key), value) is not value:
        raise UnsafeCheckpoint(f"the tar holds two things with the key {shown(key)}", url=url)


def _storages(c: _Cursor) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _ in range(c.count()):
        key, _, kind = _triple(c)
        if type(kind) is not StorageType:
            raise CorruptCheckpoint(f"a storage of the class {shown(kind)}", url=c.f.url)
        (count,) = c.numbers("q")
        if count < 0:
            raise CorruptCheckpoint(f"a storage of {count} elements", url=c.f.url)
        size = -(-count * kind.bits // 8)
        start = c.at
        c.skip(size)
        _add(out, key, Storage(kind, str(key), Span(c.f.url, start, size), size), c.f.url)
    views = c.pickle()
    if type(views) is not list:
        raise CorruptCheckpoint("the list of storage views is damaged", url=c.f.url)
    for view in views:
        if type(view) is not tuple or len(view) != 4 or not all(type(n) is int and n >= 0 for n in view[2:]):
            raise CorruptCheckpoint(f"a storage view is {shown(view)}", url=c.f.url)
        key, root, offset, count = view
        if type(key) not in (str, int) or type(root) not in (str, int):
            raise CorruptCheckpoint(f"a storage view is {shown(view)}", url=c.f.url)
        whole = out.get(str(root))
        if whole is None or (offset + count) * whole.type.bits // 8 > whole.size:
            raise CorruptCheckpoint(f"a storage view reaches out of its storage: {shown(view)}", url=c.f.url)
        part = whole._replace(size=count * whole.type.bits // 8, start=whole.start + offset)
        _add(out, key, part, c.f.url)
    return out


def _tensors(c: _Cursor, known: dict[str, Any]) -> None:
    storages = dict(known)
    for _ in range(c.count()):
        key, storage, _ = _triple(c)
        (ndim, _) = c.numbers("i4s")
        if not 0 <= ndim <= 64:
            raise CorruptCheckpoint(f"a tensor of {ndim} dimensions", url=c.f.url)
        shape, strides = c.numbers(f"{ndim}q"), c.numbers(f"{ndim}q")
        (offset,) = c.numbers("q")
        if str(storage) not in storages:
            raise CorruptCheckpoint(f"a tensor of the storage {shown(storage)}, which is not there", url=c.f.url)
        try:
            _add(known, key, rebuild(storages[str(storage)], offset, shape, strides), c.f.url)
        except CkptError as e:
            e.url = c.f.url
            raise


def _triple(c: _Cursor) -> tuple[Any, Any, Any]:
    found = c.pickle()
    if type(found) is not tuple or len(found) != 3 or any(type(key) not in (str, int) for key in found[:2]):
        raise CorruptCheckpoint(f"an entry of the tar is {shown(found)}", url=c.f.url)
    return found
