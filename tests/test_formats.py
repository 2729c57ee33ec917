"""Every built-in format passes the contract that third parties are given, and every format converts to every other."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ckptconv.testing import FormatTests, Subject

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


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
class TestFormats(FormatTests):
    pass


def test_the_page_of_formats_is_fresh() -> None:
    docs = Path(__file__).parents[1] / "docs"
    made = runpy.run_path(str(docs / "make_formats.py"))["page"]()
    assert (docs / "formats.md").read_text() == made, "stale: run python docs/make_formats.py"
