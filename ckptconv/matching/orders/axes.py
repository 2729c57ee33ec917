"""Find how the axes of one tensor may become those of another: the orders that shapes allow, and that names suggest.

w [5, 5] -> w [5, 5]                              nothing, or a b -> b a
att/kernel [16, 4, 8] -> weight [32, 16]          a b c -> (b c) a
kernel [3, 3, 8, 16] -> weight [16, 8, 3, 3]      h w i o -> o i h w
depthwise_kernel [3, 3, 8, 2] -> [16, 1, 3, 3]    h w c m -> (c m) 1 h w

A kernel of TensorFlow has its inputs before its outputs, a weight of torch after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

Shape = tuple[int, ...]
LETTERS = "abcdfghi"  # names of axes; e is that of a stack
MAX_RANK = 5  # axes that are tried in all orders


class Order(NamedTuple):
    """A layout, the sizes that shapes do not determine, and the axes that are reversed; '' is the identity."""

    text: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    flip: str = ""

    @property
    def inverse(self) -> Order:
        left, arrow, right = self.text.partition("->")
        return self._replace(text=f"{right.strip()} -> {left.strip()}" if arrow else "")

    def sides(self, rank: int) -> tuple[list[str], str]:
        """The axes of the source and the text of the target; the identity is written out."""
        letters = " ".join(LETTERS[:rank])
        left, _, right = (self.text or f"{letters} -> {letters}").partition("->")
        return tokens(left), right.strip()


# Layouts from a Keras, TensorFlow or Flax `kernel` to PyTorch's `weight`, by the number of axes.
KERNELS = {2: "i o -> o i", 3: "k i o -> o i k", 4: "h w i o -> o i h w", 5: "d h w i o -> o i d h w"}
DEPTHWISE = {3: "k c 1 -> c 1 k", 4: "h w c 1 -> c 1 h w"}


UPWARDS = re.compile(r"(?i)transpose|deconv|(?<![a-z])up")  # in names of transposed convolutions


def transposed(a: Shape, b: Shape, *, back: bool) -> Order | None:
    """Return the order from a kernel of Flax's ConvTranspose to torch's weight, or (back) the reverse; None if none."""
    if len(a) not in (3, 4, 5):
        return None
    text = KERNELS[len(a)].replace("> o i", "> i o")
    order = Order(text, flip=text[: text.index(" i o")])
    order = order.inverse if back else order
    return order if fits(order.text, a, b) else None


def fits(text: str, a: Shape, b: Shape) -> bool:
    """Tell whether a layout of single axes leads from one shape to another."""
    left, right = ([*side.split()] for side in text.split("->"))
    if len(left) != len(a) or len(right) != len(b):
        return False
    sizes = dict(zip(left, a, strict=True)) | {"1": 1}
    return all(n == 1 for x, n in zip(left, a, strict=True) if x == "1") and [sizes[x] for x in right] == list(b)


@lru_cache(maxsize=2**12)
def simple(a: Shape, b: Shape) -> tuple[Order, ...]:
    """Return all orders that shapes allow, also with axes of size one and merged axes; the identity first."""
    found = [Order()] if a == b else []
    if max(len(a), len(b)) > MAX_RANK:
        return tuple(found)
    for text in (*KERNELS.values(), *DEPTHWISE.values()):
        for order in (Order(text), Order(text).inverse):
            if fits(order.text, a, b):
                found.append(order)
    if len(a) == len(b):
        found += list(_permuted(a, b))
    found += list(merged(a, b)) or [o.inverse for o in merged(b, a)]
    return tuple(dict.fromkeys(found))


def essence(order: Order, a: Shape) -> object:
    """Return the source of each target axis, without axes of size one; the order's text if it merges axes."""
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


def merged(a: Shape, b: Shape) -> Iterator[Order]:
    """Yield orders that merge axes of one side, and add or drop axes of size one."""
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
    """Return how many of the sizes each axis of `b` takes, in order; None if they do not fit."""
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


def tokens(side: str) -> list[str]:
    """Split a side into axes; parentheses are one."""
    return re.findall(r"\((?:[^()]|\([^()]*\))*\)|[^\s()]+", side)


def suffixed(text: str, letters: Sequence[str], i: int) -> str:
    """Add an index to the letters: h d becomes h.0 d.0."""
    return re.sub("[a-z]", lambda m: f"{m[0]}.{i}" if m[0] in letters else m[0], text)


# One matrix for all heads: into them, out of them, and into them with the heads first.
HEAD_LAYOUTS = ("a b c -> (b c) a", "a b c -> c (a b)", "a b c -> (a c) b")
KERNEL = re.compile(
    r".*kernel.*|(?:depthwise_|pointwise_)?weights|w|wi|wo|wi_[01]|filters?|linear|.*_(?:w|einsum)", re.S
)


def is_kernel(leaf: str) -> bool:
    """Tell whether a variable has TensorFlow's order of axes: inputs before outputs, space before both."""
    return KERNEL.fullmatch(leaf) is not None


@lru_cache(maxsize=2**12)
def convention(a: Shape, b: Shape, leaf_a: str, leaf_b: str) -> Order | None:
    """Return the order that the names of two variables imply; None if they imply none or the shapes contradict."""
    if is_kernel(leaf_a) and not is_kernel(leaf_b):
        return next(_usual(a, leaf_a, b), None)
    if is_kernel(leaf_b) and not is_kernel(leaf_a):
        back = convention(b, a, leaf_b, leaf_a)
        return back.inverse if back else None
    return Order() if a == b else None


def _usual(a: Shape, leaf_a: str, b: Shape) -> Iterator[Order]:
    """Yield orders from a TensorFlow kernel to a torch weight, the likeliest first.

    Axes of size one may be added or dropped: h 1 i o -> o i h, k i o -> o i k 1.
    """
    depthwise = "depthwise" in leaf_a
    if depthwise and len(a) == 4 and a[3] > 1 and b == (a[2] * a[3], 1, a[0], a[1]):
        yield Order("h w c m -> (c m) 1 h w", (("m", a[3]),))
    texts = [table[len(a)] for table in (DEPTHWISE, KERNELS)[:: 1 if depthwise else -1] if len(a) in table]
    for text in (*texts, *["h w i o -> o i w h"] * (len(a) == 4)):  # time before frequencies there, after them here
        wanted = essence(Order(text), a)
        yield from (o for o in simple(a, b) if essence(o, a) == wanted)
    if (len(a), len(b)) == (3, 2):
        yield from (o for text in HEAD_LAYOUTS for o in merged(a, b) if o.text == text)
