"""Small files that would take a reader memory or time out of all proportion: each is refused, or read at once."""

from __future__ import annotations

import json
import random
import signal
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cramjam
import numpy as np
import pytest
from crc32c import crc32c
from kit import refused

import ckptconv
from ckptconv.formats.orbax import write as btree
from ckptconv.formats.table import TF_TABLE
from ckptconv.formats.tensorflow import elements, messages_pb2 as pb, objects, table
from ckptconv.storage.checksum import mask

SECONDS = 8.0  # of processor time; without their bounds these take from ten up to all there are


class Late(BaseException):
    """No Exception, which a reader would take for damage."""


@contextmanager
def soon() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# --- TensorFlow -----------------------------------------------------------------------------------------------------

HEADER = b"\x08\x01\x1a\x02\x08\x01"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
WHOLE = pb.TensorSliceProto(extent=[{}])


def entry(data: bytes, **fields: object) -> bytes:
    return pb.BundleEntryProto(size=len(data), crc32c=mask(crc32c(data)), **fields).SerializeToString()


def bundle(prefix: Path, entries: dict[bytes, bytes], data: bytes = b"", header: bytes = HEADER) -> Path:
    prefix.parent.mkdir(exist_ok=True)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table.build(sorted([(b"", header), *entries.items()])))
    if data:
        prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    return prefix


def with_graph(prefix: Path, graph: pb.TrackableObjectGraph, *variables: str) -> Path:
    data, crc = elements.pack([graph.SerializeToString()])
    empty = entry(b"", dtype=1, shape={"dim": [{"size": 0}]})
    found = {(v + VALUE).encode(): empty for v in variables}
    about = pb.BundleEntryProto(dtype=7, shape={}, size=len(data), crc32c=mask(crc)).SerializeToString()
    return bundle(prefix, {b"_CHECKPOINTABLE_OBJECT_GRAPH": about, **found}, data)


def models_within_each_other(folder: Path) -> Path:
    """Three objects in a circle, two of which have a variable: the innermost model is never reached."""
    graph = pb.TrackableObjectGraph(nodes=[{} for _ in range(5)])
    for node, child, name in ((0, 1, "b"), (1, 2, "c"), (2, 0, "a"), (0, 3, "v"), (1, 4, "v")):
        graph.nodes[node].children.add(node_id=child, local_name=name)
    for node, name in ((3, "v"), (4, "w")):
        graph.nodes[node].attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=name + VALUE)
    return with_graph(folder / "m", graph, "v", "w")


def chain_of_objects(folder: Path) -> Path:
    """Deeper than any model, and not as deep as Python recurses; a second layer, so that weights have an order."""
    count = 600
    graph = pb.TrackableObjectGraph(nodes=[{} for _ in range(count + 3)])
    edges = [(i, i + 1, "o") for i in range(count)]
    for node, child, name in (*edges, (0, count + 1, "p"), (count + 1, count + 2, "w")):
        graph.nodes[node].children.add(node_id=child, local_name=name)
    for node, name in ((count, "v"), (count + 2, "w")):
        graph.nodes[node].attributes.add(name="VARIABLE_VALUE", full_name=name, checkpoint_key=name + VALUE)
    return with_graph(folder / "m", graph, "v", "w")


def many_children_of_one_node(folder: Path) -> Path:
    """A chain of objects that are all the same one of the checkpoint's, which has many children, itself again."""
    count = 6000
    ours, theirs = pb.TrackableObjectGraph(nodes=[{}]), pb.SavedModel(saved_model_schema_version=1)
    for name in ("a", *map(str, range(count))):
        ours.nodes[0].children.add(node_id=0, local_name=name)
    graph = theirs.meta_graphs.add()
    graph.meta_info_def.tags.append("serve")
    graph.graph_def.node.add(name="a", op="NoOp")
    for i in range(count):
        graph.object_graph_def.nodes.add().children.add(node_id=min(i + 1, count - 1), local_name="a")
    (folder / "saved_model.pb").write_bytes(theirs.SerializeToString())
    with_graph(folder / "variables" / "variables", ours)
    return folder


def table_of(folder: Path, about: pb.SavedTensorSlices, data: pb.SavedTensorSlices | None = None) -> Path:
    """A V1 checkpoint of one tensor `t`, in one block, compressed."""
    block = table._Block(16)
    block.add(b"", about.SerializeToString())
    if data:
        block.add(elements.slice_key(b"t", WHOLE), data.SerializeToString())
    out, index = b"", table._Block(1)
    small = bytes(cramjam.snappy.compress_raw(block.finish()))
    index.add(b"\xff", table.varint(0) + table.varint(len(small)))
    handles = b""
    for body, kind in ((small, b"\1"), (table._Block(1).finish(), b"\0"), (index.finish(), b"\0")):
        handles += table.varint(len(out)) + table.varint(len(body)) if kind == b"\0" else b""
        out += body + kind + struct.pack("<I", mask(crc32c(body + kind)))
    (folder / "m").write_bytes(out + handles.ljust(40, b"\0") + TF_TABLE)
    return folder / "m"


def v1(**fields: object) -> Callable[[Path], Path]:
    """One tensor of one whole number."""

    def make(folder: Path) -> Path:
        about, data = pb.SavedTensorSlices(), pb.SavedTensorSlices()
        about.meta.tensor.add(name=b"t", type=9, shape={"dim": [{"size": 1}]}, slice=[WHOLE])
        data.data.name = b"t"
        data.data.data.CopyFrom(pb.TensorProto(**fields))
        return table_of(folder, about, data)

    return make


# --- NumPy ----------------------------------------------------------------------------------------------------------


def shapes_and_files(folder: Path) -> Path:
    files, layers = 900, 5000
    for i in range(files):
        np.save(folder / f"params_{i}.npy", np.ones(1 + (12 * layers + 1) * (not i), "f4"))
    shapes = [[1, 1], [1, 1], *([1] for _ in range(12 * layers - 1)), [files]]
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    return folder


# --- pickles, msgpack, Orbax ----------------------------------------------------------------------------------------


def pickle_of(body: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.pkl").write_bytes(b"\x80\x04" + body + b".")
        return folder / "x.pkl"

    return make


def called(module: str, name: str, again: bytes) -> Callable[[Path], Path]:
    return pickle_of(f"](c{module}\n{name}\n".encode() + b"\x94" + again * 200_000 + b"e")


def many(value: bytes) -> Callable[[Path], Path]:
    """A value that is made once, and that 20,000 keys name."""
    keys = b"".join(b"X\5\0\0\0%05dh\1" % i for i in range(20_000))
    return pickle_of(b"](" + value + b"q\1}(" + keys + b"ue")


KEYS = b"}(" + b"".join(b"X\5\0\0\0%05dN" % i for i in range(20_000)) + b"u"
NAMESPACE = b"cargparse\nNamespace\n)\x81"


def views(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({f"w{i}": torch.tensor([float(i)]).expand(2**29) for i in range(3)}, folder / "x.pt")
    return folder / "x.pt"


def msgpack_of(value: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.msgpack").write_bytes(b"\x81\xa1a\xdd" + struct.pack(">I", 200_000) + value * 200_000)
        return folder / "x.msgpack"

    return make


def chunks_along_many_axes(folder: Path) -> Path:
    axes, draw = 26, random.Random(1)
    about = {"zarr_format": 2, "shape": [2] * axes, "chunks": [1] * axes, "dtype": "|u1", "compressor": None,
             "fill_value": 0, "order": "C", "filters": None}  # fmt: skip
    raw = json.dumps(about).encode()
    keys = sorted({".".join(draw.choice("01") for _ in range(axes)).encode() for _ in range(2000)})
    entries = [btree.Entry(b"w/.zarray", 0, len(raw), raw), *(btree.Entry(b"w/" + k, i, 1) for i, k in enumerate(keys))]
    nodes, manifest = btree.build(sorted(entries), "d/x", len(keys))
    (folder / "d").mkdir()
    (folder / "d" / "x").write_bytes(bytes(len(keys)) + nodes)
    (folder / "manifest.ocdbt").write_bytes(manifest)
    return folder


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tf: models within each other": (models_within_each_other, ""),
    "tf: a chain of objects": (chain_of_objects, ""),
    "tf-graph: many children of one node": (many_children_of_one_node, ""),
    "tf-v1: numbers beyond the shape": (v1(int64_val=[1] * 100_000), "a slice of 1 elements takes 100015 bytes"),
    "gpt: shapes and files": (shapes_and_files, ""),
    "pickle: values without a tensor": (pickle_of(b"](" + b")" * 400_000 + b"e"), "values without end"),
    "pickle: sets made by calls": (called("builtins", "set", b"h\0)R"), "containers and objects without end"),
    "pickle: a module without parameters": (
        many(NAMESPACE + b"}(X\x0b\0\0\0_parameters" + KEYS + b"X\x08\0\0\0_modules}ub"), "shared without bound"
    ),
    "pickle: a name of averages": (pickle_of(b"}X\x80\x84\x1e\0" + b"ema_" * 500_000 + b"}X\1\0\0\0aNss"), ""),
    "torch: views of one element": (views, "its views repeat what is stored without bound"),
    "flax: empty maps": (msgpack_of(b"\x80"), "has more than 156073 values"),
    "orbax: chunks along many axes": (chunks_along_many_axes, "chunks lie scattered among absent ones"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_or_read_at_once(name: str, tmp_path: Path) -> None:
    make, words = CASES[name]
    path = make(tmp_path)
    with soon():
        if not words:
            ckptconv.open(path)
            return
        with refused(words):
            for t in ckptconv.open(path).values():
                t.numpy()


@pytest.mark.parametrize("name", ["s.npz", "s.pt", "s.bin", "s.keras", "s"])
def test_a_hole_is_no_directory(name: str, tmp_path: Path) -> None:
    """A file of 300 MB takes 4 kB on the disk, and its end says that all of it is the directory: it was read whole."""
    size = 300 * 2**20
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0) + struct.pack(
        "<4sLQL", b"PK\6\7", 0, size, 1
    )
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    url = str(tmp_path / name)
    with open(url, "wb") as f:
        f.seek(size)
        f.write(end)
    tracemalloc.start()
    with pytest.raises(ckptconv.CkptError, match=r"the zip's directory has 3\d+ bytes|has an unknown format"):
        ckptconv.open(url)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**25


def test_names_that_equal_other_keys_are_followed_at_once() -> None:
    """Each key of a chain would get the name that is the key before it: all keep their keys."""
    chain, others = ["x" + VALUE * i for i in range(1000)], [f"y{i}" for i in range(100_000)]
    with soon():
        names, collisions = objects.readable([*chain, *others])
    assert set(chain[1:]) <= set(collisions)
    assert all(name == key for key, name in names.items())


# --- values that TensorFlow reads elsewhere ---------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"int64_val": [1, 2]}, {"tensor_content": bytes(8)}, {"int64_val": []}])
def test_elements_that_tensorflow_does_not_read(fields: dict[str, object], tmp_path: Path) -> None:
    with refused("a slice has"):
        ckptconv.open(v1(**fields)(tmp_path))["t"].numpy()


def test_a_whole_slice_is_read_where_tensorflow_reads_it(tmp_path: Path) -> None:
    """From the tensor's own entry, whatever is stored under the slice's key."""
    data, shape = np.array([1, 2], "<f4").tobytes(), {"dim": [{"size": 1}]}
    own = entry(data[:4], dtype=1, shape=shape, slices=[WHOLE])
    other = entry(data[4:], dtype=1, shape=shape, offset=4)
    bundle(tmp_path / "m", {b"w": own, elements.slice_key(b"w", WHOLE): other}, data)
    assert ckptconv.open(tmp_path / "m")["w"].numpy().tolist() == [1]
    absent = pb.BundleEntryProto(dtype=1, shape=shape, slices=[WHOLE]).SerializeToString()
    bundle(tmp_path / "m", {b"w": absent, elements.slice_key(b"w", WHOLE): other}, data)
    with refused("the entry has 0 bytes"):
        ckptconv.open(tmp_path / "m")
