"""Apply a converter: assign names to rules in groups, and build a tensor from each group; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

problems.py collects layouts that do not fit, names given twice and missing parameters, and raises one error for all of
them. sizes.py finds the sizes of axes, ties.py the names that share a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint, Move, Note, NoteKind, Tensor, named, onward, origin, uncollected
from ..errors import LayoutError
from ..messages import many
from ..moves.part import Part
from . import counts, doubts, merge, operations, provenance, resize, sizes, ties
from .assign import Assignment, Group, Names, Place, assign, translated
from .problems import Problems, refuse_unmatched
from .provenance import Moved

if TYPE_CHECKING:
    from .converter import Converter, Resize, Rule
    from .templates import Template

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
    whole, untied = ties.untied(converter, checkpoint)
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
    made = whole.with_tensors(out.tensors, *untied, *out.notes(found))
    kept = {n: w.target for n, w in out.went.items() if w.target and not converter.rules[w.rule].pattern}
    made = replace(made, ties=ties.renamed(whole.ties, targets), details=named(whole.details, kept, kept.__getitem__))
    result = provenance.remember(converter, made, out.moved, out.sizes.recorded(), whole)
    result, copies = ties.tied(converter, result, out.names)
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
        self.lengths = counts.Lengths(converter)
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
            sources = [merge.same(sources)]
        elif rule.sum and not rule.backward:
            self.added += [s.name for s in sources]
            sources = [merge.summed(sources, zeros=rule.sum == "zeros")]
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
            for place, part_shape, part in merge.unstacked(whole, len(t.stacks)):
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
            resize.bounded(how, t, before)
        new = (resize.backward if rule.backward else resize.forward)(how, t, to or 0, before)
        if text := resize.described(how, t.shape, new.shape, backward=rule.backward):
            self.resized.setdefault(text, []).append(rule.targets[0].render(values))
        return new

    def _source(self, t: Template, members: Mapping[Place, str]) -> Tensor:
        if not t.stacks:
            return self.checkpoint[members[()]]
        return merge.stacked({place: self.checkpoint[n] for place, n in members.items()})

    def _fill(self, index: int, names: list[str], like: Tensor, values: dict[str, str]) -> None:
        """Add the constants of a rule: tensors like its first target, whose elements are read and replaced."""
        for t, blocks in self.converter.rules[index].fills:
            try:
                numbers = [float(self.sizes.number(b)) for b in blocks]
                name, parts = t.render(values), merge.filled(like, numbers)
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
                t = merge.without(t, self.checkpoint[name], numbers)
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
                self.tensors[name] = merge.same(several).renamed(name)
            except LayoutError as e:
                self.problems.broken.append(f"{name}: {e.message}")
        self.problems.check(self.converter.name)

    def counted(self) -> None:
        """Compare numbers in names, lengths of axes and parameters with each other; raise what is wrong."""
        self.problems.refused += counts.refused(self.converter, self.sizes)
        self.problems.uncounted += counts.wrong(self.converter, self.checkpoint, self.tensors, self.sizes)
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


__all__ = ["apply"]
