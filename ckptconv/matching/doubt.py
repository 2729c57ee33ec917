"""Choose the order of axes for a pair that names or modules found, and record any doubt. Pure.

kernel [6, 6] -> weight [6, 6]          a convention says i o -> o i; shapes would allow the identity too: doubtful
q [6, 6] -> q.weight [6, 6]             as most matrices whose shapes decide: doubtful
weight_ih [12, 5], kernel [5, 12]       gates may be in another order: doubtful
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..checkpoint import Tensor
from . import conventions, orders
from .images import FLAT, FLAT_NOT, IMAGE_NOT, SHAPED_IMAGE, Images
from .orders import Order
from .pairs import Pair, leaf

GATES = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"  # of a GRU: Keras has z, r, h, torch r, z, n
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TABLES = ("emb", "wte", "wpe", "lookup", "vocab")  # words in names of matrices that are not multiplied but looked up

KEPT_GATES = "the order of the gates is that of Keras and torch"
CHOSEN = "a convention chose among the orders of axes that the shapes allow"
SHAPED = "only the shapes decide the order of axes"
EVERY = ("", "")  # words of all matrices
VOTED = "the order of axes is that of the other matrices"


class Judged(NamedTuple):
    """An order of axes; what is doubtful about it ('' if nothing is); whether another one is likely."""

    order: Order
    doubt: str = ""
    real: bool = False


class Judge:
    """What is known of the source as a whole, its images above all; and whether the target is a module."""

    def __init__(self, images: Images, *, module: bool = False) -> None:
        self.images, self.module = images, module

    def order(self, a: Tensor, b: Tensor) -> Judged | None:
        """The order that names and shapes give; None if there is none."""
        known = orders.simple(a.shape, b.shape)
        leaves = leaf(a.name), leaf(b.name)
        convention = conventions.convention(a.shape, b.shape, *leaves)
        order = convention or (known[0] if known else None)
        if order is None:
            return None
        if leaves[1].startswith(RECURRENT):
            gru = "gru" in a.name.lower() + b.name.lower() and "kernel" in leaves[0] and len(a.shape) == 2
            return Judged(Order(GATES) if gru else order, KEPT_GATES)
        several = orders.distinct(known, a.shape) > 1
        if several and convention is None:
            return Judged(order, f"shapes allow {len(known)} orders of axes and no convention is known", True)
        if convention is None and a.shape != b.shape:
            return Judged(order, SHAPED)
        return self.beside_image(a, order) or Judged(order, CHOSEN if several else "")

    def beside_image(self, a: Tensor, order: Order) -> Judged | None:
        """The order of a layer before or after an image, which a file of a port may have turned or not."""
        if before := self.images.before(a, order):
            return Judged(before, SHAPED_IMAGE, True) if self.module else Judged(order, IMAGE_NOT, True)
        return self.after_image(a, order)

    def after_image(self, a: Tensor, order: Order) -> Judged | None:
        """The file of a port is taken unchanged, because many ports permute the image before they flatten it."""
        after = self.images.after(a, order)
        if after is None:
            return None
        return Judged(after[0], FLAT, True) if self.module and after[1] else Judged(order, FLAT_NOT, True)


def voted(pairs: Iterable[Pair], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[Pair]:
    """Turn square matrices as most others whose shapes decide: those with the same two words, otherwise all."""
    found = list(pairs)
    votes: dict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    matrices = [p for p in found if _matrix(p, a, b)]
    for p in matrices:
        if len(_wide(a[p.sources[0]])) == 2:
            for kind in (_leaves(p), EVERY):
                votes[kind][_turned(p, a)] += 1
    out = {}
    for p in matrices:
        kind = _leaves(p) if _leaves(p) in votes else EVERY
        count = votes[kind]
        known = conventions.is_kernel(leaf(p.sources[0])) != conventions.is_kernel(leaf(p.targets[0]))
        if len(_wide(a[p.sources[0]])) == 1 and count[True] != count[False] and not (known and kind == EVERY):
            out[p] = _turn(p, a, b, count[True] > count[False])
    return [out.get(p, p) for p in found]


def _leaves(p: Pair) -> tuple[str, str]:
    return leaf(p.sources[0]), leaf(p.targets[0])


def _turn(p: Pair, a: Mapping[str, Tensor], b: Mapping[str, Tensor], turned: bool) -> Pair:
    """The pair with its square matrix turned, or not turned."""
    x, y = a[p.sources[0]], b[p.targets[0]]
    fits = [o for o in orders.simple(x.shape, y.shape) if _swaps(o, x) is turned]
    if not fits or _turned(p, a) is turned:
        return p
    return p._replace(order=fits[0], sure=False, real=True, why=(*(w for w in p.why if w != CHOSEN), VOTED))


def _swaps(order: Order, t: Tensor) -> bool:
    found = orders.essence(order, t.shape)
    return isinstance(found, tuple) and len(found) == 2 and found[0] > found[1]


def _turned(p: Pair, a: Mapping[str, Tensor]) -> bool:
    return _swaps(p.order, a[p.sources[0]])


def _wide(t: Tensor) -> set[int]:
    """The two dimensions of a matrix, one if it is square."""
    return {n for n in t.shape if n != 1}


def _matrix(p: Pair, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether a pair by names is of weights that are multiplied."""
    names = p.sources + p.targets
    if p.evidence not in ("names", "shape") or len(names) != 2:
        return False
    matrices = all(sum(n != 1 for n in t.shape) == 2 for t in (a[names[0]], b[names[1]]))
    looked_up = any(word in n.lower() for n in names for word in TABLES)
    return matrices and leaf(names[1]) == "weight" and not looked_up and "(" not in p.order.text
