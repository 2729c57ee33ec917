"""What NumPy, Flax, Keras, Hugging Face and the table of formats refuse, on its words, where no framework is needed."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import legacy, refused

import ckptconv
from ckptconv.errors import AmbiguousFormat, MissingExtra, NameCollision, UsageError
from ckptconv.formats import detect, npy, npy as pickles, table

# --- NumPy --------------------------------------------------------------------------------------------------------


def objects(value: Any) -> np.ndarray[Any, Any]:
    out = np.empty((), object)
    out[()] = value
    return out


def test_arrays_of_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", objects({"w": np.ones(2)}), allow_pickle=True)
    size = (tmp_path / "a.npy").stat().st_size - 128  # bytes of the header
    monkeypatch.setattr(pickles, "MAX_PICKLE", size)
    assert list(ckptconv.open(tmp_path / "a.npy")) == ["w"]
    monkeypatch.setattr(pickles, "MAX_PICKLE", size - 1)
    with refused(f"an array of objects in {size} bytes; at most {size - 1} are unpickled"):
        ckptconv.open(tmp_path / "a.npy")


def test_names_in_arrays_of_objects(tmp_path: Path) -> None:
    for long in (pickles.MAX_PREFIX, pickles.MAX_PREFIX + 1):
        np.savez(tmp_path / "a.npz", **{"n" * long: objects({"w": np.ones(2)})})  # type: ignore[arg-type]
        if long == pickles.MAX_PREFIX:
            assert list(ckptconv.open(tmp_path / "a.npz")) == ["n" * long + ".w"]
            continue
        with refused("an array of objects has a name of many characters"):
            ckptconv.open(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **{"a.w": np.ones(1), "a": objects({"w": np.ones(2)})})  # type: ignore[arg-type]
    with pytest.raises(NameCollision, match=r"names in arrays of objects are also names of other arrays:\n *a\.w"):
        ckptconv.open(tmp_path / "b.npz")


def test_an_empty_array_has_a_checksum(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", none=np.zeros((0, 3), "f4"))
    raw = (tmp_path / "a.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as z:
        crc = struct.pack("<L", z.infolist()[0].CRC)
    assert raw.count(crc) == 2
    (tmp_path / "a.npz").write_bytes(raw.replace(crc, struct.pack("<L", 1)))
    with refused("its CRC-32 is wrong|the CRC-32 of t.npy is wrong"):
        ckptconv.open(tmp_path / "a.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_that_is_no_tensor_has_a_checksum_too(method: int, tmp_path: Path) -> None:
    """Its dtype may be unknown only because a bit of it flipped."""
    raw = npy_of(np.zeros(400_000, "M8[s]"))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as z:
        z.writestr("t.npy", raw)
        z.writestr("w.npy", npy_of(np.ones(2)))
    found = ckptconv.open(tmp_path / "a.npz")
    assert list(found) == ["w"]
    assert [(n.kind, n.names) for n in found.notes if n.names] == [("skipped", ("t",))]
    whole, crc = (tmp_path / "a.npz").read_bytes(), struct.pack("<L", zlib.crc32(raw))
    assert whole.count(crc) == 2
    (tmp_path / "a.npz").write_bytes(whole.replace(crc, struct.pack("<L", zlib.crc32(raw) ^ 1)))
    with refused("its CRC-32 is wrong|the CRC-32 of t.npy is wrong"):
        ckptconv.open(tmp_path / "a.npz")


def npy_of(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


# --- Flax, safetensors --------------------------------------------------------------------------------------------


def test_lists_in_flax(tmp_path: Path) -> None:
    import msgpack

    array = msgpack.ExtType(1, msgpack.packb(((2,), "float32", np.ones(2, "<f4").tobytes())))
    (tmp_path / "a.msgpack").write_bytes(msgpack.packb({"a": [array, {"b": array}]}))
    assert list(ckptconv.open(tmp_path / "a.msgpack")) == ["a/0", "a/1/b"]


def test_shards_none_of_which_opens(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    with refused("none of 2 shards can be opened"):
        ckptconv.open(tmp_path, keep_going=True)
    ckptconv.save({"other": np.ones(1)}, tmp_path / "b.safetensors")
    notes = [n for n in ckptconv.open(tmp_path, keep_going=True).notes if n.kind == "damaged"]
    assert {n.text for n in notes} >= {"not in b.safetensors, which the index names"}


# --- Keras --------------------------------------------------------------------------------------------------------


def test_variables_that_several_layers_list(tmp_path: Path) -> None:
    """One tensor where both are equal, two where they differ in value, shape, dtype or order, stored or deflated."""
    x, big = np.arange(4, dtype="f4"), np.arange(4, dtype="f4").astype(">f4")
    layers = {"a": {"s/w:0": x}, "b": {"s/w:0": x}}
    got = ckptconv.open(legacy(tmp_path / "a.h5", layers))
    assert list(got) == ["s/w"]
    assert [n.kind for n in got.notes] == ["tied"]
    for other in (x + 1, x.astype("i4"), x.reshape(2, 2), big):
        got = ckptconv.open(legacy(tmp_path / "a.h5", {"a": {"s/w:0": x}, "b": {"s/w:0": other}}))
        assert set(got) == {"a/s/w", "b/s/w"}
    for second, names in ((x, ["s/w"]), (x + 1, ["a/s/w", "b/s/w"])):
        path = legacy(tmp_path / "b.h5", {"a": {"s/w:0": None}, "b": {"s/w:0": None}})
        with h5py.File(path, "a") as f:
            f["a"].create_dataset("s/w:0", data=x, compression="gzip")
            f["b"].create_dataset("s/w:0", data=second, compression="gzip")
        assert list(ckptconv.open(path)) == names


def test_a_file_without_layers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["w"] = np.ones(1)
    with refused("no group has the attribute layer_names: this is not a legacy Keras file"):
        ckptconv.open(tmp_path / "a.h5", from_="keras")


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["bert/w:0"], f["more"], f.attrs["layer_names"] = np.ones(1), np.ones(1), [b"bert/w:0"]
    index = {"weight_map": {"model/bert/w:0": "a.h5"}}
    (tmp_path / "tf_model.h5.index.json").write_text(json.dumps(index))
    got = ckptconv.open(tmp_path / "tf_model.h5.index.json")
    assert list(got) == ["model/bert/w"]
    assert [n.names for n in got.notes if n.kind == "unread"] == [("more",)]
    index["weight_map"]["other/bert/w:0"] = "a.h5"
    (tmp_path / "tf_model.h5.index.json").write_text(json.dumps(index))
    with refused(r"1 tensor not in the file that the index names:\n *model/bert/w \(in a\.h5\)"):
        ckptconv.open(tmp_path / "tf_model.h5.index.json")
    del index["weight_map"]["other/bert/w:0"]
    index["weight_map"]["v:0"] = "a.h5"
    (tmp_path / "tf_model.h5.index.json").write_text(json.dumps(index))
    with refused(r"1 tensor not in the file that the index names:\n *v \(in a\.h5\)"):
        ckptconv.open(tmp_path / "tf_model.h5.index.json")


def test_archives_of_keras(tmp_path: Path) -> None:
    for name, words in (
        ("model.weights.npz", "which are pickles; save it as HDF5"),
        ("x", r"has no model\.weights\.h5"),
    ):
        with zipfile.ZipFile(tmp_path / "a.keras", "w") as z:
            z.writestr(name, b"")
            z.writestr("config.json", b"{}")
        with refused(words):
            ckptconv.open(tmp_path / "a.keras", from_="keras3")
    with pytest.raises(UsageError, match=r"a \.keras archive holds the model's code as well, .*; write \.weights\.h5"):
        ckptconv.save({"a": np.ones(1)}, tmp_path / "b.keras", to="keras3")
    with pytest.raises(UsageError, match=r"Keras 3 is one file; max_shard_size= needs a format with shards"):
        ckptconv.save({"layers/dense/vars/0": np.ones(9)}, tmp_path / "b.weights.h5", to="keras3", max_shard_size=8)


@pytest.mark.parametrize(("name", "long"), [("m.npz", 10), ("m.npz", 100_000), ("m.ckpt", 10), ("folder", 10)])
def test_metadata_of_our_own_is_carried(name: str, long: int, tmp_path: Path) -> None:
    """Where a format has none, at a place that other readers skip; entries of others are not."""
    ours = {"ckptconv.params": "x" * long, "ckptconv.tied": "y"}
    tensors = {n: np.ones(2) for n in ("a", "b", "c")}
    to = {"folder": "npy", "m.ckpt": "tf"}.get(name)
    ckptconv.save(tensors, tmp_path / name, metadata={**ours, "other": "z"}, to=to)
    assert ckptconv.open(tmp_path / name).metadata == ours


# --- the table ----------------------------------------------------------------------------------------------------


def test_formats_that_only_read_or_claim_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the format tf-v1 can be read but not written"):
        table.target("x", "tf-v1")
    monkeypatch.setattr(detect, "get", lambda name: table.get("npy")._replace(reads=False))
    with pytest.raises(UsageError, match="the format npy can be written but not read"):
        detect.open_checkpoint("x", format="npy")
    monkeypatch.undo()
    monkeypatch.setattr(detect, "_claims", lambda rows, seen, but: {"npy": 2, "npz": 2, "hf": 1})
    (tmp_path / "x").write_bytes(b"x" * 100)
    with pytest.raises(AmbiguousFormat, match=r"could be npy or npz; choose one with .*npy"):
        detect.detect(str(tmp_path / "x"))


def test_a_name_that_says_no_format() -> None:
    with pytest.raises(UsageError, match="does not determine the format; use to= with one of") as e:
        table.target("x.unknown")
    assert "npz (.npz)" in e.value.message
    assert "hf (-)" in e.value.message
    assert "tf-v1" not in e.value.message


def test_what_a_format_raises_unexpectedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones(1))
    for raised, words in (
        (RecursionError(), "cannot be read as npy: it is nested too deeply or too large"),
        (MemoryError(), "cannot be read as npy: it is nested too deeply or too large"),
        (KeyError("x"), "cannot be read as npy: KeyError: 'x'"),
    ):

        def fail(*_: Any, why: Exception = raised) -> Any:
            raise why

        monkeypatch.setattr(npy, "open", fail)
        with pytest.raises(ckptconv.CorruptCheckpoint, match=words):
            ckptconv.open(tmp_path / "a.npy")
    monkeypatch.setattr(npy, "sniff", fail)
    with pytest.raises(ckptconv.UnknownFormat):
        ckptconv.open(tmp_path / "a.npy")


def test_a_missing_package_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    monkeypatch.setattr(table.get("npy").load(), "open", lambda *_: import_module("a_package_that_is_not_there"))
    with pytest.raises(MissingExtra, match="the format npy needs a package that is not installed: No module named"):
        ckptconv.open(tmp_path / "a.npy")
