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
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint import Details, Note, Tensor, contiguous, tiled
from ...dtypes import DType
from ...errors import CkptError, CorruptCheckpoint, StorageError
from ...messages import fold, listing, many
from ...moves.part import Coded, Data, Span, checked_count
from ...storage.checksum import unmask
from ...storage.files import Reader, exists, names, sibling, split
from ...storage.paths import spelled
from .. import own_metadata
from ..tiling import Tile
from . import elements, locate
from .elements import Kinds, parse, text
from .table import GIT_LFS, POINTER, Table

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
OURS = 7001  # a field of the header that TensorFlow skips: metadata of ours (own_metadata.py)
MAX_PROBLEMS = 100  # shards listed in an error


class Bundle(NamedTuple):
    """The content of an index: tensors by key, and the object graph if there is one, None if that is damaged."""

    url: str
    tensors: dict[str, Tensor]
    graph: bytes | None
    urls: tuple[str, ...]
    notes: tuple[Note, ...]
    details: Details
    metadata: dict[str, str]


class Entry(NamedTuple):
    """The fields of a BundleEntryProto; the message itself would take four times the memory."""

    dtype: int
    shape: bytes  # TensorShapeProto; most entries share a few
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[pb.TensorSliceProto, ...]


class Layout(NamedTuple):
    """What all entries of one dtype and shape have in common."""

    shape: tuple[int, ...]
    nbytes: int  # -1: unknown until the data is read
    ops: tuple[str, ...]


def read(index: str, *, salvage: bool = False) -> Bundle:
    """Read an index and check it against its shards; tensors are not read."""
    with Reader(index) as f:
        pairs = iter(Table(f))
        header = _header(index, next(pairs, None))
        entries = _entries(index, pairs)
    shards = Shards(index, header.num_shards)
    big = header.endianness == 1
    kinds = Kinds()
    tensors = _Builder(index, big, shards, entries, kinds).tensors()
    notes = kinds.notes(index)
    if not salvage:
        shards.check(entries)
    graph: bytes | None = b""
    if OBJECT_GRAPH in tensors:
        try:
            graph = _object_graph(index, tensors.pop(OBJECT_GRAPH))
        except CkptError as e:
            if not salvage:
                raise
            why = " ".join(e.message.split())
            what = f"names are those of the keys alone, and which tensors are the optimizer's is not known: {why}"
            graph, notes = None, (*notes, Note("damaged", what, (OBJECT_GRAPH,)))
    details: Details = {"shards": header.num_shards, "endianness": "big" if big else "little"}
    return Bundle(index, tensors, graph, (index, *shards.used()), notes, details, _own_metadata(header))


def _object_graph(index: str, tensor: Tensor) -> bytes:
    if tensor.shape:  # it is read at once: any number of strings would take any amount of memory
        raise CorruptCheckpoint("the object graph is not one string", url=index, tensor=OBJECT_GRAPH)
    data = tensor.parts[0].data
    return b"".join(elements.decode(data)) if isinstance(data, Coded) else b""


def _own_metadata(header: pb.BundleHeaderProto) -> dict[str, str]:
    """The metadata that only our own files have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown = UnknownFieldSet(header)
    rows = [unknown[i] for i in range(len(unknown))]
    values = [row.data for row in rows if row.field_number == OURS and isinstance(row.data, bytes)]
    return own_metadata.unpack(values[-1]) if values else {}


def _header(index: str, first: tuple[bytes, bytes] | None) -> pb.BundleHeaderProto:
    from . import messages_pb2 as pb

    if first is None or first[0]:
        raise CorruptCheckpoint("has no header entry", url=index)
    header = parse(pb.BundleHeaderProto, first[1], "the header", index)
    version = header.version
    if version.min_consumer > 1 or 1 in version.bad_consumers:
        raise CorruptCheckpoint(f"needs a reader of version {version.min_consumer}; version 1 is supported", url=index)
    if header.num_shards < 0 or header.endianness not in (0, 1):
        raise CorruptCheckpoint("the header's shard count or endianness is out of range", url=index)
    return header


def _entries(index: str, pairs: Iterator[tuple[bytes, bytes]]) -> dict[bytes, Entry]:
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    entries: dict[bytes, Entry] = {}
    shapes: dict[bytes, bytes] = {}
    key = b""
    try:
        for key, value in pairs:
            e = pb.BundleEntryProto.FromString(value)
            shape = e.shape.SerializeToString()
            shape = shapes.setdefault(shape, shape)
            entries[key] = Entry(e.dtype, shape, e.shard_id, e.offset, e.size, e.crc32c, tuple(e.slices))
    except DecodeError as e:
        raise CorruptCheckpoint("the entry is not a valid message", url=index, tensor=text(key)) from e
    return entries


class _Builder:
    """Make tensors of entries."""

    def __init__(self, index: str, big: bool, shards: Shards, entries: dict[bytes, Entry], kinds: Kinds) -> None:
        self.url, self.big, self.shards, self.entries, self.kinds = index, big, shards, entries, kinds
        self.layouts: dict[tuple[int, bytes], Layout] = {}

    def tensors(self) -> dict[str, Tensor]:
        sliced = {k: e for k, e in self.entries.items() if e.slices}
        if sum(len(k) * len(e.slices) for k, e in sliced.items()) > sum(map(len, self.entries)) + 2**16:
            raise CorruptCheckpoint("lists more slices than are stored", url=self.url)
        hidden = {elements.slice_key(k, s) for k, e in sliced.items() for s in e.slices}
        tensors: dict[str, Tensor] = {}
        for key, entry in self.entries.items():
            if key in hidden:
                continue
            name = text(key)
            kind = self.kinds.of(entry.dtype, name)
            layout = self._layout(name, entry, kind)
            if kind and not entry.slices:
                data = self._data(name, entry, kind, layout)
                tensors[name] = contiguous(name, kind, layout.shape, data, ops=layout.ops)
            elif kind:
                tiles = elements.joined(self._tiles(key, name, entry, kind, layout), layout.shape, self.url, name)
                if tiles is None:
                    self.kinds.partial.append(name)
                else:
                    pieces = [(*tile, data) for tile, data in tiles]
                    tensors[name] = tiled(name, kind, layout.shape, pieces, ops=layout.ops)
        return tensors

    def _layout(self, name: str, entry: Entry, kind: DType | None) -> Layout:
        layout = self.layouts.get((entry.dtype, entry.shape))
        if layout is None:
            from . import messages_pb2 as pb

            proto = pb.TensorShapeProto.FromString(entry.shape)
            if proto.unknown_rank:
                raise CorruptCheckpoint("the shape has no rank", url=self.url, tensor=name)
            shape = tuple([d.size for d in proto.dim])
            count = checked_count(shape, url=self.url, tensor=name)
            nbytes = count * kind.itemsize if kind and kind.kind != "s" else -1
            ops = ("swap",) if self.big and kind and kind.word > 1 else ()
            layout = self.layouts[entry.dtype, entry.shape] = Layout(shape, nbytes, ops)
        return layout

    def _data(self, name: str, entry: Entry, kind: DType, layout: Layout) -> Data:
        """The location of an entry's bytes."""
        offset, size, check = entry.offset, entry.size, unmask(entry.crc32c)
        if offset < 0 or size < 0:
            raise CorruptCheckpoint("the offset or size is negative", url=self.url, tensor=name)
        if layout.nbytes != size and layout.nbytes >= 0:
            what = f"the entry has {size} bytes, but {kind} {list(layout.shape)} has {layout.nbytes}"
            raise CorruptCheckpoint(what, url=self.url, tensor=name)
        url = self.shards.url(entry.shard_id, offset + size, name)
        if layout.nbytes >= 0:
            return Span(url, offset, size, f"crc32c:{check:08x}")
        count = checked_count(layout.shape)
        if count > size:
            raise CorruptCheckpoint(f"{count} strings do not fit in {size} bytes", url=self.url, tensor=name)
        return elements.coded(url, offset, size, count, check, "big" if self.big else "little")

    def _tiles(self, key: bytes, name: str, entry: Entry, kind: DType, layout: Layout) -> list[tuple[Tile, Data]]:
        """The slices of a partitioned variable."""
        tiles: list[tuple[Tile, Data]] = []
        for piece in entry.slices:
            tile = elements.tile_of(piece, layout.shape, self.url, name)
            # TensorFlow takes a whole tensor from its own entry, whatever is stored under the key of the slice
            whole = not any(extent.HasField("length") for extent in piece.extent)
            part = entry if whole else self.entries.get(elements.slice_key(key, piece))
            what = f"the slice {elements.spell(tile)} is"
            if part is None:
                raise CorruptCheckpoint(f"{what} listed but not stored", url=self.url, tensor=name)
            stored = self._layout(name, part, elements.BY_CODE.get(part.dtype))
            if part.dtype != entry.dtype or stored.shape != tile.shape:
                what += f" stored with dtype {part.dtype} and shape {list(stored.shape)}"
                raise CorruptCheckpoint(what, url=self.url, tensor=name)
            tiles.append((tile, self._data(name, part, kind, stored)))
        return tiles


# --- the data files ---------------------------------------------------------------------------------------------


class Shards:
    """The data files of a bundle: their names and the sizes that the entries require."""

    def __init__(self, index: str, count: int) -> None:
        self.index, self.count = index, count
        self.base = spelled(index).removesuffix(".index")
        self.reach: dict[int, int] = {}
        self.urls: dict[int, str] = {}
        self.totals: set[str] | None = None  # numbers of shards by the names in the folder, once a shard is missing

    def url(self, shard: int, end: int, name: str) -> str:
        """The URL of a shard; records that its bytes up to `end` are needed."""
        if shard not in self.urls:
            if not 0 <= shard < self.count:
                what = f"is in shard {shard}, but the number of shards is {self.count}"
                raise CorruptCheckpoint(what, url=self.index, tensor=name)
            self.urls[shard] = self._find(shard)
        self.reach[shard] = max(end, self.reach.get(shard, 0))
        return self.urls[shard]

    def used(self) -> tuple[str, ...]:
        return tuple(self.urls[s] for s in sorted(self.urls))

    def _find(self, shard: int) -> str:
        """The file of a shard. A merge with an empty part writes a header that counts too many shards."""
        url = sibling(self.index, f"{self.base}.data-{shard:05d}-of-{self.count:05d}")
        if exists(url):
            return url
        if self.totals is None:
            matches = map(locate.DATA.fullmatch, names(split(self.index)[0]))
            self.totals = {m[3] for m in matches if m and m[1] == self.base}
        if len(self.totals) != 1:
            return url
        return sibling(self.index, f"{self.base}.data-{shard:05d}-of-{min(self.totals)}")

    def check(self, entries: dict[bytes, Entry]) -> None:
        """Compare the sizes of the files with those that the entries need; one error lists all problems."""
        rows = (self._problem(shard, url, entries) for shard, url in sorted(self.urls.items()))
        problems = list(islice(filter(None, rows), MAX_PROBLEMS))
        if problems:
            kind = StorageError if all("is missing" in p for p in problems) else CorruptCheckpoint
            raise kind("\n  ".join(problems), url=self.index)

    def _problem(self, shard: int, url: str, entries: dict[bytes, Entry]) -> str:
        file, stored = split(url)[1], ((k, e) for k, e in entries.items() if e.shard_id == shard and not e.slices)
        if not exists(url):
            held = [text(k) for k, _ in stored]
            what = f"it holds {many(len(held), 'tensor')}:\n{listing(map(str, fold(held)))}"
            return f"the shard {file} is missing; {what}"
        with Reader(url) as f:
            size = f.size
            if f.read(0, min(64, size)).startswith(GIT_LFS):
                return f"the shard {file}: {POINTER}"
        if size >= self.reach[shard]:
            return ""
        cut = [text(k) for k, e in stored if e.offset + e.size > size]
        return (
            f"the shard {file} has {size} bytes, {self.reach[shard]} are needed (truncated?); "
            f"this affects {many(len(cut), 'tensor')}:\n{listing(cut)}"
        )
