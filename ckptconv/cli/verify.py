"""ckptconv verify SRC... DST"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..messages import in_bytes, many
from . import show
from .options import CHANGING, READING, Json, Quiet, takes

if TYPE_CHECKING:
    from .. import Checked

EXAMPLES = """Examples:

\b
  ckptconv verify model.ckpt model.safetensors
  ckptconv verify model.ckpt half.npz --weights-only --dtype float16
  ckptconv verify model.safetensors              by its own hashes and checksums
  ckptconv verify bert.ckpt bert.safetensors -c auto
"""


@takes(*READING, *CHANGING, "skip_unrepresentable", "jobs")
def verify(
    paths: Annotated[list[str], typer.Argument(metavar="[SRC] DST", help="What was converted, then the result.")],
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Repeat the conversion without writing anything, and compare DST with it bit by bit.

    Give the options of the conversion. Exits with 7, naming the first tensor and index, if anything differs. A single
    path is read completely and compared with the checksums and hashes that it carries.
    """
    from .. import api

    if len(paths) == 1:
        _show(api.verify(paths[0], **options), as_json, quiet)
        return
    *sources, destination = paths
    held = api.verify(sources, destination, **options)
    lost = [n for n in held.notes if n.kind == "damaged"]
    left = [n for n in held.notes if n.kind in ("skipped", "unread")]
    if as_json:
        notes = {key: [n.to_json() for n in found] for key, found in (("damaged", lost), ("notes", left))}
        show.as_json({"same": True, "tensors": len(held), "bytes": held.nbytes, **notes})
    else:
        show.notes([*lost, *(() if quiet else left)])
    if not (as_json or quiet):
        what = f"{many(len(held), 'tensor')}, {in_bytes(held.nbytes)}"
        show.talk(f"verified: {what}, are bit for bit what the conversion gives")
    if lost:
        raise typer.Exit(1)


def _show(found: Checked, as_json: bool, quiet: bool) -> None:
    if as_json:
        counts = {"tensors": found.tensors, "hashed": found.hashed, "checked_bytes": found.checked}
        show.as_json({"sound": True, **counts, "notes": [n.to_json() for n in found.notes]})
    elif not quiet:
        show.notes(found.notes)
        show.talk(str(found))
