"""Memory: opening a file of N bytes takes O(N), and a conversion --max-memory plus a constant; time is linear in bytes.

Peaks are read from children, for a process never gives its own back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from kit import ROOT

import ckptconv
from ckptconv.engine.plan import BASE_MEMORY

FLOOR = 48 << 20  # what libraries, buffers and one worker of HDF5 may take for any file
TIMES = 24  # bytes of memory for a byte of the file: Python's objects for the smallest entries of a header
pytestmark = pytest.mark.skipif(not hasattr(os, "wait4"), reason="no way to ask for a child's peak")

OPEN = """
import json, resource, sys
sys.path[:0] = sys.argv[1].split(":")
import ckptconv
from ckptconv.errors import CkptError
def attempt(path):
    try:
        ckptconv.open(path)
    except CkptError:
        pass
paths = json.loads(sys.stdin.read())
for kind in {p.rsplit(".", 1)[-1]: p for p in paths[:40]}.values():
    attempt(kind)  # what is imported on first use is there before the count begins
for path in paths:
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak starts again from here
    with open("/proc/self/status") as f:
        before = int(f.read().split("VmRSS:")[1].split()[0])
    attempt(path)
    with open("/proc/self/status") as f:
        print(json.dumps([path, 1024 * (int(f.read().split("VmHWM:")[1].split()[0]) - before)]), flush=True)
"""


def opened(paths: list[Path]) -> dict[str, int]:
    """Bytes by which opening each file raised the peak of a process."""
    home = str(Path(ckptconv.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", OPEN, home], input=json.dumps(list(map(str, paths))), text=True,
                          capture_output=True, check=True, timeout=300)  # fmt: skip
    return dict(map(json.loads, done.stdout.splitlines()))


needs_proc = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux resets a peak")


@pytest.mark.slow
@needs_proc
def test_hostile_files_take_no_more_than_they_weigh() -> None:
    paths = [hostile.HOME / kind / name for kind in hostile.KINDS for name in hostile.files(kind)]
    paths = paths[::4]  # which is enough, and takes a quarter of the time
    used = opened(paths)
    weight = {str(p): sum(f.stat().st_size for f in ([p] if p.is_file() else p.rglob("*"))) for p in paths}
    assert len(used) == len(paths) > 125
    over = {p: n for p, n in used.items() if n > FLOOR + TIMES * weight[p]}
    assert not over


@pytest.mark.slow
def test_a_transpose_stays_within_max_memory(tmp_path: Path) -> None:
    """benchmarks/bounds.py does it with 1 GB and 64MB."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bounds.py"), "160MB", "16MB"],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path(ckptconv.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"of the {(16_000_000 + BASE_MEMORY) / 1e6:.0f} MB allowed" in done.stdout


DENSIFY = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from ckptconv.cli.main import main
try:
    main(sys.argv[2:])
except SystemExit as e:
    print(e.code, file=sys.stderr)
with open("/proc/self/status") as f:
    print(1024 * int(f.read().split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.slow
@needs_proc
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("coo", ("convert", "a.pt", "-o", "x.safetensors", "--max-memory", "16MB", "--jobs", "1")),
        ("bsr", ("convert", "a.pt", "-o", "x.npz", "--max-memory", "16MB", "--jobs", "1", "--dtype", "bfloat16")),
        ("quantised", ("inspect", "a.pt", "--stats")),
        ("coo", ("diff", "a.pt", "b.pt")),
    ],
)
def test_what_is_densified_is_never_held_whole(words: tuple[str, ...], layout: str, tmp_path: Path) -> None:
    """2 kB that claim 128 to 256 MB."""
    torch = pytest.importorskip("torch")
    n, none = 8192, torch.tensor([], dtype=torch.long)
    for i, file in enumerate(("a.pt", "b.pt")):
        values = torch.full((1,), 1.0 + i)
        made = {
            "coo": lambda v: torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), v, (n, n)),
            "bsr": lambda v: torch.sparse_bsr_tensor(none.new_zeros(2), none, v.new_empty(0, n, n).half(), (n, n)),
            "quantised": lambda v: torch.quantize_per_tensor(v, 0.5, 0, torch.quint8).expand(n, n),
        }[layout](values)
        torch.save({"w": made}, tmp_path / file)
    home = str(Path(ckptconv.__file__).parents[1])
    command = [sys.executable, "-c", DENSIFY, home, *words, "--densify"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path)
    assert int(done.stdout.splitlines()[-1]) < 32_000_000 + BASE_MEMORY, done.stderr  # of diff, two windows
