"""What torch.load gives is what we give, or a refusal: files of each kind, and random ones of torch's own grammar."""

from __future__ import annotations

import os
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT

import ckptconv
from ckptconv.formats.pytorch import export

torch = pytest.importorskip("torch")


def bits(t: Any) -> bytes:
    return t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def agree(path: Path, **options: Any) -> ckptconv.Checkpoint:
    """Our tensors are those of torch.load, which is flat."""
    got, expected = ckptconv.open(path, **options), torch.load(path, weights_only=False)
    assert list(got) == list(expected)
    for name, t in expected.items():
        assert (got[name].shape, got[name].numpy().tobytes()) == (tuple(t.shape), bits(t)), name
    return got


def test_random_files_of_the_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them: python fuzz/grammar.py 20000."""
    monkeypatch.syspath_prepend(ROOT / "fuzz")
    grammar = import_module("grammar")
    outcomes, different = grammar.run(int(os.environ.get("CKPTCONV_GRAMMAR", "150")), 0, tmp_path)
    assert different == []
    assert outcomes["equal"] > sum(outcomes.values()) / 4


def test_bytes_after_a_stream(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with open(tmp_path / "a.pt", "ab") as f:
        f.write(b"more")
    assert any("4 bytes that follow" in n.text for n in agree(tmp_path / "a.pt").notes)


def old_pickle(path: Path, *body: bytes) -> None:
    """An archive with this pickle, of two storages of floats."""
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("a/data.pkl", b"\x80\x02" + b"".join(body) + b".")
        z.writestr("a/version", b"3\n")
        z.writestr("a/data/0", np.arange(4, dtype="<f4").tobytes())


def test_tensors_made_empty_and_filled_by_their_state(tmp_path: Path) -> None:
    """FloatTensor() and Variable() of 2016, whose data are their state."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ"
    filled = b"ctorch\nFloatTensor\n)\x81(" + storage + b"K\1K\2\x85K\1\x85tb"
    view = b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K\0K\2\x85K\1\x85tR"
    variable = b"ctorch.nn.parameter\nParameter\n" + filled + b"\x85R(\x89\x89ccollections\nOrderedDict\n)Rtb"
    old_pickle(tmp_path / "a.pt", b"}(X\1\0\0\0a", filled, b"X\1\0\0\0b", view, b"X\1\0\0\0c", variable, b"u")
    agree(tmp_path / "a.pt")


def test_attributes_hung_on_tensors_are_noted(tmp_path: Path) -> None:
    w = torch.nn.Parameter(torch.arange(3.0))
    w.tag, w.main_grad = "x", torch.ones(2)
    torch.save({"w": w}, tmp_path / "a.pt")
    got = ckptconv.open(tmp_path / "a.pt")
    assert {n: t.role for n, t in got.items()} == {"w": "", "w.main_grad": "state"}
    assert ("w.tag",) in [n.names for n in got.notes]


# --- subclasses and modules ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Please use DTensor")
def test_parts_of_tensors_are_refused_by_name(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed.tensor")
    init = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        part = distributed.distribute_tensor(torch.ones(4, 2), init("cpu", (1,)), [distributed.Shard(0)])
        sharding = import_module("torch.distributed._shard.sharded_tensor")
        about = sharding.ShardMetadata([0, 0], [2, 3], "rank:0/cpu")
        shards = sharding.init_from_local_shards([sharding.Shard(torch.ones(2, 3), about)], 2, 3)
        empty = torch.ones(5, device="meta")
        torch.save(
            {"w": part, "p": torch.nn.Parameter(part), "s": shards, "m": empty, "b": torch.ones(2)}, tmp_path / "a.pt"
        )
    finally:
        torch.distributed.destroy_process_group()
    part_of = ": a process's part of a DTensor or ShardedTensor; several are read as a folder: x_rank_0.pt ..."
    for opaque in (False, True):
        with pytest.raises(ckptconv.CorruptCheckpoint, match="hold 4 tensors in full") as error:
            ckptconv.open(tmp_path / "a.pt", opaque=opaque)
        rows = [line.strip() for line in error.value.message.splitlines()[1:]]
        assert rows == [
            f"w [4, 2]{part_of}",
            f"p [4, 2]{part_of}",
            f"s [2, 3]{part_of}",
            "m [5]: on the meta device, without data",
        ]
        got = ckptconv.open(tmp_path / "a.pt", opaque=opaque, partial=True)
        assert list(got) == ["b"]
        assert [n.names for n in got.notes if n.kind == "skipped"] == [("w", "p", "s", "m")]


@pytest.mark.filterwarnings("ignore")
def test_jagged_tensors_are_read_as_their_pieces(tmp_path: Path) -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
    torch.save({"n": jagged}, tmp_path / "a.pt")
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="nested"):
        ckptconv.open(tmp_path / "a.pt")
    got = ckptconv.open(tmp_path / "a.pt", opaque=True)
    assert [bits(jagged.values()), bits(jagged.offsets())] == [t.numpy().tobytes() for t in list(got.values())[:2]]
    assert any("unknown classes" in n.text for n in got.notes)


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))
        self.cache = [torch.zeros(1)]


class Net(torch.nn.Module):
    """A module of everything that says `state_dict()` and what does not."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Inner()  # not an entry, although it is called so
        self.fc = torch.nn.utils.weight_norm(torch.nn.Linear(2, 2))
        self.lstm = torch.nn.LSTM(2, 3, bidirectional=True)
        self.bn = torch.nn.BatchNorm1d(2)
        self.tied = self.bn
        self.stride = torch.tensor([8.0, 16.0])
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("transient", torch.ones(1), persistent=False)
        self.register_buffer("nothing", None)
        self.many = torch.nn.ModuleDict({"a": torch.nn.MultiheadAttention(4, 2)})
        self.some = torch.nn.ParameterList([torch.ones(1)])
        self.spectral = torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2))
        self.hidden = [Inner()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_modules_give_the_names_of_their_state_dict(wrapped: bool, new: bool, tmp_path: Path) -> None:
    net = Net()
    saved = {"model": net, "epoch": 3} if wrapped else net
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
    got = ckptconv.open(tmp_path / "a.pt", opaque=True, weights_only=True)
    expected = net.state_dict()
    assert list(got) == list(expected)
    assert all(got[n].numpy().tobytes() == bits(t) for n, t in expected.items())
    left = {name.removeprefix("model.") for n in got.notes if "plain attributes" in n.text for name in n.names}
    assert {"fc.weight", "lstm._flat_weights.0", "stride", "transient", "hidden.0.w"} <= left | {"cache.0"}


class Strange(torch.nn.Module):
    """Attributes that lie where the weight does, of which one is the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(4.0).reshape(2, 2))
        w = self.w.data
        self.same, self.turned, self.row, self.flat = w[:], w.t(), w[1], w.view(4)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_a_module_lists_once_more_are_read(tmp_path: Path) -> None:
    """A diff of a recurrent model said that its weights are unread, which it reads under their own names."""
    lstm, strange = torch.nn.LSTM(2, 3), Strange()
    torch.save(lstm, tmp_path / "lstm.pt")
    torch.jit.script(torch.nn.Sequential(torch.nn.GRU(2, 3))).save(str(tmp_path / "gru.pt"))
    torch.save(strange, tmp_path / "strange.pt")
    for name in ("lstm", "gru"):
        ckptconv.convert(tmp_path / f"{name}.pt", tmp_path / "a.safetensors", opaque=True, force=True)
        assert ckptconv.diff(tmp_path / f"{name}.pt", tmp_path / "a.safetensors", opaque=True).same
        notes = ckptconv.open(tmp_path / f"{name}.pt", opaque=True).notes
        assert [len(n.names) for n in notes if "once more" in n.text] == [4]
    found = ckptconv.open(tmp_path / "strange.pt", opaque=True)
    assert list(found) == ["w"]
    assert [n.names for n in found.notes if "once more" in n.text] == [("same",)]
    assert [n.names for n in found.notes if n.unread] == [("turned", "row", "flat")]


@pytest.mark.filterwarnings("ignore")
def test_an_attribute_that_is_a_slot_of_the_optimizer_is_no_weight(tmp_path: Path) -> None:
    """Two files of which only the attribute and the slot differ were the same."""
    for i in range(2):
        module = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(module.weight)
        torch.nn.init.ones_(module.bias)
        module.cache = torch.full((3,), float(i))
        state = {"state": {0: {"x": module.cache}}, "param_groups": []}
        torch.save({"model": module, "optimizer": state}, tmp_path / f"{i}.pt")
    both = ckptconv.diff(tmp_path / "0.pt", tmp_path / "1.pt", opaque=True, weights_only=True)
    assert not both.same
    assert "1 unread" in str(both)


class Tagged(torch.Tensor):
    pass


def test_subclasses_are_read_with_a_note(tmp_path: Path) -> None:
    made = torch.arange(3.0).as_subclass(Tagged)
    made.scale = torch.ones(2)
    torch.save({"w": made}, tmp_path / "a.pt")
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="Tagged"):
        ckptconv.open(tmp_path / "a.pt")
    got = ckptconv.open(tmp_path / "a.pt", opaque=True)
    assert {n: t.numpy().tolist() for n, t in got.items()} == {"w": [0, 1, 2], "w.scale": [1, 1]}
    assert any("Tagged" in name for n in got.notes for name in n.names)


# --- other programs' files ----------------------------------------------------------------------------------------


def test_joblib() -> None:
    """Written by joblib 1.5 of arrays in C and Fortran order, big-endian, empty, and one twice."""
    got = ckptconv.open(ROOT / "fixtures" / "torch" / "arrays.joblib")
    x = [[0, 1, 2], [3, 4, 5]]
    expected = {"coef": x, "F": x, "f.b": [0, 1, 2], "f.z": [], "again": x}
    assert {n: t.numpy().tolist() for n, t in got.items()} == expected


@pytest.mark.filterwarnings("ignore")
def test_exported_programs(tmp_path: Path) -> None:
    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)
            self.bn = torch.nn.BatchNorm1d(3)
            self.tied = self.fc
            self.narrow = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
            self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)
            self.register_buffer("transient", torch.arange(3.0), persistent=False)

        def forward(self, x: Any) -> Any:
            return self.bn(self.fc(x)) + self.narrow.float() + self.turned[:, 0] + self.transient + self.tied(x)

    program = torch.export.export(Small().eval(), (torch.ones(2, 3),))
    torch.export.save(program, tmp_path / "m.pt2")
    got, expected = ckptconv.open(tmp_path / "m.pt2"), program.state_dict
    assert got.format == "pt2"
    assert set(got) == set(expected)
    assert all(got[n].numpy().tobytes() == bits(t) for n, t in expected.items())
    assert {frozenset(group) for group in got.ties} >= {frozenset({"fc.weight", "tied.weight"})}


def test_dtypes_of_exported_programs() -> None:
    """Each number means what torch means by it, and none is left out but halves of complex numbers."""
    schema, serialize = (pytest.importorskip(f"torch._export.serde.{name}") for name in ("schema", "serialize"))
    theirs = {int(kind): torch_kind for torch_kind, kind in serialize._TORCH_TO_SERIALIZE_DTYPE.items()}
    assert {n: str(kind) for n, kind in theirs.items() if n != 9} == {
        n: f"torch.{row}" for n, row in export.TYPES.items()
    }
    assert int(schema.Layout.Strided) == export.STRIDED


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"m.pte": b"\x1c\0\0\0ET12" + bytes(64)}, "ExecuTorch"),
        ({"m.joblib": b"x\x9c" + bytes(64)}, "zlib"),
        (
            {"latest": b"global_step20", "global_step3/x": b"", "global_step20/y": b""},
            "global_step20 has its weights in mp_rank_00_model_states.pt",
        ),
    ],
)
def test_what_is_not_read_is_named(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    for name, raw in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(ckptconv.UnknownFormat, match=words):
        ckptconv.open(tmp_path / next(iter(files)) if len(files) == 1 else tmp_path)
