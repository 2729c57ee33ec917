"""ckptconv [convert] SRC... -o DST"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import show, suggestions
from .options import CHANGING, READING, Json, Quiet, takes

EXAMPLES = """Examples:

\b
  ckptconv model.ckpt -o model.safetensors       only the format changes
  ckptconv model.ckpt -o out.npz --weights-only --dtype float16
  ckptconv model.ckpt -o out.npz --include 'encoder/*' --exclude '*/bias'
  ckptconv model.ckpt -o model.pt -c auto            the names of the other framework
  ckptconv model.ckpt -o model.pt -c rules.toml --into mypackage.model:build
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b
  ckptconv model.ckpt -o out.npz --dry-run       what would be done
"""
HOW = ("to", "max_shard_size", "skip_unrepresentable", "force", "verify", "hash", "copy_files", "resume")
COST = ("max_memory", "jobs", "engine")

if TYPE_CHECKING:
    from .. import Checkpoint, Plan
    from ..api import Report

    Stamps = Mapping[str, tuple[int, ...]]  # of the sources
    Filled = tuple[Checkpoint, Mapping[str, tuple[int, int]], Mapping[str, int], Stamps]  # state, losses, casts


@takes(*READING, *CHANGING, *HOW, *COST)
def convert(
    sources: Annotated[
        list[str], typer.Argument(metavar="SRC...", help="A file, prefix, folder or URL; several are merged.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DST", help="The file, prefix, folder or URL to write.")
    ],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="MODULE:CALLABLE",
            help="Load into the torch module that this builds, and write its state.",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print what would happen to each tensor; write nothing.")
    ] = False,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="With --dry-run, print a line for each tensor.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name all tensors that a note concerns.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Convert a checkpoint; several sources merge into one.

    Without other options only the format changes: names, values and layouts stay the same.
    """
    from .. import api

    suggestions.refuse_fleeting(output)
    if dry_run and into:
        _show_fit(into, sources, options, as_json)
        return
    if dry_run:
        _show_plan(api.dry_run(sources, output, **options), as_json, no_fold)
        return
    loaded = _loaded(into, sources, options, quiet) if into else None
    with show.progress(quiet or as_json) as progress:
        if loaded is None:
            done = api.convert(sources, output, progress=progress, **options)
        else:
            done = _written(loaded, output, sources, options | {"progress": progress})
    _show_done(done, as_json, quiet, verbose)
    hinted = any("converter=" in note.text for note in done.notes)
    asked = options.keys() & {"converter", "rename", "rename_regex"} or into
    if not (asked or quiet or as_json or hinted) and show.is_watched():
        with suppress(KeyboardInterrupt):  # the output is there
            _suggest(sources, options)


def _show_done(done: Report, as_json: bool, quiet: bool, verbose: bool) -> None:
    if as_json:
        show.as_json(done.to_json())
    elif not quiet or done.damaged:
        show.report(done, verbose)
    if done.damaged:
        raise typer.Exit(1)


def _loaded(into: str, sources: list[str], options: dict[str, Any], quiet: bool) -> Filled:
    """The state of a module after the checkpoint was loaded into it, with the notes on both; losses, casts, stamps."""
    from .. import Note
    from ..torch import load_into, snapshot

    found, module, stamps = _both(into, sources, options)
    report = load_into(module, found)
    if not quiet:
        show.talk(f"{into}: {report.described('loaded')}")
    made = [Note("assumed", "not in the source: as the module makes them", report.missing)] * bool(report.missing)
    beside = tuple(n for n, t in found.items() if t.role and n not in report.loaded)
    made += [Note("dropped", "training state, which a module does not hold", beside)] * bool(beside)
    state = replace(snapshot(module), notes=(*found.notes, *made))
    casts = Counter(f"{found[n].dtype} to {state[n].dtype}" for n in report.cast)
    return state, report.loss, casts, stamps


def _written(loaded: Filled, output: str, sources: list[str], options: dict[str, Any]) -> Report:
    """Write a module's state; the report is of loading it as well, where all casts are."""
    from .. import api

    state, loss, casts, stamps = loaded
    done = api.write(state, output, api.parse_options(options), tuple(sources), stamps=stamps)
    return replace(done, loss=loss, casts=casts)


def _show_fit(into: str, sources: list[str], options: dict[str, Any], as_json: bool) -> None:
    """What would be loaded, by names and shapes; an error if it is one of the run itself."""
    from ..errors import ConversionError
    from ..messages import indented
    from ..torch import check

    found, module, _ = _both(into, sources, options, meta=True)
    fit = check(module, found)
    parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
    if not replace(fit, missing=tuple(n for n in fit.missing if n in parameters)).complete:  # buffers may be missing
        why = indented(fit.described("would fit"))
        raise ConversionError(f"the checkpoint does not fit the module; nothing would be written\n{why}")
    if as_json:
        notes = [n.to_json() for n in found.notes]
        show.as_json({"loaded": fit.loaded, "missing": fit.missing, "cast": fit.cast, "notes": notes})
        return
    show.talk(f"{into}: {fit.described('would fit')}")
    show.notes(found.notes)


def _both(
    into: str, sources: list[str], options: dict[str, Any], *, meta: bool = False
) -> tuple[Checkpoint, Any, Stamps]:
    """The checkpoint, the module that `--into` names, with `meta` without memory, and the stamps of the sources."""
    from .. import api
    from ..api.options import names_code
    from ..errors import UsageError
    from ..torch import build

    if not names_code(into):
        raise UsageError(f"--into takes package.module:callable, not {into!r}")
    how = api.parse_options(options)
    if how.dtype:
        raise UsageError("--into writes the dtypes that the module has; convert what it writes with dtype=")
    found, stamps = api.dated(sources, how, guard=how.verify != "none")
    return replace(found, hashes={}), build(into, meta=meta), stamps  # compared, or not to be compared


def _suggest(sources: list[str], options: dict[str, Any]) -> None:
    """Print a hint if a converter that was not requested would take every tensor."""
    from .. import api
    from ..rules import library

    if name := library.suggestion(api.prepare(sources, api.parse_options(options))):
        show.talk(
            f"hint: these are {name}'s names; -c {name} converts them, `ckptconv converters show {name}` says how"
        )


def _show_plan(plan: Plan, as_json: bool, no_fold: bool) -> None:
    if as_json:
        show.as_json(plan.to_json())
        return
    show.table(plan.columns, plan.rows(folded=not no_fold), "lrllr")
    show.notes(plan.notes)
    show.talk(plan.cost())
