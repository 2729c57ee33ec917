"""What a reader takes grows with the file: worst cases of N, 2N and 4N; `growth` has the bounds."""

from __future__ import annotations

import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import growth
import numpy as np
import pytest
from crc32c import crc32c

from ckptconv.formats.table import TABLE, TF_TABLE
from ckptconv.formats.tensorflow import elements, table
from ckptconv.formats.tensorflow import messages_pb2 as pb
from ckptconv.storage.checksum import mask

pytestmark = pytest.mark.slow

# --- worst cases: each writes a file of size n into a folder, and says what to open ---------------------------------


def deflated(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as z:
        for name, data in members.items():
            z.writestr(name, data)
    return path


def objects(body: bytes) -> bytes:
    """An .npy whose elements are a pickle that begins like an array's and goes on like this."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.array({}, object), allow_pickle=True)
    head = out.getvalue()
    at = head.index(b"\x80", 80)
    return head[:at] + b"\x80\x04(" + body


def npz_of(opcodes: bytes) -> growth.Make:
    return lambda folder, n: deflated(folder / "x.npz", {"w.npy": objects(opcodes * (400_000 * n) + b"l.")})


def pickle_of(opcodes: bytes) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        (folder / "x.pkl").write_bytes(b"\x80\x04](" + opcodes * (400_000 * n) + b"e.")
        return folder / "x.pkl"

    return make


def torch_of(opcodes: bytes) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        raw = b"\x80\x02}(" + opcodes * (200_000 * n) + b"u."
        return deflated(folder / "x.pt", {"x/data.pkl": raw, "x/version": b"3\n"}, zipfile.ZIP_STORED)

    return make


def keras_json(text: bytes, count: int = 300_000) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        body = b'{"config": [' + b",".join([text] * (count * n)) + b"]}"
        return deflated(folder / "x.keras", {"config.json": body, "metadata.json": b"{}", "model.weights.h5": b""})

    return make


def keras_of(folder: Path, kind: str, layers: list[dict[str, object]], *stored: str) -> Path:
    """A model of Keras 3 of these layers, with a small weight for each object, in a config that is packed small."""
    import h5py

    with h5py.File(weights := io.BytesIO(), "w") as f:
        for path in stored or ("layers/dense",):
            f[f"{path}/vars/0"] = np.zeros(2, "f4")
    config = json.dumps({"class_name": kind, "config": {"name": "m", "layers": layers}}).encode()
    members = {"config.json": config, "metadata.json": b"{}", "model.weights.h5": weights.getvalue()}
    return deflated(folder / "x.keras", members)


def keras_nested(folder: Path, n: int) -> Path:
    """Layers of a model within models of long names."""
    layers: list[dict[str, object]] = [{"class_name": "Dense", "config": {"name": f"d{i}"}} for i in range(3_000 * n)]
    for _ in range(31):
        layers = [{"class_name": "a" * 500, "config": {"name": "x", "layers": layers}}]
    return keras_of(folder, "Functional", layers)


def keras_cells(folder: Path, n: int) -> Path:
    """Cells in a wrapper of a layer whose class is long, and begins many times like one that is marked."""
    layer = {"class_name": "flat_" * (40_000 * n), "config": {"name": "x"}}
    wrapper = {"class_name": "TimeDistributed", "config": {"name": "t", "layer": layer}}
    return keras_of(folder, "Sequential", [wrapper], *(f"layers/time_distributed/a{i}/cell" for i in range(20 * n)))


def keras_uses(folder: Path, n: int) -> Path:
    """A layer of a long class that is used often."""
    uses = [[["i", 0, 0, {}]]] * 1_000 * n
    layer = {"class_name": "A" * (3_000 * n), "config": {"name": "x"}, "inbound_nodes": uses}
    return keras_of(folder, "Functional", [layer])


def keras_axes(folder: Path, n: int) -> Path:
    """A Reshape to very many axes, used often behind a dense layer."""
    first = {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, 7]}}
    dense = {"class_name": "Dense", "config": {"name": "d"}, "inbound_nodes": [[["i", 0, 0]]]}
    shape = {"name": "r", "target_shape": [2] * 20_000 * n}
    shaped = {"class_name": "Reshape", "config": shape, "inbound_nodes": [[["d", 0, 0]]] * 1_000 * n}
    return keras_of(folder, "Functional", [first, dense, shaped])


def safetensors_of(entry: Callable[[int], tuple[str, object]], count: int) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        raw = json.dumps(dict(map(entry, range(count * n))), separators=(",", ":")).encode()
        (folder / "x.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
        return folder / "x.safetensors"

    return make


def empty(name: str) -> tuple[str, object]:
    return name, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def metadata(i: int) -> tuple[str, object]:
    return "__metadata__", {str(k): "" for k in range(50_000 * (i + 1))}


def shards(folder: Path, n: int) -> Path:
    """Many shards, each with metadata of its own."""
    places = {}
    for i in range(300 * n):
        head = {"__metadata__": {f"{i}.{k}": "" for k in range(400)}} | dict([empty(f"t{i}")])
        raw = json.dumps(head).encode()
        file = f"model-{i:05d}-of-{300 * n:05d}.safetensors"
        (folder / file).write_bytes(len(raw).to_bytes(8, "little") + raw)
        places[f"t{i}"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder / "model.safetensors.index.json"


HEADER = b"\x08\x01\x1a\x02\x08\x01"


def sealed(body: bytes, kind: bytes) -> bytes:
    return body + kind + struct.pack("<I", mask(crc32c(body + kind)))


def raw_table(blocks: list[tuple[bytes, bytes, bytes]]) -> bytes:
    """Blocks (separator, bytes, compression) as a table."""
    out, index = b"", table._Block(1)
    for separator, body, kind in blocks:
        index.add(separator, table.varint(len(out)) + table.varint(len(body)))
        out += sealed(body, kind)
    handles = b""
    for body in (table._Block(1).finish(), index.finish()):
        handles += table.varint(len(out)) + table.varint(len(body))
        out += sealed(body, b"\0")
    return out + handles.ljust(40, b"\0") + TF_TABLE


def tf_keys(folder: Path, n: int) -> Path:
    """A long value, which snappy makes small, buys room for prefixes."""
    body = bytearray(b"\0\0" + table.varint(len(HEADER)) + HEADER + b"\0\1" + table.varint(2**20) + b"a" + bytes(2**20))
    last = b""
    for i in range(700 * n):
        key = b"k" * 60_000 + i.to_bytes(3, "big")
        shared = 60_000 if last else 0
        body += table.varint(shared) + table.varint(len(key) - shared) + b"\0" + key[shared:]
        last = key
    body += struct.pack("<2I", 0, 1)
    (folder / "m.index").write_bytes(raw_table([(b"\xff", bytes(cramjam.snappy.compress_raw(bytes(body))), b"\1")]))
    (folder / "m.data-00000-of-00001").write_bytes(b"")
    return folder / "m.index"


def tf_entries(folder: Path, n: int) -> Path:
    """As many entries as there can be, of empty tensors."""
    value = pb.BundleEntryProto(dtype=1, shape={"dim": [{"size": 0}]}, crc32c=mask(0)).SerializeToString()
    pairs = [(b"", HEADER), *((f"{i:06x}".encode(), value) for i in range(30_000 * n))]
    (folder / "m.index").write_bytes(table.build(pairs))
    (folder / "m.data-00000-of-00001").write_bytes(b"")
    return folder / "m.index"


def tf_packed(each: int) -> growth.Make:
    """Scalars in one range, which pack to a byte each, and a value that does not pack, so that each has its bytes."""

    def make(folder: Path, n: int) -> Path:
        count, crc = 40_000 * n, mask(crc32c(bytes(4)))
        value = pb.BundleEntryProto(dtype=1, shape={}, size=4, crc32c=crc).SerializeToString()
        filler = np.random.default_rng(n).bytes(max(0, each * (count - table.ROOM) - count * 95 // 100))
        pairs = [(b"", HEADER), (b"a", value + b"\xa2\x06" + table.varint(len(filler)) + filler)]
        block = table._Block(1 << 30)
        for key, content in (*pairs, *((b"k" + i.to_bytes(3, "big"), value) for i in range(count))):
            block.add(key, content)
        packed = bytes(cramjam.snappy.compress_raw(bytes(block.finish())))
        (folder / "m.index").write_bytes(raw_table([(b"\xff", packed, b"\1")]))
        (folder / "m.data-00000-of-00001").write_bytes(bytes(4))
        return folder / "m.index"

    return make


def tf_graph(graph: pb.TrackableObjectGraph, folder: Path) -> Path:
    """A bundle of one scalar and this graph, in which it is the key `v`."""
    data, crc = elements.pack([graph.SerializeToString()])
    about = pb.BundleEntryProto(dtype=7, shape={}, offset=4, size=len(data), crc32c=mask(crc))
    scalar = pb.BundleEntryProto(dtype=1, shape={}, size=4, crc32c=mask(crc32c(bytes(4))))
    entries = {b"": HEADER, b"_CHECKPOINTABLE_OBJECT_GRAPH": about.SerializeToString()}
    entries[b"v/.ATTRIBUTES/VARIABLE_VALUE"] = scalar.SerializeToString()
    (folder / "m.index").write_bytes(table.build(list(entries.items())))
    (folder / "m.data-00000-of-00001").write_bytes(bytes(4) + data)
    return folder / "m.index"


def tf_edges(folder: Path, n: int) -> Path:
    """Edges of two names to one variable, which has as many attributes."""
    graph = pb.TrackableObjectGraph(nodes=[{}, {}])
    for i in range(1500 * n):
        graph.nodes[0].children.add(node_id=1, local_name=("v", "save_counter")[i % 2])
        graph.nodes[1].attributes.add(name="x")
    key = "v/.ATTRIBUTES/VARIABLE_VALUE"
    graph.nodes[1].attributes.add(name="VARIABLE_VALUE", full_name="v", checkpoint_key=key)
    return tf_graph(graph, folder)


def graph_scopes(folder: Path, n: int) -> Path:
    """Functions with long names, full of nodes with short ones."""
    nodes = [{"name": "abcdefgh"[i % 8], "op": "N", "input": ["a"]} for i in range(1000)]
    graph = pb.GraphDef(node=[{"name": "a", "op": "NoOp"}])
    for i in range(60 * n):
        graph.library.function.add(signature={"name": f"{i:04d}" + "f" * 900}, node_def=nodes)
    (folder / "x.pb").write_bytes(graph.SerializeToString())
    return folder / "x.pb"


def dcp(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    side = int((400 * n) ** 0.5)
    boxes = [md.ChunkStorageMetadata(torch.Size((i, j)), torch.Size((1, 1))) for i in range(side) for j in range(side)]
    whole = md.TensorStorageMetadata(md.TensorProperties(), torch.Size((side, side)), boxes)
    one = io.BytesIO()
    torch.save(torch.ones(1, 1), one)
    places = {
        md.MetadataIndex("w", box.offsets, i): _StorageInfo("__0_0.distcp", i * one.tell(), one.tell())
        for i, box in enumerate(boxes)
    }
    (folder / "__0_0.distcp").write_bytes(one.getvalue() * len(boxes))
    (folder / ".metadata").write_bytes(pickle.dumps(md.Metadata({"w": whole}, storage_data=places), 4))
    return folder / ".metadata"


def flax(folder: Path, n: int) -> Path:
    """Maps within maps, a number in each."""
    body = b"".join(b"\xa5" + f"{i:05x}".encode() + b"\x81\xa1a\x01" for i in range(20_000 * n))
    (folder / "x.msgpack").write_bytes(b"\xdf" + (20_000 * n).to_bytes(4, "big") + body)
    return folder / "x.msgpack"


def orbax(folder: Path, n: int) -> Path:
    """Many small chunks, in a tree of nodes whose keys share a long prefix."""
    from ckptconv.formats.orbax import write as btree

    said = {**ZARRAY, "shape": [20_000 * n], "chunks": [1]}
    name = b"k" * 100
    entries = [btree.Entry(name + b"/.zarray", 0, len(raw := json.dumps(said).encode()), raw)]
    entries += [btree.Entry(name + b"/%d" % i, 4 * i, 4) for i in range(20_000 * n)]
    nodes, manifest = btree.build(sorted(entries), "values", 80_000 * n)
    folder = folder / "x"
    folder.mkdir()
    (folder / "values").write_bytes(bytes(80_000 * n) + nodes)
    (folder / "manifest.ocdbt").write_bytes(manifest)
    return folder


def orbax_absent(folder: Path, n: int) -> Path:
    """Every second chunk is absent."""
    folder = folder / "x"
    (folder / "w").mkdir(parents=True)
    side = 2 * int((600 * n) ** 0.5)
    (folder / "w" / ".zarray").write_text(json.dumps({**ZARRAY, "shape": [side, side], "chunks": [1, 1]}))
    for i in range(side):
        for j in range(i % 2, side, 2):
            (folder / "w" / f"{i}.{j}").write_bytes(b"abcd")
    return folder


ZARRAY = {"zarr_format": 2, "dtype": "<f4", "compressor": None, "fill_value": 0, "filters": None, "order": "C"}


def npz_members(folder: Path, n: int) -> Path:
    one = io.BytesIO()
    np.lib.format.write_array(one, np.zeros(0, "f4"))
    return deflated(folder / "x.npz", {f"{i}.npy": one.getvalue() for i in range(4_000 * n)}, zipfile.ZIP_STORED)


def zeros(folder: Path, n: int) -> Path:
    np.savez_compressed(folder / "x.npz", **{f"w{i}": np.zeros(2**18, "f4") for i in range(20 * n)})
    return folder / "x.npz"


def hdf5_of(kind: str) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        import h5py

        with h5py.File(folder / "x.h5", "w") as f:
            first = f.create_dataset("w", (3,), "f4")
            for i in range(2_000 * n):
                if kind == "datasets":
                    f.create_dataset(f"d{i}", (0,), "f4")
                elif kind == "links":
                    f[f"l{i}"] = first
                else:
                    f.create_group(f"g{i}").attrs["a"] = i
        return folder / "x.h5"

    return make


def hdf5_chunks(*shape: int) -> growth.Make:
    """One dataset in chunks of one element, of which the last axis has n times as many."""

    def make(folder: Path, n: int) -> Path:
        import h5py

        with h5py.File(folder / "x.h5", "w", libver="latest") as f:
            f.create_dataset("w", (*shape[:-1], shape[-1] * n), "f4", chunks=(1,) * len(shape))[...] = 1
        return folder / "x.h5"

    return make


def hdf5_values(value: object, dtype: str, each: int, count: int) -> growth.Make:
    """Attributes of many values, one on each of many groups."""

    def make(folder: Path, n: int) -> Path:
        import h5py

        with h5py.File(folder / "x.h5", "w", libver="latest") as f:
            for i in range(count * (n if count > 1 else 1)):
                values = np.full(each * (1 if count > 1 else n), value, dtype)
                f.create_group(f"{i:x}").attrs.create("a", values)
        return folder / "x.h5"

    return make


def keras_links(folder: Path, n: int) -> Path:
    """Layers of a legacy file that list one of two equal datasets, by hard links: the files of shared weights."""

    def weight(group: Any, i: int) -> str:
        group["w:0"] = np.zeros(200_000 * n, "f4") if i < 2 else group.file[f"d{i % 2}/w:0"]
        return "w:0"

    return growth.legacy(folder, 150 * n, weight)


def parts(folder: Path, n: int) -> Path:
    return safetensors_of(lambda _: empty("d/" * 50_000 * n), 1)(folder, 1)


def leaves(folder: Path, n: int) -> Path:
    """Values that are not tensors, each with a name."""
    (folder / "x.pkl").write_bytes(pickle.dumps({f"{i:x}": {"a": i, "b": "c"} for i in range(8_000 * n)}, 4))
    return folder / "x.pkl"


def nested(folder: Path, n: int) -> Path:
    """Containers at the depth that is read, each with a long way to its name."""
    inner: object = 1
    for i in range(60):
        inner = {f"{i:02d}" * 20: inner}
    (folder / "x.pkl").write_bytes(pickle.dumps([[inner, {}] for _ in range(2_000 * n)], 4))
    return folder / "x.pkl"


def orbax_of(arrays: Callable[[int], int], chunks: Callable[[int], int]) -> growth.Make:
    """A database of arrays of chunks, of one byte each."""

    def make(folder: Path, n: int) -> Path:
        from ckptconv.formats.orbax import write as btree

        k = chunks(n)
        said = {"zarr_format": 2, "shape": [k], "chunks": [1], "dtype": "|u1", "compressor": None, "fill_value": 0,
                "order": "C", "filters": None}  # fmt: skip
        raw, found = json.dumps(said).encode(), []
        for a in range(arrays(n)):
            found.append(btree.Entry(b"w%d/.zarray" % a, 0, len(raw), raw))
            found += [btree.Entry(b"w%d/%d" % (a, i), a * k + i, 1) for i in range(k)]
        total = arrays(n) * k
        nodes, manifest = btree.build(sorted(found), "d/x", total)
        (folder / "m" / "d").mkdir(parents=True)
        (folder / "m" / "d" / "x").write_bytes(bytes(total) + nodes)
        (folder / "m" / "manifest.ocdbt").write_bytes(manifest)
        return folder / "m"

    return make


def database(folder: Path, data: bytes, root: bytes, height: int, keys: int) -> Path:
    """A database whose root lies behind other nodes."""
    from ckptconv.formats.orbax import write as btree

    top = btree.Node(b"", root, keys, len(root), 0)
    (folder / "m" / "d").mkdir(parents=True)
    (folder / "m" / "d" / "x").write_bytes(data + root)
    (folder / "m" / "manifest.ocdbt").write_bytes(btree._manifest(top, len(data), height, "d/x", bytes(16)))
    return folder / "m"


def orbax_packed(pairs: Callable[[int], dict[bytes, bytes]], each: int = 2**40) -> growth.Make:
    """A database that holds these values in nodes, which are packed, of so many keys each."""

    def make(folder: Path, n: int) -> Path:
        from ckptconv.formats.orbax import write as btree

        found = [btree.Entry(key, 0, len(value), value) for key, value in sorted(pairs(n).items())]
        leaves = [btree._leaf(found[i : i + each], "d/x") for i in range(0, len(found), each)]
        leaves = [leaf._replace(raw=packed_node(leaf.raw)) for leaf in leaves]
        if len(leaves) == 1:
            return database(folder, b"", leaves[0].raw, 0, len(found))
        starts = [0, *np.cumsum([len(leaf.raw) for leaf in leaves])]
        root = btree._interior(leaves, [int(at) for at in starts[:-1]], 1, "d/x").raw
        return database(folder, b"".join(leaf.raw for leaf in leaves), root, 1, len(found))

    return make


def packed_node(raw: bytes) -> bytes:
    body = bytes(cramjam.zstd.compress(raw[14:-4]))
    raw = raw[:4] + (18 + len(body)).to_bytes(8, "little") + b"\0\1" + body
    return raw + crc32c(raw).to_bytes(4, "little")


BYTES = {"zarr_format": 2, "dtype": "|u1", "compressor": None, "fill_value": 0, "filters": None, "order": "C"}


def chunks_inline(n: int) -> dict[bytes, bytes]:
    count = 20_000 * n
    about = json.dumps({**BYTES, "shape": [count], "chunks": [1]}).encode()
    noise = np.random.default_rng(1).bytes(count)  # buys room
    return {b"w/.zarray": about, b"w/.zattrs": noise, **{b"w/%d" % i: b"\0" for i in range(count)}}


def arrays_inline(n: int) -> dict[bytes, bytes]:
    about = json.dumps({**BYTES, "shape": [], "chunks": []}).encode()
    noise = np.random.default_rng(1).bytes(50_000 * n)  # buys room
    return {b"w": noise, **{b"w%d/.zarray" % i: about for i in range(20_000 * n)}}


def zeros_inline(n: int) -> dict[bytes, bytes]:
    about = json.dumps({**BYTES, "shape": [10**6], "chunks": [10**6]}).encode()
    return {k: v for i in range(30 * n) for k, v in ((b"w%d/.zarray" % i, about), (b"w%d/0" % i, bytes(10**6)))}


def shard_inline(n: int) -> dict[bytes, bytes]:
    count, bare = 15_000 * n, {"name": "bytes"}
    inner = {"chunk_shape": [1], "codecs": [bare], "index_codecs": [bare]}
    about = {"zarr_format": 3, "node_type": "array", "shape": [count], "data_type": "uint8", "fill_value": 0,
             "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [count]}},
             "chunk_key_encoding": {"name": "default"},
             "codecs": [{"name": "sharding_indexed", "configuration": inner}]}  # fmt: skip
    index = np.stack([np.arange(count), np.ones(count)], 1).astype("<u8")
    return {b"w/c/0": bytes(count) + index.tobytes(), b"w/zarr.json": json.dumps(about).encode()}


def orbax_nested(folder: Path, n: int) -> Path:
    """Leaves, each of which is the value of the one around it."""
    from ckptconv.formats.orbax import write as btree

    count, data, at, nodes = 2000 * n, b"", [0], []
    for i in range(count):
        node = btree._leaf([btree.Entry(b"%06d" % i, 0, len(data), data)], "d/x")
        at.append(len(node.raw) - 4 - len(data))  # of the inner one, behind which is the checksum
        nodes.append((node.first, len(node.raw)))
        data = node.raw
    starts = np.cumsum([0, *at[:0:-1]])[:count][::-1]
    texts = btree._texts([key for key, _ in nodes])
    columns = (map(int, starts), (size for _, size in nodes), [1] * count, [1] * count, [0] * count)
    body = b"".join((
        b"\1", btree._files("d/x"), table.varint(count), *texts[:2], bytes(count), texts[2], bytes(count),
        *(table.varint(x) for column in columns for x in column),
    ))  # fmt: skip
    return database(folder, data, btree._enveloped(btree.NODE_MAGIC, body), 1, count)


def saved(folder: Path, n: int) -> Path:
    """Many tensors, as torch saves them."""
    torch = pytest.importorskip("torch")
    torch.save({f"w{i}": torch.zeros(1) for i in range(4_000 * n)}, folder / "x.pt")
    return folder / "x.pt"


def quantised(folder: Path, n: int) -> Path:
    """Many quantised tensors, of which each is three."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = {f"w{i}": torch.quantize_per_tensor(torch.ones(1), 0.5 + i, 1, torch.qint8) for i in range(2_000 * n)}
    torch.save(made, folder / "x.pt")
    return folder / "x.pt"


def names_of_one(folder: Path, n: int) -> Path:
    """One quantised tensor under many names."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.quantize_per_tensor(torch.ones(1), 0.5, 1, torch.qint8)
    torch.save(dict.fromkeys(range(50_000 * n), one), folder / "x.pt")
    return folder / "x.pt"


def legacy(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    many = {f"w{i}": torch.zeros(1) for i in range(8_000 * n)}
    torch.save(many, folder / "x.pth", _use_new_zipfile_serialization=False)
    return folder / "x.pth"


def script(folder: Path, n: int) -> Path:
    with zipfile.ZipFile(saved(folder, n)) as z:
        members = {m: z.read(m) for m in z.namelist() if "/data" in m}
    more = {"x/constants.pkl": b"\x80\x02).", "x/code/__torch__.py": b"", "x/version": b"3\n"}
    return deflated(folder / "x.pt", members | more, zipfile.ZIP_STORED)


def exported(folder: Path, n: int) -> Path:
    """Many names of one storage."""
    tensor = {"dtype": 7, "sizes": [{"as_int": 1}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    entry = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {**tensor, "layout": 7}}
    config = json.dumps({"config": {f"w{i}": entry for i in range(10_000 * n)}}).encode()
    weights = {"x/data/weights/weight_0": bytes(4), "x/data/weights/model_weights_config.json": config}
    return deflated(folder / "x.pt2", {"x/archive_format": b"pt2", **weights}, zipfile.ZIP_STORED)


def layers_of_gpt(folder: Path, n: int) -> Path:
    shapes = [[1, 1], [1, 1], *([1, 1, 1] if k % 2 == 0 and k % 12 < 8 else [1] for k in range(12 * 900 * n))]
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    np.save(folder / "params_0.npy", np.zeros(len(shapes), "f4"))
    return folder


def arrays(folder: Path, n: int) -> Path:
    (folder / "x").mkdir()
    for i in range(1_000 * n):
        np.save(folder / "x" / f"w{i}.npy", np.zeros(0, "f4"))
    return folder / "x"


CASES: dict[str, tuple[growth.Make, str]] = {
    "npz: empty sets": (npz_of(b"\x8f"), "npz"),
    "npz: empty dicts": (npz_of(b"}"), "npz"),
    "npz: memos": (npz_of(b"N\x94\x94\x94"), "npz"),
    "npz: marks": (npz_of(b"("), "npz"),
    "npz: members": (npz_members, "npz"),
    "npz: zeros": (zeros, "npz"),
    "pickle: empty sets": (pickle_of(b"\x8f"), "pickle"),
    "pickle: memos": (pickle_of(b"N\x94\x94\x94"), "pickle"),
    "pickle: marks": (pickle_of(b"("), "pickle"),
    "pickle: leaves": (leaves, "pickle"),
    "pickle: nested": (nested, "pickle"),
    "safetensors: parts of a name": (parts, "safetensors"),
    "orbax: chunks of one array": (orbax_of(lambda n: 1, lambda n: 4_000 * n), "orbax"),
    "orbax: arrays": (orbax_of(lambda n: 2_000 * n, lambda n: 1), "orbax"),
    "orbax: chunks of arrays": (orbax_of(lambda n: 30 * n, lambda n: 100), "orbax"),
    "orbax: packed chunks": (orbax_packed(chunks_inline), "orbax"),
    "orbax: packed arrays": (orbax_packed(arrays_inline), "orbax"),
    "orbax: packed zeros": (orbax_packed(zeros_inline, 2), "orbax"),
    "orbax: packed shards": (orbax_packed(shard_inline), "orbax"),
    "orbax: nodes within each other": (orbax_nested, "orbax"),
    "torch: empty sets": (torch_of(b"K\1\x8f"), "torch"),
    "keras3: empty objects": (keras_json(b"{}"), "keras3"),
    "keras3: lists": (keras_json(b"[[]]"), "keras3"),
    "keras3: numbers": (keras_json(b"1.5", 2_000_000), "keras3"),
    "keras3: nested models": (keras_nested, "keras3"), "keras3: cells in a long class": (keras_cells, "keras3"),
    "keras3: uses of a long class": (keras_uses, "keras3"), "keras3: uses of many axes": (keras_axes, "keras3"),
    "safetensors: entries": (safetensors_of(lambda i: empty(f"{i:x}"), 25_000), "safetensors"),
    "safetensors: metadata": (safetensors_of(metadata, 1), "safetensors"),
    "safetensors: nested": (safetensors_of(lambda i: (f"{i:x}", {"a": [[], {}, {"b": 1}]}), 20_000), "safetensors"),
    "hf: shards": (shards, "hf"),
    "tf: prefixes": (tf_keys, "tf"),
    "tf: entries": (tf_entries, "tf"),
    "tf: packed entries": (tf_packed(9), "tf"),
    "tf: packed entries, more than are read": (tf_packed(4), "tf"),
    "tf: edges": (tf_edges, "tf"),
    "tf-v1: slices": (growth.v1_slices, "tf-v1"),
    "tf-graph: scopes": (graph_scopes, "tf-graph"),
    "dcp: chunks": (dcp, "dcp"),
    "flax: maps": (flax, "flax"),
    "orbax: chunks": (orbax, "orbax"),
    "orbax: absent chunks": (orbax_absent, "orbax"),
    "torch: tensors": (saved, "torch"),
    "torch: quantised tensors": (quantised, "torch"),
    "torch: names of one quantised tensor": (names_of_one, "torch"),
    "torch-legacy: tensors": (legacy, "torch-legacy"),
    "torchscript: tensors": (script, "torchscript"),
    "pt2: tied names": (exported, "pt2"),
    "gpt: layers": (layers_of_gpt, "gpt"),
    "npy: files": (arrays, "npy"),
    "keras: layers": (growth.layers, "keras"),
    "keras: links": (keras_links, "keras"),
    "hdf5: datasets": (hdf5_of("datasets"), "hdf5"),
    "hdf5: links": (hdf5_of("links"), "hdf5"),
    "hdf5: groups": (hdf5_of("groups"), "hdf5"),
    "hdf5: chunks": (hdf5_chunks(20_000), "hdf5"),
    "hdf5: rows of chunks": (hdf5_chunks(2, 20_000), "hdf5"),
    "hdf5: values of an attribute": (hdf5_values(-100, "i1", 200_000, 1), "hdf5"),
    "hdf5: texts of attributes": (hdf5_values(b"ab", "S2", 1_000, 200), "hdf5"),
}  # fmt: skip


@pytest.mark.skipif(not growth.NEEDS, reason=growth.WHY)
@pytest.mark.parametrize("name", CASES)
def test_growth(name: str, tmp_path: Path) -> None:
    make, kind = CASES[name]
    assert not growth.fault(make, tmp_path, ("open", kind))


def test_every_reader_has_a_case() -> None:
    assert {f.name for f in TABLE} == {kind for _, kind in CASES.values()}
