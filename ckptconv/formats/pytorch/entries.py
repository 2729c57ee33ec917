"""Which entry of a nested checkpoint is the model's state dict.

    {"state_dict": {...}, "optimizer": {...}, "best_score": T}      state_dict: its names are given without the prefix
    {"model": {...}, "model_ema": {...}}                            model; model_ema is its moving average
    {"generator": {...}, "discriminator": {...}}                    nobody can tell: all names are as they are

What lies beside the entry never changes its names, so all checkpoints of a run have the same: one stray tensor does
not count. The passes `at`, `averages` and `weights_only` take what is to be taken, by names, roles and `details`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

from ...checkpoint import Note
from ...messages import brief, printable
from .arrays import PickledArray
from .views import Pieces, View

# What training code calls the entry that holds a model's state dict; the last only where nothing else holds weights.
MODELS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "weight", "student",
)  # fmt: skip
ALONE = ("generator", "encoder", "backbone", "teacher", "checkpoint", "model_dict", "G", "g")
AVERAGE = re.compile(r"(?:.*[_.-])?(?:ema|swa|shadow|averaged?|averages|polyak)(?:[_.-].*)?|.*(?<=[a-z])(?:EMA|Ema)")
SHOWN = 6  # entries that a note names


class Leaf(NamedTuple):
    """A value that is not a container; `top` is the entry of the root in which it lies."""

    name: str
    value: Any
    role: str
    top: str


def is_average(key: str) -> bool:
    """Whether an entry is a moving average by its name: ema, model_ema, state_dict_ema, g_ema, shadow_params ..."""
    return AVERAGE.fullmatch(key) is not None or AVERAGE.fullmatch(key.casefold()) is not None


def unwrap(leaves: list[Leaf]) -> tuple[list[Leaf], list[Note], dict[str, Any]]:
    """Take the prefix off the model's state dict, and say what lies beside it; also details for the passes.

    details["entry"] = {"name": the entry without its prefix or "", "beside": other entries, "averages": of these,
                        "average": whether the entry itself is one}
    """
    counts: Counter[str] = Counter()  # tensors of each entry
    models: dict[str, None] = {}  # entries that hold weights
    loose: dict[str, None] = {}  # tensors that are entries themselves
    for leaf in leaves:
        if type(leaf.value) in (View, Pieces, PickledArray):
            counts[leaf.top] += 1
            if leaf.top == leaf.name:
                loose[leaf.top] = None
            elif leaf.role in ("", "average"):
                models[leaf.top] = None
    flat = any("." in name for name in loose)  # is a state dict itself
    chosen = "" if flat else _choose(list(models))
    averages = [n for n in models if n != chosen and (is_average(n) or (chosen, n) == ("student", "teacher"))]
    beside = {name: count for name, count in counts.items() if name != chosen}
    prefix = chosen + "."
    taken = {leaf.name for leaf in leaves if leaf.top == chosen and leaf.top not in loose}
    clash = {name.removeprefix(prefix) for name in taken} & {leaf.name for leaf in leaves if leaf.name not in taken}
    if not chosen or clash:
        choices = [] if flat else list(models)
        about: dict[str, Any] = {"name": "", "beside": list(counts), "averages": averages}
        return leaves, _choices(choices, averages), {"entry": about} if choices else {}
    made = [
        leaf._replace(name=leaf.name.removeprefix(prefix), role="" if leaf.role == "average" else leaf.role)
        if leaf.name in taken
        else leaf._replace(role=leaf.role or ("average" if leaf.top in averages else "state"))
        for leaf in leaves
    ]
    text = f"the weights are the entry {chosen!r}; their names are given without it"
    if beside:
        text += f"; beside it {'is' if len(beside) == 1 else 'are'} {_listed(beside, loose)}"
    about = {"name": chosen, "beside": list(beside), "averages": averages, "average": is_average(chosen)}
    return made, [Note("assumed", text)], {"entry": about}


def _choose(models: list[str]) -> str:
    """The entry that is the model, or '' where nobody can tell."""
    plain = [name for name in models if not is_average(name)]
    named = [name for name in plain if name in MODELS]
    if len(named) == 1:
        return named[0]
    if not plain and len(models) == 1:
        return models[0]
    return plain[0] if len(plain) == 1 and plain[0] in ALONE else ""


def _choices(models: list[str], averages: list[str]) -> list[Note]:
    if len(models) < 2:
        return []
    shown = ", ".join(printable(brief(name)) for name in models[:SHOWN])
    average = "; ema=True puts averages in the place of their weights" if averages else ""
    return [Note("hint", f"holds several state dicts ({shown}); at={brief(models[0])!r} takes one{average}")]


def _listed(beside: dict[str, int], loose: dict[str, None]) -> str:
    """optimizer (12 tensors), best_score."""
    words = [
        printable(brief(name)) if name in loose else f"{printable(brief(name))} ({n} tensor{'s' * (n > 1)})"
        for name, n in beside.items()
    ]
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
