"""What a large Ray cluster asks of the caller, simulated on this machine; and nodes that are killed.

    python benchmarks/cluster.py [bare] [tasks] [plan] [kills]       prints rows of docs/scale.md, and JSON

bare    tasks a second of Ray alone: a function that does nothing, submitted in a loop, so many at a time in flight
tasks   tasks a second through the caller, with as many in flight as clusters of so many processors have, submitted one
        by one and in packs; two processes run them, and do nothing. Of bare and tasks: processor time of the caller for
        each, and of all processes of Ray together
plan    500 GB on 100 nodes of 32 processors: its plan, and the caller's part in running it, with tasks that do nothing
kills   a conversion on four nodes, each a Ray node of its own on this machine, of which one is killed and replaced 20
        times in the middle: is the output that of the local engine?

Two processes cannot do what 3,200 do, so what is measured is a lower bound: they share two processors with the caller.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from parts import of, row, run_parts

import ckptconv
from ckptconv.engine import ray as engine
from ckptconv.engine.job import Receipt
from ckptconv.engine.plan import Job
from ckptconv.engine.run import Work

PROCESSORS = (2, 128, 4000)
TASKS = of(20_000)
SETTINGS: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 10**8}


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say how fast TASKS tasks passed, and the processor time of each: the caller's, and of all processes of Ray."""
    import psutil  # which comes with Ray

    def together() -> float:
        me, total = psutil.Process(), 0.0
        for p in (me, *me.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                total += sum(p.cpu_times()[:2])
        return total

    began, caller, every = time.perf_counter(), time.process_time(), together()
    yield
    took, caller, every = time.perf_counter() - began, time.process_time() - caller, together() - every
    row(what, f"{TASKS / took:,.0f}", *(f"{1000 * s / TASKS:.2f} ms" for s in (caller, every)))


@contextmanager
def claimed(processors: int) -> Iterator[None]:
    """The caller believes that the cluster has so many processors."""
    real, engine.processors = engine.processors, lambda _: processors
    try:
        yield
    finally:
        engine.processors = real


def nothing(_: object, task: int) -> int:
    return task


def read_nothing(_: Work, jobs: Sequence[Job]) -> list[Receipt]:
    return [Receipt(job._replace(pieces=()), (), (), {}) for job in jobs]


def bare(_: Path) -> None:
    """The bound of what any caller can do here: no arguments, no bookkeeping, one wait for half of the tasks."""
    ray.init(address="local", num_cpus=2, **SETTINGS)
    remote = ray.remote(num_cpus=1)(lambda: None)
    ray.get([remote.remote() for _ in range(500)])
    for flying in map(of, (256, 8000)):
        with timed(f"Ray alone: {flying:,}"):
            left, started = [remote.remote() for _ in range(flying)], flying
            while left:
                ended, left = ray.wait(left, num_returns=max(1, len(left) // 2), fetch_local=False)
                ray.get(ended)
                more = min(len(ended), TASKS - started)
                left += [remote.remote() for _ in range(more)]
                started += more
    ray.shutdown()


def tasks(_: Path) -> None:
    ray.init(address="local", num_cpus=2, **SETTINGS)
    list(engine.apply(ray, nothing, None, range(500), 10**6))  # starts the processes
    for together, how in ((1, "one by one"), (engine.TOGETHER, "in packs")):
        engine.TOGETHER = together
        for processors in PROCESSORS:
            with claimed(processors), timed(f"{2 * processors:,}, as of {processors:,} processors, {how}"):
                assert sum(1 for _ in engine.apply(ray, nothing, None, range(TASKS), 10**6, size=lambda _: 1)) == TASKS
    ray.shutdown()


def plan(home: Path) -> None:
    """The file is sparse: nothing but its header is read."""
    shape, count = [62_500, 16_000], 125  # of 4 GB
    header: dict[str, Any] = {
        f"layer_{i}": {"dtype": "F32", "shape": shape, "data_offsets": [i * 4 * 10**9, (i + 1) * 4 * 10**9]}
        for i in range(count)
    }
    raw = json.dumps(header).encode()
    with open(home / "large.safetensors", "wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        f.truncate(8 + len(raw) + count * 4 * 10**9)
    began = time.perf_counter()
    jobs = ckptconv.dry_run(home / "large.safetensors", home / "out.npz").jobs
    planned = time.perf_counter() - began
    ray.init(address="local", num_cpus=2, **SETTINGS)
    list(engine.apply(ray, nothing, None, range(500), 10**6))
    with claimed(3200):
        some = list(engine.batches(jobs, 3200))
        began, cpu = time.perf_counter(), time.process_time()
        for batch, result in engine.apply(ray, read_nothing, None, some, 10**6, size=engine._bytes):
            assert len(batch) == len(result)
        took, used = time.perf_counter() - began, time.process_time() - cpu
    say(gigabytes=500, planned_s=round(planned, 1), jobs=len(jobs), tasks=len(some),
        largest_task_mb=round(max(sum(j.size for j in b) for b in some) / 1e6),
        caller_s=round(took, 1), caller_cpu_s=round(used, 1))  # fmt: skip
    ray.shutdown()


def kills(home: Path, times: int = of(20)) -> None:
    from ray.cluster_utils import Cluster

    value = np.asfortranarray(np.random.default_rng(0).standard_normal((2048, 2048)))
    (home / "in").mkdir()
    for i in range(16):
        np.save(home / "in" / f"w{i}.npy", value + i)
    change = {"dtype": "bfloat16"}
    ckptconv.convert(home / "in", home / "here.safetensors", **change)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=10**8) for _ in range(4)]
    ray.init(address=cluster.address, log_to_driver=False)
    killed, equal, runs = 0, 0, 0
    while killed < times:

        def progress(done: int, total: int) -> None:
            nonlocal killed
            if killed < times and killed % 4 <= 4 * done // total:
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
                nodes.append(cluster.add_node(num_cpus=1, object_store_memory=10**8))
                killed += 1

        resources = {"engine": "ray", "max_memory": 32 * 2**20, "progress": progress}
        target = {"force": True, "sync": False}
        ckptconv.convert(home / "in", home / "there.safetensors", **change, **target, **resources)
        runs += 1
        equal += (home / "here.safetensors").read_bytes() == (home / "there.safetensors").read_bytes()
    say(nodes_killed=killed, conversions=runs, identical=equal)
    ray.shutdown()
    cluster.shutdown()


def main() -> None:
    os.environ["PYTHONPATH"] = str(Path(ckptconv.__file__).parents[1])
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    every = {"bare": bare, "tasks": tasks, "plan": plan, "kills": kills}
    run_parts(every)


if __name__ == "__main__":
    main()
