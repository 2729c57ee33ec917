"""The way back where names alone do not lead: a converter that is one_way remembers what it did in the metadata.

    metadata["ckptconv.moved"] = {"converter": "hf-tf", "rules": [label, ...], "names": {target: [rule, [from], [copies]]}}

`recall` reads that, and finds for each target the rule that made it and the captures it had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .tensor import Checkpoint

if TYPE_CHECKING:
    from .rewrite import Assignment, Group, Moved
    from .rules import Converter

KEY = "ckptconv.moved"


def remember(converter: Converter, checkpoint: Checkpoint, moved: Mapping[str, Moved]) -> Checkpoint:
    """Write down where every target came from, if the names do not tell; forget it on the way back."""
    metadata = {k: v for k, v in checkpoint.metadata.items() if k != KEY}
    if converter.one_way and not converter.forward:
        labels = {r.label: i for i, r in enumerate(converter.rules)}
        names = {name: [labels[m.rule], m.names, m.twins] for name, m in moved.items()}
        said = {"converter": converter.name, "rules": list(labels), "names": names}
        metadata[KEY] = json.dumps(said, separators=(",", ":"), ensure_ascii=False)
    return replace(checkpoint, metadata=metadata)


def recall(inverse: Converter, checkpoint: Checkpoint) -> tuple[Assignment, dict[str, list[str]]]:
    """The groups that lead back, and for each name as rules see it the names as they were."""
    from .rewrite import Assignment, Names

    forward = inverse.forward
    if forward is None:
        raise UsageError(f"{inverse.name} is no inverse")
    rules, known = _read(inverse, checkpoint)
    names = Names(forward, checkpoint)
    out, spelled = Assignment(), {}
    places = {r.inverse.label: i for i, r in reversed(list(enumerate(r for r in forward.rules if r.targets)))}
    sources: dict[tuple[str, ...], list[str]] = {}
    for target in checkpoint:
        if target in known and len(known[target]) == 3:
            sources.setdefault(tuple(known[target][1]), []).append(target)
        else:
            out.unmatched.append(target)
    for at, (came, targets) in enumerate(sources.items()):
        label = rules[known[targets[0]][0]]
        group = _group(forward, names, came, targets, label, places, at)
        if group is None:
            out.unmatched += targets
            continue
        out.groups.append(group)
        for name in came:
            copies = known[targets[0]][2] if len(came) == 1 else []
            spelled[names.canonical(name)] = [name, *copies]
    return out, spelled


def _read(inverse: Converter, checkpoint: Checkpoint) -> tuple[list[str], dict[str, Any]]:
    try:
        said = json.loads(checkpoint.metadata[KEY])
        rules, known = said["rules"], said["names"]
        if said["converter"] == inverse.name and isinstance(known, dict):
            return list(rules), known
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise UsageError(
        f"{inverse.name} leads back only by the names that its own output remembers in its metadata, and there are "
        f"none of it here ({inverse.one_way})"
    )


def _group(
    forward: Converter,
    names: Any,
    came: tuple[str, ...],
    targets: list[str],
    label: str,
    places: dict[str, int],
    at: int,
) -> Group | None:
    """The application of the inverse rule that gives `came`; None if memory and rules disagree."""
    from .rewrite import Group, translated

    m = forward.matcher.first(names.canonical(came[0]))
    while m is not None and forward.rules[forward.origins[m.index][0]].label != label:
        m = forward.matcher.after(names.canonical(came[0]), m.index)
    if m is None:
        return None
    rule = forward.rules[forward.origins[m.index][0]]
    stack = next((t.stacked for t in rule.sources if t.stacked), "")
    values = translated(rule, {c: v for c, v in m.values.items() if c != stack}, forward.separators)
    if values is None:
        return None
    members: list[dict[int, str]] = []
    for t in rule.targets:
        made = {0: t.render(values)} if not t.stacked else {
            i: t.render({**values, t.stacked: str(i)}) for i in range(len(targets))
        }  # fmt: skip
        if not set(made.values()) <= set(targets):
            return None
        members.append(made)
    return Group(places[rule.inverse.label], values, tuple(members), at)
