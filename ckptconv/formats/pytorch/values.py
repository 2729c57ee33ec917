"""Classes whose instances are values and nothing else: settings, dates, paths. They are recorded, never made.

An argparse.Namespace or an OmegaConf config beside a state dict says nothing about its tensors, so it is read without
`opaque`. Only classes are listed here whose instances are nothing but their attributes and items.
"""

from __future__ import annotations

from typing import Any

from .plain import Inert, Known, shown

_CLASSES = {
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "collections": ("deque", "UserDict"),
    "datetime": ("datetime", "date", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "uuid": ("UUID", "SafeUUID"),
    "easydict": ("EasyDict",),
    "addict.addict": ("Dict",),
    "munch": ("Munch", "DefaultMunch"),
    "box.box": ("Box",),
    "box.box_list": ("BoxList",),
    "ml_collections.config_dict.config_dict": ("ConfigDict", "FrozenConfigDict"),
    "yacs.config": ("CfgNode",),
    "fvcore.common.config": ("CfgNode",),
    "detectron2.config.config": ("CfgNode",),
    "mmcv.utils.config": ("ConfigDict",),
    "mmengine.config.config": ("ConfigDict",),
    "omegaconf.dictconfig": ("DictConfig",),
    "omegaconf.listconfig": ("ListConfig",),
    "omegaconf.base": ("ContainerMetadata", "Metadata", "Box"),
    "omegaconf.nodes": (
        "AnyNode", "BooleanNode", "BytesNode", "EnumNode", "FloatNode", "IntegerNode", "InterpolationResultNode",
        "PathNode", "StringNode",
    ),
    **dict.fromkeys(
        (
            "pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing",
            "lightning_fabric.utilities.data", "lightning.fabric.utilities.data",
        ),
        ("AttributeDict",),
    ),
}  # fmt: skip
_TYPING = ("Any", "Union", "Optional", "Dict", "List", "Tuple", "Set", "Sequence", "Mapping", "Callable")
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath")


def record(path: str) -> Known:
    """A class whose instances are only looked at."""

    def made(*args: Any) -> Inert:
        return Inert(path, args)

    return Known(path, made, made)


def _path(*parts: Any) -> str:
    if any(type(part) is not str for part in parts):
        raise TypeError(f"a path is made of {shown(parts)}")
    return "/".join(parts).replace("//", "/")


def _subscript(generic: Any, item: Any) -> Inert:
    """operator.getitem(typing.Dict, (str, Any)): how Dict[str, Any] is pickled. Of nothing else."""
    if type(generic) is not Known or not generic.path.startswith("typing."):
        raise TypeError(f"an item of {shown(generic)} is asked for")
    return Inert(generic.path, ())


HARMLESS = frozenset(f"{module}.{name}" for module, names in _CLASSES.items() for name in names)

VALUES: dict[tuple[str, str], Any] = {
    **{(module, name): record(f"{module}.{name}") for module, names in _CLASSES.items() for name in names},
    **{(module, name): Known(name, _path, _path) for module in ("pathlib", "pathlib._local") for name in _PATHS},
    **{("typing", name): Known(f"typing.{name}") for name in _TYPING},
    **{(module, "getitem"): Known("getitem", _subscript) for module in ("operator", "_operator")},
}
