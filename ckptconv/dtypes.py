"""The table of element types, with a column for each format's spelling; look-up by name, and the possible casts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from .errors import UsageError
from .messages import did_you_mean

if TYPE_CHECKING:
    import numpy as np


Kind = Literal["f", "i", "u", "b", "c", "s", "x"]  # float, int, uint, bool, complex, string, opaque


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One element type: a row of `DTYPES`.

    name: as options spell it. itemsize: bytes per element; types of less than a byte take the low bits of one byte;
    strings have 0. kind: f float, i int, u uint, b bool, c complex, s string, x opaque. numpy_name, tf, safetensors,
    torch_name, storage: its name in NumPy or ml_dtypes, TensorFlow (the number in DataType), safetensors, torch, and
    old storage classes of torch; '' or 0 if they lack it. numpy.dtype(d) and numpy.empty(shape, d) take it.
    """

    name: str
    itemsize: int
    kind: Kind
    numpy_name: str  # name in numpy or ml_dtypes; also the spelling of Flax
    tf: int  # DataType enum
    safetensors: str
    torch_name: str  # torch.<name>
    storage: str  # torch legacy storage class, without "Storage"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype (from ml_dtypes for bfloat16, float8, int4 and the like)."""
        return _numpy_dtype(self.numpy_name)

    @property
    def carrier(self) -> str:
        """An unsigned (or, for 16 bytes, complex) NumPy dtype of the same width, to copy bits."""
        return {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[self.itemsize]

    @property
    def word(self) -> int:
        """The number of bytes that are swapped as a unit: half of a complex number, otherwise the element."""
        return self.itemsize // 2 if self.kind == "c" else self.itemsize

    def __eq__(self, other: object) -> bool:
        """Compare equal to its name, and to the NumPy or torch dtype with that name, too."""
        return self is other or self.name == str(getattr(other, "__name__", other)).rpartition(".")[2]

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<DType {self.name}>"


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name == "object" or hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes

    kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return kind


# The order of rows is the order in which tables print them.
DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        #     name                B  kind numpy                tf  safetensors     torch              storage
        DType("float64",           8, "f", "float64",             2, "F64",         "float64",         "Double"),
        DType("float32",           4, "f", "float32",             1, "F32",         "float32",         "Float"),
        DType("float16",           2, "f", "float16",            19, "F16",         "float16",         "Half"),
        DType("bfloat16",          2, "f", "bfloat16",           14, "BF16",        "bfloat16",         "BFloat16"),
        DType("float8_e4m3fn",     1, "f", "float8_e4m3fn",      25, "F8_E4M3",     "float8_e4m3fn",   ""),
        DType("float8_e5m2",       1, "f", "float8_e5m2",        24, "F8_E5M2",     "float8_e5m2",     ""),
        DType("float8_e4m3fnuz",   1, "f", "float8_e4m3fnuz",    26, "F8_E4M3FNUZ", "float8_e4m3fnuz", ""),
        DType("float8_e5m2fnuz",   1, "f", "float8_e5m2fnuz",    28, "F8_E5M2FNUZ", "float8_e5m2fnuz", ""),
        DType("float8_e4m3b11fnuz", 1, "f", "float8_e4m3b11fnuz", 27, "",            "",               ""),
        DType("float8_e3m4",       1, "f", "float8_e3m4",         0, "",            "",                ""),
        DType("float8_e8m0fnu",    1, "f", "float8_e8m0fnu",      0, "F8_E8M0",     "float8_e8m0fnu",  ""),
        DType("float4_e2m1fn",     1, "f", "float4_e2m1fn",      33, "",            "",                ""),
        # two 4-bit floats per byte; the shape counts bytes, as torch does
        DType("float4_e2m1fn_x2",  1, "x", "uint8",               0, "F4",          "float4_e2m1fn_x2", ""),
        DType("int64",             8, "i", "int64",               9, "I64",         "int64",           "Long"),
        DType("int32",             4, "i", "int32",               3, "I32",         "int32",           "Int"),
        DType("int16",             2, "i", "int16",               5, "I16",         "int16",           "Short"),
        DType("int8",              1, "i", "int8",                6, "I8",          "int8",            "Char"),
        DType("int4",              1, "i", "int4",               29, "",            "",                ""),
        DType("int2",              1, "i", "int2",               31, "",            "",                ""),
        DType("uint64",            8, "u", "uint64",             23, "U64",         "uint64",          ""),
        DType("uint32",            4, "u", "uint32",             22, "U32",         "uint32",          ""),
        DType("uint16",            2, "u", "uint16",             17, "U16",         "uint16",          ""),
        DType("uint8",             1, "u", "uint8",               4, "U8",          "uint8",           "Byte"),
        DType("uint4",             1, "u", "uint4",              30, "",            "",                ""),
        DType("uint2",             1, "u", "uint2",              32, "",            "",                ""),
        DType("bool",              1, "b", "bool",               10, "BOOL",        "bool",            "Bool"),
        DType("complex64",         8, "c", "complex64",           8, "C64",         "complex64",       "ComplexFloat"),
        DType("complex128",       16, "c", "complex128",         18, "",            "complex128",      "ComplexDouble"),
        DType("string",            0, "s", "object",              7, "",            "",                ""),
    )
}  # fmt: skip


def dtype(name: str) -> DType:
    """Look up a dtype by its name here or in other programs; UsageError suggests or lists float dtypes."""
    word = name.lower().rpartition(".")[2]
    if row := DTYPES.get(word) or DTYPES.get(_long(word)):
        return row
    floats = [row.name for row in DTYPES.values() if row.kind == "f"]  # casts make only these
    raise UsageError(f"unknown dtype {name!r}{did_you_mean(word, floats, 'floating-point dtypes', count=3)}")


_SHORT = {"half": "float16", "float": "float32", "single": "float32", "double": "float64", "bf": "bfloat", "f": "float",
          "fp": "float", "i": "int", "u": "uint"}  # fmt: skip


def _long(word: str) -> str:
    """Translate another program's name (fp16, bf16, f32, half) to ours, which need not exist."""
    stem = word.rstrip("0123456789")
    return _SHORT.get(word) or _SHORT.get(stem, stem) + word[len(stem) :]


# The number of low bits that count, for dtypes whose elements have several spellings as a byte: any bool but 0 is true.
LOOSE = {"bool": 1, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}

SATURATES = "float4_e2m1fn"  # it has neither infinity nor NaN: numbers from 7 on become 6, NaN becomes zero
NO_ZERO = "float8_e8m0fnu"  # it does not have a sign, either


def castable(kind: DType, to: DType) -> bool:
    """Tell whether a cast exists: between numbers, but not from complex to real, nor for strings or opaque bytes."""
    if kind == to:
        return True
    if kind.kind in "sx" or to.kind in "sx" or to.kind == "b":
        return False
    return to.kind == "c" or kind.kind != "c"


def of_numpy(kind: np.dtype[Any]) -> DType:
    """Return the row for a NumPy dtype of any byte order; UsageError if there is none."""
    row = DTYPES.get(kind.name)
    if row is None or row.kind in "sx":
        raise UsageError(f"a NumPy array of dtype {kind} cannot be stored in a checkpoint")
    return row
