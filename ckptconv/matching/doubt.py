"""The order of axes of a pair that names found, and what is doubtful about it. Pure.

kernel [6, 6] -> weight [6, 6]          a convention says i o -> o i; shapes would allow the identity too: doubtful
q [6, 6] -> q.weight [6, 6]             as most matrices do whose shapes tell: doubtful
weight_ih [12, 5], kernel [5, 12]       gates may be in another order: doubtful
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..checkpoint import Tensor
from . import orders
from .orders import Order
from .pairs import Pair, leaf

GATES = "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"  # of a GRU: Keras has z, r, h, torch r, z, n
RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
TABLES = ("emb", "wte", "wpe", "lookup", "vocab")  # words in names of matrices that are not multiplied but looked up


class Judge:
    """What is known of the source as a whole: which widths its layers have."""

    def __init__(self, a: Mapping[str, Tensor]) -> None:
        self.channels = {t.shape[-1] for t in a.values() if len(t.shape) in (4, 5) and t.shape[-1] > 1}
        self.widths = {t.shape[-1] for t in a.values() if len(t.shape) == 2} | self.channels

    def order(self, a: Tensor, b: Tensor) -> tuple[Order | None, str]:
        """The order that names and shapes tell, None if there is none, and the doubt."""
        known = orders.simple(a.shape, b.shape)
        leaves = leaf(a.name), leaf(b.name)
        told = orders.convention(a.shape, b.shape, *leaves)
        found = told or (known[0] if known else None)
        if found is None:
            return None, ""
        if leaves[1].startswith(RECURRENT):
            gru = "gru" in a.name.lower() + b.name.lower() and "kernel" in leaves[0] and len(a.shape) == 2
            return (Order(GATES) if gru else found), "the order of the gates is that of Keras and torch"
        if orders.distinct(known, a.shape) > 1:
            if told is None:
                return found, f"shapes allow {len(known)} orders of axes and no convention is known"
            return found, "a convention chose among the orders of axes that the shapes allow"
        if told is None and a.shape != b.shape:
            return found, "only the shapes tell the order of axes"
        return found, self._flattened(a)

    def _flattened(self, a: Tensor) -> str:
        """Doubt, if a dense layer may stand behind a flattened image."""
        if len(a.shape) != 2 or "kernel" not in leaf(a.name):
            return ""
        n = a.shape[0]
        if n not in self.widths and any(n % c == 0 for c in self.channels):
            return "behind a flattened image the inputs may be in another order, (h w c) -> (c h w)"
        return ""


def voted(pairs: Iterable[Pair], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[Pair]:
    """Square matrices of which no convention is known, turned as most others are whose shapes tell."""
    found = list(pairs)
    plain = [p for p in found if _matrix(p, a, b)]
    votes = Counter(p.order.text for p in plain if len(set(a[p.sources[0]].shape)) == 2)
    if votes["a b -> b a"] + votes["i o -> o i"] <= votes[""]:
        return found
    square = {p for p in plain if not p.order.text and len(set(a[p.sources[0]].shape)) == 1}
    turned = {p for p in square if "kernel" not in leaf(p.sources[0])}
    why = "the order of axes is that of the other matrices"
    return [p._replace(order=Order("i o -> o i"), sure=False, why=(*p.why, why)) if p in turned else p for p in found]


def _matrix(p: Pair, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether a pair by names is of weights that are multiplied."""
    names = p.sources + p.targets
    return (
        p.evidence in ("names", "shape")
        and len(names) == 2
        and len(a[names[0]].shape) == len(b[names[1]].shape) == 2
        and leaf(names[1]) == "weight"
        and not any(word in n.lower() for n in names for word in TABLES)
    )
