"""Find the roles of tensors in a training state from their keys, as JAX programs name them.

    params/dense/kernel, batch_stats/bn/mean      collections of Flax: the model, whatever the names below
    opt_state/0/mu/..., state/param_states/...    slots of an optimizer; `step` and `count` among them are counters
    optimizer/target/..., optimizer/state/...     flax.optim and T5X: the model, and the slots
    step, ema_params/...                          a counter and averages, but only next to a model, an optimizer, or a
                                                  group that is named like one or holds one: model_params,
                                                  train_state/params

The same words decide in every container (Orbax, Flax's msgpack, a pickle), and below any top, as in state/params/w.
Everything else is a weight, since bare parameters have names of all kinds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Final, Literal

from .tensor import Role

Settled = Literal[Role, "weight"]
WEIGHT: Final = "weight"  # the tensor is in a model, so names below decide nothing
MODEL = frozenset({
    "batch_stats", "model_state", "flax_mutables", "buffers", "_overwrite_with_gradient", "params", "target",
})  # fmt: skip
SLOTS = frozenset({
    "opt_state", "opt_states", "optimizer", "optimizer_state", "optimizer_states", "param_states",
})  # fmt: skip
FLAX_STATE = ("param_states", "step")  # the keys of flax.optim's state
STEPS = frozenset({"step", "count"})
INNER = SLOTS - {"optimizer"} | {"params"}  # a group that has one of these counts as a model for its neighbours
BESIDE: Final = "/"  # stands for such a group in a set of keys; no key contains it
MARKS = SLOTS | {"params", "model", BESIDE}  # a map that has one of these is a training state
TELLING = MARKS - {BESIDE} | {"target"}  # keys that decide the role of their neighbours or of the group around them
FORMATS = frozenset({"flax", "orbax"})  # whose names are such keys, joined by '/'
MODELS = 2  # levels at which a group's name or keys can make it count as a model
LEVELS = 8  # a training state lies near the top; a hostile name may have thousands of keys
AVERAGE = re.compile(r"(?:^|[_.-])(?:ema|swa|shadow|averaged?|averages|polyak)(?:[_.-]|\Z)|(?<=[a-z])(?:EMA|Ema)\Z")
# Counters that wrappers of a module keep in its state dict, by the submodule: torch's AveragedModel, ema-pytorch
COUNTERS = {"module": ("n_averaged",), "ema_model": ("initted", "step")}


def is_average(key: str) -> bool:
    """Tell by its name whether an entry is a moving average: ema, model_ema, state_dict_ema, g_ema, shadow_params."""
    return AVERAGE.search(key) is not None or AVERAGE.search(key.casefold()) is not None


def counters(parts: Sequence[Mapping[Any, Any]]) -> tuple[str, ...]:
    """Return the names of a wrapper's counters, if these mappings are the state of a module that is wrapped."""
    for head, names in COUNTERS.items():
        if all(any(n in part for part in parts) for n in names) and any(
            type(key) is str and key.partition(".")[0] == head for part in parts for key in part
        ):
            return names
    return ()


def is_model(key: str, inside: Container[str], level: int) -> bool:
    """Tell whether a group counts as `params` for its neighbours, by its name or its keys.

    level: that of the group, 0 for the top. Further below, modules have such names and keys.
    """
    if level >= MODELS:
        return False
    named = key in ("variables", "mdl_vars", "weights") or key.startswith("params_") or key.endswith("_params")
    found = named or any(k in inside for k in INNER)
    # random streams of Flax are called rngs/params
    return found and not (key in SLOTS or key.startswith(("opt", "rng")) or is_average(key))


def of_group(key: str, inside: Collection[str], beside: Collection[str]) -> Settled:
    """Return the role of everything in a group, '' if the keys in it decide.

    inside: keys of the group. beside: those of `TELLING` among the group and its neighbours.
    """
    if key in MODEL:
        return WEIGHT
    if key == "optimizer" and any(k in inside for k in ("target", "model", "params")):
        return ""
    if key in SLOTS or (key == "state" and "target" in beside and any(k in inside for k in FLAX_STATE)):
        return "slot"  # modules are called `state`, too, so only as in flax.optim
    if MARKS.isdisjoint(beside):
        return ""
    if key in STEPS:  # flax.nnx: step/value
        return "step"
    return "slot" if key == "opt" else "average" if is_average(key) else ""


def of_leaf(key: str, beside: Collection[str]) -> Role:
    """Return the role of a tensor from its key and the groups next to it."""
    return "step" if key in STEPS and not MARKS.isdisjoint(beside) else ""


def of_names(names: Collection[str]) -> dict[str, Role]:
    """Return the roles of tensors whose names are keys joined by '/', without weights.

    Only groups that decide something are kept: hostile names may have more groups than a file has bytes.
    """
    homes: defaultdict[str, list[str]] = defaultdict(list)  # names by group: a/b/ for a/b/c
    for name in names:
        homes[name[: name.rfind("/") + 1]].append(name)
    groups: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for home in homes:
        keys = _keys(home)
        if keys[-1:] == ("state",) and f"{home}step" in names:
            groups[keys].add("step")
        for i, key in enumerate(keys):
            if key in TELLING:
                groups[keys[:i]].add(key)
            if is_model(key, keys[i + 1 : i + 2], i):
                groups[keys[:i]].add(BESIDE)
    found: dict[str, Role] = {}
    for home, inside in homes.items() if groups else ():  # otherwise all are weights
        keys = _keys(home)
        settled: Settled = ""
        for i, key in enumerate(keys):
            settled = settled or of_group(key, groups.get(keys[: i + 1], ()), groups.get(keys[:i], ()))
        if settled == WEIGHT:
            continue
        beside = groups.get(keys, ()) if len(keys) < LEVELS else ()
        for name in inside:
            key = name[len(home) :]
            role = "step" if settled == "slot" and key in STEPS else settled or of_leaf(key, beside)
            if role:
                found[name] = role
    return found


def _keys(home: str) -> tuple[str, ...]:
    return tuple(home.split("/", LEVELS)[:-1])


def in_model(checkpoint_format: str, name: str) -> bool:
    """Tell whether a tensor is in a group that the format calls the model, so that its name decides nothing."""
    return checkpoint_format in FORMATS and not MODEL.isdisjoint(name.split("/")[:-1])
