"""What a proposal could be instead, in the order in which it is tried."""

from __future__ import annotations

import numpy as np
import pytest

from ckptconv.checkpoint import held
from ckptconv.matching.check.alternatives import alternatives
from ckptconv.matching.orders.axes import Order
from ckptconv.matching.orders.cuts import PARTS
from ckptconv.matching.pairs import Pair

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
    order = Order(" -> ".join(texts[::-1] if case == "joined" else texts))
    row = Pair(tuple(sources.split()), tuple(targets.split()), order, sure=False, why=(PARTS,), each=each)
    shapes = {n: held(n, np.zeros((2, 6), "f4")) for n in sources.split()}
    found = alternatives([row], shapes, dict.fromkeys(targets.split(), (2, 6)))
    parted = [p for x in found if "parts" in x.text for p in x.pairs.values()]
    assert [f"{' '.join(p.sources)} to {' '.join(p.targets)}" for p in parted] == want
    assert all(p.order == row.order for p in parted)
