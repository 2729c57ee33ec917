"""The layers of a model, from the paths of a Keras 3 file or from names alone.

    layers/dense_1/vars/0               the second Dense in the list of layers: its position among Dense layers is known
    encoder/blocks/block/norm/vars/0    attributes: sorted by name in the file, in the order of creation in the model
    encoder/block_1/kernel              a name: in the order of its source

config.json defines the order of the layers that it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from . import naming
from .order import Layers, Order, derived
from .parts import Part, doubts, in_family, natural, numbered


@dataclass
class _Node:
    """A group of a file: own variables as (name of the variable, name of the tensor), and the groups in it."""

    path: str = ""
    weights: list[tuple[str, str]] = field(default_factory=list)
    below: dict[str, _Node] = field(default_factory=dict)

    def at(self, words: Iterable[str]) -> _Node:
        here = self
        for word in words:
            path = f"{here.path}/{word}" if here.path else word
            here = here.below.setdefault(word, _Node(path))
        return here

    def first(self, place: Mapping[str, int]) -> int:
        """The position in the file of the first weight in the group."""
        own = [place[n] for _, n in self.weights]
        return min([*own, *(b.first(place) for b in self.below.values())], default=0)


@dataclass(frozen=True)
class Model:
    """The objects of a Keras 3 file, by path: their positions in config.json, which are frozen, which have `vars`.

    place: the position of each tensor in the file; integer: the tensors that hold integers.
    """

    rank: Mapping[str, int]
    frozen: set[str]
    objects: set[str]
    place: Mapping[str, int]
    integer: set[str]

    def part(self, node: _Node, series: str) -> Part:
        made = Part(series, frozen=node.path in self.frozen)
        made.take(node.weights, whole=self.integer.__contains__, sure=True)  # vars/0, 1, 2: as the layer lists them
        made.parts = [part for _, part in self.inside(node)]
        made.together = bool(in_family(node.below))
        return made

    def inside(self, node: _Node) -> list[tuple[_Node, Part]]:
        """The objects in a group in their order; a group that is only a list of objects is replaced by them."""
        flat: list[tuple[_Node, str]] = []
        family = in_family(node.below)
        places: dict[str, int] = {}  # in the family, by path
        for word, below in node.below.items():
            places |= {b.path: family.get(word, 0) for b in (below, *below.below.values())}
            if below.path in self.objects or below.weights:
                flat.append((below, "" if family else word))
            else:  # a list, whose members are called by their classes and numbered
                known = all(b.path in self.rank for b in below.below.values())
                flat += [(b, f"{word}/" + ("" if known else numbered(w)[0])) for w, b in below.below.items()]
        if family:
            flat.sort(key=lambda pair: places[pair[0].path])
        else:
            flat.sort(key=lambda pair: self._key(pair[0]))
        return [(n, self.part(n, series)) for n, series in flat]

    def _key(self, node: _Node) -> tuple[object, ...]:
        word = node.path.rpartition("/")[2]
        return (self.rank.get(node.path, -1), node.first(self.place), natural(word))


def of_paths(paths: Mapping[str, str], model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Order:
    """The layers of a model whose variables are at these paths, with the tensors' names."""
    root = _Node()
    for path, name in paths.items():
        owner, _, _ = path.rpartition("vars/")
        root.at(w for w in owner.split("/") if w).weights.append((name.rpartition("/")[2], name))
    parts = model.inside(root)
    layers: Layers = []
    taken: set[str] = set()
    for node, part in parts:
        words = {name.split("/")[0] for name in part.listed()}
        label = words.pop() if len(words) == 1 else node.path
        label = node.path if label in taken else label
        taken.add(label)
        layers.append((label, [(n, n) for n in part.listed()]))
    if root.weights:
        layers.append((naming.TOP, [(n, n) for _, n in root.weights]))
    found = [part for _, part in parts]
    return derived(layers, found, shapes, "by their places in the file", trained_known=bool(model.rank))


def of_names(
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    whole: Callable[[str], bool],
    *,
    ordered: bool,
    given: bool,
) -> Order:
    """The layers derived from names alone: the first component, or the second if all names share the first.

    ordered: the names are in the order of the model, not sorted. given: a person has put them in order.
    """
    heads = {n.split("/")[0] for n in names}
    level = 1 if len(heads) == 1 and all(n.count("/") > 1 for n in names) else 0
    if level and in_family({n.split("/")[1] for n in names}):
        level = 0  # the one layer of a model, such as an attention
    root = _Node()
    for name in names:
        words = name.split("/")
        root.at(words[level:-1] or words[level:]).weights.append((words[-1], name))
    made = [(word, _named(node, word, whole, ordered)) for word, node in _sorted(root, ordered)]
    layers: Layers = [(word, [(n, n + ":0") for n in part.listed()]) for word, part in made]
    source = "by their names and the order of the source" if ordered else "by their names alone"
    parts = [part for _, part in made]
    return Order(layers, source, doubts(parts, shapes, trained_known=given))


def _sorted(node: _Node, ordered: bool) -> list[tuple[str, _Node]]:
    if family := in_family(node.below):
        return sorted(node.below.items(), key=lambda item: family[item[0]])
    return list(node.below.items()) if ordered else sorted(node.below.items(), key=lambda item: natural(item[0]))


def _named(node: _Node, word: str, whole: Callable[[str], bool], ordered: bool) -> Part:
    made = Part("" if ordered or naming.place(word) else word)
    made.take(node.weights, whole=whole, sure=ordered)
    made.parts = [_named(below, inner, whole, ordered) for inner, below in _sorted(node, ordered)]
    made.together = bool(in_family(node.below))
    return made
