"""Object-based checkpoints: keys become names; the object graph separates the optimizer's variables from the model's.

    a/b.Sc/.ATTRIBUTES/VARIABLE_VALUE             the variable of object root.a["b/c"]
    a/w/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/...     slot m that optimizer root.opt keeps for root.a.w

In a path, "." is escaped as ".." and "/" as ".S". The graph (TrackableObjectGraph, in the string scalar
_CHECKPOINTABLE_OBJECT_GRAPH) has cycles and shared nodes; a key is the shortest path to its object.
Specification: tensorflow/core/protobuf/trackable_object_graph.proto.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint, Details, Note, Role
from ...errors import CorruptCheckpoint
from ..keras import order
from . import layers
from .bundle import FORMAT, Bundle

if TYPE_CHECKING:
    from . import messages_pb2 as pb

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
CONFIG = "/.ATTRIBUTES/OBJECT_CONFIG_JSON"
TRAINED = "_trainable_variables"
METRICS = "keras_api/metrics/"  # the running sums of Keras 2
# an optimizer's variables that are not slots, without the underscore of Keras 3
STEPS = ("iterations", "iter", "step", "global_step")
STATES = ("learning_rate", "decay", "momentum", "beta_1", "beta_2", "rho", "epsilon")
_ESCAPE = re.compile(r"\.([.S])")


def unescape(path: str) -> str:
    """Undo the escapes of a path in one scan from the left."""
    return _ESCAPE.sub(lambda m: "/" if m[1] == "S" else ".", path)


def named(bundle: Bundle, notes: tuple[Note, ...] = ()) -> Checkpoint:
    """Make the checkpoint of a bundle, with readable names and roles if it is object-based."""
    if bundle.graph == b"":
        notes += bundle.notes
        details = bundle.details.copy()
        return Checkpoint(bundle.tensors, bundle.metadata, (), FORMAT, bundle.urls, notes, details)
    names, collisions = readable(bundle.tensors)
    checkpoint = renamed(bundle, parse(bundle), names)
    if collisions:
        notes += (Note("assumed", "object paths that would be equal when unescaped keep their keys", collisions),)
    return replace(checkpoint, notes=(*notes, *checkpoint.notes))


def renamed(bundle: Bundle, graph: pb.TrackableObjectGraph, names: Mapping[str, str]) -> Checkpoint:
    """The tensors that `names` lists by key, under those names; JSON descriptions of layers are skipped with a note."""
    roles = roles_of(graph)
    text = dict.fromkeys(k for k in names if k.endswith(CONFIG) and bundle.tensors[k].dtype.kind == "s")
    tensors = {
        name: replace(bundle.tensors[key], name=name, role=roles.get(key, ""))
        for key, name in names.items()
        if key not in text
    }
    described = (Note("skipped", "descriptions of layers in JSON", tuple(text), tensors=False),) if text else ()
    notes = (*bundle.notes, *described)
    if not bundle.graph:
        return Checkpoint(tensors, bundle.metadata, (), FORMAT, bundle.urls, notes, bundle.details.copy())
    details: Details = {**bundle.details, "object_graph": len(graph.nodes)}
    weights = {key: tensors[name] for key, name in names.items() if name in tensors}
    if found := layers.of_graph(graph, weights, {i for i, node in enumerate(graph.nodes) if _is_optimizer(node)}):
        details |= order.detailed(found)
    details["graph"] = {"keys": {n: k for k, n in names.items() if n in tensors}, "proto": _packed(bundle.graph)}
    return Checkpoint(tensors, bundle.metadata, (), FORMAT, bundle.urls, notes, details)


def _packed(graph: bytes) -> str:
    """The graph as text, for `details`."""
    return base64.b64encode(zlib.compress(graph)).decode()


def kept(checkpoint: Checkpoint) -> tuple[bytes, dict[str, str]]:
    """The object graph of a checkpoint with the keys of its tensors; nothing where a tensor is not in the graph, or has
    another name than the graph gives it (in a SavedModel those are the names of its functions' variables).

    Attributes whose tensors are no longer there are taken out of the graph.
    """
    from . import messages_pb2 as pb

    stored = checkpoint.details.get("graph", {})
    keys = {n: k for n, k in stored.get("keys", {}).items() if n in checkpoint}
    given, _ = readable(keys.values())
    if not stored or len(keys) < len(checkpoint) or any(n != given[k] for n, k in keys.items()):
        return b"", {}
    graph = pb.TrackableObjectGraph.FromString(zlib.decompress(base64.b64decode(stored["proto"])))
    there = set(keys.values())
    for node in graph.nodes:
        left = [a for a in node.attributes if a.checkpoint_key in there]
        if len(left) < len(node.attributes):
            del node.attributes[:]
            node.attributes.extend(left)
    return graph.SerializeToString(), keys


def parse(bundle: Bundle) -> pb.TrackableObjectGraph:
    """Parse the object graph and check that every node it refers to exists."""
    from google.protobuf.message import DecodeError

    from . import messages_pb2 as pb

    try:
        graph = pb.TrackableObjectGraph.FromString(bundle.graph or b"")
    except DecodeError as e:
        raise CorruptCheckpoint(f"the object graph is not a valid message ({e})", url=bundle.url) from e
    count = len(graph.nodes)
    for node in graph.nodes:
        slots = [i for s in node.slot_variables for i in (s.original_variable_node_id, s.slot_variable_node_id)]
        if any(not 0 <= i < count for i in [*slots, *(c.node_id for c in node.children)]):
            raise CorruptCheckpoint(f"the object graph refers to a node beyond its {count}", url=bundle.url)
    return graph


def readable(keys: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names for keys, and the keys that are their own names because their readable names collide."""
    names = {k: unescape(k.removesuffix(VALUE)) or "/" for k in keys}
    count = Counter(names.values())
    collisions = tuple(k for k, n in names.items() if count[n] > 1)
    taken, todo = set(collisions), list(collisions)
    owners: dict[str, list[str]] = {}
    for k, n in names.items():
        owners.setdefault(n, []).append(k)
    while todo:  # a name equal to another key
        clash = [k for k in owners.get(todo.pop(), ()) if k not in taken]
        taken.update(clash)
        todo += clash
    return {k: k if k in taken else n for k, n in names.items()}, tuple(k for k in names if k in taken)


def roles_of(graph: pb.TrackableObjectGraph) -> dict[str, Role]:
    """Roles by checkpoint key: variables that only an optimizer reaches, save counters and the sums of metrics."""
    if not graph.nodes:
        return {}
    roles = _optimizer_roles(graph)
    for node in {c.node_id for c in graph.nodes[0].children if c.local_name == "save_counter"}:
        roles |= dict.fromkeys(_keys(graph, node), "step")
    keys = (k for node in range(len(graph.nodes)) for k in _keys(graph, node))
    return roles | {k: "state" for k in keys if k.startswith(METRICS)}


def _optimizer_roles(graph: pb.TrackableObjectGraph) -> dict[str, Role]:
    """Roles of the variables that belong to optimizers and not to the model."""
    optimizers = {i for i, node in enumerate(graph.nodes) if _is_optimizer(node)}
    children = [c for i in optimizers for c in graph.nodes[i].children]
    slots = {s.slot_variable_node_id for i in optimizers for s in graph.nodes[i].slot_variables}
    # the variables that an optimizer trains are the model's, whether or not the model is saved
    trained = {c.node_id for c in children if c.local_name == TRAINED}
    model = _reach(graph, trained | {0}, optimizers) - slots
    own: dict[Role, set[int]] = {"slot": slots, "state": set(), "step": set()}  # Keras 3 also lists all in `_variables`
    for c in children:
        if c.local_name != TRAINED:
            name = c.local_name.removeprefix("_")
            own["step" if name in STEPS else "state" if name in STATES else "slot"].add(c.node_id)
    roles: dict[str, Role] = {}
    for role, start in own.items():
        for node in _reach(graph, start, optimizers) - model:
            roles |= dict.fromkeys(_keys(graph, node), role)
    return roles


def _keys(graph: pb.TrackableObjectGraph, node: int) -> list[str]:
    return [a.checkpoint_key for a in graph.nodes[node].attributes]


def _is_optimizer(node: pb.TrackableObjectGraph.TrackableObject) -> bool:
    """Keras 2 optimizers list slots or have `iter`; Keras 3 optimizers have `_iterations` and trained variables."""
    children = {c.local_name for c in node.children}
    return (
        bool(node.slot_variables)
        or children >= {"_iterations", TRAINED}
        or bool(children >= {"_iterations", "_learning_rate"} or children >= {"iter", "learning_rate"})
    )


def _reach(graph: pb.TrackableObjectGraph, start: Iterable[int], closed: set[int]) -> set[int]:
    """The nodes that can be reached from `start` without entering `closed`."""
    seen: set[int] = set()
    todo = list(start)
    while todo:
        i = todo.pop()
        if i in seen or i in closed:
            continue
        seen.add(i)
        todo += [c.node_id for c in graph.nodes[i].children]
    return seen
