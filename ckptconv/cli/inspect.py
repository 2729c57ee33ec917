"""ckptconv inspect SRC"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import complete, options, show
from .options import Ema, Exclude, From, Include, Jobs, Json, Opaque, WeightsOnly

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Tensor
    from ..reporting.outline import Graph, Node, Totals

EXAMPLES = """Examples:

\b
  ckptconv inspect model.ckpt                    every tensor, one a line
  ckptconv inspect model.ckpt --tree             folded: layer_{0..11}
  ckptconv inspect model.ckpt --include '*/kernel' --sort size
  ckptconv inspect model.ckpt --stats            min, max, mean, std, NaN, Inf
  ckptconv inspect model.ckpt --json --hash | jq .tensors
"""
VALUES = 20  # of those that are no tensors; --json has them all


def inspect(
    source: Annotated[str, typer.Argument(metavar="SRC", help="File, prefix, folder or URL.")],
    tree: Annotated[bool, typer.Option("--tree", help="Fold names that differ in numbers only, by scope.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Read all values and describe them.")] = False,
    hashes: Annotated[bool, typer.Option("--hash", help="Content hash: equal tensors, equal hash.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Also what a graph or configuration lists.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort", metavar="COLUMN", help="name, size, parameters, dtype, shape or role; -size turns it round.",
            autocompletion=complete.columns,
        ),
    ] = None,
    from_: From = None,
    include: Include = None,
    exclude: Exclude = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    opaque: Opaque = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the tensors of a checkpoint: names, dtypes, shapes, sizes and roles. Only headers are read."""
    from .. import api, checkpoint
    from ..reporting import outline

    select = options.select(from_, include, exclude, opaque, weights_only, ema)
    with checkpoint.uncollected():
        found = api.prepare([source], select, api.Change())
        tensors = outline.ordered(found.tensors.values(), sort) if sort else list(found.tensors.values())
        extra = _extra(tensors, stats, hashes, api.Resources(jobs=jobs).workers)
        total, drawn = outline.totals(found), outline.graph(found) if graph else None
        if as_json:
            more = {"graph": drawn._asdict() if drawn else None, "details": found.details} if graph else {}
            _json(source, found, tensors, extra, total, more)
            return
        if tree:
            _tree(outline.tree(tensors), extra)
        else:
            _table(tensors, extra)
    _say(found, total)
    if show.is_watched() and total.tensors < 20_000:
        _suggest(source, found)
    if graph:
        _graph(drawn, found)


def _extra(tensors: list[Tensor], stats: bool, hashes: bool, workers: int) -> dict[str, dict[str, Any]]:
    """Columns that need the values, by name of the tensor."""
    if not stats and not hashes:
        return {}
    from ..moves.read import each, hash_tensor
    from ..reporting.stats import stats as measured

    out: dict[str, dict[str, Any]] = {t.name: {} for t in tensors}
    if stats:
        for t, found in zip(tensors, each(tensors, measured, workers), strict=True):
            out[t.name] |= found._asdict()
    if hashes:
        for t, digest in zip(tensors, each(tensors, hash_tensor, workers), strict=True):
            out[t.name]["hash"] = digest
    return out


def _cells(extra: dict[str, Any]) -> list[str]:
    return [show.number(v) for v in extra.values()]


def _table(tensors: list[Tensor], extra: dict[str, dict[str, Any]]) -> None:
    columns = list(next(iter(extra.values()))) if extra else []
    rows = [
        (
            t.name, t.dtype.name, show.shape(t.shape), show.count(n), show.bytes_(n * t.dtype.itemsize), t.role,
            *(_cells(extra[t.name]) if extra else ()),
        )
        for t, n in ((t, t.count) for t in tensors)
    ]  # fmt: skip
    show.table(("name", "dtype", "shape", "parameters", "size", "role", *columns), rows, "lllrrl" + "r" * len(columns))


def _tree(root: Node, extra: dict[str, dict[str, Any]]) -> None:
    """Print scopes with their sums, and folded tensors with their count."""
    rows: list[list[str]] = []

    def walk(node: Node, depth: int) -> None:
        for child in node.inner.values():
            lines = [child.line] if child.line else child.lines()  # what lies below a tensor is listed below it
            tensors = [t for line in lines for t in line.tensors]
            first = tensors[0]
            kinds = (first.dtype.name, show.shape(first.shape), first.role) if child.line else ("", "", "")
            many = f"x{len(tensors)}" if len(tensors) > 1 else ""
            sums = f"{sum(t.count for t in tensors):,}", show.bytes_(sum(t.nbytes for t in tensors))
            more = _cells(extra[first.name]) if extra and child.line and len(tensors) == 1 else []
            rows.append(["  " * depth + child.text, many, *kinds[:2], *sums, kinds[2], *more])
            walk(child, depth + 1)

    walk(root, 0)
    columns = list(next(iter(extra.values()))) if extra else []
    rows = [row + [""] * (7 + len(columns) - len(row)) for row in rows]
    head = ("name", "many", "dtype", "shape", "parameters", "size", "role", *columns)
    show.table(head, rows, "lrllrrl" + "r" * len(columns))


def _say(found: Checkpoint, total: Totals) -> None:
    """Metadata, ties and notes, then the sums, on stderr."""
    for key, value in found.metadata.items():
        show.talk(f"metadata: {key} = {_short(value)}")
    for group in found.ties:
        show.talk(f"tied: {' = '.join(group)}")
    show.notes([n for n in found.notes if n.kind != "dropped"])  # what was not selected is no news
    counts = f"{total.parameters:,} parameters in weights"
    if total.all != total.parameters:
        kinds = [f"{n:,} {role}" for role, n in total.roles.items() if role]
        counts += f", {total.all:,} with {', '.join(kinds)}"
    show.talk(f"{found.format}: {show.many(total.tensors, 'tensor')}, {show.bytes_(total.bytes)}, {counts}")


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


def _suggest(source: str, found: Checkpoint) -> None:
    """Say which converter knows these names."""
    from ..rules import library

    if name := library.suggestion(found):
        show.talk(f"hint: these are {name}'s names; `ckptconv {source} -o DST -c {name}` converts them")


def _graph(made: Graph | None, found: Checkpoint) -> None:
    details = {k: v for k, v in found.details.items() if not isinstance(v, (dict, list))}
    for key, value in details.items():
        show.talk(f"{key}: {value}")
    values = found.details.get("values", {})
    for key, value in list(values.items())[:VALUES]:
        show.talk(f"value: {key} = {_short(str(value))}")
    if len(values) > VALUES:
        show.talk(f"value: {len(values) - VALUES} more, which --json shows")
    if made is None:
        show.talk("no graph or configuration that lists variables was found beside the tensors")
        return
    for name, count in made.collections.items():
        show.talk("layers: " + str(count) if name == "layers" else f"collection {name}: {show.many(count, 'variable')}")
    show.talk(f"trainable: {len(made.trained)}; not trainable: {len(made.fixed)}")
    for what, names in (
        ("in the graph, not in the checkpoint", made.missing),
        ("in the checkpoint, not in the graph", made.unknown),
        ("not trainable", made.fixed),
    ):
        if names:
            show.talk(f"{what}:\n{show.folded(names)}")


def _json(
    source: str,
    found: Checkpoint,
    tensors: list[Tensor],
    extra: dict[str, dict[str, Any]],
    total: Totals,
    more: dict[str, Any],
) -> None:
    rows = [
        {
            "name": t.name,
            "dtype": t.dtype.name,
            "shape": list(t.shape),
            "parameters": t.count,
            "bytes": t.nbytes,
            "role": t.role,
            **extra.get(t.name, {}),
        }
        for t in tensors
    ]
    show.as_json(
        {
            "url": source,
            "format": found.format,
            "totals": total._asdict(),
            "tensors": rows,
            "metadata": found.metadata,
            "ties": found.ties,
            "notes": [n._asdict() for n in found.notes if n.kind != "dropped"],
            **more,
        }
    )
