"""The journal of one conversion: receipts of jobs whose bytes are durable, so that a killed run can be resumed.

    .model.safetensors.resume.journal          JSON lines next to the destination
    {"plan": "9f3c...", "file": 131}                         fingerprint of the plan and its sources; our own inode
    {"jobs": [[file, start, written, read, lossy], ...]}     done and durable, one batch per line
    {"publish": true}                                        all is written; the files are being renamed

A journal belongs to one plan: other sources, options, memory or number of threads make another plan, and the run starts
over. An incomplete line is ignored. The next run finds the temporary files by their names. A journal may have come with
the source, from somebody who knows the plan and its fingerprint; so it counts only if it has its own inode number in
it. It holds no paths: all files are those of this destination.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..errors import StorageError, UsageError
from ..messages import version
from ..moves.log import Loss, Record
from ..moves.part import Data, Held, Span
from ..moves.sources import Sources
from ..output.own import AppendLog
from ..output.staging import OutputNames, is_file
from ..output.upload import Destination
from ..storage.files import is_remote
from .plan import Job, Plan, Receipt, made_of

BEGIN = b'{"plan":"'  # every journal begins so
COMMIT = 1.0  # seconds of work that a kill may cost, besides the jobs in flight


class Journal:
    """The record of what an earlier run of the same plan did, to which this run appends."""

    def __init__(self, plan: Plan, sources: Sources, *, digest: bool, force: bool = False) -> None:
        if is_remote(plan.folder):
            raise UsageError(
                "resume=True needs a local destination; a remote one is written in one go", url=plan.folder
            )
        place = plan.placement
        self._names = OutputNames(plan.folder, place.files, keep=True, stale=place.stale, unit=place.unit)
        path = self._names.journal
        if force or not os.path.lexists(path):
            self._names.check(force=force)
        self.receipts: list[Receipt] = []
        self.publishing = False  # all is written, and files were renamed
        self._pending: list[Receipt] = []
        self._last = time.monotonic()
        self._lines = AppendLog(path, "another run is writing this destination")
        try:
            self._take_up(plan, fingerprint(plan, sources, digest), force)
        except BaseException:  # an interrupt, too, must release the lock
            self.close()
            raise

    def _take_up(self, plan: Plan, mark: str, force: bool) -> None:
        """Read the journal of an earlier run of this plan; empty that of another plan."""
        first = next(self._lines.read(), b"")
        if not first.startswith(BEGIN[: len(first)]):
            raise StorageError("is not a journal of ckptconv, which belongs here; move it away", url=self._lines.path)
        head = next((made for made, _ in _parsed([first])), {})
        ours = head.get("plan") == mark and 0 != self._lines.number == head.get("file")
        lines = list(_parsed(self._lines.read())) if ours else []
        temporary = [self._names.temporary(f.name) for f in plan.placement.files]
        there = bool(lines) and all(map(is_file, temporary))  # an earlier run filled them, and renamed none
        self.publishing = not there and any(line.get("publish") for line, _ in lines)
        self._names.check(force=force, renaming=self.publishing)
        if not (there or self.publishing):
            self._lines.cut(0)
            self._append({"plan": mark, "file": self._lines.number})
            return
        self._lines.cut(lines[-1][1])
        jobs = {(j.file, j.start): j for j in plan.jobs}
        for line, _ in lines[1:]:
            self.receipts += [_receipt(row, jobs) for row in line.get("jobs", ())]

    def add(self, receipt: Receipt, out: Destination) -> None:
        """Record a finished job; make the recorded jobs durable from time to time."""
        self._pending.append(receipt)
        if time.monotonic() - self._last >= COMMIT:
            self.commit(out)

    def commit(self, out: Destination) -> None:
        """Make the data durable, then the lines that record it."""
        if self._pending:
            out.fsync()
            self._append({"jobs": [_row(r) for r in self._pending]})
        self._pending, self._last = [], time.monotonic()

    def publish(self, out: Destination) -> None:
        """Record that all is written: once a file is renamed, a resumed run only renames the others."""
        self.commit(out)
        out.fsync()
        self._append({"publish": True})
        self.publishing = True

    def _append(self, line: dict[str, Any]) -> None:
        self._lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def remove(self) -> None:
        """Remove the journal after the destination is published; it may have been removed during the run."""
        with suppress(FileNotFoundError):
            os.unlink(self._lines.path)

    def close(self) -> None:
        self._lines.close()


def _parsed(raw: Iterable[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """Parse complete lines up to the first damaged one; yield each with the byte at which it ends."""
    at = 0
    for line in raw:
        at += len(line)
        if not line.endswith(b"\n"):
            return
        try:
            made = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(made, dict):
            return
        yield made, at


def _row(r: Receipt) -> list[Any]:
    spans = {span: i for i, span in enumerate(_spans(r.job))}

    def rows(records: Sequence[Record]) -> list[Any]:
        return [[spans.get(x.of, x.of), *x[1:-1], [d.hex() for d in x.digests]] for x in records]

    return [r.job.file, r.job.start, rows(r.written), rows(r.read), {n: list(loss) for n, loss in r.loss.items()}]


def _receipt(row: list[Any], jobs: dict[tuple[str, int], Job]) -> Receipt:
    file, start, written, read, lossy = row
    job = jobs[file, start]
    spans = list(_spans(job))

    def records(rows: list[Any]) -> tuple[Record, ...]:
        return tuple(
            Record._make((spans[of] if type(of) is int else of, *rest, tuple(map(bytes.fromhex, digests))))
            for of, *rest, digests in rows
        )

    return Receipt(job, records(written), records(read), {n: Loss(*loss) for n, loss in lossy.items()})


def _spans(job: Job) -> list[Span]:
    """List the spans of a job, each once, in an order that depends only on the plan."""
    return list(dict.fromkeys(p.data for piece in job.pieces for p in piece.parts if isinstance(p.data, Span)))


def fingerprint(plan: Plan, sources: Sources, digest: bool) -> str:
    """Hash everything that determines which bytes are written where, and the sources' sizes and times."""
    from hashlib import blake2b  # brings OpenSSL

    h, place = blake2b(digest_size=16), plan.placement

    def add(*what: object) -> None:
        h.update(repr(what).encode("utf-8", "surrogatepass"))

    add(version(), digest, plan.memory, place.files, place.check, place.patches, sorted(plan.metadata.items()))
    for name, slot in place.slots.items():
        add(name, plan.tensors[name].dtype, plan.tensors[name].shape, slot)
    known = dict[Data, None]()
    arrays = dict[int, Any]()
    for job in plan.jobs:
        add(job)
        for data in (part.data for piece in job.pieces for part in piece.parts):
            if isinstance(data, Held):
                arrays[id(data.array)] = data.array  # the repr of a long array shows only its ends
            else:
                known[data] = None
    for array in arrays.values():
        h.update(_raw(array))
    for url in sorted({url for data in known for url in _urls(data)}):
        add(url, sources.reader(url).stamp)
    return h.hexdigest()


def _raw(array: Any) -> Any:
    import numpy as np

    array = np.ascontiguousarray(array)
    return repr(array.tolist()).encode() if array.dtype == object else array.reshape(-1).view("u1")


def _urls(data: Data) -> Iterator[str]:
    """Yield the files that data is in; data made of several tensors can be in several."""
    if not isinstance(data, Held):
        yield data.url
        for tensor in made_of(data):
            for part in tensor.parts:
                yield from _urls(part.data)
