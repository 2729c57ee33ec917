"""ckptconv inspect SRC"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.options import SELECT
from ..messages import brief, in_digits, in_shape, printable
from . import show
from .options import Json, takes

if TYPE_CHECKING:
    from .. import Checkpoint, Inspection
    from ..reporting.inspection import GraphVariables, Node

EXAMPLES = """Examples:

\b
  ckptconv inspect model.ckpt                    one line for each tensor
  ckptconv inspect model.ckpt --tree             folded: layer_{0..11}
  ckptconv inspect model.ckpt --include '*/kernel' --sort -size
  ckptconv inspect model.ckpt --stats            min, max, mean, std, NaN, Inf
  ckptconv inspect model.ckpt --check            NaN, outliers, equal tensors ...; exits with 1 if it finds any
  ckptconv inspect step-200.pt --reference step-100.pt   also what got worse since
  ckptconv inspect model.ckpt --json --hash | jq .tensors
"""


@takes(*SELECT, "jobs")
def inspect(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, prefix, folder or URL.")],
    tree: Annotated[
        bool, typer.Option("--tree", help="Group by scope, and fold names that differ only in numbers.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Read all values and compute statistics.")] = False,
    hash: Annotated[bool, typer.Option("--hash", help="Content hashes, the same for equal tensors.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="List also the variables of a graph or Keras config.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Read all values; list NaN, outliers, dead and equal tensors and the like.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK=NUMBER|off", help="Change the limit of a check; off skips the check."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="CKPT", help="Check also what got worse since this checkpoint."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="name, size, parameters, dtype, shape or role; -size: the largest first.",
        ),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:  # fmt: skip
    """List the tensors of a checkpoint.

    Shows names, dtypes, shapes, sizes and roles. Only headers are read, unless an option needs values. What --check,
    --limit and --reference find is an error, a warning or a note; with notes alone the exit code is 0.
    """
    from ..reporting import inspection

    checked = check or limit or reference is not None
    found = inspection.check(source, limit=limit or (), reference=reference, **options) if checked else None
    made = inspection.inspect(source, stats=stats, hash=hash, graph=graph, sort=sort, **options)
    if as_json:
        drawn = {"graph": made.graph._asdict() if made.graph else None, "details": made.checkpoint.details}
        show.as_json(made.to_json() | (found.to_json() if found else {}) | (drawn if graph else {}))
    elif found:
        if found.findings:
            show.table(found.columns, found.rows(), "llll")
        show.talk(*found.beside(), found.sum())
    else:
        if tree:
            each = (inspection.Line(printable(t.name), (t,)) for t in made.tensors)  # which has values of its own
            _tree(inspection.tree([*each] if made.extra else inspection.folded(made.tensors)), made)
        else:
            show.table(made.columns, made.rows(), made.sides)
        show.talk(*made.beside())
        show.tell(made.sum())
        if show.is_watched() and made.totals.tensors < 20_000:
            _suggest(made.checkpoint)
        if graph:
            _graph(made.graph, made.checkpoint)
    if (found and not found.sound) or any(n.kind == "damaged" for n in made.checkpoint.notes):
        raise typer.Exit(1)


def _suggest(found: Checkpoint) -> None:
    from ..rules import library

    if name := library.suggestion(found):
        show.talk(f"hint: -c {name} converts these names, `ckptconv converters show {name}` says how")


def _tree(root: Node, made: Inspection) -> None:
    """Print scopes with their sums, and folded tensors with their count."""
    from ..reporting.inspection import in_size, role

    rows: list[list[str]] = []
    name, *others = made.columns

    def walk(node: Node, depth: int) -> None:
        for child in node.inner.values():
            lines = [child.line] if child.line else child.lines()  # what lies below a tensor is listed below it
            tensors = [t for line in lines for t in line.tensors]
            first = tensors[0]
            kinds = (first.dtype.name, in_shape(first.shape), role(first)) if child.line else ("", "", "")
            count = f"x{len(tensors)}" if len(tensors) > 1 else ""
            total = sum(t.count for t in tensors if child.line or not role(t))  # parameters, as in the last line
            sums = f"{total:,}" * bool(total or child.line), in_size(tensors)
            extra = map(in_digits, made.extra.get(first.name, {}).values()) if child.line else ()
            row = ["  " * depth + child.text, count, *kinds[:2], *sums, kinds[2], *extra]
            rows.append(row + [""] * (len(made.columns) + 1 - len(row)))
            walk(child, depth + 1)

    walk(root, 0)
    show.table((name, "many", *others), rows, "lr" + made.sides[1:])


def _graph(made: GraphVariables | None, found: Checkpoint) -> None:
    details = {k: str(v) for k, v in found.details.items() if not isinstance(v, (dict, list))}
    show.talk(*(f"{k}: {printable(brief(v, 200))}" for k, v in details.items()))
    if made is None:
        show.talk("no graph or configuration that lists variables was found beside the tensors")
        return
    show.talk(f"trainable: {len(made.trained)}; not trainable: {len(made.fixed)}")
    for what, names in (
        ("in the graph, not in the checkpoint", made.missing),
        ("in the checkpoint, not in the graph", made.unknown),
        ("not trainable", made.fixed),
    ):
        if names:
            show.talk(f"{what}:\n{show.folded(names)}")
