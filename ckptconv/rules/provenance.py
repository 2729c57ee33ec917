"""What a converter records in the metadata so that its inverse can undo it; of names only a one-way converter.

    metadata["ckptconv.moved"] = {"converter": NAME, "rules": [label, ...], "names": {target: [rule, [from], [copy]]}}

Every converter records sizes: of parameters, and of axes that the shapes of targets do not determine, by first target:

    metadata["ckptconv.params"] = {"converter": NAME, "params": {name: number}, "sizes": {target: {axis: number}}}

An inverse reads this from a file, which may be forged: what is not as above is taken for absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..errors import UsageError
from .assign import Assignment, Group, Names, assign
from .templates import Matcher

if TYPE_CHECKING:
    from .converter import Converter

KEY = "ckptconv.moved"
TIED = "ckptconv.tied"  # [name, ...]: added by the converter; in other files they may be tensors of their own
PARAMS = "ckptconv.params"  # sizes known only from the source's shapes
OWN = (KEY, TIED, PARAMS)
MAX_SIZE = 2**63  # of an axis


def remember(
    converter: Converter,
    checkpoint: Checkpoint,
    origins: Mapping[str, Group],
    twins: Mapping[str, list[str]],
    sizes: Mapping[str, Any],
) -> Checkpoint:
    """Record sizes, and every target's origin if names do not determine it; an inverse removes the record.

    twins: the names of copies that were left out, by target.
    """
    metadata = {k: v for k, v in checkpoint.metadata.items() if k not in OWN}
    if converter.forward:
        return replace(checkpoint, metadata=metadata)
    records: dict[str, Mapping[str, Any]] = {PARAMS: sizes} if any(sizes.values()) else {}
    if converter.one_way:
        names = {name: [g.number, g.names, twins.get(name, [])] for name, g in origins.items()}
        records[KEY] = {"rules": [r.label for r in converter.rules], "names": names}
    for key, record in records.items():
        text = {"converter": converter.name, **record}
        metadata[key] = json.dumps(text, separators=(",", ":"), ensure_ascii=False)
    return replace(checkpoint, metadata=metadata)


def borrowed(checkpoint: Checkpoint, made: Checkpoint) -> Checkpoint:
    """The checkpoint with the records and doubts of what the converter makes of a template, for its inverse."""
    records = {k: v for k, v in made.metadata.items() if k in (KEY, PARAMS)}
    doubts = (n for n in made.notes if n.kind == "assumed")
    return replace(checkpoint, metadata={**checkpoint.metadata, **records}, notes=(*checkpoint.notes, *doubts))


def _read(checkpoint: Checkpoint, key: str) -> Any:
    """The JSON that the metadata has under a key; None if there is none."""
    try:
        return json.loads(checkpoint.metadata[key])
    except (KeyError, ValueError, RecursionError):
        return None


def recorded(inverse: Converter, checkpoint: Checkpoint) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """The parameters that the forward conversion recorded, and by name the sizes of axes; none for other converters."""
    record = _read(checkpoint, PARAMS)
    ours = inverse.forward and isinstance(record, dict) and record.get("converter") == inverse.name
    tables = {k: v for k, v in record.items() if isinstance(v, dict)} if ours else {}
    signed = {n for r in inverse.rules for _, blocks in r.fills for n in blocks}  # numbers; all others are sizes
    params = {k: v for k, v in tables.get("params", {}).items() if type(v) is int and (v > 0 or k in signed)}
    sizes = {n: own for n, own in tables.get("sizes", {}).items() if type(own) is dict}
    known = {k: v for k, v in params.items() if k in inverse.params}
    return known, {
        n: {k: v for k, v in own.items() if type(v) is int and 0 <= v < MAX_SIZE} for n, own in sizes.items()
    }


def tied(checkpoint: Checkpoint) -> set[str]:
    """The names that were added for ties, if the metadata records them."""
    names = _read(checkpoint, TIED)
    return {n for n in names if isinstance(n, str)} if isinstance(names, list) else set()


def recall(names: Names) -> Assignment:
    """The groups that the inverse of a one-way converter converts, each with the names that the sources had."""
    inverse, checkpoint = names.converter, names.checkpoint
    forward = inverse.forward or inverse
    rows, labels = _names(inverse, checkpoint)
    kept = [i for i, r in enumerate(forward.rules) if r.targets]  # the rules of the inverse
    same = {i: number for number, i in enumerate(kept) if labels[i : i + 1] == [forward.rules[i].label]}
    found = assign(names, only={n: same[row[0]] for n, row in rows.items() if row[0] in same})
    filled = Matcher([(t, r.where) for r in inverse.rules for t, _ in r.fills])
    out = Assignment(unmatched=[n for n in found.unmatched if n not in rows or not filled.first(n)])
    for group in found.groups:
        origins, copies = rows[group.names[0]][1:]
        if any(rows[n][1] != origins for n in group.names):
            out.unmatched += group.names
            continue
        group.spelled = tuple((name, *(copies if len(origins) == 1 else ())) for name in origins)
        out.groups.append(group)
    return out


def _names(inverse: Converter, checkpoint: Checkpoint) -> tuple[dict[str, Any], list[Any]]:
    """The recorded names, and the labels of the rules that made them; UsageError if there are none."""
    record = _read(checkpoint, KEY)
    try:
        rules, rows = record["rules"], record["names"]
        if record["converter"] == inverse.name and all(_sound(row, rules) for row in rows.values()):
            return rows, rules
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise UsageError(
        f"{inverse.name} has an inverse only for files that ckptconv converted with it, which record the original "
        f"names, and this one does not ({inverse.one_way}); give a file of the framework as like=, which has the names"
    )


def _sound(row: Any, rules: Any) -> bool:
    """Whether a row is [rule, [from, ...], [copies, ...]]."""
    rule, origins, copies = row
    lists = type(rules) is type(origins) is type(copies) is list
    sound = lists and type(rule) is int and 0 <= rule < len(rules) and origins
    return bool(sound) and all(isinstance(n, str) for n in (*origins, *copies))
