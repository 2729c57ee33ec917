"""What `force` may replace: everything, or only files that an earlier run wrote and that nobody has changed since.

A zoo replaces its own outputs without being asked to. What lies in their place may be another's by now. And sources of
which something is left out are spared in any case (api/replacing.py says which).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import StorageError
from ..messages import listing, many, redacted
from ..storage import files

Known = Mapping[str, tuple[int, int]]  # size and time by path
_KNOWN: ContextVar[Known | None] = ContextVar("known", default=None)

_SPARED: ContextVar[tuple[Collection[str], Iterable[str]]] = ContextVar("spared", default=((), ()))


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


@contextmanager
def sparing(places: Collection[str], left: Iterable[str]) -> Iterator[None]:
    """In here replace and remove nothing at these places; left: what is there and nowhere else, in words."""
    token = _SPARED.set((places, left))
    try:
        yield
    finally:
        _SPARED.reset(token)


def place(url: str) -> str:
    """Where a file is, by whatever path it is named."""
    return url.rstrip("/") if files.is_remote(url) else os.path.realpath(files.local(url))


def check(urls: Iterable[str]) -> None:
    """StorageError if one of these, which exist and are about to be replaced or removed, may not be."""
    urls, known, (spared, left) = list(urls), _KNOWN.get(), _SPARED.get()
    if found := [url for url in urls if place(url) in spared] if spared else []:
        raise StorageError(
            f"{many(len(found), 'source')} would be replaced or removed, and not all that is there is written; write "
            f"to another place first, or leave nothing out:\n{listing([*map(redacted, found), *left])}"
        )
    for url in urls if known is not None else ():
        status = files.stat(url)
        if known is not None and status and known.get(_key(url)) != (status.size, status.mtime):
            raise Taken("already exists, and is not what was written here before; force=True replaces it", url=url)


def _key(url: str) -> str:
    return url if files.is_remote(url) else os.path.abspath(files.local(url))


__all__ = ["Taken", "check", "only", "place", "sparing", "taken"]
