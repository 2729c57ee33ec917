"""Python at first touch: what shows itself, is sliced, saved, and what is said when it is wrong."""

from __future__ import annotations

import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import SUBJECTS

import ckptconv


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = {f"layer_{i}/kernel": np.arange(12, dtype="f4").reshape(3, 4) + i for i in range(30)}
    ckptconv.save(values, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


# --- what shows itself ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_line_and_a_short_table(path: Path) -> None:
    c = ckptconv.open(path)
    assert repr(c) == f"<Checkpoint safetensors '{path}': 30 tensors, 1.4 kB>"
    lines = str(c).splitlines()
    assert len(lines) == 23
    assert lines[1:3] == ["name             dtype    shape  size", "layer_0/kernel   float32  3x4    48 B"]
    assert lines[-1] == "... and 10 more"
    assert repr(c["layer_3/kernel"]) == "<Tensor 'layer_3/kernel': float32 3x4, 48 B>"


def test_a_notebook_shows_a_table_and_no_markup_of_strangers(tmp_path: Path) -> None:
    ckptconv.save({"<script>\x1b[2J": np.ones(2), "x" * 60_000: np.ones(1)}, tmp_path / "m.npz")
    html = ckptconv.open(tmp_path / "m.npz")._repr_html_()
    assert "&lt;script&gt;\\x1b[2J" in html
    assert len(html) < 2000


def test_results_print_as_the_command_line_does(path: Path, tmp_path: Path) -> None:
    done = ckptconv.convert(path, tmp_path / "n.npz", dtype="float16", include="layer_0*")
    assert str(done).splitlines()[-1].startswith("1 tensor (1 cast from float32 to float16), 24 B in ")
    assert repr(done).startswith("<Report: 1 tensor (1 cast from float32 to float16), 24 B in ")


def test_with_and_a_near_name(path: Path) -> None:
    with ckptconv.open(path) as c:
        assert "layer_3/kernal" not in c
        assert c.get("layer_3/kernal") is None
        with pytest.raises(KeyError, match="no tensor is called 'layer_3/kernal'; did you mean layer_3/kernel"):
            c["layer_3/kernal"]


def test_what_was_done_is_logged(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ckptconv"):
        ckptconv.convert(path, tmp_path / "n.npz")
        ckptconv.save({"a": np.full(3, 1e9, "f4")}, tmp_path / "h.npz", dtype="float16")
    assert "30 tensors, 1.4 kB in " in caplog.text
    assert "lossy: in 1 tensor, 3 values became infinite or NaN: a" in caplog.text


def test_progress_is_called_with_bytes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[int, int]] = []
    ckptconv.convert(path, tmp_path / "n.npz", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (1440, 1440)
    ckptconv.convert(path, tmp_path / "o.npz", progress=True)
    assert "1.4" in capsys.readouterr().err
    with pytest.raises(ckptconv.UsageError, match="progress= takes a function"):
        ckptconv.convert(path, tmp_path / "p.npz", progress="loud")


# --- slices -----------------------------------------------------------------------------------------------------------

INDICES: list[Any] = [
    0, -1, np.s_[0:2], np.s_[..., 1:3], np.s_[::2, -1], np.s_[::-1, 3:1:-1], np.s_[5:5], np.s_[2, 3, 4], np.s_[:, 1],
    [1, 2], np.s_[None, 0], np.s_[1:100:3, ..., ::-2], (), ..., np.s_[:, 2:3, 1:2],
]  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_a_slice_is_numpys(subject: Any, tmp_path: Path) -> None:
    values = np.arange(24 * 5 * 7, dtype="f4").reshape(24, 5, 7)
    name = subject.spell("a/b") if subject.spell else "a"
    ckptconv.save({name: values}, tmp_path / subject.file, to=subject.name)
    t = next(iter(ckptconv.open(tmp_path / subject.file, from_=subject.name).values()))
    for index in INDICES:
        np.testing.assert_array_equal(t[index], values[index], str(index))
    assert [row.shape for row in t] == [(5, 7)] * 24
    with pytest.raises(IndexError, match="index 24 is out of bounds for an axis of 24"):
        t[24]
    with pytest.raises(IndexError, match="too many indices"):
        t[0, 0, 0, 0]


def test_a_slice_reads_only_the_slice(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptconv.storage.files import Reader

    ckptconv.save({"w": np.arange(2**20, dtype="f4").reshape(1024, 1024)}, tmp_path / "big.safetensors")
    t = ckptconv.open(tmp_path / "big.safetensors")["w"]
    read, into = [], Reader.into
    monkeypatch.setattr(Reader, "into", lambda self, at, view: (read.append(len(view)), into(self, at, view))[1])
    assert t[1000, 5:7].tolist() == [1000 * 1024 + 5, 1000 * 1024 + 6]
    assert sum(read) < 10_000


# --- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool", "int64", "float16"])
def test_torch_tensors_of_any_dtype(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    t = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, kind))
    grad = torch.nn.Parameter(t) if t.is_floating_point() else t
    ckptconv.save({"whole": grad, "turned": t.T, "scalar": t[0, 1]}, tmp_path / "m.safetensors")
    got = ckptconv.open(tmp_path / "m.safetensors").torch()
    for name, want in (("whole", t), ("turned", t.T), ("scalar", t[0, 1])):
        assert got[name].dtype == want.dtype
        assert torch.equal(got[name].to(torch.complex64), want.to(torch.complex64))


def test_a_module_with_ties(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.ModuleDict({"a": torch.nn.Embedding(4, 3), "b": torch.nn.Linear(3, 4, bias=False)})
    module["b"].weight = module["a"].weight
    ckptconv.save(module, tmp_path / "m.pt")
    back = ckptconv.open(tmp_path / "m.pt")
    assert back.ties == (("a.weight", "b.weight"),)
    state = back.torch()
    assert state["a.weight"] is state["b.weight"]
    module.load_state_dict(state)


def test_what_is_read_otherwise_is_no_tie(tmp_path: Path) -> None:
    """Conjugated and negated views share all with what they are views of, but the values."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, 3 - 4j])
    views = {"x": x, "conj": x.conj(), "imag": x.imag, "conj.imag": x.conj().imag, "conj.conj": x.conj().conj()}
    for name in ("m.npz", "m.pt", "m.safetensors"):
        ckptconv.save(views, tmp_path / name, verify=True)
        back = ckptconv.open(tmp_path / name)
        assert {n: back[n].numpy().tolist() for n in views} == {n: v.tolist() for n, v in views.items()}, name
    assert ckptconv.open(tmp_path / "m.pt").ties == (("x", "conj.conj"),)


@pytest.mark.parametrize("name", ["m.safetensors", "m.npy", "m.npz", "m.hdf5", "m.pt", "m.msgpack"])
def test_what_was_replaced_since_it_was_opened_is_not_read(tmp_path: Path, name: str) -> None:
    """Neither by its arrays and slices nor by what is saved of it."""
    path = tmp_path / name
    ckptconv.save({"m": np.arange(6, dtype="f4")}, path)
    opened = ckptconv.open(path)
    assert opened["m"][2:4].tolist() == [2, 3]
    assert np.asarray(pickle.loads(pickle.dumps(opened["m"]))).tolist() == [0, 1, 2, 3, 4, 5]
    ckptconv.save({"m": np.arange(6, 12, dtype="f4")}, path, force=True)
    again = ckptconv.open(path)
    for read in (
        opened["m"].numpy,
        lambda: opened["m"][2:4],
        lambda: ckptconv.save(opened, tmp_path / "out.npz"),
        lambda: ckptconv.save({"was": opened["m"], "is": again["m"]}, tmp_path / "out.npz"),
    ):
        with pytest.raises(ckptconv.CorruptCheckpoint, match="changed since it was opened"):
            read()
    assert not (tmp_path / "out.npz").exists()
    with pytest.raises(ckptconv.StorageError, match="replace or remove its own source"):
        ckptconv.save({"is": again["m"]}, path, force=True)


def test_a_file_that_gets_a_link_or_other_permissions_is_still_read(path: Path, tmp_path: Path) -> None:
    opened = ckptconv.open(path)
    os.link(path, tmp_path / "second")
    path.chmod(0o640)
    assert opened["layer_0/kernel"][0, 0] == 0
    assert len(ckptconv.save(opened, tmp_path / "out.npz").files) == 1


def test_a_hash_is_of_the_tensor_that_was_opened(tmp_path: Path) -> None:
    """Not of what is made of it, such as the same elements in another shape."""
    ckptconv.save({"it": np.arange(8) % 2 == 0}, tmp_path / "m.hdf5")
    opened = ckptconv.open(tmp_path / "m.hdf5")["it"]
    assert replace(opened, shape=(2, 4)).numpy().tolist() == [[True, False] * 2] * 2
    ckptconv.save({"it": replace(opened, shape=(2, 4))}, tmp_path / "n.hdf5")


class Lent:
    """An array of a library that shares it by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_that_are_lent(tmp_path: Path) -> None:
    ckptconv.save({"x": Lent(np.arange(3.0))}, tmp_path / "m.npz")
    assert ckptconv.open(tmp_path / "m.npz")["x"][:].tolist() == [0, 1, 2]


def test_what_is_not_an_array_is_named_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ckptconv.UsageError) as e:
        ckptconv.save(
            {"w": np.ones(2), "opt": {1: np.ones(2)}, "none": None, "note": "x", "any": object()}, tmp_path / "m.pt"
        )
    assert str(e.value) == (
        "4 of 5 values are not arrays that a checkpoint can hold:\n"
        "  opt/1: a key is not a text\n  none: it is None\n"
        "  note: it is of type str\n  any: it is an array of Python objects; checkpoints hold numbers and bytes"
    )
    for name in ("m.npz", "m.hdf5", "m.h5", "m.ckpt", "m.pt"):
        with pytest.raises(
            ckptconv.UsageError, match=r"1 of 2 values (?s:.*)\n  x: a text in it holds half a surrogate"
        ):
            ckptconv.save({"x": np.array([b"\xff", "a", "\ud800"], object), "y": np.ones(2)}, tmp_path / name)
    inner: dict[str, Any] = {"w": np.ones(2)}
    inner["self"] = inner["again"] = inner
    for tensors, says in (
        (inner, "again: it is a mapping that holds itself"),
        ({"a": [np.ones(1)] * 2}, "a: it is a list of arrays"),
        ({"a": {"b": np.ones(1)}, "a/b": np.ones(2)}, "a/b: two values have this name"),
        (3, "a mapping of arrays or a module is needed, not int"),
        ({"w": np.ma.array([1.0, 2.0], mask=[0, 1]), "x": np.ma.array([1.0])}, "1 of 2 .*\n  w: it is a masked array"),
    ):
        with pytest.raises(ckptconv.UsageError, match=says):
            ckptconv.save(tensors, tmp_path / "m.pt")
    assert not (tmp_path / "m.pt").exists()


def test_metadata_is_text(tmp_path: Path) -> None:
    with pytest.raises(ckptconv.UsageError, match=r"metadata are str; not so:\n  'epoch' is int"):
        ckptconv.save({"w": np.ones(2)}, tmp_path / "m.npz", metadata={"epoch": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(("name", "options"), [
    ("m.hdf5", {}), ("m.h5", {"to": "keras"}), ("m.weights.h5", {}), ("m.safetensors", {}), ("m.msgpack", {}),
])  # fmt: skip
def test_what_a_format_cannot_hold_is_left_out_but_never_all_of_it(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """HDF5 would cut texts at a NUL, others have none; advice is of what `save` can do, or says that it cannot."""
    text, path = np.array([b"a\0b"], object), tmp_path / name
    given = {"d/vars/1": text, "d/vars/0": np.ones(2, "f4")}
    with pytest.raises(ckptconv.Unrepresentable, match="skip_unrepresentable=True leaves them out") as e:
        ckptconv.save(given, path, **options)
    assert "leaves them out:\n  d/vars/1: " in e.value.message
    done = ckptconv.save(given, path, skip_unrepresentable=True, **options)
    assert [n.names for n in done.notes if n.kind == "dropped"] == [("d/vars/1",)]
    assert list(ckptconv.open(path)) == ["d/vars/0"]
    with pytest.raises(ckptconv.Unrepresentable, match=r"cannot hold 1 of 1 tensor:\n  d/vars/1: "):
        ckptconv.save({"d/vars/1": text}, path, skip_unrepresentable=True, force=True, **options)


HOMELESS = ["m.npz", "m.npy", "m.ckpt", "m.msgpack", "folder"]


@pytest.mark.parametrize("name", [*HOMELESS, "m.pt", "m.safetensors", "m.hdf5", "m.orbax"])
def test_metadata_that_has_no_place_is_named(name: str, tmp_path: Path) -> None:
    """Saved, converted or planned; not that a file of safetensors is for PyTorch, and not our own where it has one."""
    given = {"step": "5", "run": "x"}
    ckptconv.save({"w": np.ones(2)}, tmp_path / "a.safetensors", metadata={**given, "format": "pt"})
    path, to = tmp_path / "b" / name, {"to": "npy"} if name == "folder" else {}
    done = ckptconv.save(
        {"w": np.ones(2)}, tmp_path / name, to=to.get("to"), metadata=given | {"ckptconv.params": "{}"}
    )
    plan = ckptconv.dry_run(tmp_path / "a.safetensors", path, **to)
    again = ckptconv.convert(tmp_path / "a.safetensors", path, **to)
    for notes in (done.notes, plan.notes, again.notes):
        said = [n.names for n in notes if n.kind == "lossy" and n.text.endswith("has no place for this metadata")]
        assert said == ([("step", "run")] if name in HOMELESS else [])
    assert (given.items() <= ckptconv.open(path).metadata.items()) is (name not in HOMELESS)


@pytest.mark.parametrize(("name", "options"), [
    ("b.pt", {}), ("b.pt", {"hash": True}), ("b.safetensors", {}), ("b.safetensors", {"hash": False}),
    ("b.orbax", {"hash": False}), ("b.safetensors", {"hash": False, "max_shard_size": 40}),
])  # fmt: skip
def test_hashes_in_given_metadata_are_of_another_file(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """As `safetensors` gives the metadata of a file: its hashes and the options of the run that made it."""
    ckptconv.save({"m": np.ones(4), "k": np.ones(3)}, tmp_path / "a.npz")
    ckptconv.convert(tmp_path / "a.npz", tmp_path / "a.safetensors", dtype="float32")
    opened = ckptconv.open(tmp_path / "a.safetensors")
    assert {"ckptconv.xxh3", "ckptconv.xxh3.0", "ckptconv.options"} <= opened.hashes.keys()
    made = {"m": np.zeros(4), "k": np.zeros(3)}
    done = ckptconv.save(made, tmp_path / name, metadata=opened.hashes | {"epoch": "3"}, **options)
    path = tmp_path / next((f for f in done.files if f.endswith("index.json")), name)
    assert ckptconv.verify(path).tensors == 2
    found = ckptconv.open(path)
    assert found.metadata["epoch"] == "3"
    assert "ckptconv.options" not in found.hashes
    assert bool(found.hashes) is options.get("hash", name == "b.safetensors")


# --- flat functions ---------------------------------------------------------------------------------------------------


def test_flat_functions_take_the_options_of_the_command_line(path: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.npz"
    ckptconv.convert(path, half, dtype="float16", include="layer_1*", verify=True, rename={"{x...}": "net/{x...}"})
    assert set(ckptconv.open(half)) == {f"net/layer_{i}/kernel" for i in (1, *range(10, 20))}
    assert ckptconv.inspect(half, include="*1/kernel", stats=True).extra["net/layer_1/kernel"]["max"] == 12
    assert ckptconv.diff(path, half, include="layer_1*", rename="{x...}=net/{x...}", rtol=1e-3).same
    assert ckptconv.verify(path, half, dtype="float16", include="layer_1*", rename="{x...}=net/{x...}").tensors == 11
    assert ckptconv.verify(path).hashed == 30
    found = ckptconv.match(path, path, tmp_path / "rules.toml")
    assert "30 tensors of the target found" in str(found)
    assert (tmp_path / "rules.toml").read_text() == found.rules
    done = ckptconv.zoo([path, half], tmp_path / "out", to="npy", pattern="half*")
    assert (done.done, len(done.failed)) == (1, 0)


def test_a_dtype_may_be_that_of_numpy_or_torch(path: Path, tmp_path: Path) -> None:
    for i, dtype in enumerate((np.float16, np.dtype("float16"), "float16", "half")):
        ckptconv.convert(path, tmp_path / f"{i}.npz", dtype=dtype)
        assert {t.dtype.name for t in ckptconv.open(tmp_path / f"{i}.npz").values()} == {"float16"}
    torch = pytest.importorskip("torch")
    ckptconv.convert(path, tmp_path / "t.safetensors", dtype=torch.bfloat16)
    assert ckptconv.open(tmp_path / "t.safetensors")["layer_1/kernel"].dtype.name == "bfloat16"


def test_what_is_not_a_path_is_a_usage_error(path: Path, tmp_path: Path) -> None:
    """A checkpoint that is open is a mapping, whose names are not paths either."""
    c, out = ckptconv.open(path), tmp_path / "o.npz"
    for call, says in (
        (lambda: ckptconv.open(None), "a path, a mapping of arrays or a module is needed, not NoneType"),
        (lambda: ckptconv.convert(c, out, from_="npz"), "from_= is the format of a file, and this checkpoint is open"),
        (lambda: ckptconv.convert(3, out), "a path, a mapping of arrays or a module is needed, not int"),
        (lambda: ckptconv.match(c, 3), "a path, a mapping of arrays or a module is needed, not int"),
        (lambda: ckptconv.inspect(b"x"), "a path, a mapping of arrays or a module is needed, not bytes"),
    ):
        with pytest.raises(ckptconv.UsageError, match=says):
            call()
    with pytest.raises(AttributeError, match=r"no attribute 'load_file'; open\(path\) opens a checkpoint"):
        ckptconv.load_file  # noqa: B018
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"jobs": "2"}, "jobs= takes a number, not '2'"),
        ({"jobs": -1}, "jobs=-1 is not a number"),
        ({"rename": lambda n: n}, "rename= takes 'old=new', one or several, not <function"),
        ({"rename_regex": (r"^module\.", "x")}, "rename_regex= takes 'old=new', one or several"),
        ({"rename": {"layer_1/": "first"}}, "'layer_1/' is a prefix that ends in '/'; 'first' must, too: 'first/'"),
        ({"at": 3}, "at= takes a text, not 3"),
        ({"weights_only": "no"}, "weights_only= takes True or False, not 'no'"),
        ({"max_memory": -1}, "-1 is not a size"), ({"param": [1]}, "param= takes a mapping of names, or texts"),
    ],
)  # fmt: skip
def test_what_an_option_takes_is_said(given: dict[str, Any], says: str, path: Path, tmp_path: Path) -> None:
    with pytest.raises(ckptconv.UsageError, match=says):
        ckptconv.convert(path, tmp_path / "o.npz", **given)


def test_habits_of_numpy_h5py_and_safetensors(path: Path, tmp_path: Path) -> None:
    """What works, and an answer where something else is meant."""
    c, out = ckptconv.open(path), tmp_path / "o.npz"
    t = c["layer_1/kernel"]
    assert repr(c.keys()).startswith("dict_keys(['layer_0/kernel', ")
    assert (t.ndim, t.size, repr(t.dtype)) == (2, 12, "<DType float32>")
    for same in ("float32", np.float32, np.dtype("f4"), c["layer_2/kernel"].dtype):
        assert t.dtype == same
    for other in ("float16", np.float64, None, 4):
        assert t.dtype != other
    assert {t.dtype: 1}["float32"] == 1
    for call, error, says in (
        (lambda: t.mean(), AttributeError, r"no attribute 'mean'; .* numpy\(\), torch\(\) and t\[0:2\] read it"),
        (lambda: c.state_dict(), AttributeError, r"'state_dict'; it maps names to tensors: .* c\.torch\(\)"),
        (lambda: bool(ckptconv.diff(path, path)), TypeError, r"use diff\(a, b\)\.same"),
        (lambda: ckptconv.save(c, tmp_path / "a.safetensor"), ckptconv.UsageError, "did you mean .safetensors"),
        (lambda: ckptconv.convert(path, out, overwrite=True), ckptconv.UsageError, "'overwrite'; force= does that"),
        (lambda: ckptconv.convert(path, out, dtyp="f2"), ckptconv.UsageError, r"'dtyp'; did you mean dtype\?"),
        (lambda: ckptconv.convert(path, out, dry_run=1), ckptconv.UsageError, "; ckptconv.dry_run is a function"),
        (lambda: ckptconv.inspect(path, stat=True), ckptconv.UsageError, r"'stat'; did you mean stats\?"),
        (lambda: ckptconv.diff(path, path, tolerance=1), ckptconv.UsageError, "'tolerance'; rtol= does that"),
        (lambda: ckptconv.open(path, from_=None, filter="a"), ckptconv.UsageError, "'filter'; include= does that"),
        (lambda: ckptconv.open(path, dtype="f2"), ckptconv.UsageError, "'dtype'; convert and save take it"),
        (lambda: ckptconv.save(path, out), ckptconv.UsageError, "not PosixPath; convert takes paths"),
        (lambda: ckptconv.save(np.ones(2), out), ckptconv.UsageError, "give it a name: {'NAME': array}"),
        (
            lambda: ckptconv.open(path.open("rb")),
            ckptconv.UsageError,
            "a module is needed, not BufferedReader",
        ),
    ):
        with pytest.raises(error, match=says):
            call()
    assert str(ckptconv.verify(path)) == "verified: 30 tensors, by 30 hashes"
    assert not out.exists()


def test_a_missing_file_is_that_of_python() -> None:
    with pytest.raises(FileNotFoundError) as e:
        ckptconv.open("none.pt")
    assert (e.value.errno, e.value.filename) == (2, "none.pt")


@pytest.mark.parametrize(
    ("sources", "given", "words"),
    [
        ([], {}, "no source was given"),
        (["-"], {}, "- is a stream; a checkpoint is read and written at many places, so name a file"),
        (["a\0b"], {}, r"a\\x00b holds a NUL or half a surrogate pair, which the name of no file does"),
        (["a", "b"], {"scope": ["x"]}, "2 sources need 2 scope=NAME, one for each; given are 1"),
        (["a"], {"scope": ["x", "y"]}, "1 sources need 1 scope=NAME, one for each; given are 2"),
    ],
)
def test_sources_that_are_none(sources: list[str], given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ckptconv.UsageError, match=words):
        ckptconv.convert(sources, tmp_path / "out.npz", **given)
    if len(sources) == 1 and not given:
        with pytest.raises(ckptconv.UsageError, match=words):
            ckptconv.open(sources[0])
