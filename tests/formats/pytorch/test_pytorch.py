"""torch files read and written without torch: against golden files by torch, and against torch itself."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import FIXTURES, examples, read_all, same, sound_or_refused
from pickles import Call, Global, pickled

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous, held
from ckptconv.dtypes import DTYPES, DType
from ckptconv.formats.pytorch.archive import TorchWriter
from ckptconv.formats.pytorch.pickle import load
from ckptconv.formats.pytorch.tensors import TORCH
from ckptconv.moves.part import Span

GOLDEN = FIXTURES / "torch"
VERSIONS = json.loads((GOLDEN / "versions.json").read_text())


def bits(t: Tensor) -> bytes:
    return bytes(np.ascontiguousarray(t.numpy()).tobytes())


# --- golden files: no torch is needed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dtypes", "views", "training", "nested", "stream", "module", "script"])
def test_golden(name: str) -> None:
    got = ckptconv.open(GOLDEN / f"{name}.pt", opaque=name == "module")
    with np.load(GOLDEN / f"{name}.npz") as expected:
        assert set(got) == set(expected)
        for key, kind in VERSIONS["dtypes"][name].items():
            assert str(got[key].dtype) == kind
            assert bits(got[key]) == np.ascontiguousarray(expected[key]).tobytes(), key
            if "float8" not in kind and kind != "bfloat16":
                assert got[key].shape == expected[key].shape


def test_order_and_ties_are_those_of_the_file() -> None:
    got = ckptconv.open(GOLDEN / "views.pt")
    assert list(got)[:4] == ["whole", "tied", "transposed", "sliced"]
    assert got.ties == (("whole", "tied"),)
    assert {("fc.weight", "tied.weight"), ("fc.bias", "tied.bias")} <= set(ckptconv.open(GOLDEN / "script.pt").ties)


def test_a_training_checkpoint() -> None:
    got = ckptconv.open(GOLDEN / "training.pt")
    assert got["fc.weight"].role == ""
    assert got["optimizer_states.0.state.0.exp_avg"].role == "slot"
    assert got["optimizer_states.0.state.0.step"].role == "step"
    assert got.details["values"]["epoch"] == 3
    assert got.details["values"]["hyper_parameters.name"] == "tiny"
    assert [n.text for n in got.notes if n.kind == "assumed"] == [
        "weights are in 'state_dict' (prefix removed); also present: optimizer_states (12 tensors)"
    ]
    assert "epoch" in next(n.names for n in got.notes if n.kind == "skipped")


def test_a_frozen_module_has_unnamed_constants() -> None:
    got = ckptconv.open(GOLDEN / "frozen.pt")
    assert all(name.startswith("constants.") for name in got)
    with np.load(GOLDEN / "script.npz") as expected:
        held_values = {bits(t) for t in got.values()}
        assert expected["fc.weight"].tobytes() in held_values
    assert any("frozen" in n.text for n in got.notes)


@examples(60)
@given(name=st.sampled_from(["views.pt", "stream.pt", "script.pt"]), data=st.data())
def test_any_bytes_give_a_checkpoint_or_our_error(name: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    raw = bytearray((GOLDEN / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"mutated-{os.getpid()}.pt"
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) // 2, len(raw)]))])
    for opaque in (False, True):
        with sound_or_refused():
            read_all(ckptconv.open(path, opaque=opaque))


@examples(50)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
        max_leaves=20,
    ),
    protocol=st.integers(0, 5),
)
def test_the_machine_agrees_with_pickle(value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_pickled_arrays(protocol: int) -> None:
    """What np.save with objects, Paddle and others put into pickles."""
    arrays: list[Any] = [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3, ">f4"),
        np.zeros((0, 3)),
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(3)[::-1],
    ]
    for array in arrays:
        assert same(load(pickle.dumps(array, protocol), allowed=TORCH).numpy(), array)
    for scalar in (np.float32(1.5), np.str_(), np.bytes_()):
        assert load(pickle.dumps(scalar, protocol), allowed=TORCH) == scalar
    mixed = load(pickle.dumps(np.array([{"a": 1}, [2]], object), protocol), allowed=TORCH).numpy()
    assert mixed.tolist() == [{"a": 1}, [2]]


def test_distributed() -> None:
    """Saved by two processes, one tensor cut by rows, one by columns."""
    for url in (GOLDEN / "dcp", GOLDEN / "dcp" / ".metadata", GOLDEN / "dcp" / "__1_0.distcp"):
        got = ckptconv.open(url)
        assert got.format == "dcp"
        assert len(got["columns"].parts) == 2
        assert got.details["values"] == {"epoch": 3}
        with np.load(GOLDEN / "dcp.npz") as expected:
            assert set(got) == set(expected)
            assert all(bits(t) == expected[n].tobytes() for n, t in got.items())


@pytest.mark.filterwarnings("ignore")
def test_tensors_in_what_a_distributed_checkpoint_stores_as_objects(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saving = pytest.importorskip("torch.distributed.checkpoint")
    w, b, sparse = torch.arange(3.0), torch.ones(2), torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr()
    saved = {
        "model": {"w": w, "pair": (w + 1, b, 7)}, "optim": {"rows": (b, b)}, "sparse": (sparse,), "sizes": (2, 3),
        "epoch": 3,
    }  # fmt: skip
    saving.save(saved, checkpoint_id=tmp_path / "d", no_dist=True)
    got = ckptconv.open(tmp_path / "d", densify=True)
    wanted = {"w": w, "pair.0": w + 1, "pair.1": b, "optim.rows.0": b, "optim.rows.1": b, "sparse.0": sparse}
    assert {n: t.numpy().tolist() for n, t in got.items()} == {n: t.to_dense().tolist() for n, t in wanted.items()}
    assert got.ties == (("optim.rows.0", "optim.rows.1"),)
    assert got["optim.rows.0"].role == "slot"
    assert set(got.details["values"]) == {"pair.2", "sizes", "epoch"}


@pytest.mark.filterwarnings("ignore")
def test_values_of_a_distributed_checkpoint_may_be_deep_and_shared(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saving = pytest.importorskip("torch.distributed.checkpoint")
    deep: Any = ()
    for _ in range(200):
        deep = (deep,)
    saved = {"w": torch.ones(1), "shared": ([*range(1000)],) * 100, "deep": deep, "loss": float("nan"), "step": 3}
    saving.save(saved, checkpoint_id=tmp_path / "d", no_dist=True)
    got = ckptconv.open(tmp_path / "d")
    assert list(got) == ["w"]
    assert got.details["values"] == {"shared": "tuple", "deep": "tuple", "loss": "nan", "step": 3}


@pytest.mark.parametrize("nested", ["app", "train_state", ""])
@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_has_the_names_and_roles_of_the_same_file(nested: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saving = pytest.importorskip("torch.distributed.checkpoint")
    slots = {"state": {"w": {"exp_avg": torch.ones(2), "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}
    saved: Any = {"model": {"w": torch.ones(2)}, "optim": slots, "step": torch.tensor(3)}
    saved = {nested: saved} if nested else saved
    saving.save(saved, checkpoint_id=tmp_path / "d", no_dist=True)
    torch.save(saved, tmp_path / "a.pt")
    got, expected = ckptconv.open(tmp_path / "d"), ckptconv.open(tmp_path / "a.pt")
    assert {n: t.role for n, t in got.items()} == {n: t.role for n, t in expected.items()}
    assert [t.name.endswith("w") for t in ckptconv.open(tmp_path / "d", weights_only=True).values()] == [True]
    assert load(b"\x80\2cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n)\x81.").args == ()


@pytest.mark.parametrize("protocol", range(6))
def test_bare_pickles(protocol: int, tmp_path: Path) -> None:
    """A dict of arrays, nested, with a Paddle pair and a name table."""
    x, y = np.arange(6.0).reshape(2, 3), np.ones(4, "f2")
    saved = {"a": {"w": x, "t": x.T}, "linear.b": ("linear_0.b_0", y), "StructuredToParameterName@@": {"b": "b_0"}}
    (tmp_path / "m.pdparams").write_bytes(pickle.dumps(saved, protocol))
    got = ckptconv.open(tmp_path / "m.pdparams")
    assert got.format == "pickle"
    assert {n: t.numpy().tolist() for n, t in got.items()} == {
        "a.w": x.tolist(),
        "a.t": x.T.tolist(),
        "linear.b": [1] * 4,
    }
    assert got["linear.b"].dtype == DTYPES["float16"]
    with open(tmp_path / "evil.pkl", "wb") as f:
        pickle.dump({"w": x, "f": os.system}, f, protocol)
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="system"):
        ckptconv.open(tmp_path / "evil.pkl")


ARRAY = Call(
    Global("numpy.core.multiarray._reconstruct"), (Global("numpy.ndarray"), (0,), b"b"),
    ((1, (2,), Call(Global("numpy.dtype"), ("f4", False, True)), False, b"\0\0\x80?" * 2),),
)  # fmt: skip
OBJECTS = ARRAY._replace(states=((1, (2,), Call(Global("numpy.dtype"), ("O8", False, True)), False, [ARRAY, ARRAY]),))
JAX = Call(
    Global("jax._src.array._reconstruct_array"),
    (ARRAY.what, ARRAY.args, *ARRAY.states, {"weak_type": False, "named_shape": {}}),
)
FROZEN, FLAT = Global("flax.core.frozen_dict.FrozenDict"), Global("haiku._src.data_structures.FlatMapping")
ADAM = Call(Global("optax._src.transform.ScaleByAdamState"), (JAX, {"w": JAX}, {"w": JAX}), new=True)
EMPTY = Call(Global("optax._src.base.EmptyState"), (), new=True)
TUPLE, REBUILT = Global("builtins.tuple"), Global("copyreg._reconstructor")  # of protocols 0 and 1
PYTHON_2 = (  # an old-style object with an attribute, and a str that is not ASCII
    b"(dp0\nS'net'\np1\n(isome.module\nNet\np2\n(dp3\nS'w\\xe9'\np4\ncnumpy.core.multiarray\n_reconstruct\np5\n"
    b"(cnumpy\nndarray\np6\n(I0\ntp7\nS'b'\np8\ntp9\nRp10\n(I1\n(L2L\ntp11\ncnumpy\ndtype\np12\n(S'f4'\np13\nI0\n"
    b"I1\ntp14\nRp15\n(I3\nS'<'\np16\nNNNI-1\nI-1\nI0\ntp17\nbI00\nS\"\\x00\\x00\\x80?\\x00\\x00\\x80?\"\np18\n"
    b"tp19\nbsbsS'rate'\np20\nF0.5\ns."
)


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        (pickled(JAX), "tensor"),
        (pickled({"a": JAX}), "a"),
        (pickled({"ws": OBJECTS}), "ws.0 ws.1"),
        (pickled(Call(FROZEN, ({"params": {"l": {"w": JAX}}},))), "l.w"),
        (pickled(Call(FLAT, ({"l": Call(FLAT, ({"w": JAX},))},))), "l.w"),
        (pickled((ADAM, EMPTY)), "0.count:step 0.mu.w:slot 0.nu.w:slot"),
        (
            pickled(tuple(Call(REBUILT, (x.what, TUPLE, x.args)) for x in (ADAM, EMPTY))),
            "0.count:step 0.mu.w:slot 0.nu.w:slot",
        ),
        (pickled(({"w": JAX}, (ADAM, EMPTY))), "0.w 1.0.count:step 1.0.mu.w:slot 1.0.nu.w:slot"),
        (pickled([("conv.W", ARRAY), (b"conv.b", ARRAY), ("lod", 0.0)]), "conv.W conv.b"),
        (pickled({"variables": (["g/w", ARRAY], ["g/b", ARRAY])}), "variables.g/w variables.g/b"),
        (pickled([("w", ARRAY), ("w", ARRAY)]), "0.1 1.1"),
        (pickled([("l1", {"w": ARRAY}), ("l2", [ARRAY, ARRAY])]), "l1.w l2.0 l2.1"),
        (pickled(Call(Global("frozendict.frozendict"), ({"w": JAX},))), "w"),
        (pickled({"a": Call(Global("dill._dill._create_array"), (ARRAY.what, ARRAY.args, *ARRAY.states))}), "a"),
        (pickled([["a", "b"], [ARRAY, ARRAY]]), "a b"),
        (pickled({"names": ["a", "b"], "values": [ARRAY, ARRAY]}), "a b"),
        (PYTHON_2, "w\\xe9"),
    ],
)
def test_arrays_in_what_other_packages_write(raw: bytes, names: str, tmp_path: Path) -> None:
    """jax.Array, mappings and named tuples of JAX's packages, names and arrays, dill, Python 2: by their names."""
    (tmp_path / "m.pkl").write_bytes(raw)
    got = ckptconv.open(tmp_path / "m.pkl", opaque=raw is PYTHON_2)
    assert " ".join(n + f":{t.role}" * bool(t.role) for n, t in got.items()) == names
    assert all(t.numpy().tolist() == [1.0, 1.0] for t in got.values())


def test_opaque_is_advised_where_it_reads_tensors(tmp_path: Path) -> None:
    unknown = Call(Global("x.Y"), (1,))
    for value, said in (([unknown, ARRAY], "opaque=True reads"), (unknown, "without them no tensor can be read")):
        (tmp_path / "m.pkl").write_bytes(pickled(value))
        with pytest.raises(ckptconv.UnsafeCheckpoint, match=said):
            ckptconv.open(tmp_path / "m.pkl")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            pickled(JAX._replace(args=(Global("numpy.ndarray"), *JAX.args[1:]))),
            "jax or dill is asked to make an array by",
        ),
        (pickled(Call(ADAM.what, (JAX,), new=True)), "has 1 fields instead of 3"),
        (pickled(Call(REBUILT, (Global("collections.OrderedDict"), TUPLE, ([("w", JAX)],)))), "made by copy_reg"),
        (PYTHON_2, "some.module.Net"),
        (b"computers\nare\nfun.", "is a text that begins with"),
        (b"(lp0\nI1", "does not end as one"),
    ],
)
def test_what_is_not_as_other_packages_write_it(raw: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(raw)
    with pytest.raises(ckptconv.CkptError, match=words):
        ckptconv.open(tmp_path / "m.pkl")


def test_a_file_of_settings_is_nothing_to_convert(tmp_path: Path) -> None:
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"epoch": 3, "name": "x"}))
    with pytest.raises(ckptconv.UsageError, match=r"(?s)no tensor was found.*values that are not tensors.*epoch"):
        ckptconv.convert(tmp_path / "meta.pkl", tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()


BITS = np.array([[0x3FC0, 0xC000], [0x4040, 0x7F80]], "u2")  # 1.5, -2, 3, infinity


@pytest.mark.parametrize("name", ["m.pdparams", "m.pkl"])
def test_paddle_stores_bfloat16_as_uint16(name: str, tmp_path: Path) -> None:
    """Paddle has no uint16; a pickle that is not of Paddle keeps it."""
    saved = {"w": BITS, "f": np.asfortranarray(BITS), "p": ("p_0", BITS), "big": BITS.astype(">u2"), "b": np.ones(2)}
    table = {"StructuredToParameterName@@": {"w": "w_0"}} if name == "m.pkl" else {}
    (tmp_path / name).write_bytes(pickle.dumps(saved | table, 4))
    done = ckptconv.convert(tmp_path / name, tmp_path / "m.npz", dtype="float32")
    assert [(n.text, n.names) for n in done.notes if n.kind == "assumed"] == [
        ("Paddle stores bfloat16 as uint16; read as bfloat16", ("w", "f", "p", "big"))
    ]
    with np.load(tmp_path / "m.npz") as got:
        assert all(got[n].tolist() == [[1.5, -2], [3, np.inf]] for n in ("w", "f", "p", "big"))
    (tmp_path / "other.pkl").write_bytes(pickle.dumps(saved, 4))
    assert ckptconv.open(tmp_path / "other.pkl")["w"].dtype.name == "uint16"


# --- written, and read by torch -----------------------------------------------------------------------------------


def zoo() -> dict[str, Tensor]:
    """Every dtype that torch has, in every awkward shape, with random bits."""
    rng = np.random.default_rng(1)

    def random(row: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape, dtype=int)) * row.itemsize
        return rng.integers(0, 2 if row.kind == "b" else 256, count, np.uint8).view(row.dtype).reshape(shape)

    rows = [row for row in DTYPES.values() if row.torch_name]
    shapes = [(), (3,), (2, 0), (4, 5), (1, 2, 1)]
    return {
        f"{row.name}/{shape}": contiguous(f"{row.name}/{shape}", row, shape, held("", random(row, shape)).parts[0].data)
        for row in rows
        for shape in shapes
    }


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_loads_what_is_written(mmap: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = zoo()
    ckptconv.save(Checkpoint(tensors), tmp_path / "out.pt")
    got = torch.load(tmp_path / "out.pt", weights_only=True, mmap=mmap)
    assert list(got) == list(tensors)
    for name, t in tensors.items():
        assert str(got[name].dtype) == f"torch.{t.dtype.torch_name}"
        assert tuple(got[name].shape) == t.shape
        assert got[name].is_contiguous()
        assert not got[name].requires_grad
        assert bytes(got[name].untyped_storage()) == bits(t), name


def test_the_archive_is_plain_zip(tmp_path: Path) -> None:
    ckptconv.save({"a": np.arange(5), "b": np.zeros(3, "f4")}, tmp_path / "out.pt")
    with zipfile.ZipFile(tmp_path / "out.pt") as z:
        assert z.testzip() is None
        assert [i.filename for i in z.infolist()] == [
            "archive/data.pkl",
            "archive/byteorder",
            "archive/data/0",
            "archive/data/1",
            "archive/version",
        ]
        assert all(i.compress_type == zipfile.ZIP_STORED and i.date_time[0] == 1980 for i in z.infolist())
    starts = [t.parts[0].data.start for t in ckptconv.open(tmp_path / "out.pt").values()]  # type: ignore[union-attr]
    assert all(start % 64 == 0 for start in starts)


@pytest.mark.parametrize("name", ["", "é/ü.0", "a\nb", "\ud800", "x" * 70000, "__metadata__", "data.pkl"])
def test_any_name(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ckptconv.save({name: np.arange(3)}, tmp_path / "out.pt")
    assert list(torch.load(tmp_path / "out.pt", weights_only=True)) == [name]
    assert list(ckptconv.open(tmp_path / "out.pt")) == [name]


def test_shards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = held("a", np.arange(100.0))
    tensors = {
        "a": x,
        "b": held("b", np.ones(100)),
        "c": x.renamed("c"),
        "d": held("d", np.zeros(50)),
        "e": held("e", np.ones(2)),
    }
    saved = Checkpoint(tensors, ties=(("a", "c"),))
    ckptconv.save(saved, tmp_path / "pytorch_model.bin", max_shard_size=1250)
    index = json.loads((tmp_path / "pytorch_model.bin.index.json").read_text())
    one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    assert index == {"metadata": {"total_size": 2016}, "weight_map": {"a": one, "b": two, "c": one, "d": two, "e": two}}
    first = torch.load(tmp_path / one, weights_only=True)
    assert first["a"].data_ptr() == first["c"].data_ptr()
    got = ckptconv.open(tmp_path / "pytorch_model.bin.index.json")
    assert {n: bits(t) for n, t in got.items()} == {n: bits(t) for n, t in tensors.items()}
    ckptconv.save(saved, tmp_path / "small.pt", max_shard_size=10**9)
    assert sorted(torch.load(tmp_path / "small.pt", weights_only=True)) == ["a", "b", "c", "d", "e"]


def test_a_large_tensor_is_laid_out_with_zip64() -> None:
    """Nothing is written: the offsets and the headers are enough."""
    row = DTYPES["uint8"]
    size = 5 * 2**30
    tensors = {n: contiguous(n, row, (size,), Span("absent", 0, size)) for n in ("a", "b")}
    writer = TorchWriter("out.pt")
    placed = writer.place(Checkpoint(tensors))
    patches = writer.seal({"a": 1, "b": 2}, {})
    assert placed.slots["b"].start > 2**32
    assert placed.slots["b"].start % 64 == 0
    ends = sorted((p.start, p.start + len(p.data)) for p in (*placed.patches, *patches))
    ends += [(s.start, s.start + s.size) for s in placed.slots.values()]
    ends.sort()
    assert all(a[1] == b[0] for a, b in pairwise(ends)), "headers, payloads and directory tile the file"
    assert ends[-1][1] == placed.files[0].size


# --- written by torch in this process -----------------------------------------------------------------------------


def containers(torch: Any) -> dict[str, tuple[Any, list[str], str]]:
    """What is saved; the names it gives; words of a note."""
    t = torch.ones
    sd = {"fc.weight": t(2, 2), "fc.bias": t(2)}
    return {
        "flat": (sd, ["fc.weight", "fc.bias"], ""),
        "two": (
            {"model": sd, "ema": sd},
            ["fc.weight", "fc.bias", "ema.fc.weight", "ema.fc.bias"],
            "also present: ema (2 tensors)",
        ),
        "gan": (
            {"generator": sd, "discriminator": {"w": t(1)}},
            ["generator.fc.weight", "generator.fc.bias", "discriminator.w"],
            "at='generator' takes one",
        ),
        "names_alike": ({"model.a": t(1), "model.b": t(2)}, ["model.a", "model.b"], ""),
        "list": ([t(1), (t(2), t(3))], ["0", "1.0", "1.1"], ""),
        "bare": (t(3), ["tensor"], ""),
        "bytes_and_none_keys": ({None: t(1), 2.5: t(1), (1, 2): t(1)}, ["None", "2.5", "(1, 2)"], ""),
        "no_tensors": ({"a": 1, "b": "x"}, [], "not tensors"),
        "meta": ({"m": torch.empty(3, device="meta"), "w": t(1)}, ["w"], "not hold 1 tensor in full"),
        "half_complex": ({"h": torch.zeros(2, dtype=torch.complex32), "w": t(1)}, ["w"], "complex32"),
    }


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_containers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name, (saved, names, words) in containers(torch).items():
        for new in (True, False):
            torch.save(saved, tmp_path / "c.pt", _use_new_zipfile_serialization=new)
            got = ckptconv.open(tmp_path / "c.pt", partial=name == "meta")
            assert list(got) == names, name
            assert [n.text for n in got.notes if words in n.text] if words else not got.notes, (name, got.notes)
    torch.save({"ema": {"w": torch.ones(1)}, "other": {"w": torch.ones(1)}}, tmp_path / "c.pt")
    assert ckptconv.open(tmp_path / "c.pt")["ema.w"].role == "average"


def attributes(torch: Any) -> Any:
    """A module with all kinds of attributes: of those that hold tensors, only some are in its state_dict()."""
    nn = torch.nn

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.w = torch.ones(2), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x + self.c + self.w

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.some, self.named = torch.ones(2), [torch.ones(3)], {"k": torch.ones(2)}
            self.lstm, self.bn, self.inner = nn.LSTM(2, 2), nn.BatchNorm1d(2), nn.ModuleList([Inner(), Inner()])
            self.plain, self.listed = nn.Linear(2, 2, bias=False), nn.ParameterList([nn.Parameter(torch.ones(2))])
            self.register_buffer("kept", torch.ones(2))
            self.register_buffer("transient", torch.ones(2), persistent=False)
            self.register_buffer("none", None)
            self.tied, self.frozen = self.plain.weight, nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, x):
            for inner in self.inner:
                x = inner(x) + self.c + self.some[0].sum() + self.named["k"] + self.kept + self.transient
            return self.plain(self.bn(x)) + self.lstm(x[None])[0][0] + self.listed[0]

    return Outer().eval()


@pytest.mark.filterwarnings("ignore")
def test_torchscript_gives_the_state_dict(tmp_path: Path) -> None:
    """Of the loaded module, which also holds buffers that were not persistent."""
    torch = pytest.importorskip("torch")
    for made in (torch.jit.script(attributes(torch)), torch.jit.trace(attributes(torch), torch.ones(4, 2))):
        made.save(str(tmp_path / "s.pt"))
        got = ckptconv.open(tmp_path / "s.pt")
        loaded = torch.jit.load(tmp_path / "s.pt")
        assert [n for n in got if not n.startswith("constants.")] == list(loaded.state_dict())
        left = [n for note in got.notes if "plain attributes of modules" in note.text for n in note.names]
        flat = [f"lstm._flat_weights.{i}" for i in range(4)]
        scripted = [*flat, "inner.0.c", "inner.1.c", "c", "some.0", "named.k"]
        assert sorted(left) == sorted([] if isinstance(made, torch.jit.TopLevelTracedModule) else scripted)
        for name, t in loaded.state_dict().items():
            assert same(got[name].numpy(), t.numpy())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_legacy_protocols(protocol: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(24.0).reshape(2, 3, 4)
    saved = {"x": x, "t": x.permute(2, 0, 1), "row": x[1], "n": torch.tensor(5), "e": torch.zeros(0, 2)}
    torch.save(saved, tmp_path / "l.pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    got = ckptconv.open(tmp_path / "l.pt")
    assert got.format == "torch-legacy"
    for name, t in saved.items():
        assert same(got[name].numpy(), t.numpy())


def test_legacy_pickles_longer_than_the_first_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    saved = {f"{'n' * 2000}{i}": torch.full((2,), float(i)) for i in range(1200)}
    torch.save(saved, tmp_path / "l.pt", _use_new_zipfile_serialization=False)
    got = ckptconv.open(tmp_path / "l.pt")
    assert list(got) == list(saved)
    assert got[f"{'n' * 2000}1199"].numpy().tolist() == [1199, 1199]


def test_checksums_switched_off(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    got = ckptconv.open(tmp_path / "a.pt")
    assert got["a"].parts[0].data.check == ""  # type: ignore[union-attr]
    assert got["a"].numpy().tolist() == [0, 1, 2]


def test_values_that_are_no_tensors_are_json(tmp_path: Path) -> None:
    values = {"loss": float("nan"), "best": float("-inf"), "dtype": np.dtype("f4"), "lr": 0.5, "complex": 1j}
    values |= {"long": "x" * 1001, "many": [*range(60)], "pair": (1, 2), "set": {3}, "bytes": b"abc"}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"w": np.ones(2), **values}, protocol=2))
    shown = ckptconv.open(tmp_path / "a.pkl").details["values"]
    assert json.loads(json.dumps(shown, allow_nan=False)) == {
        "loss": "nan", "best": "-inf", "dtype": "f4", "lr": 0.5, "complex": "1j", "long": "x" * 1000 + "...",
        "many": [*range(50)], "pair": [1, 2], "set": [3], "bytes": "3 bytes",
    }  # fmt: skip
