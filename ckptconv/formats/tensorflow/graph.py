"""SavedModels, .meta files and frozen graphs.

    folder/saved_model.pb         SavedModel { schema version, meta_graphs { info, graph_def, objects } }
    folder/variables/variables.*  a V2 checkpoint (bundle.py); none if all weights are constants
    P.meta                        MetaGraphDef: a training graph, which is refused without the V2 checkpoint P
    graph.pb                      GraphDef: frozen, weights are Const nodes

The name of the file says which of the three it holds. The variables of a SavedModel have the names that its object
graph gives them:

    SavedObjectGraph   { nodes { children, variable { name, trainable } } }           in saved_model.pb
    TrackableObjectGraph { nodes { children, attributes { checkpoint_key } } }        in the variables' bundle

Both graphs have the same edges from the root, so walking them together pairs each variable with its key. A name that
is not unique is replaced by the object path.

    GraphDef.node { name: "conv/kernel"  op: "Const"  attr { key: "value"  value { tensor { TensorProto } } } }

Freezing turns a variable into a Const that the Identity `name/read` reads (TF1) or whose name ends in
`ReadVariableOp/resource` (TF2). Any other Const is a weight if it is an array of floats or of quantised numbers: whole
numbers that the program never varied are shapes, axes, permutations and tables.
Specification: tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph}.proto.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint, Details, Note, Tensor, contiguous
from ...errors import CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ...messages import many
from ...moves.part import FILL_RATIO, MAX_FILL, Held, Part, Span, checked_count
from ...storage.files import Reader, Seen, exists, is_dir, is_remote, join, split, within
from ...storage.paths import inside
from ...storage.ranges import Ranges
from .. import Located
from ..table import SAVED_MODEL, Reading
from . import bundle, elements, objects
from .elements import fields, messages, parse, text

if TYPE_CHECKING:
    from . import messages_pb2 as pb

FORMAT = "tf-graph"
_COPY = re.compile(r"_(all|trainable|non_trainable)_variables/\d+/")
_SIZE = rb"[\x80-\xff]{0,9}[\0-\x7f]"
NODE = re.compile(rb"\n" + _SIZE + rb"\n" + _SIZE + rb"[!-~]+\x12[\1-\x7f][A-Za-z_]")  # { name, op ... }
LIBRARY = b"\x12"
MIN_SPAN = 64  # bytes; larger values are read from the file on demand, smaller ones are held in memory
MAX_OBJECTS = 1 << 28  # bytes of an object graph, which is parsed in memory
MAX_SCOPE = 300  # bytes of a function's name, which prefixes the names of its nodes, of 25 bytes at least
Range = tuple[int, int]  # the first byte of a message, and the one after its last


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if SAVED_MODEL in seen.files else 0
    if seen.base == SAVED_MODEL:
        return 3 if seen.size else 1
    if seen.base.endswith(".meta"):
        return 2 if seen.head[:1] == b"\n" else 0
    return 2 if NODE.match(seen.head) else int(seen.base.endswith(".pb") and seen.size > 0)


def open(url: str, how: Reading) -> Checkpoint:
    """Open a SavedModel, .meta or GraphDef; `how.opaque` reads every constant, weight or not."""
    if is_dir(url):
        url = within(url, SAVED_MODEL)
    with Located(url), Reader(url) as f:
        head = f.read(0, min(2**16, f.size))
        if split(url)[1] == SAVED_MODEL:
            return _served_model(f, how)
        if url.endswith(".meta"):
            index = split(url)[1].removesuffix(".meta") + ".index"
            raise StorageError(f"holds a graph but no weights; they are in {index}, which is missing")
        if not NODE.match(head) and not head.startswith(LIBRARY):
            raise CorruptCheckpoint("is not a GraphDef; a SavedModel must be called saved_model.pb")
        return _constants(f, (0, f.size), how.opaque, alone=True)


# --- constants --------------------------------------------------------------------------------------------------


@dataclass
class Graph:
    """The constants of a graph and its functions.

    frozen: the nodes that an Identity reads as freezing calls it. filled: bytes of repeated last values that may come.
    """

    f: Ranges
    filled: int
    constants: dict[str, Tensor] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    quantised: dict[str, None] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def read(self, start: int, end: int) -> bool:
        """Read the GraphDef at [start, end), one node at a time; return whether it has anything after its nodes."""
        complete = False
        for number, first, last in fields(self.f, start, end):
            if number == 1:
                self._node(first, last, "")
            complete |= number != 1
            for a, b in messages(self.f, first, last, 1) if number == 2 else ():
                signature = next(messages(self.f, a, b, 1), (0, 0))
                c, d = next(messages(self.f, *signature, 1), (0, 0))
                if d - c > MAX_SCOPE:
                    raise CorruptCheckpoint(f"a function has a name of {d - c} bytes (at byte {c})")
                scope = text(self.f.read(c, d - c)) + "/"
                for node in messages(self.f, a, b, 3):
                    self._node(*node, scope)
        return complete

    def is_weight(self, t: Tensor) -> bool:
        """Judge a constant by its name and its dtype."""
        if t.name in self.frozen or t.name.endswith("ReadVariableOp/resource"):
            return True
        return t.shape != () and (t.dtype.kind in "fc" or t.name in self.quantised)

    def _node(self, start: int, end: int, scope: str) -> None:
        from . import messages_pb2 as pb

        raw = self.f.read(start, end - start)
        node = parse(pb.NodeDef, raw, f"the node at byte {start}")
        name = scope + node.name
        if node.op == "Identity" and [source.split(":")[0] + "/read" for source in node.input] == [node.name]:
            self.frozen.add(name.removesuffix("/read"))
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

        code, kind = elements.numbered(proto.dtype)
        if kind and kind.kind == "s":
            self.texts.append(name)
            return None
        if code in elements.OPAQUE:
            return None
        if kind is None or proto.tensor_shape.unknown_rank:
            raise CorruptCheckpoint(f"the constant has the unknown dtype {code} or no rank")
        if code in elements.QUANTISED:
            self.quantised[name] = None
        shape = tuple([d.size for d in proto.tensor_shape.dim])
        count = checked_count(shape)
        data = elements.stored(proto, kind, count, "the constant")
        if len(data) >= MIN_SPAN and proto.tensor_content:
            # equal bytes earlier in the node are just as good
            return contiguous(name, kind, shape, Span(self.f.url, start + raw.find(data), len(data)))
        self.filled -= count * kind.itemsize - len(data)
        if self.filled < 0:
            raise UnsafeCheckpoint(f"{len(data)} bytes claim to be {list(shape)} of {kind}")
        held = np.frombuffer(data or bytes(kind.itemsize), kind.dtype)
        if len(held) >= count:
            return contiguous(name, kind, shape, Held(held[:count].reshape(shape)))
        first = Part(Held(held), kind, (len(held),), 0, (1,), 0, (1,))
        rest = Part(Held(held), kind, (count - len(held),), len(held) - 1, (0,), len(held), (1,))
        return Tensor(name, kind, shape, (first, rest))


def _constants(f: Ranges, where: Range, opaque: bool, alone: bool = False) -> Checkpoint:
    """The constants of the graph at `where` that are weights. alone: whether the graph is the file."""
    size = where[1] - where[0]
    graph = Graph(f, FILL_RATIO * size + MAX_FILL)
    complete = graph.read(*where)
    tensors = {name: t for name, t in graph.constants.items() if opaque or graph.is_weight(t)}
    notes = []
    if alone and not complete:  # TensorFlow writes a version last; a file cut between two nodes has none
        what = "the graph ends with a node, not a version; if the file is truncated, weights are missing"
        notes.append(Note("assumed", what))
    if others := tuple(n for n in graph.constants if n not in tensors):
        what = f"{many(len(others), 'constant')}: shapes, axes, tables or scalars, not weights; opaque=True reads them"
        notes.append(Note("skipped", what, others, tensors=False))  # looked at
    if graph.texts:
        notes.append(Note("skipped", "constants of text", tuple(graph.texts), tensors=False))
    if quantised := tuple(n for n in graph.quantised if n in tensors):
        notes.append(Note("assumed", elements.SCALED, quantised))
    return Checkpoint(tensors, format=FORMAT, urls=(f.url,), notes=tuple(notes))


# --- SavedModels ------------------------------------------------------------------------------------------------


def _served_model(f: Ranges, how: Reading) -> Checkpoint:
    """The variables of a SavedModel under the names in its graph; its constants if there are no variables."""
    tagged = [(_tags(f, meta), meta) for meta in messages(f, 0, f.size, 2)]
    if not tagged:
        raise CorruptCheckpoint("the SavedModel holds no graph")
    tags, meta = next((pair for pair in tagged if "serve" in pair[0]), tagged[0])
    frozen = _constants(f, next(messages(f, *meta, 2), (0, 0)), how.opaque)
    details: Details = {"tags": tags}
    folder = split(f.url)[0]
    below = join(folder, "variables")
    if not is_remote(below) and not inside(below, folder):
        raise UnsafeCheckpoint("the folder `variables` is a symlink that leaves the checkpoint's folder")
    index = within(below, "variables.index")
    if not exists(index):
        if any(node.HasField("variable") for node in _object_graph(f, meta).nodes):
            raise StorageError("the model has variables, but variables/variables.index is missing")
        return replace(frozen, details=details)
    keyed, proto = bundle.read(index, how)
    checkpoint = _named(keyed, proto, f, meta) if proto else keyed
    notes = list(checkpoint.notes)
    tensors = dict(checkpoint.tensors)
    if how.opaque or not tensors:
        notes += frozen.notes
        if clash := tuple(n for n in frozen.tensors if n in tensors):
            notes.append(Note("skipped", "constants that have the name of a variable", clash))
        tensors = frozen.tensors | tensors
    elif frozen.tensors:
        what = "constants of a graph that also has variables; opaque=True reads them"
        notes.append(Note("unread", what, tuple(frozen.tensors)))
    details = {"trainable": [], **checkpoint.details, **details}
    urls = (f.url, *checkpoint.urls)
    return replace(checkpoint, tensors=tensors, format=FORMAT, urls=urls, notes=tuple(notes), details=details)


def _tags(f: Ranges, meta: Range) -> list[str]:
    info = next(messages(f, *meta, 1), (0, 0))
    return [f.read(a, b - a).decode("utf-8", "replace") for a, b in messages(f, *info, 4)]


def _object_graph(f: Ranges, meta: Range) -> pb.SavedObjectGraph:
    from . import messages_pb2 as pb

    parts = [*messages(f, *meta, 7)]
    if (size := sum(b - a for a, b in parts)) > MAX_OBJECTS:
        raise CorruptCheckpoint(f"a message of {size} bytes is not a description of objects")
    raw = b"".join(f.read(a, b - a) for a, b in parts)
    return parse(pb.SavedObjectGraph, raw, "the object graph")  # the parts of a message are merged


def _named(keyed: Checkpoint, proto: bytes, f: Ranges, meta: Range) -> Checkpoint:
    """Name the variables that the object graph of a SavedModel's bundle leads to, which are not those of slots."""
    graph = objects.parse(proto)
    reached = [a for i in sorted(objects.reach(graph, [0])) for a in graph.nodes[i].attributes]
    full_names = {
        a.checkpoint_key: a.full_name for a in reached if a.name == "VARIABLE_VALUE" and a.checkpoint_key in keyed
    }
    copies = _copies(keyed, full_names)
    paths, _ = objects.readable(k for k in keyed if k not in copies)
    names, repeated = objects.distinct({k: full_names.get(k) or path for k, path in paths.items()}, paths)
    checkpoint = objects.renamed(keyed, proto, graph, names)
    notes = list(checkpoint.notes)
    if copies:  # compared by their checksums
        what = "copies that Keras' export keeps: they have the name, dtype, shape and CRC-32C of other variables"
        notes.append(Note("skipped", what, copies, tensors=False))
    if repeated:
        notes.append(Note("hint", "variables whose names are not unique have their object paths as names", repeated))
    saved = _object_graph(f, meta).nodes
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
