"""Read the numbers and texts of OCDBT's nodes, each checked against the remaining size of the node.

varint    7 bits per byte, lowest first; the high bit is set if another byte follows
texts     prefix-compressed: lengths of the common prefixes [n-1], lengths of the suffixes [n], then all suffixes
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import CorruptCheckpoint
from .values import Room

MAX_TEXT = 65535  # bytes of a key or path; the format's own limit for paths
CHARACTER = 2  # bytes: in the node, and as text
NAMES = "names in the database's nodes"


class Texts(NamedTuple):
    """Lengths of prefix-compressed texts, before the bytes that they count."""

    prefixes: list[int]
    rests: list[int]


class Cursor:
    """A position in the body of a node. Texts are counted against the room, because prefixes can repeat endlessly."""

    def __init__(self, data: bytes, url: str) -> None:
        self.data, self.url, self.at = data, url, 0

    def bad(self, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"the database's node {what}", url=self.url)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.bad(f"ends {size - len(self.data) + self.at} bytes too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self.data):
                raise self.bad("ends within a number")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise self.bad("has a number of more than 64 bits")
        if value >= 2**64:
            raise self.bad("has a number of more than 64 bits")
        return value

    def count(self) -> int:
        """Read the number of entries that follow, each of which takes at least one byte."""
        n = self.varint()
        if n > len(self.data) - self.at:
            raise self.bad(f"announces {n} entries in {len(self.data) - self.at} bytes")
        return n

    def varints(self, n: int) -> list[int]:
        return [self.varint() for _ in range(n)]

    def lengths(self, n: int) -> Texts:
        return Texts([0, *self.varints(n - 1)] if n else [], self.varints(n))

    def texts(self, lengths: Texts, room: Room) -> list[bytes]:
        out, last = [], b""
        for prefix, rest in zip(*lengths, strict=True):
            if prefix + rest > MAX_TEXT or prefix > len(last):
                raise self.bad(f"has a name of {prefix + rest} bytes, {prefix} of them from a name of {len(last)}")
            room.take(CHARACTER * (prefix + rest), NAMES)
            last = last[:prefix] + self.take(rest)
            out.append(last)
        return out

    def end(self) -> None:
        if self.at != len(self.data):
            raise self.bad(f"has {len(self.data) - self.at} bytes after its end")
