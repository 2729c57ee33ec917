"""What most values of a tensor span: quartiles, fences for outliers, and the bins of a histogram.

A histogram of a few outliers would be one bar and a void. Its bars span what most values span, and what lies below and
above is counted. Outliers are measured by the middle half of the values, which they cannot move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..moves.copy import Array
from .stats import Stats

BINS = 32  # of a histogram
OUTLIER = 15.0  # times the interquartile range: about 20 standard deviations of a normal distribution
FEW = 16  # values that have no outliers
_STEPS = np.arange(BINS)


def spread(sample: Array, reach: float) -> tuple[float, float] | None:
    """The quartiles of the values that are not zero, with `reach` times their distance on both sides.

    Values of one sign are taken by their logarithms, and low ones are not outside: variances span decades.
    """
    known = sample[sample != 0]
    if len(known) < FEW:
        return None
    positive = bool(known[0] > 0)
    low, high = quantiles(known, (0.25, 0.75), np.log if positive else None)
    if not high > low:
        return None
    if positive:
        return -math.inf, float(np.exp(min(700.0, high + reach * (high - low))))
    return float(low - reach * (high - low)), float(high + reach * (high - low))


def quantiles(ordered: Array, shares: Sequence[float], scale: Callable[[Array], Array] | None = None) -> list[float]:
    """Quantiles of sorted values, as numpy.quantile interpolates them, which would sort again."""
    out = []
    for share in shares:
        at = share * (len(ordered) - 1)
        near = ordered[[math.floor(at), math.ceil(at)]]
        low, high = (near if scale is None else scale(near)).tolist()
        out.append(low + (high - low) * (at - math.floor(at)))
    return out


def span_of(measured: Stats, sample: Array, fences: tuple[float, float] | None) -> tuple[float, float] | None:
    """From where to where a histogram goes: all values, or what most of them span if it would be one bar and a void."""
    if measured.min is None or measured.max is None:
        return None
    low, high = float(measured.min), float(measured.max)
    if fences and (low < fences[0] or high > fences[1]) and (near := spread(sample, 3)):
        low, high = max(low, near[0]), min(high, near[1])
    inside = sample[sample.searchsorted(low) : sample.searchsorted(high, "right")]
    measurable = len(inside) and low < high and math.isfinite(high - low)
    if measurable and binned(inside, low, high).max() > 0.8 * len(inside):
        first, last = quantiles(inside, (0.01, 0.99))
        if first < last:
            low, high = max(low, first - (last - first) / 4), min(high, last + (last - first) / 4)
    return low, high


def binned(ordered: Array, low: float, high: float) -> Array:
    """As `counted`, of sorted finite values: the places of the edges among them tell the counts."""
    places = np.empty(BINS + 3, np.int64)
    places[0], places[-2:] = 0, (ordered.searchsorted(high, "right"), len(ordered))
    places[1:-2] = ordered.searchsorted(low + (high - low) / BINS * _STEPS)
    return places[1:] - places[:-1]


def counted(block: Array, low: float, high: float) -> Array:
    """How many finite values are below, in each bin, and above."""
    block = block[np.isfinite(block)]
    if low == high:
        place = np.where(block < low, -1, np.where(block > high, BINS, 0))
    else:
        scale = max(abs(low), abs(high)) if high - low == math.inf else 1.0
        share = (block / scale - low / scale) / (high / scale - low / scale)
        place = np.clip(np.floor(share * BINS), -1, BINS).astype(np.int64)
        place[block == high] = BINS - 1
    return np.bincount(place + 1, minlength=BINS + 2)


__all__ = ["BINS", "FEW", "OUTLIER", "binned", "counted", "quantiles", "span_of", "spread"]
