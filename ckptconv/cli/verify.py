"""ckptconv verify SRC... DST"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..api.options import CHANGE, SELECT
from . import show
from .options import Json, Quiet, takes

EXAMPLES = """Examples:

\b
  ckptconv verify model.ckpt model.safetensors
  ckptconv verify model.ckpt half.npz --weights-only --dtype float16
  ckptconv verify model.safetensors              by its own hashes and checksums
  ckptconv verify bert.ckpt bert.safetensors -c auto
"""


@takes(*SELECT, *CHANGE, "skip_unrepresentable", "jobs")
def verify(
    paths: Annotated[list[str], typer.Argument(metavar="[SRC] DST", help="What was converted, then the result.")],
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compare the result of a conversion with its source.

    The conversion is repeated without writing anything, and DST is compared with it bit by bit. Give the options of the
    conversion. Exits with 7, naming the first tensor and index, if anything differs. With one path, that file is read
    completely and compared with its own checksums and hashes.
    """
    from ..api import comparing

    alone = len(paths) == 1
    found = comparing.verify(paths[:1] if alone else paths[:-1], None if alone else paths[-1], **options)
    lost = any(n.kind == "damaged" for n in found.notes)
    if as_json:
        show.as_json(found.to_json())
    else:
        show.notes([n for n in found.notes if n.kind == "damaged" or not quiet])
        show.talk(*found.lines()[-1:] * (not quiet))
    if lost:
        raise typer.Exit(1)
