"""Write an OCDBT database: the nodes of its B+tree, and the manifest. See ocdbt.py for the layout.

Nothing is compressed, so that all positions are known before the data is. The identifier of the database is a digest of
its nodes, and its time is constant, so that the same arrays give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from ...storage.checksum import crc
from ..tensorflow.table import common_prefix, varint
from .ocdbt import MANIFEST_MAGIC, NODE_MAGIC

ENTRIES = 4096  # of a node
MAX_INLINE, MAX_NODE, ARITY = 1024, 100_000_000, 4  # what tensorstore and Orbax configure


class Entry(NamedTuple):
    """A key and its value: `data` in the node, or `size` bytes at `start` of the data file."""

    key: bytes
    start: int
    size: int
    data: bytes | None = None


class Node(NamedTuple):
    """An encoded node, and the fields that its parent stores for it."""

    first: bytes
    raw: bytes
    keys: int
    tree: int  # bytes of the nodes below, and its own
    values: int  # bytes in the data file


def build(entries: Sequence[Entry], file: str, at: int) -> tuple[bytes, bytes]:
    """The nodes, which go to byte `at` of the data file `file`, and the manifest; entries are sorted by key."""
    level = [_leaf(entries[i : i + ENTRIES], file) for i in range(0, len(entries), ENTRIES)]
    out, height = bytearray(), 0
    while len(level) > 1:
        places = []
        for node in level:
            places.append(at + len(out))
            out += node.raw
        height += 1
        level = [
            _interior(level[i : i + ENTRIES], places[i : i + ENTRIES], height, file)
            for i in range(0, len(level), ENTRIES)
        ]
    root = level[0]
    name = sha256(out + root.raw).digest()[:16]
    return bytes(out + root.raw), _manifest(root, at + len(out), height, file, name)


def _leaf(entries: Sequence[Entry], file: str) -> Node:
    far = [e for e in entries if e.data is None]
    body = b"".join((
        b"\0", _files(file), varint(len(entries)), *_texts([e.key for e in entries]),
        *(varint(e.size) for e in entries), *(varint(int(e.data is None)) for e in entries),
        bytes(len(far)), *(varint(e.start) for e in far), *(e.data for e in entries if e.data is not None),
    ))  # fmt: skip
    raw = _enveloped(NODE_MAGIC, body)
    return Node(entries[0].key, raw, len(entries), len(raw), sum(e.size for e in far))


def _interior(nodes: Sequence[Node], places: Sequence[int], height: int, file: str) -> Node:
    prefixes, lengths, rests = _texts([n.first for n in nodes])
    body = b"".join((
        bytes([height]), _files(file), varint(len(nodes)), prefixes, lengths, bytes(len(nodes)), rests,
        bytes(len(nodes)), *map(varint, places), *(varint(len(n.raw)) for n in nodes),
        *(varint(n.keys) for n in nodes), *(varint(n.tree) for n in nodes), *(varint(n.values) for n in nodes),
    ))  # fmt: skip
    raw = _enveloped(NODE_MAGIC, body)
    keys, tree, values = (sum(column) for column in zip(*((n.keys, n.tree, n.values) for n in nodes), strict=True))
    return Node(nodes[0].first, raw, keys, tree + len(raw), values)


def _manifest(root: Node, at: int, height: int, file: str, name: bytes) -> bytes:
    config = name + b"".join(map(varint, (0, MAX_INLINE, MAX_NODE))) + bytes([ARITY, 0])
    version = [varint(1), varint(1), bytes([height]), varint(0)]  # one version, the first generation, file 0
    version += map(varint, (at, len(root.raw), root.keys, root.tree, root.values))
    when, older = (1).to_bytes(8, "little"), varint(0)
    return _enveloped(MANIFEST_MAGIC, b"".join((config, _files(file), *version, when, older)))


def _files(file: str) -> bytes:
    """A file table with one row, without a shared base path."""
    return varint(1) + varint(len(file)) + varint(0) + file.encode()


def _texts(keys: Sequence[bytes]) -> tuple[bytes, bytes, bytes]:
    """Prefix-compress keys: the lengths of the common prefixes, the lengths of the suffixes, and the suffixes."""
    common = [common_prefix(a, b) for a, b in pairwise(keys)]
    rests = [key[n:] for key, n in zip(keys, (0, *common), strict=True)]
    return b"".join(map(varint, common)), b"".join(varint(len(r)) for r in rests), b"".join(rests)


def _enveloped(magic: int, body: bytes) -> bytes:
    size = 12 + 2 + len(body) + 4
    raw = magic.to_bytes(4, "big") + size.to_bytes(8, "little") + b"\0\0" + body
    return raw + crc("crc32c", raw).to_bytes(4, "little")
