"""The open files that jobs read from, and data that a format must decode.

Sources().reader(url)        one handle for each file, shared by threads; detects files that change
Sources().value(span, make)  a value computed from a span, such as its checksum, once for all tensors that view it
stream(coded)                decoded bytes in pieces, counted
Pool(sources)                decoded data: in memory up to the size of the spool, the rest in one temporary file
Decoded(parts, sources)      the parts of a tensor that fill a range, for ranges in ascending order
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any

from ..errors import CkptError, CorruptCheckpoint, MissingExtra, StorageError
from ..messages import brief, printable
from ..storage import lookups
from ..storage.faults import spooling
from ..storage.files import Reader, Stamp
from .part import MAX_ELEMENTS, Coded, Data, Held, Part, Span, reach

MAX_HANDLES = 64  # open files
MAX_VALUES = 2**14  # spans whose computed values this process remembers


@lru_cache(MAX_VALUES)
def _made(span: Span, stamp: Stamp) -> list[str]:
    """Cache the value of a span in a file with this stamp: an empty list to fill in, also across `Sources`."""
    return []


class Sources(AbstractContextManager["Sources"]):
    """Open files by URL, shared by the threads of one process.

    spool: the number of bytes up to which data is decoded into memory. stamps: of files that were opened earlier and
    must not have changed; only the beginnings are compared if they are shorter.
    """

    def __init__(self, spool: int = 64 * 2**20, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._known = stamps or {}
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._stamps: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._making: dict[Span, threading.Lock] = {}
        self.nameless: dict[str, Reader] = {}  # the files of pools, already unlinked
        self._mine = threading.local()
        self._pools: list[Pool] = []
        self.spool = spool
        self._run = lookups.current().lookups  # the run's cache of headers; jobs run on other threads

    def reader(self, url: str) -> Reader:
        """Open a file, or return the open one; CorruptCheckpoint if it was replaced since it was first opened."""
        with self._lock:
            if url in self.nameless:
                return self.nameless[url]
            found = self._readers.get(url)
            if found is not None:
                self._readers.move_to_end(url)
                return found
            with lookups.cached_lookups(self._run):
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
        """Compute a value of a span, once while its file is unchanged, since thousands of tensors may view it."""
        reader = self.reader(span.url)
        with self._making.setdefault(span, threading.Lock()):
            made = [] if _differs(reader) else _made(span, reader.stamp)
            if not made:
                made.append(make(reader))
            return made[0]

    def pool(self) -> Pool:
        """Return this thread's pool of decoded data, which is kept between tensors, until `let_go`."""
        if not hasattr(self._mine, "pool"):
            self._mine.pool = Pool(self)
            with self._lock:
                self._pools.append(self._mine.pool)
        pool: Pool = self._mine.pool
        return pool

    def let_go(self) -> None:
        """Drop the decoded data of all threads, none of which may be working."""
        for pool in self._pools:
            pool.close()

    def refuse_changed(self) -> None:
        """Raise CorruptCheckpoint if a file has changed since it was first read."""
        with lookups.session(lookups=None):
            for url, stamp in self._stamps.items():
                if is_changed(url, stamp):
                    raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)

    def close(self, *_: object) -> None:
        self.let_go()
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    __exit__ = close


def is_changed(url: str, stamp: Stamp) -> bool:
    """Tell whether a file's stamp no longer begins with this one."""
    with Reader(url) as now:
        return now.stamp[: len(stamp)] != stamp


def _differs(reader: Reader) -> bool:
    """Tell whether a local file has changed since it was opened; a store serves the same object each time."""
    if reader.remote is not None:
        return False
    try:
        return is_changed(reader.url, reader.stamp)
    except StorageError:
        return True  # it was removed


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
    """Yield decoded bytes in pieces; CorruptCheckpoint if there are more or fewer than announced."""
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
            f"{printable(brief(str(coded.key)))} decodes to {amount} than {coded.size} bytes", url=coded.url
        )


# --- decoded data: each thread has one pool for all tensors that it reads, as many may be views of the same data -----


class Pool:
    """Decoded data by its `Coded` source, with reference counts.

    Unused data is kept until its memory is needed, since the next tensor may be a view of it. The file holds no more
    than one tensor needs, and the data that was decoded last.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources, self._room = sources, sources.spool
        self._held: dict[Coded, Held | Span] = {}
        self._uses = Counter[Coded]()
        self._idle = dict[Coded, None]()
        self._spilled = 0  # how many of `_held` are in the file
        self._file: Reader | None = None
        self._out = -1
        self._lock = threading.Lock()  # another thread closes the pool, and could close a file that is written to

    def hold(self, coded: Coded) -> Held | Span:
        """Decode `coded` unless it is held already. Each call needs one call of `release`."""
        self._idle.pop(coded, None)
        if coded not in self._held:
            if coded.size > self._room:
                self._forget()
            self._held[coded] = self._in_memory(coded) if coded.size <= self._room else self._in_file(coded)
        self._uses[coded] += 1
        return self._held[coded]

    def release(self, coded: Coded) -> None:
        self._uses[coded] -= 1
        if self._uses[coded] <= 0:
            del self._uses[coded]
            if coded in self._held:  # closed pools hold nothing
                self._idle[coded] = None

    def _forget(self) -> None:
        """Drop unused data to make room."""
        for coded in self._idle:
            if isinstance(self._held.pop(coded), Held):
                self._room += coded.size
            else:
                self._spilled -= 1
        self._idle.clear()
        if self._file and self._file.size and not self._spilled:
            with spooling():
                os.ftruncate(self._out, 0)
            self._file.size = 0

    def _in_memory(self, coded: Coded) -> Held:
        out, at = bytearray(coded.size), 0
        for piece in stream(coded):
            out[at : at + len(piece)] = piece
            at += len(piece)
        self._room -= coded.size
        return Held.of(out)

    def _in_file(self, coded: Coded) -> Span:
        import tempfile

        with spooling(), self._lock:
            if self._file is None:
                self._out, path = tempfile.mkstemp(prefix="ckptconv-")
                self._file = Reader(path)
                os.unlink(path)
                self._sources.nameless[path] = self._file
            start = at = self._file.size
            for piece in stream(coded):
                while piece:
                    done = os.pwrite(self._out, piece, at)
                    piece, at = piece[done:], at + done
            self._file.size = at
            self._spilled += 1
            return Span(self._file.url, start, coded.size)

    def close(self) -> None:
        with self._lock:
            if self._file:
                del self._sources.nameless[self._file.url]
                self._file.close()
                os.close(self._out)
                self._file = None
            self._held.clear()
            self._uses.clear()
            self._idle.clear()
            self._room = self._sources.spool
            self._spilled = 0


class Decoded(AbstractContextManager["Decoded"]):
    """The parts of a tensor by range. Decoded data is released as soon as a range begins after its end."""

    def __init__(self, parts: Sequence[Part], sources: Sources) -> None:
        self._waiting = sorted((p for p in parts if prod(p.shape)), key=lambda p: p.start, reverse=True)
        self._active: list[tuple[int, Data, Part]] = []  # the part's end, its data, and the part with decoded data
        self._sources = sources

    def between(self, lo: int, hi: int) -> tuple[Part, ...]:
        """Return the parts that overlap the elements [lo, hi); `lo` must not decrease from call to call."""
        for end, data, _ in self._active:
            if end <= lo and isinstance(data, Coded):
                self._sources.pool().release(data)
        self._active = [one for one in self._active if one[0] > lo]
        while self._waiting and self._waiting[-1].start < hi:
            part = self._waiting.pop()
            end = part.start + reach(part.shape, part.steps)
            if end > lo:
                is_coded = isinstance(part.data, Coded)
                ready = decode_all([part], self._sources.pool())[0] if is_coded else part
                self._active.append((end, part.data, ready))
        return tuple(ready for _, _, ready in self._active)

    def __exit__(self, *_: object) -> None:
        self._waiting = []
        self.between(MAX_ELEMENTS + 1, 0)


def decode_all(parts: Sequence[Part], pool: Pool) -> tuple[Part, ...]:
    """Decode all parts into a pool."""
    return tuple(p._replace(data=pool.hold(p.data)) if isinstance(p.data, Coded) else p for p in parts)
