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
from bisect import bisect_right
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


def failed(text: str, why: str, given: str = "") -> LayoutError:
    return LayoutError(f"layout {printable(text)!r}{given}: {why}")


def _tensor(text: str, part: str) -> Axes:
    """The axes of one tensor; what stands in parentheses, the innermost first, is an axis called #0, #1, ..."""
    groups = dict[str, Axis]()

    def axes(inner: str) -> Axes:
        return tuple(groups.get(m[0], m[0]) for m in _TOKEN.finditer(inner))

    def group(m: re.Match[str]) -> str:
        if "..." in m[1]:
            raise failed(text, "`...` must stand outside parentheses")
        terms = tuple(items[0] if len(items := axes(term)) == 1 else Prod(items) for term in m[1].split("+"))
        name = f"#{len(groups)}"
        groups[name] = terms[0] if len(terms) == 1 else Sum(terms)
        return f" {name} "

    for _ in range(MAX_DEPTH):
        part = re.sub(r"\(([^()]*)\)", group, part)
    if odd := re.search("[()+]", part):
        raise failed(text, f"{odd[0]!r} is left over")
    return axes(part)


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
    # a length does not decrease with any of its axes
    return max(bisect_right(range(value + 1), value, key=lambda n: size_of(node, {**sizes, name: n})) - 1, 0)


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

MAX_LEARNT = 20  # axes of a layout of which lint says what is not determined


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

    def fail(self, why: str, sizes: Sizes | None = None) -> LayoutError:
        given = ", ".join(f"{k}={v}" for k, v in (sizes or {}).items() if k[0] != "~")
        return failed(self.text, why, f" with {given}" * bool(given))

    def unrolled(self, shapes: Sequence[Shape]) -> Layout:
        """Replace `...` by as many axes as the shapes have."""
        counts = {len(s) - len(t) + 1 for t, s in zip(self.sources, shapes, strict=False) if "..." in t}
        if not counts:
            return self
        if len(counts) > 1 or min(counts) < 0:
            raise self.fail("`...` must stand for the same number of axes everywhere")
        return _unroll(self, counts.pop())

    def undetermined(self, given: Collection[str] = ()) -> tuple[str, ...]:
        """The axes whose sizes the shapes of the sources do not give, nor `given`: tried with sizes of 2."""
        unrolled = _unroll(self, 0)
        sizes = {name: 0 if name == REST else 2 for name in sorted(unrolled.names)}
        if len(sizes) > MAX_LEARNT:
            return ()
        known = {k: n for k, n in sizes.items() if k in given}
        known = unrolled.learn([(axis, size_of(axis, sizes)) for axes in unrolled.sources for axis in axes], known)
        return tuple(name for name in sizes if name not in known)

    def learn(self, pairs: Sequence[tuple[Axis, int]], given: Sizes) -> dict[str, int]:
        """The sizes that follow from axes of known length, each while one name in it is unknown, and those given."""
        sizes, known = dict(given), -1
        while known != len(sizes):
            known = len(sizes)
            for axis, n in pairs:
                names = unknown(axis, sizes)
                if len(names) == 2 and REST in names:
                    names.remove(REST)
                    sizes[names[0]] = largest(axis, names[0], n, {**sizes, REST: 0}) or 0
                elif len(names) == 1 and (size := largest(axis, names[0], n, sizes)) is not None:
                    if size_of(axis, {**sizes, names[0]: size}) != n:
                        raise self.fail(f"no size of {names[0]!r} gives an axis of length {n}", sizes)
                    sizes[names[0]] = size
        return sizes

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
    if len(shapes) != len(layout.sources):
        raise layout.fail(f"takes {len(layout.sources)} tensors, not {len(shapes)}")
    unrolled = layout.unrolled(shapes)
    pairs = list[tuple[Axis, int]]()
    for axes, shape in zip(unrolled.sources, shapes, strict=True):
        if len(axes) != len(shape):
            raise layout.fail(f"has {len(axes)} axes, the tensor has {len(shape)}")
        pairs += zip(axes, shape, strict=True)
    sizes = unrolled.learn(pairs, {k: v for k, v in given if k in unrolled.names})
    for axis, n in pairs:
        if missing := unknown(axis, sizes):
            raise layout.fail(f"the shapes do not give the size of {', '.join(missing)}; give it in `sizes`", sizes)
        if size_of(axis, sizes) != n:
            raise layout.fail(f"an axis of length {n} would have to be {size_of(axis, sizes)} long", sizes)
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
