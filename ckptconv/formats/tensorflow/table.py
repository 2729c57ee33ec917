"""Sorted string tables: the container of TensorFlow's V1 checkpoints and of the index of V2 checkpoints.

    block ... block  metaindex  index  footer
    block   = entries, restart offsets (u32 each), their number (u32); then type (0 raw, 1 snappy), masked CRC-32C (u32)
    entry   = varint shared, varint unshared, varint size, key[shared:], value     (shared with the key before it)
    index   = a block: a key >= all of a block and < the next -> varint offset, varint size
    footer  = metaindex offset and size, index offset and size (varints), zeros to 40 bytes, 57fb808b247547db

Keys increase strictly, compared as unsigned bytes. All integers are little-endian. The CRC covers block and type.
Specification: LevelDB's table format; tensorflow/core/lib/io/format.cc, table_builder.cc.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from operator import itemgetter
from struct import pack, unpack_from

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...storage.checksum import crc, mask, unmask
from ...storage.files import Reader

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER = 48
TRAILER = 5
BLOCK_SIZE = 262144  # TensorFlow's, not LevelDB's 4096
RESTART_INTERVAL = 16
KEPT = 1 << 24

Pair = tuple[bytes, bytes]


def varint(value: int) -> bytes:
    """Encode an unsigned LEB128 integer."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode an unsigned LEB128 integer of at most 64 bits; return it and where it ends. IndexError past the end."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a varint of more than ten bytes")


# --- reading ----------------------------------------------------------------------------------------------------


class Table:
    """A table in an open file: its footer and index are read, its blocks when asked for."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.url = reader.url
        self.kept: dict[int, tuple[bytes, int, tuple[int, ...]]] = {}  # what `get` read last, if it is not large
        tail = reader.read(max(0, reader.size - FOOTER), min(FOOTER, reader.size))
        if len(tail) < FOOTER or tail[-8:] != MAGIC:
            raise CorruptCheckpoint(f"is no table: {self._instead()}", url=self.url)
        numbers, at = [], 0
        try:
            for _ in range(4):
                number, at = read_varint(tail, at)
                numbers.append(number)
        except IndexError:
            at = FOOTER
        if at > FOOTER - 8:
            raise self._bad("the footer's handles are too long", reader.size - FOOTER)
        self._block(numbers[0], numbers[1])  # the metaindex: empty, but its checksum tells of damage
        pairs = self._pairs(self._block(numbers[2], numbers[3]), None, numbers[2])
        self.blocks = [(key, *self._handle(value)) for key, value in pairs]
        end = 0
        for _, start, size in self.blocks:
            if start < end:
                raise self._bad("two blocks overlap", start)
            end = start + size + TRAILER

    def __iter__(self) -> Iterator[Pair]:
        """All entries in order, read block by block."""
        last: bytes | None = None
        for _, start, size in self.blocks:
            pairs = self._pairs(self._block(start, size), last, start)
            yield from pairs
            last = pairs[-1][0] if pairs else last

    def get(self, key: bytes) -> bytes:
        """The value of one key, reading one block and searching its restart points, where keys are whole."""
        n = bisect_left(self.blocks, key, key=itemgetter(0))
        if n < len(self.blocks):
            _, start, size = self.blocks[n]
            block, end, restarts = self.kept.get(start) or self._searched(start, size)
            if not restarts:
                raise self._bad("a block has no restart points", start)
            at = bisect_right(restarts, key, key=lambda r: self._entries(block, r, end, start, limit=1)[0][0])
            for found, value in self._entries(block, restarts[max(0, at - 1)], end, start, RESTART_INTERVAL * 8):
                if found == key:
                    return value
        raise CorruptCheckpoint(f"the key {key.hex()} is not in the table", url=self.url)

    def _searched(self, start: int, size: int) -> tuple[bytes, int, tuple[int, ...]]:
        """A block, where its entries end, and its restart points."""
        block = self._block(start, size)
        end = self._end(block, start)
        found = block, end, unpack_from(f"<{(len(block) - end) // 4 - 1}I", block, end)
        if len(block) <= KEPT:
            self.kept.clear()
            self.kept[start] = found
        return found

    def on(self, reader: Reader) -> Table:
        """The same table in another opening of its file."""
        made = copy(self)
        made.reader = reader
        return made

    def _handle(self, value: bytes) -> tuple[int, int]:
        try:
            start, at = read_varint(value, 0)
            return start, read_varint(value, at)[0]
        except IndexError:
            raise CorruptCheckpoint("an index entry holds no block handle", url=self.url) from None

    def _block(self, start: int, size: int) -> bytes:
        """Read a block, check its CRC, decompress it."""
        if start + size + TRAILER > self.reader.size - FOOTER:
            raise self._bad(f"a block of {size} bytes passes the end of the file", start)
        data = self.reader.read(start, size + TRAILER)
        body, (kind, masked) = data[:size], unpack_from("<BI", data, size)
        if crc("crc32c", memoryview(data)[: size + 1]) != unmask(masked):
            raise self._bad(f"the checksum of a block of {size} bytes is wrong: the file is damaged", start)
        if kind > 1:
            raise self._bad(f"a block has the unknown compression {kind}", start)
        return self._decompress(body, start) if kind else body

    def _decompress(self, body: bytes, start: int) -> bytes:
        import cramjam

        try:
            size = read_varint(body, 0)[0]
            if size > 22 * len(body) + 64:  # three bytes of snappy yield 64 at the most
                raise UnsafeCheckpoint(f"{len(body)} bytes claim to expand to {size}", url=self.url)
            data = bytes(cramjam.snappy.decompress_raw(body))
        except (IndexError, cramjam.DecompressionError) as e:
            raise self._bad(f"a snappy block does not decompress ({e})", start) from e
        if len(data) != size:
            raise self._bad(f"a snappy block has {len(data)} bytes, not {size}", start)
        return data

    def _pairs(self, block: bytes, last: bytes | None, start: int) -> list[Pair]:
        """All entries of a block; the keys go on from `last`."""
        return self._entries(block, 0, self._end(block, start), start, last=last)

    def _end(self, block: bytes, start: int) -> int:
        """Where a block's entries end and its restart points begin."""
        restarts = int.from_bytes(block[-4:], "little") if len(block) >= 4 else 1 << 30
        end = len(block) - 4 - 4 * restarts
        if end < 0:
            raise self._bad("a block is shorter than its restart table", start)
        return end

    def _entries(
        self, block: bytes, at: int, end: int, start: int, limit: int = 1 << 60, last: bytes | None = None
    ) -> list[Pair]:
        """At most `limit` entries from a restart point on, with keys that increase. The inner loop of opening."""
        pairs: list[Pair] = []
        total, most = 0, 64 * len(block) + 65536  # prefixes save a factor of 16 at most: every 16th key is whole
        key = b""
        try:
            while at < end and len(pairs) < limit:
                shared, unshared, size = block[at], block[at + 1], block[at + 2]
                if (shared | unshared | size) > 127:
                    shared, at = read_varint(block, at)
                    unshared, at = read_varint(block, at)
                    size, at = read_varint(block, at)
                else:
                    at += 3
                middle = at + unshared
                after = middle + size
                total += shared
                if after > end or shared > len(key) or total > most:
                    long = "the keys unfold to more than 64 times the block"
                    raise IndexError(long if total > most else "it passes the block's end or the key before it")
                key = key[:shared] + block[at:middle]
                if last is not None and key <= last:
                    raise IndexError("its key does not increase")
                last = key
                pairs.append((key, block[middle:after]))
                at = after
        except IndexError as e:
            raise self._bad(f"a block's entry {len(pairs)} is broken ({e})", start) from None
        if limit == 1 and not pairs:
            raise self._bad("a restart point lies beyond its block's entries", start)
        return pairs

    def _bad(self, what: str, start: int) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{what} (at byte {start})", url=self.url)

    def _instead(self) -> str:
        """Say what lies where a table should be."""
        head = self.reader.read(0, min(64, self.reader.size)).lstrip().lower()
        if not self.reader.size:
            return "it is empty (0 bytes)"
        if head.startswith(b"version https://git-lfs"):
            return "it is a git-lfs pointer; run `git lfs pull` where it came from"
        if head.startswith((b"<!doctype html", b"<html")):
            return "it is an HTML page; the download went wrong"
        return "the magic number at its end is missing (truncated?)"


def first_value_tag(head: bytes) -> int:
    """The first byte of the first entry's value (-1 if it is empty), from the head of a table; -2 if there is none.

    A snappy block begins with its length, which is not 0, and a literal long enough to hold what is looked at.
    """
    try:
        at = 0
        if head[:2] != b"\0\0":
            _, at = read_varint(head, 0)
            tag = head[at]
            at += 1 + (max(0, (tag >> 2) - 59) if tag & 3 == 0 else 0)
        if head[at : at + 2] != b"\0\0":  # the first key is "": nothing shared, nothing unshared
            return -2
        size, at = read_varint(head, at + 2)
        return head[at] if size else -1
    except IndexError:
        return -2


# --- writing ----------------------------------------------------------------------------------------------------


def build(pairs: Iterable[Pair]) -> bytes:
    """Lay out a table of sorted pairs exactly as TensorFlow's TableBuilder does, uncompressed."""
    out = bytearray()
    index: list[Pair] = []
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
    return bytes(out + handles.ljust(FOOTER - 8, b"\0") + MAGIC)


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
            shared = _common(self.last, key)
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


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _separator(last: bytes, following: bytes) -> bytes:
    """The short key between two blocks that TensorFlow chooses."""
    at = _common(last, following)
    if at < min(len(last), len(following)) and last[at] < 0xFF and last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """The short key after the last block: the first byte that can be, incremented."""
    at = next((i for i, byte in enumerate(last) if byte != 0xFF), None)
    return last if at is None else last[:at] + bytes([last[at] + 1])
