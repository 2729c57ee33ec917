"""The layer that a weight of a legacy file belongs to, of those that the model's config lists: its class and its image.

    layer_names  enc      weight_names  fc/kernel:0, sub/fc/kernel:0       enc is a model, and so is enc/sub

A weight's name ends with the names of its layer and of some of the models around it, which are those below the layer of
the model itself that lists it. Of several layers, the one is taken whose path and the weight's have most names at their
ends in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ...checkpoint import details
from . import flow, images, naming

MAX_NAMES = 8  # at the end of a path, which are compared
MAX_OWNERS = 20  # that one path may mean: each weight is compared with all
WAYS = ("", "forward_", "backward_")  # of a Bidirectional


class Owner(NamedTuple):
    """The class of a layer, as in `Listed`, and height and width of the image that it takes flattened."""

    kind: str
    image: tuple[int, int] | None


class Table:
    """The layers below one of the model's own, by the names at the ends of their paths."""

    def __init__(self, rows: Iterable[tuple[tuple[str, ...], Owner]]) -> None:
        self._rows = list(rows)
        self._known: dict[tuple[str, ...], dict[Owner, None]] = {}
        for path, owner in self._rows:
            for n in range(1, min(len(path), MAX_NAMES) + 1):
                some = self._known.setdefault(path[-n:], {})
                if len(some) < MAX_OWNERS:
                    some[owner] = None

    def find(self, path: Sequence[str]) -> list[Owner]:
        """Those that share most names with a path; several if they cannot be told apart."""
        path = tuple(path[-MAX_NAMES:])
        return next((list(o) for n in range(len(path)) if (o := self._known.get(path[n:]))), [])

    @cached_property
    def alone(self) -> list[Owner]:
        """The layer itself, if it is of a class of Keras that has all its weights itself, whatever they are called."""
        owners = dict.fromkeys(owner for _, owner in self._rows)
        own = [o for o in owners if _recurrent(o) or details.bare(o.kind) in naming.VARIABLES]
        return own if len(owners) == 1 else []


def owners(config: Any, layers: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> dict[str, Owner]:
    """The layer of each tensor, if it can be found. layers: as in `details["layers"]`."""
    rows: dict[str, list[tuple[tuple[str, ...], Owner]]] = {}
    for path, owner in _listed(config, images.behind(config)):
        rows.setdefault(path[0], []).append((path, owner))
    tables: dict[str, Table] = {}
    found: dict[str, dict[Owner, None]] = {}
    for layer, weights in layers:
        key = layer if layer in rows else ""  # of the model itself, or a name that the config lacks
        if key not in tables:
            tables[key] = Table(rows[key] if key else (row for several in rows.values() for row in several))
        for tensor, weight in weights:
            at = [layer, *weight.rsplit("/", MAX_NAMES + 1)[:-1]]
            inside = [o for o in tables[key].find(at[:-1]) if _recurrent(o)]  # lstm/lstm_cell/kernel
            several = tables[key].find(at) or inside or (tables[key].alone if key else []) or _within(tables[key], at)
            found.setdefault(tensor, {}).update(dict.fromkeys(several))
    return {tensor: one for tensor, several in found.items() if (one := _one(list(several)))}


def _listed(
    config: Any, known: images.Known, above: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Owner]]:
    """The layers with their paths, and what is inside wrappers."""
    if depth > naming.MAX_DEPTH:
        return
    for _, layer, row in naming.rows(config, known):
        path = (*above, layer.name if layer else "")
        if layer:
            kind, called = naming.inside(layer.kind, layer.config)
            for name in ((), *((way + called,) for way in WAYS if called)):
                yield (*path, *name), Owner(kind, layer.image)
        yield from _listed(row, known, path, depth + 1)


def _recurrent(owner: Owner) -> bool:
    return details.bare(owner.kind).removesuffix("_cell") in naming.RECURRENT


def _within(table: Table, path: Sequence[str]) -> list[Owner]:
    """Of what is in a layer that says nothing of its insides: its class by its name, if the inputs of that are such."""
    kind = naming.unnumbered(path[-1])
    above: list[Owner] = next((o for n in range(1, len(path)) if (o := table.find(path[:-n]))), [])
    begins = {details.prefix(o.kind) for o in above} & {*flow.BEHIND}
    return [Owner(("maybe_" if begins == {"maybe_"} else "mixed_") + kind, None)] if begins else []


def _one(several: Sequence[Owner]) -> Owner | None:
    """What is known of a tensor that belongs to one of these or to all; None if that is not even the class."""
    if len(several) < 2:
        return several[0] if several else None
    classes = {details.bare(o.kind) for o in several}
    if len(classes) > 1:
        return None
    kind, sizes = classes.pop(), {o.image for o in several}
    begins = {details.prefixes(o.kind) for o in several}
    if len({b.removesuffix("shaped_") for b in begins}) == 1:  # what becomes of the outputs of one is in doubt for all
        return Owner(max(begins, key=len) + kind, sizes.pop() if len(sizes) == 1 else None)
    return Owner(("mixed_" if any(b.startswith("mixed_") for b in begins) else "maybe_") + kind, None)
