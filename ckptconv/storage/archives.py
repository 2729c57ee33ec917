"""Members of zip archives as files (zip://MEMBER::URL): those that are stored are read in place, by ranges.

    [local header: 30 bytes, name, extra][data] ... [central directory][end]          APPNOTE.TXT 4.3

Packed members are listed but not read. Each range of one would be unpacked from the member's beginning, and a kilobyte
of it can be gigabytes; unpacking is for those who know what they unpack.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..errors import CorruptCheckpoint, StorageError
from ..messages import brief, printable
from . import directory, web
from .faults import asking
from .ranges import FileObject

TAIL = 2**16  # bytes fetched at once, in which the directory of a small archive lies
MAX_DEPTH = 64  # folders above a member; each of them has its own path in a listing
LOCAL = struct.Struct("<4s2xH18xHH")  # signature, flags, lengths of name and extra field
ENCRYPTED, UTF8 = 0x1, 0x800  # flags
METHODS = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Entry(NamedTuple):
    """A member. at: of its local header. why: why it cannot be read, or ''."""

    name: bytes
    at: int
    size: int
    why: str


class Archive:
    """An archive as what fsspec calls a file system; `fs`, `path`: the archive's own, `url`: as it is called."""

    async_impl = False

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self._fs, self._path, self.url = fs, path, url
        with asking(url):
            self._info: dict[str, Any] = dict(web.bounded(fs, "info", 0, path))
        if self._info.get("type") != "file" or self._info.get("size") is None:
            raise StorageError("is not a file whose size is known, an archive is needed", url=url)
        self.size = int(self._info["size"])
        self._tail = b""
        self._tail = self.read(max(0, self.size - TAIL), min(TAIL, self.size))
        self._entries = _entries(self)
        self._names = sorted(self._entries)
        self._data: dict[str, int] = {}  # where the data of a member begins

    # --- the archive, as ranges ---

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the archive itself."""
        tail = self.size - len(self._tail)
        if tail <= start and start + size <= self.size:
            return self._tail[start - tail : start - tail + size]
        return self._read([(start, size)])[0]

    def _read(self, some: Sequence[tuple[int, int]]) -> list[bytes]:
        if any(start < 0 or start + size > self.size for start, size in some):
            raise CorruptCheckpoint("is an archive that ends too early", url=self.url)
        with asking(self.url):
            try:
                found = web.fetched(self._fs, self._path, some, self._info)
            except web.NoRanges:
                raise StorageError("the server sends no ranges of it; copy the archive first", url=self.url) from None
        if [len(data) for data in found] != [size for _, size in some]:
            raise CorruptCheckpoint("came in another length than was requested", url=self.url)
        return found

    def close(self) -> None:
        """Nothing is open."""

    # --- its members, as files ---

    def info(self, path: str, **_: object) -> dict[str, Any]:
        name = path.strip("/")
        if entry := self._entries.get(name):
            return {**self._info, "name": name, "size": entry.size, "type": "file"}
        if name and not self._below(name):
            raise FileNotFoundError(name)
        return {"name": name, "size": 0, "type": "directory"}

    def _below(self, folder: str) -> list[str]:
        """The names of all members in a folder, and in those below."""
        start = f"{folder}/" if folder else ""
        first = bisect_left(self._names, start)
        return self._names[first : bisect_left(self._names, f"{start}\U0010ffff", first)]

    def ls(self, path: str, **_: object) -> list[dict[str, Any]]:
        folder = path.strip("/")
        if folder in self._entries:
            return [self.info(folder)]
        at = len(folder) + 1 if folder else 0
        found = dict.fromkeys(name[: end if (end := name.find("/", at)) > 0 else None] for name in self._below(folder))
        if folder and not found:
            raise FileNotFoundError(folder)
        return [self.info(name) for name in found]

    def find(self, path: str, **_: object) -> dict[str, dict[str, Any]]:
        return {name: self.info(name) for name in self._below(path.strip("/"))}

    def cat_ranges(self, paths: Sequence[str], starts: Sequence[int], ends: Sequence[int], **_: object) -> list[bytes]:
        return self._read([self._placed(*one) for one in zip(paths, starts, ends, strict=True)])

    def _placed(self, path: str, start: int, end: int) -> tuple[int, int]:
        """Where the bytes [start, end) of a member lie in the archive."""
        entry = self._entries[path.strip("/")]
        if entry.why:
            raise StorageError(f"{entry.why} in the archive; unpack the archive first", url=f"zip://{path}::{self.url}")
        if not 0 <= start <= end <= entry.size:
            raise CorruptCheckpoint(f"bytes {start} to {end} of a member of {entry.size}", url=self.url)
        if path not in self._data:
            self._data[path] = self._begins(entry)
        return self._data[path] + start, end - start

    def _begins(self, entry: Entry) -> int:
        """Where the data of a member begins; its local header must be there, and be called as the directory says."""
        head = self.read(entry.at, LOCAL.size + len(entry.name))
        signature, flags, name, extra = LOCAL.unpack_from(head)
        if signature != b"PK\3\4" or head[LOCAL.size :] != entry.name or name != len(entry.name) or flags & ENCRYPTED:
            text = printable(brief(entry.name.decode("utf-8", "replace")))
            raise CorruptCheckpoint(f"the headers of the member {text} disagree", url=self.url)
        return entry.at + LOCAL.size + int(name) + int(extra)

    def glob(self, *_: object, **__: object) -> NoReturn:
        raise StorageError("patterns do not match members of an archive; name each", url=self.url)

    def put_file(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError

    rm_file = put_file


def _entries(archive: Archive) -> Mapping[str, Entry]:
    """The members by name, as Python's own reader of zips finds them."""
    import zipfile

    if not directory.is_there(archive):
        raise CorruptCheckpoint("has no directory where its end says it is", url=archive.url)
    try:
        with zipfile.ZipFile(io.BufferedReader(FileObject(archive), 2**16)) as z:
            found = z.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, OverflowError, struct.error) as e:
        raise CorruptCheckpoint(f"is not a sound zip archive ({type(e).__name__})", url=archive.url) from None
    out, total = dict[str, Entry](), 0
    for one in found:
        name = one.filename.strip("/")
        if name in out:
            text = printable(brief(name))
            raise CorruptCheckpoint(f"has two members that are called {text}", url=archive.url)
        if name.count("/") > MAX_DEPTH:
            raise CorruptCheckpoint(f"has a member below more than {MAX_DEPTH} folders", url=archive.url)
        why = _why(one)
        total += 0 if why else one.file_size
        if total > archive.size:
            raise CorruptCheckpoint("its members overlap, or it ends too early", url=archive.url)
        if name and not one.is_dir():
            raw = one.orig_filename.encode("utf-8" if one.flag_bits & UTF8 else "cp437")
            out[name] = Entry(raw, one.header_offset, one.file_size, why)
    return out


def _why(one: Any) -> str:
    """Why a member cannot be read in place, or ''."""
    if one.flag_bits & ENCRYPTED:
        return "is encrypted"
    if one.compress_type:
        return f"is packed ({METHODS.get(one.compress_type, f'method {one.compress_type}')})"
    return "" if one.compress_size == one.file_size else "has two sizes"


__all__ = ["Archive"]
