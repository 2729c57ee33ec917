"""Divide boxes of a source into boxes that make constant steps in the targets: the arithmetic of layout.py. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ..errors import LayoutError
from .axes import Axis, Leaf, Literal, Prod, Sizes, Strides, Sum, choices, size_of

MAX_PIECES = 2**16  # of one part; only steps that do not divide one another need more, and no sensible layout has them

Shape = tuple[int, ...]


class Blocks(NamedTuple):
    """One source of a layout whose sizes are known.

    `places` gives for each block (the set of its leaves) its target, its start there and the strides of its leaves;
    `fail` makes an error that quotes the layout. Two are equal if their keys are.
    """

    axes: tuple[Axis, ...]
    sizes: dict[str, int]
    places: dict[frozenset[Leaf], tuple[int, int, Strides]]
    fail: Callable[[str], LayoutError]
    key: tuple[object, ...]

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and self.key == other.key


class Affine(NamedTuple):
    """start + sum(index[k] * steps[k]) over the axes of a region."""

    start: int
    steps: Shape


class Region(NamedTuple):
    """Elements of one part that go to one block of a target; all of their positions are affine.

    `source` is their position in the stored data, `target` the share of their position in the target that is known so
    far, and `unresolved` holds the coordinates that are still to be turned into one, each with the axis that it runs
    over: at first the flat C-order index of the source, with the whole block.
    """

    counts: Shape
    source: Affine
    target: Affine
    unresolved: tuple[tuple[Affine, Axis], ...]


Placed = tuple[int, int, Shape, Shape, int, Shape]  # target, source offset, shape, strides, start, steps


@lru_cache(maxsize=4096)
def pieces(source: Blocks, shape: Shape, strides: Shape, start: int, steps: Shape) -> tuple[Placed, ...]:
    """Cut one box of a source into boxes that make constant steps in the targets.

    A box is any affine set of flat C-order indices of its tensor: a partition, a view, or what another layout made.

    Example: `(h w c) o -> o (c h w)` with h=2, w=2, c=3 moves [12, 5] to [5, 12], where h, w, c, o make steps of 2, 1,
    4, 12. The source lies in C order: one box, and the flat index of its element [i, j] is 5i + j. The last of the
    unresolved coordinates goes first; k and l are indices that cuts add:

        counts          unresolved                     target
        [12, 5]         5i + j  over (h w c) o         0
        [12, 5]         j over o,  i over h w c        0                   o is 5 long: 5i + j = 5 x i + j
        [6, 5, 2]       j over o,  i + 6k over h w c   0                   w c is 6 long and i reaches 11: it carries,
                                                                           so i is cut into rows of 6, counted by k
        [6, 5, 2]       j over o,  i over w c          2k                  k over h
        [3, 5, 2, 2]    j over o,  i + 3l over w c     2k                  c is 3 long and i reaches 5: cut again
        [3, 5, 2, 2]    j over o,  i over c            2k + l              l over w
        [3, 5, 2, 2]    j over o                       4i + 2k + l         i over c
        [3, 5, 2, 2]                                   4i + 12j + 2k + l   j over o

    The result is one box with steps [4, 12, 2, 1] in the target; `_tidy` puts the widest first.
    """
    out: list[Placed] = []
    for block, names in choices(Prod(source.axes)):
        target, base, at = source.places[names]
        regions = [Region(shape, Affine(0, strides), Affine(base, (0,) * len(shape)), ((Affine(start, steps), block),))]
        while regions:
            region = regions.pop()
            if region.unresolved:
                regions += reversed(_resolve(region, source.sizes, at))
            else:
                out.append((target, *_tidy(region)))
            if len(out) + len(regions) > MAX_PIECES:
                raise source.fail(f"needs more than {MAX_PIECES} pieces for one part; convert in two steps")
    return tuple(out)


def _tidy(region: Region) -> tuple[int, Shape, Shape, int, Shape]:
    """Drop axes of one element; put the axis with the widest step in the target first."""
    order = sorted((k for k, n in enumerate(region.counts) if n != 1), key=lambda k: -region.target.steps[k])
    axes = (region.counts, region.source.steps, region.target.steps)
    counts, strides, steps = (tuple(a[k] for k in order) for a in axes)
    return region.source.start, counts, strides, region.target.start, steps


def _resolve(region: Region, sizes: Sizes, at: Strides) -> list[Region]:
    """Resolve the last coordinate by one level; several regions if it must be cut, none if it is outside the block."""
    *before, (value, node) = region.unresolved
    if isinstance(node, str | Literal):
        stride = at.get(node, 0)  # the literal 1 has none
        steps = tuple(a + b * stride for a, b in zip(region.target.steps, value.steps, strict=True))
        made = Affine(region.target.start + value.start * stride, steps)
        return [region._replace(target=made, unresolved=tuple(before))]
    if isinstance(node, Sum):
        return _resolve_sum(region, sizes, tuple(before), value, node)
    if not node.items:
        return [region._replace(unresolved=tuple(before))]
    below = Prod(node.items[1:])
    weight = _whole(below, sizes)
    rest = Affine(value.start % weight, tuple(s % weight for s in value.steps))
    if rest.start + _reach(region.counts, rest) < weight:
        top = Affine(value.start // weight, tuple(s // weight for s in value.steps))
        return [region._replace(unresolved=(*before, (rest, below), (top, node.items[0])))]
    axis, first = _crossing(region.counts, rest, weight)
    step = rest.steps[axis]
    period = weight // step if weight % step == 0 and rest.start < step else 0
    return _split_at_carry(region, axis, first, period)


def _resolve_sum(
    region: Region, sizes: Sizes, before: tuple[tuple[Affine, Axis], ...], value: Affine, node: Sum
) -> list[Region]:
    """Keep what falls into this block's term of a sum, whose terms are: those before it, it, those after it."""
    low, term = _whole(node.terms[0], sizes, sum), node.terms[1]
    high = low + _whole(term, sizes)
    last = value.start + _reach(region.counts, value)
    if last < low or value.start >= high:
        return []
    if low <= value.start and last < high:
        return [region._replace(unresolved=(*before, (Affine(value.start - low, value.steps), term)))]
    axis, first = _crossing(region.counts, value, low if value.start < low else high)
    return _split_at_carry(region, axis, first, 0)


def _whole(node: Axis, sizes: Sizes, total: Callable[[Iterable[int]], int] = prod) -> int:
    """The size of an axis of a block, where a sum stands for all its terms."""
    if isinstance(node, str | Literal):
        return size_of(node, sizes)
    if isinstance(node, Prod):
        return total(_whole(n, sizes) if total is prod else size_of(n, sizes) for n in node.items)
    before, term, after = node.terms
    return _whole(before, sizes, sum) + _whole(term, sizes) + _whole(after, sizes, sum)


def _reach(counts: Shape, value: Affine) -> int:
    """The largest value of a coordinate above its start."""
    return sum((n - 1) * s for n, s in zip(counts, value.steps, strict=True))


def _crossing(counts: Shape, value: Affine, bound: int) -> tuple[int, int]:
    """The axis along which a coordinate crosses a bound, and the first index that is beyond it."""
    order = sorted((k for k, n in enumerate(counts) if n > 1 and value.steps[k]), key=lambda k: -value.steps[k])
    for k in order:
        first = -(-(bound - value.start) // value.steps[k])
        if 0 < first < counts[k]:
            return k, first
    return order[0], counts[order[0]] // 2  # no axis crosses by itself


def _split_at_carry(region: Region, k: int, first: int, period: int) -> list[Region]:
    """Split axis k before index `first`; if it carries every `period` indices, fold it into rows of that length."""
    n, counts = region.counts[k], region.counts
    if period and n % period == 0:
        rows = (*counts[:k], period, *counts[k + 1 :], n // period)
        return [_reindexed(region, rows, lambda v: Affine(v.start, (*v.steps, v.steps[k] * period)))]
    first = n // period * period if period else first
    beyond = (*counts[:k], n - first, *counts[k + 1 :])
    return [
        region._replace(counts=(*counts[:k], first, *counts[k + 1 :])),
        _reindexed(region, beyond, lambda v: Affine(v.start + v.steps[k] * first, v.steps)),
    ]


def _reindexed(region: Region, counts: Shape, change: Callable[[Affine], Affine]) -> Region:
    """The region with new axes: `change` rewrites every position in terms of them."""
    unresolved = tuple((change(v), n) for v, n in region.unresolved)
    return Region(counts, change(region.source), change(region.target), unresolved)
