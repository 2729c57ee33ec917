"""Convert many checkpoints: find them, convert each once in reusable processes, and record the results.

    discover.py   folders, globs and files -> checkpoints          manifest.py   CSV, JSON lines -> checkpoints
    planning.py   the output and the state of each                 ledger.py     a durable record of results
    convert(...)  converts them in a pool (pool.py); a failure does not stop the others

Outputs mirror the tree: IN/a/model.h5 becomes OUT/a/model.safetensors. If two outputs would have the same path, both
keep their suffix: OUT/a/model.h5.safetensors. A TensorFlow prefix is kept whole: OUT/a/model.ckpt-100.safetensors. An
output of several files has a folder of its own: OUT/a/model/model.ckpt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from .. import api
from ..api import MEMORY, Resources
from ..engine import ray as ray_engine
from ..errors import CkptError, StorageError, UsageError
from ..messages import redacted
from ..output import publish
from ..storage import files, lookups
from . import pool, room
from .discover import FoundCheckpoint
from .ledger import NAME, EntryState, Ledger, LedgerEntry
from .manifest import Settings
from .planning import DEFAULT, Conversion, content, identity, ledger_name, plan, read_ledger, written
from .summary import Summary, summary

MIN_WORKER_MEMORY = 16 * 2**20  # bytes
MAX_PROBES = 1000  # sources whose accessibility is checked on a cluster's workers beforehand
COMMIT_INTERVAL = 1.0  # seconds between two durable batches
FREE = Resources()


# --- conversions ------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """The result of one conversion, as a worker reports it."""

    format: str
    tensors: int
    size: int
    seconds: float
    written: tuple[tuple[str, int], ...]
    hash: str
    proof: str


def convert(
    sources: Sequence[str],
    folder: str,
    settings: Settings = DEFAULT,
    *,
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    hashed: bool = False,
    follow: bool = False,
    ledger: str = "",
    shard: str = "",
    resources: Resources = FREE,
    each: Callable[[LedgerEntry], None] | None = None,
) -> Summary:
    """Convert all checkpoints that are not up to date.

    Failures of single checkpoints are in the summary; errors that concern all of them are raised. `each` is called with
    each new entry of the ledger; `hashed` compares sources by content; `ledger` is the path of the ledger; `shard` says
    which share of all this run converts.
    """
    began = time.monotonic()
    with Ledger(_ledger(folder, ledger, shard), resume=resume or settings.target.force) as book:
        items = plan(
            sources, folder, settings, pattern=pattern, latest=latest, known=book.entries, hashed=hashed, follow=follow,
            ledger=book.path, shard=shard,
        )  # fmt: skip
        bad = [i for i in items if i.found.problem]
        items = [i for i in items if not i.found.problem]
        if settings.target.force and not resume:
            items = [i._replace(state="convert") for i in items]
        todo = sorted((i for i in items if i.state != "done"), key=lambda i: -i.found.size)
        _sweep(folder, [book.entries[i.at] for i in todo if i.at in book.entries])
        if resources.engine == "local":
            room.check(todo, folder, resources.workers)
        book.append(_entry(i, "planned", ours=i.ours) for i in todo)
        new_folders = _folders(folder, todo)
        entries: list[LedgerEntry] = []
        skipped = len(items) - len(todo)
        try:
            with closing(_outcomes([*bad, *todo], folder, hashed, resources, book.path)) as outcomes:
                for batch in outcomes:
                    entries += batch
                    _record(book, batch, folder, each)
        except StorageError as e:
            if e.url != book.path:
                raise
            why = f"{e.message.partition(';')[0]}: the run ends here; resume=True repeats what the ledger lacks"
            raise StorageError(f"{why}\n{summary(entries, skipped, began)}", url=book.path) from e
        for path in new_folders:
            _quietly_rmdir(path)
    return summary(entries, skipped, began)


def _ledger(folder: str, given: str, shard: str) -> str:
    """The path of the ledger; an error if the outputs cannot go to this folder, or the ledger not there as well."""
    if files.is_remote(folder) and not given:
        raise UsageError("a remote output folder needs ledger=FILE on this machine: object stores cannot append")
    if not files.is_remote(folder) and files.exists(folder) and not files.is_dir(folder):
        raise StorageError("is not a folder; the outputs of a zoo go into one", url=folder)
    return given or files.join(folder, ledger_name(shard))


def _outcomes(
    items: Sequence[Conversion], folder: str, hashed: bool, resources: Resources, ledger: str
) -> Generator[list[LedgerEntry], None, None]:
    """What becomes of all items, in batches; first of those that cannot be converted."""
    yield [_outcome(i, i.found.problem) for i in items if i.found.problem]
    todo = [i for i in items if not i.found.problem]
    with closing(_results(todo, folder, hashed, resources, ledger)) as results:
        for batch in _batches(results, COMMIT_INTERVAL, resources, todo):
            yield [_outcome(item, result) for item, result in batch]


def _record(
    book: Ledger, entries: Sequence[LedgerEntry], folder: str, each: Callable[[LedgerEntry], None] | None
) -> None:
    """Append a batch to the ledger once its outputs are durable, and report it."""
    if any(e.state == "done" for e in entries) and not files.is_remote(folder):
        _settle()
    book.append(entries)
    if each:
        for entry in entries:
            each(entry)


def _entry(item: Conversion, state: EntryState, **more: Any) -> LedgerEntry:
    return LedgerEntry(item.at, state, redacted(item.found.source), identity(item.found), item.options, **more)


def _outcome(item: Conversion, result: Done | CkptError) -> LedgerEntry:
    if isinstance(result, CkptError):
        ours = item.ours and item.state == "changed"
        return _entry(item, "failed", ours=ours, error=type(result).__name__, message=result.message)
    return _entry(item, "done", ours=True, **result._asdict())


class WorkerConfig(NamedTuple):
    """The configuration of a worker, the same for all checkpoints."""

    folder: str
    memory: int
    threads: int
    hashed: bool
    sync: bool


def _results(
    todo: Sequence[Conversion], folder: str, hashed: bool, resources: Resources, ledger: str
) -> Generator[tuple[Conversion, Done | CkptError] | None, None, None]:
    """Run the pool, or the tasks of a cluster; the workers of a pool share the memory."""
    if not todo:
        return
    if resources.engine != "local":
        yield from _on_cluster(
            todo, WorkerConfig(folder, resources.max_memory, 1, hashed, True), resources.engine, ledger
        )
        return
    workers = max(1, min(resources.workers, len(todo), resources.max_memory // MIN_WORKER_MEMORY))
    share = max(MIN_WORKER_MEMORY, resources.max_memory // workers)
    config = WorkerConfig(folder, share, max(1, resources.workers // workers), hashed, not hasattr(os, "sync"))
    yield from pool.run(partial(work, config), todo, workers, COMMIT_INTERVAL)


def _on_cluster(
    todo: Sequence[Conversion], config: WorkerConfig, engine: str, ledger: str
) -> Iterator[tuple[Conversion, Done | CkptError]]:
    """Run a task for each checkpoint. Workers that see the same ledger also see the same output folder."""
    config = config._replace(folder=ray_engine.absolute(config.folder))
    sent = {i.at: i._replace(found=_absolute(i.found)) for i in todo}
    known = {i.at: i for i in todo}
    with ray_engine.cluster(engine) as ray:
        reads = {url: status.size for i in sent.values() for url, status in i.found.files[:1]}
        beside = {} if files.is_remote(config.folder) else {ray_engine.absolute(ledger): os.path.getsize(ledger)}
        ray_engine.probe(ray, dict(list(reads.items())[:MAX_PROBES]) | beside, list(beside))
        for item, result in ray_engine.apply(ray, work, config, sent.values(), config.memory + ray_engine.BESIDE):
            yield known[item.at], result


def _absolute(found: FoundCheckpoint) -> FoundCheckpoint:
    files = tuple((ray_engine.absolute(url), status) for url, status in found.files)
    return found._replace(source=ray_engine.absolute(found.source), files=files)


def _batches(
    results: Iterator[tuple[Conversion, Any] | None], seconds: float, resources: Resources, todo: Sequence[Conversion]
) -> Iterator[list[tuple[Conversion, Any]]]:
    """Collect results for some seconds, so that one durable write serves all of them."""
    batch: list[tuple[Conversion, Any]] = []
    last, done, total = time.monotonic(), 0, sum(i.found.size for i in todo)
    for result in results:
        if result:
            batch.append(result)
            done += result[0].found.size
            if resources.progress:
                resources.progress(done, total)
        if batch and time.monotonic() - last >= seconds:
            yield batch
            batch, last = [], time.monotonic()
    if batch:
        yield batch


def _settle() -> None:
    """Make all files written so far durable, with one call for hundreds of files."""
    if hasattr(os, "sync"):
        os.sync()


@lookups.once()
def work(config: WorkerConfig, item: Conversion) -> Done:
    """Convert one checkpoint, in a worker."""
    began, folder = time.monotonic(), config.folder
    select, change, target = item.settings
    target = replace(target, force=target.force or item.ours, sync=config.sync)
    lookups.expect(dict(item.found.files))
    with pool.contained(item.found.source):
        report = api.convert(
            item.found.source, files.join(folder, item.at),
            select=select, change=change, target=target, resources=Resources(config.memory, config.threads),
        )  # fmt: skip
        above = files.split(files.join(folder, item.at))[0][len(folder.rstrip("/")) :].strip("/")
        names = [f"{above}/{name}" if above else name for name in report.files]
        sizes = [(n, s.size) for n in names if (s := files.stat(files.join(folder, n)))]
        digest = content(item.found) if config.hashed else ""
        proof = written(folder, names) if target.verify == "full" else ""
    return Done(
        report.source_format, report.tensors, report.bytes, time.monotonic() - began, tuple(sizes), digest, proof
    )


def _folders(folder: str, todo: Sequence[Conversion]) -> list[str]:
    """Create all folders beforehand, so that no worker removes one that another is about to use; return the new ones.

    The deepest come first, the order in which empty ones are removed again.
    """
    if files.is_remote(folder):
        return []
    wanted = {os.path.dirname(files.join(folder, i.at)) for i in todo}
    missing = {path for path in wanted if not os.path.isdir(path)}
    for path in missing:
        with suppress(OSError, RecursionError):  # the conversion fails there, and says why
            os.makedirs(path, exist_ok=True)
    return sorted(missing, key=len, reverse=True)


def _quietly_rmdir(path: str) -> None:
    """Remove a folder if it is empty because its conversions failed."""
    try:
        os.rmdir(path)
    except OSError:
        pass


def _sweep(folder: str, entries: Sequence[LedgerEntry]) -> None:
    """Remove the temporary folders of outputs that a killed run was writing."""
    outputs = tuple(files.join(folder, e.at) for e in entries if e.state == "planned")
    if files.is_remote(folder):
        return
    for home in {os.path.dirname(path) for path in outputs} | set(outputs):
        publish.clear(home, partial(_begins, home, outputs))


def _begins(home: str, outputs: tuple[str, ...], title: str) -> bool:
    return files.join(home, title).startswith(outputs)


__all__ = ["MEMORY", "NAME", "Conversion", "LedgerEntry", "Settings", "Summary", "convert", "plan", "read_ledger"]
