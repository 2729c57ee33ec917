"""ckptconv match SRC TARGET"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..api.options import SELECT
from ..messages import printable
from . import show
from .options import Json, Quiet, takes

EXAMPLES = """Examples:

\b
  ckptconv match model.ckpt converted.pt -o rules.toml      by values, if both hold the same ones
  ckptconv match model.ckpt mypackage.model:build           by names and shapes; torch builds the module
  ckptconv match model.ckpt mypackage.model:build --check inputs.npz outputs.npz -o rules.toml     and check it
  ckptconv model.ckpt -c rules.toml -o model.safetensors    what to do with the result
"""


@takes(*SELECT, "force", "jobs")
def match(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, prefix, folder or URL.")],
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A checkpoint, or package.module:callable that builds a model."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="TOML", help="Write the rules to this file.")] = "",
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Compare values, or only names and shapes.")
    ] = True,
    check: Annotated[
        tuple[str, str],
        typer.Option(
            metavar="INPUTS OUTPUTS",
            help="Run the module on INPUTS (.npz) and vary the marked rules until it computes OUTPUTS (.npz, or "
            "package.module:callable that runs the original).",
        ),
    ] = ("", ""),
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Propose a converter from SRC to TARGET.

    The result is a file of rules to review and then use with -c; without -o it is printed. If both checkpoints hold
    the same values, equal values decide, bit for bit. Otherwise names, shapes and the order of modules decide. A rule
    that could be otherwise is marked `assumed`, or `look at this` if an error is likely; the marks are comments in the
    file, with reasons, and the doubtful rules come first. --opaque, --densify, --weights-only, --include and --exclude
    apply to both. If the globs fit one side only, a note says so. The best proposal is written even if the exit code is
    1.
    """
    from ..matching.proposal import match as proposed

    found = proposed(source, target, output or None, values=values, check=check if check[0] else None, **options)
    if as_json:
        show.as_json(found.to_json())
    elif not output:
        show.document(found.rules)
    if not quiet:
        show.talk(*found.lines())
        if output:
            review = "review what is marked, then " * bool(found.proposal.assumed)
            show.talk(f"{printable(output)}: {review}convert with -c {printable(output)}")
    if found.doubt:
        show.talk(f"doubtful as a whole: {found.doubt}")
    departs = found.proof is not None and not found.proof.found.same
    if found.proof and departs and quiet:
        show.talk(*found.proof.lines())
    if found.doubt or departs:
        raise typer.Exit(1)
