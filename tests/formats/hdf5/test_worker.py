"""What the HDF5 process does, called in this one: what it refuses, records, boxes, its end of the pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, strategies as st
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


def test_filters_that_no_framework_writes_are_refused() -> None:
    with pytest.raises(worker.Refused, match="w needs the filter 6, which is not trusted; write it without"):
        records(lambda f: f.create_dataset("w", data=np.arange(64), chunks=(32,), scaleoffset=0))


@pytest.mark.parametrize("name", [b"a/b", b"/ab", b"./a"])
def test_a_link_whose_name_is_a_path_is_refused(name: bytes) -> None:
    """The library would open what the path leads to, which is not what the link leads to."""
    raw = io.BytesIO()
    with h5py.File(raw, "w") as f:
        f["axb"] = TEN
    forged = io.BytesIO(raw.getvalue().replace(b"axb\0", name + b"\0"))
    with h5py.File(forged, "r") as f, pytest.raises(worker.Refused, match="which is not a name"):
        list(worker.records(f))


# --- types of elements --------------------------------------------------------------------------------------------

H5T = h5py.h5t


def floating(size: int, *fields: int, bias: int, order: int = 0, precision: int = 0) -> Any:
    kind = H5T.IEEE_F16LE.copy()
    kind.set_fields(*fields)
    kind.set_size(size)
    kind.set_ebias(bias)
    kind.set_order(order)
    if precision:
        kind.set_precision(precision)
    return kind


def made(*members: tuple[bytes, int, Any], size: int = 8) -> Any:
    kind = H5T.create(H5T.COMPOUND, size)
    for member in members:
        kind.insert(*member)
    return kind


def short(precision: int) -> Any:
    kind = H5T.STD_I16LE.copy()
    kind.set_precision(precision)
    return kind


F4BE, BF16, E4M3 = H5T.IEEE_F32BE, (15, 7, 8, 0, 7), (7, 3, 4, 0, 3)
SKIPPED, DAMAGED = ("", False), None
TYPES: dict[str, tuple[Any, tuple[str, bool] | None]] = {  # the dtype, and whether it is swapped
    "bfloat16": (floating(2, *BF16, bias=127), SKIPPED),
    "bfloat16, big-endian": (floating(2, *BF16, bias=127, order=H5T.ORDER_BE), SKIPPED),
    "float8_e4m3fn": (floating(1, *E4M3, bias=7), SKIPPED),
    "other fields": (floating(2, 15, 9, 6, 0, 9, bias=31), SKIPPED),
    "15 bits": (short(15), SKIPPED),
    "bool": (h5py.h5t.py_create(np.dtype(bool), logical=True), ("bool", False)),
    "an enumeration": (H5T.py_create(h5py.enum_dtype({"FALSE": 1, "TRUE": 0}, "i1"), logical=True), SKIPPED),
    "texts": (H5T.C_S1, SKIPPED),
    "complex64, big-endian": (made((b"r", 0, F4BE), (b"i", 4, F4BE)), ("complex64", True)),
    "complex with a gap": (made((b"r", 0, F4BE), (b"i", 8, F4BE), size=12), SKIPPED),
    "long double": (H5T.py_create(np.dtype("longdouble"), logical=True), SKIPPED),
    "16 of 32 bits": (floating(4, *BF16, bias=127), SKIPPED),
    "another bias": (floating(2, *BF16, bias=126), DAMAGED),
    "a mantissa that is too short": (floating(2, 15, 7, 8, 0, 6, bias=127), DAMAGED),
    "bits beyond the sign": (floating(4, *BF16, bias=127, precision=31), DAMAGED),
}


@pytest.mark.parametrize("what", TYPES)
def test_types_of_elements(what: str) -> None:
    """A damaged type is an error, and another one a note."""
    kind, expected = TYPES[what]

    def build(f: h5py.File) -> None:
        h5py.h5d.create(f.id, b"w", kind, h5py.h5s.create_simple((2,)))

    if expected is DAMAGED:
        with pytest.raises(worker.Refused, match="w has floats whose sign, exponent and mantissa do not fit"):
            records(build)
        return
    record = records(build)["w"]
    assert (record.get("dtype", ""), record.get("swap", False)) == expected
    assert ("skip" in record) == (expected == SKIPPED)


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
        pieces = list(worker.elements(f, "w"))
        boxes = list(worker.boxes(values.shape, tiles, 2))
    assert b"".join(pieces) == values.tobytes()
    assert max(map(len, pieces), default=0) <= 64
    assert all(2 * values[tuple(slice(*side) for side in box)].size <= 128 for box in boxes)
