"""Orbax: what Orbax and tensorstore wrote is read bit for bit, by every layout; what is not understood is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from kit import FIXTURES, refused
from orbax_golden import assert_equal, expected

import ckptconv
from ckptconv.bulk.discover import discover
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.formats.orbax import items, write, zarr as chunks
from ckptconv.storage.ranges import InMemory

GOLDEN = FIXTURES / "orbax"  # made by fixtures/make/by_orbax.py and by_tensorstore.py


@pytest.mark.parametrize(
    "variant", ["mesh_chunks", "mesh_chunks/manifest.ocdbt", "mesh_chunks/_METADATA", "v0.5_chunks_zarr3"]
)
def test_orbax(variant: str) -> None:
    assert_equal(ckptconv.open(GOLDEN / variant), expected(GOLDEN / "expected.npz"))


@pytest.mark.parametrize("variant", ["files", "deep"])
def test_tensorstore(variant: str) -> None:
    found = ckptconv.open(GOLDEN / "zarr" / variant)
    want = expected(GOLDEN / "zarr" / "expected.npz", f"{variant}:")
    assert_equal(found, want)
    for name, t in found.items():  # a slice reads the chunks that it needs
        assert np.array_equal(t[1:4, 2, ::2], want[name][1][1:4, 2, ::2])


def test_items_of_the_newest_step_stand_side_by_side() -> None:
    found = ckptconv.open(GOLDEN / "several")
    want = expected(GOLDEN / "expected.npz")
    opt = {f"train_state/{n}": v for n, v in want.items() if n.startswith("opt_state")}
    assert_equal(found, {n: v for n, v in want.items() if n.startswith("params/")} | opt)
    assert any("newest step, 3," in note.text for note in found.notes)
    one = ckptconv.open(GOLDEN / "several" / "3" / "params")
    assert_equal(one, {n.removeprefix("params/"): v for n, v in want.items() if n.startswith("params/")})


PATHS = {
    "a list": [["layers", items.DICT], ["0", items.SEQUENCE], ["w", items.DICT]],
    "a key that contains '/'": [["layers", items.DICT], ["0/w", items.DICT]],
}


@pytest.mark.parametrize("case", PATHS)
def test_items_are_written_as_one_tree(case: str, tmp_path: Path) -> None:
    """With the paths that a name does not tell."""
    for item, value in (("params", 1.0), ("ema", 2.0)):
        made = held("layers/0/w", np.full(3, value))
        one = Checkpoint({made.name: made}, details={"keys": {made.name: PATHS[case]}})
        ckptconv.save(one, tmp_path / "step" / item, to="orbax")
    ckptconv.convert(tmp_path / "step", tmp_path / "out", to="orbax")
    found = ckptconv.open(tmp_path / "out")
    assert {n: t.numpy()[0] for n, t in found.items()} == {"ema/layers/0/w": 2.0, "params/layers/0/w": 1.0}
    wanted = {f"{i}/layers/0/w": [[i, items.DICT], *PATHS[case]] for i in ("ema", "params")}
    assert found.details["keys"] == wanted


def no_manifest(step: Path) -> None:
    (step / "params" / "manifest.ocdbt").unlink()


def only_the_tree(step: Path) -> None:
    no_manifest(step)
    for folder in ("d", "ocdbt.process_0"):
        shutil.rmtree(step / "params" / folder)


def empty(step: Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (no_manifest, "params: was not finished, or lost its manifest.ocdbt"),
        (only_the_tree, "params: has a tree, but neither a manifest.ocdbt nor folders with its arrays"),
        (empty, "holds no checkpoint: it is empty"),
    ],
)
def test_a_newer_step_that_is_not_finished_is_passed_over(
    broken: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    for step in ("9", "10", "11"):
        shutil.copytree(GOLDEN / "several" / "3", tmp_path / step)
    for step in ("10", "11"):
        broken(tmp_path / step)
    texts = {n.text: n.names for n in ckptconv.open(tmp_path).notes}
    assert texts["newer steps, which are not finished"] == ("11", "10")
    assert "the newest step, 9, is read" in texts
    with refused(words):
        ckptconv.open(tmp_path / "11")


def test_a_run_without_a_finished_step(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "several" / "3", tmp_path / "11.orbax-checkpoint-tmp-7")
    with refused("holds no finished step:\n  11.orbax-checkpoint-tmp-7"):
        ckptconv.open(tmp_path)


@pytest.mark.parametrize("marked", [(), ("9",), ("9", "10")])
def test_in_a_store_the_last_file_of_a_step_tells_that_it_is_finished(marked: tuple[str, ...], tmp_path: Path) -> None:
    """There a step has its name from the beginning. Checkpoints of T5X and copies have no such file."""
    import fsspec

    for step in ("9", "10"):
        shutil.copytree(GOLDEN / "several" / "3", tmp_path / step)
        (tmp_path / step / "commit_success.txt").unlink(missing_ok=True)
        if step in marked:
            (tmp_path / step / "commit_success.txt").write_text("x")
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), f"/{tmp_path.name}-{len(marked)}", recursive=True)
    (note,) = (n for n in ckptconv.open(f"memory://{tmp_path.name}-{len(marked)}").notes if "newest" in n.text)
    assert f"newest step, {'9' if marked == ('9',) else '10'}," in note.text
    (local,) = (n for n in ckptconv.open(tmp_path).notes if "newest" in n.text)
    assert "newest step, 10," in local.text


def test_folders_that_nothing_calls_a_step_are_named(tmp_path: Path) -> None:
    for name in ("3", "models"):
        shutil.copytree(GOLDEN / "several" / "3", tmp_path / name)
        (tmp_path / name / "_CHECKPOINT_METADATA").unlink()
    loose = [n.names for n in ckptconv.open(tmp_path / "models").notes if "items of one checkpoint" in n.text]
    assert loose == [("params", "train_state")]
    assert not [n for n in ckptconv.open(tmp_path / "3").notes if n.kind == "assumed"]


def test_a_lost_tree_is_noted(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "mesh_chunks", tmp_path / "x")
    (tmp_path / "x" / "_METADATA").unlink()
    found = ckptconv.open(tmp_path / "x")
    (note,) = (n for n in found.notes if "divided at each dot" in n.text)
    assert note.names == tuple(found)
    assert "params/norm/scale" in found


def test_items_that_hold_no_arrays_are_named(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "several" / "3", tmp_path / "3")
    (tmp_path / "3" / "dataset").mkdir()
    (tmp_path / "3" / "dataset" / "position.json").write_text("{}")
    (tmp_path / "3" / "orbax.checkpoint").touch()  # of orbax.checkpoint.v1
    notes = [n for n in ckptconv.open(tmp_path).notes if n.kind == "unread"]
    assert [(n.text, n.names) for n in notes] == [("items that hold no arrays", ("dataset",))]


def test_roles_and_what_is_no_array() -> None:
    found = ckptconv.open(GOLDEN / "mesh_chunks")
    roles = {n: t.role for n, t in found.items()}
    assert (roles["params/dense/kernel"], roles["opt_state/1/mu/w"]) == ("", "slot")
    assert roles["step"] == roles["opt_state/0/count"] == "step"
    odd = ckptconv.open(GOLDEN / "not_arrays")
    assert {n: t[...].tolist() for n, t in odd.items() if not t.shape} == {"float": -0.5, "int": 5, "np": 2.0}
    assert set(odd) == {"float", "int", "np", "a/b/c", "a/"}
    (note,) = odd.notes
    assert note.names == ("empty: Dict", "list: List", "none: None", "text: string")


def test_absent_chunks_are_noted_where_they_may_be_absent_and_refused_where_not(tmp_path: Path) -> None:
    (note,) = ckptconv.open(GOLDEN / "v0.5_chunks_zarr3").notes
    assert (note.kind, note.names) == ("assumed", ("params/dense/bias",))
    folder = zarr(tmp_path, {f"params.{n}": ({}, np.ones((4, 4), "f4")) for n in "vw"}, tree=True)
    (folder / "params.w" / "1.1").unlink()
    with refused("lacks chunks"):
        ckptconv.open(folder)
    found = ckptconv.open(folder, keep_going=True)
    assert list(found) == ["params/v"]
    assert [(n.kind, n.names) for n in found.notes] == [("damaged", ("params/w",))]


# --- folders made here ------------------------------------------------------------------------------------------

ZARRAY = {"zarr_format": 2, "chunks": [2, 2], "compressor": None, "fill_value": None, "filters": None, "order": "C"}


def zarr(home: Path, made: dict[str, tuple[dict[str, Any], np.ndarray]], *, tree: bool = False) -> Path:
    """A folder of zarr 2 with chunks of 2x2, as T5X writes it; with `_METADATA` as Orbax does."""
    folder = home / "checkpoint_7"
    entries = {}
    for name, (more, array) in made.items():
        (folder / name).mkdir(parents=True)
        said = {**ZARRAY, "shape": array.shape, "dtype": array.dtype.str, **more}
        (folder / name / ".zarray").write_text(json.dumps(said))
        for i in range(0, array.shape[0], 2):
            for j in range(0, array.shape[1], 2):
                (folder / name / f"{i // 2}.{j // 2}").write_bytes(array[i : i + 2, j : j + 2].tobytes())
        entries[name] = {
            "key_metadata": [{"key": k, "key_type": 2} for k in name.split(".")],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
    if tree:
        text = json.dumps({"tree_metadata": entries, "store_array_data_equal_to_fill_value": True})
        (folder / "_METADATA").write_text(text)
    return folder


def test_t5x(tmp_path: Path) -> None:
    """Arrays that a msgpack names: by maps for tensorstore below `optimizer`, and a step that it holds itself."""
    import msgpack

    w = np.arange(16, dtype="<f4").reshape(4, 4)
    folder = zarr(tmp_path, {"target.enc.w": ({}, w), "state.param_states.enc.w.m": ({}, -w)})
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": "target.enc.w"}, "metadata": {"shape": [4, 4]}}
    states = {"param_states": {"enc": {"w": {"m": "PLACEHOLDER://state.param_states.enc.w.m"}}}, "step": 9}
    tree = {"version": 3, "optimizer": {"target": {"enc": {"w": spec}}, "state": states}}
    (folder / "checkpoint").write_bytes(msgpack.packb(tree))
    for at in (tmp_path, folder):
        found = ckptconv.open(at)
        assert {n: t.role for n, t in found.items()} == {
            "target/enc/w": "", "state/param_states/enc/w/m": "slot", "version": "", "optimizer/state/step": "step",
        }  # fmt: skip
        assert found["target/enc/w"].numpy().tobytes() == w.tobytes()
    shutil.rmtree(folder / "target.enc.w")
    with refused("not stored:\n  target/enc/w|not stored:\n  optimizer/target/enc/w"):
        ckptconv.open(folder)


def test_a_zoo_finds_each_item_once(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "zoo")
    zarr(tmp_path / "zoo", {"target.enc.w": ({}, np.ones((4, 4), "f4"))})
    (tmp_path / "zoo" / "checkpoint_7" / "checkpoint").write_bytes(b"\x80")
    assert {f.name for f in discover([str(tmp_path / "zoo")]) if not f.suffix} == {
        "mesh_chunks", "not_arrays", "several/3/params", "several/3/train_state", "v0.5_chunks_zarr3", "zarr/deep",
        "zarr/files", "checkpoint_7",
    }  # fmt: skip


TMP = "5.orbax-checkpoint-tmp-1"


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("5", "_METADATA", "neither a manifest.ocdbt nor folders with its arrays"),
        ("ocdbt.process_2", "manifest.ocdbt", "of one of the processes"),
        (TMP, "_sharding", "was not finished when it was saved"),
        ("5", "_METADATA ocdbt.process_0", "databases have not been merged"),
    ],
)
def test_what_was_not_finished(name: str, files: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for file in files.split():
        (tmp_path / name / file).touch()
    with refused(words):
        ckptconv.open(f"{tmp_path}/{name}", from_="orbax")
    with refused(words):
        ckptconv.open(f"{tmp_path}/{name}")


@pytest.mark.parametrize("url", ["/", "//", "/tmp/.", "/tmp/..", ".."])
def test_a_folder_needs_a_name(url: str) -> None:
    with pytest.raises(ckptconv.UsageError, match="an Orbax checkpoint is a folder, which needs a name"):
        write.OrbaxWriter(url).place(Checkpoint({"w": held("w", np.ones(2))}))


# --- large chunks -----------------------------------------------------------------------------------------------


def unpack(packed: bytes, announced: int) -> bytes:
    file = InMemory("x", b"before" + packed + b"behind")
    return b"".join(bytes(p) for p in chunks.unpack("zstd", file, 6, len(packed), announced))


@pytest.mark.parametrize("level", [-5, 19])
def test_a_large_chunk_is_unpacked_between_files(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "IN_MEMORY", 1000)
    rng = np.random.default_rng(3)
    for data in (bytes(300_000), rng.bytes(300_000), b"abc" * 70_000 + rng.bytes(99_999), rng.bytes(1001)):
        packed = bytes(cramjam.zstd.compress(data, level))
        assert unpack(packed, len(data)) == data
        damaged = bytearray(packed)
        damaged[len(packed) // 2] ^= 255
        with suppress(ckptconv.CorruptCheckpoint):
            unpack(bytes(damaged), len(data))
        for cut in (packed[:-1], packed[: len(packed) // 2], packed + b"x", b"\0" * 2000):
            with pytest.raises(ckptconv.CorruptCheckpoint, match=r"ends too early|bytes follow|no zstd|damaged"):
                unpack(cut, len(data))


def test_a_frame_that_can_become_far_more_than_announced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "IN_MEMORY", 1000)
    packed = bytes(cramjam.zstd.compress(bytes(2**24), 1))
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="can become 16777216, where 10000 are announced"):
        unpack(packed, 10_000)


# --- the metadata of arrays, field by field ---------------------------------------------------------------------------

TWO: dict[str, Any] = {**ZARRAY, "shape": [4, 4], "dtype": "<f4"}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
THREE: dict[str, Any] = {
    "zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "float32", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [BYTES],
}  # fmt: skip


def made(folder: Path, fields: dict[str, Any], chunks: dict[str, bytes]) -> Path:
    """A folder with one array, `a`."""
    for name, data in chunks.items():
        (folder / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "a" / name).write_bytes(data)
    (folder / "a").mkdir(exist_ok=True, parents=True)
    (folder / "a" / (".zarray" if fields.get("zarr_format") == 2 else "zarr.json")).write_text(json.dumps(fields))
    return folder


IN_TWO: list[tuple[dict[str, Any], str]] = [
    *(({"dtype": d}, "the dtype ") for d in ("<M8[ns]", "|f4", "f4", ">f4", None, ["f4"])),
    *(({"compressor": {"id": c}}, f"compressor .*'{c}'.* is not read") for c in ("lzma", "blosc")),
    ({"filters": [{"id": "delta"}]}, "filters .*delta"),
    ({"sparse": True}, "the sparse True, which is not read"),
    ({"order": "F"}, "the order 'F', which is not read"),
    ({"dimension_separator": "/"}, "the dimension_separator '/'"),
    ({"shape": [4, -4]}, "sizes of at least 0"),
    ({"chunks": [2, 0]}, "sizes of at least 1"),
    ({"chunks": [2]}, "chunks of 1 axes for a shape of 2"),
    ({"chunks": [2, 1]}, "a chunk of .2, 1. has 16 bytes, not 8"),
    ({"shape": [2, 4]}, "1.0 is not one of its chunks in the grid .1, 2."),
    ({"shape": [2**30, 2**30]}, "4 chunks lie scattered among absent ones"),
    *(({"shape": [6, 6], "fill_value": f}, f"its fill value .?{f}.? is not 0") for f in (7, -0.0, "NaN")),
]  # fmt: skip
IN_THREE: list[tuple[dict[str, Any], str]] = [  # there are more in hostile_orbax.py
    ({"zarr_format": 4}, "the zarr_format 4"),
    ({"node_type": "link"}, "the node_type 'link'"),
    ({"data_type": "float33"}, "the dtype 'float33'"),
    *(({"chunk_grid": g}, "the grid or codec ") for g in ("x", [], {"name": "regular", "more": 1})),
    ({"chunk_key_encoding": {"name": "v2"}}, "the chunk_key_encoding "),
    *(({"codecs": [BYTES, *more]}, "the codecs ") for more in (["crc32c"], [[]], ["gzip", "gzip"])),
    ({"codecs": "bytes"}, "the codecs "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"), [(base | more, words) for base, rows in ((TWO, IN_TWO), (THREE, IN_THREE))
                          for more, words in rows]
)  # fmt: skip
def test_metadata_that_is_not_understood_is_refused(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    stored = {f"{i}.{j}": bytes(16) for i in range(2) for j in range(2)} if fields["zarr_format"] == 2 else {}
    with refused(words):
        ckptconv.open(made(tmp_path, fields, stored), from_="orbax")


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_absent_chunks_are_zeros(shape: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    fields = TWO | {"shape": shape, "chunks": [1] * len(shape), "dtype": "|u1", "fill_value": 0}
    for density in (0, 0.3, 0.9):
        want = np.where(rng.random(shape) < density, rng.integers(1, 8, shape), 0).astype("u1")
        chunks = {".".join(map(str, p)): want[p].tobytes() for p in np.ndindex(*shape) if want[p]}
        found = ckptconv.open(made(tmp_path / str(density), fields, chunks))["a"]
        assert found.numpy().tolist() == want.tolist()
        assert len(found.parts) == (want.size if chunks else 1)


@pytest.mark.parametrize(
    "key",
    ["7.0", "0.0.0", "00.0", "-1.0", "c/0/7", "c/0/0/0", "c/00/0", "d/0/0", "0.", "\u0661.0", f"{10**19}.0", "x"],
)  # fmt: skip
def test_each_chunk_has_one_key(key: str, tmp_path: Path) -> None:
    for version, fields in (("2", TWO), ("3", THREE)):
        with refused("is not one of its chunks in the grid .2, 2."):
            ckptconv.open(made(tmp_path / version, fields, {key: bytes(16)}))


def test_what_lies_beside_arrays(tmp_path: Path) -> None:
    """Arrays may lie in arrays, and each file that is known beside them is passed over in silence."""
    folder = made(tmp_path, TWO, {".zattrs": b"{}", "0.0": np.ones(4, "f4").tobytes()})
    (folder / "a" / "b").mkdir()
    scalar = {"name": "regular", "configuration": {"chunk_shape": []}}
    (folder / "a" / "b" / "zarr.json").write_text(json.dumps(THREE | {"shape": [], "chunk_grid": scalar}))
    (folder / "a" / "b" / "c").write_bytes(np.full(1, 2, "f4").tobytes())
    for name in (".zgroup", ".zattrs", ".zmetadata", "v", "a.v"):
        (folder / name).write_text("{}")
    found = ckptconv.open(folder)
    assert {n: t.numpy().sum() for n, t in found.items()} == {"a": 4, "a/b": 2}
    assert [n.names for n in found.notes if n.text == "files"] == [("a.v", "v")]


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_msgpack_of_older_versions_has_the_same_tree(tmp_path: Path) -> None:
    """Orbax before 0.7 reads both; without `_METADATA`, so do we."""
    from ckptconv.testing import write

    whole = ckptconv.open(GOLDEN / "mesh_chunks")
    write(whole, tmp_path / "x.orbax", "orbax")
    (tmp_path / "x.orbax" / "_METADATA").unlink()
    found = ckptconv.open(tmp_path / "x.orbax")
    assert_equal(found, expected(GOLDEN / "expected.npz"))
    assert not [n for n in found.notes if n.kind != "assumed"]


def test_what_one_node_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "ENTRIES", 3)
    with pytest.raises(ckptconv.Unrepresentable, match="4 arrays and chunks are more than one node"):
        ckptconv.save({"a": np.ones(2), "b": np.ones(2)}, tmp_path / "x.orbax")


def test_a_name_of_an_array_and_of_a_dictionary_is_refused(tmp_path: Path) -> None:
    """Orbax 0.12.8 restores of `a` and `a/b` only the second, and says nothing."""
    arrays = {n: np.ones(2, "f4") for n in ("c", "a", "a/b")}
    for names in (["c", "a", "a/b"], ["a/b", "c", "a"]):
        with pytest.raises(ckptconv.Unrepresentable, match=rf"both a tensor and a group.*\n  {names[-1]}$"):
            ckptconv.save({n: arrays[n] for n in names}, tmp_path / "x.orbax")
    assert not (tmp_path / "x.orbax").exists()
