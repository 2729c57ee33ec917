"""Tensors in a pickle: storages, and views of them, which are checked here once and trusted afterwards.

Storage   the bytes of one member or stretch of the file, of one type
View      dtype, offset, shape, strides in one storage; offsets and strides count elements of the view's dtype
Tagged    a tensor with attributes that Python code hung on it, or of a subclass
Wrapper   a tensor of a subclass that has no data of its own: only its attributes have
Pieces    a tensor made of tensors: sparse, quantised, nested
Absent    a tensor without data
Hollow    torch.FloatTensor() before its state arrives
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import MAX_AXES, MAX_FILL, Data, checked_count
from .plain import shown


class TorchType(NamedTuple):
    """torch.float32 and the like; `row` is None if no neutral dtype fits (complex32, bits8, quint4x2)."""

    name: str
    row: DType | None


class StorageType(NamedTuple):
    """torch.FloatStorage and the like, of elements of `bits`. `row`: None if no neutral dtype fits, as for UNTYPED."""

    name: str
    row: DType | None
    bits: int

    @property
    def quantised(self) -> bool:
        return self.name.startswith(("QInt", "QUInt"))


class Storage(NamedTuple):
    """One piece of stored data: `size` bytes of elements of `type` from element `start` on (old views of storages)."""

    type: StorageType
    key: str
    data: Data | None
    size: int  # bytes
    start: int = 0
    swapped: bool = False


class View(NamedTuple):
    """A tensor: a strided view of a storage. `row` None: a dtype that nothing else can hold, called `torch`."""

    storage: Storage
    row: DType | None
    torch: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ops: tuple[str, ...] = ()

    def build(self, state: Any) -> None:
        """The state (requires_grad, volatile, hooks) of a Variable says nothing of its elements; any other does."""
        if type(state) is not tuple or len(state) != 3 or type(state[0]) is not bool:
            raise UnsafeCheckpoint(f"a tensor is given other data by its state {shown(state)}")


def identity(value: Any) -> tuple[Any, ...]:
    """What two values have in common if they are the same elements in the same shape, as long as both are kept."""
    if type(value) is View:
        return id(value.storage), value.offset, value.shape, value.strides, value.torch, value.ops
    return (id(value),)


class Tagged(NamedTuple):
    """A tensor with attributes, which do not change its elements. `path` is its class if that is unknown, or ''."""

    value: Any
    path: str
    attributes: dict[str, Any]


class Wrapper(NamedTuple):
    """A tensor subclass without data of its own: `attributes` hold the tensors of which it consists."""

    path: str
    shape: tuple[int, ...]
    attributes: dict[str, Any]


class Pieces(NamedTuple):
    """A tensor that consists of tensors. `details` are the numbers that belong to them."""

    kind: str
    shape: tuple[int, ...]
    parts: dict[str, Any]
    details: dict[str, Any]


class Absent(NamedTuple):
    """A tensor without data (on the meta device)."""

    torch: str
    shape: tuple[int, ...]


class Hollow:
    """A tensor created without data, as in files of 2016 and 2017, and filled by its state."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: StorageType | None) -> None:
        self.kind = kind  # None: of any dtype
        self.value: Any = None

    def build(self, state: Any) -> None:
        """(storage, offset, shape, strides), or (data, gradient, hooks, requires_grad, volatile) of a Variable."""
        filled = self.value is not None
        if type(state) is tuple and len(state) == 4 and type(state[0]) is Storage and not filled:
            kind = state[0].type
            if self.kind in (None, kind) and kind.row is not None and not kind.quantised:
                self.value = look(state[0], TorchType(kind.row.torch, kind.row), *state[1:])
        elif type(state) is tuple and len(state) == 5 and type(state[0]) is View and not filled and self.kind is None:
            self.value = state[0]
        if self.value is None or filled:
            raise UnsafeCheckpoint(f"an empty tensor is given the state {shown(state)}")


UNTYPED = StorageType("UntypedStorage", None, 8)
BYTE = DTYPES["uint8"]


def ints(value: Any, what: str) -> tuple[int, ...]:
    """Check a shape or strides."""
    if type(value) not in (tuple, list) or len(value) > MAX_AXES or any(type(n) is not int for n in value):
        raise CorruptCheckpoint(f"the {what} of a tensor is {shown(value)}, not at most {MAX_AXES} whole numbers")
    return tuple(value)


def look(storage: Any, kind: TorchType, offset: Any, shape: Any, strides: Any) -> View:
    """Check that the view lies within its storage."""
    if type(storage) is not Storage or type(offset) is not int or offset < 0:
        raise CorruptCheckpoint(f"a tensor has the storage {shown(storage)} and the offset {shown(offset)}")
    shape, strides = ints(shape, "shape"), ints(strides, "strides")
    if len(shape) != len(strides):
        raise CorruptCheckpoint(f"a tensor has the shape {list(shape)} but the strides {list(strides)}")
    total = checked_count(shape)
    row = kind.row
    if row is None:
        return View(storage, None, kind.name, offset, shape, strides)
    last = offset
    for n, step in zip(shape, strides, strict=True):
        if step < 0:
            raise CorruptCheckpoint(f"a tensor has the negative stride {step}")
        last += (n - 1) * step
    size, have = row.itemsize, storage.size
    if total and (last + 1) * size > have:
        raise CorruptCheckpoint(
            f"a tensor of shape {list(shape)}, strides {list(strides)} reaches byte {(last + 1) * size} "
            f"of the storage {storage.key!r}, which has {have}"
        )
    if total * size > have and total * size > MAX_FILL + have:
        raise UnsafeCheckpoint(f"a tensor of shape {list(shape)} expands {have} stored bytes to {total * size}")
    start = offset + storage.start * storage.type.bits // 8 // size
    if storage.start * storage.type.bits % (8 * size):
        raise UnsafeCheckpoint(f"a part of the storage {storage.key!r} begins within an element of {kind.name}")
    return View(storage, row, kind.name, start, shape, strides, _order(storage, row))


def _order(storage: Storage, row: DType) -> tuple[str, ...]:
    """The byte order: torch swaps a big-endian file by the storage's type, and does not swap an untyped storage."""
    if not storage.swapped:
        return ()
    kind = storage.type.row or (BYTE if storage.type == UNTYPED else None)
    if kind is None or kind.word != row.word:
        raise UnsafeCheckpoint(
            f"a tensor of {row} lies big-endian in {storage.type.name}, by which torch cannot restore its order"
        )
    return ("swap",) if row.word > 1 else ()


def typed(storage: Any) -> TorchType:
    """The dtype of a tensor that does not name one: its storage's."""
    if type(storage) is not Storage:
        raise CorruptCheckpoint(f"a tensor has the storage {shown(storage)}")
    kind = storage.type
    if kind == UNTYPED:
        return TorchType("uint8", BYTE)
    return TorchType(kind.row.torch if kind.row else kind.name, kind.row)
