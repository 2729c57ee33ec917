"""ckptconv, cp and the frameworks on the same files, in turn; prints markdown tables.

    python benchmarks/make_files.py /tmp/bench 0.4 1.3 5
    python benchmarks/run.py --files /tmp/bench [--sizes 1.3] [--only TEXT] [--runs 7] [--cold] [--python PEERS_PYTHON]

These machines are noisy, page allocation above all: contenders run in turn (A B C, A B C), the best and the median of
all runs are shown, and ratios are of the best. CPU and peak memory are the process's own (wait4). `cp` leaves its
output in the page cache; ckptconv's is on the disk when it says so, which is what `cp && sync FILE` does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

PEERS = Path(__file__).with_name("peers.py")


class Cost(NamedTuple):
    wall: float
    cpu: float
    peak: float  # MB


class Task(NamedTuple):
    """One conversion: the options of ckptconv after the source, and the peers' ways to do the same."""

    title: str
    source: str  # file name with {} for the size
    target: str
    options: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


TASKS = (
    Task("TensorFlow to safetensors", "{}.ckpt", "out.safetensors", (), ("tf_safetensors",)),
    Task("TensorFlow BERT to PyTorch, -c bert", "{}.ckpt", "out.pt", ("-c", "bert"), ("tf_torch",)),
    Task(".pt to safetensors", "{}.pt", "out.safetensors", (), ("torch_safetensors",)),
    Task("safetensors to .pt", "{}.safetensors", "out.pt", (), ("safetensors_torch",)),
    Task("HDF5 to safetensors", "{}.h5", "out.safetensors", (), ("h5_safetensors",)),
    Task("safetensors into shards of 300 MB", "{}.safetensors", "out/model.safetensors", ("--max-shard-size", "300MB"),
         ("shards",)),
    Task("shards into one safetensors", "{}-shards/model.safetensors.index.json", "out.safetensors", (), ("joined",)),
    Task("safetensors cast to bfloat16", "{}.safetensors", "out.safetensors", ("--dtype", "bfloat16"), ("bfloat16",)),
)  # fmt: skip


def run(command: Sequence[str], *, quiet: bool = True) -> Cost | None:
    """Run to the end; None if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if quiet else None,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": ""},
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    wall = time.perf_counter() - began
    return None if status else Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3)


def forget(paths: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def in_turn(
    contenders: dict[str, Callable[[], Cost | None]], runs: int, between: Callable[[], None]
) -> dict[str, list[Cost]]:
    """Run all contenders again and again, one after the other; those that fail are left out."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, do in contenders.items():
            between()
            cost = do() if name in costs else None
            if cost is not None:
                costs[name].append(cost)
            elif name in costs:
                print(f"{name} failed and is left out", file=sys.stderr)
                del costs[name]
    return costs


def table(title: str, costs: dict[str, list[Cost]], size: int = 0) -> None:
    """Print one markdown table."""
    base = {name: min(c.wall for c in got) for name, got in costs.items()}
    against = [name for name in ("cp", "cp + sync", "import numpy") if name in base]
    heads = ["wall best", "median", "CPU best", "peak", *(["GB/s"] if size else []), *(f"x {a}" for a in against)]
    print(f"\n**{title}**\n\n| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name, got in costs.items():
        wall = base[name]
        cells = [f"{wall:.3f} s", f"{statistics.median(c.wall for c in got):.3f} s", f"{min(c.cpu for c in got):.2f} s"]
        cells.append(f"{max(c.peak for c in got):.0f} MB")
        cells += [f"{size / wall / 1e9:.2f}"] if size else []
        cells += [f"{wall / base[a]:.2f}" for a in against]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def sources_of(path: Path) -> list[Path]:
    """The files that hold a checkpoint's bytes."""
    if path.name.endswith(".index.json"):
        return sorted(path.parent.glob("*.safetensors"))
    return [path] if path.exists() else sorted(path.parent.glob(path.name + ".data-*"))


def convert(task: Task, size: str, args: argparse.Namespace, scratch: Path) -> None:
    source = Path(args.files) / task.source.format(size)
    files, target, copies = sources_of(source), scratch / task.target, scratch / "copies"

    def clean() -> None:
        for path in scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        copies.mkdir()
        if args.cold:
            forget(files)

    ours = [args.ours, "-m", "ckptconv", "-q", str(source), "-o", str(target), *task.options]
    copy = ["cp", *map(str, files), str(copies)]
    contenders: dict[str, Callable[[], Cost | None]] = {
        "cp": lambda: run(copy),
        "cp + sync": lambda: run(["sh", "-c", 'cp "$@" && sync "$0"/*', str(copies), *copy[1:]]),
        "ckptconv": lambda: run(ours, quiet=False),
    }
    for way in () if args.no_peers else task.peers:
        peer = [args.python, str(PEERS), way, str(source), str(scratch / Path(task.target).parts[0])]
        contenders[way] = lambda peer=peer: run(peer)  # type: ignore[misc]
    total = sum(f.stat().st_size for f in files)
    table(f"{task.title}, {size} GB, {'cold' if args.cold else 'warm'}", in_turn(contenders, args.runs, clean), total)


def small_tensors(args: argparse.Namespace, scratch: Path) -> None:
    """A checkpoint of 200,000 tensors of 64 bytes: listed, converted, and what each tensor costs."""
    source = Path(args.files) / "many.safetensors"
    if not source.exists():
        make = "import sys, numpy as np, ckptconv; ckptconv.save({f'model/layer_{i // 8}/block_{i % 8}/weight': " \
               "np.full(16, i, 'f4') for i in range(200000)}, sys.argv[1])"  # fmt: skip
        for name in (source, source.with_suffix(".ckpt")):
            subprocess.run([args.ours, "-c", make, str(name)], check=True)
    for kind, way in ((".ckpt", "inspect_tf"), (".safetensors", "inspect_safetensors")):
        path = str(source.with_suffix(kind))
        peer = [args.python, str(PEERS), way, path]
        contenders: dict[str, Callable[[], Cost | None]] = {
            "ckptconv inspect": lambda path=path: run([args.ours, "-m", "ckptconv", "inspect", path]),  # type: ignore[misc]
        }
        if not args.no_peers:
            contenders[way] = lambda peer=peer: run(peer)  # type: ignore[misc]
        table(f"inspect of 200,000 tensors, {kind}", in_turn(contenders, args.runs, lambda: None))
    for kind, to in ((".ckpt", ".safetensors"), (".safetensors", ".pt"), (".safetensors", ".ckpt")):
        words = ["-q", str(source.with_suffix(kind)), "-o", str(scratch / f"many{to}"), "--force"]
        costs = in_turn({"ckptconv": lambda words=words: run([args.ours, "-m", "ckptconv", *words])}, args.runs,
                        lambda: None)  # type: ignore[misc]  # fmt: skip
        table(f"200,000 tensors, {kind} to {to}", costs)
        print(f"\n{min(c.wall for c in costs['ckptconv']) / 0.2:.0f} µs a tensor, start-up included")


def start_up(args: argparse.Namespace) -> None:
    module = [args.ours, "-m", "ckptconv"]
    table("start-up", in_turn(
        {"import numpy": lambda: run([args.ours, "-c", "import numpy"]),
         "ckptconv --version": lambda: run([*module, "--version"]),
         "ckptconv --help": lambda: run([*module, "--help"]),
         "ckptconv convert --help": lambda: run([*module, "convert", "--help"])},
        max(args.runs, 15), lambda: None))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="/tmp/bench", help="folder that make_files.py filled")
    parser.add_argument("--sizes", nargs="*", default=["1.3"], metavar="GB")
    parser.add_argument("--only", default="", help="tasks whose title contains this")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cold", action="store_true", help="drop the sources from the page cache before every run")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="the peers' interpreter")
    parser.add_argument("--ours", default=sys.executable, help="ckptconv's interpreter")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.files) as folder:
        for size in args.sizes:
            whole, sharded = Path(args.files) / f"{size}.safetensors", Path(args.files) / f"{size}-shards"
            if whole.exists() and not sharded.exists():
                words = [str(whole), "-o", str(sharded / "model.safetensors"), "--max-shard-size", "300MB"]
                subprocess.run([args.ours, "-m", "ckptconv", "-q", *words], check=True)
            for task in TASKS:
                if args.only in task.title:
                    convert(task, size, args, Path(folder))
        if args.only in "start-up":
            start_up(args)
        if args.only in "200,000 tensors":
            small_tensors(args, Path(folder))


if __name__ == "__main__":
    main()
