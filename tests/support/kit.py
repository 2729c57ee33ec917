"""What tests share beside fixtures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ckptconv.testing import Subject

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
SHARED = Path(os.environ.get("CKPTCONV_SHARED", ROOT.parent / "shared"))  # large checkpoints that are not shipped
# Every format that is written, as `ckptconv.testing` wants it described.
SUBJECTS = [
    Subject("safetensors", "model.safetensors", order=False),
    Subject("hf", "folder", order=False),
    Subject("npz", "weights.npz", metadata=False),
    Subject("npy", "folder", order=False, metadata=False),
    Subject("torch", "model.pt", ties=True),
    Subject("tf", "model.ckpt", order=False, metadata=False),
    Subject("hdf5", "weights.hdf5", ties=True, tries=20),
    Subject("keras", "weights.h5", tries=20),
    Subject(
        "keras3", "model.weights.h5", order=False, tries=20,
        spell=lambda n: f"layers/{n.replace('/', '_')}/vars/0",
    ),
    Subject("flax", "model.msgpack", order=False, metadata=False),
]  # fmt: skip

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in shape, dtype and every bit: NaN payloads and -0.0 count."""
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and list(map(bytes, a.flat)) == list(map(bytes, b.flat))
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
