"""Locate the values of a key-value store: in an OCDBT database, or in files of a folder whose paths are the keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, printable
from ...storage.files import Reader, is_remote, join, names, sibling, walk

MAX_PARTS = 64  # folders in a path
RATIO, SLACK = 64, 45 * 2**20  # bytes of memory per stored byte, and for any checkpoint
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
        return self.part(0, self.size)

    def part(self, start: int, size: int) -> bytes:
        if self.data is not None:
            return self.data[start : start + size]
        with Reader(self.url) as f:
            return f.read(self.start + start, size)


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
        at = sibling(join(at, "."), part)
    return at


def of_folder(root: str) -> dict[str, Value]:
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
    return out


def check_apart(values: Mapping[str, Value]) -> None:
    """Refuse values that share bytes, because one file could then be read once for each name."""
    places = sorted((v.url, v.start, v.size, key) for key, v in values.items() if v.data is None and v.size)
    for one, other in pairwise(places):
        if one[0] == other[0] and other[1] < one[1] + one[2]:
            both = " and ".join(printable(brief(p[3], 100)) for p in (one, other))
            raise CorruptCheckpoint(f"{both} share the byte {other[1]}", url=one[0])


def files_of(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.url for v in values))
