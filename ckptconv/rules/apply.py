"""Apply a converter: assign names to rules in groups, build tensors from each group, check them; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

All problems of one kind are raised as one error. sizes.py finds the sizes of axes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from ..checkpoint import Checkpoint, Move, Note, NoteKind, Tensor, compose_moves, named, origin, uncollected
from ..errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ..messages import brief, fold, listing, many, nearest, printable
from . import operations
from .assign import (
    TIED,
    Assignment,
    Group,
    Names,
    assign,
    doubtful,
    recorded_groups,
    recorded_ties,
    remember,
    translate,
)
from .converter import GUESSED, Converter, Rule
from .operations import Resize
from .passes import TRACKED, in_roles, literal
from .sizes import Sizes, check_model, filled
from .templates import INT, Matcher, Template

GUESS = re.compile(f"(?m)^# {GUESSED}: (.*)")


@uncollected()
def apply(converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any] | None = None) -> Checkpoint:
    """Give every tensor its new name and layout; no tensor is read, and the argument does not change.

    Optimizer slots and the like are left out with a note.
    `moved` of the result gives the rule and the source names of every target.

    Raises UnmatchedTensors, NameCollision, LayoutError or UsageError (a parameter is unknown or missing), each with
    all cases.
    """
    whole, left_out = _untied(converter, checkpoint)
    names = Names(converter, whole)
    sizes = Sizes(converter, names, params or {})
    found = recorded_groups(names) if converter.forward and converter.one_way else assign(names)
    check_model(sizes)
    if converter.forward:
        left_out += _spared(whole, found)
    if found.unmatched:
        _refuse_unmatched(converter, whole, found)
    taken = {n for g in found.groups if g.rule.targets for n in g.names}
    broken = []
    for group in found.groups:
        try:
            _build(sizes, group, taken)
        except LayoutError as e:
            shown = ", ".join(f"{n} {list(whole[n].shape)}" for n in group.names[:4])
            broken.append(f"{shown} by {group.rule.label}: {e.message}")
    _check_sizes(sizes, broken)
    tensors, origins, twins = _placed(found.groups)
    went = {n: g.targets[0].name if len(g.names) == len(g.targets) == 1 else "" for g in found.groups for n in g.names}
    kept = [n for g in found.groups for n in g.names if went[n] and not g.rule.pattern]
    made = whole.with_tensors(tensors, *left_out, *_notes(sizes, found, twins))
    ties = (tuple(dict.fromkeys(went[n] for n in group if n in went)) for group in whole.ties)
    details = named(whole.details, kept, went.__getitem__)
    if converter.config and not converter.forward:
        lacking = list[str]()
        details["config"] = filled(converter.config, sizes, tensors, lacking)
        details["lacking"] = lacking
    if converter.forward and converter.ranks:
        details["ranks"] = converter.ranks
    made = replace(made, ties=tuple(t for t in ties if len(t) > 1 and all(t)), details=details)
    result = remember(converter, made, origins, twins, sizes.recorded(origins.values()))
    result, copies = _tied(converter, result, names)
    # a rename passes other names by, with a rule that nobody wrote
    moves = {
        n: Move("" if converter.every and len(g.names) == 1 and n == g.names[0] else g.rule.label, tuple(g.names))
        for n, g in origins.items()
    }
    moves |= {n: moves[first] for n, first in copies.items()}
    return replace(result, moved=compose_moves(checkpoint.moved, moves))


# --- build ----------------------------------------------------------------------------------------------------------


def _build(sizes: Sizes, group: Group, taken: Collection[str]) -> None:
    """Make the targets of one group; LayoutError if the shapes do not fit.

    taken: the names of all that becomes part of a target.
    """
    rule, checkpoint = group.rule, sizes.names.checkpoint
    if not rule.targets:
        return
    values = translate(rule, group.values, sizes.converter.separators) or {}
    made = _sources(checkpoint, group)
    for template, blocks in rule.fill if rule.backward else ():
        name = template.render(group.values)
        if name in checkpoint and name not in taken:
            made[0] = operations.without(made[0], checkpoint[name], sizes.numbers(blocks))
            group.emptied.append(name)
    known = sizes.axes(group, values)
    if rule.resize and rule.backward:
        made[0], group.resized = _resized(sizes, group, rule.resize, values, made[0])
    shapes = [t.shape for t in made]
    if rule.pattern:
        made = [Tensor("", made[0].dtype, s, parts) for s, parts in rule.pattern.apply(made, known)]
    lengths = sizes.solved(group, known, shapes)
    if rule.resize and not rule.backward:
        made[0], group.resized = _resized(sizes, group, rule.resize, values, made[0])
    if rule.op:
        sources = [checkpoint[n] for n in group.names]
        ops = tuple(operations.resolved(op, sources, lengths) for op in rule.op[rule.adds :])
        made = [replace(t, parts=tuple(p._replace(ops=(*p.ops, *ops)) for p in t.parts)) for t in made]
    first = checkpoint[group.names[0]]
    group.targets = [
        Tensor(name, first.dtype, t.shape, t.parts, first.role)
        for template, t in zip(rule.targets, made * len(rule.targets) if rule.same else made, strict=True)
        for name, t in _unstacked(rule, template, t, values, known)
    ]
    for template, blocks in () if rule.backward else rule.fill:
        try:
            parts = operations.filled(group.targets[0], sizes.numbers(blocks))
        except LayoutError as e:
            raise LayoutError(f"{template.text}: {e.message}") from e
        group.filled.append(replace(group.targets[0], name=template.render(values), parts=parts))
    if group.spelled:
        if len(group.spelled) != len(group.targets):
            raise LayoutError(f"the metadata records {len(group.spelled)} names, not {len(group.targets)}")
        pairs = zip(group.targets, group.spelled, strict=True)
        group.targets = [t.renamed(n) for t, names in pairs for n in names]


def _sources(checkpoint: Checkpoint, group: Group) -> list[Tensor]:
    """The tensors to which a rule's layout applies: stacked, or compared."""
    rule, out = group.rule, []
    for t, members in zip(rule.sources, group.members, strict=True):
        tensors = {place: checkpoint[n] for place, n in members.items()}
        if rule.same:
            out += [tensors[place] for place in sorted(tensors)]
        else:
            out.append(operations.stacked(tensors) if t.stacks else tensors[()])
    if rule.merges and not rule.backward:
        return [operations.summed(out) if rule.adds else operations.copied(out)]
    if len(kinds := {t.dtype.name for t in out}) > 1:
        raise LayoutError(f"tensors of {' and '.join(sorted(kinds))} cannot be joined")
    return out


def _unstacked(
    rule: Rule, template: Template, t: Tensor, values: Mapping[str, str], known: Mapping[str, int]
) -> Iterator[tuple[str, Tensor]]:
    """A target, or those into which it is split along its stacked axes, or copied, with their names."""
    if not template.stacks:
        yield template.render(values), t
        return
    spell = [rule.where.get(s, INT).inverse.at for s in template.stacks]
    copies = ((place, t) for place in product(*(range(known[s]) for s in template.stacks if rule.same)))
    for place, part in copies if rule.same else operations.unstacked(t, len(spell)):
        spelled = {s: at(i) for s, at, i in zip(template.stacks, spell, place, strict=True)}
        yield template.render({**values, **spelled}), part


def _resized(
    sizes: Sizes, group: Group, how: Resize, values: Mapping[str, str], t: Tensor
) -> tuple[Tensor, tuple[NoteKind, str] | None]:
    """A tensor of which one axis is cropped or padded, or, in an inverse, as long again as it was; and a note."""
    captures, key = values if group.rule.backward else group.values, str(how)
    to, before = (None if n is None else sizes.one(n, captures) for n in (how.to, how.before))
    if to == 0 and isinstance(how.to, str):  # the default of a parameter: the length stays
        return t, None
    if not group.rule.backward:
        made = operations.resized(how, t, to, before, backward=False)
        group.recorded |= {key: t.shape[how.axis]} if before is None else {}
        return made
    if before is None:
        before = group.recorded.get(key)
        operations.bounded(how, t, before)
    return operations.resized(how, t, before, to, backward=True)


# --- check ----------------------------------------------------------------------------------------------------------


def _check_sizes(sizes: Sizes, broken: Sequence[str]) -> None:
    """Raise the first kind of problem that occurred, with all its cases; return if there is none."""
    if sizes.missing:
        wanted = [f"{n}: {why}".rstrip(": ") for n, why in sizes.missing.items()]
        given = " ".join(f"param='{n}=NUMBER'" for n in sizes.missing)
        raise UsageError(f"the converter {sizes.converter.name} needs {given}\n{listing(wanted)}")
    if broken:
        raise LayoutError(
            f"{many(len(broken), 'layout')} {'does' if len(broken) == 1 else 'do'} not fit:\n{listing(broken)}"
        )
    if wrong := list(sizes.wrong()):
        raise LayoutError(f"these parameters do not fit:\n{listing(wrong)}")


def _placed(groups: Sequence[Group]) -> tuple[dict[str, Tensor], dict[str, Group], dict[str, list[str]]]:
    """All targets, the group of each, and the names of its copies, of which the first is taken.

    Raises NameCollision if different tensors would get one name.
    """
    tensors: dict[str, Tensor] = {}
    origins: dict[str, Group] = {}
    twins: dict[str, list[str]] = {}
    clashes = []
    for group in groups:
        for t in (*group.targets[:1], *group.filled, *group.targets[1:]):
            first, old = origins.setdefault(t.name, group), tensors.setdefault(t.name, t)
            if old is t:
                continue
            if origin(old) == origin(t):
                twins.setdefault(t.name, []).extend(group.names)
                continue
            one, other = (
                f"{', '.join(map(printable, g.names))} ({f'by {g.rule.label}' if [*g.names] != [t.name] else 'kept'})"
                for g in (first, group)
            )
            clashes.append(f"{printable(t.name)}: from {one} and {other}")
    if clashes:
        raise NameCollision(f"more than one tensor would have these names:\n{listing(clashes)}")
    return tensors, origins, twins


def _spared(checkpoint: Checkpoint, found: Assignment) -> list[Note]:
    """Leave out, for an inverse, what only PyTorch has: further names of a weight that is taken, and counters."""
    owners = checkpoint.owners()
    taken = {owners[n] for g in found.groups for n in g.names}
    left = dict.fromkeys(n for n in found.unmatched if owners[n] in taken or n.endswith(TRACKED))
    found.unmatched = [n for n in found.unmatched if n not in left]
    return [Note("skipped", "second names of tied weights, and batch counters", tuple(left))] * bool(left)


MAX_NEAR = 20  # folded patterns for which the nearest rule is sought
FEW = 4  # names that an advice repeats


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
    few = [f"exclude={literal(n)!r}" for n in found.unmatched if len(found.unmatched) <= FEW]
    advice = f"drop them with {' '.join(few) or 'exclude='}, or add rules"
    if 2 * sum(1 for n in found.unmatched if n not in found.reasons) > weights:  # then it is another model's
        made = f" (it is for {converter.source})" if converter.source else ""
        advice = f"it may be the wrong converter{made}; `ckptconv match` proposes rules; or add them"
    raise UnmatchedTensors(
        f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors; "
        f"{advice}:\n{listing(lines, 200)}",
        url=checkpoint.urls[0] if checkpoint.urls else None,
    )


def _notes(sizes: Sizes, found: Assignment, twins: Mapping[str, list[str]]) -> Iterator[Note]:
    """Note what was left out, what was taken once, and which rules matched nothing."""
    converter, checkpoint, groups = sizes.converter, sizes.names.checkpoint, found.groups
    emptied = dict.fromkeys(n for g in groups for n in g.emptied)
    roles = {n: t.role for n, t in checkpoint.tensors.items() if t.role and not converter.every}
    if roles:
        yield Note("skipped", in_roles(Counter(roles.values())), tuple(roles))
    if sizes.configured:
        yield Note("hint", f"read from {' and '.join(sizes.read)}: {', '.join(sizes.configured)}")
    kinds: list[tuple[NoteKind, str, Iterable[str]]] = [
        (
            "skipped", "the target has no place for them",
            (n for g in groups if not g.targets for n in g.names if n not in emptied),
        ),
        ("tied", "copies of other tensors, taken once", chain.from_iterable(twins.values())),
        (
            "tied", "copies that must be equal, compared when they are read",
            (n for g in groups if g.rule.same and not converter.forward for n in g.names[1:]),
        ),
        ("lossy", "added, which rounds and cannot be undone", (n for g in groups if g.rule.adds for n in g.names)),
        ("hint", "must hold what `fill` adds, which is checked when they are read, and are left out", emptied),
    ]  # fmt: skip
    for how in dict.fromkeys(g.resized for g in groups if g.resized):
        kinds.append((*how, [g.targets[0].name for g in groups if g.resized == how]))
    for kind, text, concerned in kinds:
        if tensors := tuple(concerned):
            yield Note(kind, text, tensors)
    used = {g.number for g in groups}
    idle = [r.label for i, r in enumerate(converter.rules) if i not in used and not (r.optional or r.refuse)]
    if idle and not converter.optional:
        yield Note("hint", f"{len(idle)} rules of {converter.name} matched no tensor", tuple(idle))
    if guesses := [why for text in converter.texts for why in GUESS.findall(text)]:
        whys = brief("; ".join(dict.fromkeys("; ".join(guesses).split("; "))))
        marked = f"{many(len(guesses), 'rule')} of {converter.name}.toml marked as a guess by `match` ({whys})"
        yield Note("assumed", f"{marked}; delete each mark when you have checked its rule")
    if not converter.forward:
        yield from doubtful(checkpoint, found)
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
    record = {TIED: json.dumps(apart, separators=(",", ":"))} if apart else {}
    made = replace(checkpoint, tensors=tensors, ties=tuple(ties), metadata={**checkpoint.metadata, **record})
    return made, copies


def _untied(converter: Converter, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """For an inverse, leave out the names that the forward converter added for ties: all but the first of a group.

    What is left out must be a copy of the first, which is compared bit for bit whenever that is read.
    """
    kept, gone = dict(checkpoint.tensors), dict[str, None]()
    remembered = recorded_ties(checkpoint)
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
    note = Note("tied", "equal to the tensors that they are tied to, and left out", tuple(gone))
    return checkpoint.with_tensors({n: t for n, t in kept.items() if n not in gone}), [note]


__all__ = ["apply"]
