"""Manifests as listings come: CSV, JSON lines, JSON lists and Parquet."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import Run

import ckptconv
from ckptconv import zoo
from ckptconv.api.options import Options
from ckptconv.bulk import manifest
from ckptconv.bulk.run import zoo_plan
from ckptconv.errors import CkptError, CorruptCheckpoint, MissingExtra, UsageError

Rows = list[dict[str, Any]]


def as_csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, [*dict.fromkeys(k for row in rows for k in row)])
        writer.writeheader()
        writer.writerows({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)


def as_parquet(path: Path, rows: Rows) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {k: [row.get(k) for row in rows] for k in dict.fromkeys(k for row in rows for k in row)}
    parquet.write_table(pa.table(columns), path, row_group_size=2)


WRITERS: dict[str, Callable[[Path, Rows], Any]] = {
    "csv": as_csv,
    "jsonl": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows)) + "\n\n"),
    "NDJSON": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    "json": lambda path, rows: path.write_text(json.dumps(rows, indent=2) + "\n"),
    "parquet": as_parquet,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_all_kinds_say_the_same(kind: str, tmp_path: Path) -> None:
    rows: Rows = [
        {"source": "a.npz", "destination": "x/é 字.npz", "to": "npz", "include": ["w*"]},
        {"source": "a.npz", "destination": "", "weights_only": True},
        {"source": "./sub/ü.npz", "include": ["w*"], "to": "npz"},
    ]
    (tmp_path / "sub").mkdir()
    for name in ("a.npz", "sub/ü.npz"):
        ckptconv.save({"w": [1.0], "v": [2.0]}, tmp_path / name)
    path = tmp_path / f"list.{kind}"
    WRITERS[kind](path, rows)
    done = zoo([str(path)], str(tmp_path / "out"))
    assert (done.done, done.failed) == (3, ())
    assert [*ckptconv.open(tmp_path / "out/x/é 字.npz")] == ["w"]
    assert [*ckptconv.open(tmp_path / "out/ü.npz")] == ["w"]
    assert {*ckptconv.open(tmp_path / "out/a.safetensors")} == {"v", "w"}


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("m.json", b"{}", "it is not a list"),
        ("m.json", b'[{"source": "a"} {"source": "b"}]', "Expecting ',' delimiter"),
        ("m.json", b"[1]", "every element must be an object"),
        ("m.json", b"[" * 100_000, "recursion"),
        ("m.jsonl", b"3", "every line must be an object"),
        ("m.csv", b"source\n" + b"x" * 200_000, "field larger than field limit"),
        ("m.csv", b'source,options\na,"{\n', "cannot be parsed"),
        ("m.csv", b"source,dtype,dtype\na,float16,\n", "the name 'dtype' occurs twice"),
        ("m.csv", b"source,,\na,b,\n", "unknown key 'column 2'"),
        (
            "m.csv",
            b'source,dtype,options\na,float16,"{""dtype"": ""float32""}"\n',
            "row 1: dtype is given both in its options",
        ),
        ("m.csv", b'source,options\na,"{""at"": ""x"", ""at"": ""y""}"\n', "row 1: the name 'at' occurs twice"),
        ("m.parquet", b"PAR1 and no more", "is not a manifest"),
        ("m.jsonl", b'{"source": 3}', "must be text, not 3"),
        ("m.jsonl", b'{"source": "a", "destination": 5}', "must be text"),
        ("m.jsonl", b"{}\n" * 10_000, "100 rows of the manifest cannot be parsed"),
        ("m.jsonl", b'{"source": "a\\u0000.npz"}', "holds a NUL"),
        ("m.jsonl", b'{"source": "a", "destination": "a\\udfff"}', "holds a NUL"),
        ("m.jsonl", b'{"source": "a", "destination": "a/../../x"}', "not below"),
        ("m.jsonl", b'{"source": "a", "destination": "/x"}', "not below"),
        (
            "m.jsonl",
            b'{"source": "a", "colour": "red"}',
            "1 row of .* cannot be parsed.*unknown key 'colour'",
        ),
        ("m.jsonl", b'{"source": "a", "options": [1]}', "must be an object"),
        ("m.jsonl", b'{"source": "a", "max_shard_size": 1e999}', "must be of type int"),
    ],
)
def test_what_is_no_manifest(name: str, raw: bytes, says: str, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UsageError, match=f"(?s){says}"):
        zoo_plan([str(tmp_path / name)], str(tmp_path / "out"))


def test_columns_without_a_name_may_be_empty(tmp_path: Path) -> None:
    """As tables end that a spreadsheet wrote."""
    (tmp_path / "m.csv").write_text("source,,\na.npz,,\n")
    assert [row.source for row in manifest.read(str(tmp_path / "m.csv"), Options())] == [str(tmp_path / "a.npz")]


NAMED = {  # destination: what is written, or why nothing is, and what is said; without `to`, then with `to` = npz
    "k.npz": ("npz", "", "npz", ""),
    "k.pt": ("torch", "", "npz", "stands for torch; what is written is npz"),
    "k.H5": ("hdf5", "", "npz", "stands for hdf5 or keras; what is written is npz"),
    "x/k.ckpt": ("tf", "", "npz", "stands for tf; what is written is npz"),
    "k": ("safetensors", "", "npz", ""),
    "k.v2": ("safetensors", "", "npz", ""),
    "k.gguf": ("", ".gguf files are not written", "npz", ""),
}


@pytest.mark.parametrize("to", [0, 1], ids=["by its name", "with to"])
@pytest.mark.parametrize("destination", NAMED)
def test_the_suffix_of_a_destination_says_the_format(destination: str, to: int, cli: Run, tmp_path: Path) -> None:
    """As it does for `convert`; one that contradicts `to` is a remark."""
    wanted, said = NAMED[destination][2 * to :][:2]
    ckptconv.save({"w": [1.0]}, tmp_path / "a.npz")
    WRITERS["jsonl"](tmp_path / "m.jsonl", [{"source": "a.npz", "destination": destination}])
    done = cli("zoo", "m.jsonl", "-o", "out", "-j", "1", *["--to", "npz"] * to)
    assert done.returncode == (0 if wanted else 1), done.stderr
    assert said in done.stderr
    assert ("hint: " in done.stderr) == bool(said and wanted)
    if wanted:
        assert ckptconv.open(tmp_path / "out" / destination).format == wanted
    again = cli("zoo", "m.jsonl", "-o", "out", "-j", "1", "--resume", *["--to", "npz"] * to)
    assert f"{int(bool(wanted))} up to date" in again.stderr


def test_parquet_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "m.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r"Try: pip install 'ckptconv\[parquet\]'"):
        zoo_plan([str(tmp_path / "m.parquet")], str(tmp_path / "out"))


def test_manifests_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "m.csv").open("wb") as f:
        f.truncate(2**40)
    with pytest.raises(CorruptCheckpoint, match="has 1099511627776 bytes, a manifest at most"):
        zoo_plan([str(tmp_path / "m.csv")], str(tmp_path / "out"))
    as_parquet(tmp_path / "m.parquet", [{"source": "a" * 5000}] * 10)
    monkeypatch.setattr(manifest, "MAX_SIZE", (tmp_path / "m.parquet").stat().st_size)
    as_parquet(tmp_path / "m.parquet", [{"source": f"{'a' * 5000}{i}"} for i in range(10)])
    assert (tmp_path / "m.parquet").stat().st_size < 10**5  # it unpacks to more
    with pytest.raises(CkptError, match=r"a group of rows has more than|a manifest at most"):
        zoo_plan([str(tmp_path / "m.parquet")], str(tmp_path / "out"))


def test_parquet_of_odd_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for column, says in [
        (pa.array([b"a.npz"]), "must be text"), (pa.array([3]), "must be text"), (pa.array([None]), "it has no source"),
        (pa.array([["a.npz"]]), "must be text"),
    ]:  # fmt: skip
        parquet.write_table(pa.table({"source": column}), tmp_path / "m.parquet")
        with pytest.raises(UsageError, match=says):
            zoo_plan([str(tmp_path / "m.parquet")], str(tmp_path / "out"))


def test_a_pattern_counts_for_rows(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        ckptconv.save({"w": [1.0]}, tmp_path / name)
    WRITERS["jsonl"](tmp_path / "m.jsonl", [{"source": "a.npz"}, {"source": "b.npz"}])
    plan = zoo_plan([str(tmp_path / "m.jsonl")], str(tmp_path / "out"), pattern="b*")
    assert [i.destination for i in plan] == ["b.safetensors"]
    with pytest.raises(UsageError, match="none of 2 rows matches pattern='c'"):
        zoo_plan([str(tmp_path / "m.jsonl")], str(tmp_path / "out"), pattern="c")


def test_a_row_that_is_repeated_counts_once(tmp_path: Path) -> None:
    ckptconv.save({"w": [1.0]}, tmp_path / "a.npz")
    rows = [{"source": "a.npz"}, {"source": "./a.npz", "destination": "b"}, {"source": "a.npz", "to": "npz"}]
    rows += [{"source": "a.npz", "destination": "b", "to": "npz"}, {"source": "missing"}]
    WRITERS["jsonl"](tmp_path / "m.jsonl", [*rows, *rows[::-1]])
    plan = zoo_plan([str(tmp_path / "m.jsonl")], str(tmp_path / "out"))
    assert sorted(i.destination for i in plan) == ["a.npz", "a.safetensors", "b", "b", "missing.safetensors"]


def test_the_newest_steps_of_rows(tmp_path: Path) -> None:
    """Those of one folder are a series, in every format asked for; a later row that names nothing is a failure."""
    for folder, step in [("a", 9), ("a", 10), ("b", 8)]:
        ckptconv.save({"w": [1.0]}, tmp_path / folder / "saved.npz")
        (tmp_path / folder / "saved.npz").rename(tmp_path / folder / f"m-{step}")
    ckptconv.save({"w": [1.0]}, tmp_path / "vgg16.npz")
    sources = ["a/m-10", "a/m-9", "a/m-2", "a/m-11", "b/m-8", "b/m-7", "c/m-1", "vgg16.npz"]
    WRITERS["csv"](tmp_path / "m.csv", [{"source": s, "to": "npz"} for s in sources] + [{"source": "a/m-10"}])
    plan = zoo_plan([str(tmp_path / "m.csv")], str(tmp_path / "out"), latest=True)
    assert [(os.path.relpath(i.found.source, tmp_path), i.state) for i in plan] == [
        ("a/m-10", "convert"), ("a/m-11", "problem"), ("b/m-8", "convert"), ("c/m-1", "problem"),
        ("vgg16.npz", "convert"), ("a/m-10", "convert"),
    ]  # fmt: skip
