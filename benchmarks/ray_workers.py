"""A transform-bound conversion (transposed tensors, cast to bfloat16) on one and on two Ray workers.

    python benchmarks/ray_workers.py [--tensors 24] [--rounds 3]

Each cluster is warmed up by a small conversion, so that the start of its processes does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import ray

import ckptconv


def run(source: Path, out: Path, engine: str, jobs: int | None = None) -> float:
    resources = {"engine": engine, "jobs": jobs}
    target = {"force": True, "sync": False, "verify": "none"}
    began = time.perf_counter()
    ckptconv.convert(source, out, dtype="bfloat16", **target, **resources)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensors", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(ckptconv.__file__).parents[1])
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    home = Path(tempfile.mkdtemp())
    value = np.asfortranarray(np.random.default_rng(0).standard_normal((2048, 2048)))
    (home / "in").mkdir()
    for i in range(args.tensors):
        np.save(home / "in" / f"w{i}.npy", value)
    (home / "warm").mkdir()
    np.save(home / "warm" / "w.npy", value)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for workers, found in seconds.items():
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
            for _ in range(2):
                run(home / "warm", home / "warm.safetensors", "ray")
            found.append(run(home / "in", home / "out.safetensors", "ray"))
            ray.shutdown()
    rounds = range(args.rounds)
    threads = {n: min(run(home / "in", home / "out.safetensors", "local", n) for _ in rounds) for n in (1, 2)}
    best = {n: min(found) for n, found in seconds.items()}
    print(
        json.dumps(
            {
                "bytes": value.nbytes * args.tensors,
                "ray_seconds": {n: [round(s, 2) for s in found] for n, found in seconds.items()},
                "speedup": round(best[1] / best[2], 2),
                "thread_seconds": {n: round(s, 2) for n, s in threads.items()},
            }
        )
    )
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
