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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from ..errors import LayoutError
from ..messages import printable
from ..moves.part import Part, c_strides, checked_count
from .axes import (
    MAX_BLOCKS,
    REST,
    Axis,
    Parser,
    Prod,
    Sizes,
    alternatives,
    bases,
    blocks,
    choices,
    leaves,
    most,
    root,
    size_of,
    unknown,
)
from .pieces import Blocks, Shape, pieces

Axes = tuple[Axis, ...]
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


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
        sizes = {k: v for k, v in given.items() if k in self.names}
        pairs = [p for axes, shape in zip(self.sources, shapes, strict=True) for p in zip(axes, shape, strict=True)]
        while any(self._learn(axis, n, sizes, shapes) for axis, n in pairs):
            pass
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
        pairs = [(axis, size_of(axis, sizes)) for axes in unrolled.sources for axis in axes]
        while any(unrolled._learn(axis, n, known, ()) for axis, n in pairs):
            pass
        return tuple(name for name in sizes if name not in known)

    def _learn(self, axis: Axis, n: int, sizes: dict[str, int], shapes: Sequence[Shape]) -> bool:
        """Derive the size of the one unknown name in an axis of length `n`; False unless exactly one is unknown."""
        names = unknown(axis, sizes)
        if len(names) == 2 and REST in names:
            names.remove(REST)
            sizes[names[0]] = most(axis, names[0], n, {**sizes, REST: 0})
            return True
        if len(names) != 1 or (found := root(axis, names[0], n, sizes)) is None:
            return False
        if found < 0:
            raise self.fail(f"no size of {names[0]!r} gives an axis of length {n}", shapes, sizes)
        sizes[names[0]] = found
        return True

    def shapes(self, sizes: Sizes) -> tuple[Shape, ...]:
        """The shapes of the targets."""
        out = tuple(tuple(size_of(a, sizes) for a in axes) for axes in self.targets)
        for shape in out:
            checked_count(shape)
        return out

    def apply(self, tensors: Sequence[Tensor], given: Sizes | None = None) -> list[tuple[Shape, tuple[Part, ...]]]:
        """The shape and the parts of every target; LayoutError if the shapes do not fit."""
        if self.noop:
            return [(t.shape, t.parts) for t in tensors]
        bound = _bind(self, tuple(t.shape for t in tensors), tuple(sorted((given or {}).items())))
        parts: list[list[Part]] = [[] for _ in bound.targets]
        for source, tensor in zip(bound.sources, tensors, strict=True):
            for p in tensor.parts:
                if 0 in p.shape:
                    continue
                for t, at, shape, strides, start, steps in pieces(source, p.shape, p.strides, p.start, p.steps):
                    parts[t].append(Part(p.data, p.dtype, shape, p.offset + at, strides, start, steps, p.ops))
        return [(s, tuple(p) if prod(s) else _empty(s, tensors)) for s, p in zip(bound.targets, parts, strict=True)]


class Bound(NamedTuple):
    """A layout whose sizes are known."""

    sources: tuple[Blocks, ...]
    targets: tuple[Shape, ...]


@lru_cache(maxsize=4096)
def _bind(layout: Layout, shapes: tuple[Shape, ...], given: tuple[tuple[str, int], ...]) -> Bound:
    unrolled = layout.unrolled(shapes)
    sizes = unrolled.solve(shapes, dict(given))
    places = {}
    for t, axes in enumerate(unrolled.targets):
        for base, names in alternatives(Prod(axes), 1, sizes):
            places[frozenset(names)] = (t, base, names)
    key = (layout.text, shapes, given)
    sources = (Blocks(a, sizes, places, unrolled.fail, (*key, k)) for k, a in enumerate(unrolled.sources))
    return Bound(tuple(sources), unrolled.shapes(sizes))


@lru_cache(maxsize=4096)
def parse(text: str) -> Layout:
    """Parse a pattern; LayoutError unless both sides have the same blocks, each once."""
    parser = Parser(text)
    layout = Layout(text, *parser.sides())
    if any(blocks(Prod(axes)) > MAX_BLOCKS for side in (layout.sources, layout.targets) for axes in side):
        raise parser.fail(f"has more than {MAX_BLOCKS} blocks")
    keys = [[k for axes in side for _, k in choices(Prod(axes))] for side in (layout.sources, layout.targets)]
    for side in (layout.sources, layout.targets):
        for axes in side:
            flat = leaves(axes)
            if len(flat) != len(set(flat)):
                raise parser.fail("an axis stands twice in one tensor; write h.a and h.b")
    for found in keys:
        if len(set(found)) != len(found):
            raise parser.fail("two pieces have the same axes; write h.a and h.b")
    if set(keys[0]) != set(keys[1]):
        odd = sorted(" ".join(sorted(map(str, k))) or "1" for k in set(keys[0]) ^ set(keys[1]))
        raise parser.fail(f"only one side has the axes {' | '.join(odd)}")
    return layout


@lru_cache(maxsize=1024)
def _unroll(layout: Layout, count: int) -> Layout:
    dots = tuple(f"~{i}" for i in range(count))

    def side(tensors: tuple[Axes, ...]) -> tuple[Axes, ...]:
        return tuple(tuple(x for a in axes for x in (dots if a == "..." else (a,))) for axes in tensors)

    return Layout(layout.text, side(layout.sources), side(layout.targets))


def _empty(shape: Shape, tensors: Sequence[Tensor]) -> tuple[Part, ...]:
    """The one part of a tensor without elements, which records where the tensor came from."""
    steps = c_strides(shape)
    first = tensors[0].parts[:1]
    return tuple(p._replace(shape=shape, offset=0, strides=steps, start=0, steps=steps) for p in first)
