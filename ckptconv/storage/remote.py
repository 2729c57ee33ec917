"""Remote files, read through fsspec's file systems in few requests, with their errors turned into ours.

    s3://BUCKET/KEY  gs://BUCKET/KEY  https://HOST/PATH  hf://ORG/REPO/FILE  memory://PATH     and all others of fsspec

`RemoteFile` fetches ranges; small reads near one another share a window, which doubles while it is read in order.
Credentials are left to the file systems (environment, configuration files); those in a url are never shown: see
messages.redacted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast
from zlib import crc32

from ..errors import CorruptCheckpoint, MissingExtra, StorageError
from . import web
from .faults import STATUS, asking, refused
from .paths import is_http
from .ranges import Spool

FIRST, LAST = 4096, 2**22  # bytes of a window: at first, and after doubling
MAX_GAP = 2**16  # bytes between two ranges that are cheaper to fetch than another request
BATCH = 8  # ranges requested at once
PIECE = 2**23  # bytes of one request


class Stat(NamedTuple):
    """The size and time of a file, which show whether it has changed; `mtime` in ns, 0 if it is not known."""

    size: int
    mtime: int


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a remote url and the path within it; it caches no listings, since files may change."""
    with asking(url):
        try:
            fs, path = _connected(url)
        except ImportError as e:
            scheme = url.split("://")[0]
            extra = {"https": "http", "gcs": "gs", "s3a": "s3"}.get(scheme, scheme)
            raise MissingExtra(f"{scheme}:// needs another package: {e}. Try: pip install 'ckptconv[{extra}]'") from e
    return fs, str(path)


def _connected(url: str) -> tuple[Any, Any]:
    import fsspec

    schemes = {link.partition("://")[0] for link in url.split("::")}
    if "reference" in schemes:  # a stranger's list of other urls, local ones among them
        raise StorageError("reference:// leads to urls that nobody typed, and is not opened", url=url)
    options = {scheme: dict(web.client()) for scheme in schemes & {"http", "https"} if web.client()}
    try:
        found: tuple[Any, Any] = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ValueError as e:
        raise StorageError(f"cannot be opened: {e}", url=url) from e
    return found


# --- looking ----------------------------------------------------------------------------------------------------


def info(url: str) -> dict[str, Any] | None:
    """The file system's information on a file or folder, or None if there is none."""
    fs, path = filesystem(url)
    try:
        with asking(url):
            return dict(web.bounded(fs, "info", 0, path))
    except StorageError as e:
        if isinstance(e.__cause__, FileNotFoundError) and e.message == STATUS[404]:
            return None
        raise


def is_dir(url: str) -> bool:
    """Whether it is a folder; never on the web, where asking would fetch the whole file to look for links."""
    found = None if is_http(url) else info(url)
    return bool(found and found.get("type") == "directory")


def names(folder: str) -> list[str]:
    """Names in a folder; FileNotFoundError if there is none."""
    if is_http(folder):
        return []
    fs, path = filesystem(folder)
    try:
        with asking(folder):
            found = web.bounded(fs, "ls", 0, path, detail=False)
    except StorageError as e:
        raise e.__cause__ if isinstance(e.__cause__, OSError) else e from None
    return sorted({str(p).rstrip("/").rpartition("/")[2] for p in found} - {""})


def stat(url: str) -> Stat | None:
    found = info(url)
    return None if found is None or found.get("type") == "directory" else _stat(found)


def _stat(found: dict[str, Any]) -> Stat:
    when = found.get("LastModified") or found.get("mtime") or found.get("updated") or found.get("created") or 0
    if hasattr(when, "timestamp"):
        when = when.timestamp()
    time = int(when * 1e9) if isinstance(when, (int, float)) else crc32(str(when).encode())
    return Stat(int(found.get("size") or 0), time)


def walk(folder: str) -> Iterator[tuple[str, list[str], dict[str, Stat]]]:
    """As files.walk: one recursive listing, which an object store answers in pages whatever the number of folders."""
    if is_http(folder):
        raise StorageError("a web server does not list its files; name each, in a manifest for instance", url=folder)
    fs, path = filesystem(folder)
    with asking(folder):
        found = fs.find(path, detail=True)
    tree: dict[str, tuple[set[str], dict[str, Stat]]] = {"": (set(), {})}
    root = path.strip("/") + "/"
    for where, what in found.items():
        parts = str(where).strip("/").removeprefix(root).split("/")
        for depth in range(len(parts) - 1):
            tree.setdefault("/".join(parts[:depth]), (set(), {}))[0].add(parts[depth])
        tree.setdefault("/".join(parts[:-1]), (set(), {}))[1][parts[-1]] = _stat(what)
    todo = [""]
    while todo:
        at = todo.pop()
        folders = sorted(tree[at][0])
        yield f"{folder.rstrip('/')}/{at}" if at else folder, folders, dict(sorted(tree[at][1].items()))
        todo += [f"{at}/{name}".lstrip("/") for name in reversed(folders)]


# --- reading ----------------------------------------------------------------------------------------------------


class RemoteFile:
    """Reads of ranges of one remote file, checked for length; safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._path = filesystem(url)
        found = info(url)
        if found is None:
            raise refused(FileNotFoundError(), url)
        if found.get("type") == "directory":
            raise StorageError("is a folder, a file is needed", url=url)
        if found.get("size") is None:
            raise StorageError("the server does not say how large the file is", url=url)
        self.size = int(found["size"])
        from hashlib import blake2b

        version = repr([found.get(k) for k in ("ETag", "etag", "LastModified", "mtime", "updated", "created")])
        self.stamp = (self.size, int.from_bytes(blake2b(version.encode(), digest_size=8).digest(), "little"))
        self._copy: Spool | None = None
        if is_http(url) and (self.size <= FIRST or not _ranged(url, self.size)):
            self._copy = _whole(url, self.stamp)
        self._lock, self._spooling = threading.Lock(), threading.Lock()
        self._at, self._window, self._step = 0, b"", FIRST // 2
        self._mine = threading.local()  # .held: ranges fetched for the job of this thread
        self._spools: dict[tuple[int, int], Spool] = {}

    def read(self, start: int, size: int) -> bytes:
        """The bytes [start, start+size), which the caller has checked to lie in the file."""
        return bytes(self.view(start, size))

    def view(self, start: int, size: int) -> bytes | memoryview:
        """The same, without a copy if possible."""
        if not size:
            return b""
        if self._copy is not None:
            return self._copy.read(start, size)
        for first, data in getattr(self._mine, "held", ()):
            if first <= start and start + size <= first + len(data):
                return memoryview(data)[start - first : start - first + size]
        for (first, length), spool in list(self._spools.items()):
            if first <= start and start + size <= first + length:
                return spool.read(start - first, size)
        return self._fetch(start, size) if size >= LAST else self._near(start, size)

    def into(self, start: int, view: memoryview) -> None:
        """Fill `view`; what is large comes in several requests at once."""
        if len(view) <= PIECE or self._copy is not None or self._spooled(start, len(view)):
            view[:] = self.view(start, len(view))
            return
        pieces = [(start + at, min(PIECE, len(view) - at)) for at in range(0, len(view), PIECE)]
        for (at, size), data in zip(pieces, self.ranges(pieces), strict=True):
            view[at - start : at - start + size] = data

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges and serve this thread's reads from them until `release`."""
        if self._copy is None:
            self._mine.held = []
            inside = [(a, n) for a, n in ranges if n and a >= 0 and a + n <= self.size and not self._spooled(a, n)]
            self._mine.held = [(a, data) for (a, _), data in zip(inside, self.ranges(inside), strict=True)]

    def release(self) -> None:
        self._mine.held = []

    def _spooled(self, start: int, size: int) -> bool:
        return any(a <= start and start + size <= a + n for a, n in list(self._spools))

    def spool(self, start: int, size: int) -> None:
        """Copy a range to a local file without a name, once for all threads."""
        with self._spooling:
            if self._copy is not None or self._spooled(start, size) or start + size > self.size:
                return
            spool = Spool(self.url)
            with spool.filled() as file:
                for at in range(start, start + size, LAST * 2):
                    file.write(self._fetch(at, min(LAST * 2, start + size - at)))
            self._spools[start, size] = spool

    def _near(self, start: int, size: int) -> bytes:
        """Serve a small read from the window; a read that continues at the window's end doubles the next window."""
        with self._lock:
            skip = start - self._at
            if not 0 <= skip <= len(self._window) - size:
                onwards = 0 <= skip <= len(self._window) + self._step
                self._step = min(2 * self._step, LAST) if onwards else FIRST
                self._window = self._fetch(start, min(max(size, self._step), self.size - start))
                self._at, skip = start, 0
            return self._window[skip : skip + size]

    def _fetch(self, start: int, size: int) -> bytes:
        with asking(self.url):
            if is_http(self.url):
                (data,) = web.ranges(self._fs, self._path, [(start, size)])
            else:
                data = cast(bytes, web.bounded(self._fs, "cat_file", size, self._path, start=start, end=start + size))
        return _sized(data, start, size, self.url)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Read several ranges (start, size), concurrently if the file system can."""
        if len(wanted) == 1:
            yield self._fetch(*wanted[0])
            return
        for i in range(0, len(wanted), BATCH):
            some = wanted[i : i + BATCH]
            with asking(self.url):
                if is_http(self.url):
                    found = web.ranges(self._fs, self._path, some)
                else:
                    paths, starts = [self._path] * len(some), [a for a, _ in some]
                    ends, total = [a + n for a, n in some], sum(n for _, n in some)
                    found = web.bounded(self._fs, "cat_ranges", total, paths, starts, ends, on_error="raise")
            for (start, size), data in zip(some, found, strict=True):
                yield _sized(data, start, size, self.url)


def _sized(data: bytes, start: int, size: int, url: str) -> bytes:
    if len(data) != size:
        raise CorruptCheckpoint(f"{size} bytes at {start} were requested, {len(data)} came", url=url)
    return data


@lru_cache(maxsize=64)
def _ranged(url: str, size: int) -> bool:
    """Whether the web server honours range requests, found by a request for the last byte."""
    fs, path = filesystem(url)
    with asking(url):
        try:
            return len(web.ranges(fs, path, [(size - 1, 1)])[0]) == 1
        except ValueError:  # it would send the file from the start
            return False


@lru_cache(maxsize=4)
def _whole(url: str, stamp: tuple[int, ...]) -> Spool:
    """A private copy of a file that is small or can only be read whole; it disappears with the last reference."""
    spool = Spool(url)
    fs, path = filesystem(url)
    with spool.filled() as file, asking(url):
        web.whole(fs, path, stamp[0], file)
    if spool.size != stamp[0]:
        raise CorruptCheckpoint("came in another length than the server said", url=url)
    return spool


__all__ = ["MAX_GAP", "RemoteFile", "Stat", "filesystem", "info", "is_dir", "names", "stat", "walk"]
