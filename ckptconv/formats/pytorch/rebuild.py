"""The globals of torch: storages, tensors as views of them, and what torch would rebuild.

    persistent id ("storage", torch.FloatStorage, "0", "cpu", 6)          -> Storage, found by the container
    torch._utils._rebuild_tensor_v2(storage, 0, (2, 3), (3, 1), False, OrderedDict())   -> View
    torch._utils._rebuild_tensor_v3(untyped storage, ..., torch.uint16)   -> View, for dtypes without a storage class

Offsets and strides count elements of the view's dtype. Every view is checked against its storage here, so all that
come out may be trusted. Specification: torch/_utils.py, torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import MAX_AXES, Data, elements
from .arrays import NUMPY, PickledArray
from .plain import PLAIN, Inert, Known, shown

MAX_EXPANSION = 2**32  # bytes that a view with zero strides may claim beyond its storage's


class TorchType(NamedTuple):
    """torch.float32 and the like; `row` is None where no neutral dtype fits (complex32, bits8, quint4x2)."""

    name: str
    row: DType | None


class StorageType(NamedTuple):
    """torch.FloatStorage and the like. `row` None with `bits` 8: bytes without a type; else packed elements."""

    name: str
    row: DType | None
    bits: int


class Storage(NamedTuple):
    """One piece of stored data: `count` elements of `type` from element `start` on (old views of storages)."""

    type: StorageType
    key: str
    data: Data | None
    size: int  # bytes
    start: int = 0
    swapped: bool = False


class View(NamedTuple):
    """A tensor: a strided look at a storage. `row` None: a dtype that nothing else can hold, called `torch`."""

    storage: Storage
    row: DType | None
    torch: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ops: tuple[str, ...] = ()

    def build(self, state: Any) -> None:
        """Attributes that Python code hung on the tensor: nothing that a checkpoint keeps."""


class Pieces(NamedTuple):
    """A tensor made of tensors: sparse, quantised, nested. `details` are the numbers that go with them."""

    kind: str
    shape: tuple[int, ...]
    parts: dict[str, Any]
    details: dict[str, Any]


class Absent(NamedTuple):
    """A tensor without data (on the meta device)."""

    torch: str
    shape: tuple[int, ...]


UNTYPED = StorageType("UntypedStorage", None, 8)


def ints(value: Any, what: str) -> tuple[int, ...]:
    if type(value) not in (tuple, list) or len(value) > MAX_AXES or any(type(n) is not int for n in value):
        raise CorruptCheckpoint(f"the {what} of a tensor is {shown(value)}, not at most {MAX_AXES} whole numbers")
    return tuple(value)


def _view(storage: Any, kind: TorchType, offset: Any, shape: Any, strides: Any) -> View:
    """Check that the view lies within its storage."""
    if type(storage) is not Storage or type(offset) is not int or offset < 0:
        raise CorruptCheckpoint(f"a tensor has the storage {shown(storage)} and the offset {shown(offset)}")
    shape, strides = ints(shape, "shape"), ints(strides, "strides")
    if len(shape) != len(strides):
        raise CorruptCheckpoint(f"a tensor has the shape {list(shape)} but the strides {list(strides)}")
    total = elements(shape)
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
    if total * size > have and total * size > MAX_EXPANSION + have:
        raise UnsafeCheckpoint(f"a tensor of shape {list(shape)} expands {have} stored bytes to {total * size}")
    ops = ("swap",) if storage.swapped and size > 1 else ()
    return View(storage, row, kind.name, offset + storage.start, shape, strides, ops)


def _typed(storage: Any) -> TorchType:
    """The dtype of a tensor that does not say it: its storage's."""
    if type(storage) is not Storage:
        raise CorruptCheckpoint(f"a tensor has the storage {shown(storage)}")
    kind = storage.type
    return TorchType(kind.row.torch if kind.row else kind.name, kind.row)


def _bits(view: View, metadata: Any) -> View:
    """Apply the conj and neg bits that torch stores beside a tensor."""
    if type(view) is not View or not hasattr(metadata, "get"):
        return view
    bits = tuple(name for name in ("conj", "neg") if metadata.get(name) is True)
    return view._replace(ops=view.ops + bits) if bits else view


def rebuild(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = False, hooks: Any = None, metadata: Any = None
) -> View:
    view = _view(storage, _typed(storage), offset, shape, strides)
    return _bits(view, metadata) if metadata else view


def _rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, kind: Any, metadata: Any = None
) -> View:
    if type(kind) is not TorchType:
        raise CorruptCheckpoint(f"a tensor has the dtype {shown(kind)}")
    return _bits(_view(storage, kind, offset, shape, strides), metadata)


def _parameter(data: Any = None, *_: Any) -> Any:
    return data


def _from_type(make: Any, kind: Any, args: Any, state: Any = None) -> Any:
    """A tensor with attributes or of a subclass: the tensor itself, or a placeholder if we do not know `make`."""
    if type(args) is not tuple:
        raise CorruptCheckpoint("a tensor subclass is rebuilt without arguments")
    if type(make) is Known and make.call is not None and make.path.startswith("_rebuild") and len(args) < MAX_AXES:
        return make.call(*args)
    if type(make) is Inert:
        return Inert(make.path, args)
    raise UnsafeCheckpoint(f"a tensor subclass is rebuilt by {shown(make)}")


def _sparse(layout: Any, data: Any) -> Pieces:
    """COO: indices, values, size[, coalesced]; compressed: compressed and plain indices, values, size."""
    layout = str(layout).removeprefix("torch.")
    names = _LAYOUTS.get(layout)
    if names is None or type(data) is not tuple or len(data) <= len(names):
        raise CorruptCheckpoint(f"a sparse tensor of the layout {shown(layout)} is not understood")
    parts = dict(zip(names, data, strict=False))
    if any(type(p) is not View for p in parts.values()):
        raise CorruptCheckpoint("a sparse tensor whose pieces are no tensors")
    shape = ints(data[len(names)], "shape")
    elements(shape)
    return Pieces(layout, shape, parts, {})


def _quantised(
    storage: Any, offset: Any, shape: Any, strides: Any, quantiser: Any, grad: Any = False, hooks: Any = None
) -> Pieces:
    """value = (q - zero_point) * scale, per tensor or along an axis."""
    if type(quantiser) is not tuple or not quantiser or type(quantiser[0]) is not Known:
        raise CorruptCheckpoint("a quantised tensor without a quantiser")
    view = _view(storage, _typed(storage), offset, shape, strides)
    scheme, values = quantiser[0].path, quantiser[1:]
    if len(values) < 2 + scheme.startswith("per_channel"):
        raise CorruptCheckpoint(f"a quantised tensor whose {scheme} lacks its numbers")
    parts: dict[str, Any] = {"": view}
    details: dict[str, Any] = {"scheme": scheme}
    for name, value in zip(("scale", "zero_point", "axis"), values, strict=False):
        (parts if type(value) is View else details)[name] = value
    return Pieces("quantised", view.shape, parts, details)


def _nested(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> Pieces:
    parts = {"buffer": buffer, "sizes": sizes, "strides": strides, "offsets": offsets}
    return Pieces("nested", (), {n: p for n, p in parts.items() if type(p) is View}, {})


def _meta(kind: Any, shape: Any, strides: Any, grad: Any = False) -> Absent:
    return Absent(kind.name if type(kind) is TorchType else "?", ints(shape, "shape"))


def _from_numpy(array: Any, kind: Any = None, *_: Any) -> Any:
    if type(array) is not PickledArray:
        raise CorruptCheckpoint("a device tensor that holds no numpy array")
    return array


def _size(value: Any = ()) -> tuple[int, ...]:
    return ints(value, "size")


def _text(*parts: Any) -> str:
    """torch.device('cuda', 0), torch.serialization._get_layout('torch.strided'): only what they are called."""
    return ":".join(str(p) for p in parts if type(p) in (str, int))


def _old(*args: Any) -> Any:
    """torch.FloatTensor(storage, offset, size, stride) and torch.nn.Parameter(tensor): what old files call."""
    return rebuild(*args) if args and type(args[0]) is Storage else _parameter(*args)


def _list(items: Any = ()) -> list[Any]:
    """torch.jit._pickle.build_intlist([..]): TorchScript's typed lists."""
    if type(items) not in (list, tuple):
        raise CorruptCheckpoint("a TorchScript list is built from no list")
    return list(items)


_LAYOUTS = {
    "sparse_coo": ("indices", "values"),
    **dict.fromkeys(("sparse_csr", "sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("sparse_csc", "sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}

# Storage classes whose elements are packed or have no neutral dtype; 0 bits: none is known.
_QUANTISED = {"QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32"}
_PACKED = {"QUInt4x2": 4, "QUInt2x4": 2, "ComplexHalf": 32}
_STORAGES = {
    **{r.storage: StorageType(r.storage + "Storage", r, r.itemsize * 8) for r in DTYPES.values() if r.storage},
    **{name: StorageType(name + "Storage", DTYPES[r], DTYPES[r].itemsize * 8) for name, r in _QUANTISED.items()},
    **{name: StorageType(name + "Storage", None, bits) for name, bits in _PACKED.items()},
}
_ODD_TYPES = (
    "complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4",
    "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
    *(f"{sign}int{n}" for sign in ("", "u") for n in range(1, 8)),
)  # fmt: skip
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}
_SCHEMES = (
    "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)  # fmt: skip
_UTILS: dict[str, Callable[..., Any]] = {
    "_rebuild_tensor": rebuild,
    "_rebuild_tensor_v2": rebuild,
    "_rebuild_tensor_v3": _rebuild_v3,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
    "_rebuild_sparse_tensor": _sparse,
    "_rebuild_qtensor": _quantised,
    "_rebuild_nested_tensor": _nested,
    "_rebuild_meta_tensor_no_storage": _meta,
    "_rebuild_device_tensor_from_numpy": _from_numpy,
    "_rebuild_device_tensor_from_cpu_tensor": _parameter,
}
_TYPES = {row.torch: TorchType(row.torch, row) for row in DTYPES.values() if row.torch}

TORCH: dict[tuple[str, str], Any] = {
    **PLAIN,
    **NUMPY,
    **{(m, name + "Storage"): kind for m in ("torch", "torch.cuda") for name, kind in _STORAGES.items()},
    **{(m, name + "Tensor"): Known(name, _old) for m in ("torch", "torch.cuda") for name in _STORAGES},
    ("torch.storage", "UntypedStorage"): UNTYPED,
    ("torch", "UntypedStorage"): UNTYPED,
    ("torch.storage", "TypedStorage"): Known("TypedStorage"),
    **{("torch", name): kind for name, kind in _TYPES.items()},
    **{("torch", name): _TYPES[row] for name, row in _ALIASES.items()},
    **{("torch", name): TorchType(name, None) for name in _ODD_TYPES if name not in _TYPES},
    **{("torch", name): Known(name) for name in _SCHEMES},
    **{("torch._utils", name): Known(name, call) for name, call in _UTILS.items()},
    ("torch._tensor", "_rebuild_from_type_v2"): Known("_rebuild_from_type_v2", _from_type),
    ("torch.nn.parameter", "Parameter"): Known("Parameter", _old),
    ("torch.nn", "Parameter"): Known("Parameter", _old),
    ("torch.autograd.variable", "Variable"): Known("Variable", _old),
    ("torch.nn.parameter", "Buffer"): Known("Buffer", _old),
    ("torch", "Tensor"): Known("Tensor", _old),
    ("torch._tensor", "Tensor"): Known("Tensor", _old),
    ("torch", "Size"): Known("Size", _size),
    ("torch", "device"): Known("device", _text),
    ("torch.serialization", "_get_layout"): Known("_get_layout", _text),
    **{
        ("torch.jit._pickle", f"build_{kind}list"): Known("list", _list) for kind in ("int", "double", "bool", "tensor")
    },
    ("torch.jit._pickle", "restore_type_tag"): Known("restore_type_tag", _parameter),
}

__all__ = ["TORCH", "UNTYPED", "Absent", "Pieces", "Storage", "StorageType", "TorchType", "View", "ints", "rebuild"]
