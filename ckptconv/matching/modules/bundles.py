"""Bundle tensors that are one on the other side, by names and shapes: a stack of layers, a fused QKV.

    encoderblock/query/kernel [12, 768, 64]     blocks.{0..11}.query.weight [64, 768]
    mlp/experts/wi/kernel [8, 512, 2048]        experts.{0..7}.wi.weight [2048, 512]
    attn.in_proj_weight [2304, 768]             query/kernel, key/kernel, value/kernel [768, 768]
    mlp/gate_up/kernel [768, 4096]              gate.weight, up.weight [2048, 768]
    layers/qkv/kernel [12, 768, 2304]           layers.{0..11}.{q,k,v}.weight [768, 768]: first stacked, then fused
    layers/moe/wi [8, 32, 512, 2048]            layers.{0..31}.experts.{0..7}.wi.weight: stacked twice

    LSTMCell_0/ii/kernel, .../hi/{kernel,bias}  kernel [x, 4h], recurrent_kernel [h, 4h], bias [4h], as Keras has them

A bundle replaces its pieces if more tensors of the two sides then have equal sizes. It is matched like any other
tensor, and orders/cuts.py finds how it is cut or joined. The gates of a cell are bundles in Keras' order: i f c o, and
z r h.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod

from ...checkpoint import Tensor
from ..likeness import words
from ..orders.axes import Order, is_kernel
from ..pairs import DIGITS, Bundle, Side, Sides, leaf, parent
from .units import Unit, units

MAX_STEPS = 8  # kinds of bundles that are made one after another
GAIN = 0.02  # least increase of the share of tensors with a counterpart of their size
QKV = ("query", "key", "value")
MAX_TWINS = 20  # kinds of modules of one shape that are tried as parts of one module
FUSIONS = (QKV, ("gate", "up"), ("key", "value"))


Made = dict[str, tuple[Tensor, Bundle]]  # new tensors by the name of the bundle


def bundled(a: Side, b: Side) -> Sides:
    """Replace pieces by bundles on both sides, as long as that brings the sides closer."""
    sides = gated(a), gated(b)
    for _ in range(MAX_STEPS):
        steps = [
            (with_bundles(sides[0], made), sides[1]) if k == 0 else (sides[0], with_bundles(sides[1], made))
            for k, side in enumerate(sides)
            for made in chain(_stacks(side), _fusions(side), _stacks(side, again=True))
        ]
        best = max(steps, key=lambda found: _agreement(*found), default=sides)
        if _agreement(*best) <= _agreement(*sides) + GAIN:
            break
        sides = best
    return sides


def _agreement(a: Side, b: Side) -> float:
    """Return the share of tensors with one of their size on the other side; each piece of a bundle counts."""
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


def with_bundles(side: Side, found: Made) -> Side:
    """Replace the pieces of all bundles, each bundle in the place of its first piece."""
    if not found:
        return side
    first = {bundle.names[0]: t for t, bundle in found.values()}
    gone = {n for _, bundle in found.values() for n in bundle.names}
    made: dict[str, Tensor] = {}
    for name, t in side.tensors.items():
        at = side.bundles[name].names[0] if name in side.bundles else name  # stacks can be fused
        if at in first:
            made[first[at].name] = first[at]
        elif at not in gone:
            made[name] = t
    kinds = {n: side.kinds.get(bundle.names[0], "") for n, (_, bundle) in found.items()}
    bundles = {n: bundle for n, (_, bundle) in found.items()}
    return replace(side, tensors=made, kinds={**side.kinds, **kinds}, bundles={**side.bundles, **bundles})


# --- stacks -----------------------------------------------------------------------------------------------------------


def _stacks(side: Side, *, again: bool = False) -> Iterator[Made]:
    """Yield stacks of everything below a number that counts modules; `again`: stacks of stacks."""
    below: dict[str, dict[str, dict[int, dict[str, str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for name in side.tensors:
        if (name in side.bundles) is not again or (again and side.bundles[name].kind != "stacked"):
            continue
        for m in DIGITS.finditer(name):
            stem, tail = name[: m.start()], name[m.end() :]
            if re.search("[./]", tail):  # otherwise it counts tensors of a module: weight_ih_l0, weight_ih_l1
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
        if inner := side.bundles.get(names[0]):
            bundle = Bundle(tuple(side.named(names)), "fused", inner.shape, len(inner.names), counted=True)
            counts = sorted((len(names), len(inner.names)))
        else:
            bundle, counts = Bundle(names, "stacked", first.shape), [len(names)]
        found[name] = replace(first, name=name, shape=_with_layers(first.name, bundle.shape, counts), parts=()), bundle
    return all(members[i].keys() == members[indices[0]].keys() for i in indices)


# --- query, key and value ---------------------------------------------------------------------------------------------


def _fusions(side: Side) -> Iterator[Made]:
    """Yield fusions of query, key and value in each module; of gate and up; and of other equal modules in one place."""
    for parts in FUSIONS:
        beside: dict[tuple[str, str], dict[str, Unit]] = defaultdict(dict)
        for u in units(side):
            for m in re.finditer(r"[^/.]+", u.home):
                if len(which := set(words(f"{m[0]}/weight")[:-1]) & set(parts)) == 1:
                    beside[u.home[: m.start()], u.home[m.end() :]][which.pop()] = u
        found: Made = {}
        for (head, tail), several in beside.items():
            if several.keys() == set(parts):
                _fuse(
                    side,
                    f"{head}{'qkv' if parts == QKV else '_'.join(parts)}{tail}",
                    [several[w] for w in parts],
                    found,
                )
        if found:
            yield found
    yield from _twins(side)


def _twins(side: Side) -> Iterator[Made]:
    """Yield fusions of two or three modules, the only ones of their shape in a place, in all places of one name."""
    places: dict[str, dict[Hashable, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for u in units(side):
        places[parent(u.home)][u.shape].append(u)
    kinds: dict[tuple[str, ...], list[list[Unit]]] = defaultdict(list)
    for home, classes in places.items():
        for many in classes.values():
            if len(many) in (2, 3) and "norm" not in many[0].kind:
                tails = [u.home[len(home) :] for u in many]
                kinds[(DIGITS.sub("#", home), *tails)].append(many)
    for (_, *named), groups in sorted(kinds.items(), key=lambda x: -len(x[1]))[:MAX_TWINS]:
        found: Made = {}
        for many in groups:
            _fuse(side, f"{parent(many[0].home)}/{'_'.join(t.strip('/.') for t in named)}", many, found)
        if found:
            yield found


def _fuse(side: Side, home: str, several: Sequence[Unit], found: Made) -> None:
    for role, first in several[0].members.items():
        members = [u.members[role] for u in several if role in u.members]
        if not first.shape or len(members) != len(several) or len({t.shape for t in members}) > 1:
            continue
        known = [side.bundles[t.name] for t in members if t.name in side.bundles]
        if any(b.kind != "stacked" for b in known) or len(known) not in (0, len(members)):
            continue
        shape, count = known[0].shape if known else first.shape, len(several)
        whole: tuple[int, ...] = (count * prod(shape),)
        if kernel := is_kernel(leaf(first.name)):
            whole = (shape[0], count * prod(shape[1:]))
        elif role == "weight":
            whole = (count * shape[0], *shape[1:])
        name = f"{home}/{'weight' if role == 'weight' and not kernel else leaf(first.name)}"
        layers = len(known[0].names) if known else 1
        shape_with = _with_layers(first.name, whole, [layers] if known else [])
        bundle = Bundle(tuple(side.named(t.name for t in members)), "fused", shape, layers)
        found[name] = replace(first, name=name, shape=shape_with, parts=()), bundle


def _with_layers(name: str, shape: tuple[int, ...], counts: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a stack; its axes go where the spatial axes of a convolution would: units.oriented."""
    return (*counts, *shape) if is_kernel(leaf(name)) else (*shape, *counts)


LSTM_GATES, GRU_GATES = "ifco", "zrh"
CELL_ROLES = {"x": "kernel", "h": "recurrent_kernel", "b": "bias", "bx": "bias", "bh": "recurrent_bias"}
SPELLED = (
    (re.compile(r"(.+?)[/_.](W|U|b)_?([ifcgozrhn])"), {"W": "x", "U": "h", "b": "b"}),
    (re.compile(r"(.+?)[/_.][wW]_?([xh])_?([ifcgozrn])"), {"x": "x", "h": "h"}),
)
DENSE = re.compile(r"(.+)/([ih])([ifgorzn])/(kernel|bias)")
CANDIDATES = {"g": "c", "n": "h"}  # the candidate has two names


def gated(side: Side) -> Side:
    """Bundle the gates of each cell into one tensor of each kind."""
    cells: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for name in side.tensors:
        if found := parsed(name):
            home, role, gate = found
            cells[home][role, CANDIDATES.get(gate, gate)] = name
    made: Made = {}
    for home, named in cells.items():
        for new, bundle in _gate_bundles(home, named, side).items():
            shape = (*bundle.shape[:-1], bundle.shape[-1] * len(bundle.names))
            made[new] = replace(side.tensors[bundle.names[0]], name=new, shape=shape, parts=()), bundle
    return with_bundles(side, made)


def parsed(name: str) -> tuple[str, str, str] | None:
    """Return a tensor's cell, its role (x, h: kernel of the inputs, the state; b, bx, bh: biases), and its gate."""
    if m := DENSE.fullmatch(name):
        role = {"i": "x", "h": "h"}[m[2]]
        return m[1], role if m[4] == "kernel" else f"b{role}", m[3]
    for pattern, roles in SPELLED:
        if m := pattern.fullmatch(name):
            return m[1], roles[m[2]], m[3]
    return None


def _gate_bundles(home: str, named: Mapping[tuple[str, str], str], side: Side) -> dict[str, Bundle]:
    """Make the bundles of one cell; none if matrices are missing or differ in shape."""
    gates = {gate for role, gate in named if role in "xh"}
    order = next((o for o in (LSTM_GATES, GRU_GATES) if set(o) == gates), "")
    out: dict[str, Bundle] = {}
    for role, last in CELL_ROLES.items():
        names = tuple(named.get((role, g), "") for g in order)
        shapes = {side.tensors[n].shape for n in names if n}
        new = f"{home}/{last}"
        if names and all(names) and len(shapes) == 1 and new not in side.tensors:
            out[new] = Bundle(names, "gates", shapes.pop())
    last = named.get(("bh", "h"), "")
    if order == GRU_GATES and last and f"{home}/bias" in out and f"{home}/recurrent_bias" not in {*out, *side.tensors}:
        out[f"{home}/recurrent_bias"] = Bundle((last,), "gates", side.tensors[last].shape)  # r and z lack one
    if f"{home}/bias" not in out and f"{home}/recurrent_bias" in out:  # the only bias serves both
        out[f"{home}/bias"] = out.pop(f"{home}/recurrent_bias")
    return out if {f"{home}/kernel", f"{home}/recurrent_kernel"} <= set(out) else {}


def parted(order: Order, bundle: Bundle) -> Order:
    """Turn an order of the whole into one of its gates, which are concatenated along the last axis."""
    rank, count = len(bundle.shape), len(bundle.names)
    if count == 1:
        return order
    (*rest, last), right = order.sides(rank)
    if "+" in last:
        terms = [t.strip() for t in last.strip("()").split("+")]
    else:
        terms = [f"{last}.{k}" for k in range(count)]
        right = re.sub(rf"\b{last}\b", f"({' + '.join(terms)})", right)
    return Order(f"{', '.join(' '.join([*rest, t]) for t in terms)} -> {right}", order.sizes)
