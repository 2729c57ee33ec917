"""How far a zoo is, from its ledgers, which are read and not locked: a run may be writing them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from ..errors import StorageError
from ..messages import in_bytes, many, paragraphs
from ..storage import files
from .ledger import LEDGERS, Ledger, LedgerEntry
from .remarks import Cause, Remarks
from .summary import Summary


@dataclass(frozen=True)
class Status:
    """What the ledgers of an output folder say; print() shows it as the command line does.

    ledgers: how many there are, one for each share. done, failed, planned: checkpoints by the last entry about them;
    planned ones are being converted, wait, or were left by a run that ended early. bytes: the size of the outputs.
    formats: the number of converted checkpoints by source format. quiet: seconds since the last entry. damaged: how
    many lack tensors that were damaged. remarks: what was left out or changed, by cause.
    """

    ledgers: int
    done: int
    failed: tuple[LedgerEntry, ...]
    planned: int
    bytes: int
    formats: dict[str, int]
    quiet: float
    damaged: int = 0
    remarks: tuple[Cause, ...] = ()

    def lines(self) -> list[str]:
        """What was left out or changed, the causes of failures, then the counts."""
        *causes, _ = self._summary.lines()
        formats = ", ".join(f"{n} {name}" for name, n in sorted(self.formats.items(), key=lambda i: (-i[1], i[0])))
        shares = f" in {many(self.ledgers, 'share')}" if self.ledgers > 1 else ""
        damaged = f", {self.damaged} damaged" * bool(self.damaged)
        total = self.done + len(self.failed) + self.planned
        return [
            *causes,
            f"{self.done} of {many(total, 'checkpoint')} converted{shares}: {in_bytes(self.bytes)}"
            + (f" ({formats})" if formats else ""),
            f"{self.planned} to come, {len(self.failed)} failed{damaged}; the last entry is {self.quiet:.0f} s old",
        ]

    def __str__(self) -> str:
        return paragraphs(self.lines())

    @property
    def _summary(self) -> Summary:
        waiting = self.planned  # which were found, too
        return Summary(self.done, waiting, self.failed, self.bytes, 1.0, self.damaged, self.remarks)

    def to_json(self) -> dict[str, Any]:
        """The status as JSON values."""
        return {
            "ledgers": self.ledgers, "done": self.done, "failed": len(self.failed), "planned": self.planned,
            "bytes": self.bytes, "formats": self.formats, "seconds_since_last_entry": round(self.quiet, 1),
            **{k: v for k, v in self._summary.to_json().items() if k in ("causes", "damaged", "remarks")},
        }  # fmt: skip


def zoo_status(output: str) -> Status:
    """Tell how far the conversion of many checkpoints is.

    output: the output folder of `zoo`, or the path of a ledger. Nothing is locked or changed.

    Returns a Status. Raises StorageError if there is no ledger, CorruptCheckpoint if one is damaged.
    """
    found = ledgers(output)
    states, formats, size, failed = Counter[str](), Counter[str](), 0, list[LedgerEntry]()
    said = Remarks()
    for e in chain.from_iterable(Ledger.read(path).values() for path in found):
        states[e.state] += 1
        if e.state == "failed":
            failed.append(e)
        elif e.state == "done":
            formats[e.format] += 1
            size += e.size
            said.add(e.source, e.remarks)
    times = [s.mtime for path in found if (s := files.stat(path))]
    quiet = max(0.0, time.time() - max(times, default=0) / 1e9)
    return Status(
        len(found), states["done"], tuple(failed), states["planned"], size, dict(formats), quiet,
        said.damaged, said.causes(),
    )  # fmt: skip


def ledgers(output: str) -> list[str]:
    """The ledgers in the output folder of a zoo, or the one at this path; StorageError if there is none."""
    folder = files.is_dir(output)
    found = [files.join(output, n) for n in files.names(output) if fnmatchcase(n, LEDGERS)] if folder else [output]
    if not found:
        raise StorageError("has no ledger: no zoo was converted into this folder", url=output)
    return found


__all__ = ["Status", "ledgers", "zoo_status"]
