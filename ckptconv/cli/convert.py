"""ckptconv [convert] SRC... -o DST"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.options import CHANGE, RESOURCES, SELECT, TARGET, names_code, parse_options
from . import show, suggestions
from .options import Json, Quiet, command, takes

EXAMPLES = """Examples:

\b
  ckptconv model.ckpt -o model.safetensors       only the format changes
  ckptconv model.ckpt -o out.npz --weights-only --dtype float16
  ckptconv model.ckpt -o out.npz --include 'encoder/*' --exclude '*/bias'
  ckptconv bert.ckpt -o bert.pt -c auto              names and layouts of the other framework
  ckptconv model.ckpt -o model.pt -c rules.toml --into mypackage.model:build
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b
  ckptconv model.ckpt -o out.npz --dry-run       what would happen, tensor by tensor
"""

if TYPE_CHECKING:
    from .. import Checkpoint, Match
    from ..api.result import Report


@takes(*SELECT, *CHANGE, *TARGET, *RESOURCES)
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
    from ..api import writing

    suggestions.refuse_fleeting(output)
    if "like" in options:
        _like(sources, options)
    if dry_run:
        if into:
            _show_fit(into, sources, options, as_json)
            return
        plan = writing.dry_run(sources, output, **options)
        if as_json:
            show.as_json(plan.to_json())
            return
        show.table(plan.columns, plan.rows(folded=not no_fold), "lrllr")
        show.notes(plan.notes)
        show.talk(plan.sum())
        return
    with show.progress(quiet or as_json) as progress:
        if into:
            done = _write_state(into, sources, output, options | {"progress": progress}, quiet)
        else:
            done = writing.convert(sources, output, progress=progress, **options)
    if as_json:
        show.as_json(done.to_json())
    elif not quiet or done.damaged:
        show.report(done, verbose)
    if done.damaged:
        raise typer.Exit(1)


def _like(sources: list[str], options: dict[str, Any]) -> None:
    """Build the model that the template may be, once, and find the rules that lead to it, if none are given."""
    from ..api.memory import live
    from ..messages import redacted

    shown, options["like"] = redacted(options["like"]), live(options["like"])
    if not options.keys() & {"converter", "rename", "rename_regex"}:
        options["converter"] = _matched(sources, options, shown)


def _matched(sources: list[str], options: dict[str, Any], shown: str) -> Match:
    """The rules that lead from the source to the template; an error names the command that shows doubtful ones."""
    from .. import open as opened
    from ..errors import ConversionError, UsageError
    from ..matching.proposal import match
    from ..messages import many, redacted
    from ..reporting.inspection import role

    if len(sources) != 1:
        raise UsageError("--like proposes rules for one source; give -c with several")
    taken = {k: v for k, v in options.items() if k in SELECT}
    found = match(sources[0], options["like"], values=False, **taken)
    made = found.proposal
    known = opened(sources[0], **taken).values() if made.source_only else ()
    left = [t for t in known if t.name in made.source_only and not role(t)]
    doubts = {"to look at": made.doubtful, "missing in the source": made.target_only, "left over in it": left}
    counts = ", ".join(f"{many(len(some), 'tensor')} {what}" for what, some in doubts.items() if some)
    if counts or found.doubt:
        line = command("match", [redacted(sources[0]), shown], taken | {"no_values": True})
        what = f"the rules are doubtful: {counts or found.doubt}"
        raise ConversionError(f"{what}; `{line} -o rules.toml` shows them, then give -c rules.toml")
    return found


def _write_state(into: str, sources: list[str], output: str, options: dict[str, Any], quiet: bool) -> Report:
    """Load into the module that `--into` names and write its state; the report is of both."""
    from .. import Note
    from ..api.writing import write
    from ..torch import load_into, snapshot

    found, module, stamps = _both(into, sources, options)
    loaded = load_into(module, found)
    if not quiet:
        show.talk(f"{into}: {loaded.described('loaded')}")
    beside = tuple(n for n, t in found.items() if t.role and n not in loaded.loaded)
    made = (
        Note("assumed", "not in the source: as the module makes them", loaded.missing),
        Note("dropped", "training state, which a module does not hold", beside),
    )
    state = replace(snapshot(module), notes=(*found.notes, *(n for n in made if n.names)))
    casts = Counter(f"{found[n].dtype} to {state[n].dtype}" for n in loaded.cast)
    done = write(state, output, parse_options(options), sources, stamps=stamps)
    return replace(done, loss=loaded.loss, casts=casts)


def _show_fit(into: str, sources: list[str], options: dict[str, Any], as_json: bool) -> None:
    """What would be loaded, by names and shapes; an error if it is one of the run itself."""
    from ..torch import fitted

    found, module, _ = _both(into, sources, options, meta=True)
    fit = fitted(module, found)
    if as_json:
        notes = [n.to_json() for n in found.notes]
        show.as_json({"loaded": fit.loaded, "missing": fit.missing, "cast": fit.cast, "notes": notes})
        return
    show.talk(f"{into}: {fit.described('would fit')}")
    show.notes(found.notes)


def _both(
    into: str, sources: list[str], options: dict[str, Any], *, meta: bool = False
) -> tuple[Checkpoint, Any, Mapping[str, tuple[int, ...]]]:
    """The checkpoint, the module that `--into` names, with `meta` without memory, and the stamps of the sources."""
    from ..api.reading import dated
    from ..errors import UsageError
    from ..torch import build

    if not names_code(into):
        raise UsageError(f"--into takes package.module:callable, not {into!r}")
    how = parse_options(options)
    if how.dtype:
        raise UsageError("--into writes the dtypes that the module has; convert what it writes with dtype=")
    found, stamps = dated(sources, how, guard=how.verify is not False)
    return replace(found, hashes={}), build(into, meta=meta), stamps  # compared, or not to be compared
