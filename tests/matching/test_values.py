"""Pairs by content: which tensors hold the same, which name decides, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest

from ckptconv.checkpoint import Tensor, held
from ckptconv.matching import values as find
from ckptconv.matching.pairs import LISTED

pytest.importorskip("scipy", reason="matching by names is an extra")
X, Y = (np.random.default_rng(seed).normal(size=(4, 6)).astype("f4") for seed in (0, 1))
Q = tuple(f"q{i}" for i in range(LISTED + 3))


def tensors(names: str, other: np.ndarray = X) -> dict[str, Tensor]:
    """The names, of tensors that hold X; those in capitals hold something else."""
    return {n: held(n, other if n.isupper() else X) for n in names.split()}


# The names on both sides; pairs with what distinguishes them, copies in the source, ties in the target.
SAME: dict[str, tuple[str, str, list[tuple[str, str, str, tuple[str, ...]]], dict[str, str], list[tuple[str, ...]]]] = {
    "one": ("p", "q", [("p", "q", "values", ())], {}, []),
    "two": ("p q", "q p", [("p", "p", "equal", ("q",)), ("q", "q", "equal", ("p",))], {}, []),
    "a tie in the target": ("p", "p q", [("p", "p", "values", ())], {}, [("p", "q")]),
    "a copy in the source": ("p q", "q", [("q", "q", "values", ())], {"p": "q"}, []),
    "two and three": (
        "p q", "p q r", [("p", "p", "equal", ("q", "r")), ("q", "q", "equal", ("p", "r"))], {}, [("p", "r")],
    ),
    "many": (
        "q0 q1", " ".join(Q),
        [("q0", "q0", "equal", Q[1 : LISTED + 2]), ("q1", "q1", "equal", (Q[0], *Q[2 : LISTED + 2]))],
        {}, [("q0", *Q[2:])],
    ),
    "others apart": ("p A", "A q", [("p", "q", "values", ()), ("A", "A", "values", ())], {}, []),
    "nothing": ("p", "A", [], {}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_tensors_that_hold_the_same(case: str) -> None:
    a, b, pairs, copies, ties = SAME[case]
    found = find.find(tensors(a, Y), tensors(b, Y))
    assert [(*p.sources, *p.targets, p.evidence, p.rivals) for p in found.pairs] == pairs
    assert [(p.sure, bool(p.why)) for p in found.pairs] == [(not rivals, bool(rivals)) for *_, rivals in pairs]
    assert (found.copies, found.ties) == (copies, ties)
    assert found.notes == []


def test_a_tie_has_one_layout() -> None:
    """Of targets of several shapes none is tied, and an order that no layout gives is noted."""
    found = find.find({"p": held("p", X)}, {"p": held("p", X), "t": held("t", X.T.copy())})
    assert (len(found.pairs), found.ties) == (1, [])
    found = find.find({"p": held("p", X)}, {"p": held("p", X), "t": held("t", X[::-1].copy())})
    assert found.ties == []
    found = find.find({"p": held("p", X)}, {"t": held("t", X.reshape(-1)[::-1].reshape(4, 6).copy())})
    assert found.pairs == []
    assert found.notes == ["p and t hold the same elements, in an order that no simple layout gives"]


def test_constants_are_no_evidence() -> None:
    zeros = np.zeros((4, 6), "f4")
    assert find.find({"p": held("p", zeros)}, {"q": held("q", zeros)}).pairs == []


@pytest.mark.parametrize(("varied", "found", "trained"), [(10, 1, False), (10, 2, True), (9, 1, True), (1, 0, False)])
def test_a_target_that_was_made_from_the_source(varied: int, found: int, trained: bool) -> None:
    """More than a tenth of what varies was found; constants do not count."""
    rng = np.random.default_rng(2)
    b = {f"w{i}": held(f"w{i}", rng.normal(size=12)) for i in range(varied)}
    b |= {f"z{i}": held(f"z{i}", np.zeros(12)) for i in range(30)}
    a = {name: b[name] for name in list(b)[:found]} | {"other": held("other", rng.normal(size=12))}
    assert find.find(a, b).trained is trained
