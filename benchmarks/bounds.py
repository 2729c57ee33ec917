"""Measure what --max-memory promises: one tensor of SIZE bytes, transposed, in a child whose peak of memory is read.

    bounds.py [SIZE, default 1GB] [--max-memory, default 64MB]

The promise is --max-memory plus BASE_MEMORY (engine/plan.py) for the interpreter and libraries. Exits with 1 if it is
broken.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from run import run

from ckptconv.api.options import size
from ckptconv.engine.plan import BASE_MEMORY

RULE = '[[rule]]\nfrom = "w"\nto = "w"\nlayout = "i o -> o i"\n'
ROWS = 16_384


def source(folder: Path, nbytes: int) -> Path:
    """A safetensors file with one float32 matrix, filled so that pages are real."""
    columns = nbytes // 4 // ROWS
    head = b'{"w":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}' % (ROWS, columns, ROWS * columns * 4)
    path = folder / "in.safetensors"
    with path.open("wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for i in range(ROWS):
            f.write((np.arange(columns, dtype="f4") + i * 1000).tobytes())
    return path


def main() -> None:
    nbytes = size(sys.argv[1] if len(sys.argv) > 1 else "1GB")
    limit = sys.argv[2] if len(sys.argv) > 2 else "64MB"
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "t.toml").write_text(RULE)
        path = source(folder, nbytes)
        command = [sys.executable, "-m", "ckptconv", str(path), "-c", str(folder / "t.toml"), "--max-memory", limit]
        cost = run([*command, "-o", str(folder / "out.npz")])
    if cost is None:
        raise SystemExit("the conversion failed")
    allowed = (size(limit) + BASE_MEMORY) / 1e6
    print(f"{nbytes / 1e9:.2f} GB transposed with --max-memory {limit}: peak {cost.peak:.0f} MB of the "
          f"{allowed:.0f} MB allowed, {cost.wall:.1f} s")  # fmt: skip
    raise SystemExit(cost.peak > allowed)


if __name__ == "__main__":
    main()
