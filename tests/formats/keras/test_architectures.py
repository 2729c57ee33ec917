"""Models through other formats and back into Keras 2 and Keras 3 (docs/keras.md has the table of all)."""

from __future__ import annotations

from pathlib import Path

import pytest
from keras_trips import ASKED, trips
from kit import Later

keras, tf_keras = Later("keras"), Later("tf_keras")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.xdist_group("tensorflow")]
WEIGHTS = {"`.weights.h5` to `.h5`"}
SEVERAL = {*WEIGHTS, "`.keras` to `.h5`"}  # objects in a layer have weights
QUICK = {  # the columns in which the order of the model is not recorded
    "conv_batch_norm": WEIGHTS, "nested_frozen": SEVERAL, "bidirectional": SEVERAL,
    "custom_with_a_state": WEIGHTS,
}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_models_give_the_same_outputs(name: str, tmp_path: Path) -> None:
    found = trips(name, tmp_path, ("npz", "tf"))
    assert {k for k, v in found.items() if any(v)} == QUICK[name]
    assert all(word.startswith(ASKED) for v in found.values() for word in v if word)
