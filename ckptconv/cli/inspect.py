"""ckptconv inspect SRC"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..messages import brief, in_digits, in_shape, many, printable, redacted
from . import show
from .options import READING, Json, command, takes

if TYPE_CHECKING:
    from .. import Checkpoint, Inspection
    from ..reporting.inspection import GraphVariables, Node

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
        if made.findings:
            show.table(made.columns, made.rows(), made.sides, [COLOURS[f.severity] for f in made.findings])
        show.notes([n for n in found.notes if n.kind in ("skipped", "unread")])
        show.talk(made.sum())
    else:
        if tree:
            _tree(inspection.tree(made.tensors), made)
        else:
            show.table(made.columns, made.rows(), made.sides)
        _say(made)
        if show.is_watched() and made.totals.tensors < 20_000:
            _suggest(source, found)
        if graph:
            _graph(made.graph, found)
    if not made.sound or any(n.kind == "damaged" for n in found.notes):
        raise typer.Exit(1)


def _tree(root: Node, made: Inspection) -> None:
    """Print scopes with their sums, and folded tensors with their count."""
    from ..reporting.inspection import in_size

    rows: list[list[str]] = []
    name, *others = made.columns

    def walk(node: Node, depth: int) -> None:
        for child in node.inner.values():
            lines = [child.line] if child.line else child.lines()  # what lies below a tensor is listed below it
            tensors = [t for line in lines for t in line.tensors]
            first, alone = tensors[0], child.line is not None and len(tensors) == 1
            kinds = (first.dtype.name, in_shape(first.shape), first.role) if child.line else ("", "", "")
            count = f"x{len(tensors)}" if len(tensors) > 1 else ""
            sums = f"{sum(t.count for t in tensors):,}", in_size(tensors)
            extra = map(in_digits, made.extra.get(first.name, {}).values()) if alone else ()
            row = ["  " * depth + child.text, count, *kinds[:2], *sums, kinds[2], *extra]
            rows.append(row + [""] * (len(made.columns) + 1 - len(row)))
            walk(child, depth + 1)

    walk(root, 0)
    show.table((name, "many", *others), rows, "lr" + made.sides[1:])


def _say(made: Inspection) -> None:
    """Metadata, ties and notes on stderr, then the sums."""
    found = made.checkpoint
    _first("metadata", (f"{_short(k)} = {_short(v)}" for k, v in found.metadata.items()), len(found.metadata))
    _first("tied", map(_tied, found.ties), len(found.ties))
    show.notes([n for n in found.notes if n.kind != "dropped"])  # the user knows what was not selected
    show.tell(made.sum())


def _first(what: str, texts: Iterable[str], count: int) -> None:
    """Print a line for each of the first texts, and one for the others of so many."""
    more = [f"{count - VALUES:,} more, which --json shows"] * (count > VALUES)
    show.talk(*(f"{what}: {text}" for text in (*islice(texts, VALUES), *more)))


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
    show.talk(*(f"{k}: {_short(str(v))}" for k, v in found.details.items() if not isinstance(v, (dict, list))))
    values = found.details.get("values", {})
    _first("value", (f"{_short(key)} = {_short(str(value))}" for key, value in values.items()), len(values))
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
