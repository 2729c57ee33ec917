"""What torch.save wrote before 1.6: a stream of pickles and storages; and, before 0.1.10, a tar.

    pickle 0x1950a86a20f9469cfc6c      the magic number: 80 02 8a 0a 6c fc 9c 46 f9 20 6a a8 50 19 2e
    pickle 1001                        the protocol
    pickle {"little_endian": True, "protocol_version": 1001, "type_sizes": {...}}
    pickle of the object               a storage is ("storage", class, key, location, numel, view)
    pickle ["140234", ...]             the storages' keys, in the order in which they follow
    i64 numel, numel x itemsize bytes  each, without padding

A view is None or (key, offset, numel): a part of the storage, from which the tensor's offset counts. Big-endian
machines wrote little-endian as well, and only noted what they are.
The tar is read by oldtar.py. Specification: torch/serialization.py (_legacy_save, _legacy_load).
"""

from __future__ import annotations

import re
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import printable
from ...moves.part import Span
from ...storage.files import Reader, Seen
from ..reading import Reading
from .flatten import checkpoint
from .known import TORCH
from .pickle import Truncated, load_some
from .plain import shown
from .views import Storage, StorageType

MAGIC = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\.", re.DOTALL)
PROTOCOL = 1001
FIRST = 2**20  # bytes read at first for the pickles; four times as much each time it does not suffice


def sniff(seen: Seen) -> int:
    from .oldtar import is_tar

    return 3 if MAGIC.match(seen.head) or is_tar(seen.head) else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        if not MAGIC.match(f.read(0, min(f.size, 32))):
            from .oldtar import open_tar

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
