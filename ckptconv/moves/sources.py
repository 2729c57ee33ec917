"""The open files that jobs read from, and data that must be decoded before a piece of it can be read.

Sources().reader(url)        one handle for each file, shared by threads; detects files that change
Sources().spooled(coded)     decoded completely, into memory or an unlinked temporary file
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from ..errors import CorruptCheckpoint, MissingExtra
from ..storage.faults import spooling
from ..storage.files import Reader, Stamp
from .part import Coded, Held, Part, Span

MAX_HANDLES = 64  # open files


class Sources:
    """Open files by URL, shared by the threads of one process.

    spool: the number of bytes up to which data is decoded into memory. stamps: the stamps of files that were opened
    before and must not have changed.
    """

    def __init__(self, spool: int = 64 * 2**20, stamps: Mapping[str, Stamp] | None = None) -> None:
        self._known = stamps or {}
        self._readers: OrderedDict[str, Reader] = OrderedDict()
        self._retired: list[Reader] = []
        self._stamps: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._spool = spool

    def reader(self, url: str) -> Reader:
        """The open file; CorruptCheckpoint if it was replaced since it was first opened."""
        with self._lock:
            found = self._readers.get(url)
            if found is not None:
                self._readers.move_to_end(url)
                return found
            found = self._readers[url] = Reader(url)
            if self._stamps.setdefault(url, self._known.get(url, found.stamp)) != found.stamp:
                raise CorruptCheckpoint("changed while it was read", url=url)
            if len(self._readers) > MAX_HANDLES:  # another thread may still read from it: closed at the end
                self._retired.append(self._readers.popitem(last=False)[1])
            return found

    def spooled(self, coded: Coded) -> Span | Held:
        """Decode completely: into memory if it is small, otherwise into a temporary file that is already unlinked."""
        if coded.size <= self._spool:
            out, at = bytearray(coded.size), 0
            for piece in stream(coded):
                out[at : at + len(piece)] = piece
                at += len(piece)
            return Held(out)
        import tempfile

        with spooling(), tempfile.NamedTemporaryFile(prefix="ckptconv-", delete=False) as f:
            try:
                for piece in stream(coded):
                    f.write(piece)
                f.flush()
                with self._lock:
                    self._readers[f.name] = Reader(f.name)
            finally:
                os.unlink(f.name)
        return Span(f.name, 0, coded.size)

    def changed(self) -> list[str]:
        """The files that have changed since they were first read."""
        out = []
        for url, stamp in self._stamps.items():
            with Reader(url) as now:
                if now.stamp != stamp:
                    out.append(url)
        return out

    def close(self) -> None:
        with self._lock:
            for reader in [*self._readers.values(), *self._retired]:
                reader.close()
            self._readers.clear()
            self._retired.clear()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decode(coded: Coded) -> Iterator[Any]:
    """The decoded bytes of `coded`, in pieces; imports its module."""
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
        raise CorruptCheckpoint(f"{coded.key} decodes to {amount} than {coded.size} bytes", url=coded.url)


def resolved(part: Part, sources: Sources) -> Part:
    """The part, with its data decoded if necessary."""
    return part._replace(data=sources.spooled(part.data)) if isinstance(part.data, Coded) else part


__all__ = ["Sources", "decode", "resolved"]
