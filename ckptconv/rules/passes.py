"""Passes: Checkpoint -> Checkpoint, on names and references only.

    roles            recognise optimizer slots, step counters and moving averages by their names
    select           keep what the globs include and do not exclude
    weights_only     drop everything that is not a weight
    scope, merge     several checkpoints under one roof
    cast             change the dtype of the floating-point tensors
    texts            escape metadata that is not valid Unicode

A pass notes what it drops; an error lists all tensors concerned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache
from itertools import chain

from ..checkpoint import Checkpoint, Move, Note, Role, Tensor, compose_moves, joined, named, training
from ..dtypes import DType
from ..errors import ConversionError, CorruptCheckpoint, NameCollision, UsageError
from ..messages import did_you_mean, fold, in_shape, listing, many, nearest, printable, reasons, shortened
from ..moves.part import sliced

PART = "not all of the model"  # a note that begins so says what is missing, as a person knows
AVERAGE = re.compile(r"(?P<base>.+)/ExponentialMovingAverage(?:_\d+)?")
# What optimizers append to a variable's name: tf.train and contrib slots, BERT's and LAMB's adam_m, Mesh's _slot_vr.
SLOT = re.compile(
    r"(?P<base>.+?)(?:/(?:Lazy|N)?Adam(?:W|WeightDecay|Max|ax)?(?:Optimizer)?(?:_\d+)?"
    r"|/(?:RMSProp|Momentum|Adafactor|Adagrad|AdagradDA|Adadelta|Ftrl|LARS|Lars|LAMB|Lamb|Nesterov|ProximalAdagrad"
    r"|AddSign|PowerSign|Shampoo|YellowFin|GradientDescent)(?:Optimizer)?(?:_\d+)?"
    r"|/(?:adam|lamb|adamw|adafactor|lars|rmsprop|adagrad|momentum)_(?:m|v|vr|vc|u|ms|mom|acc)"
    r"|_slot_[a-z]{1,2})"
)
STEP = re.compile(
    r"(?:.*/)?(?:global_step|save_counter|beta[12]_power(?:_\d+)?|_?iterations|train_steps?|current_step)"
)
TRACKED = "num_batches_tracked"  # which torch alone counts
FLAT = re.compile(r"(.*\.)?_?flat_param", re.DOTALL)
SCOPES = 64  # before a slot's variable, at most: a hostile name has as many as it has characters
STATE = re.compile(r"(?:.*/)?(?:_?learning_rate|loss_scale|current_loss_scale|good_steps)")
COUNTED = re.compile(rf"{STEP.pattern}|{STATE.pattern}")  # what a module may call a buffer of its own


def roles(checkpoint: Checkpoint) -> Checkpoint:
    """Recognise slots, steps and averages by name, unless the format gives roles; a slot needs its variable.

    A training state of JAX may have a parameter called `learning_rate`: below its `params`, no name is looked at.
    """
    found = {}
    for name, t in checkpoint.tensors.items():
        role = t.role or _role(name, checkpoint.tensors)
        if role != t.role and not training.in_model(checkpoint.format, name):
            found[name] = replace(t, role=role)
    return checkpoint.with_tensors({**checkpoint.tensors, **found}) if found else checkpoint


@lru_cache(maxsize=4096)
def _may_have_role(end: str) -> bool:
    """Whether a name that ends so, from its last separator on, can have a role: the ends of most names repeat."""
    return any(pattern.fullmatch("_" + end) for pattern in (AVERAGE, SLOT, STEP, STATE))


def _role(name: str, tensors: Mapping[str, Tensor]) -> Role:
    at = max(name.rfind("/"), name.rfind("."))
    if not _may_have_role(name[at:] if at >= 0 else "/" + name):
        return ""
    if AVERAGE.fullmatch(name):
        return "average"
    if slot := SLOT.fullmatch(name):
        scopes = slot["base"].split("/", SCOPES)
        if any("/".join(scopes[i:]) in tensors for i in range(len(scopes))):  # slots may be under a scope
            return "slot"
    if STEP.fullmatch(name):
        return "step"
    return "state" if STATE.fullmatch(name) else ""


def select(checkpoint: Checkpoint, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Checkpoint:
    """Keep names that match one glob of `include` (all, if none is given) and none of `exclude`.

    UsageError if a glob matches nothing, or nothing is left: most of those globs are misspelt.
    """
    if not include and not exclude:
        return checkpoint
    # a glob may mean what diff cannot compare
    names = all_names(checkpoint)
    _refuse_idle((*include, *exclude), names, "")
    taken = {*filter(selector(include, exclude), names)}
    made = keep_renamed(checkpoint, lambda n: n * (n in taken), "selected", some=bool(include))
    if checkpoint.tensors and not made.tensors:
        if skipped := [str(n) for n in made.notes if n.unread]:
            raise UsageError(f"all that is selected is left out when the file is read:\n{listing(skipped)}")
        raise UsageError(f"include= and exclude= leave none of {len(checkpoint.tensors)} tensors")
    return made


def keep_renamed(checkpoint: Checkpoint, new: Callable[[str], str], what: str, *, some: bool = False) -> Checkpoint:
    """Keep what has a new name, and rename it in notes alone; CorruptCheckpoint if all of that is damaged.

    some: see `notes_after_renaming`.
    """
    gone = checkpoint.names_in_notes("damaged")
    keep = {n: t for n, t in checkpoint.tensors.items() if new(n)}
    if not keep and (damaged := list(filter(new, gone))):
        raise CorruptCheckpoint(f"all that is {what} is damaged:\n{listing(damaged)}")
    left = tuple(n for n in (*checkpoint.tensors, *gone) if not new(n))
    made = replace(checkpoint, notes=notes_after_renaming(checkpoint.notes, new, some=some))
    return made.with_tensors(keep, *[Note("dropped", f"not {what}", left)] * bool(left))


def select_either(
    a: Checkpoint, b: Checkpoint, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Checkpoint, Checkpoint]:
    """Select from two checkpoints whose names differ: a glob must match in one of them at least.

    A checkpoint in which no glob of `include` matches is kept whole: the globs mean the other one. UsageError if a
    glob matches nothing in either.
    """
    _refuse_idle((*include, *exclude), [*a.tensors, *b.tensors], " of either checkpoint")

    def one(checkpoint: Checkpoint) -> Checkpoint:
        here, away = ([g for g in globs if any(map(_matches(g), checkpoint))] for globs in (include, exclude))
        return select(checkpoint, here, away)

    return one(a), one(b)


def selector(include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Callable[[str], bool]:
    """The test of `select` as a function of a name, for other checkpoints; here a glob may match nothing."""
    yes, no = ([_matches(glob) for glob in globs] for globs in (include, exclude))
    return lambda name: (not yes or any(m(name) for m in yes)) and not any(m(name) for m in no)


def _matches(glob: str) -> Callable[[str], object]:
    """The test of a glob; one without wildcards, or that ends as a scope, also takes all below this scope."""
    if glob.endswith(("/", ".")):
        return re.compile(translate(f"{glob}*")).match
    below = "" if re.search(r"[*?[]", glob) else f"|{translate(glob + '[./]*')}"
    return re.compile(translate(glob) + below).match


SWAPPED = str.maketrans("./", "/.")


def _refuse_idle(globs: Sequence[str], names: Collection[str], where: str) -> None:
    """UsageError for a glob that matches no name."""
    for glob in globs:
        if not any(map(_matches(glob), names)):
            others = (glob.translate(SWAPPED), f"{glob}*", f"*{glob}", *nearest(glob, _scopes(glob, names), 3))
            hint = next((f"; did you mean {g!r}?" for g in others if any(map(_matches(g), names))), "") or did_you_mean(
                glob, map(literal, names), count=3
            )
            raise UsageError(f"no tensor{where} matches {glob!r}{hint or '.'} `inspect` lists the names")


def _scopes(glob: str, names: Iterable[str]) -> Iterable[str]:
    """Globs of the scopes that are as deep as a glob that ends with * or a separator, or of one word; else none."""
    if not re.fullmatch(r"[^./]*|.*[*./]", glob):
        return ()
    *above, end = re.split("[./]", glob)
    scope = re.compile("[^./]*[./]" * len(above) or "[^./]+(?=[./])")
    return [literal(m[0]) + e for m in map(scope.match, names) if m for e in ("*", end if above else "*")]


def literal(name: str) -> str:
    """The glob that matches a name and nothing else, for a hint that can be used as it is."""
    return re.sub(r"[*?[]", r"[\g<0>]", name)


ROLES = {
    "weight": "weight", "buffer": "buffer", "slot": "optimizer slot", "step": "step counter",
    "average": "moving average", "state": "training value",
}  # fmt: skip


def in_roles(counts: Mapping[str, int]) -> str:
    """What tensors are that are not weights: 74 optimizer slots, 1 step counter. counts: by role."""
    return ", ".join(many(counts[r], noun) for r, noun in ROLES.items() if counts.get(r))


def fill_template(checkpoint: Checkpoint, template: Checkpoint, *, partial: bool = False) -> Checkpoint:
    """What a checkpoint gives under the names, order, ties and metadata of a template.

    The template keeps its own training state (slots, counters, torch's count of batches), and with `partial` also
    weights that the checkpoint does not have; the notes say so. ConversionError lists weights that only one of them
    has, or that differ in dtype or shape.
    """
    owners = template.owners()
    given = {n: checkpoint.get(n) or checkpoint.get(owners[n]) for n in template}
    wrong = [
        f"{n}: the source gives {t.dtype} {in_shape(t.shape)}, the template has {own.dtype} {in_shape(own.shape)}"
        for n, own in template.items() if (t := given[n]) and (t.dtype, t.shape) != (own.dtype, own.shape)
    ]  # fmt: skip
    kept = {
        n: own.role or ("buffer" if n.endswith(TRACKED) else "weight") for n, own in template.items() if not given[n]
    }
    lost = [n for n, role in kept.items() if role == "weight" and not partial]
    wrong += [f"{f}: only the template has it" for f in fold(lost)]
    left = [n for n, t in checkpoint.items() if n not in given]
    wrong += [f"{f}: only the source gives it" for f in fold([n for n in left if not checkpoint[n].role])]
    if wrong:
        hint = "; partial=True keeps what only it has" if lost else ""
        own, floats = ({t.dtype for t in c.values() if t and t.dtype.kind == "f"} for c in (template, given))
        if len(own) == 1 and floats - own:
            hint += f"; dtype='{own.pop()}' casts floats"
        raise ConversionError(f"the template wants other tensors{hint}:\n{listing(wrong)}")
    notes = (
        Note("assumed", f"the template's own values stay: {in_roles(Counter(kept.values()))}", tuple(kept)),
        Note("dropped", "not in the template", tuple(left)),
    )
    made = {n: replace(t, name=n, role=own.role) if (t := given[n]) else own for n, own in template.items()}
    more = (*checkpoint.notes, *(n for n in notes if n.names))
    moved = compose_moves(checkpoint.moved, {n: Move("", (t.name,)) for n, t in given.items() if t})
    return replace(template, tensors=made, hashes={}, notes=more, urls=(*checkpoint.urls, *template.urls), moved=moved)


def unflatten(checkpoint: Checkpoint, template: Checkpoint | None) -> Checkpoint:
    """Cut FSDP's flat parameters into the parameters that they hold, whose names, shapes and order a template gives.

    `layers.0._flat_param` holds all parameters below `layers.0` that are in no other one, in the order of the module,
    tied ones once. ConversionError without a template, or if the sizes do not add up.
    """
    flat = {m[1] or "": n for n, t in checkpoint.items() if len(t.shape) == 1 and (m := FLAT.fullmatch(n))}
    if not flat:
        return checkpoint
    shown = shortened(list(flat.values()))
    if template is None or template.format not in ("torch", "torch module", "memory"):
        raise ConversionError(
            f"{shown}: the names, shapes and order of flat parameters of FSDP only the model knows: like= takes the "
            "module, or a .pt file of its whole state_dict; or save with StateDictType.SHARDED_STATE_DICT"
        )
    owners, inside = template.owners(), {unit: list[Tensor]() for unit in flat}
    for n, own in template.items():
        above = (n[:i] for i in range(len(n), -1, -1) if n[:i][-1:] in ("", "."))
        unit = next((prefix for prefix in above if prefix in flat), None)
        if unit is not None and n not in checkpoint and owners[n] == n and not own.role:
            inside[unit].append(own)
    made = {**checkpoint}
    for unit, some in inside.items():
        t, at, wanted = made.pop(flat[unit]), 0, sum(own.count for own in some)
        if wanted != t.count:
            raise ConversionError(f"has {t.count:,} elements, its parameters in the template {wanted:,}", tensor=t.name)
        for own in some:
            parts = sliced(t, [(at, at + own.count)])
            made[own.name], at = replace(t, name=own.name, shape=own.shape, parts=parts), at + own.count
    names = tuple(n for n in made if n not in checkpoint)
    note = Note("assumed", f"cut from {shown} in the order of the template", names)
    return replace(checkpoint, notes=(*checkpoint.notes, note)).with_tensors(made)


def weights_only(checkpoint: Checkpoint) -> Checkpoint:
    """Drop optimizer slots, steps, averages and other known training state, also values that are not tensors."""
    left = [n for n, t in checkpoint.items() if t.role]
    others = in_roles(Counter(checkpoint[n].role for n in left))
    if left and len(left) == len(checkpoint):
        hint = "; ema=True takes averages for weights" * ("average" in others)
        raise UsageError(f"weights_only=True leaves nothing of {others}{hint}")
    if state := [n for n in left if checkpoint[n].role == "state"]:
        others += f": {shortened(state)}"
    details = checkpoint.details.copy()
    details.pop("values", None)
    made = replace(checkpoint, details=details)
    return without(made, left, others) if left else made


def scope(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Put all names under `name`, joined with the separator that the names use, '/' or '.'."""
    if not name.strip("/."):
        raise UsageError(f"scope={name!r} is not a name")
    sep = separator(checkpoint)
    return renamed(checkpoint, lambda old: f"{name.rstrip('/.')}{sep}{old}", f"scope={name}")


def separator(names: Collection[str]) -> str:
    """The separator that the names use, '/' or '.'."""
    text = "".join(names)
    return "." if "." in text and "/" not in text else "/"


def renamed(checkpoint: Checkpoint, new: Callable[[str], str], rule: str) -> Checkpoint:
    """Rename all tensors by `rule`; NameCollision lists every pair that would get one name."""
    out: dict[str, Tensor] = {}
    moved: dict[str, Move] = {}
    clashes = {}
    for old, t in checkpoint.tensors.items():
        name = new(old)
        if name in out:
            clashes[old] = f"becomes {printable(name)}, as another tensor does"
        out[name] = t if name == old else t.renamed(name)
        moved[name] = Move(rule if name != old else "", (old,))
    if clashes:
        raise NameCollision(f"{len(clashes)} names would collide:\n{reasons(clashes)}")
    ties = tuple(tuple(new(n) for n in group) for group in checkpoint.ties)
    details = named(checkpoint.details, checkpoint, new)
    return replace(checkpoint, tensors=out, ties=ties, details=details, moved=compose_moves(checkpoint.moved, moved))


def merge(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Merge checkpoints into one; NameCollision if two hold the same name, which `scope` settles.

    Each shard of an index gives all of the model, which is taken once.
    """
    checkpoints = [*{(c.urls, *c) if len(c.urls) > 1 else id(c): c for c in checkpoints}.values()]
    first, *rest = checkpoints
    if not rest:
        return first
    counts = Counter(n for c in checkpoints for n in c)
    if clashes := [n for n, count in counts.items() if count > 1]:
        raise NameCollision(
            f"{len(clashes)} names are in more than one source; give each a scope=NAME:\n{listing(clashes)}"
        )
    metadata: dict[str, str] = {}
    for c in checkpoints:
        metadata |= {k: v for k, v in c.metadata.items() if k not in metadata}
    odd = [k for k, v in metadata.items() if any(c.metadata.get(k, v) != v for c in checkpoints)]
    # what one converter remembers is not for the tensors of another source
    records = [k for k in metadata if k.startswith("ckptconv.") and len({c.metadata.get(k) for c in checkpoints}) > 1]
    texts = {
        "the sources' metadata differ; those of the first are kept": [k for k in odd if k not in records],
        "what converters recorded is dropped by a merge; undo one at a time, with include= and param=": records,
    }
    return replace(
        first,
        tensors={n: t for c in checkpoints for n, t in c.items()},
        metadata={k: v for k, v in metadata.items() if k not in records},
        details=first.details | joined((c, c.details) for c in checkpoints),
        ties=tuple(g for c in checkpoints for g in c.ties),
        urls=tuple(u for c in checkpoints for u in c.urls),
        notes=(
            *(n for c in checkpoints for n in c.notes),
            *(Note("lossy", text, tuple(keys)) for text, keys in texts.items() if keys),
        ),
        hashes={k: v for c in checkpoints for k, v in c.hashes.items()},
        moved={n: c.moved[n] for c in checkpoints for n in c if n in c.moved},
    )


def cast(checkpoint: Checkpoint, to: DType) -> Checkpoint:
    """Change the dtype of floating-point tensors, except what is quantised; UsageError if nothing else would change."""
    if to.kind != "f":
        raise UsageError(f"dtype= takes a floating-point dtype, not {to}: integers and booleans are kept as they are")
    others = {n: t for n, t in checkpoint.items() if t.dtype.kind == "f" and t.dtype != to}
    scaled = quantised(checkpoint) if others else ()
    kept = tuple(n for n in others if n in scaled)
    if kept and len(kept) == len(others):
        text = f"dtype='{to}' would cast nothing but {WHY}. Without dtype= they stay as they are"
        raise UsageError(f"{text}:\n{listing(kept)}")
    out = {n: replace(t, dtype=to) for n, t in others.items() if n not in scaled}
    notes = [Note("lossy", f"not cast to {to}: {WHY}", kept)] if kept else []
    return checkpoint.with_tensors({**checkpoint.tensors, **out}, *notes)


def escape_metadata(checkpoint: Checkpoint) -> Checkpoint:
    """Escape what is not valid Unicode in metadata (a file's bytes, half a surrogate pair): no format can hold it."""
    made = {_escaped(k): _escaped(v) for k, v in checkpoint.metadata.items()}
    bad = tuple(k for k, v in made.items() if checkpoint.metadata.get(k) != v)
    if not bad:
        return checkpoint
    note = Note("lossy", "metadata that is not valid Unicode is escaped", bad)
    return replace(checkpoint, metadata=made, notes=(*checkpoint.notes, note))


def _escaped(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def without(checkpoint: Checkpoint, names: Iterable[str], why: str) -> Checkpoint:
    """Drop tensors by name, with a note."""
    gone = dict.fromkeys(names)
    keep = {n: t for n, t in checkpoint.tensors.items() if n not in gone}
    return checkpoint.with_tensors(keep, Note("dropped", why, tuple(gone)))


# --- quantised weights ------------------------------------------------------------------------------------------
# Cast alone, such a weight is another number than it stands for, and its scale loses digits.
#
#     l.weight   float8, int8    l.weight_scale, l.weight_scale_inv, l.weight.absmax     named after the weight
#     l.weight   float8, int8    l.SCB, l.scale, l.zero_point, l.input_scale             or in its layer
#     l.qweight  int32           l.scales, l.qzeros                                      several numbers in an integer

WHY = (
    "quantised weights and their scales, which would then stand for other numbers. Dequantise them first, with the "
    "library that quantised them; densify=True does it for PyTorch's own and Keras' int8"
)
WEIGHT = re.compile(
    r"_?weights?(_(?!mask|i(?:nde)?x|indices|shape|format).+)?"
    r"|q_?weight|.*kernel|.*embeddings?|.*_packed|qvalue|codes|Qidxs|W_q|w\d*|B|state[12]"
)
PACKED = re.compile(r"q_?weight|.*_packed|codes|Qidxs|W_q|qvalue|q_?kernel|.*qdata")  # several numbers in an integer
STEM = re.compile(r"(.+?)(?:[._](?:packed|quantized|q?data|blocks|q|_data|_packed))?", re.DOTALL)  # of a weight's name
SCALE = re.compile(
    r"(.*?)(?:^|[._/])_?(?:(?:(?:input|output|weight|act|global|inner|nested|awq|q)_)*"
    r"(?:scales?|scaling_factors?|scaled_zeros|q?zeros?|zero_points?|shift|offset|absmax|quant_map|amax|codebooks?)"
    r"(?:_inv|_max|_ub|_\d)?(?:[./]\d+)?"
    r"|nested_.+|quant_state\..+|biases|SCB|g_idx|scale_(?:weight|input|output)|(?:absmax|qmap|(?:new_)?max)[12])",
    re.DOTALL,
)
LONGEST = 80  # characters at the end of a name in which a scale is looked for


def quantised(checkpoint: Checkpoint) -> set[str]:
    """The quantised weights that have scales, and the scales, by their names here or in the source.

    A scale that was left out, by a selection or a converter, counts for its weight.
    """
    owners: dict[str, list[str]] = {}  # the weights that a scale may be named after, or whose layer it may lie in
    for n, t in checkpoint.items():
        small = t.dtype.kind in "iuxf" and (t.dtype.itemsize == 1 or t.dtype.name in ("int16", "uint16"))
        for name in (n, *checkpoint.sources(n)) if t.shape and (small or t.dtype.kind in "iu") else ():
            cut = max(name.rfind("."), name.rfind("/"))
            leaf = name[cut + 1 :]
            m, packed = STEM.fullmatch(name), PACKED.fullmatch(leaf)
            if small or packed or t.dtype == "uint32":
                own = {name, m[1] if m else name}
                own |= {name[: max(cut, 0)]} if packed or WEIGHT.fullmatch(leaf) else set()
                for owner in own:
                    owners.setdefault(owner, []).append(n)
    if not owners:
        return set()
    now = {name: n for n in checkpoint for name in (n, *checkpoint.sources(n))}
    out, used = set[str](), set[str]()
    for name in (*now, *checkpoint.names_in_notes("dropped", "skipped")):
        m = SCALE.fullmatch(name[-LONGEST:])
        owner = name[:-LONGEST] + m[1] if m else None
        if owner in owners and owners[owner] != [now.get(name)]:
            used.add(owner)
            out |= {now[name]} if name in now else set()
    return out.union(*(owners[owner] for owner in used))


# --- what is not read -------------------------------------------------------------------------------------------
# Damaged tensors, and those of which no reader makes one: notes have their names, which passes select and rename.


def all_names(checkpoint: Checkpoint) -> list[str]:
    """The names of all tensors, also of damaged ones, and of those that no reader looks at: no dtype fits, say."""
    left = (note.names for note in checkpoint.notes if note.unread or note.kind == "damaged")
    return [*checkpoint.tensors, *chain.from_iterable(left)]


def notes_after_renaming(notes: Iterable[Note], new: Callable[[str], str], *, some: bool = False) -> tuple[Note, ...]:
    """The notes, those on damaged and unread tensors with new names of what they concern, '' for what is not taken.

    some: tensors were included by name. What is damaged without a name is then none of them, as far as is known.
    """
    out = []
    for note in notes:
        if note.unread or (note.kind == "damaged" and note.names):
            note = note._replace(names=tuple(filter(None, map(new, note.names))))
            out += [note] if note.names else []
        else:
            out.append(note._replace(kind="unread", tensors=False) if note.kind == "damaged" and some else note)
    return tuple(out)
