"""ckptconv report SRC [B ...]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..messages import in_bytes, printable, redacted
from . import show
from .options import CHANGING, READING, Json, Quiet, command, takes

EXAMPLES = """Examples:

\b
  ckptconv report model.safetensors                 writes model.report.html
  ckptconv report model.safetensors --open          and shows it
  ckptconv report model.ckpt -o page.html --no-values     headers only
  ckptconv report epoch1.pt epoch2.pt               what changed
  ckptconv report epoch*.pt                         how each layer moved
  ckptconv report bert.ckpt bert.safetensors -c auto -o conversion.html
"""


@takes(*READING, *(k for k in CHANGING if k != "scope"), "force", "jobs")
def report(
    sources: Annotated[list[str], typer.Argument(metavar="SRC [B ...]", help="Files, prefixes, folders or URLs.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="HTML", help="The page to write (default: SRC.report.html, here)."),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Read all values, for statistics and heat maps.")
    ] = True,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Write an HTML page that shows a checkpoint, a comparison, a conversion or a series.

    The page is one file that needs no network. With B it compares both; with the options of the conversion that made B
    of SRC as well, it shows the rule that moved each tensor. With more, it shows how each layer moved on the way.
    """
    from ..reporting import html as page

    line = command("report", [redacted(s) for s in sources], options)
    with show.progress(quiet or as_json) as progress:
        made = page.report(*sources, output=output, values=values, progress=progress, command=line, **options)
    if as_json:
        show.as_json({"output": made.path, "bytes": made.bytes})
    elif not quiet:
        show.talk(
            f"{printable(made.path)}: {in_bytes(made.bytes)}"
            + ("" if browse else "; open it in a browser, or use --open")
        )
    if browse:
        import webbrowser

        webbrowser.open(Path(made.path).absolute().as_uri())
