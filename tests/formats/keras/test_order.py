"""Keras loads legacy files by position: the order of layers and weights, through formats that have no place for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import FIXTURES, legacy
from safetensors.numpy import save_file

import ckptconv
from ckptconv.errors import Unrepresentable, UsageError, VerifyError
from ckptconv.formats import npz
from ckptconv.formats.keras import order

GOLDEN = FIXTURES / "keras"
VIA = {
    "x.safetensors": "", "x.npz": "", "x.pt": "", "x.ckpt": "", "x.hdf5": "hdf5", "folder": "hf", "arrays": "npy",
}  # fmt: skip

NOTHING = "by position, and nothing records the order"
Layers = dict[str, dict[str, tuple[int, ...]]]


def written(path: Path, layers: Layers) -> dict[str, list[str]]:
    """A file as Keras writes it, every weight with values of its own."""
    rng = np.random.default_rng(0)
    drawn = {n: {w: rng.normal(size=shape).astype("f4") for w, shape in own.items()} for n, own in layers.items()}
    legacy(path, drawn)
    return {layer: list(weights) for layer, weights in layers.items()}


def lists(path: Path) -> dict[str, list[str]]:
    """The layers of a legacy file that have weights, and their weights, as Keras reads them."""
    with h5py.File(path) as f:
        f = f.get("model_weights", f)
        names = [n if isinstance(n, str) else n.decode() for n in f.attrs["layer_names"]]
        found = {n: [w.decode() if isinstance(w, bytes) else str(w) for w in f[n].attrs["weight_names"]] for n in names}
    return {n: w for n, w in found.items() if w}


def through(source: Path, via: str, folder: Path) -> Path:
    middle = folder / via
    ckptconv.convert(source, middle, to=VIA.get(via) or None)
    ckptconv.convert(middle, folder / "back.h5")
    return folder / "back.h5"


BN = {"gamma:0": (4,), "beta:0": (4,), "moving_mean:0": (4,), "moving_variance:0": (4,)}
CONV_BN: Layers = {
    "conv2": {"conv2/kernel:0": (4, 4)},
    "bn2": {f"bn2/{n}": s for n, s in BN.items()},
    "conv10": {"conv10/kernel:0": (4, 4)},
    "bn10": {f"bn10/{n}": s for n, s in BN.items()},
}
NESTED: Layers = {
    "z": {"dense/kernel:0": (4, 4), "dense/bias:0": (4,)},
    "a": {"dense_1/kernel:0": (4, 4), "dense_1/bias:0": (4,), "own": (4,)},
    "top_level_model_weights": {"scale:0": (4,)},
}


@pytest.mark.many
@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("layers", [CONV_BN, NESTED], ids=["conv_bn", "nested"])
def test_lists_survive_every_format(layers: Layers, via: str, tmp_path: Path) -> None:
    """Also those that sort names or keep no metadata; and `.h5` means a file for Keras."""
    wanted = written(tmp_path / "a.h5", layers)
    assert lists(through(tmp_path / "a.h5", via, tmp_path)) == {
        k: v for k, v in wanted.items() if k != "top_level_model_weights"
    }
    with h5py.File(tmp_path / "back.h5") as f:
        top = f["top_level_model_weights"].attrs["weight_names"]
        assert [w.decode() for w in top] == list(layers.get("top_level_model_weights", {}))


def test_optimizer_and_selection_do_not_lose_the_order(tmp_path: Path) -> None:
    wanted = lists(GOLDEN / "full_tf_keras.h5")
    assert lists(through(GOLDEN / "full_tf_keras.h5", "x.npz", tmp_path)) == wanted
    written(tmp_path / "a.h5", CONV_BN)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.safetensors", exclude=["conv2/*", "*/moving*"])
    ckptconv.convert(tmp_path / "b.safetensors", tmp_path / "b.h5")
    assert lists(tmp_path / "b.h5") == {
        "bn2": ["bn2/gamma:0", "bn2/beta:0"], "conv10": ["conv10/kernel:0"], "bn10": ["bn10/gamma:0", "bn10/beta:0"],
    }  # fmt: skip


SWAP = ("a/=b/", "b/=a/")
SWAPPING = """[[rule]]
from = "{l}/kernel"
to = "{l}/kernel"
where = { l = { a = "b", b = "a" } }
[[rule]]
from = "{x...}"
to = "{x...}"
"""


@pytest.mark.parametrize(
    ("within", "change"),
    [
        ("", {"rename": SWAP}),
        ("m/", {"rename": SWAP, "rename_regex": "^out=head"}),
        ("", {"converter": "swap.toml", "rename": SWAP}),
        ("m/", {"scope": "s", "rename": ["s/a/=s/b/", "s/b/=s/a/"]}),
    ],
    ids=str,
)
def test_weights_keep_their_places_through_several_steps(
    within: str, change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that two weights exchange are those of other weights before: each step builds on the ones before it."""
    monkeypatch.chdir(tmp_path)
    Path("swap.toml").write_text(SWAPPING)
    names = {f"{within}{n}/kernel": i for i, n in enumerate(("a", "b", "out"))}
    ckptconv.save({n: np.full((2, 2), i, "f4") for n, i in names.items()}, "m.h5", to="keras")
    for how in [{"strip_prefix": within}, {"at": within}] if within else [{}]:
        ckptconv.convert("m.h5", "o.h5", to="keras", force=True, **change, **how)
        got = ckptconv.open("o.h5")
        places = [got[w.removesuffix(":0")].numpy()[0, 0] for ws in lists(Path("o.h5")).values() for w in ws]
        assert places == [0, 1, 2]
        assert ckptconv.verify("m.h5", "o.h5", **change, **how).tensors == 3


@pytest.mark.parametrize("suffix", ["", ":0"])
def test_a_name_that_ends_as_lists_of_weights_do_keeps_its_end(suffix: str, tmp_path: Path) -> None:
    """Also where it is new: a reader takes one ":0" off, and it was the name's own."""
    names = [f"{n}{suffix}" for n in ("dense/kernel", "dense/bias", "optimizer_weights/adam/m")]
    ckptconv.save({n: np.full(3, i, "f4") for i, n in enumerate(names)}, tmp_path / "a.h5", to="keras")
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.h5", to="keras", rename="dense/=d2/")
    got = {n: t.numpy()[0] for n, t in ckptconv.open(tmp_path / "b.h5").items()}
    assert got == {n.replace("dense", "d2"): i for i, n in enumerate(names)}


def test_flax_has_no_place_for_the_order_and_says_so(tmp_path: Path) -> None:
    written(tmp_path / "a.h5", CONV_BN)
    done = ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.msgpack")
    assert [str(n) for n in done.notes] == ["lossy: Flax has no place for metadata: it lacks the order of Keras layers"]
    assert done.notes == ckptconv.dry_run(tmp_path / "a.h5", tmp_path / "c.msgpack").notes
    with pytest.raises(Unrepresentable, match=NOTHING):
        ckptconv.convert(tmp_path / "b.msgpack", tmp_path / "b.h5", to="keras")
    with pytest.raises(Unrepresentable, match="finds weights by object paths"):
        ckptconv.convert(tmp_path / "b.msgpack", tmp_path / "b.weights.h5")


@pytest.mark.parametrize(("longest", "kept"), [(100, True), (10, False)])
def test_an_order_too_long_for_npz_is_said_to_be_lost(
    longest: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra field of the first member, and of the next ones where it is long."""
    monkeypatch.setattr(npz, "LONGEST", longest)
    wanted = written(tmp_path / "a.h5", CONV_BN)
    done = ckptconv.convert(tmp_path / "a.h5", tmp_path / "b.npz")
    said = ["npz has no place for metadata: it lacks the order of Keras layers"]
    assert [n.text for n in done.notes] == ([] if kept else said)
    assert set(np.load(tmp_path / "b.npz").files) == {n.removesuffix(":0") for w in wanted.values() for n in w}
    if kept:
        assert lists(through(tmp_path / "b.npz", "c.pt", tmp_path)) == wanted


def foreign(tensors: dict[str, np.ndarray], path: Path, text: str) -> None:
    """A file of another program that has an entry of our name."""
    save_file(tensors, path, {order.KEY: text})


def test_metadata_of_other_names_is_not_followed(tmp_path: Path) -> None:
    text = order.fit_to_target(ckptconv.open(GOLDEN / "full_tf_keras.h5"), "npz").metadata[order.KEY]
    foreign({"x/kernel": np.ones((2, 3))}, tmp_path / "a.safetensors", text)
    done = ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.pt")
    assert [n.text for n in done.notes] == ["the order of Keras layers, in the metadata, because it is of other names"]
    with pytest.raises(Unrepresentable, match=NOTHING):
        ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.h5", to="keras")


JUNK = ["", "{", "[]", "3", '{"layers": 3}', '{"layers": [["a"]]}', '{"layers": [["a", [["x/kernel"]]]]}',
        '{"paths": []}', "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", JUNK, ids=range(len(JUNK)))
def test_metadata_by_others_may_be_anything(text: str, tmp_path: Path) -> None:
    foreign({"x/kernel": np.ones((2, 3))}, tmp_path / "a.safetensors", text)
    with pytest.raises(Unrepresentable, match=NOTHING):
        ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.h5", to="keras")
    ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.npz")


@pytest.mark.parametrize("weights", [["same", "same"], ["a//b", "c"], ["../x", "y"], ["", "y"], ["a", "a/b"]])
def test_metadata_may_not_lose_a_weight(weights: list[str], tmp_path: Path) -> None:
    text = json.dumps({"layers": [["l", [["x/kernel", weights[0]], ["x/bias", weights[1]]]]]})
    tensors = {"x/kernel": np.ones((2, 3)), "x/bias": np.ones(3)}
    foreign(tensors, tmp_path / "a.safetensors", text)
    try:
        ckptconv.convert(tmp_path / "a.safetensors", tmp_path / "b.h5", to="keras")
    except ckptconv.CkptError:
        return
    assert set(ckptconv.open(tmp_path / "b.h5")) == set(tensors)


def test_a_long_order_survives(tmp_path: Path) -> None:
    """An attribute of HDF5 that is longer than an object header holds."""
    names = [f"{'a_long_name_' * 60}{i}/kernel" for i in range(100, 0, -1)]
    ckptconv.save({n: np.ones((1, 1)) for n in names}, tmp_path / "a.h5", to="keras")
    for via in ("x.hdf5", "x.npz"):
        back = ckptconv.open(through(tmp_path / "a.h5", via, tmp_path))
        assert back.details["layers"] == ckptconv.open(tmp_path / "a.h5").details["layers"]
        (tmp_path / "back.h5").unlink()


# --- what is recorded, and what is not ----------------------------------------------------------------------------


def sorted_file(shapes: dict[str, tuple[int, ...]], path: Path) -> Path:
    """What others write: names in the order of the alphabet, nothing about layers."""
    ckptconv.save({n: np.ones(s, "f4") for n, s in shapes.items()}, path)
    return path


@pytest.mark.parametrize("file", ["a.safetensors", "a.npz", "a.pt", "a.msgpack"])
def test_without_a_record_no_legacy_file_is_written(file: str, tmp_path: Path) -> None:
    """Nor is the order guessed from names: what is exchanged would load without an error."""
    source = sorted_file({"d/bias": (4,), "d/kernel": (3, 4)}, tmp_path / file)
    for name in ("b.h5", "tf_model.h5"):
        with pytest.raises(Unrepresentable, match=NOTHING):
            ckptconv.convert(source, tmp_path / name, to="keras")
    with pytest.raises(Unrepresentable, match=NOTHING):
        ckptconv.convert(GOLDEN / "net.weights.h5", tmp_path / "b.h5", to="keras", weights_only=True)
    ckptconv.save({"d/kernel": np.ones((3, 4)), "d/bias": np.ones(4)}, tmp_path / "b.h5", to="keras")
    assert lists(tmp_path / "b.h5") == {"d": ["d/kernel:0", "d/bias:0"]}


def test_h5_of_weights_that_look_like_keras_is_asked_for(tmp_path: Path) -> None:
    source = sorted_file({"conv/kernel": (3, 4), "conv/bias": (4,), "bn/gamma": (4,)}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="could be plain HDF5, or for Keras"):
        ckptconv.convert(source, tmp_path / "b.h5")
    ckptconv.convert(source, tmp_path / "b.h5", to="hdf5")
    assert ckptconv.open(tmp_path / "b.h5").format == "hdf5"
    ckptconv.convert(sorted_file({"layer.0.weight": (3,)}, tmp_path / "c.safetensors"), tmp_path / "c.h5")
    assert ckptconv.open(tmp_path / "c.h5").format == "hdf5"


def test_h5_of_keras_3_is_refused_if_a_layer_has_several_objects_with_weights(tmp_path: Path) -> None:
    """Nothing says which are trained, in the model within or the Bidirectional of this file."""
    with pytest.raises(Unrepresentable, match=NOTHING):
        ckptconv.convert(GOLDEN / "net.keras", tmp_path / "a.h5", weights_only=True)


@pytest.mark.many
@pytest.mark.parametrize("via", VIA)
def test_paths_of_keras_3_survive_other_formats(via: str, tmp_path: Path) -> None:
    wide = {"to": VIA[via] or None, "dtype": "float32"}  # NumPy has no bfloat16
    ckptconv.convert(GOLDEN / "net.keras", tmp_path / via, **wide)
    ckptconv.convert(tmp_path / via, tmp_path / "b.weights.h5")
    was, now = ckptconv.open(GOLDEN / "net.keras"), ckptconv.open(tmp_path / "b.weights.h5")
    assert now.details["paths"] == was.details["paths"]
    ckptconv.verify(GOLDEN / "net.keras", tmp_path / "b.weights.h5", dtype="float32")


# --- verify -----------------------------------------------------------------------------------------------------


def test_verify_finds_weights_out_of_place(tmp_path: Path) -> None:
    """All names are right, and Keras would exchange gamma and beta, or layers."""
    written(tmp_path / "a.h5", CONV_BN)
    ckptconv.convert(tmp_path / "a.h5", tmp_path / "a.npz")
    ckptconv.verify(tmp_path / "a.npz", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f["bn2"].attrs["weight_names"] = f["bn2"].attrs["weight_names"][[1, 0, 2, 3]]
    with pytest.raises(VerifyError, match=r"(?s)by position.*bn2 lists bn2/beta, bn2/gamma"):
        ckptconv.verify(tmp_path / "a.npz", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f.attrs["layer_names"] = f.attrs["layer_names"][[2, 1, 0, 3]]
    with pytest.raises(VerifyError, match=r"(?s)conv10 lists conv10/kernel, where Keras takes conv2/kernel"):
        ckptconv.verify(tmp_path / "a.npz", tmp_path / "a.h5")


def test_an_object_graph_records_no_order(tmp_path: Path) -> None:
    with pytest.raises(Unrepresentable, match=f"{NOTHING}.*a TensorFlow checkpoint never does"):
        ckptconv.convert(FIXTURES / "tf" / "keras3", tmp_path / "x.h5", to="keras", weights_only=True)
