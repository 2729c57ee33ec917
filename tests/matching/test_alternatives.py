"""What a proposal could be instead, in the order in which it is tried."""

from __future__ import annotations

import numpy as np
import pytest

from ckptconv.checkpoint import held
from ckptconv.matching.check.alternatives import alternatives
from ckptconv.matching.orders.axes import Order
from ckptconv.matching.orders.choose import FORGET
from ckptconv.matching.orders.cuts import PARTS
from ckptconv.matching.pairs import Pair

Shape = tuple[int, ...]


def pair(source: str, target: str, order: Order | str = "", *why: str, real: bool = False, sure: bool = False) -> Pair:
    order = Order(order) if isinstance(order, str) else order
    return Pair(tuple(source.split()), tuple(target.split()), order, "names", sure, why, real=real)


def tried(pairs: list[Pair], source: dict[str, Shape], target: dict[str, Shape]) -> list[str]:
    """Each alternative: its words, then of each pair that changes what becomes of it."""
    tensors = {n: held(n, np.zeros(shape, "f4")) for n, shape in source.items()}
    out = []
    for found in alternatives(pairs, tensors, target):
        changes = []
        for k, p in found.pairs.items():
            sizes = "".join(f"; {n}={size}" for n, size in p.order.sizes)
            fills = "".join(f" fill {n} {v}" for n, v in p.fills if p.fills != pairs[k].fills)
            moved = "" if p.targets == pairs[k].targets else f" to {p.targets[0]}"
            changes.append(f"{k}: {p.order.text}{sizes}{fills}{moved}")
        out.append(" | ".join([found.text, *changes]))
    return out


def test_a_forget_bias_may_be_none() -> None:
    constant = pair("b", "t")._replace(fills=(("u", (1.0,)),))  # of a batch normalisation: it has no gates
    assert tried([constant], {"b": (8,)}, {"t": (8,)}) == []
    filled = pair("b", "t", "", FORGET)._replace(fills=(("u", (1.0, 0.0)),))
    found = tried([filled], {"b": (3,)}, {"t": (3,)})
    assert found[-1] == "no forget_bias | 0:  fill u (0.0,)"
    assert "no forget_bias" not in "".join(tried([filled._replace(why=("x",))], {"b": (3,)}, {"t": (3,)}))


PARTED = {  # sources, targets, names of one template on each side, the sources and targets of each alternative
    "two parts": ("w", "g u", None, ["w to u g"]),
    "three": ("w", "q k v", None, ["w to q v k", "w to k q v", "w to k v q", "w to v q k", "w to v k q"]),
    "joined": ("g u", "w", None, ["u g to w"]),
    "in every layer": ("w", "g0 g1 g2 u0 u1 u2", (1, 3), ["w to u0 u1 u2 g0 g1 g2"]),
    "four parts are too many": ("w", "a b c d", None, []),
}


@pytest.mark.parametrize("case", PARTED)
def test_parts_in_other_orders(case: str) -> None:
    sources, targets, each, want = PARTED[case]
    count = 4 if "four" in case else 3 if case == "three" else 2
    terms = [f"a n.{i}" for i in range(count)]
    texts = [f"a ({' + '.join(t[2:] for t in terms)})", ", ".join(terms)]
    row = pair(sources, targets, " -> ".join(texts[::-1] if case == "joined" else texts), PARTS)
    shapes = {n: held(n, np.zeros((2, 6), "f4")) for n in sources.split()}
    found = alternatives([row._replace(each=each)], shapes, dict.fromkeys(targets.split(), (2, 6)))
    parted = [p for x in found if "parts" in x.text for p in x.pairs.values()]
    assert [f"{' '.join(p.sources)} to {' '.join(p.targets)}" for p in parted] == want
    assert all(p.order == row.order for p in parted)
