"""List alternatives to a proposal, the likeliest first; each replaces some pairs by others.

flattened      (h w c) o -> o (c h w)        after convolutions
shaped         i (h w c) -> (c h w) i        before convolutions
turned         i o -> o i, or unchanged      square matrices, all of one kind together, then one by one
parts          v, k, q                       parts of joined tensors in another order
crossed        a module for another          with one signature, neighbours first
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from ...checkpoint import Tensor
from ..orders.axes import Order, Shape, essence, is_kernel, simple, tokens
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

MAX_PARTS = 3  # of a tensor; the orders of more are not tried
MAX_CHANNELS = 6
IMAGES = {FLAT, FLAT_NOT, SHAPED_IMAGE, IMAGE_NOT}
Unsure = Mapping[int, Pair]


def alternatives(
    pairs: Sequence[Pair], source: Mapping[str, Tensor], target: Mapping[str, tuple[int, ...]]
) -> Iterator[Alternative]:
    """Yield all alternatives to the pairs that are not sure; `target` holds the shapes of the module's tensors."""
    unsure = {k: p for k, p in enumerate(pairs) if not p.sure}
    for why in ((FLAT, FLAT_NOT), (SHAPED_IMAGE, IMAGE_NOT)):
        yield from _beside_images({k: p for k, p in unsure.items() if {*why} & {*p.why}}, source, why)
    yield from _turned(unsure, source, target)
    yield from _reordered(unsure)
    yield from _crossed(unsure, target)
    others = {k: p for k, p in unsure.items() if not IMAGES & {*p.why}}
    matrices = {
        k: p for k, p in others.items() if len(p.sources + p.targets) == 2 and len(source[p.sources[0]].shape) == 2
    }
    yield from _beside_images(matrices, source, (FLAT, FLAT_NOT))


def _beside_images(unsure: Unsure, source: Mapping[str, Tensor], why: tuple[str, str]) -> Iterator[Alternative]:
    """Yield alternatives without an image, or with other channels: all tensors of one width, then each by itself."""
    groups: dict[int, dict[int, int]] = defaultdict(dict)
    for k, p in unsure.items():
        shape = source[p.sources[0]].shape
        axis = len(shape) - 1 if why[0] == SHAPED_IMAGE else _inputs(p, shape)
        groups[shape[axis]][k] = axis
    ends = 2 if why[0] == SHAPED_IMAGE else 1  # before it, a convolution has them as outputs; after it, as either
    channels = {n for t in source.values() if len(t.shape) in (3, 4, 5) for n in t.shape[-ends:]}
    widths = [
        (n, part) for n, axes in groups.items() for part in (axes, *({k: axes[k]} for k in axes if len(axes) > 1))
    ]
    for n, axes in widths:
        shapes = {k: source[unsure[k].sources[0]].shape for k in axes}
        plain = {k: without_image(unsure[k].order, shapes[k]) for k in axes}
        first = unsure[next(iter(axes))].targets[0]
        text = f"{first}{' and others' * (len(axes) > 1)} {'behind' if why[0] == FLAT else 'in front of'}"
        if imaged := {k: order for k, order in plain.items() if "(s c)" in unsure[k].order.text}:
            yield Alternative(f"{text} no image", {k: _because(unsure[k], o, why[1]) for k, o in imaged.items()})
        for c in sorted((c for c in channels if 1 < c < n and n % c == 0), reverse=True)[:MAX_CHANNELS]:
            made = {k: with_image(plain[k], len(shapes[k]), axis, c) for k, axis in axes.items()}
            if other := {k: _because(unsure[k], o, why[0]) for k, o in made.items() if o != unsure[k].order}:
                yield Alternative(f"{text} an image of {c} channels", other)


def _inputs(p: Pair, shape: Shape) -> int:
    """Return the axis of a layer's inputs, or that of a vector."""
    if length(shape) and not is_kernel(leaf(p.sources[0])):
        return shape.index(length(shape))
    left = tokens(p.order.text.partition("->")[0])
    return left.index("(s c)") if "(s c)" in left else int(p.order.text != GATES and essence(p.order, shape) != (1, 0))


def _because(p: Pair, order: Order, reason: str) -> Pair:
    """Give a pair another order, and the reason for it."""
    return p._replace(order=order, why=(*(w for w in p.why if w not in IMAGES), reason))


def _turned(
    unsure: Unsure, source: Mapping[str, Tensor], target: Mapping[str, tuple[int, ...]]
) -> Iterator[Alternative]:
    """Yield other orders of axes that the shapes allow."""
    groups: dict[tuple[str, str, str], dict[int, Pair]] = defaultdict(dict)
    for k, p in unsure.items():
        if len(p.sources) != 1 or len(p.targets) != 1 or (IMAGES | {KEPT_GATES}) & {*p.why}:
            continue
        a = source[p.sources[0]].shape
        done = {essence(p.order, a)}
        for order in simple(a, target[p.targets[0]]):
            if essence(order, a) not in done:
                done.add(essence(order, a))
                groups[leaf(p.sources[0]), leaf(p.targets[0]), order.text][k] = p._replace(order=order)
    likely = sorted(groups.items(), key=lambda g: (is_kernel(g[0][0]), len(g[0][2].split())))
    for (x, y, text), found in likely:
        if len(found) > 1:
            yield Alternative(f"every {x} to {y} {text or 'as it is'}", found)
    for (_, _, text), found in likely:
        yield from (Alternative(f"{p.targets[0]} {text or 'as it is'}", {k: p}) for k, p in found.items())


def _reordered(unsure: Unsure) -> Iterator[Alternative]:
    """Yield other orders of the parts of joined tensors, for all tensors with equally many parts together."""
    joined: dict[int, dict[int, Pair]] = defaultdict(dict)
    for k, p in unsure.items():
        if {FUSED, PARTS} & {*p.why}:
            joined[p.order.text.count(",") + 1][k] = p
    for count, found in joined.items():
        for order in list(permutations(range(count)))[1:] if 1 < count <= MAX_PARTS else ():
            turned = {k: _with_parts(p, order) for k, p in found.items()}
            yield Alternative(f"{count} parts in the order {' '.join(map(str, order))}", turned)


def _with_parts(p: Pair, order: Sequence[int]) -> Pair:
    """Put the parts of a pair in another order; each is one name, or one for every layer."""
    joined = len(p.sources) > len(p.targets)
    names = p.sources if joined else p.targets
    size = len(names) // len(order)
    picked = tuple(n for k in order for n in names[k * size : (k + 1) * size])
    return p._replace(sources=picked) if joined else p._replace(targets=picked)


def _crossed(unsure: Unsure, target: Mapping[str, tuple[int, ...]]) -> Iterator[Alternative]:
    """Yield exchanges of two modules of one signature, nearest neighbours first."""
    modules: dict[str, dict[str, int]] = defaultdict(dict)
    for k, p in unsure.items():
        if p.real and not p.fills and not p.length:
            modules[parent(p.targets[0])][leaf(p.targets[0])] = k
    classes: dict[object, list[str]] = defaultdict(list)
    for home, roles in modules.items():
        kinds = ((role, target[unsure[k].targets[0]], len(unsure[k].targets)) for role, k in roles.items())
        classes[frozenset(kinds)].append(home)
    both = ((many, x, y) for many in classes.values() for x, y in combinations(range(len(many)), 2))
    for _, one, other in sorted((y - x, many[x], many[y]) for many, x, y in both):
        found: dict[int, Pair] = {}
        for role, k in modules[one].items():
            j = modules[other][role]
            p, q = unsure[k], unsure[j]
            found |= {k: p._replace(targets=q.targets), j: q._replace(targets=p.targets)}
        yield Alternative(f"{one} and {other} exchanged", found)
