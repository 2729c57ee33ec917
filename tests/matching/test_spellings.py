"""Twelve small networks in twenty spellings, matched by names and shapes; docs/match.md has the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit import in_memory
from spellings import CONVENTIONS, NETWORKS, spelled, state

import ckptconv
from ckptconv.rules import library

TENSORS = 252  # of all networks
RIGHT = {
    "Chainer": 233,
    "Caffe2": 233,
    "Paddle": 233,
}  # where it is not all: nothing tells the order of axes of a square W


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_tensor_meets_its_own(name: str, tmp_path: Path) -> None:
    right = 0
    for network in NETWORKS.values():
        arrays = state(network)
        stored, names = spelled(network, arrays, CONVENTIONS[name])
        source, target = in_memory(stored), in_memory(state(network, seed=1))
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


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["fc1.weight", "fc2.weight", "out.weight"], [f"Dense_{i}/kernel" for i in range(3)]),
        (["a.weight", "a.bias", "b.weight", "b.bias"], ["a_0", "a_1", "b_0", "b_1"]),  # blobs of Caffe
    ],
)
def test_names_that_tell_too_little_are_to_look_at(source: list[str], target: list[str]) -> None:
    both = [
        in_memory({n: np.zeros((4,) if n.endswith(("bias", "_1")) else (4, 4), "f4") for n in names})
        for names in (source, target)
    ]
    for a, b in (both, both[::-1]):
        found = ckptconv.match(a, b, values=False).proposal
        assert len(found.doubtful) == len(found.pairs) == len(source)


@pytest.mark.parametrize("rest", [[], ["head.weight"]])
def test_the_only_norm_of_each_side_is_assumed_where_a_module_is_left(rest: list[str]) -> None:
    names = ["bn/gamma", "bn/moving_mean"], ["bn1.weight", "bn1.running_mean", *rest]
    found = ckptconv.match(*(in_memory({n: np.zeros((4,), "f4") for n in some}) for some in names), values=False)
    assert {p.sure for p in found.proposal.pairs} == {not rest}
