"""Flax msgpack: files by flax read bit for bit, and what we write of them is flax's own, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from kit import FIXTURES, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor
from ckptconv.dtypes import DTYPES
from ckptconv.formats import flax as msgpack
from ckptconv.moves.part import Span
from ckptconv.testing import write

GOLDEN = FIXTURES / "flax"  # made by fixtures/make/by_flax.py
VECTOR = (
    "82a6706172616d7381a16bc7130193920102a862666c6f61743136c404803f803fa473746570c70e039390a5696e743332c40405000000"
)


def test_vector(tmp_path: Path) -> None:
    path = tmp_path / "v"
    path.write_bytes(bytes.fromhex(VECTOR))
    found = ckptconv.open(path)
    assert found.format == "flax"
    assert list(found) == ["params/k", "step"]
    assert (found["params/k"].dtype.name, found["params/k"].shape) == ("bfloat16", (1, 2))
    assert found["params/k"].numpy().astype("f4").tolist() == [[1.0, 1.0]]
    assert (found["step"].dtype.name, found["step"].shape, int(found["step"].numpy())) == ("int32", (), 5)


@pytest.mark.parametrize("name", ["dtypes", "odd", "chunked"])
def test_golden(name: str) -> None:
    found = ckptconv.open(GOLDEN / f"{name}.msgpack")
    with np.load(GOLDEN / f"{name}.npz") as want:
        assert set(found) == set(want.files)
        for n, t in found.items():
            assert t.shape == want[n].shape
            assert t.numpy().tobytes() == want[n].tobytes(), n


def test_what_is_no_tensor_is_noted() -> None:
    notes = ckptconv.open(GOLDEN / "odd.msgpack").notes
    assert {note.kind: note.names for note in notes} == {
        "assumed": tuple(f"python/{k}" for k in ("big", "bool", "complex", "float", "int", "negative")),
        "skipped": ("none: None", "opt_state/0: an empty container", "text: text of 4 bytes"),
    }


def test_elements_are_located_not_read() -> None:
    for t in ckptconv.open(GOLDEN / "dtypes.msgpack").values():
        assert isinstance(t.parts[0].data, Span)
        assert t.parts[0].data.size == t.nbytes
    assert len(ckptconv.open(GOLDEN / "chunked.msgpack")["params/w"].parts) == 7


def test_bytes_are_those_of_flax(tmp_path: Path) -> None:
    write(ckptconv.open(GOLDEN / "dtypes.msgpack"), tmp_path / "x.msgpack", "flax")
    assert (tmp_path / "x.msgpack").read_bytes() == (GOLDEN / "dtypes.msgpack").read_bytes()


def test_heads_of_every_length(tmp_path: Path) -> None:
    """Fixed extensions of 8 and 16 bytes, lengths around 2^8 and 2^16, keys and maps of every size class."""
    serialization = pytest.importorskip("msgpack")
    arrays = {f"n{n}": np.arange(n, dtype="u1") for n in (0, 1, 2, 3, 200, 254, 255, 256, 257, 65500, 65535, 65536)}
    arrays |= {"k" * n: np.ones(1, "u1") for n in (31, 32, 255, 256, 65535)}
    arrays |= {f"many/{i:03}": np.zeros((1,) * i, "u1") for i in range(18)}
    arrays["wide"] = np.zeros((0, 70_000, 300, 2**33), "u1")
    write(in_memory(arrays), tmp_path / "x.msgpack", "flax")
    tree = serialization.unpackb((tmp_path / "x.msgpack").read_bytes(), ext_hook=lambda code, raw: (code, raw))
    found = ckptconv.open(tmp_path / "x.msgpack")
    for n, a in arrays.items():
        assert (found[n].shape, found[n].numpy().tobytes()) == (a.shape, a.tobytes())
        code, raw = tree["many"][n[5:]] if n.startswith("many/") else tree[n]
        assert code == 1
        assert serialization.unpackb(raw) == [list(a.shape), "uint8", a.tobytes()]


def test_groups_nest(tmp_path: Path) -> None:
    serialization = pytest.importorskip("msgpack")
    ckptconv.save({n: np.ones(1) for n in ("b/x", "a", "b/y/z", "c//d")}, tmp_path / "x.msgpack")
    tree = serialization.unpackb((tmp_path / "x.msgpack").read_bytes(), ext_hook=lambda code, raw: 1)
    assert tree == {"b": {"x": 1, "y": {"z": 1}}, "a": 1, "c": {"": {"d": 1}}}
    assert list(tree) == ["b", "a", "c"]


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("a/b/c", "x", "a/b")])
def test_a_tensor_that_is_a_group_is_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ckptconv.Unrepresentable, match="both a tensor and a group"):
        ckptconv.save({n: np.ones(1) for n in names}, tmp_path / "x.msgpack")


def test_small_integers_are_put_right(tmp_path: Path) -> None:
    """Four-bit types lie in whole bytes whose high bits are anything."""
    body = b"\x93\x91\x04\xa4int4\xc4\x04\x0f\xff\x78\x07"
    (tmp_path / "x.msgpack").write_bytes(b"\x81\xa1w" + b"\xc7" + struct.pack("BB", len(body), 1) + body)
    assert ckptconv.open(tmp_path / "x.msgpack")["w"].numpy().astype("i1").tolist() == [-1, -1, -8, 7]


def test_an_array_beyond_the_length_of_msgpack_is_refused() -> None:
    vast = Tensor("w", DTYPES["uint8"], (2**32,), ())
    with pytest.raises(ckptconv.Unrepresentable, match="msgpack holds at most 4 GiB in one value"):
        msgpack.writer("x.msgpack").place(Checkpoint({"w": vast}))


def test_a_name_of_too_many_groups_is_refused(tmp_path: Path) -> None:
    ckptconv.save({"/".join("a" * 97): np.ones(1)}, tmp_path / "x.msgpack")
    assert len(ckptconv.open(tmp_path / "x.msgpack")) == 1
    with pytest.raises(ckptconv.Unrepresentable, match="more than 96 groups"):
        ckptconv.save({"/".join("a" * 98): np.ones(1)}, tmp_path / "y.msgpack")


@pytest.mark.parametrize("dtype", ["bo1l", "floav32", "int33", "str96", "float128"])
def test_a_damaged_dtype_is_an_error_and_a_foreign_one_a_note(dtype: str, tmp_path: Path) -> None:
    body = b"\x93\x91\x01" + bytes([0xA0 + len(dtype)]) + dtype.encode() + b"\xc4\x04abcd"
    (tmp_path / "x.msgpack").write_bytes(b"\x81\xa1w\xc7" + bytes([len(body), 1]) + body)
    if dtype in ("str96", "float128"):
        assert ckptconv.open(tmp_path / "x.msgpack").notes[0].names == (f"w: an array of {dtype}",)
    else:
        with pytest.raises(ckptconv.CorruptCheckpoint, match=f"has an array of '{dtype}', a dtype that neither NumPy"):
            ckptconv.open(tmp_path / "x.msgpack")
