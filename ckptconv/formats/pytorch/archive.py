"""torch.save's zip: a pickle of the object and one member per storage, stored; deflated ones are read as well.

    R/data.pkl        the object; a storage is the persistent id ("storage", torch.FloatStorage, "0", "cpu", numel)
    R/byteorder       "little" or "big"; absent: little
    R/data/0          the elements of storage "0"; its length is exactly numel x itemsize
    R/version         "3\n"

R is any one folder. Only the storage's bytes are referred to, none is read here. TorchScript has the same container
(torchscript.py). Specification: torch/serialization.py, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from .tensors import Storage, StorageType
from .values import shown

MAX_PICKLE = 2**31 - 1
EXPANSION = 64  # bytes of a pickle for each deflated byte
MAX_STORAGE_KEY = 200  # characters; torch counts from "0" on
VERSIONS = range(1, 11)
SUFFIXES = (".pt", ".pth", ".bin")


def sniff(seen: Seen) -> int:
    return claim(seen, script=False)


def claim(seen: Seen, *, script: bool) -> int:
    """3 for a zip with a data.pkl, with constants.pkl for TorchScript and without it for torch.save."""
    if not seen.is_zip:
        return 0
    ends = {m.rpartition("/")[2].casefold() for m in seen.members}
    if "data.pkl" in ends:
        return 3 if ("constants.pkl" in ends) is script else 0
    if b"data.pkl" in seen.head + seen.tail:  # too broken for zipfile, or tampered with: let `open` say how
        return 2 if (b"/constants.pkl" in seen.tail) is script else 0
    return 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        archive = enter(f, salvage=how.salvage)
        raw, packed = archive.pickle(f, "data.pkl"), archive.packed("data.pkl")
        find = archive.storage("data")
        root = load(raw, allowed=TORCH, persistent_load=find, opaque=how.opaque, url=url, packed=packed)
        return checkpoint(root, packed, how, url=url, format="torch", notes=archive.notes())


def writer(url: str, max_shard_size: int | None = None) -> Writer:
    from .write import ShardedTorchWriter, TorchWriter

    return TorchWriter(url) if max_shard_size is None else ShardedTorchWriter(url, max_shard_size)


@dataclass(frozen=True)
class Archive:
    """An opened container: its members by their name within the root folder, and the storages requested so far."""

    url: str
    base: int  # where the zip begins in the file
    members: dict[str, Member]
    swapped: bool
    known: dict[str, Storage] = field(default_factory=dict)
    cut: int = 0  # the size of the file, if its end is gone and members with it

    def pickle(self, f: Ranges, name: str) -> bytes:
        """Read one of the pickles, and check it."""
        m = self.members.get(name)
        if m is None:
            raise CorruptCheckpoint(f"has no {printable(brief(name))}", url=self.url)
        return _read(f, m, MAX_PICKLE)

    def packed(self, name: str) -> int:
        """How many bytes of the file one of the pickles takes: what is made of it is in proportion to that."""
        return self.members[name].packed

    def storage(self, folder: str) -> Callable[[Any], Storage]:
        """What resolves persistent ids: the storages whose members lie in `folder`."""

        def find(pid: Any) -> Storage:
            if type(pid) is not tuple or len(pid) != 5 or pid[0] != "storage":
                raise CorruptCheckpoint(f"a persistent id is {shown(pid)}, not a storage", url=self.url)
            _, kind, key, _, count = pid
            key = str(key) if type(key) is int else key
            proper = type(kind) is StorageType and type(key) is str and len(key) <= MAX_STORAGE_KEY
            if not proper or type(count) is not int or count < 0:
                raise CorruptCheckpoint(f"a storage is described by {shown(pid)}", url=self.url)
            name = f"{folder}/{key}"
            found = self.known.get(name)
            if found is None:
                found = self.known[name] = self._storage(name, kind, count)
            elif found.size != -(-count * kind.bits // 8):
                raise CorruptCheckpoint(f"the storage {shown(key)} is given two sizes", url=self.url)
            elif found.type != kind and found.size:  # torch takes the first for all; of nothing it keeps nothing
                both = f"{found.type.name} and {kind.name}"
                raise UnsafeCheckpoint(f"the storage {shown(key)} is given two types, {both}", url=self.url)
            return found._replace(type=kind) if found.type != kind else found

        return find

    def _storage(self, name: str, kind: StorageType, count: int) -> Storage:
        m = self.members.get(name)
        size = -(-count * kind.bits // 8)
        if self.cut and (m is None or m.size != size):  # an error when it is read
            return Storage(kind, name, Span(self.url, self.cut, size), size, swapped=self.swapped)
        if m is None:
            raise CorruptCheckpoint(f"has no member {printable(name)}, which a tensor needs", url=self.url)
        if m.size != size:
            raise CorruptCheckpoint(
                f"the member {printable(name)} has {m.size} bytes where {count} elements of {kind.name} need {size}",
                url=self.url,
            )
        return Storage(kind, name, self.member(name, size), size, swapped=self.swapped)

    def member(self, name: str, size: int) -> Data:
        """Where the bytes of a member lie."""
        m = self.members[name]
        if m.method == STORED:
            return Span(self.url, self.base + m.start, size, f"crc32:{m.crc:08x}" if m.crc else "")
        if self.base:
            text = f"the member {printable(name)} is compressed in an archive within a file, which is not read"
            raise CorruptCheckpoint(text, url=self.url)
        return Coded(__name__, self.url, m.name, size)

    def notes(self) -> list[Note]:
        """What no tensor referred to, and what is lost with the end of the file."""
        used = self.known
        left = [n for n in self.members if n.startswith(("data/", "constants/")) and n not in used and n[-1] != "/"]
        notes = [Note("unread", "stored data to which no tensor refers", tuple(left), tensors=False)] if left else []
        if self.cut:
            notes.append(Note("damaged", "the end of the file is gone; what is whole was found without its directory"))
        return notes


def enter(f: Ranges, base: int = 0, *, salvage: bool = False) -> Archive:
    """Check the container and find its root folder, byte order and version.

    With `salvage`, storages that a file without its end lacks are not an error here but when one is read.
    """
    found, cut = _found(f, salvage)
    roots = {name.partition("/")[0] if "/" in name else "" for name in found}
    if len(roots) != 1 or "" in roots:
        if any(name.endswith((".pt", ".pth")) for name in found):
            raise UnknownFormat(packed(list(found)), url=f.url)
        raise UnsafeCheckpoint("the zip's members do not lie in one folder; torch reads only the first's", url=f.url)
    root = roots.pop()
    inner = {name[len(root) + 1 :]: m for name, m in found.items()}
    order = _read(f, inner["byteorder"], 16) if "byteorder" in inner else b"little"
    if order not in (b"little", b"big"):
        raise CorruptCheckpoint(f"its byte order is {shown(order)}", url=f.url)
    version = _read(f, inner["version"], 16).strip() if "version" in inner else b"3"
    if not version.isdigit() or int(version) not in VERSIONS:
        raise CorruptCheckpoint(f"its version is {shown(version)}; 1 to 10 can be read", url=f.url)
    return Archive(f.url, base, inner, order == b"big", cut=cut)


def _found(f: Ranges, salvage: bool) -> tuple[dict[str, Member], int]:
    """The members, and the size of the file if its end is gone and with it some of them."""
    try:
        return members(f), 0
    except CorruptCheckpoint:
        if not salvage or not (left := whole_members(f)):
            raise
        return left, f.size


def _read(f: Ranges, m: Member, limit: int) -> bytes:
    """Read a small member whole and check its CRC-32."""
    if m.size > limit or m.size > EXPANSION * m.packed + 2**16:
        raise UnsafeCheckpoint(f"the member {printable(m.name)} has {m.size} bytes, {limit} are sensible", url=f.url)
    return b"".join(contents(f, m))


@lru_cache(maxsize=8)
def _directory(url: str, stamp: tuple[int, ...]) -> dict[str, Member]:
    with Reader(url) as f:
        return members(f)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a deflated storage."""
    with Reader(coded.url) as f:
        yield from contents(f, _directory(coded.url, f.stamp)[coded.key])
