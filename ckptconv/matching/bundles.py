"""Tensors that one side holds as one and the other in pieces, by names and shapes: a stack of layers, a fused QKV.

    encoderblock/query/kernel [12, 768, 64]     blocks.{0..11}.query.weight [64, 768]
    mlp/experts/wi/kernel [8, 512, 2048]        experts.{0..7}.wi.weight [2048, 512]
    attn.in_proj_weight [2304, 768]             query/kernel, key/kernel, value/kernel [768, 768]

The pieces are replaced by what they would be together wherever that makes more tensors of the two sides of one size; a
bundle is then matched like any other tensor, and layouts.py of the rules cuts or joins it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

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
FUSED = "query, key and value are taken to lie behind each other in this order"

Found = dict[str, tuple[Tensor, Bundle]]  # by the name of the bundle: what it would be


def bundled(a: Side, b: Side) -> tuple[Side, Side]:
    """Both sides with pieces replaced by bundles, where that brings the sides closer."""
    sides = [gated(a), b]
    for _ in range(MAX_STEPS):
        now = _agreement(*sides)
        best = (now + GAIN, -1, sides[0])
        for k in (0, 1):
            for found in chain(_stacks(sides[k]), _fusions(sides[k])):
                side = _with(sides[k], found)
                best = max(
                    best, (_agreement(*(side if j == k else sides[j] for j in (0, 1))), k, side), key=lambda x: x[0]
                )
        if best[1] < 0:
            break
        sides[best[1]] = best[2]
    return sides[0], sides[1]


def _agreement(a: Side, b: Side) -> float:
    """The share of tensors that find one of their size on the other side."""
    counts = [Counter(t.count for t in side.tensors.values()) for side in (a, b)]
    return 2 * (counts[0] & counts[1]).total() / max(1, len(a.tensors) + len(b.tensors))


def _with(side: Side, found: Found) -> Side:
    """The side with the pieces of all bundles replaced, each bundle in the place of its first piece."""
    first = {bundle.names[0]: name for name, (_, bundle) in found.items()}
    gone = {n for _, bundle in found.values() for n in bundle.names}
    made: dict[str, Tensor] = {}
    for name, t in side.tensors.items():
        if name in first:
            made[first[name]] = found[first[name]][0]
        elif name not in gone:
            made[name] = t
    kinds = dict(side.kinds) | {n: side.kinds.get(bundle.names[0], "") for n, (_, bundle) in found.items()}
    return replace(side, tensors=made, kinds=kinds, bundles={**side.bundles, **{n: x for n, (_, x) in found.items()}})


# --- stacks -----------------------------------------------------------------------------------------------------------


def _stacks(side: Side) -> Iterator[Found]:
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
        found: Found = {}
        whole = all(_stack(side, stem, members, found) for stem, members in stems.items())
        if whole and found:
            yield found


def _stack(side: Side, stem: str, members: Mapping[int, Mapping[str, str]], found: Found) -> bool:
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


def _fusions(side: Side) -> Iterator[Found]:
    """All queries, keys and values of one module, fused."""
    beside: dict[tuple[str, ...], dict[str, Unit]] = defaultdict(dict)
    for u in units(side):
        if len(positions := [k for k, w in enumerate(u.words) if w in QKV]) == 1:
            at = _segment(u.home)
            beside[(u.home[: at[0]], u.home[at[1] :])][u.words[positions[0]]] = u
    found: Found = {}
    for (head, tail), three in beside.items():
        if set(three) == set(QKV):
            _fuse(side, f"{head}qkv{tail}", [three[w] for w in QKV], found)
    if found:
        yield found


def _segment(home: str) -> tuple[int, int]:
    """Where the segment of a name stands that says query, key or value."""
    spans = [m.span() for m in re.finditer(r"[^/.]+", home)]
    return next((s for s in spans if set(words(f"{home[slice(*s)]}/weight")[:-1]) & set(QKV)), (0, len(home)))


def _fuse(side: Side, home: str, three: Sequence[Unit], found: Found) -> None:
    for role, first in three[0].members.items():
        members = [u.members[role] for u in three if role in u.members]
        if (
            len(members) != len(three)
            or len({t.shape for t in members}) > 1
            or any(t.name in side.bundles for t in members)
        ):
            continue
        kernel = conventions.is_kernel(leaf(first.name))
        inputs = first.shape[:1] if kernel else ()
        if kernel:
            shape = (*inputs, len(three) * first.count // inputs[0])
        else:
            shape = (len(three) * first.shape[0], *first.shape[1:]) if role == "weight" else (len(three) * first.count,)
        name = f"{home}/{leaf(first.name) if kernel or role != 'weight' else 'weight'}"
        bundle = Bundle(tuple(t.name for t in members), "fused", first.shape)
        found[name] = replace(first, name=name, shape=shape, parts=()), bundle


# --- orders of axes ---------------------------------------------------------------------------------------------------


def order(a: Tensor, b: Tensor, sides: tuple[Side, Side], judge: Judge) -> tuple[Judged, str] | None:
    """The layout that cuts or joins a bundle, and the capture of a stack ('' for a fusion); None if there is none.

    `a` is a tensor of the source and `b` one of the target; one of them is a bundle.
    """
    if a.name in sides[0].bundles and b.name in sides[1].bundles:
        return None
    if b.name in sides[1].bundles:
        bundle = sides[1].bundles[b.name]
        return _cut(a, replace(b, shape=bundle.shape), bundle, judge)
    bundle = sides[0].bundles[a.name]
    back = _cut(b, replace(a, shape=bundle.shape), bundle, Judge({}))
    return None if back is None else (back[0]._replace(order=back[0].order.inverse), back[1])


def _cut(whole: Tensor, piece: Tensor, bundle: Bundle, judge: Judge) -> tuple[Judged, str] | None:
    """How one tensor becomes the pieces."""
    count = len(bundle.names)
    for axis, n in enumerate(whole.shape):
        if bundle.kind == "stacked" and n == count:
            rest = replace(whole, shape=whole.shape[:axis] + whole.shape[axis + 1 :])
            if found := judge.order(rest, piece):
                return found._replace(order=cuts.within(found.order, len(rest.shape), "e", axis)), "e"
        if bundle.kind == "fused" and n % count == 0:
            part = replace(whole, shape=(*whole.shape[:axis], n // count, *whole.shape[axis + 1 :]))
            if found := judge.order(part, piece):
                return Judged(_fused(found.order, len(part.shape), axis, count), FUSED, True), ""
    return None


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
