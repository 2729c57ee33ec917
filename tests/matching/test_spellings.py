"""Twelve small networks in eighteen spellings, matched by names and shapes; docs/match.md has the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from spellings import CONVENTIONS, NETWORKS, spelled, state

import ckptconv
from ckptconv.checkpoint import Checkpoint, held
from ckptconv.rules import library

TENSORS = 252  # of all networks
RIGHT = {"Chainer": 233, "Caffe2": 233}  # where it is not all: nothing tells the order of axes of a square W


def loaded(arrays: dict[str, np.ndarray]) -> Checkpoint:
    return Checkpoint({n: held(n, a) for n, a in arrays.items()})


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_tensor_meets_its_own(name: str, tmp_path: Path) -> None:
    right = 0
    for network in NETWORKS.values():
        arrays = state(network)
        stored, names = spelled(network, arrays, CONVENTIONS[name])
        source, target = loaded(stored), loaded(state(network, seed=1))
        found = ckptconv.match(source, target, values=False)
        assert {t: p.sources for p in found.proposal.pairs for t in p.targets} == {t: (s,) for t, s in names.items()}
        assert not any(p.fills for p in found.proposal.pairs)
        rules = tmp_path / "rules.toml"
        rules.write_text(found.rules)
        made = library.change(source, str(rules))
        wrong = {t for t, array in arrays.items() if not np.array_equal(made[t].numpy(), array)}
        assert wrong.isdisjoint(t for p in found.proposal.pairs for t in p.targets if p.sure)
        right += len(arrays) - len(wrong)
        if name == "Lasagne":
            doubtful = {t for p in found.proposal.doubtful for t in p.targets}
            assert {
                t for t in arrays if t.endswith("running_var")
            } <= doubtful  # it stores 1 / sqrt(variance + epsilon)
    assert right == RIGHT.get(name, TENSORS)
