"""The objects of a model as a tree, and the order in which Keras lists their weights.

For every layer, a legacy file lists the trained weights of all objects in it, and then the others:

    block                     trained            not trained
      own weights             scale
      dense                   kernel, bias
      batch_normalization     gamma, beta        moving_mean, moving_variance
    -> scale, kernel, bias, gamma, beta, moving_mean, moving_variance

An object's own weights precede those of the objects inside, in the order of creation, which naming.py derives from
their names. An order that no file states is a guess; `doubts` finds tensors of equal shapes that a wrong guess would
exchange without an error.
Source: `_legacy_weights` in keras/src/legacy/saving/legacy_h5_format.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import naming

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Part:
    """An object: tensor names of its own weights in order, and the objects in it in order.

    series: the order of siblings within a series is certain; siblings of different series may be exchanged.
    unsure: own weights whose position is guessed. frozen: nothing in the object is trained. together: the objects in it
    belong to one class of Keras, such as the two directions of Bidirectional, and are frozen with it.
    """

    series: str = ""
    trained: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    frozen: bool = False
    together: bool = False

    def take(self, weights: Sequence[tuple[str, str]], *, whole: Callable[[str], bool], sure: bool) -> None:
        """Add the object's own weights, given as (variable's name, tensor's name) in the best order known.

        whole: whether a tensor holds integers, which are never trained. sure: the given order is that of Keras.
        """
        known = naming.created([leaf for leaf, _ in weights])
        if known is not None:
            weights = [w for _, w in sorted(zip(known, weights, strict=True))]
        elif len(weights) > 1 and not sure:
            self.unsure += [name for _, name in weights]
        for leaf, name in weights:
            (self.fixed if naming.bare(leaf) in naming.FIXED or whole(name) else self.trained).append(name)

    def split(self) -> tuple[list[str], list[str]]:
        """All weights in the object: the trained ones, and the others."""
        trained, fixed = list(self.trained), list(self.fixed)
        for part in self.parts:
            more, rest = part.split()
            trained += more
            fixed += rest
        if self.frozen:
            return [], [*self.trained, *self.fixed, *(n for p in self.parts for n in p.listed())]
        return trained, fixed

    def listed(self) -> list[str]:
        """All weights in the object in the order of a legacy file."""
        trained, fixed = self.split()
        return trained + fixed


def doubts(parts: Sequence[Part], shapes: Shapes, *, trained_known: bool) -> tuple[tuple[str, ...], ...]:
    """Groups of tensors of equal shapes, which a wrong guess of the order would exchange without an error.

    trained_known: whether the source says what is trained, or a person has put the names in order.
    """
    frozen = () if trained_known else _frozen(parts, shapes)
    return tuple(dict.fromkeys((*_alike(parts, shapes), *frozen)))


def _alike(parts: Sequence[Part], shapes: Shapes) -> Iterator[tuple[str, ...]]:
    """Groups of tensors of equal shapes among the parts, and in each part those whose order is unsure."""
    alike: dict[tuple[tuple[int, ...], ...], list[Part]] = {}
    for part in parts:
        if names := part.listed():
            alike.setdefault(tuple(shapes[n] for n in names), []).append(part)
    for group in alike.values():
        if len({p.series for p in group}) > 1:
            yield tuple(p.listed()[0] for p in group)
    for part in parts:
        own: dict[tuple[int, ...], list[str]] = {}
        for name in (*part.trained, *part.fixed):
            own.setdefault(shapes[name], []).append(name)
        unsure = set(part.unsure)
        yield from (tuple(names) for names in own.values() if len(names) > 1 and unsure & set(names))
        yield from _alike(part.parts, shapes)


def _frozen(parts: Sequence[Part], shapes: Shapes) -> Iterator[tuple[str, ...]]:
    """Groups of tensors of equal shapes in one layer that change places if some objects in it are not trained."""
    for part in parts:
        alike: dict[tuple[int, ...], list[tuple[int, str]]] = {}
        for i, unit in enumerate(_units(part)):
            for name in unit:
                alike.setdefault(shapes[name], []).append((i, name))
        for group in alike.values():
            if len({i for i, _ in group}) > 1:
                yield tuple(name for _, name in group)


def _units(part: Part) -> Iterator[list[str]]:
    """The weights of a layer by the objects in it that may be frozen by themselves."""
    if part.together or not part.parts:
        yield part.listed()
        return
    yield [*part.trained, *part.fixed]
    for inner in part.parts:
        yield from _units(inner)


def guessed(parts: Sequence[Part]) -> bool:
    """Whether the order of these siblings, or anything in them, is guessed."""
    return len({p.series for p in parts if p.listed()}) > 1 or any(p.unsure or guessed(p.parts) for p in parts)


def in_family(words: Iterable[str]) -> dict[str, int]:
    """Positions of siblings that belong to one class of Keras, such as query, key and value; {} unless all do."""
    found = {w: naming.place(w) for w in words}
    families = {place[0] for place in found.values() if place}
    if None in found.values() or len(families) != 1:
        return {}
    return {w: place[1] for w, place in found.items() if place}


def numbered(word: str) -> tuple[str, int]:
    """Split a default name of Keras into base and number: dense_12 -> dense, 12; the first has no number."""
    found = re.fullmatch(r"(.*?)_(\d{1,9})", word)
    return (found[1], int(found[2])) if found else (word, 0)


def natural(word: str) -> list[tuple[str, int]]:
    """A key that sorts 2 before 10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d{0,18})", word)]
