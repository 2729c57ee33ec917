"""SavedModels, .meta files and frozen graphs.

    folder/saved_model.pb         SavedModel { schema version, meta_graphs { info, graph_def, collections, objects } }
    folder/variables/variables.*  a V2 checkpoint (bundle.py); none if all weights are constants
    P.meta                        MetaGraphDef: a training graph; its values are in the V2 checkpoint P
    graph.pb                      GraphDef: frozen, weights are Const nodes

.pbtxt is any of these as text. The variables of a SavedModel have the names that its object graph gives them:

    SavedObjectGraph   { nodes { children, variable { name, trainable } } }           in saved_model.pb
    TrackableObjectGraph { nodes { children, attributes { checkpoint_key } } }        in the variables' bundle

Both graphs have the same edges from the root, so walking them together pairs each variable with its key. A name that
is not unique is replaced by the object path.

    GraphDef.node { name: "conv/kernel"  op: "Const"  attr { key: "value"  value { tensor { TensorProto } } } }

Freezing turns a variable into a Const that the Identity `name/read` reads (TF1) or whose name ends in
`ReadVariableOp/resource` (TF2). Any other Const is judged by its readers: a Const that is used only as a shape, an axis
or a permutation is not a weight, and neither is a scalar.
Specification: tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph}.proto.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, Tensor, contiguous
from ...errors import CkptError, CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ...messages import brief, many
from ...moves.part import FILL_RATIO, MAX_FILL, Held, Part, Span, c_strides, checked_count
from ...storage.files import Reader, Seen, exists, is_dir, is_remote, join, read_all, sibling, split
from ...storage.paths import inside
from ...storage.ranges import InMemory, Ranges
from .. import Located
from ..table import SAVED_MODELS, Reading
from . import bundle, elements, locate, objects
from .elements import fields, messages, parse, text
from .table import GIT_LFS, POINTER, read_varint, varint

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf-graph"
MAX_MESSAGE = 1 << 28  # bytes of a message that is parsed in memory
_COPY = re.compile(r"_(all|trainable|non_trainable)_variables/\d+/")
TEXT_LIMIT = 1 << 28  # text is parsed in memory, by Python
MAX_LINE = 2**14  # characters
_BETWEEN = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}<>\[\],;\s]""")
TEXT = (b"node {", b"meta_info_def {", b"graph_def {", b"saved_model_schema_version", b"meta_graphs {", b"versions {")
MAX_AXES = 8  # a vector of at most this many integers is a shape, a list of axes or a permutation
MIN_SPAN = 64  # bytes; larger values are read from the file on demand, smaller ones are held in memory
MAX_STRINGS = 1 << 20  # repeated strings held in memory, in total
MAX_SCOPE = 1000  # bytes of a function's name, which prefixes the names of its nodes
SCOPE_RATIO = 16  # characters of functions' names, counted for each node they prefix, per byte of the graph


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if any(name in seen.files for name in SAVED_MODELS) else 0
    if seen.base in SAVED_MODELS:
        return 3 if seen.size else 1
    if seen.base.endswith(".pbtxt"):
        return 2 if any(word in seen.head for word in TEXT) else 1
    if seen.base.endswith(".meta"):
        return 2 if seen.head[:1] == b"\n" else 0
    if _first_node(seen.head):
        return 2
    return int(seen.base.endswith(".pb") and seen.size > 0)


def open(url: str, how: Reading) -> Checkpoint:
    """Open a SavedModel, .meta or GraphDef; `how.opaque` reads every constant, weight or not."""
    if is_dir(url):
        url = sibling(join(url, "."), next((n for n in SAVED_MODELS if exists(join(url, n))), SAVED_MODELS[0]))
    with Located(url), _message(url) as f:
        regions = _regions(f)
        checkpoint = _constants(f, regions, how.opaque)
        details = collections(f, *regions.meta) if regions.meta else {}
        if regions.saved_model:
            return _served_model(url, f, regions, how.opaque, checkpoint, {"tags": list(regions.tags)} | details)
        if details and not how.opaque:
            index = split(locate.prefix_of(url))[1] + ".index"
            raise StorageError(f"holds a graph but no weights; they are in {index}, which is missing")
    return replace(checkpoint, details={**checkpoint.details, **details})


# --- what kind of message ---------------------------------------------------------------------------------------


@contextmanager
def _message(url: str) -> Iterator[Ranges]:
    """A file in binary form; text is parsed and serialized in memory."""
    if not url.endswith("txt"):
        with Reader(url) as f:
            yield f
        return
    from google.protobuf import text_format

    from . import messages_pb2 as pb

    text = read_all(url, TEXT_LIMIT)
    kind: type[Any] = pb.GraphDef
    if b"saved_model_schema_version" in text or b"meta_graphs {" in text:
        kind = pb.SavedModel
    elif b"meta_info_def {" in text or b"graph_def {" in text:
        kind = pb.MetaGraphDef
    try:
        message = text_format.Parse(_broken_up(text.decode()), kind(), allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as e:  # ValueError: a number beyond its field, no UTF-8
        raise CorruptCheckpoint(f"is not the text of a {kind.__name__} ({brief(str(e))})") from e
    yield InMemory(url, message.SerializeToString())


def _broken_up(text: str) -> str:
    """A text whose long lines are broken between tokens: the parser copies a line for each unknown field in it."""
    return _BETWEEN.sub(r"\g<0>\n", text) if max(map(len, text.split("\n"))) > MAX_LINE else text


class Regions(NamedTuple):
    """The ranges of the MetaGraphDef and of the GraphDef in a file; () if absent. tags: of a meta graph."""

    meta: tuple[int, int] | tuple[()]
    graph: tuple[int, int] | tuple[()]
    saved_model: bool = False
    tags: tuple[str, ...] = ()


def _regions(f: Ranges) -> Regions:
    """Distinguish the three messages by their first fields; of a SavedModel take the meta graph that serves."""
    head = f.read(0, min(4096, f.size))
    if not head or head.startswith(GIT_LFS):
        raise CorruptCheckpoint(POINTER if head else "is empty (0 bytes)")
    if _first_node(head):
        return Regions((), (0, f.size))
    top = list(fields(f, 0, f.size))
    second = [(x.start, x.start + x.size) for x in top if x.number == 2 and x.wire == 2]
    if top[0].number == 1 and top[0].wire == 0:
        tagged = [(_tags(f, *meta), meta) for meta in second]
        if not tagged:
            raise CorruptCheckpoint("the SavedModel holds no graph")
        tags, meta = next((pair for pair in tagged if "serve" in pair[0]), tagged[0])
        return Regions(meta, next(messages(f, *meta, 2), ()), True, tags)
    if len(second) == 1:
        start, end = second[0]
        if start == end or _first_node(f.read(start, min(4096, end - start))):
            return Regions((0, f.size), second[0])
    if all(x.wire == 2 or x.number == 3 for x in top) and {x.number for x in top} <= {1, 2, 3, 4, 5}:
        return Regions((), (0, f.size))
    raise CorruptCheckpoint("is not a GraphDef, MetaGraphDef or SavedModel")


def _first_node(head: bytes) -> bool:
    """Whether a message begins with a node: field 1 that begins with a name (field 1) and an op (field 2)."""
    try:
        if head[0] != 0x0A:
            return False
        at = read_varint(head, 1)[1]
        if head[at] != 0x0A:
            return False
        size, at = read_varint(head, at + 1)
        at += size
        if not size or head[at] != 0x12:
            return False
        size, at = read_varint(head, at + 1)
        op = head[at : at + size]
        return 0 < len(op) == size and op.replace(b"_", b"").replace(b">", b"").replace(b".", b"").isalnum()
    except IndexError:
        return False


def _tags(f: Ranges, start: int, end: int) -> tuple[str, ...]:
    info = next(messages(f, start, end, 1), (0, 0))
    return tuple(f.read(a, b - a).decode("utf-8", "replace") for a, b in messages(f, *info, 4))


# --- constants --------------------------------------------------------------------------------------------------

# the operations by their inputs that control the computation rather than provide values; -1 is the last one
_BY_INPUTS: dict[tuple[int, ...], str] = {
    (-1,): "ConcatV2",
    (0,): """
        AsString Concat Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput Fill
        InvertPermutation RandomStandardNormal RandomUniform RandomUniformInt Split TensorArrayV3
        TruncatedNormal
    """,
    (1,): """
        All Any ArgMax ArgMin BroadcastTo ConjugateTranspose Conv2DBackpropFilter Cumprod Cumsum
        EuclideanNorm ExpandDims Max Mean Min MirrorPad OneHot Pad PadV2 Prod Reshape ResizeBicubic
        ResizeBilinear ResizeNearestNeighbor Reverse ReverseV2 Sum Tile TopKV2 Transpose
    """,
    (2,): "GatherV2 ScatterNd",
    (3,): "CropAndResize",
    (0, 1): """
        BroadcastArgs MergeV2Checkpoints StatelessRandomNormal StatelessRandomUniform
        StatelessTruncatedNormal
    """,
    (1, 2): "BatchToSpaceND Roll Slice SpaceToBatchND SplitV",
    (0, 1, 2): "LinSpace Range RestoreV2 SaveV2 ShardedFilename",
    (1, 2, 3): "StridedSlice",
    (0, 1, 2, 3): "StridedSliceGrad",
    (0, 1, 2, 3, 4, 5): "Assert",
    tuple(range(16)): "StringJoin",
    tuple(range(1, 64)): "ParseExample",
}
_CONTROL = {op: inputs for inputs, ops in _BY_INPUTS.items() for op in ops.split()}


@dataclass
class Graph:
    """The constants of a graph and its functions, and who reads them.

    uses: for each node its readers: name, op, and whether the input controls the computation. What may still come:
    `strings` that repeat the last one stored, characters (`scopes`) of functions' names before the names of nodes,
    bytes (`filled`) of repeated last values.
    """

    f: Ranges
    scopes: int
    filled: int
    strings: int = MAX_STRINGS
    constants: dict[str, Tensor] = field(default_factory=dict)
    uses: dict[str, list[tuple[str, str, bool]]] = field(default_factory=dict)
    quantised: list[str] = field(default_factory=list)

    def read(self, start: int, end: int) -> None:
        """Read the GraphDef at [start, end), one node at a time."""
        for a, b in messages(self.f, start, end, 1):
            self._node(a, b, "")
        for library in messages(self.f, start, end, 2):
            for a, b in messages(self.f, *library, 1):
                signature = next(messages(self.f, a, b, 1), (0, 0))
                c, d = next(messages(self.f, *signature, 1), (0, 0))
                if d - c > MAX_SCOPE:
                    raise CorruptCheckpoint(f"a function has a name of {d - c} bytes (at byte {c})")
                scope = text(self.f.read(c, d - c)) + "/"
                for node in messages(self.f, a, b, 3):
                    self._node(*node, scope)

    def is_weight(self, t: Tensor) -> bool:
        """Judge a constant by its name and its readers."""
        uses = self.uses.get(t.name, [])
        frozen = any(op == "Identity" and name == t.name + "/read" for name, op, _ in uses)
        if frozen or t.name.endswith("ReadVariableOp/resource"):
            return True
        if not t.shape or (uses and all(control for _, _, control in uses)):
            return False
        return t.dtype.kind in "fcs" or not uses or t.count > MAX_AXES or len(t.shape) > 1

    def _node(self, start: int, end: int, scope: str) -> None:
        from . import messages_pb2 as pb

        raw = self.f.read(start, end - start)
        node = parse(pb.NodeDef, raw, f"the node at byte {start}")
        inputs = [i for i in node.input if not i.startswith("^")]
        self.scopes -= len(scope) * (1 + len(inputs))
        if self.scopes < 0:
            raise UnsafeCheckpoint("the names of its functions are repeated without bound")
        name, control = scope + node.name, _CONTROL.get(node.op, ())
        for i, source in enumerate(inputs):
            use = name, node.op, i in control or i - len(inputs) in control
            self.uses.setdefault(scope + source.split(":")[0], []).append(use)
        if node.op == "Const" and "value" in node.attr:
            if name in self.constants:
                raise CorruptCheckpoint("two nodes have this name", tensor=name)
            with Located(tensor=name):
                tensor = self._constant(start, raw, name, node.attr["value"].tensor)
            if tensor:
                self.constants[name] = tensor

    def _constant(self, start: int, raw: bytes, name: str, proto: pb.TensorProto) -> Tensor | None:
        """A constant; if fewer values than elements are given, the last one is repeated by a stride of 0."""
        import numpy as np

        code = proto.dtype - 100 if proto.dtype > 100 else proto.dtype
        kind = elements.BY_CODE.get(code)
        if code in elements.OPAQUE:
            return None
        if kind is None or proto.tensor_shape.unknown_rank:
            raise CorruptCheckpoint(f"the constant has the unknown dtype {code} or no rank")
        if code in elements.QUANTISED:
            self.quantised.append(name)
        shape = tuple([d.size for d in proto.tensor_shape.dim])
        count = checked_count(shape)
        if kind.kind == "s":
            items = elements.strings(proto, count)
            self.strings -= count - len(items)
            if self.strings < 0:
                raise UnsafeCheckpoint(f"{len(items)} strings claim to be {count}")
            array = np.empty(count, object)
            array[:] = [*items, *((items or [b""])[-1:] * (count - len(items)))]
            return contiguous(name, kind, shape, Held(array.reshape(shape)))
        data = elements.stored(proto, kind, count, "the constant")
        if len(data) >= MIN_SPAN and proto.tensor_content and not isinstance(self.f, InMemory):
            # equal bytes earlier in the node are just as good
            return contiguous(name, kind, shape, Span(self.f.url, start + raw.find(data), len(data)))
        self.filled -= count * kind.itemsize - len(data)
        if self.filled < 0:
            raise UnsafeCheckpoint(f"{len(data)} bytes claim to be {list(shape)} of {kind}")
        given, steps = len(data) // kind.itemsize, c_strides(shape)
        held = Held(np.frombuffer(data or bytes(kind.itemsize), kind.np))
        if given == count:
            return contiguous(name, kind, shape, Held(held.array[:count].reshape(shape)))
        if given <= 1:
            return Tensor(name, kind, shape, (Part(held, kind, shape, 0, (0,) * len(shape), 0, steps),))
        first = Part(held, kind, (given,), 0, (1,), 0, (1,))
        rest = Part(held, kind, (count - given,), given - 1, (0,), given, (1,))
        return Tensor(name, kind, shape, (first, rest))


def _constants(f: Ranges, regions: Regions, opaque: bool) -> Checkpoint:
    """The constants of the graph that are weights."""
    start, end = regions.graph or (0, 0)
    graph = Graph(f, SCOPE_RATIO * (end - start) + 2**20, FILL_RATIO * (end - start) + MAX_FILL)
    graph.read(start, end)
    tensors = {name: t for name, t in graph.constants.items() if opaque or graph.is_weight(t)}
    notes = []
    if regions.graph and not regions.meta and all(x.number == 1 for x in fields(f, start, end)):
        # TensorFlow writes a library or a version last; a file cut between two nodes has neither
        what = "the graph ends with a node, not a version; if the file is truncated, weights are missing"
        notes.append(Note("assumed", what))
    if others := tuple(n for n in graph.constants if n not in tensors):
        what = f"{many(len(others), 'constant')}: shapes, axes or scalars, not weights; opaque=True reads them"
        notes.append(Note("skipped", what, others, tensors=False))  # looked at
    if quantised := tuple(n for n in graph.quantised if n in tensors):
        notes.append(Note("assumed", elements.SCALED, quantised))
    return Checkpoint(tensors, format=FORMAT, urls=(f.url,), notes=tuple(notes))


# --- SavedModels ------------------------------------------------------------------------------------------------


def _served_model(
    url: str, f: Ranges, regions: Regions, opaque: bool, frozen: Checkpoint, details: Details
) -> Checkpoint:
    """The variables of a SavedModel under the names in its graph; its constants if there are no variables."""
    folder = split(url)[0]
    below = join(folder, "variables")
    if not is_remote(below) and not inside(below, folder):
        raise UnsafeCheckpoint("the folder `variables` is a symlink that leaves the checkpoint's folder")
    index = sibling(join(below, "."), "variables.index")
    if not exists(index):
        if any(node.HasField("variable") for node in _object_graph(f, regions).nodes):
            raise StorageError("the model has variables, but variables/variables.index is missing")
        return replace(frozen, details=details)
    keyed, proto = bundle.read(index)
    checkpoint = _named(keyed, proto, f, regions) if proto else objects.named(keyed, proto)
    notes = list(checkpoint.notes)
    tensors = dict(checkpoint.tensors)
    if opaque or not tensors:
        notes += frozen.notes
        if clash := tuple(n for n in frozen.tensors if n in tensors):
            notes.append(Note("skipped", "constants that have the name of a variable", clash))
        tensors = frozen.tensors | tensors
    elif frozen.tensors:
        what = "constants of a graph that also has variables; opaque=True reads them"
        notes.append(Note("unread", what, tuple(frozen.tensors)))
    # the flags of the object graph or, if it has none, those of the collection
    details = {**checkpoint.details, **details, "trainable":
               checkpoint.details.get("trainable") or details.get("trainable") or []}  # fmt: skip
    urls = (url, *checkpoint.urls)
    return replace(checkpoint, tensors=tensors, format=FORMAT, urls=urls, notes=tuple(notes), details=details)


def _object_graph(f: Ranges, regions: Regions) -> pb.SavedObjectGraph:
    from . import messages_pb2 as pb

    raw = b"".join(_small(f, a, b) for a, b in messages(f, *regions.meta, 7)) if regions.meta else b""
    return parse(pb.SavedObjectGraph, raw, "the object graph")  # the parts of a message are merged


def _named(keyed: Checkpoint, proto: bytes, f: Ranges, regions: Regions) -> Checkpoint:
    """Name the variables that the object graph of a SavedModel's bundle leads to, which are not those of slots."""
    graph = objects.parse(proto)
    reached = [a for i in sorted(objects.reach(graph, [0])) for a in graph.nodes[i].attributes]
    full_names = {
        a.checkpoint_key: a.full_name for a in reached if a.name == "VARIABLE_VALUE" and a.checkpoint_key in keyed
    }
    copies = _copies(keyed, full_names)
    names, repeated = _choose({k: full_names.get(k, "") for k in keyed if k not in copies})
    checkpoint = objects.renamed(keyed, proto, graph, names)
    notes = list(checkpoint.notes)
    if copies:  # compared by their checksums
        what = "copies that Keras' export keeps: they have the name, dtype, shape and CRC-32C of other variables"
        notes.append(Note("skipped", what, copies, tensors=False))
    if repeated:
        notes.append(Note("hint", "variables whose names are not unique have their object paths as names", repeated))
    saved = _object_graph(f, regions).nodes
    trained = {node.variable.name.removesuffix(":0") for node in saved if node.variable.trainable}
    of_training = [names[k] for k in names if full_names.get(k) in trained]
    return replace(checkpoint, notes=tuple(notes), details={**checkpoint.details, "trainable": of_training})


def _copies(tensors: Mapping[str, Tensor], names: dict[str, str]) -> tuple[str, ...]:
    """Keys of the copies that Keras' export keeps: their names and checksums are those of a variable elsewhere.

    Names need not be unique, so each variable has one copy in a list. The bytes are not compared: opening would read
    all of the model, twice.
    """

    def identity(key: str) -> tuple[object, ...] | None:
        t = tensors[key]
        data = t.parts[0].data
        alone = len(t.parts) == 1
        return (names[key], t.dtype, t.shape, data.size, data.check) if alone and isinstance(data, Span) else None

    variables = Counter(identity(k) for k in names if not _COPY.match(k))
    copies: list[str] = []
    used: Counter[object] = Counter()
    for key in names:
        if (match := _COPY.match(key)) and (same := identity(key)):
            if used[match[1], same] < variables[same]:
                copies.append(key)
            used[match[1], same] += 1
    return tuple(copies)


def _choose(preferred: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Preferred names, or object paths for those that are not unique; and the paths used in their place."""
    paths, _ = objects.readable(preferred)
    count = Counter(preferred.values())
    names = {k: n if n and count[n] == 1 else paths[k] for k, n in preferred.items()}
    if len(set(names.values())) < len(names):  # a name equal to the path of another
        names = paths
    return names, tuple(names[k] for k, n in preferred.items() if n and names[k] != n)


# --- collections ------------------------------------------------------------------------------------------------


def _small(f: Ranges, start: int, end: int) -> bytes:
    if end - start > MAX_MESSAGE:
        raise CorruptCheckpoint(f"a message of {end - start} bytes is not a description (at byte {start})")
    return f.read(start, end - start)


def collections(f: Ranges, start: int, end: int) -> Details:
    """The collections of a MetaGraphDef that list variables, by checkpoint keys, and which of them are trained."""
    from . import messages_pb2 as pb

    out: dict[str, list[str]] = {}
    for a, b in messages(f, start, end, 4):
        raw = b"\x22" + varint(b - a) + _small(f, a, b)
        for name, collection in parse(pb.MetaGraphDef, raw, "a collection").collection_def.items():
            if name.endswith("variables") or name == "global_step":
                out[name] = _keys(collection.bytes_list.value)
    return {"collections": out, "trainable": out["trainable_variables"]} if "trainable_variables" in out else {}


def _keys(values: Any) -> list[str]:
    """Checkpoint keys of the variables in a collection; none if it holds something else."""
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    keys: dict[str, None] = {}
    for value in values:
        try:
            variable = pb.VariableDef.FromString(value)
        except DecodeError:
            return []
        if not variable.snapshot_name and not variable.initializer_name:
            return []
        keys[variable.save_slice_info_def.full_name or variable.variable_name.removesuffix(":0")] = None
    return list(keys)


def meta_details(url: str) -> Details:
    """The collections in the .meta file at `url` that list variables; {} if it cannot be read."""
    try:
        with Reader(url) as f:
            return collections(f, 0, f.size)
    except CkptError:
        return {}
