"""TensorFlow V1 checkpoints: tables that hold the tensors themselves.

    name                            one table, or
    name-00000-of-00003 ...         several, each complete in itself; the slices of a tensor can be in several of them
        ""                          SavedTensorSlices.meta: name, shape, dtype and slices of every tensor
        slice key (elements.py)     SavedTensorSlices.data: a TensorProto without dtype and shape

Opening reads the first block; blocks with data are read, and checked against their CRC, when a tensor is read.
Specification: tensorflow/core/util/saved_tensor_slice.proto, tensor_slice_writer.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import NamedTuple

from ...checkpoint import Checkpoint
from ...errors import CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ...messages import listing, many
from ...moves.part import Coded, checked_count
from ...storage.files import Reader, Seen, exists, names, sibling, split
from .. import Located
from ..table import TF_TABLE, Reading
from ..tiling import Tile
from . import elements
from .elements import parse, text
from .table import Table

FORMAT = "tf-v1"
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})", re.DOTALL)
MAX_TABLES = 64  # tables whose indexes are cached
KEYS = 8  # characters of keys per byte of the tables: each slice repeats its name, in its key and in its value
WIDEST = 16  # bytes of an element in a message
ENTRY = 64  # characters for which a slice counts at least
_VARINT = rb"[\x80-\xff]{0,9}[\0-\x7f]"
BEGINNING = re.compile(  # of a table, perhaps after a snappy preamble: the empty key, a value of meta > tensor > name
    rb"(?:(?!\0).{2,14})?\0\0" + 3 * (_VARINT + rb"\x0a"), re.DOTALL
)


def sniff(seen: Seen) -> int:
    if seen.tail.endswith(TF_TABLE):
        return 0 if seen.base.endswith(".index") else 3
    if BEGINNING.match(seen.head):
        return 2  # truncated: opening reports it
    return 2 if seen.size < 0 and _shards_of(seen.url) else 0


def open(url: str, how: Reading) -> Checkpoint:
    """Open a table, or all tables of a sharded checkpoint: read the descriptions in each, and combine them."""
    urls, found, room = _shards_of(url) or (url,), dict[str, Described](), 2**20
    for table in urls:
        with Located(table):
            room = _describe(table, found, room)
    rows = ((n, d.code, d.shape, partial(lambda tiles, _: tiles, d.tiles)) for n, d in found.items())
    tensors, notes = elements.assembled(rows)
    return Checkpoint(tensors, format=FORMAT, urls=urls, notes=notes, details={"shards": len(urls)})


def _shards_of(url: str) -> tuple[str, ...]:
    """All files of a sharded checkpoint, given one of them or their common name."""
    folder, base = split(url)
    match = SHARD.fullmatch(base)
    present = names(folder)
    if not match:
        match = next((m for n in present if (m := SHARD.fullmatch(n)) and m[1] == base), None)
    elif not exists(url):
        return ()
    if not match:
        return ()
    shards = [f"{match[1]}-{i:05d}-of-{match[3]}" for i in range(min(int(match[3]), 100_000))]
    missing = sorted(set(shards) - set(present))
    if missing:
        raise StorageError(f"{len(missing)} of {many(len(shards), 'file')} missing:\n{listing(missing)}", url=url)
    return tuple(sibling(url if base == match[0] else url + "-", name) for name in shards)


class Described(NamedTuple):
    """A tensor: the number of its dtype, its shape, its slices."""

    code: int
    shape: tuple[int, ...]
    tiles: list[tuple[Tile, Coded]]


def _describe(url: str, found: dict[str, Described], room: int) -> int:
    """Add the tensors that a table describes; return how many characters of keys other tables may still have."""
    from . import messages_pb2 as pb

    with Reader(url) as f:
        raw = Table(f).get(b"")
        room += KEYS * f.size
    described = parse(pb.SavedTensorSlices, raw, "the description of the tensors")
    if not described.HasField("meta"):
        raise CorruptCheckpoint("lists no tensors; the index of a V2 checkpoint must be called *.index")
    meta = described.meta
    elements.check_version(meta.versions)
    for item in meta.tensor:
        name, (code, kind) = text(item.name), elements.numbered(item.type)
        with Located(url, name):
            shape = tuple(d.size for d in item.shape.dim)
            checked_count(shape)
            there = found.setdefault(name, Described(code, shape, []))
            if there[:2] != (code, shape):
                what = (
                    f"is {list(shape)} of dtype {code} here, {list(there.shape)} of dtype {there.code} in another file"
                )
                raise CorruptCheckpoint(what)
            for piece in item.slice:
                room -= 2 * len(item.name) + ENTRY
                if room < 0:
                    raise UnsafeCheckpoint("lists more slices than its files can hold")
                tile = elements.tile_of(piece, shape)
                count = checked_count(tile.shape)
                key = elements.slice_key(item.name, piece), code, count
                there.tiles.append((tile, Coded(__name__, url, key, count * kind.itemsize if kind else 0)))
    return room


@lru_cache(maxsize=MAX_TABLES)
def _table(url: str, stamp: tuple[int, ...]) -> Table:
    """A table with its index, read once for all its tensors."""
    with Reader(url) as f:
        return Table(f)


def decode(coded: Coded) -> Iterator[bytes]:
    """The elements of one slice."""
    from . import messages_pb2 as pb

    key, code, count = coded.key
    kind = elements.BY_CODE[code]
    with Reader(coded.url) as f:
        raw = _table(coded.url, f.stamp).get(key, f)
    if kind.kind != "s" and len(raw) > WIDEST * count + 2 * len(key) + 2**12:  # TensorFlow writes each element once
        raise CorruptCheckpoint(f"a slice of {count} elements takes {len(raw)} bytes")
    proto = parse(pb.SavedTensorSlices, raw, "a slice").data.data
    if proto.tensor_content:
        raise CorruptCheckpoint("a slice has its elements where TensorFlow does not look for them")
    if kind.kind == "s":  # one more than there should be is asked for, since TensorFlow refuses it
        items = list(proto.string_val[: count + 1])
        stored = len(items)
    else:
        items = [elements.stored(proto, kind, count + 1, "a slice")]
        stored = len(items[0]) // kind.itemsize
    if stored != count:
        raise CorruptCheckpoint(f"a slice has {stored} elements, not {count}")
    yield from items
