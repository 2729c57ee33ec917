"""The pass `averages`: put moving averages in the place of their weights.

    w/ExponentialMovingAverage           TensorFlow's tf.train.ExponentialMovingAverage: beside each weight
    ema.fc.weight, state_dict_ema.fc.w   an entry of a PyTorch checkpoint beside that of the model
    model_ema.diffusion_modelinputw      Stable Diffusion: in the state dict, under names without dots
    ema.shadow_params.0 ...              a list in the order of model.parameters(): matched by order and shape

A weight without an average has that of a weight to which it is tied, or stays as it is, with a note; an average without
a weight is an error, and so are two averages of one weight (of two decays, say): `exclude` leaves one. What is called
`online_model` or `backup` beside an `ema_model` or `shadow` is none: programs keep the trained weights there, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import takewhile

from ..checkpoint import Checkpoint, Move, Note, Tensor, named, onward, origin
from ..checkpoint.training import is_average
from ..errors import UsageError
from ..messages import listing, printable

AVERAGE = re.compile(r"(?P<base>.+)/ExponentialMovingAverage(?:_\d+)?")
WITHIN = ("model_ema.", "ema_model.", "module_ema.", "averaged_model.", "swa_model.", "ema.")
WRAPPERS = ("module.", "_orig_mod.", "_forward_module.")
LISTED = re.compile(r"(?:.*\.)?(?:shadow_params|params|collected_params)\.(\d+)")
RAW = re.compile(r"(?:^|_)(?:online|backup|collected|raw|live)(?:_|\Z)")  # weights as trained, among averages
TOKEN = re.compile(r"[_.-]?(?:ema|swa|shadow|averaged?)[_.-]?", re.IGNORECASE)


def averages(checkpoint: Checkpoint, wanted: Callable[[str], bool] = lambda name: True) -> Checkpoint:
    """Put each moving average under its weight's name and those that are tied to it; UsageError if there is none.

    wanted: whether a name is not excluded, which decides between several averages of one weight.
    """
    about = checkpoint.details.get("entry", {})
    if about.get("average"):
        return replace(
            checkpoint, notes=(*checkpoint.notes, Note("assumed", "the weights are moving averages already"))
        )
    shadow = {n: m["base"] for n, t in checkpoint.tensors.items() if (m := AVERAGE.fullmatch(n))}
    if not shadow:
        shadow = _of_entry(checkpoint, about) or _within(checkpoint)
    if not shadow:
        raise UsageError(
            "this checkpoint has no moving averages: neither NAME/ExponentialMovingAverage nor an entry such as ema, "
            "model_ema, state_dict_ema or g_ema"
        )
    tensors = checkpoint.tensors
    shadow = _of_one(shadow, tensors, wanted)
    bad = [base for n, base in shadow.items() if base in tensors and tensors[base].shape != tensors[n].shape]
    if bad:
        raise UsageError(f"these averages differ from their weights in shape:\n{listing(bad)}")
    by_base = {base: tensors[name] for name, base in shadow.items() if base}
    weights = {n for n, t in tensors.items() if not t.role and n not in shadow}
    by_base |= _of_ties([[n for n in group if n in weights] for group in checkpoint.ties], by_base)
    out = _replaced(tensors, shadow, by_base)
    unaveraged = tuple(n for n, t in out.items() if not t.role and n not in by_base)
    replaced = tuple(n for n in by_base if n in tensors)
    notes = [Note("dropped", "replaced by their moving averages", replaced)] if replaced else []
    if others := tuple(n for n, base in shadow.items() if not base):
        notes.append(Note("dropped", "lie among the moving averages and are none", others))
    if unaveraged:
        notes.append(Note("hint", "have no moving average and stay as they are", unaveraged))
    alone = {base: Move("ema=True", (name,)) for name, base in shadow.items() if base and base not in tensors}
    moved = {**checkpoint.moved, **onward(checkpoint.moved, alone)}  # one that has a weight is in the weight's place
    known = [*out, *(move.sources[0] for move in alone.values())]
    details = named(checkpoint.details, known, lambda n: shadow.get(n) or n)
    return replace(checkpoint.with_tensors(out, *notes), details=details, moved=moved)


def _of_one(shadow: Mapping[str, str], tensors: Mapping[str, Tensor], wanted: Callable[[str], bool]) -> dict[str, str]:
    """The averages without those that are excluded beside another of their weight; UsageError if several are left.

    What is no average beside one has no weight: ''.
    """

    def differ(names: Sequence[str]) -> bool:
        return len(names) > 1 and len({origin(tensors[n]) for n in names}) > 1

    claims: dict[str, list[str]] = {}
    for name, base in shadow.items():
        if base:
            claims.setdefault(base, []).append(name)
    several = {base: names for base, names in claims.items() if differ(names)}
    left = {base: [n for n in names if wanted(n)] for base, names in several.items()}
    raw = _raw(several.values(), shadow)
    unclear = {base: rest for base, names in left.items() if differ(rest := [n for n in names if n not in raw])}
    if unclear:
        raise UsageError(_unclear(unclear))
    gone = {n for base, names in several.items() for n in names if n not in left[base]}
    return {n: "" if n in raw else base for n, base in shadow.items() if n not in gone}


def _raw(claims: Iterable[Sequence[str]], names: Iterable[str]) -> set[str]:
    """Of these names those that lie where something says that it is no average, beside one of its weight that is one.

    claims: the names that claim one weight, for each.
    """
    heads: set[str] = set()
    for several in claims:
        apart = _apart(several) if len(several) > 1 else []
        looks = [_looks(part) for _, part in apart]
        if 1 in looks:
            heads |= {head for (head, _), look in zip(apart, looks, strict=True) if look == -1}
    sizes = sorted({len(head) for head in heads})

    def is_below(name: str) -> bool:
        fitting = takewhile(len(name).__ge__, sizes)
        return any(name[size : size + 1] in (".", "") and name[:size] in heads for size in fitting)

    return {n for n in names if is_below(n)}


def _looks(part: str) -> int:
    """1 for what is called as an average, -1 as trained weights, 0 if neither or both."""
    keys = part.split(".")
    return any(map(is_average, keys)) - any(map(RAW.search, keys))


def _apart(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each name without the keys with which all end, and of this the part without those with which all begin."""
    keys = [n.split(".") for n in names]
    start = _alike(keys)
    end = _alike([k[start:][::-1] for k in keys])
    return [(".".join(k[: len(k) - end]), ".".join(k[start : len(k) - end])) for k in keys]


def _alike(rows: Sequence[Sequence[str]]) -> int:
    """With how many equal items all begin."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False)))


def _unclear(claims: Mapping[str, Sequence[str]]) -> str:
    """What to say of several averages of one weight: the patterns of their names, and one that is hardly an average."""
    rows: dict[tuple[str, ...], list[str]] = {}
    proposed = ""
    for base, names in claims.items():
        apart = _apart(names)
        heads = (
            "*" + n[len(base) :] if AVERAGE.fullmatch(n) else head for n, (head, _) in zip(names, apart, strict=True)
        )
        globs = tuple(h if h[:1] == "*" or h == n else f"{h}.*" for h, n in zip(heads, names, strict=True))
        rows.setdefault(globs, []).append(base)
        looks = [_looks(part) for _, part in apart]
        least = globs[looks.index(min(looks))]
        if looks.count(min(looks)) == 1 == sum(fnmatchcase(n, least) for n in names):
            proposed = proposed or least
    how = f"exclude={proposed!r} leaves one out" if proposed else "name with exclude= those that are not meant"
    lines = [f"{', '.join(g)}: of {b[0]}" + f" and {len(b) - 1:,} more" * (len(b) > 1) for g, b in rows.items()]
    return f"several moving averages claim one weight; {how}:\n{listing(lines)}"


def _of_ties(ties: Iterable[Sequence[str]], by_base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averages of weights that share the tensor of another: programs keep one for each parameter, not each name.

    UsageError if those that share it have several.
    """
    found: dict[str, Tensor] = {}
    for group in ties:
        own = {origin(by_base[n]): by_base[n] for n in group if n in by_base}
        bare = [n for n in group if n not in by_base]
        if bare and len(own) > 1:
            text = f"{printable(bare[0])} has no moving average, and those of the weights it is tied to may differ"
            raise UsageError(f"{text}:\n{listing([t.name for t in own.values()])}")
        found |= {n: average for n in bare for average in own.values()}
    return found


def _replaced(
    tensors: Mapping[str, Tensor], shadow: Mapping[str, str], by_base: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """All tensors, with the averages under the names of their weights."""
    out: dict[str, Tensor] = {}
    for name, t in tensors.items():
        if name in by_base:
            out[name] = replace(by_base[name], name=name, role="")
        elif name not in shadow:
            out[name] = t
        elif (base := shadow[name]) and base not in tensors:
            out[base] = replace(t, name=base, role="")
    return out


def _of_entry(checkpoint: Checkpoint, about: Mapping[str, object]) -> dict[str, str]:
    """The averages that form an entry of their own: their names, and those of their weights ('' for counters)."""
    found = about.get("averages")
    entries = [str(e) for e in found] if isinstance(found, list) else []
    if len(entries) > 1:
        raise UsageError(f"there are several moving averages, {', '.join(entries)}; at={entries[0]!r} takes one")
    if not entries:
        return {}
    entry = entries[0]
    prefix = f"{entry}."
    inside = {n[len(prefix) :]: t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
    weights = {n: t for n, t in checkpoint.tensors.items() if not t.role and not n.startswith(prefix)}
    if not about.get("name"):  # several models: of g_ema the weights are those of g
        base = TOKEN.sub("", entry) + "."
        weights = {n: t for n, t in weights.items() if n.startswith(base)}
        inside = {base + n: t for n, t in inside.items()}
        pairs = _paired(inside, weights, entry) if weights else {n: n.removeprefix(base) for n in inside}
        return {prefix + n.removeprefix(base): to for n, to in pairs.items()}
    return {prefix + n: to for n, to in _paired(inside, weights, entry).items()}


def _within(checkpoint: Checkpoint) -> dict[str, str]:
    """The averages in the state dict itself, under names of their own."""
    for prefix in WITHIN:
        inside = {n[len(prefix) :]: t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
        if inside:
            weights = {n: t for n, t in checkpoint.tensors.items() if not t.role and not n.startswith(prefix)}
            return {prefix + n: to for n, to in _paired(inside, weights, prefix.rstrip(".")).items()}
    return {}


def _paired(inside: Mapping[str, Tensor], weights: Mapping[str, Tensor], entry: str) -> dict[str, str]:
    """The name of each average's weight, '' for a counter; UsageError for averages without one."""
    listed = [n for n in inside if LISTED.fullmatch(n)]
    if listed and len(listed) >= sum(t.count > 1 for t in inside.values()):
        places: dict[str, list[str]] = {}
        for n in listed:
            places.setdefault(n.rpartition(".")[2], []).append(n)
        raw = _raw(places.values(), listed)
        return dict.fromkeys(inside, "") | _in_order({n: inside[n] for n in listed if n not in raw}, weights, entry)
    pairs = _spelled_alike(inside, weights, _bare) or _spelled_alike(inside, weights, _dotless)
    if not pairs:
        raise UsageError(
            f"the averages of {entry!r} and the weights differ in their names; at={entry!r} takes them alone"
        )
    left = [n for n in inside if not pairs.get(n) and inside[n].count > 1]
    if left:
        raise UsageError(f"these averages of {entry!r} belong to no weight:\n{listing(left)}")
    return dict.fromkeys(inside, "") | pairs


Spelled = Callable[[str], tuple[str, ...]]


def _spelled_alike(inside: Mapping[str, Tensor], weights: Mapping[str, Tensor], spelled: Spelled) -> dict[str, str]:
    """The averages whose weights follow from the spelling of both names."""
    bases: dict[str, str] = {}
    for name in weights:
        for spelling in spelled(name):
            bases[spelling] = "" if spelling in bases else name  # '' if two have the same spelling
    found = {n: next((b for s in spelled(n) if (b := bases.get(s, ""))), "") for n in inside}
    return {n: base for n, base in found.items() if base}


def _bare(name: str) -> tuple[str, ...]:
    """A name without the prefixes of wrappers."""
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return (name,)


def _dotless(name: str) -> tuple[str, ...]:
    """A name without dots, whole and without its first segment."""
    return tuple(n.replace(".", "") for n in (name, name.partition(".")[2]) if n)


def _in_order(shadow: Mapping[str, Tensor], weights: Mapping[str, Tensor], entry: str) -> dict[str, str]:
    """Match averages without names to parameters by order and shape, if only one match is possible."""
    ordered = sorted(shadow, key=lambda n: int(n.rpartition(".")[2]))
    shapes = [shadow[n].shape for n in ordered]
    names = [n for n, t in weights.items() if t.dtype.kind in "fc" and not n.endswith(("running_mean", "running_var"))]
    first = _aligned(shapes, names, weights)
    last = _aligned(shapes[::-1], names[::-1], weights)[::-1]
    origins = [[origin(weights[n]) for n in match] for match in (first, last)]  # names of one tensor are no two ways
    if len(first) != len(ordered) or origins[0] != origins[1]:
        raise UsageError(
            f"{entry!r} holds {len(ordered)} averages without names, which match the {len(names)} weights in "
            f"{'no way' if len(first) != len(ordered) else 'several ways'}"
        )
    return dict(zip(ordered, first, strict=True))


def _aligned(shapes: list[tuple[int, ...]], names: list[str], weights: Mapping[str, Tensor]) -> list[str]:
    """The first names whose tensors have these shapes in this order."""
    out: list[str] = []
    for name in names:
        if len(out) < len(shapes) and weights[name].shape == shapes[len(out)]:
            out.append(name)
    return out
