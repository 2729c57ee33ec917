"""Convert many checkpoints on a cluster: small ones as a task each, beside them large ones in many tasks each."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from functools import partial
from itertools import islice
from threading import Event
from typing import Any

from ..engine import ray as ray_engine
from ..engine.run import Progress
from ..errors import CkptError
from ..storage import files
from .breaker import Guard
from .conversions import Conversion
from .found import FoundCheckpoint
from .work import LARGE, Done, WorkerConfig, work

MAX_PROBES = 1000  # sources whose accessibility is checked on the workers beforehand
AT_ONCE = 2  # large checkpoints at the same time, each in as many tasks as it has use for


def run(
    todo: Sequence[Conversion], config: WorkerConfig, engine: str, ledger: str
) -> Iterator[tuple[Conversion, Done | CkptError]]:
    """Run a task for each checkpoint, and meanwhile for each large one a task for each part of its output.

    Workers that see the same ledger also see the same output folder.
    """
    config = config._replace(folder=ray_engine.absolute(config.folder))
    number = {i.at: k for k, i in enumerate(todo)}  # items are packed: a zoo may have millions

    with ray_engine.cluster(engine) as ray:
        guard = Guard(todo, config.folder, ray_engine.processors(ray))

        def sent(large: bool) -> Iterator[Conversion]:
            picked = guard.pick(lambda i: (i.found.size >= LARGE) == large)
            return (i._replace(found=_absolute(i.found)) for i in picked)

        some = (_absolute(i.found) for i in islice(todo, MAX_PROBES))
        reads = {url: status.size for found in some for url, status in found.files[:1]}
        beside = {} if files.is_remote(config.folder) else {ray_engine.absolute(ledger): os.path.getsize(ledger)}
        ray_engine.probe(ray, reads | beside, list(beside))
        memory = config.memory + ray_engine.BESIDE
        tasks = ray_engine.apply(ray, _one, config, sent(False), memory, size=lambda i: i.found.size)
        with closing(_beside(tasks, partial(_spread, config, engine), sent(True))) as results:
            for item, result in filter(None, guard.watch(results)):
                yield todo[number[item.at]], result


def _one(
    config: WorkerConfig, item: Conversion, engine: str = "local", progress: Progress | None = None
) -> Done | CkptError:
    """Convert a checkpoint; its failure is its result, so that it stops and repeats no others."""
    try:
        return work(config, item, engine, progress)
    except CkptError as e:
        return e


def _beside(
    tasks: Iterator[tuple[Conversion, Any]], do: Callable[[Event, Conversion], Any], items: Iterator[Conversion]
) -> Generator[tuple[Conversion, Any], None, None]:
    """The results of tasks, and of large items, which threads of this process see to."""
    stop, threads = Event(), ThreadPoolExecutor(AT_ONCE)
    large: dict[Future[Any], Conversion] = {}

    def begun() -> bool:
        large.update((threads.submit(do, stop, i), i) for i in islice(items, AT_ONCE - len(large)))
        return bool(large)

    try:
        begun()
        for result in tasks:
            yield result
            for done in [future for future in large if future.done()]:
                yield large.pop(done), done.result()
                begun()
        while begun():
            done = next(as_completed(large))
            yield large.pop(done), done.result()
    finally:
        stop.set()
        threads.shutdown(cancel_futures=True)


def _spread(config: WorkerConfig, engine: str, stop: Event, item: Conversion) -> Done | CkptError:
    """Convert a checkpoint in tasks of a cluster, until `stop` is set."""

    def progress(done: int, total: int) -> None:
        if stop.is_set():
            raise CkptError("the run was stopped")

    return _one(config, item, engine, progress)


def _absolute(found: FoundCheckpoint) -> FoundCheckpoint:
    files = tuple((ray_engine.absolute(url), status) for url, status in found.files)
    return found._replace(source=ray_engine.absolute(found.source), files=files)


__all__ = ["run"]
