"""The summary of a bulk conversion: totals, and failures by cause."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..messages import in_bytes, listing, many, paragraphs
from ..storage.faults import Unreachable
from ..storage.paths import host
from .ledger import LedgerEntry
from .remarks import Cause, Remarks, pattern

MAX_CAUSES = 20  # causes that are shown; the ledger has all


@dataclass(frozen=True)
class Summary:
    """The result of `zoo`; print() shows it as the command line does.

    done: the number of checkpoints that were converted. skipped: the number of those that were up to date. failed: the
    ledger entries of failures, with `source`, `error` (the class) and `message`. bytes, seconds: size of the output of
    this run, and wall time. damaged: how many of those converted or up to date lack tensors that were damaged. remarks:
    what was left out or changed, by cause, with `kind`, `text`, `checkpoints` (how many) and `examples`.
    """

    done: int
    skipped: int
    failed: tuple[LedgerEntry, ...]
    bytes: int
    seconds: float
    damaged: int = 0
    remarks: tuple[Cause, ...] = ()

    @property
    def causes(self) -> list[tuple[str, str, list[str]]]:
        """Failures grouped by cause, the most frequent first: error class, first message, all sources."""
        groups: dict[tuple[str, ...], list[LedgerEntry]] = {}
        for e in sorted(self.failed, key=lambda e: e.source):  # workers fail in any order
            groups.setdefault(cause(e), []).append(e)
        ordered = sorted(groups.values(), key=len, reverse=True)
        return [(g[0].error, g[0].message, [e.source for e in g]) for g in ordered]

    def lines(self) -> list[str]:
        """What the command line prints: what was left out, causes of failures with their checkpoints, and totals."""
        lines = [str(c) for c in self.remarks[:MAX_CAUSES]]
        if len(self.remarks) > MAX_CAUSES:
            lines.append(
                f"{len(self.remarks) - MAX_CAUSES} more causes of what was left out or changed are in the ledger"
            )
        for _, message, sources in self.causes[:MAX_CAUSES]:
            lines.append(f"failed: {many(len(sources), 'checkpoint')}: {message}\n{listing(sources, 5)}")
        if len(self.causes) > MAX_CAUSES:
            lines.append(f"failed: {len(self.causes) - MAX_CAUSES} more causes are in the ledger")
        if not self.done + self.skipped + len(self.failed):
            lines.append("warning: no checkpoint was found")
        rate = self.done / max(self.seconds, 1e-9)
        damaged = f", {self.damaged} damaged" * bool(self.damaged)
        lines.append(
            f"{self.done} converted, {self.skipped} up to date, {len(self.failed)} failed{damaged}; "
            f"{in_bytes(self.bytes)} in {self.seconds:.1f} s ({rate:.0f} per second)"
        )
        return lines

    def __str__(self) -> str:
        return paragraphs(self.lines())

    def to_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return {
            "done": self.done, "up_to_date": self.skipped, "failed": len(self.failed), "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "causes": [{"error": k, "message": m, "sources": s} for k, m, s in self.causes],
            "damaged": self.damaged, "remarks": [c._asdict() for c in self.remarks],
        }  # fmt: skip


def cause(e: LedgerEntry) -> tuple[str, str, str]:
    """What failures of one cause have in common: the class, the pattern of the message, the server out of reach."""
    return e.error, pattern(e.message), host(e.source) if e.error == Unreachable.__name__ else ""


class Sums:
    """What a run has done so far: of conversions their number and size, of failures the entries."""

    def __init__(self, skipped: int, began: float, kept: Iterable[LedgerEntry] = ()) -> None:
        """kept: the entries of those that are up to date, of which damage is said again; the rest was said before."""
        self._skipped, self._began = skipped, began
        self._remarks = Remarks()
        for e in kept:
            self._remarks.add(e.source, (r for r in e.remarks if r.kind == "damaged"))
        self._done, self._bytes, self._failed = 0, 0, list[LedgerEntry]()

    def add(self, entries: Sequence[LedgerEntry]) -> None:
        """Count entries that are `done` or `failed`."""
        failed = [e for e in entries if e.state == "failed"]
        self._failed += failed
        self._done += len(entries) - len(failed)
        self._bytes += sum(e.size for e in entries)
        for e in entries:
            self._remarks.add(e.source, e.remarks)

    def summary(self) -> Summary:
        seconds = time.monotonic() - self._began
        said = self._remarks
        return Summary(
            self._done, self._skipped, tuple(self._failed), self._bytes, seconds, said.damaged, said.causes()
        )


__all__ = ["Summary", "Sums", "cause", "pattern"]
