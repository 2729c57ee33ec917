"""ckptconv match SRC TARGET"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import show
from .options import READING, Json, Quiet, callable_name, takes

if TYPE_CHECKING:
    from .. import Checkpoint
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

    Where both hold the same values these decide, to the last bit. Else names and shapes do, and what they leave open
    is marked `assumed`. Exits with 1, and writes nothing, if the two do not look like one model.
    """
    from .. import api
    from ..matching.search import match as matched

    select, change, how, resources = api.bundle(options)
    if output and os.path.exists(output) and not how.force:
        from ..errors import StorageError

        raise StorageError("exists; --force replaces it", url=output)
    a = api.prepare([source], select, change)
    found = matched(a, _target(target), values=values, workers=resources.workers)
    from ..matching.toml import toml

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


def _target(target: str) -> Checkpoint:
    """A checkpoint, or the names and shapes of a module."""
    from .. import api

    if not callable_name(target):
        return api.open(target)
    from ..torch import build, outline

    return outline(build(target, meta=True))


def _name(path: str) -> str:
    return os.path.basename(path.rstrip("/")) or path


def _summary(found: Proposal, output: str) -> None:
    """Say on stderr what is known, what is assumed and what is left."""
    from collections import Counter

    from ..rules.library import MAX_FILE

    kinds = Counter("assumed" if not p.sure else p.evidence for p in found.pairs for _ in p.targets)
    said = ", ".join(f"{n} {'assumed' if k == 'assumed' else f'by {k}'}" for k, n in kinds.items())
    show.talk(f"{show.many(sum(kinds.values()), 'tensor')} of the target found: {said}")
    for names, where in ((found.target_only, "source"), (found.source_only, "target")):
        if names:
            show.talk(f"no counterpart in the {where}:\n{show.folded(names)}")
    for note in found.notes:
        show.talk(f"note: {note}")
    if output and os.path.getsize(output) > MAX_FILE:
        show.talk(f"note: {output} is larger than a rule file may be; match parts of the model with --include")
    elif output:
        show.talk(f"{output}: review what is assumed, then convert with -c {output}")
