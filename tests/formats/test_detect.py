"""Which formats are asked about a file: those of its signature, with the answer that all of them would give."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import h5py
import hostile
import pytest
from kit import FIXTURES

from ckptconv.errors import CkptError
from ckptconv.formats import detect, table

HOSTILE = [hostile.HOME / kind / name for kind in hostile.KINDS for name in hostile.files(kind)]
FILES = [
    p
    for p in (*sorted(FIXTURES.rglob("*")), *HOSTILE)
    if p.is_dir() or p.suffix not in (".md", ".py", ".sha256", ".toml")
]
SAMPLE = FILES[::20]


def found(path: Path) -> str:
    try:
        return detect.detect(str(path)).name
    except CkptError as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.parametrize("files", [SAMPLE, pytest.param(FILES[::3], marks=pytest.mark.slow)], ids=["some", "more"])
def test_a_signature_only_saves_time(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    few = {p: found(p) for p in files}
    monkeypatch.setattr(detect, "SIGNATURES", ())
    monkeypatch.setattr(detect, "INSIDE", ())
    assert {p: found(p) for p in files} == few


def test_a_signature_spares_imports() -> None:
    """A file of safetensors is not shown to what unpickles, unzips or reads HDF5."""
    file = next(p for p in FILES if p.suffix == ".safetensors")
    asked = {row.name for row in detect._likely(detect.Seen(str(file)))}
    assert asked == {"safetensors", "hf"}


# --- what each format claims ------------------------------------------------------------------------------------------

NODE = b"\x0a\x0c\x0a\x01w\x12\x05Const\x00\x00"


def header(text: bytes, extra: int = 0) -> bytes:
    return (len(text) + extra).to_bytes(8, "little") + text


def zipped(*names: str) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as z:
        for name in names:
            z.writestr(name, b"")
    return raw.getvalue()


def hdf5() -> bytes:
    raw = io.BytesIO()
    h5py.File(raw, "w").close()
    return raw.getvalue()


# A file's name and bytes, or a folder's name and the names in it; and which formats claim it, and how certainly.
SEEN: dict[str, tuple[str, bytes | tuple[str, ...], str]] = {
    "safetensors by another name": ("a", header(b" {}"), "safetensors 3"),
    "safetensors that is cut": ("a", header(b"{}", 1), ""),
    "an index": ("model.safetensors.index.json", b" {}", "hf 3"),
    "npz by another name": ("a.zip", zipped("a.npy"), "npz 2"),
    "torch by another name": ("a", zipped("a/data.pkl"), "torch 3"),
    "torchscript": ("a.pt", zipped("a/data.pkl", "a/constants.pkl", "a/code/x.py"), "torchscript 3"),
    "an exported program": ("a.pt2", zipped("a/archive_format", "a/data/weights/model_weights_config.json"), "pt2 3"),
    "legacy torch": ("a.pt", pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2), "torch-legacy 3"),
    "a pickle by another name": ("a", pickle.dumps({"a": 1}, 4), "pickle 2"),
    "hdf5 by another name": ("a", hdf5(), "hdf5 2"),
    "a model of Keras": ("a.keras", zipped("metadata.json", "config.json", "model.weights.h5"), "keras3 3"),
    "a model of Keras without weights": ("a.keras", zipped("metadata.json", "config.json"), ""),
    "an unpacked model of Keras": ("f", ("config.json", "model.weights.h5"), "keras3 3"),
    "shards of Keras": ("a.weights.json", b'{"weight_map": {}}', "keras3 3"),
    "a frozen graph": ("a.pb", NODE, "tf-graph 2"),
    "a saved model": ("saved_model.pb", b"x", "tf-graph 3"),
    "an empty saved model": ("saved_model.pb", b"", "tf-graph 1"),
    "msgpack by another name": ("a", b"\x81\xa1a\x01", ""),
    "a folder of a saved model": ("f", ("saved_model.pb",), "tf-graph 3"),
    "a folder of shards": ("f", ("model-00001-of-00002.safetensors",), ""),
    "a folder of a GPT": ("f", ("params_shapes.json", "params_0.npy", "parameters_names.json"), "gpt 3 npy 2"),
    "a folder of parts": ("f", (".metadata", "__0_0.distcp"), "dcp 3"),
    "a folder of parts without metadata": ("f", ("__0_0.distcp",), ""),
    "a folder of Keras": ("f", ("a.weights.json", "a_00000.weights.h5"), ""),
}  # fmt: skip


def laid(folder: Path, name: str, content: bytes | tuple[str, ...]) -> Path:
    """Write what is seen."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.mkdir()
        for inner in content:
            (path / inner).write_bytes(b"")
    return path


@pytest.mark.parametrize("what", SEEN)
def test_what_each_format_claims(what: str, tmp_path: Path) -> None:
    """3: certain; 2: by the content; 1: by the name only. What makes it certain is in each format's module."""
    name, content, claims = SEEN[what]
    seen = detect.Seen(str(laid(tmp_path, name, content)))
    found = {row.name: row.load().sniff(seen) for row in table.TABLE}
    assert " ".join(f"{name} {claim}" for name, claim in found.items() if claim) == claims
