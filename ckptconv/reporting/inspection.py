"""inspect(path): the tensors of a checkpoint with their properties, in a chosen order, as a table or as a tree.

    encoder                 x48  85,054,464
      layer_{0..11}
        kernel              x12  float32 768x768

Headers suffice for names, totals, the tree and the graph; statistics, hashes and checks read all values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ..api import reading
from ..api.options import SELECT, Options, Source, takes
from ..api.reading import url_of
from ..checkpoint import Checkpoint, Note, Tensor, counted, in_known, in_size as in_size, uncollected
from ..errors import UsageError
from ..messages import Told, brief, did_you_mean, fold, in_digits, in_shape, many, natural, printable, redacted, table
from ..moves.read import each, hash_tensor
from ..rules import passes
from ..rules.passes import separator
from ..storage.lookups import cached_lookups

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.keywords import InspectOptions
    from .checks import Finding


@dataclass(frozen=True, repr=False)
class Inspection(Told):
    """The result of `inspect`.

    url: the path. checkpoint: what was opened. tensors: in the requested order. totals: `tensors`, `bytes`,
    `parameters` (elements of weights), `all` (elements of all tensors), `roles` (tensors by role) and `dtypes` (bytes
    by dtype). extra: the columns of `stats` and `hash`, by tensor name and column. graph: the variables that a graph or
    Keras configuration lists, compared with the tensors; None if there is none, or it was not requested.
    """

    url: str
    checkpoint: Checkpoint
    tensors: tuple[Tensor, ...]
    totals: Totals
    extra: Mapping[str, Mapping[str, Any]]
    graph: GraphVariables | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column titles of `rows`."""
        return ("name", "dtype", "shape", "parameters", "size", "role", *next(iter(self.extra.values()), ()))

    @property
    def sides(self) -> str:
        """For each column r if it is aligned right, l if left."""
        return "lllrrl" + "r" * (len(self.columns) - 6)

    def rows(self) -> list[tuple[str, ...]]:
        """A line for each tensor."""
        return [
            (t.name, t.dtype.name, in_shape(t.shape), f"{t.count:,}", in_size([t]), role(t),
             *map(in_digits, self.extra.get(t.name, {}).values()))
            for t in self.tensors
        ]  # fmt: skip

    def beside(self) -> list[str]:
        """A line for each of what the file holds beside tensors (metadata, values, ties), and the notes.

        Values are listed if nothing was left out by a selection, of which only tensors are.
        """
        found = self.checkpoint
        notes = [n for n in notes_to_show(found) if n.kind != "dropped"]  # the user knows what was not selected
        values = found.details.get("values", {}) if all(n.kind != "dropped" for n in found.notes) else {}
        lines = [_short(f"metadata: {k} = {v}") for k, v in found.metadata.items()]
        lines += [_short(f"value: {k} = {v}") for k, v in values.items()]
        lines += [_short(f"tied: {' = '.join(names)}") for names in found.ties]
        more = [f"{len(lines) - BESIDE:,} more; JSON has all"] * (len(lines) > BESIDE)
        return [*lines[:BESIDE], *more, *map(str, notes)]

    def sum(self) -> str:
        """One line: how much there is."""
        total = self.totals
        others = f", {total.all:,} with {passes.in_roles(total.roles)}" if total.all != total.parameters else ""
        size = counted(total.tensors, in_known(total.bytes, strings="string" in total.dtypes))
        return f"{self.checkpoint.format}: {size}, {total.parameters:,} parameters{others}"

    def lines(self) -> list[str]:
        """A table, a line for each of what is beside it, and the totals."""
        return [*table(self.columns, self.rows(), self.sides), *self.beside(), self.sum()]

    def to_json(self) -> dict[str, Any]:
        """The inspection as JSON values."""
        rows = [
            {
                "name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "parameters": t.count, "bytes": t.nbytes,
                "role": role(t), **self.extra.get(t.name, {}),
            }
            for t in self.tensors
        ]  # fmt: skip
        c = self.checkpoint
        return {
            "url": redacted(self.url), "format": c.format, "totals": self.totals._asdict(), "tensors": rows,
            "metadata": c.metadata, "values": c.details.get("values", {}), "ties": c.ties,
            "notes": [n.to_json() for n in c.notes if n.kind != "dropped"],
        }  # fmt: skip


def notes_to_show(c: Checkpoint) -> list[Note]:
    """The notes but for those on values, which `inspect` and pages list."""
    values = c.details.get("values", {}).keys()
    return [n for n in c.notes if not n.names or not values >= {*n.names}]


def _short(text: str) -> str:
    return printable(brief(text, 200))


@takes(*SELECT, "jobs")
@cached_lookups()
@uncollected()
def inspect(
    path: Source,
    *,
    stats: bool = False,
    hash: bool = False,
    graph: bool = False,
    sort: str | None = None,
    **given: Unpack[InspectOptions],
) -> Inspection:
    """List the tensors of a checkpoint: names, dtypes, shapes, sizes in bytes and roles. Only headers are read.

    path: a path or URL, or an open checkpoint. stats: also minimum, maximum, mean, standard deviation, zeros, NaN and
    infinities of each tensor; hash: also a content hash, which is the same for equal tensors in any format; both read
    all values. graph: also the variables that a graph or a Keras configuration lists. sort: name, size, parameters,
    dtype, shape or role, in ascending order; `-size` is the largest first. The other options select tensors.

    Returns an Inspection. Raises UsageError for an unknown `sort`, and what `open` raises.
    """
    how = Options(**given)
    checkpoint = reading.open_source(path, how)
    tensors = sort_tensors(checkpoint.tensors.values(), sort) if sort else list(checkpoint.tensors.values())
    extra = _extra(tensors, stats, hash, how.workers)
    variables = graph_variables(checkpoint) if graph else None
    return Inspection(url_of(path), checkpoint, tuple(tensors), totals(checkpoint), extra, variables)


def _extra(tensors: list[Tensor], stats: bool, hashes: bool, workers: int) -> dict[str, dict[str, Any]]:
    """The columns that need the values, by tensor name."""
    if not stats and not hashes:
        return {}
    from .pictures import stats as measured

    rows = [row._asdict() for row in each(tensors, measured, workers)] if stats else [{} for _ in tensors]
    if hashes:
        for row, digest in zip(rows, each(tensors, hash_tensor, workers), strict=True):
            row["hash"] = digest
    return {t.name: row for t, row in zip(tensors, rows, strict=True)}


@dataclass(frozen=True, repr=False)
class Checked(Told):
    """The result of `check`.

    checkpoint: what was read. findings: what the checks found, the most serious first; each has `severity` (error,
    warning or note), `check`, `tensor`, `text` and `index`. columns: the column titles of `rows`.
    """

    columns = ("severity", "check", "name", "what")
    checkpoint: Checkpoint
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """True if the checks found nothing but notes."""
        return all(f.severity == "note" for f in self.findings)

    def rows(self) -> list[tuple[str, ...]]:
        """A line for each finding."""
        return [(f.severity, f.check, f.tensor, f.text) for f in self.findings]

    def beside(self) -> list[str]:
        """A line for each note on what was not checked."""
        return [str(n) for n in self.checkpoint.notes if n.kind in ("skipped", "unread")]

    def sum(self) -> str:
        """One line: how much the checks found."""
        kinds = Counter(f.severity for f in self.findings)
        counts = ", ".join(many(n, kind) for kind, n in kinds.items()) or "nothing found"
        return f"{many(len(self.checkpoint), 'tensor')} checked: {counts}"

    def lines(self) -> list[str]:
        """A table of the findings, the notes, and how many there are."""
        return [*(table(self.columns, self.rows(), "llll") if self.findings else ()), *self.beside(), self.sum()]

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON values."""
        return {"sound": self.sound, "findings": [f.to_json() for f in self.findings]}


@takes(*SELECT, "jobs")
def check(
    path: Source,
    *,
    limit: Mapping[str, Any] | str | Sequence[str] = (),
    reference: Source | None = None,
    **given: Unpack[InspectOptions],
) -> Checked:
    """Read all values and look for NaN, outliers, dead and equal tensors and the like (docs/inspect.md lists them).

    path: a path or URL, or an open checkpoint. limit: the limits of the checks, as in {"outliers": 20, "spike": "off"}.
    reference: a checkpoint, such as an earlier one of the same run, against which names, shapes, steps and standard
    deviations are checked too. The other options select tensors.

    Returns a Checked. Raises UsageError for an unknown `limit`, and what `open` raises.
    """
    from ..api.comparing import sides
    from . import checks

    how = Options(**given)
    checkpoint, other = (reading.open_source(path, how), None) if reference is None else sides(path, reference, how)[1:]
    found = checks.check(checkpoint, checks.limits(limit), workers=how.workers, reference=other)
    return Checked(checkpoint, tuple(found))


# --- rows and totals --------------------------------------------------------------------------------------------

BESIDE = 20  # lines on what is beside tensors
MAX_DEPTH = 64  # scopes of the tree; deeper ones are joined in one line


def sort_tensors(tensors: Iterable[Tensor], key: str) -> list[Tensor]:
    """Sort by a column in ascending order; by `-key` in descending order. UsageError lists the columns."""
    word = str(key).removeprefix("-")
    if word not in KEYS:
        raise UsageError(f"sort= takes a column, not {key!r}{did_you_mean(word, KEYS, 'columns')}")
    return sorted(tensors, key=KEYS[word], reverse=key.startswith("-"))


# What modules keep that is no parameter: statistics of batch normalisation, masks, positions, frequencies
_BUFFER = re.compile(
    r"(?:.*[/._])?(?:batch_stats/.*|(?:running|moving)_(?:mean|var|variance)|num_batches_tracked|(?:original_)?inv_freq"
    r"|(?:position|token_type)_ids|relative_position_index|relative_coords_table|masked_bias|(?:attn|causal)_mask)"
)


def role(t: Tensor) -> str:
    """The role of a tensor, and 'buffer' for what a module keeps beside its parameters, as far as that can be told.

    Whole numbers of 64 bits and bools are no parameters, and neither is a GPT-2's causal mask, `attn.bias` of four
    axes.
    """
    whole = t.dtype.kind == "b" or (t.dtype.kind in "iu" and t.dtype.itemsize == 8)
    mask = len(t.shape) == 4 and t.name.endswith("attn.bias")
    return t.role or ("buffer" if whole or mask or _BUFFER.fullmatch(t.name) else "")


KEYS: dict[str, Callable[[Tensor], Any]] = {
    "name": lambda t: natural(t.name),
    "size": lambda t: t.nbytes,
    "parameters": lambda t: t.count,
    "dtype": lambda t: t.dtype.name,
    "shape": lambda t: t.shape,
    "role": role,
}


class Totals(NamedTuple):
    """Counts over a checkpoint; tied tensors count once."""

    tensors: int
    bytes: int
    parameters: int  # of weights
    all: int  # of weights, slots and the rest
    roles: dict[str, int]  # tensors by role
    dtypes: dict[str, int]  # bytes by dtype


def totals(checkpoint: Checkpoint) -> Totals:
    """Sum up a checkpoint."""
    tied = {n for group in checkpoint.ties for n in group[1:]}
    kept = [t for n, t in checkpoint.tensors.items() if n not in tied]
    dtypes = Counter[str]()
    for t in kept:
        dtypes[t.dtype.name] += t.nbytes
    weights, every = sum(t.count for t in kept if not role(t)), sum(t.count for t in kept)
    roles = Counter(map(role, checkpoint.tensors.values()))
    return Totals(len(checkpoint), sum(dtypes.values()), weights, every, dict(roles), dict(dtypes))


# --- folding ----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Tensors with the same dtype, shape and role whose names differ only in numbers."""

    text: str
    tensors: tuple[Tensor, ...]


def folded(tensors: Iterable[Tensor]) -> list[Line]:
    """Fold tensors by pattern, in the order of their first appearance."""
    alike: dict[tuple[str, tuple[int, ...], str], list[Tensor]] = {}
    place = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.dtype.name, t.shape, t.role), []).append(t)
        place[t.name] = i
    lines = []
    for group in alike.values():
        by_name = {t.name: t for t in group}
        lines += [Line(f.text, tuple(by_name[n] for n in f.names)) for f in fold(by_name)]
    return sorted(lines, key=lambda line: place[line.tensors[0].name])


@dataclass
class Node:
    """A scope of the tree: its own lines and its inner scopes, in order of appearance."""

    text: str
    inner: dict[str, Node] = field(default_factory=dict)
    line: Line | None = None

    def lines(self) -> Iterator[Line]:
        if self.line:
            yield self.line
        for node in self.inner.values():
            yield from node.lines()


def tree(lines: Sequence[Line]) -> Node:
    """Arrange lines in a tree of scopes; a scope with a single child is joined with it."""
    sep = separator([line.tensors[0].name for line in lines])
    cut = re.compile(re.escape(sep) + r"(?![^{}]*\})")
    root = Node("")
    for line in lines:
        at = root
        for word in cut.split(line.text, MAX_DEPTH):
            at = at.inner.setdefault(word, Node(word))
        if at.line:  # the same words in another dtype or shape
            at = root.inner.setdefault(f"{line.text}\0{len(root.inner)}", Node(line.text))
        at.line = line
    return _joined(root, sep)


def _joined(node: Node, sep: str) -> Node:
    for word, child in node.inner.items():
        while child.line is None and len(child.inner) == 1:
            (only,) = child.inner.values()
            child = Node(f"{child.text}{sep}{only.text}", only.inner, only.line)
        node.inner[word] = _joined(child, sep)
    return node


# --- the graph --------------------------------------------------------------------------------------------------


class GraphVariables(NamedTuple):
    """The variables of a graph or configuration, compared with the tensors of the checkpoint."""

    missing: tuple[str, ...]  # in the graph, not in the checkpoint
    unknown: tuple[str, ...]  # in the checkpoint, not in the graph
    trained: tuple[str, ...]
    fixed: tuple[str, ...]  # weights that are not trained, according to the graph


def graph_variables(checkpoint: Checkpoint) -> GraphVariables | None:
    """Compare the tensors with the variables of a SavedModel (`details["trainable"]`) or of a Keras configuration; None
    if there is neither."""
    trained = tuple(checkpoint.details.get("trainable", ()))
    if not trained:
        return _configured(checkpoint)
    tensors, known = checkpoint.tensors, set(trained)
    return GraphVariables(
        missing=tuple(n for n in trained if n not in tensors),
        unknown=(),
        trained=trained,
        fixed=tuple(n for n, t in tensors.items() if not t.role and n not in known),
    )


def _configured(checkpoint: Checkpoint) -> GraphVariables | None:
    """The weights of a Keras configuration's layers, trainable and frozen."""
    text = checkpoint.metadata.get("config") or checkpoint.metadata.get("model_config") or ""
    try:
        layers = dict(_layers(json.loads(text))) if text else {}
    except (ValueError, RecursionError):
        return None
    if not layers:
        return None
    weights = {  # whether each layer around it that is known is trainable
        n: [layers[s] for s in accumulate(n.split("/")[:-1], "{}/{}".format) if s in layers]
        for n, t in checkpoint.tensors.items()
        if not t.role
    }
    return GraphVariables(
        missing=(),
        unknown=tuple(n for n, known in weights.items() if not known),
        trained=tuple(n for n, known in weights.items() if known and all(known)),
        fixed=tuple(n for n, known in weights.items() if not all(known)),
    )


def _layers(config: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """The paths of the layers of a Keras configuration, and whether each is trainable."""

    match config:
        case {"config": {"layers": [*rows]} | [*rows]}:
            for row in rows:
                match row:
                    case {"config": {"name": str(name)} as layer}:
                        yield path + name, layer.get("trainable") is not False
                        yield from _layers(row, f"{path}{name}/")
