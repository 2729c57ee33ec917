"""HDF5: every way h5py can store a dataset reads bit for bit; what we write, h5py reads; hostile files are refused."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import hostile
import numpy as np
import pytest
from kit import same

import ckptconv
from ckptconv import errors
from ckptconv.errors import CorruptCheckpoint, Unrepresentable, UnsafeCheckpoint, UsageError
from ckptconv.formats.hdf5 import file
from ckptconv.formats.table import Reading
from ckptconv.moves.part import Coded, Span

HOSTILE = hostile.HOME / "hdf5"
EXPECTED = hostile.files("hdf5")

NUMBERS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "c8", "c16", "?"]


def noise(kind: str, shape: tuple[int, ...] = (5, 7)) -> np.ndarray:
    """Random bits, so that NaN payloads are among them."""
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return np.random.default_rng(1).integers(0, 2, shape).astype(bool)
    raw = np.random.default_rng(1).integers(0, 256, (*shape, dtype.itemsize), dtype="u1")
    return raw.view(dtype).reshape(shape)


STORAGE = {
    "contiguous": {},
    "chunked": {"chunks": (2, 3)},
    "gzip": {"chunks": (4, 7), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (4, 7), "compression": "lzf", "fletcher32": True},
}


@pytest.mark.parametrize("storage", STORAGE)
def test_every_number_in_every_storage(tmp_path: Path, storage: str) -> None:
    wanted = {}
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for kind in NUMBERS:
            for order in "<>":
                array = noise(kind).astype(np.dtype(kind).newbyteorder(order))
                f.create_dataset(f"{order}/{kind}", data=array, **STORAGE[storage])
                wanted[f"{order}/{kind}"] = array.astype(array.dtype.newbyteorder("="))
    got = ckptconv.open(tmp_path / "a.h5")
    assert set(got) == set(wanted)
    assert got.format == "hdf5"
    for name, array in wanted.items():
        assert same(got[name].numpy(), array), name
        assert isinstance(got[name].parts[0].data, Span if storage == "contiguous" else Coded)


@pytest.mark.parametrize("block", [0, 512, 2048])
def test_layouts_and_names(block: int, tmp_path: Path) -> None:
    """Also behind a user block, compact, and never written: then they consist of the fill value."""
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=block) as f:
        f["scalar"] = np.float64(-0.5)
        f["empty"] = np.zeros((0, 3), "i2")
        f.create_dataset("never", (2, 2), "f4", fillvalue=1.5)
        f.create_dataset("chunked", (5,), "f2", chunks=(2,), fillvalue=1.5)
        f.create_dataset("sparse", (4, 2), "i4", chunks=(2, 2), fillvalue=7)[0, 0] = 1
        f["ü/\n \x1b[31m"] = np.ones(2)
        f[b"\xff/\xfe"] = np.arange(3)
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        compact = h5py.h5d.create(f.id, b"compact", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((3,)), plan)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype="f4"))
    got = ckptconv.open(tmp_path / "a.h5")
    assert got["empty"].shape == (0, 3)
    assert {n: t.numpy().tolist() for n, t in got.items()} == {
        "scalar": -0.5, "empty": [], "never": [[1.5, 1.5]] * 2, "chunked": [1.5] * 5, "sparse": [[1, 7], *[[7, 7]] * 3],
        "ü/\n \x1b[31m": [1, 1], "\udcff/\udcfe": [0, 1, 2], "compact": [0, 1, 2],
    }  # fmt: skip


def test_what_is_no_tensor_is_noted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["ok"] = np.ones(1)
        f["table"] = np.zeros(2, [("a", "f4"), ("b", "i4")])
        f["void"] = h5py.Empty("f4")
        f["opaque"] = np.zeros(2, "V7")
        f["named"] = np.dtype("f8")
        f["text"], f["fixed"] = "alone", np.array([b"ab", b"c"])
        f["choice"] = np.zeros(2, h5py.enum_dtype({"A": 0, "B": 5}, "i1"))
        f.create_dataset("ragged", (2,), h5py.vlen_dtype("i4"))
        f.attrs["z"], f.attrs["raw"], f.attrs["where"] = 1 + 2j, np.void(b"\1\2"), f["ok"].ref
    got = ckptconv.open(tmp_path / "a.h5")
    assert set(got) == {"ok"}
    assert [n.names for n in got.notes if "attributes" in n.text] == [("@raw", "@where", "@z")]
    texts = {name: note.text for note in got.notes for name in note.names if "@" not in name}
    assert texts.keys() == {"table", "void", "opaque", "named", "ragged", "choice", "text", "fixed"}
    assert "frameworks do not write" in texts["choice"]


def test_hard_links_are_ties(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["a/w"] = np.arange(3.0)
        f["b"] = f["a/w"]
    got = ckptconv.open(tmp_path / "a.h5")
    assert got.ties == (("a/w", "b"),)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as f:
        assert f["a/w"] == f["b"]
        assert f["b"][:].tolist() == [0, 1, 2]


def test_files_of_matlab_say_that_axes_are_reversed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v73.mat", "w", userblock_size=512) as f:
        f["w"] = np.ones((2, 3))
        f["w"].attrs["MATLAB_class"] = b"double"
    assert "in reverse order" in str(ckptconv.open(tmp_path / "v73.mat").notes)


def test_attributes_are_metadata(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["g/w"] = np.ones(2)
        f.attrs.update({"text": "ä", "number": 3, "list": ["a", "b"], "none": h5py.Empty("f4")})
        f["g"].attrs["deep"] = 1.5
        f["g/w"].attrs["units"] = "m"
    got = ckptconv.open(tmp_path / "a.h5")
    assert got.metadata == {"text": "ä", "number": "3", "list": '["a", "b"]', "none": "null"}
    assert got.details["values"] == {"g": {"deep": 1.5}, "g/w": {"units": "m"}}
    made = ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as f:
        assert f.attrs["text"] == "ä"
    assert [n.names for n in made.notes if n.text == "attributes of groups and datasets"] == [("g", "g/w")]


# --- writing ---------------------------------------------------------------------------------------------------


def test_h5py_reads_what_we_write(tmp_path: Path) -> None:
    made = {kind: noise(kind) for kind in NUMBERS}
    ckptconv.save(made, tmp_path / "a.h5", metadata={"k": "v" * 100_000, "ü": ""})
    assert ckptconv.open(tmp_path / "a.h5").metadata == {"k": "v" * 100_000, "ü": ""}
    with h5py.File(tmp_path / "a.h5") as f:
        assert all(f[n].chunks is None for n in made)
        assert all(same(f[kind][()], made[kind]) for kind in NUMBERS)


@pytest.mark.parametrize("names", [("a", "a/b"), ("x/y/z", "x/y"), ("a", "a/b/c/d")])
def test_a_name_inside_another_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(Unrepresentable, match=r"weights_only=True(.|\n)*is inside"):
        ckptconv.save({n: np.ones(1) for n in names}, tmp_path / "a.h5")


def test_text_is_refused_or_left_out_on_request_and_never_cut(tmp_path: Path) -> None:
    made = {"t": np.array([b"ab"], object), "w": np.ones(1)}
    with pytest.raises(Unrepresentable, match="t: text is not written to HDF5"):
        ckptconv.save(made, tmp_path / "a.h5")
    ckptconv.save(made, tmp_path / "b.h5", skip_unrepresentable=True)
    assert list(ckptconv.open(tmp_path / "b.h5")) == ["w"]
    with pytest.raises(Unrepresentable, match="NUL"):
        ckptconv.save({"t": np.ones(1)}, tmp_path / "a.h5", metadata={"k": "a\0b"})


# --- hostile ---------------------------------------------------------------------------------------------------


def read_whole(path: Path) -> list[np.ndarray]:
    return [t.numpy() for t in ckptconv.open(path).values()]


@pytest.mark.parametrize("file", EXPECTED)
def test_hostile(file: str) -> None:
    error, words = EXPECTED[file]
    if not error:
        got = ckptconv.open(HOSTILE / file)
        assert words in " ".join(n.text for n in got.notes)
        assert all(t.numpy() is not None for t in got.values())
        return
    with pytest.raises(getattr(errors, error)) as caught:
        read_whole(HOSTILE / file)
    assert words in str(caught.value)


def test_records_that_take_much_more_memory_than_the_file_has_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        one = f.create_dataset("w", (3,), "f4")
        for i in range(3000):
            f["x" * 200 + str(i)] = one
    monkeypatch.setattr(file, "MORE_MEMORY", 0)
    assert len(file.look(str(tmp_path / "a.h5")).datasets) == 3001
    monkeypatch.setattr(file, "MEMORY", 0)
    file._look.cache_clear()
    with pytest.raises(UnsafeCheckpoint, match="much more memory than it has bytes"):
        file.look(str(tmp_path / "a.h5"))


def test_texts_that_are_shared_do_not_unfold(tmp_path: Path) -> None:
    """A thousand pointers to 128 kB."""
    texts = np.array(["x" * 2**17, *["y" * 6] * 999], object)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.attrs.create("a", texts, dtype=h5py.string_dtype())
    raw = bytearray((tmp_path / "a.h5").read_bytes())
    at = next(m.start() for m in re.finditer(struct.pack("<I", 2**17), raw) if raw[m.start() + 16] == 6)
    raw[at : at + 16000] = raw[at : at + 16] * 1000
    (tmp_path / "a.h5").write_bytes(raw)
    with pytest.raises((UnsafeCheckpoint, CorruptCheckpoint), match=r"much more memory|invalid message|MemoryError"):
        ckptconv.open(tmp_path / "a.h5")


@pytest.mark.slow
def test_reading_needs_no_h5py_in_this_process(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["w"] = np.ones(3)
    code = f"import sys, ckptconv; ckptconv.open({str(tmp_path / 'a.h5')!r})['w'].numpy(); print('h5py' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f.create_dataset("w", data=[value], chunks=(1,))
        assert ckptconv.open(tmp_path / "a.h5")["w"].numpy().tolist() == [value]


def test_interleaved_reads_do_not_meet(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for name in "ab":
            f.create_dataset(name, data=np.full(3 << 20, ord(name), "f8"), chunks=(1 << 16,), compression="gzip")
    got = file.open(str(tmp_path / "a.h5"), Reading())
    data = [got[n].parts[0].data for n in "ab"]
    assert all(isinstance(d, Coded) for d in data)
    for a, b in zip(*(file.decode(d) for d in data), strict=True):  # type: ignore[arg-type]
        assert (np.frombuffer(a)[0], np.frombuffer(b)[-1]) == (97, 98)


def test_long_names_are_cut(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["n" * 3000] = h5py.SoftLink("/x")
    with pytest.raises(UnsafeCheckpoint, match="is a soft link") as caught:
        ckptconv.open(tmp_path / "a.h5")
    assert len(caught.value.message) < 600


def test_a_chunk_that_does_not_fit_in_memory_is_refused(tmp_path: Path) -> None:
    """Compressed ones are decoded at once; the others are read in part."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for name, packed in (("a", "gzip"), ("b", None)):
            f.create_dataset(name, (20, 1_000_000), "i1", chunks=(20, 1_000_000), compression=packed)[-1] = 7
    with pytest.raises(UsageError, match=r"do not fit in max_memory=; give 20MB:\n  a: 20.0 MB$"):
        ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.npz", max_memory="16MB")
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.npz", max_memory="20MB")
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.npz", max_memory="16MB", include="b")


def test_opaque_elements(tmp_path: Path) -> None:
    """By their attribute, if it names a dtype of their size."""
    rows = [  # bytes, the attribute, the dtype, what is said of it
        "2 bfloat16 bfloat16", "1 float8_e5m2 float8_e5m2", "1 int4 int4", "1 uint8 uint8",
        "2 - bfloat16 assumed", "2 float8_e5m2 bfloat16 assumed", "1 - uint8 read as uint8",
        "1 bool uint8 read as uint8", "8 complex64 - 8 opaque bytes per element", "3 - - 3 opaque bytes per element",
    ]  # fmt: skip
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for row in rows:
            size, named, *_ = row.split()
            f.create_dataset(row, (2,), f"V{size}").attrs.update({"dtype": named} if named != "-" else {})
    got = ckptconv.open(tmp_path / "a.h5")
    notes = {name: note.text for note in got.notes if note.tensors for name in note.names}
    for row in rows:
        _, _, dtype, *words = row.split()
        assert (got[row].dtype.name if row in got else "-") == dtype
        assert " ".join(words) in notes[row] if words else row not in notes
