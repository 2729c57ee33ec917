"""Names that share one tensor: added by a converter, left out by its inverse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint, Note, origin
from ..errors import LayoutError
from . import merge, provenance
from .assign import Names
from .templates import Matcher, Template

if TYPE_CHECKING:
    from .converter import Converter

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
            kept[known[0]] = merge.same([kept[known[0]], *(checkpoint[n] for n in left)])
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
