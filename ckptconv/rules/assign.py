"""Assign tensors to rules, in groups that belong together. Pure.

A rule with several sources takes all of them or none: a tensor whose partner is missing is offered to the next rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, NoteKind, Tensor
from ..errors import LayoutError, UsageError
from .templates import INT, MAX_NAME, any_taken

if TYPE_CHECKING:
    from .converter import Converter, Rewrite, Rule

Place = tuple[int, ...]  # the index of a tensor along each axis that its template stacks
Shape = tuple[int, ...]

MAX_AGAIN = 8  # passes of one replacement over a name in which its matches overlap


@dataclass(slots=True)
class Group:
    """The tensors that one application of a rule takes, and what apply.py makes of them."""

    number: int  # of the rule
    rule: Rule
    values: dict[str, str]  # of the captures
    members: tuple[dict[Place, str], ...]  # for each source template, names by index on the stacked axes
    at: int  # position of the first name: targets keep the order of their sources
    spelled: tuple[tuple[str, ...], ...] = ()  # all names of each target, if the metadata records them
    targets: list[Tensor] = field(default_factory=list)
    filled: list[Tensor] = field(default_factory=list)  # constants beside the targets
    emptied: list[str] = field(default_factory=list)  # constants of an inverse, which are left out
    resized: tuple[NoteKind, str] | None = None
    recorded: dict[str, int] = field(default_factory=dict)  # sizes, for the inverse or by the forward conversion

    @property
    def names(self) -> list[str]:
        return [n for members in self.members for _, n in sorted(members.items())]


@dataclass
class Assignment:
    groups: list[Group] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # why a rule that fits the name did not take it


class Names:
    """The names of a checkpoint as rules see them, after rewrites; for an inverse, the names that the sources had."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
        self.converter, self.checkpoint = converter, checkpoint
        self.known = {n: n for n in (checkpoint if names is None else names)}
        for step in converter.rewrites:
            _rewrite(step, self.known)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shapes by the names that conditions and sizes refer to: those of the forward converter's source."""
        if not self.converter.forward:
            return {self.known[name]: t.shape for name, t in self.checkpoint.tensors.items()}
        pairs = ((name, t.shape) for name, t in self.checkpoint.tensors.items())
        return dict(before for name, shape in pairs for before in _before(self.converter, name, shape))


def _rewrite(step: Rewrite, known: dict[str, str]) -> None:
    """Make one replacement everywhere in all names, repeatedly until nothing changes."""
    if step.given and not any_taken(step.given, {}, known.values()):
        return
    pattern, order = step.compiled
    texts = {name: text for name, text in known.items() if step.literal in text and len(text) <= MAX_NAME}
    if step.one:
        group = order.index(step.one) + 1
        if len({m[group] for text in texts.values() for m in pattern.finditer(text)}) != 1:
            return
    for name, text in texts.items():
        for _ in range(1 if step.anchored else MAX_AGAIN):
            new = pattern.sub(lambda m: step.target.render({c: m[i + 1] for i, c in enumerate(order)}), text)
            if new == text:
                break
            if len(new) > MAX_NAME:
                raise UsageError(f"rewrite {step.source.text!r}: makes a name of more than {MAX_NAME} characters")
            text = new
        known[name] = text


def _before(inverse: Converter, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """The names and shapes that a tensor may have had, as far as its name, rank and shape determine them."""
    for m in inverse.matcher.matches(name):
        rule = inverse.rules[inverse.origins[m.number][0]]
        values = translated(rule, m.values, inverse.separators)
        alone = len(rule.sources) == len(rule.targets) == 1 and not rule.targets[0].stacks
        if values is None or not alone or (rule.wanted[0] and len(shape) not in rule.wanted[0]):
            continue
        if rule.resize:  # the length before is not known here; a later rule would give another answer
            return
        try:
            yield rule.targets[0].render(values), rule.pattern.bound([shape], {}).targets[0] if rule.pattern else shape
        except LayoutError:  # only further sizes would determine it
            return


def translated(rule: Rule, values: Mapping[str, str], separators: tuple[str, str]) -> dict[str, str] | None:
    """Translate the captures to the target; None if one has no value there."""
    out = {}
    for name, value in values.items():
        new: str | None = value
        if name in rule.wide:
            new = value.replace(*separators) if separators[0] else value
        elif name in rule.where:
            new = rule.where[name].forward(value)
        if new is None:
            return None
        out[name] = new
    return out


def assign(names: Names, *, whole: bool = False, only: Mapping[str, int] | None = None) -> Assignment:
    """Assign each weight to the first rule that takes it.

    whole: end at the first that none takes. only: the one rule that may take each tensor, whatever its conditions.
    """
    converter, out = names.converter, Assignment()
    weights = [n for n, t in names.checkpoint.tensors.items() if not t.role or converter.every]
    position = {n: i for i, n in enumerate(weights)}
    ends = {i: number + 1 for number, (i, _) in enumerate(converter.origins)}
    pending = [(n, 0) for n in weights]
    while pending:
        partial: dict[Any, Group] = {}
        for name, begin in pending:
            taken = _take(names, name, begin, out.reasons, only)
            if taken is None:
                out.unmatched.append(name)
                if whole:
                    return out
                continue
            i, k, values = taken
            rule = converter.rules[i]
            if rule.alone:
                out.groups.append(Group(i, rule, values, ({(): name},), position[name]))
                continue
            stacks = rule.sources[k].stacks
            place = tuple(rule.where.get(s, INT).place(values[s]) for s in stacks)
            rest = {c: v for c, v in values.items() if c not in stacks}
            new = Group(i, rule, rest, tuple({} for _ in rule.sources), position[name])
            group = partial.setdefault((i, *sorted(rest.items())), new)
            if group.members[k].setdefault(place, name) != name:  # two names were rewritten to the same one
                out.unmatched.append(name)
                out.reasons[name] = f"{rule.label} has {group.members[k][place]} in its place"
        pending = []
        for group in partial.values():
            if missing := _lacks(group.rule, group):
                pending += [(n, ends[group.number]) for n in group.names]
                for name in group.names:
                    out.reasons.setdefault(name, f"{group.rule.label} lacks {missing}")
            else:
                out.groups.append(group)
    out.groups.sort(key=lambda g: g.at)
    out.unmatched.sort(key=position.__getitem__)
    return out


def _take(
    names: Names, name: str, begin: int, reasons: dict[str, str], only: Mapping[str, int] | None
) -> tuple[int, int, dict[str, str]] | None:
    """The first rule that takes a name, by its templates from number `begin` on; which of its sources; the captures."""
    converter = names.converter
    for m in converter.matcher.matches(names.known[name], begin):
        i, k = converter.origins[m.number]
        rule = converter.rules[i]
        if only is not None:
            if only.get(name) == i:
                return i, k, m.values
            continue
        why = _refuses(rule, k, m.values, names, name)
        if not why and rule.refuse:
            reasons[name] = rule.refuse
            return None
        if not why:
            return i, k, m.values
        if not rule.refuse:
            reasons.setdefault(name, f"{rule.label} {why}")
    return None


def _refuses(rule: Rule, k: int, values: dict[str, str], names: Names, name: str) -> str:
    """Why a rule that fits the name does not take the tensor, or ''."""
    rank, when = len(names.checkpoint[name].shape), rule.when
    if rule.wanted[k] and rank not in rule.wanted[k]:
        return f"takes {' or '.join(map(str, rule.wanted[k]))} axes, the tensor has {rank}"
    spelled = translated(rule, values, names.converter.separators)
    if spelled is None:
        return "would give a negative or fractional number"
    for templates, wanted in ((when.having, True), (when.lacking, False)):
        for t in templates:
            other = t.render(spelled if rule.backward else values)
            if (other in names.shapes) != wanted:
                return f"applies only {'with' if wanted else 'without'} {other}"
    if when.kinds:
        kind, unwanted = layer_kind(names.checkpoint, name), when.kinds[0].startswith("!")
        if (kind in [k.removeprefix("!") for k in when.kinds]) == unwanted:
            return f"is for layers of the kind {' or '.join(when.kinds)}, not {kind!r}"
    if when.inputs and input_of(names.checkpoint, name) not in when.inputs:
        return f"is for layers whose inputs are {' or '.join(when.inputs)}"
    for key, value in when.metadata:
        if names.checkpoint.metadata.get(key) != value:
            return f"is for files whose {key} is {value}"
    return ""


QUANTISED = {"int8", "uint8", "int4", "uint4"}
_DEFAULT = re.compile(r"(?:forward_|backward_)?(.+?)(?:_cell)?(?:_[0-9]+)?")


def layer_kind(checkpoint: Checkpoint, name: str) -> str:
    """The class of the layer that a tensor belongs to, from the file, or else from the layer's default name."""
    kind: str = _stored_otherwise(checkpoint, name) or checkpoint.details.get("kinds", {}).get(name, "")
    if not kind:
        *_, above, owner = ["", "", *name.split("/")[:-1]]
        m = _DEFAULT.fullmatch(above if owner == "cell" else owner)
        kind = m[1] if m else ""
    return kind.removesuffix("_cell")


def _stored_otherwise(checkpoint: Checkpoint, name: str) -> str:
    """'quantised' or 'cudnn' if dtypes or shapes tell that the layer stores its weights as no other does, else ''."""
    above = name.rpartition("/")[0]
    kernel, recurrent, bias, *others = (
        checkpoint.get(f"{above}/{leaf}") for leaf in ("kernel", "recurrent_kernel", "bias", "embeddings", "var_0")
    )
    if any(t and t.dtype.name in QUANTISED for t in (kernel, *others)):
        return "quantised"
    if not recurrent or not bias or len(recurrent.shape) != 2:
        return ""
    units, gates = recurrent.shape
    return "cudnn" if gates in (3 * units, 4 * units) and bias.shape == (2 * gates,) else ""


def input_of(checkpoint: Checkpoint, name: str) -> str:
    """What the layer of a tensor takes, by the config of a Keras model; '' if there is none that tells it."""
    taken = checkpoint.details.get("inputs", {}).get(name)
    return taken.state if taken else ""


def _lacks(rule: Rule, group: Group) -> str:
    """The first name that a group lacks to be complete, or ''."""
    places: dict[str, set[int]] = {}
    for t, members in zip(rule.sources, group.members, strict=True):
        for axis, stack in enumerate(t.stacks):
            places.setdefault(stack, set()).update(place[axis] for place in members)
    counts = {s: rule.counts.get(s) or len(found) or 1 for s, found in places.items()}
    for t, members in zip(rule.sources, group.members, strict=True):
        for place in product(*(range(counts[s]) for s in t.stacks)):  # one beyond implies that one is missing
            if place not in members:
                spelled = {s: rule.where.get(s, INT).at(i) for s, i in zip(t.stacks, place, strict=True)}
                return t.render({**group.values, **spelled})
    return ""


def resembles(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if a name that identifies the family is present, was before some were dropped, or none is declared."""
    names = [*checkpoint, *(n for note in checkpoint.notes if note.kind == "dropped" for n in note.names)]
    return not converter.present or any(any_taken(t, where, names) for t, where in converter.present)


def takes(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if the family is recognised and some rule takes each weight."""
    known = all(any_taken(t, where, checkpoint) for t, where in converter.present)
    if not known or any(any_taken(t, where, checkpoint) for t, where in converter.absent):
        return False
    return not assign(Names(converter, checkpoint), whole=True).unmatched


__all__ = ["Assignment", "Group", "Names", "assign", "resembles", "takes", "translated"]
