"""Decode compressed data once, and hold it in bounded memory while pieces of it are read.

Pool(sources)                decoded data: in memory up to the size of the spool, the rest in one temporary file
Decoded(parts, sources)      the parts of a tensor that fill a range, for ranges in ascending order
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod

from ..storage.faults import spooling
from ..storage.files import Reader
from .boxes import reach
from .part import Coded, Held, Part, Span
from .sources import Sources, stream


class Pool:
    """Decoded data by its `Coded` source, with reference counts; the temporary file is truncated when it is unused."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._room = sources, sources.spool
        self._held: dict[Coded, Held | Span] = {}
        self._uses: dict[Coded, int] = {}
        self._file: Reader | None = None
        self._out = -1

    def hold(self, coded: Coded) -> Held | Span:
        """Decode `coded` unless it is held already. Each call needs one call of `release`."""
        if coded not in self._held:
            self._held[coded] = self._in_memory(coded) if coded.size <= self._room else self._in_file(coded)
        self._uses[coded] = self._uses.get(coded, 0) + 1
        return self._held[coded]

    def release(self, coded: Coded) -> None:
        self._uses[coded] -= 1
        if self._uses[coded]:
            return
        del self._uses[coded]
        if isinstance(self._held.pop(coded), Held):
            self._room += coded.size
        elif self._file and not any(isinstance(data, Span) for data in self._held.values()):
            with spooling():
                os.ftruncate(self._out, 0)
            self._file.size = 0

    def _in_memory(self, coded: Coded) -> Held:
        import numpy as np

        self._room -= coded.size
        out, at = bytearray(coded.size), 0
        for piece in stream(coded):
            out[at : at + len(piece)] = piece
            at += len(piece)
        return Held(np.frombuffer(out, np.uint8))

    def _in_file(self, coded: Coded) -> Span:
        import tempfile

        with spooling():
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
        return Span(self._file.url, start, coded.size)

    def close(self) -> None:
        self._held.clear()
        if self._file:
            self._sources.abandon(self._file)
            os.close(self._out)
            self._file = None


class Decoded:
    """The parts of a tensor by range. Decoded data is released as soon as a range begins after its end."""

    def __init__(self, parts: Sequence[Part], sources: Sources) -> None:
        self._waiting = sorted((p for p in parts if prod(p.shape)), key=lambda p: p.start, reverse=True)
        self._active: list[tuple[int, Part, Part]] = []  # the part's end, the part, and the part with decoded data
        self._pool = Pool(sources)

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
        self._pool.close()


def whole(parts: Sequence[Part], pool: Pool) -> tuple[Part, ...]:
    """All parts, decoded into a pool."""
    return tuple(p._replace(data=pool.hold(p.data)) if isinstance(p.data, Coded) else p for p in parts)
