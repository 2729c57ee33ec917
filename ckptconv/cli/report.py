"""ckptconv report SRC [B] -o report.html"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show
from .options import (
    Converter,
    Dtype,
    Ema,
    Exclude,
    Force,
    From,
    Include,
    Inverse,
    Jobs,
    Json,
    Opaque,
    Param,
    Quiet,
    Rename,
    WeightsOnly,
)

EXAMPLES = """Examples:

\b
  ckptconv report model.ckpt -o report.html
  ckptconv report model.ckpt -o report.html --no-values     headers only
  ckptconv report bert.ckpt bert.safetensors -c auto -o conversion.html
"""


def report(
    source: Annotated[str, typer.Argument(metavar="SRC", help="File, prefix, folder or URL.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="HTML", help="Where to write.")],
    target: Annotated[str | None, typer.Argument(metavar="[B]", help="What SRC was converted to.")] = None,
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Read all values, for statistics and pictures.")
    ] = True,
    from_: From = None,
    converter: Converter = None,
    inverse: Inverse = False,
    param: Param = None,
    rename: Rename = None,
    include: Include = None,
    exclude: Exclude = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    dtype: Dtype = None,
    opaque: Opaque = False,
    jobs: Jobs = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file that shows a checkpoint, or a conversion if B is given; it needs no network.

    For a conversion give the options it was made with: the page then shows the rule that moved each tensor.
    """
    from .. import api
    from ..reporting import html as page

    with show.progress(quiet or as_json) as progress:
        size = page.report(
            source,
            target,
            output=output,
            select=options.select(from_, include, exclude, opaque, weights_only, ema),
            change=options.change(converter, inverse, param, rename, dtype),
            values=values,
            force=force,
            resources=api.Resources(jobs=jobs, progress=progress),
        )
    if as_json:
        show.as_json({"output": output, "bytes": size})
    elif not quiet:
        show.talk(f"{output}: {show.bytes_(size)}; open it in a browser")
