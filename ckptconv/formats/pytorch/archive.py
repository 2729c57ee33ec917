"""torch.save's zip: a pickle of the object and one member per storage, stored; deflated ones are read as well.

    R/data.pkl        the object; a storage is the persistent id ("storage", torch.FloatStorage, "0", "cpu", numel)
    R/byteorder       "little" or "big"; absent: little
    R/data/0          the elements of storage "0"; its length is exactly numel x itemsize
    R/version         "3\n"

R is any one folder. Only the storage's bytes are referred to, none is read here. TorchScript has the same container
(torchscript.py). Specification: torch/serialization.py, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ...checkpoint import Checkpoint, Note
from ...errors import CorruptCheckpoint, UnknownFormat, UnsafeCheckpoint
from ...messages import brief, printable
from ...moves.part import Coded, Data, Span
from ...storage.files import Reader, Seen
from ...storage.ranges import Ranges
from ..detect import packed
from ..placement import Writer
from ..table import Reading
from ..zip import STORED, Member, contents, members, whole_members
from .flatten import checkpoint
from .globals import TORCH
from .pickle import load
from .tensors import Storage, StorageType, storage_id
from .values import shown

PICKLE = "data.pkl"
MAX_PICKLE = 2**31 - 1
EXPANSION = 64  # bytes of a pickle for each deflated byte
VERSIONS = range(1, 11)
SUFFIXES = (".pt", ".pth", ".bin")


def sniff(seen: Seen) -> int:
    return claim(seen, script=False)


def claim(seen: Seen, *, script: bool) -> int:
    """3 for a zip with a data.pkl, with constants.pkl for TorchScript and without it for torch.save."""
    if not seen.is_zip:
        return 0
    ends = {m.rpartition("/")[2].casefold() for m in seen.members}
    if PICKLE in ends:
        return 3 if ("constants.pkl" in ends) is script else 0
    broken = PICKLE.encode() in seen.head + seen.tail  # or tampered with: let `open` say how
    return 2 if broken and (b"/constants.pkl" in seen.tail) is script else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        archive = enter(f, salvage=how.salvage)
        root = archive.load(PICKLE, opaque=how.opaque)
        size = archive.members[PICKLE].packed  # what is made of it is in proportion to that
        return checkpoint(root, size, how, url=url, format="torch", notes=archive.notes())


def writer(url: str, max_shard_size: int | None = None) -> Writer:
    from .write import ShardedTorchWriter, TorchWriter

    return TorchWriter(url) if max_shard_size is None else ShardedTorchWriter(url, max_shard_size)


@dataclass(frozen=True)
class Archive:
    """An opened container: its members by their name within the root folder, and the storages requested so far."""

    f: Ranges
    base: int  # where the zip begins in the file
    members: dict[str, Member]
    swapped: bool
    known: dict[str, Storage] = field(default_factory=dict)
    cut: int = 0  # the size of the file, if its end is gone and members with it

    def pickle(self, name: str) -> bytes:
        """Read one of the pickles, and check it."""
        if name not in self.members:
            raise CorruptCheckpoint(f"has no {printable(brief(name))}")
        return _read(self.f, self.members[name], MAX_PICKLE)

    def load(self, name: str, folder: str = "data", opaque: bool | tuple[str, ...] = False) -> Any:
        """The object of a pickle whose storages are the members of `folder`."""

        def find(pid: Any) -> Storage:
            return self._storage(folder, *storage_id(pid, 5))

        raw, packed = self.pickle(name), self.members[name].packed
        return load(raw, allowed=TORCH, persistent_load=find, opaque=opaque, packed=packed)

    def _storage(self, folder: str, kind: StorageType, key: str, count: int) -> Storage:
        name, size = f"{folder}/{key}", kind.nbytes(count)
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = Storage(kind, name, self._data(name, kind, size), size, swapped=self.swapped)
        if found.size != size:
            raise CorruptCheckpoint(f"the storage {shown(key)} is given two sizes")
        if found.type != kind and size:  # torch takes the first for all; of nothing it keeps nothing
            both = f"{found.type.name} and {kind.name}"
            raise UnsafeCheckpoint(f"the storage {shown(key)} is given two types, {both}")
        return found if found.type == kind else replace(found, type=kind)

    def _data(self, name: str, kind: StorageType, size: int) -> Data:
        m = self.members.get(name)
        if self.cut and (m is None or m.size != size):  # an error when it is read
            return Span(self.f.url, self.cut, size)
        if m is None:
            raise CorruptCheckpoint(f"has no member {printable(name)}, which a tensor needs")
        if m.size != size:
            count = size * 8 // kind.bits
            text = f"has {m.size} bytes where {count} elements of {kind.name} need {size}"
            raise CorruptCheckpoint(f"the member {printable(name)} {text}")
        return self.member(name)

    def member(self, name: str) -> Data:
        """Where the bytes of a member lie."""
        m, url = self.members[name], self.f.url
        if m.method == STORED:
            return Span(url, self.base + m.start, m.size, f"crc32:{m.crc:08x}" if m.crc else "")
        if self.base:
            text = f"the member {printable(name)} is compressed in an archive within a file, which is not read"
            raise CorruptCheckpoint(text)
        return Coded(__name__, url, m.name, m.size)

    def notes(self) -> list[Note]:
        """What no tensor referred to, and what is lost with the end of the file."""
        stored = [n for n in self.members if n.startswith(("data/", "constants/")) and n[-1] != "/"]
        left = tuple(n for n in stored if n not in self.known)
        notes = [Note("unread", "stored data to which no tensor refers", left, tensors=False)] if left else []
        if self.cut:
            notes.append(Note("damaged", "the end of the file is gone; what is whole was found without its directory"))
        return notes


def enter(f: Ranges, base: int = 0, *, salvage: bool = False) -> Archive:
    """Check the container and find its root folder, byte order and version.

    With `salvage`, storages that a file without its end lacks are not an error here but when one is read.
    """
    cut = 0
    try:
        found = members(f)
    except CorruptCheckpoint:
        found, cut = whole_members(f) if salvage else {}, f.size
        if not found:
            raise
    roots = {name.partition("/")[0] if "/" in name else "" for name in found}
    if len(roots) != 1 or "" in roots:
        if any(name.endswith((".pt", ".pth")) for name in found):
            raise UnknownFormat(packed(list(found)))
        raise UnsafeCheckpoint("the zip's members do not lie in one folder; torch reads only the first's")
    inner = {name.partition("/")[2]: m for name, m in found.items()}
    order = _read(f, inner["byteorder"], 16) if "byteorder" in inner else b"little"
    if order not in (b"little", b"big"):
        raise CorruptCheckpoint(f"its byte order is {shown(order)}")
    version = _read(f, inner["version"], 16).strip() if "version" in inner else b"3"
    if not version.isdigit() or int(version) not in VERSIONS:
        raise CorruptCheckpoint(f"its version is {shown(version)}; 1 to 10 can be read")
    return Archive(f, base, inner, order == b"big", cut=cut)


def _read(f: Ranges, m: Member, limit: int) -> bytes:
    """Read a small member whole and check its CRC-32."""
    if m.size > limit or m.size > EXPANSION * m.packed + 2**16:
        raise UnsafeCheckpoint(f"the member {printable(m.name)} has {m.size} bytes, {limit} are sensible")
    return b"".join(contents(f, m))


@lru_cache(maxsize=8)
def _directory(url: str, stamp: tuple[int, ...]) -> dict[str, Member]:
    with Reader(url) as f:
        return members(f)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a deflated storage."""
    with Reader(coded.url) as f:
        yield from contents(f, _directory(coded.url, f.stamp)[coded.key])
