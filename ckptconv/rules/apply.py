"""Apply a converter: names to rules, rules to groups, groups to tensors. Pure; no tensor is read.

    names ─ assign ─▶ groups (one rule, its captures, the names it takes) ─ build ─▶ tensors under their new names

All that goes wrong is collected and said at once: layouts that do not fit, names given twice, parameters not given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, Note, Tensor, origin, uncollected
from ..errors import LayoutError, NameCollision, UnmatchedTensors, UsageError
from ..messages import fold, listing, printable
from ..moves.part import Part
from . import layout as layouts
from . import provenance
from .assign import Assignment, Group, Names, assign, translated
from .templates import Matcher, Template

if TYPE_CHECKING:
    from .converter import Converter, Of, Rule
from .provenance import Moved

MAX_NEAR = 20  # folded patterns for which the nearest rule is looked for
MAX_COMPARED = 300  # characters of each that are compared for that: a second for every 100 KB of a name was spent


# --- groups to tensors ------------------------------------------------------------------------------------------


@uncollected()
def apply(
    converter: Converter, checkpoint: Checkpoint, params: Mapping[str, Any] | None = None, *, slots: bool = False
) -> Checkpoint:
    """Move every tensor to its new name and layout; nothing is read.

    Raises UnmatchedTensors, NameCollision, LayoutError, UsageError (a parameter is unknown or missing), each listing
    all there are. Optimizer slots and the like are left out with a note; `slots` keeps those that follow a weight.
    `details["moved"]` says for every target by which rule it came, and from what.
    """
    whole, dropped = _untied(converter, checkpoint)
    remembered = bool(converter.forward and converter.one_way)
    found = provenance.recall(converter, whole) if remembered else assign(converter, whole)
    if found.unmatched:
        raise UnmatchedTensors(_unmatched(converter, whole, found), url=checkpoint.urls[0] if checkpoint.urls else None)
    out = _Output(converter, whole, provenance.params(converter, whole) | _params(converter, params or {}))
    for group in found.groups:
        out.build(group)
    out.check()
    if slots:
        out.follow()
    hints = () if converter.forward else converter.notes
    notes = [*dropped, *out.notes(found), *(Note("hint", text) for text in hints)]
    result = whole.with_tensors(out.tensors, *notes)
    moved = {name: {"rule": m.rule, "from": list(m.names)} for name, m in out.moved.items()}
    result = replace(result, ties=out.ties(), details={**checkpoint.details, "moved": moved})
    return _tied(converter, provenance.remember(converter, result, out.moved, out.params, whole), out.names)


class _Output:
    """The targets as they come, and all that goes wrong on the way."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, params: dict[str, int]) -> None:
        self.converter, self.checkpoint, self.params = converter, checkpoint, params
        self.names = Names(converter, checkpoint)
        self.tensors: dict[str, Tensor] = {}
        self.moved: dict[str, Moved] = {}
        self.left: dict[str, tuple[int, str, dict[str, str]]] = {}  # source name: rule, target if only one, captures
        self.clashes: list[str] = []
        self.broken: list[str] = []
        self.missing: dict[str, None] = {}
        self.twins: list[str] = []

    def build(self, group: Group) -> None:
        """Make the targets of one group."""
        rule = self.converter.rules[group.rule]
        names = [n for m in group.members for _, n in sorted(m.items())]
        if not rule.targets:
            self.left.update((n, (group.rule, "", {})) for n in names)
            return
        values = translated(rule, group.values, self.converter.separators) or {}
        try:
            made = self._made(rule, group, values)
        except LayoutError as e:
            shown = ", ".join(f"{n} {list(self.checkpoint[n].shape)}" for n in names[:4])
            self.broken.append(f"{shown} by {rule.label}: {e.message}")
            return
        if group.spelled and len(group.spelled) != len(made):
            self.broken.append(
                f"{', '.join(names[:4])}: the metadata remembers {len(group.spelled)} names, not {len(made)}"
            )
            return
        for i, (name, shape, parts) in enumerate(made):
            first = self.checkpoint[names[0]]
            parts = tuple(p._replace(ops=(*p.ops, *rule.ops)) for p in parts) if rule.ops else parts
            for spelled in group.spelled[i] if group.spelled else [name]:
                self.put(group.rule, names, Tensor(spelled, first.dtype, shape, parts, first.role))
            if i == 0 and rule.fills:
                self._fill(group.rule, names, Tensor(name, first.dtype, shape, parts, first.role), values)
        only = made[0][0] if len(names) == len(made) == 1 else ""
        spoken = values if rule.backward else group.values
        self.left.update((n, (group.rule, only, spoken)) for n in names)

    def _fill(self, index: int, names: list[str], like: Tensor, values: dict[str, str]) -> None:
        """Add the constants of a rule: tensors like its first target, whose elements are read and replaced."""
        for t, blocks in self.converter.rules[index].fills:
            try:
                numbers = [float(self._number(b)) for b in blocks]
                name, parts = t.render(values), _filled(like, numbers)
            except LayoutError as e:
                self.broken.append(f"{t.text}: {e.message}")
                continue
            self.put(index, names, replace(like, name=name, parts=parts))

    def _number(self, value: float | str) -> float:
        if isinstance(value, str):
            if value not in self.params:
                self._infer(value)
            return self.params[value]
        return value

    def _made(self, rule: Rule, group: Group, values: dict[str, str]) -> list[tuple[str, Any, tuple[Part, ...]]]:
        sources = [self._source(rule, t, m) for t, m in zip(rule.sources, group.members, strict=True)]
        if len(sources) > 1 and len({s.dtype.name for s in sources}) > 1:
            raise LayoutError(f"tensors of {' and '.join(sorted({s.dtype.name for s in sources}))} do not join")
        if rule.pattern is None:
            return [(rule.targets[0].render(values), sources[0].shape, sources[0].parts)]
        spoken = values if rule.backward else group.values
        sizes = self._sizes(rule, spoken)
        if group.shapes:
            sizes = rule.pattern.inverse.solve(group.shapes, sizes)
        moved = rule.pattern.apply(sources, sizes)
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
        elif rule.shared or origin(old) == origin(tensor):
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
            rule, target, spoken = self.left[base]
            affix = name.replace(base, "", 1).strip("/.").replace(*self.converter.separators)
            pattern = self.converter.rules[rule].pattern
            shape, parts = tensor.shape, tensor.parts
            if pattern is not None:
                ((shape, parts),) = pattern.apply([tensor], self._sizes(self.converter.rules[rule], spoken))
            new = Tensor(f"{target}{self.converter.separators[1]}{affix}", tensor.dtype, shape, parts, "slot")
            self.left[name] = (rule, new.name, spoken)
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
            if base in known and known[base][1]:
                return base
    return ""


def _filled(like: Tensor, numbers: Sequence[float]) -> tuple[Part, ...]:
    """The parts of a tensor with a constant in each of equal blocks along its first axis."""
    if len(numbers) == 1:
        return tuple(p._replace(ops=(*p.ops, f"fill:{numbers[0]!r}")) for p in like.parts)
    axes = [f"n.b{i}" for i in range(len(numbers))]
    pattern = layouts.parse(f"({' + '.join(axes)}) ... -> {', '.join(f'{a} ...' for a in axes)}")
    size = like.count // len(numbers)
    return tuple(
        p._replace(start=p.start + i * size, ops=(*p.ops, f"fill:{number!r}"))
        for i, (number, (_, parts)) in enumerate(zip(numbers, pattern.apply([like]), strict=True))
        for p in parts
    )


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors of one shape behind each other along a new first axis."""
    first = tensors[0]
    if odd := [t for t in tensors if t.shape != first.shape or t.dtype != first.dtype]:
        a, b = (f"{t.name} is {list(t.shape)} {t.dtype}" for t in (odd[0], first))
        raise LayoutError(f"{a}, but {b}")
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


def _tied(converter: Converter, checkpoint: Checkpoint, names: Names) -> Checkpoint:
    """Give a tensor that the target shares all of its names; the ones that are there come first."""
    if converter.forward:
        return checkpoint
    tensors, ties, metadata = dict(checkpoint.tensors), list(checkpoint.ties), dict(checkpoint.metadata)
    apart: list[str] = []
    for tie in (t for t in converter.ties if all(n in names.shapes for n in t.having)):
        for group in list(_tie_names(tie.names, checkpoint)):
            there = [n for n in group if n in tensors]
            added = [n for n in group if n not in tensors]
            for name in added:
                tensors[name] = tensors[there[0]].renamed(name)
                checkpoint.details["moved"][name] = checkpoint.details["moved"][there[0]]
            if added:
                ties.append((there[0], *added))
            apart += added if tie.apart else []
    if apart:
        metadata[provenance.TIED] = json.dumps(apart, separators=(",", ":"))
    return replace(checkpoint, tensors=tensors, ties=tuple(ties), metadata=metadata)


def _untied(converter: Converter, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Note]]:
    """Backwards: leave out the names that the forward converter added for ties, the last of each group."""
    if not converter.forward:
        return checkpoint, []
    gone: list[str] = []
    remembered = provenance.tied(checkpoint)
    for tie in converter.ties:
        for group in _tie_names(tie.names, checkpoint):
            there = [n for n in group if n in checkpoint]
            known = [n for n in there if converter.matcher.first(n)] or there
            first = origin(checkpoint[known[0]])
            own = {n for n in known if n not in remembered and origin(checkpoint[n]) != first} if tie.apart else set()
            gone += [n for n in there if n != known[0] and n not in own]
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
            text = f.text[:MAX_COMPARED]
            why = "nearest rule: " + max(templates, key=lambda t: SequenceMatcher(None, t[0], text, False).ratio())[1]
        lines.append(f"{f} {shape}" + f" - {why}" * bool(why))
    head = f"no rule of {converter.name} takes {len(found.unmatched)} of {len(checkpoint)} tensors"
    return f"{head}; drop them with --exclude, or add rules:\n{listing(lines, 200)}"


__all__ = ["apply"]
