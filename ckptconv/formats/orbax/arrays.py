"""The chunks of an array as parts of a tensor: spans if they are stored plainly, otherwise unpacked by `decode`.

Absent chunks consist of the fill value; they become a few boxes, however many chunks the grid has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite, isnan, prod
from typing import Any, NamedTuple

from ...checkpoint import Tensor, contiguous
from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, printable
from ...moves.part import Coded, Data, Held, Part, Span, c_strides, checked_count
from ...storage.files import Reader
from ...storage.json import parse_json
from ...storage.ranges import InMemory
from ..npy import SPELLING
from . import codecs
from .locate import V2
from .values import Room, Value

INLINE = 3  # times that a chunk in a node is copied: out of a shard, and as the key of what decodes it
PART, AXIS = 400, 32  # bytes of memory for a part of a tensor, and for each of its axes
CELL = 850  # for a chunk within a chunk, until it is one
BOXES = 4  # of absent chunks for each chunk that is there
ABSENT = 2**64 - 1  # in a shard's index: a chunk that consists of the fill value

Place = tuple[int, ...]


class Chunk(NamedTuple):
    """A stored chunk: its position in the array, its full shape, and how its bytes become elements."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    value: Value
    codecs: tuple[str, ...]
    swap: bool
    order: tuple[int, ...]


class Made(NamedTuple):
    """A tensor, and the number of its elements that no chunk holds."""

    tensor: Tensor
    absent: int


def tensor(array: Array, chunks: Mapping[Place, Value], name: str, room: Room) -> Made:
    """The tensor of an array with chunks at these positions of its grid."""
    total = checked_count(array.shape, url=array.url, tensor=name)
    if not total:
        return Made(contiguous(name, array.kind, array.shape, Held.of(b"")), 0)
    inline = sum(len(v.data) for v in chunks.values() if v.data is not None)
    room.take((PART + AXIS * len(array.shape)) * (1 + len(chunks)) + INLINE * inline, "arrays and chunks")
    parts, absent = list[Part](), 0
    for place, value in chunks.items():
        if array.inner is None:
            at = tuple(i * c for i, c in zip(place, array.chunk, strict=True))
            chunk = Chunk(at, array.chunk, value, array.codecs, array.swap, array.order)
            parts.append(_part(array, chunk, name))
        else:
            inside, empty = _shard(array, place, value, name, room)
            parts += inside
            absent += sum(prod(p.shape) for p in empty)
            parts += empty
    gaps = _gaps(array, array.grid, chunks, array.chunk, name, room)
    parts += gaps
    absent += sum(prod(p.shape) for p in gaps)
    return Made(Tensor(name, array.kind, array.shape, tuple(parts)), absent)


def _part(array: Array, chunk: Chunk, name: str) -> Part:
    """The part that a chunk fills; chunks at the edges are stored in full, and only their share of the array counts."""
    kind = array.kind
    size = checked_count(chunk.shape, url=array.url, tensor=name) * kind.itemsize
    box = tuple(min(c, n - a) for c, n, a in zip(chunk.shape, array.shape, chunk.start, strict=True))
    packed = c_strides([chunk.shape[i] for i in chunk.order])
    strides = [0] * len(packed)
    for axis, stride in zip(chunk.order, packed, strict=True):
        strides[axis] = stride
    steps = c_strides(array.shape)
    start = sum(a * s for a, s in zip(chunk.start, steps, strict=True))
    ops = ("swap",) if chunk.swap else ()
    return Part(_data(array, chunk, size, name), kind, box, 0, tuple(strides), start, steps, ops)


def _data(array: Array, chunk: Chunk, size: int, name: str) -> Data:
    value, packed = chunk.value, chunk.codecs
    if not packed:
        if value.size != size:
            what = f"a chunk of {list(chunk.shape)} has {value.size} bytes, not {size} (truncated?)"
            raise CorruptCheckpoint(what, url=value.url, tensor=name)
        return Span(value.url, value.start, size) if value.data is None else Held.of(value.data)
    if size > codecs.ratio(packed) * value.size + 64:
        what = f"a chunk of {list(chunk.shape)} claims {size} bytes, packed into {value.size}"
        raise UnsafeCheckpoint(what, url=value.url, tensor=name)
    where = f"={value.data.hex()}" if value.data is not None else f"{value.start}+{value.size}"
    return Coded(__name__, value.url, f"{','.join(packed)}:{where}", size)


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


# --- shards: chunks that contain chunks -------------------------------------------------------------------------


def _shard(array: Array, place: Place, value: Value, name: str, room: Room) -> tuple[list[Part], list[Part]]:
    """The inner chunks of a chunk, by its index, and the boxes of the fill value."""
    inner = array.inner
    if inner is None:
        return [], []
    grid = tuple(c // i for c, i in zip(array.chunk, inner.chunk, strict=True))
    count = prod(grid)
    size = 16 * count + 4 * inner.checked
    if size > value.size:
        what = f"a chunk of {value.size} bytes has no room for the index of its {count} chunks (truncated?)"
        raise CorruptCheckpoint(what, url=value.url, tensor=name)
    raw = value.part(value.size - size if inner.at_end else 0, size)
    if inner.checked:
        codecs.check(InMemory(value.url, raw), 0, size)
    start = tuple(i * c for i, c in zip(place, array.chunk, strict=True))
    there, taken = dict[Place, Chunk](), list[tuple[int, int]]()
    for number in range(count):
        at, length = (int.from_bytes(raw[16 * number + i : 16 * number + i + 8], "little") for i in (0, 8))
        if (at, length) == (ABSENT, ABSENT):
            continue
        if at + length > value.size:
            what = f"a chunk lies at bytes {at} to {at + length} of {value.size} (truncated?)"
            raise CorruptCheckpoint(what, url=value.url, tensor=name)
        room.take(CELL + AXIS * len(grid), "chunks within chunks")
        index = _unravel(number, grid)
        inside = tuple(s + i * c for s, i, c in zip(start, index, inner.chunk, strict=True))
        taken.append((at, length))
        if all(a < n for a, n in zip(inside, array.shape, strict=True)):  # else beyond the edge: padding
            there[index] = Chunk(inside, inner.chunk, _within(value, at, length), inner.codecs, inner.swap, inner.order)
    _check_apart(sorted(taken), value, name)
    edge = tuple(min(g, -(-(n - s) // c)) for g, n, s, c in zip(grid, array.shape, start, inner.chunk, strict=True))
    empty = _gaps(array, edge, there, inner.chunk, name, room, start)
    return [_part(array, c, name) for c in there.values()], empty


def _within(value: Value, at: int, size: int) -> Value:
    if value.data is not None:
        return value._replace(size=size, data=value.data[at : at + size])
    return value._replace(start=value.start + at, size=size)


def _check_apart(taken: Sequence[tuple[int, int]], value: Value, name: str) -> None:
    end = 0
    for at, size in taken:
        if size and at < end:
            raise CorruptCheckpoint(f"two of its chunks share the byte {at}", url=value.url, tensor=name)
        end = max(end, at + size)


def _unravel(number: int, grid: Place) -> Place:
    out = []
    for n in reversed(grid):
        number, i = divmod(number, n)
        out.append(i)
    return tuple(reversed(out))


# --- absent chunks ----------------------------------------------------------------------------------------------


def holes(grid: Place, there: Sequence[Place]) -> Iterator[tuple[Place, Place]]:
    """Boxes [lo, hi) that tile a grid together with the sorted cells `there`; about as many as there are cells."""
    if not there:
        if all(grid):
            yield (0,) * len(grid), grid
        return
    if not grid:
        return
    at, before = 0, 0
    while at <= len(there):
        index = there[at][0] if at < len(there) else grid[0]
        if index > before:
            yield (before, *(0 for _ in grid[1:])), (index, *grid[1:])
        if at == len(there):
            return
        end = at
        while end < len(there) and there[end][0] == index:
            end += 1
        for lo, hi in holes(grid[1:], [cell[1:] for cell in there[at:end]]):
            yield (index, *lo), (index + 1, *hi)
        at, before = end, index + 1


def _gaps(
    array: Array, grid: Place, there: Collection[Place], chunk: Place, name: str, room: Room, origin: Place = ()
) -> list[Part]:
    """The boxes of a grid, which begins at `origin`, that hold none of the cells `there`: they have the fill value.

    Along many axes each cell that is there can make a box for each of them, which no file needs.
    """
    if len(there) == prod(grid):
        return []
    fill, most, parts = Held(_fill(array, name)), BOXES * len(there) + 2**12, list[Part]()
    for lo, hi in holes(grid, sorted(there)):
        if len(parts) == most:
            what = f"{len(there)} chunks lie scattered among absent ones, more than {most} boxes of which are between"
            raise UnsafeCheckpoint(what, url=array.url, tensor=name)
        room.take(PART + AXIS * len(grid), "boxes between chunks")
        parts.append(_filled(array, lo, hi, chunk, fill, origin))
    return parts


def _filled(array: Array, lo: Place, hi: Place, chunk: Place, fill: Held, origin: Place) -> Part:
    """A box of chunks that consist of the fill value: one element, with strides of 0."""
    base = origin or (0,) * len(lo)
    start = [b + a * c for b, a, c in zip(base, lo, chunk, strict=True)]
    end = [min(n, b + e * c) for n, b, e, c in zip(array.shape, base, hi, chunk, strict=True)]
    steps = c_strides(array.shape)
    shape = tuple(e - s for s, e in zip(start, end, strict=True))
    at = sum(a * s for a, s in zip(start, steps, strict=True))
    return Part(fill, array.kind, shape, 0, (0,) * len(shape), at, steps)


def _fill(array: Array, name: str) -> Any:
    """The fill value as an array of one element, of which only the digits of a float may be rounded."""
    import numpy as np

    said, kind = array.fill, array.kind
    try:
        if said is None:
            return np.zeros(1, kind.np)
        if type(said) is str and said.startswith("0x"):
            return np.frombuffer(bytes.fromhex(said[2:])[::-1], kind.np).reshape(1)
        value = complex(*map(_number, said)) if type(said) is list and kind.kind == "c" else _number(said)
        with np.errstate(all="ignore"):
            made = np.array([value]).astype(kind.np)
        if not _is_kept(value, made[0], kind.kind):
            raise ValueError(said)
        return made
    except (ValueError, TypeError, OverflowError):
        what = f"chunks are absent, and the fill value {printable(brief(repr(said), 100))} is no value of {kind}"
        raise CorruptCheckpoint(what, url=array.url, tensor=name) from None


def _is_kept(value: Any, made: Any, kind: str) -> bool:
    """Whether an element is this number: the same, or of a float one that is as finite."""
    if kind not in "fc":
        return bool(int(made) == value)
    pairs = zip(*((x.real, x.imag) for x in (complex(value), complex(made))), strict=True)
    return all(a == b or (isfinite(a) and isfinite(b)) or (isnan(a) and isnan(b)) for a, b in pairs)


def _number(said: Any) -> Any:
    if said in ("NaN", "Infinity", "-Infinity"):
        return float(said.replace("Infinity", "inf"))
    if type(said) not in (int, float, bool):
        raise TypeError(said)
    return said


# --- zarr: the metadata of an array, which describes its elements and the chunks that hold them ---------------------
#
#     name/.zarray    version 2: {"shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "compressor": {"id": "zstd"}, ...}
#     name/0.1        a chunk, by its position in the grid; "0" for an array without axes
#     name/zarr.json  version 3: {"shape", "data_type", "chunk_grid", "codecs": [{"name": "bytes"}, {"name": "zstd"}]}
#     name/c/0/1      a chunk; "c" for an array without axes
#
# Chunks at the edges are stored in full. An absent chunk consists of the fill value. With the codec sharding_indexed, a
# chunk contains smaller ones and an index of their positions. Specifications: zarr-specs, v2 and v3 core; tensorstore's
# zarr and zarr3 drivers, whose names of JAX's own dtypes are NumPy's.


MAX_JSON = 2**20  # bytes
NAMED = {d.name: d for d in DTYPES.values() if d.kind not in "sx"}


class Inner(NamedTuple):
    """The inner chunks of a shard: their shape and codecs, the place of their index, whether a CRC-32C ends it."""

    chunk: tuple[int, ...]
    codecs: tuple[str, ...]
    swap: bool
    order: tuple[int, ...]
    at_end: bool
    checked: bool


class Array(NamedTuple):
    """An array. order: its axes from the slowest to the fastest in a chunk. codecs: in the order of compression."""

    name: str
    url: str
    kind: DType
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    codecs: tuple[str, ...]
    swap: bool
    order: tuple[int, ...]
    prefix: str  # of the keys of chunks: "c" in version 3
    separator: str
    fill: Any
    inner: Inner | None = None

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    def place(self, key: str) -> tuple[int, ...] | None:
        """The position in the grid of the chunk with this key; None if the key is not that of a chunk."""
        if not self.shape:
            return () if key == (self.prefix or "0") else None
        if self.prefix and not key.startswith(self.prefix + self.separator):
            return None
        parts = key[len(self.prefix + self.separator) if self.prefix else 0 :].split(self.separator)
        if len(parts) != len(self.shape) or not all(p.isdecimal() and len(p) < 20 for p in parts):
            return None
        place = tuple(map(int, parts))
        inside = all(i < n for i, n in zip(place, self.grid, strict=True))
        return place if inside and [str(i) for i in place] == parts else None


class Metadata:
    """The metadata of one array, read field by field; CorruptCheckpoint names fields that are not understood."""

    def __init__(self, name: str, raw: bytes, url: str) -> None:
        self.name, self.url = name, url
        self.said = parse_json(raw, url)
        if type(self.said) is not dict:
            raise self.bad("is not a JSON object")

    def bad(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"its zarr metadata {what}", url=self.url, tensor=self.name)

    def unknown(self, what: str, value: object) -> CorruptCheckpoint:
        return self.bad(f"has the {what} {printable(brief(repr(value), 100))}, which is not read")

    def sizes(self, value: Any, least: int, axes: int | None = None) -> tuple[int, ...]:
        """A list of whole numbers of at least `least`."""
        if type(value) is not list or any(type(n) is not int or n < least for n in value):
            raise self.bad(f"has {printable(brief(repr(value), 100))} where sizes of at least {least} are expected")
        if axes is not None and len(value) != axes:
            raise self.bad(f"has chunks of {len(value)} axes for a shape of {axes}")
        checked_count(value, url=self.url, tensor=self.name)
        return tuple(value)

    def only(self, thing: dict[str, Any], known: Sequence[str]) -> None:
        """Refuse unknown fields, which could change the meaning of others."""
        for key, value in thing.items():
            if key not in known and not (type(value) is dict and value.get("must_understand") is False):
                raise self.unknown(key, value)


def parse(name: str, raw: bytes, version: str, url: str) -> Array | None:
    """The array that the metadata describes; None for a group."""
    m = Metadata(name, raw, url)
    return _v2(m) if version == V2 else _v3(m)


# --- version 2 --------------------------------------------------------------------------------------------------

_V2 = ("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters",
       "dimension_separator")  # fmt: skip


def _v2(m: Metadata) -> Array:
    m.only(m.said, _V2)
    said = m.said
    shape = m.sizes(said.get("shape"), 0)
    chunk = m.sizes(said.get("chunks"), 1, len(shape))
    if said.get("zarr_format") != 2 or said.get("filters"):
        raise m.unknown("format or filters", [said.get("zarr_format"), said.get("filters")])
    order, separator = said.get("order", "C"), said.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise m.unknown("order or separator", [order, separator])
    kind, swap = _typed(m, said.get("dtype"))
    axes = tuple(range(len(shape)))
    return Array(m.name, m.url, kind, shape, chunk, _compressor(m, said.get("compressor")), swap,
                 axes if order == "C" else axes[::-1], "", separator, said.get("fill_value"))  # fmt: skip


def _compressor(m: Metadata, said: Any) -> tuple[str, ...]:
    if said is None:
        return ()
    found = said.get("id") if type(said) is dict else None
    if found not in ("zstd", "gzip", "zlib", "blosc"):
        raise m.unknown("compressor", said)
    return (found,)


def _typed(m: Metadata, said: Any) -> tuple[DType, bool]:
    """The dtype of version 2, and whether its bytes are swapped."""
    if type(said) is str and said in NAMED:
        return NAMED[said], False
    if type(said) is not str or said[:1] not in "<>|" or said[1:] not in SPELLING:
        raise m.unknown("dtype", said)
    kind = DTYPES[SPELLING[said[1:]]]
    if said[0] == "|" and kind.word > 1:
        raise m.unknown("dtype", said)
    return kind, said[0] == ">" and kind.word > 1


# --- version 3 --------------------------------------------------------------------------------------------------

_V3 = ("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
       "attributes", "dimension_names", "storage_transformers")  # fmt: skip


def _v3(m: Metadata) -> Array | None:
    said = m.said
    if said.get("node_type") == "group" and said.get("zarr_format") == 3:
        return None
    m.only(said, _V3)
    if said.get("zarr_format") != 3 or said.get("node_type") != "array" or said.get("storage_transformers"):
        raise m.unknown("format or kind", [said.get("zarr_format"), said.get("node_type")])
    kind = NAMED.get(str(said.get("data_type")))
    if kind is None:
        raise m.unknown("dtype", said.get("data_type"))
    shape = m.sizes(said.get("shape"), 0)
    grid, keys = _named(m, said.get("chunk_grid")), _named(m, said.get("chunk_key_encoding"))
    if grid[0] != "regular" or keys[0] not in ("default", "v2"):
        raise m.unknown("grid or encoding of keys", [grid[0], keys[0]])
    m.only(grid[1], ("chunk_shape",))
    m.only(keys[1], ("separator",))
    chunk = m.sizes(grid[1].get("chunk_shape"), 1, len(shape))
    separator = keys[1].get("separator", "/" if keys[0] == "default" else ".")
    if separator not in (".", "/"):
        raise m.unknown("separator", separator)
    codecs, swap, order, inner = _codecs(m, said.get("codecs"), kind, chunk)
    return Array(m.name, m.url, kind, shape, chunk, codecs, swap, order, "c" if keys[0] == "default" else "",
                 separator, said.get("fill_value"), inner)  # fmt: skip


def _named(m: Metadata, said: Any) -> tuple[str, dict[str, Any]]:
    """A name and its optional configuration."""
    if type(said) is str:
        return said, {}
    if type(said) is not dict or type(said.get("name")) is not str or set(said) - {"name", "configuration"}:
        raise m.unknown("part", said)
    configuration = said.get("configuration", {})
    if type(configuration) is not dict:
        raise m.unknown("part", said)
    return said["name"], configuration


def _codecs(
    m: Metadata, said: Any, kind: DType, chunk: tuple[int, ...], *, nested: bool = False
) -> tuple[tuple[str, ...], bool, tuple[int, ...], Inner | None]:
    """The codecs of bytes, whether bytes are swapped, the order of the axes, and the inner chunks of a shard."""
    if type(said) is not list or not said or len(said) > 16:
        raise m.unknown("codecs", said)
    chain = [_named(m, one) for one in said]
    order = tuple(range(len(chunk)))
    while chain and chain[0][0] == "transpose":
        order = tuple(order[i] for i in _permutation(m, chain.pop(0)[1], len(chunk)))
    name, how = chain.pop(0) if chain else ("", {})
    if name == "sharding_indexed" and not chain and not nested and order == tuple(range(len(chunk))):
        return (), False, order, _sharded(m, how, kind, chunk)
    if name != "bytes":
        raise m.unknown("codecs", [n for n, _ in (*chain, (name, how))])
    return _packed(m, chain), _swapped(m, how, kind), order, None


def _packed(m: Metadata, chain: list[tuple[str, dict[str, Any]]]) -> tuple[str, ...]:
    for name, _ in chain:
        if name not in ("zstd", "gzip", "blosc", "crc32c"):
            raise m.unknown("codec", name)
    names = tuple(name for name, _ in chain)
    if any(n != "crc32c" for n in names[1:]):
        raise m.unknown("order of codecs", names)  # one compressor at most, and first: others could not be streamed
    return names


def _swapped(m: Metadata, how: dict[str, Any], kind: DType) -> bool:
    m.only(how, ("endian",))
    endian = how.get("endian", "little")
    if endian not in ("little", "big"):
        raise m.unknown("order of bytes", endian)
    return bool(endian == "big" and kind.word > 1)


def _permutation(m: Metadata, how: dict[str, Any], axes: int) -> list[int]:
    m.only(how, ("order",))
    order = how.get("order")
    if type(order) is not list or any(type(i) is not int for i in order) or sorted(order) != list(range(axes)):
        raise m.unknown("transposition", order)
    return order


def _sharded(m: Metadata, how: dict[str, Any], kind: DType, chunk: tuple[int, ...]) -> Inner:
    m.only(how, ("chunk_shape", "codecs", "index_codecs", "index_location"))
    inner = m.sizes(how.get("chunk_shape"), 1, len(chunk))
    if any(n % i for n, i in zip(chunk, inner, strict=True)):
        raise m.bad(f"has chunks of {list(inner)} in chunks of {list(chunk)}, which they do not fill")
    codecs, swap, order, _ = _codecs(m, how.get("codecs"), kind, inner, nested=True)
    packed, swapped, _, _ = _codecs(m, how.get("index_codecs"), DTYPES["uint64"], (1,), nested=True)
    location = how.get("index_location", "end")
    if packed not in ((), ("crc32c",)) or swapped or location not in ("start", "end"):
        raise m.unknown("index", [how.get("index_codecs"), location])
    return Inner(inner, codecs, swap, order, location == "end", bool(packed))
