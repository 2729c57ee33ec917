"""Run a plan: apply a `map` to all jobs, then check the data that was read, seal, and publish.

    execute(plan, writer, how) -> Outcome
    Work(sources, sink, ...)(job) -> Receipt            one range of one file, in bounded memory

The seam to other engines is `map`: anything that applies a function to jobs and yields receipts in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter

from ..errors import VerifyError
from ..formats import own_metadata
from ..formats.placement import Patch, Writer
from ..moves.log import Log, Loss, Record
from ..moves.part import Coded, Held, Piece, is_contiguous
from ..moves.read import buffers, check_reads, content_hash, fetched, fill, hash_tensor, sole_run, spans_of
from ..moves.sources import Decoded, Sources, stream
from ..output import own, upload
from ..output.staging import Output, OutputNames, Paths
from ..output.upload import Destination, Upload
from ..storage import checksum
from ..storage.files import Stamp, is_remote
from .journal import Journal
from .plan import Budget, Job, Plan, Receipt

BLOCK = 256 * 2**10  # with 8 MiB instead, reading, checking and writing take twice the time
PAGE = 4096  # of the page cache; at multiples of BLOCK the kernel takes larger pages, which may not be available
REMOTE = 8 * 2**20  # block of a remote file, since a request costs more than a cache miss
Map = Callable[[Callable[[Job], Receipt], Iterable[Job]], Iterator[Receipt]]
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Outcome:
    """The result of a run: `checks` and `digests` by tensor name (digest: hexadecimal content hash), lossy casts."""

    checks: Mapping[str, int]
    digests: Mapping[str, str]
    loss: Mapping[str, Loss]
    verified: int  # bytes of sources whose checksum was verified
    cleared: tuple[str, ...] = ()  # leftovers of killed runs that were removed
    removed: tuple[str, ...] = ()  # files of an older output that were removed
    confirmed: bool = False  # it was read back before it was published
    resumed: bool = False  # it contains bytes that an earlier run wrote


Confirm = Callable[[Outcome, Callable[[str], str]], None]


Sink = Destination | Paths  # where jobs write; the latter in another process


@dataclass(frozen=True)
class Work:
    """The function that a `map` applies to jobs: it fills one range of one file, in bounded memory.

    A pickled copy is `detached`: it opens files by path for some jobs, and closes them afterwards.
    """

    sources: Sources
    sink: Sink
    memory: Budget
    check: str
    digest: bool
    detached: bool = False

    def __call__(self, job: Job) -> Receipt:
        try:
            return self.run(job)
        finally:
            if self.detached:
                self.close()

    def close(self) -> None:
        """Close the files that jobs have opened."""
        self.sources.close()
        self.sink.close()

    def run(self, job: Job) -> Receipt:
        """Fill the job's range of its file; bytes between pieces stay zero.

        The receipt has checksums of the bytes read and written, which are later combined into those of whole spans.
        """
        log = Log(self.check, self.digest)
        with fetched(job.pieces, self.sources):
            for pieces, at, view in _blocks(self, job, log):
                for piece in pieces:
                    start, end = max(at, piece.at), min(at + len(view), piece.at + piece.size)
                    if start < end:
                        first = piece.lo * piece.to.itemsize + start - piece.at
                        log.wrote(piece.tensor, first, view[start - at : end - at])
                self.sink.write(job.file, job.start + at, view)
        return Receipt(job, tuple(log.written), tuple(log.read), log.loss)

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (self.sink, self.memory, self.check, self.digest)


def _arrived(sink: Sink, memory: Budget, check: str, digest: bool) -> Work:
    return Work(Sources(spool=memory.whole), sink, memory, check, digest, detached=True)


def threads(workers: int) -> Map:
    """A `map` over local threads: unordered, with as many jobs waiting as running."""

    def pooled(do: Callable[[Job], Receipt], jobs: Iterable[Job]) -> Iterator[Receipt]:
        remaining, waiting = iter(jobs), set[Future[Receipt]]()
        with ThreadPoolExecutor(workers, thread_name_prefix="ckptconv") as pool:
            try:
                while True:
                    waiting |= {pool.submit(do, job) for job in islice(remaining, 2 * workers - len(waiting))}
                    if not waiting:
                        return
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            finally:
                for future in waiting:
                    future.cancel()

    return pooled if workers > 1 else map


@dataclass(frozen=True)
class How:
    """How a plan is run.

    force: replace what is there. digest: hash the content of each tensor. sync: make the output durable.
    resume: a run that fails or is killed keeps what it did, and the next one with the same plan continues.
    map: applies a function to jobs, unordered; the threads of this process by default.
    hashes: store the content hashes of all tensors in the metadata, once the jobs are done.
    confirm: raises VerifyError unless the output reads back; it is given a function from names to temporary paths.
    stamps: of the sources when their headers were read; a source that has changed since then is refused.
    ahead: tensors may be sent to a store before all is written; `confirm` then sees a file with holes there.
    """

    force: bool = False
    digest: bool = False
    sync: bool = True
    resume: bool = False
    map: Map | None = None
    progress: Progress | None = None
    hashes: bool = False
    confirm: Confirm | None = None
    stamps: Mapping[str, Stamp] | None = None
    ahead: bool = False


def execute(plan: Plan, writer: Writer, how: How) -> Outcome:
    """Write everything that the plan describes; the destination never appears incomplete."""
    with ExitStack() as stack:
        sources = stack.enter_context(Sources(plan.memory.whole, how.stamps))
        journal: Journal | None = None
        earlier, renaming = list[Receipt](), False
        if how.resume:
            journal = stack.enter_context(closing(Journal(plan, sources, digest=how.digest, force=how.force)))
            earlier, renaming = journal.receipts, journal.publishing
        out = stack.enter_context(closing(_destination(plan, how, kept=bool(earlier), renaming=renaming)))
        receipts = _run_jobs(plan, sources, out, journal, how)
        verified = check_reads((r for receipt in receipts for r in receipt.read), sources, spans_of(plan.tensors))
        sources.refuse_changed()
        outcome = replace(_outcome(plan, receipts, how.digest, verified), resumed=bool(earlier) or renaming)
        if not renaming:
            _seal(plan, writer, outcome, sources, out, how)
            try:
                if how.confirm:
                    how.confirm(outcome, out.unpublished)
            except VerifyError:  # a later run must not resume wrong data
                out.abandon()
                if journal:
                    journal.remove()
                raise
        if journal:
            journal.publish(out)
        out.publish(sync=how.sync)
        if journal:
            journal.remove()
    confirmed = how.confirm is not None and not renaming
    return replace(outcome, confirmed=confirmed, cleared=tuple(out.cleared), removed=tuple(out.removed))


def _destination(plan: Plan, how: How, *, kept: bool, renaming: bool) -> Destination:
    files, stale, unit = plan.placement.files, plan.placement.stale, plan.placement.unit
    if is_remote(plan.folder):
        tensors = _tensors(plan) if how.ahead and how.map is None else {}
        return Upload(plan.folder, files, force=how.force, stale=stale, unit=unit, tensors=tensors)
    spans = (p.data for t in plan.tensors.values() for p in t.parts)
    urls = {*(how.stamps or ()), *plan.placement.copied, *(data.url for data in spans if not isinstance(data, Held))}
    # the permissions that all local sources have: private data stays private, as with `cp`
    return Output(
        plan.folder, files, force=how.force, keep=how.resume, kept=kept, renaming=renaming, stale=stale, unit=unit,
        mode=own.permissions(urls),
    )  # fmt: skip


def older(plan: Plan) -> list[str]:
    """List the files of an older output at the destination, which `force` removes.

    A folder that is one checkpoint has none: files there that are not replaced are refused.
    """
    files, stale = plan.placement.files, plan.placement.stale
    if plan.placement.unit:
        return []
    if is_remote(plan.folder):
        return upload.older(plan.folder, [f.name for f in files], stale)
    return OutputNames(plan.folder, files, stale=stale).older()


def _tensors(plan: Plan) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of each file that hold bytes of tensors; only jobs write there."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for slot in set(plan.placement.slots.values()):
        if slot.payload is None:
            ranges.setdefault(slot.file, []).append((slot.start, slot.start + slot.size))
    return ranges


def _run_jobs(plan: Plan, sources: Sources, out: Destination, journal: Journal | None, how: How) -> Sequence[Receipt]:
    """Run the jobs that an earlier run has not done; return the receipts of all jobs, without their pieces."""
    do = Work(sources, out, plan.memory, plan.placement.check, how.digest)
    receipts = [light(r) for r in journal.receipts] if journal else []
    ready = {(r.job.file, r.job.start) for r in receipts}
    jobs = [j for j in plan.jobs if (j.file, j.start) not in ready] if ready else plan.jobs
    done, total = sum(r.job.size for r in receipts), plan.nbytes
    for receipt in (how.map or threads(plan.memory.workers))(do, jobs):
        if journal:
            journal.add(receipt, out)
        if how.sync:
            out.start_writeback(receipt.job.file, receipt.job.start, receipt.job.size)
        receipts.append(light(receipt))
        done += receipt.job.size
        if how.progress:
            how.progress(min(done, total), total)  # a job may span padding
    sources.let_go()
    return receipts


def _seal(plan: Plan, writer: Writer, outcome: Outcome, sources: Sources, out: Destination, how: How) -> None:
    """Write everything that is not a tensor: headers, indexes, checksums, hashes."""
    final: dict[str, str] = {}
    if how.hashes:
        hashes = {n: outcome.digests.get(n) or hash_tensor(t, sources) for n, t in plan.tensors.items()}
        final = {**plan.metadata, **own_metadata.entries(plan.tensors, hashes)}
    slots = dict.fromkeys(plan.placement.slots.values())
    payloads = (Patch(slot.file, slot.start, slot.payload) for slot in slots if slot.payload is not None)
    for patch in chain(payloads, plan.placement.patches, writer.seal(outcome.checks, final)):
        out.write(patch.file, patch.start, patch.data)


def light(receipt: Receipt) -> Receipt:
    """Drop the pieces of the job from a receipt, since the caller has them."""
    return receipt._replace(job=receipt.job._replace(pieces=()))


def _outcome(plan: Plan, receipts: Iterable[Receipt], digest: bool, verified: int) -> Outcome:
    """Combine the pieces of every slot; tied names share the result of their slot."""
    pieces: dict[str, list[Record]] = {}
    lost, loss = dict[str, Loss](), dict[str, Loss]()
    for receipt in receipts:
        for w in receipt.written:
            pieces.setdefault(w.of, []).append(w)
        for name, new in receipt.loss.items():
            lost[name] = lost.get(name, Loss()).plus(new)
    kind, checks, digests = plan.placement.check, dict[str, int](), dict[str, str]()
    slots = plan.placement.slots
    for got in pieces.values():
        got.sort(key=attrgetter("start"))
    by_slot = {slots[name][:2]: got for name, got in pieces.items()} if len(pieces) < len(slots) else {}
    for name, slot in slots.items():
        got = pieces.get(name) or by_slot.get(slot[:2], []) if slot.size else []
        if got and got[0].of in lost:
            loss[name] = lost[got[0].of]
        if slot.payload is not None:
            checks[name] = checksum.crc(kind, slot.payload) if kind else 0
        elif kind:
            checks[name] = checksum.combine_all(kind, ((w.crc, w.size) for w in got))
        if digest and slot.payload is None:
            digests[name] = content_hash(plan.tensors[name], [d for w in got for d in w.digests])
    return Outcome(checks, digests, loss, verified)


# --- one job ----------------------------------------------------------------------------------------------------


def _blocks(work: Work, job: Job, log: Log) -> Iterator[tuple[Sequence[Piece], int, memoryview]]:
    """Yield the bytes of a job in blocks: the pieces that a block belongs to, its start in the job, and its bytes.

    A copy goes through a reused buffer of `BLOCK` bytes, so that data is still in the core's cache when it is checked
    and written.
    """
    pieces, sources = job.pieces, work.sources
    alone = len(pieces) == 1  # otherwise all are small, and decoded one by one
    if alone and len(pieces[0].parts) == 1:
        (piece,), (part,) = pieces, pieces[0].parts
        same = not part.changes(piece.to) and is_contiguous(part) and part.start == piece.lo
        if isinstance(part.data, Coded) and same and part.data.size == piece.size:  # decoded at once and in order
            at = 0
            for view in stream(part.data):
                yield pieces, at, view
                at += len(view)
            return
    with Decoded(pieces[0].parts if alone else (), sources) as decoded:
        for turn in _turns(pieces, work.memory):
            if alone:
                turn = [turn[0]._replace(parts=decoded.between(turn[0].lo, turn[0].hi))]
            first, size = turn[0].at, turn[-1].at + turn[-1].size - turn[0].at
            run = sole_run(turn[0]) if len(turn) == 1 and size > BLOCK else None
            if run is None:
                target = buffers.of("target", size)
                fill(turn, sources, target, first, work.memory.window, log)
                for at, count in _cuts(job.start + first, size, BLOCK):
                    yield turn, first + at, target[at : at + count]
                continue
            reader, block = sources.reader(run.span.url), REMOTE if is_remote(run.span.url) else BLOCK
            target = buffers.of("target", min(block, size))
            for at, count in _cuts(job.start + first, size, block):
                view = target[:count]
                reader.into(run.start + at, view)
                if run.span.check:
                    log.was_read(run.span, run.start - run.span.start + at, view)
                yield turn, first + at, view


def _turns(pieces: Sequence[Piece], memory: Budget) -> Iterator[Sequence[Piece]]:
    """Divide a job into turns that fit a buffer: small neighbours together, a large piece alone, perhaps in windows."""
    block, together = min(BLOCK, memory.window), list[Piece]()
    for piece in pieces:
        size = piece.size
        if together and piece.at + size - together[0].at > block:
            yield together
            together = []
        if size <= block:
            together.append(piece)
            continue
        item = piece.to.itemsize
        step = _window(piece, block, memory) // item
        for lo in range(piece.lo, piece.hi, step):
            hi = min(piece.hi, lo + step)
            yield [piece._replace(lo=lo, hi=hi, at=piece.at + (lo - piece.lo) * item)]
    if together:
        yield together


def _window(piece: Piece, block: int, memory: Budget) -> int:
    """Return how many bytes of a large piece to process at once: all of them, if they are read in order."""
    if sole_run(piece):
        return piece.size
    return block if all(map(is_contiguous, piece.parts)) else max(memory.window, memory.whole)


def _cuts(start: int, size: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut a range of a file at page boundaries; yield (offset, size) of pieces of at most `block` bytes.

    A page that two writes share is looked up and locked twice, which takes a sixth longer.
    """
    at = 0
    while at < size:
        step = min(block - (start + at) % PAGE, size - at)
        yield at, step
        at += step
