"""--densify computes sparse and quantised tensors; without it their pieces are given, with a note."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.moves import derived as blocks

torch = pytest.importorskip("torch", reason="torch writes the sparse tensors")


def test_on_the_command_line(cli: Run, tmp_path: Path) -> None:
    sparse = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    quantised = torch.quantize_per_tensor(torch.tensor([0.5, 1.0, -1.0]), 0.5, 1, torch.qint8)
    torch.save({"s": sparse, "q": quantised}, tmp_path / "m.pt")
    done = cli("m.pt", "-o", "pieces.npz")
    assert done.returncode == 0
    assert "--densify" in done.stderr
    parts = ["s.indices", "s.values", "s.shape", "q", "q.scale", "q.zero_point"]
    assert list(ckptconv.open(tmp_path / "pieces.npz")) == parts
    assert ckptconv.open(tmp_path / "m.pt").details["pieces"]["q"]["zero_point"] == 1
    assert cli("m.pt", "-o", "dense.npz", "--densify").returncode == 0
    got = ckptconv.open(tmp_path / "dense.npz")
    assert np.array_equal(got["s"].numpy(), sparse.to_dense().numpy())
    assert np.array_equal(got["q"].numpy(), quantised.dequantize().numpy())
    assert cli("verify", "m.pt", "dense.npz", "--densify").returncode == 0


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that these kinds are young, or old
    SPARSE = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,))
    COLUMNS = torch.tensor([[0, 1.0], [2, 0]]).to_sparse_csc()
    QUANTISED = torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 1, torch.quint8)
OTHER = torch.tensor([0.0, 50.0, 100.0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("whole", "beside"),
    [
        (QUANTISED, "scale"),
        (QUANTISED, "zero_point"),
        (QUANTISED, "indices"),
        (SPARSE, "scale"),
        (COLUMNS, "crow_indices"),
    ],
)
def test_what_is_called_like_a_piece_is_none(whole: torch.Tensor, beside: str, tmp_path: Path) -> None:
    torch.save({"w": whole, f"w.{beside}": OTHER}, tmp_path / "m.pt")
    got = ckptconv.open(tmp_path / "m.pt", densify=True)
    expected = whole.dequantize() if whole.is_quantized else whole.to_dense()
    if whole.is_quantized and beside != "indices":
        with pytest.raises(ckptconv.NameCollision, match=rf"would get one name:\n *w\.{beside}"):
            ckptconv.open(tmp_path / "m.pt")
    assert {n: t.numpy().tolist() for n, t in got.items()} == {"w": expected.tolist(), f"w.{beside}": OTHER.tolist()}


@pytest.mark.filterwarnings("ignore")
def test_equal_pieces_of_other_scales_are_not_tied(tmp_path: Path) -> None:
    class Quantised:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __reduce__(self) -> object:
            storage = torch.storage.TypedStorage(
                wrap_storage=QUANTISED.untyped_storage(), dtype=QUANTISED.dtype, _internal=True
            )
            quantiser = (torch.per_tensor_affine, self.scale, 1)
            return torch._utils._rebuild_qtensor, (storage, 0, (6,), (1,), quantiser, False, OrderedDict())

    torch.save({"a": Quantised(0.5), "b": Quantised(8.0)}, tmp_path / "m.pt")
    got, expected = ckptconv.open(tmp_path / "m.pt", densify=True), torch.load(tmp_path / "m.pt")
    assert got.ties == ()
    assert {n: t.numpy().tolist() for n, t in got.items()} == {n: t.dequantize().tolist() for n, t in expected.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("densify", [False, True])
def test_tensors_of_which_a_piece_cannot_be_held(densify: bool, tmp_path: Path) -> None:
    packed = torch.quantize_per_channel(torch.ones(4, 8), torch.ones(4), torch.zeros(4), 0, torch.quint4x2)
    torch.save({"q": packed, "s": SPARSE.to(torch.complex32), "w": OTHER}, tmp_path / "m.pt")
    got = ckptconv.open(tmp_path / "m.pt", densify=densify)
    assert list(got) == ["w"]
    assert {name: n.kind for n in got.notes for name in n.names} == {"q": "skipped", "s": "skipped"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.quint8, torch.qint8, torch.qint32])
def test_the_bits_are_those_of_torch(kind: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(1)
    x, scales, zeros = torch.randn(4, 37) * 10, torch.rand(4) + 0.01, torch.arange(4) * 7
    saved = {
        "tensor": torch.quantize_per_tensor(x, 0.37, 5, kind),
        "channel": torch.quantize_per_channel(x, scales.double(), zeros, 0, kind),
        "doubles": torch.quantize_per_channel(x, torch.rand(4).double() / 3 + 0.01, zeros, 0, kind),
        "columns": torch.quantize_per_channel(x.T, torch.tensor([0.1, 0.2, 0.3, 0.7]).double() / 7, zeros, 1, kind),
    }
    if kind is torch.quint8:
        saved["floats"] = torch.quantize_per_channel(x, scales, zeros + 0.37, 0, kind)
    if kind is torch.qint32:  # beyond what a float32 counts one by one
        large = torch.tensor([16777217, 33554435, 5], dtype=torch.int32)
        saved["large"] = torch._make_per_tensor_quantized_tensor(large, 1.0, 1)
    torch.save(saved, tmp_path / "m.pt")
    got = ckptconv.open(tmp_path / "m.pt", densify=True)
    for name, q in saved.items():
        assert np.array_equal(got[name].numpy().view("u4"), q.dequantize().numpy().view("u4")), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "bool", "uint8", "complex64"])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_what_has_an_index_twice_adds_up_as_in_torch(layout: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    values = (torch.rand(60) * 100).sub(0 if kind == "uint8" else 50)
    values[3] = -0.0
    blocks = values.reshape(-1, 1, 1) * torch.tensor([[1.0, -3.1], [0.37, 2.0]]).abs()
    values = (blocks if layout.startswith("b") else values).to(getattr(torch, kind))
    major, minor = torch.randint(0, 4, (2, 60))
    major = major.sort()[0]
    if layout == "coo":
        whole = torch.sparse_coo_tensor(torch.stack([major, minor]), values, (4, 4))
    else:
        make, size = getattr(torch, f"sparse_{layout}_tensor"), 8 if layout.startswith("b") else 4
        starts = torch.searchsorted(major, torch.arange(5))
        whole = make(starts, minor, values, (size, size), check_invariants=False)
    torch.save({"w": whole}, tmp_path / "m.pt")
    got, wanted = ckptconv.open(tmp_path / "m.pt", densify=True)["w"], whole.to_dense().contiguous()
    assert got.numpy().tobytes() == wanted.view(torch.uint8).numpy().tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["coo", "hybrid", "csr", "csc", "bsr", "bsc", "rows", "columns", "middle"])
def test_what_is_computed_in_many_blocks(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of all blocks in any order; more channels than are read at once, and fewer."""
    for what, size in {"BLOCK": 8, "WINDOW": 4}.items():
        monkeypatch.setattr(blocks, what, size)
    torch.manual_seed(1)
    x = torch.randn(6, 10) * (torch.rand(6, 10) > 0.4)
    mixed = torch.sparse_coo_tensor(
        torch.stack([torch.randint(0, n, (90,)) for n in x.shape]), torch.randn(90), x.shape
    )
    made = {
        "coo": lambda: mixed,
        "hybrid": lambda: torch.sparse_coo_tensor(torch.tensor([[5, 0, 5, 2]]), torch.randn(4, 5, 2), (6, 5, 2)),
        "csr": x.to_sparse_csr,
        "csc": x.to_sparse_csc,
        "bsr": lambda: x.half().to_sparse_bsr((2, 5)),
        "bsc": lambda: x.to_sparse_bsc((3, 2)),
        "rows": lambda: channels(x, 0),
        "columns": lambda: channels(x, 1),
        "middle": lambda: channels(x.reshape(2, 10, 3), 1),
    }[layout]()
    torch.save({"w": made}, tmp_path / "m.pt")
    wanted = made.dequantize() if made.is_quantized else made.to_dense()
    got = ckptconv.open(tmp_path / "m.pt", densify=True)["w"]
    assert np.array_equal(got.numpy(), wanted.numpy())
    assert np.array_equal(got[1:3, 2:], wanted[1:3, 2:])
    monkeypatch.setattr(blocks, "MOST", 3)
    with pytest.raises(ckptconv.ConversionError, match="is not computed: it has"):
        got.numpy()


def channels(x: torch.Tensor, axis: int) -> torch.Tensor:
    count = x.shape[axis]
    return torch.quantize_per_channel(x, torch.rand(count).double() + 0.1, torch.arange(count), axis, torch.qint8)


@pytest.mark.filterwarnings("ignore")
def test_pieces_tell_apart_what_is_not_the_same(cli: Run, tmp_path: Path) -> None:
    """Of equal stored tensors: another scale, zero point, axis or dense shape. A conversion keeps it."""
    q, scales, zeros = QUANTISED.int_repr()[:, :2].contiguous(), torch.tensor([0.1, 0.2]).double(), torch.tensor([0, 0])
    pairs = {
        "scale": [torch._make_per_tensor_quantized_tensor(q, scale, 3) for scale in (0.03, 0.5)],
        "zero_point": [torch._make_per_tensor_quantized_tensor(q, 0.5, zero) for zero in (7, 0)],
        "axis": [torch._make_per_channel_quantized_tensor(q, scales, zeros, axis) for axis in (0, 1)],
        "shape": [torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], size) for size in ((2, 2), (50, 70))],
    }
    for what, (one, other) in pairs.items():
        torch.save({"w": one}, tmp_path / "one.pt")
        torch.save({"w": other}, tmp_path / f"{what}-other.pt")
        assert [p.name for p in ckptconv.diff(tmp_path / "one.pt", tmp_path / f"{what}-other.pt").pairs] == [
            f"w.{what}"
        ]
        ckptconv.convert(tmp_path / "one.pt", tmp_path / f"{what}.safetensors")
        assert ckptconv.diff(tmp_path / "one.pt", tmp_path / f"{what}.safetensors").same
    assert cli("scale.safetensors", "-o", "back.pt").returncode == 0
    assert cli("diff", "back.pt", "scale-other.pt").returncode == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zipped", [True, False])
def test_what_is_damaged_is_left_out(zipped: bool, cli: Run, tmp_path: Path) -> None:
    """Both kinds of files: a byte that its checksum betrays, a file that ends in a tensor."""
    saved = {"w": OTHER, "s": SPARSE, "q": torch.quantize_per_tensor(torch.arange(64.0), 0.5, 3, torch.quint8)}
    torch.save(saved, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    raw, content = bytearray((tmp_path / "m.pt").read_bytes()), saved["q"].int_repr().numpy().tobytes()
    raw[bytes(raw).find(content)] ^= 1
    (tmp_path / "m.pt").write_bytes(raw if zipped else raw[:-8])
    with pytest.raises(ckptconv.CorruptCheckpoint):
        {n: t.numpy() for n, t in ckptconv.open(tmp_path / "m.pt", densify=True).items()}
    whole, pieces = (ckptconv.open(tmp_path / "m.pt", keep_going=True, densify=d) for d in (True, False))
    lost = {name.partition(".")[0] for n in pieces.notes if n.kind == "damaged" for name in n.names}
    assert [n.names for n in whole.notes if n.kind == "damaged"] == [(name,) for name in sorted(lost)]
    assert lost
    assert set(whole) == set(saved) - lost
    done = cli("m.pt", "-o", "x.npz", "--densify", "--keep-going")
    assert (done.returncode, set(ckptconv.open(tmp_path / "x.npz"))) == (1, set(whole))
