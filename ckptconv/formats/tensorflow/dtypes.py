"""TensorFlow's DataType numbers as rows of the dtype table, with what must be done to stored elements."""

from __future__ import annotations

from ...checkpoint import Note
from ...dtypes import DTYPES, DType

RESOURCE, VARIANT, STRING = 20, 21, 7

# quantised integers: their scale is not in the checkpoint
QUANTISED = {11: "int8", 12: "uint8", 13: "int32", 15: "int16", 16: "uint16"}

BY_CODE: dict[int, DType] = {d.tf: d for d in DTYPES.values() if d.tf} | {c: DTYPES[n] for c, n in QUANTISED.items()}


def stored_ops(kind: DType, swapped: bool) -> tuple[str, ...]:
    """Names of the operations that make stored elements neutral ones.

    Types below a byte lie in the low bits, the others are undefined; any byte but 0 is true; others may be big-endian.
    """
    if kind.name in {"int4", "uint4", "int2", "uint2", "bool"}:
        return (kind.name,)
    return ("swap",) if swapped and kind.word > 1 else ()


def notes(opaque: list[str], quantised: list[str], partial: list[str]) -> tuple[Note, ...]:
    """What to tell about tensors that are not what they were in TensorFlow."""
    said = (
        Note("skipped", "variants (iterators, lists) are objects of a running program, no tensors", tuple(opaque)),
        Note("assumed", "quantised integers are read as plain ones; their scale is not stored here", tuple(quantised)),
        Note("skipped", "partitioned variables of which some slices were never saved", tuple(partial)),
    )
    return tuple(note for note in said if note.names)
