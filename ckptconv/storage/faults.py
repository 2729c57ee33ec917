"""Turn errors of file systems and servers into ours: the cause in a few words, without the secrets in a url."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

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
HOST, REFUSED, SILENT, BROKEN = (
    "the host is unknown", "the server refuses the connection", "timed out: the server did not answer in time",
    "the connection broke",
)  # fmt: skip
WAYS = {  # by name, so that no library is imported to compare its error classes
    "gaierror": HOST, "ConnectionRefusedError": REFUSED, "TimeoutError": SILENT, "ConnectionError": BROKEN,
    "ServerDisconnectedError": BROKEN, "ClientPayloadError": BROKEN, "IncompleteRead": BROKEN,
    "ProtocolError": BROKEN, "SSLEOFError": BROKEN,
    "SSLCertVerificationError": "the certificate of the server is not trusted",
    "SSLError": "no secure connection to the server, which may know http only, not https",
}  # fmt: skip
SCARCE = errno.EMFILE, errno.ENFILE  # no file can be opened, and no module imported
NUMBERS = {
    errno.ENOSPC: "the disk is full; nothing was changed",
    errno.EDQUOT: "the disk quota is used up; nothing was changed",
    **dict.fromkeys(SCARCE, "too many files are open at once; allow more of them (ulimit -n 4096)"),
}
BUSY = 429, 503  # a server may add how long to wait


LOGIN = re.compile(r"://([^/@:]*:[^/@]+)@")


class MissingFile(StorageError, FileNotFoundError):
    """There is no file or folder at this path."""

    number = errno.ENOENT


def refused(e: Exception, url: str) -> CkptError:
    """Make an error of ours that says in one sentence what a file system or a server refused."""
    reason = (isinstance(e, OSError) and NUMBERS.get(e.errno or 0)) or failure(e).words
    if not reason and isinstance(e, FileNotFoundError):
        reason = "no file can be created in this folder" if os.path.isdir(url) else STATUS[404]  # in /proc
    elif not reason and isinstance(e, OSError):
        reason = _scrubbed(e.strerror or str(e) or type(e).__name__, url).lower()
    elif not reason and isinstance(e, NotImplementedError):
        reason = "this kind of storage cannot do that (read-only?)"
    elif not reason:
        text = _scrubbed(str(e), url).partition("\n")[0][:300]
        reason = f"the storage answered with {type(e).__name__}: {text}"
    return (MissingFile if reason == STATUS[404] else StorageError)(reason, url=url)


def causes(e: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: libraries wrap network errors, some of them in `no such file`.

    An error of ours that was being handled when this one was raised does not count as a cause.
    """
    seen: set[int] = set()
    while e is not None and id(e) not in seen:
        seen.add(id(e))
        yield e
        inner = getattr(e, "os_error", None)
        around = None if isinstance(e.__context__, CkptError) else e.__context__
        e = inner if isinstance(inner, BaseException) else e.__cause__ or around


class Failure(NamedTuple):
    """How a server failed. words: '' if it did not; status: HTTP status; wait: seconds before the next request."""

    words: str = ""
    status: int = 0
    wait: float = 0.0


def failure(e: BaseException) -> Failure:
    """Describe how the server or the connection failed; the result is empty if neither did."""
    for cause in causes(e):
        own, *above = type(cause).__mro__
        names = [own.__name__, *(k.__name__ for k in above if k.__module__ in ("builtins", "socket", "ssl"))]
        if words := next((WAYS[n] for n in names if n in WAYS), SILENT if "Timeout" in own.__name__ else ""):
            return Failure(words)
        if status := _status(cause):
            given = str((getattr(cause, "headers", None) or {}).get("Retry-After"))
            wanted = status in BUSY and given.isascii() and given.isdecimal() and len(given) < 10
            wait = float(given) if wanted else 0.0
            later = f"; it asks to be left alone for {wait:.0f} s" if wait else ""
            return Failure(STATUS.get(status, f"the server answered with status {status}") + later, status, wait)
    return Failure()


def _status(e: BaseException) -> int:
    """Return the HTTP status in an error of ours, aiohttp, requests, httpx or botocore, or 0."""
    response = getattr(e, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(e, "status", 0) or getattr(response, "status_code", 0)
    return status if isinstance(status, int) and status >= 300 else 0


@contextmanager
def translate_errors(url: str) -> Iterator[None]:
    """Turn any error of a file system into one of ours; those of cloud libraries have no common base class."""
    try:
        yield
    except Exception as e:  # the only place where unexpected errors of file systems are caught
        ours = next((c for c in causes(e) if isinstance(c, CkptError)), None)
        if ours is not None:
            raise ours from None
        raise refused(e, url) from without_secrets(e, url)


def _scrubbed(text: str, url: str) -> str:
    """Remove secrets from a message, which may quote only a part of the url."""
    text = text.replace(url, redacted(url)) if url else text
    for login in LOGIN.findall(url):
        text = text.replace(login, "...").replace(login.partition(":")[2] or login, "...")
    return scrubbed(text)


def without_secrets(e: BaseException, url: str) -> BaseException:
    """Copy an error as a built-in class without the secrets in urls; the traceback of our error shows the copy."""
    kind = next((k for k in (FileNotFoundError, NotADirectoryError, OSError) if isinstance(e, k)), RuntimeError)
    return kind(f"{type(e).__module__}.{type(e).__name__}: {_scrubbed(str(e), url)}")


@contextmanager
def spooling() -> Iterator[None]:
    """Name the temporary folder in the error if it is full or missing."""
    try:
        yield
    except OSError as e:
        import tempfile

        raise refused(e, tempfile.tempdir or os.environ.get("TMPDIR") or "the temporary folder") from e
