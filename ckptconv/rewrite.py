"""Apply a converter: names to rules, rules to groups, groups to tensors. Pure; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

A rule with several sources takes them together or not at all: what lacks a partner is offered to the next rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from . import layout as layouts
from . import memory
from .errors import LayoutError, NameCollision, UnmatchedTensors, UsageError, listing, printable
from .names import Matcher, Template, fold
from .tensor import Checkpoint, Coded, Note, Part, Span, Tensor

if TYPE_CHECKING:
    from .rules import Converter, Of, Rewrite, Rule

MAX_AGAIN = 8  # replacements of one kind that overlap in a name
MAX_NEAR = 20  # folded patterns for which the nearest rule is looked for


# --- names to groups --------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """What one application of a rule takes: for each source template the names, by their place on a stacked axis."""

    rule: int
    values: dict[str, str]
    members: tuple[dict[int, str], ...]
    at: int  # position of the first name: targets keep the order of their sources
    spelled: tuple[tuple[str, ...], ...] = ()  # the names of the targets where they are remembered: all of each


class Moved(NamedTuple):
    """Where a target came from: the names, the rule, and the names of copies that were not taken."""

    names: tuple[str, ...]
    rule: str
    index: int
    twins: list[str]


@dataclass
class Assignment:
    groups: list[Group] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # why a rule that fits the name did not take it


class Names:
    """The names of a checkpoint as rules see them, rewritten; backwards, the names that the sources had."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
        self.converter, self.checkpoint = converter, checkpoint
        self._known = {n: n for n in (checkpoint if names is None else names)}
        for step in converter.rewrites:
            _rewritten(step, self._known)

    def canonical(self, name: str) -> str:
        return self._known[name]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by the names that conditions and sizes speak of: those of the forward converter's source."""
        out: dict[str, tuple[int, ...]] = {}
        for name, tensor in self.checkpoint.tensors.items():
            if self.converter.forward:
                out.update(_before(self.converter, name, tensor.shape))
            else:
                out[self.canonical(name)] = tensor.shape
        return out


def _rewritten(step: Rewrite, known: dict[str, str]) -> None:
    """Make one replacement everywhere in all names, again and again until nothing changes."""
    if step.given and not any(Matcher([(step.given, {})]).first(n) for n in known.values()):
        return
    pattern, order = step.compiled
    if step.one:
        group = order.index(step.one) + 1
        if len({m[group] for n in known.values() for m in pattern.finditer(n)}) != 1:
            return
    for name, text in known.items():
        for _ in range(1 if step.anchored else MAX_AGAIN):
            new = pattern.sub(lambda m: step.target.render({c: m[i + 1] for i, c in enumerate(order)}), text)
            if new == text:
                break
            text = new
        known[name] = text


def _before(inverse: Converter, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape that a tensor had, as far as its name, rank and shape tell."""
    m = inverse.matcher.first(name)
    while m is not None:
        rule, _ = _origin(inverse, m.index)
        values = translated(rule, m.values, inverse.separators)
        if values is not None and len(rule.sources) == len(rule.targets) == 1 and not rule.targets[0].stacked:
            if not rule.wanted[0] or len(shape) in rule.wanted[0]:
                try:
                    yield rule.targets[0].render(values), _moved(rule, shape)
                except LayoutError:
                    pass
        m = inverse.matcher.after(name, m.index)


def _moved(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
    if rule.pattern is None:
        return shape
    unrolled = rule.pattern.unrolled([shape])
    return unrolled.shapes(unrolled.solve([shape], {}))[0]


def _origin(converter: Converter, index: int) -> tuple[Rule, int]:
    i, k = converter.origins[index]
    return converter.rules[i], k


def translated(rule: Rule, values: Mapping[str, str], separators: tuple[str, str]) -> dict[str, str] | None:
    """The captures as the target spells them; None if one has no value there."""
    out = {}
    wide = {p.name for t in rule.sources for p in t.parts if not isinstance(p, str) and p.kind == "..."}
    for name, value in values.items():
        if name in wide:
            new: str | None = value.replace(*separators) if separators[0] else value
        else:
            new = rule.where[name].forward(value) if name in rule.where else value
        if new is None:
            return None
        out[name] = new
    return out


def assign(converter: Converter, checkpoint: Checkpoint) -> Assignment:
    """Find a rule for every weight; the first that takes it."""
    names = Names(converter, checkpoint)
    weights = [n for n, t in checkpoint.tensors.items() if not t.role or converter.every]
    out = Assignment()
    position = {n: i for i, n in enumerate(weights)}
    pending = [(n, names.canonical(n), -1) for n in weights]
    while pending:
        partial: dict[Any, Group] = {}
        for name, known, after in pending:
            found = _take(names, name, known, after, out)
            if found is None:
                out.unmatched.append(name)
                continue
            index, values = found
            i, k = converter.origins[index]
            rule = converter.rules[i]
            stack = rule.sources[k].stacked
            if len(rule.sources) == 1 and not stack:
                out.groups.append(Group(i, values, ({0: name},), position[name]))
                continue
            place = (
                rule.where[stack].index(values[stack]) if stack in rule.where else int(values[stack]) if stack else 0
            )
            rest = {c: v for c, v in values.items() if c != stack}
            key = (i, *sorted(rest.items()))
            group = partial.setdefault(key, Group(i, rest, tuple({} for _ in rule.sources), position[name]))
            group.members[k].setdefault(place, name)
        pending = _sort_out(converter, names, list(partial.values()), out)
    out.groups.sort(key=lambda g: g.at)
    out.unmatched.sort(key=position.__getitem__)
    return out


def _take(names: Names, name: str, known: str, after: int, out: Assignment) -> tuple[int, dict[str, str]] | None:
    """The next template that takes a name, and its captures."""
    matcher = names.converter.matcher
    m = matcher.first(known) if after < 0 else matcher.after(known, after)
    while m is not None:
        rule, k = _origin(names.converter, m.index)
        why = _refuses(rule, k, m.values, names, names.checkpoint[name].shape)
        if not why:
            return m.index, m.values
        out.reasons.setdefault(name, f"{rule.label} {why}")
        m = matcher.after(known, m.index)
    return None


def _refuses(rule: Rule, k: int, values: dict[str, str], names: Names, shape: tuple[int, ...]) -> str:
    """Why a rule that fits the name does not take the tensor, or ''."""
    if rule.wanted[k] and len(shape) not in rule.wanted[k]:
        return f"wants {' or '.join(map(str, rule.wanted[k]))} axes, the tensor has {len(shape)}"
    spelled = translated(rule, values, names.converter.separators)
    if spelled is None:
        return "would count below zero"
    if rule.having or rule.lacking:
        spoken = spelled if rule.backward else values
        for t in rule.having:
            if t.render(spoken) not in names.shapes:
                return f"wants {t.render(spoken)} beside it"
        for t in rule.lacking:
            if t.render(spoken) in names.shapes:
                return f"wants no {t.render(spoken)} beside it"
    return ""


def _sort_out(
    converter: Converter, names: Names, groups: list[Group], out: Assignment
) -> list[tuple[str, str, int]]:  # fmt: skip
    """Keep the groups that are whole; offer the names of the others to later rules."""
    pending = []
    for group in groups:
        rule = converter.rules[group.rule]
        lacks = _lacks(rule, group)
        if not lacks:
            out.groups.append(group)
            continue
        last = max(i for i, (r, _) in enumerate(converter.origins) if r == group.rule)
        for name in (n for m in group.members for n in m.values()):
            out.reasons.setdefault(name, f"{rule.label} lacks {lacks}")
            pending.append((name, names.canonical(name), last))
    return pending


def _lacks(rule: Rule, group: Group) -> str:
    """The first name that a group would need to be whole, or ''."""
    for t, members in zip(rule.sources, group.members, strict=True):
        if not t.stacked:
            if not members:
                return t.render(group.values)
            continue
        places = rule.where[t.stacked].table if t.stacked in rule.where else ()
        count = len(places) or max((len(m) for m in group.members if m), default=0)
        for i in range(max(count, max(members, default=-1) + 1)):
            if i not in members:
                spelled = rule.where[t.stacked].at(i) if t.stacked in rule.where else str(i)
                return t.render({**group.values, t.stacked: spelled})
    return ""


# --- groups to tensors ------------------------------------------------------------------------------------------


def apply(converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any], *, slots: bool) -> Checkpoint:
    """See Converter.apply."""
    whole, dropped = _untied(converter, checkpoint)
    remembered = bool(converter.forward and converter.one_way)
    found = memory.recall(converter, whole) if remembered else assign(converter, whole)
    if found.unmatched:
        raise UnmatchedTensors(_unmatched(converter, whole, found), url=checkpoint.urls[0] if checkpoint.urls else None)
    out = _Output(converter, whole, _params(converter, params))
    for group in found.groups:
        out.build(group)
    out.check()
    if slots:
        out.follow()
    notes = [*dropped, *out.notes(found), *(Note("hint", text) for text in converter.notes)]
    result = whole.with_tensors(out.tensors, *notes)
    moved = {name: {"rule": m.rule, "from": list(m.names)} for name, m in out.moved.items()}
    result = replace(result, ties=out.ties(), details={**checkpoint.details, "moved": moved})
    return _tied(converter, memory.remember(converter, result, out.moved))


class _Output:
    """The targets as they come, and all that goes wrong on the way."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, params: dict[str, int]) -> None:
        self.converter, self.checkpoint, self.params = converter, checkpoint, params
        self.names = Names(converter, checkpoint)
        self.tensors: dict[str, Tensor] = {}
        self.moved: dict[str, Moved] = {}
        self.left: dict[str, tuple[int, str]] = {}  # source name: its rule, and its target if that is only one
        self.clashes: list[str] = []
        self.broken: list[str] = []
        self.missing: dict[str, None] = {}
        self.twins: list[str] = []

    def build(self, group: Group) -> None:
        """Make the targets of one group."""
        rule = self.converter.rules[group.rule]
        names = [n for m in group.members for _, n in sorted(m.items())]
        if not rule.targets:
            self.left.update((n, (group.rule, "")) for n in names)
            return
        values = translated(rule, group.values, self.converter.separators) or {}
        try:
            made = self._made(rule, group, values)
        except LayoutError as e:
            shown = ", ".join(f"{n} {list(self.checkpoint[n].shape)}" for n in names[:4])
            self.broken.append(f"{shown} by {rule.label}: {e.message}")
            return
        for i, (name, shape, parts) in enumerate(made):
            first = self.checkpoint[names[0]]
            parts = tuple(p._replace(ops=(*p.ops, *rule.ops)) for p in parts) if rule.ops else parts
            for spelled in group.spelled[i] if group.spelled else [name]:
                self.put(group.rule, names, Tensor(spelled, first.dtype, shape, parts, first.role))
        self.left.update((n, (group.rule, made[0][0] if len(names) == len(made) == 1 else "")) for n in names)

    def _made(self, rule: Rule, group: Group, values: dict[str, str]) -> list[tuple[str, Any, tuple[Part, ...]]]:
        sources = [self._source(rule, t, m) for t, m in zip(rule.sources, group.members, strict=True)]
        if len({s.dtype.name for s in sources}) > 1:
            raise LayoutError(f"tensors of {' and '.join(sorted({s.dtype.name for s in sources}))} do not join")
        if rule.pattern is None:
            return [(rule.targets[0].render(values), sources[0].shape, sources[0].parts)]
        spoken = values if rule.backward else group.values
        moved = rule.pattern.apply(sources, self._sizes(rule, spoken))
        out = []
        for t, (shape, parts) in zip(rule.targets, moved, strict=True):
            if not t.stacked:
                out.append((t.render(values), shape, parts))
                continue
            spell = rule.where[t.stacked].inverse.at if t.stacked in rule.where else str
            for i, (part_shape, part) in enumerate(_cut(Tensor("", sources[0].dtype, shape, parts))):
                out.append((t.render({**values, t.stacked: spell(i)}), part_shape, part))
        return out

    def _source(self, rule: Rule, t: Template, members: dict[int, str]) -> Tensor:
        if not t.stacked:
            return self.checkpoint[members[0]]
        return _stack([self.checkpoint[n] for _, n in sorted(members.items())])

    def _sizes(self, rule: Rule, values: Mapping[str, str]) -> dict[str, int]:
        places = {t.stacked: rule.where[t.stacked].table for t in rule.targets if t.stacked in rule.where}
        out = {axis: len(table) for axis, table in places.items()}
        for axis, size in rule.sizes.items():
            found = self._size(size, values)
            if found is not None:
                out[axis] = found
        return out

    def _size(self, size: int | str | Of, values: Mapping[str, str]) -> int | None:
        if isinstance(size, int):
            return size
        if isinstance(size, str):
            if size not in self.params:
                self._infer(size)
            return self.params.get(size)
        shape = self.names.shapes.get(name := size.name.render(values))
        if shape is None or size.axis >= len(shape):
            raise LayoutError(f"the size is read off {name}, which is not there")
        return shape[size.axis]

    def _infer(self, name: str) -> None:
        """Read a parameter off the tensor that tells it."""
        param = self.converter.params[name]
        if param.of:
            pattern = Matcher([(param.of.name, {})])
            for known, shape in self.names.shapes.items():
                if pattern.first(known) and param.of.axis < len(shape):
                    self.params[name] = shape[param.of.axis]
                    return
        if param.default is None:
            self.missing[name] = None
            raise LayoutError(f"the parameter {name} is not given")
        self.params[name] = param.default

    def put(self, index: int, names: Sequence[str], tensor: Tensor) -> None:
        """Add a target, unless its name is taken by another tensor."""
        rule = self.converter.rules[index]
        old = self.tensors.get(tensor.name)
        if old is None:
            self.tensors[tensor.name] = tensor
            self.moved[tensor.name] = Moved(tuple(names), rule.label, index, [])
        elif rule.shared or _same(old, tensor):
            self.twins += names
            self.moved[tensor.name].twins.extend(names)
        else:
            was = self.moved[tensor.name]
            a, b = (", ".join(map(printable, n)) for n in (was.names, names))
            self.clashes.append(f"{printable(tensor.name)}: from {a} (by {was.rule}) and {b} (by {rule.label})")

    def check(self) -> None:
        """Raise what went wrong, all of it."""
        if self.missing:
            wanted = [f"{n}: {self.converter.params[n].help}".rstrip(": ") for n in self.missing]
            given = " ".join(f"--param {n}=NUMBER" for n in self.missing)
            raise UsageError(f"the converter {self.converter.name} needs {given}\n{listing(wanted)}")
        if self.broken:
            raise LayoutError(f"{len(self.broken)} layouts do not fit:\n{listing(self.broken)}")
        if self.clashes:
            raise NameCollision(f"{len(self.clashes)} names would be given twice:\n{listing(self.clashes)}")

    def follow(self) -> None:
        """Let optimizer slots take the way of their weights, where they have one shape and one target."""
        for name, tensor in self.checkpoint.tensors.items():
            base = _base(name, self.left)
            if tensor.role != "slot" or not base or tensor.shape != self.checkpoint[base].shape:
                continue
            rule, target = self.left[base]
            affix = name.replace(base, "", 1).strip("/.").replace(*self.converter.separators)
            pattern = self.converter.rules[rule].pattern
            shape, parts = tensor.shape, tensor.parts
            if pattern is not None:
                ((shape, parts),) = pattern.apply([tensor], self._sizes(self.converter.rules[rule], {}))
            new = Tensor(f"{target}{self.converter.separators[1]}{affix}", tensor.dtype, shape, parts, "slot")
            self.left[name] = (rule, new.name)
            self.put(rule, [name], new)

    def notes(self, found: Assignment) -> Iterator[Note]:
        """What was left out, what was taken once, and which rules found nothing."""
        left = [n for n, t in self.checkpoint.tensors.items() if t.role and n not in self.left]
        for role in sorted({self.checkpoint[n].role for n in left}):
            names = tuple(n for n in left if self.checkpoint[n].role == role)
            yield Note("skipped", f"{len(names)} tensors of the role {role} are no weights and were left out", names)
        idle_groups = [g for g in found.groups if not self.converter.rules[g.rule].targets]
        dropped = tuple(n for g in idle_groups for m in g.members for n in m.values())
        if dropped:
            yield Note("skipped", f"{len(dropped)} tensors have no place in the target and were left out", dropped)
        if self.twins:
            yield Note("tied", f"{len(self.twins)} tensors are copies of others and were taken once", tuple(self.twins))
        used = {g.rule for g in found.groups}
        idle = [r.label for i, r in enumerate(self.converter.rules) if i not in used and not r.optional]
        if idle and not self.converter.optional:
            yield Note("hint", f"{len(idle)} rules of {self.converter.name} found nothing to do", tuple(idle))

    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of the source, under their new names."""
        ties = []
        for group in self.checkpoint.ties:
            targets = tuple(dict.fromkeys(self.left[n][1] for n in group if n in self.left))
            if len(targets) > 1 and all(targets):
                ties.append(targets)
        return tuple(ties)


def _base(name: str, known: Mapping[str, Any]) -> str:
    """The weight that a slot belongs to: the longest run of its segments that is a weight with one target."""
    words = re.split(r"(?<=[/.])", name)
    for length in range(len(words) - 1, 0, -1):
        for start in range(len(words) - length + 1):
            base = "".join(words[start : start + length]).rstrip("/.")
            if known.get(base, ("", ""))[1]:
                return base
    return ""


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same bytes of the same file, moved the same way."""
    if a.shape != b.shape or a.dtype != b.dtype or len(a.parts) != len(b.parts):
        return False
    for p, q in zip(a.parts, b.parts, strict=True):
        same = (
            p.data == q.data
            if isinstance(p.data, Span | Coded) and isinstance(q.data, Span | Coded)
            else p.data is q.data
        )
        if not same or p[1:] != q[1:]:
            return False
    return True


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors of one shape behind each other along a new first axis."""
    first = tensors[0]
    if odd := [t for t in tensors if t.shape != first.shape or t.dtype != first.dtype]:
        raise LayoutError(f"{odd[0].name} is {list(odd[0].shape)} {odd[0].dtype}, but {first.name} is {list(first.shape)} {first.dtype}")  # fmt: skip
    parts = [p._replace(start=p.start + i * first.count) for i, t in enumerate(tensors) for p in t.parts]
    return replace(first, shape=(len(tensors), *first.shape), parts=tuple(parts))


def _cut(tensor: Tensor) -> Iterator[tuple[tuple[int, ...], tuple[Part, ...]]]:
    """Cut a tensor along its first axis; the inverse of _stack."""
    pattern = layouts.parse("(before + 1 + after) ... -> before ..., ..., after ...")
    for i in range(tensor.shape[0]):
        yield pattern.apply([tensor], {"before": i})[1]


# --- parameters, ties, messages ---------------------------------------------------------------------------------


def _params(converter: Converter, given: Mapping[str, Any]) -> dict[str, int]:
    out = {}
    for name, value in given.items():
        if name not in converter.params:
            near = get_close_matches(name, converter.params, 1) or list(converter.params)
            known = f"it takes {', '.join(near)}" if near else "it takes none"
            raise UsageError(f"the converter {converter.name} has no parameter {name!r}; {known}")
        try:
            out[name] = int(value)
        except (TypeError, ValueError):
            raise UsageError(f"the parameter {name} is a whole number, not {value!r}") from None
    return out


def _tie_names(templates: Sequence[Template], names: Checkpoint) -> Iterator[list[str]]:
    """The names of a tie, for each way in which one of its templates takes a name."""
    seen = set()
    for t in templates:
        matcher = Matcher([(t, {})])
        for name in names:
            if m := matcher.first(name):
                group = tuple(other.render(m.values) for other in templates)
                if group not in seen:
                    seen.add(group)
                    yield list(group)


def _tied(converter: Converter, checkpoint: Checkpoint) -> Checkpoint:
    """Give a tensor that the target shares all of its names; the ones that are there come first."""
    if converter.forward:
        return checkpoint
    tensors, ties = dict(checkpoint.tensors), list(checkpoint.ties)
    for templates in converter.ties:
        for group in list(_tie_names(templates, checkpoint)):
            there = [n for n in group if n in tensors]
            for name in (n for n in group if n not in tensors):
                tensors[name] = tensors[there[0]].renamed(name)
                checkpoint.details["moved"][name] = checkpoint.details["moved"][there[0]]
            if len(there) < len(group):
                ties.append(tuple(group))
    return replace(checkpoint, tensors=tensors, ties=tuple(ties))


def _untied(converter: Converter, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """Backwards: leave out the names that the forward converter added for ties, the last of each group."""
    if not converter.forward:
        return checkpoint, []
    gone: list[str] = []
    for templates in converter.ties:
        for group in _tie_names(templates, checkpoint):
            there = [n for n in group if n in checkpoint]
            known = [n for n in there if converter.matcher.first(n)] or there
            gone += [n for n in there if n != known[0]]
    if not gone:
        return checkpoint, []
    note = Note("tied", f"{len(gone)} tensors are taken to equal their twins and were left out", tuple(gone))
    return checkpoint.with_tensors({n: t for n, t in checkpoint.tensors.items() if n not in gone}), [note]


def _unmatched(converter: Converter, checkpoint: Checkpoint, found: Assignment) -> str:
    """All unmatched tensors, folded, each with the nearest rule or the reason why the one that fits did not take it."""
    lines = []
    templates = [(t.text, r.label) for r in converter.rules for t in r.sources]
    for i, f in enumerate(fold(found.unmatched)):
        shape = list(checkpoint[f.names[0]].shape)
        why = found.reasons.get(f.names[0], "")
        if not why and i < MAX_NEAR and templates:
            why = "nearest rule: " + max(templates, key=lambda t: SequenceMatcher(None, t[0], f.text, False).ratio())[1]
        lines.append(f"{f} {shape}" + f" - {why}" * bool(why))
    head = f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors"
    return f"{head}; drop them with --exclude, or add rules:\n{listing(lines, 200)}"


__all__ = ["Assignment", "Group", "Moved", "Names", "apply", "assign", "translated"]
