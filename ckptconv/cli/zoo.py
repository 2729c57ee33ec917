"""ckptconv zoo SRC... -o DIR"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..messages import listing
from . import complete, show
from .options import CHANGING, READING, Json, Quiet, takes

if TYPE_CHECKING:
    from ..bulk.run import Item, Summary


EXAMPLES = """Examples:

\b
  ckptconv zoo models/ -o out/                        every checkpoint below models/, to safetensors
  ckptconv zoo models/ -o out/ --resume               what was not done, failed or has changed
  ckptconv zoo 'runs/**/*.ckpt-*' -o out/ --latest    the newest step of each series
  ckptconv zoo list.csv -o out/ --dry-run             what a manifest would do
"""
CAUSES = 20  # shown; the ledger has all


@takes(
    *READING, *(k for k in CHANGING if k != "scope"), "skip_unrepresentable", "force", "verify", "hash", "max_memory",
    "jobs", "engine",
)  # fmt: skip
def zoo(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Folders, globs, files, manifests.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Where the tree is mirrored.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help="The format of all outputs.", autocompletion=complete.writable),
    ] = "safetensors",
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="GLOB", help="Only checkpoints whose path or name fits.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Only what is not done or has changed.")] = False,
    latest: Annotated[bool, typer.Option("--latest/--all-steps", help="Of a training series only the newest.")] = False,
    by_content: Annotated[
        bool, typer.Option("--by-content", help="Know sources by content, not time and size.")
    ] = False,
    ledger: Annotated[str, typer.Option("--ledger", metavar="FILE", help="Keep the ledger here, not in DIR.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen and stop.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Convert many checkpoints: each found once, the tree mirrored, what is done remembered in a ledger.

    One failure does not stop the rest; the exit code is 1 if there was any.
    """
    from .. import api
    from ..bulk import run as many

    how: dict[str, Any] = {"pattern": pattern, "latest": latest, "hashed": by_content}
    settings = many.Settings(*api.bundle(options | {"to": to})[:3])
    if dry_run:
        known = many.remembered(ledger or output) if resume else {}
        _show_items(many.plan(sources, output, settings, known=known, **how), as_json)
        return
    try:
        with show.progress(quiet or as_json) as progress:
            resources = api.bundle(options | {"progress": progress}).resources
            done = many.convert(sources, output, settings, resume=resume, ledger=ledger, resources=resources, **how)
    except KeyboardInterrupt as e:
        show.talk("interrupted; what is done is in the ledger, --resume goes on with the rest")
        raise typer.Exit(e.args[0] if e.args else 130) from None
    _report(done, as_json, quiet)


def _report(done: Summary, as_json: bool, quiet: bool) -> None:
    if as_json:
        show.as_json(done.to_json())
    else:
        _show_summary(done, quiet)
    if done.failed:
        raise typer.Exit(1)


def _show_items(items: list[Item], as_json: bool) -> None:
    if as_json:
        show.as_json(
            [{"source": i.found.source, "destination": i.at, "bytes": i.found.size, "what": i.state} for i in items]
        )
        return
    rows = [[i.state, show.bytes_(i.found.size), i.found.source, i.at] for i in items]
    show.table(("what", "size", "source", "destination"), rows, "lr")
    todo = [i for i in items if i.state != "done"]
    show.talk(f"{len(todo)} of {len(items)} to convert, {show.bytes_(sum(i.found.size for i in todo))}")


def _show_summary(done: Summary, quiet: bool) -> None:
    for kind, message, sources in done.causes[:CAUSES]:
        count = f"{len(sources)} checkpoints" if len(sources) > 1 else "1 checkpoint"
        show.talk(f"failed: {count}: {kind}: {message}")
        show.talk(listing(sources, 5))
    if len(done.causes) > CAUSES:
        show.talk(f"failed: {len(done.causes) - CAUSES} more causes, which the ledger tells")
    if not quiet or done.failed:
        rate = done.done / max(done.seconds, 1e-9)
        show.talk(
            f"{done.done} converted, {done.skipped} up to date, {len(done.failed)} failed; "
            f"{show.bytes_(done.bytes)} in {done.seconds:.1f} s ({rate:.0f} per second)"
        )
