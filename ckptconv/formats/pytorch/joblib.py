"""joblib.dump: a pickle in whose middle the elements of arrays stand as they are.

    ... GLOBAL joblib.numpy_pickle NumpyArrayWrapper  NEWOBJ
    {"subclass": numpy.ndarray, "shape": (2, 3), "order": "C", "dtype": dtype, "numpy_array_alignment_bytes": 16}  BUILD
    n (one byte), n bytes of padding, the elements           no padding byte where the alignment is None or absent

Arrays of objects are pickles within the pickle and not read. Specification: joblib/numpy_pickle.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CorruptCheckpoint
from ...moves.part import checked_count
from .arrays import ArrayType, PickledArray
from .plain import Known, Ordered, shown


class Wrapper:
    """The placeholder of an array until its state is known."""

    __slots__ = ()

    def inline(self, state: Any, take: Callable[[int], bytes]) -> PickledArray:
        """Read the array that follows the state."""
        fields = state if type(state) in (dict, Ordered) else {}
        kind, shape, order = fields.get("dtype"), fields.get("shape"), fields.get("order")
        subclass = fields.get("subclass")
        proper = type(subclass) is Known and subclass.path == "ndarray" and order in ("C", "F")
        if not proper or type(kind) is not ArrayType or type(shape) is not tuple:
            raise CorruptCheckpoint(f"joblib describes an array by {shown(list(fields.values()))}")
        if kind.spelling[:1] == "O":
            raise CorruptCheckpoint("joblib stores an array of objects, which is not read; dump it without such arrays")
        if fields.get("numpy_array_alignment_bytes") is not None:
            take(take(1)[0])
        array = PickledArray()
        array.fill(shape, kind, order == "F", take(checked_count(shape) * int(kind.numpy().itemsize)))
        return array


JOBLIB: dict[tuple[str, str], Any] = {
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): Known("NumpyArrayWrapper", None, Wrapper),
}
