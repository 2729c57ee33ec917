"""What a worker does: convert one checkpoint, and say what came of it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from .. import api
from ..api import Report, Resources, Target
from ..engine.run import Progress
from ..errors import CkptError, CorruptCheckpoint, StorageError
from ..output import own
from ..output.destination import Taken, place
from ..output.staging import hidden
from ..storage import files, lookups
from ..storage.session import session
from . import pool, remarks
from .conversions import Conversion
from .identity import content, written
from .remarks import Remark

LARGE = 2 * 2**30  # bytes of a checkpoint that one thread would still convert when all others are done


class Done(NamedTuple):
    """The result of one conversion, as a worker reports it."""

    format: str
    tensors: int
    size: int
    seconds: float
    written: tuple[tuple[str, int, int], ...]
    hash: str
    proof: str
    remarks: tuple[Remark, ...] = ()


class WorkerConfig(NamedTuple):
    """The configuration of a worker, the same for all checkpoints; `processors` are for a large one."""

    folder: str
    memory: int
    threads: int
    hashed: bool
    sync: bool
    processors: int = 1


@lookups.once()
def work(
    config: WorkerConfig,
    item: Conversion,
    engine: str = "local",
    progress: Progress | None = None,
    *,
    listings: dict[str, list[str]] | None = None,
) -> Done:
    """Convert one checkpoint: in a worker, or in tasks of an engine. `listings`: of long folders."""
    began, folder = time.monotonic(), config.folder
    target = replace(item.settings.target, sync=config.sync)
    lookups.expect(dict(item.found.files))
    if changed := _changed(item, engine):
        raise CorruptCheckpoint("is not the file that was planned: it has changed since", url=changed)
    threads = config.processors if item.found.size >= LARGE else config.threads
    resources = Resources(config.memory, threads, engine=engine, progress=progress)
    with pool.contained(item.found.source), session(listings=listings):
        report = _converted(item, files.join(folder, item.at), folder, target, resources)
        above = files.split(files.join(folder, item.at))[0][len(folder.rstrip("/")) :].strip("/")
        names = [f"{above}/{name}" if above else name for name in report.files]
        sizes = [(n, s.size, s.mtime) for n in names if (s := files.stat(files.join(folder, n)))]
        digest = content(item.found) if config.hashed else ""
        digest = "" if digest and _changed(item, engine) else digest  # of other bytes than were converted
        proof = written(folder, names) if target.verify == "full" else ""
    return Done(
        report.source_format, report.tensors, report.bytes, time.monotonic() - began, tuple(sizes), digest, proof,
        remarks.of(report),
    )  # fmt: skip


def _changed(item: Conversion, engine: str) -> str:
    """A file that is not as it was planned, or ''; a store's are compared when they have been read."""
    local = ((url, status) for url, status in item.found.files if not files.is_remote(url))
    return next((url for url, status in local if not _is_same(files.stat(url), status, engine)), "")


def _is_same(now: files.Stat | None, planned: files.Stat, engine: str) -> bool:
    """Whether a file is the one that was planned; other machines of a cluster may number the same files differently."""
    known = now is not None and now.mark and planned.mark and engine == "local"
    return now == planned if known else now is not None and now[:2] == planned[:2]


def _converted(item: Conversion, where: str, folder: str, target: Target, resources: Resources) -> Report:
    """Convert it, replacing what an earlier run wrote as it wrote it, and nothing else unless that is forced."""
    convert = partial(
        api.convert, item.found.source, select=item.settings.select, change=item.settings.change, resources=resources
    )
    if target.force:
        return convert(where, target=target)
    try:
        with session(written={place(files.join(folder, name)): (size, time) for name, size, time in item.written}):
            return convert(where, target=replace(target, force=bool(item.written)))
    except Taken as e:
        if (
            item.ours
            and item.state in ("convert", "retry")
            and (found := _adopted(where, partial(convert, target=target)))
        ):
            return found
        raise StorageError(e.message, url=e.url) from None


def _adopted(where: str, convert: Callable[[str], Report]) -> Report | None:
    """The report of an output that a killed run published and did not record: it has the bytes that it should have."""
    above, base = files.split(where)
    with _stage(above, base) as stage:
        try:
            found = convert(files.join(stage, base))
            return found if written(stage, found.files) == written(above, found.files) else None
        except CkptError:  # a file is missing, for instance
            return None


@contextmanager
def _stage(above: str, base: str) -> Iterator[str]:
    """A temporary folder, which the next run removes if this one is killed; of a remote output it is elsewhere."""
    if files.is_remote(above):
        with tempfile.TemporaryDirectory() as stage:
            yield stage
        return
    stage = files.join(above, hidden(base, "again.part"))
    lock, _ = own.claim(stage)
    try:
        yield stage
    finally:
        own.remove(stage)
        os.close(lock)


__all__ = ["LARGE", "Done", "WorkerConfig", "work"]
