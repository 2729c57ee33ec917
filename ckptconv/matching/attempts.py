"""The search of a check: pairs as they are now, what the module computes with them, and alternatives to them.

An alternative is kept if the outputs then agree, or come nearer; settings of the module (settings.py) likewise. Bounded
in tries and in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..checkpoint import Checkpoint
from ..errors import CkptError
from ..rules import toml as rules
from ..rules.apply import apply
from ..verification.outputs import Comparison, Step, departure
from . import settings
from .alternatives import Alternative, alternatives
from .pairs import Pair, Proposal
from .toml import toml

if TYPE_CHECKING:
    from ..verification.outputs import Array, Outputs

TUNED = 0.98  # of the distance that must be left for a setting to be kept
BETTER = 1e-4  # squared: settings count that are so much nearer where outputs agree already
NEARER = 0.999  # of the distance that must be left for an alternative to be kept
FAILED = Comparison((Step("", float("inf"), False, "it cannot be run"),))


class Runner(Protocol):
    """A module that can be given weights and be run; ckptconv.torch.Runner is one."""

    @property
    def state(self) -> Mapping[str, Any]: ...  # its tensors by name, each with a shape

    def load(self, arrays: Mapping[str, Array]) -> None: ...

    def outputs(self) -> Outputs: ...

    def used(self, names: Sequence[str]) -> set[str]: ...

    chosen: dict[settings.Site, Any]  # settings of the next run
    changed: set[settings.Site]

    def knobs(self) -> Sequence[settings.Knob]: ...


class Distance(NamedTuple):
    """How far outputs are from what they should be: submodules that depart, then the relative error."""

    departing: int
    error: float


class Search:
    """The pairs as they are now, and how near their outputs are."""

    def __init__(
        self, proposal: Proposal, source: Checkpoint, runner: Runner, wanted: Outputs, tolerance: tuple[float, float],
        tries: int, until: float,
    ) -> None:  # fmt: skip
        self.proposal, self.pairs = proposal, list(proposal.pairs)
        self.source, self.runner, self.wanted = source, runner, wanted
        self.tolerance, self.tries, self.until = tolerance, tries, until
        self.tried = 0
        self.kept: list[str] = []
        self.arrays: dict[object, list[Array]] = {}
        self.why = ""
        self.comparison = FAILED
        self.distance = Distance(0, 0.0)

    def load_all(self) -> None:
        self.load(range(len(self.pairs)))

    def searched(self) -> bool:
        """Search from what is there; whether the outputs then agree."""
        self.load_all()
        while not self.comparison.same and self.improve():
            pass
        return self.comparison.same

    def load(self, places: Iterable[int]) -> None:
        """Load these pairs and see what the outputs are."""
        self._write(self.pairs[k] for k in places)
        self.comparison, self.distance = self.run()

    def tune(self, seconds: float, *, singly: bool) -> int:
        """Try settings of the module, and keep them if the outputs then agree, or much better; how many were tried."""
        before = self.comparison, self.distance
        if self.distance.error <= settings.ROUNDING or self.distance.error == float("inf"):  # it cannot be run
            return 0
        tried = settings.tune(self, seconds, singly=singly)
        if not self.comparison.same or (before[0].same and self.distance.error > before[1].error * BETTER):
            self.runner.chosen = {}
            self.comparison, self.distance = before
        return tried

    def adjust(self, chosen: dict[settings.Site, Any]) -> bool:
        """Keep settings if the outputs come nearer with them."""
        before = self.runner.chosen, self.comparison, self.distance
        self.runner.chosen = chosen
        self.comparison, self.distance = self.run()
        if self.distance.departing < before[2].departing or self.distance.error < before[2].error * TUNED:
            return True
        self.runner.chosen, self.comparison, self.distance = before
        return False

    def hints(self) -> tuple[str, ...]:
        """The settings in words."""
        if not self.runner.chosen:
            return ()
        self.run()
        return tuple(settings.hints(self.runner))

    def improve(self) -> bool:
        """Keep the first alternative that agrees, else the one that comes nearest; False if none comes nearer."""
        best: tuple[Distance, Alternative | None] = (self.distance, None)
        for found in self._alternatives():
            if self._spent():
                break
            comparison, distance = self._attempt(found)
            if comparison.same:
                best = distance, found
                break
            fewer = distance.departing < best[0].departing
            if fewer or (distance < best[0] and distance.error < best[0].error * NEARER):
                best = distance, found
        if best[1] is None:
            return False
        self._keep(best[1])
        return True

    def _keep(self, found: Alternative) -> None:
        for k, p in found.pairs.items():
            self.pairs[k] = p
        self.kept.append(found.text)
        self.load(found.pairs)

    def settled(self) -> tuple[set[int], tuple[str, ...]]:
        """The places of pairs that the outputs prove, and the targets of those that they do not.

        An alternative with which they agree much better, by more than rounding, is kept.
        """
        unsure = {k: p for k, p in enumerate(self.pairs) if not p.sure}
        names = [n for p in unsure.values() for n in (*p.targets, *(f for f, _ in p.fills))]
        used = self.runner.used(names)
        bad = {k for k, p in unsure.items() if not set(p.targets) <= used}
        for found in self._alternatives():
            if set(found.pairs) <= bad and self.distance.error <= settings.ROUNDING:
                continue
            comparison, distance = (self.comparison, self.distance) if self._spent() else self._attempt(found)
            if self.distance.error > settings.ROUNDING and distance.error < self.distance.error * BETTER:
                self._keep(found)
                return self.settled()
            if comparison.same:
                bad |= set(found.pairs)
        return set(unsure) - bad, tuple(n for k in sorted(bad) for n in self.pairs[k].targets)

    def _alternatives(self) -> list[Alternative]:
        shapes = {n: tuple(t.shape) for n, t in self.runner.state.items()}
        found = list(alternatives(self.pairs, self.source.tensors, shapes))
        first = self.comparison.first
        if first is not None and first.name:  # what stands in the first layer that departs goes first
            found.sort(key=lambda a: not any(t.startswith(first.name) for p in a.pairs.values() for t in p.targets))
        return found

    def _spent(self) -> bool:
        if self.tried >= self.tries or time.monotonic() > self.until:
            self.why = f"; the search ended after {'that many' if self.tried >= self.tries else 'the time allowed'}"
        return bool(self.why)

    def _attempt(self, found: Alternative) -> tuple[Comparison, Distance]:
        """What the outputs would be; the weights are put back."""
        self.tried += 1
        try:
            self._write(found.pairs.values())
            return self.run()
        except CkptError:  # a layout that does not fit after all
            return FAILED, self._farthest()
        finally:
            self._write(self.pairs[k] for k in found.pairs)

    def _write(self, pairs: Iterable[Pair]) -> None:
        """Load pairs; what was once made of the same tensors in the same way is kept."""
        for p in pairs:
            names = (*p.targets, *(n for n, _ in p.fills))
            key = (p.sources, p.order, p.length, p.axis, p.each, len(p.targets), tuple(f for _, f in p.fills))
            if key not in self.arrays:
                found = made([p], self.source)
                self.arrays[key] = [found[n] for n in names]
            self.runner.load(dict(zip(names, self.arrays[key], strict=True)))

    def run(self) -> tuple[Comparison, Distance]:
        try:
            got = self.runner.outputs()
        except Exception as e:  # with these weights: an index that leads out of a table; too little memory
            said = str(e).strip().splitlines()[:1]
            why = ": ".join(("it cannot be run", type(e).__name__, *said))
            return Comparison((Step("", float("inf"), False, why),)), self._farthest()
        found = departure(got, self.wanted, *self.tolerance, scaled=True)
        errors = [_error(got[n], self.wanted[n]) for n in self.wanted if n in got]
        return found, Distance(sum(not s.same for s in found.steps), sum(errors) / max(1, len(errors)))

    def _farthest(self) -> Distance:
        return Distance(len(self.wanted) + 1, float("inf"))


def made(pairs: Sequence[Pair], source: Checkpoint) -> dict[str, Array]:
    """The arrays that pairs make of the source, by the target's names: the rules are written and applied."""
    names = dict.fromkeys(n for p in pairs for n in p.sources)
    part = source.with_tensors({n: source[n] for n in names})
    converter = rules.parse(toml(Proposal(tuple(pairs), every=tuple(names))), "proposed")
    return {n: t.numpy() for n, t in apply(converter, replace(part, ties=())).items()}


def _error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The relative distance of outputs; infinite for other shapes or what is not finite."""
    import numpy as np

    if [x.shape for x in got] != [x.shape for x in want]:
        return float("inf")
    above = sum(float(np.sum(np.abs(x.astype("f8") - y.astype("f8")) ** 2)) for x, y in zip(got, want, strict=True))
    below = sum(float(np.sum(np.abs(y.astype("f8")) ** 2)) for y in want)
    found = above / max(below, 1e-30)
    return found if found == found else float("inf")


__all__ = ["Runner", "Search", "made"]
