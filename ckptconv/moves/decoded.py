"""Decode compressed data once, and hold it in bounded memory while pieces of it are read.

Pool(sources)                decoded data: in memory up to the size of the spool, the rest in one temporary file
Decoded(parts, sources)      the parts of a tensor that fill a range, for ranges in ascending order

Each thread has one pool for all tensors that it reads, one after another: many may be views of the same data.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from math import prod

from ..storage.faults import spooling
from ..storage.files import Reader
from .boxes import reach
from .part import Coded, Held, Part, Span
from .sources import Sources, stream


class Pool:
    """Decoded data by its `Coded` source, with reference counts.

    What is not used is kept until its room is needed: the next tensor may be a view of the same data. Beyond the room
    in memory there is never more than one tensor needs, and what was decoded last.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources, self._room = sources, sources.spool
        self._held: dict[Coded, Held | Span] = {}
        self._uses = Counter[Coded]()
        self._idle = dict[Coded, None]()
        self._spilled = 0  # of those that are held
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
        """Make room: let go of what is not used."""
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
                self._sources.adopt(self._file)
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
                self._sources.abandon(self._file)
                os.close(self._out)
                self._file = None
            self._held.clear()
            self._uses.clear()
            self._idle.clear()
            self._room = self._sources.spool
            self._spilled = 0


class Decoded:
    """The parts of a tensor by range. Decoded data is released as soon as a range begins after its end."""

    def __init__(self, parts: Sequence[Part], sources: Sources) -> None:
        self._waiting = sorted((p for p in parts if prod(p.shape)), key=lambda p: p.start, reverse=True)
        self._active: list[tuple[int, Part, Part]] = []  # the part's end, the part, and the part with decoded data
        self._pool = sources.mine(Pool)

    def between(self, lo: int, hi: int) -> tuple[Part, ...]:
        """The parts that overlap the elements [lo, hi); `lo` must not decrease from call to call."""
        for end, part, _ in self._active:
            if end <= lo and isinstance(part.data, Coded):
                self._pool.release(part.data)
        self._active = [one for one in self._active if one[0] > lo]
        while self._waiting and self._waiting[-1].start < hi:
            part = self._waiting.pop()
            end = part.start + reach(part.shape, part.steps)
            if end > lo:
                (ready,) = whole([part], self._pool)
                self._active.append((end, part, ready))
        return tuple(ready for _, _, ready in self._active)

    def __enter__(self) -> Decoded:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._active:
            if isinstance(one[1].data, Coded):
                self._pool.release(one[1].data)


def whole(parts: Sequence[Part], pool: Pool) -> tuple[Part, ...]:
    """All parts, decoded into a pool."""
    return tuple(p._replace(data=pool.hold(p.data)) if isinstance(p.data, Coded) else p for p in parts)
