"""ckptconv [convert] SRC... -o DST"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.options import CHANGE, RESOURCES, SELECT, TARGET
from . import show, suggestions
from .options import Json, Quiet, command, takes

EXAMPLES = """Examples:

\b
  ckptconv model.ckpt -o model.safetensors       only the format changes
  ckptconv model.ckpt -o out.npz --weights-only --dtype float16
  ckptconv model.ckpt -o out.npz --include 'encoder/*' --exclude '*/bias'
  ckptconv bert.ckpt -o bert.pt -c auto              names and layouts of the other framework
  ckptconv bert.pt -o model.pt --rename bert.=model.     a prefix, with its dot or slash
  ckptconv model.ckpt -o model.pt -c rules.toml --like mypackage.model:build
  ckptconv a.ckpt b.ckpt -o ab.ckpt --scope a --scope b
  ckptconv model.ckpt -o out.npz --dry-run       what would happen, tensor by tensor
"""

if TYPE_CHECKING:
    from .. import Converter


@takes(*SELECT, *CHANGE, *TARGET, *RESOURCES)
def convert(
    sources: Annotated[
        list[str], typer.Argument(metavar="SRC...", help="A file, prefix, folder or URL; several are merged.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DST", help="The file, prefix, folder or URL to write.")
    ],
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
        plan = writing.dry_run(sources, output, **options)
        if as_json:
            show.as_json(plan.to_json())
            return
        show.table(plan.columns, plan.rows(folded=not no_fold), "lrllr")
        show.notes(plan.notes)
        show.talk(plan.sum())
        return
    with show.progress(quiet or as_json) as progress:
        done = writing.convert(sources, output, progress=progress, **options)
    if as_json:
        show.as_json(done.to_json())
    elif not quiet or done.damaged:
        show.report(done, verbose)
    if done.damaged:
        raise typer.Exit(1)


def _like(sources: list[str], options: dict[str, Any]) -> None:
    """Build the model that the template may be, once, and find the rules that lead to it, if none are given."""
    from ..api.memory import build_if_named
    from ..messages import redacted

    shown, options["like"] = redacted(options["like"]), build_if_named(options["like"])
    if not options.keys() & {"converter", "rename", "rename_regex"}:
        options["converter"] = _matched(sources, options, shown)


def _matched(sources: list[str], options: dict[str, Any], shown: str) -> Converter:
    """The rules that lead from the source to the template; an error or a note names the command that shows them."""
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
    own = "num_batches_tracked"  # which torch counts itself, so that `like` keeps it
    lacking = [n for n in made.target_only if not (n.endswith(own) or options.get("partial"))]
    counts = {"to look at": len(made.doubtful), "missing in the source": len(lacking), "left over in it": len(left)}
    doubts = ", ".join(f"{many(n, 'tensor')} {what}" for what, n in counts.items() if n)
    line = f"`{command('match', [redacted(sources[0]), shown], taken | {'no_values': True})} -o rules.toml`"
    if doubts or found.doubt:
        what = f"the rules are doubtful: {doubts or found.doubt}"
        raise ConversionError(f"{what}; {line} shows them, then give -c rules.toml")
    rules = found.converter
    return replace(rules, notes=tuple(f"{note}: {line}" for note in rules.notes))
