"""The open files that jobs read from, and data that a format must decode.

Sources().reader(url)        one handle for each file, shared by threads; detects files that change
stream(coded)                decoded bytes in pieces, counted; decoded.py holds them if only parts are needed
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from ..errors import CorruptCheckpoint, MissingExtra
from ..messages import brief, printable
from ..storage import lookups
from ..storage.files import Reader, Stamp
from .part import Coded

MAX_HANDLES = 64  # open files


class Sources:
    """Open files by URL, shared by the threads of one process.

    spool: the number of bytes up to which data is decoded into memory. stamps: the stamps of files that were opened
    before and must not have changed.
    """

    def __init__(self, spool: int = 64 * 2**20, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._known = stamps or {}
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._stamps: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._nameless: dict[str, Reader] = {}
        self.spool = spool
        self._run = lookups.kept()  # what this run has read of headers already; jobs run on other threads

    def reader(self, url: str) -> Reader:
        """The open file; CorruptCheckpoint if it was replaced since it was first opened."""
        with self._lock:
            if url in self._nameless:
                return self._nameless[url]
            found = self._readers.get(url)
            if found is not None:
                self._readers.move_to_end(url)
                return found
            with lookups.once(self._run):
                found = self._readers[url] = Reader(url)
            if self._stamps.setdefault(url, self._known.get(url, found.stamp)) != found.stamp:
                raise CorruptCheckpoint("changed while it was read", url=url)
            if len(self._readers) > MAX_HANDLES:  # another thread may still read from it: it closes with the last one
                self._readers.popitem(last=False)
            return found

    def adopt(self, reader: Reader) -> None:
        """Keep an open file that has no name any more, until `abandon` is called."""
        with self._lock:
            self._nameless[reader.url] = reader

    def abandon(self, reader: Reader) -> None:
        with self._lock:
            self._nameless.pop(reader.url, None)
        reader.close()

    def changed(self) -> list[str]:
        """The files that have changed since they were first read."""
        out = []
        with lookups.fresh():
            for url, stamp in self._stamps.items():
                with Reader(url) as now:
                    if now.stamp != stamp:
                        out.append(url)
        return out

    def close(self) -> None:
        with self._lock:
            for reader in [*self._readers.values(), *self._nameless.values()]:
                reader.close()
            self._readers.clear()
            self._nameless.clear()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decode(coded: Coded) -> Iterator[Any]:
    """Yield the decoded bytes of `coded` in pieces; MissingExtra if its module cannot be imported."""
    try:
        module = import_module(coded.module)
    except ImportError as e:
        raise MissingExtra(f"{coded.module}, which decodes it, cannot be imported here: {e}", url=coded.url) from e
    pieces: Iterator[Any] = module.decode(coded)
    return pieces


def stream(coded: Coded) -> Iterator[memoryview]:
    """Decoded bytes in pieces; CorruptCheckpoint if there are more or fewer than announced."""
    left = coded.size
    for piece in decode(coded):
        view = memoryview(piece).cast("B")
        left -= len(view)
        if left < 0:
            break
        yield view
    if left:
        amount = "more" if left < 0 else "fewer"
        raise CorruptCheckpoint(
            f"{printable(brief(coded.key))} decodes to {amount} than {coded.size} bytes", url=coded.url
        )


__all__ = ["Sources", "decode", "stream"]
