"""The kernel: copy between equally shaped strided views, blocked so that both sides stay in the cache.

A transposed copy done naively misses the cache on every element. Going through a scratch tile whose rows are 16
elements too long (so that power-of-two strides do not fall into the same cache set) reads and writes whole lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boxes import Box, fuse

Array = NDArray[Any]

TILE = 16384  # elements of a scratch tile: 64 KiB of float32, within the second-level cache of any machine
PAD = 16
SHORT = 64  # a run of fewer bytes that is contiguous on both sides is not worth a plain copy


def strided(buffer: Any, carrier: str, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """View of a buffer; offset and strides in elements. numpy refuses what would reach past the buffer's end."""
    item = np.dtype(carrier).itemsize
    return np.ndarray(tuple(shape), carrier, buffer, offset * item, tuple(s * item for s in strides))


def flat(array: Any) -> Array:
    """The bytes of an array or buffer in C order."""
    return np.asarray(array).reshape(-1).view("u1")


def packed(src: Array) -> Array:
    """The elements in C order, in one dimension; without a copy where they lie so already."""
    if not src.flags.c_contiguous:
        dense = np.empty(src.shape, src.dtype)
        copy(dense, src)
        src = dense
    return src.reshape(-1)


def copy(dst: Array, src: Array) -> None:
    """Copy between equally shaped views of the same element width, whatever their strides."""
    item = src.itemsize
    box = fuse(src.shape, [s // item for s in src.strides], [s // item for s in dst.strides])
    if _plain(box, item):
        np.copyto(dst, src)
        return
    src = np.lib.stride_tricks.as_strided(src, box.shape, [s * item for s in box.strides])
    dst = np.lib.stride_tricks.as_strided(dst, box.shape, [s * item for s in box.steps])
    order = sorted(range(len(box.shape)), key=lambda i: -box.strides[i])  # as the source lies
    sizes = _tile(box)
    pitch = [sizes[i] for i in order]
    scratch = np.empty((*pitch[:-1], pitch[-1] + PAD), src.dtype)[..., : pitch[-1]]
    scratch = scratch.transpose(np.argsort(order))
    for at in product(*(range(0, n, t) for n, t in zip(box.shape, sizes, strict=True))):
        block = tuple(slice(a, a + t) for a, t in zip(at, sizes, strict=True))
        piece = src[block]
        tile = scratch[tuple(slice(0, n) for n in piece.shape)]
        np.copyto(tile, piece)
        np.copyto(dst[block], tile)


def _plain(box: Box, item: int) -> bool:
    """Whether a direct copy already walks both sides along the same short stride."""
    if len(box.shape) < 2:
        return True
    fast = min(range(len(box.shape)), key=lambda i: box.steps[i])
    near = min(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    return fast == near and box.shape[fast] * item >= SHORT


def _tile(box: Box) -> list[int]:
    """Tile sizes: long along the source's and the destination's shortest strides, then filled up with other axes."""
    sizes = [1] * len(box.shape)
    by_src = sorted(range(len(box.shape)), key=lambda i: box.strides[i] or 1 << 62)
    by_dst = sorted(range(len(box.shape)), key=lambda i: box.steps[i])
    room = TILE
    for axes, most in ((by_src, 256), (by_dst, 64)):
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
