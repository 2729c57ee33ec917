"""Remote files, read through fsspec's file systems in few requests, with their errors turned into ours.

    s3://BUCKET/KEY  gs://BUCKET/KEY  https://HOST/PATH  hf://ORG/REPO/FILE  memory://PATH

`RemoteFile` fetches ranges; small reads near one another share a window, which doubles while it is read in order.
Credentials are left to the file systems (environment, configuration files); those in a url are never shown: see
messages.redacted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from ..errors import CkptError, CorruptCheckpoint, StorageError
from . import web
from .faults import asking, refused
from .lookups import filesystem, info, kept, once
from .paths import is_http, is_remote, is_repository
from .ranges import Spool

HEAD, TAIL = 2**16, 2**14  # bytes fetched at once at the beginning and the end, where headers and directories are
FIRST, LAST = 4096, 2**22  # bytes of a window: at first, and after doubling
MAX_GAP = 2**16  # bytes between two ranges that are cheaper to fetch than another request
VERSIONS = ("ETag", "etag", "blob_id")  # what stores call the version of a file, and the Hub its content
TIMES = ("LastModified", "Last-Modified", "mtime", "updated", "created")  # as file systems call it
MAX_REQUEST = 32 * 2**20  # bytes of ranges that are fetched together; longer runs are read while the job runs
BATCH = 8  # ranges requested at once, and files looked at
PIECE = 2**23  # bytes of one request


class RemoteFile:
    """Reads of ranges of one remote file, checked for length; safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        found = info(url)
        if found is None:
            raise refused(FileNotFoundError(), url)
        if found.get("type") == "directory":
            raise StorageError("is a folder, a file is needed", url=url)
        if found.get("size") is None:
            raise StorageError("the server does not say how large the file is", url=url)
        self.size = int(found["size"])
        # of what answers say of the version the first one decides; the Hub's are those of its store
        self._said = {"size": self.size, **({k: found[k] for k in web.VERSIONS if k in found} if is_http(url) else {})}
        from hashlib import blake2b

        version = [next(filter(None, map(found.get, VERSIONS)), None)]  # listings and answers agree, but not in times
        lasting = bool(version[0]) or is_http(url)  # which lists nothing
        version = version if version[0] else [_seconds(found.get(k)) for k in TIMES]
        digest = int.from_bytes(blake2b(repr(version).encode(), digest_size=8).digest(), "little")
        self.stamp = (self.size, digest) if lasting else (self.size, 0, 0, digest)
        self._is_known = any(version)
        self._copy: Spool | None = None
        self._web = is_http(url) or is_repository(url)
        self._ranged = not is_http(url)  # whether the server sends ranges of files
        run = kept()
        self._ends = run.ends(url) if run else []
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
        if (data := self._kept(start, size)) is not None:
            return data
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
            new = [(a, n) for a, n in merged(ranges) if not self._spooled(a, n) and self._kept(a, n) is None]
            inside = [(a, n) for a, n in new if n and a >= 0 and a + n <= self.size]
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

    def ends(self) -> None:
        """Fetch the beginning and the end, in one request if the file is small and else at once; reads share them."""
        some = [(a, n) for a, n in dict.fromkeys((self._end(0), self._end(self.size - 1))) if self._kept(a, n) is None]
        if self.size and self._copy is None:
            self._ends += [(a, data) for (a, _), data in zip(some, self.ranges(some), strict=True)]

    def _end(self, at: int) -> tuple[int, int]:
        """The range around the beginning or the end that is fetched at once if the byte `at` is needed."""
        if self.size <= HEAD + TAIL:
            return 0, self.size
        return (0, HEAD) if at < HEAD else (self.size - TAIL, TAIL)

    def _kept(self, start: int, size: int) -> memoryview | None:
        """The bytes, if they are in the kept beginning or end."""
        for first, data in list(self._ends):
            if first <= start and start + size <= first + len(data):
                return memoryview(data)[start - first : start - first + size]
        return None

    def _near(self, start: int, size: int) -> bytes | memoryview:
        """Serve a small read from the window; a read that continues at the window's end doubles the next window."""
        with self._lock:
            if (data := self._kept(start, size)) is not None:
                return data
            first, length = self._end(start)
            if first <= start and start + size <= first + length:
                self._ends.append((first, self._fetch(first, length)))
                self._at, self._window, self._step = first + length, b"", HEAD // 2
                return memoryview(self._ends[-1][1])[start - first : start - first + size]
            skip = start - self._at
            if not 0 <= skip <= len(self._window) - size:
                onwards = 0 <= skip <= len(self._window) + self._step
                self._step = min(2 * self._step, LAST) if onwards else FIRST
                self._window = self._fetch(start, min(max(size, self._step), self.size - start))
                self._at, skip = start, 0
            return self._window[skip : skip + size]

    def _fetch(self, start: int, size: int) -> bytes:
        return self._get([(start, size)])[0]

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Read several ranges (start, size), concurrently if the file system can."""
        for i in range(0, len(wanted), BATCH):
            yield from self._get(wanted[i : i + BATCH])

    def _get(self, some: Sequence[tuple[int, int]]) -> list[bytes]:
        """Request some ranges at once."""
        with asking(self.url):
            if self._copy is None:
                found = self._fetched(some)
            else:
                found = [self._copy.read(*one) for one in some]
        return [_sized(data, start, size, self.url) for (start, size), data in zip(some, found, strict=True)]

    def _fetched(self, some: Sequence[tuple[int, int]]) -> list[bytes]:
        """Ranges; of a web server the first request shows whether it sends any, and else the whole file is copied."""
        if not self._web:
            fs, path = filesystem(self.url)
            exact = {} if getattr(fs, "async_impl", False) else {"cache_type": "none"}  # else it reads ahead
            starts, ends = [a for a, _ in some], [a + n for a, n in some]
            return list(fs.cat_ranges([path] * len(some), starts, ends, on_error="raise", **exact))
        try:
            found = web.ranges(self.url, some, self._said)
        except web.NoRanges as e:
            if self._ranged:
                raise StorageError("the server sends ranges of the file no more", url=self.url) from e
            copied = _whole if self._is_known else _whole.__wrapped__
            self._copy = copied(self.url, self.stamp, tuple(self._said.items()))
            return [self._copy.read(*one) for one in some]
        self._ranged = True
        return found


def peek(urls: Sequence[str]) -> None:
    """Fetch the beginnings and ends of remote files, several at a time, for the readers that open them next.

    Where something is missing or refused nothing is said: who opens it says it.
    """
    far = [url for url in urls if is_remote(url)]
    if len(far) < 2 or (run := kept()) is None:
        return

    def fetch(url: str) -> None:
        with once(run), suppress(CkptError):
            RemoteFile(url).ends()

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(BATCH) as pool:
        list(pool.map(fetch, far))


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges (start, size) that overlap or are close together, up to `MAX_REQUEST` bytes."""
    out: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if out:
            first, length = out[-1]
            end = max(first + length, start + size)
            if start <= first + length + MAX_GAP and end - first <= MAX_REQUEST:
                out[-1] = first, end - first
                continue
        out.append((start, size))
    return out


def _seconds(time: Any) -> Any:
    """A time as all answers spell it: memory:// tells it as a number in listings, and as a datetime of one file."""
    return time.timestamp() if isinstance(time, datetime) else time


def _sized(data: bytes, start: int, size: int, url: str) -> bytes:
    if len(data) != size:
        raise CorruptCheckpoint(f"{size} bytes at {start} were requested, {len(data)} came", url=url)
    return data


@lru_cache(maxsize=4)
def _whole(url: str, stamp: tuple[int, ...], said: tuple[tuple[str, Any], ...]) -> Spool:
    """A private copy of a file that can only be read whole; it disappears with the last reference."""
    spool = Spool(url)
    with spool.filled() as file, asking(url):
        web.whole(url, dict(said), file)
    if spool.size != stamp[0]:
        raise CorruptCheckpoint("came in another length than the server said", url=url)
    return spool
