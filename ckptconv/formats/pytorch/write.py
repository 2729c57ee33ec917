"""Write a torch.save archive that torch.load(weights_only=True, mmap=True) accepts.

    archive/data.pkl  archive/byteorder  archive/data/0 ...  archive/version      all stored, each payload at a
    central directory  [zip64 end, locator]  end                                  multiple of 64 (extra field "FB")

The pickle is an OrderedDict of `_rebuild_tensor_v2` calls as torch.save writes them, protocol 2. Names that are tied
share one storage. Every record has its CRC-32, so headers are written last. No member has a date: equal tensors give
equal bytes. A checkpoint's metadata becomes an attribute of the OrderedDict, where torch keeps `_metadata`.

One checkpoint in several torch files, as transformers wrote them.

    pytorch_model-00001-of-00002.bin   pytorch_model-00002-of-00002.bin    each a whole archive
    pytorch_model.bin.index.json       which of them holds which tensor (index.py)

Tied names stay in one shard, where they share a storage. sharded.py reads these. Specification: transformers,
modeling_utils.py (shard_checkpoint).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...checkpoint import Checkpoint, Tensor
from ...dtypes import DType
from ...moves.part import c_strides
from ...output.destination import OutputFile
from ...storage.files import join, split
from .. import shard_index
from ..own_metadata import unhashed
from ..placement import Patch, Placement, Slot, refuse_unheld
from ..zip import PlacedMember, directory, lay_out, local_header
from .flatten import METADATA

ROOT = "archive/"
PICKLE = ROOT + "data.pkl"
BATCH = 1000  # items per SETITEMS, as pickle does


@dataclass
class TorchWriter:
    """Lay an archive out. `place` remembers what `seal` needs to complete the headers."""

    url: str
    entries: list[PlacedMember] = field(default_factory=list)
    crcs: dict[bytes, int] = field(default_factory=dict)  # of the members that are not tensors
    owners: dict[bytes, str] = field(default_factory=dict)  # of the others: the first tensor stored there
    end: int = 0
    pickle: tuple[bytes, int] = (b"", 0)  # up to the metadata; and its place in the file

    @property
    def file(self) -> str:
        return split(self.url)[1]

    def cannot_hold(self, tensor: Tensor) -> str:
        return "" if tensor.dtype.torch else f"torch has no dtype {tensor.dtype}"

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "torch")
        owner = {n: first if checkpoint[n].count else n for n, first in checkpoint.owners().items()}
        keys = {name: str(i) for i, name in enumerate(n for n in checkpoint if owner[n] == n)}
        body = pickled(checkpoint, {name: keys[owner[name]] for name in checkpoint})
        fixed = {
            PICKLE: body + attributes(checkpoint.metadata),
            ROOT + "byteorder": b"little",
            ROOT + "version": b"3\n",
        }
        self.crcs = {name.encode(): zlib.crc32(raw) for name, raw in fixed.items()}
        self.owners = {f"{ROOT}data/{key}".encode(): name for name, key in keys.items()}
        sizes = [(name, len(raw)) for name, raw in fixed.items()]
        storages = [(f"{ROOT}data/{key}", checkpoint[name].nbytes) for name, key in keys.items()]
        self.entries, self.end = lay_out([*sizes[:2], *storages, *sizes[2:]])
        places = {self.owners[e.name]: e for e in self.entries if e.name in self.owners}
        file = self.file
        slots = {n: Slot(file, places[owner[n]].start, places[owner[n]].size) for n in checkpoint}
        self.pickle = body, self.entries[0].start
        patches = [Patch(file, e.start, fixed[e.name.decode()]) for e in self.entries if e.name in self.crcs]
        size = self.end + len(directory(self.entries, {}, self.end))
        return Placement([OutputFile(file, size)], slots, patches, check="crc32")

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        """All headers, now that the CRC of every member is known; and the end of the pickle, if there is metadata."""
        again, file = list[Patch](), self.file
        if metadata:
            body, start = self.pickle
            end = attributes(metadata)
            again.append(Patch(file, start + len(body), end))
            self.crcs[PICKLE.encode()] = zlib.crc32(end, zlib.crc32(body))
        crcs = self.crcs | {member: checks.get(name, 0) for member, name in self.owners.items()}
        patches = [Patch(file, e.at, local_header(e, crcs[e.name])) for e in self.entries]
        return [*again, *patches, Patch(file, self.end, directory(self.entries, crcs, self.end))]


# --- the pickle -------------------------------------------------------------------------------------------------


ORDERED = b"ccollections\nOrderedDict\n"


def pickled(checkpoint: Checkpoint, keys: Mapping[str, str]) -> bytes:
    """data.pkl but for its end: an OrderedDict from names to tensors, each at the start of the storage in `keys`."""
    memo = _Memo()
    out = [b"\x80\x02", memo.once(ORDERED), b")R"]
    heads: dict[DType, tuple[bytes, bytes, int]] = {}
    for i, (name, t) in enumerate(checkpoint.items()):
        if i % BATCH == 0:
            out.append(b"u(" if i else b"(")
        head, tail, units = heads.get(t.dtype) or _frame(t.dtype, memo)
        shape, strides = b"".join(map(_int, t.shape)), b"".join(map(_int, c_strides(t.shape)))
        out += (
            _text(name), head, _text(keys[name]), memo.once(_text("cpu")), _int(t.count * units),
            b"tQK\0(", shape, b"t(", strides, b"t\x89", memo.once(ORDERED), tail,
        )  # fmt: skip
        if t.dtype not in heads:
            heads[t.dtype] = _frame(t.dtype, memo)  # now all references
    if checkpoint:
        out.append(b"u")
    return b"".join(out)


def attributes(metadata: Mapping[str, str]) -> bytes:
    """The end of data.pkl: the metadata as an attribute of the OrderedDict, the first thing that was memorised."""
    if not metadata:
        return b"."
    pairs = b"".join(_text(k) + _text(v) for k, v in metadata.items())
    return b"".join([b"}(", _text("_metadata"), b"h\0)R", _text(METADATA), b"}(", pairs, b"uub."])


class _Memo(dict[bytes, bytes]):
    """Pieces of pickle that were memorised."""

    def once(self, piece: bytes) -> bytes:
        """The piece in full and memorised the first time, a reference to it afterwards."""
        found = self.get(piece)
        if found is not None:
            return found
        index = bytes([len(self)])
        self[piece] = b"h" + index
        return piece + b"q" + index


def _frame(kind: DType, memo: _Memo) -> tuple[bytes, bytes, int]:
    """What stands before a tensor's storage key, what ends the tensor, and storage units per element."""
    if kind.storage:
        make, storage, typed, units = "_rebuild_tensor_v2", f"ctorch\n{kind.storage}Storage\n", b"", 1
    else:
        make, storage, units = "_rebuild_tensor_v3", "ctorch.storage\nUntypedStorage\n", kind.itemsize
        typed = memo.once(f"ctorch\n{kind.torch}\n".encode())
    call = memo.once(f"ctorch._utils\n{make}\n".encode())
    return call + b"((" + memo.once(_text("storage")) + memo.once(storage.encode()), b")R" + typed + b"tR", units


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def _int(value: int) -> bytes:
    if value < 0x100:
        return b"K%c" % value
    if value < 0x10000:
        return b"M" + value.to_bytes(2, "little")
    if value < 0x80000000:
        return b"J" + value.to_bytes(4, "little")
    size = value.bit_length() // 8 + 1
    return b"\x8a%c" % size + value.to_bytes(size, "little")


@dataclass
class ShardedTorchWriter:
    """Cut a checkpoint in order into files of at most `limit` bytes of tensors; one file if it fits."""

    url: str
    limit: int
    writers: list[tuple[TorchWriter, Checkpoint]] = field(default_factory=list)
    placed: Checkpoint | None = None

    def cannot_hold(self, tensor: Tensor) -> str:
        return TorchWriter(self.url).cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        refuse_unheld(self, checkpoint, "torch")
        self.placed = checkpoint
        folder, base = split(self.url)
        suffix = os.path.splitext(base)[1]
        parts = _cut(checkpoint, self.limit)
        names = shard_index.shard_names(base, suffix, len(parts))
        self.writers = [(TorchWriter(join(folder, n)), part) for n, part in zip(names, parts, strict=True)]
        return shard_index.joined(base, suffix, [writer.place(part) for writer, part in self.writers], checkpoint)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        again: Sequence[Patch] = ()
        if metadata and self.placed is not None:
            again = self.place(replace(self.placed, metadata=dict(metadata))).patches
        return [*again, *(patch for writer, _ in self.writers for patch in writer.seal(checks, {}))]


def _cut(checkpoint: Checkpoint, limit: int) -> list[Checkpoint]:
    """Split in order; a tie group goes where its first name goes, and counts once."""
    first = {name: group[0] for group in checkpoint.ties for name in group}
    shard: dict[str, int] = {}
    sizes = [0]
    for name, t in checkpoint.items():
        if first.get(name, name) in shard:
            shard[name] = shard[first[name]]
            continue
        if sizes[-1] and sizes[-1] + t.nbytes > limit:
            sizes.append(0)
        shard[name] = shard[first.get(name, name)] = len(sizes) - 1
        sizes[-1] += t.nbytes
    groups: list[dict[str, Tensor]] = [{} for _ in sizes]
    for name, t in checkpoint.items():
        groups[shard[name]][name] = t
    if len(groups) > 1:  # the index has the hashes
        checkpoint = replace(checkpoint, metadata=unhashed(checkpoint.metadata))
    whole = replace(checkpoint, notes=())
    return [whole.with_tensors(group) for group in groups]
