"""Sum up a bulk conversion from its entries in the ledger: a summary, and the status."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..api.result import Report, lossy
from ..errors import StorageError
from ..formats import table
from ..messages import Told, cut, in_bytes, listing, many, printable, scrubbed, shortened
from ..storage import files
from .ledger import KINDS, LEDGERS, LONGEST, MOST, STATES, LedgerEntry, Remark, read

MAX_CAUSES = 20  # causes that are shown; the ledger has all
EXAMPLES = 20  # checkpoints of each cause in JSON and on a page
SHOWN = 5  # damaged or failed checkpoints listed per cause; less serious causes have one example
RECENT = 600  # seconds before the last entry, over which the rate is measured


# --- what was left out or changed ---


class Cause(NamedTuple):
    """A remark or failure that several checkpoints share, with their number and an example from each.

    kind: of a remark, or the class of an error.
    """

    kind: str
    text: str
    checkpoints: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        """The cause, with an example; damaged and failed checkpoints are on lines of their own."""
        kind = self.kind if self.kind in KINDS else "failed"
        line = f"{kind}: {many(self.checkpoints, 'checkpoint')}: {self.text}"
        if kind in ("damaged", "failed"):
            return f"{line}\n{listing(self.examples, SHOWN)}"
        return f"{line} ({'such as ' * (self.checkpoints > 1)}{printable(self.examples[0])})"


def remarks_of(report: Report) -> tuple[Remark, ...]:
    """Return the remarks on a conversion, grouped by cause, the most serious first."""
    said = (  # most hints concern whoever looks at one output
        (note.kind, note.text, name)
        for note in report.notes if note.kind in KINDS and note.kind != "hint" for name in note.names or ("",)
    )  # fmt: skip
    remarks = [(c.kind, c.text, shortened(list(c.examples), 4 if c.kind == "damaged" else 2)) for c in causes(said)]
    for line in lossy(report.loss):
        remarks.append(("lossy", "values did not survive the cast", line.removeprefix("lossy: ")))
    if text := table.of_another(report.destination, report.target_format):
        remarks.append(("hint", text, ""))
    remarks.sort(key=lambda r: KINDS.index(r[0]))
    return tuple(Remark(kind, cut(scrubbed(text), LONGEST), cut(what, LONGEST)) for kind, text, what in remarks[:MOST])


VARYING = re.compile(r"('[^']*'|\b[0-9a-f]{8,}\b|\d+)")  # quoted text, a hash or a number


def causes(said: Iterable[tuple[str, str, str]]) -> list[Cause]:
    """Group messages (kind, text, example) by cause, the most frequent first, with all examples.

    Messages that differ only in quoted text and numbers are one cause, whose text has a * where they differ.
    """
    groups: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    for kind, text, example in said:
        pieces = VARYING.split(text)  # every second one varies
        groups.setdefault((kind, *pieces[::2]), []).append((example, pieces))
    found = []
    for (kind, *_), group in groups.items():
        examples, split = zip(*sorted(group), strict=True)
        text = "".join(column[0] if len({*column}) == 1 else "*" for column in zip(*split, strict=True))
        found.append(Cause(kind, text, len(group), examples))
    return sorted(found, key=lambda c: (-c.checkpoints, c.text))


def failures(entries: Iterable[LedgerEntry]) -> list[Cause]:
    """Group failures by cause, the most frequent first, with all sources."""
    return causes((e.error, e.message, e.source) for e in entries)


def counted(entries: Sequence[LedgerEntry]) -> tuple[int, tuple[Cause, ...]]:
    """Count the checkpoints that lack damaged tensors, and group remarks by cause, serious and frequent ones first."""
    damaged = sum(any(r.kind == "damaged" and r.what for r in e.remarks) for e in entries)
    said = ((r.kind, r.text, f"{e.source}: {r.what}" if r.what else e.source) for e in entries for r in e.remarks)
    return damaged, tuple(sorted(causes(said), key=lambda c: KINDS.index(c.kind)))


# --- a run, and how far it is ---


@dataclass(frozen=True, repr=False)
class Summary(Told):
    """The result of `zoo`, or its progress.

    done: the number of checkpoints that were converted. skipped: the number of those that were up to date. failed: the
    ledger entries of failures, with `source`, `error` (the class) and `message`. bytes, seconds: size of the output of
    this run, and wall time. damaged: how many of those converted or up to date lack damaged tensors. remarks: things
    that were left out or changed, by cause, with `kind`, `text`, `checkpoints` (how many) and `examples`.

    The result of `zoo_status` counts all runs. ledgers: their number, one for each share; 0 for the result of `zoo`.
    planned: checkpoints that are being converted, are waiting, or were left by a run that ended early. formats: the
    number of converted checkpoints by source format. seconds: since the last entry. rate: conversions per second in the
    last minutes in which there were any.
    """

    done: int
    skipped: int
    failed: tuple[LedgerEntry, ...]
    bytes: int
    seconds: float
    damaged: int = 0
    remarks: tuple[Cause, ...] = ()
    ledgers: int = 0
    planned: int = 0
    formats: Mapping[str, int] = field(default_factory=dict)
    rate: float = 0.0

    def lines(self) -> list[str]:
        """Return what the command line prints: remarks, causes of failures with their checkpoints, and totals."""
        causes = self.remarks, failures(self.failed)
        lines = [str(c) for some in causes for c in some[:MAX_CAUSES]]
        if more := sum(len(some[MAX_CAUSES:]) for some in causes):
            lines.append(f"{more} more causes are in the ledger")
        total = self.done + self.skipped + len(self.failed) + self.planned
        failed = f"{len(self.failed)} failed" + f", {self.damaged} damaged" * bool(self.damaged)
        if not self.ledgers:
            rate = self.done / max(self.seconds, 1e-9)
            spent = f"{in_bytes(self.bytes)} in {self.seconds:.1f} s ({rate:.0f} per second)"
            return [*lines, f"{self.done} converted, {self.skipped} up to date, {failed}; {spent}"]
        minutes = self.planned / self.rate / 60 if self.rate else 0
        left = f"; about {minutes:,.0f} min left at {60 * self.rate:,.1f} per minute" * (minutes > 1)
        shares = f" in {many(self.ledgers, 'share')}" if self.ledgers > 1 else ""
        formats = ", ".join(f"{n} {name}" for name, n in sorted(self.formats.items(), key=lambda i: (-i[1], i[0])))
        return [
            *lines,
            f"{self.done} of {many(total, 'checkpoint')} converted{shares}: {in_bytes(self.bytes)}"
            + f" ({formats})" * bool(formats),
            f"{self.planned} to come, {failed}; the last entry is {self.seconds:.0f} s old{left}",
        ]

    def sum(self) -> str:
        """Return the last line."""
        return self.lines()[-1]

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        counts: dict[str, Any] = {"done": self.done, "failed": len(self.failed), "bytes": self.bytes}
        if self.ledgers:
            counts |= {"ledgers": self.ledgers, "planned": self.planned, "formats": dict(self.formats)}
            counts |= {"seconds_since_last_entry": round(self.seconds, 1), "per_second": round(self.rate, 4)}
        else:
            counts |= {"up_to_date": self.skipped, "seconds": round(self.seconds, 3)}
        causes = [{"error": c.kind, "message": c.text, "sources": list(c.examples)} for c in failures(self.failed)]
        remarks = [c._replace(examples=c.examples[:EXAMPLES])._asdict() for c in self.remarks]
        return counts | {"causes": causes, "damaged": self.damaged, "remarks": remarks}


def zoo_status(output: str) -> Summary:
    """Tell how far the conversion of many checkpoints is.

    output: the output folder of `zoo`, or the path of a ledger. Nothing is locked or changed.

    Returns a Summary. Raises StorageError if there is no ledger, CorruptCheckpoint if one is damaged.
    """
    paths = [output]
    if files.is_dir(output):
        paths = [files.join(output, n) for n in files.names(output) if fnmatchcase(n, LEDGERS)]
    if not paths:
        raise StorageError("has no ledger: no zoo was converted into this folder", url=output)
    entries = [e for path in paths for e in read(path)[0].values()]
    done, failed, planned = ([e for e in entries if e.state == state] for state in STATES)
    last = max((e.ended for e in done), default=0)
    recent = [e.ended for e in done if e.ended > max(0, last - RECENT)]
    return Summary(
        len(done), 0, tuple(failed), sum(e.size for e in done), min(map(_age, paths)), *counted(done),
        ledgers=len(paths), planned=len(planned), formats=Counter(e.format for e in done),
        rate=len(recent) / max(60, last - min(recent, default=0)),
    )  # fmt: skip


def _age(path: str) -> float:
    """Return the seconds since a ledger was written."""
    status = files.stat(path)
    return max(0.0, time.time() - (status.mtime if status else 0) / 1e9)
