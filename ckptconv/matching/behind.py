"""Vectors between a flattened image and a dense layer: a normalisation, a PReLU, a scale. Pure.

conv, flatten, b/gamma [60], d/kernel [60, 6]      (s c) -> (c s), as the kernel is (s c) o -> o (c s)

No shape and no name shows it: they are as the kernel behind them is, turned or not, and marked for the same reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from math import prod

from ..checkpoint import Tensor
from . import orders
from .conventions import is_kernel
from .doubt import FLAT, FLAT_NOT, SHAPED_IMAGE, follows_flatten
from .named import Sides
from .orders import Order, Shape
from .pairs import Pair, leaf
from .units import units

OF_IMAGES = ("2d", "3d")  # classes of torch whose inputs have channels of their own: they are not flattened yet
SAID = {FLAT, FLAT_NOT}


def behind(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """The pairs, vectors in front of a dense layer that is taken to stand behind an image as that layer is."""
    a = sides[0].tensors
    kernels: dict[int, list[Pair]] = defaultdict(list)
    for p in pairs:
        if SAID & {*p.why} and len(a[p.sources[0]].shape) == 2:
            kernels[a[p.sources[0]].shape[0]].append(p)
    if not kernels:
        return [*pairs]
    first = {n: max(found, key=lambda p: FLAT in p.why) for n, found in kernels.items()}
    place = _Place(sides, {n: {t for p in found for t in p.targets} for n, found in kernels.items()})
    return [_as_kernel(p, first[n], place, sides) if (n := _between(p, kernels, a)) else p for p in pairs]


def _between(p: Pair, kernels: Mapping[int, object], a: Mapping[str, Tensor]) -> int:
    """The length of a vector that has that of a flattened image; 0 if a pair is anything else."""
    t = a[p.sources[0]]
    if len(p.sources) != 1 or len(p.targets) != 1 or p.length or p.evidence not in ("names", "shape") or _multiplies(t):
        return 0
    return n if (n := length(t.shape)) in kernels else 0


def _as_kernel(p: Pair, kernel: Pair, place: _Place, sides: Sides) -> Pair:
    a, b = sides[0].tensors[p.sources[0]], sides[1].tensors[p.targets[0]]
    says = place.of(p, length(a.shape))
    if not says or (SHAPED_IMAGE in p.why and says == FLAT_NOT):
        return p
    why = tuple(w for w in p.why if w != SHAPED_IMAGE)
    sizes = kernel.order.sizes if FLAT in kernel.why and says == FLAT else ()
    if not sizes or not length(b.shape):
        return p._replace(sure=False, real=True, why=(*why, FLAT_NOT))
    return p._replace(order=turned(a.shape, b.shape, sizes[0][1]), sure=False, real=True, why=(*why, FLAT))


class _Place:
    """Where vectors stand: in front of the kernels of their length, behind a layer of so many outputs, or either."""

    def __init__(self, sides: Sides, kernels: Mapping[int, set[str]]) -> None:
        """`kernels`: the targets of the kernels behind an image, by how many inputs they have."""
        self.sides, self.kernels = sides, kernels
        self.next = dict(_next(sides[1].tensors, {t for found in kernels.values() for t in found}))
        self.home = {t.name: u for u in units(sides[0]) for t in u.members.values()}
        self.makers: dict[int, list[Tensor]] = defaultdict(list)
        for t in sides[0].tensors.values():
            if _multiplies(t):
                self.makers[t.shape[-1]].append(t)

    def of(self, p: Pair, n: int) -> str:
        """FLAT in front of a kernel, FLAT_NOT if nobody knows, '' if it stands elsewhere.

        No layer has n outputs, but perhaps a kernel of as many inputs: then the order of the target tells, or Keras.
        """
        if self.sides[1].kinds.get(p.targets[0], "").endswith(OF_IMAGES):
            return ""
        home = self.home.get(p.sources[0])
        if home and any(n in _outputs(t) for t in home.members.values()):  # the bias of that layer
            return ""
        following = self.next.get(p.targets[0], "")
        if following and len(shape := self.sides[1].tensors[following].shape) > 2 and n in shape[:2]:  # still an image
            return ""
        follows = follows_flatten(self.sides[0].kinds, p.sources[0])
        if not self.makers[n] or follows or following in self.kernels[n]:
            return FLAT
        return FLAT_NOT if all(t.shape == (n, n) for t in self.makers[n]) else ""


def _next(b: Mapping[str, Tensor], kernels: Container[str]) -> Iterator[tuple[str, str]]:
    """Each vector of a module with the first matrix that is defined behind it; `kernels` may have one output."""
    waiting: list[str] = []
    for name, t in b.items():
        if name in kernels or (len(t.shape) > 1 and not length(t.shape)):
            yield from ((vector, name) for vector in waiting)
            waiting = []
        elif length(t.shape):
            waiting.append(name)


def _multiplies(t: Tensor) -> bool:
    """Whether a tensor of the source is the kernel of a layer, which may have one input or output; no vector."""
    return len(t.shape) > 1 and (not length(t.shape) or is_kernel(leaf(t.name)))


def _outputs(t: Tensor) -> tuple[int, ...]:
    """How many outputs the kernel of a layer may have: those of heads, and of each channel, are two axes."""
    return (t.shape[-1], prod(t.shape[-2:]) if len(t.shape) > 2 else 0) if _multiplies(t) else ()


def length(shape: Shape) -> int:
    """The length of a vector, axes of size one aside; 0 if it is none."""
    wide = [n for n in shape if n != 1]
    return wide[0] if len(wide) == 1 else 0


def turned(a: Shape, b: Shape, channels: int) -> Order:
    """The order of a vector behind an image of so many channels."""
    left, right = (" ".join(axes if n != 1 else "1" for n in s) for s, axes in ((a, "(s c)"), (b, "(c s)")))
    return Order(f"{left} -> {right}", (("c", channels),))


def plain(a: Shape, b: Shape) -> Order:
    """The order of a vector behind no image."""
    return orders.simple(a, b)[0]


__all__ = ["behind", "length", "plain", "turned"]
