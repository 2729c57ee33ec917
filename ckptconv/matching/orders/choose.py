"""Choose the order of axes for a pair that names or modules found, and record any doubt. Pure.

kernel [6, 6] -> weight [6, 6]          a convention says i o -> o i; shapes would allow the identity too: doubtful
weight_ih [12, 5], kernel [5, 12]       gates may be in another order: doubtful

Feature maps ("images") that are flattened, or made of vectors, have channels last in TensorFlow and first in torch:

conv, flatten, gamma [60], kernel [60, 6]          (s c) -> (c s), (s c) o -> o (c s)       after the image
kernel [6, 60], bias [60], reshape, conv           i (s c) -> (c s) i, (s c) -> (c s)       before it

An axis is in one of these states: plain; after (FLAT) or before (SHAPED_IMAGE) an image with known channels, so that it
is reordered and marked; after or before an image with unknown channels (FLAT_NOT, IMAGE_NOT), which is a question.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from ...checkpoint import Tensor
from ..likeness import words
from ..modules.units import Unit, units
from ..pairs import Pair, Side, Sides, leaf, parent
from .axes import KERNELS, UPWARDS, Order, Shape, convention, essence, is_kernel, simple, tokens, transposed

GATES = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"  # of a GRU: Keras has z, r, h, torch r, z, n
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TABLE = re.compile("(?i)emb|wte|wpe|lookup|vocab")  # in names of lookup tables

KEPT_GATES = "the gates are taken to be in the usual order of each framework"
CHOSEN = "the shapes allow several orders of axes; the usual one is taken"
SHAPED = "only the shapes decide the order of axes"
VOTED = "the order of axes is that of the other matrices"


FLAT = "after a flattened feature map: taken to be flattened as h w c by TensorFlow and as c h w by torch"
FLAT_NOT = "after a flattened feature map the inputs may be in another order, (h w c) -> (c h w)"
FLIPPED = "Flax's ConvTranspose holds torch's kernel reversed in space, unless the layer transposes its kernel"
SHAPED_IMAGE = "before a feature map: taken to be shaped as h w c by TensorFlow and as c h w by torch"
IMAGE_NOT = "before a feature map the outputs may be in another order, (h w c) -> (c h w)"
ATTENTION = {"attention", "query", "key", "value"}  # their kernels have three axes, but are not convolutions
OF_IMAGES = ("2d", "3d")  # torch classes whose inputs have channels: they are not flattened yet


class Judged(NamedTuple):
    """An order of axes; the doubt about it, or ''; whether another order is likely; `Pair.each`."""

    order: Order
    doubt: str = ""
    real: bool = False
    each: tuple[int, int] | None = None


class Judge:
    """Judges orders with what the whole source shows, mainly its images, and whether the target is a module.

    in_front: by the number of outputs of dense layers, the channels of the images made of them; 0 if not certain.
    target: judges the reverse direction, if the target has TensorFlow's kernels.
    """

    def __init__(
        self, source: Side, in_front: Mapping[int, int], *, module: bool = False, target: Judge | None = None
    ) -> None:  # fmt: skip
        self.inputs, self.in_front, self.module, self.target = source.inputs, in_front, module, target
        self.flax: bool = source.flax or bool(target and target.flax)
        a = source.tensors.items()
        convolved = [t for n, t in a if len(t.shape) in (3, 4, 5) and not ATTENTION & {*words(n)}]
        each = {prod(t.shape[-2:]) if "depthwise" in t.name.lower() else t.shape[-1] for t in convolved}
        self.channels = each - {1}
        # [1, n] is a scale or a bias, unless it is called a kernel
        matrices = [t for n, t in a if len(t.shape) == 2 and (t.shape[0] > 1 or is_kernel(leaf(n)))]
        self.widths = Counter(t.shape[-1] for t in matrices) + Counter(self.channels)
        self.asks = False  # about every layer that may follow a Flatten, if none obviously does
        self.asks = source.flattens and not any(self.after_image(t, Order()) for t in matrices)

    def order(self, a: Tensor, b: Tensor) -> Judged | None:
        """Return the order that names and shapes give; None if there is none."""
        known = simple(a.shape, b.shape)
        leaves = leaf(a.name), leaf(b.name)
        usual = convention(a.shape, b.shape, *leaves)
        names = f"{a.name} {b.name}"
        named = UPWARDS.search(names) if self.flax else "ConvTranspose" in names
        other = usual and not (self.flax and "1" in usual.text)  # Flax has no kernels h w c 1 but those
        reverse = transposed(a.shape, b.shape, back=is_kernel(leaves[1])) if named or not other else None
        if reverse and is_kernel(leaves[0]) != is_kernel(leaves[1]):
            return Judged(reverse, FLIPPED if other else "", bool(other))
        order = usual or (known[0] if known else None)
        if order is None:
            return None
        if leaves[1].startswith(RECURRENT):
            gru = "gru" in a.name.lower() + b.name.lower() and "kernel" in leaves[0] and len(a.shape) == 2
            return Judged(Order(GATES) if gru else order, KEPT_GATES)
        several = len({essence(o, a.shape) for o in known}) > 1  # without axes of size one
        if several and usual is None:
            return Judged(order, f"shapes allow {len(known)} orders of axes and no convention is known", True)
        unturned = len(a.shape) > 1 and is_kernel(leaves[0]) != is_kernel(leaves[1])  # no convention explains that
        if usual is None and (a.shape != b.shape or unturned):
            return Judged(order, SHAPED)
        if self.target and (found := self.target.beside_image(b, order.inverse)):
            return found._replace(order=found.order.inverse)
        return self.beside_image(a, order) or Judged(order, CHOSEN if several else "")

    def beside_image(self, a: Tensor, order: Order) -> Judged | None:
        """Return the order of a tensor that may be before or after an image, else None."""
        return self.before_image(a, order) or self.after_image(a, order)

    def before_image(self, a: Tensor, order: Order) -> Judged | None:
        """Return the order of a dense layer, its bias or its normalisation before an image; None elsewhere."""
        channels = self.in_front.get(a.shape[-1]) if a.shape else None
        if channels is None or order.text not in ("", KERNELS[2]) or len(a.shape) != 1 + bool(order.text):
            return None
        if not self.module or not channels:
            return Judged(order, IMAGE_NOT, True)
        return Judged(with_image(order, len(a.shape), len(a.shape) - 1, channels), SHAPED_IMAGE, True)

    def after_image(self, a: Tensor, order: Order) -> Judged | None:
        """Return the order of a dense layer or a cell that may be after a flattened image.

        The config of a Keras file tells the input kind. Without it, inputs may be another layer's outputs, and the
        order of a port's file is kept, because many ports permute the image before they flatten it.
        """
        taken = self.inputs.get(a.name)
        if len(a.shape) != 2 or not is_kernel(leaf(a.name)) or (taken and not taken.follows_flatten):
            return None
        n = a.shape[0]
        torch = order.text.endswith(" i")  # otherwise both sides flatten alike
        if area := taken.height * taken.width if taken else 0:
            return Judged(with_image(order, 2, 0, n // area), FLAT) if torch and 1 < area < n and not n % area else None
        channels = max((c for c in self.channels if n % c == 0), default=0)
        # other layers with as many outputs
        others = self.widths[n] - (a.shape[1] == n) - bool(self.in_front.get(n))
        if (others > 0 or not channels) and not ((taken or self.asks) and (channels or others <= 0)):
            return None
        if self.module and torch and others <= 0 and channels:
            return Judged(with_image(order, 2, 0, channels), FLAT, True)
        return Judged(order, FLAT_NOT, True)


def with_image(order: Order, rank: int, axis: int, channels: int) -> Order:
    """Return the order of a tensor, one axis of which is an image with this number of channels."""
    names, right = order.sides(rank)
    moved = ["(c s)" if name == names[axis] else name for name in tokens(right)]
    names[axis] = "(s c)"
    return Order(f"{' '.join(names)} -> {' '.join(moved)}", (("c", channels),))


def without_image(order: Order, shape: Shape) -> Order:
    """Return the order of the same tensor if that axis is not an image."""
    name = "i" if order.text.startswith("(s c)") or "-> (s c)" in order.text else "o"
    left, _, right = order.text.replace("(s c)", name).replace("(c s)", name).partition(" -> ")
    return Order() if left == right else Order(f"{left} -> {right}")


def in_front(a: Side, b: Side) -> dict[int, int]:
    """Return the widths of dense layers right before a convolution, with the number of channels that it takes.

    Widths equal to a convolution's own channels are left out. If another matrix takes as many inputs, it may come after
    an image; then both sides must have that order, and it is 0 if only torch's has it.
    """
    dense = [t.shape for n, t in a.tensors.items() if len(t.shape) == 2 and is_kernel(leaf(n))]
    convolved = {n for t in a.tensors.values() if len(t.shape) > 2 for n in t.shape[-2:]}
    ours, theirs = _right_before(b, torch=True), _right_before(a, torch=False)
    out = {}
    for own, channels in (ours | theirs).items():
        taken = any(shape[0] == own[1] for shape in dense if shape != own)
        if own in dense and own[1] not in convolved and (not taken or own in ours):
            out[own[1]] = channels if not taken or own in theirs else 0
    return out


def _right_before(side: Side, *, torch: bool) -> dict[Shape, int]:
    """Return the shapes, inputs first, of dense layers right before a convolution, with its channels.

    Files may be sorted by name; then the image must be a square. A convolution is transposed if its bias is not as long
    as its outputs would be; without bias, its name tells, but Flax's ConvTranspose has inputs first.
    """
    out: dict[Shape, int] = {}
    biases = {t.name: u.members["bias"].count for u in units(side) if "bias" in u.members for t in u.members.values()}
    for (_, first), (name, conv) in pairwise((n, t.shape) for n, t in side.tensors.items() if len(t.shape) > 1):
        own, ends = (first[::-1], conv[:2]) if torch else (first, conv[:-3:-1])
        turned = biases[name] != ends[0] if name in biases else "transpose" in side.kinds.get(name, name)
        c = ends[not turned]
        if len(own) == 2 < len(conv) and 1 < c < own[1] and own[1] % c == 0:
            size, rank = own[1] // c, len(conv) - 2
            if torch or any(k**rank == size for k in range(2, size)):
                out.setdefault(own, c)
    return out


def vectors(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """Reorder vectors after a flattened image of either side."""
    pairs = _vectors([*_unfed(pairs, sides)], sides)
    back = [p.inverse for p in pairs]
    turned = zip(pairs, back, _vectors(back, sides[::-1]), strict=True)
    return [p if new == old else new.inverse for p, old, new in turned]


def _unfed(pairs: Sequence[Pair], sides: Sides) -> Iterator[Pair]:
    """Mark pairs as doubtful if no layer that torch defines earlier has as many outputs as this one takes."""
    kernels = {p.sources[0] for p in pairs if is_kernel(leaf(p.targets[0]))}
    fed, channels, unfed = set[int](), set[int](), set[str]()
    for name, t in sides[0].tensors.items():
        if len(t.shape) == 2 and name in kernels:
            n = t.shape[1]
            unfed |= {name} if n not in fed and any(c < n and n % c == 0 for c in channels - {1}) else set()
        channels |= {*t.shape[:2]} if len(t.shape) > 2 else set()
        fed |= {*t.shape[: 1 + (name not in kernels or len(t.shape) > 2)]} if len(t.shape) > 1 else set()
    for p in pairs:
        taken = sides[1].inputs.get(p.targets[0])
        known = {FLAT, FLAT_NOT} & {*p.why} or (taken and not taken.follows_flatten) or p.evidence != "names"
        asked = p.sources[0] in unfed and not known and p.order.text == "o i -> i o"
        yield p._replace(sure=False, real=True, why=(*p.why, FLAT_NOT)) if asked else p


def _vectors(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """Reorder and mark vectors between a flattened image and a dense layer like the kernel of that layer.

    Neither shapes nor names show that a normalisation, a PReLU or a scale is there. It is as long as that kernel's
    inputs, and belongs neither to a layer with as many outputs nor to an image. If a layer has as many outputs, ask.
    """
    a = sides[0].tensors
    kernels: dict[int, Pair] = {}
    for p in pairs:
        shape = a[p.sources[0]].shape
        flat = {FLAT, FLAT_NOT} & {*p.why} and len(shape) == 2 and is_kernel(leaf(p.sources[0]))
        if flat and (FLAT in p.why or shape[0] not in kernels):
            kernels[shape[0]] = p
    owners: dict[int, set[str]] = defaultdict(set)
    for t in a.values() if kernels else ():
        if len(t.shape) > 2:
            kernels.pop(t.shape[-2], None)  # image channels of a convolution
        if len(t.shape) > 1 and (not length(t.shape) or is_kernel(leaf(t.name))):
            for n in {t.shape[-1], prod(t.shape[-2:]) if len(t.shape) > 2 else 0}:
                owners[n].add(parent(t.name))
    out = []
    for p in pairs:
        first, kind = a[p.sources[0]], sides[1].kinds.get(p.targets[0], "")
        n = 0 if len(first.shape) > 1 and is_kernel(leaf(first.name)) else length(first.shape)
        alone = len(p.sources) == len(p.targets) == 1 and not p.length and p.evidence == "names"
        alone = alone and SHAPED_IMAGE not in p.why
        if alone and n in kernels and not kind.endswith(OF_IMAGES) and parent(first.name) not in owners[n]:
            channels = dict(kernels[n].order.sizes).get("c", 1)
            turned = with_image(p.order, len(first.shape), first.shape.index(n), channels)
            taken = sides[0].inputs.get(first.name)
            known = FLAT in kernels[n].why and (not owners[n] or (taken and taken.follows_flatten))
            order, why = (turned, FLAT) if known else (p.order, FLAT_NOT)
            p = p._replace(order=order, sure=False, real=kernels[n].real or not known, why=(*p.why, why))
        out.append(p)
    return out


def length(shape: Iterable[int]) -> int:
    """Return the length of a vector, ignoring axes of size one; 0 if it is not a vector."""
    wide = [n for n in shape if n != 1]
    return wide[0] if len(wide) == 1 else 0


def voted(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """Give square matrices the order of most others whose shapes decide: those of the same leaves, else all."""
    votes: dict[tuple[str, ...], Counter[bool]] = defaultdict(Counter)
    square: dict[int, tuple[str, ...]] = {}
    for k, p in enumerate(pairs):
        names = p.sources + p.targets
        wide = [n for n in sides[0].tensors[names[0]].shape if n != 1]
        looked_up = any(map(TABLE.search, names))
        if p.evidence != "names" or looked_up or len(names) != 2 or len(wide) != 2 or "(" in p.order.text:
            continue
        leaves = tuple(map(leaf, names))
        if wide[0] == wide[1]:
            square[k] = leaves
        else:
            for kind in (leaves, ()):
                votes[kind][_swaps(p, sides)] += 1
    out = [*pairs]
    for k, leaves in square.items():
        p, count = pairs[k], votes[leaves] or votes[leaves if any(map(is_kernel, leaves)) else ()]
        if count[not _swaps(p, sides)] > count[_swaps(p, sides)]:
            (a,), (b,) = p.sources, p.targets
            turned = (p._replace(order=o) for o in simple(sides[0].tensors[a].shape, sides[1].tensors[b].shape))
            p = next((q for q in turned if _swaps(q, sides) is not _swaps(p, sides)), p)
            out[k] = p._replace(sure=False, real=True, why=(*(w for w in p.why if w != CHOSEN), VOTED))
    return out


def _swaps(p: Pair, sides: Sides) -> bool:
    found = essence(p.order, sides[0].tensors[p.sources[0]].shape)
    return isinstance(found, tuple) and found[0] > found[1]


# --- recurrent cells: every framework has its own order of gates and kind of biases ---
#
# torch       weight_ih [4h, x], weight_hh [4h, h], bias_ih [4h], bias_hh [4h]     LSTM: i f g o     GRU: r z n
# Keras       kernel [x, 4h], recurrent_kernel [h, 4h], bias [4h]                  LSTM: i f c o     GRU: z r h
#             GRU with reset_after: bias [2, 3h]
#             CuDNN: bias [8h] or [6h]; the elements of each gate's [x, h] are those of [h, x], row by row
# Flax        one matrix per gate (modules/bundles.py); for the state of a GRU only the candidate has a bias, [h]
# TF1         kernel [x + h, 4h], bias [4h], forget_bias added when it runs        LSTM: i j f o


GRU = 3  # gates
SUMMED = "the bias is the sum of torch's two"
FORGET = "TensorFlow 1 adds a forget_bias when it runs, 1.0 unless the code says otherwise: torch's biases hold it"
CUDNN = (
    "CuDNN's kernels are in an order that no rule can convert: load the model with LSTM or GRU in tf_keras, and save it"
)
RESET = "torch's GRU resets after the matrix; one without reset_after computes something else"


ZRN = "(h.z + h.r + h.n) -> (h.r + h.z + h.n)"
IJFO = "(h.i + h.j + h.f + h.o)", "(h.i + h.f + h.j + h.o)"


def is_torch(u: Unit) -> bool:
    """Tell whether a cell has torch's names."""
    return "weight_hh" in u.members and leaf(u.members["weight_hh"].name).startswith("weight_")


def cell_pairs(a: Unit, b: Unit, judge: Judge) -> list[Pair]:
    """Pair the tensors of a source cell and a torch cell; leave out those without a counterpart."""
    if not {"weight_ih", "weight_hh"} <= b.members.keys():
        return []
    state = b.members["weight_hh"].shape[-1]
    gates = b.members["weight_ih"].shape[0] // max(1, state)
    return [*_matrices(a, b, judge, gates), *_biases(a, b, gates, state)]


def _pair(source: str, targets: Sequence[str], text: str, why: str, **more: Any) -> Pair:
    return Pair((source,), tuple(targets), Order(text), sure=False, why=(why,), **more)


def _matrices(a: Unit, b: Unit, judge: Judge, gates: int) -> Iterator[Pair]:
    ours = [b.members[role] for role in ("weight_ih", "weight_hh")]
    if "joint" in a.members:
        text = f"(x + y) {IJFO[0]} -> {IJFO[1]} x, {IJFO[1]} y"
        pair = _pair(a.members["joint"].name, [t.name for t in ours], text, KEPT_GATES)
        yield pair._replace(order=Order(text, (("x", ours[0].shape[1]),)))
        return
    bias = a.members.get("bias_ih")
    cudnn = bias is not None and bias.shape == (2 * ours[0].shape[0],) and not is_torch(a)
    for role, t in zip(("weight_ih", "weight_hh"), ours, strict=True):
        theirs = a.members.get(role)
        found = judge.order(theirs, t) if theirs else None
        turned = gates == GRU and theirs is not None and not is_torch(a)
        if theirs is None or not (found or turned):
            continue
        order = Order(GATES) if turned or not found else found.order
        pair = _pair(theirs.name, [t.name], "", CUDNN if cudnn else KEPT_GATES, real=cudnn)._replace(order=order)
        flat = judge.after_image(theirs, order) if role == "weight_ih" else None
        yield pair._replace(order=flat.order, real=cudnn or flat.real, why=(*pair.why, flat.doubt)) if flat else pair


def _biases(a: Unit, b: Unit, gates: int, state: int) -> list[Pair]:
    ours = [b.members[r].name for r in ("bias_ih", "bias_hh") if r in b.members]
    if len(ours) < 2 or "bias_ih" not in a.members:
        return []
    bias, wide, gru = a.members["bias_ih"], gates * state, gates == GRU
    if second := a.members.get("bias_hh"):
        if second.shape == (state,):  # only the candidate's gate has one, and no rule can put zeros before it
            return [_pair(bias.name, ours[:1], ZRN, KEPT_GATES)]
        return [_pair(t.name, [n], "", KEPT_GATES) for t, n in zip((bias, second), ours, strict=True)]
    if "joint" in a.members:
        ones = ((ours[1], (0.0, 1.0, 0.0, 0.0)),)  # of torch's order i f g o
        return [_pair(bias.name, ours[:1], " -> ".join(IJFO), FORGET, real=True, fills=ones)]
    if bias.shape == (wide,):
        fills = ((ours[1], (0.0,)),)
        return [_pair(bias.name, ours[:1], ZRN if gru else "", RESET if gru else SUMMED, real=gru, fills=fills)]
    if bias.shape == (2 * wide,):
        six = "(h.a + h.b + h.c + h.d + h.e + h.f) -> (h.b + h.a + h.c), (h.e + h.d + h.f)"
        return [_pair(bias.name, ours, six if gru else "(a.0 + a.1) -> a.0, a.1", KEPT_GATES)]
    if bias.shape == (2, wide):
        return [_pair(bias.name, ours, f"e {ZRN}" if gru else "e a -> a", KEPT_GATES, each=(1, 2))]
    return []
