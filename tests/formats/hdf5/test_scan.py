"""What the child does, called in this process: limits at their very numbers, records, slabs, its end of the pipe."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

from ckptconv.formats.hdf5 import inside, scan
from ckptconv.formats.hdf5.child import FRAME

Build = Callable[[h5py.File], object]
TEN = np.arange(10.0)  # 80 bytes
CHUNKED: dict[str, Any] = {"data": TEN, "chunks": (10,)}


def opened(build: Build) -> tuple[h5py.File, int]:
    """The file as it is read again, and its size."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        build(f)
    return h5py.File(raw, "r"), len(raw.getvalue())


def records(build: Build, size: int = 0) -> dict[str, dict[str, Any]]:
    f, whole = opened(build)
    with f:
        found = list(scan.tree(f, size or whole))
    return {str(r["path"]): r for r in found}


def chunked(*names: str) -> Build:
    return lambda f: [f.create_dataset(n, **CHUNKED) for n in names]


def attribute(f: h5py.File) -> None:
    f.attrs["few"], f.attrs["many"] = 1.0, np.arange(3.0)


def compact(f: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    made = h5py.h5d.create(f.id, b"w", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((10,)), plan)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, TEN)


# Each file just fits; with the limit, or the size of the file, one less it is refused in these words.
LIMITS: dict[str, tuple[Build, dict[str, int], int, str]] = {
    "depth": (lambda f: f.create_group("a/b"), {"MAX_DEPTH": 3}, 0, "unsafe: groups are nested more than 2 deep"),
    "objects": (chunked("a", "b"), {"MAX_OBJECTS": 3}, 0, "unsafe: more than 2 objects"),
    "an attribute": (attribute, {"MAX_ATTRIBUTE": 24}, 0, "unsafe: the attribute many is larger than 23 bytes"),
    "never written": (
        lambda f: f.create_dataset("w", (10,), "f8", chunks=(10,)), {"SLACK": 80}, 0,
        "unsafe: w declares 80 bytes and stores 0",
    ),
    "what deflate can reach": (
        lambda f: f.create_dataset("w", data=TEN, chunks=(20,), maxshape=(None,)), {"RATIO": 1, "SLACK": 0}, 160,
        "corrupt: w stores 160 bytes in a file of 159 (truncated?)",
    ),
    "declared by all": (chunked("a", "b"), {"RATIO": 1, "SLACK": 0}, 160, "160 bytes are declared in a file of 159"),
    "slack for all": (chunked("a", "b"), {"RATIO": 1, "SLACK": 10}, 160, "bytes in a file of 159: they overlap at b"),
    "stored by all": (chunked("a", "b"), {}, 160, "corrupt: datasets store 160 bytes in a file of 159: they overlap"),
    "compact": (compact, {}, 80, "corrupt: w stores 80 bytes in a file of 79 (truncated?)"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, limits, size, words = LIMITS[name]
    for limit, value in limits.items():
        monkeypatch.setattr(scan, limit, value)
    records(build, size)
    if size:
        size -= 1
    else:
        ((limit, value),) = limits.items()
        monkeypatch.setattr(scan, limit, value - 1)
    with pytest.raises(scan.Refused) as e:
        records(build, size)
    assert words in ": ".join(e.value.args)


def test_a_contiguous_dataset_ends_where_the_file_does() -> None:
    def build(f: h5py.File) -> None:
        f["w"] = TEN

    at = records(build)["w"]["offset"]
    assert at > 0
    assert records(build, at + 80)["w"]["offset"] == at
    with pytest.raises(scan.Refused, match=f"w: bytes {at} to {at + 80} are needed but the file has {at + 79}"):
        records(build, at + 79)


def loop(f: h5py.File) -> None:
    f["a/up"] = f["/"]


def linked_group(f: h5py.File) -> None:
    f["a/x"] = TEN
    f["b"] = f["a"]


def soft(f: h5py.File) -> None:
    f["w"] = h5py.SoftLink("/x")


def external(f: h5py.File) -> None:
    f["a/w"] = h5py.ExternalLink("x.h5", "/x")


def virtual(f: h5py.File) -> None:
    layout = h5py.VirtualLayout((10,), "f8")
    layout[:] = h5py.VirtualSource("x.h5", "w", (10,))
    f.create_virtual_dataset("w", layout)


def outside(f: h5py.File) -> None:
    f.create_dataset("w", (10,), "f8", external=[("x.bin", 0, 80)])


def plugin(f: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((10,))
    plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())
    h5py.h5d.create(f.id, b"w", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((10,)), plan)


REFUSED: dict[str, tuple[Build, str]] = {
    "loop": (loop, "unsafe: the group a/up is the group / again: links go in circles"),
    "a group twice": (linked_group, "unsafe: the group b is the group /a again"),
    "soft link": (soft, "unsafe: w is a soft link; only data in the file itself is read"),
    "external link": (external, "unsafe: a/w is an external link"),
    "virtual": (virtual, "unsafe: w is a virtual dataset: its bytes come from other files"),
    "outside": (outside, "unsafe: w keeps its bytes in an external file"),
    "plugin": (plugin, "unsafe: w needs the filter plugin 32015, which is not trusted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(scan.Refused) as e:
        records(build)
    assert words in ": ".join(e.value.args)


def test_what_is_recorded() -> None:
    def build(f: h5py.File) -> None:
        f.create_dataset("a/w", **CHUNKED).attrs["text"] = "mine"
        f["b"] = f["a/w"]
        f["b2"] = f["a/w"]
        f[b"\xff/\xfe"] = 1.0
        f["c"] = np.arange(3, dtype=">i4")
        f["none"] = h5py.Empty("f4")
        f["zero"] = np.zeros((0, 4), "f4")
        f["type"] = np.dtype("f4")
        f.attrs["pair"], f.attrs["z"], f.attrs["raw"] = [1, 2], 1 + 2j, np.void(b"\1\2")
        f.attrs["bytes"], f.attrs["empty"] = np.bytes_(b"x"), h5py.Empty("f4")
        f.attrs["where"] = f["c"].ref
        f.attrs["rows"] = np.zeros(2, [("a", "i4")])

    found = records(build)
    assert found[""]["attrs"] == {
        "pair": [1, 2], "?z": "neither a number nor text", "raw": "0102", "bytes": "x", "empty": None,
        "?where": "neither a number nor text", "?rows": "neither a number nor text",
    }  # fmt: skip
    assert (found["a/w"]["attrs"], found["a/w"]["offset"], "same" in found["a/w"]) == ({"text": "mine"}, -1, False)
    assert [(found[n]["same"], "attrs" in found[n]) for n in ("b", "b2")] == [("a/w", False)] * 2
    assert found["\udcff/\udcfe"]["bytes"] == 8
    assert {k: found["c"][k] for k in ("shape", "dtype", "swap", "bytes", "stored")} == {
        "shape": [3], "dtype": "int32", "swap": True, "bytes": 12, "stored": 12,
    }  # fmt: skip
    assert found["none"]["skip"] == "an empty dataspace without data"
    assert (found["zero"]["bytes"], found["zero"]["offset"]) == (0, -1)
    assert found["type"]["skip"] == "a named datatype without data"
    assert found["a"] == {"path": "a", "group": True, "attrs": {}}


def test_values_of_attributes() -> None:
    """Complex numbers have a class of their own since HDF5 2.0; before, they were compounds."""
    plain = scan._plain
    assert plain(np.complex64(1 + 2j)) == plain(1 + 2j) == [1.0, 2.0]
    assert plain(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert [type(plain(v)) for v in (np.float32(1), np.int8(1), np.bool_(True), "x", np.str_("x"))] == [
        float, int, bool, str, str,
    ]  # fmt: skip
    assert plain(b"\xff") == plain(np.bytes_(b"\xff")) == "\udcff"


def test_a_name_that_many_links_give_a_dataset_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(f: h5py.File) -> None:
        f.create_dataset("w", **CHUNKED)
        for i in range(5):
            f[f"x{i}"] = f["w"]

    assert [r.get("same") for r in records(build, 80).values()] == [None, None, *["w"] * 5]


@pytest.mark.parametrize("name", [b"a/b", b"/ab", b"./a"])
def test_a_link_whose_name_is_a_path_is_refused(name: bytes) -> None:
    """The library would open what the path leads to, which is not what the link leads to."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f["axb"] = TEN
    forged = io.BytesIO(raw.getvalue().replace(b"axb\0", name + b"\0"))
    with h5py.File(forged, "r") as f, pytest.raises(scan.Refused, match="which is not a name"):
        list(scan.tree(f, len(raw.getvalue())))


# --- slabs --------------------------------------------------------------------------------------------------------


SLABS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, int, list[int]]] = {
    "a scalar": ((), None, 8, [0]),
    "nothing": ((0, 3), None, 8, []),
    "nothing inside": ((3, 0), None, 8, []),
    "whole": ((4, 2), None, 8, [4]),
    "rows that fill a slab": ((8, 2), None, 8, [4, 4]),
    "a rest": ((9, 2), None, 8, [4, 4, 1]),
    "rows larger than a slab": ((3, 9), None, 8, [1, 1, 1]),
    "whole chunks": ((9, 2), (3, 1), 8, [3, 3, 3]),
    "chunks that fill a slab": ((9, 2), (2, 1), 8, [4, 4, 1]),
    "chunks larger than a slab": ((13, 2), (6, 2), 8, [6, 6, 1]),
    "the largest row of chunks": ((18, 2), (8, 2), 8, [8, 8, 2]),
    "too large a row of chunks": ((18, 2), (9, 2), 8, [8, 8, 2]),
    "a row of chunks that is larger than all": ((2, 20), (2, 20), 8, [1, 1]),
    "many chunks": ((10,), (1,), 4, [4, 4, 2]),
    "rows of many chunks": ((4, 3), (1, 1), 1, [1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", SLABS)
def test_slabs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SLAB", 64)
    monkeypatch.setattr(scan, "MAX_CHUNK_ROW", 128)
    monkeypatch.setattr(scan, "MAX_CHUNKS", 4)
    shape, chunks, itemsize, rows = SLABS[name]
    found = list(scan.slabs(shape, chunks, itemsize))
    assert [len(range(shape[0])[s]) if shape else 0 for s in found] == rows
    if shape:
        assert [i for s in found for i in range(shape[0])[s]] == (list(range(shape[0])) if rows else [])


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("chunks", [(2, 2, 1), (1, 1, 1), (3, 1, 4), (1, 6, 4)])
def test_a_wide_row_of_chunks_is_cut(chunks: tuple[int, ...], small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the next axes, and the pieces are those of the whole."""
    values = np.arange(96, dtype="<u2").reshape(4, 6, 4)
    monkeypatch.setattr(scan, "MAX_CHUNKS", 2)
    monkeypatch.setattr(scan, "MAX_WIDE", 2)

    def build(f: h5py.File) -> None:
        kind = h5py.h5t.IEEE_F16LE.copy()  # the bits of bfloat16
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_ebias(127)
        kind = kind if small else h5py.h5t.STD_U16LE
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(chunks)
        made = h5py.h5d.create(f.id, b"w", kind, h5py.h5s.create_simple(values.shape), plan)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values, kind)

    f, size = opened(build)
    with f:
        got = [bytes(p) for p in scan.pieces(f, "w", size) if isinstance(p, bytes)]
    assert b"".join(got) == values.tobytes()
    assert len(got) > 1


@pytest.mark.parametrize("variable", [False, True])
def test_texts_that_unfold(variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of variable length can share one long text; those of a fixed length are stored."""
    f, _ = opened(
        lambda f: f.create_dataset("t", data=[b"abcd", "é".encode()], dtype=h5py.string_dtype() if variable else "S6")
    )
    with f:
        monkeypatch.setattr(scan, "SLACK", 1)
        assert list(scan.pieces(f, "t", 5)) == [[b"abcd", "é".encode()]]
        if not variable:
            assert list(scan.pieces(f, "t", 0)) == [[b"abcd", "é".encode()]]
            return
        with pytest.raises(scan.Refused, match="t unfolds to more than 6 bytes in a file of 4"):
            list(scan.pieces(f, "t", 4))


# --- the pipe -----------------------------------------------------------------------------------------------------


class Parent:
    """Both ends of the pipe: frames that are written, and the bytes that they ask for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked, self.next = data, list[tuple[int, int]](), b""

    def write(self, frame: bytes) -> None:
        kind, size = FRAME.unpack_from(frame)
        start, count = struct.unpack("<QQ", frame[FRAME.size :])
        assert (kind, size, 0 <= start <= start + count <= len(self.data)) == (b"G", 16, True)
        self.asked.append((start, count))
        self.next = self.data[start : start + count]

    def flush(self) -> None:
        """Nothing is buffered."""

    def read(self, size: int) -> bytes:
        return self.next


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60)), min_size=1))
@examples(50)
def test_a_piped_file(reads: list[tuple[int, int]]) -> None:
    data = bytes(range(100))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(inside, "BLOCK", 8)
        m.setattr(inside, "MAX_BLOCKS", 2)
        m.setattr(inside, "headway", lambda: None)  # it limits the time of the process, which here is that of all tests
        parent = Parent(data)
        piped: Any = inside.Piped(parent, parent, 100)  # type: ignore[arg-type]
        for start, size in reads:
            size = min(size, 100 - start)
            before = len(parent.asked)
            assert piped.read(start, size) == data[start : start + size]
            asked = parent.asked[before:]
            assert asked == [(start, size)] if size > 8 else all(a % 8 == 0 and n <= 8 for a, n in asked)
            assert len(asked) <= 2
            assert len(piped._blocks) <= 2


def test_blocks_are_kept_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "BLOCK", 8)
    monkeypatch.setattr(inside, "MAX_BLOCKS", 2)
    monkeypatch.setattr(inside, "headway", lambda: None)
    parent = Parent(bytes(20))
    piped: Any = inside.Piped(parent, parent, 20)  # type: ignore[arg-type]
    for at in (0, 3, 8, 0, 16, 8, 0):
        piped.read(at, 1)
    assert parent.asked == [(0, 8), (8, 8), (16, 4), (0, 8)]
    parent.read = lambda size: b""  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        piped.read(0, 9)


def test_records_have_room_for_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = FRAME.size + len(json.dumps({"path": ""}))
    monkeypatch.setattr(inside, "RECORD_RATIO", 1 - 2**20)
    for more, fits in ((2 * size, True), (2 * size - 1, False)):
        monkeypatch.setattr(inside, "tree", lambda *_: iter([{"path": ""}] * 2))
        monkeypatch.setattr(inside, "RECORD_RATIO", more - 2**20)
        if fits:
            assert list(inside.serve(None, {"do": "scan"}, 1)) == [(b"R", b'{"path": ""}')] * 2
        else:
            with pytest.raises(scan.Refused, match="unfold without bound in a file of 1 bytes"):
                list(inside.serve(None, {"do": "scan"}, 1))


def test_data_comes_in_frames_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "MAX_DATA", 4)
    monkeypatch.setattr(inside, "pieces", lambda *_: iter([b"abcdefghi", b"", b"abcd", [b"", b"x", b"yz"], [], [b""]]))
    assert list(inside.serve(None, {"do": "read", "path": "w"}, 1)) == [
        (b"D", b"abcd"), (b"D", b"efgh"), (b"D", b"i"), (b"D", b"abcd"),
        (b"S", b"\0\0\0\0"), (b"S", b"\1\0\0\0x"), (b"S", b"\2\0\0\0yz"), (b"S", b"\0\0\0\0"),
    ]  # fmt: skip
