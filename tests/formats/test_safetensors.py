"""safetensors against the reference: what it writes we read, what we write it reads, and the bytes are the same."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import safetensors as file

import ckptconv
from ckptconv import errors
from ckptconv.checkpoint import Checkpoint, contiguous, held
from ckptconv.dtypes import DTYPES
from ckptconv.formats import safetensors as ours
from ckptconv.formats.table import Reading
from ckptconv.moves.part import Held
from ckptconv.testing import bits, write, zoo

HELD = [row for row in DTYPES.values() if row.safetensors]


def reference(checkpoint: Checkpoint, metadata: dict[str, str] | None = None) -> bytes:
    """What safetensors' own writer makes of it."""
    safetensors = pytest.importorskip("safetensors")
    arrays = {n: np.asarray(t.numpy(), order="C") for n, t in checkpoint.items()}
    specs = {
        n: safetensors.TensorSpec(
            dtype=checkpoint[n].dtype.torch_name, shape=list(a.shape), data_ptr=a.ctypes.data, data_len=a.nbytes
        )
        for n, a in arrays.items()
    }
    return bytes(safetensors.serialize(specs, metadata))


def test_what_the_reference_writes(tmp_path: Path) -> None:
    whole = zoo()
    kept = whole.with_tensors({n: t for n, t in whole.items() if t.dtype.safetensors})
    path = tmp_path / "x.safetensors"
    path.write_bytes(reference(kept))
    found = ckptconv.open(path)
    assert set(found) == set(kept)
    assert len({t.dtype for t in kept.values()}) == len(HELD)
    for n, t in kept.items():
        assert (found[n].dtype, found[n].shape) == (t.dtype, t.shape)
        assert found[n].numpy().tobytes() == t.numpy().tobytes(), n


def test_bytes_are_those_of_the_reference(tmp_path: Path) -> None:
    tensors = [contiguous(f"{r.name}.{i}", r, (2, 2), Held(bits(r, (2, 2), i))) for i in (1, 0) for r in HELD]
    tensors += [held(n, np.arange(3, dtype="f4")) for n in ('é"\\\n\x01/\x7f', "Z", "a", "日本", "😀", "")]
    tensors += [held("scalar", np.array(1.5)), held("none", np.zeros((0, 3), "i2"))]
    whole = Checkpoint({t.name: t for t in tensors})
    write(whole, tmp_path / "x.safetensors", "safetensors", hash=False)
    assert (tmp_path / "x.safetensors").read_bytes() == reference(whole, {"format": "pt"})


def header(rng: random.Random) -> bytes:
    """A file of a few tensors, most often with something wrong."""
    whole: dict[str, Any] = {}
    at = 0
    for i in range(rng.randrange(4)):
        kind, size = rng.choice([("F32", 4), ("U8", 1), ("BOOL", 1), ("F64", 8), ("BF16", 2), ("C64", 8), ("I4", 1)])
        shape = [rng.choice([0, 1, 2, 3]) for _ in range(rng.randrange(3))]
        size *= math.prod(shape)
        entry: dict[str, Any] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
        if rng.random() < 0.1:
            entry[rng.choice(list(entry))] = rng.choice(ODD)
        if rng.random() < 0.1 and shape:
            entry["shape"] = [rng.choice(ODD), *shape[1:]]
        if rng.random() < 0.1:
            entry["data_offsets"] = [rng.choice([*ODD, at]), at]
        whole[f"t{i}"] = entry
    if rng.random() < 0.2:
        whole["__metadata__"] = rng.choice([{}, {"a": "b"}, None, {"a": 1}, [], "x", {"a": None}])
    raw = json.dumps(whole).encode()
    raw = rng.choice([b"", b"", b"", b"", b" ", b"\n", b"\xef\xbb\xbf", b"\0"]) + raw
    raw += rng.choice([b"", b"", b"", b"", b" ", b"\0", b"x"])
    return len(raw).to_bytes(8, "little") + raw + bytes(max(0, at + rng.choice([0, 0, 0, 0, 0, -1, 1])))


ODD: tuple[Any, ...] = (0, 1, 2, 4, 8, -1, True, None, 1.0, "1", 2**32, 2**62, 2**64, [], {}, 12, 3)


@pytest.mark.slow
def test_the_reference_and_we_refuse_the_same(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    rng, path = random.Random(1), tmp_path / "x.safetensors"
    seen = {True: 0, False: 0}
    for _ in range(2000):
        raw = header(rng)
        path.write_bytes(raw)
        try:
            safetensors.deserialize(raw)
            valid = True
        except safetensors.SafetensorError:
            valid = False
        try:
            ours.open(str(path), Reading())
            taken = True
        except ckptconv.CorruptCheckpoint:
            taken = False
        assert taken == valid, raw
        seen[valid] += 1
    assert min(seen.values()) > 300


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed"])
def test_views_are_written_in_logical_order(order: str, tmp_path: Path) -> None:
    """safetensors 0.8.0's numpy writer stores the memory order of these and so changes their values."""
    base = np.arange(24.0, dtype="f4").reshape(4, 6)
    array = {"C": base, "F": np.asfortranarray(base), "strided": base[::2, 1::2].T, "reversed": base[::-1, ::-1]}[order]
    ckptconv.save({"w": array}, tmp_path / "x.safetensors")
    assert (ckptconv.open(tmp_path / "x.safetensors")["w"].numpy() == array).all()


def test_unaligned_payload_is_read(tmp_path: Path) -> None:
    """llama.cpp and torch's consolidation write such files."""
    header = b'{"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}'
    header += b" " * ((1 - len(header)) % 8)
    path = file(tmp_path / "x.safetensors", header, np.array([1.5, -0.0]).tobytes())
    assert ckptconv.open(path)["w"].numpy().tobytes() == np.array([1.5, -0.0]).tobytes()


PARTS = (  # the name of a file, its DCP_SHARDING_INFO, and "refused", "doubtful" or "" for what is read as it is
    ("shard-00001-model-00001-of-00001.safetensors", '{"w": {"saved_offsets": [0, 0]}}', "refused"),
    ("shard-00002-model-00001-of-00001.safetensors", "{", "refused"),
    ("x.safetensors", '{"w": {"saved_offsets": [2, 0]}}', "refused"),
    ("x.safetensors", '{"w": {"saved_offsets": [0, 0]}}', "doubtful"),
    ("x.safetensors", '{"w": {"saved_offsets": []}}', ""),
    ("x.safetensors", '{"x": {"saved_offsets": [2]}}', ""),
    ("x.safetensors", '{"w": {"saved_offsets": 2}}', ""),
    ("x.safetensors", '{"w": 2}', ""),
    ("x.safetensors", "{", ""),
    ("x.safetensors", "3", ""),
)


@pytest.mark.parametrize(("name", "info", "what"), PARTS)
def test_parts_that_a_distributed_run_saved(name: str, info: str, what: str, tmp_path: Path) -> None:
    """They are never taken for tensors; the first one under another name says what a whole tensor says."""
    entry = {"dtype": "I8", "shape": [2, 3], "data_offsets": [0, 6]}
    file(tmp_path / name, {"__metadata__": {"DCP_SHARDING_INFO": info}, "w": entry}, bytes(6))
    if what == "refused":
        with pytest.raises(errors.CorruptCheckpoint, match="holds parts of tensors"):
            ckptconv.open(tmp_path / name)
        return
    found = ckptconv.open(tmp_path / name)
    assert ["read as whole tensors" in n.text for n in found.notes] == [True] * (what == "doubtful")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    assert not ckptconv.open(tmp_path / "model.safetensors").notes  # an index leaves no doubt


@pytest.mark.filterwarnings("ignore")
def test_what_a_distributed_run_of_torch_saves(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    consolidate = pytest.importorskip("torch.distributed.checkpoint._consolidate_hf_safetensors")
    writer = checkpoint.HuggingFaceStorageWriter(str(tmp_path / "m"), save_distributed=True)
    checkpoint.save({"w": torch.arange(12.0).reshape(4, 3)}, storage_writer=writer)
    with pytest.raises(errors.CorruptCheckpoint, match="holds parts of tensors"):
        ckptconv.open(next((tmp_path / "m").glob("*.safetensors")))
    assert ckptconv.open(tmp_path / "m")["w"].numpy().tolist() == np.arange(12.0).reshape(4, 3).tolist()
    (tmp_path / "whole").mkdir()
    consolidate.consolidate_safetensors_files(str(tmp_path / "m"), str(tmp_path / "whole"), {"w": 1})
    found = ckptconv.open(tmp_path / "whole")
    assert (found["w"].numpy().tolist(), found.notes) == (np.arange(12.0).reshape(4, 3).tolist(), ())


def test_sharded(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full((10, 10), i, "f4") for i in (3, 1, 2, 0)} | {"big": np.zeros(500, "f4")}
    report = ckptconv.save(arrays, tmp_path / "model.safetensors", max_shard_size=900)
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert [os.path.basename(f) for f in report.files] == [*shards, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
    assert index["weight_map"] == {"w3": shards[0], "w1": shards[0], "w2": shards[1], "w0": shards[1], "big": shards[2]}
    for name in ("model.safetensors", "model.safetensors.index.json", shards[1]):
        found = ckptconv.open(tmp_path / name)
        assert set(found) == set(arrays)
        assert all((found[n].numpy() == a).all() for n, a in arrays.items())


def test_older_shards_go(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full(100, i, "f4") for i in range(4)}
    path = tmp_path / "model.safetensors"
    (tmp_path / "other.safetensors").write_bytes(b"mine")
    ckptconv.save(arrays, path, max_shard_size=400)
    ckptconv.save(arrays, path, max_shard_size=800, force=True)
    assert [p.name for p in sorted(tmp_path.glob("model-*"))] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    ckptconv.save(arrays, path, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "other.safetensors"]


def test_header_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "MAX_HEADER", 2000)
    with pytest.raises(errors.Unrepresentable, match="divide it, as max_shard_size= does"):
        ckptconv.save({f"a rather long name, number {i}": np.ones(1) for i in range(50)}, tmp_path / "m.safetensors")


@pytest.mark.parametrize("shape", [(0, 2**32, 2**32), (3, 0, 2**62), (0, 2**63 - 1, 2**63 - 1, 7)])
def test_empty_tensors_of_vast_shapes(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The reference multiplies in order, and accepts what is 0 before it overflows; NumPy has no such array."""
    safe_open = pytest.importorskip("safetensors").safe_open
    file(tmp_path / "x.safetensors", {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    with safe_open(tmp_path / "x.safetensors", "numpy") as f:
        assert tuple(f.get_slice("w").get_shape()) == shape
    found = ckptconv.open(tmp_path / "x.safetensors")
    assert found["w"].shape == shape
    with pytest.raises(errors.UsageError, match="NumPy cannot represent the shape"):
        found["w"].numpy()
    ckptconv.convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert ckptconv.open(tmp_path / "y.safetensors")["w"].shape == shape


def test_the_reference_opens_what_is_published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A header that we read and the reference does not is never published."""
    safetensors = pytest.importorskip("safetensors")
    arrays = {f"t{i}": np.ones(100, "f4") for i in range(4)}
    opened = []
    real = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", lambda *given: opened.append(Path(given[0]).name) or real(*given))
    ckptconv.save(arrays, tmp_path / "m.safetensors")
    ckptconv.save(arrays, tmp_path / "s.safetensors", max_shard_size=800)
    ckptconv.save(arrays, tmp_path / "folder", to="hf")
    shards = [f"s-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert opened == ["m.safetensors", *shards, "model.safetensors"]
    monkeypatch.setattr("ckptconv.formats.safetensors.MAX_PROVED", 10)
    opened.clear()
    ckptconv.save(arrays, tmp_path / "p.safetensors", max_shard_size=800)
    assert opened == ["p-00001-of-00002.safetensors"]
    lay_out = ours._lay_out

    def spoilt(*given: Any) -> Any:
        made = lay_out(*given)
        head = made.patches[0].data
        assert head.count(b'"F32"') == 4
        return made._replace(patches=[made.patches[0]._replace(data=head.replace(b'"shape":[100]', b'"shape":[1e2]'))])

    monkeypatch.setattr(ours, "_lay_out", spoilt)
    with pytest.raises(errors.VerifyError):
        ckptconv.save(arrays, tmp_path / "q.safetensors")
    assert not (tmp_path / "q.safetensors").exists()


@pytest.mark.parametrize(
    ("shape", "bytes_", "held"),
    [
        ([4, 6], 12, (4, 3)),
        ([2], 1, (1,)),
        ([3, 5, 2], 15, (3, 5, 1)),
        ([0, 2], 0, (0, 1)),
        ([4, 3], 6, None),
        ([], 0, None),
    ],
)
def test_floats_of_four_bits(shape: list[int], bytes_: int, held: tuple[int, ...] | None, tmp_path: Path) -> None:
    """Two lie in a byte, within a row; with rows that end in half a byte they are left out."""
    entry = {"dtype": "F4", "shape": shape, "data_offsets": [0, bytes_]}
    file(tmp_path / "a.safetensors", {"w": entry}, bytes(range(bytes_)))
    if shape == []:
        with pytest.raises(errors.CorruptCheckpoint, match="needs 0 and a fraction"):
            ckptconv.open(tmp_path / "a.safetensors")
        return
    found = ckptconv.open(tmp_path / "a.safetensors")
    assert [t.shape for t in found.values()] == ([held] if held else [])
    assert [(n.kind, n.names) for n in found.notes if n.names] == ([] if held else [("skipped", ("w",))])
    if held:
        assert found["w"].numpy().tobytes() == bytes(range(bytes_))


def test_a_pair_of_floats_of_four_bits_that_is_no_row(tmp_path: Path) -> None:
    pair = contiguous("w", DTYPES["float4_e2m1fn_x2"], (), held("w", np.array(7, "u1")).parts[0].data)
    with pytest.raises(errors.Unrepresentable, match="along the last axis, and a scalar has none"):
        write(Checkpoint({"w": pair}), tmp_path / "x.safetensors", "safetensors")
