"""Tensors in a pickle: storages, and views of them, which are checked here once and trusted afterwards.

Storage   the bytes of one member or stretch of the file, of one type
View      dtype, offset, shape, strides in one storage; offsets and strides count elements of the view's dtype
Tagged    a tensor with attributes that Python code hung on it, or of a subclass, which may have no data but theirs
Pieces    a tensor made of tensors: sparse, quantised
Hollow    torch.FloatTensor() before its state arrives

The functions by which torch rebuilds tensors; each returns exactly torch's tensor or refuses.

    torch._utils._rebuild_tensor_v2(storage, 0, (2, 3), (3, 1), False, OrderedDict())             -> View
    torch._utils._rebuild_tensor_v3(untyped storage, ..., torch.uint16)                           -> View
    torch._tensor._rebuild_from_type_v2(_rebuild_tensor_v2, Parameter, (...), {"tag": 1})         -> Tagged
    torch._utils._rebuild_qtensor(storage, 0, (2,), (1,), (torch.per_tensor_affine, 0.1, 3), ...) -> Pieces

An argument or a state that is not understood is refused, never ignored: a state can replace a tensor's data.
Specification: torch/_utils.py, torch/_tensor.py, torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...dtypes import DTYPES, DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import MAX_AXES, MAX_FILL, Data, checked_count
from .values import NUMPY, PARTS, PLAIN, VALUES, Inert, Known, Ordered, PickledArray, shown


class TorchType(NamedTuple):
    """torch.float32 and the like; `row` is None if no neutral dtype fits (complex32, bits8, quint4x2)."""

    name: str
    row: DType | None


class StorageType(NamedTuple):
    """torch.FloatStorage and the like, of elements of `bits`. `row`: None if no neutral dtype fits."""

    name: str
    row: DType | None
    bits: int

    @property
    def quantised(self) -> bool:
        return self.name.startswith(("QInt", "QUInt"))

    def nbytes(self, count: int) -> int:
        """The bytes of `count` elements."""
        return -(-count * self.bits // 8)


@dataclass(eq=False, slots=True)
class Storage:
    """One piece of stored data: `size` bytes of elements of `type`."""

    type: StorageType
    key: str
    data: Data | None
    size: int  # bytes
    swapped: bool = False


def storage_id(pid: Any, size: int) -> tuple[StorageType, str, int]:
    """The class, key and count of a persistent id ("storage", class, key, location, count) of so many parts."""
    if type(pid) is not tuple or len(pid) != size or pid[0] != "storage":
        raise CorruptCheckpoint(f"a persistent id is {shown(pid)}, not a storage")
    _, kind, key, _, count = pid[:5]
    key = str(key) if type(key) is int else key
    proper = type(kind) is StorageType and type(key) is str and len(key) <= MAX_STORAGE_KEY
    if not proper or type(count) is not int or count < 0:
        raise CorruptCheckpoint(f"a storage is described by {shown(pid)}")
    return kind, key, count


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
    """A tensor with attributes, which do not change its elements. `path` is its class if that is unknown, or ''.

    value: None for a subclass without data of its own, which consists of the tensors in its attributes.
    """

    value: Any
    path: str
    attributes: dict[str, Any]


class Pieces(NamedTuple):
    """A tensor that consists of tensors. `details` are the numbers that belong to them."""

    kind: str
    shape: tuple[int, ...]
    parts: dict[str, Any]
    details: dict[str, Any]


class Hollow:
    """A tensor created without data, as in files of 2016 and 2017, and filled by its state."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: StorageType | None) -> None:
        self.kind = kind  # None: of any dtype
        self.value: Any = None

    def build(self, state: Any) -> None:
        """(storage, offset, shape, strides), or (data, gradient, hooks, requires_grad, volatile) of a Variable."""
        first, made = state[0] if type(state) is tuple and state else None, None
        if type(first) is Storage and len(state) == 4 and self.kind in (None, first.type) and self.value is None:
            if first.type.row is not None and not first.type.quantised and first.type != UNTYPED:
                made = rebuild(first, *state[1:])
        elif type(first) is View and len(state) == 5 and self.kind is None and self.value is None:
            made = first
        if made is None:
            raise UnsafeCheckpoint(f"an empty tensor is given the state {shown(state)}")
        self.value = made


MAX_STORAGE_KEY = 200  # characters; torch counts from "0" on
META, PART = "meta", "part"  # in the place of a dtype
UNTYPED = StorageType("UntypedStorage", DTYPES["uint8"], 8)


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
    return View(storage, row, kind.name, offset, shape, strides, _order(storage, row))


def _order(storage: Storage, row: DType) -> tuple[str, ...]:
    """The byte order: torch swaps a big-endian file by the storage's type, and does not swap an untyped storage."""
    if not storage.swapped:
        return ()
    kind = storage.type.row
    if kind is None or kind.word != row.word:
        raise UnsafeCheckpoint(
            f"a tensor of {row} lies big-endian in {storage.type.name}, by which torch cannot restore its order"
        )
    return ("swap",) if row.word > 1 else ()


def typed(storage: Any, *, quantised: bool = False) -> TorchType:
    """The dtype of a tensor that does not name one: its storage's."""
    if type(storage) is not Storage:
        raise CorruptCheckpoint(f"a tensor has the storage {shown(storage)}")
    kind = storage.type
    if kind.quantised and not quantised:
        raise UnsafeCheckpoint(f"a tensor without a quantiser lies in {kind.name}")
    return TorchType(kind.row.torch_name if kind.row else kind.name, kind.row)


WRAPPED = "torch._utils._rebuild_wrapper_subclass"
# Attributes of torch.Tensor that replace its elements when they are set, or its class.
REPLACING = frozenset({"data", "real", "imag", "T", "H", "mT", "mH", "shape", "dtype", "_cdata"})
CLASSES = frozenset({"Tensor", "Parameter", "Buffer"})


def layout(name: Any) -> Known:
    """torch.serialization._get_layout('torch.sparse_coo')."""
    if type(name) is not str:
        raise CorruptCheckpoint(f"a layout is called {shown(name)}")
    return Known(name)


# --- dense ------------------------------------------------------------------------------------------------------


def rebuild(storage: Any, offset: Any, shape: Any, strides: Any) -> View:
    return look(storage, typed(storage), offset, shape, strides)


def rebuild_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, metadata: Any = None
) -> View:
    return _bits(rebuild(storage, offset, shape, strides), metadata)


def rebuild_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, kind: Any, metadata: Any = None
) -> View:
    if type(kind) is not TorchType:
        raise CorruptCheckpoint(f"a tensor has the dtype {shown(kind)}")
    return _bits(look(storage, kind, offset, shape, strides), metadata)


def _bits(view: View, metadata: Any) -> View:
    """Apply the conj and neg bits that torch stores beside a tensor."""
    if not metadata:
        return view
    if type(metadata) not in (dict, Ordered) or not set(metadata) <= {"conj", "neg"}:
        raise UnsafeCheckpoint(f"a tensor has the metadata {shown(list(metadata))}; conj and neg are known")
    bits = tuple(name for name in ("conj", "neg") if name in metadata)  # torch sets what is there, even to False
    kinds = "c" if "conj" in bits else "fc"  # the imaginary part of a conjugated tensor is a negated one of floats
    if any(v is not True for v in metadata.values()) or (bits and (not view.row or view.row.kind not in kinds)):
        raise UnsafeCheckpoint(f"a tensor of {view.torch} is stored conjugated or negated")
    return view._replace(ops=view.ops + bits)


def bare(value: Any) -> Any:
    """A tensor without its attributes; a `Hollow` as its state has filled it."""
    while type(value) is Tagged:
        value = value.value
    return value.value if type(value) is Hollow else value


def parameter(value: Any = None, grad: Any = True) -> Any:
    """Parameter(tensor); Parameter() of old files, which give the tensor as its state afterwards."""
    if value is None:
        return Hollow(None)
    if type(bare(value)) not in (View, Pieces):
        raise CorruptCheckpoint(f"a parameter is made of {shown(value)}")
    return value if type(value) is Tagged else bare(value)


def rebuild_parameter(value: Any, grad: Any, hooks: Any) -> Any:
    return parameter(bare(value))


def parameter_with_state(value: Any, grad: Any, hooks: Any, state: Any) -> Any:
    return tagged(rebuild_parameter(value, grad, hooks), "", state)


def meta(kind: Any, shape: Any, strides: Any, grad: Any) -> View:
    """A tensor without data: of no dtype."""
    if type(kind) is not TorchType:
        raise CorruptCheckpoint(f"a tensor on the meta device has the dtype {shown(kind)}")
    return absent(META, shape)


def absent(why: str, shape: Any) -> View:
    """A tensor whose values the file does not hold."""
    return View(Storage(UNTYPED, "", None, 0), None, why, 0, ints(shape, "shape"), ())


def encoded(kind: Any, name: Any) -> Inert:
    """getattr(MEM_FORMAT_ENCODING, name) and the like, as ShardedTensor is pickled; of nothing else."""
    if type(kind) is not Inert or not PARTS.fullmatch(kind.path):
        raise UnsafeCheckpoint(f"getattr of {shown(kind)}")
    return Inert(kind.path)


def device_tensor(value: Any, kind: Any, device: Any, grad: Any) -> Any:
    """A tensor moved to another device: its elements are cast to `kind` on the way, which is not done here."""
    inner = bare(value)
    have = inner.kind.torch_name() if type(inner) is PickledArray else inner.torch if type(inner) is View else ""
    if not have:
        raise CorruptCheckpoint(f"a tensor of another device is made of {shown(value)}")
    if kind is not None and (type(kind) is not TorchType or kind.name != have):
        to = kind.name if type(kind) is TorchType else shown(kind)
        raise UnsafeCheckpoint(f"a tensor of another device is stored as {have} and is to become {to}")
    return inner


# --- with attributes, and of subclasses -------------------------------------------------------------------------


def tagged(value: Any, path: str, state: Any) -> Any:
    """A tensor with the attributes that torch sets one by one; of an unknown class, whose state may be anything."""
    parts = state if type(state) is tuple else (state, None)
    if len(parts) != 2 or any(p is not None and type(p) not in (dict, Ordered) for p in parts):
        if not path:
            raise UnsafeCheckpoint(f"a tensor has the state {shown(state)}")
        return Tagged(bare(value), path, {"state": state})
    attributes: dict[str, Any] = {}
    for name, attribute in (pair for part in parts for pair in (part or {}).items()):
        if type(name) is not str:
            raise CorruptCheckpoint(f"an attribute of a tensor is called {shown(name)}")
        if name in REPLACING or name.startswith("__"):
            raise UnsafeCheckpoint(f"the state of a tensor replaces its {name!r}")
        attributes[name] = attribute
    return Tagged(bare(value), path, attributes) if attributes or path else bare(value)


def from_type(make: Any, kind: Any, args: Any, state: Any) -> Any:
    """_rebuild_from_type_v2: a tensor with attributes or of a subclass."""
    if type(args) is not tuple:
        raise CorruptCheckpoint("a tensor subclass is rebuilt without arguments")
    path = kind.path if type(kind) is Inert and kind.args is None else ""
    if not path and (type(kind) is not Known or kind.path not in CLASSES):
        raise UnsafeCheckpoint(f"a tensor is of the class {shown(kind)}")
    if type(make) is Known and make.call is not None and make.path.startswith("_rebuild") and len(args) < MAX_AXES:
        made = make.call(*args)
        if type(made) is PickledArray:
            raise UnsafeCheckpoint("a tensor of another device has a state")
        return tagged(made, path, state)
    if type(make) is not Inert or not path:
        raise UnsafeCheckpoint(f"a tensor subclass is rebuilt by {shown(make)}")
    if make.path == WRAPPED and path.endswith((".DTensor", ".ShardedTensor")):
        return absent(PART, args[2])
    attributes = tagged(None, path, state).attributes
    return Tagged(None, path, attributes if make.path == WRAPPED else {**attributes, "args": args})


def from_type_v1(make: Any, kind: Any, args: Any, state: Any) -> Any:
    """_rebuild_from_type, which torch 1.7 to 1.11 wrote: it gives a tensor no attributes at all."""
    if type(kind) is Known and kind.path == "Tensor":
        return from_type(make, kind, args, None)
    if type(state) not in (dict, Ordered):
        raise UnsafeCheckpoint(f"a tensor has the state {shown(state)}")
    return from_type(make, kind, args, state)


# --- made of several tensors ------------------------------------------------------------------------------------

LAYOUTS = {
    "torch.sparse_coo": ("indices", "values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), ("ccol_indices", "row_indices", "values")),
}


def sparse(how: Any, data: Any) -> Pieces:
    """COO: indices, values, size[, coalesced]; compressed: compressed and plain indices, values, size."""
    names = LAYOUTS.get(how.path) if type(how) is Known else None
    if names is None or type(data) is not tuple or not len(names) < len(data) < len(names) + 2 + (len(names) == 2):
        raise CorruptCheckpoint(f"a sparse tensor of the layout {shown(how)} is not understood")
    shape = ints(data[len(names)], "shape")
    checked_count(shape)
    kind, views = how.path.removeprefix("torch."), {n: bare(piece) for n, piece in zip(names, data, strict=False)}
    if any(type(v) is not View for v in views.values()):
        raise CorruptCheckpoint(f"the pieces of a {kind} tensor are not tensors")
    return Pieces(kind, shape, views, {})


SCHEMES = {"per_tensor_affine": 2, "per_channel_affine": 3, "per_channel_affine_float_qparams": 3}


def quantised(storage: Any, offset: Any, shape: Any, strides: Any, quantiser: Any, grad: Any, hooks: Any) -> Pieces:
    """value = (q - zero_point) * scale, per tensor or along an axis."""
    if type(quantiser) is not tuple or not quantiser or type(quantiser[0]) is not Known:
        raise CorruptCheckpoint("a quantised tensor without a quantiser")
    if type(storage) is not Storage or not storage.type.quantised:
        raise CorruptCheckpoint(f"a quantised tensor has the storage {shown(storage)}")
    view = look(storage, typed(storage, quantised=True), offset, shape, strides)
    scheme, values = quantiser[0].path, quantiser[1:]
    if SCHEMES.get(scheme) != len(values):
        raise CorruptCheckpoint(f"a quantised tensor has the scheme {scheme} with {len(values)} numbers")
    parts: dict[str, Any] = {"": view}
    details: dict[str, Any] = {"scheme": scheme}
    for name, value in zip(("scale", "zero_point", "axis"), map(bare, values), strict=False):
        (parts if type(value) is View else details)[name] = value
    if len(values) == 3:
        _check_channels(view.shape, parts, details)
    elif type(details.get("scale")) not in (int, float) or type(details.get("zero_point")) is not int:
        raise CorruptCheckpoint(f"a quantised tensor has the numbers {shown(values)}")
    return Pieces("quantised", view.shape, parts, details)


def _check_channels(shape: tuple[int, ...], parts: dict[str, Any], details: dict[str, Any]) -> None:
    """A scale and a zero point for each channel, in tensors; torch takes lists as well, but writes none."""
    axis = details.get("axis")
    if type(axis) is not int or not 0 <= axis < len(shape):
        raise CorruptCheckpoint(f"a tensor of shape {list(shape)} is quantised along the axis {shown(axis)}")
    for name in ("scale", "zero_point"):
        if name not in parts or checked_count(parts[name].shape) != shape[axis]:
            what = parts[name].shape if name in parts else details.get(name)
            raise CorruptCheckpoint(f"{shape[axis]} quantised channels have the {name} {shown(what)}")


# --- the globals that a torch file may name, by module and name; every other is unknown ----------------------------
#
# Specification: torch/_weights_only_unpickler.py; torch/_utils.py; older names from torch/storage.py and its history.


def _list(items: Any = ()) -> list[Any]:
    """torch.jit._pickle.build_intlist([..]): TorchScript's typed lists."""
    if type(items) not in (list, tuple):
        raise CorruptCheckpoint("a TorchScript list is built from something that is not a list")
    return list(items)


# Storage classes whose elements are packed or have no neutral dtype.
_QUANTISED = {"QInt8": "int8", "QUInt8": "uint8", "QInt32": "int32"}
_PACKED = {"QUInt4x2": 8, "QUInt2x4": 8, "ComplexHalf": 32}  # of the first two torch counts bytes
_STORAGES = {
    **{r.storage: StorageType(r.storage + "Storage", r, r.itemsize * 8) for r in DTYPES.values() if r.storage},
    **{name: StorageType(name + "Storage", DTYPES[r], DTYPES[r].itemsize * 8) for name, r in _QUANTISED.items()},
    **{name: StorageType(name + "Storage", None, bits) for name, bits in _PACKED.items()},
}
_ODD_TYPES = (
    "complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4",
    "bits4x2",
    *(f"{sign}int{n}" for sign in ("", "u") for n in range(1, 8)),
)  # fmt: skip
_ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64",
}  # fmt: skip
_SCHEMES = (
    "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)  # fmt: skip
_UTILS: dict[str, Callable[..., Any]] = {
    "_rebuild_tensor": rebuild,
    "_rebuild_tensor_v2": rebuild_v2,
    "_rebuild_tensor_v3": rebuild_v3,
    "_rebuild_parameter": rebuild_parameter,
    "_rebuild_parameter_with_state": parameter_with_state,
    "_rebuild_sparse_tensor": sparse,
    "_rebuild_qtensor": quantised,
    "_rebuild_meta_tensor_no_storage": meta,
    "_rebuild_device_tensor_from_numpy": device_tensor,
    "_rebuild_xla_tensor": device_tensor,
    "_rebuild_device_tensor_from_cpu_tensor": device_tensor,
}
_TYPES = {row.torch_name: TorchType(row.torch_name, row) for row in DTYPES.values() if row.torch_name}
_FROM_TYPE: dict[str, Callable[..., Any]] = {"_rebuild_from_type_v2": from_type, "_rebuild_from_type": from_type_v1}


def _tensor(name: str, kind: StorageType | None) -> Known:
    """torch.FloatTensor() and torch.FloatTensor(storage); a list, a size or a tensor would make other tensors."""

    def make(*args: Any) -> Any:
        if not args:
            return Hollow(kind)
        storage = args[0]
        if len(args) > 1 or type(storage) is not Storage or storage.type != kind or kind.row is None:
            raise UnsafeCheckpoint(f"a tensor is made by {name}({', '.join(map(shown, args))})")
        return rebuild(storage, 0, (storage.size // kind.row.itemsize,), (1,))

    return Known(name, make, "same")


_PARAMETERS = (
    ("torch.nn.parameter", "Parameter"), ("torch.nn", "Parameter"), ("torch.nn.parameter", "Buffer"),
    ("torch.autograd.variable", "Variable"),
)  # fmt: skip

TORCH: dict[tuple[str, str], Any] = {
    **PLAIN,
    **VALUES,
    **NUMPY,
    **{(m, name + "Storage"): kind for m in ("torch", "torch.cuda") for name, kind in _STORAGES.items()},
    **{
        (m, name + "Tensor"): _tensor(f"{name}Tensor", kind)
        for m in ("torch", "torch.cuda")
        for name, kind in _STORAGES.items()
    },
    ("torch.storage", "UntypedStorage"): UNTYPED,
    ("torch", "UntypedStorage"): UNTYPED,
    ("torch.storage", "TypedStorage"): Known("TypedStorage"),
    **{("torch", name): kind for name, kind in _TYPES.items()},
    **{("torch", name): _TYPES[row] for name, row in _ALIASES.items()},
    **{("torch", name): TorchType(name, None) for name in _ODD_TYPES if name not in _TYPES},
    **{("torch", name): Known(name) for name in _SCHEMES},
    **{("torch._utils", name): Known(name, call) for name, call in _UTILS.items()},
    **{(m, name): Known(name, call) for m in ("torch._tensor", "torch.tensor") for name, call in _FROM_TYPE.items()},
    **{(module, name): Known(name, parameter, "same") for module, name in _PARAMETERS},
    ("torch", "Tensor"): _tensor("Tensor", None),
    ("torch._tensor", "Tensor"): _tensor("Tensor", None),
    ("torch", "Size"): Known("Size", lambda value=(): ints(value, "size"), "same"),
    ("torch", "device"): Known(
        "device", lambda *parts: ":".join(str(p) for p in parts if type(p) in (str, int)), "same"
    ),
    ("__builtin__", "getattr"): Known("getattr", encoded),
    ("torch.serialization", "_get_layout"): Known("_get_layout", layout),
    **{
        ("torch.jit._pickle", f"build_{kind}list"): Known("list", _list) for kind in ("int", "double", "bool", "tensor")
    },
    ("torch.jit._pickle", "restore_type_tag"): Known("restore_type_tag", lambda value, *_: value),
}
