"""zarr: the metadata of arrays, and their chunks as parts of a tensor.

    name/.zarray    version 2: {"shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "compressor": {"id": "zstd"}, ...}
    name/0.1        a chunk, by its position in the grid; "0" for an array without axes
    name/zarr.json  version 3: {"shape", "data_type", "chunk_grid", "codecs": [{"name": "bytes"}, {"name": "zstd"}]}
    name/c/0/1      a chunk; "c" for an array without axes

Chunks at the edges are stored in full. An absent chunk consists of zeros. With the codec sharding_indexed, a chunk
contains smaller ones and ends in an index of their positions. Each smallest chunk consists of little-endian elements in
C order, as they are (then it becomes a span) or packed with zstd, gzip or zlib (then `decode` unpacks it): that is what
Orbax, T5X and MaxText write, and other codecs, orders and fill values are refused. Errors name no file and no array:
the caller knows both. Specifications: zarr-specs, v2 and v3 core; tensorstore's zarr and zarr3 drivers, whose names of
JAX's own dtypes are NumPy's.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import product
from math import prod
from struct import iter_unpack
from typing import Any, NamedTuple

from ...checkpoint import Tensor, contiguous
from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, printable
from ...moves.part import Coded, Data, Held, Part, Span, c_strides, checked_count
from ...storage.checksum import crc
from ...storage.faults import spooling
from ...storage.files import Reader
from ...storage.json import parse_json
from ...storage.ranges import InMemory, Ranges
from .. import Located
from ..npy import DESCR
from ..zip import inflated
from .ocdbt import V2, ZSTD_RATIO, Room, Value, check_apart, unzstd

INLINE = 3  # times that a chunk in a node is copied: out of a shard, and as the key of what decodes it
PART, AXIS = 400, 32  # bytes of memory for a part of a tensor, and for each of its axes
CELL = 850  # for a chunk within a chunk, until it is one
SCATTERED = 2**16  # absent chunks beside others; one box suffices where all are absent
ABSENT = 2**64 - 1  # in the index of a chunk of chunks: one that consists of zeros
MAX_JSON = 2**20  # bytes
PIECE = 2**20
IN_MEMORY = 2**25
# The highest compression ratio that each format allows: a block of zstd repeats one byte 2^17 times.
RATIOS = {"zstd": ZSTD_RATIO, "gzip": 1032, "zlib": 1032}
SMALLEST = 16  # a large frame's blocks of 2^17 bytes can be smaller, yet on average not by more than this
TYPES = {d.name: d for d in DTYPES.values() if d.kind not in "sx"}
TYPES |= {descr: DTYPES[name] for name, descr in DESCR.items()}  # version 2 spells most as NumPy does
NUMBER = re.compile("0|[1-9][0-9]{0,18}")
ZEROS = ("null", "0", "0.0", "false", "[0, 0]", "[0.0, 0.0]")  # fill values, as JSON

Place = tuple[int, ...]
Box = tuple[Place, Place, "Value | None"]  # the first element, the shape, and the chunk unless it is absent


class Array(NamedTuple):
    """An array.

    chunk: the shape of its chunks. inner: of the chunks within a chunk, if there are any. codec: what packs the
    smallest chunks, or ''. checked: whether a CRC-32C ends the index of a chunk. fill: JSON.
    """

    version: int
    kind: DType
    shape: Place
    chunk: Place
    inner: Place | None
    codec: str
    checked: bool
    fill: str

    @property
    def grid(self) -> Place:
        return _grid(self.shape, self.chunk)

    def place(self, key: str) -> Place | None:
        """The position in the grid of the chunk with this key; None if the key is not that of a chunk."""
        if not self.shape:
            return () if key == ("0" if self.version == 2 else "c") else None
        prefix, parts = ("", key.split(".")) if self.version == 2 else (key[:2], key[2:].split("/"))
        if prefix not in ("", "c/") or len(parts) != len(self.shape) or not all(map(NUMBER.fullmatch, parts)):
            return None
        place = tuple(map(int, parts))
        return place if all(i < n for i, n in zip(place, self.grid, strict=True)) else None


def _grid(shape: Place, cell: Place) -> Place:
    """The number of cells along each axis."""
    return tuple(-(-n // c) for n, c in zip(shape, cell, strict=True))


# --- chunks -----------------------------------------------------------------------------------------------------


def tensor(array: Array, chunks: Mapping[Place, Value], name: str, room: Room) -> tuple[Tensor, int]:
    """The tensor of an array with chunks at these positions of its grid, and how many elements no chunk holds."""
    import numpy as np

    if not prod(array.shape):
        return contiguous(name, array.kind, array.shape, Held.of(b"")), 0
    inline = sum(len(v.data) for v in chunks.values() if v.data is not None)
    room.take((PART + AXIS * len(array.shape)) * (1 + len(chunks)) + INLINE * inline, "arrays and chunks")
    steps, zero, still = c_strides(array.shape), Held(np.zeros(1, array.kind.dtype)), (0,) * len(array.shape)
    parts, absent = list[Part](), 0
    for start, shape, value in _boxes(array, chunks, room):
        data = _data(array, shape, value) if value else zero
        box = _clipped(shape, array.shape, start)
        first = sum(a * s for a, s in zip(start, steps, strict=True))
        absent += 0 if value else prod(box)
        parts.append(Part(data, array.kind, box, 0, c_strides(shape) if value else still, first, steps))
    if absent and array.fill not in ZEROS:
        raise CorruptCheckpoint(
            f"chunks are absent, and its fill value {brief(array.fill)} is not 0, which is not read"
        )
    return Tensor(name, array.kind, array.shape, tuple(parts)), absent


def _clipped(box: Place, shape: Place, start: Place) -> Place:
    """The part of a box at `start` that lies in an array of this shape; the rest is padding."""
    return tuple(min(c, n - a) for c, n, a in zip(box, shape, start, strict=True))


def _boxes(array: Array, chunks: Mapping[Place, Value], room: Room) -> Iterator[Box]:
    """All smallest chunks, and boxes without data for those that are absent."""
    for start, shape, value in _cells(array.shape, array.chunk, (0,) * len(array.shape), chunks, room):
        if value is None or array.inner is None:
            yield start, shape, value
        else:
            with Located(value.url):
                within = _within(array, array.inner, value, room)
            yield from _cells(_clipped(shape, array.shape, start), array.inner, start, within, room)


def _cells(shape: Place, cell: Place, origin: Place, there: Mapping[Place, Value], room: Room) -> Iterator[Box]:
    """The cells of a grid that covers a box at `origin`; one box without data if none is there."""
    if not there:
        yield origin, shape, None
        return
    grid = _grid(shape, cell)
    places = [p for p in there if all(i < n for i, n in zip(p, grid, strict=True))]  # others are padding
    absent = prod(grid) - len(places)
    if absent > SCATTERED + len(places):
        raise UnsafeCheckpoint(f"{len(places)} chunks lie scattered among absent ones, of which there are {absent}")
    room.take((PART + AXIS * len(grid)) * absent, "absent chunks")
    for place in product(*map(range, grid)) if absent else places:
        yield tuple(b + i * c for b, i, c in zip(origin, place, cell, strict=True)), cell, there.get(place)


def _within(array: Array, shape: Place, value: Value, room: Room) -> dict[Place, Value]:
    """The chunks within a chunk by their positions in its grid."""
    grid = _grid(array.chunk, shape)
    size = 16 * prod(grid) + 4 * array.checked
    if size > value.size:
        what = f"a chunk of {value.size} bytes has no room for the index of its {prod(grid)} chunks (truncated?)"
        raise CorruptCheckpoint(what)
    raw = value.within(value.size - size, size).read(size)
    if array.checked and crc("crc32c", raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise CorruptCheckpoint("the checksum of the index of a chunk is wrong: the file is damaged")
    cells, taken, numbers = dict[Place, Value](), dict[str, Value](), iter_unpack("<QQ", raw[: 16 * prod(grid)])
    for index, (start, length) in zip(product(*map(range, grid)), numbers, strict=True):
        if (start, length) == (ABSENT, ABSENT):
            continue
        if start + length > value.size:
            raise CorruptCheckpoint(f"a chunk lies at bytes {start} to {start + length} of {value.size} (truncated?)")
        room.take(CELL + AXIS * len(grid), "chunks within chunks")
        cells[index] = value.within(start, length)
        taken[str(index)] = Value(value.url, start, length)
    check_apart(taken)
    return cells


def _data(array: Array, shape: Place, value: Value) -> Data:
    """The elements of a chunk."""
    size = prod(shape) * array.kind.itemsize
    with Located(value.url):
        if not array.codec:
            if value.size != size:
                raise CorruptCheckpoint(f"a chunk of {list(shape)} has {value.size} bytes, not {size} (truncated?)")
            return Span(value.url, value.start, size) if value.data is None else Held.of(value.data)
        if size > RATIOS[array.codec] * value.size + 64:
            raise UnsafeCheckpoint(f"a chunk of {list(shape)} claims {size} bytes, packed into {value.size}")
    return Coded(__name__, value.url, (array.codec, value.start, value.size, value.data), size)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of a chunk."""
    codec, start, size, data = coded.key
    with closing(Reader(coded.url) if data is None else InMemory(coded.url, data)) as f:
        yield from unpack(codec, f, start, size, coded.size)


def unpack(codec: str, f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack the `size` bytes at `start` in pieces, of which the caller counts the bytes.

    announced: how many they give. Up to `IN_MEMORY` bytes of zstd are unpacked in memory; a larger chunk goes through
    temporary files, because the library streams only from file to file. CorruptCheckpoint if they are damaged.
    """
    if codec != "zstd":
        if (yield from inflated(f, start, size, PIECE, 47)):
            raise CorruptCheckpoint("bytes follow the end of the compressed data")
    elif max(size, announced) > IN_MEMORY:
        yield from _streamed(f, start, size, announced)
    else:
        yield unzstd(f.read(start, size), announced)


def _streamed(f: Ranges, start: int, size: int, announced: int) -> Iterator[bytes]:
    """Unpack one large frame of zstd between two temporary files."""
    import cramjam

    if (most := _bound(f, start, size)) > SMALLEST * announced + IN_MEMORY:
        raise UnsafeCheckpoint(f"{size} bytes of zstd can become {most}, where {announced} are announced")
    with spooling(), tempfile.TemporaryDirectory(prefix="ckptconv-") as folder:
        packed, plain = os.path.join(folder, "zstd"), os.path.join(folder, "plain")
        with open(packed, "wb") as file:
            file.writelines(f.read(at, min(PIECE, start + size - at)) for at in range(start, start + size, PIECE))
        try:
            source: Any = cramjam.File(packed, truncate=False)
            cramjam.zstd.decompress_into(source, cramjam.File(plain))
        except (cramjam.DecompressionError, ValueError) as e:
            raise CorruptCheckpoint(f"the compressed data is damaged: {e}") from None
        os.unlink(packed)
        with open(plain, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _bound(f: Ranges, start: int, size: int) -> int:
    """An upper bound for the size of an unpacked zstd frame, from the headers of its blocks (RFC 8878)."""
    end, total = start + size, 0
    head = f.read(start, min(18, size))
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 6:
        raise CorruptCheckpoint(f"no zstd begins at byte {start}")
    flags = head[4]
    single = flags >> 5 & 1
    at = start + 5 + (not single) + (0, 1, 2, 4)[flags & 3] + ((single, 2, 4, 8)[flags >> 6])
    last = 0
    while not last:
        if at + 3 > end:
            raise CorruptCheckpoint("the compressed data ends too early")
        block = int.from_bytes(f.read(at, 3), "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        total += length if kind < 2 else 2**17
        at += 3 + (1 if kind == 1 else length)
    if at + 4 * (flags >> 2 & 1) != end:
        raise CorruptCheckpoint("bytes follow the end of the compressed data")
    return total


# --- metadata: fields and values that are not known are refused, since they could change the meaning of others --------

BYTES = ({"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}})
FIXED: dict[str, tuple[Any, ...]] = {  # what these fields may say
    "zarr_format": (2, 3), "order": ("C",), "filters": (None, []), "dimension_separator": (".",),
    "node_type": ("array",), "storage_transformers": ([],), "index_location": ("end",),
    "chunk_key_encoding": ({"name": "default"}, {"name": "default", "configuration": {"separator": "/"}}),
}  # fmt: skip


def parse(raw: bytes, version: str, url: str) -> Array | None:
    """The array that the metadata describes; None for a group."""
    fields = parse_json(raw, url)
    if type(fields) is not dict:
        raise _bad("is not a JSON object")
    if fields.get("zarr_format") != (2 if version == V2 else 3):
        raise _unknown("zarr_format", fields.get("zarr_format"))
    if version == V2:
        sizes, chunks, named, packed, fill = _fields(fields, "shape chunks dtype compressor fill_value")
        codec = packed.get("id") if type(packed) is dict else packed or ""
        if codec not in ("", *RATIOS):
            raise _unknown("compressor", packed)
        shape = _sizes(sizes, 0)
        return Array(2, _kind(named), shape, _sizes(chunks, 1, shape), None, codec, False, json.dumps(fill))
    if fields.get("node_type") == "group":
        return None
    known = "shape data_type chunk_grid fill_value codecs attributes dimension_names"
    sizes, named, grid, fill, codecs, *_ = _fields(fields, known)
    shape, inner, checked = _sizes(sizes, 0), None, False
    chunk = _sizes(_configured(grid, "regular", "chunk_shape")[0], 1, shape)
    if type(codecs) is list and len(codecs) == 1 and codecs[0] not in BYTES:
        smaller, codecs, index = _configured(codecs[0], "sharding_indexed", "chunk_shape codecs index_codecs")
        inner, checked = _sizes(smaller, 1, shape), _codec(index, ("crc32c",)) != ""
        if any(n % i for n, i in zip(chunk, inner, strict=True)):
            raise _bad(f"has chunks of {list(inner)} in chunks of {list(chunk)}, which they do not fill")
    return Array(3, _kind(named), shape, chunk, inner, _codec(codecs, ("zstd", "gzip")), checked, json.dumps(fill))


def _bad(what: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"its zarr metadata {what}")


def _unknown(what: str, value: object) -> CorruptCheckpoint:
    text = f"has the {what} {printable(brief(repr(value), 100))}, which is not read"
    return _bad(f"{text}; save it as Orbax does, with little-endian elements in C order and zstd")


def _fields(fields: dict[str, Any], known: str) -> list[Any]:
    """The values of the known fields, or None; each other field must say what `FIXED` allows."""
    names = known.split()
    for name, value in fields.items():
        if name not in names and value not in FIXED.get(name, ()):
            raise _unknown(name, value)
    return [fields.get(name) for name in names]


def _configured(thing: Any, name: str, known: str) -> list[Any]:
    """What the configuration of a grid or codec of this name says in the known fields."""
    how = thing.get("configuration") if type(thing) is dict else None
    if type(how) is not dict or thing != {"name": name, "configuration": how}:
        raise _unknown("grid or codec", thing)
    return _fields(how, known)


def _codec(codecs: Any, known: tuple[str, ...]) -> str:
    """The codec behind the one that makes bytes of elements, or ''."""
    first, *more = codecs if type(codecs) is list and codecs else [None]
    names = [one.get("name") if type(one) is dict else one for one in more]
    if first not in BYTES or len(names) > 1 or any(n not in known for n in names):
        raise _unknown("codecs", codecs)
    return str(names[0]) if names else ""


def _kind(named: Any) -> DType:
    if type(named) is not str or named not in TYPES:
        raise _unknown("dtype", named)
    return TYPES[named]


def _sizes(value: Any, least: int, shape: Place | None = None) -> Place:
    """A list of whole numbers of at least `least`, with as many axes as the shape."""
    if type(value) is not list or any(type(n) is not int or n < least for n in value):
        raise _bad(f"has {printable(brief(repr(value), 100))} where sizes of at least {least} are expected")
    if shape is not None and len(value) != len(shape):
        raise _bad(f"has chunks of {len(value)} axes for a shape of {len(shape)}")
    checked_count(value)
    return tuple(value)
