"""The folder that ckptconv runs in may be a stranger's: no module is imported from there, by no process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptconv

BINARY = Path(sys.executable).with_name("ckptconv")
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="ckptconv is not installed beside this Python")
KEPT = {"sitecustomize", "usercustomize", "antigravity", "this"}  # what Python itself imports, or nobody


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints, and modules named like all that can be imported, each of which leaves a trace."""
    made = tmp_path_factory.mktemp("strangers")
    trap = 'open(__file__ + ".ran", "w").close()\nraise ImportError("a trap")\n'
    names = {*sys.stdlib_module_names, *(m.partition(".")[0] for m in sys.modules), "ckptconv", "h5py", "google"} - KEPT
    for name in names:
        (made / f"{name}.py").write_text(trap)
    (made / "in").mkdir()
    for name in ("a.npz", "b.hdf5", "c.safetensors"):
        ckptconv.save({"w": np.arange(6.0)}, made / "in" / name)
    return made


@pytest.mark.many
@pytest.mark.parametrize(
    "command",
    [
        "zoo in -o out -j 2",
        "convert in/a.npz -o a.h5 --to hdf5",
        "report in/a.npz -o r.html",
        "match in/a.npz in/c.safetensors",
        "inspect in/c.safetensors --stats",
    ],
)
def test_nothing_is_imported_from_it(command: str, home: Path) -> None:
    done = subprocess.run(
        [BINARY, *command.split()], cwd=home, capture_output=True, text=True, timeout=120, check=False
    )
    assert not [p.name for p in home.glob("*.ran")]
    assert done.returncode == 0, done.stderr


def test_code_that_is_named_brings_nothing_else_from_there(home: Path, tmp_path: Path) -> None:
    """Of a package that is installed nothing is sought in the working folder, and nothing later either."""
    pytest.importorskip("torch", reason="--like builds a module of torch")
    (tmp_path / "trusted_net.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(3, 2)\n")
    ckptconv.save({"weight": np.ones((2, 3), "f4"), "bias": np.ones(2, "f4")}, home / "in" / "net.npz")
    (home / "trusted_net.py").write_text('open(__file__ + ".ran", "w").close()\n')
    command = [str(BINARY), "convert", "in/net.npz", "--like", "trusted_net:build", "-o", "net.safetensors"]
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(tmp_path))))
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert not [p.name for p in home.glob("*.ran")]
    assert done.returncode == 0, done.stderr


WAYS = {  # to put the working folder where Python looks for modules
    "a module": ["-m", "ckptconv", "inspect", "b.hdf5"],
    "workers": ["-m", "ckptconv", "zoo", "in", "-o", "out", "-j", "2"],
    "not first": ["-m", "app"],
    "last, and a path": [
        "-c",
        "import os, pathlib, sys, ckptconv; sys.path += [pathlib.Path(), os.getcwd()]; ckptconv.open('b.hdf5')",
    ],
}


@pytest.mark.many
@pytest.mark.parametrize("way", WAYS)
def test_python_m_brings_it_to_no_other_process(way: str, tmp_path: Path) -> None:
    """It looks in the working folder first; the process of the HDF5 library, which has no jail yet, does not."""
    (tmp_path / "in").mkdir()
    for name in ("b.hdf5", "in/b.hdf5", "in/c.hdf5"):
        ckptconv.save({"w": np.arange(6.0)}, tmp_path / name)
    (tmp_path / "h5py.py").write_text('open(__file__ + ".ran", "w").close()\n')
    (tmp_path / "app.py").write_text(
        "import sys\nsys.path.insert(0, '/nowhere')\nimport ckptconv\nckptconv.open('b.hdf5')\n"
    )
    command = [sys.executable, *WAYS[way]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "h5py.py.ran").exists()


def test_the_working_folder_may_be_gone_or_be_where_packages_lie(tmp_path: Path) -> None:
    ckptconv.save({"w": np.arange(6.0)}, tmp_path / "b.hdf5")
    code = f"import os, ckptconv; ckptconv.open({str(tmp_path / 'b.hdf5')!r})"
    (tmp_path / "gone").mkdir()
    gone = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); {code}"
    for said, at in ((gone, None), (code, Path(np.__file__).parents[1])):
        done = subprocess.run(
            [sys.executable, "-c", said], cwd=at, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
