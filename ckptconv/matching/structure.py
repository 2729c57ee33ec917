"""Pair modules, tensor by tensor: pieces that are one tensor on the other side and recurrent cells among them."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoint import Tensor
from . import bundle_orders, bundles, cells, gates, modules
from .named import Known, Sides, folds
from .pairs import Pair
from .side import Side
from .units import units

CONSTANTS = {"weight": 1.0, "bias": 0.0}
CONSTANT = "the original normalises without scale or offset: ones and zeros are filled in"


def by_modules(sides: Sides, known: Known, pairs: Sequence[Pair], every: Sides) -> list[Pair]:
    """Pairs of modules, tensor by tensor; pieces on one side that are one tensor on the other among them.

    `sides` are what is left of `every`.
    """
    whole = bundles.bundled(*sides)
    out: list[Pair] = []
    for m in modules.pair(*whole, pairs, every):
        if "joint" in m.a.members or m.a.kind == m.b.kind == "cell":
            out += [_of_cell(m, piece, whole[0]) for piece in cells.cell(m.a, m.b, known.judge)]
        else:
            out += _of_module(m, whole, known)
    return out


def _of_cell(m: modules.Match, piece: cells.Piece, source: Side) -> Pair:
    why = tuple(w for w in (*m.why, piece.why, piece.also) if w)
    bundle = source.bundles.get(piece.sources[0])
    order = gates.parted(piece.order, bundle) if bundle else piece.order
    return Pair(
        tuple(source.named(piece.sources)), piece.targets, order, "names", False, why, _rivals(m, piece.targets[0]),
        piece.axis, m.real or piece.real, piece.fills, piece.length,
    )  # fmt: skip


def _of_module(m: modules.Match, sides: Sides, known: Known) -> list[Pair]:
    """The tensors of two modules by role; of two that have one role each these, as far as they fit."""
    roles = [r for r in m.a.members if r in m.b.members]
    if not roles and len(m.a.members) == len(m.b.members) == 1:
        both = [(m.a.members[m.a.main], m.b.members[m.b.main])]
    else:
        both = [(m.a.members[r], m.b.members[r]) for r in roles]
    if any(folds(a.name, b.name, sides, known) for a, b in both):
        return []
    return [p for a, b in both if (p := _of_role(m, a, b, sides, known))]


def _of_role(m: modules.Match, a: Tensor, b: Tensor, sides: Sides, known: Known) -> Pair | None:
    if a.dtype.kind != b.dtype.kind:
        return None
    if a.name in sides[0].bundles or b.name in sides[1].bundles:
        found = bundle_orders.order(a, b, sides, known.judge)
    else:
        judged = known.judge.order(a, b)
        found = bundle_orders.Found(judged) if judged else None
    if found is None:
        return None
    (order, doubt, real), axis, each = found
    kinds = f"{a.dtype} is to be {b.dtype}" if a.dtype != b.dtype else ""
    why = tuple(w for w in (*(m.why or (modules.NAMES,)), doubt, kinds) if w)
    return Pair(
        tuple(sides[0].named([a.name])), tuple(sides[1].named([b.name])), order, "names", False, why,
        _rivals(m, b.name), axis, m.real or real, each=each,
    )  # fmt: skip


def _rivals(m: modules.Match, name: str) -> tuple[str, ...]:
    """The same tensor of the modules that it could also be."""
    tail = name.removeprefix(m.b.home) if name.startswith(m.b.home) else ""
    return tuple(f"{home}{tail}" for home in m.rivals) if tail else ()


def with_constants(pairs: Sequence[Pair], sides: Sides) -> list[Pair]:
    """The pairs, those of batch normalisations without scale or offset with what stands for these: ones, zeros."""
    homes = [{t.name: u for u in units(side) for t in u.members.values()} for side in sides]
    made = {n for p in pairs for n in p.targets}
    out = []
    for p in pairs:
        a, b = homes[0].get(p.sources[0]), homes[1].get(p.targets[0])
        if a and b and a.kind == b.kind == "batch norm" and b.members["running_mean"].name in p.targets:
            lacking = [r for r in CONSTANTS if r in b.members and r not in a.members and b.members[r].name not in made]
            if lacking:
                fills = tuple((b.members[r].name, (CONSTANTS[r],)) for r in lacking)
                p = p._replace(fills=(*p.fills, *fills), sure=False, why=(*p.why, CONSTANT))
        out.append(p)
    return out
