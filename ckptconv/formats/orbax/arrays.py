"""zarr: the metadata of arrays, and their chunks as parts of a tensor.

    name/.zarray    version 2: {"shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "compressor": {"id": "zstd"}, ...}
    name/0.1        a chunk, by its position in the grid; "0" for an array without axes
    name/zarr.json  version 3: {"shape", "data_type", "chunk_grid", "codecs": [{"name": "bytes"}, {"name": "zstd"}]}
    name/c/0/1      a chunk; "c" for an array without axes

Chunks at the edges are stored in full. An absent chunk consists of the fill value. With the codec sharding_indexed, a
chunk contains smaller ones and an index of their positions. A chunk that is stored as it is becomes a span; `decode`
unpacks others. Errors name no file and no array: the caller knows both. Specifications: zarr-specs, v2 and v3 core;
tensorstore's zarr and zarr3 drivers, whose names of JAX's own dtypes are NumPy's.
"""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from ...checkpoint import Tensor, contiguous
from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, printable
from ...moves.part import Coded, Data, Held, Part, Span, c_strides, checked_count
from ...storage.files import Reader
from ...storage.json import parse_json
from ...storage.ranges import InMemory
from .. import Located
from ..npy import SPELLING
from . import codecs
from .locate import V2, Room, Value

INLINE = 3  # times that a chunk in a node is copied: out of a shard, and as the key of what decodes it
PART, AXIS = 400, 32  # bytes of memory for a part of a tensor, and for each of its axes
CELL = 850  # for a chunk within a chunk, until it is one
SCATTERED = 2**16  # absent chunks beside others; one box suffices where all are absent
ABSENT = 2**64 - 1  # in a shard's index: a chunk that consists of the fill value
MAX_JSON = 2**20  # bytes
NAMED = {d.name: d for d in DTYPES.values() if d.kind not in "sx"}

Place = tuple[int, ...]


class Coding(NamedTuple):
    """Chunks of one shape, and how their bytes become elements.

    codecs: in the order of compression. swap: whether the bytes of an element are swapped. order: the axes from the
    slowest to the fastest.
    """

    shape: tuple[int, ...]
    codecs: tuple[str, ...]
    swap: bool
    order: tuple[int, ...]


class Inner(NamedTuple):
    """The inner chunks of a shard, the place of their index, and whether a CRC-32C ends it."""

    coding: Coding
    at_end: bool
    checked: bool


class Array(NamedTuple):
    """An array."""

    kind: DType
    shape: tuple[int, ...]
    chunk: Coding
    inner: Inner | None
    prefix: str  # of the keys of chunks: "c" in version 3
    separator: str
    fill: Any

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk.shape, strict=True))

    def place(self, key: str) -> tuple[int, ...] | None:
        """The position in the grid of the chunk with this key; None if the key is not that of a chunk."""
        if not self.shape:
            return () if key == (self.prefix or "0") else None
        parts = key.split(self.separator)
        if self.prefix and parts.pop(0) != self.prefix:
            return None
        if len(parts) != len(self.shape) or not all(p.isdecimal() and len(p) < 20 for p in parts):
            return None
        place = tuple(map(int, parts))
        inside = all(i < n for i, n in zip(place, self.grid, strict=True))
        return place if inside and [str(i) for i in place] == parts else None


# --- chunks -----------------------------------------------------------------------------------------------------


def tensor(array: Array, chunks: Mapping[Place, Value], name: str, room: Room) -> tuple[Tensor, int]:
    """The tensor of an array with chunks at these positions of its grid, and how many elements no chunk holds."""
    if not prod(array.shape):
        return contiguous(name, array.kind, array.shape, Held.of(b"")), 0
    inline = sum(len(v.data) for v in chunks.values() if v.data is not None)
    room.take((PART + AXIS * len(array.shape)) * (1 + len(chunks)) + INLINE * inline, "arrays and chunks")
    made = _Parts(array, room)
    for place, value in chunks.items():
        start = tuple(i * c for i, c in zip(place, array.chunk.shape, strict=True))
        with Located(value.url):
            if array.inner:
                made.shard(array.inner, start, value)
            else:
                made.chunk(array.chunk, start, value)
    made.fill(array.grid, chunks, array.chunk.shape, (0,) * len(array.shape))
    return Tensor(name, array.kind, array.shape, tuple(made.parts)), made.absent


class _Parts:
    """The parts of one tensor."""

    def __init__(self, array: Array, room: Room) -> None:
        self.array, self.room = array, room
        self.steps = c_strides(array.shape)
        self.parts: list[Part] = []
        self.absent = 0  # elements that no chunk holds

    def add(self, data: Data, start: Place, shape: Place, strides: Place, ops: tuple[str, ...] = ()) -> int:
        """Add a box of the array; what reaches over its edge is left out. Return the number of elements."""
        box = tuple(min(c, n - a) for c, n, a in zip(shape, self.array.shape, start, strict=True))
        first = sum(a * s for a, s in zip(start, self.steps, strict=True))
        self.parts.append(Part(data, self.array.kind, box, 0, strides, first, self.steps, ops))
        return prod(box)

    def chunk(self, coding: Coding, start: Place, value: Value) -> None:
        strides = [0] * len(start)
        for axis, stride in zip(coding.order, c_strides([coding.shape[i] for i in coding.order]), strict=True):
            strides[axis] = stride
        size = prod(coding.shape) * self.array.kind.itemsize
        self.add(_data(coding, value, size), start, coding.shape, tuple(strides), ("swap",) if coding.swap else ())

    def shard(self, inner: Inner, start: Place, value: Value) -> None:
        """A chunk that contains chunks, by its index."""
        shape = inner.coding.shape
        grid = tuple(c // i for c, i in zip(self.array.chunk.shape, shape, strict=True))
        size = 16 * prod(grid) + 4 * inner.checked
        if size > value.size:
            what = f"a chunk of {value.size} bytes has no room for the index of its {prod(grid)} chunks (truncated?)"
            raise CorruptCheckpoint(what)
        raw = value.part(value.size - size if inner.at_end else 0, size)
        if inner.checked:
            codecs.check(InMemory(value.url, raw), 0, size)
        there, taken = dict[Place, None](), list[tuple[int, int]]()
        for number, index in enumerate(product(*map(range, grid))):
            at, length = (int.from_bytes(raw[16 * number + i : 16 * number + i + 8], "little") for i in (0, 8))
            if (at, length) == (ABSENT, ABSENT):
                continue
            if at + length > value.size:
                raise CorruptCheckpoint(f"a chunk lies at bytes {at} to {at + length} of {value.size} (truncated?)")
            self.room.take(CELL + AXIS * len(grid), "chunks within chunks")
            inside = tuple(s + i * c for s, i, c in zip(start, index, shape, strict=True))
            taken.append((at, length))
            if all(a < n for a, n in zip(inside, self.array.shape, strict=True)):  # else beyond the edge: padding
                there[index] = None
                self.chunk(inner.coding, inside, value.within(at, length))
        end = 0
        for at, length in sorted(taken):
            if length and at < end:
                raise CorruptCheckpoint(f"two of its chunks share the byte {at}")
            end = max(end, at + length)
        sizes = zip(grid, self.array.shape, start, shape, strict=True)
        self.fill(tuple(min(g, -(-(n - s) // c)) for g, n, s, c in sizes), there, shape, start)

    def fill(self, grid: Place, there: Collection[Place], chunk: Place, origin: Place) -> None:
        """The fill value, one element with strides of 0, for each cell of a grid but those `there`.

        origin: where the grid begins in the array.
        """
        if not there:
            grid, chunk = (1,) * len(grid), tuple(n * c for n, c in zip(grid, chunk, strict=True))
        absent = prod(grid) - len(there)
        if not absent:
            return
        if absent > SCATTERED + len(there):
            raise UnsafeCheckpoint(f"{len(there)} chunks lie scattered among absent ones, of which there are {absent}")
        self.room.take((PART + AXIS * len(grid)) * absent, "absent chunks")
        fill, still = Held(_fill_value(self.array)), (0,) * len(grid)
        for place in product(*map(range, grid)):
            if place not in there:
                start = tuple(b + i * c for b, i, c in zip(origin, place, chunk, strict=True))
                self.absent += self.add(fill, start, chunk, still)


def _data(coding: Coding, value: Value, size: int) -> Data:
    """A chunk's elements, which take `size` bytes."""
    if not coding.codecs:
        if value.size != size:
            raise CorruptCheckpoint(f"a chunk of {list(coding.shape)} has {value.size} bytes, not {size} (truncated?)")
        return Span(value.url, value.start, size) if value.data is None else Held.of(value.data)
    if size > codecs.RATIOS[coding.codecs[0]] * value.size + 64:
        raise UnsafeCheckpoint(f"a chunk of {list(coding.shape)} claims {size} bytes, packed into {value.size}")
    where = f"={value.data.hex()}" if value.data is not None else f"{value.start}+{value.size}"
    return Coded(__name__, value.url, f"{','.join(coding.codecs)}:{where}", size)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a chunk, in its own order."""
    packed, _, where = coded.key.partition(":")
    if where.startswith("="):
        data = bytes.fromhex(where[1:])
        yield from codecs.unpack(packed.split(","), InMemory(coded.url, data), 0, len(data), coded.size)
        return
    start, _, size = where.partition("+")
    with Reader(coded.url) as f:
        yield from codecs.unpack(packed.split(","), f, int(start), int(size), coded.size)


def _fill_value(array: Array) -> Any:
    """The fill value as an array of one element, of which only the digits of a float may be rounded."""
    import numpy as np

    fill, kind = array.fill, array.kind
    try:
        if fill is None:
            return np.zeros(1, kind.np)
        if type(fill) is str and fill.startswith("0x"):
            return np.frombuffer(bytes.fromhex(fill[2:])[::-1], kind.np).reshape(1)
        value = complex(*map(_number, fill)) if type(fill) is list and kind.kind == "c" else _number(fill)
        with np.errstate(all="ignore"):
            made = np.array([value]).astype(kind.np)
        kept = isfinite(complex(made[0])) == isfinite(value) if kind.kind in "fc" else int(made[0]) == value
        if not kept:
            raise ValueError(fill)
        return made
    except (ValueError, TypeError, OverflowError):
        what = f"chunks are absent, and the fill value {printable(brief(repr(fill), 100))} is no value of {kind}"
        raise CorruptCheckpoint(what) from None


def _number(value: Any) -> Any:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if type(value) not in (int, float, bool):
        raise TypeError(value)
    return value


# --- metadata: fields that are not known are refused, since they could change the meaning of others -------------------


def parse(raw: bytes, version: str, url: str) -> Array | None:
    """The array that the metadata describes; None for a group."""
    fields = parse_json(raw, url)
    if type(fields) is not dict:
        raise _bad("is not a JSON object")
    return _v2(fields) if version == V2 else _v3(fields)


def _bad(what: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"its zarr metadata {what}")


def _unknown(what: str, value: object) -> CorruptCheckpoint:
    return _bad(f"has the {what} {printable(brief(repr(value), 100))}, which is not read")


def _sizes(value: Any, least: int, axes: int | None = None) -> tuple[int, ...]:
    """A list of whole numbers of at least `least`."""
    if type(value) is not list or any(type(n) is not int or n < least for n in value):
        raise _bad(f"has {printable(brief(repr(value), 100))} where sizes of at least {least} are expected")
    if axes is not None and len(value) != axes:
        raise _bad(f"has chunks of {len(value)} axes for a shape of {axes}")
    checked_count(value)
    return tuple(value)


def _only(thing: dict[str, Any], known: Sequence[str]) -> None:
    for key, value in thing.items():
        if key not in known and not (type(value) is dict and value.get("must_understand") is False):
            raise _unknown(key, value)


# --- version 2 --------------------------------------------------------------------------------------------------

_V2 = ("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters",
       "dimension_separator")  # fmt: skip


def _v2(fields: dict[str, Any]) -> Array:
    _only(fields, _V2)
    shape = _sizes(fields.get("shape"), 0)
    chunk = _sizes(fields.get("chunks"), 1, len(shape))
    if fields.get("zarr_format") != 2 or fields.get("filters"):
        raise _unknown("format or filters", [fields.get("zarr_format"), fields.get("filters")])
    order, separator = fields.get("order", "C"), fields.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise _unknown("order or separator", [order, separator])
    kind, swap = _typed(fields.get("dtype"))
    packed = fields.get("compressor")
    name = packed.get("id") if type(packed) is dict else None
    if packed is not None and name not in ("zstd", "gzip", "zlib", "blosc"):
        raise _unknown("compressor", packed)
    axes = tuple(range(len(shape)))
    coding = Coding(chunk, (name,) if name else (), swap, axes if order == "C" else axes[::-1])
    return Array(kind, shape, coding, None, "", separator, fields.get("fill_value"))


def _typed(said: Any) -> tuple[DType, bool]:
    """The dtype of version 2, and whether its bytes are swapped."""
    if type(said) is str and said in NAMED:
        return NAMED[said], False
    if type(said) is not str or said[:1] not in "<>|" or said[1:] not in SPELLING:
        raise _unknown("dtype", said)
    kind = DTYPES[SPELLING[said[1:]]]
    if said[0] == "|" and kind.word > 1:
        raise _unknown("dtype", said)
    return kind, said[0] == ">" and kind.word > 1


# --- version 3 --------------------------------------------------------------------------------------------------

_V3 = ("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
       "attributes", "dimension_names", "storage_transformers")  # fmt: skip


def _v3(fields: dict[str, Any]) -> Array | None:
    if fields.get("node_type") == "group" and fields.get("zarr_format") == 3:
        return None
    _only(fields, _V3)
    if fields.get("zarr_format") != 3 or fields.get("node_type") != "array" or fields.get("storage_transformers"):
        raise _unknown("format or kind", [fields.get("zarr_format"), fields.get("node_type")])
    kind = NAMED.get(str(fields.get("data_type")))
    if kind is None:
        raise _unknown("dtype", fields.get("data_type"))
    shape = _sizes(fields.get("shape"), 0)
    grid, keys = _named(fields.get("chunk_grid")), _named(fields.get("chunk_key_encoding"))
    if grid[0] != "regular" or keys[0] not in ("default", "v2"):
        raise _unknown("grid or encoding of keys", [grid[0], keys[0]])
    _only(grid[1], ("chunk_shape",))
    _only(keys[1], ("separator",))
    chunk = _sizes(grid[1].get("chunk_shape"), 1, len(shape))
    separator = keys[1].get("separator", "/" if keys[0] == "default" else ".")
    if separator not in (".", "/"):
        raise _unknown("separator", separator)
    coding, how = _coding(fields.get("codecs"), kind, chunk)
    inner = _sharded(how, kind, chunk) if how is not None else None
    prefix = "c" if keys[0] == "default" else ""
    return Array(kind, shape, coding, inner, prefix, separator, fields.get("fill_value"))


def _named(value: Any) -> tuple[str, dict[str, Any]]:
    """A name and its optional configuration."""
    if type(value) is str:
        return value, {}
    how = value.get("configuration", {}) if type(value) is dict else None
    if type(how) is not dict or type(value.get("name")) is not str or set(value) - {"name", "configuration"}:
        raise _unknown("part", value)
    return value["name"], how


def _coding(value: Any, kind: DType, shape: tuple[int, ...]) -> tuple[Coding, dict[str, Any] | None]:
    """The codecs of chunks of this shape; of chunks that contain chunks, the configuration of these."""
    if type(value) is not list or not value or len(value) > 16:
        raise _unknown("codecs", value)
    chain = [_named(one) for one in value]
    axes = order = tuple(range(len(shape)))
    while chain and chain[0][0] == "transpose":
        _, how = chain.pop(0)
        _only(how, ("order",))
        turn = how.get("order")
        if type(turn) is not list or any(type(i) is not int for i in turn) or tuple(sorted(turn)) != axes:
            raise _unknown("transposition", turn)
        order = tuple(order[i] for i in turn)
    name, how = chain.pop(0) if chain else ("", {})
    packed = tuple(name for name, _ in chain)
    if name == "sharding_indexed" and not packed and order == axes:
        return Coding(shape, (), False, order), how
    if name != "bytes":
        raise _unknown("codecs", [name, *packed])
    _only(how, ("endian",))
    endian = how.get("endian", "little")
    if endian not in ("little", "big"):
        raise _unknown("order of bytes", endian)
    # one compressor at most, and first: others could not be streamed
    if set(packed) - {"zstd", "gzip", "blosc", "crc32c"} or any(n != "crc32c" for n in packed[1:]):
        raise _unknown("codecs, or their order", packed)
    return Coding(shape, packed, endian == "big" and kind.word > 1, order), None


def _sharded(how: dict[str, Any], kind: DType, chunk: tuple[int, ...]) -> Inner:
    _only(how, ("chunk_shape", "codecs", "index_codecs", "index_location"))
    shape = _sizes(how.get("chunk_shape"), 1, len(chunk))
    if any(n % i for n, i in zip(chunk, shape, strict=True)):
        raise _bad(f"has chunks of {list(shape)} in chunks of {list(chunk)}, which they do not fill")
    coding, deeper = _coding(how.get("codecs"), kind, shape)
    if deeper is not None:
        raise _unknown("codecs", how.get("codecs"))
    index, deeper = _coding(how.get("index_codecs"), DTYPES["uint64"], (1,))
    location = how.get("index_location", "end")
    if deeper is not None or index.codecs not in ((), ("crc32c",)) or index.swap or location not in ("start", "end"):
        raise _unknown("index", [how.get("index_codecs"), location])
    return Inner(coding, location == "end", bool(index.codecs))
