"""Whether an order of axes turns one tensor into another, proved on every bit; which order does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..moves.decoded import Pool, whole
from ..moves.gather import read_into
from ..moves.part import Piece
from ..moves.sources import Sources
from ..rules import layout as layouts
from ..verification.compare import first_difference
from . import conventions, cuts, orders
from .orders import Order
from .pairs import leaf

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
        known = conventions.convention(a.shape, b.shape, leaf(a.name), leaf(b.name))
        likely = dict.fromkeys([*([known] if known else []), *orders.simple(a.shape, b.shape)])
        found = next((o for o in likely if self.proved([a], [b], o)), None)
        if found is not None:
            return found
        return next((o for o in cuts.hidden(a.shape, b.shape) if self.proved([a], [b], o)), None)

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
