"""Convert many checkpoints: find them, convert each once in reusable processes, and record the results.

    discover.py   folders, globs and files -> checkpoints          manifest.py   CSV, JSON lines -> checkpoints
    planning.py   the output and the state of each                 ledger.py     a durable record of results
    places.py     where outputs go and what would meet there       found.py, conversions.py   millions in little memory
    convert(...)  converts them in a pool (pool.py); a failure does not stop the others

Outputs mirror the tree: IN/a/model.h5 becomes OUT/a/model.safetensors. If two outputs would have the same path, both
keep their suffix: OUT/a/model.h5.safetensors. A TensorFlow prefix is kept whole: OUT/a/model.ckpt-100.safetensors. An
output of several files has a folder of its own: OUT/a/model/model.ckpt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from ..api import MEMORY, Resources
from ..errors import CkptError, StorageError, UsageError
from ..messages import indented, redacted
from ..storage import files
from . import cluster, pool, room
from .breaker import Guard
from .conversions import Conversion, Known
from .identity import asked, identity
from .ledger import LEDGERS, NAME, EntryState, Ledger, LedgerEntry
from .manifest import Settings
from .planning import DEFAULT, ledger_name, plan, read_ledger
from .summary import Summary, Sums
from .work import Done, WorkerConfig, work

MIN_WORKER_MEMORY = 16 * 2**20  # bytes
COMMIT_INTERVAL = 1.0  # seconds between two durable batches
FREE = Resources()


# --- conversions ------------------------------------------------------------------------------------------------


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
    with Ledger(_ledger(folder, ledger, shard), resume=resume, force=settings.target.force) as book:
        items = plan(
            sources, folder, settings, pattern=pattern, latest=latest, known=book.entries, hashed=hashed, follow=follow,
            ledger=book.path, shard=shard,
        )  # fmt: skip
        if settings.target.force and not resume:
            items.do_again()
        bad = items.in_state("problem")
        todo = items.in_state("convert", "retry", "changed").largest_first()
        if resources.engine == "local":
            room.check(todo, folder, resources.workers)
        book.append(_entry(i, "planned", ours=i.ours, written=i.written) for i in Known(todo, book.entries))
        new_folders = _folders(folder, todo)
        kept = (book.entries[i.at] for i in items.in_state("done") if i.at in book.entries.remarked)
        sums = Sums(len(items) - len(bad) - len(todo), began, kept)
        outcomes = closing(_outcomes(Known(bad, book.entries), todo, folder, hashed, resources, book))
        del items
        with _summarised(book, sums), outcomes as batches:
            for batch in batches:
                sums.add(batch)
                _record(book, batch, folder, each)
        for path in new_folders:
            _quietly_rmdir(path)
    return sums.summary()


@contextmanager
def _summarised(book: Ledger, sums: Sums) -> Iterator[None]:
    """A ledger that cannot be written ends the run; the error says what was done till then."""
    try:
        yield
    except StorageError as e:
        if e.url != book.path:
            raise
        why = f"{e.message.partition(';')[0]}: the run ends here; resume=True repeats what the ledger lacks"
        raise StorageError(f"{why}\n{indented(str(sums.summary()))}", url=book.path) from e


def _ledger(folder: str, given: str, shard: str) -> str:
    """The path of the ledger; an error if the outputs cannot go to this folder, or the ledger not there as well."""
    if files.is_remote(folder) and not given:
        raise UsageError("a remote output folder needs ledger=FILE on this machine: object stores cannot append")
    if not files.is_remote(folder) and files.exists(folder) and not files.is_dir(folder):
        raise StorageError("is not a folder; the outputs of a zoo go into one", url=folder)
    name = ledger_name(shard)
    if not given and (other := _of_another_division(folder, name)):
        raise UsageError(
            f"{other} there is of another division into shares, whose outputs this run would not know; divide as "
            "before with shard=, or choose another folder", url=folder,
        )  # fmt: skip
    return given or files.join(folder, name)


def _of_another_division(folder: str, name: str) -> str:
    """A ledger that belongs to another number of shares than the one of this name, or ''."""
    same = name.rpartition("-of-")[2]  # 8.jsonl of .ckptconv-zoo.2-of-8.jsonl
    there = [n for n in files.names(folder) if fnmatchcase(n, LEDGERS)] if files.is_dir(folder) else []
    others = (n for n in there if n.rpartition("-of-")[2] != same)
    return next((n for n in others if (status := files.stat(files.join(folder, n))) and status.size), "")


def _outcomes(
    bad: Sequence[Conversion], todo: Sequence[Conversion], folder: str, hashed: bool, resources: Resources, book: Ledger
) -> Generator[list[LedgerEntry], None, None]:
    """What becomes of all items, in batches; first of those that cannot be converted."""
    yield [_outcome(i, i.found.problem) for i in bad if i.found.problem]
    with closing(_results(Known(todo, book.entries), folder, hashed, resources, book.path)) as results:
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
    found, source = item.found, item.found.source
    return LedgerEntry(item.at, state, redacted(source), identity(found), item.options, asked=asked(source), **more)


def _outcome(item: Conversion, result: Done | CkptError) -> LedgerEntry:
    now = int(time.time())
    if isinstance(result, CkptError):
        more = {"error": type(result).__name__, "message": result.message, "ended": now}
        return _entry(item, "failed", ours=item.ours, written=item.written, **more)
    return _entry(item, "done", ours=True, ended=now, **result._asdict())


def _results(
    todo: Sequence[Conversion], folder: str, hashed: bool, resources: Resources, ledger: str
) -> Generator[tuple[Conversion, Done | CkptError] | None, None, None]:
    """Run the pool, or the tasks of a cluster; the workers of a pool share the memory."""
    if not todo:
        return
    if resources.engine != "local":
        yield from cluster.run(
            todo, WorkerConfig(folder, resources.max_memory, 1, hashed, True), resources.engine, ledger
        )
        return
    workers = max(1, min(resources.workers, len(todo), resources.max_memory // MIN_WORKER_MEMORY))
    share = max(MIN_WORKER_MEMORY, resources.max_memory // workers)
    threads = max(1, resources.workers // workers)
    config = WorkerConfig(folder, share, threads, hashed, not hasattr(os, "sync"), resources.workers)
    guard = Guard(todo, folder, workers)
    yield from guard.watch(pool.run(partial(work, config, listings={}), guard.pick(), workers, COMMIT_INTERVAL))


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


__all__ = ["MEMORY", "NAME", "LedgerEntry", "Settings", "Summary", "convert", "plan", "read_ledger"]
