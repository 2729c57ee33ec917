"""Tables of TensorFlow made by hand: any bytes as blocks, any restart points, under valid checksums."""

from __future__ import annotations

import struct

from crc32c import crc32c

from ckptconv.formats.table import TF_TABLE
from ckptconv.formats.tensorflow.table import varint
from ckptconv.storage.checksum import mask

Entry = tuple[bytes, bytes]


def encoded(key: bytes, value: bytes, shared: int = 0) -> bytes:
    return varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value


def common(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Block:
    """Entries with prefixes shared between restart points."""

    def __init__(self, entries: list[Entry], interval: int) -> None:
        self.data, self.restarts, last = b"", list[int](), b""
        for i, (key, value) in enumerate(entries):
            if i % interval == 0:
                self.restarts.append(len(self.data))
            self.data += encoded(key, value, common(last, key) if i % interval else 0)
            last = key
        self.restarts = self.restarts or [0]

    def bytes(self) -> bytes:
        return self.data + struct.pack(f"<{len(self.restarts) + 1}I", *self.restarts, len(self.restarts))


def table(blocks: list[tuple[bytes, bytes]], kind: bytes = b"\0") -> bytes:
    """A table of blocks (separator, bytes), of this compression."""
    out = b""

    def append(raw: bytes, kind: bytes = b"\0") -> bytes:
        nonlocal out
        handle = varint(len(out)) + varint(len(raw))
        out += raw + kind + struct.pack("<I", mask(crc32c(raw + kind)))
        return handle

    handles = [(separator, append(block, kind)) for separator, block in blocks]
    footer = append(Block([], 1).bytes()) + append(Block(handles, 1).bytes())
    return out + footer.ljust(40, b"\0") + TF_TABLE
