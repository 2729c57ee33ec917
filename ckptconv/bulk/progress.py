"""What a progress page shows of a zoo: sums over its ledgers, which are read line by line and not locked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from heapq import nlargest
from operator import attrgetter
from typing import Any, NamedTuple

from ..messages import redacted
from ..storage import files
from .ledger import Ledger, LedgerEntry
from .remarks import Remarks
from .status import ledgers
from .summary import cause

RECENT = 600  # seconds before the last entry, of which the rate is taken; and after which a run seems to have ended
SHOWN = 10  # of the largest, the slowest, the next
MOST = 2**60  # bytes or seconds of one
KINDS = 100  # formats that are told apart
CAUSES, EXAMPLES = 1000, 20  # kinds of failures that are told apart, and sources that are kept of each


class Large(NamedTuple):
    """One of the largest, or of the slowest."""

    at: str
    bytes: float
    seconds: float


class Sums:
    """What is known of all entries together; memory does not grow with their number."""

    def __init__(self) -> None:
        self.states = Counter[str]()
        self.bytes, self.read, self.waiting = 0.0, 0.0, 0.0  # of outputs, of their sources, of sources to come
        self.formats: dict[str, list[float]] = {}  # number, bytes of sources, seconds in a worker
        self.causes: dict[tuple[str, str, str], list[Any]] = {}  # number, first message, some sources
        self.done, self.failed = Counter[int](), Counter[int]()  # by the minute in which they ended
        self.remarks = Remarks()
        self.biggest, self.slowest, self.next = list[Large](), list[Large](), list[Large]()

    def add(self, entries: Iterable[LedgerEntry]) -> None:
        for e in entries:
            self.states[e.state] += 1
            size = _sane(sum(s for _, s, _ in e.files))
            if e.state == "done":
                self._add_done(e, size)
            elif e.state == "failed":
                self._add_failed(e)
            else:
                self.waiting += size
                self.next = _largest(self.next, Large(e.at, size, 0.0), "bytes")

    def _add_done(self, e: LedgerEntry, size: float) -> None:
        one = Large(e.at, _sane(e.size), _sane(e.seconds))
        self.bytes, self.read = self.bytes + one.bytes, self.read + size
        name = e.format if e.format in self.formats or len(self.formats) < KINDS else "others"
        of = self.formats.setdefault(name, [0, 0, 0.0])
        of[:] = of[0] + 1, of[1] + size, of[2] + one.seconds
        self.done[e.ended // 60] += 1
        self.remarks.add(e.source, e.remarks)
        self.biggest = _largest(self.biggest, one, "bytes")
        self.slowest = _largest(self.slowest, one, "seconds")

    def _add_failed(self, e: LedgerEntry) -> None:
        key = cause(e)
        if key not in self.causes and len(self.causes) >= CAUSES:
            key = "", "", ""
        found = self.causes.setdefault(key, [0, e.message if key[1] else "other causes", []])
        found[0] += 1
        if len(found[2]) < EXAMPLES:
            found[2].append(e.source)
        self.failed[e.ended // 60] += 1


def _sane(number: float) -> float:
    """A size or a time of a ledger, which a stranger may have written."""
    return min(max(number, 0), MOST) if number == number else 0


def _largest(kept: list[Large], one: Large, what: str) -> list[Large]:
    column = attrgetter(what)
    if len(kept) == SHOWN and column(one) <= column(kept[-1]):
        return kept
    return nlargest(SHOWN, [*kept, one], key=column)


def progress(output: str) -> dict[str, Any]:
    """The data of a page: counts, rates, causes and examples; output: the folder of a zoo, or a ledger.

    StorageError if there is no ledger, CorruptCheckpoint if one is damaged.
    """
    now, sums, shares = time.time(), Sums(), []
    for path in ledgers(output):
        before = sums.states.copy()
        sums.add(Ledger.read(path).values())
        status = files.stat(path)
        of = {state: sums.states[state] - before[state] for state in ("done", "failed", "planned")}
        quiet = max(0.0, now - (status.mtime if status else 0) / 1e9)
        shares.append({"ledger": files.split(path)[1], "quiet": quiet, **of})
    times = [m for m in (*sums.done, *sums.failed) if m]  # ledgers of older versions have no times
    return {
        "url": redacted(output), "now": now, "shares": shares, "bytes": sums.bytes, "read": sums.read,
        "waiting": sums.waiting, "formats": {name: tuple(of) for name, of in sums.formats.items()},
        "causes": sorted(((n, key[0], m, s) for key, (n, m, s) in sums.causes.items()), key=lambda c: (-c[0], c[1:3])),
        "damaged": sums.remarks.damaged,
        "remarks": [(c.checkpoints, c.kind, c.text, list(c.examples)) for c in sums.remarks.causes()],
        "biggest": sums.biggest, "slowest": sums.slowest, "next": sums.next,
        "first": min(times, default=0) * 60, "last": max(times, default=0) * 60, "rate": _rate(sums.done),
        "minutes": {m: (sums.done[m], sums.failed[m]) for m in sorted({*times})},
    }  # fmt: skip


def _rate(done: Counter[int]) -> float:
    """Conversions a second in the last minutes in which there were any; 0 if it is not known."""
    last = max(done, default=0)
    recent = [m for m in done if m and m > last - RECENT // 60]
    return sum(done[m] for m in recent) / (60 * (last - min(recent) + 1)) if recent else 0.0


__all__ = ["RECENT", "progress"]
