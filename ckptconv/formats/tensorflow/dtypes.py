"""TensorFlow's DataType numbers as rows of the dtype table."""

from __future__ import annotations

from ...checkpoint import Note
from ...dtypes import DTYPES, DType

RESOURCE, VARIANT, STRING = 20, 21, 7

RUNNING = "variants (iterators, lists) are objects of a running program, not tensors"
# quantised integers: their scale is not in the checkpoint
QUANTISED = {11: "int8", 12: "uint8", 13: "int32", 15: "int16", 16: "uint16"}

BY_CODE: dict[int, DType] = {d.tf: d for d in DTYPES.values() if d.tf} | {c: DTYPES[n] for c, n in QUANTISED.items()}


def notes(opaque: list[str], quantised: list[str], partial: list[str]) -> tuple[Note, ...]:
    """Notes on tensors that are skipped or whose meaning changes."""
    rows = (
        Note("skipped", RUNNING, tuple(opaque), tensors=False),
        Note("assumed", "quantised integers are read as plain integers; their scale is elsewhere", tuple(quantised)),
        Note("skipped", "partitioned variables with slices that were never saved", tuple(partial)),
    )
    return tuple(note for note in rows if note.names)
