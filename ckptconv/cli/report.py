"""ckptconv report SRC [B]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..messages import in_bytes
from . import show
from .options import CHANGING, READING, Json, Quiet, takes

EXAMPLES = """Examples:

\b
  ckptconv report model.safetensors                 writes model.report.html
  ckptconv report model.safetensors --open          and shows it
  ckptconv report model.ckpt -o page.html --no-values     headers only
  ckptconv report epoch1.pt epoch2.pt               what changed
  ckptconv report bert.ckpt bert.safetensors -c auto -o conversion.html
"""


@takes(*READING, *(k for k in CHANGING if k != "scope"), "force", "jobs")
def report(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, prefix, folder or URL.")],
    target: Annotated[
        str | None, typer.Argument(metavar="[B]", help="Another checkpoint: compared with SRC, or made of it.")
    ] = None,
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
    """Write an HTML page that shows a checkpoint, a comparison or a conversion.

    The page is one file that needs no network. With B it compares both; with the options of the conversion that made B
    of SRC as well, it shows the rule that moved each tensor.
    """
    from ..reporting import html as page

    with show.progress(quiet or as_json) as progress:
        output = output or page.default_name(target if target is not None else source)
        size = page.report(source, target, output=output, values=values, progress=progress, **options)
    if as_json:
        show.as_json({"output": output, "bytes": size})
    elif not quiet:
        show.talk(f"{output}: {in_bytes(size)}" + ("" if browse else "; open it in a browser, or use --open"))
    if browse:
        import webbrowser

        webbrowser.open(Path(output).absolute().as_uri())
