"""Run a plan on an existing cluster: jobs become tasks, which return receipts.

    local               threads of this process (run.threads)
    ray                 the Ray cluster of RAY_ADDRESS
    ray://HOST:PORT     a Ray cluster elsewhere, through its client port

Workers need only ckptconv and the same paths: a task opens its files by name, writes its ranges, and ends. Any range
may be written twice, so a lost worker costs only its tasks. A task groups neighbouring jobs, so that the caller's work
does not grow with the bytes, and each processor still gets several tasks. Before the first task, each node is asked
whether it reaches the paths. We leave nothing on the cluster.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import isqrt
from typing import Any, TypeVar, cast

from ..errors import CkptError, MissingExtra, StorageError, UsageError
from ..messages import listing, version
from ..moves.part import Coded, Held, Span
from ..moves.read import is_fetched_whole
from ..storage import files
from .plan import Job, Receipt
from .run import Map, Work, light

KNOCK = 10.0  # seconds a cluster may take to accept a connection
PATIENCE = 120.0  # seconds a worker may take to answer the first question, which may start it
SHIPPED = 64 * 2**20  # bytes of arrays in memory that may travel with a job
BESIDE = 128 * 2**20  # memory of a task besides its buffers: the interpreter and numpy
TASKS = 8  # per processor: more cost the caller time, fewer leave processors idle at the end
MEANWHILE = 128 * 2**10  # bytes that a worker writes (200 MB/s) while the caller submits a task, in 1/1500 s
MAX_TASK = 256 * 2**20  # bytes that a task writes, and repeats if its worker is lost
CENSUS = 5.0  # seconds between counts of the processors
RETRIES = 3
PAUSE = 0.1  # seconds that the caller waits for packs to end before it submits others
TOGETHER, SMALL = 8, 64 * 2**20  # most tasks and bytes of a pack, which is repeated if it is lost
Task = TypeVar("Task")


def absolute(url: str) -> str:
    """Make a path absolute, for processes with another working folder."""
    return url if files.is_remote(url) else os.path.abspath(files.local(url))


def engine(name: str) -> Map:
    """Return a `map` that runs jobs on a Ray cluster, `ray` or `ray://HOST:PORT`."""
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
            tasks = batches(jobs, processors(ray))
            for some, result in apply(ray, _run, do, tasks, memory, size=_bytes):
                if isinstance(result, CkptError):
                    raise result
                for job, receipt in zip(some, cast(Sequence[Receipt], result), strict=True):
                    yield receipt._replace(job=job)

    return on_cluster


def _run(do: Work, jobs: Sequence[Job]) -> list[Receipt]:
    """Run some jobs on a worker; only the results are sent back, since the caller has the jobs."""
    with closing(do):  # the jobs open each file once
        return [light(do.run(job)) for job in jobs]


def _bytes(jobs: Sequence[Job]) -> int:
    return sum(job.size for job in jobs)


def batches(jobs: Sequence[Job], workers: int) -> Iterator[Sequence[Job]]:
    """Group jobs, given in the order of the output, into tasks for `workers` workers.

    With many workers, tasks are sized so that submitting all of them takes the caller as long as one takes a worker:
    with more tasks the caller would be slower, with fewer the workers. If a remote tensor is fetched as a whole, the
    jobs that read parts of it form one task, so that it is fetched once.
    """
    whole = _bytes(jobs)
    size = min(MAX_TASK, max(whole // (TASKS * max(1, workers)), isqrt(MEANWHILE * whole)))
    return _groups(jobs, lambda job: job.size, size, key=_fetched)


def _fetched(job: Job) -> str:
    """Return the name of the remote tensor that this job fetches as a whole, or ''."""
    return next((p.tensor for p in job.pieces if is_fetched_whole(p)), "")


def _groups(
    items: Iterable[Task], size: Callable[[Task], int], limit: int, count: int = 0,
    key: Callable[[Task], str] = lambda _: "",
) -> Iterator[list[Task]]:  # fmt: skip
    """Group neighbours: at most `limit` bytes and, unless it is 0, `count` items; more if they share a key."""
    some, total, before = list[Task](), 0, ""
    for item in items:
        mark = key(item)
        if some and (total + size(item) > limit or len(some) == count) and not (mark and mark == before):
            yield some
            some, total = [], 0
        some.append(item)
        total, before = total + size(item), mark
    if some:
        yield some


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
        _knock(address := _address(name))
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **_apart(ray, address))
        except (ConnectionError, RuntimeError, ValueError) as e:
            raise _silent(str(e).split("\n")[0]) from e
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _apart(ray: Any, name: str) -> dict[str, Any]:
    """Return options that keep workers from importing modules from our working folder, which may be untrusted.

    Ray adds that folder unless a job brings its own. Jobs of the client (ray://) do not have it.
    """
    if name.startswith("ray://"):
        return {}
    config = ray.job_config.JobConfig()
    config._runtime_env_has_working_dir = lambda: True
    return {"job_config": config}


def _silent(why: str) -> UsageError:
    return UsageError(
        f"no Ray cluster answers ({why}). Start one with `ray start --head`, and say where it is: "
        "engine='ray://HOST:PORT', or RAY_ADDRESS=127.0.0.1:6379"
    )


def _address(name: str) -> str:
    """Return the address of the cluster; UsageError if the user does not give one.

    Ray would otherwise trust a file or a process of another user of the machine, who would get our work and whose
    answers are unpickled here.
    """
    address = name if name != "ray" else os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto"):
        raise _silent("its address is not given")
    return address


def _knock(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError) as e:
        raise _silent(f"{address}: {e}") from e


def processors(ray: Any) -> int:
    """Count the processors of the cluster, which may grow and shrink while a plan runs."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def apply(
    ray: Any,
    function: Callable[[Any, Task], Any],
    shared: Any,
    tasks: Iterable[Task],
    memory: int,
    *,
    size: Callable[[Task], int],
) -> Iterator[tuple[Task, Any]]:
    """Run function(shared, task) for every task; yield results and CkptErrors as they come.

    Small neighbours are submitted as one pack. Twice as many packs are in flight as there are processors; none starts
    on a node without `memory` free bytes. A pack that fails is split into its tasks, so that a task fails alone.

    size: bytes that a task moves.
    """

    def run(pack: Sequence[Task]) -> list[Any]:  # `shared` travels with it, once to each worker
        return [function(shared, task) for task in pack]

    options = {"max_retries": RETRIES, "retry_exceptions": [StorageError], "enable_task_events": False}
    submit = ray.remote(num_cpus=1, memory=memory, **options)(run).remote
    flying: dict[Any, list[Task]] = {}  # packs by reference
    waiting, again = _groups(tasks, size, SMALL, TOGETHER), deque[list[Task]]()
    workers, asked = processors(ray), time.monotonic()
    try:
        while True:
            if time.monotonic() - asked > CENSUS:
                workers, asked = processors(ray), time.monotonic()
            while len(flying) < 2 * workers and (pack := again.popleft() if again else next(waiting, None)):
                flying[submit(pack)] = pack
            if not flying:
                return
            # with 8,000 packs in flight each question takes 15 ms
            share = max(1, len(flying) // 16)
            done, _ = ray.wait(list(flying), num_returns=share, timeout=PAUSE, fetch_local=False)
            for reference in done:
                pack = flying.pop(reference)
                result = _result(ray, reference)
                if not isinstance(result, CkptError):
                    yield from zip(pack, result, strict=True)
                elif len(pack) == 1:
                    yield pack[0], result
                else:
                    again.extend([task] for task in pack)
    finally:
        for reference in flying:
            ray.cancel(reference)


class TaskLost(CkptError):
    """A task ended without a result; it may have written some of its ranges."""


def _result(ray: Any, reference: Any) -> Any:
    """Return the results of a pack, or the error with which it ended."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as e:
        cause = e.cause
        return cause if isinstance(cause, CkptError) else TaskLost(f"a worker failed: {first_line(cause)}")
    except ray.exceptions.RayError as e:
        return TaskLost(f"the cluster lost a task {RETRIES + 1} times: {first_line(e)}")


# --- before the first task --------------------------------------------------------------------------------------


def _check_shipped(job: Job) -> None:
    arrays = {id(p.data): p.data for piece in job.pieces for p in piece.parts if isinstance(p.data, Held)}
    size = sum(h.array.nbytes for h in arrays.values())
    if size > SHIPPED:
        raise UsageError(
            f"{size} bytes of arrays in memory would travel to the workers with one job; save them to a file that "
            "the workers reach, or use engine='local'", tensor=job.pieces[0].tensor,
        )  # fmt: skip


def _sources(jobs: Iterable[Job]) -> dict[str, int]:
    """Return all files that the jobs read, with their sizes."""
    urls = {
        p.data.url: None
        for job in jobs
        for piece in job.pieces
        for p in piece.parts
        if isinstance(p.data, (Span, Coded))
    }
    return {url: status.size for url in urls if (status := files.stat(url))}


def probe(ray: Any, reads: dict[str, int], writes: Sequence[str]) -> None:
    """Ask every node whether it has ckptconv and reaches all paths; UsageError lists the failures."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote = ray.remote(num_cpus=0, max_retries=1)(reach)
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU")]
    asked = {
        remote.options(scheduling_strategy=strategy(n["NodeID"], soft=False)).remote(reads, writes): n for n in nodes
    }
    problems = list[str]()
    for reference, node in asked.items():
        where = node.get("NodeManagerHostname") or node["NodeID"][:8]
        try:
            theirs, missing = ray.get(reference, timeout=PATIENCE)
        except ray.exceptions.RayError as e:
            problems.append(f"{where}: cannot run ckptconv ({first_line(getattr(e, 'cause', None) or e)})")
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
    """Return, on a worker, our version and the files that look different from there."""
    missing = []
    for url, size in reads.items():
        status = files.stat(url)
        if status is None:
            missing.append(f"cannot read {url}")
        elif status.size != size:
            missing.append(f"sees another file at {url}: {status.size} bytes, not {size}")
    missing += [f"cannot write {path}" for path in writes if not os.access(path, os.W_OK)]
    return version(), missing


def first_line(e: object) -> str:
    """Format an error as one line."""
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no reason given'}"
