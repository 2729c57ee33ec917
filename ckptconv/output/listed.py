"""The names in folders of outputs, listed once: by one output, or by a worker that brings thousands into a folder.

    with once(): ...               inside, a folder is listed once; inside another `once`, not even that
    names(folder, beginning)       the names that begin so, found by bisection

To list a folder of n names for each of n outputs would be quadratic. What others lay there after the listing is not
seen, which is why an output lists anew before it is published, and why a zoo locks its folder.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice, takewhile

from ..storage import files

SHORT = 500  # names that are listed again sooner than kept for later outputs

Seen = dict[str, list[str]]
_SEEN: ContextVar[Seen | None] = ContextVar("seen", default=None)


@contextmanager
def once(seen: Seen | None = None) -> Iterator[None]:
    """List each folder once in here; `seen` keeps the long listings for the next time."""
    outer = _SEEN.get()
    found: Seen = dict(seen or {}) if outer is None else outer
    token = _SEEN.set(found)
    try:
        yield
    finally:
        _SEEN.reset(token)
        if seen is not None:
            seen.update((folder, many) for folder, many in found.items() if len(many) > SHORT)


def names(folder: str, beginning: str) -> list[str]:
    """The names in a folder that begin so, sorted; none if the folder does not exist."""
    seen, folder = _SEEN.get(), folder.rstrip("/") or folder
    if seen is None:
        return files.names(folder, beginning)
    if folder not in seen:
        seen[folder] = files.names(folder)
    many = seen[folder]
    return list(takewhile(lambda name: name.startswith(beginning), islice(many, bisect_left(many, beginning), None)))


__all__ = ["Seen", "names", "once"]
