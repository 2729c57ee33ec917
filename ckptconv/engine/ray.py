"""Run a plan on an existing cluster: jobs become tasks, which return receipts.

    local               threads of this process (run.threads)
    ray                 the Ray cluster of this machine or of RAY_ADDRESS
    ray://HOST:PORT     a Ray cluster elsewhere, through its client port

Workers need ckptconv and the same paths, nothing else: a task opens its files by name, writes its range, and ends. Any
range may be written twice, so a lost worker costs only its task. Before the first task, each node is asked whether it
reaches the paths. Nothing of ours stays on the cluster.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ..errors import CkptError, MissingExtra, StorageError, UsageError
from ..messages import listing, version
from ..moves.part import Coded, Held, Span
from ..storage import files
from .job import Receipt
from .plan import Job
from .run import Map, Work

RETRIES = 3
KNOCK = 10.0  # seconds a cluster may take to accept a connection
PATIENCE = 120.0  # seconds a worker may take to answer the first question: it may have to be started
SHIPPED = 64 * 2**20  # bytes of arrays in memory that may travel with a job
BESIDE = 128 * 2**20  # memory of a task beside its buffers: the interpreter and numpy
Task = TypeVar("Task")


def absolute(url: str) -> str:
    """A path that means the same in another process's folder."""
    return url if files.is_remote(url) else os.path.abspath(files.local(url))


def engine(name: str) -> Map | None:
    """The `map` of an engine, None for this process's own threads."""
    if name == "local":
        return None
    if name != "ray" and not name.startswith("ray://"):
        raise UsageError(f"unknown engine {name!r}; the engines are local, ray and ray://HOST:PORT")

    def on_cluster(do: Callable[[Job], Receipt], jobs: Iterable[Job]) -> Iterator[Receipt]:
        if not isinstance(do, Work):
            raise TypeError("a cluster runs the jobs of a plan")
        jobs = list(jobs)
        for job in jobs:
            _check_shipped(job)
        with cluster(name) as ray:
            probe(ray, _sources(jobs), list(do.sink.paths().values()))
            memory = do.memory.window + do.memory.whole + BESIDE
            for job, result in apply(ray, _job, do, jobs, memory):
                if isinstance(result, CkptError):
                    raise result
                yield cast(Receipt, result)._replace(job=job)

    return on_cluster


def _job(do: Work, job: Job) -> Receipt:
    """Run one job on a worker; only the result is sent back, since the caller has the job."""
    return do(job)._replace(job=job._replace(pieces=()))


# --- Ray --------------------------------------------------------------------------------------------------------


@contextmanager
def cluster(name: str) -> Iterator[Any]:
    """Connect to the cluster unless this process is connected; restore that state at the end."""
    try:
        import ray
    except ImportError as e:
        raise MissingExtra(f"engine='ray' needs a package: {e}. Try: pip install 'ckptconv[ray]'") from e
    mine = not ray.is_initialized()
    if mine:
        _knock(name)
        try:
            ray.init(address="auto" if name == "ray" else name, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise _silent(str(e).split("\n")[0]) from e
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _silent(why: str) -> UsageError:
    return UsageError(
        f"no Ray cluster answers ({why}). Start one with `ray start --head`, or say where it is: "
        "engine='ray://HOST:PORT'"
    )


def _knock(name: str) -> None:
    """Refuse an address at which nothing listens: Ray would retry for minutes."""
    try:
        from ray._private.utils import read_ray_address  # what `ray start` left; Ray has no public way to ask
    except ImportError:
        return
    address = name if name != "ray" else os.environ.get("RAY_ADDRESS") or read_ray_address() or ""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError) as e:
        raise _silent(f"{address}: {e}") from e


def apply(
    ray: Any, function: Callable[[Any, Task], Any], shared: Any, tasks: Iterable[Task], memory: int
) -> Iterator[tuple[Task, Any]]:
    """Run function(shared, task) for every task; yields results, and the CkptErrors of tasks, as they come.

    Twice as many tasks are submitted as run, so that no worker waits; none starts where `memory` is not to be had.
    """
    remote = ray.remote(num_cpus=1, memory=memory, max_retries=RETRIES, retry_exceptions=[StorageError])(function)
    handle = ray.put(shared)
    limit = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    flying: dict[Any, Task] = {}
    try:
        for task in tasks:
            flying[remote.remote(handle, task)] = task
            if len(flying) >= limit:
                yield from _landed(ray, flying)
        while flying:
            yield from _landed(ray, flying)
    finally:
        for reference in flying:
            ray.cancel(reference)


def _landed(ray: Any, flying: dict[Any, Task]) -> Iterator[tuple[Task, Any]]:
    done, _ = ray.wait(list(flying), num_returns=1)
    for reference in done:
        task = flying.pop(reference)
        try:
            yield task, ray.get(reference)
        except ray.exceptions.RayTaskError as e:
            cause = e.cause
            yield task, cause if isinstance(cause, CkptError) else CkptError(f"a worker failed: {_first(cause)}")
        except ray.exceptions.RayError as e:
            yield task, CkptError(f"the cluster lost a task {RETRIES + 1} times: {_first(e)}")


def _first(e: object) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no reason given'}"


# --- before the first task --------------------------------------------------------------------------------------


def _check_shipped(job: Job) -> None:
    arrays = {id(p.data): p.data for piece in job.pieces for p in piece.parts if isinstance(p.data, Held)}
    size = sum(getattr(h.array, "nbytes", 0) or len(h.array) for h in arrays.values())
    if size > SHIPPED:
        raise UsageError(
            f"{size} bytes of arrays in memory would travel to the workers with one job; save them to a file that "
            "the workers reach, or use engine='local'", tensor=job.pieces[0].tensor,
        )  # fmt: skip


def _sources(jobs: Iterable[Job]) -> dict[str, int]:
    """All files that the jobs read, with their sizes."""
    urls = {
        p.data.url: None
        for job in jobs
        for piece in job.pieces
        for p in piece.parts
        if isinstance(p.data, (Span, Coded))
    }
    return {url: status.size for url in urls if (status := files.stat(url))}


def probe(ray: Any, reads: dict[str, int], writes: Sequence[str]) -> None:
    """Ask every node whether it has ckptconv and reaches all paths; UsageError lists what does not."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote = ray.remote(num_cpus=0, max_retries=1)(reach)
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
    asked = {
        remote.options(scheduling_strategy=strategy(n["NodeID"], soft=False)).remote(reads, writes): n for n in nodes
    }
    problems = []
    for reference, node in asked.items():
        where = node.get("NodeManagerHostname") or node["NodeID"][:8]
        try:
            theirs, missing = ray.get(reference, timeout=PATIENCE)
        except ray.exceptions.RayError as e:
            problems.append(f"{where}: cannot run ckptconv ({_first(getattr(e, 'cause', None) or e)})")
            continue
        if theirs != version():
            problems.append(f"{where}: has ckptconv {theirs}, not {version()}")
        problems += [f"{where}: {what}" for what in missing]
    if problems:
        raise UsageError(
            "the cluster's workers cannot do this; source, destination and (for a remote destination) TMPDIR must lie "
            f"on storage that all of them reach by the same path:\n{listing(problems)}"
        )


def reach(reads: dict[str, int], writes: Sequence[str]) -> tuple[str, list[str]]:
    """On a worker: our version, and the files that it does not see as the caller does."""
    missing = []
    for url, size in reads.items():
        status = files.stat(url)
        if status is None:
            missing.append(f"cannot read {url}")
        elif status.size != size:
            missing.append(f"sees another file at {url}: {status.size} bytes, not {size}")
    missing += [f"cannot write {path}" for path in writes if not os.access(path, os.W_OK)]
    return version(), missing


__all__ = ["absolute", "apply", "cluster", "engine", "probe", "reach"]
