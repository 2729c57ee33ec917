"""Apply a converter: assign names to rules in groups, and build a tensor from each group; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

`Problems` collects layouts that do not fit, names given twice and missing parameters, and raises one error for all of
them. sizes.py finds the sizes of axes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint, Move, Note, NoteKind, Tensor, named, onward, origin, uncollected
from ..errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ..messages import fold, listing, many, printable
from ..moves.part import Part
from . import doubts, operations, provenance, sizes
from .assign import Assignment, Group, Names, Place, assign, translated
from .provenance import Moved
from .templates import Matcher, Template

if TYPE_CHECKING:
    from .converter import Converter, Rule
    from .operations import Resize

Shape = tuple[int, ...]
Made = tuple[str, Shape, tuple[Part, ...]]  # name, shape and parts of a target


@uncollected()
def apply(converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any] | None = None) -> Checkpoint:
    """Give every tensor its new name and layout; no tensor is read, and the argument does not change.

    Optimizer slots and the like are left out with a note.
    `moved` of the result gives the rule and the source names of every target.

    Raises UnmatchedTensors, NameCollision, LayoutError or UsageError (a parameter is unknown or missing), each with
    all cases.
    """
    whole, left_out = untied(converter, checkpoint)
    remembered = bool(converter.forward and converter.one_way)
    found = provenance.recall(converter, whole) if remembered else assign(converter, whole)
    provenance.shaped(converter, whole, found)
    out = _Builder(converter, whole, params or {})
    out.taken = {n for g in found.groups if converter.rules[g.rule].targets for m in g.members for n in m.values()}
    if found.unmatched:
        out.counted()  # the cause, if a layer is missing of several that are stacked
    refuse_unmatched(converter, whole, found)
    for group in found.groups:
        out.build(group)
    out.counted()
    out.share()
    targets = {source: went.target for source, went in out.went.items()}
    made = whole.with_tensors(out.tensors, *left_out, *out.notes(found))
    kept = {n: w.target for n, w in out.went.items() if w.target and not converter.rules[w.rule].pattern}
    made = replace(made, ties=renamed(whole.ties, targets), details=named(whole.details, kept, kept.__getitem__))
    result = provenance.remember(converter, made, out.moved, out.sizes.recorded(), whole)
    result, copies = tied(converter, result, out.names)
    # a rename passes other names by, with a rule that nobody wrote
    moved = {n: Move("" if converter.every and m.names == (n,) else m.rule, m.names) for n, m in out.moved.items()}
    return replace(result, moved=onward(checkpoint.moved, moved | {n: moved[first] for n, first in copies.items()}))


class Went(NamedTuple):
    """What became of a source: the rule's number, and the target if the source alone makes it up."""

    rule: int
    target: str


class _Builder:
    """The targets built so far, what became of each source, and the problems found."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any]) -> None:
        self.converter, self.checkpoint = converter, checkpoint
        self.names = Names(converter, checkpoint)
        self.sizes = sizes.SizeFinder(converter, self.names, params)
        self.tensors: dict[str, Tensor] = {}
        self.moved: dict[str, Moved] = {}
        self.went: dict[str, Went] = {}
        self.lengths = sizes.Lengths(converter)
        self.problems = Problems()
        self.twins: list[str] = []
        self.copies: list[str] = []  # which `same` and `shared` compare
        self.shared: dict[str, list[Tensor]] = {}  # of a target several names lead to: what they have, under their own
        self.added: list[str] = []  # which `sum` adds
        self.taken: set[str] = set()  # what becomes part of a target
        self.constants: dict[str, None] = {}  # what `fill` added, which an inverse leaves out
        self.resized: dict[tuple[NoteKind, str], list[str]] = {}  # what happened to an axis: its targets

    def build(self, group: Group) -> None:
        """Make the targets of one group."""
        rule = self.converter.rules[group.rule]
        names = [n for m in group.members for _, n in sorted(m.items())]
        if not rule.targets:
            self.went.update((n, Went(group.rule, "")) for n in names)
            return
        values = translated(rule, group.values, self.converter.separators) or {}
        try:
            made = list(self._targets(rule, group, values))
            if group.spelled and len(group.spelled) != len(made):
                raise LayoutError(f"the metadata records {len(group.spelled)} names, not {len(made)}")
        except LayoutError as e:
            shown = ", ".join(f"{n} {list(self.checkpoint[n].shape)}" for n in names[:4])
            self.problems.broken.append(f"{shown} by {rule.label}: {e.message}")
            return
        self._place(group, rule, names, made, values)
        only = made[0][0] if len(names) == len(made) == 1 else ""
        self.went.update((n, Went(group.rule, only)) for n in names)

    def _place(self, group: Group, rule: Rule, names: list[str], made: list[Made], values: dict[str, str]) -> None:
        """Add the targets of one group, and the constants that the rule adds to the first."""
        first = self.checkpoint[names[0]]
        for i, (name, shape, parts) in enumerate(made):
            for spelled in group.spelled[i] if group.spelled else [name]:
                self._put(group.rule, names, Tensor(spelled, first.dtype, shape, parts, first.role))
            if i == 0 and rule.fills:
                self._fill(group.rule, names, Tensor(name, first.dtype, shape, parts, first.role), values)

    def _targets(self, rule: Rule, group: Group, values: dict[str, str]) -> Iterator[Made]:
        """The name, shape and parts of each target of a group."""
        sources = [self._source(t, m) for t, m in zip(rule.sources, group.members, strict=True)]
        if rule.same and not rule.backward:
            self.copies += [s.name for s in sources[1:]]
            sources = [operations.same(sources)]
        elif rule.sum and not rule.backward:
            self.added += [s.name for s in sources]
            sources = [operations.summed(sources, zeros=rule.sum == "zeros")]
        if len(kinds := {s.dtype.name for s in sources}) > 1:
            raise LayoutError(f"tensors of {' and '.join(sorted(kinds))} cannot be joined")
        sources[0] = self._emptied(rule, group, sources[0])
        known = self._known(rule, group, values)
        if rule.resize and rule.backward:
            sources = [self._resized(rule.resize, rule, group, values, sources[0])]
        made = rule.pattern.apply(sources, known) if rule.pattern else [(sources[0].shape, sources[0].parts)]
        self.lengths.note(rule, sources, known)
        if rule.resize and not rule.backward:
            new = replace(sources[0], shape=made[0][0], parts=made[0][1])
            new = self._resized(rule.resize, rule, group, values, new)
            made = [(new.shape, new.parts)]
        if rule.ops:
            ops = operations.resolved(rule.ops, rule.pattern, sources, known)
            made = [(shape, tuple(p._replace(ops=(*p.ops, *ops)) for p in parts)) for shape, parts in made]
        for t, (shape, parts) in zip(rule.targets, made * len(rule.targets) if rule.same else made, strict=True):
            if not t.stacks:
                yield t.render(values), shape, parts
                continue
            spell = [rule.where[s].inverse.at if s in rule.where else str for s in t.stacks]
            whole = Tensor("", sources[0].dtype, shape, parts)
            for place, part_shape, part in operations.unstacked(whole, len(t.stacks)):
                spelled = {s: at(i) for s, at, i in zip(t.stacks, spell, place, strict=True)}
                yield t.render({**values, **spelled}), part_shape, part

    def _known(self, rule: Rule, group: Group, values: dict[str, str]) -> dict[str, int]:
        """The sizes of axes that are known besides the shapes of the sources."""
        if rule.pattern is None:
            return {}
        spoken, undetermined = values if rule.backward else group.values, () if group.shapes else rule.undetermined
        known = self.sizes.of(rule, spoken, undetermined, first=sizes.about(rule, group, values))
        shapes = group.shapes[:1] if rule.merges else group.shapes
        return rule.pattern.inverse.unrolled(shapes).solve(shapes, known) if shapes else known

    def _resized(self, how: Resize, rule: Rule, group: Group, values: dict[str, str], t: Tensor) -> Tensor:
        """A tensor of which one axis is cropped or padded, or, in an inverse, as long again as it was."""
        spoken = values if rule.backward else group.values
        to, before = (None if n is None else self.sizes.one(n, spoken) for n in (how.to, how.before))
        if rule.backward and before is None and (shapes := group.shapes):
            if rule.pattern:
                shapes = rule.pattern.inverse.unrolled(shapes).shapes(self._known(rule, group, values))
            before = dict(enumerate(shapes[0])).get(how.axis)
            operations.bounded(how, t, before)
        new = (operations.backward if rule.backward else operations.forward)(how, t, to or 0, before)
        if text := operations.described(how, t.shape, new.shape, backward=rule.backward):
            self.resized.setdefault(text, []).append(rule.targets[0].render(values))
        return new

    def _source(self, t: Template, members: Mapping[Place, str]) -> Tensor:
        if not t.stacks:
            return self.checkpoint[members[()]]
        return operations.stacked({place: self.checkpoint[n] for place, n in members.items()})

    def _fill(self, index: int, names: list[str], like: Tensor, values: dict[str, str]) -> None:
        """Add the constants of a rule: tensors like its first target, whose elements are read and replaced."""
        for t, blocks in self.converter.rules[index].fills:
            try:
                numbers = [float(self.sizes.number(b)) for b in blocks]
                name, parts = t.render(values), operations.filled(like, numbers)
            except LayoutError as e:
                self.problems.broken.append(f"{t.text}: {e.message}")
                continue
            self._put(index, names, replace(like, name=name, parts=parts))

    def _emptied(self, rule: Rule, group: Group, t: Tensor) -> Tensor:
        """The first source of an inverse, without the constants that the rule added beside it."""
        for template, blocks in rule.constants:
            name = template.render(group.values)
            if name in self.checkpoint and name not in self.taken:
                numbers = [float(self.sizes.number(b)) for b in blocks]
                t = operations.without(t, self.checkpoint[name], numbers)
                self.constants[name] = None
        return t

    def _put(self, index: int, names: Sequence[str], tensor: Tensor) -> None:
        """Add a target, unless its name is taken by another tensor."""
        rule = self.converter.rules[index]
        old = self.tensors.get(tensor.name)
        if old is None:
            self.tensors[tensor.name] = tensor
            self.moved[tensor.name] = Moved(tuple(names), rule.label, index, [])
        elif rule.shared or origin(old) == origin(tensor):
            moved = self.moved[tensor.name]
            moved.twins.extend(names)
            if origin(old) == origin(tensor):
                self.twins += names
                return
            self.copies += names
            self.shared.setdefault(tensor.name, [old.renamed(moved.names[0])]).append(tensor.renamed(names[0]))
        else:
            self.problems.clash(tensor.name, self.moved[tensor.name], names, rule.label)

    def share(self) -> None:
        """Let each tensor that was taken for several be compared with the others whenever it is read."""
        for name, several in self.shared.items():
            try:
                self.tensors[name] = operations.same(several).renamed(name)
            except LayoutError as e:
                self.problems.broken.append(f"{name}: {e.message}")
        self.problems.check(self.converter.name)

    def counted(self) -> None:
        """Compare numbers in names, lengths of axes and parameters with each other; raise what is wrong."""
        self.problems.refused += sizes.refused(self.converter, self.sizes)
        self.problems.uncounted += sizes.missing_layers(self.converter, self.checkpoint, self.sizes)
        self.problems.uneven += (*self.lengths.wrong(self.sizes), *self.sizes.denied())
        self.problems.missing |= self.sizes.missing
        self.problems.check(self.converter.name)

    def notes(self, found: Assignment) -> Iterator[Note]:
        """Note what was left out, what was taken once, and which rules matched nothing."""
        yield from self._skipped()
        emptying = [g for g in found.groups if not self.converter.rules[g.rule].targets]
        dropped = tuple(n for g in emptying for m in g.members for n in m.values() if n not in self.constants)
        if dropped:
            yield Note("skipped", f"{len(dropped)} tensors have no place in the target and were left out", dropped)
        if self.sizes.configured:
            yield Note("hint", f"read from config.json: {', '.join(self.sizes.configured)}")
        if self.twins:
            yield Note("tied", f"{len(self.twins)} tensors are copies of others and were taken once", tuple(self.twins))
        if self.copies:
            yield Note("tied", "copies that must be equal, compared when they are read", tuple(self.copies))
        if self.added:
            yield Note("hint", "added, which must be exact, as is checked when they are read", tuple(self.added))
        if self.constants:
            text = "must hold what `fill` adds, which is checked when they are read, and are left out"
            yield Note("hint", text, tuple(self.constants))
        yield from (Note(kind, text, tuple(names)) for (kind, text), names in self.resized.items())
        used = {g.rule for g in found.groups}
        yield from self._idle(used)
        if not self.converter.forward:
            yield from doubts.notes(self.converter, self.checkpoint, found)
            own = (self.converter.rules[i].note for i in sorted(used))
            yield from (Note("hint", text) for text in dict.fromkeys((*self.converter.notes, *own)) if text)

    def _skipped(self) -> Iterator[Note]:
        """Note the tensors that are not weights and were not converted with one, by role."""
        left = [n for n, t in self.checkpoint.tensors.items() if t.role and n not in self.went]
        for role in sorted({self.checkpoint[n].role for n in left}):
            names = tuple(n for n in left if self.checkpoint[n].role == role)
            yield Note("skipped", f"{many(len(names), 'tensor')} with the role {role} (not weights)", names)

    def _idle(self, used: set[int]) -> Iterator[Note]:
        rules = enumerate(self.converter.rules)
        idle = [r.label for i, r in rules if i not in used and not (r.optional or r.refuse)]
        if idle and not self.converter.optional:
            yield Note("hint", f"{len(idle)} rules of {self.converter.name} matched no tensor", tuple(idle))


# --- The problems found while a converter is applied, collected so that one error lists all of them ---


MAX_NEAR = 20  # folded patterns for which the nearest rule is sought
MAX_COMPARED = 300  # characters of names and rules that are compared


@dataclass
class Problems:
    """Missing parameters, layouts that do not fit, and names that two tensors would get."""

    missing: dict[str, str] = field(default_factory=dict)  # parameter: its help
    broken: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # why it is another converter's model
    uncounted: list[str] = field(default_factory=list)  # numbers in names, of which some are missing
    uneven: list[str] = field(default_factory=list)  # axes of one name that are not equally long

    def clash(self, name: str, first: Moved, second: Sequence[str], rule: str) -> None:
        """Record that two tensors would get one name."""
        a, b = (", ".join(map(printable, n)) for n in (first.names, second))
        self.clashes.append(f"{printable(name)}: from {a} (by {first.rule}) and {b} (by {rule})")

    def check(self, converter: str) -> None:
        """Raise the first kind of problem that occurred, with all its cases; return if there is none."""
        if self.refused:
            raise UsageError(f"the converter {converter} is not for this model:\n{listing(self.refused)}")
        if self.uncounted:
            raise UnmatchedTensors(f"the source is not whole; give all of its files:\n{listing(self.uncounted)}")
        if self.missing:
            wanted = [f"{n}: {why}".rstrip(": ") for n, why in self.missing.items()]
            given = " ".join(f"param='{n}=NUMBER'" for n in self.missing)
            raise UsageError(f"the converter {converter} needs {given}\n{listing(wanted)}")
        if self.broken:
            raise LayoutError(f"{_many(self.broken, 'layout does', 'layouts do')} not fit:\n{listing(self.broken)}")
        if self.uneven:
            raise LayoutError(f"the parameters do not fit the shapes:\n{listing(self.uneven)}")
        if self.clashes:
            head = _many(self.clashes, "name", "names")
            raise NameCollision(f"{head} would be given twice:\n{listing(self.clashes)}")


def _many(items: Sequence[object], one: str, several: str) -> str:
    return f"{len(items)} {one if len(items) == 1 else several}"


def refuse_unmatched(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> None:
    """Raise UnmatchedTensors if there are any: folded, each with the nearest rule or the reason of a refusal."""
    if not found.unmatched:
        return
    lines = []
    rules = [(_triples(t.text), r.label) for r in converter.rules if not r.refuse for t in r.sources]
    for i, f in enumerate(fold(found.unmatched)):
        shape = list(checkpoint[f.names[0]].shape)
        why = found.reasons.get(f.names[0], "")
        if not why and i < MAX_NEAR and rules:
            why = f"nearest rule: {_likest(f.text, rules)}"
        lines.append(f"{f} {shape}" + f" - {why}" * bool(why))
    raise UnmatchedTensors(
        f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors; "
        f"{_advice(converter, checkpoint, found)}:\n{listing(lines, 200)}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _advice(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> str:
    """To leave out what is left over, unless that is most of the model: then the converter is another's."""
    weights = sum(1 for t in checkpoint.values() if converter.every or not t.role)
    if 2 * sum(1 for n in found.unmatched if n not in found.reasons) <= weights:
        return "drop them with exclude=, or add rules"
    made = f" (it is for {converter.source})" if converter.source else ""
    return f"it may be the wrong converter{made}: converter='auto' finds one that takes all; or add rules"


def _triples(text: str) -> set[str]:
    padded = f"  {text[:MAX_COMPARED]} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}


def _likest(text: str, rules: Sequence[tuple[set[str], str]]) -> str:
    """The label of the rule that has the most in common with a name (Dice's coefficient): in time linear in both."""
    mine = _triples(text)
    return max(rules, key=lambda rule: len(mine & rule[0]) / (len(mine) + len(rule[0])))[1]


# --- Names that share one tensor: added by a converter, left out by its inverse ---


MAX_ADDED = 100_000  # names that share a tensor


def _groups(templates: Sequence[Template], names: Checkpoint) -> Iterator[list[str]]:
    """The names of a tie, once for each set of captures with which one of its templates takes a name."""
    seen = set()
    for t in templates:
        matcher = Matcher([(t, {})])
        for name in names:
            if m := matcher.first(name):
                group = tuple(other.render(m.values) for other in templates)
                if group not in seen:
                    seen.add(group)
                    yield list(group)


def tied(converter: Converter, checkpoint: Checkpoint, names: Names) -> tuple[Checkpoint, dict[str, str]]:
    """Add the tied names of each shared tensor; return also the name that each added one repeats."""
    if converter.forward:
        return checkpoint, {}
    tensors, ties, metadata = dict(checkpoint.tensors), list(checkpoint.ties), dict(checkpoint.metadata)
    apart: list[str] = []
    copies: dict[str, str] = {}
    for tie in (t for t in converter.ties if all(n in names.shapes for n in t.having)):
        for group in _groups(tie.names, checkpoint):
            first = next(n for n in group if n in tensors)
            added = [n for n in group if n not in tensors]
            tensors |= {n: tensors[first].renamed(n) for n in added}
            copies |= dict.fromkeys(added, first)
            if len(copies) > MAX_ADDED:
                raise LayoutError(f"the ties of {converter.name} add more than {MAX_ADDED} names to this checkpoint")
            ties += [(first, *added)] if added else []
            apart += added if tie.apart else []
    if apart:
        metadata[provenance.TIED] = json.dumps(apart, separators=(",", ":"))
    return replace(checkpoint, tensors=tensors, ties=tuple(ties), metadata=metadata), copies


def untied(converter: Converter, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """For an inverse, leave out the names that the forward converter added for ties: all but the first of a group.

    What is left out must be a copy of the first, which is compared bit for bit whenever that is read.
    """
    if not converter.forward:
        return checkpoint, []
    gone: dict[str, None] = {}
    kept = dict(checkpoint.tensors)
    remembered = provenance.tied(checkpoint)
    for tie in converter.ties:
        for group in _groups(tie.names, checkpoint):
            there = [n for n in group if n in checkpoint]
            known = [n for n in there if converter.matcher.first(n)] or there
            own = _own(checkpoint, known, remembered) if tie.apart else set()
            left = [n for n in there if n != known[0] and n not in own]
            kept[known[0]] = operations.same([kept[known[0]], *(checkpoint[n] for n in left)])
            gone |= dict.fromkeys(left)
    if not gone:
        return checkpoint, []
    note = Note("tied", "must be equal to what they are tied to, and are left out", tuple(gone))
    return checkpoint.with_tensors({n: t for n, t in kept.items() if n not in gone}), [note]


def _own(checkpoint: Checkpoint, known: Sequence[str], remembered: set[str]) -> set[str]:
    """Names of a tie that have tensors of their own."""
    first = origin(checkpoint[known[0]])
    return {n for n in known if n not in remembered and origin(checkpoint[n]) != first}


def renamed(ties: Sequence[Sequence[str]], targets: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """The ties of a source under their new names, without those of which a member has no single target."""
    out = []
    for group in ties:
        names = tuple(dict.fromkeys(targets[n] for n in group if n in targets))
        if len(names) > 1 and all(names):
            out.append(names)
    return tuple(out)


__all__ = ["apply"]
