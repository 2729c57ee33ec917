"""npz and npy against NumPy: every dtype, order and version it writes reads bit for bit; it reads what we write."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import refused

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.dtypes import DTYPES
from ckptconv.errors import UnsafeCheckpoint, VerifyError
from ckptconv.formats import npy, npz, zip
from ckptconv.storage.files import Reader
from ckptconv.testing import bits, holdable, write, zoo

KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
DESCRS = ["?", *(order + kind for order in "<>" for kind in KINDS)]


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    out: dict[str, np.ndarray[Any, Any]] = {}
    for descr in DESCRS:
        kind = np.dtype(descr)
        raw = rng.integers(0, 2 if descr == "?" else 256, 24 * kind.itemsize, dtype="u1")
        array = raw.view(kind).reshape(2, 3, 4)
        out[f"{descr}/C"] = array
        out[f"{descr}/F"] = np.asfortranarray(array)
        out[f"{descr}/T"] = array.transpose(1, 0, 2)
    return out | {"scalar": np.array(-0.0), "none": np.zeros((0, 3), "f4"), "é": np.ones(1), "one": np.ones((1, 1, 1))}


def little(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "deflated"])
def test_what_numpy_writes(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "x.npz", **arrays())
    found = ckptconv.open(tmp_path / "x.npz")
    assert list(found) == list(arrays())
    assert not found.notes
    for n, a in arrays().items():
        assert found[n].shape == a.shape
        assert found[n].dtype.name == a.dtype.name
        assert found[n].numpy().tobytes() == little(a), n


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_versions(version: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as f:
        np.lib.format.write_array(f, np.arange(5), version)
    assert ckptconv.open(tmp_path / "x.npy")["x"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_numpy_reads_what_we_write(tmp_path: Path) -> None:
    kept = holdable(zoo(), tmp_path / "x.npz", "npz")
    write(kept, tmp_path / "x.npz", "npz")
    write(kept, tmp_path / "folder", "npy")
    with zipfile.ZipFile(tmp_path / "x.npz") as z:
        assert z.testzip() is None
        assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in z.infolist())
    with np.load(tmp_path / "x.npz") as found:
        assert found.files == list(kept)
        for n, t in kept.items():
            assert (found[n].dtype.name, found[n].shape) == (t.dtype.name, t.shape)
            assert found[n].tobytes() == t.numpy().tobytes(), n
    for n, t in kept.items():
        mapped = np.load(tmp_path / "folder" / (n.replace("/", "%2F") + ".npy"), mmap_mode="r" if t.count else None)
        assert mapped.tobytes() == t.numpy().tobytes()


def test_head_is_numpys(tmp_path: Path) -> None:
    for shape in [(), (3,), (2, 3), (0, 1, 2)]:
        array, theirs = np.zeros(shape, "f4"), io.BytesIO()
        np.save(theirs, array)
        write(Checkpoint({"x": held("x", array)}), tmp_path / "x.npy", "npy")
        assert (tmp_path / "x.npy").read_bytes() == theirs.getvalue()


def test_types_that_numpy_forgets(tmp_path: Path) -> None:
    save: Any = np.savez
    save(tmp_path / "x.npz", **{n: bits(DTYPES[n], (2, 3)) for n in ("bfloat16", "float8_e5m2", "float8_e4m3fn")})
    found = ckptconv.open(tmp_path / "x.npz")
    assert {n: t.dtype.name for n, t in found.items()} == {
        "bfloat16": "bfloat16",
        "float8_e5m2": "float8_e5m2",
        "float8_e4m3fn": "uint8",  # could be any of several
    }
    assert all(found[n].numpy().tobytes() == bits(DTYPES[n], (2, 3)).tobytes() for n in found)
    assert sorted(name for note in found.notes for name in note.names) == sorted(found)
    assert {note.kind for note in found.notes} == {"assumed"}


def test_types_that_are_no_tensors(tmp_path: Path) -> None:
    odd = {"d": np.array(["2020-01-01"], "M8[D]"), "s": np.zeros(2, "i4,f4"), "u": np.array(["é", "long"])}
    np.savez(tmp_path / "x.npz", w=np.ones(1), **odd)
    found = ckptconv.open(tmp_path / "x.npz")
    assert list(found) == ["w"]
    text = "arrays whose dtype no checkpoint holds: "
    assert [note[:3] for note in found.notes] == [
        ("skipped", f"{text}<M8[D]", ("d",)), ("skipped", f"{text}[('f0', '<i4'), ('f1', '<f4')]", ("s",)),
        ("skipped", f"{text}<U4", ("u",)),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [64, npz.NEAR, npz.NEAR + 1, npy.MAX_HEAD, npy.MAX_HEAD + 1])
@pytest.mark.parametrize("kind", ["npy", "stored", "deflated"])
def test_headers_of_any_size_up_to_the_largest(size: int, kind: str, tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (500,), }"
    text = text.ljust(size - 12 - 1) + b"\n"
    raw = b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little") + text + np.arange(500, dtype="<f4").tobytes()
    path = tmp_path / ("w.npy" if kind == "npy" else "w.npz")
    path.write_bytes(raw)
    if kind != "npy":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED) as z:
            z.writestr("w.npy", raw)
    if size > npy.MAX_HEAD:
        with refused(f"claims a header of {size} bytes, of which .* \\(at most {npy.MAX_HEAD} are read\\)"):
            ckptconv.open(path)
        return
    assert ckptconv.open(path)["w"].numpy().tolist() == list(range(500))


def test_arrays_of_objects(tmp_path: Path) -> None:
    """np.save of a dict of arrays: how Caffe models were once passed around. What is skipped is in one note."""
    big = np.asfortranarray([[1, 2]]).astype(">i2")
    weights: Any = {"conv1": [np.arange(6.0).reshape(2, 3), np.ones(3, "f4")], "be": big, "lr": 0.1}
    np.save(tmp_path / "x.npy", weights, allow_pickle=True)
    listed = np.array([np.ones(2), "x"], object)
    np.savez(tmp_path / "x.npz", params=weights, w=np.ones(1), l=listed)
    flat = {"conv1.0": weights["conv1"][0], "conv1.1": weights["conv1"][1], "be": big}
    found = ckptconv.open(tmp_path / "x.npy")
    assert set(found) == set(flat)
    assert all(found[n].numpy().tobytes() == little(np.ascontiguousarray(a)) for n, a in flat.items())
    found = ckptconv.open(tmp_path / "x.npz")
    assert set(found) == {f"params.{n}" for n in flat} | {"w", "l.0"}
    assert [note.names for note in found.notes] == [("params.lr", "l.1")]


def test_twins_for_numpy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ckptconv.Unrepresentable, match=r"a\.npy"):
        ckptconv.save({"a": np.ones(1), "a.npy": np.zeros(1)}, tmp_path / "x.npz")


@pytest.mark.parametrize("size", [2**32 - 2, 2**32 - 1, 2**40])
def test_headers_fill_the_room_before_aligned_bytes(size: int) -> None:
    """However long a name is, and with sizes that take a field of their own."""
    for length in range(1, 70):
        laid = zip.StoredZip("x", {"n" * length: zip.Content(b"", "w", size)})
        header, (slot,) = laid.headers({})[0], laid.placement().slots.values()
        assert (header.start, len(header.data)) == (0, slot.start)
        assert (slot.start % 64, laid.end) == (0, slot.start + size)


def test_zip64_offsets(tmp_path: Path) -> None:
    """A sparse file of 9 GiB: Python's zipfile and ours agree with what was laid out."""
    sizes = {"a.npy": 2**32 + 5, "b.npy": 3, "c.npy": 2**32, "d.npy": 7}
    laid = zip.StoredZip("x.zip", {n: zip.Content(b"", n, size) for n, size in sizes.items()})
    slots = laid.placement().slots
    with (tmp_path / "x.zip").open("wb") as out:
        for _, at, raw in laid.headers({"b.npy": zlib.crc32(b"abc")}):
            out.seek(at)
            out.write(raw)
        out.seek(slots["b.npy"].start)
        out.write(b"abc")
    with zipfile.ZipFile(tmp_path / "x.zip") as z:
        assert z.read("b.npy") == b"abc"
        assert {info.filename: info.file_size for info in z.infolist()} == sizes
    with Reader(str(tmp_path / "x.zip")) as f:
        assert {n: m[1] for n, m in zip.members(f).items()} == {n: slot.start for n, slot in slots.items()}


def test_a_zip_of_something_else_is_not_an_empty_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as z:
        z.writestr("archive/data.pkl", b"")
    with pytest.raises(ckptconv.CorruptCheckpoint, match="is a zip without any"):
        ckptconv.open(tmp_path / "a.npz", from_="npz")


# --- what NumPy and others do that was not read, or read otherwise ------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [2, 15.5, 16])
def test_deflated_data_that_zlib_holds_back(megabytes: float, tmp_path: Path) -> None:
    """The last input of much repetition is taken long before its output is given."""
    array = np.zeros(int(megabytes * 2**18), "f4")
    mixed = array.copy()
    mixed[::70_001] = 1
    np.savez_compressed(tmp_path / "x.npz", w=array, v=mixed[:-1])
    found = ckptconv.open(tmp_path / "x.npz")
    assert found["w"].numpy().tobytes() == array.tobytes()
    assert found["v"].numpy().tobytes() == mixed[:-1].tobytes()


@pytest.mark.parametrize("names", [("w.npy", "w"), ("a.npy", "a.npy.npy")])
def test_members_that_numpy_takes_for_one_another(names: tuple[str, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as z:
        for i, name in enumerate(names):
            with z.open(name, "w") as f:
                np.lib.format.write_array(f, np.full(3, i))
    with pytest.raises(UnsafeCheckpoint, match="taken for one another"):
        ckptconv.open(tmp_path / "x.npz")


@pytest.mark.parametrize("descr", ["<V2", ">V2", "|V2"])
def test_bytes_without_a_dtype_have_no_byte_order(descr: str, tmp_path: Path) -> None:
    raw = bytes(range(8))
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (4,), }}".encode()
    head += b" " * (-(10 + len(head) + 1) % 64) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + raw)
    assert np.load(tmp_path / "x.npy").tobytes() == raw
    assert ckptconv.open(tmp_path / "x.npy")["x"].numpy().tobytes() == raw


@pytest.mark.parametrize("name", ["w", "out", "layer/with.dots", "a\nb"])
def test_one_tensor_under_any_stem(name: str, tmp_path: Path) -> None:
    ckptconv.save({name: np.arange(3)}, tmp_path / "x.safetensors")
    report = ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "out.npy", verify=True)
    assert np.load(tmp_path / "out.npy").tolist() == [0, 1, 2]
    assert [n.names for n in report.notes if n.kind == "lossy"] == ([(f"{name} -> out",)] if name != "out" else [])
    ckptconv.verify(tmp_path / "x.safetensors", tmp_path / "out.npy")
    ckptconv.save({name: np.arange(4)}, tmp_path / "y.safetensors")
    with pytest.raises(VerifyError):
        ckptconv.verify(tmp_path / "y.safetensors", tmp_path / "out.npy")
