"""What tensors beside images could be instead: flattened or shaped with other channels, or beside no image.

flattened      (h w c) o -> o (c h w)        behind convolutions, with what stands between: (h w c) -> (c h w)
shaped         i (h w c) -> (c h w) i        in front of convolutions, with their biases
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..checkpoint import Tensor
from . import orders
from .behind import length, plain, turned
from .conventions import is_kernel
from .doubt import FLAT, FLAT_GATES, FLAT_NOT, FLATTENED, GATES, IMAGE_NOT, IMAGED, PLAIN, SHAPED_IMAGE
from .orders import Order, Shape
from .pairs import Alternative, Pair, leaf, parent

MAX_CHANNELS = 6


def flattened(
    unsure: Mapping[int, Pair], source: Mapping[str, Tensor], target: Mapping[str, Shape]
) -> Iterator[Alternative]:
    """Dense layers behind a flattened image, and vectors between: channels come first in torch and last in TensorFlow.

    What has as many inputs stands behind one image, so that all of it goes together before each layer by itself.
    """
    channels = sorted({t.shape[-1] for t in source.values() if len(t.shape) in (3, 4, 5)}, reverse=True)
    beside: dict[int, dict[int, Flat]] = defaultdict(dict)
    for k, p in unsure.items():
        if found := _flat(p, source, target):
            beside[found.inputs][k] = found
    for inputs, several in beside.items():
        layers: dict[str, dict[int, Flat]] = defaultdict(dict)
        for k, f in several.items():
            layers[parent(f.pair.targets[0]) if f.vector else f.pair.targets[0]][k] = f
        for group in [several, *layers.values()] if len(layers) > 1 else [several]:
            first = next(iter(group.values())).pair.targets[0]
            name = first if len(group) == 1 else f"{first} and others of {inputs} inputs"
            if there := {k: reasoned(f.pair, f.plain, FLAT, FLAT_NOT) for k, f in group.items() if f.turns}:
                yield Alternative(f"{name} behind no image", there)
            for c in [c for c in channels if 1 < c < inputs and inputs % c == 0][:MAX_CHANNELS]:
                made = {k: (f.pair, Order(f.way, (("c", c),))) for k, f in group.items()}
                if other := {k: _behind_image(p, order) for k, (p, order) in made.items() if p.order != order}:
                    yield Alternative(f"{name} behind an image of {c} channels", other)


def _behind_image(p: Pair, order: Order) -> Pair:
    """The pair turned for an image, and a reason that says so, also if there was another one."""
    made = reasoned(p, order, FLAT_NOT, FLAT)
    return made if FLAT in made.why else made._replace(why=(*made.why, FLAT))


class Flat(NamedTuple):
    """A tensor that may stand behind an image: how many inputs that has, its layout there, and its order elsewhere."""

    pair: Pair
    inputs: int
    way: str
    plain: Order
    vector: bool = False

    @property
    def turns(self) -> bool:
        """Whether it is now as behind an image."""
        return self.pair.order.text == self.way


def _flat(p: Pair, source: Mapping[str, Tensor], target: Mapping[str, Shape]) -> Flat | None:
    """What a pair would be behind an image; None for one that cannot be there."""
    if len(p.sources) != 1 or len(p.targets) != 1:
        return None
    shape = source[p.sources[0]].shape
    if (n := length(shape)) and {FLAT, FLAT_NOT} & {*p.why} and not is_kernel(leaf(p.sources[0])):
        there = target[p.targets[0]]
        return Flat(p, n, turned(shape, there, 1).text, plain(shape, there), True) if length(there) else None
    if len(shape) != 2 or ("(" in p.order.text and not _image(p)):
        return None
    inputs_first = _image(p) or orders.essence(p.order, shape) == (1, 0)
    way = FLAT_GATES if p.order.text in (GATES, FLAT_GATES) else FLATTENED if inputs_first else "o (s c) -> o (c s)"
    return Flat(p, shape[0] if inputs_first else shape[1], way, Order(PLAIN[way]) if way in PLAIN else Order())


def shaped(unsure: Mapping[int, Pair], source: Mapping[str, Tensor]) -> Iterator[Alternative]:
    """Dense layers in front of an image, with their biases: plain, or of so many channels."""
    groups: dict[int, dict[int, Pair]] = defaultdict(dict)
    for k, p in unsure.items():
        if {SHAPED_IMAGE, IMAGE_NOT} & {*p.why}:
            groups[source[p.sources[0]].shape[-1]][k] = p
    flat = {there: text for text, there in IMAGED.items()}
    for width, found in groups.items():
        name = f"{next(iter(found.values())).targets[0]} and others of {width} outputs"
        if there := {
            k: reasoned(p, Order(flat[p.order.text]), SHAPED_IMAGE, IMAGE_NOT)
            for k, p in found.items()
            if p.order.text in flat
        }:
            yield Alternative(f"{name} in front of no image", there)
        sizes = {n for t in source.values() if len(t.shape) in (3, 4, 5) for n in t.shape[-2:]}
        for c in sorted((c for c in sizes if 1 < c < width and width % c == 0), reverse=True)[:MAX_CHANNELS]:
            made = {k: Order(IMAGED[flat.get(p.order.text, p.order.text)], (("c", c),)) for k, p in found.items()}
            if any(order != found[k].order for k, order in made.items()):
                there = {k: reasoned(found[k], order, IMAGE_NOT, SHAPED_IMAGE) for k, order in made.items()}
                yield Alternative(f"{name} in front of an image of {c} channels", there)


def _image(p: Pair) -> bool:
    """Whether the order is one of those behind an image, or the gates of a GRU, which may stand there."""
    return p.order.text in (*PLAIN, GATES)


def reasoned(p: Pair, order: Order, before: str, after: str) -> Pair:
    """The pair with another order, and a reason that says what it now does."""
    why = tuple(dict.fromkeys(after if w == before else w for w in p.why))
    return p._replace(order=order, why=why)


__all__ = ["flattened", "shaped"]
