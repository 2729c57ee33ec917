"""TensorFlow V2 checkpoints (tensor bundles).

    P.index                    a sorted string table (table.py):
        ""                     BundleHeaderProto: number of shards, endianness, version
        name                   BundleEntryProto: dtype, shape, shard, offset, size, masked CRC-32C
        name                   ... of a partitioned variable: dtype, full shape, slices
        slice key (elements.py)  BundleEntryProto of one slice
    P.data-00000-of-00002      raw elements in C order, packed without alignment, in any order; ranges may be shared

Specification: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, Tensor
from ...dtypes import DType
from ...errors import CkptError, CorruptCheckpoint, StorageError
from ...moves.part import Coded, Data, Span, checked_count
from ...storage.checksum import unmask
from ...storage.files import Reader, exists, sibling, split
from ...storage.paths import spelled
from .. import Located, own_metadata
from ..tiling import Tile
from . import elements
from .elements import parse, text
from .table import GIT_LFS, POINTER, Table

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
OURS = 7001  # a field of the header that TensorFlow skips: metadata of ours (own_metadata.py)


MAX_PROBLEMS = 20  # shards listed in an error


class Entry(NamedTuple):
    """The fields of a BundleEntryProto; the message itself would take four times the memory."""

    dtype: int
    shape: tuple[int, ...]  # most entries share a few
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[pb.TensorSliceProto, ...]


def read(index: str, *, salvage: bool = False) -> tuple[Checkpoint, bytes | None]:
    """Read an index and check it against its shards; tensors are not read.

    Return the tensors by key, and the object graph, which is empty if there is none, and None if it is damaged.
    """
    with Reader(index) as f, Located(index):
        pairs = iter(Table(f))
        header = _header(next(pairs, None))
        stored = _Stored(index, header, _entries(pairs))
        tensors, notes = elements.assembled(stored.rows(), swap=stored.order == "big")
        if not salvage:
            stored.check()
        graph: bytes | None = b""
        if OBJECT_GRAPH in tensors:
            try:
                graph = _object_graph(tensors.pop(OBJECT_GRAPH))
            except CkptError as e:
                if not salvage:
                    raise
                why = " ".join(e.message.split())
                what = f"names are those of the keys alone, and which tensors are the optimizer's is not known: {why}"
                graph, notes = None, (*notes, Note("damaged", what, (OBJECT_GRAPH,)))
    details: Details = {"shards": header.num_shards, "endianness": stored.order}
    urls = (index, *(stored.urls[shard] for shard in sorted(stored.urls)))
    return Checkpoint(tensors, _own_metadata(header), (), FORMAT, urls, notes, details), graph


def _object_graph(tensor: Tensor) -> bytes:
    if tensor.shape:  # it is read at once: any number of strings would take any amount of memory
        raise CorruptCheckpoint("the object graph is not one string", tensor=OBJECT_GRAPH)
    data = tensor.parts[0].data
    return b"".join(elements.decode(data)) if isinstance(data, Coded) else b""


def _own_metadata(header: pb.BundleHeaderProto) -> dict[str, str]:
    """The metadata that only our own files have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(header)
    rows = [unknown[i] for i in range(len(unknown))]
    values = [row.data for row in rows if row.field_number == OURS and isinstance(row.data, bytes)]
    return own_metadata.unpack(values[-1]) if values else {}


def _header(first: tuple[bytes, bytes] | None) -> pb.BundleHeaderProto:
    from . import messages_pb2 as pb

    if first is None or first[0]:
        raise CorruptCheckpoint("has no header entry")
    header = parse(pb.BundleHeaderProto, first[1], "the header")
    elements.check_version(header.version)
    if header.num_shards < 0 or header.endianness not in (0, 1):
        raise CorruptCheckpoint("the header's shard count or endianness is out of range")
    return header


def _entries(pairs: Iterator[tuple[bytes, bytes]]) -> dict[bytes, Entry]:
    from . import messages_pb2 as pb

    entries: dict[bytes, Entry] = {}
    shapes: dict[bytes, tuple[int, ...]] = {}
    for key, value in pairs:
        with Located(tensor=text(key)):
            e = parse(pb.BundleEntryProto, value, "the entry")
            raw = e.shape.SerializeToString()
            shape = shapes.get(raw)
            if shape is None:
                if e.shape.unknown_rank:
                    raise CorruptCheckpoint("the shape has no rank")
                shape = shapes[raw] = tuple([d.size for d in e.shape.dim])
                checked_count(shape)
        entries[key] = Entry(e.dtype, shape, e.shard_id, e.offset, e.size, e.crc32c, tuple(e.slices))
    return entries


class _Stored:
    """What an index says: where the tensors lie in the data files, and how long these must therefore be."""

    def __init__(self, index: str, header: pb.BundleHeaderProto, entries: dict[bytes, Entry]) -> None:
        self.index, self.entries, self.count = index, entries, header.num_shards
        self.order: elements.Order = "big" if header.endianness == 1 else "little"
        self.base = spelled(index).removesuffix(".index")
        self.urls: dict[int, str] = {}  # of the shards that hold tensors
        self.reach: dict[int, int] = {}  # the bytes that are needed of each

    def rows(self) -> Iterator[elements.Row]:
        """The tensors: all entries but those of slices."""
        sliced = {k: e for k, e in self.entries.items() if e.slices}
        if sum(len(k) * len(e.slices) for k, e in sliced.items()) > sum(map(len, self.entries)) + 2**16:
            raise CorruptCheckpoint("lists more slices than are stored")
        hidden = {elements.slice_key(k, s) for k, e in sliced.items() for s in e.slices}
        for key, entry in self.entries.items():
            if key not in hidden:
                data = partial(self.tiles, key, entry) if entry.slices else partial(self.data, entry)
                yield text(key), entry.dtype, entry.shape, data

    def data(self, entry: Entry, kind: DType) -> Data:
        """The location of an entry's bytes."""
        offset, size, check = entry.offset, entry.size, unmask(entry.crc32c)
        count = prod(entry.shape)
        what = ""
        if offset < 0 or size < 0:
            what = "the offset or size is negative"
        elif kind.kind == "s" and count > size:
            what = f"{count} strings do not fit in {size} bytes"
        elif kind.kind != "s" and count * kind.itemsize != size:
            what = f"the entry has {size} bytes, but {kind} {list(entry.shape)} has {count * kind.itemsize}"
        elif not 0 <= entry.shard_id < self.count:
            what = f"is in shard {entry.shard_id}, but the number of shards is {self.count}"
        if what:
            raise CorruptCheckpoint(what)
        shard = entry.shard_id
        if shard not in self.urls:
            self.urls[shard] = sibling(self.index, f"{self.base}.data-{shard:05d}-of-{self.count:05d}")
        self.reach[shard] = max(offset + size, self.reach.get(shard, 0))
        if kind.kind == "s":
            return elements.coded(self.urls[shard], offset, size, count, check, self.order)
        return Span(self.urls[shard], offset, size, f"crc32c:{check:08x}")

    def tiles(self, key: bytes, entry: Entry, kind: DType) -> list[tuple[Tile, Data]]:
        """The slices of a partitioned variable."""
        tiles = list[tuple[Tile, Data]]()
        for piece in entry.slices:
            tile = elements.tile_of(piece, entry.shape)
            # TensorFlow takes a whole tensor from its own entry, whatever is stored under the key of the slice
            whole = not any(extent.HasField("length") for extent in piece.extent)
            part = entry if whole else self.entries.get(elements.slice_key(key, piece))
            what = f"the slice {elements.spell(tile)} is"
            if part is None:
                raise CorruptCheckpoint(f"{what} listed but not stored")
            if (part.dtype, part.shape) != (entry.dtype, tile.shape):
                what += f" stored with dtype {part.dtype} and shape {list(part.shape)}"
                raise CorruptCheckpoint(what)
            tiles.append((tile, self.data(part, kind)))
        return tiles

    def check(self) -> None:
        """Compare the sizes of the files with those that the entries need; one error lists all problems."""
        problems, damaged = list[str](), False
        for shard, url in sorted(self.urls.items()):
            needed = self.reach[shard]
            if not exists(url):
                problems.append(f"the shard {split(url)[1]} is missing")
                continue
            with Reader(url) as f:
                pointer = f.read(0, min(64, f.size)).startswith(GIT_LFS)
                why = POINTER if pointer else f"has {f.size} bytes, {needed} are needed (truncated?)"
                if pointer or f.size < needed:
                    problems.append(f"the shard {split(url)[1]} {why}")
                    damaged = True
        if problems:
            if len(problems) > MAX_PROBLEMS:
                problems[MAX_PROBLEMS:] = [f"... and {len(problems) - MAX_PROBLEMS} more"]
            raise (CorruptCheckpoint if damaged else StorageError)("\n  ".join(problems))
