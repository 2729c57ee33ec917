"""Assign tensors to rules, in groups that belong together. Pure.

A rule with several sources takes all of them or none: a tensor whose partner is missing is offered to the next rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint
from ..errors import LayoutError, UsageError
from .templates import MAX_NAME, any_taken

if TYPE_CHECKING:
    from .converter import Converter, Rewrite, Rule
    from .templates import Domain

Place = tuple[int, ...]  # the index of a tensor along each axis that its template stacks

MAX_AGAIN = 8  # passes of one replacement over a name in which its matches overlap


class Group(NamedTuple):
    """The tensors of one application of a rule: for each source template, names by index on the stacked axes."""

    rule: int
    values: dict[str, str]
    members: tuple[dict[Place, str], ...]
    at: int  # position of the first name: targets keep the order of their sources
    shapes: tuple[tuple[int, ...], ...] = ()  # of the targets, if the metadata records them because nothing else does
    spelled: tuple[tuple[str, ...], ...] = ()  # all names of each target, if the metadata records them


@dataclass
class Assignment:
    groups: list[Group] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # why a rule that fits the name did not take it


class Names:
    """The names of a checkpoint as rules see them, after rewrites; for an inverse, the names that the sources had."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
        self.converter, self.checkpoint = converter, checkpoint
        self._known = {n: n for n in (checkpoint if names is None else names)}
        for step in converter.rewrites:
            _rewritten(step, self._known)

    def canonical(self, name: str) -> str:
        return self._known[name]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by the names that conditions and sizes refer to: those of the forward converter's source."""
        out: dict[str, tuple[int, ...]] = {}
        for name, tensor in self.checkpoint.tensors.items():
            if self.converter.forward:
                out.update(_before(self.converter, name, tensor.shape))
            else:
                out[self.canonical(name)] = tensor.shape
        return out


def _rewritten(step: Rewrite, known: dict[str, str]) -> None:
    """Make one replacement everywhere in all names, repeatedly until nothing changes."""
    if step.given and not any_taken(step.given, {}, known.values()):
        return
    pattern, order = step.compiled
    found = {name: text for name, text in known.items() if step.literal in text and len(text) <= MAX_NAME}
    if step.one:
        group = order.index(step.one) + 1
        if len({m[group] for text in found.values() for m in pattern.finditer(text)}) != 1:
            return
    for name, text in found.items():
        for _ in range(1 if step.anchored else MAX_AGAIN):
            new = pattern.sub(lambda m: step.target.render({c: m[i + 1] for i, c in enumerate(order)}), text)
            if new == text:
                break
            if len(new) > MAX_NAME:
                raise UsageError(f"rewrite {step.source.text!r}: makes a name of more than {MAX_NAME} characters")
            text = new
        known[name] = text


def _before(inverse: Converter, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes that a tensor may have had, as far as its name, rank and shape determine them."""
    for m in inverse.matcher.matches(name):
        rule, _ = _origin(inverse, m.number)
        values = translated(rule, m.values, inverse.separators)
        alone = len(rule.sources) == len(rule.targets) == 1 and not rule.targets[0].stacks
        if values is not None and alone and (not rule.wanted[0] or len(shape) in rule.wanted[0]):
            try:
                yield rule.targets[0].render(values), _moved(rule, shape)
            except LayoutError:  # only further sizes would determine it; a later rule would give another answer
                return


def _moved(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
    if rule.resize:
        raise LayoutError("the length before is not known here")
    if rule.pattern is None:
        return shape
    unrolled = rule.pattern.unrolled([shape])
    return unrolled.shapes(unrolled.solve([shape], {}))[0]


def _origin(converter: Converter, index: int) -> tuple[Rule, int]:
    i, k = converter.origins[index]
    return converter.rules[i], k


def translated(rule: Rule, values: Mapping[str, str], separators: tuple[str, str]) -> dict[str, str] | None:
    """Translate the captures to the target; None if one has no value there."""
    if not values:
        return {}
    out = {}
    for name, value in values.items():
        if name in rule.wide:
            new: str | None = value.replace(*separators) if separators[0] else value
        else:
            new = rule.where[name].forward(value) if name in rule.where else value
        if new is None:
            return None
        out[name] = new
    return out


def assign(converter: Converter, checkpoint: Checkpoint, *, whole: bool = False) -> Assignment:
    """Assign each weight to the first rule that takes it; with `whole`, end at the first that none takes."""
    names = Names(converter, checkpoint)
    weights = [n for n, t in checkpoint.tensors.items() if not t.role or converter.every]
    out = Assignment()
    position = {n: i for i, n in enumerate(weights)}
    pending = [(n, names.canonical(n), 0) for n in weights]
    while pending:
        partial: dict[Any, Group] = {}
        for name, known, begin in pending:
            found = _take(names, name, known, begin, out)
            if found is None:
                out.unmatched.append(name)
                if whole:
                    return out
                continue
            index, values = found
            i, k = converter.origins[index]
            rule = converter.rules[i]
            if rule.alone:
                out.groups.append(Group(i, values, ({(): name},), position[name]))
                continue
            stacks = rule.sources[k].stacks
            place = placed(rule.where, stacks, values)
            rest = {c: v for c, v in values.items() if c not in stacks}
            key = (i, *sorted(rest.items()))
            group = partial.setdefault(key, Group(i, rest, tuple({} for _ in rule.sources), position[name]))
            if group.members[k].setdefault(place, name) != name:  # two names were rewritten to the same one
                out.unmatched.append(name)
                out.reasons[name] = f"{rule.label} has {group.members[k][place]} in its place"
        pending = _sort_out(converter, names, list(partial.values()), out)
    out.groups.sort(key=lambda g: g.at)
    out.unmatched.sort(key=position.__getitem__)
    return out


def placed(where: Mapping[str, Domain], stacks: Sequence[str], values: Mapping[str, str]) -> Place:
    """The index of a tensor on each axis along which its rule stacks."""
    return tuple(where[s].place(values[s]) if s in where else int(values[s]) for s in stacks)


def _take(names: Names, name: str, known: str, begin: int, out: Assignment) -> tuple[int, dict[str, str]] | None:
    """The number of the first template from `begin` on that takes a name, and its captures."""
    for m in names.converter.matcher.matches(known, begin):
        rule, k = _origin(names.converter, m.number)
        why = _refuses(rule, k, m.values, names, names.checkpoint[name].shape)
        if not why and rule.kinds and not _of_kind(rule.kinds, kind := layer_kind(names.checkpoint, name)):
            why = f"is for layers of the kind {' or '.join(rule.kinds)}, not {kind!r}"
        if not why and rule.inputs and input_of(names.checkpoint, name) not in rule.inputs:
            why = f"is for layers whose inputs are {' or '.join(rule.inputs)}"
        if not why and rule.refuse:
            out.reasons[name] = rule.refuse
            return None
        if not why:
            return m.number, m.values
        if not rule.refuse:
            out.reasons.setdefault(name, f"{rule.label} {why}")
    return None


_DEFAULT = re.compile(r"(?:forward_|backward_)?(.+?)(?:_cell)?(?:_[0-9]+)?")


def layer_kind(checkpoint: Checkpoint, name: str) -> str:
    """The class of the layer that a tensor belongs to, from the file, or else from the layer's default name."""
    kind: str = checkpoint.details.get("kinds", {}).get(name, "")
    if not kind:
        *_, above, owner = ["", "", *name.split("/")[:-1]]
        m = _DEFAULT.fullmatch(above if owner == "cell" else owner)
        kind = m[1] if m else ""
    return kind.removesuffix("_cell")


def input_of(checkpoint: Checkpoint, name: str) -> str:
    """What the layer of a tensor takes, by the config of a Keras model; '' if there is none that tells it."""
    taken = checkpoint.details.get("inputs", {}).get(name)
    return taken.state if taken else ""


def _of_kind(kinds: tuple[str, ...], kind: str) -> bool:
    """Whether a kind is one of `kinds`, or, if those begin with `!`, none of them."""
    return (kind in [k.removeprefix("!") for k in kinds]) != kinds[0].startswith("!")


def _refuses(rule: Rule, k: int, values: dict[str, str], names: Names, shape: tuple[int, ...]) -> str:
    """Why a rule that fits the name does not take the tensor, or ''."""
    if rule.wanted[k] and len(shape) not in rule.wanted[k]:
        return f"takes {' or '.join(map(str, rule.wanted[k]))} axes, the tensor has {len(shape)}"
    spelled = translated(rule, values, names.converter.separators)
    if spelled is None:
        return "would give a negative or fractional number"
    if rule.having or rule.lacking:
        spoken = spelled if rule.backward else values
        for t in rule.having:
            if t.render(spoken) not in names.shapes:
                return f"applies only with {t.render(spoken)}"
        for t in rule.lacking:
            if t.render(spoken) in names.shapes:
                return f"applies only without {t.render(spoken)}"
    return ""


def _sort_out(converter: Converter, names: Names, groups: list[Group], out: Assignment) -> list[tuple[str, str, int]]:
    """Keep the groups that are complete; offer the names of the others to later rules."""
    pending = []
    ends = {r: i + 1 for i, (r, _) in enumerate(converter.origins)}
    for group in groups:
        rule = converter.rules[group.rule]
        missing = lacks(rule, group)
        if not missing:
            out.groups.append(group)
            continue
        for name in (n for m in group.members for n in m.values()):
            out.reasons.setdefault(name, f"{rule.label} lacks {missing}")
            pending.append((name, names.canonical(name), ends[group.rule]))
    return pending


def lacks(rule: Rule, group: Group) -> str:
    """The first name that a group lacks to be complete, or ''."""
    found: dict[str, set[int]] = {}
    for t, members in zip(rule.sources, group.members, strict=True):
        for axis, stack in enumerate(t.stacks):
            found.setdefault(stack, set()).update(place[axis] for place in members)
    counts = {s: len(rule.where[s].table) or len(found[s]) if s in rule.where else len(found[s]) for s in found}
    for t, members in zip(rule.sources, group.members, strict=True):
        for place in product(*(range(max(counts[s], 1)) for s in t.stacks)):  # one beyond implies that one is missing
            if place not in members:
                at = {s: rule.where[s].at if s in rule.where else str for s in t.stacks}
                spelled = {s: at[s](i) for s, i in zip(t.stacks, place, strict=True)}
                return t.render({**group.values, **spelled})
    return ""


def resembles(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if a name that identifies the family is present, was before some were dropped, or none is declared."""
    names = [*checkpoint, *(n for note in checkpoint.notes if note.kind == "dropped" for n in note.names)]
    return not converter.present or any(any_taken(t, where, names) for t, where in converter.present)


def takes(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if the family is recognised and some rule takes each weight."""
    if not all(any_taken(t, where, checkpoint) for t, where in converter.present):
        return False
    if any(any_taken(t, where, checkpoint) for t, where in converter.absent):
        return False
    return not assign(converter, checkpoint, whole=True).unmatched


__all__ = ["Assignment", "Group", "Names", "Place", "assign", "lacks", "placed", "resembles", "takes", "translated"]
