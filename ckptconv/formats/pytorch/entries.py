"""Find the entry of a nested checkpoint that is the model's state dict.

    {"state_dict": {...}, "optimizer": {...}, "best_score": T}      state_dict: its names are given without the prefix
    {"model": {...}, "model_ema": {...}}                            model; model_ema is its moving average
    {"generator": {...}, "discriminator": {...}}                    undecidable: all names stay

What lies beside the entry never changes its names, so all checkpoints of a run have the same: one stray tensor does
not count. The passes `at`, `averages` and `weights_only` take what is to be taken, by names, roles and `details`.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from typing import Any, NamedTuple

from ...checkpoint import Details, Entry, Note, Role
from ...checkpoint.training import COLLECTIONS, is_average
from ...messages import brief, printable
from .arrays import PickledArray
from .views import Pieces, View

# What training code calls the entry that holds a model's state dict; the last only where nothing else holds weights.
MODELS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "weight", "student",
)  # fmt: skip
ALONE = ("generator", "encoder", "backbone", "teacher", "checkpoint", "model_dict", "G", "g")
OPTIMIZER = re.compile(r"[Oo]ptim(?:i[sz]er|s?(?![a-z]))|OPTIM")  # optimizer_states, g_optim; not optimal_query
STATES = ("params", "state")  # Haiku's two halves of a model
REPLAY = {  # what reinforcement learning has in its buffers
    "action", "actions", "done", "dones", "episode_starts", "log_probs", "next_obs", "next_observations", "next_state",
    "next_states", "obs", "observation", "observations", "replay", "reward", "rewards", "terminated", "terminations",
    "transitions", "truncated",
}  # fmt: skip
TENSORS = (View, Pieces, PickledArray)
SHOWN = 6  # entries that a note names


def role_of(entry: str) -> Role:
    """What a container at the root is for, by its name; what a module keeps as its extra state is its own."""
    if entry.endswith("_extra_state"):
        return ""
    if is_average(entry):
        return "average"
    if OPTIMIZER.search(entry):
        return "slot"
    return "state" if "rng_state" in entry else ""


class Leaf(NamedTuple):
    """A value that is not a container; `top` is the entry of the root in which it lies."""

    name: str
    value: Any
    role: Role
    top: str


class _Entries:
    """The entries of a root: how many tensors each has, which hold weights, which are tensors themselves."""

    def __init__(self, leaves: list[Leaf]) -> None:
        self.counts: Counter[str] = Counter()
        self.models: dict[str, None] = {}
        self.loose: dict[str, None] = {}
        self.bare: set[str] = set()  # in which tensors lie, not in groups
        for leaf in leaves:
            if type(leaf.value) not in TENSORS:
                continue
            self.counts[leaf.top] += 1
            if "." not in leaf.name[len(leaf.top) + 1 :]:
                self.bare.add(leaf.top)
            if leaf.top == leaf.name:
                self.loose[leaf.top] = None
            elif leaf.role in ("", "average"):
                self.models[leaf.top] = None
        flat = any("." in name for name in self.loose)  # the root is a state dict itself
        self.models = {} if flat else self.models
        self.chosen = _choose(list(self.models))
        pair = ("student", "teacher")
        self.averages = [n for n in self.models if n != self.chosen and (is_average(n) or (self.chosen, n) == pair)]

    def taken(self, leaf: Leaf) -> bool:
        return leaf.top == self.chosen and leaf.top != leaf.name


def unwrap(leaves: list[Leaf]) -> tuple[list[Leaf], list[Note], Details]:
    """Remove the prefix of the model's state dict, and note what is beside it; return also details for the passes.

    details["entry"] = {"name": the entry without its prefix or "", "beside": other entries, "averages": of these,
                        "average": whether the entry itself is one}
    """
    found = _Entries(leaves)
    about: Entry = {"name": found.chosen, "beside": list(found.counts), "averages": found.averages}
    if not found.chosen:
        return leaves, _choices(list(found.models), found.averages), {"entry": about} if found.models else {}
    about |= {"beside": [n for n in found.counts if n != found.chosen], "average": is_average(found.chosen)}
    size = len(found.chosen) + 1
    names = {leaf.name[size:] for leaf in leaves if found.taken(leaf)}
    halves = _halves(leaves, names, found)
    made = [_inside(leaf, size) if found.taken(leaf) else _beside(leaf, names, found, halves) for leaf in leaves]
    text = f"the weights are the entry {found.chosen!r}; their names are given without it"
    if about["beside"]:
        text += f"; beside it {'is' if len(about['beside']) == 1 else 'are'} {_listed(about['beside'], found)}"
    return made, [Note("assumed", text)], {"entry": about}


def _inside(leaf: Leaf, size: int) -> Leaf:
    return leaf._replace(name=leaf.name[size:], role="" if leaf.role == "average" else leaf.role)


def _beside(leaf: Leaf, names: set[str], found: _Entries, halves: set[str]) -> Leaf:
    """What is not the model has a role, unless it is a collection of one.

    A tensor that is called as one of the model's stands under another name.
    """
    name = f"beside.{leaf.name}" if leaf.name in names and type(leaf.value) in TENSORS else leaf.name
    role: Role = "average" if leaf.top in found.averages else "state"
    if leaf.name != leaf.top and leaf.top in halves:
        role = ""
    return leaf._replace(name=name, role=leaf.role or role)


def _halves(leaves: list[Leaf], names: set[str], found: _Entries) -> set[str]:
    """The entries that are the other half of the model: batch_stats beside params, Haiku's state, a module's buffers.

    An optimizer's `state` has bare tensors. A module's `buffers` lie in modules, of which one has weights, or else all
    are in some and none is called as a replay calls what it holds.
    """
    halves = set(COLLECTIONS if found.chosen == "params" else COLLECTIONS - {"buffers"})
    if found.chosen == STATES[0] and STATES[1] not in found.bare:
        halves.add(STATES[1])
    modules = {n.partition(".")[0] for n in names}
    keys = [leaf.name.split(".")[1:] for leaf in leaves if leaf.top == "buffers" != leaf.name]
    grouped = "buffers" not in found.bare and REPLAY.isdisjoint(chain.from_iterable(keys))
    if keys and (grouped or any(k[0] in modules for k in keys)):
        halves.add("buffers")
    return halves


def _choose(models: list[str]) -> str:
    """The entry that is the model, or '' if that is undecidable."""
    others = [name for name in models if not is_average(name)]
    named = [name for name in others if name in MODELS]
    if len(named) == 1:
        return named[0]
    if not others and len(models) == 1:
        return models[0]
    return others[0] if len(others) == 1 and others[0] in ALONE else ""


def _choices(models: list[str], averages: list[str]) -> list[Note]:
    if len(models) < 2:
        return []
    shown = ", ".join(printable(brief(name)) for name in models[:SHOWN])
    average = "; ema=True puts averages in the place of their weights" if averages else ""
    return [Note("hint", f"holds several state dicts ({shown}); at={brief(models[0])!r} takes one{average}")]


def _listed(beside: list[str], found: _Entries) -> str:
    """optimizer (12 tensors), best_score."""
    words = []
    for name in beside:
        count = found.counts[name]
        many = "" if name in found.loose else f" ({count} tensor{'s' * (count > 1)})"
        words.append(printable(brief(name)) + many)
    return ", ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
