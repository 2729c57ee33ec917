"""Text that is not Unicode: half surrogate pairs and bytes that are not UTF-8, in names, metadata, JSON and paths.

Every verb shows, escapes or refuses it; none ends in a traceback.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import kit
import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv import zoo
from ckptconv.errors import UsageError

HALF = "half\ud800x"
BYTES = b"by\xfftes"
ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def safetensors(head: dict[str, object]) -> Callable[[Path], Path]:
    return lambda folder: kit.safetensors(folder / "m.safetensors", head, bytes(4))


def index(folder: Path) -> Path:
    plain = safetensors({"w": ENTRY})(folder)
    said = {"metadata": {HALF: HALF}, "weight_map": {"w": plain.name}}
    (folder / "m.safetensors.index.json").write_text(json.dumps(said))
    return folder / "m.safetensors.index.json"


def pickled(folder: Path) -> Path:
    (folder / "m.pkl").write_bytes(pickle.dumps({HALF: np.ones(2, "f4"), "b": HALF, "w": np.ones(2, "f4")}, 4))
    return folder / "m.pkl"


def bundle(folder: Path) -> Path:
    ckptconv.save({"by\udcfftes": np.ones(2, "f4"), "w": np.ones(2, "f4")}, folder / "m.ckpt", to="tf")
    return folder / "m.ckpt"


def hdf5(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "m.hdf5", "w") as f:
        f.create_dataset(BYTES, data=np.ones(2)).attrs.create(BYTES, np.bytes_(BYTES))
        f.create_dataset("w", data=np.ones(2))
        f["w"].attrs["a"] = np.bytes_(BYTES)
    return folder / "m.hdf5"


def orbax(folder: Path) -> Path:
    (folder / "m" / "w").mkdir(parents=True)
    said = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f4", "compressor": None, "fill_value": HALF,
            "order": "C", "filters": None}  # fmt: skip
    (folder / "m" / "w" / ".zarray").write_text(json.dumps(said))
    (folder / "m" / "w" / "0").write_bytes(bytes(4))
    leaf = {"key_metadata": [{"key": "w", "key_type": 2}], "value_metadata": {"value_type": HALF}}
    other = {"key_metadata": [{"key": HALF, "key_type": 2}], "value_metadata": {"value_type": "None"}}
    tree = {"tree_metadata": {HALF: leaf, "x": other}, "custom_metadata": {HALF: HALF}}
    (folder / "m" / "_METADATA").write_text(json.dumps(tree))
    return folder / "m"


def path(folder: Path) -> Path:
    made = Path(os.fsdecode(os.fsencode(folder / "m") + BYTES + b".safetensors"))
    try:
        shutil.move(safetensors({"w": ENTRY})(folder), made)
    except OSError:
        pytest.skip("this file system holds no such name")
    return made


CASES: dict[str, Callable[[Path], Path]] = {
    "safetensors: metadata": safetensors({"__metadata__": {HALF: HALF}, "w": ENTRY}),
    "safetensors: name": safetensors({HALF: ENTRY}),
    "safetensors: dtype": safetensors({"w": {**ENTRY, "dtype": HALF}}),
    "hf: metadata": index,
    "pickle": pickled,
    "tf": bundle,
    "hdf5": hdf5,
    "orbax": orbax,
    "path": path,
}
TARGETS = ("safetensors", "torch", "npz", "npy", "tf", "hdf5", "keras", "flax", "hf", "orbax")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_verb_ends_in_a_traceback(case: str, tmp_path: Path, cli: Run) -> None:
    source = str(CASES[case](tmp_path))
    (tmp_path / "other").mkdir()
    other = str(safetensors({"w": ENTRY})(tmp_path / "other"))
    calls = [
        ("inspect", source), ("inspect", source, "--json"), ("verify", source), ("diff", source, other, "--json"),
        ("diff", other, source), ("match", source, other), ("match", other, source),
        ("report", source, "-o", str(tmp_path / "page.html")),
        *((source, "-o", f"out-{to}", "--to", to) for to in TARGETS),
        *((source, "-o", f"dry-{to}", "--to", to, "--dry-run", "--json") for to in TARGETS[::4]),
        (source, "-o", "again", "--to", "npz", "--resume"),
    ]  # fmt: skip
    for call in calls:
        done = cli(*call)
        assert done.returncode in range(10), (call, done.stderr)
        assert "Traceback" not in done.stderr, (call, done.stderr)
        assert "codec" not in done.stderr, (call, done.stderr)
        assert "cannot be read as" not in done.stderr, (call, done.stderr)
        done.stdout.encode()
        done.stderr.encode()


def test_metadata_is_escaped_and_noted(tmp_path: Path) -> None:
    source = CASES["safetensors: metadata"](tmp_path)
    report = ckptconv.convert(source, tmp_path / "out.safetensors")
    assert ckptconv.open(tmp_path / "out.safetensors").metadata["half\\ud800x"] == "half\\ud800x"
    assert [n.names for n in report.notes if n.kind == "lossy"] == [("half\\ud800x",)]


@pytest.mark.parametrize("name", [f"{HALF}.npz", "nul\0.npz"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_no_file_can_be_called_is_refused(name: str, resume: bool, tmp_path: Path) -> None:
    source = safetensors({"w": ENTRY})(tmp_path)
    with pytest.raises(UsageError, match="which the name of no file does"):
        ckptconv.convert(source, f"{tmp_path}/{name}", resume=resume)
    with pytest.raises(UsageError, match="which the name of no file does"):
        ckptconv.open(f"{tmp_path}/{name}")
    (tmp_path / "list.jsonl").write_text(json.dumps({"source": "m.safetensors", "destination": name}))
    with pytest.raises(UsageError, match=r"(?s)row 1: .*which the name of no file does"):
        zoo(tmp_path / "list.jsonl", tmp_path / "out")
