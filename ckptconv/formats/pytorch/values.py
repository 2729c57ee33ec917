"""What a pickle's values become, and the globals of plain Python that are allowed.

A pickle's own containers and scalars become Python's. A global is `Known` (our function) or `Inert` (a placeholder).

numpy arrays inside a pickle: what numpy would rebuild, rebuilt here from checked pieces.

    numpy.core.multiarray._reconstruct (numpy.ndarray, (0,), b'b')     an empty array, then
    BUILD (1, (2, 3), dtype, False, b'...')                            version, shape, dtype, Fortran order, bytes
    numpy.dtype ('f4', False, True)  BUILD (3, '<', None, ...)         the dtype and its byte order
    numpy.core.multiarray.scalar (dtype, b'...')                       a numpy scalar
    numpy.core.numeric._frombuffer (b'...', dtype, (2, 3), 'C')        protocol 5

An object array carries a list instead of bytes. numpy 2 says numpy._core.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import checked_count

SCALARS = frozenset({str, bytes, int, float, bool, complex, type(None)})


class Known(NamedTuple):
    """An allowed global: REDUCE runs `call`, our own function; None where it is refused.

    new: what NEWOBJ does: "" is refused, "same" is what REDUCE does, "empty" makes a container that is filled later,
    because `list(x)` is x's items, but `list.__new__(list, x)` is empty.
    """

    path: str
    call: Callable[..., Any] | None = None
    new: Literal["", "same", "empty"] = ""


class Inert:
    """What an unknown class or function became: never run, only recorded."""

    __slots__ = ("args", "items", "pairs", "path", "state")

    def __init__(self, path: str, args: object = None) -> None:
        self.path = path
        self.args = args  # None: the global itself; else what it would have been called with
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<{self.path}>"


# What parts of tensors, and distributed checkpoints, are pickled and described with, which is always a placeholder.
PARTS = re.compile(
    r"torch\._utils\._rebuild_wrapper_subclass"
    r"|torch\.distributed\.(?:_?tensor|_shard|device_mesh|_mesh_layout|remote_device|checkpoint)\b.*"
    r"|megatron[\w.]*\.MCoreMetadata"
)


def shown(value: Any, depth: int = 3) -> str:
    """A short spelling for messages. `repr` of lists that hold each other many times would never end."""
    if isinstance(value, (str, bytes)):
        return repr(value[:100])
    if type(value) in (tuple, list):
        if not depth:
            return "..."
        inside = ", ".join([shown(v, depth - 1) for v in value[:4]] + (["..."] if len(value) > 4 else []))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if value is None or isinstance(value, (bool, int, float, Inert)):
        return repr(value)
    return f"a {type(value).__name__}"


def attribute(thing: Any, *path: str, kind: type = object) -> Any:
    """An attribute of an attribute of a record, which must be of one type."""
    for name in path:
        state: Any = thing.state if type(thing) is Inert else None
        if type(state) is tuple:  # (None, {slot: value})
            state = next((s for s in state if type(s) in (dict, Ordered)), None)
        if type(state) not in (dict, Ordered) or name not in state:
            raise CorruptCheckpoint(f"{shown(thing)} has no {name}")
        thing = state[name]
    if type(thing) is not kind is not object:
        raise CorruptCheckpoint(f"a record has no proper {path[-1]}: {shown(thing)}")
    return thing


class Ordered(dict[Any, Any]):
    """A collections.OrderedDict; `state` holds its attributes, such as the `_metadata` of a state dict."""

    __slots__ = ("state",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.state: dict[Any, Any] = {}


def _mapping(*args: Any) -> Ordered:
    """OrderedDict(), OrderedDict({...}) or OrderedDict([[key, value], ...]) as Python 2 pickled it."""
    if len(args) > 1:
        raise TypeError(f"a dictionary is made of {len(args)} arguments")
    out = Ordered()
    pairs = args[0] if args else ()
    if type(pairs) in (dict, Ordered):
        out.update(pairs)
        return out
    if type(pairs) not in (list, tuple):
        raise TypeError(f"a dictionary is made of {shown(pairs)}")
    for pair in pairs:
        if type(pair) not in (list, tuple):
            raise TypeError(f"a dictionary is made of pairs such as {shown(pair)}")
        name, value = pair
        out[_plain_key(name)] = value
    return out


def _counter(*args: Any) -> Ordered:
    """Counter() or Counter({...}); of anything else it would count the items."""
    if args and type(args[0]) not in (dict, Ordered):
        raise TypeError(f"a Counter of {shown(args[0])}")
    return _mapping(*args)


def _plain_key(value: Any) -> Any:
    if type(value) not in SCALARS and type(value) not in (Inert, Known):
        raise TypeError(f"a {type(value).__name__} cannot be a key")
    return value


def _members(*args: Any) -> list[Any]:
    """The argument of list(), tuple(), set(): a container that is already there."""
    if args and type(args[0]) not in (list, tuple, set, frozenset):
        raise TypeError(f"a {type(args[0]).__name__} instead of a list")
    return list(args[0]) if args else []


def _encode(text: str = "", encoding: str = "latin1") -> bytes:
    """_codecs.encode(text, 'latin1'): how protocol 2 spells bytes."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise UnsafeCheckpoint(f"_codecs.encode to {shown(encoding)}; only latin1 is how bytes are pickled")
    return text.encode("latin1")


def _bytes(value: Any = b"", encoding: str = "latin1") -> bytes:
    """bytes() and bytearray(): of bytes or text, never of a size."""
    return value if type(value) is bytes else _encode(value, encoding)


def _complex(real: float = 0.0, imag: float = 0.0) -> complex:
    if not isinstance(real, (int, float)) or not isinstance(imag, (int, float)):
        raise TypeError("complex() of something that is not a number")
    return complex(real, imag)


def _reconstructor(kind: Any, base: Any, value: Any) -> Inert | Ordered:
    """An object of protocols 0 and 1, and what it holds as one of a built-in type: recorded.

    A named tuple is made of its fields.
    """
    recorded = type(kind) is Inert and kind.args is None
    fields = value if type(value) is tuple else ()
    known = type(kind) is Known and kind.call and kind.new
    made = Inert(kind.path, ()) if recorded else kind.call(*fields) if known else None
    if type(made) is Ordered and kind.new == "same":
        return made
    if type(made) is not Inert:
        raise UnsafeCheckpoint(f"an object of {shown(kind)} is made by copy_reg, which is not known to write it")
    if type(value) in (dict, Ordered):
        made.pairs.update(value)
    elif type(value) in (list, tuple):
        made.items.extend(value)
    elif value is not None:
        made.args = (value,)
    return made


def _set(*args: Any) -> set[Any]:
    return {_plain_key(i) for i in _members(*args)}


_BUILTINS = (
    Known("set", _set, "empty"),
    Known("frozenset", lambda *a: frozenset(_set(*a)), "same"),
    Known("list", _members, "empty"),
    Known("tuple", lambda *a: tuple(_members(*a)), "same"),
    Known("dict", _mapping, "empty"),
    Known("bytes", _bytes, "same"),
    Known("bytearray", _bytes),
    Known("complex", _complex, "same"),
    Known("slice", lambda *a: a, "same"),
)
_NAMES = ("long", "unicode", "int", "float", "bool", "str", "object", "NoneType")

PLAIN: dict[tuple[str, str], Any] = {
    **{(m, known.path): known for m in ("builtins", "__builtin__") for known in _BUILTINS},
    **{(m, n): Known(n) for m in ("builtins", "__builtin__") for n in _NAMES},
    ("collections", "OrderedDict"): Known("OrderedDict", _mapping, "empty"),
    ("collections", "Counter"): Known("Counter", _counter, "empty"),
    ("collections", "defaultdict"): Known("defaultdict", lambda factory=None, *items: _mapping(*items), "empty"),
    ("_codecs", "encode"): Known("encode", _encode),
    **{(m, "_reconstructor"): Known("_reconstructor", _reconstructor) for m in ("copy_reg", "copyreg")},
}


# --- classes whose instances are values and nothing else: settings, dates, paths; recorded, never made ---------------
#
# An argparse.Namespace or an OmegaConf config beside a state dict says nothing about its tensors, so it is read without
# `opaque`. Only classes are listed here whose instances are nothing but their attributes and items.

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


def _path(*parts: Any) -> str:
    if any(type(part) is not str for part in parts):
        raise TypeError(f"a path is made of {shown(parts)}")
    return "/".join(parts).replace("//", "/")


def _subscript(generic: Any, item: Any) -> Inert:
    """operator.getitem(typing.Dict, (str, Any)): how Dict[str, Any] is pickled. Of nothing else."""
    if type(generic) is not Known or not generic.path.startswith("typing."):
        raise TypeError(f"an item of {shown(generic)} is asked for")
    return Inert(generic.path, ())


SLOTS = "__slots_of_an_optimizer__"  # an attribute of what is nothing else


def _named_tuple(path: str, fields: list[str]) -> Known:
    """A named tuple, whose fields a pickle does not name; recorded as a dictionary of them."""

    def made(*values: Any) -> Ordered:
        if len(values) != len(fields):
            raise CorruptCheckpoint(f"{path} has {len(values)} fields instead of {len(fields)}")
        out = Ordered(zip(fields, values, strict=True))
        out.state[SLOTS] = True
        return out

    return Known(path, made, "same")


# Dictionaries of other packages, made of a dictionary; and the states of optax by their fields, where its versions
# have them.
_MAPPINGS = (
    ("flax.core.frozen_dict", "FrozenDict"), ("haiku._src.data_structures", "FlatMapping"),
    ("haiku._src.data_structures", "frozendict"), ("frozendict", "frozendict"),
)  # fmt: skip
_OPTAX = """
_src.base.EmptyState
_src.base.ScaleState
_src.base.AddDecayedWeightsState
_src.base.ScaleByTrustRatioState
_src.transform.ScaleByAdamState count mu nu
_src.transform.ScaleByBeliefState count mu nu
_src.transform.ScaleByAmsgradState count mu nu nu_max
_src.transform.ScaleByLionState count mu
_src.transform.ScaleByRmsState nu
_src.transform.ScaleByRmsWithCountState count nu
_src.transform.ScaleByRStdDevState mu nu
_src.transform.ScaleByRStdDevWithCountState count mu nu
_src.transform.ScaleByAdaDeltaState e_g e_x
_src.transform.ScaleByNovogradState count mu nu
_src.transform.ScaleByRssState sum_of_squares
_src.transform.ScaleByScheduleState count
_src.transform.ApplyEvery count grad_acc
_src.transform.TraceState trace
_src.transform.EmaState count ema
transforms._accumulation.TraceState trace
transforms._accumulation.EmaState count ema
_src.factorized.FactoredState count v_row v_col v
_src.combine.MultiTransformState inner_states
transforms._combining.PartitionState inner_states
_src.wrappers.MaskedState inner_state
transforms._masking.MaskedState inner_state
_src.wrappers.MaskedNode
transforms._masking.MaskedNode
_src.wrappers.ApplyIfFiniteState notfinite_count last_finite total_notfinite inner_state
transforms._conditionality.ApplyIfFiniteState notfinite_count last_finite total_notfinite inner_state
_src.wrappers.MultiStepsState mini_step gradient_step inner_opt_state acc_grads skip_state
transforms._accumulation.MultiStepsState mini_step gradient_step inner_opt_state acc_grads skip_state
_src.schedule.InjectHyperparamsState count hyperparams inner_state
schedules._inject.InjectHyperparamsState count hyperparams inner_state
schedules._inject.WrappedScheduleState count
schedules._inject.InjectStatefulHyperparamsState count hyperparams hyperparams_states inner_state
"""
_STATES = {"optax." + path: fields for path, *fields in map(str.split, _OPTAX.strip().splitlines())}

VALUES: dict[tuple[str, str], Any] = {
    **{pair: Known(pair[1], _mapping) for pair in _MAPPINGS},
    **{(p.rpartition(".")[0], p.rpartition(".")[2]): _named_tuple(p, fields) for p, fields in _STATES.items()},
    **{(module, name): Known(name, _path, "same") for module in ("pathlib", "pathlib._local") for name in _PATHS},
    **{("typing", name): Known(f"typing.{name}") for name in _TYPING},
    **{(module, "getitem"): Known("getitem", _subscript) for module in ("operator", "_operator")},
}


# --- NumPy -------------------------------------------------------------------------------------------------------

_SPELLING = re.compile(r"[<>=|]?([biufcSUV][0-9]{1,9}|[?bBhHiIlLqQefdgFDGO]|O8|O4)\Z")


class ArrayType:
    """A numpy dtype: how numpy spells it, or the name of one of ml_dtypes; its state says the byte order."""

    __slots__ = ("order", "settled", "spelling")

    def __init__(self, spelling: object, align: object = False, copy: object = False) -> None:
        if type(spelling) is bytes:
            spelling = spelling.decode("latin1")
        if type(spelling) is not Known and (type(spelling) is not str or not _SPELLING.match(spelling)):
            raise CorruptCheckpoint(f"a pickled numpy dtype is spelled {shown(spelling)}")
        self.spelling = spelling.path if type(spelling) is Known else str(spelling)
        self.settled = not copy  # it is one of NumPy's own, has a state, or arrays use it
        self.order = ""

    def build(self, state: Any) -> None:
        """(version, byte order, subarray, names, fields, size, alignment, flags): only the order is taken."""
        if type(state) is not tuple or len(state) not in (8, 9) or state[1] not in ("<", ">", "|", "="):
            raise CorruptCheckpoint(f"the state of a pickled numpy dtype is {shown(state)}")
        if any(part is not None for part in state[2:5]):
            raise CorruptCheckpoint("a structured numpy dtype is not a tensor's dtype")
        if self.settled:
            raise UnsafeCheckpoint("a pickled numpy dtype is given a state where NumPy ignores it or arrays use it")
        sizes = (-1, 0, self.numpy().itemsize)
        if self.numpy().char in "SUV" and state[5] not in sizes:
            raise UnsafeCheckpoint(f"a pickled numpy dtype {self.spelling} is given the size {shown(state[5])}")
        self.order, self.settled = state[1], True

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
        return row.torch_name or "" if row and kind.isnative and kind.kind in "biufc" else ""


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
        kind.settled = True
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
        letters = self.items if kind.kind == "U" else b""
        if letters and np.frombuffer(letters, kind.byteorder + "u4").max() > sys.maxunicode:  # a SystemError of NumPy
            raise CorruptCheckpoint(f"has text with a character beyond Unicode's last, {sys.maxunicode:#x}")
        array = np.frombuffer(self.items, kind).reshape(self.shape, order=order)
        return array if self.axes is None else array.transpose(self.axes)


def _reconstruct(kind: Any, shape: Any, code: Any) -> PickledArray:
    if type(kind) is not Known or kind.path != "ndarray":
        raise CorruptCheckpoint(f"numpy is asked to reconstruct {shown(kind)}")
    return PickledArray()


def _jax(make: Any, args: Any, state: Any, about: Any = None) -> PickledArray:
    """A jax.Array, or an array as dill writes it: the numpy array that it would be made of."""
    if type(make) is not Known or make.path != "_reconstruct" or type(args) is not tuple or len(args) != 3:
        raise CorruptCheckpoint(f"jax or dill is asked to make an array by {shown(make)}")
    array = _reconstruct(*args)
    array.build(state)
    return array


def _scalar(kind: Any, raw: Any = None) -> Any:
    """A numpy scalar as Python's number, or as it is spelled where Python has none."""
    array = PickledArray()
    array.fill((), kind, False, raw)
    if not raw:  # "" or b"", of which NumPy makes no array
        return kind.numpy().type().item()
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


_CORES = ("numpy.core", "numpy._core")
_SCALARS = (
    "bool_", "bool", "int8", "int16", "int32", "int64", "intc", "intp", "longlong", "uint8", "uint16", "uint32",
    "uint64", "uintp", "ulonglong", "float16", "float32", "float64", "longdouble", "complex64", "complex128", "str_",
    "bytes_", "generic", "number", "integer", "floating",
)  # fmt: skip
_JAX = (
    ("jax._src.array", "_reconstruct_array"), ("jax._src.device_array", "reconstruct_device_array"),
    ("jax.interpreters.xla", "reconstruct_device_array"), ("dill._dill", "_create_array"),
)  # fmt: skip
_ML_DTYPES = {row.numpy_name for row in DTYPES.values()} - {*_SCALARS, "object"}

NUMPY: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): Known("ndarray"),
    ("numpy", "dtype"): Known("dtype", ArrayType, "same"),
    **{(f"{core}.multiarray", "_reconstruct"): Known("_reconstruct", _reconstruct) for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): Known("scalar", _scalar) for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): Known("_frombuffer", _frombuffer) for core in _CORES},
    **{pair: Known("jax.Array", _jax) for pair in _JAX},
    **{("ml_dtypes", name): Known(name) for name in _ML_DTYPES},
    **{("numpy", name): Known(name) for name in _SCALARS},
}
