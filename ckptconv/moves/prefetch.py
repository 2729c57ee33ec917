"""Prefetch everything that a job over remote files will read, in few requests.

A job reads in small steps that stay in the cache; over a network every step would be a request. Ranges that are close
together are fetched in one request, several requests at once, and held in memory while the job runs. A box that is
spread over much more than its own size (a slice of a transposed tensor) would fetch nearly everything again for every
job; instead, its tensor is copied once to a local file, which all jobs of this process read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from ..storage.paths import is_remote
from ..storage.remote import MAX_REQUEST, RemoteFile
from .boxes import clip, reach
from .part import Span

if TYPE_CHECKING:
    from .part import Piece
    from .sources import Sources

MAX_SPREAD = 2  # fetch a box by its extent if the extent is at most this many times larger
SMALL_EXTENT = 2**20  # or has at most this many bytes


@contextmanager
def fetched(pieces: Sequence[Piece], sources: Sources) -> Iterator[None]:
    """Hold the ranges of remote files that the pieces need in memory."""
    files = {
        part.data.url
        for piece in pieces
        for part in piece.parts
        if isinstance(part.data, Span) and is_remote(part.data.url)
    }
    if not files:
        yield
        return
    far = {url: f for url in files if (f := sources.reader(url).remote)}
    ranges: dict[str, list[tuple[int, int]]] = {url: [] for url in far}
    for piece in pieces:
        _wanted(piece, far, ranges)
    try:
        for url, needed in ranges.items():
            far[url].hold(needed)
        yield
    finally:
        for f in far.values():
            f.release()


def is_fetched_whole(piece: Piece) -> bool:
    """Whether a piece of a tensor reads all of a remote one."""
    return any(is_spread for _, _, _, is_spread in _extents(piece))


def _wanted(piece: Piece, far: dict[str, RemoteFile], ranges: dict[str, list[tuple[int, int]]]) -> None:
    """Collect the ranges of a piece; tensors with spread-out boxes are copied to a local file."""
    for url, start, size, is_spread in _extents(piece):
        if url in far and is_spread:
            far[url].spool(start, size)
        elif url in far and size <= MAX_REQUEST:
            ranges[url].append((start, size))


def _extents(piece: Piece) -> Iterator[tuple[str, int, int, bool]]:
    """(url, start, size, whether it is spread out) for each box of remote tensors: its extent, or the whole tensor."""
    for whole in piece.parts:
        span, item = whole.data, whole.dtype.itemsize
        if not isinstance(span, Span) or not is_remote(span.url):
            continue
        for part in clip(whole, piece.lo, piece.hi):
            extent = reach(part.shape, part.strides) * item
            is_spread = extent > max(MAX_SPREAD * prod(part.shape) * item, SMALL_EXTENT)
            read, size = (whole, reach(whole.shape, whole.strides) * item) if is_spread else (part, extent)
            yield span.url, span.start + read.offset * item, size, is_spread
