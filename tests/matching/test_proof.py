"""How a proof spends its tries and its time, with a search that only notes what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint
from ckptconv.matching import attempts, proof, settings
from ckptconv.matching.attempts import Distance
from ckptconv.matching.cells import FORGET
from ckptconv.matching.doubt import CHOSEN, FLAT, FLAT_NOT, KEPT_GATES
from ckptconv.matching.modules import NAMES, PLACE
from ckptconv.matching.orders import Order
from ckptconv.matching.pairs import Pair, Proposal
from ckptconv.verification.outputs import Comparison, Step

NAMED = Proposal((Pair(("a",), ("x",)), Pair(("b",), ("y",), sure=False, why=("w",), rivals=("z",))))
AS_RUN = Proposal((Pair(("b",), ("x",)), Pair(("a",), ("y",))))
SAME, OTHER = (Comparison((Step("", error, error == 0),)) for error in (0.0, 0.5))
ENOUGH = {"": [np.random.default_rng(0).normal(size=(4, 8))]}
FEW = {"": [np.arange(8) % 2]}


class Search:
    """`far`: how far the outputs are with what is loaded at first, and after a search; 0 if they agree."""

    far: dict[str, tuple[int, int]]
    log: list[Any]

    def __init__(
        self, proposal: Proposal, source: Any, runner: Any, wanted: Any, tolerance: Any, tries: int, until: float
    ) -> None:
        self.name = "run" if proposal is AS_RUN else "named"
        self.proposal, self.pairs, self.tries, self.until, self.tolerance = (
            proposal, list(proposal.pairs), tries, until, tolerance,
        )  # fmt: skip
        self.kept, self.tried, self.why = list[str](), 0, ""
        self._at(self.far[self.name][0])

    def _at(self, far: int) -> None:
        self.distance, self.comparison = far, OTHER if far else SAME

    def load_all(self) -> None:
        self.log.append(f"load {self.name}")

    def tune(self, seconds: float, *, singly: bool) -> int:
        self.log.append(("tune", self.name, seconds, singly))
        return 3

    def searched(self) -> bool:
        self.log.append(("search", self.name, self.tries, self.until))
        before, self.tried = self.distance, 5
        self._at(self.far[self.name][1])
        if self.distance < before:
            self.kept.append("better")
        return self.comparison.same

    def run(self) -> tuple[Comparison, int]:
        return self.comparison, self.distance

    def hints(self) -> tuple[str, ...]:
        return ()

    def settled(self) -> tuple[set[int], tuple[str, ...]]:
        return {1}, ("x",)


FIRST, AGAIN = ("tune", "named", 20.0, False), ("tune", "named", 20.0, True)
BEGUN = ["load named", FIRST]
HALF = [("search", "named", 20, 1050.0)]
# How far each of two proposals is, before and after its search; whether the second is given; what is asked in order.
ASKED: dict[str, tuple[dict[str, tuple[int, int]], bool, list[Any], int, list[str]]] = {
    "it agrees": ({"named": (0, 0)}, False, BEGUN, 0, []),
    "a search": ({"named": (4, 0)}, False, [*BEGUN, ("search", "named", 40, 1100.0), FIRST], 5, ["better"]),
    "in vain": ({"named": (4, 4)}, False, [*BEGUN, ("search", "named", 40, 1100.0), AGAIN], 5, []),
    "the nearer first": (
        {"named": (4, 0), "run": (5, 5)}, True, [*BEGUN, "load run", *HALF, FIRST], 6, ["better"],
    ),
    "of two as near that of the names first": (
        {"named": (4, 0), "run": (4, 0)}, True, [*BEGUN, "load run", *HALF, FIRST], 6, ["better"],
    ),
    "then the other": (
        {"named": (4, 3), "run": (5, 0)}, True,
        [*BEGUN, "load run", *HALF, ("search", "run", 20, 1100.0), ("tune", "run", 20.0, False)], 11,
        [proof.AS_RUN, "better"],
    ),
    "the order of running first": (
        {"named": (6, 6), "run": (5, 0)}, True,
        [*BEGUN, "load run", ("search", "run", 20, 1050.0), ("tune", "run", 20.0, False)], 6, [proof.AS_RUN, "better"],
    ),
    "neither, and the first is nearer": (
        {"named": (4, 2), "run": (5, 3)}, True,
        [*BEGUN, "load run", *HALF, ("search", "run", 20, 1100.0), "load named", AGAIN], 11, ["better"],
    ),
    "neither, and the second is nearer": (
        {"named": (4, 3), "run": (5, 2)}, True,
        [*BEGUN, "load run", *HALF, ("search", "run", 20, 1100.0), ("tune", "run", 20.0, True)], 11,
        [proof.AS_RUN, "better"],
    ),
}  # fmt: skip


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(proof, "Search", Search)
    monkeypatch.setattr(proof.time, "monotonic", lambda: 1000.0)
    Search.log = []
    return Search.log


def proved(wanted: Any, as_run: Proposal | None = None, chosen: Any = None) -> proof.Proof:
    runner: Any = SimpleNamespace(chosen=chosen or {})
    found = proof.prove(NAMED, Checkpoint({}), runner, wanted, as_run=as_run, tries=40, seconds=100.0)
    assert runner.chosen == (chosen or {})
    return found


@pytest.mark.parametrize("case", ASKED)
def test_what_is_tried_and_for_how_long(case: str, log: list[Any]) -> None:
    Search.far, both, asked, tried, kept = ASKED[case]
    found = proved(ENOUGH, AS_RUN if both else None)
    assert log == asked
    assert (found.tried, list(found.kept), found.tuned) == (tried, kept, 3 * sum(a[0] == "tune" for a in asked))
    pairs = found.proposal.pairs
    if found.agrees:
        assert (pairs[0].evidence, pairs[1]) == (
            "names",
            pairs[1]._replace(evidence="proved", sure=True, why=(), rivals=()),
        )
        assert found.open == ("x",)
    else:
        assert {p.evidence for p in pairs} == {"names"}
        assert found.open == ()
    assert found.notes == ()


def test_what_would_load_the_same_is_no_second_proposal(log: list[Any]) -> None:
    Search.far = {"named": (4, 4)}
    again = Proposal(tuple(p._replace(evidence="shape", sure=True) for p in NAMED.pairs))
    proved(ENOUGH, again)
    assert log == ASKED["in vain"][2]


@pytest.mark.parametrize("far", [0, 4])
def test_few_outputs_prove_nothing(far: int, log: list[Any]) -> None:
    Search.far = {"named": (far, 0)}
    found = proved(FEW)
    assert log == ["load named"]
    assert (found.notes, found.tuned, found.open) == ((proof.FEW,), 0, ())
    assert {p.evidence for p in found.proposal.pairs} == {"names"}


@pytest.mark.parametrize("order", ["input", ""])
def test_channels_that_come_last_are_noted(order: str, log: list[Any]) -> None:
    Search.far = {"named": (0, 0)}
    found = proved(ENOUGH, chosen={settings.ARRAYS: order} if order else {})
    assert found.notes == (("channels come last in the input, as the outputs agree only then",) if order else ())


# How many submodules depart and by how much, at first and with each alternative; which are looked at, which is kept.
NEARER: list[tuple[tuple[int, float], list[tuple[int, float]], int, str]] = [
    ((2, 1.0), [], 0, ""), ((2, 1.0), [(2, 1.0)], 1, ""), ((2, 1.0), [(2, 0.9995)], 1, ""),
    ((2, 1.0), [(2, 0.9985)], 1, "0"), ((2, 1.0), [(3, 0.1)], 1, ""), ((2, 1.0), [(1, 9.0)], 1, "0"),
    ((2, 1.0), [(2, 0.5), (2, 0.25), (2, 0.3)], 3, "1"), ((2, 1.0), [(2, 0.5), (2, 0.4999)], 2, "0"),
    ((2, 1.0), [(1, 9.0), (2, 0.1)], 2, "0"), ((2, 1.0), [(2, 0.1), (1, 9.0), (1, 8.0)], 3, "2"),
    ((2, 1.0), [(2, 0.5), (0, 0.0), (0, 0.0)], 2, "1"), ((2, 1.0), [(2, 0.5)] * 9, 5, "0"),
]  # fmt: skip


@pytest.mark.parametrize(("now", "others", "looked", "kept"), NEARER)
def test_the_alternative_that_comes_nearest_is_kept(
    now: tuple[int, float], others: list[tuple[int, float]], looked: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that agrees, else the nearest; one that is hardly nearer than another is not. There are five tries."""
    search: Any = attempts.Search(NAMED, Checkpoint({}), None, {}, (0, 0), 5, 0.0)  # type: ignore[arg-type]
    search.distance = Distance(*now)
    found, seen, taken = [SimpleNamespace(k=k) for k in range(len(others))], list[int](), list[str]()

    def attempt(alternative: Any) -> tuple[Comparison, Distance]:
        seen.append(alternative.k)
        distance = Distance(*others[alternative.k])
        return OTHER if distance.departing else SAME, distance

    monkeypatch.setattr(search, "_alternatives", lambda: found)
    monkeypatch.setattr(search, "_spent", lambda: len(seen) == 5)
    monkeypatch.setattr(search, "_attempt", attempt)
    monkeypatch.setattr(search, "_keep", lambda alternative: taken.append(str(alternative.k)))
    assert search.improve() is bool(kept)
    assert (len(seen), "".join(taken)) == (looked, kept)


CHANGES: dict[str, tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]] = {
    "as it was": ((CHOSEN, "w"), {}, (CHOSEN, "w")),
    "turned": ((CHOSEN, "w"), {"order": Order("i o -> o i")}, ("w", proof.CHANGED)),
    "an image that is not": ((FLAT_NOT,), {"order": Order("i o -> o i")}, (FLAT_NOT,)),
    "gates": ((KEPT_GATES, FLAT), {"order": Order("(h.i + h.j) -> (h.j + h.i)")}, (FLAT, proof.CHANGED)),
    "no forget bias": ((FORGET,), {"fills": (("u", (0.0,)),)}, (proof.CHANGED,)),
    "exchanged": ((PLACE, NAMES), {"targets": ("y",)}, (NAMES, proof.CHANGED)),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_reasons_say_what_the_rule_does_after_the_check(case: str) -> None:
    why, change, want = CHANGES[case]
    before = Pair(("a",), ("x",), sure=False, why=why)
    assert proof.said(before._replace(**change), before).why == want


TEXTS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"tried": 1}, ["1 alternative tried"]),
    ({"tried": 2, "why": ", then time was up"}, ["2 alternatives tried, then time was up"]),
    ({"kept": ("k",), "notes": ("n",)}, ["note: n", "changed: k"]),
    ({"open": ("x", "y")}, ["2 tensors stay marked, as these outputs do not settle them"]),
    ({"tuned": 4}, []),
    ({"tuned": 4, "found": OTHER}, ["4 settings of the module tried"]),
    ({"found": OTHER, "open": ("x", "y")}, []),
    ({"found": OTHER, "tuned_to": SAME, "hints": ("h",), "tuned": 4}, ["hint: set this in the module, as", "  h"]),
]


@pytest.mark.parametrize(("said", "wanted"), TEXTS)
def test_what_a_proof_says(said: dict[str, Any], wanted: list[str]) -> None:
    text = str(proof.Proof(**({"proposal": NAMED, "found": SAME, "tried": 0} | said)))
    lines = [line for line in text.splitlines() if not line.startswith("checked against outputs: ")]
    assert len(lines) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(lines, wanted, strict=True)), lines
