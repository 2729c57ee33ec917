"""Constants of a graph: the location of their values, and which of them are weights rather than shapes and axes.

    GraphDef.node { name: "conv/kernel"  op: "Const"  attr { key: "value"  value { tensor { TensorProto } } } }

Freezing turns a variable into a Const that the Identity `name/read` reads (TF1) or whose name ends in
`ReadVariableOp/resource` (TF2). Any other Const is judged by its readers: a Const that is used only as a shape, an axis
or a permutation is not a weight, and neither is a scalar.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...checkpoint import Tensor, contiguous
from ...dtypes import DType
from ...errors import CkptError, CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import FILL_RATIO, MAX_FILL, Held, Part, Span, c_strides, checked_count
from ...storage.ranges import InMemory, Ranges
from . import elements
from . import messages_pb2 as pb
from .elements import messages, parse, text

MAX_AXES = 8  # a vector of at most this many integers is a shape, a list of axes or a permutation
MIN_SPAN = 64  # bytes; larger values are read from the file on demand, smaller ones are held in memory
MAX_STRINGS = 1 << 20  # repeated strings held in memory, in total
SCOPE_RATIO = 16  # characters of functions' names, counted for each node they prefix, per byte of the graph
MAX_SCOPE = 1000  # bytes of a function's name, which prefixes the names of its nodes

# inputs that control the computation rather than provide values; -1 is the last one
_CONTROL: dict[str, tuple[int, ...]] = {
    "All": (1,), "Any": (1,), "ArgMax": (1,), "ArgMin": (1,), "AsString": (0,), "Assert": (0, 1, 2, 3, 4, 5),
    "BatchToSpaceND": (1, 2), "BroadcastArgs": (0, 1), "BroadcastTo": (1,), "Concat": (0,), "ConcatV2": (-1,),
    "ConjugateTranspose": (1,), "Conv2DBackpropFilter": (1,), "Conv2DBackpropInput": (0,),
    "Conv3DBackpropInputV2": (0,), "CropAndResize": (3,), "Cumprod": (1,), "Cumsum": (1,),
    "DepthwiseConv2dNativeBackpropInput": (0,), "EuclideanNorm": (1,), "ExpandDims": (1,), "Fill": (0,),
    "GatherV2": (2,), "InvertPermutation": (0,), "LinSpace": (0, 1, 2), "Max": (1,), "Mean": (1,),
    "MergeV2Checkpoints": (0, 1), "Min": (1,), "MirrorPad": (1,), "OneHot": (1,), "Pad": (1,), "PadV2": (1,),
    "ParseExample": tuple(range(1, 64)), "Prod": (1,), "RandomStandardNormal": (0,), "RandomUniform": (0,),
    "RandomUniformInt": (0,), "Range": (0, 1, 2), "Reshape": (1,), "ResizeBicubic": (1,), "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,), "RestoreV2": (0, 1, 2), "Reverse": (1,), "ReverseV2": (1,), "Roll": (1, 2),
    "SaveV2": (0, 1, 2), "ScatterNd": (2,), "ShardedFilename": (0, 1, 2), "Slice": (1, 2), "SpaceToBatchND": (1, 2),
    "Split": (0,), "SplitV": (1, 2), "StatelessRandomNormal": (0, 1), "StatelessRandomUniform": (0, 1),
    "StatelessTruncatedNormal": (0, 1), "StridedSlice": (1, 2, 3), "StridedSliceGrad": (0, 1, 2, 3),
    "StringJoin": tuple(range(16)), "Sum": (1,), "TensorArrayV3": (0,), "Tile": (1,), "TopKV2": (1,),
    "Transpose": (1,), "TruncatedNormal": (0,),
}  # fmt: skip


class Use(NamedTuple):
    """One reader of a node: its name and op, and which input it is."""

    name: str
    op: str
    control: bool


@dataclass
class Graph:
    """The constants of a graph and its functions, and who reads them.

    What may still come: `strings` that repeat the last one stored, characters (`scopes`) of functions' names before the
    names of nodes, bytes (`filled`) of repeated last values.
    """

    scopes: int = 0
    filled: int = 0
    strings: int = MAX_STRINGS
    constants: dict[str, Tensor] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    quantised: list[str] = field(default_factory=list)


def read(f: Ranges, start: int, end: int) -> Graph:
    """Read the GraphDef at [start, end), one node at a time."""
    graph = Graph(SCOPE_RATIO * (end - start) + 2**20, FILL_RATIO * (end - start) + MAX_FILL)
    for a, b in messages(f, start, end, 1):
        _node(f, a, b, "", graph)
    for library in messages(f, start, end, 2):
        for a, b in messages(f, *library, 1):
            scope = _function_name(f, a, b)
            for node in messages(f, a, b, 3):
                _node(f, *node, scope + "/", graph)
    return graph


def weights(graph: Graph) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The constants that are weights, and the names of the others."""
    tensors = {name: t for name, t in graph.constants.items() if is_weight(t, graph.uses.get(name, ()))}
    return tensors, tuple(n for n in graph.constants if n not in tensors)


def is_weight(t: Tensor, uses: list[Use] | tuple[Use, ...]) -> bool:
    """Judge a constant by its name and its readers."""
    frozen = any(u.op == "Identity" and u.name == t.name + "/read" for u in uses)
    if frozen or t.name.endswith("ReadVariableOp/resource"):
        return True
    if not t.shape or (uses and all(u.control for u in uses)):
        return False
    return t.dtype.kind in "fcs" or not uses or t.count > MAX_AXES or len(t.shape) > 1


def _function_name(f: Ranges, start: int, end: int) -> str:
    for a, b in messages(f, start, end, 1):
        for c, d in messages(f, a, b, 1):
            if d - c > MAX_SCOPE:
                raise CorruptCheckpoint(f"a function has a name of {d - c} bytes (at byte {c})", url=f.url)
            return text(f.read(c, d - c))
    return ""


def _node(f: Ranges, start: int, end: int, scope: str, graph: Graph) -> None:
    raw = f.read(start, end - start)
    node = parse(pb.NodeDef, raw, f"the node at byte {start}", f.url)
    inputs = [i for i in node.input if not i.startswith("^")]
    graph.scopes -= len(scope) * (1 + len(inputs))
    if graph.scopes < 0:
        raise UnsafeCheckpoint("the names of its functions are repeated without bound", url=f.url)
    name, op = scope + node.name, node.op
    control = _CONTROL.get(op, ())
    for i, source in enumerate(inputs):
        how = i in control or i - len(inputs) in control
        graph.uses.setdefault(scope + source.split(":")[0], []).append(Use(name, op, how))
    if op == "Const" and "value" in node.attr:
        if name in graph.constants:
            raise CorruptCheckpoint("two nodes have this name", url=f.url, tensor=name)
        try:
            tensor = _constant(f, start, raw, name, node.attr["value"].tensor, graph)
        except CkptError as e:
            e.url, e.tensor = f.url, name
            raise
        if tensor:
            graph.constants[name] = tensor


def _constant(f: Ranges, start: int, raw: bytes, name: str, proto: pb.TensorProto, graph: Graph) -> Tensor | None:
    code = proto.dtype - 100 if proto.dtype > 100 else proto.dtype
    kind = elements.BY_CODE.get(code)
    if code in elements.OPAQUE:
        return None
    if kind is None or proto.tensor_shape.unknown_rank:
        raise CorruptCheckpoint(f"the constant has the unknown dtype {code} or no rank")
    if code in elements.QUANTISED:
        graph.quantised.append(name)
    shape = tuple([d.size for d in proto.tensor_shape.dim])
    count = checked_count(shape)
    if kind.kind == "s":
        return _strings(name, kind, shape, count, elements.strings(proto, count, f.url), graph)
    data = elements.stored(proto, kind, count, "the constant")
    if len(data) >= MIN_SPAN and proto.tensor_content and not isinstance(f, InMemory):
        # equal bytes earlier in the node are just as good
        span = Span(f.url, start + raw.find(data), len(data))
        return contiguous(name, kind, shape, span)
    graph.filled -= count * kind.itemsize - len(data)
    if graph.filled < 0:
        raise UnsafeCheckpoint(f"{len(data)} bytes claim to be {list(shape)} of {kind}")
    return _held(name, kind, shape, count, data)


def _held(name: str, kind: DType, shape: tuple[int, ...], count: int, data: bytes) -> Tensor:
    """Values in memory; if fewer than `count` are given, the last one is repeated by a stride of 0."""
    given = len(data) // kind.itemsize
    array = Held(np.frombuffer(data or bytes(kind.itemsize), kind.np))
    if given == count:
        return contiguous(name, kind, shape, Held(array.array[:count].reshape(shape)))
    steps = c_strides(shape)
    if given <= 1:
        return Tensor(name, kind, shape, (Part(array, kind, shape, 0, (0,) * len(shape), 0, steps),))
    first = Part(array, kind, (given,), 0, (1,), 0, (1,))
    rest = Part(array, kind, (count - given,), given - 1, (0,), given, (1,))
    return Tensor(name, kind, shape, (first, rest))


def _strings(name: str, kind: DType, shape: tuple[int, ...], count: int, items: list[bytes], graph: Graph) -> Tensor:
    graph.strings -= count - len(items)
    if graph.strings < 0:
        raise UnsafeCheckpoint(f"{len(items)} strings claim to be {count}")
    array = np.empty(count, object)
    array[:] = [*items, *((items or [b""])[-1:] * (count - len(items)))]
    return contiguous(name, kind, shape, Held(array.reshape(shape)))
