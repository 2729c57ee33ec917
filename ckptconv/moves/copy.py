"""The kernel: copy between equally shaped strided views, blocked so that both sides stay in the cache.

A naive transposed copy misses the cache on every element. A copy through a scratch tile whose rows are padded by 64
bytes (so that power-of-two strides do not map to the same cache set) reads and writes complete lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .part import Box, fuse

Array = NDArray[Any]

TILE = 128 * 2**10  # bytes of a scratch tile: a part of the second-level cache
ALONG_SRC, ALONG_DST = 512, 256  # bytes and elements of a tile along the shortest stride of each side; measured
PAD = 64  # bytes
MAX_CACHED = 256 * 2**10  # bytes of a source that stay in the cache until they are read again
MAX_STREAM_STEP = 32  # bytes between source elements up to which the processor prefetches them as a stream
MAX_LINES = 16  # cache lines that stay in the cache even with colliding strides


def strided(buffer: Any, carrier: str, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """View a buffer; offset and strides count elements. NumPy refuses a view that exceeds the buffer."""
    item = np.dtype(carrier).itemsize
    return np.ndarray(tuple(shape), carrier, buffer, offset * item, tuple(s * item for s in strides))


def flat(array: Any) -> Array:
    """View the bytes of an array or buffer in C order."""
    return np.asarray(array).reshape(-1).view("u1")


def packed(src: Array) -> Array:
    """Flatten the elements in C order; without a copy if they already are."""
    if not src.flags.c_contiguous:
        dense = np.empty(src.shape, src.dtype)
        copy(dense, src)
        src = dense
    return src.reshape(-1)


def copy(dst: Array, src: Array) -> None:
    """Copy between equally shaped views of the same element width, whatever their strides."""
    item = src.itemsize
    box = fuse(src.shape, [s // item for s in src.strides], [s // item for s in dst.strides])
    if _direct(box, item):
        np.copyto(dst, src)
        return
    src = np.lib.stride_tricks.as_strided(src, box.shape, [s * item for s in box.strides])
    dst = np.lib.stride_tricks.as_strided(dst, box.shape, [s * item for s in box.steps])
    order = sorted(range(len(box.shape)), key=lambda i: -box.strides[i])  # the source's order in memory
    sizes = _tile(box, item)
    pitch = [sizes[i] for i in order]
    scratch = np.empty((*pitch[:-1], pitch[-1] + PAD // item), src.dtype)[..., : pitch[-1]]
    scratch = scratch.transpose(np.argsort(order))
    for at in product(*(range(0, n, t) for n, t in zip(box.shape, sizes, strict=True))):
        block = tuple(slice(a, a + t) for a, t in zip(at, sizes, strict=True))
        piece = src[block]
        tile = scratch[tuple(slice(0, n) for n in piece.shape)]
        np.copyto(tile, piece)
        np.copyto(dst[block], tile)


def _direct(box: Box, item: int) -> bool:
    """Tell whether a copy in destination order still has each source cache line when it needs it again.

    It needs a line again after looping over the axes that are faster in the destination than the source's fastest axis.
    These must touch only a few lines, a range of memory that fits in the cache, or a stream.
    """
    if len(box.shape) < 2:
        return True
    near = min(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    faster = range(near + 1, len(box.shape))  # axes are in the order of the destination's steps
    if prod(box.shape[i] for i in faster) <= MAX_LINES or box.strides[-1] * item <= MAX_STREAM_STEP:
        return True
    stretch = sum((box.shape[i] - 1) * box.strides[i] for i in range(near, len(box.shape))) + 1
    return stretch * item <= MAX_CACHED and item > 1  # NumPy moves single bytes at 1 GB/s even within the cache


def _tile(box: Box, item: int) -> list[int]:
    """Tile sizes: long along the shortest strides of source and destination, then extended along other axes."""
    sizes = [1] * len(box.shape)
    by_src = sorted(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    by_dst = sorted(range(len(box.shape)), key=lambda i: box.steps[i])
    room = TILE // item
    for axes, most in ((by_src, max(64, ALONG_SRC // item)), (by_dst, ALONG_DST)):
        got = 1
        for i in axes:
            if sizes[i] > 1 or got >= most or room < 2:
                break
            sizes[i] = max(1, min(box.shape[i], most // got, room))
            got *= sizes[i]
            room //= sizes[i]
    for i in by_dst:
        grown = min(box.shape[i], sizes[i] * max(1, room))
        room = room * sizes[i] // grown if grown else room
        sizes[i] = max(1, grown)
    return sizes
