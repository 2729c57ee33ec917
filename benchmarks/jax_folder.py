"""Orbax's own way and ckptconv's, on one checkpoint that Orbax wrote: time and memory of reading, and time of writing.

    python benchmarks/jax_folder.py [GB, default 5] [--orbax PYTHON] [--folder DIR] [--runs 2]

PYTHON (default: ORBAX_PYTHON, else this interpreter) has orbax-checkpoint and safetensors. Both read to safetensors:
ckptconv, and StandardCheckpointer.restore with safetensors' save_file. Writing is compared with `cp && sync FILE` of
the same bytes, after which these are on the disk, as they are when ckptconv ends. DIR needs four times the size. All
run in turn; ratios are of the best. Exits with 1 if one of the targets is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from run import in_turn, run, table

ARRAY = 2**27  # bytes of each array
PEAK, LESS, SLOWER, COPY = 200.0, 3.0, 1.0, 1.3  # MB; times less than Orbax; times its time; times cp && sync
CKPTCONV = [sys.executable, "-m", "ckptconv"]


def save(path: Path, gigabytes: float) -> None:
    """In the interpreter that has Orbax: arrays of bfloat16 and one of float32, saved as Orbax does by default."""
    import jax
    import ml_dtypes
    import numpy as np
    import orbax.checkpoint as ocp

    rng = np.random.default_rng(0)
    count = max(1, round(gigabytes * 1e9 / ARRAY) - 1)
    layers = {
        f"layer_{i}": {"w": rng.standard_normal((2**12, 2**14), "f4").astype(ml_dtypes.bfloat16)} for i in range(count)
    }
    tree = {"params": layers | {"words": {"embedding": rng.standard_normal((2**13, 2**12), "f4")}}}
    saver = ocp.StandardCheckpointer()
    saver.save(path, jax.tree.map(jax.numpy.asarray, tree))
    saver.wait_until_finished()


def restore(path: Path, target: Path) -> None:
    """In the same interpreter: what people do to leave JAX."""
    import orbax.checkpoint as ocp
    from safetensors.flax import save_file

    tree = ocp.StandardCheckpointer().restore(path)
    flat = {f"params/{a}/{b}": w for a, rest in tree["params"].items() for b, w in rest.items()}
    save_file(flat, target)


def converted(source: Path, target: Path) -> list[str]:
    return [*CKPTCONV, str(source), "-o", str(target), "--force"]


def compare(home: Path, python: str, gigabytes: float, runs: int) -> bool:
    """Print both tables and the ratios; whether all targets are met."""
    me, source, plain = __file__, home / "made", home / "plain.safetensors"
    if run([python, me, str(gigabytes), "--save", str(source)], quiet=False) is None:
        raise SystemExit(f"{python} cannot save a checkpoint with Orbax")
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    theirs = home / "theirs.safetensors"
    orbax = [python, me, "0", "--restore", str(source), str(theirs)]
    reads = in_turn({"ckptconv": converted(source, plain), "Orbax": orbax}, runs, os.sync)
    table(f"reading {size / 1e9:.1f} GB that Orbax wrote", reads, size)
    same = subprocess.run([*CKPTCONV, "diff", str(plain), str(theirs)], stdout=subprocess.DEVNULL, check=False)
    theirs.unlink()
    shutil.rmtree(source)
    written = plain.stat().st_size
    copied = ["sh", "-c", 'rm -f "$1"; cp "$0" "$1" && sync "$1"', str(plain), str(home / "copy")]
    writes = in_turn({"cp + sync": copied, "ckptconv": converted(plain, home / "out.orbax")}, runs, os.sync)
    table(f"writing {written / 1e9:.1f} GB for Orbax", writes, written)
    ours, other = reads["ckptconv"], reads["Orbax"]
    peak, less = max(c.peak for c in ours), min(c.peak for c in other) / max(c.peak for c in ours)
    time = min(c.wall for c in ours) / min(c.wall for c in other)
    copy = min(c.wall for c in writes["ckptconv"]) / min(c.wall for c in writes["cp + sync"])
    print("\n| | now | target |\n|---|---:|---:|")
    print(f"| memory of reading | {peak:.0f} MB | at most {PEAK:.0f} MB |")
    print(f"| Orbax's memory, times ours | {less:.1f} | at least {LESS:g} |")
    print(f"| time of reading, times Orbax's | {time:.2f} | at most {SLOWER:g} |")
    print(f"| time of writing, times cp && sync | {copy:.2f} | at most {COPY:g} |")
    print(f"\nthe tensors are {'equal' if same.returncode == 0 else 'NOT equal'} to those that Orbax restored")
    return peak <= PEAK and less >= LESS and time <= SLOWER and copy <= COPY and same.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gigabytes", nargs="?", type=float, default=5)
    parser.add_argument("--orbax", default=os.environ.get("ORBAX_PYTHON", sys.executable))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--restore", type=Path, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.save:
        save(given.save, given.gigabytes)
    elif given.restore:
        restore(*given.restore)
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as home:
            sys.exit(not compare(Path(home), given.orbax, given.gigabytes, given.runs))


if __name__ == "__main__":
    main()
