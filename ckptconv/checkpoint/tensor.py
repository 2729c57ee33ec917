"""References to tensors in files, made of stored parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..dtypes import DTYPES, DType, of_numpy
from ..messages import brief, in_bytes, many, printable
from ..moves.part import Data, Held, Part, Stored, c_strides

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..moves.read import Opened

Role = Literal["", "slot", "step", "average", "state"]  # '' is a weight; the others belong to optimizers or training


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Tensor(Stored):
    """A reference to one tensor of a file; its values are read only on request.

    name, shape: as in the file, or as a converter made them; the shape counts elements.
    dtype: a `DType`; `dtype.name` is its name, such as float32.
    role: '' for a weight; slot, step, average or state for what an optimizer or a training loop keeps beside it.
    parts: where the elements are stored (see `ckptconv.plugin.Part`).
    opened: the state of its files when they were opened, compared when it is read; None for tensors in memory.

    `numpy()`, `torch()` and numpy.asarray(t) read the whole tensor and verify its checksum, if the file has one.
    `t[0:2, ..., 5]` reads a slice, whose checksum cannot be verified.
    """

    role: Role = ""
    opened: Opened | None = field(default=None, compare=False)  # set by `api.open`
    _whole: Data | None = field(init=False, compare=False)  # all of this data is the only part

    def __init__(
        self, name: str, dtype: DType, shape: tuple[int, ...], parts: tuple[Part, ...], role: Role = "",
        opened: Opened | None = None,
    ) -> None:  # fmt: skip
        _NAME(self, name)  # twice as fast as a frozen dataclass sets fields: there may be a million tensors
        _DTYPE(self, dtype)
        _SHAPE(self, shape)
        _PARTS(self, parts)
        _ROLE(self, role)
        _OPENED(self, opened)
        _WHOLE(self, None)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.count

    def numpy(self) -> np.ndarray[Any, Any]:
        """Read the whole tensor; strings become an object array of bytes.

        Raises CorruptCheckpoint if a checksum or hash differs, or if the file was changed since it was opened;
        StorageError if it cannot be read.
        """
        from ..moves.read import read_array

        return self.opened.read(self) if self.opened else read_array(self)

    def torch(self) -> torch.Tensor:
        """Read the whole tensor as a torch tensor of the same dtype.

        Raises what `numpy` raises, MissingExtra if torch is not installed, and ConversionError if torch lacks the
        dtype.
        """
        from ..moves.torch import to_torch

        return to_torch(self.numpy(), self.dtype, self.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read the whole tensor for numpy.asarray(t), cast to `dtype` if one is given."""
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **how: Any) -> Any:
        """Read the whole tensor for torch.as_tensor(t) and the like."""
        return self.numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device of the CPU."""
        return 1, 0

    def __dir__(self) -> list[str]:
        """List what users need; packages that make and move tensors use more."""
        return ["dtype", "name", "nbytes", "ndim", "numpy", "role", "shape", "size", "torch"]

    if not TYPE_CHECKING:

        def __getattr__(self, word: str) -> Any:
            if word == "parts":  # not set by `contiguous`
                strides = c_strides(self.shape)
                _PARTS(self, (Part(self._whole, self.dtype, self.shape, 0, strides, 0, strides),))
                return self.parts
            hint = "" if word.startswith("_") else "; a Tensor is not yet read: numpy(), torch() and t[0:2] read it"
            raise AttributeError(f"'Tensor' object has no attribute {word!r}{hint}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Read a slice as NumPy would return it; integers, slices and `...` read only the range that they need."""
        from ..moves.part import sliced

        keys = _per_axis(index, self.shape)
        if keys is None or self.dtype.kind == "s":
            return self.numpy()[index]
        bounds = [(k, k + 1) if isinstance(k, int) else _bounds(k, n) for k, n in zip(keys, self.shape, strict=True)]
        read = replace(self, shape=tuple(hi - lo for lo, hi in bounds), parts=sliced(self, bounds)).numpy()
        return read[tuple(0 if isinstance(k, int) else slice(None, None, k.step) for k in keys)]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        role = f", {self.role}" if self.role else ""
        dims = "x".join(map(str, self.shape)) or "scalar"
        size = f", {size}" if (size := in_size([self])) else ""
        return f"<Tensor {brief(printable(self.name), 100)!r}: {self.dtype.name} {dims}{size}{role}>"

    def since(self, opened: Opened) -> Tensor:
        """Set `opened` in place, on a tensor that was just made; return it."""
        _OPENED(self, opened)
        return self

    def renamed(self, name: str) -> Tensor:
        """Return the same tensor under another name."""
        return replace(self, name=name)


def in_size(tensors: Iterable[Stored]) -> str:
    """Format the size of tensors; '' if all are strings, whose lengths are not known before they are read."""
    size, strings = 0, False
    for t in tensors:
        size, strings = size + t.nbytes, strings or t.dtype.kind == "s"
    return in_known(size, strings=strings)


def counted(tensors: int, size: str) -> str:
    """Format the number of tensors, and their size if it is known: 2 tensors, 37.2 kB."""
    return f"{many(tensors, 'tensor')}, {size}" if size else many(tensors, "tensor")


def in_known(size: int, *, strings: bool) -> str:
    """Format the size of tensors, some of which may be strings of unknown size."""
    return f"{in_bytes(size)}{' without strings' * strings}" if size or not strings else ""


_NAME, _DTYPE, _SHAPE, _PARTS, _ROLE, _OPENED, _WHOLE = (
    getattr(Tensor, slot).__set__ for slot in ("name", "dtype", "shape", "parts", "role", "opened", "_whole")
)


def _per_axis(index: Any, shape: tuple[int, ...]) -> list[int | slice] | None:
    """Expand an index of integers, slices and one `...` to one key for each axis; None for others, left to NumPy."""
    keys = list(index) if isinstance(index, tuple) else [index]
    if any(type(k) is not int and not isinstance(k, slice) and k is not ... for k in keys):
        return None
    at = next((i for i, k in enumerate(keys) if k is ...), len(keys))
    missing = len(shape) - len(keys) + (at < len(keys))
    keys[at : at + 1] = [slice(None)] * missing
    if missing < 0 or ... in keys:
        return None
    for k, n in zip(keys, shape, strict=True):
        if type(k) is int and not -n <= k < n:
            raise IndexError(f"index {k} is out of bounds for an axis of {n}")
    return [k % n if type(k) is int else k for k, n in zip(keys, shape, strict=True)]


def _bounds(key: slice, size: int) -> tuple[int, int]:
    """Return the range [low, high) of a slice; the step is applied after reading."""
    taken = range(*key.indices(size))
    return (min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1) if taken else (0, 0)


def origin(t: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors made of the same stored elements in the same way."""

    def place(data: Data) -> object:
        return (data.array.ctypes.data, data.array.nbytes) if isinstance(data, Held) else data

    return (t.dtype, t.shape, *((place(p.data), *p[1:]) for p in t.parts))


def contiguous(
    name: str, kind: DType, shape: Sequence[int], data: Data, *, ops: tuple[str, ...] = (), role: Role = ""
) -> Tensor:
    """Make a tensor whose elements are all of `data`, in C order.

    kind: the dtype, a row of `DTYPES`. data: as many bytes as the shape needs, which the caller checks. ops: operations
    on the stored elements, by their names in moves/cast.py. role: see `Tensor`.
    """
    if ops:
        return view(name, kind, shape, data, offset=0, strides=c_strides(shape), ops=ops, role=role)
    made = Tensor.__new__(Tensor)  # makes its parts on demand: listing a million tensors needs none
    _NAME(made, name)
    _DTYPE(made, kind)
    _SHAPE(made, tuple(shape))
    _ROLE(made, role)
    _OPENED(made, None)
    _WHOLE(made, data)
    return made


def view(
    name: str,
    kind: DType,
    shape: Sequence[int],
    data: Data,
    *,
    offset: int,
    strides: Sequence[int],
    ops: tuple[str, ...] = (),
    role: Role = "",
) -> Tensor:
    """Make a tensor that is a strided view of `data`.

    offset, strides: in elements, not negative; the caller checks that they stay within `data`. kind, ops, role: as in
    `contiguous`.
    """
    shape = tuple(shape)
    return Tensor(name, kind, shape, (Part(data, kind, shape, offset, tuple(strides), 0, c_strides(shape), ops),), role)


def held(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """Wrap a NumPy array of any strides and byte order as a tensor; an object array of bytes becomes a string tensor.

    Raises UsageError if no dtype fits.
    """
    import numpy as np

    if array.dtype == object:
        return contiguous(name, DTYPES["string"], array.shape, Held(array))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    kind = of_numpy(array.dtype)
    data = np.asarray(array, order="C").reshape(array.shape)
    return contiguous(name, kind, array.shape, Held(data))
