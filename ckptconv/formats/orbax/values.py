"""Locate the values of a key-value store: in an OCDBT database, or in files of a folder whose paths are the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import brief, listing, printable
from ...storage.files import Reader, is_remote, join, names, sibling, walk

MAX_PARTS = 64  # folders in a path


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
    start = len(root.rstrip("/")) + 1
    for folder, folders, files in walk(root):
        under = folder[start:]
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
