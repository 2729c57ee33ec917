"""What is found in a checkpoint: pictures against a brute force, places by name, and one flaw for each check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kit import Run, in_memory, page_data

import ckptconv
from ckptconv.api.options import Options
from ckptconv.checkpoint import Tensor, held
from ckptconv.errors import UsageError
from ckptconv.moves import read
from ckptconv.moves.sources import Sources
from ckptconv.reporting import checks, pictures, survey
from ckptconv.rules import passes

NORMAL = np.random.default_rng(0).normal(size=(40, 30)).astype("f4")


def pictured(tensor: np.ndarray | Tensor) -> pictures.Picture:
    t = tensor if isinstance(tensor, Tensor) else held("x", tensor)
    with Sources() as sources:
        return pictures.draw(pictures.scan(t, sources), sources)


def found(arrays: dict[str, Any], *limits: str, **more: Any) -> list[checks.Finding]:
    return checks.check(in_memory(arrays, **more), checks.limits(limits))


# --- pictures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, pictures.KEPT])
def test_outliers_leave_the_histogram_and_are_counted(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the tensor is cut into windows."""
    real = read.windows
    monkeypatch.setattr("ckptconv.reporting.pictures.windows", lambda t, sources: real(t, sources, 52))
    monkeypatch.setattr(pictures, "KEPT", kept)
    array = NORMAL.copy()
    array[11], array[12, 3] = 1e4, -1e4
    drawn = pictured(array)
    assert drawn.odd["outliers"] == pictures.Odd(31, 11 * 30)
    assert drawn.bars is not None
    assert (drawn.bars.below, drawn.bars.above) == (1, 30)
    assert sum(drawn.bars.counts) == array.size - 31
    assert -7 < drawn.bars.low < -3 < 3 < drawn.bars.high < 7
    assert sum(1 for n in drawn.bars.counts if n) > 15, "the others are told apart"


@pytest.mark.parametrize("shape", [(7, 5), (100, 3), (3, 100), (1, 1), (30, 4, 5), (2, 3, 4, 50), (1, 999)])
@pytest.mark.parametrize("window", [4, 52, 2**20])
@pytest.mark.many
def test_cells_rows_and_columns_are_those_of_a_brute_force(
    shape: tuple[int, ...], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the tensor is cut into windows."""
    real = read.windows
    monkeypatch.setattr("ckptconv.reporting.pictures.windows", lambda t, sources: real(t, sources, window))
    array = np.random.default_rng(1).integers(-9, 10, shape).astype("f4")
    array[shape[0] // 2] = 0
    array[..., shape[-1] // 2] = 0
    scan = pictured(array)
    dead = [[i for i in range(shape[k]) if not np.take(array, i, axis=k).any()] for k in (0, -1)]
    assert [x.tolist() for x in scan.dead] == dead
    matrix = np.abs(array.reshape(pictures.matrix(shape)))
    want = np.zeros([min(24, n) for n in matrix.shape])
    places = np.ix_(*(np.arange(n) * m // n for n, m in zip(matrix.shape, want.shape, strict=True)))
    np.maximum.at(want, tuple(np.broadcast_arrays(*places)), matrix)
    assert scan.cells is not None
    assert scan.cells.tolist() == want.tolist()


# --- checks -----------------------------------------------------------------------------------------------------


def changed(index: Any, to: float, dtype: Any = "f4") -> np.ndarray:
    array = NORMAL.astype(dtype)
    array[index] = to
    return array


CASES = {
    "nan": ({"w": changed((3, 4), np.nan)}, "w", "1 of 1,200 NaN, first at [3, 4]", (3, 4)),
    "inf": ({"w": changed((3, 4), -np.inf)}, "w", "1 of 1,200 infinite, first at [3, 4]", (3, 4)),
    "outliers": ({"w": abs(changed((3, slice(2)), 1e12))}, "w", "2 of 1,200 above ", (3, 0)),
    "saturated": ({"w": changed((0, 1), 65504, "f2")}, "w", "1 of 1,200 at the largest float16, first at", (0, 1)),
    "denormal": ({"w": changed((slice(2), 2), 1e-40)}, "w", "2 of 1,200 denormal, first at [0, 2]", (0, 2)),
    "exploding": ({"w": changed(0, 1e3)}, "w", "standard deviation 1", None),
    "stuck": (
        {f"l.{i}.bias": NORMAL[i] * (i != 3) for i in range(5)}, "l.3.bias",
        "all values are 0; constant in only 1 of 5 layers", None,
    ),
    "duplicate": ({"a": NORMAL, "b": NORMAL + 1, "c": NORMAL * 1}, "c", "equal to a", None),
}  # fmt: skip


@pytest.mark.parametrize("check", CASES)
def test_each_flaw_is_found_once_and_named(check: str) -> None:
    arrays, name, text, index = CASES[check]
    got = [f for f in found(arrays) if f.check not in ("constant", "outliers", "exploding") or f.check == check]
    assert [(f.check, f.tensor, f.index) for f in got] == [(check, name, index)]
    assert got[0].text.startswith(text)
    assert [f for f in found(arrays, f"{check}=off") if f.check == check] == []


@pytest.mark.parametrize(
    "arrays",
    [
        {"w": NORMAL, "b": NORMAL[0], "norm": 1 + NORMAL[0] / 50, "step": np.array(7)},
        {"w": NORMAL.astype(ml_dtypes.bfloat16), "scales": np.full((3, 3), 448, ml_dtypes.float8_e4m3fn) * [[1, 2, 3]]},
        {"laplace": np.random.default_rng(0).laplace(size=100_000), "variance": np.exp(NORMAL * 4)},
        {"sparse": np.where(NORMAL > 1, NORMAL, 0), "scalar": np.float32(3), "empty": np.zeros((0, 4), "f4")},
        {f"l.{i}.w": NORMAL * (1 + i) for i in range(5)},
    ],
)
def test_what_is_usual_is_no_finding(arrays: dict[str, Any]) -> None:
    assert [f for f in found(arrays) if checks.CHECKS[f.check].severity != checks.NOTE] == []


def test_kinds_are_known_by_names() -> None:
    kinds = {
        "bert/encoder/layer_3/attention/self/query/kernel": "attention", "transformer.wte.weight": "embeddings",
        "encoder.layer.0.attention.output.LayerNorm.weight": "norms", "transformer.h.0.mlp.c_fc.weight": "MLP",
        "model.layers.0.self_attn.k_proj.weight": "attention", "cls.predictions.bias": "heads",
        "layer1.0.conv1.weight": "convolutions", "bidirectional_lstm/forward_lstm/kernel": "recurrent",
        "temperature": "other", "out.weight": "heads",
    }  # fmt: skip
    data = survey.survey(in_memory(dict.fromkeys(kinds, 1.0)), values=False)
    assert [data["kinds"][k] for k in data["kind"]] == [*kinds.values()]


# --- two checkpoints --------------------------------------------------------------------------------------------


def test_comparison_measures_and_keeps_both_sides() -> None:
    a = in_memory({"same": NORMAL, "twin": NORMAL, "moved": NORMAL, "gone": np.ones(3, "f4"), "cast": NORMAL,
                   "old": NORMAL[:9] * 7}, ties=(("same", "moved", "cast", "twin"),))  # fmt: skip
    b = in_memory({"same": NORMAL, "twin": NORMAL, "moved": NORMAL * 1.5, "new": np.ones(4),
                   "cast": NORMAL.astype("f2"), "name": NORMAL[:9] * 7})  # fmt: skip
    both = survey.Compared(a, b, values=True)
    rows = dict(zip(both.both, both.comparison()["rows"], strict=True))
    assert {n: r[2] for n, r in rows.items()} == {
        "same": "equal", "twin": "equal", "moved": "values", "new": "only_b", "cast": "dtype", "name": "renamed",
        "gone": "only_a",
    }  # fmt: skip
    assert rows["name"][1][0][0] == "old"
    assert rows["moved"][3]["change"] == pytest.approx(0.5)
    data = survey.survey(both.both, Options(ema=True), values=True, both=both)
    assert "ema= are applied to A alone" in str(data["notes"])
    assert "duplicate" not in str(data["before"] + data["findings"]), "A ties them"
    place = {n: i for i, n in enumerate(data["names"])}
    assert set(data["was"]) == {place["moved"], place["cast"]}
    old = data["was"][place["moved"]]
    assert old[1:3] == [survey.number(float(NORMAL.min())), survey.number(float(NORMAL.max()))]
    assert data["clip"].get(place["moved"]) is None, "bars span the wider of both"
    assert [data["heat"][place[n]][4] for n in ("moved", "same")] == [True, False], "the change, if there is one"


def test_a_page_is_a_conversion_only_if_it_is_told_how(tmp_path: Path) -> None:
    """And tells what the source has already from what is new."""
    ckptconv.save({"a": changed((0, 1), np.nan), "b": changed((0, 1), 1e6)}, tmp_path / "a.npz")
    change: dict[str, Any] = {"dtype": "float16", "rename": {"a": "c"}}
    ckptconv.convert(tmp_path / "a.npz", tmp_path / "b.npz", **change)
    like = {**change, "like": tmp_path / "b.npz"}
    for given, mode, names in (({}, "comparison", "cba"), (change, "conversion", "cb"), (like, "conversion", "cb")):
        ckptconv.report([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "r.html", force=True, **given)
        data = page_data((tmp_path / "r.html").read_text())
        assert (data["compared"]["mode"], "".join(data["names"])) == (mode, names)
        assert not data["compared"].get("left")
        sides = data["findings"], data["before"]
        odd = [[(f["check"], f["tensor"]) for f in side if f["check"] in ("nan", "inf")] for side in sides]
        assert odd == [[("nan", "c"), ("inf", "b")], [("nan", "a")]]


# --- the limits and words of each check -------------------------------------------------------------------------


def said(arrays: dict[str, Any], check: str, *limits: str, **more: Any) -> list[tuple[str, str]]:
    return [(f.tensor, f.text) for f in found(arrays, *limits, **more) if f.check == check]


def with_zeros(rows: Any, columns: Any = ()) -> np.ndarray:
    array = NORMAL.copy()
    array[list(rows)] = 0
    array[:, list(columns)] = 0
    return array


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (with_zeros([3]), ["1 of 40 rows is zero: 3"]),
        (with_zeros([1, 2, 4, 6, 8]), ["5 of 40 rows are zero: 1, 2, 4, 6 and more"]),
        (with_zeros([5], [7]), ["1 of 40 rows is zero: 5", "1 of 30 columns is zero: 7"]),
        (NORMAL, []),
    ],
)
def test_dead_rows_and_columns_are_counted(array: np.ndarray, texts: list[str]) -> None:
    assert said({"w": array}, "dead") == [("w", text) for text in texts]


@pytest.mark.parametrize(
    ("array", "check", "text"),
    [
        (np.zeros((2, 1000), "f4"), "zero", "all 2,000 values are zero"),
        (np.full((2, 3), -1.23456, "f4"), "constant", "all 6 values are -1.23"),
        (np.ones((1, 1), "f4"), "", ""),
        (np.zeros((0, 3), "f4"), "", ""),
        (np.array([[1, np.nan]], "f4"), "nan", "1 of 2 NaN, first at [0, 1]"),
        (np.full((3, 3), 448, ml_dtypes.float8_e4m3fn), "constant", "all 9 values are 448"),
    ],
)
def test_values_that_are_all_alike(array: np.ndarray, check: str, text: str) -> None:
    got = [(f.check, f.text) for f in found({"w": array})]
    assert got == ([(check, text)] if check else [])


def first(count: int, value: float, dtype: str = "f4") -> dict[str, Any]:
    """Every second of the first values is this one."""
    array = NORMAL.astype(dtype)
    array.reshape(-1)[: 2 * count : 2] = value
    return {"w": array}


LINE = {"w": np.linspace(-1, 1, 1200, dtype="f4").reshape(40, 30)}


@pytest.mark.parametrize(
    ("check", "arrays", "limit", "count"),
    [
        ("saturated", first(1, -65504, "f2"), "", 1), ("saturated", first(3, -65504, "f2"), "=3", 0),
        ("saturated", first(4, 65504, "f2"), "=3", 4),
        ("denormal", first(2, 1e-39), "", 2),
        ("denormal", first(13, 1e-39), "=0.01", 13), ("outliers", LINE, "=1", 0),
        ("outliers", LINE, "=0", 599),  # 0 is a limit as well: what is outside of the middle half
    ],
)  # fmt: skip
def test_values_are_counted_above_a_limit(check: str, arrays: dict[str, Any], limit: str, count: int) -> None:
    got = said(arrays, check, *([check + limit] if limit else []))
    assert [(name, text.partition(",")[0].partition(" of ")[0]) for name, text in got] == [("w", str(count))] * bool(
        count
    )
    assert said(arrays, check, f"{check}=off") == []


def series(count: int, times: float, at: int = 1, more: Any = ()) -> dict[str, Any]:
    wide = np.concatenate([NORMAL, -NORMAL])  # its mean is 0, so that a factor is one of the deviation
    return {f"l.{i}.w": (wide * (times if i == at else 1)).astype("f8") for i in range(count)} | dict(more)


@pytest.mark.parametrize(
    ("arrays", "limits", "names"),
    [
        (series(4, 10.1), (), ["l.1.w"]),
        (series(3, 99), (), []),
        (series(5, 3), ("spike=2.9",), ["l.1.w"]),
        (series(4, 0), (), []),  # the check stuck says it
        ({f"l.{i}.b": NORMAL[0] * (99 if i == 2 else 1) for i in range(5)}, (), []),  # one axis
    ],
)
def test_what_is_unlike_its_layers(arrays: dict[str, Any], limits: tuple[str, ...], names: list[str]) -> None:
    got, usual = said(arrays, "spike", *limits), float(np.concatenate([NORMAL, -NORMAL]).std())
    assert [name for name, _ in got] == names
    assert all(text.endswith(f", where the median of {len(arrays)} layers is {usual:.3g}") for _, text in got)


def test_a_fresh_norm_among_convolutions_is_not_stuck() -> None:
    layers = {f"f.{i}.{name}": x for i in range(9) for name, x in (("weight", NORMAL), ("bias", NORMAL[0]))}
    for weight, names in ((np.ones(30, "f4"), []), (NORMAL, ["f.9.bias"])):
        last = {"f.9.weight": weight, "f.9.bias": np.zeros(30, "f4")}
        assert [n for n, _ in said(layers | last, "stuck")] == names


def test_duplicates_are_of_some_size_and_name_the_first() -> None:
    many = dict.fromkeys("abcdef", NORMAL)
    assert said(many, "duplicate") == [("b", "equal to a, c, d and 2 more")]
    for size, names in ((63, []), (64, ["b"])):
        one = np.arange(size, dtype="f4")
        assert [n for n, _ in said({"a": one, "b": one.copy()}, "duplicate")] == names
    for a, b in (
        (np.arange(99.0), np.arange(99.0)[::-1].copy()),  # with equal statistics
        (np.zeros((9, 9)), np.zeros((9, 9))), (NORMAL, NORMAL.astype("f8")), (NORMAL, NORMAL.reshape(-1)),
    ):  # fmt: skip
        assert said({"a": a, "b": b}, "duplicate") == []
    tied = found(dict.fromkeys("abc", NORMAL), ties=(("a", "b"),))
    assert [(f.check, f.tensor, f.text) for f in tied] == [("duplicate", "c", "equal to a")]


def test_the_most_serious_come_first_then_the_first() -> None:
    arrays = {"n": np.full(5, 3.0), "b": changed((0, 0), np.nan), "z": np.zeros((2, 2)), "a": changed((0, 0), np.nan),
              "i": changed((0, 0), np.inf)}  # fmt: skip
    got = [(f.severity, f.check, f.tensor) for f in found(arrays, "duplicate=off")]
    assert got == [
        ("error", "nan", "b"), ("error", "nan", "a"), ("error", "inf", "i"), ("warning", "zero", "z"),
        ("note", "constant", "n"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("outlier=3", "there is no check 'outlier'; did you mean outliers?"),
        ("nan=3", "the check nan has no limit: nan=off leaves it out"),
        ("spike=x", "the limit of spike is a number or off, not 'x'"),
        ("spike=inf", "the limit of spike is a number or off, not 'inf'"),
        ("spike", "the limit of spike is a number or off, not ''"),
    ],
)
def test_limits_that_are_none(given: str, words: str) -> None:
    with pytest.raises(UsageError) as e:
        checks.limits([given])
    assert str(e.value) == words


# --- a reference ------------------------------------------------------------------------------------------------


def against(now: dict[str, Any], before: dict[str, Any], *limits: str) -> list[tuple[str, str, str]]:
    both = [passes.roles(in_memory(x)) for x in (now, before)]
    got = checks.check(both[0], checks.limits(limits), reference=both[1])
    return [(f.check, f.tensor, f.text) for f in got]


@pytest.mark.parametrize(
    ("now", "before", "limits", "found"),
    [
        ({"w": NORMAL[0] * 11}, {"w": NORMAL[0]}, (),
         [("grown", "w", "standard deviation {:.3g}, 11 times the reference's {:.3g}".format(
             *np.std([NORMAL[0] * 11, NORMAL[0]], axis=1)))]),
        ({"w": NORMAL}, {"w": NORMAL, "v": NORMAL[0]}, (), [("missing", "v", "the reference has it: float32 [30]")]),
        ({"w": NORMAL[:2]}, {"w": NORMAL}, (), [("shape", "w", "float32 [2, 30], in the reference float32 [40, 30]")]),
        ({"w": NORMAL, "v": NORMAL[0]}, {"w": NORMAL}, (),
         [("new", "v", "the reference does not have it: float32 [30]")]),
        ({"global_step": np.int64(5)}, {"global_step": np.int64(6000)}, (),
         [("step", "global_step", "5, in the reference 6,000")]),
    ],
)  # fmt: skip
def test_what_is_worse_than_the_reference(now: Any, before: Any, limits: tuple[str, ...], found: Any) -> None:
    assert against(now, before, *limits) == found


def test_the_smallest_normal_number_is_normal() -> None:
    array = NORMAL.copy()
    array[0, :3] = np.finfo("f4").tiny, -np.finfo("f4").tiny, np.finfo("f4").smallest_subnormal
    assert said({"w": array}, "denormal", "denormal=0") == [("w", "1 of 1,200 denormal, first at [0, 2]")]


def test_a_run_is_guarded_from_the_terminal_and_from_python(cli: Run, tmp_path: Path) -> None:
    ckptconv.save({"w": NORMAL}, tmp_path / "a.npz")
    ckptconv.save({"v": changed((3, 4), np.nan), "b": np.zeros(4, "f4")}, tmp_path / "b.npz")
    done = cli("inspect", "b.npz", "--reference", "a.npz")
    assert (done.returncode, [line.split()[:3] for line in done.stdout.splitlines()[1:]]) == (
        1, [["error", "nan", "v"], ["error", "missing", "w"], ["note", "constant", "b"], ["note", "new", "v"],
            ["note", "new", "b"]],
    )  # fmt: skip
    assert "2 tensors checked: 2 errors, 3 notes" in done.stderr
    quiet = cli("inspect", "b.npz", "--limit", "nan=off", "--json")
    assert quiet.returncode == 0, "notes do not count"
    assert [f["check"] for f in json.loads(quiet.stdout)["findings"]] == ["constant"]
    assert cli("inspect", "b.npz", "--limit", "nam=off").returncode == 2
    assert cli("inspect", "b.npz").returncode == 0
    made = ckptconv.check(tmp_path / "b.npz", reference=tmp_path / "a.npz", limit=["new=off", "nan=off"])
    assert (made.sound, [f.check for f in made.findings or ()]) == (False, ["missing", "constant"])
    assert str(made).splitlines()[1:] == [
        "error     missing   w     the reference has it: float32 [40, 30]",
        "note      constant  b     all 4 values are 0", "2 tensors checked: 1 error, 1 note",
    ]  # fmt: skip
    assert ckptconv.check(tmp_path / "b.npz", limit={"nan": "off"}).sound
