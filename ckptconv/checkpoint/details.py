"""What a format knows about a checkpoint beyond its tensors: for inspection, for passes, and for its own writer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, cast


class Move(NamedTuple):
    """Where a tensor came from: the rule that renamed or made it, '' if none did, and its names in the source.

    Of several steps, `rule` has those of all, joined by "then"; the names are those before the first.
    """

    rule: str
    sources: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "from": list(self.sources)}


def compose_moves(first: Mapping[str, Move], then: Mapping[str, Move]) -> dict[str, Move]:
    """The moves of one step after another, from the names of the source on. Every step that renames ends with this.

    first: the moves so far; a name that is not there is still that of the source. then: those of the new step.
    """
    out, rules = {}, dict[str, str]()  # each label once: many names share one, which may be long
    for name, move in then.items():
        before = [first.get(n) or Move("", (n,)) for n in move.sources]
        earlier = " and ".join(dict.fromkeys(m.rule for m in before if m.rule))
        rule = ", then ".join(filter(None, (earlier, move.rule)))
        out[name] = Move(rules.setdefault(rule, rule), tuple(dict.fromkeys(n for m in before for n in m.sources)))
    return out


State = Literal["plain", "image", "flattened", "unknown"]


class LayerInput(NamedTuple):
    """What the layer of a tensor takes, as the config of a Keras model tells (formats/keras/naming.py).

    Torch has the features of what is plain, or an image, in the same order, and those of a flattened image (Keras:
    h w c) as c h w. height, width: of the image, 0 if they are not known. into_image: the layer's outputs become one.
    """

    state: State
    height: int = 0
    width: int = 0
    into_image: bool = False

    @property
    def follows_flatten(self) -> bool:
        """Whether the features are, or may be, those of a flattened image."""
        return self.state in ("flattened", "unknown")


class Entry(TypedDict, total=False):
    """The entries of a nested PyTorch checkpoint. name: the entry that is the model, '' if none was chosen."""

    name: str
    beside: list[str]  # the other entries
    averages: list[str]  # those of them that are moving averages
    average: bool  # whether the chosen one is


class ObjectGraph(TypedDict):
    """The object graph of a TensorFlow checkpoint. keys: by tensor; proto: TrackableObjectGraph, zlib, Base64."""

    keys: dict[str, str]
    proto: str


class Details(TypedDict, total=False):
    """JSON values; a format gives the keys that it knows."""

    attributes: dict[str, dict[str, Any]]  # HDF5: by the path of a group or dataset
    values: dict[str, Any]  # pickles and .npy of objects: values that are not tensors, by dotted path
    config: dict[str, Any]  # the config.json that a converter makes for its target,
    lacking: list[str]  # and what is not known of it
    settings: dict[str, Any]  # Megatron: what the program was started with
    entry: Entry
    pieces: dict[str, Any]  # PyTorch: of sparse and quantised tensors, by name
    shards: int | dict[str, int]  # how many files; for an index, how many tensors each file has
    endianness: str  # of a TensorFlow bundle
    object_graph: int  # nodes of a TensorFlow object graph
    graph: ObjectGraph
    tags: list[str]  # of a SavedModel
    trainable: list[str]  # of a SavedModel
    kinds: dict[str, str]  # the class of the layer that a tensor belongs to, in snake case
    inputs: dict[str, LayerInput]  # Keras: what the layer of a tensor takes, if the model's config tells it
    layers: list[Any]  # Keras: [layer, [[tensor, weight], ...]] in the order in which it loads
    paths: dict[str, str]  # Keras 3: the path in the file, by tensor
    keys: dict[str, list[list[Any]]]  # JAX: paths in the tree that names do not determine: [key, kind of node]
    ranks: str  # the name of the file of rank 0, where the tensors of several ranks are in one checkpoint
    names: dict[str, str]  # Keras 3: the name of a layer, by its path


BY_TENSOR = ("kinds", "inputs", "keys")  # what is about single tensors, and goes with them


def named(details: Details, names: Iterable[str], new: Callable[[str], str]) -> Details:
    """What is known of the tensors `names`, under their new names. Every step that renames in front of others needs it.

    What is said of names that are no tensors any more is left out: another tensor may come to be called so.
    """
    names = list(names)
    made: dict[str, Any] = {}
    for key in BY_TENSOR:
        if key in details:
            own = cast("dict[str, Any]", details)[key]
            made[key] = {new(n): own[n] for n in names if n in own}
    return cast("Details", {**details, **made})


def joined(several: Iterable[tuple[Container[str], Details]]) -> Details:
    """What is known of the tensors of several checkpoints whose names differ. several: names and details of each."""
    made: dict[str, dict[str, Any]] = {}
    for names, details in several:
        for key in BY_TENSOR:
            if key in details:
                own = cast("dict[str, Any]", details)[key]
                made.setdefault(key, {}).update({n: value for n, value in own.items() if n in names})
    return cast("Details", made)
