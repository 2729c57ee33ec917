"""ckptconv inspect SRC"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..messages import brief, in_bytes, in_digits, in_shape, many, printable, redacted
from . import show
from .options import READING, Json, command, takes

if TYPE_CHECKING:
    from .. import Checkpoint, Inspection, Tensor
    from ..reporting.inspection import GraphVariables, Node, Totals

EXAMPLES = """Examples:

\b
  ckptconv inspect model.ckpt                    one line for each tensor
  ckptconv inspect model.ckpt --tree             folded: layer_{0..11}
  ckptconv inspect model.ckpt --include '*/kernel' --sort size
  ckptconv inspect model.ckpt --stats            min, max, mean, std, NaN, Inf
  ckptconv inspect model.ckpt --check            NaN, outliers, dead tensors ...; exits with 1 if it finds any
  ckptconv inspect step-200.pt --reference step-100.pt   and what is worse than before
  ckptconv inspect model.ckpt --json --hash | jq .tensors
"""
COLOURS = {"error": "red", "warning": "yellow", "note": ""}
VALUES = 20  # that are not tensors, and of metadata and ties; --json has them all


@takes(*READING, "jobs")
def inspect(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, prefix, folder or URL.")],
    tree: Annotated[
        bool, typer.Option("--tree", help="Group by scope, and fold names that differ only in numbers.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Read all values and compute statistics.")] = False,
    hashes: Annotated[bool, typer.Option("--hash", help="Content hashes, the same for equal tensors.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="List also the variables of a graph or Keras config.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Read all values; list NaN, outliers, dead and equal tensors and the like.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="CHECK=NUMBER|off", help="The limit of a check; off leaves it out."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="CKPT", help="Check also for what is worse than in this checkpoint."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort", metavar="COLUMN", help="name, size, parameters, dtype, shape or role; -size reverses it.",
        ),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:  # fmt: skip
    """List the tensors of a checkpoint.

    Shows names, dtypes, shapes, sizes and roles. Only headers are read, unless an option needs values. With
    --check it exits with 1 if there are errors or warnings; notes do not count. Tensors that --keep-going left out do.
    """
    from ..reporting import inspection

    made = inspection.inspect(
        source, stats=stats, hashes=hashes, graph=graph, check=check, limit=limit or (), reference=reference, sort=sort,
        **options,
    )  # fmt: skip
    found = made.checkpoint
    if as_json:
        drawn = made.graph._asdict() if made.graph else None
        show.as_json(made.to_json() | ({"graph": drawn, "details": found.details} if graph else {}))
    elif made.findings is not None:
        _findings(made)
    else:
        _show(source, made, tree, graph)
    if not made.sound or any(n.kind == "damaged" for n in found.notes):
        raise typer.Exit(1)


def _findings(made: Inspection) -> None:
    """What the checks found, a line each."""
    if made.findings:
        rows = [(f.severity, f.check, f.tensor, f.text) for f in made.findings]
        show.table(("severity", "check", "name", "what"), rows, "llll", [COLOURS[f.severity] for f in made.findings])
    show.notes([n for n in made.checkpoint.notes if n.kind in ("skipped", "unread")])
    kinds = Counter(f.severity for f in made.findings or ())
    counts = ", ".join(many(n, kind) for kind, n in kinds.items())
    show.talk(f"{many(made.totals.tensors, 'tensor')} checked: {counts or 'nothing found'}")


def _show(source: str, made: Inspection, tree: bool, graph: bool) -> None:
    """The tensors, and what the file says beside them."""
    from ..reporting import inspection

    found, extra = made.checkpoint, made.extra
    if tree:
        _tree(inspection.tree(made.tensors), extra)
    else:
        _table(made.tensors, extra)
    _say(found, made.totals)
    if show.is_watched() and made.totals.tensors < 20_000:
        _suggest(source, found)
    if graph:
        _graph(made.graph, found)


def _cells(extra: Mapping[str, Any]) -> list[str]:
    return [in_digits(v) for v in extra.values()]


@lru_cache(maxsize=4096)
def _sizes(shape: tuple[int, ...], itemsize: int) -> tuple[str, str, str]:
    """The cells that tensors of one shape and size share."""
    count = prod(shape)
    # of strings, no header says how long they are
    return in_shape(shape), f"{count:,}", in_bytes(count * itemsize) if itemsize else ""


def _table(tensors: Sequence[Tensor], extra: Mapping[str, Mapping[str, Any]]) -> None:
    more = list(next(iter(extra.values()))) if extra else []
    rows = [
        (
            t.name, t.dtype.name, *_sizes(t.shape, t.dtype.itemsize), t.role,
            *(_cells(extra[t.name]) if extra else ()),
        )
        for t in tensors
    ]  # fmt: skip
    show.table(
        ("name", "dtype", "shape", "parameters", "size", "role", *more),
        rows,
        "lllrrl" + "r" * len(more),
    )


def _tree(root: Node, extra: Mapping[str, Mapping[str, Any]]) -> None:
    """Print scopes with their sums, and folded tensors with their count."""
    from ..reporting.inspection import in_size

    rows: list[list[str]] = []

    def walk(node: Node, depth: int) -> None:
        for child in node.inner.values():
            lines = [child.line] if child.line else child.lines()  # what lies below a tensor is listed below it
            tensors = [t for line in lines for t in line.tensors]
            first = tensors[0]
            kinds = (first.dtype.name, in_shape(first.shape), first.role) if child.line else ("", "", "")
            many = f"x{len(tensors)}" if len(tensors) > 1 else ""
            sums = f"{sum(t.count for t in tensors):,}", in_size(tensors)
            cells = _cells(extra[first.name]) if extra and child.line and len(tensors) == 1 else []
            rows.append(["  " * depth + child.text, many, *kinds[:2], *sums, kinds[2], *cells])
            walk(child, depth + 1)

    walk(root, 0)
    more = list(next(iter(extra.values()))) if extra else []
    rows = [row + [""] * (7 + len(more) - len(row)) for row in rows]
    head = ("name", "many", "dtype", "shape", "parameters", "size", "role", *more)
    show.table(head, rows, "lrllrrl" + "r" * len(more))


def _say(found: Checkpoint, total: Totals) -> None:
    """Metadata, ties and notes, then the sums, on stderr."""
    show.talk(
        *_first(
            "metadata",
            [f"{_short(k)} = {_short(v)}" for k, v in islice(found.metadata.items(), VALUES)],
            len(found.metadata),
        )
    )
    show.talk(*_first("tied", [_tied(group) for group in found.ties[:VALUES]], len(found.ties)))
    show.notes([n for n in found.notes if n.kind != "dropped"])  # the user knows what was not selected
    counts = f"{total.parameters:,} parameters in weights"
    if total.all != total.parameters:
        counts += f", {total.all:,} with {total.others}"
    show.talk(f"{found.format}: {total.size}, {counts}")


def _first(what: str, texts: Sequence[str], count: int) -> list[str]:
    """A line for each text, and one for those that were left out of so many."""
    more = [f"{count - len(texts):,} more, which --json shows"] * (count > len(texts))
    return [f"{what}: {text}" for text in (*texts, *more)]


def _tied(names: Sequence[str]) -> str:
    more = [f"... and {len(names) - VALUES:,} more"] * (len(names) > VALUES)
    return " = ".join([*(brief(printable(n)) for n in names[:VALUES]), *more])


def _short(text: str) -> str:
    return printable(text if len(text) <= 100 else text[:97] + "...")


def _suggest(source: str, found: Checkpoint) -> None:
    """Say which converter knows these names."""
    from ..rules import library

    if name := library.suggestion(found):
        line = command("convert", [redacted(source), "-o", "DST", "-c", name], {})
        show.talk(f"hint: these are {name}'s names; `{line}` converts them")


def _graph(made: GraphVariables | None, found: Checkpoint) -> None:
    details = {k: v for k, v in found.details.items() if not isinstance(v, (dict, list))}
    for key, value in details.items():
        show.talk(f"{key}: {_short(str(value))}")
    values = found.details.get("values", {})
    texts = [f"{_short(key)} = {_short(str(value))}" for key, value in islice(values.items(), VALUES)]
    show.talk(*_first("value", texts, len(values)))
    if made is None:
        show.talk("no graph or configuration that lists variables was found beside the tensors")
        return
    for name, count in made.collections.items():
        show.talk(
            "layers: " + str(count) if name == "layers" else f"collection {_short(name)}: {many(count, 'variable')}"
        )
    show.talk(f"trainable: {len(made.trained)}; not trainable: {len(made.fixed)}")
    for what, names in (
        ("in the graph, not in the checkpoint", made.missing),
        ("in the checkpoint, not in the graph", made.unknown),
        ("not trainable", made.fixed),
    ):
        if names:
            show.talk(f"{what}:\n{show.folded(names)}")
