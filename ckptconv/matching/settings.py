"""Settings of a module that no weight holds: which of them would make its outputs agree.

Keras' normalisations have an epsilon of 1e-3 and torch's one of 1e-5; TensorFlow pads one side more than the other. All
calls of one kind are set together first, then each by itself. The module stays as it is: what is found is a hint.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ..messages import fold

TRIES = 120
LISTED = 5  # names of submodules, folded by numbers
ROUNDING = 1e-12  # squared: outputs that are nearer differ by rounding


class Site(NamedTuple):
    """An argument of a function that a submodule calls ('' is the whole)."""

    where: str
    function: str
    argument: str


ARRAYS = Site("", "the arrays", "channels last")  # not the module's: those that were given may be either way round


class Knob(NamedTuple):
    """What can be set: where, the value as it is, and others to try."""

    site: Site
    now: Any
    candidates: tuple[Any, ...]


class Settable(Protocol):
    """A runner of a module whose calls can be set; matching.torch.Adjustable is one."""

    chosen: dict[Site, Any]
    changed: set[Site]

    def knobs(self) -> Sequence[Knob]: ...


class Tunable(Protocol):
    """A search whose outputs are compared with what they should be: matching.proof's."""

    @property
    def runner(self) -> Settable: ...

    @property
    def distance(self) -> tuple[int, float]: ...

    def adjust(self, chosen: dict[Site, Any]) -> bool: ...  # keeps them if the outputs come much nearer


def tune(search: Tunable, seconds: float, *, singly: bool) -> int:
    """Keep settings with which the outputs come much nearer, for the next runs; how many were tried.

    `singly`: also each call by itself, in the order of execution. Ends when outputs differ by rounding.
    """
    until, tried, better = time.monotonic() + seconds, 0, True
    knobs = search.runner.knobs()
    while better:
        better = False
        for many in _groups(knobs, singly=singly):
            for value in dict.fromkeys((*(v for k in many for v in k.candidates), None)):
                if search.distance[1] <= ROUNDING or tried >= TRIES or time.monotonic() > until:
                    return tried
                chosen = search.runner.chosen
                rest = {site: v for site, v in chosen.items() if site not in {k.site for k in many}}
                then = rest if value is None else rest | {k.site: value for k in many if k.now != value}
                if then != chosen:
                    tried += 1
                    better |= search.adjust(then)
    return tried


def _groups(knobs: Sequence[Knob], *, singly: bool) -> Iterator[list[Knob]]:
    """All of one kind together; then one by one."""
    kinds: dict[tuple[str, str], list[Knob]] = defaultdict(list)
    for k in knobs:
        kinds[k.site.function, k.site.argument].append(k)
    yield from kinds.values()
    if singly:
        yield from ([k] for many in kinds.values() if len(many) > 1 for k in many)


def hints(runner: Settable) -> list[str]:
    """The settings that changed something, in words: `batch_norm with eps=0.001, not 1e-05: bn{1..2} (2)`."""
    changed, now = runner.changed, {k.site: k.now for k in runner.knobs()}
    groups: dict[str, list[str]] = defaultdict(list)
    for site, value in runner.chosen.items():
        if site in changed and site != ARRAYS:
            was = f", not {now[site]}" if now[site] is not None else ""
            groups[f"{site.function} with {site.argument}={value}{was}"].append(site.where or "(the whole module)")
    folded = {text: [*map(str, fold(names))] for text, names in groups.items()}
    return [f"{text}: {', '.join(f[:LISTED])}{', ...' * (len(f) > LISTED)}" for text, f in folded.items()]


__all__ = ["Knob", "Site", "hints", "tune"]
