"""What a worker does: convert one checkpoint, and say what came of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from .. import api
from ..api import Resources
from ..engine.run import Progress
from ..output import listed
from ..output.listed import Seen
from ..storage import files, lookups
from . import pool
from .conversions import Conversion
from .planning import content, written

LARGE = 2 * 2**30  # bytes of a checkpoint that one thread would still convert when all others are done


class Done(NamedTuple):
    """The result of one conversion, as a worker reports it."""

    format: str
    tensors: int
    size: int
    seconds: float
    written: tuple[tuple[str, int], ...]
    hash: str
    proof: str


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
    seen: Seen | None = None,
) -> Done:
    """Convert one checkpoint: in a worker, or in tasks of an engine. `seen`: what a worker knows of its folders."""
    began, folder = time.monotonic(), config.folder
    select, change, target = item.settings
    target = replace(target, force=target.force or item.ours, sync=config.sync)
    lookups.expect(dict(item.found.files))
    threads = config.processors if item.found.size >= LARGE else config.threads
    with pool.contained(item.found.source), listed.once(seen):
        report = api.convert(
            item.found.source, files.join(folder, item.at),
            select=select, change=change, target=target,
            resources=Resources(config.memory, threads, engine=engine, progress=progress),
        )  # fmt: skip
        above = files.split(files.join(folder, item.at))[0][len(folder.rstrip("/")) :].strip("/")
        names = [f"{above}/{name}" if above else name for name in report.files]
        sizes = [(n, s.size) for n in names if (s := files.stat(files.join(folder, n)))]
        digest = content(item.found) if config.hashed else ""
        proof = written(folder, names) if target.verify == "full" else ""
    return Done(
        report.source_format, report.tensors, report.bytes, time.monotonic() - began, tuple(sizes), digest, proof
    )


__all__ = ["LARGE", "Done", "WorkerConfig", "work"]
