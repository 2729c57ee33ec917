"""Files of web servers and of the Hugging Face Hub, over urllib3: bounded in time and bytes, one rule of redirects.

    info(url)                       size and version of a file; None if there is none
    ranges(url, [(0, 9)], info)     bytes of it, requested at once
    whole(url, info, file)          a copy of it, from a server that sends no ranges

CKPTCONV_TIMEOUT      seconds that a request may take, plus one for each 64 KiB requested; 60
CKPTCONV_REDIRECTS    more hosts that redirects may lead to, separated by commas; a leading dot takes a whole domain

A server is a stranger: of what it sends no more is read than was asked for, nothing is unpacked, and it leads only to
hosts that the user named. What may pass (a busy server, a broken connection, no answer in time) is asked for again,
after longer and longer pauses, in three times the time of one request; an answer that broke off counts for nothing.
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
from functools import lru_cache, partial
from typing import IO, Any, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from ..errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ..messages import printable, redacted
from .faults import failure, network, spooling
from .paths import is_http

LIMIT = 10**7  # seconds of CKPTCONV_TIMEOUT, a quarter of a year
RATE = 2**16  # bytes a second: what is slower has stalled
TRIES, TIMES = 6, 3  # tries of a request, and how many times the limit of one they may take together
FIRST, LONGEST = 0.25, 8.0  # seconds of a pause
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
VERSIONS = ("ETag", "Last-Modified")  # the first that two answers have decides whether they are about the same bytes
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


def info(url: str) -> dict[str, Any] | None:
    """Size and version of a file, as the answer to a request for its first byte tells them; None if there is none."""
    try:
        status, headers = _again(url, 0, partial(_first, url))
    except Answered as e:
        if e.status in (404, 410):
            return None
        if e.status != 416:  # so it is if the file is empty
            raise
        status, headers = e.status, e.headers
    total = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    length = total[1] if total else headers.get("Content-Length", "") if status == 200 else ""
    size = int(length) if length.isdecimal() else None
    return {"type": "file", "size": size, **{k: headers[k] for k in VERSIONS if k in headers}}


def _first(url: str) -> tuple[int, Mapping[str, str]]:
    with _asked(url, {"Range": "bytes=0-0"}) as answer:
        if answer.status == 206:
            answer.read1(PIECE)  # so that the connection serves again
        return answer.status, answer.headers


def ranges(url: str, wanted: Sequence[tuple[int, int]], info: dict[str, Any]) -> list[bytes]:
    """Read ranges (start, size) of a file, concurrently; of what a server sends at most as much as was requested.

    NoRanges if the server sends the whole file instead, CorruptCheckpoint if it sends another one than `info` tells of.
    """
    total = sum(size for _, size in wanted)

    def one(start: int, size: int) -> bytes:
        return _again(url, total, lambda: _range(url, start, size, seconds(total), info), known=True)

    return together([partial(one, *some) for some in wanted], TIMES * seconds(total))


def _range(url: str, start: int, size: int, limit: float, info: dict[str, Any]) -> bytes:
    out, end = bytearray(), time.monotonic() + limit
    with _asked(url, {"Range": f"bytes={start}-{start + size - 1}"}) as answer:
        sent = re.match(r"bytes (\d+)-\d*(?:/(\d+))?", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or not sent:
            raise NoRanges("the server does not send ranges of files")
        if int(sent[1]) != start:
            raise CorruptCheckpoint(f"bytes from {start} were requested, those from {sent[1][:20]} came", url=url)
        _refuse_changed(url, info, answer.headers)
        if sent[2] and sent[2] != str(info.get("size")):
            raise CorruptCheckpoint("changed while it was read: the server has another version of it", url=url)
        for piece in _pieces(answer, lambda: end):
            out += piece
            if len(out) > size:
                raise CorruptCheckpoint(f"{size} bytes at {start} were requested, more came", url=url)
    return bytes(out)


def whole(url: str, info: dict[str, Any], file: IO[bytes]) -> None:
    """Copy a file into `file`; CorruptCheckpoint if the server sends more than it said, or another version.

    The time is counted by what came, since the size is what a stranger says.
    """
    size = int(info["size"])

    def copy() -> None:
        began, came = time.monotonic(), [0]
        with spooling():
            file.seek(0)
            file.truncate()
        with _asked(url, {}) as answer:
            _refuse_changed(url, info, answer.headers)
            for piece in _pieces(answer, lambda: began + seconds(came[0])):
                came[0] += len(piece)
                if came[0] > size:
                    raise CorruptCheckpoint("is longer than the server said", url=url)
                with spooling():
                    file.write(piece)

    _again(url, size, copy, known=True)


def _refuse_changed(url: str, info: dict[str, Any], now: Mapping[str, str]) -> None:
    """CorruptCheckpoint if an answer is about another version than `info` tells of; one that tells none takes this."""
    if not any(info.get(k) for k in VERSIONS):
        info |= {k: now[k] for k in VERSIONS if k in now}
    decides = next((k for k in VERSIONS if info.get(k) and k in now), "")
    if decides and info[decides] != now[decides]:
        raise CorruptCheckpoint("changed while it was read: the server has another version of it", url=url)


# --- one request --------------------------------------------------------------------------------------------------


@contextmanager
def _asked(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Send a request and follow its redirects; the answer's content is still to be read."""
    (answer,) = together([lambda: _followed(url, headers)], seconds(0))
    try:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise StorageError("the server sends it packed, although that was not requested", url=url)
        yield answer
    except BaseException:
        answer.close()
        raise
    if answer.length_remaining != 0:  # None of one without a length
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
        if answer.status < 300 or answer.status == 304:
            return answer
        answer.close()
        if answer.status not in (301, 302, 303, 307, 308):
            raise Answered(answer.status, answer.headers)
        here = _redirected(here, answer.headers.get("Location", ""))
    raise StorageError("the server redirects in a circle", url=url)


def _address(url: str) -> tuple[str, dict[str, str]]:
    """The web address of a file, without a login, and the headers that its server alone gets."""
    if is_http(url):
        from urllib3.util import make_headers, parse_url

        try:
            parts = urlsplit(url)
            login, at, host = parts.netloc.rpartition("@")
            bare = parts._replace(netloc=host).geturl() if at else url
            if not parse_url(bare).host:
                raise ValueError
        except ValueError:
            raise StorageError("the address is not valid", url=url) from None
        return bare, make_headers(basic_auth=unquote(login)) if at else {}
    import huggingface_hub

    fs = huggingface_hub.HfFileSystem()
    there: Any = fs.resolve_path(url)
    kind = {"repo_type": there.repo_type, "revision": there.revision, "endpoint": fs.endpoint}
    headers: dict[str, str] = huggingface_hub.utils.build_hf_headers(token=fs.token)  # type: ignore[attr-defined]
    return huggingface_hub.hf_hub_url(there.repo_id, there.path_in_repo, **kind), headers


def _pool(url: str) -> Any:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    proxy = "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
    return _pools(os.getpid(), proxy)


@lru_cache(maxsize=8)
def _pools(process: int, proxy: str) -> Any:
    """The connections of a process: one that was forked does not share those of its parent."""
    import urllib3

    how: dict[str, Any] = {"maxsize": 16, "num_pools": 16}
    return urllib3.ProxyManager(proxy, **how) if proxy else urllib3.PoolManager(**how)


def _pieces(answer: Any, end: Callable[[], float]) -> Iterator[bytes]:
    """What comes, in pieces; TimeoutError if the end of the time is reached."""
    while piece := answer.read1(PIECE):
        yield piece
        if time.monotonic() > end():
            raise TimeoutError


def together(calls: Sequence[Callable[[], T]], limit: float) -> list[T]:
    """Call functions at once, each in a thread that nobody waits for after the limit; TimeoutError then.

    A server that sends a byte of its headers a minute holds a thread, but not us.
    """
    from concurrent.futures import Future  # local files do without

    def run(call: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(call())
        except BaseException as e:  # belongs to whoever waits
            future.set_exception(e)

    futures = [Future[T]() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=run, args=(call, future), daemon=True).start()
    end = time.monotonic() + limit
    return [future.result(max(0.0, end - time.monotonic())) for future in futures]


# --- again --------------------------------------------------------------------------------------------------------


def seconds(size: int) -> float:
    """The time in seconds that a request for `size` bytes may take."""
    given = os.environ.get("CKPTCONV_TIMEOUT", "60")
    try:
        limit = float(given)
    except ValueError:
        limit = 0.0
    if not 0 < limit < LIMIT:  # also of NaN; clocks and sockets take no endless times
        raise UsageError(f"CKPTCONV_TIMEOUT is a number of seconds above 0 and below {LIMIT}, not {given!r}")
    return max(1.0, limit) + size / RATE


def _again(url: str, size: int, request: Callable[[], T], *, known: bool = False) -> T:
    """What a request brings that is repeated where its failure may pass; known: the server has answered before."""
    end, pause = time.monotonic() + TIMES * seconds(size), FIRST
    for _ in range(TRIES - 1):
        try:
            return request()
        except Exception as e:
            wait = max(
                pause * random.uniform(0.5, 1.0), failure(e).wait
            )  # not all at once, if many were refused at once
            if time.monotonic() + wait > end or not _passes(e, known=known):
                raise
            why = network(e) or type(e).__name__
        LOG.info("%s: %s; asking again in %.1f s", printable(redacted(url)), why, wait)
        time.sleep(wait)
        pause = min(2 * pause, LONGEST)
    return request()


def _passes(e: Exception, *, known: bool) -> bool:
    """Whether a failure may pass; a server that refuses connections may only if it is known to have accepted some."""
    if isinstance(e, (CkptError, NoRanges)):
        return False
    way, status, _ = failure(e)
    return status in PASSING or way in ("time", "broken") or (way == "refused" and known)


# --- redirects ----------------------------------------------------------------------------------------------------


def _redirected(here: str, location: str) -> str:
    """Where a redirect leads; StorageError if that is not what the user named."""
    try:
        target = urljoin(here, location)
        there = urlsplit(target)
        if there.scheme not in ("http", "https") or not there.hostname or not location:
            raise ValueError
        led = may_lead(here, target)
    except ValueError:
        raise StorageError("the server redirects to what is not a web address", url=here) from None
    if there.username or there.password:
        raise StorageError("the server redirects to an address with a login that you did not give", url=here)
    if not led:
        host = there.hostname
        where = f"{host}:{there.port or _PORTS[there.scheme]}" if host == urlsplit(here).hostname else host
        raise StorageError(
            f"the server redirects to {there.scheme}://{where}, another host than was named; "
            f"CKPTCONV_REDIRECTS={host} allows it",
            url=here,
        )
    return target


_PORTS = {"http": 80, "https": 443}


def may_lead(source: str, target: str) -> bool:
    """Whether a redirect from url to url is followed: to the same host and port, or where it is allowed to lead.

    Not back from https to http, and not to another service of the host: that could be one that only we can reach.
    """
    here, there = urlsplit(source), urlsplit(target)
    host, to = here.hostname or "", there.hostname or ""
    if there.scheme not in (here.scheme, "https"):
        return False
    if _listed(to, os.environ.get("CKPTCONV_REDIRECTS", "").lower().split(",")):
        return True
    return _usual(there) == _usual(here) and _listed(to, [host, *(() if _usual(there) else STORES.get(host, ()))])


def _usual(url: SplitResult) -> int:
    """The port of a url; 0 for the one of its scheme."""
    return 0 if url.port in (None, _PORTS.get(url.scheme)) else url.port or -1


def _listed(host: str, allowed: Sequence[str]) -> bool:
    return any(host == h or (h.startswith(".") and host.endswith(h)) for h in map(str.strip, allowed) if h)
