"""zarr: the metadata of an array, which describes its elements and the chunks that hold them.

    name/.zarray    version 2: {"shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "compressor": {"id": "zstd"}, ...}
    name/0.1        a chunk, by its position in the grid; "0" for an array without axes
    name/zarr.json  version 3: {"shape", "data_type", "chunk_grid", "codecs": [{"name": "bytes"}, {"name": "zstd"}]}
    name/c/0/1      a chunk; "c" for an array without axes

Chunks at the edges are stored in full. An absent chunk consists of the fill value. With the codec sharding_indexed, a
chunk contains smaller ones and an index of their positions. Specifications: zarr-specs, v2 and v3 core; tensorstore's
zarr and zarr3 drivers, whose names of JAX's own dtypes are NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint
from ...messages import brief, printable
from ...moves.part import checked_count
from ...storage.json import parse_json
from ..numpy.npy import SPELLING
from .locate import V2

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
