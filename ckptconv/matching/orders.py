"""How the axes of one tensor may become those of another: what conventions say first, then all that shapes allow.

kernel [3, 3, 8, 16] -> weight [16, 8, 3, 3]      h w i o -> o i h w        a convention
w [5, 5] -> w [5, 5]                              nothing, or a b -> b a    only values or conventions tell
kernel [48, 7] -> weight [7, 48]                  (a b) o -> o (b a)        flattened the other way; values tell
kernel [4, 12] -> weight_ih [12, 4]               gates in another order; values tell
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]
LETTERS = "abcdefgh"
MAX_RANK = 5  # of tensors whose axes are tried in all orders
MAX_DIVISORS = 64


class Order(NamedTuple):
    """A layout and the sizes that shapes do not tell; text '' is the identity."""

    text: str = ""
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def inverse(self) -> Order:
        left, arrow, right = self.text.partition("->")
        return Order(f"{right.strip()} -> {left.strip()}" if arrow else "", self.sizes)


# What a Keras, TensorFlow or Flax `kernel` becomes as PyTorch's `weight`, by its number of axes.
KERNELS = {2: "i o -> o i", 3: "k i o -> o i k", 4: "h w i o -> o i h w", 5: "d h w i o -> o i d h w"}
HEADS = ("a b c -> (b c) a", "a b c -> c (a b)")  # one matrix for all heads: into them, and (the second) out of them
DEPTHWISE = {3: "k c 1 -> c 1 k", 4: "h w c 1 -> c 1 h w"}


def fits(text: str, a: Shape, b: Shape) -> bool:
    """Whether a layout of single axes leads from one shape to another."""
    left, right = ([*side.split()] for side in text.split("->"))
    if len(left) != len(a) or len(right) != len(b):
        return False
    sizes = dict(zip(left, a, strict=True)) | {"1": 1}
    return all(n == 1 for x, n in zip(left, a, strict=True) if x == "1") and [sizes[x] for x in right] == list(b)


def _kernel(leaf: str) -> bool:
    """Whether a variable has TensorFlow's order of axes: inputs before outputs, space before both."""
    return "kernel" in leaf or leaf in ("weights", "depthwise_weights", "pointwise_weights", "w")


def convention(a: Shape, b: Shape, leaf_a: str, leaf_b: str) -> Order | None:
    """What the names of two variables say about their axes; None if they say nothing or the shapes contradict."""
    if _kernel(leaf_a) and not _kernel(leaf_b):
        if (len(a), len(b)) == (3, 2):
            return next((o for text in HEADS for o in _merged(a, b) if o.text == text), None)
        tables = [DEPTHWISE, KERNELS] if "depthwise" in leaf_a else [KERNELS, DEPTHWISE]
        told = [t[len(a)] for t in tables if len(a) in t]
        return next((Order(t) for t in told if fits(t, a, b)), None)
    if _kernel(leaf_b) and not _kernel(leaf_a):
        back = convention(b, a, leaf_b, leaf_a)
        return back.inverse if back else None
    return Order() if a == b else None


def simple(a: Shape, b: Shape) -> list[Order]:
    """All orders of axes, axes of size one and merged axes that shapes allow; the identity first."""
    found = [Order()] if a == b else []
    if max(len(a), len(b)) > MAX_RANK:
        return found
    for text in (*KERNELS.values(), *DEPTHWISE.values()):
        for order in (Order(text), Order(text).inverse):
            if fits(order.text, a, b):
                found.append(order)
    if len(a) == len(b):
        found += list(_permuted(a, b))
    found += list(_merged(a, b)) or [o.inverse for o in _merged(b, a)]
    return list(dict.fromkeys(found))


def distinct(orders: Sequence[Order], a: Shape) -> int:
    """How many of the orders differ in what they do, axes of size one aside."""
    return len({_essence(o, a) for o in orders})


def _essence(order: Order, a: Shape) -> object:
    if not order.text or "(" in order.text:
        return tuple(k for k, n in enumerate(a) if n != 1) if not order.text else order.text
    left, right = (side.split() for side in order.text.split("->"))
    place = {x: k for k, x in enumerate(left)}
    return tuple(place[x] for x in right if x != "1" and a[place[x]] != 1)


def _permuted(a: Shape, b: Shape) -> Iterator[Order]:
    names = LETTERS[: len(a)]
    for order in permutations(range(len(a))):
        if tuple(a[k] for k in order) == b and order != tuple(range(len(a))):
            yield Order(f"{' '.join(names)} -> {' '.join(names[k] for k in order)}")


def _merged(a: Shape, b: Shape) -> Iterator[Order]:
    """Axes of one side taken together on the other, and axes of size one that come and go."""
    names = [LETTERS[k] if n != 1 else "1" for k, n in enumerate(a)]
    wide = [k for k, n in enumerate(a) if n != 1]
    for order in permutations(wide):
        groups = _groups([a[k] for k in order], b)
        if groups is None:
            continue
        out, at, sizes = [], 0, []
        for count in groups:
            picked = order[at : at + count]
            at += count
            words = " ".join(names[k] for k in picked)
            out.append("1" if not picked else f"({words})" if count > 1 else words)
            sizes += [(names[k], a[k]) for k in picked[1:]]
        yield Order(f"{' '.join(names)} -> {' '.join(out)}".strip(), tuple(sizes))


def _groups(sizes: Sequence[int], b: Shape) -> list[int] | None:
    """How many of the sizes each axis of `b` takes, in order; None if they do not fit."""
    out, at = [], 0
    for n in b:
        count, product = 0, 1
        while product < n and at < len(sizes):
            product *= sizes[at]
            at, count = at + 1, count + 1
        if product != n:
            return None
        out.append(count)
    return out if at == len(sizes) else None


# --- what only values can tell ----------------------------------------------------------------------------------------


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


def split(whole: Shape, parts: Sequence[Shape]) -> Iterator[tuple[Order, tuple[int, ...]]]:
    """Layouts that cut one tensor into several, with the order of the pieces; gates inside may be reordered."""
    rank = len(whole)
    if rank > 3 or not rank:
        return
    names, lone = LETTERS[:rank], [len(p) == rank - 1 for p in parts]
    if sum(lone) < 2 and all(len(p) == rank or alone for p, alone in zip(parts, lone, strict=True)):
        for turn in permutations(range(rank)):
            for axis in range(rank):
                at = turn.index(axis)
                full = [(*p[:at], 1, *p[at:]) if alone else p for p, alone in zip(parts, lone, strict=True)]
                sizes = [p[at] for p in full]
                rest = {(*p[:at], *p[at + 1 :]) for p in full}
                if sum(sizes) != whole[axis] or rest != {tuple(whole[k] for k in turn if k != axis)}:
                    continue
                for pieces in permutations(range(len(parts))):
                    row = [0 if lone[p] else sizes[p] for p in pieces]
                    for gates in _with_gates(names, whole, axis):
                        yield _cut(names, turn, axis, row, gates), pieces
    yield from _split_merged(whole, parts)


def _split_merged(whole: Shape, parts: Sequence[Shape]) -> Iterator[tuple[Order, tuple[int, ...]]]:
    """Equal pieces whose axes are merged in the whole: h d i, h d i, h d i <- i (h d + h d + h d)."""
    count = len(parts)
    if len(set(parts)) > 1 or len(parts[0]) == len(whole):
        return
    for axis, n in enumerate(whole):
        if n % count:
            continue
        for order in simple((*whole[:axis], n // count, *whole[axis + 1 :]), parts[0]):
            left, _, right = order.text.partition("->")
            words = _words(left)
            inside = re.findall("[a-z]", words[axis])
            named = [_suffixed(words[axis].strip("()"), inside, i) for i in range(count)]
            text = " ".join([*words[:axis], f"({' + '.join(named)})", *words[axis + 1 :]])
            rights = [_suffixed(right.strip(), inside, i) for i in range(count)]
            for pieces in permutations(range(count)):
                yield Order(f"{text} -> {', '.join(rights)}", order.sizes), pieces


def _suffixed(text: str, letters: Sequence[str], i: int) -> str:
    return re.sub("[a-z]", lambda m: f"{m[0]}.{i}" if m[0] in letters else m[0], text)


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
    told = () if same else tuple((f"n{i}", n) for i, n in enumerate(sizes) if n)[: len(sizes) - 1 - (0 in sizes)]
    return Order(f"{' '.join(left)} -> {', '.join(rights)}", told)


def stacked(whole: Shape, part: Shape, axis: str) -> Iterator[Order]:
    """Layouts that cut one tensor into equal slices along an axis that then is gone (named `axis`, from {axis*})."""
    for k in range(len(whole)):
        rest = whole[:k] + whole[k + 1 :]
        if prod(rest) != prod(part):
            continue
        for order in (*simple(rest, part), *hidden(rest, part)):
            text = order.text or f"{' '.join(LETTERS[: len(rest)])} -> {' '.join(LETTERS[: len(rest)])}"
            left, _, right = text.partition("->")
            words = _words(left)
            yield Order(f"{' '.join([*words[:k], axis, *words[k:]])} -> {right.strip()}", order.sizes)


def _words(side: str) -> list[str]:
    """The axes of a side, parentheses kept whole."""
    out: list[str] = []
    depth = 0
    for token in side.replace("(", " ( ").replace(")", " ) ").split():
        if depth:
            out[-1] += (" " if out[-1][-1] != "(" and token != ")" else "") + token
        else:
            out.append(token)
        depth += (token == "(") - (token == ")")
    return out


def subsets(count: int, sizes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Index sets of the given sizes."""
    for size in sizes:
        yield from combinations(range(count), size)
