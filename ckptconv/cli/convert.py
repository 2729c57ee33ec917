"""ckptconv [convert] SRC... -o DST"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import complete, options, show
from .options import (
    Converter,
    Densify,
    Dtype,
    Ema,
    Engine,
    Exclude,
    Force,
    From,
    Hash,
    Include,
    Inverse,
    Jobs,
    Json,
    Opaque,
    Param,
    Quiet,
    Rename,
    Scope,
    SkipUnrepresentable,
    Verify,
    WeightsOnly,
)

EXAMPLES = """Examples:

\b
  ckptconv model.ckpt -o model.safetensors       only the format changes
  ckptconv model.ckpt -o out.npz --weights-only --dtype float16
  ckptconv model.ckpt -o out.npz --include 'encoder/*' --exclude '*/bias'
  ckptconv model.ckpt -o out.safetensors -c auto names of the other framework
  ckptconv model.ckpt -o model.pt -c rules.toml --into mypackage.model:build
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b
  ckptconv model.ckpt -o out.npz --dry-run       say what would be done
"""


if TYPE_CHECKING:
    from ..api import Report, Select
    from ..checkpoint import Checkpoint
    from ..engine.plan import Plan


def convert(
    sources: Annotated[list[str], typer.Argument(metavar="SRC", help="File, prefix, folder or URL; many merge.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DST", help="Where to write.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FORMAT", help="The target's format.", autocompletion=complete.writable),
    ] = None,
    from_: From = None,
    converter: Converter = None,
    into: Annotated[
        str,
        typer.Option("--into", metavar="MODULE:CALLABLE", help="Load into the torch module this builds."),
    ] = "",
    inverse: Inverse = False,
    param: Param = None,
    rename: Rename = None,
    include: Include = None,
    exclude: Exclude = None,
    scope: Scope = None,
    weights_only: WeightsOnly = False,
    ema: Ema = False,
    dtype: Dtype = None,
    max_shard_size: Annotated[
        str | None, typer.Option("--max-shard-size", metavar="SIZE", help="Split, e.g. 5GB.")
    ] = None,
    max_memory: Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Bound on buffers.")] = "512MB",
    jobs: Jobs = None,
    engine: Engine = "local",
    verify: Verify = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a killed run stopped; if this one is, keep what it did.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    force: Force = False,
    skip_unrepresentable: SkipUnrepresentable = False,
    opaque: Opaque = False,
    densify: Densify = False,
    hashed: Hash = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave out damaged tensors, list them, and exit with 1.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint; several sources merge into one.

    With no other option only the format changes: same names, same values, same layout.
    """
    from .. import api

    select = options.select(from_, include, exclude, opaque, weights_only, ema, keep_going, densify)
    change = options.change(converter, inverse, param, rename, dtype, scope)
    target = api.Target(
        to,
        options.size(max_shard_size) if max_shard_size else None,
        skip_unrepresentable,
        force,
        options.verification(verify),
        resume=resume,
        hash=hashed,
    )
    if into:
        made = _loaded(into, api.prepare(sources, select, change, guard=verify is not False), quiet, dry_run)
        if dry_run:
            return
        with show.progress(quiet or as_json) as progress:
            resources = api.Resources(options.size(max_memory), jobs, progress=progress, engine=engine)
            done = api.write(made, output, target, resources, tuple(sources))
        _show_done(done, as_json, quiet)
        return
    if dry_run:
        cost = api.Resources(options.size(max_memory), jobs)
        _show_plan(api.dry_run(sources, output, select=select, change=change, target=target, resources=cost), as_json)
        return
    with show.progress(quiet or as_json) as progress:
        resources = api.Resources(options.size(max_memory), jobs, progress=progress, engine=engine)
        done = api.convert(sources, output, select=select, change=change, target=target, resources=resources)
    _show_done(done, as_json, quiet)
    if not (converter or rename or quiet or as_json) and show.is_watched():
        _suggest(sources, select)


def _show_done(done: Report, as_json: bool, quiet: bool) -> None:
    if as_json:
        show.as_json(done.to_json())
    elif not quiet or done.damaged:
        show.report(done)
    if done.damaged:
        raise typer.Exit(1)


def _loaded(into: str, found: Checkpoint, quiet: bool, dry_run: bool) -> Checkpoint:
    """The state of a module after the checkpoint was loaded into it; names and shapes are checked first."""
    from ..errors import UsageError
    from ..torch import build, check, load_into, snapshot

    if not options.callable_name(into):
        raise UsageError(f"--into takes package.module:callable, not {into!r}")
    module = build(into, meta=dry_run)
    if dry_run:
        show.talk(f"{into}: {check(module, found)}")
        return found
    report = load_into(module, found)
    if not quiet:
        show.talk(f"{into}: {report}")
    return snapshot(module)


def _suggest(sources: list[str], select: Select) -> None:
    """Say so when a converter that was not asked for would take every tensor."""
    from .. import api
    from ..rules import library

    name = library.suggestion(api.prepare(sources, select, api.Change()))
    if name:
        show.talk(
            f"hint: these are {name}'s names; -c {name} converts them, `ckptconv converters show {name}` says how"
        )


def _show_plan(plan: Plan, as_json: bool) -> None:
    made = plan.to_json()
    if as_json:
        show.as_json(made)
        return
    rows = [
        [r["name"], r["dtype"], show.shape(tuple(r["shape"])), show.bytes_(r["bytes"]), r["how"], r["file"]]
        for r in made["plan"]
    ]
    show.table(("name", "dtype", "shape", "size", "how", "file"), rows, "lllr")
    show.notes(plan.notes)
    show.talk(
        f"{made['tensors']} tensors, {show.bytes_(made['bytes'])} in {len(made['files'])} file(s); "
        f"{show.bytes_(made['bytes_changed'])} change on the way; about {show.bytes_(made['memory'])} of memory"
    )
