"""The values of a folder of arrays by their keys: the files below it, or those of a database of tensorstore's, OCDBT.

A database consists of a manifest, a B+tree of nodes, and values that lie in nodes or in data files.

    manifest.ocdbt, d/3f9a...           the database; a data file holds values and nodes, one after the other
    ocdbt.process_3/d/...               data files of one process of a training run, named by the nodes of the root

    manifest, node: magic u32be, length u64le, version 0, compression 0 or 1 (zstd), body, CRC-32C of all before
    manifest's body: uuid[16], kind, sizes, compression, files, versions (the newest last), older versions
    node's body: height u8, files, keys, then children (height > 0) or values, inline or by file, offset and length

    varint    7 bits per byte, lowest first; the high bit is set if another byte follows
    texts     prefix-compressed: lengths of the common prefixes [n-1], lengths of the suffixes [n], then all suffixes

No tensor data is read here. Specification: tensorstore, kvstore/ocdbt/index.rst and format/.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, printable
from ...storage.checksum import crc
from ...storage.files import Reader, is_remote, names, walk, within
from .. import Located
from ..tensorflow.table import read_varint

MANIFEST = "manifest.ocdbt"  # of a database
METADATA, MSGPACK = "_METADATA", "checkpoint"  # the tree, and what older versions have instead
V2, V3 = ".zarray", "zarr.json"  # of an array
COMMITTED = "commit_success.txt"
STEPPED = "_CHECKPOINT_METADATA"  # in the folder of a step
ASIDE = ("_sharding", STEPPED, COMMITTED, "orbax.checkpoint", "array_metadatas", "_strings.json", METADATA)

MAX_PARTS = 64  # folders in a path
RATIO, SLACK = 64, 45 * 2**20  # bytes of memory per stored byte, and for any checkpoint
BLOCK = 4096  # bytes that a file takes at least
ZSTD_RATIO = 2**15  # at most: a block repeats one byte 2^17 times
WIDE = 4  # bytes that every letter of a text takes if one of them is of a distant script


class Value(NamedTuple):
    """Bytes [start, start+size) of a file, or `data` stored inline in a node of a database."""

    url: str
    start: int
    size: int
    data: bytes | None = None

    def read(self, limit: int) -> bytes:
        """Read a small value completely; CorruptCheckpoint if it has more than `limit` bytes."""
        if self.size > limit:
            raise CorruptCheckpoint(f"has {self.size} bytes of metadata; at most {limit} are sensible", url=self.url)
        if self.data is not None:
            return self.data
        with Reader(self.url) as f:
            return f.read(self.start, self.size)

    def within(self, start: int, size: int) -> Value:
        """The value of some of its bytes."""
        if self.data is not None:
            return self._replace(size=size, data=self.data[start : start + size])
        return self._replace(start=self.start + start, size=size)


class Room:
    """The memory that a checkpoint may take: what is stored allows it, and whatever is made of that is counted.

    A node of a database is packed, so that a few bytes of it could stand for any number of keys, arrays and chunks.
    """

    def __init__(self, url: str) -> None:
        self.url, self.left = url, SLACK
        self._given = set[Hashable]()

    def give(self, file: Hashable, size: int) -> None:
        """Count the bytes of a file, each file once."""
        if file not in self._given:
            self._given.add(file)
            self.left += RATIO * size

    def take(self, size: int, what: str) -> None:
        self.left -= size
        if self.left < 0:
            raise UnsafeCheckpoint(f"the {what} repeat without bound: few stored bytes stand for them", url=self.url)


def inside(root: str, path: str) -> str:
    """The URL of a file by its path in the checkpoint's folder; UnsafeCheckpoint if path or link lead out of it."""
    parts = path.split("/")
    if len(parts) > MAX_PARTS:
        raise UnsafeCheckpoint(f"names a file {len(parts)} folders deep", url=root)
    at = root
    for part in parts:
        at = within(at, part)
    return at


def values(root: str, room: Room, *, database: bool) -> dict[str, Value]:
    """The values of a folder, by their keys; CorruptCheckpoint if two share bytes."""
    found = _of_database(root, room) if database else _of_files(root, room)
    check_apart(found)
    return found


def _of_files(root: str, room: Room) -> dict[str, Value]:
    """All files below a folder, by their paths in it.

    Refused are names that `walk` passes over, links to folders or to nothing and pipes: chunks would seem to be absent.
    """
    out = {}
    for folder, under, folders, files in walk(root):
        if not is_remote(root) and (passed := sorted(set(names(folder)).difference(folders, files))):
            what = "holds links to folders or to nothing, pipes or devices, which are not read"
            raise UnsafeCheckpoint(f"{what}:\n{listing(passed)}", url=folder)
        for name, status in files.items():
            path = f"{under}/{name}" if under else name
            out[path] = Value(inside(root, path), 0, status.size)
    room.give(root, sum(v.size + BLOCK for v in out.values()))
    return out


def check_apart(values: Mapping[str, Value]) -> None:
    """Refuse values that share bytes, because one file could then be read once for each name."""
    places = sorted((v.url, v.start, v.size, key) for key, v in values.items() if v.data is None and v.size)
    for one, other in pairwise(places):
        if one[0] == other[0] and other[1] < one[1] + one[2]:
            both = " and ".join(printable(brief(p[3], 100)) for p in (one, other))
            raise CorruptCheckpoint(f"{both} share the byte {other[1]}", url=one[0])


def unzstd(raw: bytes, most: int) -> bytes:
    """Unpack in memory; CorruptCheckpoint if the result exceeds `most` bytes."""
    import cramjam

    out = bytearray(min(most, ZSTD_RATIO * len(raw)))
    try:
        used = cramjam.zstd.decompress_into(raw, out)
    except (cramjam.DecompressionError, OSError, ValueError) as e:
        raise CorruptCheckpoint(f"does not unpack from zstd to at most {most} bytes: {e}") from None
    return bytes(memoryview(out)[:used])


# --- the database -----------------------------------------------------------------------------------------------

MANIFEST_MAGIC, NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
MAX_NODE = 2**28  # bytes of a node or manifest; tensorstore makes nodes of 8 MB, and of 100 MB for Orbax
ENTRY = 300  # bytes of memory for an entry of a node
COPIES = 3  # of a node while it is unpacked
MAX_HEIGHT = 64
MAX_TEXT = 65535  # bytes of a key or path; the format's own limit for paths
CHARACTER = 2  # bytes: in the node, and as text
NAMES = "names in the database's nodes"


def _bad(what: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"the database's node {what}")


class Cursor:
    """A position in the body of a node. What is made of it is counted against the room: prefixes repeat endlessly."""

    def __init__(self, data: bytes, room: Room) -> None:
        self.data, self.room, self.at = data, room, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise _bad(f"ends {size - len(self.data) + self.at} bytes too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        try:
            value, self.at = read_varint(self.data, self.at)
        except IndexError:
            value = 2**64
        if value >= 2**64:
            raise _bad("ends within a number, or has a number of more than 64 bits")
        return value

    def count(self) -> int:
        """Read the number of entries that follow, each of which takes at least one byte."""
        n = self.varint()
        if n > len(self.data) - self.at:
            raise _bad(f"announces {n} entries in {len(self.data) - self.at} bytes")
        self.room.take(ENTRY * n, "entries in the database's nodes")
        return n

    def varints(self, n: int) -> list[int]:
        return [self.varint() for _ in range(n)]

    def texts(self, n: int, base: bytes, *, more: bool) -> tuple[list[bytes], list[int]]:
        """Read `n` texts, each after `base`, and if there is `more` a number for each."""
        shared = [0, *self.varints(n - 1)] if n else []
        rests = self.varints(n)
        numbers = self.varints(n) if more else []
        out, last = [], b""
        for prefix, rest in zip(shared, rests, strict=True):
            size = len(base) + prefix + rest
            if size > MAX_TEXT or prefix > len(last):
                what = "a key" if base else "a name"
                raise _bad(f"has {what} of {size} bytes, {prefix} of them from a name of {len(last)}")
            self.room.take(CHARACTER * size, NAMES)
            last = last[:prefix] + self.take(rest)
            out.append(base + last)
        return out, numbers

    def files(self, base: bytes) -> list[File]:
        """Read a file table, whose paths begin with `base`."""
        paths, bases = self.texts(self.count(), base, more=True)
        if any(len(base) + b > len(p) for b, p in zip(bases, paths, strict=True)):
            raise _bad("has a file whose base is longer than its path")
        return [File(p, p[: len(base) + b]) for p, b in zip(paths, bases, strict=True)]

    def end(self) -> None:
        if self.at != len(self.data):
            raise _bad(f"has {len(self.data) - self.at} bytes after its end")


class File(NamedTuple):
    """A row of a file table: the path, and the prefix of the paths in the tables of nodes in this file."""

    path: bytes
    base: bytes


class Child(NamedTuple):
    """A node to visit: its location, its expected height and number of keys, and the prefix of its keys.

    Its keys are from `low` to before `high`: others would be hidden from a reader that looks for them.
    """

    file: File
    start: int
    size: int
    height: int
    keys: int
    prefix: bytes = b""
    low: bytes = b""
    high: bytes | None = None


def _of_database(root: str, room: Room) -> dict[str, Value]:
    """All keys of the newest version of the database in a folder, in order, with the locations of their values."""
    database = Database(root, room)
    top = database.top()
    out = dict(database.visit(top)) if top else {}
    check_apart({f"the node at byte {v.start}": v for v in database.visited.values()})
    return out


class Database:
    """One database; all that it makes of its nodes is counted, so that they cannot expand without bound."""

    def __init__(self, root: str, room: Room) -> None:
        self.root, self.room = root, room
        self.files: dict[bytes, tuple[str, int]] = {}
        self.visited: dict[tuple[str, int], Value] = {}

    def file(self, path: bytes) -> tuple[str, int]:
        """The url and the size of a file of the database."""
        if path not in self.files:
            with Reader(inside(self.root, _text(path))) as f:
                self.files[path] = f.url, f.size
                self.room.give(f.url if f.remote else f.stamp, f.size)  # by its stamp it is one under several names
        return self.files[path]

    def top(self) -> Child | None:
        """The root node of the newest version; None if it has no keys."""
        url, size = self.file(MANIFEST.encode())
        with Located(url):
            cursor = self._unpacked(url, MANIFEST_MAGIC, 0, size)
            cursor.take(16)
            kind = cursor.varint()
            cursor.varints(2)
            cursor.take(1)
            packed = cursor.varint()
            cursor.take(4 if packed == 1 else 0)
            if kind or packed > 1:
                raise _bad(f"has the kind {kind} of manifest or the compression {packed}, which is not read")
            files, n = cursor.files(b""), cursor.count()
            generations, heights = cursor.varints(n), cursor.take(n)
            ids, starts, sizes, keys = (cursor.varints(n) for _ in range(4))
            cursor.varints(2 * n)
            cursor.take(8 * n)
            if not n or generations != sorted(generations):
                raise _bad("lists no version, or not the newest last")
            older = cursor.count()  # references to nodes of older versions
            cursor.varints(5 * older)
            cursor.take(9 * older)
            cursor.end()
            file = _at(files, ids[-1]) if keys[-1] else None
        return Child(file, starts[-1], sizes[-1], heights[-1], keys[-1]) if file else None

    def visit(self, node: Child) -> Iterator[tuple[str, Value]]:
        """The keys below a node, in order, and their values."""
        url, _ = self.file(node.file.path)
        with Located(url):
            if (url, node.start) in self.visited:
                raise UnsafeCheckpoint(f"the database's node at byte {node.start} is referred to twice")
            self.visited[url, node.start] = Value(url, node.start, node.size)
            cursor = self._unpacked(url, NODE_MAGIC, node.start, node.size)
            height = cursor.take(1)[0]
            if height != node.height or height > MAX_HEIGHT:
                raise _bad(f"at byte {node.start} has the height {height}, not {node.height}")
            files, n = cursor.files(node.file.base), cursor.count()
            if not 0 < n <= node.keys:
                raise _bad(f"has {n} entries, where {node.keys} keys are announced")
            keys, common = cursor.texts(n, node.prefix, more=height > 0)
            for i, key in enumerate(keys):
                after = key > keys[i - 1] if i else key >= node.low
                if not after or (node.high is not None and key >= node.high):
                    raise _bad(f"has the key {printable(brief(repr(key)))} out of order, or where none leads to it")
            if not height:
                yield from self._leaf(url, files, keys, cursor)
                return
            ids, starts, sizes, counts = (cursor.varints(n) for _ in range(4))
            cursor.varints(2 * n)
            cursor.end()
            if any(len(node.prefix) + more > len(key) for more, key in zip(common, keys, strict=True)):
                raise _bad("has a child whose keys begin with more than it says")
            below = [_at(files, number) for number in ids]
        for i, (key, high) in enumerate(zip(keys, [*keys[1:], node.high], strict=True)):
            prefix = key[: len(node.prefix) + common[i]]
            yield from self.visit(Child(below[i], starts[i], sizes[i], height - 1, counts[i], prefix, key, high))

    def _leaf(self, url: str, files: list[File], keys: list[bytes], cursor: Cursor) -> Iterator[tuple[str, Value]]:
        sizes, kinds = cursor.varints(len(keys)), cursor.varints(len(keys))
        if set(kinds) - {0, 1}:
            raise _bad("has a value that is neither inline nor in a file")
        far = sum(kinds)
        ids, starts = iter(cursor.varints(far)), iter(cursor.varints(far))
        for key, size, kind in zip(keys, sizes, kinds, strict=True):
            if not key.isascii():
                self.room.take(WIDE * len(key), NAMES)
            if not kind:
                self.room.take(size, "values in the database's nodes")
                yield _text(key), Value(url, 0, size, cursor.take(size))
                continue
            start, path = next(starts), _at(files, next(ids)).path
            where, end = self.file(path)
            if start + size > end:
                what = f"{printable(brief(repr(key)))} lies at bytes {start} to {start + size} of {end} (truncated?)"
                raise CorruptCheckpoint(what, url=where)
            yield _text(key), Value(where, start, size)
        cursor.end()

    def _unpacked(self, url: str, magic: int, start: int, size: int) -> Cursor:
        """Read an envelope, check its length and CRC, and unpack its body."""
        if size > MAX_NODE:
            raise UnsafeCheckpoint(f"the database's node at byte {start} claims {size} bytes")
        with Reader(url) as f:
            raw = f.read(start, size)
        if size < 18 or int.from_bytes(raw[:4], "big") != magic or int.from_bytes(raw[4:12], "little") != size:
            raise CorruptCheckpoint(f"no node of a database lies at byte {start} (truncated?)")
        if crc("crc32c", raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            raise CorruptCheckpoint(f"the checksum of the node at byte {start} is wrong: the file is damaged")
        head = Cursor(raw[12:-4], self.room)
        version, packed = head.varint(), head.varint()
        if version or packed > 1:
            raise _bad(f"has the version {version} and the compression {packed}, which are not known")
        body = head.data[head.at :]
        return Cursor(unzstd(body, self.room.left // COPIES) if packed else body, self.room)


def _at(files: list[File], number: int) -> File:
    if number >= len(files):
        raise _bad(f"names file {number} of {len(files)}")
    return files[number]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CorruptCheckpoint(f"a key or path of the database is not UTF-8: {printable(brief(repr(raw)))}") from None
