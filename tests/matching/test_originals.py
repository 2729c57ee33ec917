"""`--check` with the original itself: the functions that docs/match.md gives for Keras models and SavedModels."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT

import ckptconv

pytest.importorskip("scipy", reason="matching by names is an extra")
torch = pytest.importorskip("torch", reason="--check runs a module of torch")
X = np.random.default_rng(4).normal(size=(3, 7, 8, 2)).astype("f4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Keras, saved by Keras and by TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow", reason="the original is run by TensorFlow")
    keras = pytest.importorskip("keras", reason="the original is run by Keras")
    keras.utils.set_random_seed(5)
    layers = [
        keras.layers.Conv2D(4, 3, name="first"), keras.layers.Conv2D(4, 1, name="second"),
        keras.layers.Flatten(name="flat"), keras.layers.Dense(5, name="head"),
    ]  # fmt: skip
    model = keras.Sequential([keras.Input((7, 8, 2)), *layers])
    for v in model.weights:
        v.assign(np.random.default_rng(len(v.shape)).normal(size=v.shape))
    to = tmp_path_factory.mktemp("originals")
    model.save(to / "original.keras")
    model.export(to / "original", verbose=False)
    return to


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(2, 4, 3), torch.nn.Conv2d(4, 4, 1)
        self.c = torch.nn.Linear(120, 5)

    def forward(self, x: Any) -> Any:
        return self.c(self.b(self.a(x)).flatten(1))


def functions() -> dict[str, Any]:
    """What the page says to write."""
    page = (ROOT / "docs" / "match.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def keras_model" in c)
    found: dict[str, Any] = {}
    exec(code, found)
    return found


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize("name", ["keras_model", "saved_model"])
def test_the_original_is_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    from ckptconv.torch import load_into

    module = Net()
    found = ckptconv.match("original.keras", module, check=({"x": X}, functions()[name]))
    assert found.proof is not None
    assert found.proof.found.same
    assert found.proposal.doubtful == []
    loaded = load_into(Net(), "original.keras", converter=rules(found))
    assert loaded.complete


def rules(found: ckptconv.Match) -> str:
    Path("rules.toml").write_text(found.rules)
    return "rules.toml"


class Shuffled(torch.nn.Module):
    """Six layers that are defined in another order than they run, under names that say nothing."""

    def __init__(self) -> None:
        super().__init__()
        for name in "qxbzma":
            setattr(self, name, torch.nn.Linear(7, 7))

    def forward(self, x: Any) -> Any:
        for name in "mbaqzx":
            x = torch.tanh(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("turned", [False, True])
def test_the_order_of_execution_is_evidence(turned: bool, tmp_path: Path) -> None:
    torch.manual_seed(2)
    trained = Shuffled().eval()
    with torch.no_grad():
        for p in trained.parameters():
            p.mul_(3)
    source = {}
    for k, name in enumerate("mbaqzx", 1):
        layer = getattr(trained, name)
        weight = layer.weight.detach().numpy()
        source |= {f"net/dense_{k}/{'kernel' if turned else 'w'}": weight.T if turned else weight}
        source |= {f"net/dense_{k}/bias": layer.bias.detach().numpy()}
    x = np.random.default_rng(3).normal(size=(64, 7)).astype("f4")
    with torch.no_grad():
        wanted = trained(torch.from_numpy(x)).numpy()
    ckptconv.save(source, tmp_path / "a.npz")
    found = ckptconv.match(tmp_path / "a.npz", Shuffled(), check=({"x": x}, {"y": wanted}))
    assert found.proof is not None
    assert found.proof.found.same
    assert not any("exchanged" in text for text in found.proof.kept)
    assert {(p.targets[0], p.evidence, p.sure) for p in found.proposal.pairs if "dense_1" in p.sources[0]} == {
        ("m.weight", "proved", True), ("m.bias", "proved", True),
    }  # fmt: skip


class Table(torch.nn.Module):
    """A bias that is looked up: indices are tensors of the checkpoint, and must not lead out of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = torch.nn.Parameter(torch.zeros(9, 5)), torch.nn.Linear(5, 5)
        self.register_buffer("lookup", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        return self.out(x + self.table[self.lookup])


@pytest.mark.parametrize("index", [[8, 1, 7, 3], [9, 1, 7, 3]])
def test_indices_that_lead_out_of_a_table_end_no_search(index: list[int], tmp_path: Path) -> None:
    """Those that do already in the source depart, and are said to."""
    rng = np.random.default_rng(1)
    table, kernel, bias, x = (rng.normal(size=s).astype("f4") for s in ((9, 5), (5, 5), (5,), (4, 5)))
    source = {"net/table": table, "net/index": np.array(index), "net/dense/kernel": kernel, "net/dense/bias": bias}
    wanted = (x + table[np.minimum(index, 8)]) @ kernel + bias
    ckptconv.save(source, tmp_path / "a.npz")
    found = ckptconv.match(tmp_path / "a.npz", Table(), check=({"x": x}, {"y": wanted}))
    assert found.proof is not None
    assert found.proof.found.same is (index[0] == 8)
    proved = {p.targets[0] for p in found.proposal.pairs if p.evidence == "proved"}
    assert proved == ({"lookup", "out.weight", "out.bias"} if index[0] == 8 else set())


class Scaled(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.dense, self.scale = torch.nn.Linear(5, 5, bias=False), scale

    def forward(self, x: Any) -> Any:
        return self.scale * self.dense(x)


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_outputs_agree_by_their_own_scale(scale: float, tmp_path: Path) -> None:
    """Of tiny ones a wrong matrix is no float error, and of huge ones float error is no wrong matrix."""
    rng = np.random.default_rng(1)
    weight, x = rng.normal(size=(5, 5)).astype("f4"), rng.normal(size=(4, 5)).astype("f4")
    ckptconv.save({"net/dense/kernel": weight}, tmp_path / "a.npz")
    wanted = scale * (x @ weight.T) * (1 + 1e-6 * rng.normal(size=(4, 5))) + 1e-6 * scale
    found = ckptconv.match(tmp_path / "a.npz", Scaled(scale), check=({"x": x}, {"y": wanted.astype("f4")}))
    assert found.proof is not None
    assert found.proof.found.same
    (only,) = found.proposal.pairs
    assert (only.order.text, only.evidence) == ("", "proved")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({}, "the outputs are empty"),
        ({"y": np.full((4, 5), np.nan)}, "output y has NaN"),
        ({"y": np.zeros((0, 5))}, "output y has no element"),
        ({"y": np.array(["a"])}, "output y holds <U1"),
    ],
)
def test_outputs_that_prove_nothing(wanted: dict[str, Any], why: str, tmp_path: Path) -> None:
    ckptconv.save({"net/dense/kernel": np.eye(5, dtype="f4")}, tmp_path / "a.npz")
    with pytest.raises(ckptconv.UsageError, match=why):
        ckptconv.match(tmp_path / "a.npz", Scaled(1), check=({"x": np.zeros((4, 5), "f4")}, wanted))


class Faint(torch.nn.Module):
    """Two layers that the output hardly depends on, defined in another order than the original's."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.p, self.main = (torch.nn.Linear(6, 6 + (k == 2)) for k in range(3))

    def forward(self, x: Any) -> Any:
        faint = -2 * self.q(x) + self.p(x)
        return torch.cat([self.main(x), 1e-5 * faint], -1) @ torch.ones(13, 3)


def test_of_answers_within_the_tolerance_the_one_that_is_nearer_by_far_is_kept(tmp_path: Path) -> None:
    torch.manual_seed(4)
    original = Faint().eval()
    source = {}
    for k, layer in enumerate((original.p, original.q, original.main), 1):
        source |= {
            f"net/dense_{k}/kernel": layer.weight.detach().numpy().T,
            f"net/dense_{k}/bias": layer.bias.detach().numpy(),
        }
    ckptconv.save(source, tmp_path / "a.npz")
    x = np.random.default_rng(3).normal(size=(64, 6)).astype("f4")
    with torch.no_grad():
        wanted = original(torch.from_numpy(x)).numpy()
    module = Faint()
    found = ckptconv.match(tmp_path / "a.npz", module, check=({"x": x}, {"y": wanted}))
    assert found.proof is not None
    assert found.proof.kept == ("q and p exchanged",)
    assert torch.equal(module.p.weight, original.p.weight)
