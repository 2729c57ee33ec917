"""TensorFlow V2 checkpoints (tensor bundles).

    P.index                    a sorted string table (table.py):
        ""                     BundleHeaderProto: number of shards, endianness, version
        name                   BundleEntryProto: dtype, shape, shard, offset, size, masked CRC-32C
        name                   ... of a partitioned variable: dtype, full shape, slices
        slice key (slices.py)  BundleEntryProto of one slice
    P.data-00000-of-00002      raw elements in C order, packed without alignment, in any order; ranges may be shared

Specification: tensorflow/core/util/tensor_bundle/tensor_bundle.cc, tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...checkpoint import Details, Note, Tensor, contiguous, tiled
from ...dtypes import DType
from ...errors import CkptError, CorruptCheckpoint
from ...messages import listing, many
from ...moves.part import Coded, Data, Span, checked_count
from ...storage.checksum import unmask
from ...storage.files import Reader
from ...storage.ranges import InMemory
from .. import carried
from ..tiling import Tile
from . import dtypes, slices, strings
from .shards import BundleEntry, Shards
from .table import Table
from .wire import messages

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
OURS = 7001  # a field of the header that TensorFlow skips: metadata of ours (carried.py)


# --- the index --------------------------------------------------------------------------------------------------


class Bundle(NamedTuple):
    """The content of an index: tensors by key, and the object graph if there is one, None if that is damaged."""

    url: str
    tensors: dict[str, Tensor]
    graph: bytes | None
    urls: tuple[str, ...]
    notes: tuple[Note, ...]
    details: Details
    metadata: dict[str, str]


def read(index: str, *, salvage: bool = False) -> Bundle:
    """Read an index and check it against its shards; tensors are not read."""
    with Reader(index) as f:
        pairs = iter(Table(f))
        first = next(pairs, None)
        header = _header(index, first)
        items = _parse(index, pairs)
    shards = Shards(index, header.num_shards)
    builder = _Builder(index, header.endianness == 1, shards, items)
    tensors = builder.tensors()
    if not salvage:
        shards.check(items)
    graph: bytes | None = b""
    notes = builder.notes()
    if OBJECT_GRAPH in tensors:
        found = tensors.pop(OBJECT_GRAPH)
        if found.shape:  # it is read at once: of any number of strings that would take any amount of memory
            raise CorruptCheckpoint("the object graph is not one string", url=index, tensor=OBJECT_GRAPH)
        data = found.parts[0].data
        if isinstance(data, Coded):
            try:
                graph = b"".join(strings.decode(data))
            except CkptError as e:
                if not salvage:
                    raise
                why = " ".join(e.message.split())
                text = f"names are those of the keys alone, and which tensors are the optimizer's is not known: {why}"
                graph, notes = None, (*notes, Note("damaged", text, (OBJECT_GRAPH,)))
    details: Details = {"shards": header.num_shards, "endianness": "big" if builder.swapped else "little"}
    metadata = _ours(index, first[1] if first else b"")
    return Bundle(index, tensors, graph, (index, *shards.used()), notes, details, metadata)


def _ours(index: str, header: bytes) -> dict[str, str]:
    """The metadata that only our own files have."""
    raw = InMemory(index, header)
    found = [header[a:b] for a, b in messages(raw, 0, len(header), OURS)]
    return carried.unpacked(found[-1]) if found else {}


def _header(index: str, first: tuple[bytes, bytes] | None) -> pb.BundleHeaderProto:
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    if first is None or first[0]:
        raise CorruptCheckpoint("has no header entry", url=index)
    try:
        header = pb.BundleHeaderProto.FromString(first[1])
    except DecodeError as e:
        raise CorruptCheckpoint(f"the header is not a valid message ({e})", url=index) from e
    version = header.version
    if version.min_consumer > 1 or 1 in version.bad_consumers:
        raise CorruptCheckpoint(f"needs a reader of version {version.min_consumer}; version 1 is supported", url=index)
    if header.num_shards < 0 or header.endianness not in (0, 1):
        raise CorruptCheckpoint("the header's shard count or endianness is out of range", url=index)
    return header


def _parse(index: str, pairs: Iterator[tuple[bytes, bytes]]) -> dict[bytes, BundleEntry]:
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    parse = pb.BundleEntryProto.FromString
    items: dict[bytes, BundleEntry] = {}
    shapes: dict[bytes, bytes] = {}
    key = b""
    try:
        for key, value in pairs:
            e = parse(value)
            shape = e.shape.SerializeToString()
            shape = shapes.setdefault(shape, shape)
            items[key] = BundleEntry(e.dtype, shape, e.shard_id, e.offset, e.size, e.crc32c, tuple(e.slices))
    except DecodeError as e:
        raise CorruptCheckpoint("the entry is not a valid message", url=index, tensor=_text(key)) from e
    return items


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


class _Layout(NamedTuple):
    """The properties shared by all entries of one dtype and shape."""

    kind: DType | None
    shape: tuple[int, ...]
    nbytes: int  # -1: unknown until the data is read
    ops: tuple[str, ...]


class _Builder:
    """Turn entries into tensors; collect the names of entries that are not tensors."""

    def __init__(self, index: str, swapped: bool, shards: Shards, items: dict[bytes, BundleEntry]) -> None:
        self.url, self.swapped, self.shards, self.items = index, swapped, shards, items
        self.layouts: dict[tuple[int, bytes], _Layout] = {}
        self.variants: list[str] = []
        self.quantised: list[str] = []
        self.unknown: list[str] = []
        self.partial: list[str] = []

    def tensors(self) -> dict[str, Tensor]:
        sliced = {k: e for k, e in self.items.items() if e.slices}
        if sum(len(k) * len(e.slices) for k, e in sliced.items()) > sum(map(len, self.items)) + 2**16:
            raise CorruptCheckpoint("lists more slices than are stored", url=self.url)
        hidden = {slices.key(k, s) for k, e in sliced.items() for s in e.slices}
        out: dict[str, Tensor] = {}
        for key, entry in self.items.items():
            if key in hidden:
                continue
            name = key.decode("utf-8", "surrogateescape")
            layout = self._layout(name, entry)
            if layout.kind is None:
                (self.variants if entry.dtype in (dtypes.VARIANT, dtypes.RESOURCE) else self.unknown).append(name)
                continue
            if entry.dtype in dtypes.QUANTISED:
                self.quantised.append(name)
            if key not in sliced:
                out[name] = self._plain(name, layout.kind, entry, layout)
            elif tensor := self._sliced(key, name, entry, layout):
                out[name] = tensor
        if self.unknown:
            text = f"{many(len(self.unknown), 'tensor')} with an unknown dtype:\n{listing(self.unknown)}"
            raise CorruptCheckpoint(text, url=self.url)
        return out

    def notes(self) -> tuple[Note, ...]:
        return dtypes.notes(self.variants, self.quantised, self.partial)

    def _layout(self, name: str, entry: BundleEntry) -> _Layout:
        key = (entry.dtype, entry.shape)
        layout = self.layouts.get(key)
        if layout is None:
            from . import messages_pb2 as pb

            proto = pb.TensorShapeProto.FromString(entry.shape)
            kind, shape = dtypes.BY_CODE.get(entry.dtype), tuple([d.size for d in proto.dim])
            if proto.unknown_rank:
                raise CorruptCheckpoint("the shape has no rank", url=self.url, tensor=name)
            count = checked_count(shape, url=self.url, tensor=name)
            nbytes = count * kind.itemsize if kind and kind.kind != "s" else -1
            ops = ("swap",) if self.swapped and kind and kind.word > 1 else ()
            layout = self.layouts[key] = _Layout(kind, shape, nbytes, ops)
        return layout

    def _plain(self, name: str, kind: DType, entry: BundleEntry, layout: _Layout) -> Tensor:
        return contiguous(name, kind, layout.shape, self._data(name, entry, layout), ops=layout.ops)

    def _data(self, name: str, entry: BundleEntry, layout: _Layout) -> Data:
        """The location of an entry's bytes."""
        offset, size = entry.offset, entry.size
        if offset < 0 or size < 0:
            raise CorruptCheckpoint("the offset or size is negative", url=self.url, tensor=name)
        if layout.nbytes != size and layout.nbytes >= 0:
            shape = list(layout.shape)
            text = f"the entry has {size} bytes, but {layout.kind} {shape} has {layout.nbytes}"
            raise CorruptCheckpoint(text, url=self.url, tensor=name)
        url = self.shards.url(entry.shard_id, offset + size, name)
        if layout.nbytes < 0:
            count = checked_count(layout.shape)
            if count > size:
                text = f"{count} strings do not fit in {size} bytes"
                raise CorruptCheckpoint(text, url=self.url, tensor=name)
            return strings.coded(url, offset, size, count, unmask(entry.crc32c), self.swapped)
        return Span(url, offset, size, f"crc32c:{unmask(entry.crc32c):08x}")

    def _sliced(self, key: bytes, name: str, entry: BundleEntry, layout: _Layout) -> Tensor | None:
        """Assemble a partitioned variable; None if only a part of it was saved."""
        kind = layout.kind
        if kind is None:
            return None
        tiles: list[tuple[Tile, Data]] = []
        for piece in entry.slices:
            tile = slices.tile(piece, layout.shape)
            if tile is None:
                raise CorruptCheckpoint(f"a slice is outside {list(layout.shape)}", url=self.url, tensor=name)
            # TensorFlow takes a whole tensor from its own entry, whatever is stored under the key of the slice
            part = entry if slices.is_whole(piece) else self.items.get(slices.key(key, piece))
            if part is None:
                text = f"the slice {slices.spell(tile)} is listed but not stored"
                raise CorruptCheckpoint(text, url=self.url, tensor=name)
            stored = self._layout(name, part)
            if part.dtype != entry.dtype or stored.shape != tile.shape:
                text = (
                    f"the slice {slices.spell(tile)} is stored with dtype {part.dtype} and shape {list(stored.shape)}"
                )
                raise CorruptCheckpoint(text, url=self.url, tensor=name)
            tiles.append((tile, self._data(name, part, stored)))
        covering = slices.joined(tiles, layout.shape, self.url, name)
        if covering is None:
            self.partial.append(name)
            return None
        return tiled(name, kind, layout.shape, [(*tile, data) for tile, data in covering], ops=layout.ops)
