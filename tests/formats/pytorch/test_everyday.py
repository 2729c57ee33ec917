"""The everyday table of docs/pytorch.md: each file as its project builds it, its row's command, the names it gives."""

from __future__ import annotations

import argparse
import pickle
import re
import shlex
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kit import ROOT

import ckptconv

torch = pytest.importorskip("torch")
nn = torch.nn
AveragedModel = torch.optim.swa_utils.AveragedModel
PAGE = (ROOT / "docs" / "pytorch.md").read_text()
ROWS = [tuple(c.strip() for c in line.strip("| ").split(" | ")) for line in PAGE.splitlines() if "`ckptconv " in line]
ROWS = [row for row in ROWS if len(row) == 3]
Expected = dict[str, Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = Block()
        self.head = nn.Linear(4, 2)
        for p in (*self.parameters(), *self.buffers()):
            if p.is_floating_point():
                p.data.normal_()


def optimizer(net: Any) -> Any:
    made = torch.optim.AdamW(net.parameters())
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    made.step()
    return made.state_dict()


def saved(what: Any, path: Path, **options: Any) -> Path:
    torch.save(what, path, **options)
    return path


def arguments() -> argparse.Namespace:
    return argparse.Namespace(lr=0.1, data=Path("data/imagenet"), opt_betas=(0.9, 0.999), device=torch.device("cpu"))


@pytest.fixture
def fake() -> Iterator[Callable[[str, str, type], type]]:
    """A class of a package that is not installed."""
    made: list[str] = []

    def make(module: str, name: str, base: type) -> type:
        parts = module.split(".")
        for i in range(1, len(parts) + 1):
            stem = ".".join(parts[:i])
            if stem not in sys.modules:
                sys.modules[stem] = ModuleType(stem)
                made.append(stem)
        kind = type(name, (base,), {"__module__": module})
        setattr(sys.modules[module], name, kind)
        return kind

    yield make
    for name in made:
        del sys.modules[name]


class Run:
    """A training: a model, its moving average, the state of its optimizer, and its settings."""

    def __init__(self, fake: Any) -> None:
        self.fake, self.net, self.average = fake, Net(), Net()
        self.model, self.ema = self.net.state_dict(), self.average.state_dict()
        self.opt, self.args = optimizer(self.net), arguments()

    def prefixed(self, prefix: str) -> Expected:
        return OrderedDict((prefix + n, t) for n, t in self.model.items())

    @cached_property
    def diffusion(self) -> Expected:
        """latent-diffusion's: LitEma keeps its averages under the names of the model, without dots."""
        shadow = {n: t.detach() for n, t in self.average.named_parameters()}
        return {
            "betas": torch.ones(5), **self.prefixed("model.diffusion_model."),
            **{f"model_ema.diffusion_model{n.replace('.', '')}": t for n, t in shadow.items()},
            "model_ema.decay": torch.tensor(0.99), "model_ema.num_updates": torch.tensor(7, dtype=torch.int32),
            **{f"first_stage_model.{n}": t for n, t in nn.Linear(2, 2).state_dict().items()},
        }  # fmt: skip

    def yolo(self) -> Any:
        self.net.half()
        self.net.stride, self.net.names, self.net.yaml = torch.tensor([8.0, 16.0]), {0: "person"}, {"nc": 80}
        return self.net

    def made(self, module: str, name: str, base: type = dict) -> Any:
        """An object of a class that is not installed, with a setting."""
        thing = self.fake(module, name, base)()
        thing.__dict__["lr"] = 0.1
        return thing


LIGHTNING, LATER = "lightning.fabric.utilities.data", "pytorch_lightning.utilities.parsing"


def timm(r: Run) -> Any:
    return {
        "epoch": 1, "arch": "resnet", "state_dict": r.model, "optimizer": r.opt, "version": 2, "args": r.args,
        "amp_scaler": {"scale": 65536.0}, "state_dict_ema": r.ema, "metric": 0.7,
    }  # fmt: skip


def diffusion(r: Run) -> Any:
    return {
        "global_step": 470000, "state_dict": r.diffusion, "callbacks": {},
        "hyper_parameters": r.made(LATER, "AttributeDict"),
    }  # fmt: skip


def dino(r: Run) -> Any:
    return {
        "student": r.prefixed("module."), "teacher": r.ema, "optimizer": r.opt, "epoch": 3, "args": r.args,
        "dino_loss": {"center": torch.zeros(1, 8)}, "fp16_scaler": {},
    }  # fmt: skip


def detectron_zoo(run: Run, at: Path) -> None:
    arrays = {n: t.numpy() for n, t in run.model.items()}
    at.write_bytes(pickle.dumps({"model": arrays, "__author__": "X", "matching_heuristics": True}))


def trainer(run: Run, at: Path) -> None:
    at.mkdir()
    ckptconv.save({n: t.numpy() for n, t in run.model.items()}, at / "model.safetensors")
    rest = {"optimizer.pt": run.opt, "scheduler.pt": {"last_epoch": 3}, "training_args.bin": run.args}
    for name, value in (rest | {"rng_state.pth": {"cpu": torch.get_rng_state()}}).items():
        saved(value, at / name)
    (at / "trainer_state.json").write_text("{}")


def clip(run: Run, at: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 3, 8, 8)), str(at))
    run.model = net.state_dict()


def distributed(run: Run, at: Path) -> None:
    state = {"model": run.model, "optimizer": run.opt, "step": 3}
    pytest.importorskip("torch.distributed.checkpoint").save(state, checkpoint_id=at, no_dist=True)


def exported(run: Run, at: Path) -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.ones(1, 3),))
    torch.export.save(program, at)
    run.model = program.state_dict


MODEL, EMA, NET = attrgetter("model"), attrgetter("ema"), lambda r: r.net.state_dict()
MADE: dict[str, tuple[Callable[..., Any], Callable[[Run], Expected]]] = {  # what is saved, and expected
    "`torch.save(model.state_dict(), ...)`": (MODEL, MODEL),
    "the same, by PyTorch before 1.6": (MODEL, MODEL),
    "Lightning": (lambda r: {
        "epoch": 3, "global_step": 900, "pytorch-lightning_version": "2.4.0", "state_dict": r.model,
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {
            "monitor": "loss", "best_model_score": torch.tensor(0.25), "best_k_models": {"a.ckpt": torch.tensor(0.25)},
        }},
        "optimizer_states": [r.opt], "lr_schedulers": [{"last_epoch": 3}],
        "hparams_name": "kwargs", "hyper_parameters": r.made(LIGHTNING, "AttributeDict"),
    }, MODEL),
    "nanoGPT": (lambda r: {
        "model": r.model, "optimizer": r.opt, "model_args": {"n_layer": 2}, "iter_num": 100,
        "best_val_loss": torch.tensor(3.5), "config": {"lr": 6e-4},
    }, MODEL),
    "timm, training": (timm, MODEL),
    "timm, its moving average": (timm, EMA),
    "ConvNeXt, MAE, DeiT": (lambda r: {
        "model": r.model, "optimizer": r.opt, "epoch": 3, "scaler": {}, "args": r.args, "model_ema": r.ema,
    }, MODEL),
    "DiT, its moving average": (
        lambda r: {"model": r.prefixed("module."), "ema": r.ema, "opt": r.opt, "args": r.args},
        lambda r: {f"module.{n}": t for n, t in r.ema.items()},
    ),
    "Stable Diffusion": (diffusion, attrgetter("diffusion")),
    "Stable Diffusion, its UNet": (diffusion, MODEL),
    "YOLO, the model pickled whole": (lambda r: {
        "epoch": -1, "best_fitness": None, "model": r.yolo(), "ema": None, "optimizer": None, "date": "2024",
    }, NET),
    "YOLO, while training": (lambda r: {
        "epoch": 4, "best_fitness": np.float64(0.5), "model": None, "ema": r.net.half(), "updates": 9,
        "optimizer": r.opt, "train_args": {"lr0": 0.01},
    }, NET),
    "StyleGAN 2": (lambda r: {
        "g": r.model, "d": Net().state_dict(), "g_ema": r.ema, "g_optim": r.opt, "d_optim": optimizer(Net()),
        "args": r.args, "ada_aug_p": torch.tensor(0.1),
    }, EMA),
    "DINO": (dino, lambda r: r.prefixed("module.")),
    "DINO, the teacher": (dino, EMA),
    "fairseq": (lambda r: {
        "args": r.args, "cfg": r.made("omegaconf.dictconfig", "DictConfig", object), "model": r.model,
        "extra_state": {"epoch": 3}, "last_optimizer_state": r.opt, "optimizer_history": [{"num_updates": 9}],
    }, MODEL),
    "detectron2": (
        lambda r: {"model": r.model, "optimizer": r.opt, "scheduler": {"last_epoch": 2}, "iteration": 99}, MODEL
    ),
    "detectron2, the model zoo": (detectron_zoo, MODEL),
    "MMDetection": (
        lambda r: {"meta": {"epoch": 12, "CLASSES": ("a",)}, "state_dict": r.model, "optimizer": r.opt}, MODEL
    ),
    "fastai": (lambda r: {
        "model": r.model, "opt": {"hypers": [{"lr": 0.1}], "state": [{"grad_avg": torch.ones(2)}]},
    }, MODEL),
    "ESRGAN (BasicSR)": (lambda r: {"params": r.model, "params_ema": r.ema}, EMA),
    "DeepSpeed, a rank's file": (lambda r: {
        "module": r.model, "buffer_names": ["backbone.norm.running_mean"], "optimizer": None,
        "param_shapes": [OrderedDict((n, p.shape) for n, p in r.net.named_parameters())], "ds_config": {"zero": 2},
        "ds_version": "0.15", "lr_scheduler": {},
    }, MODEL),
    "Hugging Face Trainer's folder": (trainer, MODEL),
    "Whisper": (lambda r: {"dims": {"n_mels": 80}, "model_state_dict": r.model}, MODEL),
    "CLIP, a TorchScript archive": (clip, MODEL),
    "DistributedDataParallel": (lambda r: r.prefixed("module."), MODEL),
    "torch.compile within DistributedDataParallel": (lambda r: r.prefixed("module._orig_mod."), MODEL),
    "a compiled layer": (
        lambda r: {n.replace("backbone.", "backbone._orig_mod."): t for n, t in r.model.items()}, MODEL
    ),
    "`torch.save(model, ...)`": (attrgetter("net"), MODEL),
    "torch.distributed.checkpoint": (distributed, MODEL),
    "torch.export": (exported, MODEL),
}  # fmt: skip
WRITES = (detectron_zoo, trainer, clip, distributed, exported)  # which write what they make themselves


def options(words: list[str]) -> dict[str, Any]:
    """The command's options as keywords."""
    out: dict[str, Any] = {}
    while words:
        word = words.pop(0).removeprefix("--").replace("-", "_")
        out[word] = words.pop(0) if words and not words[0].startswith("-") else True
    return out


def test_every_row_is_built() -> None:
    assert [row[0] for row in ROWS] == list(MADE)
    assert len(ROWS) >= 18


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row[0]).strip("-"))
def test_everyday(row: tuple[str, str, str], fake: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    _, source, arrow, target, *rest = shlex.split(row[1].strip("`"))
    assert arrow == "-o"
    run = Run(fake)
    make, wanted = MADE[row[0]]
    if make in WRITES:
        make(run, tmp_path / source)
    else:
        saved(make(run), tmp_path / source, _use_new_zipfile_serialization="before 1.6" not in row[0])
    expected = wanted(run)
    report = ckptconv.convert(tmp_path / source, tmp_path / target, **options(rest))
    got = ckptconv.open(tmp_path / target)
    assert set(got) == set(expected)
    for name, t in expected.items():
        assert got[name].numpy().tobytes() == t.detach().contiguous().numpy().tobytes(), name
    hints = [
        n.text
        for n in report.notes
        if n.kind == "hint" and any(o[2:].replace("-", "_") in n.text for o in rest if o[:2] == "--")
    ]
    assert hints == [], "a hint names an option that was given"


def test_what_is_called_as_a_weight_changes_nothing(tmp_path: Path) -> None:
    """A counter beside the state dict that has the name of a buffer in it: a number, or a tensor."""
    for stray in (3, torch.tensor(3)):
        saved({"model": {"step": torch.ones(2), "fc.weight": torch.ones(2)}, "step": stray}, tmp_path / "a.pt")
        got = ckptconv.open(tmp_path / "a.pt")
        assert [n for n, t in got.items() if not t.role] == ["step", "fc.weight"]
        assert got["step"].shape == (2,)
        assert list(ckptconv.open(tmp_path / "a.pt", weights_only=True)) == ["step", "fc.weight"]


class Mega(nn.Module):
    """Parameters with the words that entries of a training state have, as MEGA's moving average has them."""

    def __init__(self) -> None:
        super().__init__()
        names = ("ema_gate", "swa", "optimal_query", "optimizer", "ema", "opt_state", "params", "model")
        self.layer = nn.ModuleDict({name: nn.Linear(1, 1) for name in names})
        self.ema = nn.Linear(1, 1)
        self.optimizer = nn.Linear(1, 1)
        for name in ("ema_expansion_matrix", "optim_scale", "step", "params", "count"):
            self.register_parameter(name, nn.Parameter(torch.ones(1)))

    def forward(self, x: Any) -> Any:
        for layer in (*self.layer.values(), self.ema, self.optimizer):
            x = layer(x)
        return x * self.ema_expansion_matrix * self.optim_scale * self.step * self.params * self.count


def in_chunks(net: Any, at: Path) -> None:
    pytest.importorskip("torch.distributed.checkpoint").save(net.state_dict(), checkpoint_id=at, no_dist=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "save",
    [
        lambda net, at: saved(net.state_dict(), at),
        lambda net, at: saved({n: t.numpy() for n, t in net.state_dict().items()}, at),
        lambda net, at: saved({"model": net, "step": torch.ones(1)}, at),
        lambda net, at: torch.jit.save(torch.jit.trace(net, torch.ones(1, 1)), str(at)),
        in_chunks,
    ],
    ids=["flat", "arrays", "an entry that is a module", "TorchScript", "DCP"],
)  # fmt: skip
def test_no_weight_is_dropped_for_a_word_in_its_name(save: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    net = Mega()
    save(net, tmp_path / "pytorch_model.bin")
    got = ckptconv.open(tmp_path / "pytorch_model.bin", opaque=True, weights_only=True)
    assert set(got) == {*net.state_dict()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "roles",
    [
        {
            "embedding.weight": "", "optimizer.state.exp_avg.embedding.weight": "slot",
            "optimizer.state.fp32_param.embedding.weight": "slot", "optimizer.state.step": "step",
        },
        {"model.w": "", "optim.state.w.momentum": "slot", "optim.w.exp_avg": "slot"},
        {"fc.w": "", "optimizer.lstm.fc.w": "", "optimizer.mlp.w": "", "optimizer.bias": ""},
    ],
    ids=["Megatron", "slots", "called as others"],
)  # fmt: skip
def test_an_optimizer_whose_keys_are_joined_in_one(roles: dict[str, str], tmp_path: Path) -> None:
    state = {name: torch.ones(1) for name in roles}
    pytest.importorskip("torch.distributed.checkpoint").save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    assert {n: t.role for n, t in ckptconv.open(tmp_path / "a").items()} == roles


A, B, C = (torch.full((1,), float(i)) for i in range(3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("saved_as", "weights"),
    [
        # counters of wrappers: torch's AveragedModel, ema-pytorch; a parameter may be called so
        (AveragedModel(nn.Linear(1, 1)), ["module.weight", "module.bias"]),
        ({"state_dict": AveragedModel(nn.Linear(1, 1)).state_dict()}, ["module.weight", "module.bias"]),
        ({"ema_model.w": A, "online_model.w": B, "initted": C, "step": C}, ["ema_model.w", "online_model.w"]),
        ({"n_averaged": A, "initted": B, "step": C}, ["n_averaged", "initted", "step"]),
        # a dictionary under a key with dots is no weight, a tuple may be one
        ({"net.model": {"w": A}, "net.optimizer": {"x": B}, "ema.model": {"w": C}}, ["net.model.w"]),
        ({"a.w": A, "ema.fc._packed_params": (B, None)}, ["a.w", "ema.fc._packed_params.0"]),
        # Haiku's state has modules, an optimizer's has tensors
        ({"params": {"fc.w": A}, "state": {"iter": B, "exp_avg": C}}, ["fc.w"]),
        ({"params": {"bn": {"w": A}}, "state": {"bn": {"mean": B}}}, ["bn.w", "state.bn.mean"]),
        ({"model": {"fc.w": A}, "buffers": {"obs": B}}, ["fc.w"]),
        ({"model": {"bn": {"w": A}}, "buffers": {"bn": {"mean": B}}}, ["bn.w", "buffers.bn.mean"]),
        (
            {"model": {"fc": {"w": A}}, "buffers": {"obs": {"x": B}, "reward": C}},
            ["fc.w", "buffers.obs.x", "buffers.reward"],
        ),
        # what nobody knows is a weight
        (
            {"weights": {"fc.w": A}, "buffers": {"rope.inv_freq": B}, "biases": {"w": C}, "amp": {"s": C}, "best": C},
            ["fc.w", "buffers.rope.inv_freq", "biases.w"],
        ),
        ({"fc.w": A, "ema_net.fc._extra_state": {"x": B}}, ["fc.w", "ema_net.fc._extra_state.x"]),
        (
            {"n": {"w": A, "rng": {"params": {"key": B}}, "ema": {"w": C}}},
            ["n.w", "n.rng.params.key", "n.ema.w"],
        ),
        # deep in a model, modules are called as they like
        (
            {"a": {"b": {"film_params": {"w": A}, "ema": {"w": B}, "step": C}}},
            ["a.b.film_params.w", "a.b.ema.w", "a.b.step"],
        ),
    ],
)
def test_what_is_no_weight_beside_weights(saved_as: Any, weights: list[str], tmp_path: Path) -> None:
    saved(saved_as, tmp_path / "a.pt")
    assert list(ckptconv.open(tmp_path / "a.pt", opaque=True, weights_only=True)) == weights


def test_the_model_within_a_wrapper_takes_its_weights(tmp_path: Path) -> None:
    before = AveragedModel(nn.Linear(1, 1))
    before.n_averaged.fill_(7)
    saved(before.state_dict(), tmp_path / "a.pt")
    module = AveragedModel(nn.Linear(1, 1))
    for source in (tmp_path / "a.pt", ckptconv.open(tmp_path / "a.pt")):
        module.n_averaged.fill_(0)
        assert ckptconv.torch.load_into(module, source).complete
        assert module.n_averaged == 7, "with 0 the next update would throw the average away"
    found = ckptconv.open(tmp_path / "a.pt", strip_prefix="module.")
    assert list(found) == list(ckptconv.open(tmp_path / "a.pt", strip_prefix="module"))
    assert not ckptconv.torch.load_into(nn.Linear(1, 1), found).unexpected


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1)
        for name in ("global_step", "iterations", "current_step", "loss_scale", "step"):
            self.register_buffer(name, torch.tensor(0))
        self.register_buffer("train_step", torch.zeros(2))


def test_a_module_takes_its_own_counters(tmp_path: Path) -> None:
    """Those in its state dict, not those of the training beside it, nor of another shape."""
    state = {n: torch.ones_like(t) for n, t in Counting().state_dict().items()}
    ckptconv.save(state, tmp_path / "bare.safetensors")
    saved(state, tmp_path / "bare.pt")
    saved({"model": state, "global_step": torch.tensor(9), "step": torch.tensor(9)}, tmp_path / "both.pt")
    for name in "bare.safetensors", "bare.pt", "both.pt":
        for source in tmp_path / name, ckptconv.open(tmp_path / name):
            assert not ckptconv.torch.load_into(net := Counting(), source).missing
            assert all(t.eq(1).all() for t in net.state_dict().values())
    counters = ("global_step", "iterations", "current_step", "loss_scale", "train_step")
    rest = {n: t for n, t in state.items() if n not in counters}
    saved({"model": rest, **{n: torch.tensor(9) for n in counters}}, tmp_path / "beside.pt")
    saved(rest | {"train_step": torch.tensor(9)}, tmp_path / "shape.pt")
    for name, missing in ("beside.pt", set(counters)), ("shape.pt", set(counters)):
        assert {*ckptconv.torch.load_into(net := Counting(), tmp_path / name).missing} == missing
        assert not any(net.get_buffer(n).any() for n in missing)


def test_a_module_takes_its_own_weights_whatever_they_are_called(tmp_path: Path) -> None:
    saved(Mega().state_dict(), tmp_path / "a.pt")
    net = Mega()
    nn.init.zeros_(net.ema.weight)
    ckptconv.torch.load_into(net, tmp_path / "a.pt")
    assert net.ema.weight.item() != 0


@pytest.mark.parametrize(
    ("prefix", "option"),
    [
        ("module.", "module."), ("module._orig_mod.", "module.,_orig_mod."),
        ("_forward_module.", "_forward_module."),
    ],
)  # fmt: skip
def test_hints_name_the_option_and_disappear(prefix: str, option: str, tmp_path: Path) -> None:
    net = Net()
    saved({"state_dict": {prefix + n: t for n, t in net.state_dict().items()}}, tmp_path / "a.pt")
    (hint,) = [n.text for n in ckptconv.open(tmp_path / "a.pt").notes if n.kind == "hint"]
    assert f"strip_prefix='{option}'" in hint
    got = ckptconv.open(tmp_path / "a.pt", strip_prefix=option)
    assert not [n for n in got.notes if n.kind == "hint"]
    assert list(got) == list(net.state_dict())


def test_at_says_what_there_is(tmp_path: Path) -> None:
    saved({"state_dict": Net().state_dict(), "ema": {"a": {"w": torch.ones(2)}}, "epoch": 1}, tmp_path / "a.pt")
    assert list(ckptconv.open(tmp_path / "a.pt", at="ema.a")) == ["w"]
    assert list(ckptconv.open(tmp_path / "a.pt", at="state_dict")) == list(Net().state_dict())
    assert list(ckptconv.open(tmp_path / "a.pt", at="state_dict.head")) == ["weight", "bias"]
    with pytest.raises(ckptconv.UsageError, match="did you mean state_dict"):
        ckptconv.open(tmp_path / "a.pt", at="state_dicts")
    with pytest.raises(ckptconv.UsageError, match=r"no name begins with 'nodule\.'"):
        ckptconv.open(tmp_path / "a.pt", strip_prefix="nodule.")


def test_a_weight_of_two_names_has_one_average(tmp_path: Path) -> None:
    """Programs average parameters, of which each has one name; the other name kept the weight, and the tie was lost."""
    shared, other = torch.ones(4, 3), torch.ones(3, 3)
    weights = {"emb.weight": shared, "l.weight": other, "head.weight": shared}
    found = [shared + 10, other + 20]
    average = {"state_dict_ema": {"emb.weight": found[0], "l.weight": found[1]}}
    saved({"state_dict": weights, **average}, tmp_path / "a.pt")
    got = ckptconv.open(tmp_path / "a.pt", ema=True, weights_only=True)
    assert {n: t.numpy().ravel()[0] for n, t in got.items()} == {"emb.weight": 11, "l.weight": 21, "head.weight": 11}
    assert got.owners()["head.weight"] == "emb.weight"
    assert not [n for n in got.notes if "no moving average" in n.text]


def test_settings_need_no_opaque(fake: Any, tmp_path: Path) -> None:
    import collections
    import datetime
    import decimal
    import uuid

    values = {
        "namespace": arguments(), "path": Path("a/b"), "when": datetime.datetime(2024, 1, 2), "id": uuid.uuid4(),
        "span": datetime.timedelta(1), "day": datetime.date(2024, 1, 2), "zone": datetime.timezone.utc,
        "deque": collections.deque([1], 4), "counter": collections.Counter("aab"), "price": decimal.Decimal("1.5"),
        "size": torch.Size((2, 3)), "device": torch.device("cuda", 1), "dtype": torch.bfloat16,
        "layout": torch.sparse_coo, "number": np.float32(1.5), "kind": np.dtype("f4"), "type": np.int64,
        "default": collections.defaultdict(list, a=[1]), "set": {1, 2}, "frozen": frozenset({1}), "complex": 1j,
        "easy": fake("easydict", "EasyDict", dict)(a=1), "omega": fake("omegaconf.listconfig", "ListConfig", object)(),
    }  # fmt: skip
    for new in (True, False):
        saved({"model": Net().state_dict(), **values}, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
        got = ckptconv.open(tmp_path / "a.pt")
        assert list(got) == list(Net().state_dict())
        assert not [n for n in got.notes if "unknown classes" in n.text]
        assert got.details["values"]["path"] == "a/b"
        assert got.details["values"]["namespace.lr"] == 0.1


def test_the_hint_names_the_entry_of_an_entry(tmp_path: Path) -> None:
    """{"checkpoint": {"state_dict": ...}}: the option that the hint names gives the names of state_dict()."""
    net = Net()
    saved({"checkpoint": {"state_dict": net.state_dict(), "ema": {"w": torch.ones(3)}}, "epoch": 3}, tmp_path / "a.pt")
    (hint,) = [n.text for n in ckptconv.open(tmp_path / "a.pt").notes if n.kind == "hint"]
    assert "at='checkpoint.state_dict' takes it" in hint
    got = ckptconv.open(tmp_path / "a.pt", at="checkpoint.state_dict")
    assert list(got) == list(net.state_dict())
    assert not [n for n in got.notes if n.kind == "hint"]


def test_an_optimizer_alone_has_no_weights(tmp_path: Path) -> None:
    saved(optimizer(Net()), tmp_path / "optimizer.pt")
    with pytest.raises(ckptconv.UsageError, match=r"weights_only=True leaves nothing of \d+ optimizer slots"):
        ckptconv.open(tmp_path / "optimizer.pt", weights_only=True)
    saved({"epoch": 3}, tmp_path / "epoch.pt")
    assert "this checkpoint holds no tensors" in [n.text for n in ckptconv.open(tmp_path / "epoch.pt").notes]
