"""How cost grows: the figures of docs/scale.md.

Prints rows of its tables, JSON for what stands in its sentences, and how long each part took.

    python benchmarks/scale.py [tensors] [bytes] [checkpoints] [formats] [planning] [upload] [workers]

`upload` needs the extra s3 and moto[server], and takes the server of the tests; `workers` needs the extra ray.
SHARE=0.01 in the environment takes a hundredth of what is counted, to try whether everything runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import ckptconv
from ckptconv.bulk.planning import read_ledger

SHARE = float(os.environ.get("SHARE", "1"))


def of(count: int) -> int:
    """How many to take of what is counted."""
    return max(1, round(count * SHARE))


def row(*cells: str) -> None:
    """Print a row of a table of the docs."""
    print(f"| {' | '.join(cells)} |", flush=True)


CHILD = """
import re, sys, time
import ckptconv
source, out = sys.argv[1:]
began = time.perf_counter()
ckptconv.dry_run(source, out)
planned = time.perf_counter()
ckptconv.convert(source, out, force=True, sync=False, jobs=2)
done = time.perf_counter()
rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(planned - began, done - planned, rss)
"""


def tensors(home: Path) -> None:
    for count in map(of, (1_000, 10_000, 100_000)):
        source = home / "many.safetensors"
        values = {f"block_{i // 10}/layer_{i % 10}/kernel": np.zeros(4, "f4") for i in range(count)}
        ckptconv.save(values, source, force=True, sync=False)
        npz, tf = (ask(CHILD, source, home / "out" / target) for target in ("many.npz", "many.ckpt"))
        row(f"{count:,}", *(f"{s:.2g} s" for s in (*npz[:2], tf[1])), f"{max(npz[2], tf[2]):.0f} MB")


def size(home: Path) -> None:
    """Dense copies; and transposed, which moves every element."""
    block = np.random.default_rng(0).standard_normal((4096, 4096), dtype="f4")
    for count in map(of, (16, 64)):
        for how, array in (("copied", block), ("transposed", np.asfortranarray(block))):
            source = home / how
            source.mkdir(exist_ok=True)
            for i in range(count):
                np.save(source / f"w{i}.npy", array)
            _, seconds, peak = ask(CHILD, source, home / "out.safetensors")
            gb = count * block.nbytes / 1e9
            rate = f"{gb / max(0.01, seconds):.2g} GB/s"
            row(f"{gb:.1f} GB", how, f"{seconds:.2g} s", rate, f"{peak:.0f} MB")
            shutil.rmtree(source)


def checkpoints(home: Path) -> None:
    values = {f"dense_{i}/kernel": np.ones((64, 88), "f4") for i in range(12)}
    for count in map(of, (100, 1_000, 5_000)):
        source, out = home / "zoo", home / "zoo-out"
        for n in range(count):
            path = source / f"run{n // 100}" / f"m{n}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                ckptconv.save(values, path, sync=False)
        rates, again = list[str](), 0.0
        for jobs in (1, 2):
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            done = ckptconv.zoo([str(source)], str(out), jobs=jobs)
            rates.append(f"{done.done / (time.perf_counter() - began):.0f} per second")
            began = time.perf_counter()
            ckptconv.zoo([str(source)], str(out), resume=True, jobs=jobs)
            again = time.perf_counter() - began
        row(f"{count:,}", *rates, f"{again:.2f} s")


FORMATS = {
    "tf": "run-{}/model.ckpt", "safetensors": "model-{}.safetensors", "hf": "sharded-{}/model.safetensors",
    "torch": "model-{}.pt", "npz": "model-{}.npz", "flax": "model-{}.msgpack", "npy": "arrays-{}",
    "hdf5": "data-{}.hdf5", "keras3": "model-{}.weights.h5", "keras": "old-{}.h5",
}  # fmt: skip


def network(seed: int, kernel: str = "dense_{}/kernel", bias: str = "dense_{}/bias") -> dict[str, np.ndarray]:
    """Twelve tensors of a small network, 140 kB."""
    r = np.random.default_rng(seed)
    out = {}
    for i in range(6):
        out[kernel.format(i)] = r.standard_normal((64, 88), dtype="f4")
        out[bias.format(i)] = r.standard_normal(88, dtype="f4")
    return out


def write(path: Path, name: str, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"max_shard_size": 60_000} if name == "hf" else {}
    # Keras 3 knows its weights by the paths of objects
    words = ("layers/dense_{}/vars/0", "layers/dense_{}/vars/1") if name == "keras3" else ()
    values = network(seed, *words)
    ckptconv.save(values, path, to="safetensors" if name == "hf" else name, sync=False, **options)


def formats(home: Path) -> None:
    """Small checkpoints in ten formats: one `zoo` run, a resume, and one process for each file; all are read back."""
    source, out, seeds = home / "in", home / "out", dict[str, int]()
    for n in range(of(1000)):
        name = list(FORMATS)[n % len(FORMATS)]
        place = f"{name}/run{n // 100}/{FORMATS[name].format(n)}"
        seeds[place] = n
        write(source / place, name, n)

    def run(*words: object) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ckptconv", *map(str, words)], check=True, capture_output=True)
        return time.perf_counter() - began

    whole = run("zoo", source, "-o", out, "-j", 2)
    again = run("zoo", source, "-o", out, "-j", 2, "--resume")
    some = list(seeds)[: of(50)]
    single = sum(run(source / place, "-o", home / "one" / f"{i}.safetensors") for i, place in enumerate(some))
    right = 0
    for entry in read_ledger(str(out)).values():
        seed = next(n for place, n in seeds.items() if place.partition(".")[0] == entry.at.partition(".")[0])
        got = (t.numpy().tobytes() for t in ckptconv.open(out / entry.at).values())
        right += sorted(got) == sorted(a.tobytes() for a in network(seed).values())
    figures = {
        "checkpoints": len(seeds), "right": right, "per_second": round(len(seeds) / whole, 1),
        "resume_seconds": round(again, 2), "one_process_each_per_second": round(len(some) / single, 1),
    }  # fmt: skip
    print(json.dumps(figures), flush=True)


def tiny(home: Path, count: int) -> Path:
    """A folder of so many checkpoints of 136 bytes, 500 in each folder."""
    ckptconv.save({"w": np.zeros(2, "f4")}, home / "one.safetensors", sync=False, force=True)
    data, source = (home / "one.safetensors").read_bytes(), home / "many"
    for n in range(count):
        path = source / f"run{n // 500}" / f"m{n}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return source


PLAN = """
import re, sys, time
from ckptconv.bulk.run import zoo_plan
source, out, resume = sys.argv[1:]
began = time.perf_counter()
found = zoo_plan(source, out, to="npz", resume=bool(resume))
took = time.perf_counter() - began
rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(len(found), took, rss)
"""


RESUME = """
import re, sys, time
import ckptconv
if __name__ == "__main__":
    source, out, resume = sys.argv[1:]
    began = time.perf_counter()
    done = ckptconv.zoo([source], out, to="npz", resume=bool(resume))
    took = time.perf_counter() - began
    rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
    print(done.done, done.skipped, took, rss)
"""


def planning(home: Path) -> None:
    """Many tiny checkpoints: planned, and up to 100,000 also converted and resumed with nothing to do."""
    for count in map(of, (10_000, 100_000, 300_000)):
        source = tiny(home, count)
        _, *planned = ask(PLAN, source, home / "none", "")
        resumed = list[float]()
        if count <= of(100_000):
            done, _, seconds, mb = ask(RESUME, source, home / "all", "")
            print(json.dumps({"converted": done, "seconds": round(seconds, 1), "peak_mb": mb}), flush=True)
            _, skipped, *resumed = ask(RESUME, source, home / "all", "yes")
            assert skipped == done == count
            shutil.rmtree(home / "all")
        cells = [cell for s, mb in filter(None, (planned, resumed)) for cell in (f"{s:.1f} s", f"{mb:.0f} MB")]
        row(f"{count:,}", *cells, *[""] * (4 - len(cells)))
        shutil.rmtree(source)
    rows = of(1_000_000)
    source = tiny(home, 1000)
    with (home / "list.csv").open("w") as f:
        f.write("source,destination\n")
        f.writelines(f"many/run{n % 1000 // 500}/m{n % 1000}.safetensors,{n // 500}/{n}.npz\n" for n in range(rows))
    _, seconds, mb = ask(PLAN, home / "list.csv", home / "none", "")
    row(f"{rows:,} rows of a manifest", f"{seconds:.1f} s", f"{mb:.0f} MB", "", "")


def ask(code: str, *words: object, env: Mapping[str, str] = os.environ) -> list[float]:
    """The numbers that a process of its own prints."""
    run = [sys.executable, "-c", code, *map(str, words)]
    return [*map(float, subprocess.run(run, env=env, check=True, capture_output=True).stdout.split())]


UPLOAD = """
import re, sys, time
import ckptconv
began = time.perf_counter()
ckptconv.convert(sys.argv[1], sys.argv[2], max_memory="64MB")
took = time.perf_counter() - began
rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(took, rss)
"""


def upload(home: Path) -> None:
    """2 GB to S3 within 64 MB; the server keeps all of it in memory, so the time is the server's."""
    server = Path(__file__).parents[1] / "tests" / "storage" / "s3_server.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, server], **pipes) as s3:
        port = int(s3.stdout.readline())
        env = os.environ | {
            "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "TMPDIR": str(home / "temporary"),
        }  # fmt: skip
        (home / "temporary").mkdir()
        values = {f"layer_{i}/kernel": np.zeros((4096, 1024), "f4") for i in range(of(120))}
        ckptconv.save(values, home / "large.safetensors", sync=False)
        for name in ("large.safetensors", "large.npz", "large.ckpt"):
            _, rss = ask(UPLOAD, home / "large.safetensors", f"s3://zoo/{name}", env=env)
            row(name, f"{rss:.0f} MB")
        s3.kill()


def workers(home: Path) -> None:
    """Transposed tensors that are cast to bfloat16, on one and on two workers of Ray, and on as many threads.

    Small conversions come first, so that the start of a cluster's processes does not count.
    """
    import ray

    os.environ["PYTHONPATH"] = str(Path(ckptconv.__file__).parents[1])
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    value = np.asfortranarray(np.random.default_rng(0).standard_normal((2048, 2048)))
    for name, count in (("in", of(24)), ("warm", 1)):
        (home / name).mkdir()
        for i in range(count):
            np.save(home / name / f"w{i}.npy", value)

    def run(source: str, engine: str, jobs: int | None = None) -> float:
        how = {"engine": engine, "jobs": jobs, "dtype": "bfloat16", "force": True, "sync": False, "verify": False}
        began = time.perf_counter()
        ckptconv.convert(home / source, home / f"{source}.safetensors", **how)
        return time.perf_counter() - began

    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for count, took in seconds.items():
            ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
            run("warm", "ray")
            run("warm", "ray")
            took.append(run("in", "ray"))
            ray.shutdown()
    for count, took in seconds.items():
        threads = min(run("in", "local", count) for _ in range(3))
        row(f"{count} workers", f"{min(took):.2f} s", f"as many threads: {threads:.2f} s")


PARTS: dict[str, Callable[[Path], None]] = {
    "tensors": tensors, "bytes": size, "checkpoints": checkpoints, "formats": formats, "planning": planning,
    "upload": upload, "workers": workers,
}  # fmt: skip

if __name__ == "__main__":
    for part in sys.argv[1:] or list(PARTS):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            PARTS[part](Path(folder))
            print(f"# {part}: {time.monotonic() - began:.0f} s", flush=True)
