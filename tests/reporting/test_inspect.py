"""What inspect says: names, sums, folding, statistics, hashes, the graph; quickly, and in little memory."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kit import ROOT, Run, in_memory

import ckptconv
from ckptconv.api.options import Options
from ckptconv.checkpoint import held
from ckptconv.moves import read
from ckptconv.moves.read import hash_tensor
from ckptconv.moves.sources import Sources
from ckptconv.reporting import inspection, pictures, survey
from ckptconv.verification import compare

MODEL = {
    **{f"bert/layer_{i}/kernel": np.full((4, 8), i, "f4") for i in range(12)},
    **{f"bert/layer_{i}/kernel/adam_m": np.zeros((4, 8), "f4") for i in range(12)},
    "bert/layer_3/odd.name": np.ones(3, "f2"),
    "global_step": np.array(7, "i8"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ckptconv.save(MODEL, tmp_path / "model.ckpt")
    return tmp_path / "model.ckpt"


def described(array: np.ndarray) -> pictures.Stats:
    with Sources() as sources:
        return pictures.stats(held("x", array), sources)


# --- the table and the tree -------------------------------------------------------------------------------------


def test_table_lists_every_tensor_and_counts_slots_apart(cli: Run, model: Path) -> None:
    done = cli("inspect", model)
    assert len(done.stdout.splitlines()) == 2 + len(MODEL)
    assert re.search(r"^bert/layer_11/kernel/adam_m +float32 +4x8 +32 +128 B +slot$", done.stdout, re.M)
    assert re.search(r"^global_step +int64 +scalar +1 +8 B +step$", done.stdout, re.M)
    assert f"{12 * 32 + 3} parameters, {24 * 32 + 4} with 12 optimizer slots, 1 step counter" in done.stdout


def test_tree_folds_by_pattern(cli: Run, model: Path) -> None:
    lines = cli("inspect", model, "--tree").stdout.splitlines()[1:-1]
    assert [re.split(r"  +", line.strip())[:2] for line in lines] == [
        ["bert", "x25"],
        ["layer_{0..11}/kernel", "x12"],
        ["adam_m", "x12"],
        ["layer_3/odd.name", "float16"],
        ["global_step", "int64"],
    ]
    hashed = cli("inspect", model, "--tree", "--hash").stdout  # each tensor has values of its own
    assert len(re.findall(r" [0-9a-f]{32}$", hashed, re.M)) == len(MODEL)


@pytest.mark.parametrize(
    "name",
    [
        "tf/dtypes", "tf/strings", "tf/sliced", "tf/v1", "tf/frozen.pb", "tf/keras3", "keras/net.keras",
        "keras/legacy3.h5", "flax/dtypes.msgpack", "torch/stream.pt", "torch/script.pt", "tf/dtypes.npz",
    ],
)  # fmt: skip
def test_every_format_is_described_compared_and_reported(name: str, fixtures: Path) -> None:
    """Files of the real frameworks: all dtypes, strings, decoded and joined data."""
    if not list(fixtures.glob(f"{name}*")):
        pytest.skip(f"{name} is not among the fixtures")
    found = ckptconv.open(fixtures / name, opaque=True)
    assert len(found)
    lines = [
        line
        for node in inspection.tree(inspection.folded(list(found.values()))).inner.values()
        for line in node.lines()
    ]
    assert sum(len(line.tensors) for line in lines) == len(found)
    assert len(survey.survey(found, Options(jobs=2), values=True)["names"]) == len(found)
    for t, said in zip(found.values(), read.each(found.values(), pictures.stats), strict=True):
        if t.dtype.kind in "iub" and t.count:
            numbers = [int(x) for x in t.numpy().reshape(-1)]
            assert (said.min, said.max, said.zeros) == (min(numbers), max(numbers), numbers.count(0))
    same = compare.diff(found, ckptconv.open(fixtures / name, opaque=True), workers=2)
    assert (same.same, same.pairs, same.equal) == (True, (), len(found))


# --- the graph --------------------------------------------------------------------------------------------------


def test_graph_of_a_configuration(cli: Run, fixtures: Path) -> None:
    done = cli("inspect", fixtures / "keras/net.keras", "--graph")
    assert done.returncode == 0
    assert re.search(r"^trainable: [0-9]+; not trainable: [0-9]+$", done.stderr, re.M)


@pytest.mark.parametrize("config", ["{", "[" * 100_000, "[]", '{"config": {"layers": [1, {"config": []}]}}', "NaN"])
def test_a_configuration_that_makes_no_sense(config: str) -> None:
    assert inspection.graph_variables(in_memory({"w": np.zeros(1)}, metadata={"config": config})) is None


# --- statistics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([np.nan, np.inf, -np.inf, -0.0, 0, 2.0], "f4"), (0, 2, 2 / 3, math.sqrt(8) / 3, 2, 1, 2)),
        (np.array([True, False, True, True]), (0, 1, 0.75, math.sqrt(3) / 4, 1, 0, 0)),
        (np.array([2**64 - 1, 2**64 - 3], "u8"), (2**64 - 3, 2**64 - 1, float(2**64), 0, 0, 0, 0)),
        (np.array([-(2**63), 2**63 - 1], "i8"), (-(2**63), 2**63 - 1, 0, 2.0**63, 0, 0, 0)),
        (np.array([3 + 4j, 0], "c8"), (0, 5, 2.5, 2.5, 1, 0, 0)),
        (np.array([b"", b"abc"], object), (0, 3, 1.5, 1.5, 1, 0, 0)),
    ],
    ids=lambda v: str(v.dtype) if isinstance(v, np.ndarray) else "",
)
def test_statistics_of_every_kind(array: np.ndarray, expected: tuple[float, ...]) -> None:
    found = described(array)
    for got, want in zip(found, expected, strict=True):
        assert got == want if want is None else got == pytest.approx(want)


def test_statistics_of_many_windows(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(3, 2, 2_500_000).astype("f4")
    array[2_499_999] = np.nan
    ckptconv.save({"x": array}, tmp_path / "x.npz")
    with Sources() as sources:
        found = pictures.stats(ckptconv.open(tmp_path / "x.npz")["x"], sources)
        drawn = pictures.draw(pictures.scan(ckptconv.open(tmp_path / "x.npz")["x"], sources), sources)
    assert found == drawn.stats
    assert drawn.bars is not None
    finite = array[:-1].astype("f8")
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert found.std == pytest.approx(finite.std(), rel=1e-12)
    assert sum(drawn.bars.counts) == finite.size
    expected = np.histogram(finite, 32, (found.min, found.max))[0]
    assert np.abs(np.array(drawn.bars.counts) - expected).max() <= 2  # values on the edge of a bin


# --- the hash ---------------------------------------------------------------------------------------------------


def reference_hash() -> str:
    """The implementation in the documentation, which is what others will copy."""
    text = (ROOT / "docs/hash.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.S)[0]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="f4").reshape(2, 3, 4),
        np.arange(24, dtype=">i8").reshape(6, 4).T,
        np.array(-0.0, "f8"),
        np.zeros((0, 5), "f2"),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.random.default_rng(1).integers(0, 255, 9_000_001, dtype="u1"),
        np.array([b"", b"\0\xff"], object),
    ],
    ids=lambda a: str(a.dtype),
)
def test_hash_is_as_documented(array: np.ndarray) -> None:
    space: dict[str, object] = {}
    exec(reference_hash(), space)
    t = held("name", array)
    name = t.dtype.name
    with Sources() as sources:
        assert hash_tensor(t, sources) == space["content_hash"](array, name)  # type: ignore[operator]


def test_values_that_are_no_tensors_are_shown_where_the_note_says(cli: Run, fixtures: Path) -> None:
    told = cli("inspect", fixtures / "torch" / "training.pt")
    assert "value: epoch = 3\n" in told.stderr
    shown = json.loads(cli("inspect", fixtures / "torch" / "training.pt", "--graph", "--json").stdout)
    assert shown["graph"] is None
    assert shown["values"]["epoch"] == shown["details"]["values"]["epoch"] == 3


@pytest.mark.parametrize("encoding", ["ascii"])
def test_names_that_the_output_cannot_hold_are_escaped(cli: Run, tmp_path: Path, encoding: str) -> None:
    odd = ["日本", "\U0001f600", "é", "a\udcf2b"]
    ckptconv.save({n: np.ones(1, "f4") for n in odd}, tmp_path / "a.pt")
    how = {"env": {**os.environ, "PYTHONIOENCODING": encoding}, "encoding": encoding}
    listed = cli("inspect", "a.pt", **how)
    assert (listed.returncode, "Traceback" in listed.stderr) == (0, False)
    shown = cli("inspect", "a.pt", "--json", **how)
    assert [t["name"] for t in json.loads(shown.stdout)["tensors"]] == odd


def test_strings_have_no_size_before_they_are_read(cli: Run, tmp_path: Path) -> None:
    ckptconv.save({"words": np.array([b"ab", b"c"], object), "w": np.ones(3)}, tmp_path / "m.ckpt")
    shown = str(ckptconv.inspect(tmp_path / "m.ckpt")).splitlines()
    assert [line.split() for line in shown if "words" in line] == [["words", "string", "2", "2"]]
    assert shown[-1] == "tf: 2 tensors, 24 B without strings, 5 parameters"
    assert cli("inspect", "m.ckpt", "--tree").stdout.endswith(shown[-1] + "\n")


def shown(node: inspection.Node, depth: int = 0) -> list[str]:
    rest = [row for inner in node.inner.values() for row in shown(inner, depth + 1)]
    return [f"{' ' * depth}{node.text}{' *' * bool(node.line)}", *rest]


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["a/b/w", "a/b/v", "a/c"], ["", " a", "  b", "   w *", "   v *", "  c *"]),
        (["a/b/w", "c"], ["", " a/b/w *", " c *"]),
        (["a/b", "a/b/c"], ["", " a/b *", "  c *"]),
        (["l/0/w", "l/1/w", "l/1/v"], ["", " l", "  {0..1}/w *", "  1/v *"]),
    ],
)
def test_the_tree_of_names(names: list[str], rows: list[str]) -> None:
    assert shown(inspection.tree(inspection.folded([held(n, np.zeros(1)) for n in names]))) == rows


def test_one_name_in_two_shapes_has_two_places_in_the_tree() -> None:
    shapes = [("l/0/w", 1), ("l/1/w", 1), ("l/2/w", 2), ("l/3/w", 2), ("l/4/w", 1)]
    root = inspection.tree(inspection.folded([held(n, np.zeros(k)) for n, k in shapes]))
    assert [(line.text, len(line.tensors)) for line in root.lines()] == [("l/{0,1,4}/w", 3), ("l/{2..3}/w", 2)]


@pytest.mark.parametrize("depth", [63, 64, 65, 200])
def test_the_tree_has_a_depth(depth: int) -> None:
    path = "/".join(f"s{chr(97 + k % 26)}" for k in range(depth))
    root = inspection.tree(
        inspection.folded([held(f"{path}/{end}", np.zeros(1)) for end in ("w", "v")] + [held("x", np.zeros(1))])
    )
    ends = [line.text for line in root.lines()]
    assert ends == [f"{path}/w", f"{path}/v", "x"]


def test_totals_by_role_and_dtype() -> None:
    tensors = [
        held("w", np.zeros((2, 3), "f4")), held("v", np.zeros((2, 3), "f4")), held("i", np.zeros(5, "i8")),
        replace(held("m", np.zeros((2, 3), "f4")), role="slot"), replace(held("s", np.zeros((), "i8")), role="step"),
    ]  # fmt: skip
    found = inspection.totals(ckptconv.Checkpoint({t.name: t for t in tensors}, ties=(("w", "v"),)))
    assert found == (5, 24 + 40 + 24 + 8, 6, 6 + 5 + 6 + 1, {"": 2, "buffer": 1, "slot": 1, "step": 1},
                     {"float32": 48, "int64": 48})  # fmt: skip


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("name", ["a2", "a10", "b", "b1x"]), ("-name", ["b1x", "b", "a10", "a2"]),
        ("size", ["a2", "b1x", "a10", "b"]), ("-size", ["b", "a10", "a2", "b1x"]),
        ("dtype", ["a10", "b1x", "b", "a2"]),
    ],
)  # fmt: skip
def test_each_column_sorts(key: str, order: list[str]) -> None:
    arrays = {"a10": np.zeros(5, "f4"), "b": np.zeros((3, 1), "f8"), "a2": np.zeros(2, "u2"), "b1x": np.float32(0)}
    assert [t.name for t in inspection.sort_tensors(in_memory(arrays).values(), key)] == order


@pytest.mark.parametrize(
    ("details", "want"),
    [
        ({}, None),
        ({"trainable": ["a", "d"]}, (("d",), (), ("a", "d"), ("b", "x"))),
    ],
)
def test_variables_of_a_graph(details: dict[str, Any], want: Any) -> None:
    tensors = {n: held(n, np.zeros(1)) for n in ("a", "b", "m", "x")}
    tensors["m"] = replace(tensors["m"], role="slot")
    assert inspection.graph_variables(ckptconv.Checkpoint(tensors, details=details)) == want


def test_layers_of_a_configuration() -> None:
    rows = [{"config": {"name": "d"}}, {"config": {"name": "f", "trainable": False}}, {"config": {"name": 5}}, 7,
            {"config": {"name": "n", "layers": [{"config": {"name": "i", "trainable": False}}]}}]  # fmt: skip
    names = ("d/w", "f/w", "n/w", "n/i/w", "o/w", "d/m")
    tensors = {n: held(n, np.zeros(1)) for n in names}
    tensors["d/m"] = replace(tensors["d/m"], role="slot")
    for key in ("config", "model_config"):
        metadata = {key: json.dumps({"config": {"layers": rows}})}
        found = inspection.graph_variables(ckptconv.Checkpoint(tensors, metadata=metadata))
        assert found == ((), ("o/w",), ("d/w", "n/w"), ("f/w", "n/i/w"))
