"""The variables of a SavedModel under their own names, and the collections of a graph that list variables.

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

from ...checkpoint import Checkpoint, Details, Note, Tensor
from ...errors import CkptError, CorruptCheckpoint, StorageError, UnsafeCheckpoint
from ...messages import many
from ...moves.part import Span
from ...storage.files import Reader, exists, is_remote, join, sibling, split
from ...storage.paths import inside
from ...storage.ranges import Ranges
from . import objects
from .table import varint
from .wire import fields, messages

if TYPE_CHECKING:
    from . import messages_pb2 as pb
    from .bundle import Bundle

FORMAT = "tf-graph"
MAX_MESSAGE = 1 << 28  # bytes of a message that is parsed in memory
_COPY = re.compile(r"_(all|trainable|non_trainable)_variables/\d+/")


class Regions(NamedTuple):
    """The ranges of the MetaGraphDef and of the GraphDef in a file; () if absent."""

    meta: tuple[int, int] | tuple[()]
    graph: tuple[int, int] | tuple[()]
    saved_model: bool
    tags: tuple[str, ...] = ()


# --- constants --------------------------------------------------------------------------------------------------


def constants(f: Ranges, regions: Regions, opaque: bool) -> Checkpoint:
    """The constants of the graph that are weights."""
    from . import nodes

    graph = nodes.read(f, *regions.graph) if regions.graph else nodes.Graph({}, {}, [], [0], [0], [0])
    tensors, others = (graph.constants, ()) if opaque else nodes.weights(graph)
    notes = []
    if regions.graph and not regions.meta and all(x.number == 1 for x in fields(f, *regions.graph)):
        # TensorFlow writes a library or a version last; a file cut between two nodes has neither
        text = "the graph ends with a node, not a version; if the file is truncated, weights are missing"
        notes.append(Note("assumed", text))
    if others:
        text = f"{many(len(others), 'constant')}: shapes, axes or scalars, not weights; opaque=True reads them"
        notes.append(Note("skipped", text, others, tensors=False))  # looked at
    if quantised := tuple(n for n in graph.quantised if n in tensors):
        text = "quantised integers are read as plain integers; their scale is elsewhere"
        notes.append(Note("assumed", text, quantised))
    return Checkpoint(tensors, format=FORMAT, urls=(f.url,), notes=tuple(notes))


def open(url: str, f: Ranges, regions: Regions, opaque: bool) -> Checkpoint:
    """The variables of a SavedModel under the names in its graph; its constants if there are no variables."""
    from . import bundle

    folder = split(url)[0]
    below = join(folder, "variables")
    if not is_remote(below) and not inside(below, folder):
        raise UnsafeCheckpoint("the folder `variables` is a symlink that leaves the checkpoint's folder", url=url)
    index = sibling(join(below, "."), "variables.index")
    details: Details = {"tags": list(regions.tags)}
    frozen = constants(f, regions, opaque)
    if regions.meta:
        details |= collections(f, *regions.meta)
    if not exists(index):
        if _variables(f, regions):
            raise StorageError("the model has variables, but variables/variables.index is missing", url=url)
        return replace(frozen, details=details)
    read = bundle.read(index)
    checkpoint = _named(read, f, regions) if read.graph else objects.named(read)
    notes = list(checkpoint.notes)
    tensors = dict(checkpoint.tensors)
    if opaque or not tensors:
        notes += frozen.notes
        if clash := tuple(n for n in frozen.tensors if n in tensors):
            notes.append(Note("skipped", "constants that have the name of a variable", clash))
        tensors = frozen.tensors | tensors
    elif frozen.tensors:
        text = "constants of a graph that also has variables; opaque=True reads them"
        notes.append(Note("unread", text, tuple(frozen.tensors)))
    return replace(
        checkpoint,
        tensors=tensors,
        format=FORMAT,
        urls=(url, *checkpoint.urls),
        notes=tuple(notes),
        details={**checkpoint.details, **details, **_trainable(checkpoint.details, details)},
    )


def _trainable(ours: Details, theirs: Details) -> Details:
    """The flags of the object graph or, if it has none, those of the collection."""
    return {"trainable": ours.get("trainable") or theirs.get("trainable") or []}


def _object_graph(f: Ranges, regions: Regions) -> pb.SavedObjectGraph:
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    graph = pb.SavedObjectGraph()
    try:
        for a, b in messages(f, *regions.meta, 7) if regions.meta else ():
            graph.MergeFromString(_small(f, a, b))
    except DecodeError as e:
        raise CorruptCheckpoint(f"the object graph is not a valid message ({e})", url=f.url) from e
    return graph


def _variables(f: Ranges, regions: Regions) -> bool:
    return any(node.HasField("variable") for node in _object_graph(f, regions).nodes)


def _named(read: Bundle, f: Ranges, regions: Regions) -> Checkpoint:
    """Name a bundle's tensors by the SavedVariables at the same paths of the SavedModel's object graph."""
    saved, graph = _object_graph(f, regions), objects.parse(read)
    full_names: dict[str, str] = {}
    trained: set[str] = set()
    variables: dict[int, tuple[str, bool]] = {}  # by node of the checkpoint: the last name, and whether any is trained
    for theirs, ours in _pairs(saved, graph, f.url).items():
        if saved.nodes[theirs].HasField("variable"):
            variable = saved.nodes[theirs].variable
            variables[ours] = variable.name, variable.trainable or variables.get(ours, ("", False))[1]
    for ours, (name, trainable) in variables.items():
        for attribute in graph.nodes[ours].attributes:
            if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in read.tensors:
                full_names[attribute.checkpoint_key] = name.removesuffix(":0") or attribute.full_name
                if trainable:
                    trained.add(attribute.checkpoint_key)
    copies = dict.fromkeys(_copies(read.tensors, full_names))
    names, repeated = _choose({k: full_names.get(k, "") for k in read.tensors if k not in copies})
    checkpoint = objects.renamed(read, graph, names)
    notes = list(checkpoint.notes)
    if copies:
        text = (
            "taken for copies that Keras' export keeps, by equal names, dtypes, shapes and CRC-32C of other variables"
        )
        notes.append(Note("skipped", text, tuple(copies), tensors=False))  # compared by their checksums
    if repeated:
        notes.append(Note("hint", "variables whose names are not unique have their object paths as names", repeated))
    of_training = [names[k] for k in names if k in trained]
    return replace(checkpoint, notes=tuple(notes), details={**checkpoint.details, "trainable": of_training})


def _copies(tensors: dict[str, Tensor], names: dict[str, str]) -> tuple[str, ...]:
    """Keys under `_all_variables` whose name and checksum are those of a variable elsewhere, one of each such list.

    Names need not be unique: each variable has one copy in a list, so of two copies that are equal one variable is not
    both. The bytes are not compared: opening would read all of the model, twice.
    """
    others = Counter(_identity(names[k], tensors[k]) for k in names if not _COPY.match(k))
    found: list[str] = []
    taken: dict[str, Counter[object]] = {}
    for key in names:
        if not (place := _COPY.match(key)) or not (same := _identity(names[key], tensors[key])):
            continue
        used = taken.setdefault(place[1], Counter())
        if used[same] < others[same]:
            used[same] += 1
            found.append(key)
    return tuple(found)


def _identity(name: str, tensor: Tensor) -> tuple[object, ...] | None:
    """By what a copy is known: the variable's name and layout, and the checksum of its bytes; None if it has none."""
    data = tensor.parts[0].data
    if not isinstance(data, Span) or len(tensor.parts) > 1:
        return None
    return name, tensor.dtype, tensor.shape, data.size, data.check


def _choose(preferred: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Preferred names, or object paths for those that are not unique; and the paths used in their place."""
    paths, _ = objects.readable(preferred)
    count = Counter(preferred.values())
    names = {k: n if n and count[n] == 1 else paths[k] for k, n in preferred.items()}
    owners: dict[str, list[str]] = {}
    for k, n in names.items():
        owners.setdefault(n, []).append(k)
    shared = [n for n, keys in owners.items() if len(keys) > 1]
    while shared:  # a name equal to the path of another
        for k in owners.pop(shared.pop()):
            names[k] = paths[k]
            keys = owners.setdefault(paths[k], [])
            keys.append(k)
            if len(keys) == 2:
                shared.append(paths[k])
    return names, tuple(names[k] for k, n in preferred.items() if n and names[k] != n)


def _pairs(saved: pb.SavedObjectGraph, graph: pb.TrackableObjectGraph, url: str) -> dict[int, int]:
    """Pair the nodes of the model's object graph with those at the same paths of the checkpoint's object graph."""
    pairs = {0: 0} if saved.nodes and graph.nodes else {}
    children: dict[int, dict[str, int]] = {}  # many nodes of the model can be paired with one of the checkpoint
    todo = list(pairs)
    while todo:
        at = todo.pop()
        if (beside := children.get(pairs[at])) is None:
            beside = {c.local_name: c.node_id for c in graph.nodes[pairs[at]].children}
            children[pairs[at]] = beside
        for child in saved.nodes[at].children:
            if not 0 <= child.node_id < len(saved.nodes):
                raise CorruptCheckpoint(f"the object graph refers to a node beyond its {len(saved.nodes)}", url=url)
            if child.local_name in beside and child.node_id not in pairs:
                pairs[child.node_id] = beside[child.local_name]
                todo.append(child.node_id)
    return pairs


# --- collections ------------------------------------------------------------------------------------------------


def _small(f: Ranges, start: int, end: int) -> bytes:
    if end - start > MAX_MESSAGE:
        raise CorruptCheckpoint(f"a message of {end - start} bytes is not a description (at byte {start})", url=f.url)
    return f.read(start, end - start)


def collections(f: Ranges, start: int, end: int) -> Details:
    """The collections of a MetaGraphDef that list variables, by checkpoint keys, and which of them are trained."""
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    out: dict[str, list[str]] = {}
    for a, b in messages(f, start, end, 4):
        try:
            entry = pb.MetaGraphDef.FromString(b"\x22" + varint(b - a) + _small(f, a, b)).collection_def
        except DecodeError as e:
            raise CorruptCheckpoint(f"a collection is not a valid message ({e})", url=f.url) from e
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


def meta_details(url: str) -> Details:
    """The collections in the .meta file at `url` that list variables; {} if it cannot be read."""
    try:
        with Reader(url) as f:
            return collections(f, 0, f.size)
    except CkptError:
        return {}
