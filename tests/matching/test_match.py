"""Matching: published pairs against what the shipped converters make of them, and every trap on its own."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import ROOT, SHARED, examples, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint
from ckptconv.cli.main import main
from ckptconv.errors import CkptError
from ckptconv.matching.modules.solve import NUMBERS
from ckptconv.matching.pairs import Proposal
from ckptconv.matching.proposal import CHANGED, FOLDED, propose as match
from ckptconv.matching.rules import toml
from ckptconv.rules import library, passes
from ckptconv.rules.apply import apply
from ckptconv.rules.converter import Converter
from ckptconv.rules.library import lint

pytest.importorskip("scipy", reason="matching by names is an extra")
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
    return [pytest.param(c, id=c.name) for c in found]


def noise(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("f4")


def proposed(found: Proposal) -> Converter:
    converter = library.parse(toml(found, "test"), "proposed")
    assert lint(converter) == []
    return converter


def leads(found: Proposal, a: Checkpoint, b: Checkpoint) -> Checkpoint:
    """The rules give the target bit for bit, but for what says that it differs, and back the source."""
    converter = proposed(found)
    made = apply(converter, a)
    assert not set(made) - set(b)
    changed = {n for p in found.pairs if CHANGED in p.why for n in p.targets}
    for name, t in made.items():
        assert t.shape == b[name].shape
        assert name in changed or t.numpy().tobytes() == b[name].numpy().tobytes(), name
    back = apply(converter.inverse, made)
    assert set(back) == {n for n, t in a.items() if not t.role} - set(found.source_only) - set(found.copies)
    for name, t in back.items():
        assert t.numpy().tobytes() == a[name].numpy().tobytes(), name
    return made


# --- published pairs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_samples(case: Any) -> None:
    a, b = case.open()
    try:
        truth = BENCH.truth_of(a, case.converter)
    except CkptError as e:
        pytest.skip(e.message)  # it asks for a parameter
    found = match(a, b)
    score = BENCH.score(found, a, truth, BENCH.lost_by(truth, b), True)
    assert (score.right, score.wrong) == (score.total, 0)
    leads(found, a, b)
    named = match(a, b, values=False)
    score = BENCH.score(named, a, truth, set(), False)
    assert score.unmarked == 0
    if case.converter in BENCH.FILES:
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
    "spatial axes swapped": ({"c/kernel": K}, {"c.weight": K.transpose(3, 2, 1, 0)}),
    "depthwise": ({"c/depthwise_kernel": (D := noise(3, 3, 8, 1))}, {"c.weight": D.transpose(2, 3, 0, 1)}),
    "qkv cut": (
        {"qkv/kernel": Q},
        dict(zip(("v.weight", "q.weight", "k.weight"), (Q[:, 12:].T, Q[:, :6].T, Q[:, 6:12].T), strict=True)),
    ),
    "qkv joined": (
        {"k/kernel": Q[:, :6], "q/kernel": Q[:, 6:12], "v/kernel": Q[:, 12:]},
        {"qkv.weight": np.concatenate([Q[:, 6:12].T, Q[:, :6].T, Q[:, 12:].T])},
    ),
    "cut unevenly": ({"kv": Q}, {"m.k": Q[:, :5], "m.v": Q[:, 5:]}),
    "lstm of TensorFlow": (
        {"cell/kernel": LSTM},
        {"weight_ih_l0": blocks(LSTM, 4, (0, 2, 1, 3))[:2].T, "weight_hh_l0": blocks(LSTM, 4, (0, 2, 1, 3))[2:].T},
    ),
    "gru of Keras": ({"gru/kernel": GRU}, {"weight_ih_l0": blocks(GRU, 3, (1, 0, 2)).T}),
    "gru bias, two in one": (
        {"gru/bias": BIAS},
        {"bias_ih_l0": blocks(BIAS, 3, (1, 0, 2))[0], "bias_hh_l0": blocks(BIAS, 3, (1, 0, 2))[1]},
    ),
    "experts stacked": (
        {f"moe/expert_{i}/kernel": e for i, e in enumerate(EXPERTS)},
        {"moe.experts": np.stack([e.T for e in EXPERTS])},
    ),
    "experts cut": ({"moe/experts": np.stack(EXPERTS)}, {f"moe.{i}.weight": e.T for i, e in enumerate(EXPERTS)}),
    "flattened the other way": (
        {"d/kernel": (F := noise(24, 7))},
        {"d.weight": F.reshape(2, 3, 4, 7).transpose(3, 2, 0, 1).reshape(7, 24)},
    ),
    "heads": ({"att/kernel": (H := noise(6, 2, 3))}, {"att.weight": H.reshape(6, 6).T}),
    "signs and nans": ({"s": np.array([-0.0, 0.0, np.nan, 1], "f4")}, {"t": np.array([-0.0, 0.0, np.nan, 1], "f4")}),
    "bytes and halves": (
        {"s": np.arange(7, dtype="u1"), "h": noise(4).astype("f2")},
        {"x": np.arange(7, dtype="u1"), "y": None},
    ),
}
TRAPS["names say nothing"] = (TRAPS["names say nothing"][0], {"q": TRAPS["names say nothing"][0]["b"], "r": X.T})
TRAPS["bytes and halves"][1]["y"] = TRAPS["bytes and halves"][0]["h"]


@pytest.mark.parametrize("trap", TRAPS)
def test_values_decide(trap: str) -> None:
    a, b = (in_memory({n: np.ascontiguousarray(x) for n, x in side.items()}) for side in TRAPS[trap])
    found = match(a, b)
    assert not found.assumed
    assert not found.target_only
    assert set(leads(found, a, b)) == set(b)


def test_qkv_of_several_layers_is_one_rule() -> None:
    a = {f"l_{i}/qkv/kernel": noise(4, 12) for i in range(3)}
    b = {
        f"h.{i}.{p}.weight": np.ascontiguousarray(x[:, 4 * k : 4 * k + 4].T)
        for i, x in enumerate(a.values())
        for k, p in enumerate("qkv")
    }
    found = match(in_memory(a), in_memory(b))
    leads(found, in_memory(a), in_memory(b))
    assert toml(found).count("[[rule]]") == 1


def test_a_scalar_beside_each_of_query_key_and_value() -> None:
    """As the alpha of kohya's LoRAs."""
    leaves = {"down.weight": (2, 4), "alpha": ()}, {"lora_A.weight": (2, 4)}
    a, b = (in_memory({f"to_{n}.{k}": noise(*shape) for n in "qkv" for k, shape in side.items()}) for side in leaves)
    assert len(match(a, b).pairs) == 3


def test_constants_are_paired_by_names_and_never_with_another_value() -> None:
    names = {
        "bn{}/gamma": ("norm{}.weight", 1),
        "bn{}/beta": ("norm{}.bias", 0),
        "bn{}/moving_mean": ("norm{}.running_mean", 0),
    }
    a, b = {"d/kernel": X}, {"d.weight": X.T.copy()}
    for i in range(2):
        for name, (other, value) in names.items():
            a[name.format(i)] = b[other.format(i)] = np.full(4, value, "f4")
    a["bn0/gamma"], b["norm1.weight"] = noise(4), noise(4)  # what was trained has no partner
    found = match(in_memory(a), in_memory(b))
    pairs = {p.sources[0]: p for p in found.pairs}
    assert set(pairs) == {"d/kernel", "bn0/beta", "bn0/moving_mean", "bn1/beta", "bn1/moving_mean", "bn1/gamma"}
    assert pairs["bn1/gamma"].targets == ("norm0.weight",)
    assert not pairs["bn1/gamma"].sure
    assert {p.evidence for n, p in pairs.items() if n != "d/kernel"} == {"equal"}
    assert pairs["bn1/moving_mean"].targets == ("norm1.running_mean",)


def test_equal_tensors_and_those_trained_further_are_paired_by_names_and_marked() -> None:
    a = {"enc/q/kernel": X, "enc/k/kernel": X, "head/kernel": noise(6, 3), "new/kernel": X + 1, "new/bias": X[0] * 0}
    b = {"enc.k.weight": X.T.copy(), "enc.q.weight": X.T.copy(), "head.weight": a["head/kernel"].T.copy(),
         "new.weight": X.T + 2, "new.bias": X[0]}  # fmt: skip
    found = match(in_memory(a), in_memory(b))
    assert {p.sources[0]: (p.targets[0], p.sure) for p in found.pairs} == {
        "enc/q/kernel": ("enc.q.weight", False),
        "enc/k/kernel": ("enc.k.weight", False),
        "head/kernel": ("head.weight", True),
        "new/kernel": ("new.weight", False),
        "new/bias": ("new.bias", False),
    }
    assert "# could also be enc.k.weight" in toml(found)


def test_ties() -> None:
    a = in_memory({"emb/embeddings": X, "d/kernel": noise(6, 6)})
    b = {"emb.weight": X, "head.weight": X, "d.weight": a["d/kernel"].numpy().T.copy()}
    found = match(a, in_memory(b))
    assert found.ties == (("emb.weight", "head.weight"),)
    assert set(leads(found, a, in_memory(b))) == set(b)
    tied = in_memory(b, ties=found.ties)
    assert set(apply(proposed(match(a, tied, values=False)), a)) == set(b)
    assert not match(tied, in_memory({n: v + 1 for n, v in b.items()})).target_only


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_that_hold_query_key_and_value_are_found(heads: int) -> None:
    """Megatron and GPT-NeoX store q, k and v of a head beside each other."""
    q, k, v = (noise(6, 8) for _ in range(3))
    fused = np.stack([x.reshape(6, heads, -1) for x in (q, k, v)], axis=2).reshape(6, 24)
    a = in_memory({"att/qkv/kernel": fused})
    b = in_memory({f"att.{n}.weight": x.T.copy() for n, x in zip("qkv", (q, k, v), strict=True)})
    assert not match(a, b).assumed
    leads(match(a, b), a, b)


# --- modules ----------------------------------------------------------------------------------------------------------


def ports() -> Any:
    pytest.importorskip("torch", reason="ports are into modules of torch")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module("match_ports")


PORTS = [  # those that load by names alone
    "conv-bn", "mini-x", "splice", "unet", "cred", "tagger", "cells", "gpt", "encoder", "vit", "moe", "resnet",
    "mobilenet", "efficientnet", "mixer", "slim", "bilm", "flax-vit", "vgg",
    "eegnet", "ocr", "keras1", "flax-lstm", "cudnn", "gru", "spleeter", "wave", "banks", "conv-lstm", "haiku-gpt",
    "graph", "flax-resnet", "haiku-resnet", "densenet", "convnext", "masked",
    "clip", "speech", "dcgan", "vae", "decoder", "perceiver",
]  # fmt: skip


@pytest.mark.parametrize("name", PORTS)
def test_ports_into_fresh_modules(name: str, tmp_path: Path) -> None:
    """No values to compare: names, shapes and the order of modules decide, and nothing that is wrong is unmarked."""
    row = ports().run(ports().PORTS[name], tmp_path, check=False)
    assert row.unmarked == 0
    assert row.names
    assert row.right == row.total


# --- traps, by names --------------------------------------------------------------------------------------------------


def by_name(a: dict[str, tuple[int, ...]], b: dict[str, tuple[int, ...]]) -> Proposal:
    sides = (in_memory({n: np.zeros(s, "f4") for n, s in side.items()}) for side in (a, b))
    return match(*sides, values=False)


def test_numbers_may_be_shifted() -> None:
    a = {f"enc/layer_{i}/{p}/kernel": (4, n) for i in range(1, 4) for n, p in ((5, "wide"), (6, "wider"))}
    b = {f"enc.layers.{i}.{p}.weight": (n, 4) for i in range(3) for n, p in ((5, "wide"), (6, "wider"))}
    found = by_name(a, b)
    assert {p.why for p in found.pairs} == {(NUMBERS,)}
    assert 'i = "int-1"' in toml(found)
    assert len(proposed(found).rules) == 2


FC = {"fc.weight": (3, 8), "fc.bias": (3,)}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (FC | {"in.bias": (8,)}, FC | {"in.weight": (8, 8), "in_norm.bias": (8,), "in_norm.weight": (8,)}),
        ({"n.bias": (4,), "n.running_var": (4,)}, {"n.bias": (4,), "n.weight": (4,)}),
    ],
)
def test_what_has_another_role_is_marked(a: dict[str, tuple[int, ...]], b: dict[str, tuple[int, ...]]) -> None:
    assert all(p.sources == p.targets for p in by_name(a, b).pairs if p.sure)


def test_gates_are_assumed() -> None:
    a = {"rnn/gru_cell/kernel": (5, 12), "rnn/gru_cell/recurrent_kernel": (4, 12)}
    b = {"rnn.weight_ih_l0": (12, 5), "rnn.weight_hh_l0": (12, 4), "rnn.bias_ih_l0": (12,), "rnn.bias_hh_l0": (12,)}
    found = by_name(a | {"rnn/gru_cell/bias": (12,)}, b)
    assert all(not p.sure for p in found.pairs)
    kernels = {p.targets[0]: p for p in found.pairs if "kernel" in p.sources[0]}
    assert kernels["rnn.weight_ih_l0"].sources == ("rnn/gru_cell/kernel",)
    # (12, 5) is no vocabulary that was padded
    assert {*by_name(FC | {"gru_cell/candidate/kernel": (5, 9)}, FC | b).target_only} == b.keys()
    assert kernels["rnn.weight_hh_l0"].order.text == "i (h.z + h.r + h.n) -> (h.r + h.z + h.n) i"
    (bias,) = (p for p in found.pairs if "bias" in p.sources[0])  # one bias for two: the other is filled with zeros
    assert (bias.targets, bias.fills, bias.real) == (("rnn.bias_ih_l0",), (("rnn.bias_hh_l0", (0.0,)),), True)
    assert not found.target_only


QUICK = {"MobileNetV3Small", "Xception", "InceptionV3", "EfficientNetV2B0", "ConvNeXtTiny"}  # of the benchmark's


@pytest.mark.many
@pytest.mark.parametrize("case", [c for c in BENCH.APPLICATIONS if c[0] in QUICK] if BENCH else [], ids=lambda c: c[0])
def test_classes_of_torchvision_and_timm(case: tuple[str, str, str]) -> None:
    """Keras' own models into modules that neither they nor we wrote, by names and shapes."""
    row = BENCH.application(*case)
    assert row.right == row.total
    assert row.unmarked == 0


BARE = {f"bn_1/{v}": (8,) for v in ("beta", "moving_mean", "moving_variance")} | {"conv_1/kernel": (3, 3, 4, 8)}
NORM = {f"net.norm.{v}": (8,) for v in ("weight", "bias", "running_mean", "running_var")} | {
    "net.conv.weight": (8, 4, 3, 3)
}


@pytest.mark.parametrize(
    ("more", "gone", "fills"),
    [
        ({}, (), {"net.norm.weight": (1.0,)}),
        ({}, ("bn_1/beta",), {"net.norm.weight": (1.0,), "net.norm.bias": (0.0,)}),
        ({"bn_1/gamma": (8,)}, ("bn_1/beta",), {"net.norm.bias": (0.0,)}),
    ],
)
def test_a_batch_norm_without_scale_is_filled_and_marked(
    more: dict[str, tuple[int, ...]], gone: tuple[str, ...], fills: dict[str, tuple[float, ...]]
) -> None:
    a = {n: s for n, s in (BARE | more).items() if n not in gone}
    found = by_name(a, NORM)
    assert dict(f for p in found.pairs for f in p.fills) == fills
    assert {(p.sure, p.real) for p in found.pairs if p.fills} == {(False, len(fills) > 1)}
    assert not found.target_only
    made = apply(proposed(found), in_memory({n: np.full(s, 3.0, "f4") for n, s in a.items()}))
    assert {n: t.numpy().tolist() for n, t in made.items() if n in fills} == {n: list(v * 8) for n, v in fills.items()}


KERNEL = {"net.conv.weight": (8, 4, 3, 3)}
BIASED = {"net.conv.bias": (8,)} | KERNEL
FOLDS = {  # the source, the target, and whether it is noted and marked
    "folded": (NORM, BIASED, True, True),
    "gone": (NORM, KERNEL, True, False),
    "gone, biases on both sides": (NORM | BIASED, BIASED, True, False),
    "only the variance is gone": (NORM, {n: s for n, s in NORM.items() if "var" not in n}, False, False),
    "a bias more": (NORM, NORM | BIASED, False, False),
}


@pytest.mark.parametrize("case", FOLDS)
def test_folded_batch_norm_is_reported_and_marked(case: str) -> None:
    a, b, *want = FOLDS[case]
    found = by_name(a, b)
    assert want == ["fuse_conv_bn" in f"{found.notes}", all(FOLDED in p.why for p in found.pairs)]


VOCABULARIES = {  # lengths in the source and in the target, and the rule between them
    "padded": (50, 56, "pad = { axis = 0, from = 50, to = 56, value = 0 }"),
    "cropped": (128, 100, "crop = { axis = 0, from = 128, to = 100 }"),
    "far longer": (50, 200, ""),
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_a_padded_vocabulary_is_proposed_and_marked(case: str) -> None:
    """The table, the matrix of the head, turned, and its bias."""
    torch = pytest.importorskip("torch")
    from ckptconv.torch import load_into, outline

    old, new, want = VOCABULARIES[case]
    module = torch.nn.ModuleDict({"wte": torch.nn.Embedding(new, 16), "ln_f": torch.nn.LayerNorm(16)})
    module["lm_head"] = torch.nn.Linear(16, new)
    a = {"model/wte": noise(old, 16), "model/ln_f/gamma": noise(16), "model/ln_f/beta": noise(16)}
    a |= {"model/lm_head/kernel": noise(16, old), "model/lm_head/bias": noise(old)}
    found, longer = match(in_memory(a), outline(module)), {"wte.weight", "lm_head.weight", "lm_head.bias"}
    if not want:
        assert set(found.target_only) == longer
        return
    assert {p.targets[0] for p in found.pairs if p.length} == longer
    assert all(p.real and not p.sure for p in found.pairs if p.length)
    text = toml(found)
    assert want in text
    assert f"look at this: the lengths differ, {old} and {new}" in text
    load_into(module, apply(proposed(found), in_memory(a)))
    kept, got = min(old, new), {n: t.detach().numpy() for n, t in module.state_dict().items()}
    for name, source in (("wte.weight", "wte"), ("lm_head.bias", "lm_head/bias")):
        assert np.array_equal(got[name][:kept], a[f"model/{source}"][:kept])
        assert not got[name][kept:].any()
    assert np.array_equal(got["lm_head.weight"][:kept], a["model/lm_head/kernel"].T[:kept])


# --- names that are hard to write down --------------------------------------------------------------------------------


@examples(40)
@given(st.data())
def test_any_names_and_orders(data: st.DataObject) -> None:
    """Whatever the names are and however the axes moved: values find all pairs, and the rules do as they say."""
    word = st.text("ab_-{}.é01289/", min_size=1, max_size=8)
    names = data.draw(
        st.lists(st.tuples(word, word), min_size=1, max_size=8, unique_by=(lambda p: p[0], lambda p: p[1]))
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = {}, {}
    for source, target in names:
        shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        order = data.draw(st.permutations(range(len(shape))))
        a[source] = rng.normal(size=shape).astype("f4")
        b[target] = np.ascontiguousarray(a[source].transpose(order))
    found = match(in_memory(a), in_memory(b))
    assert {(p.sources[0], p.targets[0]) for p in found.pairs} == set(names)
    leads(found, in_memory(a), in_memory(b))


def test_a_target_of_another_dtype_is_matched_as_if_cast() -> None:
    a, b = {"a/kernel": noise(6, 6), "b": noise(9)}, {}
    b = {"x": a["a/kernel"].T.astype("f2"), "y": a["b"].astype("f2")}
    found = match(in_memory(a), in_memory(b))
    assert [p.evidence for p in found.pairs] == ["values", "values"]
    assert found.notes == ("the target is float16: convert with dtype='float16'",)


class Odd:
    """A class that only an opaque reader passes over."""


def test_what_is_selected_is_selected_on_both_sides(tmp_path: Path) -> None:
    a, b = noise(3, 4), noise(5)
    np.savez(tmp_path / "a.npz", **{"enc/w": a, "enc/b": b, "extra/x": np.ones(7)})
    held = {"enc.w": a, "enc.b": b, "extra.x": np.zeros(7), "odd": Odd()}
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(held))
    with pytest.raises(ckptconv.UnsafeCheckpoint, match="Odd"):
        ckptconv.match(tmp_path / "a.npz", tmp_path / "b.pkl")
    for select in ({"exclude": ["extra*"]}, {"include": ["enc*"]}):
        text = ckptconv.match(tmp_path / "a.npz", tmp_path / "b.pkl", opaque=True, **select).rules
        assert "enc" in text
        assert "extra" not in text
    text = ckptconv.match(tmp_path / "a.npz", tmp_path / "b.pkl", opaque=True, include="enc/*").rules
    assert "# note: no glob fits a name of the target: all of it is matched" in text


def test_slots_and_steps_are_no_weights() -> None:
    a = {"d/kernel": X, "d/kernel/Adam": noise(5, 6), "d/kernel/Adam_1": noise(5, 6), "global_step": np.array(3)}
    source = passes.roles(in_memory(a))
    found = match(source, in_memory({"d.weight": X.T.copy()}))
    assert found.source_only == ()
    assert set(apply(proposed(found), source)) == {"d.weight"}


# --- the command line -------------------------------------------------------------------------------------------------


def command(*argv: str) -> int:
    with pytest.raises(SystemExit) as e:
        main([*argv])
    return int(e.value.code or 0)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (str(tmp_path / n) for n in ("a.npz", "b.npz", "c.npz"))
    arrays = {f"l_{i}/kernel": noise(4, 5) for i in range(3)}
    ckptconv.save(arrays, a)
    ckptconv.save({n.replace("/kernel", ".weight"): x.T for n, x in arrays.items()}, b)
    ckptconv.save({f"z.{i}": noise(7 + i) for i in range(5)}, c)
    rules_file = str(tmp_path / "r.toml")
    assert command("match", a, b, "-o", rules_file) == 0
    assert command("match", a, b, "-o", rules_file) == 9
    capsys.readouterr()
    assert command("match", a, b, "--include", "nothing*") == 2
    assert "no tensor of either checkpoint matches 'nothing*'" in capsys.readouterr().err
    bad = tmp_path / "bad.toml"
    assert command("match", a, c, "-o", str(bad)) == 6
    assert not bad.exists()
    assert "do not look like the same model" in capsys.readouterr().err


# --- proof by outputs -------------------------------------------------------------------------------------------------

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.head = nn.Linear(24, 5)
        self.unused = nn.Linear(5, 3)

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)
"""


ORIGINAL = """
import numpy as np

def layers(x):
    return dict(np.load("outputs.npz"))

def broken(x):
    raise ValueError("no such thing")
"""


def test_check_proves_and_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers whose order names hide, square kernels that are not turned, an image flattened the other way."""
    torch = pytest.importorskip("torch", reason="--check runs a module of torch")
    (tmp_path / "checked_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from checked_net import Net

    torch.manual_seed(3)
    net = Net().eval()
    s = {n: t.detach().numpy() for n, t in net.state_dict().items()}
    flat = s["layers.0.weight"].reshape(24, 6, 4).transpose(0, 2, 1).reshape(24, 24)
    arrays = {"conv/kernel": s["conv.weight"].transpose(2, 3, 1, 0), "conv/bias": s["conv.bias"]}
    for name, w, b in (("c", flat, "0"), ("a", s["layers.1.weight"], "1"), ("b", s["layers.2.weight"], "2")):
        arrays |= {f"{name}/w": w, f"{name}/b": s[f"layers.{b}.bias"]}  # w is [o, i] here, which no name says
    arrays |= {"head/kernel": s["head.weight"].T, "head/bias": s["head.bias"]}
    arrays |= {"spare/kernel": s["unused.weight"].T, "spare/bias": s["unused.bias"]}
    ckptconv.save({n: np.ascontiguousarray(x) for n, x in arrays.items()}, "model.npz")
    x = torch.randn(4, 2, 4, 4)
    np.savez("inputs.npz", x=x.numpy())
    with torch.no_grad():
        first = net.layers[0](torch.relu(net.conv(x)).flatten(1))
        np.savez("outputs.npz", y=net(x).numpy(), **{"layers.0": first.numpy()})
    what = "match", "model.npz", "checked_net:Net", "--check", "inputs.npz"
    assert command(*what, "outputs.npz", "-o", "rules.toml") == 0
    said = capsys.readouterr().err
    assert "checked against outputs: the same" in said
    import ckptconv.torch as into

    fresh = Net()
    into.load_into(fresh, "model.npz", converter="rules.toml")
    assert all(np.array_equal(s[n], t.detach().numpy()) for n, t in fresh.state_dict().items())
    text = (tmp_path / "rules.toml").read_text()
    assert "# proved: the outputs agree" in text
    marked = text.partition("# proved")[0]
    assert "spare/kernel" in marked  # the outputs do not depend on it
    assert "2 tensors stay marked" in said
    (tmp_path / "rules.toml").unlink()
    (tmp_path / "original.py").write_text(ORIGINAL)
    assert command(*what, "original:layers", "-o", "two.toml") == 0
    assert (tmp_path / "two.toml").read_text() == text  # the same search, from what the original returns
    capsys.readouterr()
    assert command(*what, "original:broken") == 2
    assert "the original cannot be run with these inputs: ValueError: no such thing" in capsys.readouterr().err
    np.savez("outputs.npz", y=np.linspace(0, 1, 20, dtype="f4").reshape(4, 5))
    assert command(*what, "outputs.npz", "-q") == 1
    said = capsys.readouterr()
    assert "(the whole module) departs" in said.err
    assert "# proved" not in said.out


def test_files_whose_names_are_no_text(tmp_path: Path) -> None:
    sides = [tmp_path / os.fsdecode(name) for name in (b"a\xff.npz", b"b\xe2\x80\xae.npz")]
    for side in sides:
        ckptconv.save({"w": np.arange(3, dtype="f4")}, side)
    ckptconv.match(*sides, tmp_path / "rules.toml")
    assert library.load(tmp_path / "rules.toml").title == r"a\udcff.npz to b\u202e.npz"


def test_square_matrices_are_turned_as_the_others_of_their_kind() -> None:
    """As the classes of T5 and GPT-2 need; the pair stays marked."""
    shapes = {"wi": (3, 5), "wo": (5, 3), "q": (4, 4)}
    source = in_memory({f"enc/b{i}/{n}": noise(*s) for i in range(2) for n, s in shapes.items()})
    target = in_memory({f"enc.{i}.{n}.weight": noise(*s[::-1]) for i in range(2) for n, s in shapes.items()})
    found = match(source, target)
    assert toml(found).count('layout = "i o -> o i"') == 2
    square = [p for p in found.pairs if p.sources[0].endswith("/q")]
    assert [p.sure for p in square] == [False, False]
