"""The axes of a pattern: parse them, size them, list their blocks. Pure; see layout.py for the language.

    side := tensor {"," tensor}      tensor := {axis}      axis := NAME | "1" | "..." | "(" {axis} {"+" {axis}} ")"

An axis is a leaf (a name, or 1), a product of axes, or a sum of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
