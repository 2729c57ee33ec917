"""OCDBT, tensorstore's database: a manifest, a B+tree of nodes, and values that lie in data files.

    manifest.ocdbt, d/3f9a...           the database; a data file holds values and nodes, one after the other
    ocdbt.process_3/d/...               data files of one process of a training run, named by the nodes of the root
    manifest.0000000000000012           of a numbered manifest, the newest holds the versions

    manifest, node: magic u32be, length u64le, version 0, compression 0 or 1 (zstd), body, CRC-32C of all before
    manifest's body: uuid[16], kind, sizes, compression, files, versions (the newest last), older versions
    node's body: height u8, files, keys, then children (height > 0) or values, inline or by file, offset and length

No tensor data is read here. Specification: tensorstore, kvstore/ocdbt/index.rst and format/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, printable
from ...storage.checksum import crc
from ...storage.files import Reader, names
from . import codecs
from .locate import MANIFEST
from .values import Value, inside
from .wire import MAX_TEXT, Cursor, Texts

NUMBERED = re.compile(r"manifest\.[0-9a-f]{16}")
MANIFEST_MAGIC, NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
MAX_NODE = 2**28  # bytes of a node or manifest; tensorstore makes nodes of 8 MB, and of 100 MB for Orbax
NODE_RATIO = 64  # a node's bytes per stored byte
NAME_RATIO = 64  # characters of keys and paths per byte of the nodes
ENTRY = 64  # characters for which an entry counts: a node of repeated bytes could have any number of them
SLACK = 2**20
MAX_HEIGHT = 64
OPEN = 64  # open files; a database can have those of a thousand processes


class Child(NamedTuple):
    """A node to visit: its location, its expected height and number of keys, and the prefixes of its keys and files."""

    path: bytes
    start: int
    size: int
    height: int
    keys: int
    prefix: bytes
    base: bytes


class File(NamedTuple):
    """A row of a file table: the path, and the prefix of the paths in the tables of nodes in this file."""

    path: bytes
    base: bytes


def read(root: str) -> dict[str, Value]:
    """All keys of the newest version of the database in a folder, in order, with the locations of their values."""
    database = Database(root)
    try:
        return dict(database.entries())
    finally:
        database.close()


class Database:
    """One database; it counts the bytes that are read and unpacked, so that nodes cannot expand without bound."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[bytes, Reader] = {}
        self.sizes: dict[bytes, tuple[str, int]] = {}
        self.visited: set[tuple[str, int]] = set()
        self.room = SLACK  # bytes of names

    def close(self) -> None:
        for f in self.files.values():
            f.close()

    # files

    def file(self, path: bytes) -> Reader:
        f = self.files.get(path)
        if f is None:
            if len(self.files) >= OPEN:
                self.files.pop(next(iter(self.files))).close()
            f = self.files[path] = Reader(inside(self.root, _text(path, self.root)))
            self.sizes[path] = f.url, f.size
        return f

    def size(self, path: bytes) -> tuple[str, int]:
        """A file's url and size; each is opened once."""
        if path not in self.sizes:
            self.file(path)
        return self.sizes[path]

    # nodes

    def manifest(self) -> Child | None:
        """The root node of the newest version; None if it has no keys."""
        url = inside(self.root, MANIFEST)
        cursor = self._unpacked(url, MANIFEST_MAGIC)
        if self._config(cursor):
            cursor.end()
            numbered = sorted(n for n in names(self.root) if NUMBERED.fullmatch(n))
            if not numbered:
                raise CorruptCheckpoint("says that numbered manifests lie beside it, but there is none", url=url)
            cursor = self._unpacked(inside(self.root, numbered[-1]), MANIFEST_MAGIC)
            self._config(cursor)
        files = self._files(cursor, b"")
        n = cursor.count()
        generations, heights = cursor.varints(n), cursor.take(n)
        ids, starts, sizes, keys = (cursor.varints(n) for _ in range(4))
        cursor.varints(2 * n)
        cursor.take(8 * n)
        if not n or generations != sorted(generations):
            raise cursor.bad("lists no version, or not the newest last")
        self._older(cursor)
        if not keys[-1]:
            return None
        file = _at(files, ids[-1], cursor)
        return Child(file.path, starts[-1], sizes[-1], heights[-1], keys[-1], b"", file.base)

    def _config(self, cursor: Cursor) -> bool:
        """Skip the configuration; return whether the manifests are numbered."""
        cursor.take(16)
        kind = cursor.varint()
        cursor.varints(2)
        cursor.take(1)
        packed = cursor.varint()
        if packed == 1:
            cursor.take(4)
        if kind > 1 or packed > 1:
            raise cursor.bad(f"has the unknown kind {kind} of manifest, or the unknown compression {packed}")
        return kind == 1

    def _older(self, cursor: Cursor) -> None:
        """Skip the references to nodes of older versions."""
        n = cursor.count()
        cursor.varints(5 * n)
        cursor.take(n)
        cursor.take(8 * n)
        cursor.end()

    def entries(self) -> Iterator[tuple[str, Value]]:
        root = self.manifest()
        todo = [root] if root else []
        last = None
        while todo:
            node = todo.pop()
            cursor = self._node(node)
            files = self._files(cursor, node.base)
            n = cursor.count()
            if not n or n > node.keys:
                raise cursor.bad(f"has {n} entries, where {node.keys} keys are announced")
            self._take(ENTRY * n, "entries", cursor.url)
            if node.height:
                todo += reversed(self._children(node, files, n, cursor))
                continue
            for key, value in self._leaf(node, files, n, cursor):
                if last is not None and key <= last:
                    raise cursor.bad(f"has the key {printable(brief(repr(key)))} out of order")
                last = key
                yield _text(key, self.root), value

    def _node(self, node: Child) -> Cursor:
        f = self.file(node.path)
        if (f.url, node.start) in self.visited:
            raise UnsafeCheckpoint(f"the database's node at byte {node.start} is referred to twice", url=f.url)
        self.visited.add((f.url, node.start))
        cursor = self._unpacked(f.url, NODE_MAGIC, node.start, node.size, f)
        height = cursor.take(1)[0]
        if height != node.height or height > MAX_HEIGHT:
            raise cursor.bad(f"at byte {node.start} has the height {height}, not {node.height}")
        return cursor

    def _children(self, node: Child, files: list[File], n: int, cursor: Cursor) -> list[Child]:
        lengths = cursor.lengths(n)
        common = cursor.varints(n)
        keys = self._texts(cursor, lengths)
        ids, starts, sizes, counts = (cursor.varints(n) for _ in range(4))
        cursor.varints(2 * n)
        cursor.end()
        out = []
        for key, shared, at, start, size, count in zip(keys, common, ids, starts, sizes, counts, strict=True):
            file, prefix = _at(files, at, cursor), node.prefix + key[:shared]
            self.room -= len(prefix)
            if len(prefix) > MAX_TEXT or shared > len(key) or self.room < 0:
                raise cursor.bad("has a child whose keys begin with more than it says")
            out.append(Child(file.path, start, size, node.height - 1, count, prefix, file.base))
        return out

    def _leaf(self, node: Child, files: list[File], n: int, cursor: Cursor) -> Iterator[tuple[bytes, Value]]:
        keys = self._texts(cursor, cursor.lengths(n))
        sizes, kinds = cursor.varints(n), cursor.varints(n)
        if set(kinds) - {0, 1}:
            raise cursor.bad("has a value that is neither inline nor in a file")
        far = sum(kinds)
        ids, starts = iter(cursor.varints(far)), iter(cursor.varints(far))
        for key, size, kind in zip(keys, sizes, kinds, strict=True):
            self._take(len(node.prefix), "names", cursor.url)
            if len(node.prefix) + len(key) > MAX_TEXT:
                raise cursor.bad(f"has a key of {len(node.prefix) + len(key)} bytes")
            if not kind:
                yield node.prefix + key, Value(cursor.url, 0, size, cursor.take(size))
                continue
            start = next(starts)
            url, end = self.size(_at(files, next(ids), cursor).path)
            if start + size > end:
                what = f"{printable(brief(repr(key)))} lies at bytes {start} to {start + size} of {end} (truncated?)"
                raise CorruptCheckpoint(what, url=url)
            yield node.prefix + key, Value(url, start, size)
        cursor.end()

    def _files(self, cursor: Cursor, base: bytes) -> list[File]:
        n = cursor.count()
        lengths = cursor.lengths(n)
        bases = cursor.varints(n)
        paths = self._texts(cursor, lengths)
        if any(b > len(p) for b, p in zip(bases, paths, strict=True)):
            raise cursor.bad("has a file whose base is longer than its path")
        self._take(n * (len(base) + ENTRY), "paths", cursor.url)
        return [File(base + p, base + p[:b]) for p, b in zip(paths, bases, strict=True)]

    def _take(self, size: int, what: str, url: str) -> None:
        """Take some of the room that the nodes' bytes give."""
        self.room -= size
        if self.room < 0:
            raise UnsafeCheckpoint(f"the {what} in the database's nodes repeat without bound", url=url)

    def _texts(self, cursor: Cursor, lengths: Texts) -> list[bytes]:
        found, self.room = cursor.texts(lengths, self.room)
        return found

    def _unpacked(self, url: str, magic: int, start: int = 0, size: int = -1, f: Reader | None = None) -> Cursor:
        """Read an envelope, check its length and CRC, and unpack its body."""
        if f is None:
            with Reader(url) as whole:
                return self._unpacked(url, magic, 0, whole.size, whole)
        if size > MAX_NODE:
            raise UnsafeCheckpoint(f"the database's node at byte {start} claims {size} bytes", url=url)
        raw = f.read(start, size)
        if size < 18 or int.from_bytes(raw[:4], "big") != magic or int.from_bytes(raw[4:12], "little") != size:
            raise CorruptCheckpoint(f"no node of a database lies at byte {start} (truncated?)", url=url)
        if crc("crc32c", raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            raise CorruptCheckpoint(f"the checksum of the node at byte {start} is wrong: the file is damaged", url=url)
        head = Cursor(raw[:-4], url)
        head.take(12)
        version, packed = head.varint(), head.varint()
        if version or packed > 1:
            raise head.bad(f"has the version {version} and the compression {packed}, which are not known")
        self.room += NAME_RATIO * size
        body = raw[head.at : -4]
        return Cursor(codecs.unpacked(["zstd"], body, NODE_RATIO * size + SLACK, url) if packed else body, url)


def _at(files: list[File], number: int, cursor: Cursor) -> File:
    if number >= len(files):
        raise cursor.bad(f"names file {number} of {len(files)}")
    return files[number]


def _text(raw: bytes, url: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        what = f"a key or path of the database is not UTF-8: {printable(brief(repr(raw)))}"
        raise CorruptCheckpoint(what, url=url) from None
