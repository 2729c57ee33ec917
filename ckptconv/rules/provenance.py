"""What a converter records in the metadata so that its inverse can undo it; of names only a one-way converter.

    metadata["ckptconv.moved"] = {"converter": NAME, "rules": [label, ...], "names": {target: [rule, [from], [copy]]}}

`recall` reads it, and finds for each target the rule that made it and the captures. Every converter records sizes: of
parameters, and the shapes of sources that those of the targets do not determine:

    metadata["ckptconv.params"] = {"converter": NAME, "params": {name: number}, "shapes": {from: shape},
                                   "sizes": {from: {name: number}}}       parameters that are another's for one tensor
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint
from ..errors import UsageError
from .assign import Assignment, Group, Names, Place, lacks, placed, translated
from .templates import Domain, Matcher

if TYPE_CHECKING:
    from .converter import Converter, Rule
    from .templates import Template


class Moved(NamedTuple):
    """The origin of a target: source names, rule, and the names of copies that were left out."""

    names: tuple[str, ...]
    rule: str
    number: int
    twins: list[str]


KEY = "ckptconv.moved"
TIED = "ckptconv.tied"  # [name, ...]: added by the converter; in other files they may be tensors of their own
PARAMS = "ckptconv.params"  # sizes known only from the source's shapes
OWN = (KEY, TIED, PARAMS)


def remember(
    converter: Converter,
    checkpoint: Checkpoint,
    moved: Mapping[str, Moved],
    sizes: Mapping[str, Mapping[str, Any]],
    before: Checkpoint,
) -> Checkpoint:
    """Record sizes, and every target's origin if names do not determine it; an inverse removes the record.

    sizes: parameters, and what is known of single tensors.
    """
    metadata = {k: v for k, v in checkpoint.metadata.items() if k not in (KEY, PARAMS, TIED)}
    shapes = {} if converter.forward else _folded(converter, moved.values(), before)
    own = {k: v for k, v in {**sizes, "shapes": shapes}.items() if v or k == "params"}
    if any(own.values()) and not converter.forward:
        metadata[PARAMS] = json.dumps({"converter": converter.name, **own}, separators=(",", ":"), ensure_ascii=False)
    if converter.one_way and not converter.forward:
        names = {name: [m.number, m.names, m.twins] for name, m in moved.items()}
        record: dict[str, Any] = {
            "converter": converter.name,
            "rules": [r.label for r in converter.rules],
            "names": names,
        }
        metadata[KEY] = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    return replace(checkpoint, metadata=metadata)


def _folded(converter: Converter, moved: Iterable[Moved], before: Checkpoint) -> dict[str, list[int]]:
    """The shapes of sources that those of the targets do not determine, as with heads that are merged into one axis."""
    folding = {i for i, rule in enumerate(converter.rules) if _forgets(rule, given=not converter.one_way)}
    return {n: list(before[n].shape) for m in moved if m.number in folding for n in m.names}


def _forgets(rule: Rule, *, given: bool) -> bool:
    """given: whether the inverse can use `sizes`; of a one-way converter it knows recorded names only."""
    return _resized(rule) or bool(rule.pattern and rule.pattern.inverse.undetermined(rule.sizes if given else ()))


def _resized(rule: Rule) -> bool:
    """Whether a rule changes the length of an axis and does not say what it was."""
    return rule.resize is not None and rule.resize.before is None


def params(inverse: Converter, checkpoint: Checkpoint) -> dict[str, int]:
    """The parameters that the forward conversion used, if the metadata (which is from a file) records them."""
    recorded = _sizes(inverse, checkpoint, "params")
    numbers = {n for r in inverse.rules for _, blocks in r.constants for n in blocks}  # others are sizes
    return {k: v for k, v in recorded.items() if k in inverse.params and type(v) is int and (v > 0 or k in numbers)}


def told(inverse: Converter, checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    """The parameters of single tensors by the names that the sources had, if the metadata records them."""
    recorded = _sizes(inverse, checkpoint, "sizes")
    own = {n: known for n, known in recorded.items() if type(known) is dict}
    return {n: {k: v for k, v in known.items() if type(v) is int and v > 0} for n, known in own.items()}


def _sizes(inverse: Converter, checkpoint: Checkpoint, what: str) -> dict[str, Any]:
    try:
        record = json.loads(checkpoint.metadata[PARAMS])
        if inverse.forward and record["converter"] == inverse.name:
            return dict(record.get(what, {}))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    return {}


def shaped(inverse: Converter, checkpoint: Checkpoint, found: Assignment) -> None:
    """Give each group the shapes of its targets, if the metadata records them."""
    recorded = _sizes(inverse, checkpoint, "shapes")
    shapes = {n: tuple(s) for n, s in recorded.items() if type(s) is list and all(type(i) is int and i >= 0 for i in s)}
    if not shapes:
        return
    for i, group in enumerate(found.groups):
        rule = inverse.rules[group.rule]
        if (rule.pattern and rule.pattern.undetermined()) or _resized(rule):
            found.groups[i] = group._replace(shapes=_before(rule, group, shapes, inverse.separators))


def _before(
    rule: Rule, group: Group, shapes: Mapping[str, tuple[int, ...]], separators: tuple[str, str]
) -> tuple[tuple[int, ...], ...]:
    """The shapes of the targets as the layout sees them, with a stacked axis in front; () if one is not known."""
    values = translated(rule, group.values, separators) or {}
    spelled = [names[0] for names in group.spelled]
    each = len(spelled) // len(rule.targets)  # stacked targets are stacked alike
    out = []
    for k, t in enumerate(rule.targets):
        if spelled:
            name, counts = spelled[k * each], (each,) * len(t.stacks)
        else:
            name, counts = _counted(t, rule, values, shapes)
        if name not in shapes or 0 in counts or (spelled and len(t.stacks) > 1):
            return ()
        out.append((*counts, *shapes[name]))
    return tuple(out)


def _counted(
    t: Template, rule: Rule, values: Mapping[str, str], shapes: Mapping[str, Any]
) -> tuple[str, tuple[int, ...]]:
    """The first name of a target, and how many there are along each axis that it stacks."""
    domains = {s: rule.where[s].inverse if s in rule.where else Domain("int") for s in t.stacks}
    first = {**values, **{s: d.at(0) for s, d in domains.items()}}
    counts = []
    for s, d in domains.items():
        places = map(d.at, range(len(d.table)) if d.table else count())
        counts.append(len(list(takewhile(shapes.__contains__, (t.render({**first, s: p}) for p in places)))))
    return t.render(first), tuple(counts)


def tied(checkpoint: Checkpoint) -> set[str]:
    """The names that were added for ties, if the metadata records them."""
    try:
        recorded = json.loads(checkpoint.metadata[TIED])
        return {n for n in recorded if isinstance(n, str)}
    except (KeyError, TypeError, ValueError, RecursionError):
        return set()


def recall(inverse: Converter, checkpoint: Checkpoint) -> Assignment:
    """The groups that an inverse converts, each with the names that the sources had."""
    forward = inverse.forward
    if forward is None:
        raise UsageError(f"{inverse.name} is not an inverse")
    rules, known = _read(inverse, checkpoint)
    names = Names(forward, checkpoint, [n for row in known.values() for n in (*row[1], *row[2])])
    out = Assignment()
    kept = [i for i, r in enumerate(forward.rules) if r.targets]  # the rules of the inverse
    sources: dict[tuple[str, ...], list[str]] = {}
    for target in checkpoint:
        if target in known:
            sources.setdefault(tuple(known[target][1]), []).append(target)
        else:
            out.unmatched.append(target)
    for at, (origins, targets) in enumerate(sources.items()):
        index = known[targets[0]][0]
        same = index in kept and rules[index : index + 1] == [forward.rules[index].label]
        values = _values(forward, names, origins, index) if same else None
        number = kept.index(index) if values is not None else 0
        group = _group(inverse.rules[number], number, values, targets, at) if values is not None else None
        if group is None:
            out.unmatched += targets
        else:
            copies = known[targets[0]][2] if len(origins) == 1 else []
            spelled = tuple((name, *copies) for name in origins)
            out.groups.append(group._replace(spelled=spelled))
    return out


def _read(inverse: Converter, checkpoint: Checkpoint) -> tuple[list[str], dict[str, Any]]:
    try:
        record = json.loads(checkpoint.metadata[KEY])
        rules, known = record["rules"], record["names"]
        if record["converter"] == inverse.name and all(_sound(row, rules) for row in known.values()):
            return list(rules), known
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    raise UsageError(
        f"{inverse.name} leads back only by the names that its own output remembers in its metadata, and there are "
        f"none of it here ({inverse.one_way}); `ckptconv match` of the original and of what {inverse.name} made of it "
        "proposes rules that lead back without them"
    )


def _sound(row: Any, rules: Sequence[str]) -> bool:
    """Metadata is from a file: every row must be [rule, [from, ...], [copies, ...]]."""
    rule, origins, copies = row
    lists = type(rules) is type(origins) is type(copies) is list
    sound = lists and type(rule) is int and 0 <= rule < len(rules) and origins
    return bool(sound) and all(isinstance(n, str) for n in (*origins, *copies))


def _values(forward: Converter, names: Names, origins: tuple[str, ...], index: int) -> dict[str, str] | None:
    """The captures with which rule `index` took a name, translated to its targets; None if it cannot have taken it."""
    matches = forward.matcher.matches(names.canonical(origins[0]))
    m = next((m for m in matches if forward.origins[m.number][0] == index), None)
    if m is None:
        return None
    rule = forward.rules[index]
    stacks = {s for t in rule.sources for s in t.stacks}
    return translated(rule, {c: v for c, v in m.values.items() if c not in stacks}, forward.separators)


def _group(rule: Rule, index: int, values: dict[str, str], targets: list[str], at: int) -> Group | None:
    """The application of an inverse's rule to targets of the forward one; None if one of them is missing."""
    members: list[dict[Place, str]] = []
    for t in rule.sources:
        matches = ((n, Matcher([(t, rule.where)]).first(n)) for n in targets)
        fit = [(n, m.values) for n, m in matches if m and all(values.get(c, v) == v for c, v in m.values.items())]
        members.append({placed(rule.where, t.stacks, v): n for n, v in fit})
    made = Group(index, values, tuple(members), at)
    return None if lacks(rule, made) else made
