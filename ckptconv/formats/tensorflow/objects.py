"""Object-based checkpoints: keys become names; the object graph separates the optimizer's variables from the model's.

    a/b.Sc/.ATTRIBUTES/VARIABLE_VALUE             the variable of object root.a["b/c"]
    a/w/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/...     slot m that optimizer root.opt keeps for root.a.w

In a path, "." is escaped as ".." and "/" as ".S". The graph (TrackableObjectGraph, in the string scalar
_CHECKPOINTABLE_OBJECT_GRAPH) has cycles and shared nodes; a key is the shortest path to its object. A node's children
come in the order in which they were attached. Where Keras records the layers of a model, their order is kept:

    layer-3                            Keras 2: the fourth of model.layers
    _functional, _operations/3         Keras 3: the fourth of model.layers

Specification: tensorflow/core/protobuf/trackable_object_graph.proto, keras/src/backend/tensorflow/trackable.py.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...checkpoint import Checkpoint, Note, Role, Tensor
from ...errors import CorruptCheckpoint
from ..keras import order
from . import elements
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


def named(bundle: Bundle, notes: tuple[Note, ...] = ()) -> Checkpoint:
    """Make the checkpoint of a bundle, with readable names and roles if it is object-based."""
    if bundle.graph == b"":
        notes += bundle.notes
        return Checkpoint(bundle.tensors, bundle.metadata, (), FORMAT, bundle.urls, notes, bundle.details.copy())
    names, collisions = readable(bundle.tensors)
    checkpoint = renamed(bundle, parse(bundle), names)
    if collisions:
        notes += (Note("assumed", "object paths that would be equal when unescaped keep their keys", collisions),)
    return replace(checkpoint, notes=(*notes, *checkpoint.notes))


def renamed(bundle: Bundle, graph: pb.TrackableObjectGraph, names: Mapping[str, str]) -> Checkpoint:
    """The tensors that `names` lists by key, under those names; JSON descriptions of layers are skipped with a note."""
    roles = roles_of(graph)
    configs = tuple(k for k in names if k.endswith(CONFIG) and bundle.tensors[k].dtype.kind == "s")
    by_key = {
        key: replace(bundle.tensors[key], name=name, role=roles.get(key, ""))
        for key, name in names.items()
        if key not in configs
    }
    tensors = {t.name: t for t in by_key.values()}
    notes = bundle.notes
    if configs:
        notes += (Note("skipped", "descriptions of layers in JSON", configs, tensors=False),)
    details = bundle.details.copy()
    if bundle.graph:
        details["object_graph"] = len(graph.nodes)
        if recorded := layers_of(graph, by_key):
            details |= order.detailed(recorded)
        proto = base64.b64encode(zlib.compress(bundle.graph)).decode()
        details["graph"] = {"keys": {t.name: key for key, t in by_key.items()}, "proto": proto}
    return Checkpoint(tensors, bundle.metadata, (), FORMAT, bundle.urls, notes, details)


def kept(checkpoint: Checkpoint) -> tuple[bytes, dict[str, str]]:
    """The object graph of a checkpoint with the keys of its tensors; nothing where a tensor is not in the graph, or has
    another name than the graph gives it (in a SavedModel those are the names of its functions' variables).

    Attributes whose tensors are no longer there are taken out of the graph.
    """
    from . import messages_pb2 as pb

    stored = checkpoint.details.get("graph", {})
    keys = {n: k for n, k in stored.get("keys", {}).items() if n in checkpoint}
    names, _ = readable(keys.values())
    if not stored or len(keys) < len(checkpoint) or any(n != names[k] for n, k in keys.items()):
        return b"", {}
    graph = pb.TrackableObjectGraph.FromString(zlib.decompress(base64.b64decode(stored["proto"])))
    present = set(keys.values())
    for node in graph.nodes:
        attributes = [a for a in node.attributes if a.checkpoint_key in present]
        if len(attributes) < len(node.attributes):
            del node.attributes[:]
            node.attributes.extend(attributes)
    return graph.SerializeToString(), keys


def parse(bundle: Bundle) -> pb.TrackableObjectGraph:
    """Parse the object graph and check that every node it refers to exists."""
    from . import messages_pb2 as pb

    graph = elements.parse(pb.TrackableObjectGraph, bundle.graph or b"", "the object graph", bundle.url)
    count = len(graph.nodes)
    for node in graph.nodes:
        slots = [i for s in node.slot_variables for i in (s.original_variable_node_id, s.slot_variable_node_id)]
        if any(not 0 <= i < count for i in [*slots, *(c.node_id for c in node.children)]):
            raise CorruptCheckpoint(f"the object graph refers to a node beyond its {count}", url=bundle.url)
    return graph


def readable(keys: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names for keys, and the keys that are their own names because their readable names collide."""
    names = {k: _ESCAPE.sub(lambda m: "/" if m[1] == "S" else ".", k.removesuffix(VALUE)) or "/" for k in keys}
    count = Counter(names.values())
    collisions = tuple(k for k, n in names.items() if count[n] > 1)
    names |= {k: k for k in collisions}
    if collisions and len(set(names.values())) < len(names):  # a name equal to another key
        return {k: k for k in names}, tuple(names)
    return names, collisions


# --- roles ------------------------------------------------------------------------------------------------------


def roles_of(graph: pb.TrackableObjectGraph) -> dict[str, Role]:
    """Roles by checkpoint key: variables that only an optimizer reaches, save counters and the sums of metrics."""
    if not graph.nodes:
        return {}
    optimizers = _optimizers(graph)
    children = [c for i in optimizers for c in graph.nodes[i].children]
    slots = {s.slot_variable_node_id for i in optimizers for s in graph.nodes[i].slot_variables}
    # the variables that an optimizer trains are the model's, whether or not the model is saved
    trained = {c.node_id for c in children if c.local_name == TRAINED}
    model = reach(graph, trained | {0}, optimizers) - slots
    own: dict[Role, set[int]] = {"slot": slots, "state": set(), "step": set()}  # Keras 3 also lists all in `_variables`
    for c in children:
        if c.local_name != TRAINED:
            name = c.local_name.removeprefix("_")
            own["step" if name in STEPS else "state" if name in STATES else "slot"].add(c.node_id)
    roles: dict[int, Role] = {}
    for role, start in own.items():
        roles |= dict.fromkeys(reach(graph, start, optimizers) - model, role)
    roles |= {c.node_id: "step" for c in graph.nodes[0].children if c.local_name == "save_counter"}
    keys = ((i, a.checkpoint_key) for i, node in enumerate(graph.nodes) for a in node.attributes)
    by_key: dict[str, Role] = {k: "state" if k.startswith(METRICS) else roles.get(i, "") for i, k in keys}
    return by_key


def _optimizers(graph: pb.TrackableObjectGraph) -> set[int]:
    """Keras 2 optimizers list slots or have `iter`; Keras 3 optimizers have `_iterations` and trained variables."""
    signs = ({"_iterations", TRAINED}, {"_iterations", "_learning_rate"}, {"iter", "learning_rate"})
    return {
        i
        for i, node in enumerate(graph.nodes)
        if node.slot_variables or any(sign <= {c.local_name for c in node.children} for sign in signs)
    }


def reach(graph: pb.TrackableObjectGraph, start: Iterable[int], closed: Container[int] = ()) -> set[int]:
    """The nodes that can be reached from `start` without entering `closed`."""
    seen: set[int] = set()
    todo = list(start)
    while todo:
        i = todo.pop()
        if i not in seen and i not in closed:
            seen.add(i)
            todo += [c.node_id for c in graph.nodes[i].children]
    return seen


# --- layers -----------------------------------------------------------------------------------------------------

_LAYER = re.compile(r"layer-(\d{1,9})")
_LISTS = ("_functional", "_operations", "_layers", "layers")  # what Keras 3 puts between a model and its layers
# lists of variables beside the objects that own them, and what is not part of the model
_ASIDE = re.compile(
    r"keras_api|root|save_counter|_?optimizer|_?(all_|trainable_|non_trainable_)?variables|regularization_losses|"
    r"_?metrics|_compile_metrics|layer_with_weights-\d+|_inbound_nodes|_outbound_nodes|_self_tracked_trackables"
)


def layers_of(graph: pb.TrackableObjectGraph, tensors: Mapping[str, Tensor]) -> order.Layers | None:
    """The layers of the model in a graph; None if it lists none, or does not record the order of all its weights.

    tensors: by checkpoint key. The model is the root, or the one object of the root that lists layers. A layer is named
    by the first segment of its variables' names, if that is unique. Which weights are trained, and therefore come
    first, is known for one object of Keras' own, not for several within a layer.
    """
    weights: dict[int, str] = {}  # the tensors' names by node
    paths: dict[str, list[str]] = {}  # the variables' names by the tensors' names
    for i, node in enumerate(graph.nodes):
        for a in node.attributes:
            t = tensors.get(a.checkpoint_key)
            if a.name == "VARIABLE_VALUE" and t is not None and not t.role:
                weights[i], paths[t.name] = t.name, a.full_name.split("/")
    nodes = dict.fromkeys([0, *(child for _, child in _children(graph, 0))]) if graph.nodes else {}  # each once
    models = [i for i in nodes if any(name in _LISTS or _LAYER.fullmatch(name) for name, _ in _children(graph, i))]
    if not models or (models[0] and len(models) > 1):
        return None
    integer = {t.name for t in tensors.values() if t.dtype.kind not in "fc"}
    seen = _optimizers(graph) | {models[0]}
    rows: list[tuple[str, list[str]]] = []
    todo = _children(graph, models[0])[::-1]
    while todo:
        name, layer = todo.pop()
        if layer in seen or layer in weights:
            continue
        seen.add(layer)
        if name in _LISTS:
            todo += _children(graph, layer)[::-1]
            continue
        objects = _variables(graph, layer, weights, seen)
        listed = order.trained_first(objects[0], integer) if len(objects) == 1 else None
        if objects and listed is None:
            return None
        rows += [(name, listed)] if listed else []
    outside = dict.fromkeys(i for _, i in _children(graph, models[0]) if i not in seen)
    top = [weights[i] for i in outside if i in weights]
    if not rows or {t.name for t in tensors.values() if not t.role} - {
        *top,
        *(n for _, listed in rows for n in listed),
    }:
        return None
    return [*_named(rows, paths), *([("top_level_model_weights", [(n, n + ":0") for n in top])] if top else [])]


def _children(graph: pb.TrackableObjectGraph, node: int) -> list[tuple[str, int]]:
    """The children of a node in Keras's order: its layers by their numbers, then its attributes."""
    rows = [(c.local_name, c.node_id) for c in graph.nodes[node].children if not _ASIDE.fullmatch(c.local_name)]
    return sorted(rows, key=lambda row: int(m[1]) if (m := _LAYER.fullmatch(row[0])) else 10**9)


def _variables(
    graph: pb.TrackableObjectGraph, layer: int, weights: Mapping[int, str], seen: set[int]
) -> list[list[tuple[str, str]]]:
    """The weights of each object in a layer, by attribute; those that were met before are left out."""
    objects, todo = [], [layer]
    while todo:
        own = []
        for name, child in _children(graph, todo.pop()):
            if child not in seen:
                seen.add(child)
                if child in weights:
                    own.append((name, weights[child]))
                else:
                    todo.append(child)
        objects += [own] if own else []
    return objects


def _named(rows: Iterable[tuple[str, list[str]]], paths: Mapping[str, list[str]]) -> order.Layers:
    """Name layers by the first words of their variables' names, after that of the model if all have it."""
    level = int(len({p[0] for p in paths.values()}) == 1 and all(len(p) > 2 for p in paths.values()))
    words = [{[*paths[n], ""][level] for n in names} for _, names in rows]
    names = [one.pop() if len(one) == 1 else "" for one in words]
    count = Counter(names)
    return [
        (name if name and count[name] == 1 else f"{i}_{own}", [(n, n + ":0") for n in listed])
        for i, (name, (own, listed)) in enumerate(zip(names, rows, strict=True))
    ]
