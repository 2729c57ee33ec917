"""ckptconv diff A B"""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from ..api.options import CHANGE, SELECT
from ..errors import UsageError
from ..messages import did_you_mean
from . import show
from .options import Json, Quiet, takes

EXAMPLES = """Examples:

\b
  ckptconv diff model.ckpt model.safetensors     bit for bit, in any formats
  ckptconv diff old.ckpt new.ckpt --include 'encoder/*'
  ckptconv diff a.ckpt b.h5 --rtol 1e-5 --atol 1e-8
  ckptconv diff base.pt tuned.pt --by layer      which layers changed most
  ckptconv diff bert.ckpt bert.safetensors -c auto   after converting A
"""


@takes(*SELECT, *CHANGE, "jobs")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other checkpoint, in any format.")],
    rtol: Annotated[
        float | None, typer.Option(help="Allowed difference relative to |B|; dtypes may then differ.")
    ] = None,
    atol: Annotated[float | None, typer.Option(help="Allowed absolute difference; dtypes may then differ.")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Print a line for each tensor.")] = False,
    by: Annotated[
        str | None,
        typer.Option(metavar="layer|part|kind", help="Sum the changes, and rank the sums."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compare two checkpoints: names, shapes, dtypes and values. Exits with 1 if they differ.

    Names, shapes and dtypes that differ come first, then values: the largest change, |b - a| / |a| of the whole
    tensor, comes first, and those of an optimizer last.

    Tensors that differ only in name are recognised by their content. A converter, --rename, --dtype, --ema, --at and
    --from change only A before it is compared. --strip-prefix changes whichever side has the prefix.
    """
    from ..api import comparing

    if by and by not in (known := ("layer", "part", "kind")):
        raise UsageError(f"changes are summed by layer, part or kind, not by {by!r}{did_you_mean(by, known)}")
    found = comparing.diff(a, b, rtol=rtol, atol=atol, **options)
    if as_json:
        show.as_json(found.to_json(cast(Any, by)))
    elif not quiet:
        show.tell(found.sum())
        rows = found.rows(folded=not no_fold)
        if by:
            show.table(
                (by, "changed", "change", "|b - a|", "max abs"),
                [
                    (
                        g.name,
                        f"{g.changed:,} of {g.tensors:,}",
                        "NaN or Inf" if g.unpaired else "-" if g.change is None else f"{g.change:.3g}",
                        *("-" if g.max_abs is None else f"{x:.3g}" for x in (g.apart, g.max_abs)),
                    )
                    for g in found.by(cast(Any, by))
                    if g.changed
                ],
                "lrrrr",
            )
        elif rows:
            show.table(found.columns, rows, "llrllrrrrl")
    if not as_json:
        show.notes([*found.damaged, *found.unread, *(() if quiet else found.beside)])
    if not found.same:
        raise typer.Exit(1)
