"""What torch.save wrote from 0.1.10 to 1.5: a stream of pickles and storages.

    pickle 0x1950a86a20f9469cfc6c      the magic number: 80 02 8a 0a 6c fc 9c 46 f9 20 6a a8 50 19 2e
    pickle 1001                        the protocol
    pickle {"little_endian": True, "protocol_version": 1001, "type_sizes": {...}}
    pickle of the object               a storage is ("storage", class, key, location, numel, view)
    pickle ["140234", ...]             the storages' keys, in the order in which they follow
    i64 numel, numel x itemsize bytes  each, without padding

A view is None. Before 0.4 it could be a part of the storage, which only a program that cuts storages itself has; that
is refused. Big-endian machines wrote little-endian as well, and only noted what they are.
Specification: torch/serialization.py (_legacy_save, _legacy_load).
"""

from __future__ import annotations

import re
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import CkptError, CorruptCheckpoint
from ...messages import printable
from ...moves.part import Span
from ...storage.files import Reader, Seen
from ..table import Reading
from .flatten import checkpoint
from .pickle import load_some
from .tensors import TORCH, Storage, storage_id
from .values import shown

MAGIC = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\.", re.DOTALL)
PROTOCOL = 1001
FIRST, MAX_PICKLE = 2**20, 2**26  # bytes read at first for a pickle, and if it does not end within


def sniff(seen: Seen) -> int:
    return 3 if MAGIC.match(seen.head) else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        stream = _Stream(f, how.opaque)
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
    """The pickles of a file, one after the other; the next begins at byte `at`."""

    def __init__(self, f: Reader, opaque: bool) -> None:
        self.f, self.at, self.opaque = f, 0, opaque

    def pickle(self, persistent: Any = None) -> Any:
        """Interpret the next pickle. How long it is shows only at its end: more is read if a small window fails."""
        left = self.f.size - self.at
        sizes = sorted({min(left, FIRST), min(left, MAX_PICKLE)})
        for size in sizes:
            raw = self.f.read(self.at, size)
            try:
                value, end = load_some(raw, allowed=TORCH, persistent_load=persistent, opaque=self.opaque)
                break
            except CkptError:
                if size == sizes[-1]:
                    raise
        self.at += end
        return value


class Storages:
    """The storages that the object names by persistent ids. Where they lie is known when it has been read."""

    def __init__(self) -> None:
        self.known: dict[str, Storage] = {}

    def __call__(self, pid: Any) -> Any:
        if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
            return pid[1]
        kind, key, count = storage_id(pid, 6)
        if pid[5] is not None:
            raise CorruptCheckpoint("has a part of a storage, as PyTorch before 0.4 could; load and save it there")
        found = self.known.setdefault(key, Storage(kind, key, None, kind.nbytes(count)))
        if (found.type, found.size) != (kind, kind.nbytes(count)):
            raise CorruptCheckpoint(f"the storage {printable(key)} is described in two ways")
        return found

    def place(self, f: Reader, at: int, keys: list[str], *, salvage: bool = False) -> int:
        """Walk over the storages that follow the pickles; return where they end. What follows torch does not read.

        With `salvage`, storages behind the end of the file are not an error here but when one of them is read.
        """
        for key in keys:
            storage = self.known.get(key)
            if storage is None or storage.data is not None:
                raise CorruptCheckpoint(f"the storage {printable(key)} is listed, but not once used")
            count, end = storage.size * 8 // storage.type.bits, at + 8 + storage.size
            stated = int.from_bytes(f.read(at, 8), "little", signed=True) if at + 8 <= f.size or not salvage else count
            if stated != count:
                raise CorruptCheckpoint(f"the storage {printable(key)} has {stated} elements where {count} are due")
            if end > f.size and not salvage:
                text = f"the storage {printable(key)} ends at byte {end} of {f.size} (truncated?)"
                raise CorruptCheckpoint(text)
            storage.data = Span(f.url, at + 8, storage.size)
            at = end
        if missing := [key for key, storage in self.known.items() if storage.data is None]:
            raise CorruptCheckpoint(f"{len(missing)} storages are used but not there, {missing[0]!r} first")
        return at
