"""What a proposal could be instead, in the order in which it is tried."""

from __future__ import annotations

import numpy as np
import pytest

from ckptconv.checkpoint import held
from ckptconv.matching.check.alternatives import alternatives
from ckptconv.matching.orders.axes import Order
from ckptconv.matching.orders.cells import FORGET
from ckptconv.matching.orders.choose import FLAT, FLAT_NOT, KEPT_GATES
from ckptconv.matching.orders.cuts import PARTS
from ckptconv.matching.pairs import Pair

Shape = tuple[int, ...]
FLATTENED = "(s c) o -> o (c s)"
FLAT_ORDER = Order(FLATTENED, (("c", 3),))
IJFO, IFJO = "(h.i + h.j + h.f + h.o)", "(h.i + h.f + h.j + h.o)"


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


IMAGE: dict[str, Shape] = {"c/kernel": (3, 3, 1, 4), "d/kernel": (3, 2, 6), "e/kernel": (9, 1, 1, 1, 3)}


def test_dense_layers_behind_images() -> None:
    """Channels that divide the inputs, the most first; none of the vector, none of other matrices."""
    source = IMAGE | {"f/kernel": (24, 5), "v": (12,), "m": (4, 8)}
    target: dict[str, Shape] = {"f.weight": (5, 24)}
    assert tried([pair("f/kernel", "f.weight", "i o -> o i", FLAT_NOT)], source, target) == [
        f"f.weight behind an image of 6 channels | 0: {FLATTENED}; c=6",
        f"f.weight behind an image of 4 channels | 0: {FLATTENED}; c=4",
        f"f.weight behind an image of 3 channels | 0: {FLATTENED}; c=3",
    ]
    assert tried([pair("f/kernel", "f.weight", FLAT_ORDER, FLAT)], source, target) == [
        "f.weight behind no image | 0: i o -> o i",
        f"f.weight behind an image of 6 channels | 0: {FLATTENED}; c=6",
        f"f.weight behind an image of 4 channels | 0: {FLATTENED}; c=4",
    ]


def test_what_is_likely_comes_before_the_rest_and_what_is_sure_stays() -> None:
    source: dict[str, Shape] = {"c": (3, 3, 1, 2), "a/kernel": (4, 4), "b/kernel": (4, 5), "s/kernel": (4, 4)}
    target: dict[str, Shape] = {"a.w": (4, 4), "b.w": (5, 4), "s.w": (4, 4)}
    rows = [
        pair("a/kernel", "a.w", "i o -> o i"),
        pair("b/kernel", "b.w", "i o -> o i", FLAT_NOT),
        pair("s/kernel", "s.w", "i o -> o i", sure=True),
    ]
    assert tried(rows, source, target) == [
        f"b.w behind an image of 2 channels | 1: {FLATTENED}; c=2",
        "a.w as it is | 0: ",
        f"a.w behind an image of 2 channels | 0: {FLATTENED}; c=2",
    ]


def test_square_matrices_are_turned_together_and_then_one_by_one() -> None:
    """Of kernels it is less likely than of others."""
    source: dict[str, Shape] = {"a/kernel": (4, 4), "b/kernel": (3, 3), "c/q": (2, 2), "d/q": (5, 5)}
    target: dict[str, Shape] = {"a.weight": (4, 4), "b.weight": (3, 3), "c.r": (2, 2), "d.r": (5, 5)}
    rows = [pair("a/kernel", "a.weight", "i o -> o i"), pair("b/kernel", "b.weight", "i o -> o i")]
    rows += [pair("c/q", "c.r"), pair("d/q", "d.r", "", KEPT_GATES)]
    assert tried(rows, source, target) == [
        "every kernel to weight as it is | 0:  | 1: ",
        "c.r i o -> o i | 2: i o -> o i",
        "a.weight as it is | 0: ",
        "b.weight as it is | 1: ",
    ]


GATES = {
    "": ("b", (8,), f"{IJFO} -> {IFJO}"),
    "i o -> o i": ("k", (3, 8), f"i {IJFO} -> {IFJO} i"),
    "a b -> b a": ("k", (3, 8), f"a {IJFO} -> {IFJO} a"),
    f"i {IJFO} -> {IFJO} i": ("k", (3, 8), f"i {IJFO} -> {IJFO} i"),
    "(i + s) (h.i + h.j + h.f + h.o) -> (h.i + h.f + h.j + h.o) i": (
        "k", (3, 8), "(i + s) (h.i + h.j + h.f + h.o) -> (h.i + h.j + h.f + h.o) i",
    ),
}  # fmt: skip


def test_the_gates_of_all_cells_are_exchanged_together() -> None:
    source = {f"{n}{k}": shape for k, (n, shape, _) in enumerate(GATES.values())}
    target = {f"t{k}": shape[::-1] for k, (_, shape, _) in enumerate(GATES.values())}
    rows = [pair(s, t, text, KEPT_GATES) for s, t, text in zip(source, target, GATES, strict=True)]
    assert tried(rows, source, target) == [
        " | ".join(
            [
                "the gates of all LSTMs in the other order",
                *(f"{k}: {wanted}" for k, (_, _, wanted) in enumerate(GATES.values())),
            ]
        )
    ]


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


def test_modules_of_one_signature_are_exchanged_neighbours_first() -> None:
    source: dict[str, Shape] = {f"{n}/{r}": (2,) for n in "abcd" for r in ("k", "b")}
    shapes: dict[str, Shape] = {"k": (2, 3), "b": (3,)}
    target = {f"{n}.{r}": shapes[r] if n != "z" else (7, *shapes[r]) for n in "wxyz" for r in ("k", "b")}
    rows = [
        pair(f"{s}/{r}", f"{t}.{r}", "p", KEPT_GATES, real=True)
        for s, t in zip("abcd", "wxyz", strict=True)
        for r in ("k", "b")
    ]
    assert tried(rows, source, target) == [
        "w and x exchanged | 0: p to x.k | 2: p to w.k | 1: p to x.b | 3: p to w.b",
        "x and y exchanged | 2: p to y.k | 4: p to x.k | 3: p to y.b | 5: p to x.b",
        "w and y exchanged | 0: p to y.k | 4: p to w.k | 1: p to y.b | 5: p to w.b",
    ]
    assert tried([p._replace(real=False) for p in rows], source, target) == []
