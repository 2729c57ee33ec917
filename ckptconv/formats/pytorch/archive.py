"""torch.save's zip: a pickle of the object and one member per storage, stored; deflated ones are read as well.

    R/data.pkl        the object; a storage is the persistent id ("storage", torch.FloatStorage, "0", "cpu", numel)
    R/byteorder       "little" or "big"; absent: little
    R/data/0          the elements of storage "0"; its length is exactly numel x itemsize
    R/version         "3\n"

R is any one folder. Only the storage's bytes are referred to, none is read here. TorchScript has the same container
(torchscript.py). Specification: torch/serialization.py, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint, Note, Tensor
from ...dtypes import DType
from ...errors import CorruptCheckpoint, UnknownFormat, UnsafeCheckpoint
from ...messages import brief, printable
from ...moves.part import Coded, Data, Span, c_strides
from ...storage.files import Reader, Seen, split
from ...storage.ranges import Ranges
from .. import shard_index
from ..detect import packed
from ..placement import Patch, Placement, refuse_unheld
from ..table import Reading
from ..zip import STORED, Content, Member, StoredZip, contents, known, members
from .flatten import METADATA, checkpoint
from .pickle import load
from .tensors import TORCH, Storage, StorageType, storage_id
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
    inside = any(m.endswith((*SUFFIXES, ".ckpt")) for m in seen.members)  # whose own directory is what was seen
    return 2 if broken and not inside and (b"/constants.pkl" in seen.tail) is script else 0


def open(url: str, how: Reading) -> Checkpoint:
    with Reader(url) as f:
        archive = enter(f)
        root = archive.load(PICKLE, opaque=how.opaque)
        size = archive.members[PICKLE].packed  # what is made of it is in proportion to that
        return checkpoint(root, size, how, url=url, format="torch", notes=archive.notes())


@dataclass(frozen=True)
class Archive:
    """An opened container: its members by their name within the root folder, and the storages requested so far."""

    f: Ranges
    base: int  # where the zip begins in the file
    members: dict[str, Member]
    swapped: bool
    known: dict[str, Storage] = field(default_factory=dict)

    def pickle(self, name: str) -> bytes:
        """Read one of the pickles, and check it."""
        if name not in self.members:
            raise CorruptCheckpoint(f"has no {printable(brief(name))}")
        return _read(self.f, self.members[name], MAX_PICKLE)

    def load(
        self,
        name: str,
        folder: str = "data",
        opaque: bool | tuple[str, ...] = False,
        allowed: Mapping[tuple[str, str], Any] = TORCH,
    ) -> Any:
        """The object of a pickle whose storages are the members of `folder`."""

        def find(pid: Any) -> Storage:
            return self._storage(folder, *storage_id(pid, 5))

        raw, packed = self.pickle(name), self.members[name].packed
        return load(raw, allowed=allowed, persistent_load=find, opaque=opaque, packed=packed)

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
        """What no tensor referred to."""
        stored = [n for n in self.members if n.startswith(("data/", "constants/")) and n[-1] != "/"]
        left = tuple(n for n in stored if n not in self.known)
        return [Note("unread", "stored data to which no tensor refers", left, tensors=False)] if left else []


def enter(f: Ranges, base: int = 0) -> Archive:
    """Check the container and find its root folder, byte order and version."""
    found = members(f)
    roots = {name.partition("/")[0] if "/" in name else "" for name in found}
    if len(roots) != 1 or "" in roots:
        if not any(name.casefold().endswith(PICKLE) for name in found):  # stored files of torch are in it
            raise UnknownFormat(packed(list(found)))
        raise UnsafeCheckpoint("the zip's members do not lie in one folder; torch reads only the first's")
    inner = {name.partition("/")[2]: m for name, m in found.items()}
    order = _read(f, inner["byteorder"], 16) if "byteorder" in inner else b"little"
    if order not in (b"little", b"big"):
        raise CorruptCheckpoint(f"its byte order is {shown(order)}")
    version = _read(f, inner["version"], 16).strip() if "version" in inner else b"3"
    if not version.isdigit() or int(version) not in VERSIONS:
        raise CorruptCheckpoint(f"its version is {shown(version)}; 1 to 10 can be read")
    return Archive(f, base, inner, order == b"big")


def _read(f: Ranges, m: Member, limit: int) -> bytes:
    """Read a small member whole and check its CRC-32."""
    if m.size > limit or m.size > EXPANSION * m.packed + 2**16:
        raise UnsafeCheckpoint(f"the member {printable(m.name)} has {m.size} bytes, {limit} are sensible")
    return b"".join(contents(f, m))


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a deflated storage."""
    with Reader(coded.url) as f:
        yield from contents(f, known(coded.url, f.stamp)[coded.key])


# --- writing ------------------------------------------------------------------------------------------------------
#
# An archive that torch.load(weights_only=True, mmap=True) accepts:
#
#     archive/data.pkl  archive/byteorder  archive/data/0 ...  archive/version      all stored, each payload at a
#     central directory  [zip64 end, locator]  end                                  multiple of 64 (extra field "FB")
#
# The pickle is an OrderedDict of `_rebuild_tensor_v2` calls as torch.save writes them, protocol 2. Names that are tied
# share one storage. Every record has its CRC-32, so headers are written last. No member has a date: equal tensors give
# equal bytes. A checkpoint's metadata becomes an attribute of the OrderedDict, where torch keeps `_metadata`.
#
# One checkpoint in several files, as transformers wrote them (modeling_utils.py, shard_checkpoint):
#
#     pytorch_model-00001-of-00002.bin   pytorch_model-00002-of-00002.bin    each a whole archive
#     pytorch_model.bin.index.json       which of them holds which tensor (shard_index.py)
#
# Tied names stay in one shard, where they share a storage.

ROOT = "archive/"
BATCH = 1000  # items per SETITEMS, as pickle does


@dataclass
class TorchWriter:
    """Lay archives out, each of at most `max_shard_size` bytes of tensors. `place` remembers what `seal` needs."""

    url: str
    max_shard_size: int | None = None
    archives: list[StoredZip] = field(default_factory=list)
    placed: Checkpoint | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        return "" if tensor.dtype.torch_name else f"torch has no dtype {tensor.dtype}"

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "torch")
        self.archives, self.placed = [], checkpoint
        base, ties = split(self.url)[1], checkpoint.owners()
        return shard_index.place(base, os.path.splitext(base)[1], checkpoint, self.max_shard_size, self.lay_out, ties)

    def lay_out(self, file: str, checkpoint: Checkpoint, skip: int = 0) -> Placement:
        """Place one file. skip: characters at the beginning of all names that it does not have."""
        owner = {n: first if checkpoint[n].count else n for n, first in checkpoint.owners().items()}
        keys = {name: str(i) for i, name in enumerate(n for n in checkpoint if owner[n] == n)}
        body = pickled(checkpoint, {name: keys[owner[name]] for name in checkpoint}, skip) + attributes(
            checkpoint.metadata
        )
        self.archives.append(archived(file, body, {name: checkpoint[name].nbytes for name in keys}))
        placed = self.archives[-1].placement()
        return placed._replace(slots={name: placed.slots[owner[name]] for name in checkpoint})

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        """All headers; and the pickles and the index again, if there is metadata."""
        again: Sequence[Patch] = ()
        if metadata and self.placed is not None:
            again = self.place(replace(self.placed, metadata=dict(metadata))).patches
        return [*again, *(patch for archive in self.archives for patch in archive.headers(checks))]


writer = TorchWriter


def archived(file: str, body: bytes, sizes: Mapping[str, int], start: int = 0) -> StoredZip:
    """The layout of an archive at byte `start` of a file: its pickle, and the storages "0", "1" ... of tensors."""
    inside = {ROOT + PICKLE: Content(body), ROOT + "byteorder": Content(b"little")}
    inside |= {f"{ROOT}data/{i}": Content(b"", name, size) for i, (name, size) in enumerate(sizes.items())}
    return StoredZip(file, inside | {ROOT + "version": Content(b"3\n")}, start)


ORDERED = b"ccollections\nOrderedDict\n"


def pickled(checkpoint: Checkpoint, keys: Mapping[str, str], skip: int = 0) -> bytes:
    """data.pkl but for its end: an OrderedDict from names to tensors, each at the start of the storage in `keys`."""
    memo = Memo()
    out = [b"\x80\x02", memo.once(ORDERED), b")R"]
    frames: Frames = {}
    for i, (name, t) in enumerate(checkpoint.items()):
        if i % BATCH == 0:
            out.append(b"u(" if i else b"(")
        out += (text(name[skip:]), rebuilt(t, keys[name], memo, frames))
    if checkpoint:
        out.append(b"u")
    return b"".join(out)


def rebuilt(t: Tensor, key: str, memo: Memo, frames: Frames) -> bytes:
    """The call that makes a tensor at the start of a storage."""
    head, tail, units = frames.get(t.dtype) or _frame(t.dtype, memo)
    cpu, end = memo.once(text("cpu")), memo.once(ORDERED)
    if t.dtype not in frames:
        frames[t.dtype] = _frame(t.dtype, memo)  # now all references
    sizes, strides = numbers(t.shape), numbers(c_strides(t.shape))
    return b"".join((head, text(key), cpu, integer(t.count * units), b"tQK\0", sizes, strides, b"\x89", end, tail))


def attributes(metadata: Mapping[str, str]) -> bytes:
    """The end of data.pkl: the metadata as an attribute of the OrderedDict, the first thing that was memorised."""
    if not metadata:
        return b"."
    pairs = b"".join(text(k) + text(v) for k, v in metadata.items())
    return b"".join([b"}(", text("_metadata"), b"h\0)R", text(METADATA), b"}(", pairs, b"uub."])


class Memo(dict[bytes, bytes]):
    """Pieces of pickle that were memorised."""

    def once(self, piece: bytes) -> bytes:
        """The piece in full and memorised the first time, a reference to it afterwards."""
        found = self.get(piece)
        if found is not None:
            return found
        index = bytes([len(self)])
        self[piece] = b"h" + index
        return piece + b"q" + index


Frames = dict[DType, tuple[bytes, bytes, int]]


def _frame(kind: DType, memo: Memo) -> tuple[bytes, bytes, int]:
    """What stands before a tensor's storage key, what ends the tensor, and storage units per element."""
    if kind.storage:
        make, storage, typed, units = "_rebuild_tensor_v2", f"ctorch\n{kind.storage}Storage\n", b"", 1
    else:
        make, storage, units = "_rebuild_tensor_v3", "ctorch.storage\nUntypedStorage\n", kind.itemsize
        typed = memo.once(f"ctorch\n{kind.torch_name}\n".encode())
    call = memo.once(f"ctorch._utils\n{make}\n".encode())
    return call + b"((" + memo.once(text("storage")) + memo.once(storage.encode()), b")R" + typed + b"tR", units


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def numbers(values: Iterable[int]) -> bytes:
    """A tuple of them."""
    return b"(" + b"".join(map(integer, values)) + b"t"


def integer(value: int) -> bytes:
    if 0 <= value < 0x100:
        return b"K%c" % value
    if 0 <= value < 0x10000:
        return b"M" + value.to_bytes(2, "little")
    if -0x80000000 <= value < 0x80000000:
        return b"J" + value.to_bytes(4, "little", signed=True)
    size = value.bit_length() // 8 + 1
    return b"\x8a%c" % size + value.to_bytes(size, "little", signed=True)
