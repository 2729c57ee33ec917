"""Convert one checkpoint and say what came of it; on a cluster, small ones as a task each, then large ones in many."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from .. import api
from ..api import Options, Report
from ..engine import ray as ray_engine
from ..errors import CkptError, CorruptCheckpoint, StorageError
from ..output import own
from ..output.destination import Taken, place
from ..output.staging import hidden
from ..storage import files, lookups
from ..storage.session import session
from . import pool
from .discover import FoundCheckpoint
from .planning import Conversion, content_hash, hash_of
from .summary import remarks_of

LARGE = 2 * 2**30  # bytes of a checkpoint that one thread would still convert when all others are done
Done = dict[str, Any]
MAX_PROBES = 1000  # sources whose accessibility is checked on the workers of a cluster beforehand


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
    config: WorkerConfig, item: Conversion, engine: str = "local", *, listings: dict[str, list[str]] | None = None
) -> Done:
    """Convert one checkpoint: in a worker, or in tasks of an engine. `listings`: of long folders.

    Returns fields of the ledger's entry: what was read and written.
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
        above = files.split(output)[0][len(folder.rstrip("/")) :].strip("/")
        names = [f"{above}/{name}" if above else name for name in report.files]
        sizes = [(n, s.size, s.mtime) for n in names if (s := files.stat(files.join(folder, n)))]
        digest = content_hash(item.found) if config.hashed else ""
        digest = "" if digest and _changed(item, engine) else digest  # of other bytes than were converted
        proof = hash_of(folder, names) if how.verify == "full" else ""
    return {
        "format": report.source_format, "tensors": report.tensors, "size": report.bytes, "written": tuple(sizes),
        "seconds": time.monotonic() - began, "hash": digest, "proof": proof, "remarks": remarks_of(report),
    }  # fmt: skip


def _changed(item: Conversion, engine: str) -> str:
    """A local file that is not as it was planned, or ''; remote ones are compared when they have been read."""
    for url, planned in item.found.files:
        if files.is_remote(url):
            continue
        now = files.stat(url)
        marked = now and now.mark and planned.mark and engine == "local"  # elsewhere files may have other numbers
        if now is None or now[: None if marked else 2] != planned[: None if marked else 2]:
            return url
    return ""


def _converted(item: Conversion, output: str, folder: str, how: Options) -> Report:
    """Convert it, replacing what an earlier run wrote as it wrote it, and nothing else unless that is forced."""
    given = {k: v for k, v in vars(how).items() if v is not None}
    convert = partial(api.convert, item.found.source)
    if how.force:
        return convert(output, **given)
    try:
        with session(written={place(files.join(folder, name)): (size, time) for name, size, time in item.written}):
            return convert(output, **given | {"force": bool(item.written)})
    except Taken as e:
        if item.ours and item.state in ("convert", "retry"):
            # a killed run may have published it without a record: then it has the bytes that it should have
            above, base = files.split(output)
            with _stage(above, base) as stage, suppress(CkptError):  # a file may be missing
                report = convert(files.join(stage, base), **given)
                if hash_of(stage, report.files) == hash_of(above, report.files):
                    return report
        raise StorageError(e.message, url=e.url) from None


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


# --- a cluster ---


def on_cluster(
    todo: Sequence[Conversion], config: WorkerConfig, engine: str, ledger: str
) -> Iterator[tuple[Conversion, Done | CkptError]]:
    """Run a task for each checkpoint; afterwards each large one, with a task for each part of its output.

    Workers that see the same ledger also see the same output folder.
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
    """Convert a checkpoint; its failure is its result, so that it stops and repeats no others."""
    try:
        return work(config, item, engine)
    except CkptError as e:
        return e


def _absolute(found: FoundCheckpoint) -> FoundCheckpoint:
    paths = tuple((ray_engine.absolute(url), status) for url, status in found.files)
    return found._replace(source=ray_engine.absolute(found.source), files=paths)
