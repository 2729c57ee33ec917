"""Models through other formats and back into Keras 2 and Keras 3 (docs/keras.md has the table of all)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

keras = pytest.importorskip("keras", reason="Keras 3 is not installed")
tf_keras = pytest.importorskip("tf_keras", reason="TF-Keras is not installed")

from keras_models import MODELS  # noqa: E402
from keras_trips import ASKED, trips  # noqa: E402

from ckptconv.formats.keras import naming  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
QUICK = {  # the columns in which the order of the model is not known
    "conv_batch_norm": set(),
    "made_backwards": set(),
    "nested": {"`.weights.h5` to `.h5`", "Keras 2 checkpoint to `.h5`", "Keras 3 checkpoint to `.h5`"},
    "transformer": set(),
    "norms_of_two_classes": {"`.weights.h5` to `.h5`"},
    "custom_with_a_state": {"Keras 2 checkpoint to `.h5`", "Keras 3 checkpoint to `.h5`"},
}


@pytest.mark.parametrize("name", QUICK)
def test_models_give_the_same_outputs(name: str, tmp_path: Path) -> None:
    found = trips(name, tmp_path, ("npz", "tf"))
    assert {k for k, v in found.items() if any(v)} == QUICK[name]
    assert all(word.startswith(ASKED) for v in found.values() for word in v if word)


def test_there_are_forty() -> None:
    assert len(MODELS) >= 40


ARGUMENTS: tuple[dict[str, int], ...] = (
    {}, {"units": 3}, {"filters": 3, "kernel_size": 1}, {"kernel_size": 1}, {"input_dim": 3, "output_dim": 2},
)  # fmt: skip


def made(k: Any) -> dict[str, Any]:
    """One layer of every class that creates its weights from an input or a shape alone."""
    out = {}
    for name, kind in inspect.getmembers(k.layers, inspect.isclass):
        for more in (
            {},
            {"units": 3},
            {"filters": 3, "kernel_size": 1},
            {"kernel_size": 1},
            {"input_dim": 3, "output_dim": 2},
        ):
            for shape in ((2, 4), (2, 4, 4), (2, 4, 4, 4), (2, 4, 4, 4, 4)):
                try:
                    layer = kind(**more)
                    layer.build(shape)
                except Exception:  # another signature
                    continue
                if layer.weights and all(hasattr(v, "name") for v in layer.weights) and name not in out:
                    out[name] = layer
    return out


@pytest.mark.parametrize("k", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_the_order_of_creation_is_that_of_every_class(k: Any) -> None:
    layers = made(k)
    assert len(layers) > 12
    for name, layer in layers.items():
        own = list(layer.trainable_weights + layer.non_trainable_weights)
        leaves = [v.name.rpartition("/")[2] for v in own]
        if len(set(leaves)) < len(leaves):  # several objects
            continue
        places = naming.created(leaves)
        assert places is None or places == sorted(places), name
        assert places is not None or len(leaves) == 1 or name in ("SpectralNormalization",), (name, leaves)
        fixed = [naming.bare(n) in naming.FIXED for n in leaves]
        assert fixed == sorted(fixed), name
        assert fixed == [not v.trainable for v in own], (name, leaves)
