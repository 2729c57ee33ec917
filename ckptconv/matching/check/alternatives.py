"""What a proposal could be instead, the likeliest first: each alternative replaces some pairs by others.

flattened      (h w c) o -> o (c h w)        behind convolutions
shaped         i (h w c) -> (c h w) i        in front of convolutions
turned         i o -> o i, or as it is       square matrices, all of one kind together, then one by one
gates          i f c o, or i c f o           all cells together
parts          v, k, q                       tensors that are joined, in another order
crossed        a module for another          of one signature, neighbours first
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from ...checkpoint import Tensor
from ..orders.axes import Order, Shape, essence, is_kernel, renamed, simple, tokens
from ..orders.cells import FORGET, SUMMED
from ..orders.choose import (
    FLAT,
    FLAT_NOT,
    GATES,
    IMAGE_NOT,
    KEPT_GATES,
    SHAPED_IMAGE,
    length,
    with_image,
    without_image,
)
from ..orders.cuts import FUSED, PARTS
from ..pairs import Alternative, Pair, leaf, parent

MAX_PARTS = 3  # of a tensor, whose other orders are tried
MAX_CHANNELS = 6
AFTER, BEFORE = {FLAT, FLAT_NOT}, {SHAPED_IMAGE, IMAGE_NOT}
SWAPPED = "(h.i + h.j + h.f + h.o)", "(h.i + h.f + h.j + h.o)"


def alternatives(
    pairs: Sequence[Pair], source: Mapping[str, Tensor], target: Mapping[str, tuple[int, ...]]
) -> Iterator[Alternative]:
    """All alternatives to the pairs that are not sure; `target` holds the shapes of the module's tensors."""
    unsure = {k: p for k, p in enumerate(pairs) if not p.sure}
    likely = {k: p for k, p in unsure.items() if AFTER & {*p.why}}
    yield from _after_images(likely, source)
    yield from _before_images({k: p for k, p in unsure.items() if BEFORE & {*p.why}}, source)
    yield from _turned(unsure, source, target)
    yield from _gates(unsure, source)
    yield from _reordered(unsure)
    yield from _crossed(unsure, target)
    yield from _after_images({k: p for k, p in unsure.items() if k not in likely}, source)


def _after_images(unsure: Mapping[int, Pair], source: Mapping[str, Tensor]) -> Iterator[Alternative]:
    """What may stand after a flattened image: all of one width together, then each layer by itself."""
    beside: dict[int, dict[int, int]] = defaultdict(dict)
    for k, p in unsure.items():
        shape = source[p.sources[0]].shape
        if (axis := _features(p, shape)) >= 0:
            beside[shape[axis]][k] = axis
    channels = {t.shape[-1] for t in source.values() if len(t.shape) in (3, 4, 5)}
    for n, axes in beside.items():
        layers: dict[str, dict[int, int]] = defaultdict(dict)
        for k, axis in axes.items():
            name = unsure[k].targets[0]
            layers[parent(name) if length(source[unsure[k].sources[0]].shape) else name][k] = axis
        for group in [axes, *layers.values()] if len(layers) > 1 else [axes]:
            first = unsure[next(iter(group))].targets[0]
            name = first if len(group) == 1 else f"{first} and others of {n} inputs"
            yield from _images(unsure, source, group, channels, f"{name} behind", (FLAT, FLAT_NOT))


def _features(p: Pair, shape: Shape) -> int:
    """The axis of a tensor that may be that of a flattened image; -1 if there is none."""
    if len(p.sources) != 1 or len(p.targets) != 1:
        return -1
    if length(shape) and AFTER & {*p.why} and not is_kernel(leaf(p.sources[0])):
        return shape.index(length(shape))
    if len(shape) != 2 or ("(" in p.order.text and "(s c)" not in p.order.text and p.order.text != GATES):
        return -1
    if "(s c)" in p.order.text:
        return tokens(p.order.text.partition("->")[0]).index("(s c)")
    return 0 if p.order.text == GATES or essence(p.order, shape) == (1, 0) else 1


def _before_images(unsure: Mapping[int, Pair], source: Mapping[str, Tensor]) -> Iterator[Alternative]:
    """Dense layers before an image, with their biases."""
    groups: dict[int, dict[int, int]] = defaultdict(dict)
    for k, p in unsure.items():
        shape = source[p.sources[0]].shape
        groups[shape[-1]][k] = len(shape) - 1
    channels = {n for t in source.values() if len(t.shape) in (3, 4, 5) for n in t.shape[-2:]}
    for n, group in groups.items():
        name = f"{unsure[next(iter(group))].targets[0]} and others of {n} outputs"
        yield from _images(unsure, source, group, channels, f"{name} in front of", (SHAPED_IMAGE, IMAGE_NOT))


def _images(
    unsure: Mapping[int, Pair], source: Mapping[str, Tensor], axes: Mapping[int, int], channels: set[int],
    text: str, reasons: tuple[str, str],
) -> Iterator[Alternative]:  # fmt: skip
    """The tensors with their axes beside no image, then beside one of each number of channels, the most first."""
    shapes = {k: source[unsure[k].sources[0]].shape for k in axes}
    turned, asked = reasons
    plain = {k: without_image(unsure[k].order, shapes[k]) for k in axes}
    if was := {k: order for k, order in plain.items() if "(s c)" in unsure[k].order.text}:
        yield Alternative(f"{text} no image", {k: _reasoned(unsure[k], order, asked) for k, order in was.items()})
    n = next(shapes[k][axis] for k, axis in axes.items())
    for c in sorted((c for c in channels if 1 < c < n and n % c == 0), reverse=True)[:MAX_CHANNELS]:
        made = {k: with_image(plain[k], len(shapes[k]), axis, c) for k, axis in axes.items()}
        other = {k: _reasoned(unsure[k], order, turned) for k, order in made.items() if order != unsure[k].order}
        if other:
            yield Alternative(f"{text} an image of {c} channels", other)


def _reasoned(p: Pair, order: Order, reason: str) -> Pair:
    """The pair with another order, and a reason that says what it now does."""
    return p._replace(order=order, why=(*(w for w in p.why if w not in AFTER | BEFORE), reason))


def _turned(
    unsure: Mapping[int, Pair], source: Mapping[str, Tensor], target: Mapping[str, tuple[int, ...]]
) -> Iterator[Alternative]:
    """Other orders of axes that the shapes allow."""
    groups: dict[tuple[str, str, str], dict[int, Pair]] = defaultdict(dict)
    for k, p in unsure.items():
        if len(p.sources) != 1 or len(p.targets) != 1 or (AFTER | BEFORE | {KEPT_GATES}) & {*p.why}:
            continue
        a, b = source[p.sources[0]].shape, target[p.targets[0]]
        done = {essence(p.order, a)}
        for order in simple(a, b):
            if essence(order, a) not in done:
                done.add(essence(order, a))
                groups[(leaf(p.sources[0]), leaf(p.targets[0]), order.text)][k] = p._replace(order=order)
    likely = sorted(groups.items(), key=lambda g: (is_kernel(g[0][0]), len(g[0][2].split())))
    for (x, y, text), found in likely:
        if len(found) > 1:
            yield Alternative(f"every {x} to {y} {text or 'as it is'}", found)
    for (_, _, text), found in likely:
        for k, p in found.items():
            yield Alternative(f"{p.targets[0]} {text or 'as it is'}", {k: p})


def _gates(unsure: Mapping[int, Pair], source: Mapping[str, Tensor]) -> Iterator[Alternative]:
    """The gates of LSTMs in TensorFlow's order or in torch's; a forget bias or none."""
    cells = {k: p for k, p in unsure.items() if {KEPT_GATES, SUMMED, FORGET} & {*p.why}}
    turned = {k: p for k, old in cells.items() if (p := _regated(old, len(source[old.sources[0]].shape)))}
    if turned:
        yield Alternative("the gates of all LSTMs in the other order", turned)
    filled = {k: p for k, p in cells.items() if FORGET in p.why and p.fills}
    if filled:
        zeros = {k: p._replace(fills=tuple((n, (0.0,)) for n, _ in p.fills)) for k, p in filled.items()}
        yield Alternative("no forget_bias", zeros)


def _regated(p: Pair, rank: int) -> Pair | None:
    """The pair with the two middle gates of an LSTM exchanged; None if it has no four gates along its last axis."""
    text = p.order.text
    if "h.i" in text:
        left, arrow, right = text.partition("->")
        swapped = right.replace("h.f", "h.x").replace("h.j", "h.f").replace("h.x", "h.j")
        return p._replace(order=Order(left + arrow + swapped, p.order.sizes))
    if "(h." in text or "," in text or rank > 2 or (rank == 2 and not text):
        return None
    left, _, right = text.partition(" -> ")
    if text and tokens(right)[:1] != tokens(left)[-1:]:
        return None
    return p._replace(order=renamed(p.order, rank, rank - 1, *SWAPPED, p.order.sizes))


def _reordered(unsure: Mapping[int, Pair]) -> Iterator[Alternative]:
    """The parts of joined tensors in other orders, of all tensors with as many parts together."""
    joined: dict[int, dict[int, Pair]] = defaultdict(dict)
    for k, p in unsure.items():
        if {FUSED, PARTS} & {*p.why}:
            joined[p.order.text.count(",") + 1][k] = p
    for count, found in joined.items():
        for order in list(permutations(range(count)))[1:] if 1 < count <= MAX_PARTS else ():
            turned = {k: _with_parts(p, order) for k, p in found.items()}
            yield Alternative(f"{count} parts in the order {' '.join(map(str, order))}", turned)


def _with_parts(p: Pair, order: Sequence[int]) -> Pair:
    """The pair with its parts in another order; each is one name, or one for every layer."""
    joined = len(p.sources) > len(p.targets)
    names = p.sources if joined else p.targets
    size = len(names) // len(order)
    picked = tuple(n for k in order for n in names[k * size : (k + 1) * size])
    return p._replace(sources=picked) if joined else p._replace(targets=picked)


def _crossed(unsure: Mapping[int, Pair], target: Mapping[str, tuple[int, ...]]) -> Iterator[Alternative]:
    """Two modules of one signature exchanged, the nearest to each other first."""
    modules: dict[str, dict[str, int]] = defaultdict(dict)
    for k, p in unsure.items():
        if p.real and not p.fills and not p.length:
            modules[parent(p.targets[0])][leaf(p.targets[0])] = k
    classes: dict[object, list[str]] = defaultdict(list)
    for home, roles in modules.items():
        kinds = [(r, target[unsure[k].targets[0]], len(unsure[k].targets)) for r, k in roles.items()]
        classes[tuple(sorted(kinds))].append(home)
    both = ((many, x, y) for many in classes.values() for x, y in combinations(range(len(many)), 2))
    near = sorted((y - x, many[x], many[y]) for many, x, y in both)
    for _, one, other in near:
        found: dict[int, Pair] = {}
        for role, k in modules[one].items():
            j = modules[other][role]
            p, q = unsure[k], unsure[j]
            found |= {k: p._replace(targets=q.targets), j: q._replace(targets=p.targets)}
        yield Alternative(f"{one} and {other} exchanged", found)
