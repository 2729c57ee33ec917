"""Is this all of the model? Parts of one are an error in every verb, which names the rest; `partial` goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit import Run
from pickles import Call, Global, Id, archive

import ckptconv

W = {"w": np.ones(2, "f4")}
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
PARTS = {  # a file and those beside it: what the error says
    " ".join(SHARDS): "only a part of a model",
    SHARDS[2]: "model-{00001,00002}-of-00003",
    "model-00000-of-00002.safetensors": "model-00001-of-00002",
    "model_world_size_2_rank_0.pt": "model_world_size_2_rank_1.pt",
    "w_rank_1_of_2.pt": "w_rank_0_of_2.pt",
    "rank-00-of-02.pt": "rank-01-of-02.pt",
    "vae-00001-of-00002.fp16.safetensors": "vae-00002-of-00002.fp16.safetensors",
    "model_00002-of-00002.safetensors": "model_00001-of-00002.safetensors",
    "layer_01-model_00-model_states.pt layer_02-model_00-model_states.pt": "layer_02-model_00",
    "mp_rank_00_model_states.pt mp_rank_01_model_states.pt": "one rank",
    "mp_rank_01_model_states.pt": "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt zero_pp_rank_1_mp_rank_00_model_states.pt": "one rank",
    "consolidated.00.pth consolidated.01.pth": "one rank",
    "tp_rank_00/model.pt tp_rank_01/model.pt": "one rank",
    "x.rank0.pt x.rank1.pt": "the others have the rest: x.rank1.pt",
    "model_weights_tp_1.pt model_weights_tp_0.pt": "one rank",
    "model-1-of-2.safetensors": "model-2-of-2",
    "pruned-part2of2.safetensors": "pruned-part1of2.safetensors",
    "model_part-1.pt": "the others have the rest: model_part-0.pt",
    "last-rank-1-shard1.pt": "last-rank-0-shard0.pt",
    "last-rank-0-shard0.pt last-rank-1-shard1.pt": "last-rank-1-shard1.pt",
    "model-tp01.pt": "model-tp00.pt",
    "model-rank-1-part-0.safetensors": "model-rank-0-part-0.safetensors",
    "mp_rank_00_model_states.pt layer_1_expert_0_mp_rank_00_model_states.pt": "layer_1_expert_0",
    "expert_0_mp_rank_00_model_states.pt expert_1_mp_rank_00_model_states.pt": "expert_1_mp_rank",
    "part-00001-of-00002": "the rest is in part-00000-of-00002",
    "lora_rank_0.pt lora_rank_1.pt": "lora_rank_1.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": "give the folder",
    "layer_00-model_00-model_states.pt layer_00-model_01-model_states.pt": "layer_00-model_01",
}
DOUBTFUL = [  # names that parts have, and others as well
    "x.rank1.pt x.rank2.pt",
    "rank_0.pt",
    "model_rank_1.pt",
    "reshard-model_part-0.pt",
    "shard_1_3.pt",
    "pytorch_model.part0.pt",
    "pipeline_stage_1.pt",
    "shard_1/model.pt",
    "model_tp1.safetensors",
    "layer_00-model_00-model_states.pt",
]
ALL = [  # the same kinds of names, of what lacks nothing
    "model-00001-of-00001.safetensors",
    "mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "consolidated.00.pth consolidated.safetensors",
    "lora_rank_4.safetensors lora_rank_8.safetensors",
    "tp_rank_00/model.pt",
    "split-3-of-10.pt",
    "lora-1-of-2/model.pt",
    "lora-rank16.pt",
    "shard-00001-model-00001-of-00001.pt",
    "course-part1.pt",
    "model_v1.pt",
    "layer-1.pt",
    "step-1.pt",
    "franks_1.pt",
    "temp1.pt",
    "cp-0001.pt",
]


def torch_file(count: int = 2, **values: object) -> bytes:
    storage = Id(("storage", Global("torch.FloatStorage"), "0", "cpu", 2))
    tensor = Call(Global("torch._utils._rebuild_tensor_v2"), (storage, 0, (count,), (1,), False, {}))
    return archive({"w": tensor, **values}, {"0": W["w"].tobytes()})


def laid(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        raw = folder / name
        if raw.suffix == ".safetensors":
            ckptconv.save(W, raw)
        else:
            raw.write_bytes(torch_file())
    return folder / names[0]


@pytest.mark.parametrize("names", PARTS)
def test_a_part_is_an_error_that_names_the_rest(names: str, tmp_path: Path) -> None:
    source = laid(tmp_path, names.split())
    with pytest.raises(ckptconv.CorruptCheckpoint, match=re.escape(PARTS[names])):
        ckptconv.open(source)
    found = ckptconv.open(source, partial=True)
    assert list(found) == ["w"]
    assert any("not all of the model" in n.text for n in found.notes)


@pytest.mark.parametrize("names", ALL + DOUBTFUL)
def test_what_lacks_nothing_opens(names: str, tmp_path: Path) -> None:
    found = ckptconv.open(laid(tmp_path, names.split()))
    assert list(found) == ["w"]
    assert any("one part of several" in n.text for n in found.notes) == (names in DOUBTFUL)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (torch_file(mp_world_size=2), "mp_world_size = 2: it is what one of several"),
        (torch_file(0, param_shapes=[{"w": (5,)}]), r"1 placeholder without any element \(w\)"),
    ],
)
def test_deepspeed_says_what_there_is(file: bytes, says: str, tmp_path: Path) -> None:
    first = tmp_path / "mp_rank_00_model_states.pt"
    first.write_bytes(file)
    with pytest.raises(ckptconv.CorruptCheckpoint, match=says):
        ckptconv.open(first)


def test_a_lora_has_a_rank_of_its_own(tmp_path: Path) -> None:
    ckptconv.save({"q.lora_A.weight": np.ones(2, "f4")}, tmp_path / "rank_16.npz")
    assert not ckptconv.open(tmp_path / "rank_16.npz").notes


def as_npz(out: Path) -> Path:
    """The same tensor in a file that is complete."""
    path = out.with_suffix(".npz")
    ckptconv.save(W, path)
    return path


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "inspect": lambda part, out: ckptconv.inspect(part),
    "convert": lambda part, out: ckptconv.convert(part, out),
    "diff, A": lambda part, out: ckptconv.diff(part, as_npz(out)),
    "diff, B": lambda part, out: ckptconv.diff(as_npz(out), part),
    "verify": lambda part, out: ckptconv.verify(part),
    "check": lambda part, out: ckptconv.check(part),
    "report": lambda part, out: ckptconv.report(part, destination=out.with_suffix(".html")),
    "match": lambda part, out: ckptconv.match(part, as_npz(out)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_asks(verb: str, tmp_path: Path) -> None:
    part = laid(tmp_path, SHARDS)
    with pytest.raises(ckptconv.CorruptCheckpoint, match="only a part of a model"):
        VERBS[verb](part, tmp_path / "out.safetensors")


def test_all_parts_together_are_the_model(tmp_path: Path) -> None:
    sources = [tmp_path / name for name in SHARDS]
    for i, path in enumerate(sources):
        ckptconv.save({f"w{i}": np.ones(2, "f4")}, path)
    assert ckptconv.convert(sources, tmp_path / "all.npz").tensors == 3
    with pytest.raises(ckptconv.CorruptCheckpoint, match="00002-of-00003"):
        ckptconv.convert([sources[0], sources[2]], tmp_path / "some.npz")
    torch = pytest.importorskip("torch")
    module = torch.nn.ParameterDict({f"w{i}": torch.nn.Parameter(torch.zeros(2)) for i in range(3)})
    assert ckptconv.torch.load_into(module, sources).loaded == ("w0", "w1", "w2")


def test_a_folder_of_a_rank_is_named(tmp_path: Path, cli: Run) -> None:
    laid(tmp_path, [f"tp_rank_0{i}/model.pt" for i in (0, 1)])
    assert "is what one rank of a parallel run wrote" in cli("inspect", tmp_path / "tp_rank_01").stderr


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (SHARDS, "give all of them as sources"),
        (SHARDS[1:], "2 of the 3 files of a model; missing are model-00001"),
        ([f"zero_pp_rank_{i}_mp_rank_00_model_states.pt" for i in (0, 1)], "take the gathered model"),
        (["layer_01-model_00-model_states.pt", "mp_rank_00_model_states.pt"], "take the gathered model"),
        (["mp_rank_00_model_states.pt"], "has its weights in mp_rank_00_model_states.pt"),
        ([f"global_step2/layer_01-model_0{i}-model_states.pt" for i in (0, 1)], "global_step2 holds what the ranks"),
    ],
)
def test_a_folder_of_parts_is_named(files: list[str], said: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "ck").mkdir()
    laid(tmp_path / "ck", files)
    assert said in cli("inspect", tmp_path / "ck").stderr


def test_placeholders_without_elements_are_no_weights(tmp_path: Path) -> None:
    ckptconv.save({"fc.weight": np.zeros(0, "f4"), "fc.bias": np.zeros(0, "f4"), "buf": np.ones(2)}, tmp_path / "m.npz")
    with pytest.raises(ckptconv.CorruptCheckpoint, match=r"2 placeholders without any element \(fc.weight, fc.bias\)"):
        ckptconv.open(tmp_path / "m.npz")
    ckptconv.save({"queue": np.zeros(0, "f4"), "w.bias": np.zeros(0, "f4")}, tmp_path / "q.npz")
    assert not ckptconv.open(tmp_path / "q.npz").notes
