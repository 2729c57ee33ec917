"""How cost grows, and what is left after kills: all figures of docs/scale.md. Prints one JSON object a line.

python benchmarks/scale.py [tensors] [bytes] [checkpoints] [planning] [resume] [upload]
                           [parents] [workers] [server] [latency] [cluster]

`upload`, `server` and `latency` need the extra s3 and moto[server], and take the server of the tests; `cluster` needs
the extra ray. interrupted.py describes those from `parents` to `latency`, cluster.py the last.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import interrupted
import numpy as np
from parts import run_parts

import ckptconv
from ckptconv import Resources
from ckptconv.bulk import run

CHILD = """
import re, sys, time
began = time.perf_counter()
import ckptconv
from ckptconv import Resources, Target
source, out = sys.argv[1:]
imported = time.perf_counter()
ckptconv.dry_run(source, out)
planned = time.perf_counter()
ckptconv.convert(source, out, target=Target(force=True, sync=False), resources=Resources(jobs=2))
done = time.perf_counter()
rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(imported - began, planned - imported, done - planned, rss)
"""


def convert(source: Path, out: Path) -> dict[str, float]:
    """Plan and convert in a process of its own."""
    said = subprocess.run([sys.executable, "-c", CHILD, source, out], check=True, capture_output=True, text=True).stdout
    start, plan, run, rss = map(float, said.split())
    return {"import_s": round(start, 2), "plan_s": round(plan, 2), "convert_s": round(run, 2), "peak_mb": rss}


def tensors(home: Path) -> None:
    for count in (1_000, 10_000, 100_000):
        source = home / "many.safetensors"
        values = {f"block_{i // 10}/layer_{i % 10}/kernel": np.zeros(4, "f4") for i in range(count)}
        ckptconv.save(values, source, force=True, sync=False)
        for target in ("many.npz", "many.ckpt"):
            print(json.dumps({"tensors": count, "to": target} | convert(source, home / "out" / target)), flush=True)


def size(home: Path) -> None:
    """Dense copies; and transposed, which moves every element."""
    block = np.random.default_rng(0).standard_normal((4096, 4096), dtype="f4")
    for count in (16, 64):
        for how, array in (("copied", block), ("transposed", np.asfortranarray(block))):
            source = home / how
            source.mkdir(exist_ok=True)
            for i in range(count):
                np.save(source / f"w{i}.npy", array)
            cost = convert(source, home / "out.safetensors")
            gb = count * block.nbytes / 1e9
            rate = round(gb / cost["convert_s"], 2)
            print(json.dumps({"gigabytes": round(gb, 1), "how": how, "gb_per_s": rate} | cost), flush=True)
            shutil.rmtree(source)


def checkpoints(home: Path) -> None:
    values = {f"dense_{i}/kernel": np.ones((64, 88), "f4") for i in range(12)}
    for count in (100, 1_000, 5_000):
        source, out = home / "zoo", home / "zoo-out"
        for n in range(count):
            path = source / f"run{n // 100}" / f"m{n}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                ckptconv.save(values, path, sync=False)
        for jobs in (1, 2):
            shutil.rmtree(out, ignore_errors=True)
            began = time.perf_counter()
            done = run.convert([str(source)], str(out), resources=Resources(jobs=jobs))
            first = time.perf_counter() - began
            began = time.perf_counter()
            run.convert([str(source)], str(out), resume=True, resources=Resources(jobs=jobs))
            again = time.perf_counter() - began
            print(
                json.dumps(
                    {
                        "checkpoints": done.done, "workers": jobs, "seconds": round(first, 2),
                        "per_second": round(done.done / first), "resume_s": round(again, 2),
                    }
                ),
                flush=True,
            )  # fmt: skip


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
from ckptconv.bulk.zoo import zoo_plan
source, out, resume = sys.argv[1:]
began = time.perf_counter()
found = zoo_plan(source, out, to="npz", resume=bool(resume))
took = time.perf_counter() - began
rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
print(len(found), took, rss)
"""


def planning(home: Path) -> None:
    """A dry run over many tiny checkpoints: planning without converting."""
    for count in (10_000, 100_000, 300_000):
        source = tiny(home, count)
        said = subprocess.run([sys.executable, "-c", PLAN, source, home / "none", ""], check=True, capture_output=True)
        found, took, rss = map(float, said.stdout.split())
        print(json.dumps({"planned": int(found), "seconds": round(took, 1), "peak_mb": int(rss)}), flush=True)
        shutil.rmtree(source)


RESUME = """
import re, sys, time
from ckptconv import Target
from ckptconv.bulk import run
from ckptconv.bulk.manifest import Settings
if __name__ == "__main__":
    source, out, resume = sys.argv[1:]
    began = time.perf_counter()
    done = run.convert([source], out, Settings(target=Target(format="npz")), resume=bool(resume))
    took = time.perf_counter() - began
    rss = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) // 1024
    print(done.done, done.skipped, took, rss)
"""


def resume(home: Path) -> None:
    """100,000 tiny checkpoints, all converted; then again, with nothing to do."""
    source = tiny(home, 100_000)
    for again in ("", "yes"):
        run = [sys.executable, "-c", RESUME, source, home / "all", again]
        done, skipped, took, rss = map(float, subprocess.run(run, check=True, capture_output=True).stdout.split())
        print(json.dumps({"done": done, "skipped": skipped, "seconds": round(took, 1), "peak_mb": rss}), flush=True)
    shutil.rmtree(source)
    shutil.rmtree(home / "all")


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
        values = {f"layer_{i}/kernel": np.zeros((4096, 1024), "f4") for i in range(120)}
        ckptconv.save(values, home / "large.safetensors", sync=False)
        for name in ("large.safetensors", "large.npz", "large.ckpt"):
            run = [sys.executable, "-c", UPLOAD, home / "large.safetensors", f"s3://zoo/{name}"]
            took, rss = map(float, subprocess.run(run, env=env, check=True, capture_output=True).stdout.split())
            print(
                json.dumps({"uploaded_gb": 2.0, "as": name, "seconds": round(took, 1), "peak_mb": int(rss)}), flush=True
            )
        s3.kill()


def cluster(_: Path) -> None:
    subprocess.run([sys.executable, Path(__file__).with_name("cluster.py")], check=True)


def main() -> None:
    every = {
        "tensors": tensors, "bytes": size, "checkpoints": checkpoints, "planning": planning, "resume": resume,
        "upload": upload, "parents": interrupted.parents, "workers": interrupted.workers, "server": interrupted.server,
        "latency": interrupted.latency, "cluster": cluster,
    }  # fmt: skip
    run_parts(every)


if __name__ == "__main__":
    main()
