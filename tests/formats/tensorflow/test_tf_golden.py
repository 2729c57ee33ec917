"""Files that TensorFlow wrote (fixtures/make/by_tensorflow.py) and what it says they hold; no framework is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from kit import FIXTURES, Run, same

import ckptconv
from ckptconv.errors import AmbiguousFormat, CkptError, StorageError
from ckptconv.formats.tensorflow import messages_pb2 as pb

TF = FIXTURES / "tf"


def bits(t) -> np.ndarray:
    """A tensor with the bits of types that NumPy lacks as unsigned integers, as the .npz has them."""
    array = t.numpy()
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("dtypes", "tf", set()),
        ("sliced", "tf", set()),  # float16, uint16 and uint32: TensorFlow itself cannot put these together
        ("sharded", "tf", set()),
        ("v1", "tf-v1", set()),
        ("v1s", "tf-v1", {"x0", "x1", "x2"}),
        ("v1s-00001-of-00003", "tf-v1", {"x0", "x1", "x2"}),
        ("frozen.pb", "tf-graph", {"Fill/value", "dims", "epsilon", "perm", "shape"}),
    ],
)
def test_every_tensor_equals_what_tensorflow_restores(name, kind, more):
    found = ckptconv.open(TF / name, opaque=kind == "tf-graph")  # all constants, also those that are no weights
    want = np.load(TF / f"{name.split('.')[0].split('-')[0]}.npz")
    assert found.format == kind
    assert set(found) == set(want) | more
    for key in want:
        if "int4/" in key:  # which the archive has as bytes
            assert found[key].dtype.name == key.split("/")[0]
            assert found[key].numpy().astype("i1").tolist() == want[key].astype("i1").tolist()
            continue
        assert same(bits(found[key]), want[key]), key


def test_strings():
    found = ckptconv.open(TF / "strings")
    want = json.loads((TF / "strings.json").read_text())
    assert {k: [w.hex() for w in t.numpy().ravel()] for k, t in found.items()} == want
    assert {k: t.shape for k, t in found.items()} == {"one": (), "four": (2, 2), "none": (0,)}


def test_objects_lose_their_escapes():
    found = ckptconv.open(TF / "objects-1")
    assert {k: t.role for k, t in found.items()} == {
        "model/d/.S": "",
        "model/d/a/b": "",
        "model/w": "",
        "model/w/.OPTIMIZER_SLOT/optimizer/momentum": "slot",
        "optimizer/decay": "state",
        "optimizer/iter": "step",
        "optimizer/learning_rate": "state",
        "optimizer/momentum": "state",
        "save_counter": "step",
    }
    assert found["model/d/.S"].numpy() == 2.0
    assert found.notes == ()


def test_weights_that_only_the_optimizer_names_are_weights():
    """Keras 3 stores a model's trained weights under the optimizer, the shortest path to them."""
    roles = {k: t.role for k, t in ckptconv.open(TF / "keras3").items()}
    assert {k for k, role in roles.items() if not role} == {
        "model/_functional/_operations/2/moving_mean",
        "model/_functional/_operations/2/moving_variance",
        *(f"optimizer/_trainable_variables/{i}" for i in range(4)),
    }
    assert roles["optimizer/_iterations"] == "step"
    assert roles["optimizer/_learning_rate"] == "state"
    assert sum(role == "slot" for role in roles.values()) == 8  # two moments of each weight


def test_a_frozen_graph_that_was_cut_between_two_nodes_is_told(tmp_path):
    """It has no checksum and parses; but TensorFlow writes its version after the nodes."""
    whole = (TF / "frozen.pb").read_bytes()
    nodes = pb.GraphDef.FromString(whole).node
    for many in (1, len(nodes) // 2, len(nodes)):
        (tmp_path / "cut.pb").write_bytes(whole[: pb.GraphDef(node=nodes[:many]).ByteSize()])
        assert any("is truncated" in note.text for note in ckptconv.open(tmp_path / "cut.pb").notes)
    assert not any("is truncated" in note.text for note in ckptconv.open(TF / "frozen.pb").notes)


def test_a_frozen_graph_tells_weights_from_shapes():
    found = ckptconv.open(TF / "frozen.pb")
    assert {"shape", "perm", "epsilon", "dims"} <= {n for note in found.notes for n in note.names}
    every = ckptconv.open(TF / "frozen.pb", opaque=True)
    assert every["perm"].numpy().tolist() == [2, 0, 1]
    assert every["epsilon"].shape == ()


def test_the_meta_file_opens_its_checkpoint():
    found = ckptconv.open(TF / "tf1" / "model-1.meta")
    assert found.format == "tf"
    assert found["split"].shape == (5, 2)
    assert len(found["split"].parts) == 2


# --- which file is meant ----------------------------------------------------------------------------------------


def copied(pattern: str, to: Path) -> Path:
    """The files of a checkpoint in a folder; those of `sliced` without a base name if the folder is called so."""
    to.mkdir(exist_ok=True)
    for file in TF.glob(pattern):
        shutil.copy(file, to / (file.name.removeprefix("sliced") if to.name == "nameless" else file.name))
    return to


SLICED = {"float16", "float32", "uint16", "uint32"}


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (None, 2),
        ("/home/someone/else/run/model-1", 10),
        (r"C:\\runs\\model-1", 10),
        ("./model-1", 10),
        ("model-1", 10),
    ],
)
def test_what_a_state_file_names_lies_beside_it(path, count, tmp_path):
    folder = copied("tf1/*", tmp_path / "run")
    if path:
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n')
    for url in (folder, folder / "checkpoint"):
        found = ckptconv.open(url)
        assert len(found) == count
        assert "of model-" in found.notes[0].text


@pytest.mark.parametrize("name", ["", "/", "/.index", "/.data-00000-of-00001", "/checkpoint"])
def test_an_empty_base_name(tmp_path, name):
    """As in the package musicnn."""
    folder = copied("sliced.*", tmp_path / "nameless")
    (folder / "checkpoint").write_text('model_checkpoint_path: "/home/j/experiments/15542_17/"\n')
    found = ckptconv.open(f"{folder}{name}")
    assert (set(found), found.notes) == (SLICED, ())


def test_a_prefix_that_is_also_a_folder(tmp_path):
    (copied("sliced.*", tmp_path) / "sliced").mkdir()
    assert set(ckptconv.open(tmp_path / "sliced")) == SLICED


def test_a_state_file_that_names_an_absent_step_lists_those_there_are(tmp_path):
    folder = copied("tf1/*", tmp_path / "run")
    (folder / "checkpoint").write_text('model_checkpoint_path: "model-9"\nall_model_checkpoint_paths: "model-1"\n')
    with pytest.raises(StorageError, match=r"(?s)model-9.*model-1.*model-2"):
        ckptconv.open(folder)
    for file in folder.glob("model-2*"):
        file.unlink()
    found = ckptconv.open(folder)
    assert (len(found), [n.kind for n in found.notes]) == (10, ["assumed"])


@pytest.mark.parametrize("path", ["../model-1", "link/model-1", ".."])
def test_a_state_file_may_not_lead_out_of_its_folder(path, tmp_path):
    folder = copied("tf1/*", tmp_path / "run")
    (folder / "sub").mkdir()
    (folder / "sub" / "link").symlink_to(folder)
    (folder / "sub" / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n')
    with pytest.raises(CkptError, match=r"has no \.index here \(a V1 checkpoint is given by its name"):
        ckptconv.open(folder / "sub")


def test_a_folder_of_several_without_a_state_file(tmp_path):
    folder = copied("tf1/model*", tmp_path / "run")
    with pytest.raises(AmbiguousFormat, match=r"(?s)model-1\n.*model-2"):
        ckptconv.open(folder)


# --- what is broken ---------------------------------------------------------------------------------------------


SHARD = "sharded.data-0000{}-of-00002"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"  # longer than the shard was


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (SHARD.format(1), None, r"(?s)keep_going=True goes on.*the shard sharded.data-00001-of-00002 is missing"),
        (SHARD.format(1), b"", "has 27 bytes, 28 are needed"),
        (SHARD.format(0), POINTER, "git lfs pull"),
        ("sharded.index", None, r"sharded.index|sharded.data"),
    ],
)
def test_what_is_missing_or_cut(file, content, words, tmp_path):
    path = copied("sharded.*", tmp_path) / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content or path.read_bytes()[:-1])
    for name in ("sharded", SHARD.format(0)):
        with pytest.raises(CkptError, match=words):
            ckptconv.open(tmp_path / name)


def test_a_missing_file_of_a_v1_checkpoint(tmp_path):
    copied("v1s-0000[02]*", tmp_path)
    with pytest.raises(StorageError, match="v1s-00001-of-00003"):
        ckptconv.open(tmp_path / "v1s")


@pytest.mark.parametrize("at", [5, 40, 100, 140])
def test_a_flipped_byte_of_a_v1_checkpoint(tmp_path, at):
    data = bytearray((TF / "v1s-00000-of-00003").read_bytes())
    data[at] ^= 1
    (tmp_path / "v1").write_bytes(bytes(data))
    with pytest.raises(CkptError, match="damaged"):
        ckptconv.open(tmp_path / "v1")["w"].numpy()


# --- elsewhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "/sharded", "/sharded.index", "/sharded.data-00001-of-00002"])
def test_a_remote_bundle(name):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for file in TF.glob("sharded.*"):
        if file.suffix != ".npz":
            memory.pipe(f"/bundle/{file.name}", file.read_bytes())
    want = np.load(TF / "sharded.npz")
    found = ckptconv.open(f"memory://bundle{name}")
    assert set(found) == set(want)
    assert all(same(found[k].numpy(), want[k]) for k in want)


def test_a_damaged_object_graph_is_named_as_damage(cli: Run, tmp_path: Path) -> None:
    """Names stay those of its keys, without roles; on the way to TensorFlow, too."""
    for name in ("keras3.index", "keras3.data-00000-of-00001"):
        shutil.copy(TF / name, tmp_path)
    data = tmp_path / "keras3.data-00000-of-00001"
    raw = data.read_bytes()
    data.write_bytes(raw.replace(b"_iterations", b"-iterations", 1))
    good = ckptconv.open(TF / "keras3.index")
    with pytest.raises(ckptconv.CorruptCheckpoint):
        ckptconv.open(tmp_path / "keras3.index")
    got = ckptconv.open(tmp_path / "keras3.index", keep_going=True)
    damage = [n for n in got.notes if n.kind == "damaged"]
    assert [n.names for n in damage] == [("_CHECKPOINTABLE_OBJECT_GRAPH",)]
    assert "which tensors are the optimizer's is not known" in damage[0].text
    assert set(got) == set(good)
    for target in ("x.npz", "x.ckpt"):
        assert cli("keras3.index", "-o", target, "--keep-going").returncode == 1
        assert set(ckptconv.open(tmp_path / target)) == set(good)
