"""Keras files written by the frameworks (fixtures/make/by_keras.py) read under the frameworks' own variable names."""

from __future__ import annotations

import copy
import json
import shutil
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from kit import FIXTURES, refused, same

import ckptconv
from ckptconv.api import Target
from ckptconv.checkpoint import details
from ckptconv.errors import CorruptCheckpoint, Unrepresentable, UsageError
from ckptconv.formats.detect import open_checkpoint
from ckptconv.formats.keras import images, naming, owners
from ckptconv.formats.keras.layers import is_usual
from ckptconv.moves.part import Span

GOLDEN = FIXTURES / "keras"


def expected(file: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "expected.npz") as z:
        found = {k.partition("|")[2]: z[k] for k in z.files if k.startswith(file + "|")}
    return {n: v.view(ml_dtypes.bfloat16) if v.dtype == "u2" else v for n, v in found.items()}


FILES = {
    "net.keras": "keras3",
    "deflated.keras": "keras3",
    "net.weights.h5": "keras3",
    "shards.weights.json": "keras3",
    "legacy3.h5": "keras",
    "pair_tf_keras.h5": "keras",
    "full_tf_keras.h5": "keras",
}


@pytest.mark.parametrize("file", FILES)
def test_golden(file: str) -> None:
    got = ckptconv.open(GOLDEN / file)
    wanted = expected(file)
    if file in ("net.weights.h5", "shards.weights.json"):  # without a config, beta cannot be told from gamma
        wanted["batch_normalization/var_0"] = wanted.pop("batch_normalization/beta")
    assert got.format == FILES[file]
    assert {n for n, t in got.items() if not t.role} == set(wanted)
    assert {n for n, a in wanted.items() if not same(got[n].numpy(), a)} == set()


def test_unzipped_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "net.keras") as z:
        z.extractall(tmp_path / "net")
    got, zipped = ckptconv.open(tmp_path / "net"), ckptconv.open(GOLDEN / "net.keras")
    assert list(got) == list(zipped)
    assert all(same(got[n].numpy(), zipped[n].numpy()) for n in got)
    assert got.metadata == zipped.metadata


def test_stored_archives_are_read_in_place() -> None:
    got = ckptconv.open(GOLDEN / "net.keras")
    assert all(isinstance(t.parts[0].data, Span) for t in got.values())
    assert all(t.parts[0].data.url == str(GOLDEN / "net.keras") for t in got.values())


def test_roles() -> None:
    three = ckptconv.open(GOLDEN / "net.weights.h5")
    assert [three[f"optimizer/vars/{i}"].role for i in (0, 1, 2, 10)] == ["step", "state", "slot", "slot"]
    assert list(three)[-1] == f"optimizer/vars/{sum(n.startswith('optimizer') for n in three) - 1}"
    two = ckptconv.open(GOLDEN / "full_tf_keras.h5")
    roles = {n: t.role for n, t in two.items() if t.role}
    assert roles["optimizer_weights/Adam/iter"] == "step"
    assert roles["optimizer_weights/Adam/a/kernel/m"] == "slot"


def test_metadata() -> None:
    two = ckptconv.open(GOLDEN / "full_tf_keras.h5").metadata
    assert set(two) == {"backend", "keras_version", "model_config", "training_config"}
    assert json.loads(two["model_config"])["config"]["name"] == "full"
    three = ckptconv.open(GOLDEN / "net.keras").metadata
    assert json.loads(three["config"])["config"]["name"] == "net"
    assert "keras_version" in three


def strip(file: Path) -> None:
    """Make it as older versions did, without names."""
    with h5py.File(file, "a") as f:
        f.visititems(lambda _, thing: thing.attrs.pop("name", None) and None)


def test_config_tells_names_where_attributes_do_not(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "net.keras") as z:
        z.extractall(tmp_path / "net")
    strip(tmp_path / "net" / "model.weights.h5")
    got = ckptconv.open(tmp_path / "net")
    assert {"first/kernel", "enc/wide/kernel", "enc/dense/kernel", "head/bias", "batch_normalization/beta"} <= set(got)
    assert same(got["enc/wide/kernel"].numpy(), expected("net.keras")["enc/wide/kernel"])
    assert not [n for n in got.notes if n.kind == "hint"]


def test_bare_weights_without_names_keep_paths_and_say_so(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "net.weights.h5", tmp_path / "a.weights.h5")
    strip(tmp_path / "a.weights.h5")
    got = ckptconv.open(tmp_path / "a.weights.h5")
    assert "layers/sequential/layers/dense/vars/0" in got
    assert [n.kind for n in got.notes] == ["hint"]


def test_old_layer_dependencies_of_2_13(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.weights.h5", "w") as f:
        f["_layer_checkpoint_dependencies/dense/vars/0"] = np.ones((2, 3), "f4")
        f.create_group("optimizer/vars")
    got = ckptconv.open(tmp_path / "a.weights.h5")
    assert list(got) == ["_layer_checkpoint_dependencies/dense/vars/0"]


def test_two_objects_of_one_name_keep_their_paths(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.weights.h5", "w") as f:
        for path, name in (("a", "same"), ("b", "same"), ("c", "other")):
            f[f"{path}/vars/0"] = np.ones((2, 3), "f4")
            f[f"{path}/vars/1"] = np.ones(3, "f4")
            f[f"{path}/vars"].attrs["name"] = name
    got = ckptconv.open(tmp_path / "a.weights.h5")
    assert set(got) == {"a/vars/0", "a/vars/1", "b/vars/0", "b/vars/1", "other/kernel", "other/bias"}


def test_shards_must_hold_what_the_index_says(tmp_path: Path) -> None:
    for file in GOLDEN.glob("shards*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "shards_00001.weights.h5").unlink()
    with pytest.raises(ckptconv.errors.CkptError, match="shards_00001"):
        ckptconv.open(tmp_path / "shards.weights.json")


def test_npz_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as z:
        z.writestr("config.json", "{}")
        z.writestr("model.weights.npz", b"PK")
    with pytest.raises(ckptconv.errors.UnsafeCheckpoint, match="pickles"):
        ckptconv.open(tmp_path / "a.keras")


def test_shards_of_hugging_face(tmp_path: Path) -> None:
    """transformers.TFPreTrainedModel.save_pretrained(max_shard_size=...) drops the model's name within shards."""
    weights = {"tf_m/bert/a/kernel:0": 0, "tf_m/bert/a/bias:0": 1, "shared/weight:0": 2, "top:0": 3}
    places = {name: f"tf_model-0000{1 + i % 2}-of-00002.h5" for name, i in weights.items()}
    for file in set(places.values()):
        with h5py.File(tmp_path / file, "w") as f:
            mine = [n.partition("/")[2] if n.startswith("tf_m") else n for n in places if places[n] == file]
            f.attrs["layer_names"] = [n.encode() for n in mine]
            for name in mine:
                f[name] = np.full(3, next(i for n, i in weights.items() if n.endswith(name)), "f4")
    index = tmp_path / "tf_model.h5.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": places}))
    for path in (index, tmp_path):
        got = ckptconv.open(path)
        assert {n: t.numpy()[0] for n, t in got.items()} == {n.removesuffix(":0"): i for n, i in weights.items()}
        assert (got.format, got.notes) == ("keras", ())
    assert list(ckptconv.open(tmp_path / "tf_model-00001-of-00002.h5")) == ["bert/a/kernel", "shared/weight"]
    (tmp_path / "tf_model-00002-of-00002.h5").unlink()
    with pytest.raises(ckptconv.errors.CkptError, match="00002-of-00002"):
        ckptconv.open(index)


# --- legacy lists ----------------------------------------------------------------------------------------------


def legacy(path: Path, layers: dict[str, dict[str, np.ndarray]], **attrs: object) -> None:
    with h5py.File(path, "w") as f:
        f.attrs["layer_names"] = [n.encode() for n in layers]
        f.attrs.update(attrs)
        for layer, weights in layers.items():
            f.create_group(layer).attrs["weight_names"] = [n.encode() for n in weights]
            for name, value in weights.items():
                f[layer][name] = value


def test_a_shared_variable_is_one_tensor(tmp_path: Path) -> None:
    table, other = np.random.rand(5, 3), np.random.rand(3)
    legacy(tmp_path / "a.h5", {"enc": {"emb/w:0": table, "b:0": other}, "dec": {"emb/w:0": table, "c:0": other}})
    got = ckptconv.open(tmp_path / "a.h5")
    assert list(got) == ["emb/w", "b", "c"]
    assert [n.names for n in got.notes] == [("dec/emb/w:0",)]
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as f:
        assert f["dec/emb/w:0"] == f["enc/emb/w:0"]
        assert f["dec"].attrs["weight_names"].tolist() == [b"emb/w:0", b"c:0"]
    assert ckptconv.open(tmp_path / "b.h5").details | {"hashes": 0} == got.details | {"hashes": 0}


def test_variables_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Also those that happen to be equal: a zero bias in both says nothing."""
    zero = np.zeros(3)
    one, two = np.random.rand(2, 4, 3)
    legacy(tmp_path / "a.h5", {"m1": {"d/k:0": one, "d/b:0": zero}, "m2": {"d/k:0": two, "d/b:0": zero}})
    got = ckptconv.open(tmp_path / "a.h5")
    assert list(got) == ["m1/d/k", "m1/d/b", "m2/d/k", "m2/d/b"]
    assert same(got["m2/d/k"].numpy(), two)


def test_names_that_differ_by_the_suffix_alone(tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", {"l": {"w:0": np.ones(1), "w": np.zeros(1)}})
    got = ckptconv.open(tmp_path / "a.h5")
    assert sorted(t.numpy().tolist() for t in got.values()) == [[0], [1]]


def test_unlisted_datasets_are_noted(tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", {"l": {"w:0": np.ones(1)}})
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f["l/extra"] = np.ones(1)
    got = ckptconv.open(tmp_path / "a.h5")
    assert [(n.kind, n.names) for n in got.notes] == [("unread", ("l/extra",))]


@pytest.mark.parametrize("layers", [1, pytest.param(700, marks=pytest.mark.slow)])
def test_long_lists_are_split_and_joined(tmp_path: Path, layers: int) -> None:
    tensors = {f"{'a_rather_long_layer_name_' * 4}{i}/kernel": np.full(1, i, "f4") for i in range(layers)}
    ckptconv.save(tensors, tmp_path / "a.h5", format="keras")
    with h5py.File(tmp_path / "a.h5") as f:
        assert ("layer_names0" in f.attrs) == (layers > 1)
    got = ckptconv.open(tmp_path / "a.h5")
    assert list(got) == list(tensors)
    assert all(same(got[n].numpy(), a) for n, a in list(tensors.items())[::100])


def test_layers_of_written_files_come_from_the_names(tmp_path: Path) -> None:
    def lists(names: list[str]) -> list[list[object]]:
        ckptconv.save(dict.fromkeys(names, np.ones(1)), tmp_path / "a.h5", format="keras", force=True)
        return [row[:1] + [w for _, w in row[1]] for row in ckptconv.open(tmp_path / "a.h5").details["layers"]]

    assert lists(["b/k", "a/k", "b/x/b"]) == [["b", "b/k:0", "b/x/b:0"], ["a", "a/k:0"]]
    assert lists(["tf_m/bert/a/k", "tf_m/cls/k"])[:2] == [["bert", "tf_m/bert/a/k:0"], ["cls", "tf_m/cls/k:0"]]


# --- Keras 3 targets -------------------------------------------------------------------------------------------


@pytest.mark.many
@pytest.mark.parametrize("file", ["net.keras", "net.weights.h5", "shards.weights.json"])
@pytest.mark.parametrize("to", ["out.weights.h5", "out.weights.json"])
def test_keras3_round_trip(tmp_path: Path, file: str, to: str) -> None:
    limit = 700 if to.endswith("json") else None
    ckptconv.convert(GOLDEN / file, tmp_path / to, target=Target(max_shard_size=limit))
    a, b = ckptconv.open(GOLDEN / file), ckptconv.open(tmp_path / to)
    assert set(a) == set(b)
    assert all(same(a[n].numpy(), b[n].numpy()) for n in a)
    assert {n: t.role for n, t in a.items()} == {n: t.role for n, t in b.items()}
    assert b.format == "keras3"
    written = len(list(tmp_path.iterdir()))
    assert written > 2 if limit else written == 1


def test_groups_without_tensors_are_in_the_first_shard(tmp_path: Path) -> None:
    """Those of layers without weights; groups on the way to a tensor are in each file that needs them."""

    def groups(path: Path) -> set[str]:
        found: list[str] = []
        with h5py.File(path) as f:
            f.visititems(lambda name, thing: found.append(name) if isinstance(thing, h5py.Group) else None)
        return set(found)

    for to, limit in (("one.weights.h5", None), ("out.weights.json", 700)):
        ckptconv.convert(GOLDEN / "net.keras", tmp_path / to, target=Target(max_shard_size=limit))
    first, *rest = (groups(path) for path in sorted(tmp_path.glob("out_*.h5")))
    assert len(rest) > 1
    assert first.union(*rest) == groups(tmp_path / "one.weights.h5")
    for path, found in zip(sorted(tmp_path.glob("out_*.h5"))[1:], rest, strict=True):
        with h5py.File(path) as f:
            assert all(any(isinstance(x, h5py.Dataset) for x in _below(f[name])) for name in found), path


def _below(group: h5py.Group) -> list[object]:
    found: list[object] = []
    group.visititems(lambda _, thing: found.append(thing))
    return found


@pytest.mark.parametrize("files", [3, None, {}, [3], ["a.weights.h5", None], {"a.weights.h5": 1}, 1.5, True])
def test_an_index_names_the_files_of_each_group(files: object, tmp_path: Path) -> None:
    (tmp_path / "a.weights.json").write_text(json.dumps({"weight_map": {"/layers/dense/vars": files}}))
    with refused("the entry /layers/dense/vars names no files"):
        ckptconv.open(tmp_path / "a.weights.json")


def test_paths_can_be_written_without_a_keras_source(tmp_path: Path) -> None:
    ckptconv.save({"layers/dense/vars/0": np.ones((2, 2))}, tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5") as f:
        assert f["layers/dense/vars/0"][:].tolist() == [[1, 1], [1, 1]]


def test_names_that_are_no_object_path_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match=r"(?s)dense/kernel.*other/bias"):
        ckptconv.save({"dense/kernel": np.ones(1), "other/bias": np.ones(1)}, tmp_path / "a.weights.h5")


def test_dtypes_that_keras_cannot_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match="float8"):
        ckptconv.save({"vars/0": np.ones(1).astype(ml_dtypes.float8_e5m2)}, tmp_path / "a.weights.h5")


def test_archives_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"weights\.h5"):
        ckptconv.convert(GOLDEN / "net.keras", tmp_path / "a.keras")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": 3}', '{"weight_map": {"/a": 3}}', "[" * 100_000])
def test_indexes_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.weights.json").write_text(text)
    with pytest.raises(CorruptCheckpoint):
        open_checkpoint(str(tmp_path / "a.weights.json"), format="keras3")


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "snake"),
    [("LSTMCell", "lstm_cell"), ("BatchNormalization", "batch_normalization"), ("Conv2D", "conv2d"),
     ("PReLU", "p_re_lu"), ("RMSNormalization", "rms_normalization"), ("Conv2DTranspose", "conv2d_transpose"),
     ("My>Layer", "my_layer")],
)  # fmt: skip
def test_snake_case(name: str, snake: str) -> None:
    assert naming.snake(name) == snake


CASES = [
    ("dense", [(2, 3), (3,)], "float32", {}, ["kernel", "bias"]),
    ("dense", [(2, 3)], "float32", {}, ["kernel"]),
    ("dense", [(2, 3), (3,), (3,)], "int8 float32 float32", {"use_bias": True}, ["kernel", "bias", "kernel_scale"]),
    ("dense", [(2, 3), (3,)], "int8 float16", {"use_bias": False}, ["kernel", "kernel_scale"]),
    ("dense", [(2, 3), (3,)], "int8 int8", {}, ["kernel", "bias"]),
    ("dense", [(2, 3), (3,)], "uint8 bfloat16", {}, ["kernel", "bias"]),
    (
        "dense",
        [(4, 2), (1, 4), (1, 4), (8,)],
        "int8 float32 int8 float32",
        {},
        ["kernel", "kernel_scale", "kernel_zero", "g_idx"],
    ),
    (
        "einsum_dense",
        [(3,), (3, 2), (3, 1), (3, 1), (2,)],
        "float32 uint8 float32 uint8 float32",
        {},
        ["bias", "kernel", "kernel_scale", "zero_point", "g_idx"],
    ),
    (
        "dense",
        [(3, 2), (3, 1), (3, 1), (2,), (2,)],
        "uint8 float32 uint8 float32 float32",
        {},
        ["kernel", "kernel_scale", "kernel_zero", "awq_scales", "g_idx"],
    ),
    ("embedding", [(5, 4), (5,)], "int8 float32", {}, ["embeddings", "embeddings_scale"]),
    ("reversible_embedding", [(5, 4)], "float32", {}, ["embeddings"]),
    ("reversible_embedding", [(5, 4), (4, 5)], "float32", {}, ["embeddings", "reverse_embeddings"]),
    (
        "reversible_embedding",
        [(5, 2), (5, 1), (5, 1), (4,)],
        "int8 float32 int8 float32",
        {},
        ["embeddings", "embeddings_scale", "embeddings_zero", "g_idx"],
    ),
    (
        "reversible_embedding",
        [(5, 2), (5,), (2, 5), (5,)],
        "int8 float32 int8 float32",
        {},
        ["embeddings", "embeddings_scale", "reverse_embeddings", "reverse_embeddings_scale"],
    ),
    ("layer_normalization", [(3,)], "float32", {"scale": False}, ["beta"]),
    ("layer_normalization", [(3,)], "float32", {}, ["var_0"]),
    ("batch_normalization", [(3,)] * 2, "float32", {}, ["moving_mean", "moving_variance"]),
    ("batch_normalization", [(3,)] * 3, "float32", {"center": False}, ["gamma", "moving_mean", "moving_variance"]),
    ("batch_normalization", [(3,)] * 3, "float32", {}, ["var_0", "moving_mean", "moving_variance"]),
    ("", [(2, 3), (3,)], "float32", {}, ["kernel", "bias"]),
    ("", [(2, 3), (4,)], "float32", {}, ["var_0", "var_1"]),
    ("", [(2, 3)], "float32", {}, ["var_0"]),
]


def test_names_guessed_from_shapes_are_noted(tmp_path: Path) -> None:
    """A class that is not Keras's own: a matrix and a vector of its last size are called kernel and bias."""
    with h5py.File(tmp_path / "a.weights.h5", "w") as f:
        for path, name, shapes in (("mine", "mine", [(2, 3), (3,)]), ("layers/dense", "d", [(2, 3), (3,)])):
            f.create_group(f"{path}/vars").attrs["name"] = name
            for i, shape in enumerate(shapes):
                f[f"{path}/vars/{i}"] = np.ones(shape, "f4")
    got = ckptconv.open(tmp_path / "a.weights.h5")
    assert set(got) == {"mine/kernel", "mine/bias", "d/kernel", "d/bias"}
    notes = [(n.text, n.names) for n in got.notes if n.kind == "assumed"]
    assert notes == [("called kernel and bias by their shapes alone", ("mine/kernel", "mine/bias"))]


@pytest.mark.parametrize(("kind", "shapes", "dtype", "config", "names"), CASES)
def test_variable_names(kind: str, shapes: list[tuple[int, ...]], dtype: str, config: dict, names: list[str]) -> None:
    dtypes = dtype.split() if " " in dtype else [dtype] * len(shapes)
    assert naming.variables(kind, shapes, dtypes, config)[0] == names


# --- real files ------------------------------------------------------------------------------------------------


def test_real_keras_2_weights(shared: Path, tmp_path: Path) -> None:
    source = shared / "real" / "crepe_tiny" / "crepe.h5"
    got = ckptconv.open(source)
    assert len(got) == 38
    assert list(got)[:2] == ["conv1_3/kernel", "conv1_3/bias"]
    ckptconv.convert(source, tmp_path / "a.safetensors")
    back = ckptconv.open(tmp_path / "a.safetensors")
    with h5py.File(source) as f:
        for layer in f.attrs["layer_names"]:
            for name in f[layer].attrs["weight_names"]:
                assert same(back[name.decode().removesuffix(":0")].numpy(), f[layer][name][()])


def test_hugging_face_names(shared: Path) -> None:
    bert = ckptconv.open(shared / "oracles" / "hf-tf" / "TFBertForPreTraining" / "tf_model.h5")
    assert "tf_bert_for_pre_training/bert/encoder/layer_._0/attention/self/query/kernel" in bert
    t5 = ckptconv.open(shared / "oracles" / "hf-tf" / "t5" / "tf_model.h5")
    assert [n for n in t5 if "shared" in n] == ["shared/shared/embeddings"]


def test_no_shard_passes_the_limit_by_a_byte(tmp_path: Path) -> None:
    arrays = {f"layers/d/vars/{i}": np.zeros(100, "f4") for i in range(2)}
    for limit, shards in ((800, 1), (799, 2)):
        ckptconv.save(arrays, tmp_path / str(limit) / "a.weights.json", max_shard_size=limit)
        assert len(list((tmp_path / str(limit)).glob("*.weights.h5"))) == shards


def wired(kind: str, inputs: object) -> list[str]:
    """What a layer is taken for whose inbound_nodes are these, after a Flatten called f and an input called i."""
    rows = [
        {"class_name": "Flatten", "config": {"name": "f"}, "inbound_nodes": []},
        {"class_name": kind, "config": {"name": "d"}, "inbound_nodes": inputs},
    ]
    config = {"class_name": "Functional", "config": {"layers": rows}}
    return [layer.kind for layer in naming.listed(config) if layer.name == "d"]


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("inputs", "taken"),
    [
        ([["f", 0, 0, {}]], "flat_dense"), ([[["f", 0, 0, {}]]], "flat_dense"), ([["i", 0, 0, {}]], "dense"),
        ([["f", 0]], "dense"), ([["f", 0, "0"]], "dense"),
        ([["f", True, 0]], "dense"), ([], "dense"), (None, "dense"), ("f", "dense"),
        ([{"args": [{"config": {"keras_history": ["f", 0, 0]}}]}], "flat_dense"),
        ([{"args": [], "kwargs": {"x": {"config": {"keras_history": ["f", 0, 0]}}}}], "flat_dense"),
        (nested(["f", 0, 0], 17), "flat_dense"), (nested(["f", 0, 0], 18), "dense"), (nested([], 5000), "dense"),
    ],
)  # fmt: skip
def test_what_follows_a_flatten_by_its_inputs(inputs: object, taken: str) -> None:
    """As Keras 1 to 3 spell the inputs of a layer; nested at most as deep as any of them nests."""
    assert wired("Dense", inputs) == [taken]


IMAGES = [
    # what stands in front of a Dense, and what that is then
    ("Flatten", "flat_dense"), ("Flatten Dropout BatchNormalization", "flat_dense"), ("Conv2D Flatten", "flat_dense"),
    ("Flatten LayerNormalization PReLU UnitNormalization", "flat_dense"), ("Reshape:-1", "flat_dense"),
    ("Flatten RepeatVector", "flat_dense"), ("TimeDistributed:Flatten", "flat_dense"),
    ("Flatten Flatten", "flat_dense"),
    ("", "dense"), ("Flatten Conv2D", "dense"), ("Flatten Dense", "dense"), ("Conv2D", "dense"),
    ("GlobalAveragePooling2D Flatten", "dense"), ("Conv2D MyBlock Conv2D GlobalMaxPooling2D", "dense"),
    ("Flatten Concatenate", "mixed_dense"), ("Flatten Add", "flat_dense"), ("Permute Flatten", "mixed_dense"),
    ("Permute Conv2D Flatten", "flat_dense"),
    ("Conv2D:channels_first Flatten", "dense"), ("Conv2D:channels_first Flatten:channels_first", "flat_dense"),
    ("Conv2D Flatten:channels_first", "mixed_dense"),
    ("Flatten MyNorm", "maybe_dense"), ("Flatten Lambda Dropout", "maybe_dense"), ("MyFlatten", "maybe_dense"),
    ("Conv2D Reshape:5:5", "maybe_dense"), ("Flatten Reshape:5:5:3", "maybe_dense"),
    ("Conv2D Patches LayerNormalization Flatten", "maybe_dense"), ("Conv2D SpatialAttention Flatten", "maybe_dense"),
    ("Conv2D Transpose Flatten", "maybe_dense"), ("Conv2D Relu Flatten", "flat_dense"),
    ("TimeDistributed:Conv2D Flatten", "mixed_dense"), ("TimeDistributed:Conv2D Conv3D Flatten", "flat_dense"),
    ("TimeDistributed:Conv2D TimeDistributed:Flatten Flatten", "mixed_dense"),
    ("TimeDistributed:Flatten GlobalAveragePooling1D", "flat_dense"), ("Flatten RepeatVector Flatten", "mixed_dense"),
    ("TimeDistributed:Conv2D TimeDistributed:Flatten LSTM", "dense"),
    ("Conv2D Permute Reshape:5:15 GlobalAveragePooling1D", "maybe_dense"), ("Lambda Add", "maybe_dense"),
    ("Flatten Lambda Concatenate", "maybe_dense"), ("Conv2D Permute Reshape:5:15 Dense Flatten", "maybe_dense"),
    ("Conv2D Permute Reshape:5:15 TimeDistributed:Activation Flatten", "maybe_dense"),
    ("Conv2D Permute Reshape:5:15 GlobalMaxPooling1D Dense Flatten", "dense"),
    ("Flatten Lambda Dense Flatten", "dense"), ("Conv2D Reshape:147:1 Flatten", "maybe_dense"),
    # features are last on both sides
    ("Conv1D Dense Flatten", "maybe_dense"), ("Conv1D Dense Conv1D Flatten", "flat_dense"), ("Conv1D Dense", "dense"),
    ("Embedding Flatten", "dense"), ("LSTM Flatten", "dense"),
    ("MultiHeadAttention LayerNormalization Flatten", "dense"), ("Embedding Conv1D Flatten", "flat_dense"),
    ("Input:28:28 Flatten", "dense"), ("Input:28:28:1 Flatten", "flat_dense"),
    ("Input:9 Dense Reshape:3:3:1 Flatten", "dense"), ("Input:9 Dense Reshape:3:3:1 Conv2D Flatten", "flat_dense"),
]  # fmt: skip


def layer(text: str, name: str = "") -> dict[str, Any]:
    """Kind:option:option as a config lists it."""
    kind, *options = text.split(":")
    own: dict[str, Any] = {"name": name or text}
    if kind == "TimeDistributed":
        own["layer"] = layer(options[0])
    elif kind in ("Reshape", "Input"):
        own["target_shape" if kind == "Reshape" else "batch_shape"] = [None] * (kind == "Input") + [*map(int, options)]
    elif options:
        own["data_format"] = options[0]
    return {"class_name": "InputLayer" if kind == "Input" else kind, "config": own}


@pytest.mark.parametrize(("before", "taken"), IMAGES)
def test_what_its_inputs_make_of_a_dense_layer(before: str, taken: str) -> None:
    """In a chain, in a model within it, and behind such a model."""
    rows = [layer(text) for text in before.split()]
    last = layer("Dense", "last")
    head = {"class_name": "Sequential", "config": {"name": "head", "layers": [last]}}
    body = {"class_name": "Sequential", "config": {"name": "body", "layers": rows}}
    for layers in [*rows, last], [*rows, head], [body, last], [body, head]:
        found = naming.listed({"class_name": "Sequential", "config": {"layers": layers}})
        assert [one.kind for one in found if one.name == "last"] == [taken]


@pytest.mark.parametrize(
    ("before", "prefix"),
    [
        ("Conv2D Reshape:5:15 Dense", ""),
        ("TimeDistributed:Conv2D TimeDistributed:Flatten", "flat_"), ("Conv2D Reshape:5:15", "maybe_"),
        ("Conv2D Permute Reshape:5:15", "maybe_"), ("Embedding", ""), ("Input:5:15 Conv1D", ""),
        ("Conv2D GlobalAveragePooling2D RepeatVector", ""), ("Flatten RepeatVector", "flat_"),
        ("Permute Flatten RepeatVector", "mixed_"),
        ("TimeDistributed:Conv2D TimeDistributed:Flatten MaxPooling1D", "flat_"),
        ("Conv2D Permute Reshape:5:15 MaxPooling1D", "maybe_"), ("Conv2D Permute Reshape:5:15 Permute", "maybe_"),
        ("Conv2D:channels_first Reshape:5:15 Permute", ""), ("Conv2D Reshape:15:1", ""), ("Input:5:9 MaxPooling1D", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["LSTM", "Bidirectional", "MultiHeadAttention", "EinsumDense"])
def test_what_its_inputs_make_of_a_cell(before: str, prefix: str, kind: str) -> None:
    rows = [*map(layer, before.split()), layer(kind)]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    wanted = "mixed_" if prefix == "flat_" and kind in ("MultiHeadAttention", "EinsumDense") else prefix
    assert [details.prefix(one.kind) for one in found if one.name == kind] == [wanted]


@pytest.mark.parametrize("kind", ["BatchNormalization", "LayerNormalization", "PReLU", "Conv1D"])
@pytest.mark.parametrize(
    ("before", "prefix"),
    [
        ("Conv2D Permute Reshape:5:15", "maybe_"), ("Permute Reshape:5:15 Dropout", "maybe_"), ("MyBlock", ""),
        ("Conv2D Reshape:5:15", ""),  # pixels, or rows, of which nothing is told
        ("Input:5:15", ""), ("Conv2D Permute Reshape:5:15 Dense", ""),
    ],
)  # fmt: skip
def test_rows_of_an_image_may_have_their_features_in_another_order(before: str, prefix: str, kind: str) -> None:
    rows = [*map(layer, before.split()), layer(kind)]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert [details.prefix(one.kind) for one in found if one.name == kind] == [prefix]


def called(text: str, *nodes: list[str]) -> dict[str, Any]:
    """A layer of a functional model, by the inputs of each of its uses: name, or name:call."""
    ends = [[[n.partition(":")[0], int(n.partition(":")[2] or 0), 0, {}] for n in node] for node in nodes]
    return layer(text) | {"inbound_nodes": ends}


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([called("Subtract", ["a", "b"])], "flat_dense"), ([called("Concatenate", ["a", "b"])], "mixed_dense"),
        ([called("Subtract", ["a", "i"])], "mixed_dense"),
        ([called("Dropout", ["a"], ["z"]), called("Conv1D", ["Dropout"]) | {"config": {"name": "z"}},
          called("ReLU", ["Dropout"])], "flat_dense"),
        # Keras 2 counts the uses of a layer outside of this model, too
        ([called("Dropout", ["a:3"])], "flat_dense"), ([called("Dropout", ["nobody:3"])], "dense"),
        ([called("Concatenate", ["Conv2D", "LSTM"]), called("Flatten", ["Concatenate"])], "maybe_dense"),
        ([called("Add", ["Conv2D", "LSTM"]), called("Flatten", ["Add"])], "flat_dense"),
    ],
)  # fmt: skip
def test_what_is_used_or_merged_twice(rows: list[dict[str, Any]], taken: str) -> None:
    """A layer that is called again, with what stands behind it, is another layer each time."""
    flat = called("Flatten", ["i"]) | {"config": {"name": "a"}}, called("Flatten", ["j"]) | {"config": {"name": "b"}}
    flat = *flat, called("Conv2D", ["i"]), called("LSTM", ["j"])
    last = called("Dense", [rows[-1]["config"]["name"]])
    found = naming.listed({"class_name": "Functional", "config": {"layers": [*flat, *rows, last]}})
    assert [one.kind for one in found if one.name == "Dense"] == [taken]


def test_a_model_gives_each_of_its_outputs() -> None:
    rows = [called("Flatten", ["i"]), called("Embedding", ["i"])]
    inner = {"name": "m", "layers": rows, "output_layers": [["Flatten", 0, 0], ["Embedding", 0, 0]]}
    for k, taken in enumerate(["flat_dense", "dense"]):
        head = layer("Dense") | {"inbound_nodes": [[["m", 0, k, {}]]]}
        whole = [{"class_name": "Functional", "config": inner, "inbound_nodes": [[["i", 0, 0, {}]]]}, head]
        found = naming.listed({"class_name": "Functional", "config": {"layers": whole}})
        assert [one.kind for one in found if one.name == "Dense"] == [taken]


def test_a_model_for_each_step() -> None:
    inner = {
        "class_name": "Sequential",
        "config": {"name": "m", "layers": [*map(layer, ["Conv2D", "Flatten", "Dense"])]},
    }
    rows = [layer("TimeDistributed:Conv2D", "t"), layer("LSTM")]
    rows[0]["config"]["layer"] = inner
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert [one.kind for one in found] == ["maybe_time_distributed", "lstm"]
    inner["config"]["layers"].pop()
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert [one.kind for one in found] == ["time_distributed", "flat_lstm"]


@pytest.mark.parametrize("around", [False, True])
def test_a_model_that_is_called_often_is_gone_through_once(around: bool) -> None:
    """Within each other, 8 calls of 8 levels would be 16 million."""
    model = {"class_name": "Functional", "config": {"name": "m", "layers": [layer("Input:4", "i")]}}
    for _ in range(8):
        inner = layer("TimeDistributed:Dense", "m") if around else model
        inner["config"] |= {"layer": model} if around else {}
        rows = [layer("Input:4", "i"), inner | {"inbound_nodes": [[["i", 0, 0, {}]]] * 8}]
        model = {"class_name": "Functional", "config": {"name": "m", "layers": rows, "output_layers": [["m", 7, 0]]}}
    assert images.behind(model) == {}


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ("flat", "vector", "mixed_"), ("vector", "flat", "mixed_"), ("flat", "flat", "flat_"),
        ("vector", "sequence", ""),
        ("vector", "unknown", "maybe_"), ("flat", "unknown", "mixed_"),
    ],
)  # fmt: skip
def test_a_layer_that_is_used_on_two_kinds_of_inputs(first: str, second: str, taken: str) -> None:
    """As it is, and as a model; Keras 2 counts the calls of a model from 1."""
    rows = [
        called("Conv2D", ["i"]), called("Flatten", ["Conv2D"]) | {"config": {"name": "flat"}},
        called("GlobalAveragePooling2D", ["i"]) | {"config": {"name": "vector"}},
        called("LSTM", ["i"]) | {"config": {"name": "sequence"}},
        called("Mine", ["i"]) | {"config": {"name": "unknown"}},
    ]  # fmt: skip
    dense = layer("Dense", "d")
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [dense]}}
    for last, name, start in (dense, "d", 0), (model, "m", 1):
        used = last | {"inbound_nodes": [[[first, 0, 0, {}]], [[second, 0, 0, {}]]]}
        ends = [called("ReLU", [f"{name}:{start}"]), called("ELU", [f"{name}:{start + 1}"])]
        found = naming.listed({"class_name": "Functional", "config": {"layers": [*rows, used, *ends]}})
        assert [details.prefix(one.kind) for one in found if one.name == "d"] == [taken]


@pytest.mark.parametrize("head", ["Sequential", "Functional"])
def test_a_head_for_an_image_and_for_a_sequence(head: str) -> None:
    rows = [layer("Input:4:5", "x"), called("Flatten", ["x"]), called("Dense", ["Flatten"])]
    inner = {"name": "h", "layers": rows, "input_layers": [["x", 0, 0]], "output_layers": [["Dense", 0, 0]]}
    uses = [[["Conv1D", 0, 0, {}]], [["LSTM", 0, 0, {}]]]
    both = [
        called("Conv1D", ["i"]),
        called("LSTM", ["i"]),
        {"class_name": head, "config": inner, "inbound_nodes": uses},
    ]
    found = naming.listed({"class_name": "Functional", "config": {"layers": both}})
    assert [one.kind for one in found if one.name == "Dense"] == ["maybe_dense"]


def test_an_output_that_a_model_does_not_have() -> None:
    """Each of thousands was taken for all outputs together."""
    inner = {"name": "m", "layers": [layer("Input:4", "i")], "output_layers": [["i", 0, 0]] * 20_000}
    rows = [
        {"class_name": "Functional", "config": inner},
        layer("Dense") | {"inbound_nodes": [[["m", 0, -1]] * 20_000]},
    ]
    began = time.process_time()
    images.behind({"class_name": "Functional", "config": {"layers": rows}})
    assert time.process_time() - began < 5


def test_a_flatten_of_two_images_was_built_for_one() -> None:
    flatten = called("Flatten", ["i"], ["j"]) | {"build_config": {"input_shape": [None, 4, 4, 3]}}
    rows = [flatten, called("Dense", ["Flatten:1"])]
    assert images.behind({"class_name": "Functional", "config": {"layers": rows}}) == {id(rows[1]): ("flat_", None)}


def test_weights_that_no_layer_has_are_sought_at_once() -> None:
    """Each was compared with all layers of its model."""
    rows = [layer("Dense", f"d{i}") for i in range(5000)]
    config = {
        "class_name": "Sequential",
        "config": {"layers": [{"class_name": "Sequential", "config": {"name": "m", "layers": rows}}]},
    }
    began = time.process_time()
    assert not owners.owners(config, [("m", [(f"m/w{i}", f"w{i}/kernel") for i in range(5000)])])
    assert time.process_time() - began < 2


def test_a_class_of_a_user_is_none_of_keras() -> None:
    rows = [layer("Conv2D"), layer("Attention") | {"module": "mine"}, layer("Flatten"), layer("Dense")]
    for kind in "Sequential", "Net":  # which derives from it
        found = naming.listed({"class_name": kind, "config": {"layers": rows}})
        assert [one.kind for one in found][-1] == "maybe_dense"


@pytest.mark.parametrize("axes", [[10**4000] * 125, [10**4000, 2], [2**40, 2], [True, 2], [0, 2], ["3", 4]])
def test_an_image_of_no_size_that_can_be(axes: list[Any]) -> None:
    """Products of long integers took minutes."""
    rows = [layer("Conv2D"), layer("Flatten") | {"build_config": {"input_shape": [None, *axes, 5]}}, layer("Dense")]
    assert images.behind({"class_name": "Sequential", "config": {"layers": rows}}) == {id(rows[2]): ("flat_", None)}


@pytest.mark.parametrize(
    ("chain", "shaped"),
    [
        ("Input:9 Dense BatchNormalization ReLU Reshape:3:3:2 Conv2D", 1), ("Input:9 Dense Reshape:4:2 Conv1D", 1),
        ("Input:9 Dense Reshape:3:3:1 Conv2D", 0), ("Input:9 Dense Reshape:4:2 LSTM", 0), ("Dense Conv1D", 0),
        ("Input:9 Dense LSTM Reshape:3:3:2 Conv2D", 0), ("Input:9 Dense Reshape:3:3:2", 1),
        ("Conv2D Flatten Dense Reshape:3:3:2 Conv2D", 1),
    ],
)  # fmt: skip
def test_what_becomes_an_image_is_said(chain: str, shaped: int) -> None:
    rows = [layer(text) for text in chain.split()]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    kinds = [one.kind for one in found]
    assert sum("shaped_" in kind for kind in kinds) == shaped
    assert sum(kind.startswith("flat_") for kind in kinds) == chain.count("Flatten")


def operation(function: str, node: list[Any]) -> dict[str, Any]:
    """One of TensorFlow in a functional model of Keras 2, with the layer that it takes, and its other arguments."""
    return {"class_name": "TFOpLambda", "config": {"name": "op", "function": function}, "inbound_nodes": [node]}


@pytest.mark.parametrize(
    ("merged", "shaped"),
    [
        (called("Add", ["a", "b"]), "ab"), (called("Concatenate", ["a", "b"]), "ab"), (called("Maximum", ["a"]), "a"),
        (operation("math.add", ["a", 0, 0, {"y": ["b", 0, 0], "name": None}]), "ab"),
        (operation("nn.relu", ["a", 0, 0, {"name": None}]), "a"), (called("LSTM", ["a"]), ""),
    ],
)  # fmt: skip
def test_of_layers_that_become_one_image_each_is_said(merged: dict[str, Any], shaped: str) -> None:
    heads = [called("Dense", ["i"]) | {"config": {"name": name}} for name in "abc"]
    last = called("Reshape:3:3:2", [merged["config"]["name"]])
    rows = [layer("Input:9", "i"), *heads, merged, last]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert "".join(one.name for one in found if one.kind == "shaped_dense") == shaped


def test_what_is_beside_an_image_that_was_made_is_no_image() -> None:
    """Factors for its channels, or a map that is laid onto it: a generator's squeeze-and-excite."""
    heads = [called("Dense", ["i"]) | {"config": {"name": name}} for name in "ab"]
    image = called("Reshape:3:3:2", ["a"]) | {"config": {"name": "image", "target_shape": [3, 3, 2]}}
    factors = called("Reshape:1:1:2", ["b"]) | {"config": {"name": "factors", "target_shape": [1, 1, 2]}}
    last = called("Multiply", ["image", "factors"]), called("Conv2D", ["Multiply"])
    rows = [layer("Input:9", "i"), *heads, image, factors, *last]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert {one.name: one.kind for one in found if "dense" in one.kind} == {"a": "shaped_dense", "b": "dense"}


def test_what_a_dense_layer_behind_an_unknown_one_becomes() -> None:
    """The upper half of an autoencoder whose lower half ends in a function."""
    rows = [layer("Conv2D"), layer("Lambda"), layer("Dense", "down"), layer("Dense", "up"), layer("Reshape:3:3:2")]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert {one.name: one.kind for one in found if "dense" in one.kind} == {"down": "maybe_dense", "up": "shaped_dense"}


def test_a_mask_is_no_input() -> None:
    mask = ["TimeDistributed:Flatten", 0, 0, {"mask": ["Embedding", 0, 0], "training": False}]
    rows = [called("TimeDistributed:Flatten", ["i"]), called("Embedding", ["j"]), layer("LSTM")]
    rows[2]["inbound_nodes"] = [[mask]]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "LSTM"] == ["flat_lstm"]


@pytest.mark.parametrize(
    ("module", "taken"), [("keras.src.ops.numpy", "maybe_dense"), ("keras.layers", "flat_dense"), (None, "flat_dense")]
)
def test_an_average_along_an_axis_is_no_merged_layer(module: str | None, taken: str) -> None:
    average = layer("Average") | ({"module": module} if module else {})
    rows = [layer("Conv2D"), average, layer("Flatten"), layer("Dense")]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "Dense"] == [taken]


def test_a_shape_is_no_image() -> None:
    """What tf.reshape is given beside its input."""
    shape = operation("shape", ["Conv2D", 0, 0, {}]) | {"config": {"name": "shape", "function": "shape"}}
    reshape = operation("reshape", ["i", 0, 0, {"shape": [["shape", 0, 0], 8]}])
    rows = [layer("Input:8", "i"), called("Conv2D", ["j"]), shape, reshape, called("Dense", ["op"])]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "Dense"] == ["dense"]


def test_states_that_a_layer_gives_are_features() -> None:
    rows = [layer("Input:5:4", "i"), called("LSTM", ["i"]), called("Dense", ["i"])]
    rows[2]["inbound_nodes"] = [[["LSTM", 0, 1, {}]]]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "Dense"] == ["dense"]


@pytest.mark.parametrize(("axes", "taken"), [([None, 24], "maybe_"), ([None, 2, 3, 4], ""), (None, "")])
def test_features_behind_a_layer_that_is_not_known(axes: object, taken: str) -> None:
    """Of what may be a flattened image, each has its weights; of an image, each channel."""
    norm = layer("BatchNormalization") | {"build_config": {"input_shape": axes}}
    rows = [layer("Conv2D"), layer("Lambda"), norm]
    *_, found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert found.kind == f"{taken}batch_normalization"


@pytest.mark.parametrize(
    ("above", "kind", "taken"),
    [
        ("block", "", ""), ("block", "dense", "dense"), ("maybe_block", "dense", "maybe_dense"),
        ("maybe_block", "", "maybe_layer"), ("mixed_block", "", "mixed_layer"),
        ("flat_bidirectional", "", "mixed_layer"),
        ("flat_bidirectional", "lstm_cell", "flat_lstm_cell"), ("shaped_dense", "dense", "dense"),
        ("maybe_block", "mixed_dense", "mixed_dense"),
    ],
)  # fmt: skip
def test_what_is_in_a_layer_takes_what_that_takes(above: str, kind: str, taken: str) -> None:
    assert images.inherited(above, kind) == taken


def test_what_is_in_a_layer_of_a_user_is_not_told() -> None:
    """It may flatten an image itself; that Keras' own layers do not, is known."""
    kinds = {"layers/head": "head", "layers/dense": "dense", "layers/lstm": "lstm", "layers/td": "time_distributed"}
    listed = {path: naming.Listed(kind, "x", {}) for path, kind in kinds.items()}
    listed["layers/td"] = naming.Listed("time_distributed", "x", {"layer": layer("Dense")})
    listed["layers/wrap"] = naming.Listed("flat_wrap", "x", {"layer": layer("Dense")})
    listed["layers/rnn"] = naming.Listed("rnn", "x", {"cell": layer("StackedRNNCells")})
    told = {"layers/head": False, "layers/head/dense": False, "layers/dense": True, "layers/lstm/cell": True}
    told |= {"layers/td/layer": True, "layers/other": False, "layers/wrap/layer": False, "layers/rnn/cell/x": True}
    assert {path: naming.told(path, listed) is not None for path in told} == told


def test_the_layer_in_a_wrapper_is_known_by_the_config() -> None:
    listed = {"layers/td": naming.Listed("flat_time_distributed", "t", {"layer": layer("BatchNormalization", "n")})}
    assert naming.wrapped("layers/td/layer", listed) == ("flat_batch_normalization", "n", {"name": "n"}, None)
    assert naming.wrapped("layers/td", listed) is naming.wrapped("layers/x/layer", listed) is None
    assert not naming.is_known("my_block")
    for odd in ({}, {"layer": 3}, {"layer": {"class_name": "Dense"}}, {"layer": {"config": 3}}):
        assert naming.wrapped("layers/td/layer", {"layers/td": naming.Listed("t", "t", odd)}) is None


def test_of_many_layers_that_become_one_image_some_are_said() -> None:
    rows = [layer("Input:9", "i"), *(called("Dense", ["i"]) | {"config": {"name": f"d{i}"}} for i in range(40))]
    rows += [called("Add", [f"d{i}" for i in range(40)]), called("Reshape:3:3:2", ["Add"])]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert sum(one.kind == "shaped_dense" for one in found) == images.MAX_ROWS


@pytest.mark.parametrize("inner", ["Reshape:2:2:5 Conv2D", "Conv1D"])
def test_what_becomes_an_image_in_a_model_in_a_wrapper(inner: str) -> None:
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer(text) for text in inner.split()]}}
    wrapped = {"class_name": "TimeDistributed", "config": {"name": "t", "layer": model}}
    rows = [layer("Input:7"), layer("Dense"), layer("Reshape:4:20"), wrapped]
    found = naming.listed({"class_name": "Sequential", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "Dense"] == ["shaped_dense"]


def test_what_becomes_of_a_layer_in_a_wrapper() -> None:
    wrapped = {"class_name": "SpectralNormalization", "config": {"name": "s", "layer": layer("Dense")}}
    rows = [layer("Conv2D"), layer("Flatten"), wrapped, layer("Reshape:2:2:5")]
    (found,) = [x for x in naming.listed({"class_name": "Sequential", "config": {"layers": rows}}) if x.name == "s"]
    assert naming.inside(found.kind, found.config) == ("flat_shaped_dense", "Dense")


@pytest.mark.parametrize(
    ("node", "taken"),
    [
        (["d", 0, 0, {"y": ["f", 0, 0], "name": None}], "mixed_dense"),
        (["f", 0, 0, {"y": ["d", 0, 0], "name": None}], "mixed_dense"),
        (["d", 0, 0, {"y": 2.0, "name": None}], "dense"),
        (["_CONSTANT_VALUE", -1, 2, {"y": ["d", 0, 0], "name": None}], "dense"),
        (["_CONSTANT_VALUE", -1, 2.0, {"y": ["d", 0, 0], "name": None}], "dense"),
        (["f", 0, 0, {"y": 2.0, "name": None}], "flat_dense"), (["f", 0, 0, {"y": ["f", 0, 0]}], "flat_dense"),
        (["_CONSTANT_VALUE", -1, 1, {"y": ["f", 0, 0], "name": None}], "flat_dense"),
    ],
)  # fmt: skip
def test_operands_of_an_operation_in_keras_2(node: list[Any], taken: str) -> None:
    """All but the first are behind it, and a constant is no layer."""
    rows = [layer("Input:7", "i"), called("Dense", ["i"]) | {"config": {"name": "d"}}]
    rows += [called("Conv2D", ["j"]), called("Flatten", ["Conv2D"]) | {"config": {"name": "f"}}]
    rows += [operation("math.multiply", node), called("Dense", ["op"])]
    found = naming.listed({"class_name": "Functional", "config": {"layers": rows}})
    assert [one.kind for one in found if one.name == "Dense"] == [taken]


@pytest.mark.parametrize("theirs", ["FlatDense", "MixedDense", "MaybeDense", "ShapedDense", "FlatLSTM"])
@pytest.mark.parametrize("around", ["", "TimeDistributed"])
def test_a_class_of_a_user_that_begins_as_our_prefixes(theirs: str, around: str) -> None:
    row = layer("Input:9"), layer(f"{around}:{theirs}" if around else theirs, "d")
    (found,) = [x for x in naming.listed({"class_name": "Sequential", "config": {"layers": [*row]}}) if x.name == "d"]
    kind, _ = naming.inside(found.kind, found.config)
    assert (details.prefix(kind), details.bare(kind)) == ("", kind)


def model(name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": "Sequential", "config": {"name": name, "layers": copy.deepcopy([*rows])}}


FLAT, FC = layer("Flatten"), layer("Dense", "fc")
BESIDE = model("", model("img", FLAT, FC), model("tab", layer("Input:9"), FC))
IN_ONE = model("", model("both", model("a", FLAT, FC), model("b", layer("Input:9"), FC)))
IN_ORDER = model("", FLAT, FC, model("head", FC))
WRAPPED = model(
    "", model("x", layer("TimeDistributed:Flatten"), layer("TimeDistributed:Dense", "fc")), layer("Dense", "Dense")
)
CELLS = model("", model("x", FLAT, layer("LSTM", "fc")), layer("LSTM", "rnn"))
CELL = {"class_name": "RNN", "config": {"name": "rnn", "cell": layer("LSTMCell", "lstm_cell")}}
BOTH = {"class_name": "Bidirectional", "config": {"name": "bi", "layer": CELL}}
THEIRS = model(
    "", layer("TimeDistributed:Flatten"), layer("MyLSTM", "my"), layer("Flatten"), layer("MultiHeadAttention", "mha"),
    BOTH, layer("Embedding"), layer("MyLSTM", "own"),
)  # fmt: skip
BEHIND = model("", layer("TimeDistributed:Flatten"), BOTH)
MIXED = model("", model("both", model("a", FLAT, layer("Concatenate"), FC), model("b", layer("Input:9"), FC)))
OTHER = model("", model("both", model("a", FC), model("b", layer("Conv2D", "fc"))))
OWNERS = [
    # the model, the layer that lists a weight, its name, and the class of its layer
    (BESIDE, "img", "fc/kernel:0", "flat_dense"), (BESIDE, "tab", "fc/kernel:0", "dense"),
    (BESIDE, "img", "img/fc/kernel", "flat_dense"), (BESIDE, "tab", "top/tab/fc/kernel", "dense"),
    (BESIDE, "gone", "tab/fc/kernel", "dense"), (BESIDE, "gone", "fc/kernel", "maybe_dense"),
    (BESIDE, "img", "dense_7/kernel", None),
    (IN_ORDER, "fc", "fc/kernel", "flat_dense"), (IN_ORDER, "head", "fc/kernel", "dense"),
    (IN_ORDER, "head", "head/fc/kernel", "dense"), (IN_ORDER, "fc", "dense_7/kernel", "flat_dense"),
    (IN_ONE, "both", "a/fc/kernel", "flat_dense"), (IN_ONE, "both", "both/b/fc/kernel", "dense"),
    (IN_ONE, "both", "fc/kernel", "maybe_dense"), (MIXED, "both", "fc/kernel", "mixed_dense"),
    (OTHER, "both", "fc/kernel", None), (OTHER, "both", "b/fc/kernel", "conv2d"),
    (WRAPPED, "x", "fc/Dense/kernel", "flat_dense"), (WRAPPED, "x", "fc/kernel", "flat_dense"),
    (WRAPPED, "Dense", "Dense/kernel", "dense"),
    (CELLS, "x", "fc/lstm_cell/kernel", "flat_lstm"), (CELLS, "rnn", "rnn/lstm_cell/kernel", "lstm"),
    (CELLS, "rnn", "other/cell_3/kernel", "lstm"),
    # what is in a layer whose insides are not listed takes what that takes
    (THEIRS, "my", "my/lstm_cell/kernel", "maybe_lstm_cell"), (THEIRS, "my", "my/cell_2/kernel", "maybe_cell"),
    (THEIRS, "own", "own/lstm_cell/kernel", None), (BEHIND, "bi", "bi/forward_rnn/lstm_cell/kernel", "mixed_lstm_cell"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "listing", "weight", "kind"), OWNERS)
def test_layers_of_one_name_are_told_apart(config: Any, listing: str, weight: str, kind: str | None) -> None:
    found = owners.owners(config, [(listing, [["t", weight]])])
    assert {n: o.kind for n, o in found.items()} == ({"t": kind} if kind else {})


def test_what_several_layers_share_belongs_to_all() -> None:
    found = owners.owners(BESIDE, [("img", [["t", "fc/kernel"]]), ("tab", [["t", "fc/kernel"]])])
    assert found == {"t": ("maybe_dense", None)}
    flat = {"class_name": "Flatten", "config": {"name": "f"}, "build_config": {"input_shape": [None, 2, 3, 4]}}
    sized = model("", model("one", flat, FC), layer("Conv2D"), model("other", FLAT, FC))
    found = owners.owners(sized, [("one", [["t", "fc/kernel"]]), ("other", [["u", "fc/kernel"]])])
    assert found == {"t": ("flat_dense", (2, 3)), "u": ("flat_dense", None)}
    found = owners.owners(sized, [("one", [["t", "fc/kernel"]]), ("other", [["t", "fc/kernel"]])])
    assert found == {"t": ("flat_dense", None)}
    ends = model("one", flat, FC), layer("Conv2D"), model("other", flat, FC, layer("Reshape:3:3:2"))
    found = owners.owners(model("", *ends), [(n, [["t", "fc/kernel"]]) for n in ("one", "other")])
    assert found == {"t": ("flat_shaped_dense", (2, 3))}


@pytest.mark.parametrize(
    ("equation", "usual"),
    [
        ("abc,cd->abd", True), ("...c,cd->...d", True), ("abc,cde->abde", True), ("abcd,cde->abe", True), (None, True),
        ("abc,dc->abd", False), ("abc,bd->adc", False), ("abc,abd->abcd", False), ("abc,cd->adb", False),
        ("abc,acd->abd", False), ("abc", False), (3, False), ("a" * 10**6, False),
    ],
)  # fmt: skip
def test_equations_of_inputs_times_kernel(equation: object, usual: bool) -> None:
    assert is_usual(equation) is usual


@pytest.mark.parametrize(
    "between",
    [
        3, {}, {"class_name": "Conv2D"}, {"class_name": 3, "config": {"name": "x"}}, {"config": {"name": "x"}},
        {"class_name": "Conv2D", "config": {"name": 3}}, {"class_name": "Conv2D", "config": 3},
    ],
)  # fmt: skip
def test_what_is_no_layer_does_not_come_between(between: object) -> None:
    rows = [{"class_name": kind, "config": {"name": kind}} for kind in ("Flatten", "Dense")]
    config = {"class_name": "Sequential", "config": {"layers": [rows[0], between, rows[1]]}}
    assert images.behind(config) == {id(rows[1]): ("flat_", None)}


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"layer": {"class_name": "LSTM", "config": {"name": "l"}}}, ("lstm", "l")),
        ({"cell": {"class_name": "GRUCell", "config": {"name": "c"}}}, ("gru_cell", "c")),
        ({"layer": {"class_name": "Dense"}, "cell": {"class_name": "GRUCell"}}, ("dense", "")),
        ({"layer": {"class_name": "Dense", "config": {"name": 3}}}, ("dense", "")),
        ({"layer": {"class_name": "flat_" * 101, "config": {}}}, ("wrapper", "")),
        ({"layer": {"class_name": 3}}, ("wrapper", "")), ({"layer": "Dense"}, ("wrapper", "")), ({}, ("wrapper", "")),
    ],
)  # fmt: skip
def test_what_is_inside_a_wrapper(config: dict[str, object], taken: tuple[str, str]) -> None:
    assert naming.inside("wrapper", config) == taken
    assert naming.known_kind("layers/w/layer", "any name", {"layers/w": taken[0]}) == taken[0]


@pytest.mark.parametrize("file", ["net.keras", "net.weights.h5"])
def test_classes_come_from_the_config_or_from_default_names(file: str) -> None:
    kinds = Counter(ckptconv.open(FIXTURES / "keras" / file).details["kinds"].values())
    rest = {"batch_normalization": 3, "einsum_dense": 8, "layer_normalization": 2, "lstm_cell": 6}
    assert kinds == Counter(rest | {"dense": 7})


CREATED = [
    "scale concat_score_weight", "kernel bias kernel_scale kernel_zero zero_point awq_scales g_idx",
    "vector_u", "sn_u", "adapt_mean adapt_variance count",
    "embeddings embeddings_scale embeddings_zero g_idx reverse_embeddings reverse_embeddings_scale",
    "real_kernel imag_kernel", "gamma beta moving_mean moving_variance moving_stddev renorm_mean renorm_stddev",
]  # fmt: skip


@pytest.mark.parametrize("names", CREATED)
def test_variables_in_the_order_in_which_a_layer_makes_them(names: str) -> None:
    known = names.split()
    assert naming.created(known) == list(range(len(known)))
    assert naming.created(known[::-1]) == list(range(len(known)))[::-1]
    assert naming.created([f"{n}:0" for n in known]) == list(range(len(known)))
    assert naming.created([*known, "other"]) is naming.created([*known, known[0]]) is None
    assert set(known) <= naming.NAMES


@pytest.mark.parametrize("to", ["keras", "hdf5"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_metadata_of_mere_weights_does_not_become_a_model(suffix: str, to: str, tmp_path: Path) -> None:
    """Keras builds what model_config describes when it loads the file, with the code in it; weights hold no code."""
    config = {"model_config": '{"class_name": "Sequential"}', "training_config": "{}", "author": "A"}
    ckptconv.save({"d/kernel": np.ones((2, 3))}, tmp_path / f"a{suffix}", metadata=config)
    done = ckptconv.convert(tmp_path / f"a{suffix}", tmp_path / "b.h5", to=to)
    with h5py.File(tmp_path / "b.h5") as f:
        assert not {"model_config", "training_config", "model_weights"} & {*f.attrs, *f}
        assert f.attrs["author"] in ("A", b"A")
    assert [n.names for n in done.notes if n.kind == "dropped"] == [("model_config", "training_config")]
    ckptconv.save({"e/kernel": np.ones(2)}, tmp_path / "e.h5", format="hdf5")
    ckptconv.convert([tmp_path / "e.h5", tmp_path / f"a{suffix}"], tmp_path / "m.h5", to=to)
    assert "model_config" not in ckptconv.open(tmp_path / "m.h5").metadata
    ckptconv.convert(GOLDEN / "full_tf_keras.h5", tmp_path / "c.h5")
    assert "model_config" in ckptconv.open(tmp_path / "c.h5").metadata


@pytest.mark.parametrize("key", ["layer_names", "layer_names0", "weight_names"])
@pytest.mark.parametrize(("name", "to"), [("d/kernel", "hdf5"), ("d/kernel", "keras"), ("layers/d/vars/0", "keras3")])
def test_metadata_does_not_make_another_file(key: str, name: str, to: str, tmp_path: Path) -> None:
    """Detection looks at the lists of layers, which a foreign file's metadata must not become."""
    metadata = {key: "d", f"my_{key}": "A"}
    ckptconv.save({name: np.ones((2, 3))}, tmp_path / "a.safetensors", metadata=metadata)
    done = ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.weights.h5", to=to)
    assert [n.names for n in done.notes if n.kind == "dropped"] == [(key,)]
    got = ckptconv.open(tmp_path / "b.weights.h5")
    assert (list(got), got.format) == ([name], to)
    assert got.metadata[f"my_{key}"] == "A"
    assert key not in got.metadata


@pytest.mark.parametrize("file", ["full_tf_keras.h5", "pair_tf_keras.h5"])
def test_a_keras_file_copied_as_plain_hdf5_is_no_keras_file(file: str, tmp_path: Path) -> None:
    """What listed its layers would be text in the copy, from which no layers can be found."""
    done = ckptconv.convert(GOLDEN / file, tmp_path / "b.h5", from_="hdf5", to="hdf5")
    assert any("weight_names" in name for n in done.notes if n.kind == "dropped" for name in n.names)
    got = ckptconv.open(tmp_path / "b.h5")
    assert (got.format, list(got)) == ("hdf5", list(ckptconv.open(GOLDEN / file, format="hdf5")))
