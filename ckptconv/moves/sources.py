"""The open files that jobs read from, and data that a format must decode.

Sources().reader(url)        one handle for each file, shared by threads; detects files that change
Sources().value(span, make)  what is made of a span, such as its checksum, once for all tensors that are views of it
stream(coded)                decoded bytes in pieces, counted; decoded.py holds them if only parts are needed
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeVar

from ..errors import CkptError, CorruptCheckpoint, MissingExtra, StorageError
from ..messages import brief, printable
from ..storage import lookups
from ..storage.files import Reader, Stamp
from .part import Coded, Span

MAX_HANDLES = 64  # open files
MAX_VALUES = 2**14  # spans of which this process remembers what was made


class Closing(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closing)


@lru_cache(MAX_VALUES)
def _made(span: Span, stamp: Stamp) -> list[str]:
    """The value of a span in a file of this stamp, to be filled in; tensors that are read one by one need it, too."""
    return []


class Sources:
    """Open files by URL, shared by the threads of one process.

    spool: the number of bytes up to which data is decoded into memory. stamps: the stamps of files that were opened
    before and must not have changed, or how they begin.
    """

    def __init__(self, spool: int = 64 * 2**20, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._known = stamps or {}
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._stamps: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._nameless: dict[str, Reader] = {}
        self._busy: dict[Span, threading.Lock] = {}
        self._mine = threading.local()
        self._kept: list[Closing] = []
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
            known = self._known.get(url, ())
            if found.stamp[: len(known)] != known:
                raise CorruptCheckpoint("changed since it was opened", url=url)
            if self._stamps.setdefault(url, found.stamp) != found.stamp:
                raise CorruptCheckpoint("changed while it was read", url=url)
            if len(self._readers) > MAX_HANDLES:  # another thread may still read from it: it closes with the last one
                self._readers.popitem(last=False)
            return found

    def value(self, span: Span, make: Callable[[Reader], str]) -> str:
        """What `make` makes of a span, once while its file is unchanged: thousands of tensors may be views of it."""
        reader = self.reader(span.url)
        with self._lock:
            busy = self._busy.setdefault(span, threading.Lock())
        with busy:
            made = [] if _differs(reader) else _made(span, reader.stamp)
            if not made:
                made.append(make(reader))
            return made[0]

    def mine(self, make: Callable[[Sources], C]) -> C:
        """What this thread keeps from one tensor to the next, until `let_go`."""
        if not hasattr(self._mine, "kept"):
            self._mine.kept = make(self)
            with self._lock:
                self._kept.append(self._mine.kept)
        found: C = self._mine.kept
        return found

    def let_go(self) -> None:
        """Give up what threads keep, none of which may be at work."""
        for kept in self._kept:
            kept.close()

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
        self.let_go()
        with self._lock:
            for reader in [*self._readers.values(), *self._nameless.values()]:
                reader.close()
            self._readers.clear()
            self._nameless.clear()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _differs(reader: Reader) -> bool:
    """Whether a local file is not what it was when it was opened; a store answers each request with the same object."""
    if reader.remote is not None:
        return False
    try:
        with Reader(reader.url) as now:
            return now.stamp != reader.stamp
    except StorageError:
        return True  # it has no name any more


def decode(coded: Coded) -> Iterator[Any]:
    """Yield the decoded bytes of `coded` in pieces; MissingExtra if its module cannot be imported."""
    try:
        module = import_module(coded.module)
    except ImportError as e:
        raise MissingExtra(f"{coded.module}, which decodes it, cannot be imported here: {e}", url=coded.url) from e
    try:
        yield from module.decode(coded)
    except CkptError as e:
        e.url = e.url or coded.url
        raise


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
