"""The variables of a SavedModel under the names people know, and what collections say of variables.

    SavedObjectGraph   { nodes { children, variable { name, trainable } } }           in saved_model.pb
    TrackableObjectGraph { nodes { children, attributes { checkpoint_key } } }        in the variables' bundle

Both graphs have the same edges from the root, so walking them together pairs each variable with its key. A name that
is not unique is replaced by the object path. Specification: tensorflow/core/protobuf/saved_object_graph.proto.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checkpoint import Checkpoint, Note, Tensor
from ...errors import CkptError, CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ...moves.part import Span
from ...storage.files import Reader, exists, is_remote, join, sibling, split
from ...storage.ranges import Ranges
from . import locate, objects
from .table import varint
from .wire import fields, messages

if TYPE_CHECKING:
    from . import messages_pb2 as pb
    from .bundle import Bundle


class Regions(NamedTuple):
    """Ranges of the file: the MetaGraphDef, if there is one, and the GraphDef, if there is one."""

    meta: tuple[int, int] | tuple[()]
    graph: tuple[int, int] | tuple[()]
    saved_model: bool
    tags: tuple[str, ...] = ()


# --- constants --------------------------------------------------------------------------------------------------


def constants(f: Ranges, found: Regions, opaque: bool) -> Checkpoint:
    """The constants of the graph that are weights."""
    from . import nodes

    graph = nodes.read(f, *found.graph) if found.graph else nodes.Graph({}, {}, [], [0], [0])
    tensors, others = (graph.constants, ()) if opaque else nodes.weights(graph)
    notes = []
    if found.graph and not found.meta and all(x.number == 1 for x in fields(f, *found.graph)):
        # TensorFlow writes a library or a version last: a file cut between two nodes has neither, and no checksum
        notes.append(Note("assumed", "the graph ends with a node, not a version; if it was cut, weights are missing"))
    if others:
        text = f"{len(others)} constants are shapes, axes or scalars, not weights; opaque=True reads them"
        notes.append(Note("skipped", text, others))
    if quantised := tuple(n for n in graph.quantised if n in tensors):
        notes.append(Note("assumed", "quantised integers are read as plain ones; their scale is elsewhere", quantised))
    return Checkpoint(tensors, format=FORMAT, urls=(f.url,), notes=tuple(notes))


FORMAT = "tf-graph"
_COPY = re.compile(r"_(all|trainable|non_trainable)_variables/\d+/")
LIMIT = 1 << 28  # bytes of a message that is parsed whole


def open(url: str, f: Ranges, found: Regions, opaque: bool) -> Checkpoint:
    """The variables of a SavedModel under the names its graph gives them; its constants if there are no variables."""
    from . import bundle, saved_model

    folder = split(url)[0]
    below = join(folder, "variables")
    if not is_remote(below) and not locate.within(below, folder):
        raise UnsafeCheckpoint("the folder `variables` is a symlink that leaves the checkpoint's folder", url=url)
    index = sibling(join(below, "."), "variables.index")
    details: dict[str, Any] = {"tags": list(found.tags)}
    constants = saved_model.constants(f, found, opaque)
    if found.meta:
        details |= collections(f, *found.meta)
    if not exists(index):
        if _variables(f, found):
            raise StorageError("the model has variables, but variables/variables.index is missing", url=url)
        return replace(constants, details=details)
    read = bundle.read(index)
    checkpoint = _named(read, f, found) if read.graph else objects.named(read)
    notes = list(checkpoint.notes)
    tensors = dict(checkpoint.tensors)
    if opaque or not tensors:
        notes += constants.notes
        if clash := tuple(n for n in constants.tensors if n in tensors):
            notes.append(Note("skipped", "constants that are called as variables are", clash))
        tensors = constants.tensors | tensors
    elif constants.tensors:
        text = "constants of the graph beside its variables; opaque=True reads them"
        notes.append(Note("unread", text, tuple(constants.tensors)))
    return replace(
        checkpoint,
        tensors=tensors,
        format=FORMAT,
        urls=(url, *checkpoint.urls),
        notes=tuple(notes),
        details={**checkpoint.details, **details, **_trainable(checkpoint.details, details)},
    )


def _trainable(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The object graph's flags, or else the collection's."""
    return {"trainable": ours.get("trainable") or theirs.get("trainable") or []}


def _object_graph(f: Ranges, found: Regions) -> pb.SavedObjectGraph:
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    graph = pb.SavedObjectGraph()
    try:
        for a, b in messages(f, *found.meta, 7) if found.meta else ():
            graph.MergeFromString(_small(f, a, b))
    except DecodeError as e:
        raise CorruptCheckpoint(f"the object graph is no message ({e})", url=f.url) from e
    return graph


def _variables(f: Ranges, found: Regions) -> bool:
    return any(node.HasField("variable") for node in _object_graph(f, found).nodes)


def _named(read: Bundle, f: Ranges, found: Regions) -> Checkpoint:
    """Name a bundle's tensors by the SavedVariables that the same path leads to in the SavedModel's object graph."""
    saved, graph = _object_graph(f, found), objects.parse(read)
    said: dict[str, str] = {}
    trained: set[str] = set()
    for theirs, ours in _pairs(saved, graph, f.url).items():
        variable = saved.nodes[theirs].variable
        for attribute in graph.nodes[ours].attributes if saved.nodes[theirs].HasField("variable") else ():
            if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in read.tensors:
                said[attribute.checkpoint_key] = variable.name.removesuffix(":0") or attribute.full_name
                if variable.trainable:
                    trained.add(attribute.checkpoint_key)
    copies = _copies(read.tensors, said)
    set_aside = set(copies)
    names, repeated = _choose({k: said.get(k, "") for k in read.tensors if k not in set_aside})
    checkpoint = objects.renamed(read, graph, names)
    notes = list(checkpoint.notes)
    if copies:
        notes.append(Note("skipped", "second copies that Keras' export keeps of variables of the same name", copies))
    if repeated:
        notes.append(Note("hint", "variables whose names are not unique go by their object paths", repeated))
    trainable = [names[k] for k in names if k in trained]
    return replace(checkpoint, notes=tuple(notes), details={**checkpoint.details, "trainable": trainable})


def _copies(tensors: dict[str, Tensor], said: dict[str, str]) -> tuple[str, ...]:
    """Keys under `_all_variables` whose bytes and name are those of one variable elsewhere."""
    others = {said[k]: tensors[k] for k in said if not _COPY.match(k)}
    return tuple(k for k in said if _COPY.match(k) and said[k] in others and _equal(tensors[k], others[said[k]]))


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bytes, as far as their checksums tell."""
    x, y = a.parts[0].data, b.parts[0].data
    same = (a.dtype, a.shape, len(a.parts)) == (b.dtype, b.shape, len(b.parts))
    return same and isinstance(x, Span) and isinstance(y, Span) and (x.size, x.check) == (y.size, y.check)


def _choose(said: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The names said, or paths for those that are not unique; and the latter."""
    paths, _ = objects.readable(said)
    count = Counter(said.values())
    names = {k: n if n and count[n] == 1 else paths[k] for k, n in said.items()}
    owners: dict[str, list[str]] = {}
    for k, n in names.items():
        owners.setdefault(n, []).append(k)
    shared = [n for n, keys in owners.items() if len(keys) > 1]
    while shared:  # a name that is another's path
        for k in owners.pop(shared.pop()):
            names[k] = paths[k]
            keys = owners.setdefault(paths[k], [])
            keys.append(k)
            if len(keys) == 2:
                shared.append(paths[k])
    return names, tuple(names[k] for k, n in said.items() if n and names[k] != n)


def _pairs(saved: pb.SavedObjectGraph, graph: pb.TrackableObjectGraph, url: str) -> dict[int, int]:
    """Nodes of the model's object graph and those of the checkpoint's that the same names lead to from the root."""
    pairs = {0: 0} if saved.nodes and graph.nodes else {}
    todo = list(pairs)
    while todo:
        at = todo.pop()
        beside = {c.local_name: c.node_id for c in graph.nodes[pairs[at]].children}
        for child in saved.nodes[at].children:
            if not 0 <= child.node_id < len(saved.nodes):
                raise CorruptCheckpoint(f"the object graph refers to a node beyond its {len(saved.nodes)}", url=url)
            if child.local_name in beside and child.node_id not in pairs:
                pairs[child.node_id] = beside[child.local_name]
                todo.append(child.node_id)
    return pairs


# --- collections ------------------------------------------------------------------------------------------------


def _small(f: Ranges, start: int, end: int) -> bytes:
    if end - start > LIMIT:
        raise CorruptCheckpoint(f"a message of {end - start} bytes is no description (at byte {start})", url=f.url)
    return f.read(start, end - start)


def collections(f: Ranges, start: int, end: int) -> dict[str, Any]:
    """The collections of a MetaGraphDef that list variables, by checkpoint keys, and which variables are trained."""
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    out: dict[str, list[str]] = {}
    for a, b in messages(f, start, end, 4):
        try:
            entry = pb.MetaGraphDef.FromString(b"\x22" + varint(b - a) + _small(f, a, b)).collection_def
        except DecodeError as e:
            raise CorruptCheckpoint(f"a collection is no message ({e})", url=f.url) from e
        for name, collection in entry.items():
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


def meta_details(url: str) -> dict[str, Any]:
    """What the .meta file at `url` says of variables; nothing if it cannot be read."""
    try:
        with Reader(url) as f:
            return collections(f, 0, f.size)
    except CkptError:
        return {}
