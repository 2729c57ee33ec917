"""What the HDF5 process does, called in this one: what it refuses, records, boxes, its end of the pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import examples

from ckptconv.formats.hdf5 import worker

Build = Callable[[h5py.File], object]
TEN = np.arange(10.0)


def opened(build: Build) -> h5py.File:
    """The file as it is read again."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        build(f)
    return h5py.File(raw, "r")


def records(build: Build) -> dict[str, dict[str, Any]]:
    with opened(build) as f:
        return {str(r["path"]): r for r in worker.records(f)}


def test_so_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_OBJECTS", 3)
    records(lambda f: [f.create_group(n) for n in "ab"])
    with pytest.raises(worker.Refused, match="more than 3 objects"):
        records(lambda f: [f.create_group(n) for n in "abc"])


def test_what_the_library_reads_differently_each_time_is_refused() -> None:
    with pytest.raises(worker.Refused, match="w is scaled, then packed by szip"):
        records(lambda f: f.create_dataset("w", data=np.arange(64), chunks=(32,), compression="szip", scaleoffset=0))


@pytest.mark.parametrize("name", [b"a/b", b"/ab", b"./a"])
def test_a_link_whose_name_is_a_path_is_refused(name: bytes) -> None:
    """The library would open what the path leads to, which is not what the link leads to."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f["axb"] = TEN
    forged = io.BytesIO(raw.getvalue().replace(b"axb\0", name + b"\0"))
    with h5py.File(forged, "r") as f, pytest.raises(worker.Refused, match="which is not a name"):
        list(worker.records(f))


# --- slabs --------------------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 20), max_size=3), chunks=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    cost=st.sampled_from([0, 16]),
)  # fmt: skip
@examples(60)
def test_elements_come_in_bounded_pieces(shape: list[int], chunks: list[int], cost: int) -> None:
    """In C order and complete, however a dataset is cut; where the memory for each chunk counts, too."""
    values = np.arange(np.prod(shape, dtype=int), dtype="<u2").reshape(shape)
    tiles = tuple(min(c, n) for c, n in zip(chunks, shape, strict=False)) if values.size and shape else None
    with pytest.MonkeyPatch.context() as m, opened(lambda f: f.create_dataset("w", data=values, chunks=tiles)) as f:
        m.setattr(worker, "MAX_DATA", 64)
        m.setattr(worker, "MAX_BOX", 128)
        m.setattr(worker, "CHUNK", cost)
        pieces = list(worker.elements(f, "w", 0))
        boxes = list(worker.boxes(values.shape, tiles, 2))
    assert b"".join(pieces) == values.tobytes()
    assert max(map(len, pieces), default=0) <= 64
    assert all(2 * values[tuple(slice(*side) for side in box)].size <= 128 for box in boxes)
