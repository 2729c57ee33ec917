"""What a one-way converter records in the metadata so that its inverse can undo it.

    metadata["ckptconv.moved"] = {"converter": NAME, "rules": [label, ...], "names": {target: [rule, [from], [copy]]},
                                 "shapes": {from: shape}}    if the target's shape does not determine it

`recall` reads it, and finds for each target the rule that made it and the captures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checkpoint import Checkpoint
from ..errors import LayoutError, UsageError
from .assign import Assignment, Group, Names, translated
from .lint import PRIMES

if TYPE_CHECKING:
    from .converter import Converter, Rule


class Moved(NamedTuple):
    """The origin of a target: source names, rule, and the names of copies that were left out."""

    names: tuple[str, ...]
    rule: str
    number: int
    twins: list[str]


KEY = "ckptconv.moved"
TIED = "ckptconv.tied"  # [name, ...]: added by the converter; in other files they may be tensors of their own
PARAMS = "ckptconv.params"  # {"converter": NAME, "params": {name: number}}: sizes known only from the source's shapes


def remember(
    converter: Converter,
    checkpoint: Checkpoint,
    moved: Mapping[str, Moved],
    params: Mapping[str, int],
    before: Checkpoint,
) -> Checkpoint:
    """Record sizes, and every target's origin if names do not determine it; an inverse removes the record."""
    metadata = {k: v for k, v in checkpoint.metadata.items() if k not in (KEY, PARAMS, TIED)}
    if params and not converter.forward:
        metadata[PARAMS] = json.dumps({"converter": converter.name, "params": dict(params)}, separators=(",", ":"))
    if converter.one_way and not converter.forward:
        names = {name: [m.number, m.names, m.twins] for name, m in moved.items()}
        said: dict[str, Any] = {
            "converter": converter.name,
            "rules": [r.label for r in converter.rules],
            "names": names,
        }
        folded = [n for m in moved.values() if _forgets(converter.rules[m.number]) for n in m.names]
        if folded:
            said["shapes"] = {n: list(before[n].shape) for n in folded}
        metadata[KEY] = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    return replace(checkpoint, metadata=metadata)


def _forgets(rule: Rule) -> bool:
    """True if the targets' shapes do not determine the sources', as with heads that are merged into one axis."""
    names = sorted(rule.pattern.names) if rule.pattern else []
    if rule.pattern is None or len(names) > len(PRIMES) or "..." in {a for t in rule.pattern.sources for a in t}:
        return False
    try:
        rule.pattern.inverse.solve(rule.pattern.shapes(dict(zip(names, PRIMES, strict=False))), {})
    except LayoutError:
        return True
    return False


def params(inverse: Converter, checkpoint: Checkpoint) -> dict[str, int]:
    """The sizes that the forward conversion used, if the metadata (which is from a file) records them."""
    try:
        said = json.loads(checkpoint.metadata[PARAMS])
        if inverse.forward and said["converter"] == inverse.name:
            return {k: v for k, v in said["params"].items() if k in inverse.params and type(v) is int and v > 0}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    return {}


def tied(checkpoint: Checkpoint) -> set[str]:
    """The names that were added for ties, if the metadata records them."""
    try:
        said = json.loads(checkpoint.metadata[TIED])
        return {n for n in said if isinstance(n, str)}
    except (KeyError, TypeError, ValueError, RecursionError):
        return set()


def recall(inverse: Converter, checkpoint: Checkpoint) -> Assignment:
    """The groups that an inverse converts, each with the names that the sources had."""
    forward = inverse.forward
    if forward is None:
        raise UsageError(f"{inverse.name} is not an inverse")
    rules, known, shapes = _read(inverse, checkpoint)
    names = Names(forward, checkpoint, [n for row in known.values() for n in (*row[1], *row[2])])
    out = Assignment()
    kept = [i for i, r in enumerate(forward.rules) if r.targets]  # the rules of the inverse
    sources: dict[tuple[str, ...], list[str]] = {}
    for target in checkpoint:
        if target in known:
            sources.setdefault(tuple(known[target][1]), []).append(target)
        else:
            out.unmatched.append(target)
    for at, (came, targets) in enumerate(sources.items()):
        index = known[targets[0]][0]
        same = index in kept and rules[index : index + 1] == [forward.rules[index].label]
        values = _values(forward, names, came, index) if same else None
        group = _group(forward.rules[index], kept.index(index), values, targets, at) if values is not None else None
        if group is None:
            out.unmatched += targets
        else:
            copies = known[targets[0]][2] if len(came) == 1 else []
            spelled = tuple((name, *copies) for name in came)
            out.groups.append(group._replace(shapes=_shapes(came, shapes), spelled=spelled))
    return out


def _shapes(names: tuple[str, ...], shapes: Mapping[str, list[int]]) -> tuple[tuple[int, ...], ...]:
    """The recorded shapes of all names, or () if one is missing."""
    return tuple(tuple(shapes[n]) for n in names) if all(n in shapes for n in names) else ()


def _read(inverse: Converter, checkpoint: Checkpoint) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    try:
        said = json.loads(checkpoint.metadata[KEY])
        rules, known, shapes = said["rules"], said["names"], said.get("shapes", {})
        sized = all(type(n) is int and n >= 0 for shape in shapes.values() for n in shape)
        if said["converter"] == inverse.name and sized and all(_sound(row, rules) for row in known.values()):
            return list(rules), known, dict(shapes)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    raise UsageError(
        f"{inverse.name} leads back only by the names that its own output remembers in its metadata, and there are "
        f"none of it here ({inverse.one_way})"
    )


def _sound(row: Any, rules: Sequence[str]) -> bool:
    """Metadata is from a file: every row must be [rule, [from, ...], [copies, ...]]."""
    rule, came, copies = row
    return 0 <= rule < len(rules) and bool(came) and all(isinstance(n, str) for n in (*came, *copies))


def _values(forward: Converter, names: Names, came: tuple[str, ...], index: int) -> dict[str, str] | None:
    """The captures with which rule `index` took a name, translated to its targets; None if it cannot have taken it."""
    m = forward.matcher.first(names.canonical(came[0]))
    while m is not None and forward.origins[m.number][0] != index:
        m = forward.matcher.after(names.canonical(came[0]), m.number)
    if m is None:
        return None
    rule = forward.rules[index]
    stack = next((t.stacked for t in rule.sources if t.stacked), "")
    return translated(rule, {c: v for c, v in m.values.items() if c != stack}, forward.separators)


def _group(rule: Rule, index: int, values: dict[str, str], targets: list[str], at: int) -> Group | None:
    """The application of a rule's inverse to its targets; None if one of them is missing."""
    members: list[dict[int, str]] = []
    for t in rule.targets:
        spelled = [{**values, t.stacked: str(i)} for i in range(len(targets))] if t.stacked else [values]
        members.append({i: t.render(v) for i, v in enumerate(spelled)})
    if not {n for m in members for n in m.values()} <= set(targets):
        return None
    return Group(index, values, tuple(members), at)
