"""Two checkpoints side by side: what changed and by how much, or the conversion that made one of the other.

rows        [rule, sources, kind, measures] for each tensor of the page; rule -1: none is known
left        source tensors that no row uses, with the reason
missing     what the conversion gives but the target lacks
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import Any

from ..checkpoint import Checkpoint, Move, Tensor
from ..errors import VerifyError
from ..formats.hash_metadata import OPTIONS, stated
from ..messages import in_bytes, many
from ..verification.compare import diff
from ..verification.difference import EXACT, Difference
from .survey import number, text

ALIKE = ("values", "dtype")  # kinds of difference whose values can be laid over each other


class Compared:
    """The differences of two checkpoints. `both` has the tensors of the second, then those that only the first has."""

    def __init__(self, a: Checkpoint, b: Checkpoint, *, values: bool, workers: int = 1) -> None:
        pairs = diff(a, b, EXACT, workers=workers, values=values).pairs
        self.a, self.b = a, b
        self.pairs = {p.b.name if p.b else p.name: p for p in pairs}
        self.renamed = {p.b.name: p.a.name for p in pairs if p.kind == "renamed" and p.a and p.b}
        only = {p.a.name: p.a for p in pairs if p.kind == "only_a" and p.a}
        self.both = replace(b, tensors={**b.tensors, **only})

    def changed(self) -> dict[str, Tensor]:
        """By names of `b`, the tensors of `a` whose values differ."""
        return {name: p.a for name, p in self.pairs.items() if p.kind in ALIKE and p.a and p.values}

    def comparison(self) -> dict[str, Any]:
        """The rows of `both`."""
        origins = [(name, self.renamed.get(name, name)) for name in self.both]
        rows: list[list[Any]] = [
            [-1, [self._tensor(self.a[old])] if old in self.a else [], *self._kind(name)] for name, old in origins
        ]
        return {"mode": "comparison", "rules": [], "rows": rows, "left": [], "missing": []}

    def conversion(self, before: Checkpoint) -> dict[str, Any]:
        """The rows of `b`; `a` is what the conversion gives of `before`."""
        moved = self.a.moved
        olds = {source: t for name, t in before.items() for source in before.sources(name)}
        origins = {name: self.renamed.get(name, name) for name in self.b}
        by = {n: moved.get(o) or (Move("", (o,)) if o in before else None) for n, o in origins.items()}
        rules = list(dict.fromkeys(how.rule for how in by.values() if how))
        used = {n for how in by.values() if how for n in how.sources}
        whys = {n: note.text for note in self.a.notes if note.kind in ("dropped", "skipped") for n in note.names}
        rows: list[list[Any]] = [
            [rules.index(how.rule), [self._tensor(olds[n]) for n in how.sources if n in olds], *self._kind(name)]
            if how else [-1, [], *self._kind(name)]
            for name, how in by.items()
        ]  # fmt: skip
        return {
            "mode": "conversion",
            "rules": [text(r) for r in rules],
            "rows": rows,
            "left": [
                [*self._tensor(t), whys.get(n, "")] for n, t in before.items() if used.isdisjoint(before.sources(n))
            ],
            "missing": [text(p.name) for p in self.pairs.values() if p.kind == "only_a" and p.name in moved],
            "hashes": [hashes.get(n, "") for n in by] if (hashes := _hashes(self.b)) else [],
        }

    def _kind(self, name: str) -> tuple[str, dict[str, Any] | None]:
        pair = self.pairs.get(name)
        return (pair.kind, _measures(pair)) if pair else ("equal", None)

    def _tensor(self, t: Tensor) -> list[Any]:
        return [text(t.name), str(t.dtype), list(t.shape)]


def _hashes(c: Checkpoint) -> dict[str, str]:
    """The content hashes that a file carries; none if they do not belong to its tensors."""
    try:
        return stated(c)
    except VerifyError:
        return {}


def _measures(pair: Difference) -> dict[str, Any] | None:
    v = pair.values
    if v is None:
        return None
    return {
        "differing": v.differing, "elements": v.elements, "first": list(v.first), "unpaired": v.unpaired,
        "abs": number(v.max_abs), "relative": number(v.max_rel), "ulp": number(v.max_ulp), "change": number(v.change),
        "norm": number(v.norm), "apart": number(v.apart),
        "cosine": None if v.cosine is None else round(v.cosine, 12),
    }  # fmt: skip


def provenance(source: str, before: Checkpoint, target: str, after: Checkpoint) -> list[list[str]]:
    """What is known of how the second was made: formats, sizes, and what the file itself records."""
    out = [
        [title, f"{name}: {c.format}, {many(len(c), 'tensor')}, {in_bytes(sum(t.nbytes for t in c.values()))}"]
        for title, name, c in (("Before", source, before), ("After", target, after))
    ]
    if options := after.hashes.get(OPTIONS):
        out.append(["Recorded", f"options {options:.2000}"])
    if hashed := len(after.hashes) - bool(options):
        out.append(["Content hashes in the file", f"{hashed:,}; `ckptconv verify {quote(target)}` checks them"])
    return [[title, text(value)] for title, value in out]


__all__ = ["Compared", "provenance"]
