"""Prove a proposal by outputs: load it, run it, compare, and try what is marked until the outputs agree.

    proved = prove(proposal, source, runner, wanted)

An alternative is kept if the outputs then agree, or come nearer. Where the outputs of submodules are known the search
goes by layers: an alternative counts that lets more of them agree. It is bounded in tries and in time, and says so.
A mark becomes `proved` only if the outputs depend on the tensor and no other alternative to it gives them too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint
from ..messages import many, paragraphs
from ..verification.outputs import Comparison
from . import bundle_orders, cells, doubt, modules, settings
from .attempts import Runner, Search
from .evidence import ENOUGH, bits
from .pairs import Pair, Proposal

if TYPE_CHECKING:
    from ..verification.outputs import Outputs

TRIES = 400
SECONDS = 300.0
SHARE = 0.2  # of the time, for settings of the module before and after
# Float error of two frameworks over some hundred layers: of each element, or of the largest. Probabilities of a large
# vocabulary are all less than 1e-4, so that no fixed number would do.
RTOL, ATOL = 1e-3, 1e-4

FEW = (
    "the outputs hold too little to prove weights, as others give them by chance, so that none are tried; give more "
    "rows, or what comes before a last argmax or threshold"
)
ASSUMED = {  # what is no longer so when something else was taken; images.py changes its own
    doubt.CHOSEN, doubt.SHAPED, doubt.VOTED, doubt.KEPT_GATES, bundle_orders.FUSED, bundle_orders.PARTS, cells.FORGET,
    modules.PLACE, modules.SOME, modules.NUMBERS,
}  # fmt: skip
CHANGED = "changed by the check, as the outputs are nearer so"
AS_RUN = "the modules in the order in which they run"


@dataclass(frozen=True)
class Proof:
    """The proposal as it is after the search, whether the outputs agree, and what was tried."""

    proposal: Proposal
    found: Comparison
    tried: int
    kept: tuple[str, ...] = ()  # alternatives that were taken
    open: tuple[str, ...] = ()  # targets that the outputs do not settle
    why: str = ""  # the search was cut short
    notes: tuple[str, ...] = ()  # what was assumed about inputs and outputs
    tuned: int = 0  # settings of the module that were tried
    hints: tuple[str, ...] = ()  # those with which the module would compute the outputs
    tuned_to: Comparison | None = None  # what it then would

    @property
    def agrees(self) -> bool:
        """Whether the weights are proved: the outputs agree, if need be with other settings of the module."""
        return (self.tuned_to or self.found).same

    def __str__(self) -> str:
        return paragraphs(self.lines())

    def lines(self) -> list[str]:
        """What was found, what was tried, and what stays open."""
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"checked against outputs: {self.found}"]
        if self.tuned_to:
            head = f"hint: set this in the module, as no weight does, and it is {self.tuned_to}:"
            lines.append("\n  ".join([head, *self.hints]))
        lines += [f"{many(self.tried, 'alternative')} tried{self.why}"] if self.tried else []
        lines += [f"{many(self.tuned, 'setting')} of the module tried"] if self.tuned and not self.agrees else []
        lines += [f"changed: {text}" for text in self.kept]
        if self.agrees and self.open:
            lines.append(f"{len(self.open)} tensors stay marked, as these outputs do not settle them")
        return lines


def prove(
    proposal: Proposal, source: Checkpoint, runner: Runner, wanted: Outputs, *, as_run: Proposal | None = None,
    tries: int = TRIES, seconds: float = SECONDS, rtol: float = RTOL, atol: float = ATOL,
) -> Proof:  # fmt: skip
    """Search among the marked alternatives for one whose outputs are `wanted` (by submodule; '' is the whole).

    Where no weights do that, settings of the module are tried that no weight holds: settings.py.
    `as_run` is what is proposed if the target's modules come in the order in which they run. Unless the outputs agree
    at once, the search begins with the one that comes nearer, and tries the other if it does not end there.
    """
    until = time.monotonic() + seconds
    search = Search(proposal, source, runner, wanted, (rtol, atol), tries, until)
    search.load_all()
    few = bits(wanted, atol) < ENOUGH  # no search, which would find something by chance
    tuned = 0 if few else search.tune(seconds * SHARE, singly=False)
    if search.comparison.same or few:
        pass
    elif as_run and _differ(as_run, proposal):
        search.tries, search.until = tries // 2, time.monotonic() + seconds / 2
        other = Search(as_run, source, runner, wanted, (rtol, atol), tries // 2, until)
        other.kept.append(AS_RUN)
        search = _either(search, other)
    else:
        search.searched()
    if not few and (search.kept or not search.comparison.same):
        tuned += search.tune(seconds * SHARE, singly=not search.comparison.same)
    proposal, chosen, turned = search.proposal, runner.chosen, runner.chosen.get(settings.ARRAYS)
    runner.chosen = {settings.ARRAYS: turned} if turned else {}
    as_it_is = search.run()[0] if chosen else search.comparison
    runner.chosen = chosen
    found = search.hints()
    settled, undecided = (set(), ()) if few or not search.comparison.same else search.settled()
    pairs = tuple(
        p._replace(evidence="proved", sure=True, real=False, why=(), rivals=()) if k in settled else said(p, before)
        for k, (p, before) in enumerate(zip(search.pairs, proposal.pairs, strict=True))
    )
    return Proof(
        replace(proposal, pairs=pairs), as_it_is, search.tried, tuple(search.kept), undecided, search.why,
        tuned=tuned, hints=found, tuned_to=search.comparison if found else None,
        notes=(
            *([f"channels come last in the {turned}, as the outputs agree only then"] if turned else []),
            *([FEW] if few else []),
        ),
    )  # fmt: skip


def said(p: Pair, before: Pair) -> Pair:
    """The pair with reasons that say what it does: those for what was proposed are gone if the check changed that."""
    if (p.order, p.sources, p.targets, p.fills) == (before.order, before.sources, before.targets, before.fills):
        return p
    kept = tuple(w for w in p.why if w not in ASSUMED)
    return p._replace(why=kept if kept == p.why else (*kept, CHANGED))


def _either(one: Search, other: Search) -> Search:
    """Search from the nearer of two proposals, then from the other; the one that ends nearer, as it was loaded."""
    other.load_all()
    first, second = (one, other) if one.distance <= other.distance else (other, one)
    first.until, second.until = min(one.until, other.until), max(one.until, other.until)
    best = first if first.searched() or not (second.searched() or second.distance < first.distance) else second
    best.tried = first.tried + second.tried + 1
    if best is first and second.tried:
        best.load_all()
    return best


def _differ(one: Proposal, other: Proposal) -> bool:
    """Whether two proposals would load something else."""
    loads = [{(p.sources, p.targets, p.order, p.fills) for p in found.pairs} for found in (one, other)]
    return loads[0] != loads[1]


__all__ = ["Proof", "prove"]
