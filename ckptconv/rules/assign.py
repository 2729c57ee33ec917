"""Assign tensors to rules, in groups that belong together. Pure.

A rule with several sources takes all of them or none: a tensor whose partner is missing is offered to the next rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, Note, NoteKind, Tensor
from ..checkpoint.details import LayerInput
from ..errors import LayoutError, UsageError
from .templates import INT, MAX_NAME, Matcher, any_taken

if TYPE_CHECKING:
    from .converter import Converter, Rewrite, Rule

Place = tuple[int, ...]  # the index of a tensor along each axis that its template stacks
Shape = tuple[int, ...]

MAX_AGAIN = 8  # passes of one replacement over a name in which its matches overlap


@dataclass(slots=True)
class Group:
    """The tensors that one application of a rule takes, and what apply.py makes of them."""

    number: int  # of the rule
    rule: Rule
    values: dict[str, str]  # of the captures
    members: tuple[dict[Place, str], ...]  # for each source template, names by index on the stacked axes
    at: int  # position of the first name: targets keep the order of their sources
    spelled: tuple[tuple[str, ...], ...] = ()  # all names of each target, if the metadata records them
    targets: list[Tensor] = field(default_factory=list)
    filled: list[Tensor] = field(default_factory=list)  # constants beside the targets
    emptied: list[str] = field(default_factory=list)  # constants of an inverse, which are left out
    resized: tuple[NoteKind, str] | None = None
    recorded: dict[str, int] = field(default_factory=dict)  # sizes, for the inverse or by the forward conversion

    @property
    def names(self) -> list[str]:
        return [n for members in self.members for _, n in sorted(members.items())]


@dataclass
class Assignment:
    groups: list[Group] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # why a rule that fits the name did not take it


class Names:
    """The names of a checkpoint as rules see them, after rewrites; for an inverse, the names that the sources had."""

    def __init__(self, converter: Converter, checkpoint: Checkpoint, names: Iterable[str] | None = None) -> None:
        self.converter, self.checkpoint = converter, checkpoint
        self.known = {n: n for n in (checkpoint if names is None else names)}
        for step in converter.rewrites:
            _rewrite(step, self.known)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shapes by the names that conditions and sizes refer to: those of the forward converter's source."""
        if not self.converter.forward:
            return {self.known[name]: t.shape for name, t in self.checkpoint.tensors.items()}
        pairs = ((name, t.shape) for name, t in self.checkpoint.tensors.items())
        return dict(before for name, shape in pairs for before in _before(self.converter, name, shape))


def _rewrite(step: Rewrite, known: dict[str, str]) -> None:
    """Make one replacement everywhere in all names, repeatedly until nothing changes."""
    if step.given and not any_taken(step.given, {}, known.values()):
        return
    texts = {name: text for name, text in known.items() if step.literal in text and len(text) <= MAX_NAME}
    if step.one and len({m[step.one] for text in texts.values() for m in step.compiled.finditer(text)}) != 1:
        return
    for name, text in texts.items():
        for _ in range(1 if step.anchored else MAX_AGAIN):
            new = step.compiled.sub(lambda m: step.target.render(m.groupdict()), text)
            if new == text:
                break
            if len(new) > MAX_NAME:
                raise UsageError(f"rewrite {step.source.text!r}: makes a name of more than {MAX_NAME} characters")
            text = new
        known[name] = text


def _before(inverse: Converter, name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """The names and shapes that a tensor may have had, as far as its name, rank and shape determine them."""
    for m in inverse.matcher.matches(name):
        rule = inverse.rules[inverse.origins[m.number][0]]
        old = sole_target(rule, m.values, inverse.separators)
        if not old or len(rule.sources) > 1 or (rule.wanted[0] and len(shape) not in rule.wanted[0]):
            continue
        if rule.resize:  # the length before is not known here; a later rule would give another answer
            return
        try:
            yield old, rule.pattern.bound([shape], {}).targets[0] if rule.pattern else shape
        except LayoutError:  # only further sizes would determine it
            return


def translate(rule: Rule, values: Mapping[str, str], separators: tuple[str, str]) -> dict[str, str] | None:
    """Translate the captures to the target; None if one has no value there."""
    out = {}
    for name, value in values.items():
        new: str | None = value
        if name in rule.wide:
            new = value.replace(*separators)
        elif name in rule.where:
            new = rule.where[name].forward(value)
        if new is None:
            return None
        out[name] = new
    return out


def sole_target(rule: Rule, values: Mapping[str, str], separators: tuple[str, str]) -> str:
    """The one name to which a rule leads, or '' if it leads to several or that depends on more than a name."""
    new = translate(rule, values, separators)
    if new is not None and len(rule.targets) == 1 and not rule.targets[0].stacks:
        with suppress(LayoutError):
            return rule.targets[0].render(new)
    return ""


def assign(names: Names, *, whole: bool = False, only: Mapping[str, int] | None = None) -> Assignment:
    """Assign each weight to the first rule that takes it.

    whole: end at the first that none takes. only: the one rule that may take each tensor, whatever its conditions.
    """
    converter, out = names.converter, Assignment()
    weights = [n for n, t in names.checkpoint.tensors.items() if not t.role or converter.every]
    position = {n: i for i, n in enumerate(weights)}
    ends = {i: number + 1 for number, (i, _) in enumerate(converter.origins)}
    pending = [(n, 0) for n in weights]
    while pending:
        partial: dict[Any, Group] = {}
        for name, begin in pending:
            taken = _take(names, name, begin, out.reasons, only)
            if taken is None:
                out.unmatched.append(name)
                if whole:
                    return out
                continue
            i, k, values = taken
            rule = converter.rules[i]
            if rule.alone:
                out.groups.append(Group(i, rule, values, ({(): name},), position[name]))
                continue
            stacks = rule.sources[k].stacks
            place = tuple(rule.where.get(s, INT).place(values[s]) for s in stacks)
            rest = {c: v for c, v in values.items() if c not in stacks}
            new = Group(i, rule, rest, tuple({} for _ in rule.sources), position[name])
            group = partial.setdefault((i, *sorted(rest.items())), new)
            if group.members[k].setdefault(place, name) != name:  # two names were rewritten to the same one
                out.unmatched.append(name)
                out.reasons[name] = f"{rule.label} has {group.members[k][place]} in its place"
        pending = []
        for group in partial.values():
            if missing := _lacks(group.rule, group):
                pending += [(n, ends[group.number]) for n in group.names]
                for name in group.names:
                    out.reasons.setdefault(name, f"{group.rule.label} lacks {missing}")
            else:
                out.groups.append(group)
    out.groups.sort(key=lambda g: g.at)
    out.unmatched.sort(key=position.__getitem__)
    return out


def _take(
    names: Names, name: str, begin: int, reasons: dict[str, str], only: Mapping[str, int] | None
) -> tuple[int, int, dict[str, str]] | None:
    """The first rule that takes a name, by its templates from number `begin` on; which of its sources; the captures."""
    converter = names.converter
    for m in converter.matcher.matches(names.known[name], begin):
        i, k = converter.origins[m.number]
        rule = converter.rules[i]
        if only is not None:
            if only.get(name) == i:
                return i, k, m.values
            continue
        why = _refuses(rule, k, m.values, names, name)
        if not why and rule.refuse:
            reasons[name] = rule.refuse
            return None
        if not why:
            return i, k, m.values
        if not rule.refuse:
            reasons.setdefault(name, f"{rule.label} {why}")
    return None


def _refuses(rule: Rule, k: int, values: dict[str, str], names: Names, name: str) -> str:
    """Why a rule that fits the name does not take the tensor, or ''."""
    rank = len(names.checkpoint[name].shape)
    if rule.wanted[k] and rank not in rule.wanted[k]:
        return f"takes {' or '.join(map(str, rule.wanted[k]))} axes, the tensor has {rank}"
    spelled = translate(rule, values, names.converter.separators)
    if spelled is None:
        return "would give a negative or fractional number"
    for templates, wanted in ((rule.having, True), (rule.lacking, False)):
        for t in templates:
            other = t.render(spelled if rule.backward else values)
            if (other in names.shapes) != wanted:
                return f"applies only {'with' if wanted else 'without'} {other}"
    if rule.kind:
        kind, unwanted = layer_kind(names.checkpoint, name), rule.kind[0].startswith("!")
        if (kind in [k.removeprefix("!") for k in rule.kind]) == unwanted:
            return f"is for layers of the kind {' or '.join(rule.kind)}, not {kind!r}"
    if rule.input and input_state(names.checkpoint, name) not in rule.input:
        return f"is for layers whose inputs are {' or '.join(rule.input)}"
    for key, value in rule.metadata.items():
        if names.checkpoint.metadata.get(key) != value:
            return f"is for files whose {key} is {value}"
    return ""


QUANTISED = {"int8", "uint8", "int4", "uint4"}
_DEFAULT = re.compile(r"(?:forward_|backward_)?(.+?)(?:_cell)?(?:_[0-9]+)?")


def layer_kind(checkpoint: Checkpoint, name: str) -> str:
    """The class of the layer that a tensor belongs to, from the file, or else from the layer's default name."""
    kind: str = _stored_otherwise(checkpoint, name) or checkpoint.details.get("kinds", {}).get(name, "")
    if not kind:
        *_, above, owner = ["", "", *name.split("/")[:-1]]
        m = _DEFAULT.fullmatch(above if owner == "cell" else owner)
        kind = m[1] if m else ""
    return kind.removesuffix("_cell")


def _stored_otherwise(checkpoint: Checkpoint, name: str) -> str:
    """'quantised' or 'cudnn' if dtypes or shapes tell that the layer stores its weights as no other does, else ''."""
    above = name.rpartition("/")[0]
    kernel, recurrent, bias, *others = (
        checkpoint.get(f"{above}/{leaf}") for leaf in ("kernel", "recurrent_kernel", "bias", "embeddings", "var_0")
    )
    if any(t and t.dtype.name in QUANTISED for t in (kernel, *others)):
        return "quantised"
    if not recurrent or not bias or len(recurrent.shape) != 2:
        return ""
    units, gates = recurrent.shape
    return "cudnn" if gates in (3 * units, 4 * units) and bias.shape == (2 * gates,) else ""


def input_of(checkpoint: Checkpoint, name: str) -> LayerInput | None:
    """What the layer of a tensor takes, by the config of a Keras model; None if there is none that tells it."""
    return checkpoint.details.get("inputs", {}).get(name)


def input_state(checkpoint: Checkpoint, name: str) -> str:
    taken = input_of(checkpoint, name)
    return taken.state if taken else ""


def _lacks(rule: Rule, group: Group) -> str:
    """The first name that a group lacks to be complete, or ''."""
    places: dict[str, set[int]] = {}
    for t, members in zip(rule.sources, group.members, strict=True):
        for axis, stack in enumerate(t.stacks):
            places.setdefault(stack, set()).update(place[axis] for place in members)
    counts = {s: rule.counts.get(s) or len(found) or 1 for s, found in places.items()}
    for t, members in zip(rule.sources, group.members, strict=True):
        for place in product(*(range(counts[s]) for s in t.stacks)):  # one beyond implies that one is missing
            if place not in members:
                spelled = {s: rule.where.get(s, INT).at(i) for s, i in zip(t.stacks, place, strict=True)}
                return t.render({**group.values, **spelled})
    return ""


def resembles(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if a name that identifies the family is present, was before some were dropped, or none is declared."""
    names = [*checkpoint, *checkpoint.names_in_notes("dropped")]
    return not converter.present or any(any_taken(t, where, names) for t, where in converter.present)


def takes(converter: Converter, checkpoint: Checkpoint) -> bool:
    """True if the family is recognised and some rule takes each weight."""
    known = all(any_taken(t, where, checkpoint) for t, where in converter.present)
    if not known or any(any_taken(t, where, checkpoint) for t, where in converter.absent):
        return False
    return not assign(Names(converter, checkpoint), whole=True).unmatched


# --- What a converter records in the metadata so that its inverse can undo it; of names only a one-way converter ---
#
#     metadata["ckptconv.moved"] = {"converter": NAME, "rules": [label, ...], "names": {target: [rule, [from], [copy]]}}
#
# Every converter records sizes: of parameters, and by first target of axes that the shapes do not determine:
#
#     metadata["ckptconv.params"] = {"converter": NAME, "params": {name: number}, "sizes": {target: {axis: number}}}
#
# An inverse reads this from a file, which may be forged: what is not as above is taken for absent.


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


def with_records_of(checkpoint: Checkpoint, made: Checkpoint) -> Checkpoint:
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


def _record(inverse: Converter, checkpoint: Checkpoint, key: str) -> dict[str, Any]:
    """What the forward conversion recorded under a key; {} if it was another one."""
    record = _read(checkpoint, key)
    ours = inverse.forward and isinstance(record, dict) and record.get("converter") == inverse.name
    return record if ours else {}


def recorded(inverse: Converter, checkpoint: Checkpoint) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """The parameters that the forward conversion recorded, and by name the sizes of axes; none for other converters."""
    record = _record(inverse, checkpoint, PARAMS)
    params, sizes = (v if type(v := record.get(key)) is dict else {} for key in ("params", "sizes"))
    return {k: v for k, v in params.items() if type(v) is int and k in inverse.params}, {
        n: {k: v for k, v in own.items() if type(v) is int and 0 <= v < MAX_SIZE}
        for n, own in sizes.items() if type(own) is dict
    }  # fmt: skip


def recorded_ties(checkpoint: Checkpoint) -> set[str]:
    """The names that were added for ties, if the metadata records them."""
    names = _read(checkpoint, TIED)
    return {n for n in names if isinstance(n, str)} if isinstance(names, list) else set()


def recorded_groups(names: Names) -> Assignment:
    """The groups that the inverse of a one-way converter converts, each with the names that the sources had."""
    inverse, checkpoint = names.converter, names.checkpoint
    forward = inverse.forward or inverse
    rows, labels = _names(inverse, checkpoint)
    kept = [i for i, r in enumerate(forward.rules) if r.targets]  # the rules of the inverse
    same = {i: number for number, i in enumerate(kept) if labels[i : i + 1] == [forward.rules[i].label]}
    found = assign(names, only={n: same[row[0]] for n, row in rows.items() if row[0] in same})
    filled = Matcher([(t, r.where) for r in inverse.rules for t, _ in r.fill])
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
    record = _record(inverse, checkpoint, KEY)
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        rules, rows = record["rules"], record["names"]
        if all(_sound(row, rules) for row in rows.values()):
            return rows, rules
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


# --- What a rule cannot know of the tensors that it takes. A note says so, and only where it applies ---
#
# doubts = ["class", "flatten"]          in a [[rule]]; the keys of DOUBTS


HEADS = {"einsum", "query", "key", "value", "output", "attention_output"}  # (_dense) with an axis of heads
PLAIN = {"conv1d", "conv2d", "conv3d", "Conv"}  # default names of layers for which the rules of convolutions are right


def doubtful(checkpoint: Checkpoint, found: Assignment) -> Iterator[Note]:
    """The doubts of rules about tensors that they took."""
    taken: dict[str, list[str]] = {}
    for group in found.groups:
        for doubt in group.rule.doubts:
            taken.setdefault(doubt, []).extend(group.names)
    for doubt, names in taken.items():
        text, applies = DOUBTS[doubt]
        after = _after_images(checkpoint) if doubt == "flatten" else ()
        if concerned := tuple(n for n in names if applies(checkpoint, n) and (doubt != "flatten" or n in after)):
            yield Note("assumed", text, concerned)


def _after_images(checkpoint: Checkpoint) -> set[str]:
    """Matrices whose rows are a multiple of the channels of a convolution, but the output of no layer before them."""
    shapes = {n: t.shape for n, t in checkpoint.tensors.items() if not t.role}
    channels = {s[-1] for n, s in shapes.items() if len(s) in (4, 5) or (len(s) == 3 and _is_conv1d(checkpoint, n))}
    made = channels | {s[-1] for n, s in shapes.items() if n.endswith("embeddings") and s}
    made |= {k * s[0] for n, s in shapes.items() if n.endswith("recurrent_kernel") and s for k in (1, 2)}
    out = set()
    for n, s in shapes.items():
        if len(s) == 2 and n.endswith(("kernel", "_W", "_W_1", "_W_i", "_W_z")):
            if s[0] not in made and any(c > 1 and s[0] % c == 0 for c in channels):
                out.add(n)
            made.add(s[1])
    return out


def _is_conv1d(checkpoint: Checkpoint, name: str) -> bool:
    """Of a tensor of three axes: also if no name tells, unless it is attention's or an EinsumDense's."""
    kind, leaf = layer_kind(checkpoint, name), name.rpartition("/")[2]
    heads = kind.strip("_").removesuffix("_dense") in HEADS
    return kind == "conv1d" or (leaf in ("kernel", "pointwise_kernel") and not heads)


# The text of a note, and whether it is right for a tensor that a rule takes.
DOUBTS: dict[str, tuple[str, Callable[[Checkpoint, str], bool]]] = {
    "class": (
        "taken for a plain convolution: neither the file nor the layer's name tells whether it is a transposed or a "
        "depthwise one",
        lambda c, n: not c.details.get("kinds", {}).get(n) and layer_kind(c, n) not in PLAIN,
    ),
    "flatten": (
        "whether this layer follows a Flatten of images is not known. If it does, its inputs are now in the wrong "
        "order for torch, and so are those of a normalisation between them: convert the .keras file of the model, or "
        "use the rules of `ckptconv match SRC MODULE`",
        lambda c, n: not input_of(c, n) and not n.endswith("recurrent_kernel"),
    ),
    "unknown": (
        "follows an image and a layer whose effect on it is not known; if it takes a flattened image, torch has its "
        "features in another order: a rule with the layout '(h w c) -> (c h w)'",
        lambda c, n: input_state(c, n) == "unknown",
    ),
    "into_image": (
        "its outputs are shaped into an image: if the module shapes them into (c, h, w), it needs them in another "
        "order, and so do a bias and a normalisation between them: a rule with the layout 'i (h w c) -> (c h w) i'",
        lambda c, n: bool((taken := input_of(c, n)) and taken.into_image),
    ),
    "equation": (
        "taken for an EinsumDense of inputs times kernel, abc,cd->abd: the file does not tell its equation",
        lambda c, n: not input_of(c, n) and layer_kind(c, n).startswith("einsum_dense"),
    ),
}
