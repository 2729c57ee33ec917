"""What describes the variables: the object graph of a checkpoint.

Keys become names; the object graph separates the optimizer's variables from the model's.

    a/b.Sc/.ATTRIBUTES/VARIABLE_VALUE             the variable of object root.a["b/c"]
    a/w/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/...     slot m that optimizer root.opt keeps for root.a.w

In a path, "." is escaped as ".." and "/" as ".S". The graph (TrackableObjectGraph, in the string scalar
_CHECKPOINTABLE_OBJECT_GRAPH) has cycles and shared nodes; a key is the shortest path to its object.
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

from ...checkpoint import Checkpoint, Note, Role
from ...errors import CorruptCheckpoint
from . import elements

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


def with_readable_names(checkpoint: Checkpoint, proto: bytes | None) -> Checkpoint:
    """The checkpoint with readable names and roles if it is object-based.

    checkpoint, proto: the tensors by key, and the object graph, as bundle.py reads them.
    """
    if proto == b"":
        return checkpoint
    names, collisions = readable(checkpoint)
    found = renamed(checkpoint, proto, parse(proto), names)
    if not collisions:
        return found
    note = Note("assumed", "object paths that would be equal when unescaped keep their keys", collisions)
    return replace(found, notes=(note, *found.notes))


def renamed(
    checkpoint: Checkpoint, proto: bytes | None, graph: pb.TrackableObjectGraph, names: Mapping[str, str]
) -> Checkpoint:
    """The tensors that `names` lists by key, under those names; JSON descriptions of layers are skipped with a note."""
    roles = roles_of(graph)
    configs = tuple(k for k in names if k.endswith(CONFIG) and checkpoint[k].dtype.kind == "s")
    kept = {key: name for key, name in names.items() if key not in configs}
    tensors = {name: replace(checkpoint[key], name=name, role=roles.get(key, "")) for key, name in kept.items()}
    notes, details = checkpoint.notes, checkpoint.details
    if configs:
        notes += (Note("skipped", "descriptions of layers in JSON", configs, tensors=False),)
    if proto:
        keys = {name: key for key, name in kept.items()}
        text = base64.b64encode(zlib.compress(proto)).decode()
        details = {**details, "object_graph": len(graph.nodes), "graph": {"keys": keys, "proto": text}}
    return replace(checkpoint, tensors=tensors, notes=notes, details=details)


def saved_graph(checkpoint: Checkpoint) -> tuple[bytes, dict[str, str]]:
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


def parse(proto: bytes | None) -> pb.TrackableObjectGraph:
    """Parse the object graph and check that every node it refers to exists."""
    from . import messages_pb2 as pb

    graph = elements.parse(pb.TrackableObjectGraph, proto or b"", "the object graph")
    count = len(graph.nodes)
    for node in graph.nodes:
        slots = [i for s in node.slot_variables for i in (s.original_variable_node_id, s.slot_variable_node_id)]
        if any(not 0 <= i < count for i in [*slots, *(c.node_id for c in node.children)]):
            raise CorruptCheckpoint(f"the object graph refers to a node beyond its {count}")
    return graph


def readable(keys: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names for keys, and the keys that are their own names because their readable names collide."""
    names = {k: _ESCAPE.sub(lambda m: "/" if m[1] == "S" else ".", k.removesuffix(VALUE)) or "/" for k in keys}
    return distinct(names, {k: k for k in names})


def distinct(preferred: Mapping[str, str], others: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """A name for each key: the preferred one, or the other where that is not unique; and the others that are taken."""
    count = Counter(preferred.values())
    names = {k: n if count[n] == 1 else others[k] for k, n in preferred.items()}
    if len(set(names.values())) < len(names):  # a name equal to the other of another key
        names = dict(others)
    return names, tuple(names[k] for k, n in preferred.items() if names[k] != n)


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
