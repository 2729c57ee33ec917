"""ckptconv match SRC TARGET"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import show
from .options import READING, Json, Quiet, callable_name, takes

if TYPE_CHECKING:
    from .. import Checkpoint
    from ..api.options import Change, Select
    from ..matching.pairs import Proposal

EXAMPLES = """Examples:

\b
  ckptconv match model.ckpt converted.pt -o rules.toml      by values, where both hold the same ones
  ckptconv match model.ckpt mypackage.model:build           by names and shapes; torch builds the module
  ckptconv model.ckpt -c rules.toml -o model.safetensors    what to do with the result
"""


@takes(*READING, "force", "jobs")
def match(
    source: Annotated[str, typer.Argument(metavar="SRC", help="File, prefix, folder or URL.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A checkpoint, or package.module:callable that builds a module.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="TOML", help="Write the rules here.")] = "",
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Compare contents, or look at names and shapes only.")
    ] = True,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Propose a converter from SRC to TARGET: rules with evidence, which -c takes as they are once reviewed.

    Where both hold the same values these decide, to the last bit. Else names, shapes and the order of modules do; what
    they leave open is marked, and where another answer is likely it comes first. --opaque, --densify, --weights-only,
    --include and --exclude hold for both. Exits with 1 if the two may not be one model; the best proposal is written
    all the same.
    """
    from .. import api
    from ..matching.search import match as matched
    from ..matching.toml import toml

    select, change, how, resources = api.bundle(options)
    if output and os.path.exists(output) and not how.force:
        from ..errors import StorageError

        raise StorageError("exists; --force replaces it", url=output)
    a, b = _sides(source, target, select, change)
    globs = {"include": select.include, "exclude": select.exclude}
    found = matched(a, b, values=values, workers=resources.workers, **globs)
    text = toml(found, f"{_name(source)} to {_name(target)}", source=_name(source), target=_name(target))
    if output:
        from pathlib import Path

        Path(output).write_text(text, encoding="utf-8")
    if as_json:
        show.as_json(found.to_json())
    elif not output:
        print(text, end="")
    if not quiet:
        _summary(found, output)
    if found.doubt:
        show.talk(f"doubtful as a whole: {found.doubt}")
        raise typer.Exit(1)


def _sides(source: str, target: str, select: Select, change: Change) -> tuple[Checkpoint, Checkpoint]:
    """Both checkpoints, read in the same way; the target may be the names and shapes of a module."""
    from .. import api

    every = replace(select, include=(), exclude=())
    a = api.prepare([source], every, change)
    if callable_name(target):
        from ..torch import build, outline

        b = outline(build(target, meta=True))
    else:  # the options that are about SRC alone are left out
        b = api.prepare([target], replace(every, format=None, at=None, strip_prefix=(), ema=False), change)
    return a, b


def _name(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or path


def _summary(found: Proposal, output: str) -> None:
    """Say on stderr what is known, what is assumed, what to look at and what is left."""
    from collections import Counter

    from ..rules.library import MAX_FILE

    kinds: Counter[str] = Counter()
    for p in found.pairs:
        kind = f"by {p.evidence}" if p.sure else "to look at" if p.real else "assumed"
        kinds[kind] += len(p.targets) + len(p.fills)
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    show.talk(f"{show.many(sum(kinds.values()), 'tensor')} of the target found: {counts}")
    for names, where in ((found.target_only, "source"), (found.source_only, "target")):
        if names:
            show.talk(f"no counterpart in the {where}:\n{show.folded(names)}")
    for note in found.notes:
        show.talk(f"note: {note}")
    if output and os.path.getsize(output) > MAX_FILE:
        show.talk(f"note: {output} is larger than a rule file may be; match parts of the model with --include")
    elif output:
        show.talk(f"{output}: review what is marked, then convert with -c {output}")
