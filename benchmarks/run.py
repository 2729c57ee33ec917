"""ckptconv, cp and the frameworks on the same files, in turn; prints markdown tables.

    python benchmarks/make_files.py /tmp/bench 0.4 1.3 5
    python benchmarks/run.py --files /tmp/bench [--sizes 1.3] [--only TEXT] [--runs 7] [--python PEERS_PYTHON]
                             [--save FILE] [--last FILE]

At the end, one table has the ratios of ckptconv beside their targets and those of the last run (--last); --save writes
them as JSON. If a ratio is more than a tenth above that of the last run, the status is 1 and nothing is saved.

These machines are noisy, page allocation above all: contenders run in turn (A B C, A B C), the best and the median of
all runs are shown, and ratios are of the best. CPU and peak memory are the process's own (wait4). `cp` leaves its
output in the page cache; ckptconv's is on the disk when it says so, which is what `cp && sync FILE` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from peers import make_million

PEERS, INSIDE = Path(__file__).with_name("peers.py"), Path(__file__).with_name("inside.py")


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
    goal: float = 1.05  # times `cp && sync`


TASKS = (
    Task("TensorFlow to safetensors", "{}.ckpt", "out.safetensors", (), ("tf_safetensors",)),
    Task("TensorFlow BERT to PyTorch, -c bert", "{}.ckpt", "out.pt", ("-c", "bert"), ("tf_torch",),
         1.4),
    Task(".pt to safetensors", "{}.pt", "out.safetensors", (), ("torch_safetensors",)),
    Task("safetensors to .pt", "{}.safetensors", "out.pt", (), ("safetensors_torch",)),
    Task("HDF5 to safetensors", "{}.h5", "out.safetensors", (), ("h5_safetensors",)),
    Task("safetensors into shards of 300 MB", "{}.safetensors", "out/model.safetensors", ("--max-shard-size", "300MB"),
         ("shards",)),
    Task("shards into one safetensors", "{}-shards/model.safetensors.index.json", "out.safetensors", (), ("joined",)),
    *(Task(f"ZeRO-{stage}, four ranks, to safetensors", f"{{}}-zero{stage}", "out.safetensors", ("--weights-only",),
           ("zero_to_fp32",), 1.3) for stage in (2, 3)),
    Task("safetensors cast to bfloat16", "{}.safetensors", "out.safetensors", ("--dtype", "bfloat16"), ("bfloat16",),
         1.2),
    Task("safetensors cast to float16", "{}.safetensors", "out.safetensors", ("--dtype", "float16"), ("float16",), 1.2),
)  # fmt: skip


class Figure(NamedTuple):
    """What ckptconv takes in units of something else, and may take."""

    ratio: float
    unit: str
    target: float


figures: dict[str, Figure] = {}  # by title
WORSE = 1.1  # times the last ratio: more than the best of several runs varies on a quiet machine


def judged(last: Mapping[str, float]) -> list[str]:
    """Print the figures beside their targets and the last ones; return the titles of those that became worse."""
    print("\n**ckptconv beside its targets**\n\n| job | now | target | last |\n|---|---:|---:|---:|")
    for title, f in figures.items():
        before = f"{last[title]:.2f}" if title in last else ""
        print(f"| {title} | {f.ratio:.2f} {f.unit} | {f.target:g} | {before} |")
    return [title for title, f in figures.items() if title in last and f.ratio > WORSE * last[title]]


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
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None if status else Cost(wall, usage.ru_utime + usage.ru_stime, peak / 1e6)


def in_turn(
    contenders: Mapping[str, Sequence[str]], runs: int, between: Callable[[], object] = lambda: None
) -> dict[str, list[Cost]]:
    """Run all commands again and again, one after the other; those that fail are left out."""
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, command in contenders.items():
            between()
            cost = run(command, quiet=name != "ckptconv") if name in costs else None
            if cost is not None:
                costs[name].append(cost)
            elif name in costs:
                print(f"{name} failed and is left out", file=sys.stderr)
                del costs[name]
    return costs


def table(title: str, costs: dict[str, list[Cost]], size: int = 0, goals: Mapping[str, tuple[str, float]] = {}) -> None:
    """Print one markdown table, and note what is to be judged: for a contender, against which one and the target."""
    base = {name: min(c.wall for c in got) for name, got in costs.items()}
    for name, (unit, target) in goals.items():
        if name in base and unit in base:
            figures[title if name == "ckptconv" else name] = Figure(base[name] / base[unit], f"x {unit}", target)
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
    if path.is_dir():
        return sorted(path.rglob("*_optim_states.pt"))
    return [path] if path.exists() else sorted(path.parent.glob(path.name + ".data-*"))


def convert(task: Task, size: str, args: argparse.Namespace, scratch: Path) -> None:
    source = Path(args.files) / task.source.format(size)
    files, target, copies = sources_of(source), scratch / task.target, scratch / "copies"

    def clean() -> None:
        for path in scratch.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        copies.mkdir()

    copy = ["cp", *map(str, files), str(copies)]
    contenders = {
        "cp": copy,
        "cp + sync": ["sh", "-c", 'cp "$@" && sync "$0"/*', str(copies), *copy[1:]],
        "ckptconv": ours(args, "-q", source, "-o", target, *task.options),
    }
    for way in () if args.no_peers else task.peers:
        contenders[way] = [args.python, str(PEERS), way, str(source), str(scratch / Path(task.target).parts[0])]
    total = sum(f.stat().st_size for f in files)
    title = f"{task.title}, {size} GB"
    table(title, in_turn(contenders, args.runs, clean), total, {"ckptconv": ("cp + sync", task.goal)})


def ours(args: argparse.Namespace, *words: object) -> list[str]:
    return [args.ours, "-m", "ckptconv", *map(str, words)]


def save(args: argparse.Namespace, path: Path, values: str) -> None:
    """Save arrays, which are a Python expression, with ckptconv."""
    make = f"import sys, numpy as np, ckptconv; ckptconv.save({values}, sys.argv[1])"
    subprocess.run([args.ours, "-c", make, str(path)], check=True)


def small_tensors(args: argparse.Namespace, scratch: Path) -> None:
    """A checkpoint of 200,000 tensors of 64 bytes: listed, converted, and what each tensor costs."""
    source, runs = Path(args.files) / "many.safetensors", min(args.runs, 3)
    if not source.exists():
        for name in (source, source.with_suffix(".ckpt")):
            save(
                args,
                name,
                "{f'model/layer_{i // 8}/block_{i % 8}/weight': np.full(16, i, 'f4') for i in range(200000)}",
            )
    for kind, way in ((".ckpt", "inspect_tf"), (".safetensors", "inspect_safetensors")):
        path = source.with_suffix(kind)
        contenders = {"ckptconv inspect": ours(args, "inspect", path)}
        if not args.no_peers:
            contenders[way] = [args.python, str(PEERS), way, str(path)]
        table(f"inspect of 200,000 tensors, {kind}", in_turn(contenders, runs))
    for kind, to, target in ((".ckpt", ".safetensors", 10), (".safetensors", ".pt", 20), (".safetensors", ".ckpt", 20)):
        command = ours(args, "-q", source.with_suffix(kind), "-o", scratch / f"many{to}", "--force")
        costs = in_turn({"ckptconv": command}, runs)
        title = f"200,000 tensors, {kind} to {to}"
        table(title, costs)
        figures[title] = Figure(min(c.wall for c in costs["ckptconv"]) / 0.2, "µs each, start-up included", target)


def a_million(args: argparse.Namespace, scratch: Path) -> None:
    """1,000,000 tensors of 16 bytes, listed; the peak of memory is a figure too."""
    path = scratch / "million.safetensors"
    bundle = path.with_suffix(".ckpt")
    make_million(path)
    subprocess.run(ours(args, "-q", path, "-o", bundle, "--no-verify"), check=True)
    for kind, source in (("safetensors", path), ("TensorFlow", bundle)):
        costs = in_turn({"ckptconv": ours(args, "inspect", source)}, 2)
        title = f"inspect of 1,000,000 tensors, {kind}"
        table(title, costs)
        figures[title] = Figure(min(c.wall for c in costs["ckptconv"]), "s", 8)
        figures[f"{title}, memory"] = Figure(max(c.peak for c in costs["ckptconv"]), "MB", 500)


def many_datasets(args: argparse.Namespace, scratch: Path) -> None:
    """20,000 tensors to HDF5, each in a group of its own; h5py alone is the bound."""
    source = scratch / "groups.safetensors"
    save(args, source, "{f'layer_{i}/weight': np.full(16, i, 'f4') for i in range(20000)}")
    ways = {
        "ckptconv": ours(args, "-q", source, "-o", scratch / "groups.hdf5", "--force"),
        "h5py alone": [args.python, str(PEERS), "groups", str(scratch / "alone.hdf5")],
    }
    costs = in_turn(ways, 2)
    table("20,000 tensors to HDF5", costs)
    for name, got in costs.items():
        figures[f"a tensor to HDF5, {name}"] = Figure(min(c.wall for c in got) / 0.02, "µs each", 80)


def many_files(args: argparse.Namespace, scratch: Path) -> None:
    """A zoo of small mixed checkpoints, on two workers."""
    command = [args.ours, str(PEERS.with_name("scale.py")), "formats"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "SHARE": "0.4"})
    said = json.loads(done.stdout.splitlines()[0])
    print(f"\n**zoo of small checkpoints**\n\n{json.dumps(said)}")
    figures["zoo of small checkpoints, time of each"] = Figure(1000 / said["per_second"], "ms", 2.5)


def within(args: argparse.Namespace, scratch: Path) -> None:
    """Kernels, reads of one tensor and loads into a module, in a process of their own for each kind."""
    source = Path(args.files) / f"{args.sizes[0]}.safetensors"
    if not source.exists():
        return
    targets = {"transposes": 1.0, "casts": 1.0, "one": 1.2, "load": 1.0}
    for kind, target in targets.items():
        command = [args.python, str(INSIDE), kind, *([str(source)] if kind in ("one", "load") else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{kind} failed and is left out: {done.stderr[-300:]}", file=sys.stderr)
            continue
        times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        print(f"\n**{kind}, best of several in turn**\n\n| | ms |\n|---|---:|")
        print("\n".join(f"| {name} | {t * 1e3:.2f} |" for name, t in times.items()), flush=True)
        for name, t in times.items():
            case, _, peer = name.rpartition(" ")
            if peer != "ours":
                figures[f"{case}, against {peer}"] = Figure(times[f"{case} ours"] / t, f"x {peer}", target)


def start_up(args: argparse.Namespace, scratch: Path) -> None:
    small, npz, bundle = scratch / "small.safetensors", scratch / "small.npz", scratch / "run" / "model.ckpt"
    save(args, small, "{'w': np.ones((512, 512), 'f4')}")
    subprocess.run(ours(args, "-q", small, "-o", bundle), check=True)
    ways = {
        "import numpy": [args.ours, "-c", "import numpy"],
        "ckptconv --help": ours(args, "--help"),
        "inspect of 1 MB": ours(args, "inspect", small),
        "1 MB to npz": ours(args, "-q", small, "-o", npz, "--force"),
        "inspect of a TensorFlow folder": ours(args, "inspect", bundle),
        "a TensorFlow folder to npz": ours(args, "-q", bundle, "-o", npz, "--force"),
    }
    goals = {name: ("import numpy", 1.5) for name in ways if not name.endswith(("numpy", "--help"))}
    table("start-up", in_turn(ways, max(args.runs, 15)), goals=goals)


SECTIONS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "start-up": start_up, "200,000 tensors": small_tensors, "1,000,000 tensors": a_million,
    "tensors to HDF5": many_datasets, "zoo": many_files, "within": within,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", default="/tmp/bench", help="folder that make_files.py filled")
    parser.add_argument("--sizes", nargs="*", default=["1.3"], metavar="GB")
    parser.add_argument("--only", default="", help="tasks whose title contains this")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="the peers' interpreter")
    parser.add_argument("--ours", default=sys.executable, help="ckptconv's interpreter")
    parser.add_argument("--save", type=Path, help="JSON file for the ratios")
    parser.add_argument("--last", type=Path, help="JSON file that an earlier run saved")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.files) as folder:
        for size in args.sizes:
            whole, sharded = Path(args.files) / f"{size}.safetensors", Path(args.files) / f"{size}-shards"
            if whole.exists() and not sharded.exists():
                words = ("-q", whole, "-o", sharded / "model.safetensors", "--max-shard-size", "300MB")
                subprocess.run(ours(args, *words), check=True)
            for task in TASKS:
                if args.only in task.title:
                    convert(task, size, args, Path(folder))
        for title, section in SECTIONS.items():
            if args.only in title:
                section(args, Path(folder))
    last = json.loads(args.last.read_text()) if args.last and args.last.exists() else {}
    worse = judged(last)
    if args.save and not worse:  # else the next run would be compared with the slower one
        args.save.write_text(json.dumps({**last, **{title: f.ratio for title, f in figures.items()}}, indent=1) + "\n")
    if worse:
        sys.exit(f"more than a tenth slower than in the last run: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
