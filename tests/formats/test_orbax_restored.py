"""What we write of Orbax's format, Orbax restores bit for bit: as it is, with a target, and onto a mesh. And what Orbax
writes, in every layout that it has, is read bit for bit.

Needs Orbax and JAX, in this environment or in that of the interpreter that ORBAX_PYTHON names.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit import FIXTURES, ROOT

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.testing import holdable, write, zoo

PYTHON = os.environ.get("ORBAX_PYTHON") or (sys.executable if importlib.util.find_spec("orbax") else "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs Orbax: installed, or for the interpreter ORBAX_PYTHON"),
    pytest.mark.slow,
]  # fmt: skip


def many() -> Checkpoint:
    """More keys than a node holds."""
    return Checkpoint({f"layer_{i}/w": held(f"layer_{i}/w", np.full((2, 2), i, "f4")) for i in range(10_000)})


def said() -> Checkpoint:
    return Checkpoint({"a.b/c": held("a.b/c", np.ones(3, "f4"))}, {"step": "7", "note": 'é "quoted"\n'})


def kinds(path: Path, *, new: bool) -> Checkpoint:
    whole = holdable(zoo(), path, "orbax")
    return whole.with_tensors({n: t for n, t in whole.items() if (t.dtype.name in NEW) == new})


LOW = {"int4": 15, "int2": 3, "float4_e2m1fn": 15}
NEW = {"float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "int2"}  # which JAX has since 0.5 or so
MADE = {
    "zoo": lambda path: kinds(path, new=False),
    "new dtypes": lambda path: kinds(path, new=True),
    "orbax": lambda path: ckptconv.open(FIXTURES / "orbax" / "mesh_chunks"),
    "many": lambda path: many(),
    "metadata": lambda path: said(),
}


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([PYTHON, *map(str, words)], capture_output=True, text=True, timeout=600, env=env, check=False)


@pytest.mark.parametrize("made", MADE)
def test_restored(made: str, tmp_path: Path) -> None:
    if made == "new dtypes" and run("-c", "import jax.numpy as n; n.float4_e2m1fn, n.int2").returncode:
        pytest.skip("this JAX lacks them")
    path = tmp_path / "x.orbax"
    whole = MADE[made](path)
    write(whole, path, "orbax")
    done = run(ROOT / "tests" / "support" / "restore_orbax.py", path, tmp_path / "got.npz")
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "got.npz") as npz:
        got = {n.partition(":")[0]: npz[n] for n in npz.files}
    assert set(got) == set(whole)
    for name, t in whole.items():
        want = t.numpy()
        assert got[name].shape == t.shape
        raw = want.view("u1") & LOW[t.dtype.name] if t.dtype.name in LOW else want
        assert got[name].tobytes() == raw.tobytes(), name
