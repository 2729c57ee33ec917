"""Keras files written by the frameworks (fixtures/make/by_keras.py) read under the frameworks' own variable names."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from kit import FIXTURES, legacy, same

import ckptconv
from ckptconv.errors import CorruptCheckpoint, Unrepresentable, UsageError
from ckptconv.formats.detect import open_checkpoint
from ckptconv.formats.keras import naming
from ckptconv.moves.part import Span

GOLDEN = FIXTURES / "keras"


def expected(file: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "expected.npz") as z:
        found = {k.partition("|")[2]: z[k] for k in z.files if k.startswith(file + "|")}
    return {n: v.view(ml_dtypes.bfloat16) if v.dtype == "u2" else v for n, v in found.items()}


FILES = {
    "net.keras": "keras3",
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


def test_archives_are_read_in_place() -> None:
    with pytest.raises(ckptconv.CorruptCheckpoint, match=r"has a packed model\.weights\.h5, which Keras never writes"):
        ckptconv.open(GOLDEN / "deflated.keras")
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


def test_shards_must_hold_what_the_index_says(tmp_path: Path) -> None:
    for file in GOLDEN.glob("shards*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "shards_00001.weights.h5").unlink()
    with pytest.raises(ckptconv.CorruptCheckpoint, match=r"convert shards\.weights\.json"):
        ckptconv.open(tmp_path / "shards_00000.weights.h5")
    with pytest.raises(ckptconv.errors.CkptError, match="shards_00001"):
        ckptconv.open(tmp_path / "shards.weights.json")


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
    assert list(ckptconv.open(tmp_path / "tf_model-00001-of-00002.h5", partial=True)) == [
        "bert/a/kernel",
        "shared/weight",
    ]
    (tmp_path / "tf_model-00002-of-00002.h5").unlink()
    with pytest.raises(ckptconv.errors.CkptError, match="00002-of-00002"):
        ckptconv.open(index)


# --- legacy lists ----------------------------------------------------------------------------------------------


THEANO = {  # kernels, and how many axes of them are flipped
    "conv2d/kernel": ((3, 5, 2, 4), 2), "conv3d/kernel": ((2, 3, 4, 2, 1), 3),
    "conv2d_transpose/kernel": ((3, 3, 4, 2), 2),
    "depthwise_conv2d/depthwise_kernel": ((3, 3, 2, 1), 0), "dense/kernel": ((6, 4), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", THEANO)
def test_kernels_of_theano_are_flipped(name: str, tmp_path: Path) -> None:
    """As Keras 2 does when it loads them under another backend (preprocess_weights_for_loading, convert_kernel)."""
    (shape, flipped), layer = THEANO[name], name.partition("/")[0]
    kernel = np.random.rand(*shape).astype("f4")
    legacy(tmp_path / "a.h5", {layer: {f"{name}:0": kernel}}, keras_version=b"2.1.6", backend=b"theano")
    legacy(tmp_path / "t.h5", {layer: {f"{name}:0": np.flip(kernel, tuple(range(flipped)))}})
    result, _ = (ckptconv.convert(tmp_path / f"{n}.h5", tmp_path / f"{n}.npz", converter="keras-torch") for n in "at")
    made, wanted = (ckptconv.open(tmp_path / f"{n}.npz")[f"{layer}.weight"].numpy() for n in "at")
    assert same(made, wanted)
    assert any("Theano" in str(n) for n in result.notes) == (layer != "dense")
    ckptconv.convert(tmp_path / "a.npz", tmp_path / "b.h5", converter="keras-torch", inverse=True)
    assert same(ckptconv.open(tmp_path / "b.h5")[name].numpy(), kernel)


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


def test_what_multi_gpu_model_nests_stays_and_is_said(tmp_path: Path) -> None:
    weights = {"c/kernel:0": np.ones((2, 2)), "d/kernel:0": np.ones((2, 3))}
    for layers, said in ({"in": {}, "lambda_1": {}, "model": weights, "out": {}}, True), ({"model": weights}, False):
        legacy(tmp_path / "a.h5", layers)
        done = ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5", force=True)
        assert any("stay in the layer model" in n.text for n in done.notes) == said


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


def test_layers_of_a_dict_come_from_its_names_in_its_order(tmp_path: Path) -> None:
    def lists(names: list[str]) -> list[list[object]]:
        ckptconv.save(dict.fromkeys(names, np.ones(1)), tmp_path / "a.h5", to="keras", force=True)
        return [row[:1] + [w for _, w in row[1]] for row in ckptconv.open(tmp_path / "a.h5").details["layers"]]

    assert lists(["b/k", "a/k", "b/x/b"]) == [["b", "b/k:0", "b/x/b:0"], ["a", "a/k:0"]]
    assert lists(["tf_m/bert/a/k", "tf_m/cls/k"])[:2] == [["bert", "tf_m/bert/a/k:0"], ["cls", "tf_m/cls/k:0"]]


# --- Keras 3 targets -------------------------------------------------------------------------------------------


def test_shards_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written in shards"):
        ckptconv.convert(GOLDEN / "net.weights.h5", tmp_path / "o.weights.json")


INDEXES = ["", "[]", "{", '{"weight_map": 3}', "[" * 100_000]
FILES_OF = ["3", "null", "{}", "[3]", '["a.weights.h5", null]', '{"a.weights.h5": 1}', "1.5", "true"]


@pytest.mark.parametrize("text", [*INDEXES, *(f'{{"weight_map": {{"/layers/dense/vars": {f}}}}}' for f in FILES_OF)])
def test_indexes_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.weights.json").write_text(text)
    says = "the entry /layers/dense/vars names no files" if "layers" in text else "JSON|weight_map"
    with pytest.raises(CorruptCheckpoint, match=says):
        open_checkpoint(str(tmp_path / "a.weights.json"), format="keras3")


def test_names_that_are_no_object_path_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match=r"(?s)dense/kernel.*other/bias"):
        ckptconv.save({"dense/kernel": np.ones(1), "other/bias": np.ones(1)}, tmp_path / "a.weights.h5")


def test_dtypes_that_keras_cannot_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match="float8"):
        ckptconv.save({"vars/0": np.ones(1).astype(ml_dtypes.float8_e5m2)}, tmp_path / "a.weights.h5")


# --- names -----------------------------------------------------------------------------------------------------


CASES = [
    ("reversible_embedding", [(5, 4), (4, 5)], "float32 float32", ["embeddings", "reverse_embeddings"]),
    # quantised by groups, by GPTQ or AWQ, of unusual dtypes
    ("dense", [(2, 3), (3,)], "uint8 bfloat16", ["var_0", "var_1"]),
    ("dense", [(4, 2), (1, 4), (1, 4), (8,)], "int8 float32 int8 float32", ["var_0", "var_1", "var_2", "var_3"]),
    ("layer_normalization", [(3,)], "float32", ["var_0"]),
    ("batch_normalization", [(3,)] * 2, "float32 float32", ["moving_mean", "moving_variance"]),
    ("batch_normalization", [(3,)] * 3, "float32 float32 float32", ["var_0", "moving_mean", "moving_variance"]),
    ("", [(2, 3), (4,)], "float32 float32", ["var_0", "var_1"]),
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


@pytest.mark.parametrize(("kind", "shapes", "dtypes", "names"), CASES)
def test_variable_names(kind: str, shapes: list[tuple[int, ...]], dtypes: str, names: list[str]) -> None:
    assert naming.variables(kind, shapes, dtypes.split(), {})[0] == names


@pytest.mark.parametrize("file", ["net.keras", "net.weights.h5"])
def test_classes_come_from_the_config_or_from_default_names(file: str) -> None:
    kinds = Counter(ckptconv.open(FIXTURES / "keras" / file).details["kinds"].values())
    rest = {"batch_normalization": 3, "einsum_dense": 8, "layer_normalization": 2, "lstm_cell": 6}
    assert kinds == Counter(rest | {"dense": 7})


RECORD = {
    "ckptconv.keras": '{"layers": [["d", ["d/kernel:0"]]]}'
}  # of the order, without which no legacy file is written


@pytest.mark.parametrize("to", ["keras", "hdf5"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_metadata_of_mere_weights_does_not_become_a_model(suffix: str, to: str, tmp_path: Path) -> None:
    """Keras builds what model_config describes when it loads the file, with the code in it; weights hold no code."""
    config = {"model_config": '{"class_name": "Sequential"}', "training_config": "{}", "author": "A", **RECORD}
    ckptconv.save({"d/kernel": np.ones((2, 3))}, tmp_path / f"a{suffix}", metadata=config)
    done = ckptconv.convert(tmp_path / f"a{suffix}", tmp_path / "b.h5", to=to)
    with h5py.File(tmp_path / "b.h5") as f:
        assert not {"model_config", "training_config", "model_weights"} & {*f.attrs, *f}
        assert f.attrs["author"] in ("A", b"A")
    assert [n.names for n in done.notes if n.kind == "dropped"] == [("model_config", "training_config")]
    ckptconv.save({"e/kernel": np.ones(2)}, tmp_path / "e.h5", to="hdf5")
    ckptconv.convert([tmp_path / "e.h5", tmp_path / f"a{suffix}"], tmp_path / "m.h5", to="hdf5")
    assert "model_config" not in ckptconv.open(tmp_path / "m.h5").metadata
    ckptconv.convert(GOLDEN / "full_tf_keras.h5", tmp_path / "c.h5")
    assert "model_config" in ckptconv.open(tmp_path / "c.h5").metadata


@pytest.mark.parametrize("key", ["layer_names", "layer_names0", "weight_names"])
@pytest.mark.parametrize(("name", "to"), [("d/kernel", "hdf5"), ("d/kernel", "keras"), ("layers/d/vars/0", "keras3")])
def test_metadata_does_not_make_another_file(key: str, name: str, to: str, tmp_path: Path) -> None:
    """Detection looks at the lists of layers, which a foreign file's metadata must not become."""
    metadata = {key: "d", f"my_{key}": "A", **RECORD}
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
    assert any(n.text == "attributes of groups and datasets" for n in done.notes if n.kind == "skipped")
    got = ckptconv.open(tmp_path / "b.h5")
    assert (got.format, list(got)) == ("hdf5", list(ckptconv.open(GOLDEN / file, from_="hdf5")))


# --- what keras-torch refuses, and files that need more than names ------------------------------------------------

CUDNN = {"kernel": (3, 16), "recurrent_kernel": (4, 16), "bias": (32,)}
REFUSED = [
    ({"lstm": {f"lstm/{n}:0": np.ones(s) for n, s in CUDNN.items()}}, "CuDNNLSTM or CuDNNGRU"),
    (
        {"x": {"x/kernel:0": np.ones((3, 12)), "x/recurrent_kernel:0": np.ones((4, 12)), "x/bias:0": np.ones(24)}},
        "CuDNN",
    ),
    ({"c": {"c_W": np.ones((3, 3, 3, 3)), "c_b": np.ones(3)}}, "h w i o .dim_ordering tf. or o i h w"),
    ({"deconvolution2d_1": {"deconvolution2d_1_W": np.ones((3, 3, 2, 4))}}, "a layer of Keras 1"),
    ({"words": {"words_W": np.ones((5, 3))}}, "Embedding or of a Dense without bias"),
    ({"q": {"q/kernel:0": np.ones((3, 4), "i1"), "q/bias:0": np.ones(4)}}, "quantised by Keras"),
]


@pytest.mark.parametrize(("layers", "says"), REFUSED, ids=[s[:8] + str(i) for i, (_, s) in enumerate(REFUSED)])
def test_layers_that_keras_torch_refuses(layers: dict, says: str, tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", layers)
    with pytest.raises(
        ckptconv.ConversionError, match=rf"(?s)^(?!.*tf-torch).*{says}"
    ):  # which takes integers as they are
        ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.npz", converter="keras-torch")


def test_a_variable_of_a_layer_of_ones_own_is_no_name_of_keras_1(tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", {"att": {"att/att_W:0": np.ones((3, 4))}})
    with pytest.raises(ckptconv.ConversionError, match=r"^(?!(?s:.*)Keras 1)"):
        ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.npz", converter="keras-torch")


@pytest.mark.parametrize("average", ["Adam/average/a/kernel:0", "adam/a_kernel_average"])
def test_averages_of_an_optimizer(average: str, tmp_path: Path) -> None:
    legacy(tmp_path / "a.h5", {"a": {"a/kernel:0": np.zeros(3)}})
    names = {"iteration:0": np.int64(3), average: np.full(3, 5.0), "Adam/m/a/kernel:0": np.ones(3)}
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f.create_group("optimizer_weights").attrs["weight_names"] = [n.encode() for n in names]
        for name, value in names.items():
            f["optimizer_weights"][name] = value
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.npz", ema=True, weights_only=True)
    got = ckptconv.open(tmp_path / "b.npz")
    assert list(got) == ["a/kernel"]
    assert got["a/kernel"].numpy().tolist() == [5, 5, 5]
    with pytest.raises(UsageError, match="finalize_variable_values"):  # their numbers tell nothing
        ckptconv.convert(GOLDEN / "net.keras", tmp_path / "c.npz", ema=True)


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_flipped_byte_within_an_archive_is_found(at: float, tmp_path: Path) -> None:
    """The zip holds the sum of the HDF5 file in it, which has none itself."""
    raw = bytearray((FIXTURES / "keras" / "net.keras").read_bytes())
    with zipfile.ZipFile(FIXTURES / "keras" / "net.keras") as z:
        info = z.getinfo("model.weights.h5")
    raw[info.header_offset + 200 + int(at * (info.file_size - 300))] ^= 4
    (tmp_path / "net.keras").write_bytes(raw)
    with pytest.raises(ckptconv.CorruptCheckpoint, match="CRC-32"):
        ckptconv.open(tmp_path / "net.keras")
