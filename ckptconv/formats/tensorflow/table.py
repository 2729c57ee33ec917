"""Sorted string tables: the container of TensorFlow's V1 checkpoints and of the index of V2 checkpoints.

    block ... block  metaindex  index  footer
    block   = entries, restart offsets (u32 each), their number (u32); then type (0 raw, 1 snappy), masked CRC-32C (u32)
    entry   = varint shared, varint unshared, varint size, key[shared:], value     (shared with the key before it)
    index   = a block: a key >= all of a block and < the next -> varint offset, varint size
    footer  = metaindex offset and size, index offset and size (varints), zeros to 40 bytes, 57fb808b247547db

Keys increase strictly, compared as unsigned bytes. All integers are little-endian. The CRC covers block and type.
TensorFlow finds a key by the index and the restart points, so each restart point must be where an entry begins that
shares nothing, the first at 0, and each key of a block must lie within what the index says: else it reads other values.
Specification: LevelDB's table format; tensorflow/core/lib/io/format.cc, table_builder.cc.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from struct import pack, unpack_from

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...storage.checksum import crc, mask, unmask
from ...storage.files import Reader
from ..table import TF_TABLE

FOOTER = 48
TRAILER = 5
EXPANDED = 24  # bytes of keys per byte of the file: prefixes save a factor of 16, as every 16th key is whole
SMALLEST = 9  # bytes of the file per entry: lengths, a key and a value; an entry takes 60 times as much once it is read
ROOM = 1 << 16
BLOCK_SIZE = 262144  # TensorFlow's, not LevelDB's 4096
RESTART_INTERVAL = 16

GIT_LFS = b"version https://git-lfs"
POINTER = "it is a git-lfs pointer; run `git lfs pull` in its repository"

KeyValue = tuple[bytes, bytes]
Place = tuple[bytes, int, int]  # a key, and where its value begins and ends in the block


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


def read_varints(data: bytes, count: int) -> tuple[list[int], int]:
    """Decode `count` integers at the beginning; return them and where the last one ends. IndexError past the end."""
    values, at = [], 0
    for _ in range(count):
        value, at = read_varint(data, at)
        values.append(value)
    return values, at


def common_prefix(a: bytes, b: bytes) -> int:
    """The length of the common prefix of two keys."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


# --- reading ----------------------------------------------------------------------------------------------------


class Table:
    """A table in an open file: its footer and index are read at once, its blocks on request."""

    def __init__(self, f: Reader) -> None:
        self.f = f
        self.last: tuple[int, dict[bytes, bytes]] = -1, {}  # the block that `get` parsed last
        tail = f.read(max(0, f.size - FOOTER), min(FOOTER, f.size))
        if tail[-8:] != TF_TABLE or len(tail) < FOOTER:
            head, what = f.read(0, min(64, f.size)), "the magic number at its end is missing (truncated?)"
            what = POINTER if head.startswith(GIT_LFS) else what if head else "it is empty (0 bytes)"
            raise CorruptCheckpoint(f"is not a table: {what}")
        (meta, meta_size, start, size), end = self._handles(tail, 4)
        if end > FOOTER - 8:
            raise self._bad("the footer's handles are too long", f.size - FOOTER)
        self._block(f, meta, meta_size)  # empty, but its checksum shows damage
        index = self._block(f, start, size)
        self.blocks: list[tuple[bytes, int, int]] = []  # the last key, the first byte and the size of each
        end = 0
        for key, a, b in self._places(index, start, None, self._limits()):
            (start, size), _ = self._handles(index[a:b], 2)
            if start < end:
                raise self._bad("two blocks overlap", start)
            self.blocks.append((key, start, size))
            end = start + size + TRAILER

    def __iter__(self) -> Iterator[KeyValue]:
        """All entries in order, read block by block."""
        limits = self._limits()
        for n in range(len(self.blocks)):
            yield from self._numbered(self.f, n, limits)

    def get(self, key: bytes, f: Reader | None = None) -> bytes:
        """The value of one key. f: the file, opened once more, if that which the table was made of is closed."""
        n = bisect_left(self.blocks, key, key=itemgetter(0))
        held, entries = self.last
        if held != n:
            entries = dict(self._numbered(f or self.f, n, self._limits())) if n < len(self.blocks) else {}
            if sum(map(len, entries.values())) <= 2 * BLOCK_SIZE:  # else it is one large tensor, which is read once
                self.last = n, entries
        if key not in entries:
            raise CorruptCheckpoint(f"the key {key.hex()} is not in the table")
        return entries[key]

    def _limits(self) -> list[int]:
        """How many bytes of keys, and how many entries, may still come."""
        return [EXPANDED * self.f.size + ROOM, self.f.size // SMALLEST + ROOM]

    def _numbered(self, f: Reader, n: int, limits: list[int]) -> Iterator[KeyValue]:
        """The entries of a block, checked against the bounds in the index."""
        most, start, size = self.blocks[n]
        block = self._block(f, start, size)
        places = self._places(block, start, self.blocks[n - 1][0] if n else None, limits)
        if places and places[-1][0] > most:
            raise self._bad("a block has a key beyond what the index says of it", start)
        yield from ((key, block[a:b]) for key, a, b in places)  # all values at once would take as much memory again

    def _handles(self, raw: bytes, count: int) -> tuple[list[int], int]:
        try:
            return read_varints(raw, count)
        except IndexError:
            raise CorruptCheckpoint("the table's index or footer does not hold block handles") from None

    def _block(self, f: Reader, start: int, size: int) -> bytes:
        """Read a block, check its CRC, decompress it."""
        if start + size + TRAILER > f.size - FOOTER:
            raise self._bad(f"a block of {size} bytes exceeds the file", start)
        data = f.read(start, size + TRAILER)
        kind, masked = unpack_from("<BI", data, size)
        if crc("crc32c", memoryview(data)[: size + 1]) != unmask(masked):
            raise self._bad(f"the checksum of a block of {size} bytes is wrong: the file is damaged", start)
        if kind > 1:
            raise self._bad(f"a block has the unknown compression {kind}", start)
        return self._decompressed(data[:size], start) if kind else data[:size]

    def _decompressed(self, body: bytes, start: int) -> bytes:
        import cramjam

        try:
            size = read_varint(body, 0)[0]
            if size > 22 * len(body) + 64:  # three bytes of snappy yield 64 at the most
                raise UnsafeCheckpoint(f"{len(body)} bytes claim to expand to {size}")
            data = bytes(cramjam.snappy.decompress_raw(body))
        except (IndexError, cramjam.DecompressionError) as e:
            raise self._bad(f"a snappy block does not decompress ({e})", start) from e
        if len(data) != size:
            raise self._bad(f"a snappy block has {len(data)} bytes, not {size}", start)
        return data

    def _places(self, block: bytes, start: int, above: bytes | None, limits: list[int]) -> list[Place]:
        """All keys of a block, which must increase from `above`, and where their values lie."""
        restarts, end = self._restarts(block, start)
        found: list[Place] = []
        whole = set[int]()  # where entries begin that share nothing
        last, key, at, total, (most, count) = above, b"", 0, 0, limits
        try:
            while at < end:
                shared, unshared, size = block[at], block[at + 1], block[at + 2]
                if not shared:
                    whole.add(at)
                if (shared | unshared | size) > 127:
                    shared, at = read_varint(block, at)
                    unshared, at = read_varint(block, at)
                    size, at = read_varint(block, at)
                else:
                    at += 3
                middle = at + unshared
                after = middle + size
                total += shared + unshared
                if total > most or len(found) >= count:
                    raise IndexError("keys or entries unfold to more than the file can mean")
                if after > end or shared > len(key):
                    raise IndexError("it passes the block's end or the key before it")
                key = key[:shared] + block[at:middle]
                if last is not None and key <= last:
                    raise IndexError("its key does not increase")
                last = key
                found.append((key, middle, after))
                at = after
        except IndexError as e:
            raise self._bad(f"a block's entry {len(found)} is broken ({e})", start) from None
        limits[:] = most - total, count - len(found)
        if not whole.issuperset(restarts) if found else restarts != (0,):
            raise self._bad("a restart point is not where an entry begins: TensorFlow would read other values", start)
        return found

    def _restarts(self, block: bytes, start: int) -> tuple[tuple[int, ...], int]:
        """The restart points of a block, and where its entries end."""
        count = int.from_bytes(block[-4:], "little") if len(block) >= 4 else 1 << 30
        end = len(block) - 4 - 4 * count
        if end < 0:
            raise self._bad("a block is shorter than its restart table", start)
        restarts = unpack_from(f"<{count}I", block, end)
        if not count or restarts[0] or any(a >= b for a, b in pairwise(restarts)):
            raise self._bad("the restart points do not increase from 0", start)
        return restarts, end

    def _bad(self, what: str, start: int) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{what} (at byte {start})")


# --- writing, byte for byte as TensorFlow does --------------------------------------------------------------------


def build(pairs: Iterable[KeyValue]) -> bytes:
    """Lay out a table of sorted pairs exactly as TensorFlow's TableBuilder does, uncompressed."""
    out, table, block = bytearray(), _Block(1), _Block(RESTART_INTERVAL)
    for key, value in pairs:
        big = len(key) + len(value) >= 2 * BLOCK_SIZE
        size = len(block.data) + 4 * len(block.restarts) + 4
        if block.count and (size >= BLOCK_SIZE or big):
            table.add(_separator(block.last, key), _append(out, block))
            block = _Block(RESTART_INTERVAL)
        block.add(key, value)
    if block.count:
        table.add(_successor(block.last), _append(out, block))
    handles = _append(out, _Block(RESTART_INTERVAL)) + _append(out, table)
    return bytes(out + handles.ljust(FOOTER - 8, b"\0") + TF_TABLE)


class _Block:
    """A block being filled."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.data = bytearray()
        self.restarts = [0]
        self.count = 0  # entries in all; the restart counter is its remainder
        self.last = b""

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
