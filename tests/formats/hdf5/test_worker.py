"""What the HDF5 process does, called in this one: what it refuses, records, boxes, its end of the pipe."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

from ckptconv.formats.hdf5 import FRAME, worker

Build = Callable[[h5py.File], object]
TEN = np.arange(10.0)  # 80 bytes
CHUNKED: dict[str, Any] = {"data": TEN, "chunks": (10,)}


def opened(build: Build) -> h5py.File:
    """The file as it is read again."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        build(f)
    return h5py.File(raw, "r")


def records(build: Build) -> dict[str, dict[str, Any]]:
    with opened(build) as f:
        return {str(r["path"]): r for r in worker.records(f)}


def test_so_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_OBJECTS", 3)
    records(lambda f: [f.create_group(n) for n in "ab"])
    with pytest.raises(worker.Refused, match="more than 3 objects"):
        records(lambda f: [f.create_group(n) for n in "abc"])


def test_what_the_library_reads_differently_each_time_is_refused() -> None:
    with pytest.raises(worker.Refused, match="w is scaled, then packed by szip"):
        records(lambda f: f.create_dataset("w", data=np.arange(64), chunks=(32,), compression="szip", scaleoffset=0))


def test_what_is_recorded() -> None:
    def build(f: h5py.File) -> None:
        f.create_dataset("a/w", **CHUNKED).attrs["text"] = "mine"
        f["b"] = f["a/w"]
        f["b2"] = f["a/w"]
        f[b"\xff/\xfe"] = 1.0
        f["c"] = np.arange(3, dtype=">i4")
        f["none"] = h5py.Empty("f4")
        f["zero"] = np.zeros((0, 4), "f4")
        f.create_dataset("never", (3,), "f4")
        f["type"] = np.dtype("f4")
        f.attrs["pair"], f.attrs["z"], f.attrs["raw"] = [1, 2], 1 + 2j, np.void(b"\1\2")
        f.attrs["bytes"], f.attrs["empty"] = np.bytes_(b"x"), h5py.Empty("f4")
        f.attrs["where"] = f["c"].ref

    found = records(build)
    assert found[""]["attrs"] == {"pair": [1, 2], "bytes": "x", "empty": None, "?z": None, "?where": None, "?raw": None}
    assert found["a/w"] == {
        "path": "a/w", "attrs": {"text": "mine"}, "dtype": "float64", "swap": False, "shape": (10,),
        "itemsize": 8,
    }  # fmt: skip
    assert [found[n] for n in ("b", "b2")] == [{"path": n, "same": "a/w"} for n in ("b", "b2")]
    assert found["\udcff/\udcfe"]["shape"] == ()
    assert (found["c"]["dtype"], found["c"]["swap"], found["c"]["offset"] > 0) == ("int32", True, True)
    assert found["none"] == {"path": "none", "attrs": {}, "skip": "an empty dataspace without data"}
    assert "offset" not in found["zero"]
    assert "offset" not in found["never"]
    assert found["type"]["skip"] == "a named datatype without data"
    assert found["a"] == {"path": "a", "group": True, "attrs": {}}


@pytest.mark.parametrize("name", [b"a/b", b"/ab", b"./a"])
def test_a_link_whose_name_is_a_path_is_refused(name: bytes) -> None:
    """The library would open what the path leads to, which is not what the link leads to."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f["axb"] = TEN
    forged = io.BytesIO(raw.getvalue().replace(b"axb\0", name + b"\0"))
    with h5py.File(forged, "r") as f, pytest.raises(worker.Refused, match="which is not a name"):
        list(worker.records(f))


# --- slabs --------------------------------------------------------------------------------------------------------


BOXES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int, list[int]]] = {
    "a scalar": ((), None, 8, [1]),
    "nothing": ((0, 3), None, 8, []),
    "nothing inside": ((3, 0), None, 8, []),
    "all at once": ((4, 2), None, 8, [8]),
    "rows that fill a box": ((8, 2), None, 8, [8, 8]),
    "a rest": ((9, 2), None, 8, [8, 8, 2]),
    "rows larger than a box": ((3, 9), None, 8, [9, 9, 9]),
    "complete chunks": ((9, 2), (3, 1), 8, [6, 6, 6]),
    "chunks that fill a box": ((9, 2), (2, 1), 8, [8, 8, 2]),
    "the largest row of chunks": ((18, 2), (8, 2), 8, [16, 16, 4]),
    "too large a row of chunks": ((18, 2), (9, 2), 8, [16, 16, 4]),
    "the largest row": ((2, 16), None, 8, [16, 16]),
    "too large a row": ((2, 17), None, 8, [8, 8, 1, 8, 8, 1]),
    "too large a row of chunks of the next axis": ((2, 20), (2, 20), 8, [16, 4, 16, 4]),
    "one axis": ((40,), (20,), 8, [16, 16, 8]),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C order, nothing twice."""
    monkeypatch.setattr(worker, "MAX_DATA", 64)
    monkeypatch.setattr(worker, "MAX_BOX", 128)
    shape, chunks, itemsize, counts = BOXES[name]
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    parts = [numbers[tuple(slice(*side) for side in box)] for box in worker.boxes(shape, chunks, itemsize)]
    assert [part.size for part in parts] == counts
    assert [n for part in parts for n in part.reshape(-1)] == list(range(numbers.size))


@pytest.mark.parametrize("chunks", [(2, 2, 1), (1, 1, 1), (3, 1, 4), (1, 6, 4)])
def test_pieces_are_those_of_the_whole(chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the memory for each chunk counts, too."""
    values = np.arange(96, dtype="<u2").reshape(4, 6, 4)
    monkeypatch.setattr(worker, "MAX_DATA", 64)
    monkeypatch.setattr(worker, "MAX_BOX", 128)
    monkeypatch.setattr(worker, "CHUNK", 16)
    with opened(lambda f: f.create_dataset("w", data=values, chunks=chunks)) as f:
        pieces = list(worker.elements(f, "w", 0))
    assert b"".join(pieces) == values.tobytes()
    assert max(map(len, pieces)) <= (8 if chunks == (1, 1, 1) else 64)


# --- the pipe -----------------------------------------------------------------------------------------------------


class Parent:
    """Both ends of the pipe: frames that are written, and the bytes that they ask for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked, self.sent = data, list[tuple[int, int]](), b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def flush(self) -> None:
        assert FRAME.unpack_from(self.sent) == (b"G", 16)
        start, count = struct.unpack("<QQ", self.sent[FRAME.size :])
        assert 0 <= start < start + count <= len(self.data)
        self.asked.append((start, count))
        self.sent = b""

    def read(self, size: int) -> bytes:
        start, count = self.asked[-1]
        return self.data[start : start + count]


@given(st.lists(st.tuples(st.integers(0, 110), st.integers(0, 60)), min_size=1))
@examples(50)
def test_a_piped_file(reads: list[tuple[int, int]]) -> None:
    """Small parts by blocks, large ones in pieces, zeros behind the end."""
    data = bytes(range(1, 101))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(worker, "BLOCK", 8)
        m.setattr(worker, "PIECE", 20)
        parent: Any = Parent(data)
        piped = worker.Piped(parent, parent, 100)
        assert piped.seek(0, 2) == 100
        for start, size in reads:
            before, view = len(parent.asked), bytearray(b"x" * size)
            assert (piped.seek(start), piped.readinto(view)) == (start, size)
            assert bytes(view) == (data[start:] + bytes(size))[:size]
            assert piped.tell() == max(start, min(start + size, 100))
            asked = parent.asked[before:]
            assert all(n <= 20 for _, n in asked)
            assert size > 8 or all(at % 8 == 0 and n <= 8 for at, n in asked)
        count = len(parent.asked)
        for start in (0, 3, 0):
            piped.seek(start)
            piped.readinto(bytearray(1))
        assert len(parent.asked) <= count + 1
