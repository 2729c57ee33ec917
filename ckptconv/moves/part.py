"""The location of a tensor's bytes, as strided boxes of stored data.

    Part   a strided box of one piece of stored data, and the strided box of the tensor that it fills
    data   Span (bytes of a file) | Coded (bytes that a format must decode) | Held (an array in memory)
    Piece  elements [lo, hi) of a tensor, and their place in a job

All offsets and strides of a part count *elements* of `Part.dtype`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import LOOSE, DType
from ..errors import CorruptCheckpoint

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Stored:
    """What the kernel needs of a tensor; `checkpoint.Tensor` adds what people do with it.

    name; shape: in elements; parts: where the elements are stored.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor when C-contiguous; 0 for strings, whose lengths are not known before they are read."""
        return self.count * self.dtype.itemsize


class Piece(NamedTuple):
    """Elements [lo, hi) of a tensor, to be written at byte `at` of the job as dtype `to`."""

    tensor: str
    to: DType
    lo: int
    hi: int
    at: int
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return (self.hi - self.lo) * self.to.itemsize


MAX_ELEMENTS = 2**63 - 1
FILL_RATIO, MAX_FILL = 1100, 2**32  # bytes that one value repeated may fill: per stored byte, and in any file
MAX_AXES = 64  # NumPy's limit; the product of millions of sizes would take too long


class Span(NamedTuple):
    """Bytes [start, start+size) of the file at the path or URL `url`, and a checksum of exactly these bytes.

    check: 'crc32c:%08x', 'crc32:%08x', or for a complete tensor its content hash 'xxh3:DIGITS:DTYPE:[3,4]'; '' is none.
    """

    url: str
    start: int
    size: int
    check: str = ""


class Coded(NamedTuple):
    """Bytes that `decode(coded)` of a module yields in C order, little-endian (for strings: one item per element).

    module: its full name, so that any process can import it. url: the path or URL of the file. key: says which data to
    decode; only the module interprets it, and it can be hashed and pickled. size: the number of decoded bytes. chunk:
    bytes that the library of the format decodes at once, where the file chooses their number.
    """

    module: str
    url: str
    key: Any
    size: int
    chunk: int = 0


class Held(NamedTuple):
    """A NumPy `array` in memory, C-contiguous (an object array of bytes for strings)."""

    array: np.ndarray[Any, Any]

    @classmethod
    def of(cls, raw: bytes | bytearray) -> Held:
        """Bytes in memory, of which no copy is made."""
        import numpy as np

        return cls(np.frombuffer(raw, np.uint8))


Data = Span | Coded | Held


class Part(NamedTuple):
    """A strided box of `data` and the strided box of the tensor that it fills, both in elements of `dtype`.

    data: a Span, Coded or Held. dtype: of the stored elements. shape: of the box. offset, strides: its first element
    and its strides in `data`. start, steps: the same in the tensor, as flat C-order indices. ops: names in
    `moves.cast.OPS`, applied in order to the stored elements (swap bytes, conjugate, negate ...). Elements of dtypes in
    `dtypes.LOOSE` are first brought to the one byte that stands for each, whatever was stored.
    """

    data: Data
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    start: int
    steps: tuple[int, ...]
    ops: tuple[str, ...] = ()

    def changes(self, to: DType) -> bool:
        """Whether elements become other bytes on the way to dtype `to`: by a cast, an operation, or as `LOOSE` ones."""
        return bool(self.ops) or self.dtype != to or self.dtype.name in LOOSE


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a C-contiguous array of this shape, in elements."""
    return _c_strides(tuple(shape))


@lru_cache(maxsize=4096)  # a model has a few dozen shapes for its thousands of tensors, which share their strides
def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    out = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        out[i - 1] = out[i] * shape[i]
    return tuple(out)


def checked_count(
    shape: Sequence[int], *, url: str | None = None, tensor: str | None = None, arrays: bool = True
) -> int:
    """The number of elements of a shape from a file.

    CorruptCheckpoint if it has too many axes, a negative size, or more than 2^63 elements. arrays: the shape must also
    be possible in NumPy, where the product of the sizes other than 0 is bounded as well.
    """
    if len(shape) > MAX_AXES:
        raise CorruptCheckpoint(f"its shape has {len(shape)} axes, more than {MAX_AXES}", url=url, tensor=tensor)
    total = 1
    for size in shape:
        if size < 0:
            raise CorruptCheckpoint(f"shape {list(shape)} has a negative dimension", url=url, tensor=tensor)
        total *= size
        if total > MAX_ELEMENTS:
            raise CorruptCheckpoint(f"shape {list(shape)} has more than 2^63 elements", url=url, tensor=tensor)
    if arrays and total == 0 and is_vast(shape):
        raise CorruptCheckpoint(f"shape {list(shape)} is empty, yet exceeds 2^63 bytes", url=url, tensor=tensor)
    return total


def is_vast(shape: Sequence[int]) -> bool:
    """Whether NumPy cannot have an array of this shape, even if it is empty."""
    return prod(size for size in shape if size) * 16 > MAX_ELEMENTS
