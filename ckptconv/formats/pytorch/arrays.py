"""numpy arrays inside a pickle: what numpy would rebuild, rebuilt here from checked pieces.

    numpy.core.multiarray._reconstruct (numpy.ndarray, (0,), b'b')     an empty array, then
    BUILD (1, (2, 3), dtype, False, b'...')                            version, shape, dtype, Fortran order, bytes
    numpy.dtype ('f4', False, True)  BUILD (3, '<', None, ...)         the dtype and its byte order
    numpy.core.multiarray.scalar (dtype, b'...')                       a numpy scalar
    numpy.core.numeric._frombuffer (b'...', dtype, (2, 3), 'C')        protocol 5

An object array carries a list instead of bytes. numpy 2 says numpy._core.
"""

from __future__ import annotations

import re
from typing import Any

from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import checked_count
from ..numpy.text import check_text
from .plain import Known, shown

_SPELLING = re.compile(r"[<>=|]?([biufcSUV][0-9]{1,9}|[?bBhHiIlLqQefdgFDGO]|O8|O4)\Z")


class ArrayType:
    """A numpy dtype: how numpy spells it, or the name of one of ml_dtypes; its state says the byte order."""

    __slots__ = ("copied", "order", "spelling", "used")

    def __init__(self, spelling: object, align: object = False, copy: object = False) -> None:
        if type(spelling) is bytes:
            spelling = spelling.decode("latin1")
        if type(spelling) is not Known and (type(spelling) is not str or not _SPELLING.match(spelling)):
            raise CorruptCheckpoint(f"a pickled numpy dtype is spelled {shown(spelling)}")
        self.spelling = spelling.path if type(spelling) is Known else str(spelling)
        self.copied = bool(copy)  # else it is one of NumPy's own, whose state cannot be set
        self.order = ""
        self.used = False

    def build(self, state: Any) -> None:
        """(version, byte order, subarray, names, fields, size, alignment, flags): only the order is taken."""
        if type(state) is not tuple or len(state) not in (8, 9) or state[1] not in ("<", ">", "|", "="):
            raise CorruptCheckpoint(f"the state of a pickled numpy dtype is {shown(state)}")
        if any(part is not None for part in state[2:5]):
            raise CorruptCheckpoint("a structured numpy dtype is not a tensor's dtype")
        if self.used or self.order or not self.copied:
            raise UnsafeCheckpoint("a pickled numpy dtype is given a state where NumPy ignores it or arrays use it")
        sizes = (-1, 0, self.numpy().itemsize)
        if self.numpy().char in "SUV" and state[5] not in sizes:
            raise UnsafeCheckpoint(f"a pickled numpy dtype {self.spelling} is given the size {shown(state[5])}")
        self.order = state[1]

    def numpy(self) -> Any:
        import numpy as np

        if self.spelling in _ML_DTYPES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.spelling))
        try:
            kind = np.dtype(self.spelling)
        except TypeError:
            raise CorruptCheckpoint(f"numpy has no dtype {self.spelling!r}") from None
        order: Any = "=" if self.order == "|" else self.order
        return kind.newbyteorder(order) if order else kind

    def torch_name(self) -> str:
        """What torch.from_numpy makes of it, or ''."""
        kind = self.numpy()
        row = DTYPES.get(kind.name)
        return row.torch or "" if row and kind.isnative and kind.kind in "biufc" else ""


class PickledArray:
    """A numpy array: `items` is its bytes, or a list of objects."""

    __slots__ = ("axes", "fortran", "items", "kind", "shape")

    def __init__(self) -> None:
        self.kind = ArrayType("f8")
        self.shape: tuple[int, ...] = ()
        self.fortran = False
        self.axes: tuple[int, ...] | None = None
        self.items: Any = None

    def build(self, state: Any) -> None:
        if type(state) is not tuple or len(state) not in (4, 5):
            raise CorruptCheckpoint("the state of a pickled numpy array is not understood")
        self.fill(*state[-4:])

    def fill(self, shape: Any, kind: Any, fortran: Any, items: Any) -> None:
        if self.items is not None:
            raise UnsafeCheckpoint("a pickled numpy array is filled twice")
        if type(items) is str:  # Python 2's bytes, when they happen to be text
            items = items.encode("latin1")
        if type(shape) is not tuple or any(type(n) is not int for n in shape) or type(kind) is not ArrayType:
            raise CorruptCheckpoint("a pickled numpy array has no proper shape or dtype")
        if type(items) is list:
            size, have = checked_count(shape), len(items)
        else:
            size, have = checked_count(shape) * int(kind.numpy().itemsize), len(items) if type(items) is bytes else -1
        if size != have or (kind.spelling[:1] == "O") != (type(items) is list):
            raise CorruptCheckpoint(f"a pickled numpy array of shape {list(shape)} holds {have} instead of {size}")
        kind.used = True
        self.shape, self.kind, self.fortran, self.items = shape, kind, bool(fortran), items

    def numpy(self) -> Any:
        """The array; read-only and sharing the pickle's bytes, or an object array."""
        import numpy as np

        if self.items is None:
            raise CorruptCheckpoint("a pickled numpy array was never filled")
        order: Any = "F" if self.fortran else "C"
        if type(self.items) is list:
            out = np.empty(len(self.items), object)
            for i, item in enumerate(self.items):
                out[i] = item
            return out.reshape(self.shape, order=order)
        kind = self.kind.numpy()
        check_text(self.items, kind)
        array = np.frombuffer(self.items, kind).reshape(self.shape, order=order)
        return array if self.axes is None else array.transpose(self.axes)


def _reconstruct(kind: Any, shape: Any, code: Any) -> PickledArray:
    if type(kind) is not Known or kind.path != "ndarray":
        raise CorruptCheckpoint(f"numpy is asked to reconstruct {shown(kind)}")
    return PickledArray()


def _scalar(kind: Any, raw: Any = None) -> Any:
    """A numpy scalar as Python's number, or as it is spelled where Python has none."""
    array = PickledArray()
    array.fill((), kind, False, raw)
    value = array.numpy()[()]
    return value.item() if hasattr(value, "item") else value


def _frombuffer(raw: Any, kind: Any, shape: Any, order: Any = "C", axes: Any = None) -> PickledArray:
    if order not in ("C", "F", "K") or (order == "K") != (type(axes) is tuple):
        raise CorruptCheckpoint(f"a pickled numpy array in the order {shown(order)}")
    array = PickledArray()
    array.fill(shape, kind, order == "F", raw)
    if axes is not None and sorted(axes) != list(range(len(shape))):
        raise CorruptCheckpoint(f"a pickled numpy array whose axes are {shown(axes)}")
    array.axes = axes
    return array


_ML_DTYPES = frozenset({
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz",
    "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
})  # fmt: skip
_CORES = ("numpy.core", "numpy._core")
_SCALARS = (
    "bool_", "bool", "int8", "int16", "int32", "int64", "intc", "intp", "longlong", "uint8", "uint16", "uint32",
    "uint64", "uintp", "ulonglong", "float16", "float32", "float64", "longdouble", "complex64", "complex128", "str_",
    "bytes_", "generic", "number", "integer", "floating",
)  # fmt: skip

NUMPY: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): Known("ndarray"),
    ("numpy", "dtype"): Known("dtype", ArrayType, ArrayType),
    **{(f"{core}.multiarray", "_reconstruct"): Known("_reconstruct", _reconstruct) for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): Known("scalar", _scalar) for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): Known("_frombuffer", _frombuffer) for core in _CORES},
    **{("ml_dtypes", name): Known(name) for name in _ML_DTYPES},
    **{("numpy", name): Known(name) for name in _SCALARS},
}

__all__ = ["NUMPY", "ArrayType", "PickledArray"]
