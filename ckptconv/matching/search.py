"""Propose a converter for a source and a target: by values, else by names and modules, with shapes as constraints.

    match(source, target)       Checkpoint, Checkpoint -> Proposal     pairs.py: what is found
        values/                 the same elements, in which order of axes: proved bit for bit; pieces add up to a whole
        names/likeness.py       equal words and numbers; names/match.py: pairs of them, padded vocabularies last
        modules/match.py        modules of one signature, by names, blocks and order
        modules/bundles.py      pieces on one side that are one tensor on the other: stacked layers, fused QKV, gates
        orders/choose.py        how axes move, by conventions or shapes; images; and what is doubtful about it
        orders/cells.py         recurrent cells
    toml(proposal, ...)         rules.py: rules over indices, with evidence; `-c` takes the file as it is
    prove(module, proposal ...) check/: run the module, compare its outputs, try what is marked

Each stage gets what is left of both sides and returns pairs. Nothing is guessed in silence: what was not proved by
values or by equal names and a convention is `assumed`, and `real` where another answer is likely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..checkpoint import Checkpoint
from ..dtypes import DTYPES
from ..errors import CkptError, UsageError
from ..rules import passes
from .modules.match import by_length, by_modules, with_constants
from .modules.units import units
from .orders.choose import Images, Judge, in_front, vectors, voted
from .pairs import Pair, Proposal, Sides, left, weights
from .values.find import Found, find

HOPE = 0.5  # of the smaller side must find a partner
FOLDED = "batch normalisation seems to be folded into other layers of the target"
UNFOLDED = (
    f"{FOLDED}: that rounds and needs its epsilon, so that no rule computes it; "
    "convert into a module that still has it, and torch.nn.utils.fusion.fuse_conv_bn_eval "
    "folds it: docs/match.md has the steps"
)


def match(
    source: Checkpoint,
    target: Checkpoint,
    *,
    values: bool = True,
    workers: int = 1,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Proposal:
    """Propose which tensors of two checkpoints belong together.

    `values` compares contents first; without, or where the target is not trained, names, shapes and the order of
    modules decide, and every pair that these do not settle is marked. `workers` read in parallel. `include` and
    `exclude` are globs, each of names in the source or the target.

    Raises CkptError if not one pair can be proposed. `Proposal.doubt` says when the two may not be one model.
    """
    source, target = passes.select_either(source, target, include, exclude)
    source_cast, notes = _of_one_dtype(source, target)
    sides = weights(source_cast), weights(target)
    found = _by_values(sides, workers) if values else Found()
    notes += found.notes
    if found.trained:
        sides = replace(sides[0], prints=found.prints[0]), replace(sides[1], prints=found.prints[1])
    a, b = (side.tensors for side in sides)
    images = Images(a, sides[0].flattened, in_front(a, b, sides[1].kinds))
    judge = Judge(images, module=bool(sides[1].kinds))
    pairs = list(found.pairs)
    done = set(found.copies), {n for t in found.ties for n in t}
    pairs += by_modules(left(sides, pairs, done), judge, pairs, sides)
    pairs += by_length(left(sides, pairs, done), judge)
    if not found.trained:
        pairs = vectors(with_constants(voted(pairs, sides), sides), sides)
    if [any("running_var" in u.members for u in units(side)) for side in sides] == [True, False]:
        notes.append(UNFOLDED)
        pairs = [p._replace(sure=False, real=True, why=(*p.why, FOLDED)) for p in pairs]
    ties = [*found.ties, *_tied(target, pairs, done[1])]
    copies = found.copies | _copied(source, pairs)
    rest = left(sides, pairs, (done[0] | set(copies), done[1] | {n for t in ties for n in t}))
    return _proposal(sides, pairs, ties, copies, rest, notes, source)


def _of_one_dtype(source: Checkpoint, target: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """The source as if cast to the target's dtype, where each has one."""
    kinds = [{t.dtype.name for t in c.values() if t.dtype.kind == "f" and not t.role} for c in (source, target)]
    if len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]:
        (other,) = kinds[1]
        with suppress(UsageError):  # scales, which are not cast
            return passes.cast(source, DTYPES[other]), [f"the target is {other}: convert with dtype={other!r}"]
    return source, []


def _by_values(sides: Sides, workers: int) -> Found:
    if not all(any(t.parts for t in side.tensors.values()) for side in sides):
        return Found()
    found = find(sides[0].tensors, sides[1].tensors, workers)
    if not found.trained and not found.pairs:
        found.notes.append("no values agree: the target was not made from this source, or it is not trained")
    return found


def _tied(target: Checkpoint, pairs: Sequence[Pair], known: set[str]) -> list[tuple[str, ...]]:
    """Names of the target that share a tensor with one that is paired."""
    done = {n for p in pairs for n in p.targets}
    out = []
    for group in target.ties:
        inside = [n for n in group if n in done]
        rest = [n for n in group if n not in done and n not in known]
        if inside and rest:
            out.append((inside[0], *rest))
    return out


def _copied(source: Checkpoint, pairs: Sequence[Pair]) -> dict[str, str]:
    """Names of the source that share a tensor with one that is paired."""
    used = {n for p in pairs for n in p.sources}
    firsts = ((group, next((n for n in group if n in used), "")) for group in source.ties)
    return {n: first for group, first in firsts if first for n in group if n not in used}


def _proposal(
    sides: Sides, pairs: list[Pair], ties: list[tuple[str, ...]], copies: Mapping[str, str], rest: Sides,
    notes: list[str], source: Checkpoint,
) -> Proposal:  # fmt: skip
    if not pairs:
        if empty := [word for word, side in zip(("source", "target"), sides, strict=True) if not side.tensors]:
            raise UsageError(f"the {' and the '.join(empty)} has no weights: there is nothing to match")
        raise CkptError(f"{_unlike(sides, 0)}: nothing can be proposed")
    paired = sum(len(p.targets) for p in pairs)
    hopeful = paired >= HOPE * max(1, min(len(side.tensors) for side in sides))
    order = {n: k for k, n in enumerate(sides[0].tensors)}
    return Proposal(
        tuple(sorted(pairs, key=lambda p: order[p.sources[0]])), tuple(ties), copies,
        tuple(rest[0].tensors), tuple(rest[1].tensors), tuple(notes),
        tuple(n for n, t in source.items() if not t.role), "" if hopeful else _unlike(sides, paired),
    )  # fmt: skip


def _unlike(sides: Sides, paired: int) -> str:
    shapes = [Counter(tuple(sorted(t.shape)) for t in side.tensors.values()) for side in sides]
    common = (shapes[0] & shapes[1]).total()
    return (
        f"these do not look like the same model: of {len(sides[0].tensors)} tensors in the source and "
        f"{len(sides[1].tensors)} in the target {common} have a shape in common and {paired} could be paired"
    )
