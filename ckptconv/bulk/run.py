"""Convert many checkpoints: find them, convert each once in reusable processes, and record the results.

discover.py   folders, globs and files -> checkpoints     manifest.py   CSV, JSON, Parquet -> checkpoints
planning.py   the output and the state of each            ledger.py     a durable record of results
pool.py       the processes                               summary.py   the results, for people and programs
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..api import comparing, reading, writing
from ..api.comparing import VERIFY
from ..api.options import CHANGE, RESOURCES, SELECT, Options, Path, takes
from ..api.result import Report
from ..engine import ray as ray_engine
from ..errors import CkptError, CorruptCheckpoint, StorageError, UsageError
from ..formats import table
from ..messages import redacted
from ..output.destination import OutputExists, place
from ..storage import files, lookups
from ..storage.lookups import session
from ..storage.paths import refuse_remote
from . import pool
from .discover import FoundCheckpoint
from .ledger import EntryState, Ledger, LedgerEntry, Remark
from .planning import Conversion, ZooOptions, content_hash, identity, ledger_name, plan, read_ledger
from .summary import Summary, counted, remarks_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.keywords import ZooOptions as ConversionOptions

ZOO = (
    *SELECT, *(k for k in CHANGE if k != "scope"), "skip_unrepresentable", "force", "verify", "hash", *RESOURCES,
)  # fmt: skip
LARGE = 2 * 2**30  # bytes; a larger checkpoint gets several threads, so that it is not the last to finish
Done = dict[str, Any]
MAX_PROBES = 1000  # sources whose accessibility is checked on the workers of a cluster beforehand
MIN_WORKER_MEMORY = 16 * 2**20  # bytes
COMMIT_INTERVAL = 1.0  # seconds between two durable batches
Results = Generator[tuple[Conversion, Done | CkptError] | None, None, None]


@takes(*ZOO)
def zoo(
    sources: Path | Sequence[Path],
    destination: Path,
    *,
    to: str | None = None,
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    by_content: bool = False,
    follow_links: bool = False,
    ledger: str = "",
    shard: str = "",
    each: Callable[[LedgerEntry], None] | None = None,
    **given: Unpack[ConversionOptions],
) -> Summary:
    """Convert many checkpoints into an output tree that mirrors the sources, and record each result in a ledger.

    sources: one or several folders, globs, files and manifests. destination: the folder to write to. to: the target
    format (default: safetensors; in a manifest, that of the destination's suffix). pattern: a glob; convert only
    checkpoints whose path or name matches. latest: only the newest of each training series. resume: continue after an
    earlier run; convert only checkpoints that are not done or have changed. by_content: compare sources by a hash of
    their bytes, not by time and size. follow_links: follow links that lead out of the source folders; otherwise they
    are failures. ledger: the path of the ledger, if not in `destination`. shard: "2/8" converts the second of eight
    shares, for eight machines that each convert one; each share has its own ledger. each: a function that is called
    with each ledger entry. The other options are those of `convert`, for every checkpoint.

    Returns a Summary: counts, bytes, seconds, and in `failed` the ledger entries of the failures; one checkpoint that
    fails does not stop the others. Raises errors that concern all of them: UsageError (an option, a manifest, a pattern
    that matches nothing), StorageError (the output folder, an existing ledger without `resume`), CorruptCheckpoint (a
    damaged ledger).
    """
    own = {"pattern": pattern, "latest": latest, "resume": resume, "by_content": by_content, "shard": shard, "to": to}
    options = _options({**own, "follow_links": follow_links, "ledger": ledger, **given})
    return convert(sources, os.fspath(destination), options, each)


def zoo_plan(sources: Path | Sequence[Path], destination: Path, **given: Any) -> list[Conversion]:
    """List the conversions that `zoo` would do with the same arguments, without writing anything.

    Returns a Conversion for each checkpoint, sorted by name, rows of manifests last: `found` (the checkpoint and its
    files), `destination` (the path of the output below `output`), `settings`, and `state`: convert, retry, changed,
    done or problem. Raises UsageError, StorageError and CorruptCheckpoint, as `zoo` does.
    """
    options, folder = _options(given), os.fspath(destination)
    force = options.settings.force
    known = read_ledger(options.ledger or folder, options.shard, force=force) if options.resume or force else {}
    return plan(sources, folder, options, known)


def _options(given: dict[str, Any]) -> ZooOptions:
    which = {f.name: given.pop(f.name) for f in fields(ZooOptions) if f.name in given}
    refuse_remote(ledger := os.fspath(which.pop("ledger", "")), "a ledger")
    how = Options(**given)
    return ZooOptions(how.without(*RESOURCES), how, ledger=ledger, **which)


def convert(
    sources: Path | Sequence[Path], folder: str, options: ZooOptions, each: Callable[[LedgerEntry], None] | None = None
) -> Summary:
    """Convert all checkpoints that are not up to date; `each` is called with each new entry of the ledger.

    Failures of single checkpoints are in the summary; errors that concern all of them are raised.
    """
    began, made, path = time.monotonic(), list[LedgerEntry](), _ledger_path(folder, options)
    had_ledger, had_folder = map(os.path.lexists, (path, folder))
    with closing(Ledger(path, resume=options.resume, force=options.settings.force)) as book:
        try:
            items = plan(sources, folder, options, book.entries)
        except CkptError:  # of the sources: what was made for them is removed
            with suppress(OSError):
                if not (had_ledger or book.entries):
                    os.unlink(path)
                if not had_folder:
                    os.rmdir(folder)
            raise
        todo = sorted((i for i in items if i.state not in ("done", "problem")), key=lambda i: -i.found.size)
        current = [book.entries[i.destination] for i in items if i.state == "done"]
        book.append(_entry(i, "planned", ours=i.ours, written=i.written) for i in todo)
        _make_folders(folder, todo)
        for entries in _batches(items, _results(todo, folder, options, path), options):
            made += entries
            if any(e.state == "done" for e in entries) and not files.is_remote(folder) and hasattr(os, "sync"):
                os.sync()  # one call for hundreds of files, before the ledger records them
            book.append(entries)
            if each:
                for entry in entries:
                    each(entry)
    done, failed = [e for e in made if e.state == "done"], tuple(e for e in made if e.state == "failed")
    # for checkpoints that were up to date, repeat only damage
    again = [e._replace(remarks=tuple(r for r in e.remarks if r.kind == "damaged")) for e in current]
    seconds = time.monotonic() - began
    return Summary(len(done), len(current), failed, sum(e.size for e in done), seconds, *counted([*done, *again]))


def _ledger_path(folder: str, options: ZooOptions) -> str:
    """Return the path of the ledger; an error if the outputs or the ledger cannot be written there."""
    remote = files.is_remote(folder)
    if remote and not options.ledger:
        raise UsageError("a remote output folder needs ledger=FILE on this machine: object stores cannot append")
    if not remote and files.exists(folder) and not files.is_dir(folder):
        raise StorageError("is not a folder; the outputs of a zoo go into one", url=folder)
    return options.ledger or files.join(folder, ledger_name(options.shard))


def _entry(item: Conversion, state: EntryState, **more: Any) -> LedgerEntry:
    found = item.found
    return LedgerEntry(item.destination, state, redacted(found.source), identity(found), item.options, **more)


def _outcome(item: Conversion, result: Done | CkptError) -> LedgerEntry:
    now = int(time.time())
    if isinstance(result, CkptError):
        why = {"error": type(result).__name__, "message": result.message}
        return _entry(item, "failed", ours=item.ours, written=item.written, ended=now, **why)
    return _entry(item, "done", ours=True, ended=now, **result)


def _results(todo: Sequence[Conversion], folder: str, options: ZooOptions, ledger: str) -> Results:
    """Run the conversions in a pool, whose workers share the memory, or on a cluster."""
    how, hashed = options.resources, options.by_content
    if not todo:
        return
    if how.engine != "local":
        yield from on_cluster(todo, WorkerConfig(folder, how.max_memory, 1, hashed, True), how.engine, ledger)
        return
    workers = max(1, min(how.workers, len(todo), how.max_memory // MIN_WORKER_MEMORY))
    share, threads = max(MIN_WORKER_MEMORY, how.max_memory // workers), max(1, how.workers // workers)
    config = WorkerConfig(folder, share, threads, hashed, not hasattr(os, "sync"), how.workers)
    yield from pool.run(partial(work, config, listings={}), todo, workers, COMMIT_INTERVAL)


def _batches(items: Sequence[Conversion], results: Results, options: ZooOptions) -> Iterator[list[LedgerEntry]]:
    """Yield the problems of the plan, then batches of about a second of results for one durable write each."""
    yield [_outcome(i, i.found.problem) for i in items if i.found.problem]
    batch, last, done = list[LedgerEntry](), time.monotonic(), 0
    total = sum(i.found.size for i in items if i.state not in ("done", "problem"))
    with closing(results):
        for result in results:
            if result:
                batch.append(_outcome(*result))
                done += result[0].found.size
                if options.resources.progress:
                    options.resources.progress(done, total)
            if batch and time.monotonic() - last >= COMMIT_INTERVAL:
                yield batch
                batch, last = [], time.monotonic()
    yield batch


def _make_folders(folder: str, todo: Sequence[Conversion]) -> None:
    """Create all folders beforehand, so that no worker removes one that another is about to use."""
    if not files.is_remote(folder):
        for path in {os.path.dirname(files.join(folder, i.destination)) for i in todo}:
            with suppress(OSError, RecursionError):  # the conversion will fail and say why
                os.makedirs(path, exist_ok=True)


# --- one checkpoint, in a worker or in tasks of an engine ---


AGAIN = (Remark("hint", "converted again, since the source, the options or the output had changed", ""),)


class WorkerConfig(NamedTuple):
    """The configuration of a worker, the same for all checkpoints; `processors` are for a large one."""

    folder: str
    memory: int
    threads: int
    hashed: bool
    sync: bool
    processors: int = 1


@lookups.cached_lookups()
def work(
    config: WorkerConfig, item: Conversion, engine: str = "local", *, listings: dict[str, list[str]] | None = None
) -> Done:
    """Convert one checkpoint: in a worker, or in tasks of an engine. listings: of long folders.

    Returns fields of the ledger entry about the data that was read and written.
    """
    began, folder = time.monotonic(), config.folder
    lookups.expect(dict(item.found.files))
    if changed := _changed(item, engine):
        raise CorruptCheckpoint("is not the file that was planned: it has changed since", url=changed)
    threads = config.processors if item.found.size >= LARGE else config.threads
    how = replace(item.settings, sync=config.sync, max_memory=config.memory, jobs=threads, engine=engine)
    output = files.join(folder, item.destination)
    with pool.contained(item.found.source), session(listings=listings):
        report = _converted(item, output, folder, how)
        names = [path.removeprefix(redacted(files.join(folder, ""))) for path in report.files]
        sizes = [(n, s.size, s.mtime) for n in names if (s := files.stat(files.join(folder, n)))]
        digest = content_hash(item.found.urls) if config.hashed else ""
        digest = "" if digest and _changed(item, engine) else digest  # other bytes than those converted
        proof = content_hash(files.join(folder, n) for n in names) if how.verify else ""
    return {
        "format": report.source_format, "tensors": report.tensors, "size": report.bytes, "written": tuple(sizes),
        "seconds": time.monotonic() - began, "hash": digest, "proof": proof,
        "remarks": remarks_of(report) + AGAIN[: item.state == "changed"],
    }  # fmt: skip


def _changed(item: Conversion, engine: str) -> str:
    """Return a local file that has changed since planning, or ''; remote ones are compared after reading."""
    for url, planned in item.found.files:
        if files.is_remote(url):
            continue
        now = files.stat(url)
        marked = now and now.mark and planned.mark and engine == "local"  # inode numbers may differ on other machines
        if now is None or now[: None if marked else 2] != planned[: None if marked else 2]:
            return url
    return ""


def _converted(item: Conversion, output: str, folder: str, how: Options) -> Report:
    """Convert it; replace only unchanged files of an earlier run, unless `force` is given."""
    given = {k: v for k, v in vars(how).items() if v is not None}
    convert = partial(writing.convert, item.found.source)
    if how.force:
        return convert(output, **given)
    try:
        with session(written={place(files.join(folder, name)): (size, time) for name, size, time in item.written}):
            return convert(output, **given | {"force": bool(item.written)})
    except OutputExists as e:
        if item.ours and item.state in ("convert", "retry"):
            with suppress(CkptError):  # a killed run may have published the same output without a record
                comparing.verify(item.found.source, output, **{k: v for k, v in given.items() if k in VERIFY})
                target = table.get(how.to).name if how.to else min(table.by_suffix(output), default="")
                if reading.open_source(output, Options()).format == target:  # not a file of another output
                    return convert(output, **given | {"force": True})
        raise StorageError(e.message, url=e.url) from None


# --- a cluster ---


def on_cluster(
    todo: Sequence[Conversion], config: WorkerConfig, engine: str, ledger: str
) -> Iterator[tuple[Conversion, Done | CkptError]]:
    """Run a task for each checkpoint; then convert the large ones, with a task for each part of the output.

    The ledger tells whether workers see the same output folder.
    """
    config = config._replace(folder=ray_engine.absolute(config.folder))
    known = {i.destination: i for i in todo}
    absolute = [replace(i, found=_absolute(i.found)) for i in todo]
    with ray_engine.cluster(engine) as ray:
        reads = {url: status.size for i in absolute[:MAX_PROBES] for url, status in i.found.files[:1]}
        beside = {} if files.is_remote(config.folder) else {ray_engine.absolute(ledger): os.path.getsize(ledger)}
        ray_engine.probe(ray, reads | beside, list(beside))
        memory = config.memory + ray_engine.BESIDE
        small = [i for i in absolute if i.found.size < LARGE]
        for item, result in ray_engine.apply(ray, _one, config, small, memory, size=lambda i: i.found.size):
            yield known[item.destination], result
        for item in absolute:
            if item.found.size >= LARGE:
                yield known[item.destination], _one(config, item, engine)


def _one(config: WorkerConfig, item: Conversion, engine: str = "local") -> Done | CkptError:
    """Convert a checkpoint; return its failure as the result, so that other tasks are not stopped or repeated."""
    try:
        return work(config, item, engine)
    except CkptError as e:
        return e


def _absolute(found: FoundCheckpoint) -> FoundCheckpoint:
    paths = tuple((ray_engine.absolute(url), status) for url, status in found.files)
    return found._replace(source=ray_engine.absolute(found.source), files=paths)
