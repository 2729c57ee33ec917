"""The engine: whatever the parts, the windows and the order of jobs, the bytes that arrive are the right ones."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples, same

import ckptconv
from ckptconv.api import writing
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous, held, view
from ckptconv.dtypes import DTYPES
from ckptconv.engine.plan import Budget, Plan, compile_plan
from ckptconv.engine.run import BLOCK, How, execute
from ckptconv.formats import safetensors
from ckptconv.formats.tiling import joined
from ckptconv.moves.log import CHUNK
from ckptconv.moves.part import Span
from ckptconv.moves.read import read_array
from ckptconv.storage import checksum

TINY = Budget(limit=1 << 20, workers=2, window=64, whole=96)


def through(checkpoint: Checkpoint, path: Path, memory: Budget = TINY, **options: Any) -> Checkpoint:
    """Write with windows far smaller than the tensors, and open the result."""
    writer = safetensors.writer(str(path))
    plan = compile_plan(checkpoint, writer.place(checkpoint), str(path.parent), memory)
    execute(plan, writer, How(force=True, sync=False, **options))
    return ckptconv.open(path)


@st.composite
def strided(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int], list[int]]:
    """A storage, and an offset, shape and strides that stay within it."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    strides = [draw(st.integers(0, 12)) for _ in shape]
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    offset = draw(st.integers(0, 7))
    kind = draw(st.sampled_from(["u1", "<u2", "<f4", "<i8", "<c16"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    storage = rng.integers(0, 256, (offset + max(reach, 0) + 3) * np.dtype(kind).itemsize, "u1").view(kind)
    return storage, offset, shape, strides


@pytest.mark.slow
@examples(60)
@given(st.lists(strided(), min_size=1, max_size=4))
def test_any_view_of_any_storage_arrives(tmp_path_factory: pytest.TempPathFactory, views: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("views")
    tensors, want = {}, {}
    for i, (storage, offset, shape, strides) in enumerate(views):
        if storage.dtype == np.complex128:
            storage = storage.view("<i8")
        (folder / f"{i}").write_bytes(storage.tobytes())
        span = Span(str(folder / f"{i}"), 0, storage.nbytes, f"crc32:{checksum.crc('crc32', storage.tobytes()):08x}")
        kind = DTYPES[storage.dtype.name]
        tensors[f"t{i}"] = view(f"t{i}", kind, shape, span, offset=offset, strides=strides)
        item = storage.itemsize
        want[f"t{i}"] = np.array(
            np.lib.stride_tricks.as_strided(storage[offset:], shape, [s * item for s in strides]), order="C"
        )
    got = through(Checkpoint(tensors), folder / "out.safetensors")
    for name, array in want.items():
        assert same(read_array(tensors[name]), array)
        assert same(got[name].numpy(), array)


@examples(30)
@given(st.data())
def test_tiles_join_to_the_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("tiles")
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    whole = np.arange(rows * columns, dtype="<i4").reshape(rows, columns)
    cuts_r = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=3))})
    cuts_c = sorted({0, columns, *data.draw(st.lists(st.integers(0, columns), max_size=3))})
    tiles, at = [], 0
    with (folder / "data").open("wb") as f:
        for r0, r1 in itertools.pairwise(cuts_r):
            for c0, c1 in itertools.pairwise(cuts_c):
                raw = whole[r0:r1, c0:c1].tobytes()
                f.write(raw)
                span = Span(str(folder / "data"), at, len(raw))
                tiles.append((contiguous("w", DTYPES["int32"], (r1 - r0, c1 - c0), span), (r0, c0)))
                at += len(raw)
    t = joined("w", whole.shape, data.draw(st.permutations(tiles)), "")
    assert same(through(Checkpoint({"w": t}), folder / "o.safetensors")["w"].numpy(), whole)


def many(folder: Path) -> Checkpoint:
    """Tensors small and large, of all widths, each checked by a CRC-32C, from one file."""
    rng = np.random.default_rng(1)
    tensors: dict[str, Tensor] = {}
    blob = b""
    for i, kind in enumerate(["float32", "int8", "float64", "bool", "uint16", "complex64"] * 20):
        array = rng.integers(0, 2, int(rng.integers(0, 40))).astype(DTYPES[kind].dtype)
        span = Span(
            str(folder / "blob"), len(blob), array.nbytes, f"crc32c:{checksum.crc('crc32c', array.tobytes()):08x}"
        )
        tensors[f"{i:03d}"] = contiguous(f"{i:03d}", DTYPES[kind], array.shape, span)
        blob += array.tobytes()
    (folder / "blob").write_bytes(blob)
    return Checkpoint(tensors)


def shuffled(do: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
    """An engine that runs jobs in any order, some of them twice, after a trip through pickle."""
    import pickle

    jobs = list(jobs)
    random.Random(0).shuffle(jobs)
    for i, job in enumerate(jobs):
        copy = pickle.loads(pickle.dumps(job))
        if i % 3 == 0:
            do(copy)
        yield do(copy)


def test_any_order_of_jobs_gives_the_same_file(tmp_path: Path) -> None:
    source = many(tmp_path)
    through(source, tmp_path / "a.safetensors")
    through(source, tmp_path / "b.safetensors", map=shuffled)
    through(source, tmp_path / "c.safetensors", memory=Budget.of(1 << 28, 1))
    first = (tmp_path / "a.safetensors").read_bytes()
    assert first == (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_what_is_decoded_into_the_output_is_hashed_on_the_way(tmp_path: Path) -> None:
    """A tensor that is a job by itself, in many blocks."""
    array = np.arange(3 * CHUNK // 4 - 5, dtype="f4") // 1000
    np.savez_compressed(tmp_path / "a.npz", w=array)
    writing.convert(tmp_path / "a.npz", tmp_path / "b.safetensors")
    assert "by 1 hash" in str(ckptconv.verify(tmp_path / "b.safetensors"))
    assert same(ckptconv.open(tmp_path / "b.safetensors")["w"].numpy(), array)


def test_a_transposed_view_of_a_checked_storage_is_checked_too(tmp_path: Path) -> None:
    array = np.arange(10000, dtype="<f4")
    (tmp_path / "s").write_bytes(array.tobytes())
    good = f"crc32:{checksum.crc('crc32', array.tobytes()):08x}"
    for check, fails in ((good, False), ("crc32:00000000", True)):
        span = Span(str(tmp_path / "s"), 0, array.nbytes, check)
        t = view("w", DTYPES["float32"], (50, 100), span, offset=0, strides=(1, 100))
        if fails:
            with pytest.raises(ckptconv.CorruptCheckpoint):
                through(Checkpoint({"w": t}), tmp_path / "o.safetensors")
        else:
            got = through(Checkpoint({"w": t}), tmp_path / "o.safetensors")
            assert same(got["w"].numpy(), np.array(array.reshape(100, 100)[:, :50].T, order="C"))


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.npz", "m.h5", "m.msgpack"])
def test_a_source_that_is_replaced_after_its_headers_were_read_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the same size: its data would stand under the other's names."""
    ckptconv.save({"w": np.zeros(1000)}, tmp_path / name)
    ckptconv.save({"w": np.ones(1000)}, tmp_path / "other" / name)
    plan_for = ckptconv.api.writing.plan_for

    def late(*args: Any) -> Any:
        made = plan_for(*args)
        (tmp_path / "other" / name).replace(tmp_path / name)
        return made

    monkeypatch.setattr(ckptconv.api.writing, "plan_for", late)
    with pytest.raises(ckptconv.CorruptCheckpoint, match="changed since it was opened"):
        ckptconv.convert(tmp_path / name, tmp_path / "out" / "o.npz")
    assert not (tmp_path / "out").exists()


def test_casts_count_what_they_lose(tmp_path: Path) -> None:
    array = np.array([1, -0.0, 1e30, -1e30, 1e-30, np.inf, np.nan], "<f4")
    ckptconv.save({"w": array, "i": np.arange(3)}, tmp_path / "a.safetensors")
    done = ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", dtype="float16")
    assert done.loss == {"w": (2, 1)}
    got = ckptconv.open(tmp_path / "b.safetensors")
    with np.errstate(over="ignore"):
        assert same(got["w"].numpy(), array.astype("f2"))
    assert got["i"].dtype.name == "int64"


@pytest.mark.parametrize("suffix", [".pt", ".ckpt", ".safetensors"])
def test_the_losses_of_tied_names_are_those_of_each(suffix: str, tmp_path: Path) -> None:
    """Whether the format writes them once or twice."""
    one = held("a", np.array([1e30, 1, 1e-30], "f4"))
    tensors = {"a": one, "b": one.renamed("b"), "c": held("c", np.ones(3, "f4"))}
    ckptconv.save(Checkpoint(tensors, ties=(("a", "b"),)), tmp_path / "in.pt")
    done = ckptconv.convert(tmp_path / "in.pt", tmp_path / f"out{suffix}", dtype="float16")
    assert done.loss == {"a": (1, 1), "b": (1, 1)}


def test_a_plan_says_how_each_tensor_moves(tmp_path: Path) -> None:
    ckptconv.save({"w": np.ones((2, 3), "f4"), "n": np.arange(2)}, tmp_path / "a.safetensors")
    plan = ckptconv.dry_run(tmp_path / "a.safetensors", tmp_path / "b.npz", dtype="float16")
    assert isinstance(plan, Plan)
    rows = {row["name"]: row for row in plan.to_json()["plan"]}
    assert (rows["n"]["how"], rows["w"]["how"]) == ("copy", "cast float32 to float16")
    assert rows["w"]["shape"] == [2, 3]
    assert plan.summary()["bytes_changed"] == 12


def test_long_runs_arrive_where_they_belong(tmp_path: Path) -> None:
    """Runs longer than a block are copied block by block, each to its own place in the file."""
    rng = np.random.default_rng(4)
    sizes = {"a": 3, "b": 2 * BLOCK + 5, "c": BLOCK, "d": BLOCK + 1, "e": 3 * BLOCK - 1}
    values = {name: rng.integers(0, 256, size, "u1") for name, size in sizes.items()}
    np.savez(tmp_path / "in.npz", **values)
    through(ckptconv.open(tmp_path / "in.npz"), tmp_path / "out.safetensors", memory=Budget.of(1 << 28, 1))
    back = (tmp_path / "out.safetensors").read_bytes()
    begins = 8 + int.from_bytes(back[:8], "little")
    assert len(back) - begins == sum(sizes.values())
    head = json.loads(back[8:begins])
    for name, value in values.items():
        lo, hi = head[name]["data_offsets"]
        assert back[begins + lo : begins + hi] == value.tobytes()
