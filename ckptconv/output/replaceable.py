"""What `force` may replace: everything, or only files that an earlier run wrote and that nobody has changed since.

A zoo replaces its own outputs without being asked to. What lies in their place may be another's by now.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import StorageError
from ..storage import files

Known = Mapping[str, tuple[int, int]]  # size and time by path
_KNOWN: ContextVar[Known | None] = ContextVar("known", default=None)


class Taken(StorageError):
    """There is something at the destination that may not be replaced: what a zoo catches."""


def taken(message: str, url: str) -> StorageError:
    """The error for a destination that is taken: one that a zoo can tell from others, if one writes."""
    return (StorageError if _KNOWN.get() is None else Taken)(message, url=url)


@contextmanager
def only(folder: str, written: Iterable[tuple[str, int, int]]) -> Iterator[None]:
    """In here replace these files below a folder only, each as long as it has this size and time."""
    token = _KNOWN.set({_key(files.join(folder, name)): (size, time) for name, size, time in written})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def check(urls: Iterable[str]) -> None:
    """Taken if one of these, which exist and are about to be replaced or removed, may not be."""
    known = _KNOWN.get()
    for url in urls if known is not None else ():
        status = files.stat(url)
        if known is not None and status and known.get(_key(url)) != (status.size, status.mtime):
            raise Taken("already exists, and is not what was written here before; force=True replaces it", url=url)


def _key(url: str) -> str:
    return url if files.is_remote(url) else os.path.abspath(files.local(url))


__all__ = ["Taken", "check", "only", "taken"]
