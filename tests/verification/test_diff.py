"""What diff and verify find: every kind of difference, measured, in any format; and nothing where there is none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from kit import Run, in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.moves.sources import Sources
from ckptconv.verification import compare
from ckptconv.verification.difference import Tolerance, Values

NAN = np.array([0x7FC00000], "u4").view("f4")[0]
OTHER_NAN = np.array([0x7FC00001], "u4").view("f4")[0]


def checkpoint(**arrays: np.ndarray) -> Checkpoint:
    return in_memory(arrays)


def values(a: np.ndarray, b: np.ndarray, rtol: float | None = None, atol: float | None = None) -> Values | None:
    with Sources() as sources:
        return compare.compare(held("x", a), held("x", b), Tolerance(rtol, atol), sources)


# --- one pair ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.array([0.0], "f4"), np.array([-0.0], "f4"), False),
        (np.array([NAN]), np.array([NAN]), True),
        (np.array([NAN]), np.array([OTHER_NAN]), False),
        (np.array([np.inf]), np.array([np.inf]), True),
        (np.zeros((0, 3)), np.zeros((0, 3)), True),
        (np.array([b"a", b""], object), np.array([b"a", b""], object), True),
        (np.array([b"a", b""], object), np.array([b"a", b"\0"], object), False),
        (np.array([1 + 1j]), np.array([1 - 1j]), False),
        (np.array(3, "i8"), np.array(3, "i8"), True),
    ],
)
def test_equal_means_equal_bits(a: np.ndarray, b: np.ndarray, equal: bool) -> None:
    assert (values(a, b) is None) == equal


def test_measures() -> None:
    a = np.array([[1, 2, 3], [4, 5, np.nan]], "f4")
    b = np.array([[1, 2.5, 3], [4, np.nextafter(np.float32(5), np.float32(6)), np.nan]], "f4")
    found = values(a, b)
    assert found is not None
    assert (found.differing, found.elements, found.first, found.unpaired) == (2, 6, (0, 1), 0)
    assert found.max_abs == 0.5
    assert found.max_rel == pytest.approx(0.2)
    assert found.max_ulp == 2**21  # from 2 to 2.5 is a quarter of the way to 4, whose 2^23 steps are equal
    x, y = a.reshape(-1)[:5].astype("f8"), b.reshape(-1)[:5].astype("f8")
    assert found.cosine == pytest.approx(x @ y / math.sqrt((x @ x) * (y @ y)), rel=1e-12)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_ulp_counts_the_floats_between(kind: type) -> None:
    """Across zero and from a power of two to the next: neighbours are one step apart."""
    width = np.dtype(kind).itemsize
    smallest = np.array([1], f"u{width}").view(kind)
    cases = [(smallest, -smallest, 2), (np.array([0.0], kind), np.array([-0.0], kind), 0)]
    one = np.array([1.0], kind)
    above = (one.view(f"u{width}") + np.array(3, f"u{width}")).view(kind)
    cases.append((one, above, 3))
    for a, b, steps in cases:
        found = values(a, b)
        assert found is not None
        assert found.max_ulp == steps


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn])
def test_floats_without_a_sign_bit_on_top_have_no_ulp(kind: type) -> None:
    found = values(np.array([1, 2], kind), np.array([1, 4], kind))
    assert found is not None
    assert (found.max_ulp, found.max_abs) == (None, 2.0)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        (np.array([-(2**63)], "i8"), np.array([2**63 - 1], "i8"), 2**64 - 1),
        (np.array([0], "u8"), np.array([2**64 - 1], "u8"), 2**64 - 1),
        (np.array([-128], "i1"), np.array([127], "i1"), 255),
        (np.array([True]), np.array([False]), 1),
    ],
)
def test_integers_are_measured_exactly(a: np.ndarray, b: np.ndarray, apart: int) -> None:
    found = values(a, b)
    assert found is not None
    assert found.max_abs == apart


@given(
    hnp.arrays(np.float32, 20, elements=st.floats(width=32)),
    hnp.arrays(np.float32, 20, elements=st.floats(width=32)),
    st.sampled_from([0.0, 1e-3, 0.5]),
    st.sampled_from([0.0, 1e-6, 1.0]),
)
def test_tolerance_is_that_of_numpy(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> None:
    with np.errstate(all="ignore"):
        near = np.isclose(a.astype("f8"), b.astype("f8"), rtol, atol, equal_nan=True)
    found = values(a, b, rtol, atol)
    assert (found.differing if found else 0) == np.count_nonzero(~near)


def test_a_difference_in_the_last_window(tmp_path: Path) -> None:
    a = np.arange(3_000_001, dtype="i4").reshape(1, -1)
    b = a.copy()
    b[0, 3_000_000] += 5
    ckptconv.save({"x": a}, tmp_path / "a.npz")
    ckptconv.save({"x": b.astype(">i4")}, tmp_path / "b.safetensors")
    (only,) = ckptconv.diff(tmp_path / "a.npz", tmp_path / "b.safetensors").pairs
    assert only.values is not None
    assert (only.values.first, only.values.differing, only.values.max_abs) == ((0, 3_000_000), 1, 5)


# --- two checkpoints --------------------------------------------------------------------------------------------


def layered(moved: dict[str, float]) -> dict[str, np.ndarray]:
    """Two layers with attention and a norm, an embedding, and a slot of an optimizer; some multiplied."""
    names = [f"enc.layer.{i}.{part}" for i in (0, 1) for part in ("attn.query.weight", "norm.weight")]
    draw = np.random.default_rng(3)
    arrays = {n: draw.normal(size=(4, 6)).astype("f4") for n in (*names, "embed.weight", "step.count")}
    return {n: (a * np.float32(moved.get(n, 1))) for n, a in arrays.items()}


def test_changes_are_summed_as_if_a_group_were_one_tensor() -> None:
    a = layered({})
    b = layered({"enc.layer.1.attn.query.weight": 1.5, "enc.layer.1.norm.weight": 1.1, "embed.weight": 1.01})
    found = compare.diff(checkpoint(**a), checkpoint(**b))
    names = {
        "layer": {"enc.layer.0": ["enc.layer.0"], "enc.layer.1": ["enc.layer.1"], "embed": ["embed"]},
        "part": {"attn.query.weight": ["attn.query"], "norm.weight": ["norm"], "embed.weight": ["embed"]},
        "kind": {"attention": ["attn"], "norms": ["norm"], "embeddings": ["embed"]},
    }
    for by, groups in names.items():
        got = {g.name: g for g in found.by(by)}  # type: ignore[arg-type]
        assert next(iter(got)) == {"layer": "enc.layer.1", "part": "attn.query.weight", "kind": "attention"}[by]
        for name, words in groups.items():
            of = [n for n in a if any(w in n for w in words)]
            norm, apart = (
                math.sqrt(sum(float(np.square(x.astype("f8")).sum()) for x in xs))
                for xs in ([a[n] for n in of], [b[n] - a[n] for n in of])
            )
            assert (got[name].norm, got[name].apart) == pytest.approx((norm, apart), rel=1e-6)
            assert got[name].change == pytest.approx(apart / norm, rel=1e-6)
            assert got[name].tensors == len(of)
            assert got[name].changed == sum(not np.array_equal(a[n], b[n]) for n in of)


def test_every_kind_of_difference() -> None:
    a = checkpoint(
        same=np.ones(3), moved=np.arange(5), wide=np.ones(2, "f4"), long=np.ones((2, 3)), off=np.zeros(2),
        old=np.ones(7),
    )  # fmt: skip
    b = checkpoint(
        new=np.ones(9), renamed=np.arange(5), same=np.ones(3), wide=np.ones(2, "f2"), long=np.ones((3, 2)),
        off=np.ones(2),
    )  # fmt: skip
    found = compare.diff(a, b, workers=2)
    assert [(p.kind, p.a and p.a.name, p.b and p.b.name) for p in found.pairs] == [
        ("renamed", "moved", "renamed"),
        ("dtype", "wide", "wide"),
        ("shape", "long", "long"),
        ("values", "off", "off"),
        ("only_a", "old", None),
        ("only_b", None, "new"),
    ]
    assert (found.equal, found.same) == (1, False)


def test_equal_tensors_under_new_names_pair_off_once_each() -> None:
    zero = np.zeros(4)
    found = compare.diff(checkpoint(a=zero, b=zero, c=zero), checkpoint(x=zero, y=zero))
    assert [p.kind for p in found.pairs] == ["renamed", "renamed", "only_a"]
    names = ("fc1.bias", "fc2.bias", "bn.running_mean", "out.0.bias")
    wrapped, spare = {f"module.{n}": zero for n in names}, {"aux.bias": zero}
    found = compare.diff(checkpoint(**spare, **wrapped), checkpoint(**dict.fromkeys(reversed(names), zero)))
    assert [(p.name, p.b and p.b.name) for p in found.pairs] == [("aux.bias", None), *zip(wrapped, names, strict=True)]


def test_dtype_alone_counts_only_without_tolerance() -> None:
    a, b = checkpoint(x=np.array([0.5, 2], "f4")), checkpoint(x=np.array([0.5, 2], "f2"))
    assert not compare.diff(a, b).same
    assert compare.diff(a, b, Tolerance(rtol=0.0)).same
    far = checkpoint(x=np.array([0.5, 3], "f2"))
    wide, mixed = checkpoint(x=np.ones(2, "f4"), y=np.ones(2, "f4")), checkpoint(x=np.ones(2, "f2"), y=np.ones(2, "f4"))
    kept = "equal within the tolerance"
    assert [compare.diff(*both, Tolerance(rtol=0.1)).sum() for both in ((a, far), (a, b), (wide, mixed))] == [
        f"different: 0 tensors {kept}; 1 with other values",
        f"the same: 1 tensor {kept}, float32 in A and float16 in B",
        f"the same: 2 tensors {kept}, 1 of them float32 in A and float16 in B",
    ]


# --- the command line -------------------------------------------------------------------------------------------


def layers(shift: float = 0.0) -> dict[str, np.ndarray]:
    return {f"layer_{i}/kernel": np.arange(6, dtype="f4").reshape(2, 3) + i + shift for i in range(3)}


def test_across_conventions(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nfrom = "layer_{i}/kernel"\nto = "layers.{i}.weight"\nlayout = "i o -> o i"\n'
    )
    ckptconv.save(layers(), tmp_path / "a.ckpt")
    assert cli("a.ckpt", "-o", "b.safetensors", "-c", "rules.toml").returncode == 0
    assert cli("diff", "a.ckpt", "b.safetensors").returncode == 1
    assert cli("diff", "a.ckpt", "b.safetensors", "-c", "rules.toml").returncode == 0
    assert cli("diff", "b.safetensors", "a.ckpt", "-c", "rules.toml", "--inverse").returncode == 0
    assert cli("verify", "a.ckpt", "b.safetensors", "-c", "rules.toml").returncode == 0


def test_verify_names_the_first_tensor_and_index(cli: Run, tmp_path: Path) -> None:
    ckptconv.save(layers(), tmp_path / "a.ckpt")
    ckptconv.convert(tmp_path / "a.ckpt", tmp_path / "half.npz", dtype="float16")
    assert cli("verify", "a.ckpt", "half.npz", "--dtype", "float16").returncode == 0
    bare = cli("verify", "a.ckpt", "half.npz")
    assert bare.returncode == 7
    assert "float16[2, 3] instead of float32[2, 3]" in bare.stderr
    changed = layers()
    changed["layer_1/kernel"][1, 2] = -0.0
    changed["layer_2/kernel"][0, 0] = 9
    ckptconv.save(changed, tmp_path / "b.safetensors")
    done = cli("verify", "a.ckpt", "b.safetensors")
    assert done.returncode == 7
    assert "layer_1/kernel: its values differ, first at [1, 2]" in done.stderr
    assert "layer_2/kernel: its values differ, first at [0, 0]" in done.stderr
    ckptconv.save({**layers(), "more": np.ones(1)}, tmp_path / "c.npz")
    assert "more: not expected" in cli("verify", "a.ckpt", "c.npz").stderr


def test_verify_of_a_merge_under_scopes(cli: Run, tmp_path: Path) -> None:
    ckptconv.save(layers(), tmp_path / "a.npz")
    ckptconv.save(layers(1), tmp_path / "b.npz")
    scopes = ("--scope", "gen", "--scope", "dis")
    assert cli("a.npz", "b.npz", "-o", "both.ckpt", *scopes).returncode == 0
    assert cli("verify", "a.npz", "b.npz", "both.ckpt", *scopes).returncode == 0
    assert cli("verify", "b.npz", "a.npz", "both.ckpt", *scopes).returncode == 7


def test_what_changed_most_comes_first_and_findings_are_not_mixed(cli: Run, tmp_path: Path) -> None:
    base = {f"layer_{i}/bias": np.ones(4, "f4") for i in range(8)} | {"gone": np.ones(2, "f4"), "steps": np.int64(1)}
    changed = {n: v.copy() for n, v in base.items() if n != "gone"}
    for i, value in ((1, 1.001), (2, 1.002), (3, np.nan), (5, 9.0), (6, 1.0000001)):
        changed[f"layer_{i}/bias"][0] = value
    changed["steps"] = np.int64(100)
    ckptconv.save(base, tmp_path / "a.npz")
    ckptconv.save(changed, tmp_path / "b.npz")
    found = ckptconv.diff(tmp_path / "a.npz", tmp_path / "b.npz")
    names = [row[1] for row in found.rows()]
    assert names == ["gone", "layer_3/bias", "layer_5/bias", "layer_{1..2}/bias", "layer_6/bias", "steps"]
    assert str(found).splitlines()[0] == "different: 3 tensors equal; 6 with other values, 1 only in A"
    shown = cli("diff", "a.npz", "b.npz", "--no-fold").stdout
    assert len(shown.splitlines()) == 9
    assert "1 of 4 (1 NaN or Inf) - - - [0]" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (np.array([[1j, 2]]), np.array([[1.0, 2]]), Values(2, 2, (0, 0))),
        (np.array([1.0]), np.array([1j]), Values(1, 1, (0,))),
        (np.array([b"1"], object), np.array([1.0]), Values(1, 1, (0,))),
        (np.array([[1, 2]]), np.array([[b"1", b"2"]], object), Values(2, 2, (0, 0))),
        (np.zeros((0, 2), "c16"), np.zeros((0, 2)), None),
        (np.zeros((0, 2), object), np.zeros((0, 2)), None),
        (np.array([[b"a", b"b"], [b"c", b"d"]], object), np.array([[b"a", b"b"], [b"?", b"?"]], object),
         Values(2, 4, (1, 0))),
        (np.array(b"a", object), np.array(b"b", object), Values(1, 1, ())),
    ],
)  # fmt: skip
def test_kinds_that_cannot_be_compared_differ_everywhere(a: np.ndarray, b: np.ndarray, want: Any) -> None:
    assert values(a, b) == want
