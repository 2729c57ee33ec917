"""Orbax: what Orbax and tensorstore wrote is read bit for bit, by every layout; what is not understood is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import numpy as np
import pytest
from kit import FIXTURES, refused
from orbax_golden import assert_equal, expected

import ckptconv
from ckptconv.bulk.discover import discover
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.dtypes import DTYPES
from ckptconv.formats.orbax import arrays, codecs, items, locate, ocdbt, write
from ckptconv.formats.orbax.arrays import Array, Inner, parse
from ckptconv.moves.part import Coded, Span
from ckptconv.storage.checksum import crc
from ckptconv.storage.files import Seen
from ckptconv.storage.ranges import InMemory

GOLDEN = FIXTURES / "orbax"  # made by fixtures/make/by_orbax.py and by_tensorstore.py


@pytest.mark.parametrize("variant", ["mesh_chunks", "v0.5_chunks_zarr3"])
def test_orbax(variant: str) -> None:
    assert_equal(ckptconv.open(GOLDEN / variant), expected(GOLDEN / "expected.npz"))


@pytest.mark.parametrize("variant", ["files", "deep", "numbered"])
def test_tensorstore(variant: str) -> None:
    found = ckptconv.open(GOLDEN / "zarr" / variant)
    want = expected(GOLDEN / "zarr" / "expected.npz", f"{variant}:")
    assert_equal(found, want)
    for name, t in found.items():  # a slice reads the chunks that it needs
        assert np.array_equal(t[1:4, 2, ::2], want[name][1][1:4, 2, ::2])


def test_values_are_located_not_read() -> None:
    found = ckptconv.open(GOLDEN / "zarr" / "files")
    data = {name: t.parts[0].data for name, t in found.items()}
    assert isinstance(data["v2/plain"], Span)
    assert isinstance(data["v2/zstd"], Coded)
    assert data["v2/plain"].size == data["v2/zstd"].size == 2 * 4 * 3 * 4


def test_items_of_the_newest_step_stand_side_by_side() -> None:
    found = ckptconv.open(GOLDEN / "several")
    want = expected(GOLDEN / "expected.npz")
    opt = {f"train_state/{n}": v for n, v in want.items() if n.startswith("opt_state")}
    assert_equal(found, {n: v for n, v in want.items() if n.startswith("params/")} | opt)
    assert any("newest, 3," in note.text for note in found.notes)
    one = ckptconv.open(GOLDEN / "several" / "3" / "params")
    assert_equal(one, {n.removeprefix("params/"): v for n, v in want.items() if n.startswith("params/")})


PATHS = {
    "a list": [["layers", items.DICT], ["0", items.SEQUENCE], ["w", items.DICT]],
    "a key that contains '/'": [["layers", items.DICT], ["0/w", items.DICT]],
    "of another name": [["blocks", items.DICT], ["w", items.DICT]],
}


@pytest.mark.parametrize("case", PATHS)
def test_items_are_written_as_one_tree(case: str, tmp_path: Path) -> None:
    """With the paths that a name does not tell."""
    for item, value in (("params", 1.0), ("ema", 2.0)):
        made = held("layers/0/w", np.full(3, value))
        one = Checkpoint({made.name: made}, details={"keys": {made.name: PATHS[case]}})
        ckptconv.save(one, tmp_path / "step" / item, format="orbax")
    ckptconv.convert(tmp_path / "step", tmp_path / "out", to="orbax")
    found = ckptconv.open(tmp_path / "out")
    assert {n: t.numpy()[0] for n, t in found.items()} == {"ema/layers/0/w": 2.0, "params/layers/0/w": 1.0}
    wanted = {f"{i}/layers/0/w": [[i, items.DICT], *PATHS[case]] for i in ("ema", "params")}
    assert found.details.get("keys", {}) == ({} if case == "of another name" else wanted)


def test_the_newest_finished_step_is_read(tmp_path: Path) -> None:
    for step in ("9", "10", "11.orbax-checkpoint-tmp-7"):
        shutil.copytree(GOLDEN / "several" / "3", tmp_path / step)
    (note,) = (n for n in ckptconv.open(tmp_path).notes if "newest" in n.text)
    assert "newest, 10," in note.text


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
    assert "of the steps in the folder the newest, 9, is read" in texts
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
    assert f"newest, {'9' if marked == ('9',) else '10'}," in note.text
    (local,) = (n for n in ckptconv.open(tmp_path).notes if "newest" in n.text)
    assert "newest, 10," in local.text


def test_the_database_of_one_process_is_a_part(tmp_path: Path) -> None:
    for at in ("ocdbt.process_0", "ocdbt.process_0/manifest.ocdbt"):
        with refused("is the database of one of the processes"):
            ckptconv.open(GOLDEN / "mesh_chunks" / at, format="orbax")


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


@pytest.mark.parametrize(("size", "missing"), [(0, 0), (3, 0), (4, 0), (5, 1), (9, 5)])
def test_bytes_of_a_node_end_where_it_ends(size: int, missing: int) -> None:
    cursor = ocdbt.Cursor(b"abcd", "u")
    if missing:
        with refused(f"the database's node ends {missing} bytes too early"):
            cursor.take(size)
    else:
        assert (cursor.take(size), cursor.take(4 - size)) == (b"abcd"[:size], b"abcd"[size:])


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

    w = np.arange(16, dtype=">f4").reshape(4, 4)
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
        assert found["target/enc/w"].numpy().tobytes() == w.astype("<f4").tobytes()
    shutil.rmtree(folder / "target.enc.w")
    with refused("not stored:\n  target/enc/w|not stored:\n  optimizer/target/enc/w"):
        ckptconv.open(folder)


def test_a_folder_of_t5x_is_converted_like_its_msgpack(tmp_path: Path) -> None:
    whole = ckptconv.open(FIXTURES / "t5x" / "t5x--1.1.msgpack")
    for name, t in whole.items():
        for top, values in (("target", t.numpy()), ("state.param_states", np.zeros_like(t.numpy()))):
            path = (
                tmp_path / "checkpoint_1000" / ".".join([top, *name.split("/")[1:], "v"][: None if "." in top else -1])
            )
            path.mkdir(parents=True)
            said = {**ZARRAY, "shape": t.shape, "chunks": t.shape, "dtype": values.dtype.str}
            (path / ".zarray").write_text(json.dumps(said))
            (path / ".".join("0" * values.ndim)).write_bytes(values.tobytes())
    ckptconv.convert(tmp_path, tmp_path / "x.safetensors", converter="auto", weights_only=True)
    found, want = ckptconv.open(tmp_path / "x.safetensors"), ckptconv.open(FIXTURES / "t5x" / "t5x--1.1.safetensors")
    assert set(found) == set(want)
    assert all(found[n].numpy().tobytes() == want[n].numpy().tobytes() for n in want)


def test_a_zoo_finds_each_item_once(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "zoo")
    zarr(tmp_path / "zoo", {"target.enc.w": ({}, np.ones((4, 4), "f4"))})
    (tmp_path / "zoo" / "checkpoint_7" / "checkpoint").write_bytes(b"\x80")
    assert {f.name for f in discover([str(tmp_path / "zoo")]) if not f.suffix} == {
        "mesh_chunks", "not_arrays", "several/3/params", "several/3/train_state", "v0.5_chunks_zarr3", "zarr/deep",
        "zarr/numbered", "zarr/files", "zarr/blosc", "checkpoint_7",
    }  # fmt: skip


def test_a_plain_folder_is_divided_at_dots(tmp_path: Path) -> None:
    found = ckptconv.open(zarr(tmp_path, {"target.enc.w": ({}, np.ones((4, 4), "f4"))}))
    assert list(found) == ["target/enc/w"]
    assert not found.notes


def test_chunks_that_share_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database can name one range for many; a folder only where a file system lets it."""
    root = zarr(tmp_path / "plain", {n: ({}, np.ones((2, 2), "f4")) for n in ("a", "b")})
    real = items.of_folder

    def shared(root: str) -> Any:
        values = real(root)
        chunks = [key for key in values if not key.endswith((".zarray", ".json"))]
        return {**values, chunks[1]: values[chunks[0]]}

    monkeypatch.setattr(items, "of_folder", shared)
    with refused("share the byte 0"):
        ckptconv.open(root)


def test_a_run_can_be_named_by_its_files() -> None:
    for name in ("manifest.ocdbt", "_METADATA"):
        assert_equal(ckptconv.open(GOLDEN / "mesh_chunks" / name), expected(GOLDEN / "expected.npz"))


def test_random_keys_are_noted(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "not_arrays", tmp_path / "x")
    file = tmp_path / "x" / "array_metadatas" / "process_0"
    said = {"param_name": "np", "ext_metadata": {"random_key_impl": "threefry2x32"}}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"array_metadatas": [{"array_metadata": said}]}))
    (note,) = (n for n in ckptconv.open(tmp_path / "x").notes if "random keys" in n.text)
    assert note.names == ("np",)
    file.write_text('{"array_metadatas": [1]}')
    with refused("does not list arrays"):
        ckptconv.open(tmp_path / "x")


Change = Callable[[dict[str, Any]], object]
REFUSED: dict[str, tuple[Change, str]] = {
    "dtype": (lambda m: m.update(dtype="<M8[ns]"), "the dtype '<M8"),
    "structured": (lambda m: m.update(dtype=[["a", "<f4"]]), "the dtype"),
    "void": (lambda m: m.update(dtype="|V2"), "the dtype '|V2'"),
    "no order": (lambda m: m.update(dtype="|f4"), "the dtype '|f4'"),
    "lzma": (lambda m: m.update(compressor={"id": "lzma", "preset": 1}), "compressor .*lzma.* is not read"),
    "filters": (lambda m: m.update(filters=[{"id": "delta"}]), "filters .*delta"),
    "field": (lambda m: m.update(sparse=True), "the sparse True, which is not read"),
    "format": (lambda m: m.update(zarr_format=4), "format or filters .4"),
    "order": (lambda m: m.update(order="K"), "order or separator"),
    "shape": (lambda m: m.update(shape=[4, -4]), "sizes of at least 0"),
    "shape of text": (lambda m: m.update(shape="44"), "sizes of at least 0"),
    "chunks of nothing": (lambda m: m.update(chunks=[2, 0]), "sizes of at least 1"),
    "chunks of another rank": (lambda m: m.update(chunks=[2]), "chunks of 1 axes for a shape of 2"),
    "chunks of another size": (lambda m: m.update(chunks=[2, 1]), "a chunk of .2, 1. has 16 bytes, not 8"),
    "beyond the grid": (lambda m: m.update(shape=[2, 4]), "1.0 is not one of its chunks in the grid .1, 2."),
    "huge": (lambda m: m.update(shape=[2**40, 2**40]), "more than 2.63 elements"),
    "vast": (lambda m: m.update(shape=[2**30, 2**30]), "shapes claim far more than is stored"),
    "fill": (lambda m: m.update(shape=[6, 6], fill_value="x"), "fill value 'x' is no value of float32"),
    "fill of two numbers": (lambda m: m.update(shape=[6, 6], fill_value=[1, 2]), "is no value of float32"),
    "fill of too many bytes": (lambda m: m.update(shape=[6, 6], fill_value="0x0102030405"), "is no value of float32"),
    "fill too large": (lambda m: m.update(shape=[6, 6], fill_value=1e39), "is no value of float32"),
    "fill of half a number": (lambda m: m.update(shape=[6, 6], dtype="<i4", fill_value=1.5), "is no value of int32"),
    "fill of no number": (lambda m: m.update(shape=[6, 6], dtype="<i4", fill_value="NaN"), "is no value of int32"),
    "fill beyond": (lambda m: m.update(shape=[6, 6], fill_value=[1, 2, 3]), "is no value of float32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_metadata_that_is_not_understood_is_refused(case: str, tmp_path: Path) -> None:
    folder = zarr(tmp_path, {"a": ({}, np.ones((4, 4), "f4"))})
    said = json.loads((folder / "a" / ".zarray").read_text())
    REFUSED[case][0](said)
    (folder / "a" / ".zarray").write_text(json.dumps(said))
    with refused(REFUSED[case][1]):
        ckptconv.open(folder, format="orbax")


def test_fill_values(tmp_path: Path) -> None:
    for said, kind, value in (
        ("NaN", "<f4", np.nan), ("-Infinity", "<f2", -np.inf), (7, "|u1", 7), (True, "|b1", True),
        ([1, -2], "<c8", 1 - 2j), ("0x7fc00001", "<f4", None), (None, ">i8", 0), (-1.5, "bfloat16", -1.5),
    ):  # fmt: skip
        folder = zarr(tmp_path / str(said) / kind, {"a": ({"fill_value": said, "dtype": kind, "shape": [3, 3]},
                                                          np.zeros((0, 0), "f4"))})  # fmt: skip
        got = ckptconv.open(folder)["a"].numpy()
        if value is None:
            assert got.view("u4").tolist() == [[0x7FC00001] * 3] * 3
        else:
            assert np.array_equal(got.astype("c8" if kind == "<c8" else "f8"), np.full((3, 3), value), equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("|u1", 300), ("|u1", -1), ("|i1", 200), ("int4", 20), ("int4", -9), ("uint4", -1), ("|b1", 2)]
)
def test_a_fill_value_that_its_dtype_lacks(dtype: str, fill: int, tmp_path: Path) -> None:
    folder = zarr(tmp_path, {"a": ({"fill_value": fill, "dtype": dtype, "shape": [3, 3]}, np.zeros((0, 0)))})
    with refused(f"the fill value {fill} is no value of "):
        ckptconv.open(folder)


def test_a_negative_fill_value_of_few_bits_is_converted(tmp_path: Path) -> None:
    folder = zarr(tmp_path, {"a": ({"fill_value": -2, "dtype": "int4", "shape": [3, 3]}, np.zeros((0, 0)))})
    assert ckptconv.open(folder)["a"].numpy().tobytes() == b"\xfe" * 9
    ckptconv.convert(folder, tmp_path / "x.msgpack", verify=True)


def test_holes_tile_what_is_absent() -> None:
    rng = np.random.default_rng(1)
    for grid in ((), (1,), (5,), (3, 4), (2, 3, 4), (0, 3)):
        for density in (0.0, 0.3, 0.9, 1.0):
            there = [place for place in np.ndindex(*grid) if rng.random() < density]
            count = np.zeros(grid, int)
            for place in there:
                count[place] += 1
            boxes = list(arrays.holes(grid, there))
            for lo, hi in boxes:
                count[tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))] += 1
            assert (count == 1).all()
            assert len(boxes) <= max(1, len(grid)) * (2 * len(there) + 1)


def test_other_folders_are_not_taken_for_it(tmp_path: Path) -> None:
    from ckptconv.formats.orbax import folder

    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "model.safetensors").write_bytes(b"x")
    (tmp_path / "_METADATA").mkdir()
    assert folder.sniff(Seen(str(tmp_path / "checkpoint-500"))) == 0
    assert folder.sniff(Seen(str(FIXTURES / "hf"))) == 0
    with refused("was not finished"):
        (tmp_path / "5.orbax-checkpoint-tmp-1" / "ocdbt.process_0").mkdir(parents=True)
        ckptconv.open(tmp_path / "5.orbax-checkpoint-tmp-1", format="orbax")
    with refused("have not been merged"):
        (tmp_path / "6" / "ocdbt.process_0").mkdir(parents=True)
        (tmp_path / "6" / "_METADATA").write_text("{}")
        ckptconv.open(tmp_path / "6")


WHERE: dict[str, tuple[str, dict[str, str] | None, tuple[str, ...]]] = {
    # the files in a folder; the folders that hold arrays, by item; the items that do not
    "a tree": ("_METADATA", {"": ""}, ()),
    "a database": ("manifest.ocdbt", {"": ""}, ()),
    "arrays": ("w/.zarray", {"": ""}, ()),
    "arrays of version 3": ("w/zarr.json", {"": ""}, ()),
    "an array by itself": (".zarray w/.zarray", None, ()),
    "a group that is an array of version 3": ("zarr.json w/zarr.json", None, ()),
    "hidden": (".w/.zarray", None, ()),
    "aside": ("_w/.zarray", None, ()),
    "older than the tree": ("checkpoint/.zarray", None, ()),
    "after seven others": ("a b c d e f g/x w/.zarray", {"": ""}, ()),
    "after eight others": ("a b c d e f g h w/.zarray", None, ()),
    "an item": ("state/_METADATA metrics/metrics", {"": "state"}, ("metrics",)),
    "items": ("a/_METADATA b/manifest.ocdbt c/c", {"a": "a", "b": "b"}, ("c",)),
    "what is no item": ("a/_METADATA _sharding array_metadatas/x .hidden/_METADATA", {"": "a"}, ()),
    "an item that was not finished": ("b/_METADATA a.orbax-checkpoint-tmp-1/_METADATA", {"": "b"},
                                      ("a.orbax-checkpoint-tmp-1",)),
    "arrays in an item": ("a/w/.zarray", None, ()),
    "as many items as there may be": (" ".join(f"i{k}/_METADATA" for k in range(64)),
                                      {f"i{k}": f"i{k}" for k in range(64)}, ()),
    "too many items": (" ".join(f"i{k}/_METADATA" for k in range(65)), None, ()),
    "steps": ("9/_METADATA 10/manifest.ocdbt x_8/_METADATA", {"": "10"}, ()),
    "steps with items": ("9/a/_METADATA 10/a/manifest.ocdbt 10/b/b", {"": "10/a"}, ("b",)),
    "steps of arrays": ("checkpoint_9/w/.zarray checkpoint_10/w/.zarray", {"": "checkpoint_10"}, ()),
    "a newest step without arrays": ("9/_METADATA 10/x", None, ()),
    "no steps": ("1.5/_METADATA a_1.orbax-checkpoint-tmp-2/_METADATA", {"": "1.5"},
                 ("a_1.orbax-checkpoint-tmp-2",)),
    "nothing": ("x", None, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", WHERE)
def test_where_arrays_are_looked_for(case: str, tmp_path: Path) -> None:
    files, items, others = WHERE[case]
    for name in files.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = locate.find(str(tmp_path))
    if items is None:
        assert found is None
        return
    assert found is not None
    assert {n: str(Path(at).relative_to(tmp_path)).strip(".") for n, at in found.items.items()} == items
    assert sorted(found.others) == sorted(others)


TMP = "5.orbax-checkpoint-tmp-1"


@pytest.mark.parametrize(
    ("name", "files", "told", "refused_as"),
    [
        ("5", "_METADATA", False, "neither a manifest.ocdbt nor folders with its arrays"),
        ("5", "_METADATA checkpoint", False, ""),
        ("ocdbt.process_2", "manifest.ocdbt", False, "of one of the processes"),
        (TMP, "x", False, "was not finished when it was saved"),
        (TMP, "_sharding", True, "was not finished when it was saved"),
        (TMP, "ocdbt.process_7", True, "was not finished when it was saved"),
        (f"{TMP}/", "x _METADATA", True, "was not finished when it was saved"), ("5", "_sharding", False, ""),
        ("5", "ocdbt.process_0", False, "databases have not been merged"),
        ("5", "ocdbt.process_0 manifest.ocdbt", False, ""),
    ],
)  # fmt: skip
def test_what_was_not_finished(name: str, files: str, told: bool, refused_as: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for file in files.split():
        (tmp_path / name / file).touch()
    url = f"{tmp_path}/{name}"
    assert locate.is_unfinished(url, files.split()) is told
    if not refused_as:
        locate.refuse_incomplete(url)
        return
    with refused(refused_as):
        locate.refuse_incomplete(url)


CHUNKS: list[tuple[tuple[int, ...], int | None, tuple[int, ...]]] = [
    # the shape of an array of 4-byte numbers, the bytes of a chunk, the shape of a chunk
    ((6, 10), None, (6, 10)), ((6, 10), 240, (6, 10)), ((6, 10), 239, (5, 10)), ((6, 10), 40, (1, 10)),
    ((6, 10), 39, (1, 5)), ((6, 10), 20, (1, 5)), ((6, 10), 19, (1, 2)), ((6, 10), 4, (1, 1)), ((6, 10), 1, (1, 1)),
    ((7,), 12, (3,)), ((3, 4, 5), 100, (1, 4, 5)), ((3, 4, 5), 79, (1, 2, 5)), ((3, 4, 5), 19, (1, 1, 1)),
    ((2, 3, 4, 5), 120, (1, 1, 4, 5)), ((), 1, ()), ((0, 4), 1, (1, 4)), ((0, 4), None, (1, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "limit", "chunk"), CHUNKS)
def test_the_shape_of_chunks(shape: tuple[int, ...], limit: int | None, chunk: tuple[int, ...]) -> None:
    assert write.chunk_of(held("w", np.zeros(shape, "f4")), limit) == chunk


@pytest.mark.parametrize("url", ["/", "//", "/tmp/.", "/tmp/..", ".."])
def test_a_folder_needs_a_name(url: str) -> None:
    with pytest.raises(ckptconv.UsageError, match="an Orbax checkpoint is a folder, which needs a name"):
        write.OrbaxWriter(url).place(Checkpoint({"w": held("w", np.ones(2))}))


@pytest.mark.parametrize("size", [0, 100])
def test_chains_of_codecs_have_room_between_them_but_none_at_the_end(size: int) -> None:
    """What gzip makes of random bytes is longer than they are; what comes out is no longer than announced."""
    raw = np.random.default_rng(0).bytes(size)
    packed = bytes(cramjam.zstd.compress(bytes(cramjam.gzip.compress(raw))))
    assert codecs.unpacked(["gzip", "zstd"], packed, size, "x") == raw
    if size:
        with refused("."):
            codecs.unpacked(["gzip", "zstd"], packed, size - 1, "x")


@pytest.mark.parametrize("size", range(7))
def test_a_checksum_takes_four_bytes(size: int) -> None:
    raw = b"abc"[: max(0, size - 4)]
    raw = (raw + crc("crc32c", raw).to_bytes(4, "little"))[:size]
    if size < 4:
        with refused(f"{size} bytes at byte 1 hold no checksum"):
            codecs.check(InMemory("x", b"-" + raw), 1, size)
        return
    codecs.check(InMemory("x", b"-" + raw), 1, size)
    with refused(f"the checksum of the bytes 1 to {size - 3} is wrong"):
        codecs.check(InMemory("x", b"-" + raw[:-1] + bytes([raw[-1] ^ 1])), 1, size)


@pytest.mark.parametrize("piece", [1, 7, 2**20])
@pytest.mark.parametrize("pack", [cramjam.gzip.compress, cramjam.zlib.compress])
def test_what_is_inflated_is_bounded(pack: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it comes: at most what is announced, and the stream ends where the input does."""
    monkeypatch.setattr(codecs, "PIECE", piece)
    raw = b"abc" * 30
    packed = bytes(pack(raw))

    def inflated(data: bytes, most: int) -> bytes:
        return b"".join(codecs._inflate(InMemory("x", b"-" + data), 1, len(data), most))

    assert inflated(packed, 90) == inflated(packed, 99) == raw
    for most in (89, 45, 0):
        with refused(f"inflates to more than {most} bytes|holds more than announced"):
            inflated(packed, most)
    for cut in range(len(packed)):
        with refused("ends too early|damaged"):
            inflated(packed[:cut], 90)
    with refused("bytes follow the end"):
        inflated(packed + b"x", 90)


@pytest.mark.parametrize("codec", ["zstd", "blosc", "gzip", "zlib"])
def test_a_chunk_claims_no_more_than_its_codec_reaches(codec: str) -> None:
    most = codecs.ratio([codec]) * 9 + 64
    chunk: Any = SimpleNamespace(value=SimpleNamespace(size=9, url="x", start=3, data=None), codecs=[codec], shape=(1,))
    array: Any = SimpleNamespace()
    found = arrays._data(array, chunk, most, "w")
    assert isinstance(found, Coded)
    assert (found.key, found.size) == (f"{codec}:3+9", most)
    with refused(f"a chunk of .* claims {most + 1} bytes, packed into 9"):
        arrays._data(array, chunk, most + 1, "w")


# --- large chunks -----------------------------------------------------------------------------------------------


def unpack(packed: bytes, announced: int) -> bytes:
    file = InMemory("x", b"before" + packed + b"behind")
    return b"".join(bytes(p) for p in codecs.unpack(["zstd"], file, 6, len(packed), announced))


@pytest.mark.parametrize("level", [-5, 1, 3, 19])
def test_a_large_chunk_is_unpacked_between_files(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "IN_MEMORY", 1000)
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
    monkeypatch.setattr(codecs, "IN_MEMORY", 1000)
    packed = bytes(cramjam.zstd.compress(bytes(2**24), 1))
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="can become 16777216, where 10000 are announced"):
        unpack(packed, 10_000)


# --- the metadata of arrays, field by field ---------------------------------------------------------------------------

FOUR = DTYPES["float32"]
TWO: dict[str, Any] = {
    "zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "<f4", "compressor": None, "fill_value": 0,
    "order": "C", "filters": None,
}  # fmt: skip
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
THREE: dict[str, Any] = {
    "zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "float32", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [BYTES],
}  # fmt: skip
INDEX = [BYTES, {"name": "crc32c"}]


def parsed(said: dict[str, Any]) -> Array | None:
    return parse("w", json.dumps(said).encode(), ".zarray" if said.get("zarr_format") == 2 else "zarr.json", "x")


def grid(**said: Any) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]} | said}}


def keys(name: str, **said: Any) -> dict[str, Any]:
    return {"chunk_key_encoding": {"name": name, "configuration": said}}


def chain(*codecs: Any) -> dict[str, Any]:
    return {"codecs": [{"name": c} if isinstance(c, str) else c for c in codecs]}


def turned(*order: Any) -> dict[str, Any]:
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharded(*before: Any, **said: Any) -> dict[str, Any]:
    inner = {"chunk_shape": [1, 3], "codecs": [BYTES], "index_codecs": INDEX} | said
    return chain(*before, {"name": "sharding_indexed", "configuration": inner})


BIG = {"name": "bytes", "configuration": {"endian": "big"}}
PLAIN2 = Array("w", "x", FOUR, (4, 6), (2, 3), (), False, (0, 1), "", ".", 0)
PLAIN3 = PLAIN2._replace(prefix="c", separator="/")
INNER = Inner((1, 3), (), False, (0, 1), True, True)
UNDERSTOOD: dict[str, tuple[dict[str, Any], Array | None]] = {
    "2": (TWO, PLAIN2),
    "2, without order and separator": ({k: v for k, v in TWO.items() if k != "order"}, PLAIN2),
    "2, other axes": (TWO | {"order": "F", "dimension_separator": "/"}, PLAIN2._replace(order=(1, 0), separator="/")),
    "2, compressed": (TWO | {"compressor": {"id": "zlib", "level": 1}}, PLAIN2._replace(codecs=("zlib",))),
    "2, big-endian": (TWO | {"dtype": ">f4"}, PLAIN2._replace(swap=True)),
    "2, no words": (TWO | {"dtype": ">i1"}, PLAIN2._replace(kind=DTYPES["int8"])),
    "2, without order": (TWO | {"dtype": "|b1"}, PLAIN2._replace(kind=DTYPES["bool"])),
    "2, a name": (TWO | {"dtype": "bfloat16"}, PLAIN2._replace(kind=DTYPES["bfloat16"])),
    "2, complex": (TWO | {"dtype": ">c8"}, PLAIN2._replace(kind=DTYPES["complex64"], swap=True)),
    "2, empty": (TWO | {"shape": [0, 6]}, PLAIN2._replace(shape=(0, 6))),
    "2, what may be ignored": (TWO | {"more": {"must_understand": False}}, PLAIN2),
    "3": (THREE, PLAIN3),
    "3, a group": ({"zarr_format": 3, "node_type": "group", "more": 1}, None),
    "3, text for a name": (THREE | {"chunk_key_encoding": "default", "codecs": ["bytes"]}, PLAIN3),
    "3, keys of 2": (THREE | keys("v2"), PLAIN2),
    "3, a separator": (THREE | keys("default", separator="."), PLAIN3._replace(separator=".")),
    "3, a separator for keys of 2": (THREE | keys("v2", separator="/"), PLAIN2._replace(separator="/")),
    "3, big-endian": (THREE | chain(BIG), PLAIN3._replace(swap=True)),
    "3, big-endian bytes": (THREE | chain(BIG) | {"data_type": "int8"}, PLAIN3._replace(kind=DTYPES["int8"])),
    "3, turned": (THREE | chain(turned(1, 0), BYTES), PLAIN3._replace(order=(1, 0))),
    "3, turned twice": (THREE | chain(turned(1, 0), turned(1, 0), BYTES), PLAIN3),
    "3, packed": (THREE | chain(BYTES, "zstd"), PLAIN3._replace(codecs=("zstd",))),
    "3, packed and checked": (THREE | chain(BYTES, "gzip", "crc32c"), PLAIN3._replace(codecs=("gzip", "crc32c"))),
    "3, checked": (THREE | chain(BYTES, "crc32c", "crc32c"), PLAIN3._replace(codecs=("crc32c", "crc32c"))),
    "3, 16 codecs": (THREE | chain(BYTES, *["crc32c"] * 15), PLAIN3._replace(codecs=("crc32c",) * 15)),
    "3, sharded": (THREE | sharded(), PLAIN3._replace(inner=INNER)),
    "3, an index at the start": (
        THREE | sharded(index_location="start", index_codecs=[BYTES]),
        PLAIN3._replace(inner=INNER._replace(at_end=False, checked=False)),
    ),
    "3, packed and turned in shards": (
        THREE | sharded(codecs=[turned(1, 0), BIG, {"name": "gzip"}], index_location="end"),
        PLAIN3._replace(inner=INNER._replace(codecs=("gzip",), swap=True, order=(1, 0))),
    ),
    "3, whole shards, not turned": (
        THREE | sharded(turned(0, 1), chunk_shape=[2, 3]), PLAIN3._replace(inner=INNER._replace(chunk=(2, 3)))
    ),
}  # fmt: skip

MISUNDERSTOOD: dict[str, tuple[dict[str, Any], str]] = {
    "2, a field": (TWO | {"more": 1}, "the more 1, which"),
    "2, a field to understand": (TWO | {"more": {"must_understand": True}}, r"the more \{'must_understand': True\}"),
    "2, a filter": (TWO | {"filters": ["x"]}, r"the format or filters \[2, \['x'\]\]"),
    "2, an order": (TWO | {"order": "c"}, r"the order or separator \['c', '\.'\]"),
    "2, a separator": (TWO | {"dimension_separator": ","}, r"the order or separator \['C', ','\]"),
    "2, half a size": (TWO | {"shape": [4, 6.0]}, r"has \[4, 6\.0\] where sizes of at least 0 are expected"),
    "2, a truth": (TWO | {"chunks": [2, True]}, r"has \[2, True\] where sizes of at least 1 are expected"),
    "2, chunks of one axis more": (TWO | {"chunks": [2, 3, 1]}, "has chunks of 3 axes for a shape of 2"),
    "2, a dtype of one letter": (TWO | {"dtype": "f4"}, "the dtype 'f4'"),
    "2, no order of words": (TWO | {"dtype": "|f4"}, r"the dtype '\|f4'"),
    "2, no dtype": (TWO | {"dtype": None}, "the dtype None"),
    "2, texts": (TWO | {"dtype": "string"}, "the dtype 'string'"),
    "2, a compressor": (TWO | {"compressor": {"id": "lz4"}}, r"the compressor \{'id': 'lz4'\}"),
    "2, a compressor of text": (TWO | {"compressor": "zstd"}, "the compressor 'zstd'"),
    "3, a field": (THREE | {"more": 1}, "the more 1, which"),
    "3, format 4": (THREE | {"zarr_format": 4}, r"the format or kind \[4, 'array'\]"),
    "3, another node": (THREE | {"node_type": "link"}, r"the format or kind \[3, 'link'\]"),
    "3, a group of format 4": ({"zarr_format": 4, "node_type": "group"}, r"the format or kind \[4, 'group'\]"),
    "3, transformers": (THREE | {"storage_transformers": [1]}, r"the format or kind \[3, 'array'\]"),
    "3, a dtype": (THREE | {"data_type": "float33"}, "the dtype 'float33'"),
    "3, another grid": (THREE | {"chunk_grid": "x"}, r"the grid or encoding of keys \['x', 'default'\]"),
    "3, other keys": (THREE | {"chunk_key_encoding": "v3"}, r"the grid or encoding of keys \['regular', 'v3'\]"),
    "3, a field of the grid": (THREE | grid(more=1), "the more 1"),
    "3, a field of keys": (THREE | keys("v2", more=1), "the more 1"),
    "3, chunks of nothing": (THREE | grid(chunk_shape=[0, 3]), r"has \[0, 3\] where sizes of at least 1"),
    "3, chunks of one axis": (THREE | grid(chunk_shape=[2]), "has chunks of 1 axes for a shape of 2"),
    "3, a separator": (THREE | keys("default", separator="-"), "the separator '-'"),
    "3, a name of a number": (THREE | {"chunk_grid": {"name": 1}}, r"the part \{'name': 1\}"),
    "3, a part of a list": (THREE | {"chunk_grid": []}, r"the part \[\]"),
    "3, more of a part": (THREE | {"chunk_grid": {"name": "regular", "more": 1}}, "the part"),
    "3, a configuration of text": (THREE | {"chunk_grid": {"name": "regular", "configuration": "x"}}, "the part"),
    "3, no codecs": (THREE | chain(), r"the codecs \[\]"),
    "3, codecs of text": (THREE | {"codecs": "bytes"}, "the codecs 'bytes'"),
    "3, 17 codecs": (THREE | chain(BYTES, *["crc32c"] * 16), "the codecs "),
    "3, only turned": (THREE | chain(turned(1, 0)), r"the codecs \[''\]"),
    "3, packed only": (THREE | chain("gzip", "crc32c"), r"the codecs \['crc32c', 'gzip'\]"),
    "3, another codec": (THREE | chain(BYTES, "lzma"), "the codec 'lzma'"),
    "3, packed twice": (THREE | chain(BYTES, "zstd", "gzip"), r"the order of codecs \('zstd', 'gzip'\)"),
    "3, checked, then packed": (THREE | chain(BYTES, "crc32c", "gzip"), r"the order of codecs \('crc32c', 'gzip'\)"),
    "3, an order of bytes": (
        THREE | chain({"name": "bytes", "configuration": {"endian": "middle"}}), "the order of bytes 'middle'"
    ),
    "3, a field of bytes": (THREE | chain({"name": "bytes", "configuration": {"more": 1}}), "the more 1"),
    "3, turned to nowhere": (THREE | chain(turned(0, 2), BYTES), r"the transposition \[0, 2\]"),
    "3, turned by halves": (THREE | chain(turned(0, 1.0), BYTES), r"the transposition \[0, 1\.0\]"),
    "3, turned too little": (THREE | chain(turned(0), BYTES), r"the transposition \[0\]"),
    "3, turned by a letter": (
        THREE | chain({"name": "transpose", "configuration": {"order": "C"}}, BYTES), "the transposition 'C'"
    ),
    "3, a field of turning": (
        THREE | chain({"name": "transpose", "configuration": {"order": [1, 0], "more": 1}}, BYTES), "the more 1"
    ),
    "3, shards, turned": (THREE | sharded(turned(1, 0)), r"the codecs \['sharding_indexed'\]"),
    "3, shards, packed": (
        THREE | {"codecs": [*sharded()["codecs"], {"name": "gzip"}]}, r"the codecs \['gzip', 'sharding_indexed'\]"
    ),
    "3, an index in shards": (
        THREE | sharded(index_codecs=sharded(chunk_shape=[1])["codecs"]), r"the codecs \['sharding_indexed'\]"
    ),
    "3, shards in shards": (THREE | sharded(**sharded()), r"the codecs \['sharding_indexed'\]"),
    "3, shards that are not filled": (
        THREE | sharded(chunk_shape=[2, 2]), r"has chunks of \[2, 2\] in chunks of \[2, 3\], which they do not fill"
    ),
    "3, shards of one axis": (THREE | sharded(chunk_shape=[2]), "has chunks of 1 axes for a shape of 2"),
    "3, shards of nothing": (THREE | sharded(chunk_shape=[0, 3]), "where sizes of at least 1"),
    "3, a field of shards": (THREE | sharded(more=1), "the more 1"),
    "3, a packed index": (THREE | sharded(index_codecs=[BYTES, {"name": "gzip"}]), "the index "),
    "3, an index checked twice": (THREE | sharded(index_codecs=[*INDEX, {"name": "crc32c"}]), "the index "),
    "3, an index, big-endian": (THREE | sharded(index_codecs=[BIG]), "the index "),
    "3, an index in the middle": (THREE | sharded(index_location="middle"), r"the index \[.*'middle'\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_what_metadata_means(case: str) -> None:
    said, array = UNDERSTOOD[case]
    assert parsed(said) == array


@pytest.mark.parametrize("case", MISUNDERSTOOD)
def test_what_metadata_may_not_say(case: str) -> None:
    with refused(f"its zarr metadata has .*{MISUNDERSTOOD[case][1].removeprefix('has ')}"):
        parsed(MISUNDERSTOOD[case][0])


def test_metadata_is_an_object() -> None:
    with refused("its zarr metadata is not a JSON object"):
        parse("w", b"[]", "zarr.json", "x")


WRONG = (
    "", "7.0", "0.7", "0.0.0", "00.0", "0.01", "-1.0", "c/7", "c/0/7", "c/0/0/0", "c/00/0", "d/0/0", "c.0/0", "0.",
    ".0", "\u0661.0", f"{10**19}.0", "c/0.0", "x",
)  # fmt: skip


def test_keys_of_chunks() -> None:
    """Each chunk has one key, and no other text is one."""
    scalar = {"shape": (), "chunk": (), "order": ()}
    for array, wanted in (
        (PLAIN2, {"0.0": (0, 0), "1.1": (1, 1)}),
        (PLAIN2._replace(shape=(5, 7)), {"2.2": (2, 2)}),
        (PLAIN2._replace(separator="/"), {"0/1": (0, 1)}),
        (PLAIN3, {"c/0/0": (0, 0), "c/1/1": (1, 1)}),
        (PLAIN3._replace(separator="."), {"c.1.0": (1, 0)}),
        (PLAIN2._replace(**scalar), {"0": ()}),
        (PLAIN3._replace(**scalar), {"c": ()}),
    ):
        assert {key: array.place(key) for key in wanted} == wanted
        for key in WRONG:
            assert array.place(key) is None, key
    far = PLAIN2._replace(shape=(10**21, 6))
    assert [far.place(f"{10**n}.0") for n in (18, 19)] == [(10**18, 0), None]


# --- names ------------------------------------------------------------------------------------------------------------


def test_parts_of_a_key() -> None:
    """At most those of a name and of a position; each key that is known beside arrays is passed over in silence."""
    value: Any = SimpleNamespace(url="x")
    most = items.MAX_PARTS + items.MAX_AXES + 1
    key = "/".join("a" * most)
    known = ("_METADATA", ".zgroup", ".zattrs", ".zmetadata", "zarr.json", "_sharding", "checkpoint")
    assert items._chunks({}, {key: value, **dict.fromkeys(known, value)}) == ({}, [key])
    with refused(f"the key a/a/.* has {most + 1} parts"):
        items._chunks({}, {f"{key}/a": value})


def test_keys_of_an_array() -> None:
    value: Any = SimpleNamespace(url="x")
    found = {"w": PLAIN2, "w/b": PLAIN3}
    keys = ("w/.zarray", "w/.zattrs", "w/zarr.json", "w/0.1", "w/b/c/0/0", "v", "w.v")
    assert items._chunks(found, dict.fromkeys(keys, value)) == (
        {"w": {(0, 1): value}, "w/b": {(0, 0): value}},
        ["v", "w.v"],
    )
    for key in ("w/x", "w/2.0", "w/b/0.0"):
        with refused(r"[x0-9.]+ is not one of its chunks in the grid \[2, 2\]"):
            items._chunks(found, {key: value})


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


def test_a_tree_of_several_levels_is_read_from_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "ENTRIES", 4)
    arrays = {f"layer_{i}/w": np.full(3, i, "f4") for i in range(40)}
    ckptconv.save(arrays, tmp_path / "deep.orbax", to="orbax")
    found = ckptconv.open(tmp_path / "deep.orbax").numpy()
    assert {name: a.tolist() for name, a in found.items()} == {name: a.tolist() for name, a in arrays.items()}


def test_a_name_of_an_array_and_of_a_dictionary_is_refused(tmp_path: Path) -> None:
    """Orbax 0.12.8 restores of `a` and `a/b` only the second, and says nothing."""
    arrays = {n: np.ones(2, "f4") for n in ("c", "a", "a/b")}
    for names in (["c", "a", "a/b"], ["a/b", "c", "a"]):
        with pytest.raises(ckptconv.Unrepresentable, match=rf"both an array and a dictionary.*\n  {names[-1]}$"):
            ckptconv.save({n: arrays[n] for n in names}, tmp_path / "x.orbax")
    assert not (tmp_path / "x.orbax").exists()


def test_leaves_of_a_msgpack_refer_to_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under their path, or that without its beginning; what is beside the path of a reference belongs to it."""
    other, array = items.Other("text"), SimpleNamespace()
    found = {
        ("optimizer", "a", "w"): other, ("b", "w"): array, ("optimizer", "c"): other, ("here",): array,
        ("d", "kvstore", "path"): other, ("d", "kvstore", "n"): array, ("d", "driver"): other, ("d", "chunks"): array,
    }  # fmt: skip
    monkeypatch.setattr(items.flax, "contents", lambda url: iter(found.items()))
    monkeypatch.setattr(items.flax, "tensor", lambda name, leaf, url: name)
    made = items.of_msgpack("x", dict.fromkeys(["a.w", "b.w"], object()))
    assert {name: (leaf.path, leaf[2]) for name, leaf in made.leaves.items()} == {
        "a.w": (("a", "w"), ""), "b.w": (("b", "w"), ""), "d": (("d",), ""),
        "optimizer.c": (("optimizer", "c"), "text"),
    }  # fmt: skip
    assert made.inline == {("here",): "here"}
