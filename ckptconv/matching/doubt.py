"""Choose the order of axes for a pair that names or modules found, and record any doubt. Pure.

kernel [6, 6] -> weight [6, 6]          a convention says i o -> o i; shapes would allow the identity too: doubtful
weight_ih [12, 5], kernel [5, 12]       gates may be in another order: doubtful
"""

from __future__ import annotations

from typing import NamedTuple

from ..checkpoint import Tensor
from . import conventions, orders
from .images import FLAT, FLAT_NOT, IMAGE_NOT, SHAPED_IMAGE, Images
from .orders import Order
from .pairs import leaf

GATES = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"  # of a GRU: Keras has z, r, h, torch r, z, n
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TABLES = ("emb", "wte", "wpe", "lookup", "vocab")  # words in names of matrices that are not multiplied but looked up

KEPT_GATES = "the order of the gates is that of Keras and torch"
CHOSEN = "a convention chose among the orders of axes that the shapes allow"
SHAPED = "only the shapes decide the order of axes"


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
