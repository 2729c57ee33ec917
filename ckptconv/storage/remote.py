"""Read remote files through fsspec's file systems in few requests, and turn their errors into ours.

    s3://BUCKET/KEY  gs://BUCKET/KEY  https://HOST/PATH  hf://ORG/REPO/FILE  memory://PATH

`RemoteFile` fetches ranges; small reads near one another share a window, which doubles while it is read in order.
The file systems find credentials (environment, configuration files); those in a url are never shown, see
messages.redacted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from ..errors import CkptError, CorruptCheckpoint, StorageError
from . import web
from .faults import refused, translate_errors
from .lookups import FOLDER, cached_lookups, current, current_lookups, filesystem, info
from .paths import is_http, is_remote, is_repository
from .ranges import Spool

HEAD, TAIL = 2**16, 2**14  # bytes fetched at once at the beginning and the end, where headers and directories are
FIRST, LAST = 4096, 2**22  # smallest and largest window in bytes
MAX_ENDS = 128  # files whose first and last bytes a run keeps
MAX_GAP = 2**16  # bytes between two ranges; fetching them is cheaper than another request
MAX_REQUEST = 32 * 2**20  # bytes of ranges that are joined; longer runs are read while the job runs
PIECE = 2**23  # bytes of one request


Piece = tuple[int, bytes | Spool]  # its start in the file, and its bytes


class RemoteFile:
    """Read ranges of one remote file, checked for length; safe to share between threads.

    Fetched data is kept as pieces: the beginning and the end, which all readers of a run share; what this thread's job
    needs; spooled ranges; and a window around the last small read.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        about = info(url)
        if about is None:
            raise refused(FileNotFoundError(), url)
        if about == FOLDER:
            raise StorageError("is a folder, a file is needed", url=url)
        self.size, self.stamp = about.size, about[:2]
        self._is_known = bool(about.etag)
        # the first answer decides the version; answers from the Hub carry the ETag of its store
        self._said = {"size": self.size, **({"version": about.etag} if about.etag and is_http(url) else {})}
        ends = current_lookups().ends
        if len(ends) >= MAX_ENDS:  # open readers keep their own
            ends.clear()
        self._ends: list[Piece] = ends.setdefault(url, [])
        self._spools: list[Piece] = []
        self._window: tuple[int, bytes] = 0, b""
        self._step = FIRST // 2
        self._mine = threading.local()  # .held: pieces for the job of this thread
        self._lock, self._spooling = threading.Lock(), threading.Lock()

    def read(self, start: int, size: int) -> bytes:
        """Read the bytes [start, start+size); the caller has checked that the file holds them."""
        if not size:
            return b""
        piece = self._piece(start, size)
        if piece is None and size >= LAST:
            return next(self._get([(start, size)]))[1]
        if piece is None:
            with self._lock:
                piece = self._piece(start, size) or self._near(start, size)
        first, data = piece
        at = start - first
        return data.read(at, size) if isinstance(data, Spool) else data[at : at + size]

    def into(self, start: int, view: memoryview) -> None:
        """Fill `view`; a large range takes several requests at once."""
        if len(view) <= PIECE or self._piece(start, len(view)):
            view[:] = self.read(start, len(view))
            return
        pieces = [(start + at, min(PIECE, len(view) - at)) for at in range(0, len(view), PIECE)]
        for at, data in self._get(pieces):
            view[at - start : at - start + len(data)] = data

    def hold(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges and serve this thread's reads from them until it is called again."""
        self._mine.held = []
        inside = [(a, n) for a, n in merged(ranges) if n and a >= 0 and a + n <= self.size]
        self._mine.held = list(self._get([one for one in inside if not self._piece(*one)]))

    def spool(self, start: int, size: int) -> None:
        """Copy a range to an unnamed local file, once for all threads."""
        with self._spooling:
            if start + size > self.size or self._piece(start, size):
                return
            spool, end = Spool(self.url), start + size
            with spool.filled() as file:
                for at in range(start, end, PIECE):
                    file.write(next(self._get([(at, min(PIECE, end - at))]))[1])
            self._spools.append((start, spool))

    def _piece(self, start: int, size: int) -> Piece | None:
        """Find a piece that has these bytes."""
        held: list[Piece] = getattr(self._mine, "held", [])
        for first, data in (*held, *self._ends, *self._spools, self._window):
            length = data.size if isinstance(data, Spool) else len(data)
            if first <= start and start + size <= first + length:
                return first, data
        return None

    def _near(self, start: int, size: int) -> Piece:
        """Fetch both ends at once if one has these bytes, else a window, which doubles while it is read in order."""
        small = self.size <= HEAD + TAIL
        if not self._ends and (small or start + size <= HEAD or start >= self.size - TAIL):
            self._ends += self._get([(0, self.size)] if small else [(0, HEAD), (self.size - TAIL, TAIL)])
            if piece := self._piece(start, size):
                return piece
        at, data = self._window
        onwards = 0 <= start - at <= len(data) + self._step
        self._step = min(2 * self._step, LAST) if onwards else FIRST
        (self._window,) = self._get([(start, min(max(size, self._step), self.size - start))])
        return self._window

    def _get(self, wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Request ranges (start, size), several at once; if the server sends no ranges, copy the whole file."""
        for i in range(0, len(wanted), web.AT_ONCE):
            some = wanted[i : i + web.AT_ONCE]
            limit = web.TIMES * web.seconds(sum(size for _, size in some) * web.AT_ONCE)
            with translate_errors(self.url):
                try:
                    part = self._part()
                    pieces = web.together([partial(part, *one) for one in some], limit)
                except web.NoRanges:
                    copied = _whole if self._is_known else _whole.__wrapped__
                    copy = copied(self.url, self.stamp, tuple(self._said.items()))
                    self._spools = [(0, copy)]
                    pieces = [copy.read(*one) for one in some]
            for (start, size), data in zip(some, pieces, strict=True):
                if len(data) != size:
                    raise CorruptCheckpoint(f"{size} bytes at {start} were requested, {len(data)} came", url=self.url)
                yield start, data

    def _part(self) -> Callable[[int, int], bytes]:
        """Return a function that requests one range."""
        if is_http(self.url) or is_repository(self.url):
            return lambda start, size: web.part(self.url, start, size, self._said)
        fs, path = filesystem(self.url)
        return lambda start, size: fs.cat_file(path, start=start, end=start + size)


def peek(urls: Sequence[str]) -> None:
    """Fetch the beginnings and ends of remote files, several at a time, for the readers that open them next.

    Errors are not reported here: opening the file reports them.
    """
    far = [url for url in urls if is_remote(url)]
    if len(far) < 2 or (run := current().lookups) is None:
        return

    def fetch(url: str) -> None:
        with cached_lookups(run), suppress(CkptError):
            RemoteFile(url).read(0, 1)

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(web.AT_ONCE) as pool:
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


@lru_cache(maxsize=4)
def _whole(url: str, stamp: tuple[int, ...], said: tuple[tuple[str, Any], ...]) -> Spool:
    """Copy a file whose server sends no ranges; the copy disappears with the last reference."""
    spool = Spool(url)
    with spool.filled() as file, translate_errors(url):
        web.whole(url, dict(said), file)
    if spool.size != stamp[0]:
        raise CorruptCheckpoint("has another length than the server said", url=url)
    return spool
