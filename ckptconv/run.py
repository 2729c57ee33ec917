"""Run a plan: all jobs through a `map`, then check what was read, seal, and publish.

    execute(plan, writer) -> Outcome

The seam to other engines is `map`: anything that applies a function to jobs and yields receipts in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import checksum
from .ahead import fetched
from .errors import CorruptCheckpoint, VerifyError, listing, printable, redacted
from .formats import Patch, Writer
from .job import Sink, read_into, read_strings, run_job
from .journal import MARK, Journal
from .output import Output
from .plan import CHUNK, Job, Memory, Piece, Plan
from .receipt import Read, Receipt, Written, chunk_digests
from .sources import Sources, resolved
from .store import Stamp, is_remote
from .tensor import Loss, Span, Tensor
from .upload import Upload

if TYPE_CHECKING:
    from .moves import Array

Map = Callable[[Callable[[Job], Receipt], Iterable[Job]], Iterator[Receipt]]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Outcome:
    """What a run did: `checks` and `digests` by tensor name (digest: hexadecimal content hash), and lossy casts."""

    checks: Mapping[str, int]
    digests: Mapping[str, str]
    loss: Mapping[str, Loss]
    verified: int  # bytes of sources whose checksum was verified
    cleared: tuple[str, ...] = ()  # what killed runs had left at the destination
    confirmed: bool = False  # it was read back before it was published


Patched = Callable[[Outcome, Sources], Iterable[Patch]]
Confirm = Callable[[Outcome, Callable[[str], str]], None]


@dataclass(frozen=True)
class Work:
    """`run_job` with all but the job: what a `map` is given.

    Pickled, it arrives `alone`: it opens its files by their paths for each job and closes them after it.
    """

    sources: Sources
    sink: Sink
    memory: Memory
    check: str
    digest: bool
    alone: bool = False

    def __call__(self, job: Job) -> Receipt:
        try:
            with fetched(job.pieces, self.sources):
                return run_job(job, self.sources, self.sink, self.memory, check=self.check, digest=self.digest)
        finally:
            if self.alone:
                self.sources.close()
                self.sink.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (self.sink, self.memory, self.check, self.digest)


def _arrived(sink: Sink, memory: Memory, check: str, digest: bool) -> Work:
    return Work(Sources(spool=memory.whole), sink, memory, check, digest, alone=True)


def threads(workers: int) -> Map:
    """A `map` over local threads: unordered, with as many jobs waiting as running."""

    def pooled(do: Callable[[Job], Receipt], jobs: Iterable[Job]) -> Iterator[Receipt]:
        with ThreadPoolExecutor(workers, thread_name_prefix="ckptconv") as pool:
            waiting: set[Future[Receipt]] = set()
            try:
                for job in jobs:
                    waiting.add(pool.submit(do, job))
                    if len(waiting) >= 2 * workers:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        yield from (future.result() for future in done)
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                for future in waiting:
                    future.cancel()

    return pooled if workers > 1 else map


def execute(
    plan: Plan,
    writer: Writer,
    *,
    force: bool = False,
    digest: bool = False,
    sync: bool = True,
    resume: bool = False,
    map: Map | None = None,
    progress: Progress | None = None,
    patched: Patched | None = None,
    confirm: Confirm | None = None,
    stamps: Mapping[str, Stamp] | None = None,
) -> Outcome:
    """Write everything the plan says; the destination appears whole or not at all.

    patched: gives the placement's patches when they depend on what the jobs did (hashes.py).
    stamps: of the sources when their headers were read: the data must be those files'.
    confirm: raises VerifyError unless what was written reads back; it is told where names lie until they are published.

    With `resume` a run that failed or was killed leaves what it did, and the next one with the same plan goes on.
    """
    with ExitStack() as stack:
        sources = stack.enter_context(Sources(plan.memory.whole, stamps))
        journal = stack.enter_context(Journal(plan, sources, digest=digest)) if resume else None
        out = _output(plan, force, journal)
        stack.push(out)
        do = Work(sources, out, plan.memory, plan.placement.check, digest)
        receipts = [_light(r) for r in journal.receipts] if journal else []
        ready = {(r.job.file, r.job.start) for r in receipts}
        jobs = [j for j in plan.jobs if (j.file, j.start) not in ready] if ready else plan.jobs
        done, total = sum(r.job.size for r in receipts), plan.nbytes
        for receipt in (map or threads(plan.memory.workers))(do, jobs):
            if journal and isinstance(out, Output):
                journal.add(receipt, out)
            if sync and isinstance(out, Output):
                out.hurry(receipt.job.file, receipt.job.start, receipt.job.size)
            receipts.append(_light(receipt))
            done += receipt.job.size
            if progress:
                progress(min(done, total), total)  # a job may span padding
        verified = check_reads((r for receipt in receipts for r in receipt.read), sources, spans_of(plan.tensors))
        for url in sources.changed():
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=url)
        outcome = _outcome(plan, receipts, digest, verified)
        if not (journal and journal.publishing):
            patches = patched(outcome, sources) if patched else plan.placement.patches
            for patch in (*_payloads(plan), *patches, *writer.seal(outcome.checks)):
                out.write(patch.file, patch.start, patch.data)
            if confirm:
                _confirm(confirm, outcome, out, journal)
                outcome = replace(outcome, confirmed=True)
        if journal and isinstance(out, Output):
            journal.publish(out)
        out.publish(sync=sync)
        if journal:
            journal.remove()
    return replace(outcome, cleared=tuple(out.cleared) if isinstance(out, Output) else ())


def _confirm(confirm: Confirm, outcome: Outcome, out: Output | Upload, journal: Journal | None) -> None:
    """Read back what was written; if it is wrong, no later run goes on with it."""
    try:
        confirm(outcome, out.unpublished)
    except VerifyError:
        if journal and isinstance(out, Output):
            out.abandon()
            journal.remove()
        raise


def _output(plan: Plan, force: bool, journal: Journal | None) -> Output | Upload:
    files, stale = plan.placement.files, plan.placement.stale
    if is_remote(plan.folder):
        return Upload(plan.folder, files, force=force, stale=stale)
    if journal is None:
        return Output(plan.folder, files, force=force, stale=stale, unit=plan.placement.unit)
    kept, whole = bool(journal.receipts) or journal.publishing, journal.publishing
    return Output(plan.folder, files, force=force, mark=MARK, kept=kept, whole=whole, stale=stale)


def _light(receipt: Receipt) -> Receipt:
    return receipt._replace(job=receipt.job._replace(pieces=()))


def spans_of(tensors: Mapping[str, Tensor]) -> Iterator[Span]:
    """Every span with a checksum that the tensors use."""
    for t in tensors.values():
        for part in t.parts:
            if isinstance(part.data, Span) and part.data.check:
                yield part.data


def _payloads(plan: Plan) -> Iterator[Patch]:
    for slot in dict.fromkeys(plan.placement.slots.values()):
        if slot.payload is not None:
            yield Patch(slot.file, slot.start, slot.payload)


def _outcome(plan: Plan, receipts: Iterable[Receipt], digest: bool, verified: int) -> Outcome:
    """Combine the pieces of every slot; tied names share what their slot has."""
    pieces: dict[str, list[Written]] = defaultdict(list)
    loss: dict[str, Loss] = {}
    for receipt in receipts:
        for w in receipt.written:
            pieces[w.tensor].append(w)
        for name, new in receipt.loss.items():
            loss[name] = loss.get(name, Loss()).plus(new)
    kind, checks, digests = plan.placement.check, dict[str, int](), dict[str, str]()
    by_slot: dict[tuple[str, int], str] = {}
    for name in pieces:
        slot = plan.placement.slots[name]
        by_slot[slot.file, slot.start] = name
    for name, slot in plan.placement.slots.items():
        got = sorted(pieces.get(by_slot.get((slot.file, slot.start), "") if slot.size else "", ()), key=_start)
        if slot.payload is not None:
            checks[name] = checksum.crc(kind, slot.payload) if kind else 0
        elif kind:
            checks[name] = checksum.combine_all(kind, ((w.crc, w.size) for w in got))
        if digest and slot.payload is None:
            digests[name] = content_hash(plan.tensors[name], (d for w in got for d in w.digests))
    return Outcome(checks, digests, loss, verified)


def _start(w: Written) -> int:
    return w.start


# --- the content hash -------------------------------------------------------------------------------------------


def content_hash(t: Tensor, digests: Iterable[bytes]) -> str:
    """Hash of dtype, shape and logical bytes: equal for equal tensors in any format.

    XXH3 of 128 bits, of: 'ckptconv.tensor.1', NUL, the dtype's name, NUL, the shape as JSON without spaces, NUL, then
    the 16-byte XXH3 of each 4 MiB of the tensor's bytes (C order, little-endian).
    """
    from xxhash import xxh3_128_hexdigest

    shape = ",".join(map(str, t.shape))
    head = f"ckptconv.tensor.1\0{t.dtype.name}\0[{shape}]\0"
    return xxh3_128_hexdigest(head.encode() + b"".join(digests))


def hash_tensor(t: Tensor, sources: Sources) -> str:
    """Read a tensor in bounded memory and hash it; a string tensor hashes each element's length and bytes."""
    if t.dtype.kind == "s":
        packed = b"".join(len(s).to_bytes(8, "little") + s for s in read_strings(t).reshape(-1))
        return content_hash(t, chunk_digests(memoryview(packed)))
    return content_hash(t, (d for window in windows(t, sources) for d in chunk_digests(memoryview(window))))


def windows(t: Tensor, sources: Sources, size: int = 2 * CHUNK) -> Iterator[Array]:
    """The tensor's bytes in order, `size` at a time, in one buffer that is used again."""
    import numpy as np

    if t.nbytes > size:  # decode once, not once for every window
        t = replace(t, parts=tuple(resolved(p, sources) for p in t.parts))
    step = size // max(1, t.dtype.itemsize)
    buffer = np.empty(min(t.nbytes, size), "u1")
    reads: list[Read] = []
    for lo in range(0, t.count, step):
        hi = min(t.count, lo + step)
        view = buffer[: (hi - lo) * t.dtype.itemsize]
        reads += _read(t, view, sources, lo, hi)
        yield view
    check_reads(reads, sources, spans_of({t.name: t}))


def _read(t: Tensor, target: Array, sources: Sources, lo: int, hi: int) -> list[Read]:
    with fetched((Piece(t.name, t.dtype, lo, hi, 0, t.parts),), sources):
        return read_into(t, memoryview(target), sources, lo, hi)


def read_array(t: Tensor, sources: Sources | None = None) -> Array:
    """Read one tensor whole, checksums verified; strings as an object array of bytes."""
    if t.dtype.kind == "s":
        return read_strings(t)
    if sources is None:
        with Sources() as own:
            return read_array(t, own)
    import numpy as np

    target = np.empty(t.nbytes, "u1")
    check_reads(_read(t, target, sources, 0, t.count), sources, spans_of({t.name: t}))
    return target.view(t.dtype.np).reshape(t.shape)


# --- checks -----------------------------------------------------------------------------------------------------


def check_reads(reads: Iterable[Read], sources: Sources, spans: Iterable[Span]) -> int:
    """Verify every checked span; CorruptCheckpoint naming all bad ones. Returns the bytes verified."""
    verified, bad = 0, dict[Span, str]()
    pieces: dict[Span, list[Read]] = {span: [] for span in spans}
    for r in reads:
        pieces.setdefault(r.span, []).append(r)
    for span, got in pieces.items():
        kind, _, want = span.check.partition(":")
        found = _combined(kind, got, span.size)
        if found is None:  # read only in bits, or out of order: read it once more for its checksum
            found = _crc_of(span, kind, sources)
        verified += span.size
        if found != int(want, 16):
            bad[span] = f"bytes {span.start} to {span.start + span.size}: {kind} is {found:08x}, should be {want}"
    if bad:
        urls = {span.url for span in bad}
        where = [what if len(urls) == 1 else f"{printable(redacted(span.url))} {what}" for span, what in bad.items()]
        raise CorruptCheckpoint(
            f"{len(bad)} damaged tensor(s), by the file's own checksums:\n{listing(where)}", url=next(iter(urls))
        )
    return verified


def _combined(kind: str, reads: list[Read], size: int) -> int | None:
    """CRC of the whole span if the pieces tile it, else None."""
    if len(reads) == 1 and reads[0].size == size:
        return reads[0].crc
    total, at = 0, 0
    for r in sorted(set(reads), key=lambda r: (r.start, r.size)):
        if r.start != at:
            return None
        total, at = checksum.combine(kind, total, r.crc, r.size), at + r.size
    return total if at == size else None


def _crc_of(span: Span, kind: str, sources: Sources) -> int:
    reader, value = sources.reader(span.url), 0
    for at in range(0, span.size, CHUNK):
        value = checksum.crc(kind, reader.read(span.start + at, min(CHUNK, span.size - at)), value)
    return value
