"""A series of checkpoints: how each tensor moved, and what came and went on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run, in_memory, page_data

import ckptconv
from ckptconv.api.options import Options
from ckptconv.checkpoint import held
from ckptconv.moves.sources import Sources
from ckptconv.reporting import survey

DRAW = np.random.default_rng(0)
FIRST = DRAW.normal(size=(30, 20))
PATH = [FIRST, FIRST * 1.5, FIRST * 1.5 + 1, FIRST]


def moved(arrays: list[Any]) -> Any:
    with Sources() as sources:
        return survey.measure_series([None if a is None else held("w", np.asarray(a)) for a in arrays], sources)


def expected(a: np.ndarray, b: np.ndarray) -> Any:
    return np.linalg.norm(b.astype("f8") - a.astype("f8")) / np.linalg.norm(a.astype("f8"))


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4", "u1"])
@pytest.mark.parametrize("elements", [4096, 2**21])
def test_steps_and_drift_are_those_of_whole_arrays(monkeypatch: pytest.MonkeyPatch, dtype: str, elements: int) -> None:
    monkeypatch.setattr(survey, "ELEMENTS", elements)
    long = [np.abs(np.tile(x * 10, (20, 1))).astype(dtype) for x in PATH]  # more than a window of the small ones
    found = moved(long)
    assert found.norm == pytest.approx([np.linalg.norm(x.astype("f8")) for x in long], rel=1e-3)
    assert found.step == pytest.approx([*map(expected, long, long[1:])], rel=1e-3)
    assert found.drift == pytest.approx([expected(long[0], b) for b in long[1:]], rel=1e-3)


HOLE = FIRST.copy()
HOLE[3, 4] = np.nan


@pytest.mark.parametrize(
    ("arrays", "step", "drift"),
    [
        ([FIRST, None, FIRST], [None, None], [None, 0.0]),
        ([None, FIRST, FIRST], [None, 0.0], [None, None]),
        ([FIRST[:5], FIRST, 2 * FIRST], [None, 1.0], [None, None]),
        ([FIRST, HOLE, FIRST], [None, None], [None, 0.0]),
        ([0 * FIRST, FIRST, FIRST], [None, 0.0], [None, None]),
        ([FIRST.astype("f4"), FIRST.astype("f4").astype("f8")], [0.0], [0.0]),
        ([np.float32(2), np.float32(3)], [0.5], [0.5]),
    ],
)
def test_what_cannot_be_measured_is_left_out(arrays: list[Any], step: list[Any], drift: list[Any]) -> None:
    assert moved(arrays)[1:] == (step, drift)


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_measure_are_left_out_without_a_word() -> None:
    wide = np.full((3, 3), 1.7e308)
    found = moved([wide, -wide, 0 * wide])
    assert (found.norm[:2], found.step, found.drift) == ([None, None],) * 3


@pytest.mark.parametrize("last", [np.array([b"a"], object), np.ones(3, "c8"), np.zeros((0, 3), "f4"), None])
def test_what_has_no_norm_has_no_row(last: Any) -> None:
    assert moved([last, last]) is None


def test_progress_reaches_its_end_once() -> None:
    made = [in_memory({"a": x, "b": x[:3]}) for x in PATH]
    seen: list[tuple[int, int]] = []
    survey.series(made, list("wxyz"), Options(jobs=1, progress=lambda *n: seen.append(n)), values=True)
    assert seen == sorted(seen)
    assert [n == whole for n, whole in seen].index(True) == len(seen) - 1


def test_the_command_line_takes_a_series(cli: Run, tmp_path: Path) -> None:
    for k, x in enumerate(PATH):
        more = {"gone": HOLE} if k == 1 else {"kept": FIRST[: 4 - k] * np.inf} if k > 1 else {}
        ckptconv.save({"net.0.w": x, "net.1.w": HOLE if k == 1 else FIRST} | more, tmp_path / f"epoch-{k}.npz")
    names = [f"epoch-{k}.npz" for k in range(4)]
    done = cli("report", *names, "--json")
    assert done.returncode == 0
    made = json.loads(done.stdout)
    page = (tmp_path / "epoch-3.report.html").read_text()
    data = page_data(page)
    assert (made["output"], made["findings"]) == ("epoch-3.report.html", data["findings"])
    assert "<title>epoch-0.npz … epoch-3.npz</title>" in page
    assert [[f["check"], f["tensor"], f["text"]] for f in data["findings"] if f["check"] in ("nan", "inf")] == [
        ["inf", "kept", "20 of 20 infinite, first at [0, 0]; also in epoch-2.npz"],
        ["nan", "net.1.w", "1 of 600 NaN, first at [3, 4], only in epoch-1.npz"],
        ["nan", "gone", "1 of 600 NaN, first at [3, 4], only in epoch-1.npz"],
    ]
    odd = [["gone", "kept"], ["kept"], ["gone", "kept"], ["gone"]]
    assert data["notes"] == [
        ["skipped", f"not in {name}, or of another shape there", ", ".join(which), len(which)]
        for name, which in zip(names, odd, strict=True)
    ]
    assert data["urls"] == names
    assert data["moved"]["0"][2] == pytest.approx([0.5, expected(FIRST, PATH[2]), 0], rel=1e-3)
    assert data["moved"]["1"][2] == [None, 0, 0]
    assert data["moved"]["1"][0][1] == "nan"
    ckptconv.save({"module.net.0.w": FIRST, "module.net.1.w": FIRST}, tmp_path / "ddp.npz")
    for sources in (("ddp.npz", *names), ("epoch-0.npz", "ddp.npz")):
        assert cli("report", *sources, "--strip-prefix", "module.", "-o", "s.html", "-f").returncode == 0
        assert "prefixes of wrappers" not in (tmp_path / "s.html").read_text()
    refused = cli("report", *names, "--dtype", "float16", "-o", "x.html")
    assert (refused.returncode, "takes no options of a conversion" in refused.stderr) == (2, True)
