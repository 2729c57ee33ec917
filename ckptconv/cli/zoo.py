"""ckptconv zoo SRC... -o DIR"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.options import CHANGE, RESOURCES, SELECT
from ..messages import in_bytes, many, reasons, redacted
from . import show, suggestions
from .options import Json, Quiet, spelled, takes

if TYPE_CHECKING:
    from ..bulk.planning import Conversion
    from ..bulk.summary import Summary


EXAMPLES = """Examples:

\b
  ckptconv zoo models/ -o out/                        every checkpoint below models/, to safetensors
  ckptconv zoo models/ -o out/ --resume               what is not done, failed or has changed
  ckptconv zoo 'runs/**/*.ckpt-*' -o out/ --latest    the newest step of each series
  ckptconv zoo list.csv -o out/ --dry-run             what a manifest would do
  ckptconv zoo models/ -o out/ --shard 2/8            the second of eight shares, on one of eight machines
  ckptconv zoo status out/                            what is done, and what failed
"""
STATUS = """Usage: ckptconv zoo status [OPTIONS] DIR

  Say what is done and what failed, also while runs are at work.

Arguments:
  DIR  The folder that zoo writes, or a ledger.  [required]

Options:
  --json       Print JSON.
  -q, --quiet  Print nothing on success.

  Exit code 1: some conversions failed or left out damaged tensors.
"""
FORMAT = "Format of all outputs (default: safetensors; in a manifest, that of a destination's suffix)."


@takes(
    *SELECT, *(k for k in CHANGE if k != "scope"), "skip_unrepresentable", "force", "verify", "hash", *RESOURCES,
)  # fmt: skip
def zoo(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Folders, globs, files or manifests.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="The folder to write, a tree like that of the sources.")
    ] = "",
    to: Annotated[str, typer.Option(metavar="FORMAT", help=FORMAT)] = "",
    pattern: Annotated[str, typer.Option(metavar="GLOB", help="Only checkpoints whose path or name matches.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Convert only what is not done or has changed.")] = False,
    latest: Annotated[
        bool, typer.Option("--latest/--all-steps", help="Only the newest checkpoint of each training series.")
    ] = False,
    by_content: Annotated[
        bool, typer.Option("--by-content", help="Tell by content, not by time and size, whether a source has changed.")
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Follow links to files outside the folders.")
    ] = False,
    ledger: Annotated[str, typer.Option(metavar="FILE", help="Keep the ledger in this file, not in DIR.")] = "",
    shard: Annotated[str, typer.Option(metavar="I/N", help="Only the I-th of N shares, for N machines.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Print what would happen; write nothing.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Convert all checkpoints in folders.

    The outputs form a folder tree like that of the sources. Each result is recorded in a ledger, a file in DIR, from
    which --resume continues. A checkpoint that fails does not stop the others. A manifest is a CSV or JSON file that
    lists sources, each with its destination if you want to name it. `zoo status DIR` says what is done and what failed,
    and exits with 1 if something failed.
    """
    if not output:
        _tell(_status(sources), as_json, quiet)
        return
    suggestions.refuse_fleeting(output)
    from ..bulk import run

    options |= {"to": to or None, "pattern": pattern, "latest": latest, "resume": resume, "by_content": by_content}
    options |= {"ledger": ledger, "follow_links": follow_links, "shard": shard}
    if dry_run:
        _show_items(run.zoo_plan(sources, output, **options), as_json)
        return
    try:
        with show.progress(quiet or as_json) as progress:
            done = run.zoo(sources, output, progress=progress, **options)
    except KeyboardInterrupt as e:  # with the status of the signal
        show.talk("interrupted; what is done is in the ledger; --resume continues with the rest")
        raise typer.Exit(e.args[0] if e.args else 130) from None
    _tell(done, as_json, quiet)


def _tell(done: Summary, as_json: bool, quiet: bool) -> None:
    """Print what was done, and exit with 1 if a checkpoint failed or lacks tensors."""
    wrong = done.failed or done.damaged
    if as_json:
        show.as_json(done.to_json())
    elif wrong or not quiet:
        show.talk(*done.lines())
    if wrong:
        raise typer.Exit(1)


def _status(words: list[str]) -> Summary:
    """`zoo status DIR`; without it, a folder to write is needed."""
    if words[0] != "status" or len(words) != 2:
        raise suggestions.without_destination(words, "zoo")
    from ..bulk.summary import zoo_status

    return zoo_status(words[1])


def _show_items(items: Sequence[Conversion], as_json: bool) -> None:
    wrong = {redacted(i.found.source): spelled(i.found.problem.message) for i in items if i.found.problem}
    if as_json:
        show.as_json(
            [
                {
                    "source": (source := redacted(i.found.source)),
                    "destination": i.destination,
                    "bytes": i.found.size,
                    "what": i.state,
                    "problem": wrong.get(source),
                }
                for i in items
            ]
        )
        return
    rows = [[i.state, in_bytes(i.found.size), redacted(i.found.source), i.destination] for i in items]
    show.table(("what", "size", "source", "destination"), rows, "lr")
    if wrong:
        show.talk(f"{many(len(wrong), 'problem')}:\n{reasons(wrong)}")
    todo = [i for i in items if i.state not in ("done", "problem")]
    size = in_bytes(sum(i.found.size for i in todo))
    show.talk(f"{len(todo)} of {len(items)} to convert, {size}; nothing in them was checked")
