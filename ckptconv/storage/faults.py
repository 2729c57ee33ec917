"""Turn errors of file systems and servers into ours: the cause in a few words, without secrets of a url."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import CkptError, StorageError
from ..messages import redacted, scrubbed

STATUS = {
    401: "the server wants a login",
    403: "access is forbidden",
    404: "no such file or folder",
    410: "no such file or folder",
    416: "the server does not give that range of the file",
    429: "the server has had too many requests; try again later",
}
# what libraries call a connection that ended too soon; their classes are not imported to be compared
BROKEN = frozenset({"ServerDisconnectedError", "ClientPayloadError", "IncompleteRead", "ProtocolError", "SSLEOFError"})
WORDS = {
    "host": "the host is unknown",
    "refused": "the server refuses the connection",
    "time": "timed out: the server did not answer in time",
    "broken": "the connection broke",
    "SSLCertVerificationError": "the certificate of the server is not trusted",
    "SSLError": "no secure connection to the server, which may know http only, not https",
}
UNREACHED = frozenset(WORDS[way] for way in ("host", "refused", "time"))
LOGIN = re.compile(r"://([^/@:]*:[^/@]+)@")
SCARCE = errno.EMFILE, errno.ENFILE  # no file can be opened, so that no module can be imported either
BUSY = 429, 503  # where a server may say how long it wants to be left alone


class Unreachable(StorageError):
    """The server does not exist, accepts no connection, or does not answer in time."""


def refused(e: OSError, url: str) -> CkptError:
    """Describe in one sentence what the file system refused."""
    if e.errno == errno.ENOSPC:
        return StorageError("the disk is full; nothing was changed", url=url)
    if e.errno == errno.EDQUOT:
        return StorageError("the disk quota is used up; nothing was changed", url=url)
    if e.errno in SCARCE:
        return StorageError("too many files are open at once; allow more of them (ulimit -n 4096)", url=url)
    if reason := network(e):
        return _failed(reason, url)
    if isinstance(e, FileNotFoundError):
        reason = "no file can be created in this folder" if os.path.isdir(url) else STATUS[404]  # in /proc
    return StorageError(reason or scrubbed(e.strerror or str(e) or type(e).__name__).lower(), url=url)


def _failed(reason: str, url: str) -> StorageError:
    return (Unreachable if reason in UNREACHED else StorageError)(reason, url=url)


def causes(e: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: libraries wrap errors of the network, some of them in `no such file`.

    An error of ours that was handled when this one was raised is not a cause.
    """
    seen: set[int] = set()
    while e is not None and id(e) not in seen:
        seen.add(id(e))
        yield e
        inner = getattr(e, "os_error", None)
        around = None if isinstance(e.__context__, CkptError) else e.__context__
        e = inner if isinstance(inner, BaseException) else e.__cause__ or around


class Failure(NamedTuple):
    """How a server failed. way: a key of WORDS, of a connection; status: of an answer; wait: in s, until it answers."""

    way: str = ""
    status: int = 0
    wait: float = 0.0


def failure(e: BaseException) -> Failure:
    """How the server, or the connection to it, failed; an empty one if neither did."""
    for cause in causes(e):
        if way := _way(cause):
            return Failure(way)
        status, headers = _answer(cause)
        if status:
            wait = str(headers.get("Retry-After") or headers.get("retry-after") or "")
            wanted = status in BUSY and wait.isdecimal() and wait.isascii() and len(wait) < 10
            return Failure("", status, float(wait) if wanted else 0.0)
    return Failure()


def _way(e: BaseException) -> str:
    """How a connection failed, by this error alone; '' if it did not."""
    name, *above = (kind.__name__ for kind in type(e).__mro__)
    if "gaierror" in (name, *above) or "DNS" in name:
        return "host"
    if isinstance(e, ConnectionRefusedError):
        return "refused"
    if isinstance(e, TimeoutError) or "Timeout" in name:
        return "time"
    if isinstance(e, ConnectionError) or name in BROKEN:
        return "broken"
    return next((kind for kind in ("SSLCertVerificationError", "SSLError") if kind in (name, *above)), "")


def _answer(e: BaseException) -> tuple[int, Mapping[str, Any]]:
    """The HTTP status, or 0, and the headers that an error of ours, requests, httpx or botocore carries."""
    response = getattr(e, "response", None)
    if isinstance(response, dict):
        about = response.get("ResponseMetadata", {})
        status, headers = about.get("HTTPStatusCode", 0), about.get("HTTPHeaders", {})
    else:
        status = getattr(e, "status", 0) or getattr(response, "status_code", 0)
        headers = getattr(e, "headers", None) or getattr(response, "headers", None) or {}
    return (status if isinstance(status, int) and status >= 300 else 0), headers


def network(e: BaseException) -> str:
    """The error of a server or of the connection to it, or ''."""
    way, status, wait = failure(e)
    if way or not status:
        return WORDS.get(way, "")
    later = f"; it asks to be left alone for {wait:.0f} s" if wait else ""
    return STATUS.get(status, f"the server answered with status {status}") + later


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Turn whatever a file system raises into one kind of error; those of cloud libraries have no common base class."""
    try:
        yield
    except Exception as e:  # the one place where a file system's surprise becomes our error
        ours = next((c for c in causes(e) if isinstance(c, CkptError)), None)
        if ours is not None:
            raise ours from None
        raise _ours(e, url) from told(e, url)


def _ours(e: Exception, url: str) -> CkptError:
    if isinstance(e, OSError):
        return refused(e, url)
    if reason := network(e):
        return _failed(reason, url)
    if isinstance(e, NotImplementedError):
        return StorageError("this kind of storage cannot do that (read-only?)", url=url)
    text = scrubbed(_without_login(str(e), url).split("\n")[0])[:300]
    return StorageError(f"the storage answered with {type(e).__name__}: {text}", url=url)


def _without_login(text: str, url: str) -> str:
    """A message that may quote a part of the url, with which a name and password are no longer known as such."""
    for login in LOGIN.findall(url):
        text = text.replace(login, "...").replace(login.partition(":")[2] or login, "...")
    return text


def told(e: BaseException, url: str) -> BaseException:
    """The same error as a built-in kind, without secrets of urls: what the traceback of ours shows."""
    kind = next((k for k in (FileNotFoundError, NotADirectoryError, OSError) if isinstance(e, k)), RuntimeError)
    text = scrubbed(_without_login(str(e).replace(url, redacted(url)), url))
    return kind(f"{type(e).__module__}.{type(e).__name__}: {text}")


@contextmanager
def spooling() -> Iterator[None]:
    """Name the temporary folder if that is what is full or missing."""
    try:
        yield
    except OSError as e:
        import tempfile

        raise refused(e, tempfile.tempdir or os.environ.get("TMPDIR") or "the temporary folder") from e
