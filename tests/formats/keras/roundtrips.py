"""One model through other formats and back into Keras: its outputs must be what they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from architectures import MODELS

import ckptconv

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
VIA = {"safetensors": "x.safetensors", "npz": "x.npz", "pt": "x.pt", "tf": "x.ckpt"}
REFUSED = "refused"  # the order is not known: an error that names the tensors


def built(k: Any, name: str) -> tuple[Any, list[np.ndarray]]:
    """A model with values of its own in every variable, and inputs for it."""
    if hasattr(k.backend, "clear_session"):
        k.backend.clear_session()
    model, shapes = MODELS[name](k)
    rng = np.random.default_rng(crc32(name.encode()))
    inputs = [rng.integers(0, 3, (2, *s)).astype("i4" if name == "embedding" else "f4") for s in shapes]
    outputs(model, inputs)
    for i, v in enumerate(model.weights):
        if "seed" not in v.name and "count" not in v.name:
            v.assign(np.random.default_rng(i).uniform(0.3, 1, tuple(v.shape)).astype("f4"))
    for layer in model.layers:  # Normalization computes with a copy of its variables
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()
    return model, inputs


def outputs(model: Any, inputs: list[np.ndarray]) -> np.ndarray:
    return np.asarray(model(inputs[0] if len(inputs) == 1 else inputs, training=False))


def loads(model: Any, inputs: list[np.ndarray], path: Path) -> bool:
    """Whether the model gives the same outputs after `path` was loaded into it, having been zeroed."""
    wanted, before = outputs(model, inputs), [np.asarray(v) for v in model.weights]
    for v in model.weights:
        v.assign(np.zeros(tuple(v.shape), "f4").astype(np.asarray(v).dtype))
    try:
        model.load_weights(str(path))
    except Exception:
        for v, a in zip(model.weights, before, strict=True):
            v.assign(a)
        raise
    same = np.array_equal(outputs(model, inputs), wanted)
    return same and all(np.array_equal(np.asarray(v), a) for v, a in zip(model.weights, before, strict=True))


def trip(model: Any, inputs: list[np.ndarray], source: Path, via: str, back: str, folder: Path) -> str:
    """Convert `source` to a format and back to a file of Keras, and load that: "" if all is right, else what is not."""
    middle, end = folder / VIA[via], folder / back
    try:
        ckptconv.convert(source, middle, force=True)
        ckptconv.convert(middle, end, force=True)
    except ckptconv.Unrepresentable as e:
        return f"{REFUSED}: {e}"
    try:
        return "" if loads(model, inputs, end) else "other outputs"
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:200]}"


def direct(model: Any, inputs: list[np.ndarray], source: Path, back: str, folder: Path) -> str:
    """Convert `source` to a file of Keras at once, and load that."""
    end = folder / back
    try:
        ckptconv.convert(source, end, force=True)
    except ckptconv.Unrepresentable as e:
        return f"{REFUSED}: {e}"
    try:
        return "" if loads(model, inputs, end) else "other outputs"
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:200]}"


def every(name: str, folder: Path, *, vias: tuple[str, ...] = tuple(VIA)) -> dict[str, str]:
    """All trips of one architecture: what went wrong by the trip's name, "" for what is right."""
    import keras
    import tensorflow as tf
    import tf_keras

    out: dict[str, str] = {}
    model, inputs = built(tf_keras, name)
    model.save_weights(str(folder / "two.h5"))
    for via in vias:
        out[f"Keras 2 .h5, {via}"] = trip(model, inputs, folder / "two.h5", via, "back.h5", folder)
    tf.train.Checkpoint(model=model).write(str(folder / "two"))
    out["Keras 2 tf.train.Checkpoint"] = direct(model, inputs, folder / "two.index", "back.h5", folder)
    model, inputs = built(keras, name)
    model.save_weights(str(folder / "three.weights.h5"))
    model.save(str(folder / "three.keras"))
    for source in ("three.keras", "three.weights.h5"):
        for via in vias:
            for back in ("back.weights.h5", "back.h5"):
                out[f"Keras 3 {source[5:]}, {via}, {back[4:]}"] = trip(
                    model, inputs, folder / source, via, back, folder
                )
    tf.train.Checkpoint(model=model).write(str(folder / "three"))
    out["Keras 3 tf.train.Checkpoint"] = direct(model, inputs, folder / "three.index", "back.h5", folder)
    return out
