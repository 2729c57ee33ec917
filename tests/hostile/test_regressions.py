"""What fuzzing found (fixtures/hostile/regressions, the fuzzer's bytes): each gives a checkpoint or its error."""

from __future__ import annotations

import importlib.util
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT

import ckptconv
from ckptconv.errors import CkptError, UsageError

FILES = sorted((ROOT / "fixtures" / "hostile" / "regressions").iterdir())


@pytest.fixture(scope="module")
def families() -> dict[str, Any]:
    """fuzz/families, which is no part of the package."""
    folder = ROOT / "fuzz" / "families"
    spec = importlib.util.spec_from_file_location(
        "families", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec
    assert spec.loader
    made = sys.modules["families"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return dict(made.FAMILIES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_found_by_fuzzing(path: Path, families: dict[str, Any], tmp_path: Path) -> None:
    data, family, began = path.read_bytes(), path.name.partition("-")[0], time.process_time()
    try:
        families[family].attempt(data, tmp_path)
    except CkptError as e:
        last_net = e.__cause__ is not None and e.message.startswith("cannot be read as")
        if last_net:
            raise
    assert time.process_time() - began < 5


def test_every_family_has_a_dictionary(families: dict[str, Any]) -> None:
    """Of words that the readers know, by the names of constants: a fuzzer that cannot find one does not start."""
    spelled = {name: sys.modules["families"].dictionary(family) for name, family in families.items()}
    assert min(text.count("\n") for text in spelled.values()) >= 5


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("family", ["tf", "pytorch", "hdf5", "json", "numpy", "flax", "orbax", "zoo"])
def test_seeds_are_read(family: str, families: dict[str, Any], tmp_path: Path) -> None:
    """A fuzzer that cannot lay out sound files would find nothing, in silence: each way has a seed that is read."""
    ways = families[family].ways
    for number, way in enumerate(ways):
        found = 0
        for n, seed in enumerate(way.seeds()):
            home = tmp_path / f"{number}-{n}"
            home.mkdir()
            opaque = number + len(ways) if family != "zoo" else number  # a graph alone has only its constants
            with suppress(CkptError):
                found += families[family].attempt(bytes([opaque]) + seed, home)
            if found:
                break
        assert found, f"no seed of way {number} of {family} is sound"


@pytest.mark.parametrize("name", ["a.npz", "a.msgpack", "a.hdf5", "tf_model.h5"])
def test_shards_that_a_format_has_not_are_refused(name: str, tmp_path: Path) -> None:
    """HDF5 took --max-shard-size and wrote one file."""
    arrays = {"a/w": np.zeros(100, "f4"), "b/w": np.zeros(100, "f4")}
    with pytest.raises(UsageError, match="max_shard_size= needs a format with shards"):
        ckptconv.save(arrays, tmp_path / name, max_shard_size=400)
    assert ckptconv.save(arrays, tmp_path / name, max_shard_size=800).tensors == 2
