"""Tensors that one side holds as one and the other in pieces, by names and shapes: a stack of layers, a fused QKV.

    encoderblock/query/kernel [12, 768, 64]     blocks.{0..11}.query.weight [64, 768]
    mlp/experts/wi/kernel [8, 512, 2048]        experts.{0..7}.wi.weight [2048, 512]
    attn.in_proj_weight [2304, 768]             query/kernel, key/kernel, value/kernel [768, 768]
    mlp/gate_up/kernel [768, 4096]              gate.weight, up.weight [2048, 768]
    layers/qkv/kernel [12, 768, 2304]           layers.{0..11}.{q,k,v}.weight [768, 768]: first stacked, then fused

The pieces are replaced by what they would be together wherever that makes more tensors of the two sides of one size; a
bundle is then matched like any other tensor, and layouts.py of the rules cuts or joins it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import NamedTuple

from ..checkpoint import Tensor
from . import conventions, cuts, orders
from .doubt import Judge, Judged
from .gates import gated
from .orders import LETTERS, Order
from .pairs import DIGITS, leaf
from .side import Bundle, Side
from .units import Unit, units
from .words import words

MAX_STEPS = 8  # kinds of bundles that are made one after another
GAIN = 0.02  # by which the share of tensors that find one of their size must rise
QKV = ("query", "key", "value")
FUSIONS = (QKV, ("gate", "up"), ("key", "value"))
FUSED = "query, key and value are taken to lie behind each other in this order"

Sides = tuple[Side, Side]
Made = dict[str, tuple[Tensor, Bundle]]  # by the name of the bundle: what it would be


def bundled(a: Side, b: Side) -> tuple[Side, Side]:
    """Both sides with pieces replaced by bundles, where that brings the sides closer; by two steps if not by one."""
    sides = gated(a), b
    for _ in range(MAX_STEPS):
        now = _agreement(*sides) + GAIN
        for steps in (_steps, _double_steps):
            best = max(steps(sides), key=lambda found: _agreement(*found), default=sides)
            if _agreement(*best) > now:
                break
        else:
            return sides
        sides = best
    return sides


def _steps(sides: Sides) -> Iterator[Sides]:
    for k in (0, 1):
        for found in chain(_stacks(sides[k]), _fusions(sides[k])):
            yield _replaced(sides, k, found)


def _double_steps(sides: Sides) -> Iterator[Sides]:
    """Stacks alone make nothing alike if all that is left is fused on one side."""
    if not any(any(_fusions(side)) for side in sides):
        return
    for k in (0, 1):
        for stack in _stacks(sides[k]):
            one = _replaced(sides, k, stack)
            for j in (0, 1):
                for fusion in _fusions(one[j]):
                    yield _replaced(one, j, fusion)


def _replaced(sides: Sides, k: int, found: Made) -> Sides:
    side = _with(sides[k], found)
    return (side, sides[1]) if k == 0 else (sides[0], side)


def _agreement(a: Side, b: Side) -> float:
    """The share of tensors that find one of their size on the other side, each piece of a bundle counted."""
    held: list[dict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
    for side, sizes in zip((a, b), held, strict=True):
        for name, t in side.tensors.items():
            sizes[t.count].append(len(side.bundles[name].names) if name in side.bundles else 1)
    total = sum(sum(pieces) for sizes in held for pieces in sizes.values())
    found = 0.0
    for size in held[0].keys() & held[1].keys():
        both = [sizes[size] for sizes in held]
        found += min(map(len, both)) * sum(sum(pieces) / len(pieces) for pieces in both)
    return found / max(1, total)


def _with(side: Side, found: Made) -> Side:
    """The side with the pieces of all bundles replaced, each bundle in the place of its first piece."""
    first = {bundle.names[0]: name for name, (_, bundle) in found.items()}
    gone = {n for _, bundle in found.values() for n in bundle.names}
    made: dict[str, Tensor] = {}
    for name, t in side.tensors.items():
        at = side.bundles[name].names[0] if name in side.bundles else name  # what is stacked can be fused
        if at in first:
            made[first[at]] = found[first[at]][0]
        elif at not in gone:
            made[name] = t
    kinds = dict(side.kinds) | {n: side.kinds.get(bundle.names[0], "") for n, (_, bundle) in found.items()}
    return replace(side, tensors=made, kinds=kinds, bundles={**side.bundles, **{n: x for n, (_, x) in found.items()}})


# --- stacks -----------------------------------------------------------------------------------------------------------


def _stacks(side: Side) -> Iterator[Made]:
    """For each number that counts modules: everything below it, stacked."""
    below: dict[str, dict[str, dict[int, dict[str, str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for name in side.tensors:
        if name in side.bundles:
            continue
        for m in DIGITS.finditer(name):
            stem, tail = name[: m.start()], name[m.end() :]
            if re.search("[./]", tail):  # else it counts tensors of one module: weight_ih_l0, weight_ih_l1
                below[DIGITS.sub("#", stem)][stem][int(m[0])][tail] = name
    for stems in below.values():
        found: Made = {}
        whole = all(_stack(side, stem, members, found) for stem, members in stems.items())
        if whole and found:
            yield found


def _stack(side: Side, stem: str, members: Mapping[int, Mapping[str, str]], found: Made) -> bool:
    """Add the bundles of one run of modules; False if they do not count from 0 or 1 or differ."""
    indices = sorted(members)
    if len(indices) < 2 or indices[0] > 1 or indices[-1] - indices[0] != len(indices) - 1:
        return False
    for tail in members[indices[0]]:
        names = tuple(members[i].get(tail, "") for i in indices)
        shapes = {side.tensors[n].shape for n in names if n}
        name = f"{re.sub(r'[._/-]+$', '', stem)}{tail}"
        if "" in names or len(shapes) > 1 or name in side.tensors:
            return False
        first = side.tensors[names[0]]
        found[name] = (
            replace(first, name=name, shape=(len(names), *first.shape), parts=()),
            Bundle(names, "stacked", first.shape),
        )
    return all(members[i].keys() == members[indices[0]].keys() for i in indices)


# --- query, key and value ---------------------------------------------------------------------------------------------


def _fusions(side: Side) -> Iterator[Made]:
    """All queries, keys and values of one module, fused; or gate and up."""
    for parts in FUSIONS:
        beside: dict[tuple[str, ...], dict[str, Unit]] = defaultdict(dict)
        for u in units(side):
            if len(positions := [k for k, w in enumerate(u.words) if w in parts]) == 1:
                at = _segment(u.home, parts)
                beside[(u.home[: at[0]], u.home[at[1] :])][u.words[positions[0]]] = u
        found: Made = {}
        for (head, tail), several in beside.items():
            if set(several) == set(parts):
                _fuse(
                    side,
                    f"{head}{'qkv' if parts == QKV else '_'.join(parts)}{tail}",
                    [several[w] for w in parts],
                    found,
                )
        if found:
            yield found


def _segment(home: str, parts: Sequence[str]) -> tuple[int, int]:
    """Where the segment of a name stands that says query, key or value."""
    spans = [m.span() for m in re.finditer(r"[^/.]+", home)]
    return next((s for s in spans if set(words(f"{home[slice(*s)]}/weight")[:-1]) & set(parts)), (0, len(home)))


def _fuse(side: Side, home: str, several: Sequence[Unit], found: Made) -> None:
    for role, first in several[0].members.items():
        members = [u.members[role] for u in several if role in u.members]
        if len(members) != len(several) or len({t.shape for t in members}) > 1:
            continue
        known = [side.bundles[t.name] for t in members if t.name in side.bundles]
        if any(b.kind != "stacked" for b in known) or len(known) not in (0, len(members)):
            continue
        layers, shape = (len(known[0].names), known[0].shape) if known else (1, first.shape)
        kernel = conventions.is_kernel(leaf(first.name))
        name = f"{home}/{leaf(first.name) if kernel or role != 'weight' else 'weight'}"
        bundle = Bundle(tuple(side.named(t.name for t in members)), "fused", shape, layers)
        whole = _whole(shape, len(several), kernel=kernel, matrix=role == "weight")
        found[name] = replace(first, name=name, shape=(layers, *whole) if known else whole, parts=()), bundle


def _whole(shape: tuple[int, ...], count: int, *, kernel: bool, matrix: bool) -> tuple[int, ...]:
    """The shape of so many tensors of one shape behind each other."""
    if kernel:
        return (shape[0], count * prod(shape[1:]))
    return (count * shape[0], *shape[1:]) if matrix else (count * prod(shape),)


# --- orders of axes ---------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The layout that cuts or joins a bundle, the capture of a stack ('' for a fusion), and `Pair.each`."""

    judged: Judged
    axis: str = ""
    each: tuple[int, int] | None = None

    @property
    def inverse(self) -> Found:
        each = self.each and (self.each[1], self.each[0])
        return Found(self.judged._replace(order=self.judged.order.inverse), self.axis, each)


def order(a: Tensor, b: Tensor, sides: tuple[Side, Side], judge: Judge) -> Found | None:
    """How the axes of two tensors go, one of which is a bundle, or both; None if there is no way.

    `a` is a tensor of the source and `b` one of the target.
    """
    x, y = sides[0].bundles.get(a.name), sides[1].bundles.get(b.name)
    if y is not None and (x is None or y.kind == "fused"):
        return _cut(a, replace(b, shape=y.shape), y, judge, x)
    if x is None:
        return None
    back = _cut(b, replace(a, shape=x.shape), x, Judge({}), y)
    return back and back.inverse


def _cut(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Found | None:
    """How one tensor becomes the pieces; it can be a stack of its own."""
    if stack or bundle.layers > 1:
        return _layered(whole, piece, bundle, judge, stack)
    count = len(bundle.names)
    for axis, n in enumerate(whole.shape):
        if bundle.kind == "stacked" and n == count:
            rest = _without(whole, axis)
            if found := judge.order(rest, piece):
                return Found(found._replace(order=cuts.within(found.order, len(rest.shape), "e", axis)), "e")
        if bundle.kind == "fused" and n % count == 0:
            part = replace(whole, shape=(*whole.shape[:axis], n // count, *whole.shape[axis + 1 :]))
            if found := judge.order(part, piece):
                return Found(Judged(_fused(found.order, len(part.shape), axis, count), FUSED, True))
    return None


def _layered(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge, stack: Bundle | None) -> Found | None:
    """How one tensor for all layers becomes pieces in each layer; or one in each layer pieces for all layers."""
    if bundle.kind != "fused" or (stack and (stack.kind != "stacked" or bundle.layers > 1)):
        return None
    layers = len(stack.names) if stack else bundle.layers
    if stack:
        whole = replace(whole, shape=stack.shape)
    for axis, n in enumerate((piece if stack else whole).shape):
        if n != layers:
            continue
        one = (whole, _without(piece, axis)) if stack else (_without(whole, axis), piece)
        single = Bundle(bundle.names[:: bundle.layers], "fused", one[1].shape)
        if found := _cut(*one, single, judge, None):
            text = cuts.every_layer(found.judged.order, axis, left=not stack)
            return Found(found.judged._replace(order=text), "e", (layers, 1) if stack else (1, layers))
    return None


def _without(t: Tensor, axis: int) -> Tensor:
    return replace(t, shape=t.shape[:axis] + t.shape[axis + 1 :])


def _fused(order: Order, rank: int, axis: int, count: int) -> Order:
    """The order of one piece as one of the whole, whose axis `axis` holds all pieces behind each other."""
    letters = " ".join(LETTERS[:rank])
    left, _, right = (order.text or f"{letters} -> {letters}").partition("->")
    tokens = orders.tokens(left)
    inside = re.findall("[a-z]", tokens[axis])
    named = [orders.suffixed(tokens[axis].strip("()"), inside, i) for i in range(count)]
    text = " ".join([*tokens[:axis], f"({' + '.join(named)})", *tokens[axis + 1 :]])
    rights = [orders.suffixed(right.strip(), inside, i) for i in range(count)]
    return Order(f"{text} -> {', '.join(rights)}", order.sizes)
