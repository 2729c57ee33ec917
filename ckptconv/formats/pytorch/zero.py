"""DeepSpeed's ZeRO: every rank has a piece of each flat group of parameters, in float32, and of their moments.

    latest                                                 text: the folder that was saved last
    global_step9/mp_rank_00_model_states.pt                {"module": {...}, "buffer_names": [...], "param_shapes":
                                                           [{"a": (5, 7), ...}, ...], "shared_params": {"alias": "a"},
                                                           "frozen_param_shapes", "frozen_param_fragments": {...}}
    global_step9/zero_pp_rank_0_mp_rank_00_optim_states.pt {"optimizer_state_dict": {"partition_count": 3,
                                                           "single_partition_of_fp32_groups": [flat, ...], ...}}

    stages 1, 2     a group is its parameters, one after the other, cut into one piece for each rank
    stage 3         each parameter is cut into pieces of ceil(n / ranks), which follow each other in the rank's groups;
                    "fp32_flat_groups" has them, and each rank a zero_pp_rank_N_mp_rank_00_model_states.pt

The weights are those of the optimizer, as DeepSpeed's own zero_to_fp32.py takes them; no tensor is copied to join them.
The module's own, rounded to bfloat16 or float16, are in mp_rank_00_model_states.pt, which can be opened by itself.

A universal checkpoint has each parameter, and each of its moments, in a file; the model's files lie beside them.

    latest_universal                                       text: the folder; `latest` goes first
    global_step9_universal/zero/fc.weight/fp32.pt          {"param": (5, 7), "cat_dim": 0}; of stage 3 a flat tensor
    global_step9_universal/zero/fc.weight/exp_avg.pt       the same

Specification: deepspeed/utils/zero_to_fp32.py, runtime/zero/stage_1_and_2.py and stage3.py, runtime/bf16_optimizer.py,
checkpoint/ds_to_universal.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Note, Role, Tensor, contiguous
from ...dtypes import DType
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import many, printable, shortened
from ...moves.part import Held, Part, c_strides, checked_count
from ...storage.files import Reader, Seen, is_dir, join, names, read_all
from .. import Located
from ..table import Reading
from ..tiling import cut
from .archive import PICKLE, enter
from .flatten import stored
from .ranks import is_gathered, refuse_incomplete
from .tensors import View, ints
from .values import Ordered, shown

LATEST = ("latest", "latest_universal")
UNIVERSAL = "zero"  # the folder of a universal checkpoint's parameters
MODEL, OPTIMIZER = "_model_states.pt", "_optim_states.pt"
RANK = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)(_(?:model|optim)_states\.pt)")
FLAT, STATES = {False: "single_partition_of_fp32_groups", True: "fp32_flat_groups"}, "optimizer_state_dict"
MP = re.compile(r"mp_rank_(\d+)_model_states")
REFUSED = ("layer_", "expp_rank_", "expert_")  # beginnings of files of pipelines and experts
Shapes = dict[str, tuple[int, ...]]


def sniff(seen: Seen) -> int:
    if not seen.is_dir or is_gathered(seen.files):
        return 0
    folder = _saved(seen.url, seen.files)
    inside = names(folder) if folder != seen.url and is_dir(folder) else seen.files
    if UNIVERSAL in inside and any(n.endswith(MODEL) for n in inside):
        return 4
    return 4 if any(RANK.fullmatch(n) and n.endswith(OPTIMIZER) for n in inside) else 0


def _saved(url: str, files: Sequence[str]) -> str:
    """The folder that was saved last; the folder itself if nothing in it names one."""
    latest = next((n for n in LATEST if n in files), "")
    if not latest:
        return url
    tag = read_all(join(url, latest), 1000).decode("utf-8", "replace").strip()
    if not tag or "/" in tag or "\\" in tag or tag in (".", ".."):
        raise UnsafeCheckpoint(f"{latest} names {printable(tag)}, which is not a folder beside it", url=url)
    return join(url, tag)


def open(url: str, how: Reading) -> Checkpoint:
    folder = _saved(url, names(url))
    files = names(folder)
    if UNIVERSAL in files:
        models = [join(folder, n) for n in files if n.endswith(MODEL) and not n.startswith(REFUSED)]
        urls, roots = list[str](), [_load(path) for path in models]
        note = "float32 weights of the optimizer, of a universal checkpoint, without its steps"
        if not roots:
            raise CorruptCheckpoint(f"has no file that ends with {MODEL}", url=folder)
        return _made(folder, _universal(folder, files, roots, urls), roots[0], [*models, *urls], note)
    if others := [n for n in files if n.startswith(REFUSED) or ((m := RANK.fullmatch(n)) and int(m[2]))]:
        what = f"its tensors, layers or experts are cut as well, which is not read ({shortened(others)})"
        raise CorruptCheckpoint(what, url=folder)
    found = {int(m[1]): n for n in files if (m := RANK.fullmatch(n)) and n.endswith(OPTIMIZER)}
    ranks = sorted(found)
    urls = [join(folder, found[rank]) for rank in ranks]
    parts = [_dict(_load(path), STATES) for path in urls]
    _all_there(folder, ranks, parts[0].get("partition_count"))
    stage3 = FLAT[True] in parts[0]
    models = [join(folder, f"zero_pp_rank_{r}_mp_rank_00{MODEL}") for r in ranks] if stage3 else []
    models = models or [join(folder, f"mp_rank_00{MODEL}")]
    roots = [_load(path) for path in models]
    stage = "3" if stage3 else "1 or 2; the module's own are in mp_rank_00_model_states.pt"
    joined = f"joined from {many(len(ranks), 'rank')}, without its steps and scales"
    note = f"float32 weights of the optimizer, {joined} (ZeRO {stage})"
    return _made(folder, _tensors(roots, parts, stage3), roots[0], [*models, *urls], note)


def _made(folder: str, found: Iterable[Tensor], root: dict[Any, Any], urls: list[str], note: str) -> Checkpoint:
    """The checkpoint of these tensors, with the names that the model shares."""
    tensors = dict[str, Tensor]()
    with Located(folder):
        for tensor in found:
            if tensors.setdefault(tensor.name, tensor) is not tensor:
                raise CorruptCheckpoint("is described twice", tensor=tensor.name)
    ties = dict[str, list[str]]()
    for alias, name in _dict(root, "shared_params").items():
        if type(alias) is type(name) is str and name in tensors and alias not in tensors:
            tensors[alias] = tensors[name].renamed(alias)
            ties.setdefault(name, [name]).append(alias)
    groups = tuple(map(tuple, ties.values()))
    return Checkpoint(tensors, {}, groups, "deepspeed", tuple(urls), (Note("assumed", note),))


def _object(url: str) -> Any:
    with Reader(url) as f:
        return enter(f).load(PICKLE, opaque=True)  # counters and settings of DeepSpeed's own classes stay inert


def _load(url: str) -> dict[Any, Any]:
    root = _object(url)
    if type(root) is not dict:
        raise CorruptCheckpoint(f"holds {shown(root)}, not what DeepSpeed writes", url=url)
    if root.get("ds_autoep_layers"):
        raise CorruptCheckpoint("has experts, which only DeepSpeed's ds_to_universal.py joins", url=url)
    return root


def _all_there(folder: str, ranks: list[int], counted: Any) -> None:
    """Refuse a folder in which files of ranks are missing, or of an earlier run."""
    counts = counted if type(counted) is list else [counted]  # one for each group
    if not counts or any(type(n) is not int for n in counts) or not 0 < (count := max(counts)) < 1_000_000:
        raise CorruptCheckpoint(f"has the partition_count {shown(counted)}", url=folder)
    refuse_incomplete(folder, ranks, count, ((r, f"zero_pp_rank_{r}_mp_rank_00{OPTIMIZER}") for r in range(count)))


class Row(NamedTuple):
    """Flat tensors of one dtype, each of which continues the one before."""

    kind: DType
    parts: list[Part]
    length: int


def _row(values: Sequence[Any]) -> Row:
    flat = list[Tensor]()
    for value in values:
        tensor = stored("", value) if _is_flat(value) else None
        if tensor is None or (tensor.count > 1 and value.strides != (1,)):
            raise CorruptCheckpoint(f"has {shown(value)} where a flat tensor must be")
        flat.append(tensor)
    if len({t.dtype for t in flat}) != 1:
        raise CorruptCheckpoint(f"has {many(len(flat), 'flat tensor')} of different dtypes where one must be")
    ends = list(accumulate(t.count for t in flat))
    parts = [t.parts[0]._replace(start=end - t.count) for t, end in zip(flat, ends, strict=True) if t.count]
    return Row(flat[0].dtype, parts, ends[-1])


def _is_flat(value: Any) -> bool:
    return type(value) is View and len(value.shape) == 1


def _tensor(name: str, shape: tuple[int, ...], kind: DType, parts: list[Part], role: Role) -> Tensor:
    if sum(prod(p.shape) for p in parts) != prod(shape):
        raise CorruptCheckpoint(f"its pieces do not fill its shape {list(shape)}", tensor=name)
    return (
        Tensor(name, kind, shape, tuple(parts), role)
        if parts
        else contiguous(name, kind, shape, Held.of(b""), role=role)
    )


def _spread(groups: Iterable[Shapes], rows: list[Row], prefix: str, role: Role, align: int = 1) -> Iterator[Tensor]:
    """Each row has an equal piece of every parameter, the last ones padded, as it is padded itself to `align`."""
    at = 0
    for name, shape in (item for group in groups for item in group.items()):
        count = prod(shape)
        size = -(-count // len(rows))
        parts = [
            p for i, row in enumerate(rows)
            for p in cut(row.parts, at, at + min(size, max(0, count - i * size)), i * size)
        ]  # fmt: skip
        yield _tensor(prefix + name, shape, rows[0].kind, parts, role)
        at += size
    if any(-(-row.length // align) != -(-at // align) or row.kind != rows[0].kind for row in rows):
        raise CorruptCheckpoint(f"a rank has {rows[0].length} elements, its parameters need {at}")


def _joined(
    groups: list[Shapes], flat: list[list[Any]], stage3: bool, prefix: str = "", role: Role = ""
) -> Iterator[Tensor]:
    """The parameters of groups. flat: what each rank has of them, by group.

    Stages 1 and 2 have the parameters of a group one after the other in what all ranks have of it, stage 3 a piece of
    each in every rank.
    """
    if stage3:
        yield from _spread(groups, [_row(pieces) for pieces in flat], prefix, role)
        return
    for group, pieces in zip(groups, zip(*flat, strict=True), strict=True):
        yield from _spread([group], [_row(pieces)], prefix, role, 2 * len(flat))


def _groups(root: dict[Any, Any]) -> list[Shapes]:
    described = root.get("param_shapes")
    return [_shapes(g) for g in (described if type(described) is list else [described])]


def _untrained(roots: list[dict[Any, Any]], stage3: bool) -> Iterator[Tensor]:
    """What is not trained, as it is stored."""
    groups = _groups(roots[0])
    frozen = _shapes(roots[0].get("frozen_param_shapes"))
    fragments = [_dict(root, "frozen_param_fragments") for root in roots]
    done = {*frozen, *(name for group in groups for name in group), *_dict(roots[0], "shared_params")}
    for name, value in _dict(roots[0], "module").items():
        if type(name) is str and name not in done and type(value) is View and not (stage3 and 0 in value.shape):
            if (tensor := stored(name, value)) is None:
                raise CorruptCheckpoint(f"is {shown(value)}, which is not read", tensor=name)
            yield tensor
    for name, shape in frozen.items():
        if stage3:
            yield from _joined([{name: shape}], [[f.get(name)] for f in fragments], stage3)
        elif type(value := fragments[0].get(name)) is View and value.shape == shape and (t := stored(name, value)):
            yield t
        else:
            raise CorruptCheckpoint(f"is frozen and is {shown(value)}, not of shape {list(shape)}", tensor=name)


def _tensors(roots: list[dict[Any, Any]], parts: list[dict[Any, Any]], stage3: bool) -> Iterator[Tensor]:
    """What is not trained, the parameters, and the optimizer's moments."""
    yield from _untrained(roots, stage3)
    groups = _groups(roots[0])
    weights = [_list(p, FLAT[stage3], groups, stage3) for p in parts]
    yield from _joined(groups, weights, stage3)
    states = [_states(p.get(STATES if stage3 else "base_optimizer_state")) for p in parts]
    pairs = ((w, g) for each in zip(weights, states, strict=True) for w, g in zip(*each, strict=False))
    slots = dict.fromkeys(  # others are scales of 8-bit moments
        slot for w, g in pairs for slot, v in g.items() if _is_flat(v) and v.shape == w.shape
    )
    for slot in slots:
        flat = [[g.get(slot) for g in of] for of in states]
        yield from _joined(groups, flat, stage3, f"optimizer.{slot}.", "slot")


def _universal(folder: str, files: Sequence[str], roots: list[dict[Any, Any]], urls: list[str]) -> Iterator[Tensor]:
    """The tensors of a universal checkpoint; `urls` gets the files of its parameters."""
    yield from (beside := list(_untrained(roots, any(map(RANK.fullmatch, files)))))
    if beside and any(int(m[1]) for n in files if (m := MP.search(n))):
        raise CorruptCheckpoint("is not trained, and may be cut by tensor parallelism", tensor=beside[0].name)
    shapes = {name: shape for root in roots for group in _groups(root) for name, shape in group.items()}
    zero = join(folder, UNIVERSAL)
    inside = {name: names(join(zero, name)) for name in names(zero) if is_dir(join(zero, name))}
    if lacking := [n for n in {**shapes, **inside} if "fp32.pt" not in inside.get(n, ())]:
        raise CorruptCheckpoint(f"has no fp32.pt of {shortened(lacking)}")
    for name, home in inside.items():
        for slot in [n.removesuffix(".pt") for n in home if n.endswith(".pt") and n != "step.pt"]:
            urls.append(join(zero, name, f"{slot}.pt"))
            kept, shape = _object(urls[-1]), shapes.get(name)
            value = kept.get("param") if type(kept) is dict else _unflattened(kept, shape)
            if type(value) is not View or (t := stored(name, value)) is None:
                what = f"is {shown(kept)}, not a tensor, or a flat one of the shape {shape}"
                raise CorruptCheckpoint(what, url=urls[-1], tensor=name)
            yield t if slot == "fp32" else replace(t, name=f"optimizer.{slot}.{name}", role="slot")


def _unflattened(value: Any, shape: tuple[int, ...] | None) -> Any:
    """A flat tensor of stage 3 in its shape, if the model's file says it."""
    if shape is None or not _is_flat(value) or value.shape != (prod(shape),) or value.strides != (1,):
        return None
    return value._replace(shape=shape, strides=c_strides(shape))


def _list(part: dict[Any, Any], key: str, groups: list[Shapes], stage3: bool) -> list[Any]:
    found = part.get(key)
    if type(found) is not list or not found or (len(found) != len(groups) and not stage3):
        raise CorruptCheckpoint(f"has the {key} {shown(found)}, with {many(len(groups), 'group')} of parameters")
    return found


def _dict(root: Mapping[Any, Any], key: str) -> dict[Any, Any]:
    value = root.get(key)
    if value is not None and type(value) not in (dict, Ordered):
        raise CorruptCheckpoint(f"has the {key} {shown(value)}")
    return value or {}


def _shapes(found: Any) -> Shapes:
    if type(found) not in (dict, Ordered, type(None)):
        raise CorruptCheckpoint(f"has {shown(found)} where names and shapes must be")
    out = {}
    for name, shape in (found or {}).items():
        if type(name) is not str:
            raise CorruptCheckpoint(f"has a parameter called {shown(name)}")
        out[name] = ints(shape, "shape")
        checked_count(out[name], tensor=name)
    return out


def _states(found: Any) -> list[dict[Any, Any]]:
    """The states of an optimizer's groups: a list, or torch's {"state": {0: {...}}}."""
    if type(found) is dict and type(state := found.get("state")) is dict:
        found = [state[k] for k in sorted(k for k in state if type(k) is int)]
    return [g for g in found if type(g) is dict] if type(found) is list else []
