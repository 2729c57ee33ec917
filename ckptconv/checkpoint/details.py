"""Details that a format knows about a checkpoint besides its tensors: for inspection, passes, and its own writer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, cast


class Move(NamedTuple):
    """The origin of a tensor: the rule that renamed or made it, '' if none did, and its names in the source.

    After several steps, `rule` joins all rules by "then"; the names are those before the first step.
    """

    rule: str
    sources: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "from": list(self.sources)}


def compose_moves(first: Mapping[str, Move], then: Mapping[str, Move]) -> dict[str, Move]:
    """Compose the moves of two steps, starting from the names in the source. Every step that renames ends with this.

    first: the moves so far; other names are still those of the source. then: the moves of the new step.
    """
    out, rules = {}, dict[str, str]()  # one string per label: labels may be long, and many names share one
    for name, move in then.items():
        before = [first.get(n) or Move("", (n,)) for n in move.sources]
        earlier = " and ".join(dict.fromkeys(m.rule for m in before if m.rule))
        rule = ", then ".join(filter(None, (earlier, move.rule)))
        out[name] = Move(rules.setdefault(rule, rule), tuple(dict.fromkeys(n for m in before for n in m.sources)))
    return out


State = Literal["plain", "image", "flattened", "unknown"]


class LayerInput(NamedTuple):
    """The input kind of a tensor's layer, from the config of a Keras model (formats/keras/naming.py).

    Torch has the features of plain inputs and images in the same order, but those of a flattened image (h w c in Keras)
    as c h w. height, width: of the image, 0 if not known. into_image: the layer's outputs are reshaped to an image.
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
    averages: list[str]  # the other entries that are moving averages
    average: bool  # whether the chosen entry is one


class ObjectGraph(TypedDict):
    """The object graph of a TensorFlow checkpoint. keys: by tensor; proto: TrackableObjectGraph, zlib, Base64."""

    keys: dict[str, str]
    proto: str


class Details(TypedDict, total=False):
    """JSON values; a format gives the keys that it knows."""

    # pickles and .npy of objects: values that are not tensors, by dotted path; HDF5: attributes, by that of their owner
    values: dict[str, Any]
    config: dict[str, Any]  # the config.json that a converter makes for its target,
    lacking: list[str]  # and the keys that it could not fill in
    settings: dict[str, Any]  # Megatron: the program's arguments
    entry: Entry
    pieces: dict[str, Any]  # PyTorch: of sparse and quantised tensors, by name
    shards: int | dict[str, int]  # the number of files; for an index, the number of tensors by file
    endianness: str  # of a TensorFlow bundle
    object_graph: int  # nodes of a TensorFlow object graph
    graph: ObjectGraph
    tags: list[str]  # of a SavedModel
    trainable: list[str]  # of a SavedModel
    kinds: dict[str, str]  # the class of the layer that a tensor belongs to, in snake case
    inputs: dict[str, LayerInput]  # Keras: the input kind of a tensor's layer, if the model's config tells it
    layers: list[Any]  # Keras: [layer, [[tensor, weight], ...]] in loading order
    paths: dict[str, str]  # Keras 3: the path in the file, by tensor
    keys: dict[str, list[list[Any]]]  # JAX: tree paths that names do not determine, as [key, kind of node]
    ranks: str  # the name of the file of rank 0, if the checkpoint joins the tensors of several ranks
    names: dict[str, str]  # Keras 3: the name of a layer, by its path


BY_TENSOR = ("kinds", "inputs", "keys")  # details by tensor, which follow the tensors


def named(details: Details, names: Iterable[str], new: Callable[[str], str]) -> Details:
    """Return the details with those of the tensors `names` under their new names, for steps that rename.

    Details of other names are left out, since another tensor may get such a name.
    """
    names = list(names)
    made: dict[str, Any] = {}
    for key in BY_TENSOR:
        if key in details:
            own = cast("dict[str, Any]", details)[key]
            made[key] = {new(n): own[n] for n in names if n in own}
    return cast("Details", {**details, **made})


def joined(several: Iterable[tuple[Container[str], Details]]) -> Details:
    """Merge the details by tensor of several checkpoints with different names. several: names and details of each."""
    made: dict[str, dict[str, Any]] = {}
    for names, details in several:
        for key in BY_TENSOR:
            if key in details:
                own = cast("dict[str, Any]", details)[key]
                made.setdefault(key, {}).update({n: value for n, value in own.items() if n in names})
    return cast("Details", made)
