"""A zoo that several machines divide among themselves, and how far it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ckptconv
from ckptconv.bulk.run import zoo_plan
from ckptconv.bulk.summary import zoo_status
from ckptconv.cli.main import app
from ckptconv.errors import CorruptCheckpoint, StorageError, UsageError


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for n in range(12):
        ckptconv.save({"w": np.full(3, n, "f4")}, tmp_path / "in" / f"run{n % 3}" / f"m{n}.npz", sync=False)
    return tmp_path / "in"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


def test_shares_are_disjoint_and_together_all(many: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    ckptconv.zoo(many, whole, jobs=1)
    found = list[str]()
    for i in (1, 2, 3):
        planned = [c.destination for c in zoo_plan(many, out, shard=f"{i}/3")]
        done = ckptconv.zoo(many, out, shard=f"{i}/3", jobs=1)
        assert done.done == len(planned) > 0
        found += planned
    assert sorted(found) == sorted(tree(whole))
    assert tree(out) == tree(whole)
    again = ckptconv.zoo(many, out, shard="2/3", resume=True, jobs=1)
    assert (again.done, again.skipped) == (0, len(zoo_plan(many, out, shard="2/3")))
    assert zoo_status(str(out)).ledgers == 3
    assert zoo_status(str(out)).done == 12


def test_a_share_leaves_the_outputs_of_others_alone(many: Path, tmp_path: Path) -> None:
    """Without --resume, too: what another machine wrote meanwhile is not this share's."""
    out = tmp_path / "out"
    ckptconv.zoo(many, out, shard="1/2", jobs=1)
    before = tree(out)
    ckptconv.zoo(many, out, shard="2/2", jobs=1)
    assert {name: data for name, data in tree(out).items() if name in before} == before


@pytest.mark.parametrize("shard", ["2", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3", "١/2", " 1/2"])
def test_what_is_no_share(many: Path, tmp_path: Path, shard: str) -> None:
    with pytest.raises(UsageError, match="shard="):
        ckptconv.zoo(many, tmp_path / "out", shard=shard)
    assert not (tmp_path / "out").exists()


def test_how_far_it_is(many: Path, tmp_path: Path) -> None:
    (many / "bad.npz").write_bytes(b"PK\3\4 and no more")
    out = tmp_path / "out"
    ckptconv.zoo(many, out, jobs=1)
    status = zoo_status(str(out))
    assert (status.done, len(status.failed), status.planned, status.formats) == (12, 1, 0, {"npz": 12})
    with (out / ".ckptconv-zoo.jsonl").open("a") as f:
        f.write(
            json.dumps({"at": "x.safetensors", "state": "planned", "source": "x", "files": [], "options": ""}) + "\n"
        )
    os.utime(out / ".ckptconv-zoo.jsonl", (0, 0))
    said = CliRunner().invoke(app, ["zoo", "status", str(out)])
    assert said.exit_code == 1  # one failed: as `zoo` itself
    lines = said.output.strip().split("\n")
    assert lines[0].startswith("failed: 1 checkpoint: ")
    assert lines[-2].startswith("12 of 14 checkpoints converted: ")
    assert lines[-2].endswith("(12 npz)")
    assert lines[-1].startswith("1 to come, 1 failed; the last entry is ")
    told = json.loads(CliRunner().invoke(app, ["zoo", "status", str(out), "--json"]).output)
    assert {k: told[k] for k in ("done", "failed", "planned")} == {"done": 12, "failed": 1, "planned": 1}
    assert told["causes"][0]["sources"] == [str(many / "bad.npz")]


def test_where_there_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="has no ledger"):
        zoo_status(str(tmp_path))
    (tmp_path / ".ckptconv-zoo.jsonl").write_text("{}\n")
    with pytest.raises(CorruptCheckpoint, match="line 1 of the ledger is damaged"):
        zoo_status(str(tmp_path))
    ckptconv.save({"w": [1.0]}, tmp_path / "m.safetensors")
    with pytest.raises(CorruptCheckpoint, match="the last line of the ledger is damaged"):
        zoo_status(str(tmp_path / "m.safetensors"))
