"""The axes of a pattern: parse them, size them, list their blocks. Pure; see layout.py for the language.

    side := tensor {"," tensor}      tensor := {axis}      axis := NAME | "1" | "..." | "(" {axis} {"+" {axis}} ")"

An axis is a leaf (a name, or 1), a product of axes, or a sum of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from ..errors import LayoutError

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
Sizes = Mapping[str, int]
REST = "rest"  # a name whose size is what the others leave over
ONE = "1"  # an axis without information


# --- parsing ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"->|\.\.\.|[(),+]|1(?![0-9])|[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)?|(?P<odd>\S+)")


class Parser:
    """The parser of one pattern; every error quotes the pattern."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.tokens = text, 0, list[str]()
        if len(text) > MAX_PATTERN:
            raise LayoutError(f"layout {text[:60]!r}... is longer than {MAX_PATTERN} characters")
        for m in _TOKEN.finditer(text):
            if m["odd"]:
                raise self.fail(f"{m['odd']!r} is not an axis name, or one of 1 ( ) + , -> ...; give sizes in `sizes`")
            self.tokens.append(m[0])

    def fail(self, why: str) -> LayoutError:
        return LayoutError(f"layout {self.text!r}: {why}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def sides(self) -> tuple[tuple[tuple[Axis, ...], ...], ...]:
        if self.tokens.count("->") != 1:
            raise self.fail("needs one `->`")
        left = self.side()
        self.at += 1
        right = self.side()
        if self.peek():
            raise self.fail(f"{self.peek()!r} is left over")
        return left, right

    def side(self) -> tuple[tuple[Axis, ...], ...]:
        out = [tuple(self.axes(0))]
        while self.peek() == ",":
            self.at += 1
            out.append(tuple(self.axes(0)))
        return tuple(out)

    def axes(self, depth: int) -> list[Axis]:
        out: list[Axis] = []
        while (token := self.peek()) not in ("", "->", ",", ")", "+"):
            self.at += 1
            if token == "..." and depth:
                raise self.fail("`...` must stand outside parentheses")
            out.append(self.group(depth + 1) if token == "(" else token)
        return out

    def group(self, depth: int) -> Axis:
        if depth > MAX_DEPTH:
            raise self.fail(f"has more than {MAX_DEPTH} nested parentheses")
        terms: list[Axis] = []
        while not terms or self.tokens[self.at - 1] == "+":
            items = self.axes(depth)
            terms.append(items[0] if len(items) == 1 else Prod(tuple(items)))
            if self.peek() not in (")", "+"):
                raise self.fail("has an open parenthesis")
            self.at += 1
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


def root(node: Axis, name: str, value: int, sizes: dict[str, int]) -> int | None:
    """The size of `name` with which `node` has length `value`; None if any size will do, -1 if none will."""
    if size_of(node, {**sizes, name: 0}) == size_of(node, {**sizes, name: 1}):
        return None
    low, high = 0, value  # bisection: a length does not decrease with any of its axes
    while low < high:
        middle = (low + high) // 2
        if size_of(node, {**sizes, name: middle}) < value:
            low = middle + 1
        else:
            high = middle
    return low if size_of(node, {**sizes, name: low}) == value else -1


def most(node: Axis, name: str, value: int, sizes: Sizes) -> int:
    """The largest size of `name` with which `node` is at most `value` long."""
    least = size_of(node, {**sizes, name: 0})
    step = size_of(node, {**sizes, name: 1}) - least
    return max(value - least, 0) // step if step else 0


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
    picks = product(*inner[::-1])
    return [
        Block(sum(b.start for b in p), {k: v for b in p for k, v in b.strides.items()}, Prod(tuple(b.axis for b in p)))
        for p in picks
    ]


def count_blocks(node: Axis) -> int:
    """The number of blocks of an axis."""
    if isinstance(node, Sum):
        return sum(map(count_blocks, node.terms))
    return prod(map(count_blocks, node.items)) if isinstance(node, Prod) else 1


def leaves(axes: Sequence[Axis]) -> list[str]:
    """All leaves except 1; one that occurs in several terms of a sum counts once (the terms are different blocks)."""
    out: list[str] = []
    for a in axes:
        if isinstance(a, str):
            out += [a] * (a != ONE)
        elif isinstance(a, Prod):
            out += leaves(a.items)
        elif isinstance(a, Sum):
            out += set().union(*(set(leaves([t])) for t in a.terms))
    return out
