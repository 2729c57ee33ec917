"""Axis patterns: how the axes of tensors move, and nothing else. Pure; no tensor is read.

    h w i o -> o i h w                   a permutation
    (h w c) o -> o (c h w)               a product axis, taken apart and put together otherwise
    i (q + k + v) -> q i, k i, v i       a concatenated axis, split over several tensors
    x (h.i + h.j + h.f) -> (h.i + h.f + h.j) x     `h.i` is as long as `h`: one unknown, three blocks
    1 1 n -> n        ... i o -> o i ...        axes of size one come and go; `...` is any number of axes

In the manner of einops and einx. Sizes follow from the shapes, and from `sizes` where they cannot. Each side lists
blocks (one per choice of a term in every sum); a block is known by the set of its axes, so both sides must list the
same sets. A move is a piece of a source (tensor.Part) whose every axis makes a constant step in its target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..moves.part import Part, c_strides, elements
from .axes import (
    MAX_BLOCKS,
    Axis,
    Prod,
    Reader,
    Sizes,
    Strides,
    Sum,
    alternatives,
    bases,
    blocks,
    choices,
    leaves,
    root,
    size_of,
    unknown,
)

MAX_PIECES = 2**16  # of one part: more means steps that do not divide, never a sensible layout

Shape = tuple[int, ...]
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Layout:
    """A parsed pattern; `inverse` swaps its sides."""

    text: str
    sources: tuple[Axes, ...]
    targets: tuple[Axes, ...]

    @cached_property
    def inverse(self) -> Layout:
        left, right = self.text.split("->")
        return parse(f"{right.strip()} -> {left.strip()}")

    @property
    def noop(self) -> bool:
        """True if nothing moves: both sides are the same."""
        return self.sources == self.targets

    @property
    def names(self) -> set[str]:
        """The names of axes whose sizes may be given."""
        return {b for side in self.sources for axis in side for b in bases(axis) if b[0] not in "#."}

    def fail(self, why: str, shapes: Sequence[Shape] = (), sizes: Sizes | None = None) -> LayoutError:
        text = f"layout {self.text!r}"
        if shapes:
            text += f" on {', '.join(str(list(s)) for s in shapes)}"
        if sizes:
            text += f" with {', '.join(f'{k}={v}' for k, v in sizes.items() if k[0] != '~')}"
        return LayoutError(f"{text}: {why}")

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
                raise self.fail(f"has {len(axes)} axes where the tensor has {len(shape)}", shapes)
        sizes = {k: v for k, v in given.items() if k in self.names}
        pairs = [p for axes, shape in zip(self.sources, shapes, strict=True) for p in zip(axes, shape, strict=True)]
        while any(self._learn(axis, n, sizes, shapes) for axis, n in pairs):
            pass
        for axis, n in pairs:
            if missing := unknown(axis, sizes):
                why = f"the shapes do not tell the size of {', '.join(missing)}; give it in `sizes`"
                raise self.fail(why, shapes, sizes)
            if size_of(axis, sizes) != n:
                raise self.fail(f"an axis of {n} would have to be {size_of(axis, sizes)}", shapes, sizes)
        return sizes

    def _learn(self, axis: Axis, n: int, sizes: dict[str, int], shapes: Sequence[Shape]) -> bool:
        """Add the one size that an axis of `n` tells, if it does."""
        names = unknown(axis, sizes)
        if len(names) != 1 or (found := root(axis, names[0], n, sizes)) is None:
            return False
        if found < 0:
            raise self.fail(f"no size of {names[0]!r} gives an axis of {n}", shapes, sizes)
        sizes[names[0]] = found
        return True

    def shapes(self, sizes: Sizes) -> tuple[Shape, ...]:
        """The shapes of the targets."""
        out = tuple(tuple(size_of(a, sizes) for a in axes) for axes in self.targets)
        for shape in out:
            elements(shape)
        return out

    def apply(self, tensors: Sequence[Tensor], given: Sizes | None = None) -> list[tuple[Shape, tuple[Part, ...]]]:
        """The shape and the parts of every target; LayoutError if the shapes do not fit."""
        if self.noop:
            return [(t.shape, t.parts) for t in tensors]
        bound = _bind(self, tuple(t.shape for t in tensors), tuple(sorted((given or {}).items())))
        parts: list[list[Part]] = [[] for _ in bound.targets]
        for i, tensor in enumerate(tensors):
            for p in tensor.parts:
                if 0 in p.shape:
                    continue
                for t, at, shape, strides, start, steps in _pieces(bound, i, p.shape, p.strides, p.start, p.steps):
                    parts[t].append(Part(p.data, p.dtype, shape, p.offset + at, strides, start, steps, p.ops))
        return [(s, tuple(p) if prod(s) else _empty(s, tensors)) for s, p in zip(bound.targets, parts, strict=True)]


class Bound(NamedTuple):
    """A layout whose sizes are known: `places` says for each block its target, where it starts there, its strides."""

    layout: Layout
    sizes: dict[str, int]
    targets: tuple[Shape, ...]
    places: dict[frozenset[str], tuple[int, int, Strides]]
    key: tuple[object, ...]

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bound) and self.key == other.key


@lru_cache(maxsize=4096)
def _bind(layout: Layout, shapes: tuple[Shape, ...], given: tuple[tuple[str, int], ...]) -> Bound:
    unrolled = layout.unrolled(shapes)
    sizes = unrolled.solve(shapes, dict(given))
    places = {}
    for t, axes in enumerate(unrolled.targets):
        for base, names in alternatives(Prod(axes), 1, sizes):
            places[frozenset(names)] = (t, base, names)
    return Bound(unrolled, sizes, unrolled.shapes(sizes), places, (layout.text, shapes, given))


@lru_cache(maxsize=4096)
def parse(text: str) -> Layout:
    """Read a pattern; LayoutError unless both sides list the same blocks, each once."""
    reader = Reader(text)
    layout = Layout(text, *reader.sides())
    if any(blocks(Prod(axes)) > MAX_BLOCKS for side in (layout.sources, layout.targets) for axes in side):
        raise reader.fail(f"has more than {MAX_BLOCKS} blocks")
    keys = [[k for axes in side for _, k in choices(Prod(axes))] for side in (layout.sources, layout.targets)]
    for side in (layout.sources, layout.targets):
        for axes in side:
            flat = leaves(axes)
            if len(flat) != len(set(flat)):
                raise reader.fail("an axis stands twice in one tensor; tell them apart as h.a and h.b")
    for found in keys:
        if len(set(found)) != len(found):
            raise reader.fail("two pieces have the same axes; tell them apart as h.a and h.b")
    if set(keys[0]) != set(keys[1]):
        odd = sorted(" ".join(sorted(k)) or "1" for k in set(keys[0]) ^ set(keys[1]))
        raise reader.fail(f"only one side has the axes {' | '.join(odd)}".replace("#", ""))
    return layout


@lru_cache(maxsize=1024)
def _unroll(layout: Layout, count: int) -> Layout:
    dots = tuple(f"~{i}" for i in range(count))

    def side(tensors: tuple[Axes, ...]) -> tuple[Axes, ...]:
        return tuple(tuple(x for a in axes for x in (dots if a == "..." else (a,))) for axes in tensors)

    return Layout(layout.text, side(layout.sources), side(layout.targets))


def _empty(shape: Shape, tensors: Sequence[Tensor]) -> tuple[Part, ...]:
    """The one part of a tensor without elements: it says where the tensor came from."""
    steps = c_strides(shape)
    first = tensors[0].parts[:1]
    return tuple(p._replace(shape=shape, offset=0, strides=steps, start=0, steps=steps) for p in first)


# --- pieces -----------------------------------------------------------------------------------------------------


class Affine(NamedTuple):
    """start + sum(index[k] * steps[k]) over the axes of a piece."""

    start: int
    steps: Shape


class Box(NamedTuple):
    """A piece on its way: its axes, where it lies in the data and in the target so far, and what is still to be told.

    `todo` holds coordinates and the axes over which they run: at first the flat C-order index of the source.
    """

    counts: Shape
    src: Affine
    dst: Affine
    todo: tuple[tuple[Affine, Axis], ...]


Piece = tuple[int, int, Shape, Shape, int, Shape]  # target, source offset, shape, strides, start, steps


@lru_cache(maxsize=4096)
def _pieces(bound: Bound, source: int, shape: Shape, strides: Shape, start: int, steps: Shape) -> tuple[Piece, ...]:
    """Cut one box of a source into boxes that make constant steps in the targets.

    A box is any affine set of flat C-order indices of its tensor: a partition, a view, or what another layout made.
    """
    out: list[Piece] = []
    for block, names in choices(Prod(bound.layout.sources[source])):
        target, base, at = bound.places[names]
        todo = [Box(shape, Affine(0, strides), Affine(base, (0,) * len(shape)), ((Affine(start, steps), block),))]
        while todo:
            box = todo.pop()
            if box.todo:
                todo += reversed(_step(box, bound.sizes, at))
            else:
                out.append((target, *_tidy(box)))
            if len(out) + len(todo) > MAX_PIECES:
                raise bound.layout.fail(f"needs more than {MAX_PIECES} pieces for one part; convert in two steps")
    return tuple(out)


def _tidy(box: Box) -> tuple[int, Shape, Shape, int, Shape]:
    """Drop axes of one element; the widest step in the target first."""
    order = sorted((k for k, n in enumerate(box.counts) if n != 1), key=lambda k: -box.dst.steps[k])
    counts, strides, steps = (tuple(a[k] for k in order) for a in (box.counts, box.src.steps, box.dst.steps))
    return box.src.start, counts, strides, box.dst.start, steps


def _step(box: Box, sizes: Sizes, at: Strides) -> list[Box]:
    """Tell one coordinate further, or cut the box where it would carry; nothing is left of it outside its block."""
    *before, (value, node) = box.todo
    if isinstance(node, str):
        stride = at.get(node, 0)  # the axis 1 has none
        steps = tuple(a + b * stride for a, b in zip(box.dst.steps, value.steps, strict=True))
        return [box._replace(dst=Affine(box.dst.start + value.start * stride, steps), todo=tuple(before))]
    if isinstance(node, Sum):  # of the terms before, the one of this block, and the terms after
        low, term = _whole(node.terms[0], sizes, sum), node.terms[1]
        high = low + _whole(term, sizes)
        last = value.start + _reach(box.counts, value)
        if last < low or value.start >= high:
            return []
        if low <= value.start and last < high:
            return [box._replace(todo=(*before, (Affine(value.start - low, value.steps), term)))]
        return _cut(box, *_crossing(box.counts, value, low if value.start < low else high), 0)
    if not node.items:
        return [box._replace(todo=tuple(before))]
    below = Prod(node.items[1:])
    weight = _whole(below, sizes)
    rest = Affine(value.start % weight, tuple(s % weight for s in value.steps))
    if rest.start + _reach(box.counts, rest) < weight:
        top = Affine(value.start // weight, tuple(s // weight for s in value.steps))
        return [box._replace(todo=(*before, (rest, below), (top, node.items[0])))]
    axis, first = _crossing(box.counts, rest, weight)
    step = rest.steps[axis]
    return _cut(box, axis, first, weight // step if weight % step == 0 and rest.start < step else 0)


def _whole(node: Axis, sizes: Sizes, total: Callable[[Iterable[int]], int] = prod) -> int:
    """The size of an axis of a block, where a sum stands for all its terms."""
    if isinstance(node, str):
        return size_of(node, sizes)
    if isinstance(node, Prod):
        return total(_whole(n, sizes) if total is prod else size_of(n, sizes) for n in node.items)
    before, term, after = node.terms
    return _whole(before, sizes, sum) + _whole(term, sizes) + _whole(after, sizes, sum)


def _reach(counts: Shape, value: Affine) -> int:
    """How far a coordinate gets above its start."""
    return sum((n - 1) * s for n, s in zip(counts, value.steps, strict=True))


def _crossing(counts: Shape, value: Affine, bound: int) -> tuple[int, int]:
    """Which axis to cut, and before which of its indices."""
    order = sorted((k for k, n in enumerate(counts) if n > 1 and value.steps[k]), key=lambda k: -value.steps[k])
    for k in order:
        first = -(-(bound - value.start) // value.steps[k])
        if 0 < first < counts[k]:
            return k, first
    return order[0], counts[order[0]] // 2  # no axis crosses by itself


def _cut(box: Box, k: int, first: int, period: int) -> list[Box]:
    """Cut axis k in two; fold it into rows of `period` if it crosses again and again."""
    n, counts = box.counts[k], box.counts
    if period and n % period == 0:
        rows = (*counts[:k], period, *counts[k + 1 :], n // period)
        return [_each(box, rows, lambda v: Affine(v.start, (*v.steps, v.steps[k] * period)))]
    first = n // period * period if period else first
    ahead = (*counts[:k], n - first, *counts[k + 1 :])
    return [
        box._replace(counts=(*counts[:k], first, *counts[k + 1 :])),
        _each(box, ahead, lambda v: Affine(v.start + v.steps[k] * first, v.steps)),
    ]


def _each(box: Box, counts: Shape, change: Callable[[Affine], Affine]) -> Box:
    return Box(counts, change(box.src), change(box.dst), tuple((change(v), n) for v, n in box.todo))
