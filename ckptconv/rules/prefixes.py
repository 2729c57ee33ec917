"""Passes on the beginnings of names: take one entry of a nested checkpoint, remove the prefixes of wrappers.

at              state_dict_ema.fc.weight -> fc.weight; tensors outside the entry are dropped
strip           module._orig_mod.fc.weight -> fc.weight
hinted          notes which prefixes wrappers left, and how to remove them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat

from ..checkpoint import Checkpoint, Note
from ..errors import CorruptCheckpoint, UsageError
from ..messages import did_you_mean, listing
from ..storage.paths import beginning
from .passes import renamed
from .unseen import lost, unread, unseen

MAX_ENTRIES = 12  # that an error lists

# The prefixes of DataParallel, torch.compile, DeepSpeed, Lightning and FSDP. Those that begin with an underscore occur
# nowhere else, so they are removed in the middle of names as well.
WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
NESTED = ("state_dict", "model_state_dict", "model_dict")  # of a model within an entry; no module is called so

CHOICES = ("the weights are the entry", "holds several state dicts")  # beginnings of notes that `at` makes obsolete


def at(checkpoint: Checkpoint, entry: str) -> Checkpoint:
    """Keep the tensors of one entry, under names without it; UsageError lists the entries if it does not exist."""
    entry = entry.strip("./")
    names = [*checkpoint.tensors, *lost(checkpoint)]
    found = _inside(names, entry) or _of_main(checkpoint, names, entry)
    if found and found.keys().isdisjoint(checkpoint.tensors):
        raise CorruptCheckpoint(f"all of the entry {entry!r} is damaged:\n{listing(found)}")
    if not found:
        raise UsageError(_absent(checkpoint, entry))
    left = tuple(n for n in checkpoint.tensors if n not in found)
    kept = {n: t for n, t in checkpoint.tensors.items() if n in found}
    cleared = {n: replace(t, role="") if t.role in ("average", "state") else t for n, t in kept.items()}
    details = checkpoint.details.copy()
    details.pop("entry", None)
    others = unread(checkpoint)
    new = (_inside(others, entry) if _inside(names, entry) else _of_main(checkpoint, others, entry)) | found
    notes = unseen((n for n in checkpoint.notes if not n.text.startswith(CHOICES)), lambda n: new.get(n, ""))
    only = replace(checkpoint, details=details, notes=notes).with_tensors(cleared)
    made = renamed(only, found.__getitem__, f"at={entry}")
    return replace(made, notes=(*made.notes, Note("dropped", f"not in the entry {entry!r}", left))) if left else made


def _of_main(checkpoint: Checkpoint, names: Sequence[str], entry: str) -> dict[str, str]:
    """Those of the names in the entry whose prefix the format has already removed, or in an entry of that one."""
    about = checkpoint.details.get("entry", {})
    main, beside = about.get("name", ""), tuple(about.get("beside", ()))
    if main and entry == main:
        others = tuple(name + "." for name in ("beside", *beside))
        return {n: n for n in names if n not in beside and not n.startswith(others)}
    return _inside(names, entry[len(main) + 1 :]) if main and entry.startswith(main + ".") else {}


def _inside(names: Sequence[str], entry: str) -> dict[str, str]:
    """Names below an entry, with dots or slashes, and the same names without it."""
    return {n: n[len(entry) + 1 :] for n in names if n.startswith((entry + ".", entry + "/"))}


def _absent(checkpoint: Checkpoint, entry: str) -> str:
    about = checkpoint.details.get("entry", {})
    known = [about["name"], *about["beside"]] if about.get("name") else []
    counts: Counter[str] = Counter()
    for name in checkpoint.tensors:
        counts[name.replace("/", ".").partition(".")[0]] += 1
    entries = list(dict.fromkeys([*known, *(n for n, _ in counts.most_common())]))
    return f"there is no entry {entry!r}{did_you_mean(entry, entries[:MAX_ENTRIES], 'entries')}"


def strip(checkpoint: Checkpoint, prefixes: Sequence[str]) -> Checkpoint:
    """Remove prefixes from all names, repeatedly and in any order; UsageError for one that no name has."""
    wanted = [p for text in prefixes for p in text.split(",") if p]
    if not wanted:
        raise UsageError(f"strip_prefix= takes prefixes, not {','.join(prefixes)!r}")
    used: set[str] = set()
    head = _owner([n for n, t in checkpoint.tensors.items() if not t.role], wanted)

    def bare(name: str, used: set[str]) -> str:
        return head * name.startswith(head) + _stripped(name.removeprefix(head), wanted, used)

    new = {name: bare(name, used) for name in (*checkpoint.tensors, *lost(checkpoint))}
    unused = [p for p in wanted if p not in used]
    if unused:
        raise UsageError(f"no name begins with {', '.join(map(repr, unused))}. `inspect` lists the names")
    noted = replace(checkpoint, notes=unseen(checkpoint.notes, lambda n: new.get(n) or bare(n, set())))
    return renamed(noted, new.__getitem__, f"strip_prefix={','.join(wanted)}")


def _owner(names: Sequence[str], prefixes: Sequence[str]) -> str:
    """What all names begin with before one of the prefixes, if none begins with one: `model.` of `model.module.fc`."""
    if not names or any(map(str.startswith, names, repeat(tuple(prefixes)))):
        return ""
    common = beginning(names)
    return next((common[: at + 1] for p in prefixes if (at := common.find("." + p)) >= 0), "")


def _stripped(name: str, prefixes: Sequence[str], used: set[str]) -> str:
    again = True
    while again:
        again = False
        for prefix in prefixes:
            if name.startswith(prefix) and len(name) > len(prefix):
                name, again = name[len(prefix) :], True
            elif prefix.startswith("_") and "." + prefix in name:
                name, again = name.replace("." + prefix, "."), True
            else:
                continue
            used.add(prefix)
    return name


def hinted(checkpoint: Checkpoint) -> Checkpoint:
    """Note a state dict that is an entry of the entry, and the wrappers' prefixes of all weights, with the options."""
    weights = [n for n, t in checkpoint.tensors.items() if not t.role]
    main = checkpoint.details.get("entry", {}).get("name", "")
    inner = [e for e in dict.fromkeys(n.partition(".")[0] for n in weights) if e in NESTED] if main else []
    texts = [f"the state dict is an entry of {main!r}; at='{main}.{inner[0]}' takes it"] if inner else []
    if found := _wrapped(weights):
        texts.append(f"names have prefixes of wrappers; strip_prefix='{','.join(found)}' removes them")
    notes = tuple(Note("hint", text, tuple(weights[:1])) for text in texts)
    return replace(checkpoint, notes=(*checkpoint.notes, *notes)) if notes else checkpoint


def _wrapped(names: list[str]) -> list[str]:
    """The wrappers' prefixes that begin all names, one after the other, and those within some names."""
    found: list[str] = []
    head = _owner(names, WRAPPERS)
    names = [n[len(head) :] for n in names]
    while names:
        prefix = next((p for p in WRAPPERS if all(n.startswith(p) for n in names)), "")
        if not prefix:
            break
        names = [n[len(prefix) :] for n in names]
        found.append(prefix)
    text = "\n.".join(["", *names])  # each name after a dot, and none after the dot of another
    within = [p for p in WRAPPERS if p.startswith("_") and "." + p in text]
    return list(dict.fromkeys([*found, *within]))
