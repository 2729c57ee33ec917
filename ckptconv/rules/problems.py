"""The problems found while a converter is applied, collected so that one error lists all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint
from ..errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ..messages import fold, listing, printable
from .assign import Assignment
from .provenance import Moved

if TYPE_CHECKING:
    from .converter import Converter

MAX_NEAR = 20  # folded patterns for which the nearest rule is sought
MAX_COMPARED = 300  # characters of names and rules that are compared


@dataclass
class Problems:
    """Missing parameters, layouts that do not fit, and names that two tensors would get."""

    missing: dict[str, str] = field(default_factory=dict)  # parameter: its help
    broken: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # why it is another converter's model
    uncounted: list[str] = field(default_factory=list)  # numbers in names, of which some are missing
    uneven: list[str] = field(default_factory=list)  # axes of one name that are not equally long

    def clash(self, name: str, first: Moved, second: Sequence[str], rule: str) -> None:
        """Record that two tensors would get one name."""
        a, b = (", ".join(map(printable, n)) for n in (first.names, second))
        self.clashes.append(f"{printable(name)}: from {a} (by {first.rule}) and {b} (by {rule})")

    def check(self, converter: str) -> None:
        """Raise the first kind of problem that occurred, with all its cases; return if there is none."""
        if self.refused:
            raise UsageError(f"the converter {converter} is not for this model:\n{listing(self.refused)}")
        if self.uncounted:
            raise UnmatchedTensors(f"the source is not whole; give all of its files:\n{listing(self.uncounted)}")
        if self.missing:
            wanted = [f"{n}: {why}".rstrip(": ") for n, why in self.missing.items()]
            given = " ".join(f"param='{n}=NUMBER'" for n in self.missing)
            raise UsageError(f"the converter {converter} needs {given}\n{listing(wanted)}")
        if self.broken:
            raise LayoutError(f"{_many(self.broken, 'layout does', 'layouts do')} not fit:\n{listing(self.broken)}")
        if self.uneven:
            raise LayoutError(f"the parameters do not fit the shapes:\n{listing(self.uneven)}")
        if self.clashes:
            head = _many(self.clashes, "name", "names")
            raise NameCollision(f"{head} would be given twice:\n{listing(self.clashes)}")


def _many(items: Sequence[object], one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"


def refuse_unmatched(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> None:
    """Raise UnmatchedTensors if there are any: folded, each with the nearest rule or the reason of a refusal."""
    if not found.unmatched:
        return
    lines = []
    rules = [(_triples(t.text), r.label) for r in converter.rules if not r.refuse for t in r.sources]
    for i, f in enumerate(fold(found.unmatched)):
        shape = list(checkpoint[f.names[0]].shape)
        why = found.reasons.get(f.names[0], "")
        if not why and i < MAX_NEAR and rules:
            why = f"nearest rule: {_likest(f.text, rules)}"
        lines.append(f"{f} {shape}" + f" - {why}" * bool(why))
    raise UnmatchedTensors(
        f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors; "
        f"{_advice(converter, checkpoint, found)}:\n{listing(lines, 200)}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _advice(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> str:
    """To leave out what is left over, unless that is most of the model: then the converter is another's."""
    weights = sum(1 for t in checkpoint.values() if converter.every or not t.role)
    if 2 * sum(1 for n in found.unmatched if n not in found.reasons) <= weights:
        return "drop them with exclude=, or add rules"
    made = f" (it is for {converter.source})" if converter.source else ""
    return f"it may be the wrong converter{made}: converter='auto' finds one that takes all; or add rules"


def _triples(text: str) -> set[str]:
    padded = f"  {text[:MAX_COMPARED]} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


def _likest(text: str, rules: Sequence[tuple[set[str], str]]) -> str:
    """The label of the rule that has the most in common with a name (Dice's coefficient): in time linear in both."""
    mine = _triples(text)
    return max(rules, key=lambda rule: len(mine & rule[0]) / (len(mine) + len(rule[0])))[1]
