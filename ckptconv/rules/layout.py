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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, product
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..messages import printable
from ..moves.part import Digit, Part, Place, Shape, c_strides, checked_count, moved

MAX_PATTERN = 1000  # characters
MAX_DEPTH = 8  # of parentheses
MAX_BLOCKS = 1024  # of one tensor: sums multiply


class Prod(NamedTuple):
    items: tuple[Axis, ...]


class Sum(NamedTuple):
    terms: tuple[Axis, ...]


Axis = str | Prod | Sum
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
    return set().union(*map(bases, node[0]))


def size_of(node: Axis, sizes: Sizes) -> int:
    """The length of an axis whose sizes are all known."""
    if isinstance(node, str):
        return 1 if node == ONE else sizes[base_of(node)]
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


class Leaf(NamedTuple):
    """An axis of a block: after `offset` elements, its own are `stride` apart."""

    name: str
    offset: int
    stride: int


Block = tuple[Leaf, ...]  # one choice of a term in every sum of an axis; outer leaves first


def blocks(node: Axis, stride: int, sizes: Sizes) -> list[Block]:
    """All blocks of an axis whose elements are `stride` apart."""
    if isinstance(node, str):
        return [(Leaf(node, 0, stride),)]
    out, at = list[Block](), 0
    if isinstance(node, Sum):
        for term in node.terms:
            for first, *rest in blocks(term, stride, sizes):
                out.append((first._replace(offset=first.offset + at * stride), *rest))
            at += size_of(term, sizes)
        return out
    inner = []
    for item in reversed(node.items or (ONE,)):
        inner.append(blocks(item, stride, sizes))
        stride *= size_of(item, sizes)
    if prod(map(len, inner)) > MAX_BLOCKS:
        raise LayoutError(f"has more than {MAX_BLOCKS} blocks")
    for picks in product(*inner[::-1]):
        block = tuple(chain(*picks))
        if len(names(block)) < sum(leaf.name != ONE for leaf in block):
            raise LayoutError("an axis stands twice in one tensor; write h.a and h.b")
        out.append(block)
    return out


def names(block: Block) -> frozenset[str]:
    """The axes of a block, by which it is known."""
    return frozenset(leaf.name for leaf in block) - {ONE}


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
        try:
            for tensor, source in zip(tensors, bound.sources, strict=True):
                for p in (p for p in tensor.parts if 0 not in p.shape):
                    for k, made in moved(p, source):
                        parts[k].append(made)
        except LayoutError as e:
            raise self.fail(e.message) from None
        return [(s, tuple(p) if prod(s) else _empty(s, tensors)) for s, p in zip(bound.targets, parts, strict=True)]


class Bound(NamedTuple):
    """A layout whose sizes are known: the shapes of its targets, and for each source its blocks.

    A block is its target, and where the elements of the source lie there: see moves.part.
    """

    sizes: dict[str, int]
    targets: tuple[Shape, ...]
    sources: list[tuple[Place, ...]]


@lru_cache(maxsize=4096)
def _bind(layout: Layout, shapes: tuple[Shape, ...], given: tuple[tuple[str, int], ...]) -> Bound:
    unrolled = layout.unrolled(shapes)
    sizes = unrolled.solve(shapes, dict(given))
    targets = tuple(tuple(size_of(a, sizes) for a in axes) for axes in unrolled.targets)
    for shape in targets:
        checked_count(shape)
    both = [[blocks(Prod(axes), 1, sizes) for axes in side] for side in (unrolled.sources, unrolled.targets)]
    places = {names(b): (t, b) for t, side in enumerate(both[1]) for b in side}

    def placed(block: Block) -> Place:
        target, there = places[names(block)]
        start, steps, digits = sum(leaf.offset for leaf in there), {leaf.name: leaf.stride for leaf in there}, []
        for name, offset, stride in block:
            count, step = size_of(name, sizes), steps.get(name, 0)  # the literal 1 has none
            if base_of(name) in unrolled.flips:
                start, step = start + (count - 1) * step, -step
            digits.append(Digit(offset, stride, count, step))
        return target, start, tuple(digits)

    return Bound(sizes, targets, [tuple(map(placed, side)) for side in both[0]])


@lru_cache(maxsize=4096)
def parse(text: str) -> Layout:
    """Parse a pattern; LayoutError unless both sides have the same blocks, each once."""
    both, ones = sides(text), defaultdict[str, int](lambda: 1)
    try:
        keys = [[names(b) for axes in side for b in blocks(Prod(axes), 1, ones)] for side in both]
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
