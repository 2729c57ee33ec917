"""The neutral tensor dict: names, dtypes, shapes and where the bytes lie. No tensor is read here.

    Checkpoint = {name: Tensor} + metadata + ties + notes
    Tensor     = name, dtype, shape, parts                      (logical, C order, little-endian)
    Part       = a strided box of one piece of stored data, and the strided box of the tensor it fills
    data       = Span (bytes of a file) | Coded (bytes a format must decode) | Held (an array in memory)

A plain tensor has one part whose strides are C-contiguous on both sides. A torch view is one part with other
source strides; a partitioned variable is several parts; a transposed, split or concatenated tensor is again only
parts. All offsets and strides of a part count *elements* of `Part.dtype`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import CorruptCheckpoint, UsageError

if TYPE_CHECKING:
    import numpy as np

MAX_ELEMENTS = 2**63 - 1
MAX_AXES = 64  # NumPy's; products of millions of sizes would take forever to multiply


class DType(NamedTuple):
    """One element type: a row of `DTYPES`, one column per format's spelling ('' or 0: the format has none).

    `itemsize` is bytes per element in a neutral tensor; types below a byte take one byte per element, low bits.
    """

    name: str
    itemsize: int
    kind: str  # f float, i int, u uint, b bool, c complex, s string, x opaque
    numpy: str  # name in numpy or ml_dtypes; also the spelling of Flax
    tf: int  # DataType enum
    safetensors: str
    torch: str  # torch.<name>
    storage: str  # torch legacy storage class, without "Storage"

    @property
    def np(self) -> np.dtype[Any]:
        """The numpy dtype (from ml_dtypes for bfloat16, float8, int4 and the like)."""
        return _numpy_dtype(self.numpy)

    @property
    def carrier(self) -> str:
        """An unsigned (or, for 16 bytes, complex) numpy dtype of the same width: safe to copy bits with."""
        return {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[self.itemsize]

    @property
    def word(self) -> int:
        """Bytes that are swapped as one unit: half of a complex number, else the element."""
        return self.itemsize // 2 if self.kind == "c" else self.itemsize

    def __str__(self) -> str:
        return self.name


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name == "object" or hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


# The order of rows is the order in which tables print them.
DTYPES: dict[str, DType] = {
    row[0]: DType(*row)
    for row in (
        # name                B   kind  numpy                tf  safetensors     torch               storage
        ("float64",           8,  "f", "float64",             2, "F64",         "float64",          "Double"),
        ("float32",           4,  "f", "float32",             1, "F32",         "float32",          "Float"),
        ("float16",           2,  "f", "float16",            19, "F16",         "float16",          "Half"),
        ("bfloat16",          2,  "f", "bfloat16",           14, "BF16",        "bfloat16",         "BFloat16"),
        ("float8_e4m3fn",     1,  "f", "float8_e4m3fn",      25, "F8_E4M3",     "float8_e4m3fn",    ""),
        ("float8_e5m2",       1,  "f", "float8_e5m2",        24, "F8_E5M2",     "float8_e5m2",      ""),
        ("float8_e4m3fnuz",   1,  "f", "float8_e4m3fnuz",    26, "F8_E4M3FNUZ", "float8_e4m3fnuz",  ""),
        ("float8_e5m2fnuz",   1,  "f", "float8_e5m2fnuz",    28, "F8_E5M2FNUZ", "float8_e5m2fnuz",  ""),
        ("float8_e4m3b11fnuz", 1, "f", "float8_e4m3b11fnuz", 27, "",            "",                 ""),
        ("float8_e8m0fnu",    1,  "f", "float8_e8m0fnu",      0, "F8_E8M0",     "float8_e8m0fnu",   ""),
        ("float4_e2m1fn",     1,  "f", "float4_e2m1fn",      33, "",            "",                 ""),
        # two 4-bit floats per byte; the shape counts bytes, as torch does
        ("float4_e2m1fn_x2",  1,  "x", "uint8",               0, "F4",          "float4_e2m1fn_x2", ""),
        ("int64",             8,  "i", "int64",               9, "I64",         "int64",            "Long"),
        ("int32",             4,  "i", "int32",               3, "I32",         "int32",            "Int"),
        ("int16",             2,  "i", "int16",               5, "I16",         "int16",            "Short"),
        ("int8",              1,  "i", "int8",                6, "I8",          "int8",             "Char"),
        ("int4",              1,  "i", "int4",               29, "",            "",                 ""),
        ("int2",              1,  "i", "int2",               31, "",            "",                 ""),
        ("uint64",            8,  "u", "uint64",             23, "U64",         "uint64",           ""),
        ("uint32",            4,  "u", "uint32",             22, "U32",         "uint32",           ""),
        ("uint16",            2,  "u", "uint16",             17, "U16",         "uint16",           ""),
        ("uint8",             1,  "u", "uint8",               4, "U8",          "uint8",            "Byte"),
        ("uint4",             1,  "u", "uint4",              30, "",            "",                 ""),
        ("uint2",             1,  "u", "uint2",              32, "",            "",                 ""),
        ("bool",              1,  "b", "bool",               10, "BOOL",        "bool",             "Bool"),
        ("complex64",         8,  "c", "complex64",           8, "C64",         "complex64",        "ComplexFloat"),
        ("complex128",       16,  "c", "complex128",         18, "",            "complex128",       "ComplexDouble"),
        ("string",            0,  "s", "object",              7, "",            "",                 ""),
    )
}  # fmt: skip


def dtype(name: str) -> DType:
    """Look a dtype up by name; UsageError says which is meant, or lists those there are."""
    try:
        return DTYPES[name]
    except KeyError:
        meant = _meant(name)
        hint = f"did you mean {meant}?" if meant else f"known are {', '.join(DTYPES)}"
        raise UsageError(f"no dtype is called {name!r}; {hint}") from None


_SHORT = {"half": "float16", "float": "float32", "single": "float32", "double": "float64", "bf": "bfloat", "f": "float",
          "fp": "float", "i": "int", "u": "uint"}  # fmt: skip


def _meant(name: str) -> str:
    """The dtype that other programs call so: fp16, bf16, f32, half, torch.float16; '' if there is none."""
    from difflib import get_close_matches

    word = name.lower().rpartition(".")[2]
    stem = word.rstrip("0123456789")
    long = _SHORT.get(word) or _SHORT.get(stem, stem) + word[len(stem) :]
    return next((n for n in (long, *get_close_matches(word, DTYPES, 1, 0.8)) if n in DTYPES), "")


def castable(kind: DType, to: DType) -> bool:
    """Whether there is a way: numbers to wider or narrower numbers of a sort, never strings or opaque bytes."""
    if kind == to:
        return True
    if kind.kind in "sx" or to.kind in "sx" or to.kind == "b":
        return False
    return to.kind == "c" or kind.kind != "c"


class Loss(NamedTuple):
    """What a cast could not keep: finite values that became infinite or NaN, and non-zero ones that became zero."""

    overflow: int = 0
    underflow: int = 0

    def plus(self, other: Loss) -> Loss:
        return Loss(self.overflow + other.overflow, self.underflow + other.underflow)


class Span(NamedTuple):
    """Bytes [start, start+size) of a file; `check` is 'crc32c:%08x' or 'crc32:%08x' of exactly these bytes, or ''."""

    url: str
    start: int
    size: int
    check: str = ""


class Coded(NamedTuple):
    """Bytes that `format.decode(coded)` yields in C order, little-endian (a string tensor: one item per element)."""

    format: str
    url: str
    key: str
    size: int


class Held(NamedTuple):
    """An array already in memory, C-contiguous (an object array of bytes for strings)."""

    array: Any


Data = Span | Coded | Held


class Part(NamedTuple):
    """A strided box of `data` and the strided box of the tensor that it fills, both in elements of `dtype`.

    `ops` are names of `moves.OPS`, applied in order to the stored elements (swap bytes, conjugate, mask to 4 bits ...).
    """

    data: Data
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    start: int
    steps: tuple[int, ...]
    ops: tuple[str, ...] = ()


class Note(NamedTuple):
    """Something a person should know, of some tensors by name.

    kind: skipped, dropped (it was asked for), damaged, lossy, assumed, unread, tied, hint.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A reference to one tensor; `numpy()` reads it. `role` is '' for a weight, else slot, step, average, state."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    role: str = ""

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor when C-contiguous (0 for strings, whose length only reading tells)."""
        return self.count * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """Read the tensor whole; strings come as an object array of bytes."""
        from .run import read_array  # upward on purpose: reading is a plan of one tensor

        return read_array(self)

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)


def origin(t: Tensor) -> tuple[object, ...]:
    """What a tensor is made of; equal for two that are the same stored elements, moved and changed in the same way."""

    def place(data: Data) -> object:
        return (data.array.ctypes.data, data.array.nbytes) if isinstance(data, Held) else data

    return (t.dtype, t.shape, *((place(p.data), *p[1:]) for p in t.parts))


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a C-contiguous array."""
    out = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        out[i - 1] = out[i] * shape[i]
    return tuple(out)


def plain(
    name: str, kind: DType, shape: Sequence[int], data: Data, *, ops: tuple[str, ...] = (), role: str = ""
) -> Tensor:
    """Make a tensor whose elements lie in `data` whole and in C order."""
    shape = tuple(shape)
    strides = c_strides(shape)
    return Tensor(name, kind, shape, (Part(data, kind, shape, 0, strides, 0, strides, ops),), role)


def view(
    name: str,
    kind: DType,
    shape: Sequence[int],
    data: Data,
    *,
    offset: int,
    strides: Sequence[int],
    ops: tuple[str, ...] = (),
    role: str = "",
) -> Tensor:
    """Make a tensor that looks at `data` through an offset and strides (elements, not negative, already validated)."""
    shape = tuple(shape)
    return Tensor(name, kind, shape, (Part(data, kind, shape, offset, tuple(strides), 0, c_strides(shape), ops),), role)


def tiled(
    name: str, kind: DType, shape: Sequence[int], tiles: Sequence[tuple[Sequence[int], Sequence[int], Data]], *,
    ops: tuple[str, ...] = (),
) -> Tensor:  # fmt: skip
    """Make a tensor from boxes `(start, shape, data)` that cover it without overlap, each C-contiguous in its data."""
    steps = c_strides(shape)
    parts = tuple(
        Part(data, kind, tuple(box), 0, c_strides(box), sum(a * b for a, b in zip(at, steps, strict=True)), steps, ops)
        for at, box, data in tiles
    )
    return Tensor(name, kind, tuple(shape), parts)


def held(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """Wrap an array (any strides and byte order) as a tensor; UsageError if no dtype fits."""
    import numpy as np

    if array.dtype == object:
        return plain(name, DTYPES["string"], array.shape, Held(array))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    kind = of_numpy(array.dtype)
    data = np.asarray(array, order="C").reshape(array.shape)
    narrow = (kind.name,) if kind.name in ("int4", "uint4", "int2", "uint2") else ()  # ml_dtypes leaves high bits open
    return plain(name, kind, array.shape, Held(data), ops=narrow)


def of_numpy(kind: np.dtype[Any]) -> DType:
    """The table's row for a numpy dtype, whatever its byte order; UsageError if there is none."""
    row = DTYPES.get(kind.name)
    if row is None or row.kind in "sx":
        raise UsageError(f"a numpy array of dtype {kind} has no place in a checkpoint")
    return row


def elements(shape: Sequence[int], *, url: str | None = None, tensor: str | None = None) -> int:
    """Multiply a shape from a file; CorruptCheckpoint if it has too many axes, one is negative or all pass 2^63."""
    if len(shape) > MAX_AXES:
        raise CorruptCheckpoint(f"its shape has {len(shape)} axes, more than {MAX_AXES}", url=url, tensor=tensor)
    total = 1
    for size in shape:
        if size < 0:
            raise CorruptCheckpoint(f"shape {list(shape)} has a negative dimension", url=url, tensor=tensor)
        total *= size
        if total > MAX_ELEMENTS:
            raise CorruptCheckpoint(f"shape {list(shape)} has more than 2^63 elements", url=url, tensor=tensor)
    if total == 0 and prod(size for size in shape if size) * 16 > MAX_ELEMENTS:  # NumPy has no such array either
        raise CorruptCheckpoint(f"shape {list(shape)} is empty, yet beyond 2^63 bytes", url=url, tensor=tensor)
    return total


HASHES = "ckptconv.xxh3"  # metadata of this name carries hashes of the tensors: see hashes.py


def hashes_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that carry hashes of tensors: they are of all tensors together, and of nothing made from them."""
    return {k: v for k, v in metadata.items() if k == HASHES or k.startswith(HASHES + ".")}


def unhashed(metadata: Mapping[str, str]) -> dict[str, str]:
    """The entries that do not."""
    return {k: v for k, v in metadata.items() if k != HASHES and not k.startswith(HASHES + ".")}


@dataclass(frozen=True)
class Checkpoint(Mapping[str, Tensor]):
    """An ordered mapping from names to tensors, with what else a file says.

    `ties` groups names that share one tensor (each name is in `tensors`); `urls` are all files it was read from;
    `details` is what else a format knows, as JSON-able values, for inspection and for its own writer.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    ties: tuple[tuple[str, ...], ...] = ()
    format: str = ""
    urls: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def owners(self) -> dict[str, str]:
        """For each name the first that it is tied to; what a converter has changed apart owns itself again."""
        out = {name: name for name in self.tensors}
        for group in self.ties:
            first: dict[tuple[object, ...], str] = {}
            there = (name for name in group if name in out)
            out |= {name: first.setdefault(origin(self.tensors[name]), name) for name in there}
        return out

    def with_tensors(self, tensors: Mapping[str, Tensor], *notes: Note) -> Checkpoint:
        """Copy with other tensors; ties keep only names that are still there."""
        groups = (tuple(n for n in g if n in tensors) for g in self.ties)
        return replace(
            self, tensors=dict(tensors), ties=tuple(g for g in groups if len(g) > 1), notes=(*self.notes, *notes)
        )
