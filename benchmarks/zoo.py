"""1,000 small checkpoints in ten formats: one `zoo` run against one process per file, and what a resume costs.

    python benchmarks/zoo.py [--count 1000] [--baseline 50] [--jobs 2]

Every output is read back and compared with what was written.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ckptconv
from ckptconv.bulk.planning import read_ledger

FORMATS = {
    "tf": "run-{}/model.ckpt", "safetensors": "model-{}.safetensors", "hf": "sharded-{}/model.safetensors",
    "torch": "model-{}.pt", "npz": "model-{}.npz", "flax": "model-{}.msgpack", "npy": "arrays-{}",
    "hdf5": "data-{}.hdf5", "keras3": "model-{}.weights.h5", "keras": "old-{}.h5",
}  # fmt: skip


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Twelve tensors of a small network, 140 kB."""
    r = np.random.default_rng(seed)
    out = {}
    for i in range(6):
        out[f"dense_{i}/kernel"] = r.standard_normal((64, 88), dtype="f4")
        out[f"dense_{i}/bias"] = r.standard_normal(88, dtype="f4")
    return out


def make(folder: Path, count: int) -> dict[str, int]:
    """Write the zoo; returns the seed of each source."""
    seeds = {}
    for n in range(count):
        name = list(FORMATS)[n % len(FORMATS)]
        path = folder / name / f"run{n // 100}" / FORMATS[name].format(n)
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"max_shard_size": 60_000} if name == "hf" else {}
        values = tensors(n)
        if name == "keras3":  # knows its weights by the paths of objects
            paths = (k.replace("/kernel", "/vars/0").replace("/bias", "/vars/1") for k in values)
            values = {f"layers/{p}": v for p, v in zip(paths, values.values(), strict=True)}
        ckptconv.save(values, path, format="safetensors" if name == "hf" else name, sync=False, **options)
        seeds[str(path)] = n
    return seeds


def run(*args: object) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ckptconv", *map(str, args)], check=True, capture_output=True)
    return time.perf_counter() - began


def check(folder: Path) -> int:
    """Compare every output's values with those that were made."""
    right = 0
    for entry in read_ledger(str(folder)).values():
        seed = int("".join(c for c in entry.at.rpartition("/")[2].split(".s")[0] if c.isdigit()) or
                   "".join(c for c in entry.at.split("/")[-2] if c.isdigit()))  # fmt: skip
        want = sorted(a.tobytes() for a in tensors(seed).values())
        got = sorted(t.numpy().tobytes() for t in ckptconv.open(folder / entry.at).values())
        right += want == got
    return right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--baseline", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    home = args.keep or Path(tempfile.mkdtemp())
    source, out = home / "in", home / "out"
    seeds = make(source, args.count) if not source.exists() else {}
    shutil.rmtree(out, ignore_errors=True)
    whole = run("zoo", source, "-o", out, "-j", args.jobs)
    again = run("zoo", source, "-o", out, "-j", args.jobs, "--resume")
    some = list(seeds)[: args.baseline]
    single = sum(run(path, "-o", home / "one" / f"{i}.safetensors") for i, path in enumerate(some))
    print(
        json.dumps(
            {
                "checkpoints": args.count, "right": check(out), "zoo_seconds": round(whole, 2),
                "per_second": round(args.count / whole, 1), "resume_seconds": round(again, 2),
                "one_process_each_per_second": round(len(some) / single, 1) if some else None,
            }
        )
    )  # fmt: skip
    if not args.keep:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
