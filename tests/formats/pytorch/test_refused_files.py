"""What the containers of torch's pickles may not hold: archives, streams, folders of chunks, programs."""

from __future__ import annotations

import io
import json
import pickle
import struct
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import refused
from pickles import Call, Global, Id, Raw, archive, pickled

import ckptconv
from ckptconv.formats.detect import open_checkpoint
from ckptconv.formats.pytorch import bare, flatten, torchscript
from ckptconv.formats.table import Reading

ORDERED = Call(Global("collections.OrderedDict"))
FLOAT, LONG = Global("torch.FloatStorage"), Global("torch.LongStorage")
ONES = np.ones(2, "<f4").tobytes()


def stored(key: Any = "0", count: Any = 2, kind: Any = FLOAT) -> Id:
    return Id(("storage", kind, key, "cpu", count))


def tensor(storage: Any = None, shape: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,)) -> Call:
    where = storage or stored()
    return Call(Global("torch._utils._rebuild_tensor_v2"), (where, 0, shape, strides, False, ORDERED))


def opened(path: Path, raw: bytes, **options: Any) -> ckptconv.Checkpoint:
    path.write_bytes(raw)
    return open_checkpoint(str(path), Reading(**options))


def zipped(members: dict[str, bytes], packed: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, raw in members.items():
            z.writestr(zipfile.ZipInfo(name), raw, zipfile.ZIP_DEFLATED if name in packed else zipfile.ZIP_STORED)
    return out.getvalue()


# --- archives -----------------------------------------------------------------------------------------------------

ARCHIVES: dict[str, tuple[bytes, str]] = {
    "an id of two": (archive({"w": tensor(Id(("storage", FLOAT)))}, {"0": ONES}), "a persistent id is .*, not a"),
    "a key of a fraction": (archive({"w": tensor(stored(0.5))}, {"0": ONES}), "a storage is described by"),
    "a negative count": (archive({"w": tensor(stored(count=-1))}, {"0": ONES}), "a storage is described by"),
    "two sizes": (
        archive({"a": tensor(), "b": tensor(stored(count=1), (1,))}, {"0": ONES}), "the storage '0' is given two sizes"
    ),
    "a byte too many": (archive({"w": tensor()}, {"0": ONES + b"\0"}), "data/0 has 9 bytes where 2 elements of"),
    "version 0": (archive({"w": 1}, {}, version=b"0"), "its version is b'0'; 1 to 10 can be"),
    "a byte order of 17 bytes": (archive({"w": 1}, {}, byteorder=b" " * 17), "byteorder has 17 bytes, 16 are sensible"),
}  # fmt: skip


def test_what_an_archive_may_hold(tmp_path: Path) -> None:
    """A key of a number, one of 200 characters, version 1, what no tensor refers to, an empty storage of two types."""
    long = "0" * 200
    none = [stored("2", 0), stored("2", 0, LONG)]
    value = {"a": tensor(stored(0)), "b": tensor(stored(long)), "none": [tensor(s, (0,)) for s in none]}
    storages = {"0": ONES, "2": b"", long: ONES, "3": b"left"}
    for version in (b"1", b"10\n"):
        got = opened(tmp_path / "a.pt", archive(value, storages, version=version))
        assert {n: str(t.dtype) for n, t in got.items()} == {
            "a": "float32", "b": "float32", "none.0": "float32", "none.1": "int64",
        }  # fmt: skip
        assert [n.names for n in got.notes if n.kind == "unread"] == [("data/3",)]


@pytest.mark.parametrize(("kind", "count", "size"), [("QUInt2x4", 3, 3), ("QUInt4x2", 3, 3), ("ComplexHalf", 8, 32)])
def test_packed_storages(kind: str, count: int, size: int, tmp_path: Path) -> None:
    """Elements of less than a byte fill whole bytes."""
    value = {"s": stored(count=count, kind=Global(f"torch.{kind}Storage"))}
    assert list(opened(tmp_path / "a.pt", archive(value, {"0": bytes(size)}))) == []
    for wrong in (size - 1, size + 1):
        with refused(f"data/0 has {wrong} bytes where {count} elements of {kind}Storage need {size}"):
            opened(tmp_path / "a.pt", archive(value, {"0": bytes(wrong)}))


def test_archives_of_which_nothing_is_left(tmp_path: Path) -> None:
    """A bare storage, a NumPy array of a dtype that nothing else has, keys that are not text."""
    long = np.zeros(2, np.longdouble)
    value = {b"\xff": tensor(), Global("numpy.ndarray"): tensor(), (1, "a"): tensor(), "s": stored()}
    got = opened(tmp_path / "a.pt", archive(value, {"0": ONES}))
    assert list(got) == ["\\xff", "ndarray", "(1, a)"]
    assert [n.names for n in got.notes if "bare storages, which have no shape" in n.text] == [("s",)]
    got = opened(tmp_path / "b.pkl", pickle.dumps({"w": np.ones(2), "l": long, "again": [long]}, 3))
    assert list(got) == ["w"]
    assert [n.names for n in got.notes if "which nothing else can hold" in n.text] == [("l", "again.0")]


def test_arrays_that_share_their_bytes_without_end(tmp_path: Path) -> None:
    """A few kilobytes more than the text of 100 kB would be megabytes."""
    kind = Call(Global("numpy.dtype"), ("u1", False, True))
    whole = Raw(pickled(b"\0" * 100_000)[2:-1] + b"q\1")
    first = Call(Global("numpy.core.numeric._frombuffer"), (whole, kind, (100_000,)))
    more = Call(Global("numpy.core.numeric._frombuffer"), (Raw(b"h\1"), kind, (100_000,)))
    assert len(opened(tmp_path / "a.pkl", pickled([first] + [more] * 10))) == 11
    with refused("the pickle uses the same values over and over"):
        opened(tmp_path / "a.pkl", pickled([first] + [more] * 20))


def test_bare_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("arrays of over 1 GiB that Paddle split are not joined; save with protocol 4"):
        opened(tmp_path / "a.pdparams", pickle.dumps({"w": np.ones(2), "UnpackBigParamInfor@@": {}}, 2))
    raw = pickle.dumps([np.ones(2)], 2)
    monkeypatch.setattr(bare, "MAX_PICKLE", len(raw))
    assert list(opened(tmp_path / "a.pkl", raw)) == ["0"]
    monkeypatch.setattr(bare, "MAX_PICKLE", len(raw) - 1)
    with refused(f"has {len(raw)} bytes; pickles are read whole, up to {len(raw) - 1}"):
        opened(tmp_path / "a.pkl", raw)


# --- joblib -------------------------------------------------------------------------------------------------------

NDARRAY = Global("numpy.ndarray")
DOUBLES = Call(Global("numpy.dtype"), ("f8", False, True))


def dumped(tail: bytes = b"\0" * 16, **said: Any) -> bytes:
    state = {"subclass": NDARRAY, "shape": (2,), "order": "C", "dtype": DOUBLES} | said
    made = Call(Global("joblib.numpy_pickle.NumpyArrayWrapper"), (), (state,), new=True)
    return pickled({"w": Raw(pickled(made)[2:-1] + tail)})


JOBLIB: dict[str, tuple[bytes, str]] = {
    "a class that is none": (dumped(subclass=3), "joblib describes an array by .3, "),
    "an order": (dumped(order="K"), "joblib describes an array by"),
    "objects": (dumped(dtype=Call(Global("numpy.dtype"), ("O8", False, True))), "joblib stores an array of objects"),
    "cut": (dumped(b"\0" * 13), "the pickle ends early: 16 bytes are"),
}  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        dumped(np.arange(2.0).tobytes()),
        dumped(b"\3abc" + np.arange(2.0).tobytes(), numpy_array_alignment_bytes=16),
        dumped(b"\0" + np.arange(2.0).tobytes(), numpy_array_alignment_bytes=16),
    ],
)
def test_joblib_with_and_without_padding(raw: bytes, tmp_path: Path) -> None:
    assert opened(tmp_path / "a.joblib", raw)["w"].numpy().tolist() == [0, 1]


# --- streams ------------------------------------------------------------------------------------------------------

SYSTEM = {"little_endian": True, "protocol_version": 1001}
MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")


def old(key: Any = "0", count: Any = 2, kind: Any = FLOAT, view: Any = None) -> Id:
    return Id(("storage", kind, key, "cpu", count, view))


def stream(value: Any, keys: Any = ("0",), tail: bytes | None = None, **head: Any) -> bytes:
    said = {"protocol": 1001, "system": SYSTEM} | head
    tail = struct.pack("<q", 2) + ONES if tail is None else tail
    parts = (said["protocol"], said["system"], value, list(keys) if isinstance(keys, tuple) else keys)
    return MAGIC + b"".join(map(pickled, parts)) + tail


STREAMS: dict[str, tuple[bytes, str]] = {
    "a system of text": (stream({}, system="little"), "its protocol is 1001, its system 'little'"),
    "keys of text": (stream({"w": tensor(old())}, keys="0"), "the list of storage keys is damaged"),
    "an id of five": (stream({"w": tensor(stored())}), "a persistent id is .*, not a storage"),
    "a part of a storage": (stream({"w": tensor(old(view=("1", 0, 1)), (1,))}), "has a part of a storage, as PyTorch"),
    "two sizes": (stream([tensor(old()), tensor(old(count=1), (1,))]), "the storage 0 is described in two ways"),
}


def test_what_a_stream_may_hold(tmp_path: Path) -> None:
    """Keys of numbers, a module; the bytes may end with the last storage."""
    module = Id(("module", [1], "net.py", "source"))
    both = [tensor(old(0)), tensor(old("0"))]
    got = opened(tmp_path / "a.pt", stream({"t": both, "m": module}, tail=struct.pack("<q2f", 2, 3, 4)))
    assert {n: t.numpy().tolist() for n, t in got.items()} == {"t.0": [3, 4], "t.1": [3, 4]}
    assert got.ties == (("t.0", "t.1"),)
    assert not [n for n in got.notes if n.kind == "unread"]


# --- distributed --------------------------------------------------------------------------------------------------

META = "torch.distributed.checkpoint.metadata."


def record(name: str, **state: Any) -> Call:
    return Call(Global(name if "." in name else META + name), (), (state,), new=True)


def chunk(offsets: Any, sizes: Any) -> Call:
    return record("ChunkStorageMetadata", offsets=offsets, sizes=sizes)


def mapping(*pairs: tuple[Any, Any]) -> Raw:
    return Raw(b"}(" + b"".join(pickled(x)[2:-1] for pair in pairs for x in pair) + b"u")


def info(path: Any = "__0_0.distcp", start: Any = 0, size: Any = None, **more: Any) -> Call:
    name = "torch.distributed.checkpoint.filesystem._StorageInfo"
    return record(name, relative_path=path, offset=start, length=len(CHUNK) if size is None else size, **more)


def index(offset: Any = (0, 0), name: str = "w") -> Call:
    return record("MetadataIndex", fqn=name, offset=offset)


CHUNK = archive(tensor(None, (1, 2), (2, 1)), {"0": ONES})
WHOLE_NUMBERS = archive(tensor(stored(kind=Global("torch.IntStorage")), (1, 2), (2, 1)), {"0": ONES})
EMPTY = archive(tensor(None, (0, 2), (2, 1)), {"0": ONES})
TOP, BOTTOM = chunk((0, 0), (1, 2)), chunk((1, 0), (1, 2))
PLACES = ((index(), info()), (index((1, 0)), info(start=len(CHUNK))))


def described(chunks: Any, size: Any = (2, 2), name: Any = "w", **more: Any) -> dict[Any, Any]:
    return {name: record("TensorStorageMetadata", size=size, chunks=chunks, **more)}


def properties(dtype: Any, module: str = META) -> Call:
    state = (dtype, None, False, None, False)
    return Call(Global(f"{module}TensorProperties"), (), (state,), new=True)


def folder(at: Path, about: Any, places: Any = PLACES, data: bytes = CHUNK * 2, planned: Any = None) -> Path:
    storage = mapping(*places) if isinstance(places, tuple) else places
    root = record("Metadata", state_dict_metadata=about, storage_data=storage, planner_data=planned)
    (at / ".metadata").write_bytes(pickled(root))
    (at / "__0_0.distcp").write_bytes(data)
    return at


FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "a tensor called 3": ({"about": described([TOP, BOTTOM], name=3)}, "describes a tensor called 3, which is not"),
    "no descriptions": ({"about": [1]}, "has no proper state_dict_metadata"),
    "a size of fractions": ({"about": described([TOP], (1.0, 2))}, r"the size of a tensor is \(1.0, 2\), not at most"),
    "chunks in a tuple": ({"about": described((TOP, BOTTOM))}, "has no proper chunks"),
    "a chunk of one offset": (
        {"about": described([chunk((0,), (1, 2))]), "places": ((index((0,)), info()),)},
        r"its chunk at \[0\] is float32\[1, 2\], not a part",
    ),
    "a chunk before": (
        {"about": described([chunk((-1, 0), (1, 2))]), "places": ((index((-1, 0)), info()),)},
        r"its chunk at \[-1, 0\] is .* not a part",
    ),
    "a chunk of another shape": (
        {"about": described([chunk((0, 0), (2, 2))])}, r"its chunk at \[0, 0\] is float32\[1, 2\], not as described"
    ),
    "a chunk of another dtype": (
        {
            "about": described([TOP, BOTTOM]), "data": CHUNK + WHOLE_NUMBERS,
            "places": (PLACES[0], (index((1, 0)), info(start=len(CHUNK), size=len(WHOLE_NUMBERS)))),
        }, r"its chunk at \[1, 0\] is int32\[1, 2\], not as described",
    ),
    "chunks of which it says another dtype": (  # torch would cast them
        {"about": described([TOP, BOTTOM], properties=properties(Global("torch.int32")))},
        r"its chunk at \[0, 0\] is float32\[1, 2\], not as described",
    ),
    "names exchanged": (  # torch's converter to one file would name them so
        {"about": described([TOP, BOTTOM]) | described([TOP], (1, 2), "m.w"), "planned": {"w": ("m", "w")}},
        "w: was saved as m.w, which is another's name",
    ),
    "properties of no dtype": (
        {"about": described([TOP, BOTTOM], properties=properties(3))}, "has no proper properties"
    ),
    "a chunk of a number": (
        {"about": described([TOP]), "places": ((index(), info(size=len(archive(3, {})))),), "data": archive(3, {})},
        "a chunk of it is not a plain tensor",
    ),
    "no chunks of nothing": ({"about": described([], (0, 2))}, "has no chunks"),
    "through a transform": (
        {"about": described([TOP]), "places": ((index(), info(transform_descriptors=["zstd"])),)},
        r"is stored through a transform \(compressed\?\), which is not read",
    ),
    "in a file that is gone": ({"about": described([TOP]), "places": ((index(), info("__2_0.distcp")),)}, "no such"),
    "in a file called 3": ({"about": described([TOP]), "places": ((index(), info(3)),)}, "no proper relative_path"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(what: str, tmp_path: Path) -> None:
    said, words = FOLDERS[what]
    with refused(words):
        ckptconv.open(folder(tmp_path, **said))


def test_what_a_folder_may_hold(tmp_path: Path) -> None:
    for module in ((), (META,), ("torch.distributed._shard.sharded_tensor.metadata.",)):  # the last: earlier versions
        more = {"properties": properties(Global("torch.float32"), *module)} if module else {}
        got = ckptconv.open(folder(tmp_path, described([BOTTOM, TOP], **more)))
        assert got["w"].numpy().tolist() == [[1, 1], [1, 1]]
    places = ((index(name="a.0.w"), info()), (index((1, 0), "a.0.w"), info(start=len(CHUNK))))
    about, planned = described([BOTTOM, TOP], name="a.0.w"), {"a.0.w": ("a", 0, "w")}
    got = ckptconv.open(folder(tmp_path, about, places, planned=planned))
    assert set(got) == {"a.0.w"}
    place = ((index(), info(size=len(EMPTY))),)
    got = ckptconv.open(folder(tmp_path, described([chunk((0, 0), (0, 2))], (0, 2)), place, EMPTY))
    assert got["w"].numpy().shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "planned", "role"),
    [
        ("optimizer.state.w.exp_avg", None, "slot"), ("optim.w.step", None, "step"), ("optimal_query.w", None, ""),
        ("optim", None, ""), ("optimizer.w", {"optimizer.w": ("optimizer.w",)}, ""),
        ("optimizer.w", {"optimizer.w": ("optimizer", "w")}, "slot"),
    ],
)  # fmt: skip
def test_an_optimizer_of_a_folder_is_an_entry_and_no_weight(name: str, planned: Any, role: str, tmp_path: Path) -> None:
    """A name that was one key, or is longer than the word, is that of a weight."""
    places = ((index(name=name), info()), (index((1, 0), name), info(start=len(CHUNK))))
    got = ckptconv.open(folder(tmp_path, described([TOP, BOTTOM], name=name), places, planned=planned))
    assert {n: t.role for n, t in got.items()} == {name: role}


# --- exported programs --------------------------------------------------------------------------------------------

WEIGHTS = "m/data/weights/model_weights_config.json"


def sizes(*values: Any) -> list[dict[str, Any]]:
    return [{"as_int": n} for n in values]


def weight(path: str = "weight_0", pickled: bool = False, **said: Any) -> dict[str, Any]:
    meta = {"dtype": 7, "sizes": sizes(2), "strides": sizes(1), "storage_offset": {"as_int": 0}, "layout": 7} | said
    return {"path_name": path, "use_pickle": pickled, "tensor_meta": meta}


def program(config: Any = None, **more: bytes) -> bytes:
    table = json.dumps({"config": config} if config is not None else {}).encode()
    members = {"m/archive_format": b"pt2", "m/data/weights/weight_0": ONES, WEIGHTS: table}
    return zipped(members | {f"m/{name}": raw for name, raw in more.items()})


PROGRAMS: dict[str, tuple[bytes, str]] = {
    "no weights": (zipped({"m/archive_format": b"pt2", "m/x": b""}), r"without a table of weights \(AOTInductor\)"),
    "a config of a list": (program([]), "its table of weights has no config"),
    "an entry of text": (program({"w": "x"}), "its table of weights has no proper entry for it: TypeError"),
    "an unknown dtype": (program({"w": weight(dtype=99)}), r"stored in a way that is not read \(dtype 99, layout 7\)"),
    "sparse": (program({"w": weight(layout=1)}), r"in a way that is not read \(dtype 7, layout 1\)"),
    "pickled": (program({"w": weight(pickled=True)}), r"in a way that is not read \(dtype 7, layout 7, pickled\)"),
    "elsewhere": (program({"w": weight("weight_1")}), "its data weight_1 is missing"),
    "a size by name": (program({"w": weight(sizes=sizes("s0"))}), "a tensor is .*, not at most 64 whole numbers"),
    "65 sizes": (program({"w": weight(sizes=sizes(*[1] * 65))}), "a tensor is .*, not at most 64 whole numbers"),
    "beyond its bytes": (program({"w": weight(sizes=sizes(3))}), "reaches byte 12 of the storage 'weight_0', which"),
    "big-endian": (program({"w": weight()}, byteorder=b"big"), "float32 lies big-endian in UntypedStorage, by which"),
}  # fmt: skip


TABLES = {
    "a.pt": {"archive": ARCHIVES, "stream": STREAMS},
    "a.joblib": {"joblib": JOBLIB},
    "a.pt2": {"program": PROGRAMS},
}
CASES = {f"{kind}: {what}": (file, *row) for file, kinds in TABLES.items() for kind, rows in kinds.items()
         for what, row in rows.items()}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path) -> None:
    file, raw, words = CASES[case]
    with refused(words):
        opened(tmp_path / file, raw)


def test_what_a_program_may_hold(tmp_path: Path) -> None:
    table = {"a": weight(), "b": weight(dtype=4, sizes=sizes(*[1] * 63, 2), strides=sizes(*[1] * 64))}
    apart = json.dumps({"config": {"lifted": weight("tensor_0")}}).encode()
    got = opened(tmp_path / "a.pt2", program(table, **{"data/constants/model_constants_config.json": apart}))
    assert [n.names for n in got.notes if n.kind == "skipped"] == [("lifted",)]
    assert [t.dtype.name for t in got.values()] == ["float32", "int32"]
    assert got["b"].shape[-2:] == (1, 2)


# --- sparse and quantised -----------------------------------------------------------------------------------------

CSR = ("sparse_csr", [0, 1, 2], [1, 0])


def integers(key: str, values: Any) -> tuple[Call, bytes]:
    array = np.array(values, "<i8")
    strides = tuple(s // 8 for s in array.strides)
    return tensor(stored(key, array.size, LONG), array.shape, strides), array.tobytes()


def sparse(layout: str, *indices: Any, shape: tuple[int, ...] = (2, 3), values: Any = (1.0, 2.0)) -> bytes:
    held = np.array(values, "<f4")
    made = [integers(str(i), row) for i, row in enumerate(indices)]
    last = tensor(stored("v", held.size), held.shape, tuple(s // 4 for s in held.strides))
    how = Call(Global("torch.serialization._get_layout"), (f"torch.{layout}",))
    value = Call(Global("torch._utils._rebuild_sparse_tensor"), (how, (*(t for t, _ in made), last, shape)))
    return archive({"w": value}, {str(i): raw for i, (_, raw) in enumerate(made)} | {"v": held.tobytes()})


SPARSE: dict[str, tuple[bytes, str]] = {
    "before": (sparse("sparse_coo", [[0, -1], [0, 0]]), "indices do not fit its shape .2, 3.: negative or too many"),
    "three rows of two": (sparse("sparse_coo", [[0, 1]] * 3), "do not fit its shape .2, 3.: negative or too many"),
    "beyond": (sparse("sparse_coo", [[0, 2], [0, 0]]), r"its sparse indices do not fit its shape \[2, 3\]: index 2"),
    "falling": (sparse("sparse_csr", [0, 2, 1], [1, 0]), "the compressed indices do not rise from 0 to the number of"),
    "not to the end": (sparse("sparse_csr", [0, 1, 1], [1, 0]), "the compressed indices do not rise from 0"),
    "a column before": (sparse("sparse_csr", [0, 1, 2], [1, -1]), "do not fit its shape .2, 3.: negative or too"),
    "a column beyond": (sparse("sparse_csr", [0, 1, 2], [1, 3]), r"do not fit its shape \[2, 3\]: index 3 is out"),
    "batches": (sparse(*CSR, shape=(1, 2, 3)), "batches of compressed sparse tensors are not computed"),
    "blocks that do not divide": (
        sparse("sparse_bsr", [0, 1], [0], values=[[[1.0, 2.0]]]), r"its sparse indices do not fit its shape \[2, 3\]:"
    ),
    "blocks of nothing": (
        sparse("sparse_bsr", [0, 1], [0], values=np.zeros((1, 0, 1))), r"its sparse indices do not fit its shape \[2, 3"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (sparse(*CSR), 48),  # its pieces; 24 bytes when dense
        (sparse("sparse_coo", np.zeros((2, 0)), shape=(5, 3), values=[]), 60),
        (sparse("sparse_coo", np.zeros((1, 0)), shape=(2, 2**28, 2), values=np.zeros((0, 2**28, 2))), 2**32),
    ],
)
def test_a_sparse_shape_costs_nothing_to_claim(
    raw: bytes, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flatten, "FILL_RATIO", 0)
    monkeypatch.setattr(flatten, "MAX_FILL", size)
    assert len(opened(tmp_path / "a.pt", raw, densify=True)) == 1
    monkeypatch.setattr(flatten, "MAX_FILL", size - 1)
    with refused(
        rf"w: its tensors are more than 0 times what is stored and {size - 1} bytes when dense; without densify"
    ):
        opened(tmp_path / "a.pt", raw, densify=True)


def quantised(scheme: str, *numbers: Any) -> bytes:
    held = tensor(stored("q", 6, Global("torch.QInt8Storage")), (2, 3), (3, 1)).args
    scales = np.array([0.5, 2.0], "<f4").tobytes()
    value = Call(
        Global("torch._utils._rebuild_qtensor"), (*held[:4], (Global(f"torch.{scheme}"), *numbers), False, ORDERED)
    )
    return archive({"w": value}, {"q": bytes(range(6)), "s": scales})


SCALES = tensor(stored("s"))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (quantised("per_tensor_affine", 0.5, 1), {"w.scale": ("float64", 0.5), "w.zero_point": ("int64", 1)}),
        (quantised("per_channel_affine", SCALES, SCALES, 0), {"w.axis": ("int64", 0)}),
        (sparse(*CSR), {"w.shape": ("int64", [2, 3])}),
        (sparse("sparse_coo", np.zeros((0, 1)), shape=(), values=[1]), {"w.shape": ("int64", [])}),
    ],
)
def test_numbers_of_pieces_are_tensors(raw: bytes, expected: Any, tmp_path: Path) -> None:
    got = opened(tmp_path / "a.pt", raw)
    assert {n: (t.dtype.name, t.numpy().tolist()) for n, t in got.items() if n in expected} == expected
    assert list(got)[-len(expected) :] == [*expected]
    assert not opened(tmp_path / "a.pt", raw, densify=True).keys() & expected.keys()


@pytest.mark.parametrize("densify", [False, True])
def test_a_zero_point_that_no_element_holds(densify: bool, tmp_path: Path) -> None:
    with refused("a number of a quantised tensor does not fit int64"):
        opened(tmp_path / "a.pt", quantised("per_tensor_affine", 0.5, 2**63), densify=densify)


COLUMN = tensor(stored("s"), (2, 1), (1, 1))
FLOATS = "per_channel_affine_float_qparams"
UNEVEN = r"its scales do not fit its shape \[2, 3\]: \[2.* scales, \[2.* zero points along axis 0"
QUANTISED: dict[str, tuple[bytes, str]] = {  # the numbers are those of which torch makes others
    "a fraction": (quantised("per_tensor_affine", 0.5, 1.5), r"a quantised tensor has the numbers \(0.5, 1.5\)"),
    "a boolean": (quantised("per_tensor_affine", 0.5, True), r"a quantised tensor has the numbers \(0.5, True\)"),
    "lists": (quantised(FLOATS, [0.5, 2.0], [1, 3], 0), r"2 quantised channels have the scale \[0.5, 2.0\]"),
    "a list": (quantised(FLOATS, SCALES, [1, 3], 0), r"2 quantised channels have the zero_point \[1, 3\]"),
    "more channels": (quantised(FLOATS, SCALES, SCALES, 1), r"3 quantised channels have the scale \(2,\)"),
    "a column of scales": (quantised(FLOATS, COLUMN, SCALES, 0), UNEVEN),
    "a column of zero points": (quantised(FLOATS, SCALES, COLUMN, 0), UNEVEN),
}  # fmt: skip


@pytest.mark.parametrize("what", SPARSE | QUANTISED)
def test_pieces(what: str, tmp_path: Path) -> None:
    raw, words = (SPARSE | QUANTISED)[what]
    with refused(words):
        opened(tmp_path / "a.pt", raw, densify=True)["w"].numpy()


# --- TorchScript --------------------------------------------------------------------------------------------------


def script(value: Any, constants: Any = None, code: Mapping[str, bytes] | None = None) -> bytes:
    members = {"a/data.pkl": pickled(value), "a/data/0": ONES, "a/constants/0": ONES, "a/version": b"3", **(code or {})}
    return zipped(members | ({"a/constants.pkl": pickled(constants)} if constants is not None else {}))


def test_scripts(tmp_path: Path) -> None:
    got = opened(tmp_path / "a.pt", script({"w": tensor()}, (1, tensor())))
    assert list(got) == ["w", "constants.1"]
    assert [n.names for n in got.notes if "unnamed constants" in n.text] == [("constants.1",)]
    (tmp_path / "b.pt").write_bytes(script({"w": tensor()}))
    assert list(ckptconv.open(tmp_path / "b.pt", from_="torchscript")) == ["w"]
    with refused("would get one name:\n *constants.0"):
        opened(tmp_path / "a.pt", script({"constants": [tensor()]}, (tensor(),)))


def made(name: str, **state: Any) -> Call:
    """An object of TorchScript."""
    return Call(Global(f"__torch__.m.{name}"), (), (state,), new=True)


MODULE = 'class Net(Module):\n  __parameters__ = ["w", ]\n  __buffers__ = ["b", ]\n  c : Tensor\n'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (MODULE, "w b"),
        ("op_version = 1\n" + MODULE + "  def f(self) -> int:\n    return 3\nclass Other(Module):\n  x : int\n", "w b"),
        (MODULE.replace('"b", ', ""), "w"),
        (MODULE.replace('"w", ', "").replace('"b", ', ""), "w b c"),  # a container of attributes
        # the lists are not what torch writes: nothing is left out
        ("", "w b c"),
        (MODULE.replace("  __buffers__", "  buffers"), "w b c"),  # PyTorch before 1.6
        (MODULE.replace("\n", "\r\n"), "w b c"),
    ],
)  # fmt: skip
def test_lists_of_classes(text: str, names: str, tmp_path: Path) -> None:
    """Which attributes of a script's modules are in their state_dict()."""
    value = made("Net", w=tensor(), b=tensor(), c=tensor())
    raw = script(value, (), {"a/code/__torch__/m.py": text.encode()})
    assert list(opened(tmp_path / "a.pt", raw)) == names.split()


def test_what_scripts_hold_that_is_no_module(tmp_path: Path) -> None:
    """Attributes of an object of a plain class are not in the state_dict(); what a class without text holds stays."""
    text = MODULE + "class Plain:\n  w : Tensor\nclass Pair(NamedTuple):\n  w : Tensor\n"
    inner = {name: made(name, w=tensor()) for name in ("Plain", "Pair", "Net")}
    inner["Gone"] = Call(Global("__torch__.n.Gone"), (), ({"w": tensor()},), new=True)
    raw = script(made("Net", b=tensor(), **inner), (), {"a/code/__torch__/m.py": text.encode()})
    found = opened(tmp_path / "a.pt", raw)
    assert list(found) == ["b", "Net.w", "Gone.w"]
    assert [n.names for n in found.notes if "plain attributes" in n.text] == [("Plain.w", "Pair.w")]


def test_code_of_a_script_is_bounded(tmp_path: Path) -> None:
    """More text than any model has is not looked at; nor is a state copied for each of its owners."""
    value = made("Net", w=tensor(), c=tensor())
    raw = script(value, (), {"a/code/__torch__/m.py": (MODULE + " " * torchscript.MAX_CODE).encode()})
    assert list(opened(tmp_path / "a.pt", raw)) == ["w", "c"]
    shared = pickled({str(i): i for i in range(10_000)})[2:-1]
    owner = pickled(Call(Global("__torch__.m.Net"), new=True))[2:-1]
    many_owners = Raw(b"(" + shared + b"q\0" + (owner + b"h\0b") * 10_000 + b"t")
    began = time.process_time()
    with refused("values without end"):
        opened(tmp_path / "a.pt", script(many_owners, (), {"a/code/__torch__/m.py": MODULE.encode()}))
    assert time.process_time() - began < 5


def test_damaged_code_of_a_script(tmp_path: Path) -> None:
    raw = script(made("Net", w=tensor(), c=tensor()), (), {"a/code/__torch__/m.py": MODULE.encode()})
    with refused("CRC-32 of a/code/__torch__/m.py is wrong"):
        opened(tmp_path / "a.pt", raw.replace(b"  __buffers__", b"  _-buffers__"))


# --- recorded objects ---------------------------------------------------------------------------------------------


def test_objects_give_all_that_they_hold(tmp_path: Path) -> None:
    """States that are no dictionaries, items, pairs, and arguments."""
    thing = Call(Global("x.Y"), (tensor(), 1, ()), (({"a": tensor()}, [tensor()], 3),))
    row = Raw(pickled(Call(Global("x.Rows")))[2:-1] + b"(" + pickled(tensor())[2:-1] + b"e")
    table = Raw(pickled(Call(Global("x.Table")))[2:-1] + b"(K\1" + pickled(tensor())[2:-1] + b"u")
    members = Raw(b"cx\nSet\n)R(" + pickled(tensor())[2:-1] + b"\x90")
    got = opened(tmp_path / "a.pt", archive([thing, row, table, members], {"0": ONES}), opaque=True)
    assert list(got) == ["0.a", "0.state.1.0", "0.args.0", "1.0", "2.1", "3.0"]
