"""Choose the order of axes for a pair that names or modules found, and record any doubt. Pure.

kernel [6, 6] -> weight [6, 6]          a convention says i o -> o i; shapes would allow the identity too: doubtful
q [6, 6] -> q.weight [6, 6]             as most matrices whose shapes decide: doubtful
weight_ih [12, 5], kernel [5, 12]       gates may be in another order: doubtful
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from . import conventions, orders
from .orders import Order
from .pairs import Pair, leaf
from .words import words

GATES = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"  # of a GRU: Keras has z, r, h, torch r, z, n
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TABLES = ("emb", "wte", "wpe", "lookup", "vocab")  # words in names of matrices that are not multiplied but looked up

KEPT_GATES = "the order of the gates is that of Keras and torch"
CHOSEN = "a convention chose among the orders of axes that the shapes allow"
SHAPED = "only the shapes decide the order of axes"
FLAT = "behind a flattened image: taken to be flattened as h w c there and as c h w here"
FLAT_NOT = "behind a flattened image the inputs may be in another order, (h w c) -> (c h w)"
SHAPED_IMAGE = "in front of an image: taken to be shaped as h w c there and as c h w here"
IMAGE_NOT = "in front of an image the outputs may be in another order, (h w c) -> (c h w)"
IMAGED = {"": "(s c) -> (c s)", "i o -> o i": "i (s c) -> (c s) i"}  # of biases and kernels, in front of no image
FLATTENED = "(s c) o -> o (c s)"
FLAT_GATES = "(s c) (h.z + h.r + h.n) -> (h.r + h.z + h.n) (c s)"
PLAIN = {FLATTENED: orders.KERNELS[2], FLAT_GATES: GATES}  # the same behind no image
HEADS = {"attention", "query", "key", "value"}  # their kernels have three axes, but are not convolutions
EVERY = ("", "")  # words of all matrices
VOTED = "the order of axes is that of the other matrices"


class Judged(NamedTuple):
    """An order of axes; what is doubtful about it ('' if nothing is); whether another one is likely."""

    order: Order
    doubt: str = ""
    real: bool = False


class Judge:
    """What is known of the source as a whole: which widths its layers have; and whether the target is a module."""

    def __init__(
        self,
        a: Mapping[str, Tensor],
        *,
        module: bool = False,
        images: Mapping[int, int] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """`images`: the channels of images that dense layers of so many outputs are shaped into.

        `kinds` are the source's classes: those of Keras say what follows a Flatten.
        """
        self.module, self.images, self.kinds = module, images or {}, kinds or {}
        convolved = [t for n, t in a.items() if len(t.shape) in (3, 4, 5) and not HEADS & {*words(n)}]
        each = {prod(t.shape[-2:]) if "depthwise" in t.name.lower() else t.shape[-1] for t in convolved}
        self.channels = each - {1}
        self.branches = _branches(convolved)
        # [1, n] is a scale or a bias, unless it is called a kernel
        matrices = [t for n, t in a.items() if len(t.shape) == 2 and (t.shape[0] > 1 or conventions.is_kernel(leaf(n)))]
        self.widths = Counter(t.shape[-1] for t in matrices) + Counter(self.channels)

    def order(self, a: Tensor, b: Tensor) -> Judged | None:
        """The order that names and shapes give; None if there is none."""
        known = orders.simple(a.shape, b.shape)
        leaves = leaf(a.name), leaf(b.name)
        convention = conventions.convention(a.shape, b.shape, *leaves)
        found = convention or (known[0] if known else None)
        if found is None:
            return None
        if leaves[1].startswith(RECURRENT):
            gru = "gru" in a.name.lower() + b.name.lower() and "kernel" in leaves[0] and len(a.shape) == 2
            return Judged(Order(GATES) if gru else found, KEPT_GATES)
        if orders.distinct(known, a.shape) > 1:
            if convention is None:
                return Judged(found, f"shapes allow {len(known)} orders of axes and no convention is known", True)
            return self.shaped(a, found) or self.flattened(a, found) or Judged(found, CHOSEN)
        if convention is None and a.shape != b.shape:
            return Judged(found, SHAPED)
        return self.shaped(a, found) or self.flattened(a, found) or Judged(found)

    def shaped(self, a: Tensor, found: Order) -> Judged | None:
        """The order of a dense layer, its bias and its normalisation that stand in front of an image."""
        channels = self.images.get(a.shape[-1], 0) if a.shape else 0
        if not channels or found.text not in IMAGED or len(a.shape) != 1 + bool(found.text):
            return None
        if not self.module:
            return Judged(found, IMAGE_NOT, True)
        return Judged(Order(IMAGED[found.text], (("c", channels),)), SHAPED_IMAGE, True)

    def flattened(self, a: Tensor, found: Order) -> Judged | None:
        """The order of a dense layer or a cell that may stand behind a flattened image: torch has channels first.

        The file of a port is taken unchanged, because many ports permute the image before they flatten it; so are
        inputs that may be another layer's outputs, where only Keras says that there is a Flatten, perhaps of those.
        """
        if len(a.shape) != 2 or not conventions.is_kernel(leaf(a.name)):
            return None
        n = a.shape[0]
        channels = max((c for c in self.channels if n % c == 0), default=0)
        others = (
            self.widths[n] - (a.shape[1] == n) - (n in self.images)
        )  # whose outputs these inputs may be: not its own
        if (others > 0 and not follows_flatten(self.kinds, a.name)) or not channels:
            return None
        flat = next((text for text, plain in PLAIN.items() if found.text == plain), "")
        if not self.module or not flat or n in self.branches or others > 0:
            return Judged(found, FLAT_NOT, True)
        return Judged(Order(flat, (("c", channels),)), FLAT, True)


def follows_flatten(kinds: Mapping[str, str], name: str) -> bool:
    """Whether the config of a Keras model says that a layer is fed by a Flatten."""
    return kinds.get(name, "").startswith(("flat_", "mixed_", "maybe_"))


def images(a: Mapping[str, Tensor], b: Mapping[str, Tensor], kinds: Mapping[str, str]) -> dict[int, int]:
    """The widths of dense layers right in front of a convolution that takes part of them as channels, and how many.

    Not as many as a convolution's own channels; and where another matrix takes as many inputs, which then may stand
    behind an image, only if both sides have that order. `kinds` are the target's classes.
    """
    dense = [t.shape for n, t in a.items() if len(t.shape) == 2 and conventions.is_kernel(leaf(n))]
    convolved = {n for t in a.values() if len(t.shape) > 2 for n in t.shape[-2:]}
    ours = _in_front(b, True, lambda n: "transpose" in kinds.get(n, ""))
    theirs = _in_front(a, False, lambda n: "transpose" in n.lower())
    found = theirs | ours
    taken = {own: any(shape[0] == own[1] for shape in dense if shape != own) for own in found}
    return {
        own[1]: c for own, c in found.items()
        if own in dense and own[1] not in convolved and (not taken[own] or (own in ours and own in theirs))
    }  # fmt: skip


def _in_front(side: Mapping[str, Tensor], torch: bool, back: Callable[[str], bool]) -> dict[tuple[int, ...], int]:
    """The shapes, inputs first, of dense layers right before a convolution, and its channels.

    Files may have the order of the alphabet: there the image must be a square.
    """
    out: dict[tuple[int, ...], int] = {}
    weights = [(n, t.shape) for n, t in side.items() if len(t.shape) > 1]
    for (_, first), (name, conv) in pairwise(weights):
        both = conv[1::-1] if torch else conv[-2:]  # inputs, outputs
        for c in both[::-1] if back(name) else both:
            own = first[::-1] if torch else first
            part = len(own) == 2 < len(conv) and 1 < c < own[1] and own[1] % c == 0
            if part and (torch or _is_power(own[1] // c, len(conv) - 2)):
                out.setdefault(own, c)
    return out


def _is_power(n: int, rank: int) -> bool:
    """Whether an image of so many axes can be a square, a cube."""
    return any(k**rank == n for k in range(2, n))


def _branches(tensors: Iterable[Tensor]) -> set[int]:
    """The widths of convolutions of one input that may be put side by side: not of an image that was flattened."""
    beside: dict[int, list[int]] = defaultdict(list)
    for t in tensors:
        beside[t.shape[-2]].append(t.shape[-1])
    return {sum(many[k : k + n]) for many in beside.values() for n in range(2, 9) for k in range(len(many) - n + 1)}


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
