"""Read files from web servers and the Hugging Face Hub over urllib3, with limits on time, bytes and redirects.

    info(url)                       size and version of a file
    part(url, 0, 9, said)           bytes of it; said: its size, and its version once it is known
    whole(url, said, file)          a copy of it, from a server that sends no ranges

CKPTCONV_TIMEOUT      seconds that a request may take, plus one for each 64 KiB requested; 60
CKPTCONV_REDIRECTS    more hosts that redirects may lead to, separated by commas; a leading dot takes a whole domain

Servers are untrusted: no more is read than was requested, nothing is decompressed, and redirects lead only to hosts
that the user named. Transient failures (a busy server, a broken connection, no answer in time) are retried after longer
and longer pauses, within three times the time of one request; a partial answer is thrown away.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from ..errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ..messages import printable, redacted
from .faults import BROKEN, REFUSED, SILENT, failure, spooling
from .paths import is_http

LIMIT = 10**7  # seconds of CKPTCONV_TIMEOUT, a quarter of a year
RATE = 2**16  # bytes a second; a slower transfer has stalled
TRIES, TIMES = 6, 3  # tries of a request; all of them together may take this many times the limit of one
FIRST, LONGEST = 0.25, 8.0  # pauses in seconds
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
VERSIONS = ("ETag", "Last-Modified")  # the first of these in an answer is the version; later answers must have it
AT_ONCE = 8  # ranges that are requested together
PIECE = 2**20  # bytes read at once
MAX_REDIRECTS = 10
STORES = {  # where well-known hosts keep their files
    "huggingface.co": (".huggingface.co", ".hf.co"),
    "hf.co": (".huggingface.co", ".hf.co", "huggingface.co"),
    "github.com": (".githubusercontent.com",),
}
LOG = logging.getLogger("ckptconv")
T = TypeVar("T")


class NoRanges(Exception):
    """The server answers a request for a range with the whole file."""


class Answered(OSError):
    """The server answered with a status that is an error."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers = status, headers


def info(url: str) -> dict[str, Any]:
    """Request a file's first byte and return its size and version, under the names that file systems use."""

    def first() -> tuple[int, Mapping[str, str]]:
        with _asked(url, {"Range": "bytes=0-0"}, 416) as answer:  # 416: the file is empty
            if answer.status == 206:
                answer.read1(PIECE)  # so that the connection can be reused
            return answer.status, answer.headers

    status, headers = _again(url, 0, first)
    total = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    length = total[1] if total else headers.get("Content-Length", "") if status == 200 else ""
    if not length.isdecimal():
        raise StorageError("the server does not say how large the file is", url=url)
    return {"size": length, "ETag": next((headers[k] for k in VERSIONS if k in headers), "")}


def part(url: str, start: int, size: int, said: dict[str, Any]) -> bytes:
    """Read a range of a file, and no more than was requested.

    NoRanges if the server sends the whole file instead, CorruptCheckpoint if its size or version differs from `said`.
    """
    shared = size * AT_ONCE  # other requests share the line

    def ask() -> bytes:
        end = time.monotonic() + seconds(shared)
        with _asked(url, {"Range": f"bytes={start}-{start + size - 1}"}) as answer:
            sent = re.match(r"bytes (\d+)-\d*(?:/(\d+))?", answer.headers.get("Content-Range", ""))
            if answer.status != 206 or not sent:
                raise NoRanges("the server does not send ranges of files")
            if int(sent[1]) != start:
                raise CorruptCheckpoint(f"bytes from {start} were requested, those from {sent[1][:20]} came", url=url)
            _refuse_changed(url, said, answer.headers, sent[2] or "")
            return b"".join(_pieces(url, answer, size, lambda _: end))

    return _again(url, shared, ask, known=True)


def whole(url: str, said: dict[str, Any], file: IO[bytes]) -> None:
    """Copy a file into `file`; CorruptCheckpoint if the server sends more than it said, or another version.

    The time limit grows with the bytes received, since the size is an untrusted server's claim.
    """

    def copy() -> None:
        began = time.monotonic()
        with spooling():
            file.seek(0)
            file.truncate()
        with _asked(url, {}) as answer:
            _refuse_changed(url, said, answer.headers)
            for piece in _pieces(url, answer, int(said["size"]), lambda came: began + seconds(came)):
                with spooling():
                    file.write(piece)

    _again(url, int(said["size"]), copy, known=True)


def _pieces(url: str, answer: Any, size: int, end: Callable[[int], float]) -> Iterator[bytes]:
    """Yield an answer in pieces. CorruptCheckpoint after more than `size` bytes, TimeoutError after `end(received)`."""
    came = 0
    while piece := answer.read1(PIECE):
        came += len(piece)
        if came > size:
            raise CorruptCheckpoint(f"more came than the {size} bytes that were requested", url=url)
        yield piece
        if time.monotonic() > end(came):
            raise TimeoutError


def _refuse_changed(url: str, said: dict[str, Any], now: Mapping[str, str], size: str = "") -> None:
    """Raise CorruptCheckpoint if an answer has another version than `said`; if `said` has none yet, record it.

    size: the file's size according to the answer.
    """
    versions = [now[k] for k in VERSIONS if k in now]
    other = versions and said.setdefault("version", versions[0]) not in versions
    if other or (size and size != str(said["size"])):
        raise CorruptCheckpoint("changed while it was read: the server has another version of it", url=url)


# --- one request --------------------------------------------------------------------------------------------------


@contextmanager
def _asked(url: str, headers: Mapping[str, str], usual: int = 0) -> Iterator[Any]:
    """Send a request and follow its redirects; the caller reads the content.

    usual: a status that is not an error here.
    """
    (answer,) = together([lambda: _followed(url, headers)], seconds(0))
    try:
        if answer.status >= 300 and answer.status != usual:
            raise Answered(answer.status, answer.headers)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise StorageError("the server sends it packed, although that was not requested", url=url)
        yield answer
    finally:
        if answer.length_remaining != 0:  # None: no length
            answer.close()
        answer.release_conn()


def _followed(url: str, headers: Mapping[str, str]) -> Any:
    from urllib3 import Timeout

    here, own = _address(url)
    home, limit = urlsplit(here)[:2], seconds(0)
    for _ in range(MAX_REDIRECTS):
        sent = {"Accept-Encoding": "identity", **(own if urlsplit(here)[:2] == home else {}), **headers}
        answer = _pool(here).request(
            "GET", here, headers=sent, redirect=False, retries=False, preload_content=False, decode_content=False,
            timeout=Timeout(connect=min(30.0, limit), read=limit),
        )  # fmt: skip
        target = answer.get_redirect_location()
        if target is False:  # not a redirect
            return answer
        answer.close()
        here = _redirected(here, target or "")
    raise StorageError("the server redirects in a circle", url=url)


def _address(url: str) -> tuple[str, dict[str, str]]:
    """Return the web address of a file without a login, and the headers that only its own server gets."""
    if is_http(url):
        from urllib3.util import make_headers

        try:
            parts = urlsplit(url)
            login, _, host = parts.netloc.rpartition("@")
            if not parts.hostname or parts.port == 0:  # the latter raises ValueError if it is not a port
                raise ValueError
        except ValueError:
            raise StorageError("the address is not valid", url=url) from None
        return parts._replace(netloc=host).geturl(), make_headers(basic_auth=unquote(login)) if login else {}
    import huggingface_hub

    fs = huggingface_hub.HfFileSystem()
    there: Any = fs.resolve_path(url)
    kind = {"repo_type": there.repo_type, "revision": there.revision, "endpoint": fs.endpoint}
    headers: dict[str, str] = huggingface_hub.utils.build_hf_headers(token=fs.token)  # type: ignore[attr-defined,unused-ignore]
    return huggingface_hub.hf_hub_url(there.repo_id, there.path_in_repo, **kind), headers


def _pool(url: str) -> Any:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    proxy = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
    return _pools(os.getpid(), proxy)


@lru_cache(maxsize=8)
def _pools(process: int, proxy: str) -> Any:
    """Return the connection pool of a process, since a forked one must not share its parent's."""
    import urllib3

    how: dict[str, Any] = {"maxsize": 16, "num_pools": 16}
    return urllib3.ProxyManager(proxy, **how) if proxy else urllib3.PoolManager(**how)


def together(calls: Sequence[Callable[[], T]], limit: float) -> list[T]:
    """Call functions at once, each in its own thread; after the limit raise TimeoutError and stop waiting.

    A server that sends one byte of its headers per minute holds up its thread only.
    """
    from concurrent.futures import Future  # local files never need it

    def run(call: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(call())
        except BaseException as e:  # raised by `result`
            future.set_exception(e)

    futures = [Future[T]() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=run, args=(call, future), daemon=True).start()
    end = time.monotonic() + limit
    return [future.result(max(0.0, end - time.monotonic())) for future in futures]


# --- again --------------------------------------------------------------------------------------------------------


def seconds(size: int) -> float:
    """Return the time in seconds that a request for `size` bytes may take."""
    given = os.environ.get("CKPTCONV_TIMEOUT", "60")
    try:
        limit = float(given)
    except ValueError:
        limit = 0.0
    if not 0 < limit < LIMIT:  # also of NaN; clocks and sockets take no infinity
        raise UsageError(f"CKPTCONV_TIMEOUT is a number of seconds above 0 and below {LIMIT}, not {given!r}")
    return max(1.0, limit) + size / RATE


def _again(url: str, size: int, request: Callable[[], T], *, known: bool = False) -> T:
    """Send a request, and retry transient failures; known: the server has answered before.

    A server that refuses connections is tried again only if it has answered before.
    """
    end, pause = time.monotonic() + TIMES * seconds(size), FIRST
    passing = (SILENT, BROKEN, REFUSED) if known else (SILENT, BROKEN)
    for left in reversed(range(TRIES)):
        try:
            return request()
        except (CkptError, NoRanges):
            raise
        except Exception as e:
            why = failure(e)
            wait = max(pause * random.uniform(0.5, 1.0), why.wait)  # jitter: many may be refused at once
            passes = why.words in passing or why.status in PASSING
            if not (left and passes and time.monotonic() + wait <= end):
                raise
        LOG.info("%s: %s; asking again in %.1f s", printable(redacted(url)), why.words, wait)
        time.sleep(wait)
        pause = min(2 * pause, LONGEST)
    raise AssertionError  # the last try returns or raises


# --- redirects ----------------------------------------------------------------------------------------------------


def _redirected(here: str, location: str) -> str:
    """Return the target of a redirect; StorageError if it may not lead there."""
    try:
        target = urljoin(here, location)
        there = urlsplit(target)
        host, port = there.hostname or "", there.port or _PORTS[there.scheme]
        if not (host and location):
            raise ValueError
    except (ValueError, KeyError):
        raise StorageError("the server redirects to what is not a web address", url=here) from None
    if there.username or there.password:
        raise StorageError("the server redirects to an address with a login that you did not give", url=here)
    if not may_lead(here, target):
        where = f"{host}:{port}" if host == urlsplit(here).hostname else host
        raise StorageError(
            f"the server redirects to {there.scheme}://{where}, another host than was named; "
            f"CKPTCONV_REDIRECTS={host} allows it",
            url=here,
        )
    return target


_PORTS = {"http": 80, "https": 443}


def may_lead(source: str, target: str) -> bool:
    """Tell whether a redirect is followed: to the same host and port, or to a host that is allowed.

    Not from https to http, and not to another port of the host: only we may be able to reach the service there.
    """
    here, there = urlsplit(source), urlsplit(target)
    host, to = here.hostname or "", there.hostname or ""
    if there.scheme not in (here.scheme, "https"):
        return False
    ports = [0 if url.port in (None, _PORTS.get(url.scheme)) else url.port for url in (here, there)]  # 0: default
    allowed = os.environ.get("CKPTCONV_REDIRECTS", "").lower().split(",")
    stores = () if ports[1] else STORES.get(host, ())
    return _listed(to, allowed) or (ports[0] == ports[1] and _listed(to, [host, *stores]))


def _listed(host: str, allowed: Sequence[str]) -> bool:
    return any(host == h or (h.startswith(".") and host.endswith(h)) for h in map(str.strip, allowed) if h)
