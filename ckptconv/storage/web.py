"""Requests to web servers: bounded in time and in bytes, and redirects stay on the host that the user named.

CKPTCONV_REDIRECTS    more hosts that redirects may lead to, separated by commas; a leading dot takes a whole domain

fsspec reads what a server sends to its end and unpacks it, however much that is; `ranges` and `whole` do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit

from ..errors import CkptError, CorruptCheckpoint, StorageError
from ..messages import printable, redacted
from .faults import spooling
from .paths import is_http
from .tries import LOG, TIMES, Tries, again, seconds

VERSIONS = ("ETag", "Last-Modified")  # the first that an answer has decides
USUAL = 2**23  # bytes of a request whose size is not known here
PIECE = 2**20  # bytes read at once
MANY = 10_000  # urls that are kept of which no version is told
_TELL_NONE: set[str] = set()
# where well-known hosts keep their files
STORES = {
    "huggingface.co": (".huggingface.co", ".hf.co"),
    "hf.co": (".huggingface.co", ".hf.co", "huggingface.co"),
    "github.com": (".githubusercontent.com",),
}


class NoRanges(Exception):
    """The server answers a request for a range with the whole file."""


def bounded(fs: Any, what: str, size: int, path: Any, *args: Any, known: bool = False, **options: Any) -> Any:
    """Call a method of a file system that reads a path or several, again where its failure may pass (see tries.py).

    In bounded time where it is a file system that can be interrupted.
    """
    coroutine = getattr(fs, f"_{what}", None)

    def request() -> Any:
        if not getattr(fs, "async_impl", False) or coroutine is None:
            return getattr(fs, what)(path, *args, **options)
        from fsspec.asyn import sync

        return sync(fs.loop, coroutine, path, *args, timeout=seconds(size), **options)

    return again(str(path if isinstance(path, str) else path[0]), size, request, known=known)


def fetched(fs: Any, path: str, some: Sequence[tuple[int, int]], info: dict[str, Any]) -> list[bytes]:
    """Read some ranges (start, size) of a file in any file system, at once if it can; NoRanges as `ranges`."""
    if is_http(path):
        return ranges(fs, path, some, info)
    paths, starts, ends = [path] * len(some), [a for a, _ in some], [a + n for a, n in some]
    exact = {} if getattr(fs, "async_impl", False) else {"cache_type": "none"}  # else it reads ahead
    total = sum(n for _, n in some)
    return list(bounded(fs, "cat_ranges", total, paths, starts, ends, known=True, on_error="raise", **exact))


def ranges(fs: Any, path: str, wanted: Sequence[tuple[int, int]], info: dict[str, Any]) -> list[bytes]:
    """Read ranges (start, size) of a file, concurrently; of what a server sends at most as much as was requested.

    NoRanges if the server sends the whole file instead, CorruptCheckpoint if it sends another one than `info` tells of.
    """
    import asyncio  # costs more than the rest of this room

    total = sum(size for _, size in wanted)

    async def one(start: int, size: int) -> bytes:
        tries = Tries(path, total, known=True)
        while True:
            try:
                return await asyncio.wait_for(_range(fs, path, start, size, info), seconds(total))
            except Exception as e:
                await asyncio.sleep(tries.pause(e))

    async def all_of_them() -> list[bytes]:
        tasks = [asyncio.ensure_future(one(*some)) for some in wanted]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    return list(_timed(fs, TIMES * seconds(total), all_of_them))


async def _range(fs: Any, path: str, start: int, size: int, info: dict[str, Any]) -> bytes:
    out = bytearray()
    async with _asked(fs, path, {"Range": f"bytes={start}-{start + size - 1}"}) as answer:
        sent = re.match(r"bytes (\d+)-\d*(?:/(\d+))?", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or not sent:
            raise NoRanges("the server does not send ranges of files")
        if int(sent[1]) != start:
            raise CorruptCheckpoint(f"bytes from {start} were requested, those from {sent[1][:20]} came", url=path)
        if _changed(info, answer.headers) or (sent[2] and sent[2] != str(info.get("size"))):
            raise CorruptCheckpoint("changed while it was read: the server has another version of it", url=path)
        while piece := await answer.content.read(PIECE):
            out += piece
            if len(out) > size:
                raise CorruptCheckpoint(f"{size} bytes at {start} were requested, more came", url=path)
    return bytes(out)


def _changed(info: dict[str, Any], now: Mapping[str, str]) -> bool:
    """Whether an answer is about another version than `info`, or than the first answer, which `info` then keeps."""
    first = info.setdefault("first answer", {k: now[k] for k in VERSIONS if k in now})
    for k in VERSIONS:
        known = {said[k] for said in (info, first, now) if said.get(k)}
        if k in now and known:
            return len(known) > 1
    return False


def learn_version(fs: Any, path: str, info: dict[str, Any]) -> None:
    """Let `info` have under "told" the version that answers tell, where none was told with the size.

    Later answers are compared with it and do not change it: it tells apart what was opened. A server that refuses the
    question, also when it is repeated because the failure might have passed, or that tells none, is not asked again.
    """

    async def first() -> dict[str, str]:
        async with _asked(fs, path, {"Range": "bytes=0-0"}) as answer:
            return {k: answer.headers[k] for k in VERSIONS if k in answer.headers}

    if "told" in info:
        return
    told = dict[str, str]()
    if info.get("size") and not any(info.get(k) for k in VERSIONS) and path not in _TELL_NONE:
        try:
            told = again(path, 1, lambda: _timed(fs, seconds(1), first), known=True)
        except CkptError:  # it leads where nobody allowed it to lead
            raise
        except Exception as e:  # what is read next tells whether it is down
            LOG.debug("%s: asked for a version: %s", printable(redacted(path)), type(e).__name__)
        if not told:
            if len(_TELL_NONE) >= MANY:
                _TELL_NONE.clear()
            _TELL_NONE.add(path)
    info["told"] = told
    if told:
        info.setdefault("first answer", told)


def whole(fs: Any, path: str, info: dict[str, Any], file: IO[bytes]) -> None:
    """Copy a file into `file`; CorruptCheckpoint if the server sends more than it said, or another version.

    The time is counted by what came, since the size is what a stranger says.
    """
    import asyncio
    import time

    size = int(info["size"])

    async def copy() -> None:
        left, began = size, time.monotonic()
        with spooling():
            file.seek(0)
            file.truncate()
        async with _asked(fs, path, {}) as answer:
            if _changed(info, answer.headers):
                raise CorruptCheckpoint("changed while it was read: the server has another version of it", url=path)
            while piece := await asyncio.wait_for(
                answer.content.read(PIECE), began + seconds(size - left) - time.monotonic()
            ):
                left -= len(piece)
                if left < 0:
                    raise CorruptCheckpoint("is longer than the server said", url=path)
                with spooling():
                    file.write(piece)

    again(path, size, lambda: _timed(fs, seconds(size), copy), known=True)


def _timed(fs: Any, limit: float, coroutine: Callable[[], Any]) -> Any:
    from fsspec.asyn import sync

    return sync(fs.loop, coroutine, timeout=limit)


@asynccontextmanager
async def _asked(fs: Any, path: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """Send a request, with the headers that the user gave as well; the answer's content is still to be read."""
    from aiohttp import ClientTimeout

    session = await fs.set_session()
    given = {**fs.kwargs, "headers": {**fs.kwargs.get("headers", {}), **headers}}
    async with session.get(fs.encode_url(path), timeout=ClientTimeout(sock_connect=30), **given) as answer:
        answer.raise_for_status()
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise StorageError("the server sends it packed, although that was not requested", url=path)
        yield answer


# --- redirects --------------------------------------------------------------------------------------------------


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
    return 0 if url.port in (None, {"http": 80, "https": 443}.get(url.scheme)) else url.port or -1


def _listed(host: str, allowed: Sequence[str]) -> bool:
    return any(host == h or (h.startswith(".") and host.endswith(h)) for h in map(str.strip, allowed) if h)


def client() -> dict[str, Any]:
    """What is passed to fsspec's file system for the web; empty where it is not installed."""
    return _client(seconds(USUAL))


@lru_cache(maxsize=4)
def _client(limit: float) -> dict[str, Any]:
    try:
        import aiohttp
    except ImportError:
        return {}
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_redirected)
    # for the requests that fsspec makes by itself; those of this module have a time limit of their own
    timeout = aiohttp.ClientTimeout(total=limit, sock_connect=30)
    options = {"trace_configs": [trace], "timeout": timeout, "headers": {"Accept-Encoding": "identity"}}
    return {"client_kwargs": {**options, "auto_decompress": False}}


async def _redirected(_session: Any, _context: Any, sent: Any) -> None:
    """Refuse a redirect to what the user did not name, before it is followed."""
    from yarl import URL

    found = sent.response.headers.get("Location") or sent.response.headers.get("URI") or ""
    try:
        target = sent.url.join(URL(found))
        led = may_lead(str(sent.url), str(target))
        if target.scheme not in ("http", "https") or not target.host:
            raise ValueError
    except ValueError:
        raise StorageError("the server redirects to what is not a web address", url=str(sent.url)) from None
    if target.user or target.password:
        raise StorageError("the server redirects to an address with a login that you did not give", url=str(sent.url))
    if not led:
        where = f"{target.raw_host}:{target.port}" if target.host == sent.url.host else target.raw_host
        raise StorageError(
            f"the server redirects to {target.scheme}://{where}, another host than was named; "
            f"CKPTCONV_REDIRECTS={target.raw_host} allows it",
            url=str(sent.url),
        )


__all__ = ["NoRanges", "bounded", "client", "fetched", "learn_version", "may_lead", "ranges", "whole"]
