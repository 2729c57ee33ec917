"""The layers of a Keras model in TensorFlow's object graph, in the order in which Keras lists them.

    layer-3, layer_with_weights-1      Keras 2: the fourth of model.layers, the second of those that have weights
    _functional, _operations/3         Keras 3: the fourth of model.layers
    encoder, blocks/0                  attributes of a model that is a class of its own, in the order of creation

A node's children come in the order in which they were attached. The layers' names are those that the variables had.
Specification: tensorflow/core/protobuf/trackable_object_graph.proto, keras/src/backend/tensorflow/trackable.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..keras.order import Layers, Order, derived
from ..keras.parts import Part, in_family

if TYPE_CHECKING:
    from ...checkpoint import Tensor
    from . import messages_pb2 as pb

_LAYER = re.compile(r"layer-(\d{1,9})")
MAX_WRAPPED = 16  # models within models, around the one that has layers; a graph of cycles has no innermost one
DEEPEST = 64  # objects within each other in a layer, and lists within lists; no model is nested so deep
_LISTS = {"_operations", "_functional", "_layers", "layers"}  # what Keras 3 puts between a model and its layers
# lists of variables beside the objects that own them, and what is not part of the model
_ASIDE = re.compile(
    r"keras_api|root|save_counter|_?optimizer|_?(all_|trainable_|non_trainable_)?variables|regularization_losses|"
    r"_?metrics|_compile_metrics|layer_with_weights-\d+|_inbound_nodes|_outbound_nodes|_self_tracked_trackables"
)


class _TooDeep(Exception):
    pass


class _Walk:
    """One pass over a graph; each node belongs to the first node that leads to it."""

    def __init__(self, graph: pb.TrackableObjectGraph, tensors: Mapping[str, Tensor], closed: set[int]) -> None:
        self.graph, self.tensors = graph, tensors  # tensors by checkpoint key
        self.seen = set(closed)
        self.full: dict[str, str] = {}  # variables' names by the tensors' names
        self.integer = {t.name for t in tensors.values() if t.dtype.kind not in "fc"}
        self.held: dict[int, str] = {}  # what `variable` found, as many edges can lead to one node

    def children(self, node: int) -> Iterator[tuple[str, int]]:
        """The children of a node in Keras's order: its layers by their numbers, then its attributes."""
        rows = [
            (c.local_name, c.node_id) for c in self.graph.nodes[node].children if not _ASIDE.fullmatch(c.local_name)
        ]
        layers = sorted((int(found[1]), i) for name, i in rows if (found := _LAYER.fullmatch(name)))
        yield from ((f"layer-{n}", i) for n, i in layers)
        yield from (row for row in rows if not _LAYER.fullmatch(row[0]))

    def variable(self, node: int) -> str:
        """The tensor that a node holds, '' if the node is not a variable or the tensor is not a weight."""
        if node not in self.held:
            self.held[node] = self._variable(node)
        return self.held[node]

    def _variable(self, node: int) -> str:
        for a in self.graph.nodes[node].attributes:
            t = self.tensors.get(a.checkpoint_key)
            if a.name == "VARIABLE_VALUE" and t is not None and not t.role:
                self.full[t.name] = a.full_name
                return t.name
        return ""

    def part(self, node: int, depth: int = 0) -> Part:
        """The object at a node, with everything in it that was not visited before; _TooDeep if that is no model's."""
        if depth > DEEPEST:
            raise _TooDeep
        self.seen.add(node)
        made, own, inner = Part(), list[tuple[str, str]](), list[str]()
        for name, child in self.children(node):
            if child in self.seen:
                continue
            if tensor := self.variable(child):
                self.seen.add(child)
                own.append((name, tensor))
            else:
                part = self.part(child, depth + 1)
                if part.trained or part.fixed or part.parts:
                    made.parts.append(part)
                    inner.append(name)
        made.take(own, whole=self.integer.__contains__, sure=False)
        made.together = bool(in_family(inner))
        return made

    def model(self, node: int = 0) -> int:
        """The model's node: the root, or its only child with weights if the root has none itself."""
        holding = self.holding()
        for _ in range(MAX_WRAPPED):
            rows = [c for c in self.graph.nodes[node].children if c.node_id != node]
            names = {c.local_name for c in self.graph.nodes[node].children}
            below = {i for _, i in self.children(node) if i not in self.seen and i in holding}
            if (
                len(below) != 1
                or "root" in names
                or names & _LISTS
                or any(_LAYER.fullmatch(c.local_name) for c in rows)
            ):
                return node
            only = below.pop()
            if not self.copy().part(only).parts:
                return node  # a layer
            node = only
        return node

    def holding(self) -> set[int]:
        """The nodes below which there are weights: found from the weights upwards, so that each edge counts once."""
        above: dict[int, list[int]] = {}
        for node in range(len(self.graph.nodes)):
            for _, child in self.children(node):
                above.setdefault(child, []).append(node)
        todo = [i for i in above if i not in self.seen and self.variable(i)]
        found, below = set[int](), set(todo)  # nothing is looked for below a variable
        while todo:
            for node in above.get(todo.pop(), ()):
                if node not in found:
                    found.add(node)
                    if node not in self.seen and node not in below:
                        todo.append(node)
        return found

    def copy(self) -> _Walk:
        return _Walk(self.graph, self.tensors, self.seen)

    def layers(self, node: int, depth: int = 0) -> Iterator[tuple[str, Part]]:
        """The layers of a model: its objects, and those in its lists; _TooDeep as of `part`."""
        if depth > DEEPEST:
            raise _TooDeep
        self.seen.add(node)
        for name, child in self.children(node):
            if child in self.seen or self.variable(child):
                continue
            numbered = all(c.local_name.isdigit() for c in self.graph.nodes[child].children)
            if name in _LISTS or (numbered and self.graph.nodes[child].children):
                yield from self.layers(child, depth + 1)
            else:
                yield name, self.part(child)


def of_graph(graph: pb.TrackableObjectGraph, tensors: Mapping[str, Tensor], closed: set[int]) -> Order | None:
    """The layers of the model in a graph; None if some of its weights are in no layer, or too deep in one.

    tensors: by checkpoint key. closed: nodes that are optimizers.
    """
    if not graph.nodes:
        return None
    walk = _Walk(graph, tensors, closed)
    try:
        model = walk.model()
        rows = [(name, part) for name, part in walk.layers(model) if part.listed()]
    except _TooDeep:
        return None
    left = dict.fromkeys(child for _, child in walk.children(model) if child not in walk.seen)
    top = [t for child in left if (t := walk.variable(child))]
    shapes = {t.name: t.shape for t in tensors.values()}
    found = derived(
        _named(rows, walk.full), [part for _, part in rows], shapes, "from the object graph", trained_known=False
    )
    if top:
        found.layers.append(("top_level_model_weights", [(n, n + ":0") for n in top]))
    weights = {t.name for t in tensors.values() if not t.role}
    return found if rows and weights <= set(found.names()) else None


def _named(rows: list[tuple[str, Part]], full: Mapping[str, str]) -> Layers:
    """Layers under the first segment of their variables' names, if those are unique."""
    heads = {n.split("/")[0] for n in full.values()}
    level = 1 if len(heads) == 1 and all(n.count("/") > 1 for n in full.values()) else 0
    called = [{[*full[n].split("/"), ""][level] for n in part.listed()} for _, part in rows]
    names = [words.pop() if len(words) == 1 else "" for words in called]
    count = Counter(names)
    own = [name if name and count[name] == 1 else f"{i}_{rows[i][0]}" for i, name in enumerate(names)]
    return [(name, [(n, n + ":0") for n in part.listed()]) for name, (_, part) in zip(own, rows, strict=True)]
