"""Passes on names: one entry of a nested checkpoint, no prefixes of wrappers, other names, averages as weights.

take_entry       state_dict_ema.fc.weight -> fc.weight; tensors outside the entry are dropped
strip_prefixes   module._orig_mod.fc.weight -> fc.weight
rename_by_regex  what a regular expression matches -> something else
take_averages    w/ExponentialMovingAverage -> w; ema.fc.weight, of the entry `ema` beside the model's -> fc.weight
add_hints        notes which prefixes wrappers left, and how to remove them
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat

from ..checkpoint import Checkpoint, Entry, Move, Note, Tensor, compose_moves, named, origin
from ..errors import UsageError
from ..messages import did_you_mean, listing
from ..storage.paths import beginning
from .passes import AVERAGE, all_names, keep_renamed, notes_after_renaming, renamed
from .templates import halves

MAX_ENTRIES = 12  # that an error lists
BEGINNINGS = "beginnings of names, which at= takes as well,"

# The prefixes of DataParallel, torch.compile, DeepSpeed, Lightning and FSDP. Those that begin with an underscore occur
# nowhere else, so they are removed in the middle of names as well.
WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
NESTED = ("state_dict", "model_state_dict", "model_dict")  # of a model within an entry; no module is called so
KERAS_NUMBERED = re.compile(r"optimizer/(?:vars|_variables)/\d+")  # the variables of an optimizer, averages among them
KERAS_AVERAGE = re.compile(r"(?:optimizer_weights/)?[^/]+/(?:average/(?P<base>.+)|(?P<flat>.+)_average)")
EMA = re.compile(r"[_.-]?(?:ema|swa|shadow|averaged?)[_.-]?", re.IGNORECASE)  # in the name of an entry

CHOICES = ("weights are in '", "holds several state dicts")  # beginnings of notes that `take_entry` makes obsolete


def take_entry(checkpoint: Checkpoint, entry: str) -> Checkpoint:
    """Keep the tensors of one entry, under names without it; UsageError lists the entries if it does not exist."""
    entry = entry.strip("./")
    about = checkpoint.details.get("entry", {})
    names = all_names(checkpoint)
    new = _inside(names, entry) or _inside_main(names, entry, about)
    notes = tuple(n for n in checkpoint.notes if not n.text.startswith(CHOICES))
    kept = keep_renamed(replace(checkpoint, notes=notes), lambda n: new.get(n, ""), f"in the entry {entry!r}")
    if not kept.tensors:
        first = (n.replace("/", ".").partition(".")[0] for n in checkpoint.tensors)
        entries = dict.fromkeys(filter(None, (about.get("name"), *about.get("beside", ()), *first)))
        flat = "" if about else ": the checkpoint is flat"
        hint = did_you_mean(entry, [*entries][:MAX_ENTRIES], BEGINNINGS if flat else "entries")
        raise UsageError(f"there is no entry {entry!r}{flat}{hint}", url="".join(checkpoint.urls[:1]) or None)
    cleared = {n: replace(t, role="") if t.role in ("average", "state") else t for n, t in kept.items()}
    details = checkpoint.details.copy()
    details.pop("entry", None)
    return renamed(replace(kept, details=details).with_tensors(cleared), new.__getitem__, f"at={entry}")


def _inside(names: Sequence[str], entry: str) -> dict[str, str]:
    """Names below an entry, with dots or slashes, and the same names without it."""
    return {n: n[len(entry) + 1 :] for n in names if n.startswith((entry + ".", entry + "/"))}


def _inside_main(names: Sequence[str], entry: str, about: Entry) -> dict[str, str]:
    """Those of the names in the entry whose prefix the format has already removed, or in an entry of that one."""
    main, beside = about.get("name", ""), tuple(about.get("beside", ()))
    if main and entry == main:
        others = tuple(f"{name}." for name in ("beside", *beside))
        return {n: n for n in names if n not in beside and not n.startswith(others)}
    return _inside(names, entry.removeprefix(f"{main}.")) if main and entry.startswith(f"{main}.") else {}


def strip_prefixes(checkpoint: Checkpoint, prefixes: Sequence[str]) -> Checkpoint:
    """Remove prefixes from all names, repeatedly and in any order; UsageError for one that no name has."""
    wanted = [p for text in prefixes for p in text.split(",") if p]
    if not wanted:
        raise UsageError(f"strip_prefix= takes prefixes, not {','.join(prefixes)!r}")
    used: set[str] = set()
    head = _owner([n for n, t in checkpoint.tensors.items() if not t.role], wanted)

    @cache
    def bare(name: str) -> str:
        return head * name.startswith(head) + _stripped(name.removeprefix(head), wanted, used)

    for name in all_names(checkpoint):
        bare(name)
    if unused := ", ".join(repr(p) for p in wanted if p not in used):
        what = f"no name begins with {unused}; `inspect` lists the names"
        raise UsageError(what, url="".join(checkpoint.urls[:1]) or None)
    noted = replace(checkpoint, notes=notes_after_renaming(checkpoint.notes, bare))
    return renamed(noted, bare, f"strip_prefix={','.join(wanted)}")


def _owner(names: Sequence[str], prefixes: Sequence[str]) -> str:
    """What all names begin with before one of the prefixes, if none begins with one: `model.` of `model.module.fc`."""
    if not names or any(map(str.startswith, names, repeat(tuple(prefixes)))):
        return ""
    common = beginning(names)
    return next((common[: k + 1] for p in prefixes if (k := common.find("." + p)) >= 0), "")


def _stripped(name: str, prefixes: Sequence[str], used: set[str]) -> str:
    """A name without prefixes at its beginning, nor within it those that begin with an underscore."""
    before = ""
    while name != before:
        before = name
        for prefix in prefixes:
            rest = name.removeprefix(prefix)
            new = rest[rest != name and rest[:1] in ("/", ".") :] or name  # a separator that was not given goes as well
            new = new.replace(f".{prefix}.", ".").replace(f".{prefix}", ".") if prefix.startswith("_") else new
            if new != name:
                used.add(prefix)
                name = new
    return name


def add_hints(checkpoint: Checkpoint) -> Checkpoint:
    """Note a state dict that is an entry of the entry, and the wrappers' prefixes of all weights, with the options."""
    weights = [n for n, t in checkpoint.tensors.items() if not t.role]
    main = checkpoint.details.get("entry", {}).get("name", "")
    inner = [e for e in dict.fromkeys(n.partition(".")[0] for n in weights) if e in NESTED] if main else []
    texts = [f"the state dict is an entry of {main!r}; at='{main}.{inner[0]}' takes it"] if inner else []
    # prefixes that all names have, and those in some names that begin with an underscore
    first, every = f".{beginning(weights or [''])}", "\n".join(f".{n}" for n in weights)
    if wrappers := ",".join(p for p in WRAPPERS if f".{p}" in (every if p.startswith("_") else first)):
        texts.append(f"names have prefixes of wrappers; strip_prefix='{wrappers}' removes them")
    return replace(checkpoint, notes=(*checkpoint.notes, *(Note("hint", text, tuple(weights[:1])) for text in texts)))


# --- regular expressions ----------------------------------------------------------------------------------------


def rename_by_regex(checkpoint: Checkpoint, pairs: Sequence[str | tuple[str, str]]) -> Checkpoint:
    """Replace in all names what regular expressions match: 'FROM=TO', one after the other; each must change a name.

    They are those of Python's `re`; \\1 in TO is a group.
    """
    new = {name: name for name in checkpoint.tensors}
    for pair in pairs:
        pattern, to = pair if isinstance(pair, tuple) else halves(pair)[::2]
        shown = f"rename_regex='{pattern}={to}'"
        if not pattern:
            raise UsageError(f"rename_regex= takes 'FROM=TO', not {pair!r}")
        try:
            regex = re.compile(pattern)
            changed = {old: regex.sub(to, name) for old, name in new.items()}
        except (re.error, IndexError, OverflowError, RecursionError) as e:
            raise UsageError(f"{shown} is no regular expression and its replacement: {e}") from e
        if changed == new:
            raise UsageError(f"{shown} changes no name; `inspect` lists them")
        if "" in changed.values():
            raise UsageError(f"{shown} leaves nothing of a name")
        new = changed
    return renamed(checkpoint, new.__getitem__, ", ".join("=".join(p) if isinstance(p, tuple) else p for p in pairs))


# --- averages ---------------------------------------------------------------------------------------------------


def take_averages(checkpoint: Checkpoint, wanted: Callable[[str], bool] = lambda name: True) -> Checkpoint:
    """Put each moving average under its weight's name and those that are tied to it; UsageError if there is none.

    A weight without an average stays as it is, with a note. wanted: whether a name is not excluded, which decides
    between several averages of one weight.
    """
    about = checkpoint.details.get("entry", {})
    if about.get("average"):
        note = Note("assumed", "the weights are moving averages already")
        return replace(checkpoint, notes=(*checkpoint.notes, note))
    tensors = checkpoint.tensors
    bases = {n: m["base"] for n in tensors if (m := AVERAGE.fullmatch(n))}
    bases = bases or _of_optimizer(tensors) or _of_entry(checkpoint, about)
    counts = Counter(bases.values())
    bases = {n: base for n, base in bases.items() if not base or counts[base] == 1 or wanted(n)}
    by_base = _by_base(bases, tensors)
    for group in checkpoint.ties:
        if average := next((by_base[n] for n in group if n in by_base), None):
            weights = (n for n in group if n in tensors and not tensors[n].role and n not in bases)
            by_base |= {n: average for n in weights if n not in by_base}
    out: dict[str, Tensor] = {}
    for name, t in tensors.items():
        new = bases.get(name, name)
        if new in by_base and (new == name or new not in tensors):
            out[new] = replace(by_base[new], name=new, role="")
        elif name not in bases:
            out[name] = t
    texts = {
        "replaced by their moving averages": [n for n in by_base if n in tensors],
        "lie among the moving averages and are none": [n for n, base in bases.items() if not base],
        "have no moving average and stay as they are": [n for n, t in out.items() if not t.role and n not in by_base],
    }
    notes = [
        Note("hint" if "stay" in text else "dropped", text, tuple(names)) for text, names in texts.items() if names
    ]
    alone = {b: Move("ema=True", (t.name,)) for b, t in by_base.items() if b not in tensors}
    # one that has a weight is in the weight's place
    moved = {**checkpoint.moved, **compose_moves(checkpoint.moved, alone)}
    known = [*out, *(move.sources[0] for move in alone.values())]
    details = named(checkpoint.details, known, lambda n: bases.get(n) or n)
    return replace(checkpoint.with_tensors(out, *notes), details=details, moved=moved)


def _of_optimizer(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The averages that an optimizer of Keras keeps under the names of their weights."""
    flat = {n.replace("/", "_"): n for n, t in tensors.items() if not t.role}  # as Keras 3 spells them
    found = ((n, KERAS_AVERAGE.fullmatch(n)) for n, t in tensors.items() if t.role)
    bases = {n: m["base"] or flat.get(m["flat"], "") for n, m in found if m}
    return {n: base for n, base in bases.items() if base in tensors}


def _by_base(bases: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The average of each weight; UsageError if a weight has several, or one of another shape."""
    out: dict[str, Tensor] = {}
    several = []
    for name, base in bases.items():
        if base and origin(out.setdefault(base, tensors[name])) != origin(tensors[name]):
            several.append(f"{out[base].name}, {name}")
    if several:
        raise UsageError(f"several moving averages claim one weight; exclude= leaves one out:\n{listing(several)}")
    if wrong := [b for b, t in out.items() if b in tensors and tensors[b].shape != t.shape]:
        raise UsageError(f"these averages differ from their weights in shape:\n{listing(wrong)}")
    return out


def _of_entry(checkpoint: Checkpoint, about: Entry) -> dict[str, str]:
    """The averages that form an entry of their own: their names, and those of their weights ('' for counters)."""
    entries = about.get("averages", [])
    if not entries:
        if averages := [n for n, t in checkpoint.tensors.items() if t.role == "average"]:
            raise UsageError(f"averages are not matched with weights here; at= takes them alone:\n{listing(averages)}")
        raise UsageError(
            "no moving average has a name. An optimizer of Keras that has `use_ema` keeps them as numbered variables, "
            "which are not read: in Keras, call model.optimizer.finalize_variable_values(model.trainable_variables), "
            "which puts them into the model, and save that"
            if any(map(KERAS_NUMBERED.match, checkpoint.tensors))
            else "this checkpoint has no moving averages: neither NAME/ExponentialMovingAverage nor an entry such as "
            "ema, model_ema, state_dict_ema or g_ema"
        )
    if len(entries) > 1:
        raise UsageError(f"there are several moving averages, {', '.join(entries)}; at={entries[0]!r} takes one")
    entry = entries[0]
    below = "" if about.get("name") else EMA.sub("", entry) + "."  # of several models, those of g_ema are g's
    inside = {n: t for n, t in checkpoint.tensors.items() if n.startswith(f"{entry}.")}
    weights = [n for n, t in checkpoint.tensors.items() if not t.role and n not in inside and n.startswith(below)]
    by_name = {_stripped(n.removeprefix(below), WRAPPERS, set()): n for n in weights}
    bases = {n: by_name.get(_stripped(n.removeprefix(f"{entry}."), WRAPPERS, set()), "") for n in inside}
    lonely = [n for n, base in bases.items() if not base and inside[n].count > 1]
    if lonely or not any(bases.values()):
        raise UsageError(f"averages belong to no weight; at={entry!r} takes them alone:\n{listing(lonely or inside)}")
    return bases
