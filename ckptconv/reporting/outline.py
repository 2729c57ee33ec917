"""The content of a checkpoint for display: sorted rows, totals, a tree folded by pattern, and its graph's variables.

    encoder                                   48 tensors  85,054,464
      layer_{0..11}
        kernel          x12  float32 768x768

Pure: nothing here reads a tensor.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from ..checkpoint import Checkpoint, Tensor, counted, in_known, in_size
from ..dtypes import DTYPES
from ..errors import UsageError
from ..messages import did_you_mean, fold
from ..rules import passes
from ..rules.passes import separator

# The keys of --sort; sizes and counts sort in descending order, all others in ascending order.
KEYS: dict[str, Callable[[Tensor], Any]] = {
    "name": lambda t: natural(t.name),
    "size": lambda t: -t.nbytes,
    "parameters": lambda t: -t.count,
    "dtype": lambda t: t.dtype.name,
    "shape": lambda t: t.shape,
    "role": lambda t: t.role,
}
_NUMBER = re.compile(r"(\d{1,18})")
MAX_DEPTH = 64  # scopes of the tree; deeper ones are joined in one line


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """layer_2 before layer_10."""
    return tuple((0, int(w), "") if w.isdecimal() else (1, 0, w) for w in _NUMBER.split(name))


def ordered(tensors: Iterable[Tensor], key: str) -> list[Tensor]:
    """Sort by a column; `-key` reverses the order. UsageError lists the columns."""
    word = str(key).removeprefix("-")
    if word not in KEYS:
        raise UsageError(f"sort= takes a column, not {key!r}{did_you_mean(word, KEYS, 'columns')}")
    return sorted(tensors, key=KEYS[word], reverse=key.startswith("-"))


def size_of(tensors: Iterable[Tensor]) -> str:
    """The size of tensors, as far as it is known."""
    return in_size(tensors)


class Totals(NamedTuple):
    """Counts over a checkpoint; tied tensors count once."""

    tensors: int
    bytes: int
    parameters: int  # of weights
    all: int  # of weights, slots and the rest
    roles: dict[str, int]  # tensors by role
    dtypes: dict[str, int]  # bytes by dtype

    @property
    def size(self) -> str:
        """The number of tensors and their size, as far as it is known."""
        return counted(self.tensors, in_known(self.bytes, strings="string" in self.dtypes))

    @property
    def others(self) -> str:
        """What is there beside the weights: 74 optimizer slots, 1 step counter."""
        return passes.in_roles(self.roles)


def totals(checkpoint: Checkpoint) -> Totals:
    """Sum up a checkpoint."""
    tied = {n for group in checkpoint.ties for n in group[1:]}
    kinds = Counter((t.dtype.name, t.shape, t.role) for n, t in checkpoint.tensors.items() if n not in tied)
    dtypes = dict[str, int]()
    weights = every = 0
    for (name, shape, role), many in kinds.items():
        count = many * prod(shape)
        every += count
        weights += 0 if role else count
        dtypes[name] = dtypes.get(name, 0) + count * DTYPES[name].itemsize
    roles: Counter[str] = Counter(t.role for t in checkpoint.tensors.values())
    return Totals(len(checkpoint), sum(dtypes.values()), weights, every, dict(roles), dtypes)


# --- folding ----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Tensors with the same dtype, shape and role whose names differ only in numbers."""

    text: str
    tensors: tuple[Tensor, ...]


def folded(tensors: Iterable[Tensor]) -> list[Line]:
    """Fold tensors by pattern, in the order of their first appearance."""
    alike: dict[tuple[str, tuple[int, ...], str], list[Tensor]] = {}
    place = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.dtype.name, t.shape, t.role), []).append(t)
        place[t.name] = i
    lines = []
    for group in alike.values():
        by_name = {t.name: t for t in group}
        lines += [Line(f.text, tuple(by_name[n] for n in f.names)) for f in fold(by_name)]
    return sorted(lines, key=lambda line: place[line.tensors[0].name])


@dataclass
class Node:
    """A scope of the tree: its own lines and its inner scopes, in order of appearance."""

    text: str
    inner: dict[str, Node] = field(default_factory=dict)
    line: Line | None = None

    def lines(self) -> Iterator[Line]:
        if self.line:
            yield self.line
        for node in self.inner.values():
            yield from node.lines()


def tree(tensors: Sequence[Tensor]) -> Node:
    """Fold, and arrange the lines in a tree of scopes; a scope with a single child is joined with it."""
    cut = re.compile(re.escape(separator([t.name for t in tensors])) + r"(?![^{}]*\})")
    root = Node("")
    for line in folded(tensors):
        at = root
        for word in cut.split(line.text, MAX_DEPTH):
            at = at.inner.setdefault(word, Node(word))
        if at.line:  # the same words in another dtype or shape
            at = root.inner.setdefault(f"{line.text}\0{len(root.inner)}", Node(line.text))
        at.line = line
    return _joined(root, cut.pattern[0] if cut.pattern[0] != "\\" else ".")


def _joined(node: Node, sep: str) -> Node:
    for word, child in node.inner.items():
        while child.line is None and len(child.inner) == 1:
            (only,) = child.inner.values()
            child = Node(f"{child.text}{sep}{only.text}", only.inner, only.line)
        node.inner[word] = _joined(child, sep)
    return node


# --- the graph --------------------------------------------------------------------------------------------------


class GraphVariables(NamedTuple):
    """The variables of a graph or configuration, compared with the tensors of the checkpoint."""

    variables: tuple[str, ...]
    missing: tuple[str, ...]  # in the graph, not in the checkpoint
    unknown: tuple[str, ...]  # in the checkpoint, not in the graph
    trained: tuple[str, ...]
    fixed: tuple[str, ...]  # weights that are not trained, according to the graph
    collections: dict[str, int]


def graph(checkpoint: Checkpoint) -> GraphVariables | None:
    """Compare the tensors with the variables of a graph (`details["collections"]`, `details["trainable"]`) or of a
    Keras configuration; None if there is neither."""
    listed: Mapping[str, Sequence[str]] = checkpoint.details.get("collections", {})
    trained = tuple(checkpoint.details.get("trainable", ()))
    if not listed and not trained:
        return _configured(checkpoint)
    tensors = checkpoint.tensors
    variables = tuple(dict.fromkeys([n for names in listed.values() for n in names] + list(trained)))
    present = [n for n in variables if n in tensors] if listed else list(tensors)
    known, trainable = set(variables), set(trained)
    return GraphVariables(
        variables,
        missing=tuple(n for n in variables if n not in tensors),
        unknown=tuple(n for n in tensors if n not in known) if "variables" in listed else (),
        trained=trained,
        fixed=tuple(n for n in present if not tensors[n].role and n not in trainable),
        collections={name: len(names) for name, names in listed.items()},
    )


def _configured(checkpoint: Checkpoint) -> GraphVariables | None:
    """The weights of a Keras configuration's layers, trainable and frozen."""
    text = checkpoint.metadata.get("config") or checkpoint.metadata.get("model_config") or ""
    try:
        layers = dict(_layers(json.loads(text))) if text else {}
    except (ValueError, RecursionError):
        return None
    if not layers:
        return None
    weights = [n for n, t in checkpoint.tensors.items() if not t.role]
    scopes = {n: ["/".join(n.split("/")[:i]) for i in range(1, n.count("/") + 1)] for n in weights}
    fixed = tuple(n for n in weights if any(layers.get(s) is False for s in scopes[n]))
    unknown = tuple(n for n in weights if not any(s in layers for s in scopes[n]))
    trained = tuple(n for n in weights if n not in set(fixed) and n not in set(unknown))
    return GraphVariables((), (), unknown, trained, fixed, {"layers": len(layers)})


def _layers(config: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """The paths of the layers of a Keras configuration, and whether each is trainable."""
    inner = config.get("config") if isinstance(config, dict) else None
    rows = inner.get("layers") if isinstance(inner, dict) else inner
    for row in rows if isinstance(rows, list) else ():
        layer = row.get("config") if isinstance(row, dict) else None
        name = layer.get("name") if isinstance(layer, dict) else None
        if isinstance(layer, dict) and isinstance(name, str):
            yield path + name, layer.get("trainable") is not False
            yield from _layers(row, f"{path}{name}/")


__all__ = ["KEYS", "GraphVariables", "Line", "Node", "Totals", "folded", "graph", "ordered", "totals", "tree"]
