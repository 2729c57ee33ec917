"""What conversions left out or changed: brief enough for a ledger, and counted by cause for a summary.

of(report)      the remarks on one conversion
Remarks         those of many, in memory that does not grow with their number
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..formats import table
from ..messages import cut, listing, many, printable, scrubbed, shortened

if TYPE_CHECKING:
    from ..api import Report

KINDS = ("damaged", "lossy", "skipped", "unread", "dropped", "hint")  # the most serious first
OF_NOTES = KINDS[:-1]  # of the hints of a report only what is said below: most concern whoever looks at one output
MOST, LONGEST = 10, 300  # remarks on one conversion, and characters of each of their texts
CAUSES, EXAMPLES = 100, 20  # that are told apart, and checkpoints that are kept of each
SHOWN = 5  # damaged checkpoints that are listed of a cause; of what is less serious one will do


class Remark(NamedTuple):
    """What a conversion left out or changed: its kind, the cause, and what it concerns, such as a few names."""

    kind: str
    text: str
    what: str

    @classmethod
    def read(cls, kind: Any, text: Any, what: Any) -> Remark:
        """The remark of a line of a ledger; ValueError for one that no run writes."""
        texts = isinstance(text, str) and isinstance(what, str) and max(len(text), len(what)) <= LONGEST
        if kind not in KINDS or not texts:
            raise ValueError("a remark that no run writes")
        return cls(kind, text, what)


class Cause(NamedTuple):
    """What is said of several checkpoints: how many they are, and some of them, each with what it concerns there."""

    kind: str
    text: str
    checkpoints: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        """The cause, with damaged checkpoints on lines of their own, or with an example."""
        said = f"{self.kind}: {many(self.checkpoints, 'checkpoint')}: {self.text}"
        if self.kind != "damaged":
            return f"{said} ({'such as ' * (self.checkpoints > 1)}{printable(self.examples[0])})"
        more = self.checkpoints - SHOWN
        return f"{said}\n{listing(self.examples[:SHOWN])}" + f"\n  ... and {more:,} more" * (more > 0)


def of(report: Report) -> tuple[Remark, ...]:
    """The remarks on a conversion, those of one cause together, the most serious first."""
    groups: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for note in report.notes:
        if note.kind in OF_NOTES:
            groups.setdefault((note.kind, pattern(note.text)), (note.text, []))[1].extend(note.names)
    found = [
        (kind, text, shortened(names, 4 if kind == "damaged" else 2)) for (kind, _), (text, names) in groups.items()
    ]
    if report.lost:
        found.append(("lossy", "values did not survive the cast", f"{report.lost}: {shortened(list(report.loss), 2)}"))
    if text := table.of_another(report.destination, report.target_format):
        found.append(("hint", text, ""))
    found.sort(key=lambda one: KINDS.index(one[0]))
    return tuple(Remark(kind, cut(scrubbed(text), LONGEST), cut(what, LONGEST)) for kind, text, what in found[:MOST])


class Remarks:
    """The remarks on many conversions, by cause, and how many of them left out damaged tensors."""

    def __init__(self) -> None:
        self.damaged = 0
        self._found: dict[tuple[str, str], tuple[list[int], list[tuple[str, str]]]] = {}  # number; examples, texts

    def add(self, source: str, found: Iterable[Remark]) -> None:
        """Count the remarks on the conversion of this source."""
        damaged = False
        for kind, text, what in found:
            damaged |= kind == "damaged" and what != ""
            key = kind, pattern(text)
            key = key if key in self._found or len(self._found) < CAUSES else (kind, "")
            count, examples = self._found.setdefault(key, ([0], []))
            count[0] += 1
            if len(examples) < EXAMPLES:
                examples.append((f"{source}: {what}" if what else source, text if key[1] else "other causes"))
        self.damaged += damaged

    def causes(self) -> tuple[Cause, ...]:
        """What was said, the most serious and the most frequent first; workers end in any order."""
        made = [
            Cause(kind, min(some)[1], count, tuple(example for example, _ in sorted(some)))
            for (kind, _), ((count,), some) in self._found.items()
        ]
        return tuple(sorted(made, key=lambda c: (KINDS.index(c.kind), -c.checkpoints, c.text)))


def pattern(message: str) -> str:
    """A message without quoted text and numbers, which differ from file to file; of listed tensors only the reasons."""
    first, *listed = message.split("\n")
    reasons = sorted({line.rpartition(": ")[2] for line in listed if ": " in line})
    return re.sub(r"'[^']*'|\b[0-9a-f]{8,}\b|\d+", "*", "\n".join([first, *reasons]))


__all__ = ["Cause", "Remark", "Remarks", "of", "pattern"]
