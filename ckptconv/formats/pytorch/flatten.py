"""Turn the contents of a pickle into a checkpoint: named leaves become tensors, and everything else is accounted for.

    fc.weight  View of a storage        -> a tensor;  two equal views -> a tie
    q.weight   Pieces                   -> q.weight, q.weight.scale ...; what they are is a detail and a note;
                                           with densify=True one tensor, computed when it is read
    epoch      3                        -> details["values"], and a note that names it

Prefixes that wrappers left on all names (`module.`) stay: only `strip_prefix` removes them.

Find the entry of a nested checkpoint that is the model's state dict.

    {"state_dict": {...}, "optimizer": {...}, "best_score": T}      state_dict: its names are given without the prefix
    {"model": {...}, "model_ema": {...}}                            model; model_ema is its moving average
    {"generator": {...}, "discriminator": {...}}                    undecidable: all names stay

What lies beside the entry never changes its names, so all checkpoints of a run have the same: one stray tensor does
not count. The passes `take_entry`, `take_averages` and `weights_only` take what is to be taken, by names, roles and
`details`.

Sparse and quantised tensors: what they are made of beside stored tensors, and on request what they amount to.

sparse_coo   indices (ndim, nnz), values (nnz, ...): duplicates add up
sparse_csr   crow_indices (rows + 1), col_indices (nnz), values (nnz, ...), as above; csc by columns; bsr, bsc in blocks
quantised    value = (q - zero_point) * scale, per tensor or along an axis

Numbers without a tensor of their own (the scale of a whole tensor, the dense shape) become tensors, so that no writer
loses them and no comparison overlooks them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod
from typing import Any

from ...checkpoint import Checkpoint, Details, Entry, Note, Role, Tensor, contiguous, held, view
from ...checkpoint.training import is_average
from ...dtypes import DTYPES
from ...errors import CkptError, CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import brief, listing, many, printable, shortened
from ...moves import derived
from ...moves.part import FILL_RATIO, MAX_FILL, c_strides
from ..table import Reading
from .tensors import META, PART, Pieces, Storage, StorageType, TorchType, View, identity
from .values import ArrayType, Inert, Known, Ordered, PickledArray
from .walk import TENSORS, Leaf, Walk, is_module

# What training code calls the entry that holds a model's state dict; the last only where nothing else holds weights.
MODELS = (
    "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights", "weight", "student",
)  # fmt: skip
ALONE = ("generator", "encoder", "backbone", "teacher", "checkpoint", "model_dict", "G", "g")
# What training code keeps beside it, as far as names tell: loss_scale, lr_scheduler_state_dict. The rest is the model.
TRAINING = re.compile(
    r"(?i)loss(_.+)?|(.+_)?(epochs?|steps?|iter(ation|_num)?s?|updates|lr|opt|loss(es)?|criterion|sched(uler)?s?|scaler"
    r"|amp|rng|callbacks|metrics|history|hparams|hyper_parameters|message_hub|(extra|random|train(er|ing)?)(?=_state))"
    r"(_states?)?(_dict)?"
)
METADATA = "__metadata__"  # the attribute of a state dict in which our writer keeps a checkpoint's metadata
ABSENT = {
    META: "on the meta device, without data",
    PART: "a process's part of a DTensor or ShardedTensor; several are read as a folder: x_rank_0.pt ...",
}
SHOWN = 6  # entries that a note names
MAX_VALUES, MAX_ITEMS = 10_000, 50  # in all, and of one list
PLAIN = Reading()


def checkpoint(
    root: Any, size: int, how: Reading = PLAIN, *, url: str, format: str, notes: Iterable[Note] = ()
) -> Checkpoint:
    """Make a checkpoint of a pickle's value.

    size: bytes of the pickle.
    """
    walked = Walk(size, {})
    leaves = list(walked.leaves(root))
    metadata = attached(root) if type(root) is Ordered else {}
    whole = is_module(root)  # whose attribute may be called `model` as well
    return gather(leaves, walked, how, (url,), format, notes, whole=whole, metadata=metadata)


def attached(root: Any) -> dict[str, str]:
    """The metadata that our writer keeps as an attribute."""
    found = root.state.get(METADATA)
    if type(found) not in (dict, Ordered) or any(type(x) is not str for pair in found.items() for x in pair):
        return {}
    return dict(found)


def gather(
    leaves: list[Leaf],
    walked: Walk,
    how: Reading,
    urls: Sequence[str],
    format: str,
    notes: Iterable[Note] = (),
    *,
    quiet: bool = False,
    whole: bool = False,
    metadata: Mapping[str, str] = {},
) -> Checkpoint:
    """Make a checkpoint of leaves. quiet: values are not worth a note. whole: no entry is to be taken out of it."""
    leaves, unwrapped, details = (leaves, [], Details()) if whole else unwrap(leaves)
    read = [leaf.value for leaf in leaves if not leaf.role]
    made = Made(how)
    for leaf in leaves:
        made.add(leaf)
    if made.values and not quiet:
        details["values"] = dict(list(made.values.items())[:MAX_VALUES])
    if made.pieces:
        details["pieces"] = made.pieces
    ties = tuple(tuple(names) for names in made.groups.values() if len(names) > 1)
    every = (*notes, *unwrapped, *walked.notes(read), *made.notes(quiet))
    return Checkpoint(made.tensors, dict(metadata), ties, format, tuple(urls), every, details)


# --- the entry that is the model ------------------------------------------------------------------------------------


def unwrap(leaves: list[Leaf]) -> tuple[list[Leaf], list[Note], Details]:
    """Remove the prefix of the model's state dict, and note what is beside it; return also details for the passes.

    details["entry"] = {"name": the entry without its prefix or "", "beside": other entries, "averages": of these,
                        "average": whether the entry itself is one}
    """
    tensors = [leaf for leaf in leaves if type(leaf.value) in TENSORS]
    counts = Counter(leaf.top for leaf in tensors)
    loose = {leaf.top for leaf in tensors if leaf.top == leaf.name}
    inside = (leaf.top for leaf in tensors if leaf.top != leaf.name and leaf.role in ("", "average"))
    models = [] if any("." in name for name in loose) else list(dict.fromkeys(inside))  # or itself a state dict
    chosen = _choose(models)
    averages = [n for n in models if n != chosen and (is_average(n) or (chosen, n) == ("student", "teacher"))]
    about: Entry = {"name": chosen, "beside": [n for n in counts if n != chosen], "averages": averages}
    if not chosen:
        return leaves, _choices(models, averages), {"entry": about} if models else {}
    about["average"] = is_average(chosen)
    grouped = {leaf.top for leaf in tensors if "." in leaf.name[len(leaf.top) + 1 :]}
    # Haiku's state, a module's buffers and the best model have tensors in groups; those of optimizers, replays and
    # scores are bare.
    bare = {n for n in counts if n in ("state", "buffers") or n.startswith("best")} - grouped
    training = bare | {*filter(TRAINING.fullmatch, counts)}
    size = len(chosen) + 1
    names = {leaf.name[size:] for leaf in leaves if leaf.top == chosen != leaf.name}
    made = []
    for leaf in leaves:
        name, role = leaf.name, leaf.role
        if leaf.top == chosen != name:
            name, role = name[size:], "" if role == "average" else role
        else:  # what is of the training has a role; what is called as a tensor of the model has another name
            role = role or ("average" if leaf.top in averages else "state" if leaf.top in training else "")
            name = f"beside.{name}" if name in names and type(leaf.value) in TENSORS else name
        made.append(leaf._replace(name=name, role=role))
    text = f"weights are in {chosen!r} (prefix removed)"
    if beside := about["beside"]:
        words = [n if n in loose else f"{n} ({many(counts[n], 'tensor')})" for n in beside]
        text += f"; also present: {shortened(words, SHOWN)}"
    return made, [Note("assumed", text)], {"entry": about}


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
    more = "; ema=True puts averages in the place of their weights" if averages else ""
    return [Note("hint", f"holds several state dicts ({shortened(models)}); at={brief(models[0])!r} takes one{more}")]


# --- leaves -----------------------------------------------------------------------------------------------------


def stored(name: str, v: View, role: Role = "") -> Tensor | None:
    """Return a view as a tensor; None if nothing else can hold its dtype, or its data are not known."""
    if v.row is None or v.storage.data is None:
        return None
    offset, strides, ops = (0, c_strides(v.shape), ()) if 0 in v.shape else (v.offset, v.strides, v.ops)
    return view(name, v.row, v.shape, v.storage.data, offset=offset, strides=strides, ops=ops, role=role)


class Made:
    """The tensors made so far, and the account of everything else."""

    def __init__(self, how: Reading) -> None:
        self.how = how
        self.room = MAX_FILL  # bytes that all tensors may have beyond what is stored, as a shape costs nothing to claim
        self.storages: set[int] = set()  # those that count for dense tensors
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.pieces: dict[str, Any] = {}
        self.computed: list[str] = []
        self.damaged: list[Note] = []
        self.skipped: dict[str, list[str]] = defaultdict(list)  # why -> names
        self.absent: dict[str, str] = {}
        self.clashes: list[str] = []
        self.groups: dict[Any, list[str]] = defaultdict(list)

    def add(self, leaf: Leaf) -> None:
        name, value, role, _ = leaf
        match value:
            case View():
                self.view(name, value, role)
            case PickledArray():
                self.array(name, value, role)
            case Pieces():
                self.split(name, value, role)
            case Tensor():
                self.put(Tensor(name, value.dtype, value.shape, value.parts, role))
            case Storage():
                self.skipped["bare storages, which have no shape"].append(name)
            case _:
                self.values[name] = jsonable(value) if len(self.values) < MAX_VALUES else None

    def put(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            self.clashes.append(tensor.name)
        self.tensors[tensor.name] = tensor

    def charge(self, size: int, name: str, text: str) -> None:
        if size > self.room:
            raise UnsafeCheckpoint(text, tensor=name)
        self.room -= size

    def view(self, name: str, v: View, role: Role) -> None:
        if (tensor := stored(name, v, role)) is None:
            if v.torch in ABSENT:
                self.absent[name] = f"{printable(name)} {list(v.shape)}: {ABSENT[v.torch]}"
            else:
                self.skipped[f"of dtype {v.torch}, which nothing else can hold"].append(name)
            return
        self.put(tensor)
        if 0 in v.shape:
            return
        same = self.groups[identity(v)]
        same.append(name)
        if len(same) == 1:
            self.charge(max(0, tensor.nbytes - v.storage.size), name, "its views repeat what is stored without bound")

    def array(self, name: str, array: PickledArray, role: Role) -> None:
        spelling = array.kind.spelling
        if spelling[:1] in "OSUV":
            self.skipped["numpy arrays of strings or objects"].append(name)
            return
        try:
            t = held(name, array.numpy())
        except CkptError:
            self.skipped[f"numpy arrays of dtype {spelling}, which nothing else can hold"].append(name)
            return
        self.put(Tensor(name, t.dtype, t.shape, t.parts, role))

    def split(self, name: str, p: Pieces, role: Role) -> None:
        """The pieces as tensors, or the dense tensor; what does not fit together is an error, or salvaged without."""
        pieces = {part: t for part, v in p.parts.items() if (t := stored("", v)) is not None}
        if len(pieces) < len(p.parts):
            self.view(name, next(v for part, v in p.parts.items() if part not in pieces), role)
            return
        details = {k: jsonable(v) for k, v in p.details.items()}
        self.pieces[name] = {"kind": p.kind, "shape": list(p.shape), "parts": list(p.parts), **details}
        if self.how.densify:
            try:
                self.put(self.dense(name, p, pieces, role))
                self.computed.append(name)
            except (CorruptCheckpoint, UnsafeCheckpoint) as e:
                if not self.how.salvage:
                    raise
                self.damaged.append(Note("damaged", " ".join(e.message.split()), (name,)))
            return
        for part, v in p.parts.items():
            self.view(f"{name}.{part}" if part else name, v, role)
        for part, t in self.numbers(p).items():
            self.put(Tensor(f"{name}.{part}", t.dtype, t.shape, t.parts, role))

    def dense(self, name: str, p: Pieces, pieces: dict[str, Tensor], role: Role) -> Tensor:
        """The dense tensor, which is computed when it is read."""
        kind = DTYPES["float32"] if p.kind == "quantised" else pieces["values"].dtype
        for v in p.parts.values():
            if id(v.storage) not in self.storages:
                self.storages.add(id(v.storage))
                self.room += FILL_RATIO * v.storage.size
        size = max(prod(p.shape) * kind.itemsize, sum(t.nbytes for t in pieces.values()))
        self.charge(
            size, name,
            f"its tensors are more than {FILL_RATIO} times what is stored and {MAX_FILL} bytes when dense; "
            "without densify=True they are given as their pieces",
        )  # fmt: skip
        if p.kind == "quantised":
            pieces |= self.numbers(p)
            pieces.pop("axis", None)
        data = derived.dense(name, p.shape, kind, pieces, p.details.get("axis"))
        return contiguous(name, kind, p.shape, data, role=role)

    def numbers(self, p: Pieces) -> dict[str, Tensor]:
        """The numbers of pieces, by the names that tensors in their place have; of the dtypes that torch makes."""
        if p.kind != "quantised":
            return {"shape": self.number(p.shape, "int64")}
        kinds = {"scale": "float64", "zero_point": "int64", "axis": "int64"}
        return {part: self.number(p.details[part], kind) for part, kind in kinds.items() if part in p.details}

    def number(self, value: Any, kind: str) -> Tensor:
        """A number, or a shape, as an array in memory."""
        import numpy as np

        try:
            return held("", np.array(value, kind))
        except OverflowError as e:
            raise CorruptCheckpoint(f"a number of a quantised tensor does not fit {kind}") from e

    def notes(self, quiet: bool) -> Iterator[Note]:
        if self.clashes:
            raise NameCollision(
                "tensors at different places, such as one under a dotted key and one in nested containers, would get "
                f"one name:\n{listing(self.clashes)}"
            )
        if self.absent:
            what = f"does not hold {many(len(self.absent), 'tensor')} in full, as far as is read; save it gathered"
            if not self.how.partial:
                what += "; partial=True goes on without" * bool(self.tensors)
                raise CorruptCheckpoint(f"{what}:\n{listing(self.absent.values())}")
            yield Note("skipped", what, tuple(self.absent))
        for why, names in self.skipped.items():
            yield Note("skipped", why, tuple(names))
        yield from self.damaged
        if self.pieces and not self.how.densify:
            kinds = ", ".join(sorted({p["kind"] for p in self.pieces.values()}))
            text = f"{kinds} tensors are given as their pieces; densify=True computes them"
            yield Note("assumed", text, tuple(self.pieces))
        if self.computed:
            yield Note("assumed", "sparse or quantised in the source, computed in full here", tuple(self.computed))
        if self.values and not quiet:
            yield Note("skipped", "values that are not tensors", tuple(self.values), tensors=False)


def jsonable(value: Any) -> Any:
    """A value as JSON, truncated if it is long."""
    kind = type(value)
    if kind is float and not isfinite(value):
        return str(value)  # JSON has no word for it
    if kind in (str, int, bool, float) or value is None:
        return value if kind is not str or len(value) < 1000 else value[:1000] + "..."
    if kind in (list, tuple, set, frozenset):
        return [jsonable(v) for v in list(value)[:MAX_ITEMS]]
    if kind in (Known, Inert):
        return str(value.path)
    if kind in (TorchType, StorageType):
        return f"torch.{value.name}"
    if kind is ArrayType:
        return value.spelling
    return f"{len(value)} bytes" if kind is bytes else str(value)[:1000]
