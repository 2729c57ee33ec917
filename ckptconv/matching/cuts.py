"""Layouts of tensors that are cut or joined, and what no shape shows; values prove one of them.

kernel [48, 7] -> weight [7, 48]                  (a b) o -> o (b a)        flattened the other way
kernel [4, 12] -> weight_ih [12, 4]               gates in another order
qkv [16, 48] -> q, k, v [16, 16]                  a (n.0 + n.1 + n.2) -> n.0 a, n.1 a, n.2 a
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from math import prod

from .orders import LETTERS, Order, Shape, simple, suffixed, tokens

MAX_DIVISORS = 64


def hidden(a: Shape, b: Shape) -> Iterator[Order]:
    """Gates in another order, axes flattened the other way round: no shape shows them."""
    if len(a) != len(b) or not a or len(a) > 3:
        return
    names = LETTERS[: len(a)]
    for order in permutations(range(len(a))):
        if tuple(a[k] for k in order) != b:
            continue
        for k, n in enumerate(a):
            for whole, parts in _gates(names[k], n):
                yield _replaced(names, order, k, whole, parts, ())
            for d in divisors(n):
                x, y = f"{names[k]}x", f"{names[k]}y"
                yield _replaced(names, order, k, f"({x} {y})", f"({y} {x})", ((y, d),))


def _replaced(
    names: str, order: Iterable[int], k: int, left: str, right: str, sizes: tuple[tuple[str, int], ...]
) -> Order:
    before = [left if i == k else x for i, x in enumerate(names)]
    after = [right if i == k else names[i] for i in order]
    return Order(f"{' '.join(before)} -> {' '.join(after)}", sizes)


def _gates(name: str, n: int) -> Iterator[tuple[str, str]]:
    """Blocks of one length in all other orders: (h.0 + h.1 + h.2), (h.1 + h.0 + h.2)."""
    for count in (4, 3, 2):
        if n % count == 0 and n > count:
            terms = [f"{name}.{i}" for i in range(count)]
            for other in list(permutations(terms))[1:]:
                yield f"({' + '.join(terms)})", f"({' + '.join(other)})"


def divisors(n: int) -> list[int]:
    """The divisors of a number but 1 and itself; few of them if there are many."""
    found = [d for d in range(2, int(n**0.5) + 1) if n % d == 0]
    return sorted({*found, *(n // d for d in found)})[:MAX_DIVISORS]


def split(whole: Shape, parts: Sequence[Shape]) -> Iterator[Order]:
    """Layouts that cut one tensor into several as they follow each other; gates inside may be reordered.

    One part may have an axis less: it is one row of the axis that is cut.
    """
    rank = len(whole)
    lone = [len(p) == rank - 1 for p in parts]
    if (
        rank not in (1, 2, 3)
        or sum(lone) > 1
        or any(len(p) != rank for p, row in zip(parts, lone, strict=True) if not row)
    ):
        return
    names = LETTERS[:rank]
    for turn in permutations(range(rank)):
        for axis in range(rank):
            sizes = _sizes_along(whole, parts, turn, axis)
            if sizes is not None:
                row = [0 if alone else n for n, alone in zip(sizes, lone, strict=True)]
                for gates in _with_gates(names, whole, axis):
                    yield _cut(names, turn, axis, row, gates)


def _sizes_along(whole: Shape, parts: Sequence[Shape], turn: Sequence[int], axis: int) -> list[int] | None:
    """How long each part is along an axis of the whole, whose axes are turned in the parts; None if they do not fit."""
    at = turn.index(axis)
    full = [(*p[:at], 1, *p[at:]) if len(p) < len(whole) else p for p in parts]
    sizes = [p[at] for p in full]
    rest = {(*p[:at], *p[at + 1 :]) for p in full}
    fits = sum(sizes) == whole[axis] and rest == {tuple(whole[k] for k in turn if k != axis)}
    return sizes if fits else None


def concatenated(whole: Shape, part: Shape, axis: int, count: int, heads: int) -> Iterator[Order]:
    """Layouts that cut an axis into equal parts; with several heads, each head holds a block of every part.

    i (q + k + v) -> i q, i k, i v         one behind the other
    i (n (q + k + v)) -> i (n q), ...      interleaved per head
    """
    length = whole[axis] // count
    if heads == 1:
        if len(part) == len(whole):
            yield from split(whole, [part] * count)
        yield from _merged_parts(whole, part, axis, count)
        return
    turned = (*whole[:axis], length, *whole[axis + 1 :])
    names = LETTERS[: len(whole)]
    for order in permutations(range(len(whole))):
        if tuple(turned[k] for k in order) == part:
            blocks = [f"y.{i}" for i in range(count)]
            left = " ".join(f"(x ({' + '.join(blocks)}))" if k == axis else n for k, n in enumerate(names))
            rights = [" ".join(f"(x {b})" if k == axis else names[k] for k in order) for b in blocks]
            yield Order(f"{left} -> {', '.join(rights)}", (("x", heads),))


def _merged_parts(whole: Shape, part: Shape, axis: int, count: int) -> Iterator[Order]:
    """Equal parts whose axes are merged in the whole: h d i, h d i, h d i <- i (h d + h d + h d)."""
    for order in simple((*whole[:axis], whole[axis] // count, *whole[axis + 1 :]), part):
        if len(part) == len(whole) or not order.text:
            continue
        left, _, right = order.text.partition("->")
        words = tokens(left)
        inside = re.findall("[a-z]", words[axis])
        named = [suffixed(words[axis].strip("()"), inside, i) for i in range(count)]
        text = " ".join([*words[:axis], f"({' + '.join(named)})", *words[axis + 1 :]])
        rights = [suffixed(right.strip(), inside, i) for i in range(count)]
        yield Order(f"{text} -> {', '.join(rights)}", order.sizes)


def _with_gates(names: str, whole: Shape, axis: int) -> Iterator[dict[int, tuple[str, str]]]:
    yield {}
    for k, n in enumerate(whole):
        if k != axis:
            for pair in _gates(names[k], n):
                yield {k: pair}


def _cut(names: str, turn: Sequence[int], axis: int, sizes: Sequence[int], gates: dict[int, tuple[str, str]]) -> Order:
    """The layout; a piece of size 0 is one row whose axis is gone."""
    same = len(set(sizes)) == 1
    terms = [f"n.{i}" if same else f"n{i}" if n else "1" for i, n in enumerate(sizes)]
    left = [f"({' + '.join(terms)})" if k == axis else gates.get(k, (x, x))[0] for k, x in enumerate(names)]
    rights = [
        " ".join(t if k == axis else gates.get(k, (names[k],) * 2)[1] for k in turn if k != axis or t != "1")
        for t in terms
    ]
    known = () if same else tuple((f"n{i}", n) for i, n in enumerate(sizes) if n)[: len(sizes) - 1 - (0 in sizes)]
    return Order(f"{' '.join(left)} -> {', '.join(rights)}", known)


def stacked(whole: Shape, part: Shape, name: str, axis: int) -> Iterator[Order]:
    """Layouts of each slice along an axis that the parts have not (`name`, of {name*} in their names)."""
    rest = whole[:axis] + whole[axis + 1 :]
    if prod(rest) == prod(part):
        yield from (within(order, len(rest), name, axis) for order in (*simple(rest, part), *hidden(rest, part)))


def within(order: Order, rank: int, name: str, axis: int) -> Order:
    """The order of slices of `rank` axes as one of the whole, whose axis `axis` is called `name`."""
    text = order.text or f"{' '.join(LETTERS[:rank])} -> {' '.join(LETTERS[:rank])}"
    left, _, right = text.partition("->")
    words = tokens(left)
    return Order(f"{' '.join([*words[:axis], name, *words[axis:]])} -> {right.strip()}".strip(), order.sizes)


def every_layer(order: Order, axis: int, *, left: bool, name: str = "e") -> Order:
    """The order of one layer as that of all: the tensors of one side have their layers along an axis."""
    both = [side.split(",") for side in order.text.split("->")]
    k = 0 if left else 1
    words = [tokens(t) for t in both[k]]
    both[k] = [" ".join([*w[:axis], name, *w[axis:]]) for w in words]
    sides = [", ".join(t.strip() for t in side) for side in both]
    return Order(f"{sides[0]} -> {sides[1]}", order.sizes)


def subsets(count: int, sizes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Index sets of the given sizes."""
    for size in sizes:
        yield from combinations(range(count), size)
