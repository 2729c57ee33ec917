"""Axis patterns: how the axes of tensors move. Pure; no tensor is read.

    h w i o -> o i h w                   a permutation
    (h w c) o -> o (c h w)               a product axis, split and merged in another order
    i (q + k + v) -> q i, k i, v i       a concatenated axis, split over several tensors
    x (h.i + h.j + h.f) -> (h.i + h.f + h.j) x     `h.i` is as long as `h`: one unknown, three blocks
    l b o, rest o -> (l b + rest) o      `rest` is what is left over when `l` is as long as it can be
    1 1 n -> n        ... i o -> o i ...        axes of size one are added and removed; `...` is any number of axes

The notation is that of einops and einx. Sizes follow from the shapes, or else from `sizes`. Each side lists
blocks (one per choice of a term in every sum); a block is known by the set of its axes, so both sides must list the
same sets. A move is a part of a source (moves.part.Part) each of whose axes makes a constant step in its target.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..messages import printable
from ..moves.part import Part, c_strides, checked_count

MAX_PATTERN = 1000  # characters
MAX_DEPTH = 8  # of parentheses
MAX_BLOCKS = 1024  # of one tensor: sums multiply


class Prod(NamedTuple):
    items: tuple[Axis, ...]


class Sum(NamedTuple):
    terms: tuple[Axis, ...]


class Term(NamedTuple):
    """One term of a sum whose sizes are known: it begins at `start`, and all terms are `total` long."""

    start: int
    axis: Axis
    total: int


Axis = str | Prod | Sum | Term
Axes = tuple[Axis, ...]
Sizes = Mapping[str, int]
REST = "rest"  # a name whose size is what the others leave over
ONE = "1"  # an axis without information


# --- parsing ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"->|\.\.\.|[(),+]|1(?![0-9])|[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)?|(?P<odd>\S+)")


def sides(text: str) -> tuple[tuple[Axes, ...], tuple[Axes, ...]]:
    """The axes of each tensor on each of the two sides of a pattern; every error quotes it."""
    if len(text) > MAX_PATTERN:
        raise LayoutError(f"layout {text[:60]!r}... is longer than {MAX_PATTERN} characters")
    if odd := next((m["odd"] for m in _TOKEN.finditer(text) if m["odd"]), ""):
        raise failed(text, f"{odd!r} is not an axis name, or one of 1 ( ) + , -> ...; give sizes in `sizes`")
    halves = text.split("->")
    if len(halves) != 2:
        raise failed(text, "needs one `->`")
    left, right = (tuple(_tensor(text, part) for part in half.split(",")) for half in halves)
    return left, right


def failed(text: str, why: str) -> LayoutError:
    return LayoutError(f"layout {text!r}: {why}")


def _tensor(text: str, part: str) -> Axes:
    tokens = [m[0] for m in _TOKEN.finditer(part)][::-1]
    out = _axes(text, tokens, 0)
    if tokens:
        raise failed(text, f"{tokens[-1]!r} is left over")
    return tuple(out)


def _axes(text: str, tokens: list[str], depth: int) -> list[Axis]:
    """Take the axes that stand before the next `)` or `+` off the tokens, of which the last comes first."""
    out: list[Axis] = []
    while tokens and tokens[-1] not in (")", "+"):
        token = tokens.pop()
        if token == "..." and depth:
            raise failed(text, "`...` must stand outside parentheses")
        out.append(_group(text, tokens, depth + 1) if token == "(" else token)
    return out


def _group(text: str, tokens: list[str], depth: int) -> Axis:
    """Take what stands between parentheses off the tokens."""
    if depth > MAX_DEPTH:
        raise failed(text, f"has more than {MAX_DEPTH} nested parentheses")
    terms: list[Axis] = []
    last = "+"
    while last == "+":
        items = _axes(text, tokens, depth)
        terms.append(items[0] if len(items) == 1 else Prod(tuple(items)))
        if not tokens:
            raise failed(text, "has an open parenthesis")
        last = tokens.pop()
    return terms[0] if len(terms) == 1 else Sum(tuple(terms))


# --- sizes ------------------------------------------------------------------------------------------------------------


def base_of(name: str) -> str:
    """The name that gives an axis its size: `h` for `h.i`."""
    return name.partition(".")[0] if name != "..." else name


def bases(node: Axis) -> set[str]:
    """The names whose sizes an axis depends on."""
    if isinstance(node, str):
        return {base_of(node)} - {ONE}
    return set() if isinstance(node, Term) else set().union(*map(bases, node[0]))


def size_of(node: Axis, sizes: Sizes) -> int:
    """The length of an axis whose sizes are all known."""
    if isinstance(node, str):
        return 1 if node == ONE else sizes[base_of(node)]
    if isinstance(node, Term):
        return node.total
    if isinstance(node, Prod):
        return prod(size_of(n, sizes) for n in node.items)
    return sum(size_of(n, sizes) for n in node.terms)


def unknown(node: Axis, sizes: Sizes) -> list[str]:
    """The names whose sizes are still missing."""
    return sorted(b for b in bases(node) if b not in sizes)


def largest(node: Axis, name: str, value: int, sizes: Sizes) -> int | None:
    """The largest size of `name` with which `node` is at most `value` long; None if any size will do."""
    if size_of(node, {**sizes, name: 0}) == size_of(node, {**sizes, name: 1}):
        return None
    low, high = 0, value  # bisection: a length does not decrease with any of its axes
    while low < high:
        middle = (low + high + 1) // 2
        if size_of(node, {**sizes, name: middle}) <= value:
            low = middle
        else:
            high = middle - 1
    return low


# --- blocks -----------------------------------------------------------------------------------------------------------

Strides = dict[str, int]


class Block(NamedTuple):
    """One choice of a term in every sum of an axis: its first element, the strides of its leaves, and the axis."""

    start: int
    strides: Strides
    axis: Axis


def blocks(node: Axis, stride: int, sizes: Sizes) -> list[Block]:
    """All blocks of an axis whose elements are `stride` apart."""
    if isinstance(node, Sum):
        out, at, total = [], 0, size_of(node, sizes)
        for term in node.terms:
            out += [
                Block(at * stride + b.start, b.strides, Term(at, b.axis, total)) for b in blocks(term, stride, sizes)
            ]
            at += size_of(term, sizes)
        return out
    if not isinstance(node, Prod):
        return [Block(0, {} if node == ONE or isinstance(node, Term) else {node: stride}, node)]
    inner = []
    for item in reversed(node.items):
        inner.append(blocks(item, stride, sizes))
        stride *= size_of(item, sizes)
    out = []
    for picks in product(*inner[::-1]):
        steps = [step for b in picks for step in b.strides.items()]
        if len(strides := dict(steps)) < len(steps):
            raise LayoutError("an axis stands twice in one tensor; write h.a and h.b")
        out.append(Block(sum(b.start for b in picks), strides, Prod(tuple(b.axis for b in picks))))
    return out


def count_blocks(node: Axis) -> int:
    """The number of blocks of an axis."""
    if isinstance(node, Sum):
        return sum(map(count_blocks, node.terms))
    return prod(map(count_blocks, node.items)) if isinstance(node, Prod) else 1


# --- layouts ----------------------------------------------------------------------------------------------------------

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


@dataclass(frozen=True)
class Layout:
    """A parsed pattern; `inverse` swaps its sides."""

    text: str
    sources: tuple[Axes, ...]
    targets: tuple[Axes, ...]
    flips: frozenset[str] = frozenset()  # axes that run the other way in the targets

    @cached_property
    def inverse(self) -> Layout:
        left, right = self.text.split("->")
        return parse(f"{right.strip()} -> {left.strip()}")

    @property
    def noop(self) -> bool:
        """True if nothing moves: both sides are the same."""
        return self.sources == self.targets and not self.flips

    @property
    def names(self) -> set[str]:
        """The names of axes whose sizes may be given."""
        return {b for side in self.sources for axis in side for b in bases(axis) if b != "..."}

    def fail(self, why: str, shapes: Sequence[Shape] = (), sizes: Sizes | None = None) -> LayoutError:
        text = f"layout {self.text!r}"
        if shapes:
            text += f" on {', '.join(str(list(s)) for s in shapes)}"
        if sizes:
            text += f" with {', '.join(f'{k}={v}' for k, v in sizes.items() if k[0] != '~')}"
        return LayoutError(f"{printable(text)}: {why}")

    def unrolled(self, shapes: Sequence[Shape]) -> Layout:
        """Replace `...` by as many axes as the shapes have."""
        counts = {len(s) - len(t) + 1 for t, s in zip(self.sources, shapes, strict=False) if "..." in t}
        if not counts:
            return self
        if len(counts) > 1 or min(counts) < 0:
            raise self.fail("`...` must stand for the same number of axes everywhere", shapes)
        return _unroll(self, counts.pop())

    def solve(self, shapes: Sequence[Shape], given: Sizes) -> dict[str, int]:
        """Find the size of every axis from the shapes of the sources (`...` already unrolled)."""
        if len(shapes) != len(self.sources):
            raise self.fail(f"takes {len(self.sources)} tensors, not {len(shapes)}", shapes)
        for axes, shape in zip(self.sources, shapes, strict=True):
            if len(axes) != len(shape):
                raise self.fail(f"has {len(axes)} axes, the tensor has {len(shape)}", shapes)
        pairs = [p for axes, shape in zip(self.sources, shapes, strict=True) for p in zip(axes, shape, strict=True)]
        sizes = self.learn(pairs, {k: v for k, v in given.items() if k in self.names}, shapes)
        for axis, n in pairs:
            if missing := unknown(axis, sizes):
                why = f"the shapes do not give the size of {', '.join(missing)}; give it in `sizes`"
                raise self.fail(why, shapes, sizes)
            if size_of(axis, sizes) != n:
                raise self.fail(f"an axis of length {n} would have to be {size_of(axis, sizes)} long", shapes, sizes)
        return sizes

    def undetermined(self, given: Collection[str] = ()) -> tuple[str, ...]:
        """The axes whose sizes the shapes of the sources do not give, nor `given`: tried with sizes that are primes."""
        unrolled = _unroll(self, 0)
        if len(unrolled.names) > len(PRIMES):
            return ()
        sizes = dict(zip(sorted(unrolled.names), PRIMES, strict=False))
        sizes |= {REST: 0} if REST in sizes else {}
        known = {k: n for k, n in sizes.items() if k in given}
        known = unrolled.learn([(axis, size_of(axis, sizes)) for axes in unrolled.sources for axis in axes], known)
        return tuple(name for name in sizes if name not in known)

    def learn(self, pairs: Sequence[tuple[Axis, int]], given: Sizes, shapes: Sequence[Shape] = ()) -> dict[str, int]:
        """The sizes that follow from axes of known length, and those given."""
        sizes = dict(given)
        while any(self._learn(axis, n, sizes, shapes) for axis, n in pairs):
            pass
        return sizes

    def _learn(self, axis: Axis, n: int, sizes: dict[str, int], shapes: Sequence[Shape]) -> bool:
        """Derive the size of the one unknown name in an axis of length `n`; False unless exactly one is unknown."""
        names = unknown(axis, sizes)
        if len(names) == 2 and REST in names:
            names.remove(REST)
            sizes[names[0]] = largest(axis, names[0], n, {**sizes, REST: 0}) or 0
            return True
        if len(names) != 1 or (size := largest(axis, names[0], n, sizes)) is None:
            return False
        if size_of(axis, {**sizes, names[0]: size}) != n:
            raise self.fail(f"no size of {names[0]!r} gives an axis of length {n}", shapes, sizes)
        sizes[names[0]] = size
        return True

    def bound(self, shapes: Sequence[Shape], given: Sizes) -> Bound:
        """The layout for shapes: the size of every axis, also of those for which `...` stands, and its targets."""
        return _bind(self, tuple(shapes), tuple(sorted(given.items())))

    def apply(self, tensors: Sequence[Tensor], given: Sizes | None = None) -> list[tuple[Shape, tuple[Part, ...]]]:
        """The shape and the parts of every target; LayoutError if the shapes do not fit."""
        if self.noop:
            return [(t.shape, t.parts) for t in tensors]
        bound = self.bound([t.shape for t in tensors], given or {})
        parts: list[list[Part]] = [[] for _ in bound.targets]
        for k, tensor in enumerate(tensors):
            for p in tensor.parts:
                if 0 in p.shape:
                    continue
                for t, at, shape, strides, start, steps in pieces(bound, k, p.shape, p.strides, p.start, p.steps):
                    parts[t].append(Part(p.data, p.dtype, shape, p.offset + at, strides, start, steps, p.ops))
        return [(s, tuple(p) if prod(s) else _empty(s, tensors)) for s, p in zip(bound.targets, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class Bound:
    """A layout whose sizes are known: the shapes of its targets, and for each source its blocks.

    A block is its axis in the source, its target, and the block there.
    """

    layout: Layout
    sizes: dict[str, int]
    targets: tuple[Shape, ...]
    sources: list[list[tuple[Axis, int, Block]]]
    flips: frozenset[str]


@lru_cache(maxsize=4096)
def _bind(layout: Layout, shapes: tuple[Shape, ...], given: tuple[tuple[str, int], ...]) -> Bound:
    unrolled = layout.unrolled(shapes)
    sizes = unrolled.solve(shapes, dict(given))
    targets = tuple(tuple(size_of(a, sizes) for a in axes) for axes in unrolled.targets)
    for shape in targets:
        checked_count(shape)
    both = [[blocks(Prod(axes), 1, sizes) for axes in side] for side in (unrolled.sources, unrolled.targets)]
    places = {frozenset(b.strides): (t, b) for t, side in enumerate(both[1]) for b in side}
    sources = [[(b.axis, *places[frozenset(b.strides)]) for b in side] for side in both[0]]
    return Bound(layout, sizes, targets, sources, unrolled.flips)


@lru_cache(maxsize=4096)
def parse(text: str) -> Layout:
    """Parse a pattern; LayoutError unless both sides have the same blocks, each once."""
    both, ones = sides(text), defaultdict[str, int](lambda: 1)
    if any(count_blocks(Prod(axes)) > MAX_BLOCKS for side in both for axes in side):
        raise failed(text, f"has more than {MAX_BLOCKS} blocks")
    try:
        keys = [[frozenset(b.strides) for axes in side for b in blocks(Prod(axes), 1, ones)] for side in both]
    except LayoutError as e:
        raise failed(text, e.message) from None
    if any(len(set(found)) != len(found) for found in keys):
        raise failed(text, "two pieces have the same axes; write h.a and h.b")
    if odd := [" ".join(sorted(map(str, k))) or "1" for k in set(keys[0]) ^ set(keys[1])]:
        odd.sort()
        raise failed(text, f"only one side has the axes {' | '.join(odd)}")
    return Layout(text, *both)


@lru_cache(maxsize=1024)
def _unroll(layout: Layout, count: int) -> Layout:
    dots = tuple(f"~{i}" for i in range(count))

    def side(tensors: tuple[Axes, ...]) -> tuple[Axes, ...]:
        return tuple(tuple(x for a in axes for x in (dots if a == "..." else (a,))) for axes in tensors)

    flips = layout.flips.union(dots) if "..." in layout.flips else layout.flips
    return Layout(layout.text, side(layout.sources), side(layout.targets), flips)


def _empty(shape: Shape, tensors: Sequence[Tensor]) -> tuple[Part, ...]:
    """The one part of a tensor without elements, which records where the tensor came from."""
    steps = c_strides(shape)
    first = tensors[0].parts[:1]
    return tuple(p._replace(shape=shape, offset=0, strides=steps, start=0, steps=steps) for p in first)


# --- Divide boxes of a source into boxes that make constant steps in the targets: the arithmetic of layou ---


MAX_PIECES = 2**16  # of one part; only steps that do not divide one another need more, and no sensible layout has them

Shape = tuple[int, ...]


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
def pieces(bound: Bound, k: int, shape: Shape, strides: Shape, start: int, steps: Shape) -> tuple[Placed, ...]:
    """Cut one box of source `k` into boxes that make constant steps in the targets.

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
    for axis, target, block in bound.sources[k]:
        first = Affine(block.start, (0,) * len(shape))
        regions = [Region(shape, Affine(0, strides), first, ((Affine(start, steps), axis),))]
        while regions:
            region = regions.pop()
            if region.unresolved:
                regions += reversed(_resolve(region, bound, block.strides))
            elif (reverse := _backward(region)) is not None:
                regions += _halved(region, reverse)
            else:
                out.append((target, *_tidy(region)))
            if len(out) + len(regions) > MAX_PIECES:
                raise bound.layout.fail(f"needs more than {MAX_PIECES} pieces for one part; convert in two steps")
    return tuple(out)


def _tidy(region: Region) -> tuple[int, Shape, Shape, int, Shape]:
    """Drop axes of one element; put the axis with the widest step in the target first."""
    order = sorted((k for k, n in enumerate(region.counts) if n != 1), key=lambda k: -region.target.steps[k])
    axes = (region.counts, region.source.steps, region.target.steps)
    counts, strides, steps = (tuple(a[k] for k in order) for a in axes)
    return region.source.start, counts, strides, region.target.start, steps


def _backward(region: Region) -> int | None:
    """An axis that runs backward in the target, as the kernel of moves cannot; None if there is none."""
    return next((k for k, n in enumerate(region.counts) if n > 1 and region.target.steps[k] < 0), None)


def _halved(region: Region, k: int) -> list[Region]:
    """Both halves of axis k: in the end each of its indices is a region."""
    return _split_at_carry(region, k, region.counts[k] // 2, 0)


def _resolve(region: Region, bound: Bound, at: Strides) -> list[Region]:
    """Resolve the last coordinate by one level; several regions if it must be cut, none if it is outside the block."""
    *before, (value, node) = region.unresolved
    sizes = bound.sizes
    if isinstance(node, str):
        stride = at.get(node, 0)  # the literal 1 has none
        if base_of(node) in bound.flips:
            value = Affine(value.start - size_of(node, sizes) + 1, value.steps)
            stride = -stride
        steps = tuple(a + b * stride for a, b in zip(region.target.steps, value.steps, strict=True))
        made = Affine(region.target.start + value.start * stride, steps)
        return [region._replace(target=made, unresolved=tuple(before))]
    if isinstance(node, Term):
        low, high = node.start, node.start + size_of(node.axis, sizes)
        last = value.start + _reach(region.counts, value)
        if last < low or value.start >= high:
            return []
        if low <= value.start and last < high:
            return [region._replace(unresolved=(*before, (Affine(value.start - low, value.steps), node.axis)))]
        return _split_at_carry(region, *_crossing(region.counts, value, low if value.start < low else high), 0)
    if not isinstance(node, Prod) or not node.items:
        return [region._replace(unresolved=tuple(before))]
    below = Prod(node.items[1:])
    weight = size_of(below, sizes)
    rest = Affine(value.start % weight, tuple(s % weight for s in value.steps))
    if rest.start + _reach(region.counts, rest) < weight:
        top = Affine(value.start // weight, tuple(s // weight for s in value.steps))
        return [region._replace(unresolved=(*before, (rest, below), (top, node.items[0])))]
    axis, first = _crossing(region.counts, rest, weight)
    step = rest.steps[axis]
    period = weight // step if weight % step == 0 and rest.start < step else 0
    return _split_at_carry(region, axis, first, period)


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
