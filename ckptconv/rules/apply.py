"""Apply a converter: assign names to rules in groups, build tensors from each group, check them; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

All problems of one kind are raised as one error. sizes.py finds the sizes of axes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint, Move, Note, NoteKind, Tensor, named, onward, origin, uncollected
from ..errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ..messages import fold, listing, many, nearest, printable
from . import doubts, operations, provenance
from .assign import Assignment, Group, Names, Shape, assign, translated
from .provenance import Moved
from .sizes import Sizes, check_model, uneven
from .templates import Matcher, Template

if TYPE_CHECKING:
    from .converter import Converter, Fill, Rule


@uncollected()
def apply(converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any] | None = None) -> Checkpoint:
    """Give every tensor its new name and layout; no tensor is read, and the argument does not change.

    Optimizer slots and the like are left out with a note.
    `moved` of the result gives the rule and the source names of every target.

    Raises UnmatchedTensors, NameCollision, LayoutError or UsageError (a parameter is unknown or missing), each with
    all cases.
    """
    whole, left_out = _untied(converter, checkpoint)
    remembered = bool(converter.forward and converter.one_way)
    found = provenance.recall(converter, whole) if remembered else assign(converter, whole)
    names = Names(converter, whole)
    taken = {n for g in found.groups if converter.rules[g.rule].targets for n in g.names}
    work = _Work(converter, whole, Sizes(converter, names, params or {}), taken)
    if found.unmatched:
        check_model(converter, whole, work.sizes)  # the cause, if a layer is missing of several that are stacked
        _refuse_unmatched(converter, whole, found)
    built, broken = _built(work, found)
    check_model(converter, whole, work.sizes)
    tensors, moved, clashes = _placed(converter, built)
    _check(work, built, broken, clashes)
    went = {n: b.targets[0].name if len(b.names) == len(b.targets) == 1 else "" for b in built for n in b.names}
    kept = [n for b in built for n in b.names if went[n] and not converter.rules[b.rule].pattern]
    made = whole.with_tensors(tensors, *left_out, *_notes(work, found, built, moved))
    ties = (tuple(dict.fromkeys(went[n] for n in group if n in went)) for group in whole.ties)
    details = named(whole.details, kept, went.__getitem__)
    made = replace(made, ties=tuple(t for t in ties if len(t) > 1 and all(t)), details=details)
    result = provenance.remember(converter, made, moved, work.sizes.recorded(), whole)
    result, copies = _tied(converter, result, names)
    # a rename passes other names by, with a rule that nobody wrote
    moves = {n: Move("" if converter.every and m.names == (n,) else m.rule, m.names) for n, m in moved.items()}
    return replace(result, moved=onward(checkpoint.moved, moves | {n: moves[first] for n, first in copies.items()}))


# --- build ----------------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """What the groups of one conversion share."""

    converter: Converter
    checkpoint: Checkpoint
    sizes: Sizes
    taken: set[str]  # names of what becomes part of a target


class _Built(NamedTuple):
    """What one group becomes."""

    rule: int
    names: list[str]
    targets: list[Tensor]
    filled: Sequence[Tensor] = ()  # constants beside the targets
    emptied: tuple[str, ...] = ()  # constants of an inverse, which are left out
    resized: tuple[NoteKind, str] | None = None
    shape: Shape = ()  # of the first source, if the converter compares the lengths of axes
    lengths: Mapping[str, int] = {}


def _built(work: _Work, found: Assignment) -> tuple[list[_Built], list[str]]:
    """What all groups become, and the layouts that do not fit."""
    built, broken = [], []
    for group in found.groups:
        rule = work.converter.rules[group.rule]
        if not rule.targets:
            built.append(_Built(group.rule, group.names, []))
            continue
        try:
            built.append(_build(work, group, rule))
        except LayoutError as e:
            shown = ", ".join(f"{n} {list(work.checkpoint[n].shape)}" for n in group.names[:4])
            broken.append(f"{shown} by {rule.label}: {e.message}")
    return built, broken


def _build(work: _Work, group: Group, rule: Rule) -> _Built:
    """The targets of one group; LayoutError if the shapes do not fit."""
    values = translated(rule, group.values, work.converter.separators) or {}
    sources = _sources(work, group, rule)
    emptied = []
    for template, blocks in rule.fills if rule.backward else ():
        name = template.render(group.values)
        if name in work.checkpoint and name not in work.taken:
            sources[0] = operations.without(sources[0], work.checkpoint[name], _numbers(work.sizes, blocks))
            emptied.append(name)
    known = work.sizes.axes(rule, group, values)
    resized: tuple[NoteKind, str] | None = None
    if rule.resize and rule.backward:
        sources[0], resized = _resized(work, group, rule, values, sources[0], known)
    made = sources
    if rule.pattern:
        made = [Tensor("", sources[0].dtype, s, parts) for s, parts in rule.pattern.apply(sources, known)]
    if rule.resize and not rule.backward:
        made[0], resized = _resized(work, group, rule, values, made[0], known)
    shapes = [t.shape for t in sources]
    lengths: Mapping[str, int] = {}
    if rule.pattern and (any(map(operations.scales, rule.ops)) or work.converter.axes.keys() & rule.pattern.names):
        lengths = rule.pattern.sizes(shapes, known)
    if ops := [operations.resolved(op, sources, lengths) for op in rule.ops]:
        made = [replace(t, parts=tuple(p._replace(ops=(*p.ops, *ops)) for p in t.parts)) for t in made]
    first = work.checkpoint[group.names[0]]
    targets = [
        Tensor(name, first.dtype, t.shape, t.parts, first.role)
        for template, t in zip(rule.targets, made * len(rule.targets) if rule.same else made, strict=True)
        for name, t in _unstacked(rule, template, t, values)
    ]
    filled = []
    for template, blocks in () if rule.backward else rule.fills:
        try:
            parts = operations.filled(targets[0], _numbers(work.sizes, blocks))
        except LayoutError as e:
            raise LayoutError(f"{template.text}: {e.message}") from e
        filled.append(replace(targets[0], name=template.render(values), parts=parts))
    if group.spelled:
        if len(group.spelled) != len(targets):
            raise LayoutError(f"the metadata records {len(group.spelled)} names, not {len(targets)}")
        targets = [t.renamed(n) for t, names in zip(targets, group.spelled, strict=True) for n in names]
    return _Built(group.rule, group.names, targets, filled, tuple(emptied), resized, shapes[0], lengths)


def _sources(work: _Work, group: Group, rule: Rule) -> list[Tensor]:
    """The tensors to which a rule's layout applies: stacked, compared or added."""
    out = []
    for t, members in zip(rule.sources, group.members, strict=True):
        tensors = {place: work.checkpoint[n] for place, n in members.items()}
        out.append(operations.stacked(tensors) if t.stacks else tensors[()])
    if rule.same and not rule.backward:
        return [operations.copied(out)]
    if len(kinds := {t.dtype.name for t in out}) > 1:
        raise LayoutError(f"tensors of {' and '.join(sorted(kinds))} cannot be joined")
    return out


def _unstacked(rule: Rule, template: Template, t: Tensor, values: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    """A target, or those into which it is split along its stacked axes, with their names."""
    if not template.stacks:
        yield template.render(values), t
        return
    spell = [rule.where[s].inverse.at if s in rule.where else str for s in template.stacks]
    for place, part in operations.unstacked(t, len(spell)):
        spelled = {s: at(i) for s, at, i in zip(template.stacks, spell, place, strict=True)}
        yield template.render({**values, **spelled}), part


def _resized(
    work: _Work, group: Group, rule: Rule, values: Mapping[str, str], t: Tensor, known: Mapping[str, int]
) -> tuple[Tensor, tuple[NoteKind, str] | None]:
    """A tensor of which one axis is cropped or padded, or, in an inverse, as long again as it was; and a note."""
    how = rule.resize
    assert how
    captures = values if rule.backward else group.values
    to, before = (None if n is None else work.sizes.one(n, captures) for n in (how.to, how.before))
    if before is None and (shapes := work.sizes.before(rule, group, values)):
        shapes = list(rule.pattern.inverse.shapes(shapes, known)) if rule.pattern else shapes
        before = dict(enumerate(shapes[0])).get(how.axis)
        operations.bounded(how, t, before)
    return operations.resized(how, t, *((before, to) if rule.backward else (to, before)), backward=rule.backward)


def _numbers(sizes: Sizes, blocks: Fill) -> list[float]:
    """The numbers of `fill`, those of parameters among them."""
    return [float(sizes.param(b) if isinstance(b, str) else b) for b in blocks]


# --- check ----------------------------------------------------------------------------------------------------------


def _placed(converter: Converter, built: Sequence[_Built]) -> tuple[dict[str, Tensor], dict[str, Moved], list[str]]:
    """All targets, where each came from, and the names that several tensors would get; of equal ones the first."""
    tensors: dict[str, Tensor] = {}
    moved: dict[str, Moved] = {}
    clashes = []
    for b in built:
        label = converter.rules[b.rule].label
        for t in (*b.targets[:1], *b.filled, *b.targets[1:]):
            first = moved.setdefault(t.name, Moved(tuple(b.names), label, b.rule, []))
            old = tensors.setdefault(t.name, t)
            if old is not t and origin(old) == origin(t):
                first.twins.extend(b.names)
            elif old is not t:
                one, other = (", ".join(map(printable, names)) for names in (first.names, b.names))
                clashes.append(f"{printable(t.name)}: from {one} (by {first.rule}) and {other} (by {label})")
    return tensors, moved, clashes


def _check(work: _Work, built: Sequence[_Built], broken: Sequence[str], clashes: Sequence[str]) -> None:
    """Raise the first kind of problem that occurred, with all its cases; return if there is none."""
    name, missing = work.converter.name, work.sizes.missing
    if missing:
        wanted = [f"{n}: {why}".rstrip(": ") for n, why in missing.items()]
        given = " ".join(f"param='{n}=NUMBER'" for n in missing)
        raise UsageError(f"the converter {name} needs {given}\n{listing(wanted)}")
    if broken:
        head = "1 layout does" if len(broken) == 1 else f"{len(broken)} layouts do"
        raise LayoutError(f"{head} not fit:\n{listing(broken)}")
    lengths: dict[str, dict[int, str]] = {}
    for b in built:
        for axis in work.converter.axes.keys() & b.lengths.keys():
            lengths.setdefault(axis, {}).setdefault(b.lengths[axis], f"{b.names[0]} {list(b.shape)}")
    if wrong := [*uneven(work.converter, lengths, work.sizes), *work.sizes.denied()]:
        raise LayoutError(f"the parameters do not fit the shapes:\n{listing(wrong)}")
    if clashes:
        raise NameCollision(f"{many(len(clashes), 'name')} would be given twice:\n{listing(clashes)}")


MAX_NEAR = 20  # folded patterns for which the nearest rule is sought


def _refuse_unmatched(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> None:
    """Raise UnmatchedTensors: all of them, folded, each with the reason of a refusal or the nearest rule."""
    labels = {t.text: r.label for r in converter.rules if not r.refuse for t in r.sources}
    lines = []
    for i, f in enumerate(fold(found.unmatched)):
        why = found.reasons.get(f.names[0], "")
        if not why and i < MAX_NEAR and (near := nearest(f.text, labels)):
            why = f"nearest rule: {labels[near[0]]}"
        lines.append(f"{f} {list(checkpoint[f.names[0]].shape)}" + f" - {why}" * bool(why))
    weights = sum(1 for t in checkpoint.values() if converter.every or not t.role)
    advice = "drop them with exclude=, or add rules"
    if 2 * sum(1 for n in found.unmatched if n not in found.reasons) > weights:  # then it is another model's
        made = f" (it is for {converter.source})" if converter.source else ""
        advice = f"it may be the wrong converter{made}: converter='auto' finds one that takes all; or add rules"
    raise UnmatchedTensors(
        f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors; "
        f"{advice}:\n{listing(lines, 200)}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _notes(work: _Work, found: Assignment, built: Sequence[_Built], moved: Mapping[str, Moved]) -> Iterator[Note]:
    """Note what was left out, what was taken once, and which rules matched nothing."""
    converter, checkpoint = work.converter, work.checkpoint
    gone = {n for b in built for n in b.names}
    emptied = {n: None for b in built for n in b.emptied}
    for role in sorted({t.role for t in checkpoint.values() if t.role}):
        names = tuple(n for n, t in checkpoint.tensors.items() if t.role == role and n not in gone)
        if names:
            yield Note("skipped", f"{many(len(names), 'tensor')} with the role {role} (not weights)", names)
    dropped = tuple(n for b in built if not b.targets for n in b.names if n not in emptied)
    if dropped:
        yield Note("skipped", f"{len(dropped)} tensors have no place in the target and were left out", dropped)
    if work.sizes.configured:
        yield Note("hint", f"read from config.json: {', '.join(work.sizes.configured)}")
    if twins := tuple(n for m in moved.values() for n in m.twins):
        yield Note("tied", f"{len(twins)} tensors are copies of others and were taken once", twins)
    same = [] if converter.forward else [b.names[1:] for b in built if converter.rules[b.rule].same]
    if copies := tuple(n for names in same for n in names):
        yield Note("tied", "copies that must be equal, compared when they are read", copies)
    if emptied:
        text = "must hold what `fill` adds, which is checked when they are read, and are left out"
        yield Note("hint", text, tuple(emptied))
    resized: dict[tuple[NoteKind, str], list[str]] = {}
    for b in built:
        if b.resized:
            resized.setdefault(b.resized, []).append(b.targets[0].name)
    yield from (Note(kind, text, tuple(names)) for (kind, text), names in resized.items())
    used = {g.rule for g in found.groups}
    idle = [r.label for i, r in enumerate(converter.rules) if i not in used and not (r.optional or r.refuse)]
    if idle and not converter.optional:
        yield Note("hint", f"{len(idle)} rules of {converter.name} matched no tensor", tuple(idle))
    if not converter.forward:
        yield from doubts.notes(converter, checkpoint, found)
        own = (converter.rules[i].note for i in sorted(used))
        yield from (Note("hint", text) for text in dict.fromkeys((*converter.notes, *own)) if text)


# --- Names that share one tensor: added by a converter, left out by its inverse ---


MAX_ADDED = 100_000  # names that share a tensor


def _groups(templates: Sequence[Template], names: Checkpoint) -> Iterator[tuple[str, ...]]:
    """The names of a tie, once for each set of captures with which one of its templates takes a name."""
    seen = set()
    for matcher in (Matcher([(t, {})]) for t in templates):
        for m in filter(None, map(matcher.first, names)):
            group = tuple(t.render(m.values) for t in templates)
            if group not in seen:
                seen.add(group)
                yield group


def _tied(converter: Converter, checkpoint: Checkpoint, names: Names) -> tuple[Checkpoint, dict[str, str]]:
    """Add the tied names of each shared tensor; return also the name that each added one repeats."""
    if converter.forward or not converter.ties:
        return checkpoint, {}
    tensors, ties = dict(checkpoint.tensors), list(checkpoint.ties)
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
    record = {provenance.TIED: json.dumps(apart, separators=(",", ":"))} if apart else {}
    made = replace(checkpoint, tensors=tensors, ties=tuple(ties), metadata={**checkpoint.metadata, **record})
    return made, copies


def _untied(converter: Converter, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """For an inverse, leave out the names that the forward converter added for ties: all but the first of a group.

    What is left out must be a copy of the first, which is compared bit for bit whenever that is read.
    """
    kept, gone = dict(checkpoint.tensors), dict[str, None]()
    remembered = provenance.tied(checkpoint)
    for tie in converter.ties if converter.forward else ():
        for group in _groups(tie.names, checkpoint):
            there = [n for n in group if n in checkpoint]
            known = [n for n in there if converter.matcher.first(n)] or there
            first = checkpoint[known[0]]
            own = {n for n in known if n not in remembered and origin(checkpoint[n]) != origin(first)}
            left = [n for n in there if n != known[0] and not (tie.apart and n in own)]
            kept[known[0]] = operations.copied([kept[known[0]], *(checkpoint[n] for n in left)])
            gone |= dict.fromkeys(left)
    if not gone:
        return checkpoint, []
    note = Note("tied", "must be equal to what they are tied to, and are left out", tuple(gone))
    return checkpoint.with_tensors({n: t for n, t in kept.items() if n not in gone}), [note]


__all__ = ["apply"]
