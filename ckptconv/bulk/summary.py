"""The summary of a bulk conversion: totals, and failures by cause."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..messages import in_bytes, listing, many, paragraphs
from ..storage.faults import Unreachable
from ..storage.paths import host
from .ledger import LedgerEntry

MAX_CAUSES = 20  # causes that are shown; the ledger has all


@dataclass(frozen=True)
class Summary:
    """The result of `zoo`; print() shows it as the command line does.

    done: the number of checkpoints that were converted. skipped: the number of those that were up to date. failed: the
    ledger entries of failures, with `source`, `error` (the class) and `message`. bytes, seconds: size of the output of
    this run, and wall time.
    """

    done: int
    skipped: int
    failed: tuple[LedgerEntry, ...]
    bytes: int
    seconds: float

    @property
    def causes(self) -> list[tuple[str, str, list[str]]]:
        """Failures grouped by cause, the most frequent first: error class, first message, all sources."""
        groups: dict[tuple[str, ...], list[LedgerEntry]] = {}
        for e in sorted(self.failed, key=lambda e: e.source):  # workers fail in any order
            groups.setdefault(cause(e), []).append(e)
        ordered = sorted(groups.values(), key=len, reverse=True)
        return [(g[0].error, g[0].message, [e.source for e in g]) for g in ordered]

    def lines(self) -> list[str]:
        """What the command line prints: each cause of failures with its checkpoints, and the totals."""
        lines = []
        for _, message, sources in self.causes[:MAX_CAUSES]:
            lines.append(f"failed: {many(len(sources), 'checkpoint')}: {message}\n{listing(sources, 5)}")
        if len(self.causes) > MAX_CAUSES:
            lines.append(f"failed: {len(self.causes) - MAX_CAUSES} more causes are in the ledger")
        if not self.done + self.skipped + len(self.failed):
            lines.append("warning: no checkpoint was found")
        rate = self.done / max(self.seconds, 1e-9)
        lines.append(
            f"{self.done} converted, {self.skipped} up to date, {len(self.failed)} failed; "
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
        }  # fmt: skip


def cause(e: LedgerEntry) -> tuple[str, str, str]:
    """What failures of one cause have in common: the class, the pattern of the message, the server out of reach."""
    return e.error, pattern(e.message), host(e.source) if e.error == Unreachable.__name__ else ""


def pattern(message: str) -> str:
    """A message without quoted text and numbers, which differ from file to file; of listed tensors only the reasons."""
    first, *listed = message.split("\n")
    reasons = sorted({line.rpartition(": ")[2] for line in listed if ": " in line})
    return re.sub(r"'[^']*'|\d+|\b[0-9a-f]{8,}\b", "*", "\n".join([first, *reasons]))


class Sums:
    """What a run has done so far: of conversions their number and size, of failures the entries."""

    def __init__(self, skipped: int, began: float) -> None:
        self._skipped, self._began = skipped, began
        self._done, self._bytes, self._failed = 0, 0, list[LedgerEntry]()

    def add(self, entries: Sequence[LedgerEntry]) -> None:
        """Count entries that are `done` or `failed`."""
        failed = [e for e in entries if e.state == "failed"]
        self._failed += failed
        self._done += len(entries) - len(failed)
        self._bytes += sum(e.size for e in entries)

    def summary(self) -> Summary:
        seconds = time.monotonic() - self._began
        return Summary(self._done, self._skipped, tuple(self._failed), self._bytes, seconds)


__all__ = ["Summary", "Sums", "cause", "pattern"]
