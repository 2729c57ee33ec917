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
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import printable
from ...moves.part import MAX_AXES, Span
from ...storage.files import Reader, Seen
from ..table import Reading
from .flatten import checkpoint
from .globals import TORCH
from .pickle import Truncated, load_some
from .tensors import Storage, StorageType, rebuild, storage_id
from .values import shown

MAGIC = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\.", re.DOTALL)
PROTOCOL = 1001
FIRST = 2**20  # bytes read at first for a pickle; four times as much each time it does not suffice


def sniff(seen: Seen) -> int:
    return 3 if MAGIC.match(seen.head) or is_tar(seen.head) else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        if not MAGIC.match(f.read(0, min(f.size, 32))):
            return _open_tar(f, how)
        stream = _Stream(f, 0, f.size, how.opaque)
        _, protocol, system = stream.pickle(), stream.pickle(), stream.pickle()
        if protocol != PROTOCOL or type(system) is not dict or type(system.get("little_endian")) is not bool:
            raise CorruptCheckpoint(f"its protocol is {shown(protocol)}, its system {shown(system)}")
        start, storages = stream.at, Storages()  # their bytes are little-endian, whatever the system was
        root = stream.pickle(storages)
        size, keys = stream.at - start, stream.pickle()
        if type(keys) is not list or not all(type(k) is str for k in keys):
            raise CorruptCheckpoint("the list of storage keys is damaged")
        left = f.size - storages.place(f, stream.at, keys, salvage=how.salvage)
        notes = [Note("unread", f"{left} bytes that follow the last storage")] if left > 0 else []
        return checkpoint(root, size, how, url=url, format="torch-legacy", notes=notes)


class _Stream:
    """Pickles and numbers, one after the other, from byte `at` of a file to `end`."""

    def __init__(self, f: Reader, at: int, end: int, opaque: bool = False) -> None:
        self.f, self.at, self.end, self.opaque = f, at, end, opaque
        self.first, self.window = at, b""

    def pickle(self, persistent: Any = None) -> Any:
        """Interpret the next pickle. How long it is shows only at its end: the window grows until it suffices."""
        size = FIRST
        while True:
            if not self.first <= self.at < self.first + len(self.window):
                self.first, self.window = self.at, self.f.read(self.at, min(size, self.end - self.at))
            partial = self.first + len(self.window) < self.end
            try:
                value, end = load_some(
                    self.window, self.at - self.first, allowed=TORCH, persistent_load=persistent,
                    opaque=self.opaque, window=partial,
                )  # fmt: skip
            except Truncated:
                size, self.window = max(size, 4 * len(self.window)), b""
                continue
            self.at = self.first + end
            return value

    def numbers(self, code: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.f.read(self.skip(layout.size), layout.size))

    def skip(self, size: int) -> int:
        """Go on after the next `size` bytes; return where they begin."""
        if self.at + size > self.end:
            raise CorruptCheckpoint(f"the tar's member ends at {self.end}, {self.at + size} is needed")
        self.at += size
        return self.at - size


class Storages:
    """The storages that the object names by persistent ids. Where they lie is known when it has been read."""

    def __init__(self) -> None:
        # with (class, count), or for a part of another storage (its key, offset, count)
        self.known: dict[str, tuple[Storage, tuple[Any, ...]]] = {}

    def __call__(self, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
            return pid[1]
        kind, key, count = storage_id(pid, 6)
        new = Storage(kind, key, None, kind.nbytes(count))
        whole, described = self.known.setdefault(key, (new, (kind, count)))
        if described != (kind, count):
            raise CorruptCheckpoint(f"the storage {printable(key)} is described in two ways")
        return whole if pid[5] is None else self._part(whole, count, pid[5])

    def _part(self, whole: Storage, count: int, view: Any) -> Storage:
        """A view of a storage: elements offset to offset + size of it."""
        if type(view) is not tuple or len(view) != 3 or type(view[1]) is not int or type(view[2]) is not int:
            raise CorruptCheckpoint(f"a part of a storage is described by {shown(view)}")
        own, offset, size = view
        if offset < 0 or size < 0 or offset + size > count:
            raise CorruptCheckpoint(f"a part of a storage is elements {offset} to {offset + size} of {count}")
        own, place = str(own) if type(own) is int else own, (whole.key, offset, size)
        new = replace(whole, size=whole.type.nbytes(size), start=offset)
        if type(own) is not str or self.known.setdefault(own, (new, place))[1] != place:
            raise UnsafeCheckpoint(f"the part {shown(own)} of a storage is described in two ways")
        return self.known[own][0]

    def place(self, f: Reader, at: int, keys: list[str], *, salvage: bool = False) -> int:
        """Walk over the storages that follow the pickles; return where they end. What follows torch does not read.

        With `salvage`, storages behind the end of the file are not an error here but when one of them is read.
        """
        wholes = {key: s for key, (s, described) in self.known.items() if type(described[0]) is StorageType}
        for key in keys:
            storage = wholes.get(key)
            if storage is None or storage.data is not None:
                raise CorruptCheckpoint(f"the storage {printable(key)} is listed, but not once used")
            count, end = self.known[key][1][1], at + 8 + storage.size
            stated = int.from_bytes(f.read(at, 8), "little", signed=True) if at + 8 <= f.size or not salvage else count
            if stated != count:
                raise CorruptCheckpoint(f"the storage {printable(key)} has {stated} elements where {count} are due")
            if end > f.size and not salvage:
                text = f"the storage {printable(key)} ends at byte {end} of {f.size} (truncated?)"
                raise CorruptCheckpoint(text)
            storage.data = Span(f.url, at + 8, storage.size)
            at = end
        if missing := [key for key, storage in wholes.items() if storage.data is None]:
            raise CorruptCheckpoint(f"{len(missing)} storages are used but not there, {missing[0]!r} first")
        for storage, _ in self.known.values():
            storage.data = wholes[storage.key].data
        return at


# --- the tar ------------------------------------------------------------------------------------------------------

BLOCK = 512
MEMBERS = frozenset({"sys_info", "storages", "tensors", "pickle"})
MAX_COUNT = 2**24
TIMES_AND_OWNERS = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"})


def is_tar(head: bytes) -> bool:
    """A tar whose first member, after an extended header, is one of ours."""
    if head[257:262] != b"ustar":
        return False
    try:
        name, kind, size = _header(head)
        return (_header(head[_next(BLOCK, size) :])[0] if kind == b"x" else name) in MEMBERS
    except ValueError:
        return False


def _header(raw: bytes) -> tuple[str, bytes, int]:
    """The name, the type and the size of a member; ValueError if its header is damaged."""
    from tarfile import HeaderError, TarInfo

    try:
        head = TarInfo.frombuf(raw[:BLOCK], "latin1", "strict")
    except HeaderError as e:
        raise ValueError(str(e)) from None
    if head.size < 0:
        raise ValueError("negative size")
    return head.name.removeprefix("./"), head.type, head.size


def _next(start: int, size: int) -> int:
    """Where the header after a member begins."""
    return start + -(-size // BLOCK) * BLOCK


def _open_tar(f: Reader, how: Reading) -> Checkpoint:
    places = _members(f)
    if set(places) != MEMBERS:
        raise CorruptCheckpoint(f"the tar holds {', '.join(sorted(places))}, not a checkpoint")
    system = _Stream(f, *places["sys_info"]).pickle()
    if type(system) is not dict or system.get("little_endian") is False:
        raise CorruptCheckpoint("is of a big-endian machine, which torch does not read either")
    known = _storages(_Stream(f, *places["storages"]))
    _tensors(_Stream(f, *places["tensors"]), known)

    def find(pid: Any) -> Any:
        if type(pid) is tuple:
            return pid[1] if len(pid) == 4 and pid[0] == "module" else pid[0] if pid else None
        if type(pid) not in (str, int) or str(pid) not in known:
            raise CorruptCheckpoint(f"the object refers to {shown(pid)}, which is not there")
        return known[str(pid)]

    start, end = places["pickle"]
    stream = _Stream(f, start, end, how.opaque)
    root = stream.pickle(find)
    if stream.at != end:
        raise UnsafeCheckpoint(f"{end - stream.at} bytes follow the pickle of the object")
    return checkpoint(root, end - start, how, url=f.url, format="torch-legacy")


def _members(f: Reader) -> dict[str, tuple[int, int]]:
    """Where the tar's files begin and end, by name."""
    places: dict[str, tuple[int, int]] = {}
    at = 0
    while at + BLOCK <= f.size and (raw := f.read(at, BLOCK)).strip(b"\0"):
        try:
            name, kind, size = _header(raw)
        except ValueError as e:
            raise CorruptCheckpoint(f"the tar's header at byte {at} is damaged: {e}") from None
        start = at + BLOCK
        if start + size > f.size:
            raise CorruptCheckpoint(f"the tar's member {shown(name)} is cut off")
        if kind in (b"0", b"\0"):
            if name in places:
                raise UnsafeCheckpoint(f"the tar holds {shown(name)} twice")
            places[name] = start, start + size
        elif kind == b"x" and size <= FIRST:  # may give the member another name, size or link
            for line in f.read(start, size).splitlines():
                if (word := line.partition(b" ")[2].partition(b"=")[0]) not in TIMES_AND_OWNERS:
                    text = f"the tar's extended header gives a member another {shown(word)}"
                    raise UnsafeCheckpoint(text)
        elif kind != b"5":
            raise UnsafeCheckpoint(f"the tar holds a link or device {shown(name)}")
        at = _next(start, size)
    return places


def _add(known: dict[str, Any], key: Any, value: Any) -> None:
    if known.setdefault(str(key), value) is not value:
        raise UnsafeCheckpoint(f"the tar holds two things with the key {shown(key)}")


def _storages(s: _Stream) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, _, kind in _entries(s):
        (count,) = s.numbers("q")
        if type(kind) is not StorageType or count < 0:
            raise CorruptCheckpoint(f"a storage of {count} elements of the class {shown(kind)}")
        size = kind.nbytes(count)
        _add(out, key, Storage(kind, str(key), Span(s.f.url, s.skip(size), size), size))
    views = s.pickle()
    if type(views) is not list:
        raise CorruptCheckpoint("the list of storage views is damaged")
    for view in views:
        if type(view) is not tuple or [type(v) is int for v in view[2:]] != [True, True] or min(view[2:]) < 0:
            raise CorruptCheckpoint(f"a storage view is {shown(view)}")
        key, root, offset, count = view
        if type(key) not in (str, int) or type(root) not in (str, int):
            raise CorruptCheckpoint(f"a storage view is {shown(view)}")
        whole = out.get(str(root))
        if whole is None or whole.type.nbytes(offset + count) > whole.size:
            raise CorruptCheckpoint(f"a storage view reaches out of its storage: {shown(view)}")
        _add(out, key, replace(whole, size=whole.type.nbytes(count), start=whole.start + offset))
    return out


def _tensors(s: _Stream, known: dict[str, Any]) -> None:
    """Add the tensors to the storages."""
    storages = dict(known)
    for key, storage, _ in _entries(s):
        (ndim, _) = s.numbers("i4s")
        if not 0 <= ndim <= MAX_AXES:
            raise CorruptCheckpoint(f"a tensor of {ndim} dimensions")
        shape, strides, (offset,) = s.numbers(f"{ndim}q"), s.numbers(f"{ndim}q"), s.numbers("q")
        if str(storage) not in storages:
            raise CorruptCheckpoint(f"a tensor of the storage {shown(storage)}, which is not there")
        _add(known, key, rebuild(storages[str(storage)], offset, shape, strides))


def _entries(s: _Stream) -> Iterator[tuple[Any, Any, Any]]:
    """The pickle of each entry, of as many as the first one says; what follows an entry is read before the next."""
    count = s.pickle()
    if type(count) is not int or not 0 <= count <= MAX_COUNT:
        raise CorruptCheckpoint(f"the tar holds {shown(count)} entries")
    for _ in range(count):
        entry = s.pickle()
        if type(entry) is not tuple or len(entry) != 3 or any(type(key) not in (str, int) for key in entry[:2]):
            raise CorruptCheckpoint(f"an entry of the tar is {shown(entry)}")
        yield entry
