"""The table of globals that a torch file may name, by module and name; every other is unknown.

Specification: torch/_weights_only_unpickler.py; torch/_utils.py; older names from torch/storage.py and its history.

Classes whose instances are values and nothing else: settings, dates, paths. They are recorded, never made.

An argparse.Namespace or an OmegaConf config beside a state dict says nothing about its tensors, so it is read without
`opaque`. Only classes are listed here whose instances are nothing but their attributes and items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint
from .tensors import (
    UNTYPED,
    StorageType,
    TorchType,
    constructor,
    device_tensor,
    from_type,
    from_type_v1,
    ints,
    layout,
    meta,
    nested,
    parameter,
    parameter_with_state,
    quantised,
    rebuild,
    rebuild_parameter,
    rebuild_v2,
    rebuild_v3,
    sparse,
)
from .values import NUMPY, PLAIN, Inert, Known, shown

HARMLESS = frozenset({
    "argparse.Namespace", "types.SimpleNamespace", "collections.deque", "collections.UserDict", "datetime.datetime",
    "datetime.date", "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
    "fractions.Fraction", "uuid.UUID", "uuid.SafeUUID", "easydict.EasyDict", "addict.addict.Dict", "munch.Munch",
    "munch.DefaultMunch", "box.box.Box", "box.box_list.BoxList", "ml_collections.config_dict.config_dict.ConfigDict",
    "ml_collections.config_dict.config_dict.FrozenConfigDict", "yacs.config.CfgNode", "fvcore.common.config.CfgNode",
    "detectron2.config.config.CfgNode", "mmcv.utils.config.ConfigDict", "mmengine.config.config.ConfigDict",
    "omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata", "omegaconf.base.Box", "omegaconf.nodes.AnyNode", "omegaconf.nodes.BooleanNode",
    "omegaconf.nodes.BytesNode", "omegaconf.nodes.EnumNode", "omegaconf.nodes.FloatNode",
    "omegaconf.nodes.IntegerNode", "omegaconf.nodes.InterpolationResultNode", "omegaconf.nodes.PathNode",
    "omegaconf.nodes.StringNode", "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict", "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
})  # fmt: skip
_TYPING = ("Any", "Union", "Optional", "Dict", "List", "Tuple", "Set", "Sequence", "Mapping", "Callable")
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath")


def record(path: str, name: str = "") -> dict[tuple[str, str], Known]:
    """The entry of a class whose instances are only looked at, and called `name` in messages."""

    def made(*args: Any) -> Inert:
        return Inert(name or path, args)

    module, _, own = path.rpartition(".")
    return {(module, own): Known(name or path, made, made)}


def _path(*parts: Any) -> str:
    if any(type(part) is not str for part in parts):
        raise TypeError(f"a path is made of {shown(parts)}")
    return "/".join(parts).replace("//", "/")


def _subscript(generic: Any, item: Any) -> Inert:
    """operator.getitem(typing.Dict, (str, Any)): how Dict[str, Any] is pickled. Of nothing else."""
    if type(generic) is not Known or not generic.path.startswith("typing."):
        raise TypeError(f"an item of {shown(generic)} is asked for")
    return Inert(generic.path, ())


VALUES: dict[tuple[str, str], Any] = {
    **{key: known for path in HARMLESS for key, known in record(path).items()},
    **{(module, name): Known(name, _path, _path) for module in ("pathlib", "pathlib._local") for name in _PATHS},
    **{("typing", name): Known(f"typing.{name}") for name in _TYPING},
    **{(module, "getitem"): Known("getitem", _subscript) for module in ("operator", "_operator")},
}


def _size(value: Any = ()) -> tuple[int, ...]:
    return ints(value, "size")


def _text(*parts: Any) -> str:
    """torch.device('cuda', 0): only what it is called."""
    return ":".join(str(p) for p in parts if type(p) in (str, int))


def _list(items: Any = ()) -> list[Any]:
    """torch.jit._pickle.build_intlist([..]): TorchScript's typed lists."""
    if type(items) not in (list, tuple):
        raise CorruptCheckpoint("a TorchScript list is built from something that is not a list")
    return list(items)


def _same(value: Any, *_: Any) -> Any:
    return value


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
    "_rebuild_nested_tensor": nested,
    "_rebuild_meta_tensor_no_storage": meta,
    "_rebuild_device_tensor_from_numpy": device_tensor,
    "_rebuild_xla_tensor": device_tensor,
    "_rebuild_device_tensor_from_cpu_tensor": device_tensor,
}
_TYPES = {row.torch: TorchType(row.torch, row) for row in DTYPES.values() if row.torch}
_FROM_TYPE: dict[str, Callable[..., Any]] = {"_rebuild_from_type_v2": from_type, "_rebuild_from_type": from_type_v1}


def _tensor(name: str, kind: StorageType | None) -> Known:
    make = constructor(kind)
    return Known(name, make, make)


_PARAMETERS = (
    ("torch.nn.parameter", "Parameter"), ("torch.nn", "Parameter"), ("torch.nn.parameter", "Buffer"),
    ("torch.autograd.variable", "Variable"),
)  # fmt: skip

TORCH: dict[tuple[str, str], Any] = {
    **PLAIN,
    **VALUES,
    **NUMPY,
    **{(m, name + "Storage"): kind for m in ("torch", "torch.cuda") for name, kind in _STORAGES.items()},
    **{(m, name + "Tensor"): _tensor(name, kind) for m in ("torch", "torch.cuda") for name, kind in _STORAGES.items()},
    ("torch.storage", "UntypedStorage"): UNTYPED,
    ("torch", "UntypedStorage"): UNTYPED,
    ("torch.storage", "TypedStorage"): Known("TypedStorage"),
    **{("torch", name): kind for name, kind in _TYPES.items()},
    **{("torch", name): _TYPES[row] for name, row in _ALIASES.items()},
    **{("torch", name): TorchType(name, None) for name in _ODD_TYPES if name not in _TYPES},
    **{("torch", name): Known(name) for name in _SCHEMES},
    **{("torch._utils", name): Known(name, call) for name, call in _UTILS.items()},
    **{(m, name): Known(name, call) for m in ("torch._tensor", "torch.tensor") for name, call in _FROM_TYPE.items()},
    **{(module, name): Known(name, parameter, parameter) for module, name in _PARAMETERS},
    ("torch", "Tensor"): _tensor("Tensor", None),
    ("torch._tensor", "Tensor"): _tensor("Tensor", None),
    ("torch", "Size"): Known("Size", _size, _size),
    ("torch", "device"): Known("device", _text, _text),
    ("torch.serialization", "_get_layout"): Known("_get_layout", layout),
    **{
        ("torch.jit._pickle", f"build_{kind}list"): Known("list", _list) for kind in ("int", "double", "bool", "tensor")
    },
    ("torch.jit._pickle", "restore_type_tag"): Known("restore_type_tag", _same),
}
