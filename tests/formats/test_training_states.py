"""Training states of JAX: what a tensor is for follows from its path, whichever container it lies in."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptconv

State = dict[str, str]  # the role of each tensor, by its path
TRAIN_STATE = {
    "params/dense/kernel": "", "batch_stats/bn/mean": "", "opt_state/0/mu/dense/kernel": "slot",
    "opt_state/0/count": "step", "opt_state/0/mu/params/w": "slot", "step": "step",
}  # fmt: skip
STATES: dict[str, State] = {
    "TrainState": TRAIN_STATE,
    "in `state`": {f"state/{path}": role for path, role in TRAIN_STATE.items()},
    "in `run/train`": {f"run/train/{path}": role for path, role in TRAIN_STATE.items()},
    "words below params": {
        "params/clock/step": "", "params/count": "", "params/ema_gate/w": "", "params/optimizer/w": "",
        "params/opt_state/w": "", "params/meta/learning_rate": "", "batch_stats/bn/step": "", "step": "step",
    },
    "bare parameters": {
        "clock/step": "", "step": "", "clock/count": "", "optimal_query/w": "", "opt/w": "", "state/w": "",
    },
    "T5X": {"target/enc/w": "", "target/step": "", "state/param_states/enc/w/m": "slot", "state/step": "step"},
    "flax.optim": {"optimizer/target/w": "", "optimizer/state/param_states/w": "slot", "optimizer/state/step": "step"},
    "flax.nnx": {"model/l/kernel/value": "", "opt_state/0/mu/kernel/value": "slot", "step/value": "step"},
    "Haiku": {"params/mlp/w": "", "state/bn/mean": "", "opt_state/0/mu/mlp": "slot"},
    "averages": {"params/w": "", "ema_params/w": "average", "opt_state/0/w": "slot"},
    "collections in `variables`": {
        "variables/params/w": "", "variables/batch_stats/m": "", "ema_params/w": "average", "opt/mu/w": "slot",
        "step": "step",
    },
    "Praxis": {"mdl_vars/params/w": "", "opt_states/0/mu/w": "slot", "ema/w": "average", "step": "step"},
    "GAN": {"g/params/w": "", "d/params/w": "", "ema_params/w": "average", "step": "step"},
    "modules with these words": {
        "opt/dense/w": "", "step/dense/w": "", "count/dense/w": "", "hyper/weights": "", "opt/params/w": "",
        "opt/opt_params/w": "",
    },
    "flax.optim without slots": {"target/w": "", "state/step": "step"},
    "a model by its name": {"model/w": "", "optimizer/0/w": "slot", "step": "step"},
}  # fmt: skip


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, array in arrays.items():
        *groups, last = path.split("/")
        node = root
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = array
    return root


@pytest.mark.parametrize("suffix", ["orbax", "msgpack", "pkl"])
@pytest.mark.parametrize("state", STATES)
def test_roles_by_path(state: str, suffix: str, tmp_path: Path) -> None:
    arrays = {path: np.full(1, i, "i4") for i, path in enumerate(STATES[state])}
    source = tmp_path / f"x.{suffix}"
    if suffix == "pkl":  # whose names are joined by dots, and begin after `params`
        source.write_bytes(pickle.dumps(nested(arrays)))
    else:
        ckptconv.save(arrays, source)
    found = {int(t.numpy()[0]): t.role for t in ckptconv.open(source).values()}
    assert {path: found[i] for i, path in enumerate(STATES[state])} == STATES[state]


@pytest.mark.parametrize("suffix", ["orbax", "msgpack"])
def test_a_module_of_bare_parameters_may_be_called_an_average(suffix: str, tmp_path: Path) -> None:
    arrays = {
        name: np.ones(1)
        for name in (
            "ema_gate/w",
            "ema_params/w",
            "swa_x/params/w",
            "swa/w",
            "dense/w",
            "ema",
            "a/" * 9 + "step",
            "/step",
        )
    }
    ckptconv.save(arrays, tmp_path / f"x.{suffix}")
    assert set(ckptconv.open(tmp_path / f"x.{suffix}", weights_only=True)) == {*arrays}


def test_an_item_of_orbax_may_be_the_optimizer(tmp_path: Path) -> None:
    for item, path in (("params", "dense/w"), ("opt_state", "0/mu/dense/w")):
        ckptconv.save({path: np.ones(1)}, tmp_path / "3" / item, to="orbax")
    roles = {n: t.role for n, t in ckptconv.open(tmp_path / "3").items()}
    assert roles == {"params/dense/w": "", "opt_state/0/mu/dense/w": "slot"}
