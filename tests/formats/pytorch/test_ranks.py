"""Folders of what the ranks of a parallel run wrote: FSDP, tensor parallelism, DeepSpeed's ZeRO; joined, or refused."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FIXTURES, process
from safetensors.numpy import save_file

import ckptconv

torch = pytest.importorskip("torch")
RANKS = FIXTURES / "torch" / "ranks"
JOINED = ("fsdp2", "hsdp", "tensor_parallel", "fsdp1", "fsdp2_and_tensor_parallel")


@pytest.mark.parametrize("kind", JOINED)
def test_parts_are_joined(kind: str, tmp_path: Path) -> None:
    ckptconv.convert(RANKS / kind, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as got, np.load(RANKS / f"{kind}.npz") as expected:
        assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in expected.items()}


@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 2, 2)])
def test_axes_of_a_mesh_that_are_one_or_were_several(shape: Sequence[int], tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    whole, world = torch.randn(5, 7), math.prod(shape)
    for rank in range(world):
        with process(rank, world):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp", "cp"))
            mesh = mesh["dp", "cp"]._flatten("flat") if min(shape) > 1 else mesh
            held = distribute_tensor(whole, mesh, [Shard(0), Replicate(), Shard(1)][: mesh.ndim], src_data_rank=None)
            torch.save({"w": held}, tmp_path / f"x_rank_{rank}.pt")
    assert ckptconv.open(tmp_path)["w"].numpy().tolist() == whole.tolist()


W, ONES = "0.weight", {"0.weight": torch.ones(5, 7)}


@pytest.mark.parametrize(
    ("kind", "ranks", "change", "said"),
    [
        ("fsdp2", "0", lambda held: vars(held[W]._spec).update(placements=(2,)), "is placed as 2, which is not read"),
        ("fsdp2", "0", lambda held: vars(held[W]._spec).update(placements=()), "has the placements"),
        ("fsdp2", "0", lambda held: vars(held[W].device_mesh._layout.axes[0]).update(shape=(0,)), "lies on the mesh"),
        ("fsdp2", "0", lambda held: setattr(held[W], "_local_tensor", torch.ones(9)), "a part of a tensor is"),
        ("fsdp2", "0", lambda held: held.update(ONES), "no part of the same tensor"),
        ("fsdp2", "1", lambda held: held.update(ONES), "no part of the same tensor"),
        ("fsdp2", "0", lambda held: held.pop(W), "other ranks have 0.weight, rank 0 has not"),
        ("fsdp1", "01", lambda held: held[W]._local_shards.clear(), "no rank has a part"),
    ],
)
def test_parts_that_are_refused(kind: str, ranks: str, change: Any, said: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RANKS / kind, tmp_path / "m")
    for rank in ranks:
        path = folder / f"model_world_size_2_rank_{rank}.pt"
        with process(int(rank)):
            held = torch.load(path, weights_only=False)
            change(held)
            torch.save(held, path)
    with pytest.raises(ckptconv.CorruptCheckpoint, match=said):
        ckptconv.open(folder)


@pytest.mark.parametrize(
    ("rank", "name", "said"),
    [(1, "x", "3 of 4 ranks; missing: rank 1"), (0, "x_rank_0_of_1.pt", "holds 2 sets of files")],
)
def test_what_is_not_all_of_the_model(rank: int, name: str, said: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RANKS / "hsdp", tmp_path / "m")
    (folder / f"model_world_size_4_rank_{rank}.pt").rename(folder / name)
    with pytest.raises(ckptconv.CorruptCheckpoint, match=said):
        ckptconv.open(folder, from_="ranks")


def stack() -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False), nn.LayerNorm(3))


@pytest.mark.parametrize("inside", ["", "block."])
def test_flat_parameters_are_cut_in_the_order_of_a_template(inside: str, tmp_path: Path) -> None:
    source, expected = ckptconv.open(RANKS / "fsdp1_flat"), np.load(RANKS / "fsdp1.npz")
    given = {f"{inside}{n}": t for n, t in source.items()}
    like = torch.nn.ModuleDict({"block": stack()}) if inside else stack()
    torch.save(like.state_dict(), tmp_path / "like.pt")
    for template in (like, tmp_path / "like.pt"):
        report = ckptconv.convert(given, tmp_path / "out.npz", like=template, force=True)
        assert any("in the order of the template" in n.text for n in report.notes)
        with np.load(tmp_path / "out.npz") as got:
            assert {n: a.tobytes() for n, a in got.items()} == {
                f"{inside}{n}": a.tobytes() for n, a in expected.items()
            }


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (None, "only the model knows"),
        (RANKS / "fsdp1.npz", "only the model knows"),  # arrays in any order
        (torch.nn.LayerNorm(3), "has 61 elements, its parameters in the template 6"),
    ],
)
def test_flat_parameters_that_no_module_explains(like: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ckptconv.ConversionError, match=said):
        ckptconv.convert(RANKS / "fsdp1_flat", tmp_path / "out.npz", like=like)


def saved(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(value, folder / name)
    return folder


def test_ranks_without_parts_are_named_by_their_number(tmp_path: Path) -> None:
    files = {f"consolidated.{r:02d}.pth": {"w": torch.full((2,), float(r))} for r in range(3)}
    found = ckptconv.open(saved(tmp_path / "m", files))
    assert {n: t.numpy().tolist() for n, t in found.items()} == {f"rank_{r}.w": [r, r] for r in range(3)}
    assert "3 ranks stay apart" in found.notes[0].text


@pytest.mark.parametrize("files", [["x.rank1.pt", "x.rank2.pt"], ["lora_rank_4.pt", "lora_rank_8.pt"]])
def test_other_numbers_are_no_ranks(files: Sequence[str], tmp_path: Path) -> None:
    with pytest.raises(ckptconv.UnknownFormat):
        ckptconv.open(saved(tmp_path / "m", {n: {"w": torch.ones(2)} for n in files}))


# --- safetensors of a distributed run -------------------------------------------------------------------------------

WHOLE = np.arange(24, dtype="f4").reshape(4, 6)
Shards = list[dict[str, tuple[Any, Any]]]  # by name, what a process holds, and the index of its first element


def shards(folder: Path, held: Shards, *, of: Sequence[int] = ()) -> Path:
    """A folder as torch's HuggingFaceStorageWriter writes it."""
    folder.mkdir()
    for i, parts in enumerate(held, 1):
        info = json.dumps({n: {"saved_offsets": start} for n, (_, start) in parts.items() if start is not None})
        file = folder / f"shard-{i:05}-model-00001-of-{(of or [1] * i)[i - 1]:05}.safetensors"
        arrays = {n: np.array(a, order="C") for n, (a, _) in parts.items()}
        save_file(arrays, file, {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": info})
    return folder


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 1), (1, 2), (2, 3)])
def test_shards_are_joined(rows: int, columns: int, tmp_path: Path) -> None:
    h, w = 4 // rows, 6 // columns
    held: Shards = [{"w": (WHOLE[i : i + h, j : j + w], [i, j])} for i in range(0, 4, h) for j in range(0, 6, w)]
    held[0] |= {"one": (np.float32(3), []), "none": (np.zeros((0, 3), "f4"), [0, 0])}
    found = ckptconv.open(shards(tmp_path / "m", held))
    assert {n: t.shape for n, t in found.items()} == {"w": (4, 6), "one": (), "none": (0, 3)}
    assert (found["w"].numpy().tolist(), found.metadata) == (WHOLE.tolist(), {"format": "pt"})
    assert [n.kind for n in found.notes] == ["assumed"]
    ckptconv.zoo(tmp_path / "m", tmp_path / "out", to="npz")
    assert [p.name for p in (tmp_path / "out").glob("*.npz")] == ["m.npz"]
    one = tmp_path / "m" / f"shard-{len(held):05}-model-00001-of-00001.safetensors"
    ckptconv.convert(one, tmp_path / "part.safetensors", partial=True)  # which can be read by itself
    assert ckptconv.open(tmp_path / "part.safetensors")["w"].numpy().tolist() == WHOLE[-h:, -w:].tolist()


@pytest.mark.parametrize(
    ("second", "of", "said"),
    [
        ((WHOLE[3:], [3, 0]), (1, 1), r"do not fill its shape \[4, 6\]"),
        ((WHOLE[1:], [1, 0]), (1, 1), r"its chunk at \[1, 0\] overlaps"),
        ((WHOLE[2:].astype("f2"), [2, 0]), (1, 1), r"float16\[2, 6\], not a part of float32"),
        ((np.ones(3, "f4"), [3]), (1, 1), "not a part of float32"),
        ((WHOLE[2:], [2]), (1, 1), "does not say where this begins"),
        ((WHOLE[2:], [2, -1]), (1, 1), "does not say where this begins"),
        ((WHOLE[2:], [2.0, 0]), (1, 1), "does not say where this begins"),
        ((WHOLE[2:], None), (1, 1), "does not say where this begins"),
        ((WHOLE[2:], [2**62, 0]), (1, 1), "elements"),
        ((WHOLE[2:], [2, 0]), (1, 2), "shards of several checkpoints"),
    ],
)
def test_shards_that_do_not_fit(second: tuple[Any, Any], of: Sequence[int], said: str, tmp_path: Path) -> None:
    with pytest.raises(ckptconv.CorruptCheckpoint, match=said):
        ckptconv.open(shards(tmp_path / "m", [{"w": (WHOLE[:2], [0, 0])}, {"w": second}], of=of))


# --- ZeRO -------------------------------------------------------------------------------------------------------------


def concatenated(group: dict[str, Any], world: int, padded: bool) -> list[Any]:
    flat = torch.cat([w.reshape(-1) for w in group.values()])
    size = math.ceil(len(flat) / (2 * world)) * 2
    pieces = torch.cat([flat, torch.zeros(size * world - len(flat))]).split(size)
    return [p.clone() if padded else p[: max(0, len(flat) - r * size)].clone() for r, p in enumerate(pieces)]


def interleaved(group: dict[str, Any], world: int, padded: bool = True) -> list[Any]:
    cut = list[list[Any]]()
    for w in group.values():
        size = math.ceil(w.numel() / world)
        cut.append(list(torch.cat([w.reshape(-1), torch.zeros(size * world - w.numel())]).split(size)) if size else [])
    return [torch.cat([c[r] for c in cut if c]).clone() for r in range(world)]


def zero(folder: Path, stage: int, world: int, seed: int = 0) -> dict[str, Any]:
    """A checkpoint as DeepSpeed writes it; returns what is in it."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def some(count: int, name: str) -> dict[str, Any]:
        shapes = [tuple(chance.choices((1, 2, 3, 5), k=chance.randint(0, 3))) for _ in range(count)]
        return {f"{name}{i}": torch.randn(s, generator=generator) for i, s in enumerate(shapes)}

    groups = [some(chance.randint(1, 4), f"group{g}.") for g in range(chance.randint(1, 3))]
    moments = [{n: torch.randn(w.shape, generator=generator) for n, w in g.items()} for g in groups]
    frozen, buffers = some(chance.randint(0, 2), "frozen"), some(chance.randint(0, 2), "buffer")
    cut, padded = interleaved if stage == 3 else concatenated, chance.random() < 0.5
    flat, slots = ([cut(g, world, padded) for g in of] for of in (groups, moments))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest").write_text("step9")
    for r in range(world):
        states = [{"exp_avg": s[r], "step": torch.tensor(9.0), "qmap": torch.ones(256)} for s in slots]  # of 8 bits
        wrapped = states if stage < 3 and padded else {"state": dict(enumerate(states)), "param_groups": []}
        about = {"zero_stage": stage, "partition_count": [world] * len(groups) if padded else world}
        about |= {"fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups": [f[r] for f in flat]}
        about |= {"optimizer_state_dict" if stage == 3 else "base_optimizer_state": wrapped}
        half = "bf16_" if stage < 3 and padded else ""
        name = f"step9/{half}zero_pp_rank_{r}_mp_rank_00_optim_states.pt"
        saved(folder, {name: {"optimizer_state_dict": about}})
    every = {n: w for g in groups for n, w in g.items()}
    for r in range(world if stage == 3 else 1):
        rounded = {n: torch.empty(0) if stage == 3 else w.bfloat16() for n, w in every.items()}
        pieces = {n: interleaved({n: w}, world)[r] for n, w in frozen.items()} if stage == 3 else frozen
        model = {
            "module": rounded | buffers, "buffer_names": list(buffers), "shared_params": {"tied": "group0.0"},
            "param_shapes": [{n: w.shape for n, w in g.items()} for g in groups],
            "frozen_param_shapes": {n: w.shape for n, w in frozen.items()}, "frozen_param_fragments": pieces,
        }  # fmt: skip
        saved(folder, {f"step9/{f'zero_pp_rank_{r}_' if stage == 3 else ''}mp_rank_00_model_states.pt": model})
    slots_by_name = {f"optimizer.exp_avg.{n}": w for g in moments for n, w in g.items()}
    return every | frozen | buffers | {"tied": every["group0.0"]} | slots_by_name


def universal(folder: Path, stage: int, world: int, seed: int = 0) -> dict[str, Any]:
    """The same, as ds_to_universal.py makes it."""
    expected = zero(folder, stage, world, seed)
    for path in folder.glob("step9/*_optim_states.pt"):
        path.unlink()
    (folder / "latest").rename(folder / "latest_universal")
    for name, w in expected.items():
        before, at, group = name.rpartition("group")
        if at:
            slot = before.split(".")[1] if before else "fp32"
            value = w.reshape(-1).clone() if stage == 3 else {"param": w, "cat_dim": 0}
            saved(folder / "step9/zero" / f"group{group}", {f"{slot}.pt": value, "step.pt": torch.tensor(9.0)})
    saved(folder / "step9/zero", {"optimizer_state.pt": {}})
    return expected


@pytest.mark.parametrize("made", [zero, universal])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stage", [1, 3])
def test_zero(stage: int, world: int, made: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for seed in range(3):
        expected = made(tmp_path / str(seed), stage, world, seed)
        with ckptconv.open(tmp_path / str(seed)) as found:
            assert found.keys() == expected.keys()
            assert all(t.shape == expected[n].shape for n, t in found.items())
            assert all(t.numpy().tobytes() == expected[n].numpy().tobytes() for n, t in found.items())
            assert found.ties == (("group0.0", "tied"),)
            assert {t.role for n, t in found.items() if "exp_avg" in n} == {"slot"}


def module(folder: Path, change: Callable[[dict[str, Any]], Any], file: str = "*mp_rank_00_model_states.pt") -> None:
    path = next(folder.glob(f"step9/{file}"))
    held = torch.load(path, weights_only=False)
    change(held)
    torch.save(held, path)


def optimizer(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    module(folder, lambda held: change(held["optimizer_state_dict"]), "*zero_pp_rank_0_*optim_states.pt")


FLAT = "single_partition_of_fp32_groups"
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a rank is missing": (
        lambda f: next(f.glob("step9/*rank_1_*optim*")).unlink(),
        "1 of 2 ranks; missing: zero_pp_rank_1",
    ),
    "ranks of an earlier run": (
        lambda f: shutil.copy(
            next(f.glob("step9/*rank_1_*optim*")), f / "step9/zero_pp_rank_2_mp_rank_00_optim_states.pt"
        ),
        "has files of 3 of 2 ranks; some are of another run",
    ),
    "tensor parallel": (
        lambda f: (f / "step9/zero_pp_rank_0_mp_rank_01_optim_states.pt").write_bytes(b""),
        "are cut as well",
    ),
    "no count": (lambda f: optimizer(f, lambda d: d.update(partition_count="2")), "partition_count '2'"),
    "another folder": (lambda f: (f / "latest").write_text("../step9"), "not a folder beside it"),
    "a group too few": (lambda f: optimizer(f, lambda d: d[FLAT].pop()), FLAT),
    "a short group": (
        lambda f: optimizer(f, lambda d: d.update({FLAT: [torch.ones(1)] * len(d[FLAT])})),
        "elements|fill",
    ),
    "no flat tensor": (lambda f: optimizer(f, lambda d: d.update({FLAT: [3] * len(d[FLAT])})), "flat tensor"),
    "another dtype": (
        lambda f: optimizer(f, lambda d: d.update({FLAT: [t.double() for t in d[FLAT]]})),
        "different dtypes",
    ),
    "a large shape": (lambda f: module(f, lambda d: d["param_shapes"][0].update(x=(2**40, 2**40))), "more than 2\\^63"),
    "a shape of text": (lambda f: module(f, lambda d: d["param_shapes"][0].update(x="ab")), "shape"),
    "no names": (lambda f: module(f, lambda d: d.update(param_shapes=[3])), "names and shapes"),
    "an empty file": (lambda f: next(f.glob("step9/*rank_1_*optim*")).write_bytes(b""), "0 bytes, too few"),
    "experts": (lambda f: module(f, lambda d: d.update(ds_autoep_layers=[{}])), "experts"),
}


UNIVERSAL: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a parameter is missing": (lambda f: (f / "step9/zero/group0.0/fp32.pt").unlink(), "no fp32.pt of group0.0"),
    "no model": (lambda f: [p.unlink() for p in f.glob("step9/*model_states.pt")], "has no file that ends with"),
    "a flat tensor of another size": (
        lambda f: torch.save(torch.ones(1000), f / "step9/zero/group0.0/fp32.pt"),
        "not a tensor, or a flat one of the shape",
    ),
    "an object": (lambda f: torch.save({"param": 3}, f / "step9/zero/group0.0/exp_avg.pt"), "not a tensor, or"),
    "tensor parallel": (
        lambda f: shutil.copy(f / "step9/mp_rank_00_model_states.pt", f / "step9/mp_rank_01_model_states.pt"),
        "cut by tensor parallelism",
    ),
}


@pytest.mark.parametrize("case", UNIVERSAL)
def test_a_universal_checkpoint_that_is_refused(case: str, tmp_path: Path) -> None:
    universal(tmp_path / "m", 2, 2, 1)
    change, said = UNIVERSAL[case]
    change(tmp_path / "m")
    with pytest.raises(ckptconv.CkptError, match=said):
        ckptconv.open(tmp_path / "m", from_="deepspeed")


@pytest.mark.parametrize("case", HOSTILE)
def test_zero_that_is_refused(case: str, tmp_path: Path) -> None:
    zero(tmp_path / "m", 2, 2)
    change, said = HOSTILE[case]
    change(tmp_path / "m")
    kind = ckptconv.UnsafeCheckpoint if case == "another folder" else ckptconv.CorruptCheckpoint
    with pytest.raises(kind, match=said) as e:
        ckptconv.open(tmp_path / "m")
    assert str(tmp_path) in str(e.value)
