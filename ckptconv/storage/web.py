"""Requests to web servers: redirects stay on the host that the user named, and every request has a time limit.

CKPTCONV_REDIRECTS    more hosts that redirects may lead to, separated by commas; a leading dot takes a whole domain
CKPTCONV_TIMEOUT      seconds that a request may take, plus one for each 64 KiB requested; 60
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from ..errors import StorageError, UsageError

RATE = 2**16  # bytes a second: what is slower has stalled
# where well-known hosts keep their files
STORES = {
    "huggingface.co": (".huggingface.co", ".hf.co"),
    "hf.co": (".huggingface.co", ".hf.co", "huggingface.co"),
    "github.com": (".githubusercontent.com",),
}


def seconds(size: int) -> float:
    """The time in seconds that a request for `size` bytes may take."""
    given = os.environ.get("CKPTCONV_TIMEOUT", "60")
    try:
        return max(1.0, float(given)) + size / RATE
    except ValueError:
        raise UsageError(f"CKPTCONV_TIMEOUT is a number of seconds, not {given!r}") from None


def bounded(fs: Any, what: str, size: int, *args: Any, **options: Any) -> Any:
    """Call a method of a file system, in bounded time where it is one that can be interrupted."""
    coroutine = getattr(fs, f"_{what}", None)
    if not getattr(fs, "async_impl", False) or coroutine is None:
        return getattr(fs, what)(*args, **options)
    from fsspec.asyn import sync

    return sync(fs.loop, coroutine, *args, timeout=seconds(size), **options)


def may_lead(source: str, target: str, secure: bool) -> bool:
    """Whether a redirect from host to host is followed; `secure`: it does not fall back from https to http."""
    more = tuple(h.strip().lower() for h in os.environ.get("CKPTCONV_REDIRECTS", "").split(",") if h.strip())
    allowed = (source, *STORES.get(source, ()), *more)
    return secure and any(target == h or (h.startswith(".") and target.endswith(h)) for h in allowed)


@lru_cache(maxsize=1)
def client() -> dict[str, Any]:
    """What is passed to fsspec's file system for the web; empty where it is not installed."""
    try:
        import aiohttp
    except ImportError:
        return {}
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_redirected)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)  # `bounded` knows how much was requested
    return {"client_kwargs": {"trace_configs": [trace], "timeout": timeout}}


async def _redirected(_session: Any, _context: Any, sent: Any) -> None:
    """Refuse a redirect to a host that the user did not name, before it is followed."""
    from yarl import URL

    found = sent.response.headers.get("Location") or sent.response.headers.get("URI") or ""
    target = sent.url.join(URL(found))
    secure = target.scheme == sent.url.scheme or target.scheme == "https"
    if not may_lead(sent.url.host or "", target.host or "", secure):
        raise StorageError(
            f"the server redirects to {target.scheme}://{target.host}, another host than was named; "
            f"CKPTCONV_REDIRECTS={target.host} allows it",
            url=str(sent.url),
        )


__all__ = ["bounded", "client", "may_lead", "seconds"]
