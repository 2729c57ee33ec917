"""Fingerprints of content that no order of elements changes, and the order of axes that is proved on every bit.

    sum over all elements of mix(bits), modulo 2^64, and their number

Equal for all permutations of a tensor, and additive: a fused QKV has the sum of its parts. Tensors are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ...checkpoint import Tensor
from ...errors import LayoutError
from ...moves.decoded import Pool, whole
from ...moves.gather import read_into
from ...moves.part import Piece
from ...moves.read import each, windows
from ...moves.sources import Sources
from ...rules import layout as layouts
from ...verification.compare import first_difference
from ..orders.axes import Order, convention, simple
from ..orders.cuts import hidden
from ..pairs import Print, leaf

Array = np.ndarray[Any, Any]
WORD = 2**64
COMMON = {"0.0", "1.0", "nan"}  # single numbers with which many tensors begin their training


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit words that leaves no structure for sums to cancel (Steele et al., SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def fingerprint(t: Tensor, sources: Sources) -> Print | None:
    """Read a tensor once; None for one without a fixed number of bytes per element."""
    if t.dtype.kind == "s" or not t.parts:
        return None
    item, total, first, constant = t.dtype.itemsize, 0, None, True
    for raw in windows(t, sources):
        bits = raw.view(f"u{min(item, 8)}").reshape(-1, max(1, item // 8))
        wide = np.add.reduce(bits.astype("u8") * np.arange(1, bits.shape[1] + 1, dtype="u8"), axis=1, dtype="u8")
        first = wide[0] if first is None else first
        constant = constant and bool((wide == first).all())
        if t.count == 1:  # one number is as good as a fingerprint, unless it is one that everything begins with
            constant = str(_number(raw, t)) in COMMON
        total += int(np.add.reduce(_mixed(wide + np.uint64(0x9E3779B97F4A7C15)), dtype="u8"))
    return Print(t.dtype.name, t.count, total % WORD, constant)


def fingerprints(tensors: Iterable[Tensor], workers: int) -> dict[str, Print]:
    """The fingerprints of all tensors that have one."""
    rows = [t for t in tensors if t.count]
    found = zip(rows, each(rows, fingerprint, workers), strict=True)
    return {t.name: p for t, p in found if p is not None}


def _number(raw: Array, t: Tensor) -> float:
    return abs(complex(raw.view(t.dtype.np)[0]))


PROBE = 256  # elements compared before all are
SLICES = layouts.parse("(before + 1 + after) ... -> before ..., ..., after ...")


class Bits:
    """Compares contents; holds the open files."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    @contextmanager
    def decoded(self, *tensors: Tensor) -> Iterator[list[Tensor]]:
        """The tensors, with what must be decoded (compressed, packed) decoded once."""
        pool = Pool(self.sources)
        try:
            yield [replace(t, parts=whole(t.parts, pool)) for t in tensors]
        finally:
            pool.close()

    def order(self, a: Tensor, b: Tensor) -> Order | None:
        """The order of axes that turns a into b, proved; conventions are tried first."""
        with self.decoded(a, b) as (left, right):
            return self._order(left, right)

    def _order(self, a: Tensor, b: Tensor) -> Order | None:
        known = convention(a.shape, b.shape, leaf(a.name), leaf(b.name))
        likely = dict.fromkeys([*([known] if known else []), *simple(a.shape, b.shape)])
        found = next((o for o in likely if self.proved([a], [b], o)), None)
        if found is not None:
            return found
        return next((o for o in hidden(a.shape, b.shape) if self.proved([a], [b], o)), None)

    def proved(self, a: Sequence[Tensor], b: Sequence[Tensor], order: Order) -> bool:
        """Whether the order gives b, to the last bit."""
        if not order.text:
            made = [(t.shape, t.parts) for t in a]
        else:
            try:
                made = layouts.parse(order.text).apply(a, dict(order.sizes))
            except LayoutError:
                return False
        return all(
            shape == want.shape and self.same(Tensor(want.name, want.dtype, shape, parts), want)
            for (shape, parts), want in zip(made, b, strict=True)
        )

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors of one shape and dtype hold the same bits."""
        return self._begins(a, b) and first_difference(a, b, self.sources) is None

    def _begins(self, a: Tensor, b: Tensor) -> bool:
        """Compare the first elements only: most wrong orders fail here."""
        count = min(PROBE, b.count)
        raw = [np.empty(count * b.dtype.itemsize, "u1") for _ in range(2)]
        for t, buffer in zip((a, b), raw, strict=True):
            read_into(Piece(t.name, t.dtype, 0, count, 0, t.parts), memoryview(buffer), self.sources)
        return bool((raw[0] == raw[1]).all())


def moved(t: Tensor, order: Order) -> Tensor | None:
    """The one tensor that an order makes of another; None if it does not fit."""
    try:
        ((shape, parts),) = layouts.parse(order.text).apply([t], dict(order.sizes))
    except LayoutError:
        return None
    return Tensor(t.name, t.dtype, shape, parts)


def slices(t: Tensor) -> Iterator[Tensor]:
    """The slices of a tensor along its first axis."""
    for i in range(t.shape[0]):
        shape, parts = SLICES.apply([t], {"before": i})[1]
        yield Tensor(t.name, t.dtype, shape, parts)
