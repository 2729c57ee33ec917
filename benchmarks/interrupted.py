"""Zoos that are killed, and zoos far away: are the outputs the same, and what does latency cost? Used by scale.py.

python benchmarks/interrupted.py [parents] [workers] [server] [latency]      prints one JSON object a line

parents   `ckptconv zoo` is killed 20 times in full work, and resumed
workers   its workers are, 20 times
server    the S3 server of the sources goes away in the middle of a zoo, and comes back
latency   a zoo of 1,000 from S3 to S3, without and with 30 ms for each request

The last two need the extra s3 and moto[server], and take the server and the line of the tests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from parts import of, run_parts

import ckptconv
from ckptconv.bulk.ledger import NAME, LedgerEntry

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS / "support"))
TIMES = of(20)
FORMATS = ("npz", "safetensors", "pt", "h5", "msgpack")


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def values(seed: int, count: int = 6, size: int = 64) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    return {f"dense_{i}/kernel": r.standard_normal((size, size + i)).astype("f4") for i in range(count)}


def fill(folder: Path, count: int) -> Path:
    for n in range(count):
        ckptconv.save(values(n), folder / f"run{n % 9}" / f"m{n}.{FORMATS[n % len(FORMATS)]}", sync=False)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """The digest of each output, and whatever else lies there."""
    return {
        str(p.relative_to(folder)): blake2b(p.read_bytes()).digest()
        for p in folder.rglob("*")
        if p.is_file() and p.name != NAME
    }


def zoo(source: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckptconv", "zoo", source, "-o", out, "--resume", "-j", "2", "-q"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(n) for n in f.read().split()]


def parent(process: subprocess.Popen[bytes]) -> bool:
    process.send_signal(signal.SIGKILL)
    return True


def worker(process: subprocess.Popen[bytes]) -> bool:
    """Kill one of the processes that the server of forks has made; False if there is none."""
    try:
        found = [w for server in children(process.pid) for w in children(server)]
        os.kill(random.choice(found), signal.SIGKILL)
    except (OSError, IndexError):
        return False
    return True


def killed(home: Path, who: str, kill: Any) -> None:
    random.seed(0)
    source = fill(home / "in", of(600))
    assert zoo(source, home / "whole").wait() == 0
    whole, kills, runs, rounds, same = tree(home / "whole"), 0, 0, 0, 0
    began = time.perf_counter()
    while kills < TIMES:
        shutil.rmtree(home / "out", ignore_errors=True)
        code: int | None = 1
        while code != 0:
            process, runs = zoo(source, home / "out"), runs + 1
            while (code := process.poll()) is None:
                time.sleep(random.uniform(0.1, 0.8))
                kills += kills < TIMES and process.poll() is None and kill(process)
        rounds, same = rounds + 1, same + (tree(home / "out") == whole)
    took = time.perf_counter() - began
    say(killed=who, times=kills, runs=runs, zoos=rounds, identical=same, of=len(whole), seconds=round(took, 1))


def parents(home: Path) -> None:
    killed(home, "parent", parent)


def workers(home: Path) -> None:
    killed(home, "worker", worker)


@contextmanager
def s3() -> Iterator[Any]:
    """A line to an S3 server of this machine, to which s3:// leads."""
    from line import Line

    code = [sys.executable, TESTS / "storage" / "s3_server.py"]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        line = Line(int(server.stdout.readline()))
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}",
        }  # fmt: skip
        yield line
        server.kill()


def put(folder: str, count: int) -> None:
    import fsspec

    fs = fsspec.filesystem("s3")
    with tempfile.TemporaryDirectory() as home:
        made = [ckptconv.save(values(n, 3, 24), Path(home) / f"{n}.npz", sync=False) for n in range(20)]
        data = [Path(home, f"{n}.npz").read_bytes() for n in range(len(made))]
    fs.pipe({f"{folder}/run{n % 9}/m{n}.npz": data[n % len(data)] for n in range(count)})


def server(home: Path) -> None:
    os.environ["CKPTCONV_TIMEOUT"] = "2"
    with s3() as line:
        put("zoo/cut", 300)
        ckptconv.zoo(["s3://zoo/cut"], str(home / "whole"), jobs=2)
        ended: list[str] = []

        def each(entry: LedgerEntry) -> None:
            ended.append(entry.state)
            if len(ended) == 50:
                line.cut()
            elif ended[-1] == "failed" and ended.count("failed") == 1:
                line.mend()

        first = ckptconv.zoo(["s3://zoo/cut"], str(home / "out"), jobs=2, each=each)
        rest = ckptconv.zoo(["s3://zoo/cut"], str(home / "out"), jobs=2, resume=True)
    del os.environ["CKPTCONV_TIMEOUT"]
    same = tree(home / "out") == tree(home / "whole")
    say(server_killed_after=50, done=first.done, failed=len(first.failed), resumed=rest.done, identical=same)


def latency(home: Path, count: int = of(1000), jobs: int = 32) -> None:
    took = dict[float, float]()
    with s3() as line:
        put("zoo/many", count)
        for delay in (0.0, 0.03):
            line.reset()
            line.delay = delay
            began = time.perf_counter()
            book = str(home / f"ledger{delay}.jsonl")
            done = ckptconv.zoo(["s3://zoo/many"], f"s3://zoo/out{delay}", ledger=book, jobs=jobs)
            took[delay] = time.perf_counter() - began
            say(remote=done.done, failed=len(done.failed), delay_ms=round(1000 * delay), jobs=jobs,
                seconds=round(took[delay], 1), requests_each=round(line.requests / count, 1),
                connections=line.most, times=round(took[delay] / took[0.0], 2))  # fmt: skip


def main() -> None:
    every = {"parents": parents, "workers": workers, "server": server, "latency": latency}
    run_parts(every)


if __name__ == "__main__":
    main()
