"""Lay out a sorted string table (table.py), byte for byte as TensorFlow does."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

from ...storage.checksum import crc, mask
from ..signatures import TABLE
from .table import FOOTER, KeyValue, common_prefix, varint

BLOCK_SIZE = 262144  # TensorFlow's, not LevelDB's 4096
RESTART_INTERVAL = 16


def build(pairs: Iterable[KeyValue]) -> bytes:
    """Lay out a table of sorted pairs exactly as TensorFlow's TableBuilder does, uncompressed."""
    out = bytearray()
    index: list[KeyValue] = []
    block = _Block(RESTART_INTERVAL)
    for key, value in pairs:
        big = len(key) + len(value) >= 2 * BLOCK_SIZE
        if block.count and (block.estimate >= BLOCK_SIZE or big):
            index.append((_separator(block.last, key), _append(out, block)))
            block = _Block(RESTART_INTERVAL)
        block.add(key, value)
    if block.count:
        index.append((_successor(block.last), _append(out, block)))
    meta = _append(out, _Block(RESTART_INTERVAL))
    table = _Block(1)
    for key, value in index:
        table.add(key, value)
    handles = meta + _append(out, table)
    return bytes(out + handles.ljust(FOOTER - 8, b"\0") + TABLE)


class _Block:
    """A block being filled."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.data = bytearray()
        self.restarts = [0]
        self.count = 0  # entries in all; the restart counter is its remainder
        self.last = b""

    @property
    def estimate(self) -> int:
        return len(self.data) + 4 * len(self.restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count and self.count % self.interval == 0:
            self.restarts.append(len(self.data))
        elif self.count:
            shared = common_prefix(self.last, key)
        self.data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        self.last = key
        self.count += 1

    def finish(self) -> bytes:
        return bytes(self.data) + pack(f"<{len(self.restarts) + 1}I", *self.restarts, len(self.restarts))


def _append(out: bytearray, block: _Block) -> bytes:
    """Append a block with its trailer; return its handle."""
    body = block.finish() + b"\0"
    handle = varint(len(out)) + varint(len(body) - 1)
    out += body + pack("<I", mask(crc("crc32c", body)))
    return handle


def _separator(last: bytes, following: bytes) -> bytes:
    """The short key between two blocks that TensorFlow chooses."""
    at = common_prefix(last, following)
    if at < min(len(last), len(following)) and last[at] < 0xFF and last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """The short key after the last block: the first byte that can be, incremented."""
    at = next((i for i, byte in enumerate(last) if byte != 0xFF), None)
    return last if at is None else last[:at] + bytes([last[at] + 1])
