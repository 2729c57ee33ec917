"""ckptconv [convert] SRC... -o DST"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show
from .options import Ema, Exclude, From, Include, Json, Opaque, Quiet, WeightsOnly


def convert(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="File, prefix, folder or URL; many merge.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DST", help="Where to write.")],
    to: Annotated[str | None, typer.Option("--to", metavar="FORMAT", help="The target's format.")] = None,
    from_: From = None,
    converter: Annotated[
        str | None,
        typer.Option("--converter", "-c", metavar="NAME|FILE|auto", help="Apply a converter."),
    ] = None,
    inverse: Annotated[bool, typer.Option("--inverse", help="Run the converter backwards.")] = False,
    param: Annotated[list[str] | None, typer.Option("--param", metavar="K=V", help="A converter's parameter.")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="FROM=TO", help="Template: 'enc/{x...}=dec/{x...}'."),
    ] = None,
    include: Include = None,
    exclude: Exclude = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="NAME", help="Put a source's names under NAME.")
    ] = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Cast floating-point tensors.")] = None,
    max_shard_size: Annotated[
        str | None, typer.Option("--max-shard-size", metavar="SIZE", help="Split, e.g. 5GB.")
    ] = None,
    max_memory: Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Bound on buffers.")] = "512MB",
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Threads.")] = None,
    verify: Annotated[
        bool | None, typer.Option("--verify/--no-verify", help="Read every byte back, or not even headers.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what exists.")] = False,
    skip_unrepresentable: Annotated[
        bool, typer.Option("--skip-unrepresentable", help="Leave out what the target cannot hold.")
    ] = False,
    opaque: Opaque = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint; several sources merge into one.

    With no other option only the format changes: same names, same values, same layout.
    """
    from .. import api

    select = options.select(from_, include, exclude, opaque, weights_only, ema)
    change = api.Change(converter, inverse, options.params(param), rename or (), scope or (), dtype)
    target = api.Target(
        to,
        options.size(max_shard_size) if max_shard_size else None,
        skip_unrepresentable,
        force,
        {None: "receipts", True: "full", False: "none"}[verify],
    )
    if dry_run:
        cost = api.Resources(options.size(max_memory), jobs)
        _show_plan(api.dry_run(sources, output, select=select, change=change, target=target, resources=cost), as_json)
        return
    with show.progress(quiet or as_json) as progress:
        resources = api.Resources(options.size(max_memory), jobs, progress=progress)
        done = api.convert(sources, output, select=select, change=change, target=target, resources=resources)
    if as_json:
        show.as_json(done.to_json())
    elif not quiet:
        show.report(done)


def _show_plan(plan: object, as_json: bool) -> None:
    from ..plan import Plan

    if not isinstance(plan, Plan):
        raise TypeError(plan)
    made = plan.to_json()
    if as_json:
        show.as_json(made)
        return
    rows = [
        [
            row["name"],
            row["dtype"],
            "x".join(map(str, row["shape"])) or "scalar",
            show.bytes_(row["bytes"]),
            row["how"],
            row["file"],
        ]
        for row in made["plan"]
    ]
    show.table(("name", "dtype", "shape", "size", "how", "file"), rows, "lllr")
    show.notes(plan.notes)
    show.talk(
        f"{made['tensors']} tensors, {show.bytes_(made['bytes'])} in {len(made['files'])} file(s); "
        f"{show.bytes_(made['bytes_changed'])} change on the way; about {show.bytes_(made['memory'])} of memory"
    )
