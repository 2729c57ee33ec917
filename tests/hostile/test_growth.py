"""What a reader takes grows with the file: worst cases of N and 4N; `growth` has the bounds."""

from __future__ import annotations

import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cramjam
import growth
import numpy as np
import pytest
import tf_tables
from kit import FIXTURES, legacy, process, safetensors

from ckptconv.formats.table import TABLE
from ckptconv.formats.tensorflow import messages_pb2 as pb, table
from ckptconv.storage.checksum import mask

pytestmark = pytest.mark.slow

# --- worst cases: each writes a file of size n into a folder, and says what to open ---------------------------------


def deflated(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as z:
        for name, data in members.items():
            z.writestr(name, data, zipfile.ZIP_STORED if name.endswith(".h5") else method)
    return path


def file(name: str, raw: Callable[[int], bytes]) -> growth.Make:
    """A file of these bytes."""

    def make(folder: Path, n: int) -> Path:
        (folder / name).write_bytes(raw(n))
        return folder / name

    return make


def empty_sets(folder: Path, n: int) -> Path:
    """An .npy whose elements are a pickle that begins like an array's and goes on with empty sets."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.array({}, object), allow_pickle=True)
    head = out.getvalue()
    body = head[: head.index(b"\x80", 80)] + b"\x80\x04(" + b"\x8f" * (400_000 * n) + b"l."
    return deflated(folder / "x.npz", {"w.npy": body})


def npz_members(folder: Path, n: int) -> Path:
    np.save(one := io.BytesIO(), np.zeros(0, "f4"))
    return deflated(folder / "x.npz", {f"{i}.npy": one.getvalue() for i in range(2_000 * n)}, zipfile.ZIP_STORED)


def zeros(folder: Path, n: int) -> Path:
    np.savez_compressed(folder / "x.npz", **{f"w{i}": np.zeros(2**18, "f4") for i in range(10 * n)})
    return folder / "x.npz"


def leaves(n: int) -> bytes:
    """Values that are not tensors, each with a name."""
    return pickle.dumps({f"{i:x}": {"a": i, "b": "c"} for i in range(2_000 * n)}, 4)


def nested(n: int) -> bytes:
    """Containers at the depth that is read, each with a long way to its name."""
    inner: object = 1
    for i in range(60):
        inner = {f"{i:02d}" * 20: inner}
    return pickle.dumps([[inner, {}] for _ in range(2_000 * n)], 4)


def header(names: Iterable[str]) -> bytes:
    """A safetensors of empty tensors."""
    raw = json.dumps(dict.fromkeys(names, EMPTY), separators=(",", ":")).encode()
    return len(raw).to_bytes(8, "little") + raw


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def maps(n: int) -> bytes:
    """Maps of msgpack within maps, a number in each."""
    body = b"".join(b"\xa5" + f"{i:05x}".encode() + b"\x81\xa1a\x01" for i in range(5_000 * n))
    return b"\xdf" + (5_000 * n).to_bytes(4, "big") + body


def graph_scopes(n: int) -> bytes:
    """Functions with long names, full of nodes with short ones."""
    nodes = [{"name": "abcdefgh"[i % 8], "op": "N", "input": ["a"]} for i in range(1000)]
    graph = pb.GraphDef(node=[{"name": "a", "op": "NoOp"}])
    for i in range(30 * n):
        graph.library.function.add(signature={"name": f"{i:04d}" + "f" * 290}, node_def=nodes)
    return graph.SerializeToString()


def hdf5(fill: Callable[[Any, int], object]) -> growth.Make:
    def make(folder: Path, n: int) -> Path:
        import h5py

        with h5py.File(folder / "x.h5", "w") as f:
            fill(f, n)
        return folder / "x.h5"

    return make


def links(f: Any, n: int) -> None:
    first = f.create_dataset("w", (3,), "f4")
    for i in range(1_000 * n):
        f[f"l{i}"] = first


def attributes(f: Any, n: int) -> None:
    for i in range(200):
        f.create_group(f"{i:x}").attrs.create("a", np.full(500 * n, b"ab", "S2"))


def torch_of(made: Callable[[Any, int], object], name: str = "x.pt", **how: Any) -> growth.Make:
    """What torch saves."""

    def make(folder: Path, n: int) -> Path:
        torch = pytest.importorskip("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(made(torch, n), folder / name, **how)
        return folder / name

    return make


def tensors(torch: Any, n: int) -> dict[str, Any]:
    return {f"w{i}": torch.zeros(1) for i in range(1_000 * n)}


def quantised(torch: Any, n: int) -> dict[str, Any]:
    """Many quantised tensors, of which each is three."""
    return {f"w{i}": torch.quantize_per_tensor(torch.ones(1), 0.5 + i, 1, torch.qint8) for i in range(1_000 * n)}


def script(folder: Path, n: int) -> Path:
    with zipfile.ZipFile(torch_of(tensors)(folder, n)) as z:
        members = {m: z.read(m) for m in z.namelist() if "/data" in m}
    more = {"x/constants.pkl": b"\x80\x02).", "x/code/__torch__.py": b"", "x/version": b"3\n"}
    return deflated(folder / "x.pt", members | more, zipfile.ZIP_STORED)


def orbax(arrays: int, chunks: int, name: bytes = b"w") -> growth.Make:
    """A database of arrays of chunks, of one byte each; n times as many of what is more than one."""

    def make(folder: Path, n: int) -> Path:
        from ckptconv.formats.orbax import write as btree

        count, k = (c * n if c > 1 else 1 for c in (arrays, chunks))
        raw, entries = json.dumps({**BYTES, "shape": [k], "chunks": [1]}).encode(), []
        for a in range(count):
            entries.append(btree.Entry(name + b"%d/.zarray" % a, 0, len(raw), raw))
            entries += [btree.Entry(name + b"%d/%d" % (a, i), a * k + i, 1) for i in range(k)]
        nodes, manifest = btree.build(sorted(entries), "d/x", count * k)
        (folder / "m" / "d").mkdir(parents=True)
        (folder / "m" / "d" / "x").write_bytes(bytes(count * k) + nodes)
        (folder / "m" / "manifest.ocdbt").write_bytes(manifest)
        return folder / "m"

    return make


BYTES = {"zarr_format": 2, "dtype": "|u1", "compressor": None, "fill_value": 0, "filters": None, "order": "C"}


def keras_objects(folder: Path, n: int) -> Path:
    body = b'{"config": [' + b",".join([b"{}"] * (300_000 * n)) + b"]}"
    return deflated(folder / "x.keras", {"config.json": body, "metadata.json": b"{}", "model.weights.h5": b""})


def keras_layers(folder: Path, n: int) -> Path:
    """Layers of a legacy file of Keras, a weight in each."""
    weights = {f"d{i}": {f"d{i}/kernel:0": np.zeros(0, "f4")} for i in range(100 * n)}
    return legacy(folder / "x.h5", weights, backend=b"tensorflow", keras_version=b"2.15.0")


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
    layers: list[dict[str, object]] = [{"class_name": "Dense", "config": {"name": f"d{i}"}} for i in range(1_500 * n)]
    for _ in range(31):
        layers = [{"class_name": "a" * 500, "config": {"name": "x", "layers": layers}}]
    return keras_of(folder, "Functional", layers)


def keras_axes(folder: Path, n: int) -> Path:
    """A Reshape to very many axes, used often behind a dense layer."""
    first = {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, 7]}}
    dense = {"class_name": "Dense", "config": {"name": "d"}, "inbound_nodes": [[["i", 0, 0]]]}
    shape = {"name": "r", "target_shape": [2] * 20_000 * n}
    shaped = {"class_name": "Reshape", "config": shape, "inbound_nodes": [[["d", 0, 0]]] * 1_000 * n}
    return keras_of(folder, "Functional", [first, dense, shaped])


def shards(folder: Path, n: int) -> Path:
    """Many shards, each with metadata of its own."""
    places = {}
    for i in range(150 * n):
        head = {"__metadata__": {f"{i}.{k}": "" for k in range(400)}, f"t{i}": EMPTY}
        file = f"model-{i:05d}-of-{150 * n:05d}.safetensors"
        safetensors(folder / file, head)
        places[f"t{i}"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder / "model.safetensors.index.json"


HEADER = b"\x08\x01\x1a\x02\x08\x01"


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
    (folder / "m.index").write_bytes(
        tf_tables.table([(b"\xff", bytes(cramjam.snappy.compress_raw(bytes(body))))], b"\1")
    )
    (folder / "m.data-00000-of-00001").write_bytes(b"")
    return folder / "m.index"


def tf_entries(folder: Path, n: int) -> Path:
    """As many entries as there can be, of empty tensors."""
    value = pb.BundleEntryProto(dtype=1, shape={"dim": [{"size": 0}]}, crc32c=mask(0)).SerializeToString()
    pairs = [(b"", HEADER), *((f"{i:06x}".encode(), value) for i in range(12_000 * n))]
    (folder / "m.index").write_bytes(table.build(pairs))
    (folder / "m.data-00000-of-00001").write_bytes(b"")
    return folder / "m.index"


def dcp(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint import metadata as md
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    side = int((150 * n) ** 0.5)
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


def ranks(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    for rank in range(4):
        torch.save({f"w{i}": torch.ones(1) for i in range(200 * n)}, folder / f"consolidated.{rank:02d}.pth")
    return folder


def parts(kind: str) -> growth.Make:
    """What two ranks hold of the tensors of many models."""

    def make(folder: Path, n: int) -> Path:
        torch = pytest.importorskip("torch")
        for rank in range(2):
            name = f"model_world_size_2_rank_{rank}.pt"
            with process(rank):
                held = [torch.load(FIXTURES / "torch/ranks" / kind / name, weights_only=False) for _ in range(50 * n)]
                torch.save(held, folder / name)
        return folder

    return make


def megatron(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    for name in ("00_000", "00_001", "01_000", "01_001"):
        (folder / f"mp_rank_{name}").mkdir()
        held = {f"layers.{i}.w": torch.ones(1) for i in range(200 * n)}
        torch.save({"model": held}, folder / f"mp_rank_{name}/model_optim_rng.pt")
    return folder


def zero(folder: Path, n: int) -> Path:
    """Parameters of which each rank has an element."""
    torch = pytest.importorskip("torch")
    world, shapes = 4, {f"w{i}": torch.Size((4,)) for i in range(400 * n)}
    for rank in range(world):
        state = {"partition_count": world, "fp32_flat_groups": [torch.ones(len(shapes))]}
        begin = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": state}, folder / f"{begin}_optim_states.pt")
        torch.save({"module": {}, "param_shapes": [shapes]}, folder / f"{begin}_model_states.pt")
    return folder


def universal(folder: Path, n: int) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"param_shapes": []}, folder / "mp_rank_00_model_states.pt")
    for i in range(50 * n):
        (folder / "zero" / f"w{i}").mkdir(parents=True)
        torch.save({"param": torch.ones(1)}, folder / "zero" / f"w{i}" / "fp32.pt")
    return folder


def exported(folder: Path, n: int) -> Path:
    """Many names of one storage."""
    tensor = {"dtype": 7, "sizes": [{"as_int": 1}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    entry = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": {**tensor, "layout": 7}}
    config = json.dumps({"config": {f"w{i}": entry for i in range(5_000 * n)}}).encode()
    weights = {"x/data/weights/weight_0": bytes(4), "x/data/weights/model_weights_config.json": config}
    return deflated(folder / "x.pt2", {"x/archive_format": b"pt2", **weights}, zipfile.ZIP_STORED)


def layers_of_gpt(folder: Path, n: int) -> Path:
    shapes = [[1, 1], [1, 1], *([1, 1, 1] if k % 2 == 0 and k % 12 < 8 else [1] for k in range(12 * 450 * n))]
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    np.save(folder / "params_0.npy", np.zeros(len(shapes), "f4"))
    return folder


def arrays(folder: Path, n: int) -> Path:
    (folder / "x").mkdir()
    for i in range(1_000 * n):
        np.save(folder / "x" / f"w{i}.npy", np.zeros(0, "f4"))
    return folder / "x"


CASES: dict[str, tuple[growth.Make, str]] = {
    "npz: empty sets": (empty_sets, "npz"),
    "npz: members": (npz_members, "npz"),
    "npz: zeros": (zeros, "npz"),
    "pickle: empty sets": (file("x.pkl", lambda n: b"\x80\x04](" + b"\x8f" * (400_000 * n) + b"e."), "pickle"),
    "pickle: leaves": (file("x.pkl", leaves), "pickle"),
    "pickle: nested": (file("x.pkl", nested), "pickle"),
    "safetensors: parts of a name": (file("x.safetensors", lambda n: header(["d/" * 50_000 * n])), "safetensors"),
    "safetensors: entries": (file("x.safetensors", lambda n: header(map(hex, range(25_000 * n)))), "safetensors"),
    "hf: shards": (shards, "hf"),
    "orbax: arrays": (orbax(2_000, 1), "orbax"),
    "orbax: chunks": (orbax(1, 8_000, b"k" * 100), "orbax"),
    "keras3: empty objects": (keras_objects, "keras3"),
    "keras3: nested models": (keras_nested, "keras3"),
    "keras3: uses of many axes": (keras_axes, "keras3"),
    "keras: layers": (keras_layers, "keras"),
    "tf: prefixes": (tf_keys, "tf"),
    "tf: entries": (tf_entries, "tf"),
    "tf-v1: slices": (growth.v1_slices, "tf-v1"),
    "tf-graph: scopes": (file("x.pb", graph_scopes), "tf-graph"),
    "dcp: chunks": (dcp, "dcp"),
    "ranks: tensors": (ranks, "ranks"),
    "ranks: parts of DTensors": (parts("fsdp2"), "ranks"),
    "ranks: parts of ShardedTensors": (parts("fsdp1"), "ranks"),
    "megatron: tensors": (megatron, "megatron"),
    "deepspeed: tensors": (zero, "deepspeed"),
    "deepspeed: files": (universal, "deepspeed"),
    "flax: maps": (file("x.msgpack", maps), "flax"),
    "torch: tensors": (torch_of(tensors), "torch"),
    "torch: quantised tensors": (torch_of(quantised), "torch"),
    "torch-legacy: tensors": (torch_of(tensors, "x.pth", _use_new_zipfile_serialization=False), "torch-legacy"),
    "torchscript: tensors": (script, "torchscript"),
    "pt2: tied names": (exported, "pt2"),
    "gpt: layers": (layers_of_gpt, "gpt"),
    "npy: files": (arrays, "npy"),
    "hdf5: datasets": (hdf5(lambda f, n: [f.create_dataset(f"d{i}", (0,), "f4") for i in range(500 * n)]), "hdf5"),
    "hdf5: links": (hdf5(links), "hdf5"),
    "hdf5: chunks": (hdf5(lambda f, n: f.create_dataset("w", data=np.zeros(8_000 * n, "i1"), chunks=(1,))), "hdf5"),
    "hdf5: texts of attributes": (hdf5(attributes), "hdf5"),
}


@pytest.mark.skipif(not growth.NEEDS, reason=growth.WHY)
@pytest.mark.parametrize("name", CASES)
def test_growth(name: str, tmp_path: Path) -> None:
    make, kind = CASES[name]
    assert not growth.fault(make, tmp_path, ("open", kind))


def test_every_reader_has_a_case() -> None:
    assert {f.name for f in TABLE} == {kind for _, kind in CASES.values()}
