"""zoo(sources, output): many checkpoints with the options of one conversion, flat."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..api import Path, bundle
from ..api.options import CHANGE, RESOURCES, SELECT, takes
from ..api.reading import list_of
from .ledger import LedgerEntry
from .run import Conversion, Settings, Summary, convert, plan, remembered

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import ZooOptions

ZOO = (
    *SELECT, *(k for k in CHANGE if k != "scope"), "skip_unrepresentable", "force", "verify", "hash", *RESOURCES,
)  # fmt: skip


@takes(*ZOO)
def zoo(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    to: str = "safetensors",
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    by_content: bool = False,
    follow_links: bool = False,
    ledger: str = "",
    each: Callable[[LedgerEntry], None] | None = None,
    **given: Unpack[ZooOptions],
) -> Summary:
    """Convert many checkpoints into a tree of the same form, and record each result in a ledger.

    sources: folders, globs, files and manifests. output: the folder to write to. to: the target format.
    pattern: a glob; only checkpoints whose path or name matches. latest: only the newest of each training series.
    resume: only what is not done or has changed; by_content: compare sources by their bytes, not by time and size.
    follow_links: read files that links outside the source folders lead to; otherwise those are failures.
    ledger: the path of the ledger, if not in `output`. each: a function that is called with each ledger entry.

    A checkpoint that fails does not stop the others: failures are in the summary. An error that concerns all of them
    is raised: UsageError, StorageError.
    """
    select, change, target, resources = bundle({**given, "to": to}, *ZOO, "to")
    return convert(
        [os.fspath(s) for s in list_of(sources)], os.fspath(output), Settings(select, change, target), pattern=pattern,
        latest=latest, resume=resume, hashed=by_content, follow=follow_links, ledger=ledger, resources=resources,
        said=each,
    )  # fmt: skip


@takes(*ZOO)
def zoo_plan(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    to: str = "safetensors",
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    by_content: bool = False,
    follow_links: bool = False,
    ledger: str = "",
    **given: Unpack[ZooOptions],
) -> list[Conversion]:
    """What `zoo` would do, without doing it."""
    settings = Settings(*bundle({**given, "to": to}, *ZOO, "to")[:3])
    known = remembered(ledger or os.fspath(output)) if resume else {}
    many = [os.fspath(s) for s in list_of(sources)]
    return plan(
        many, os.fspath(output), settings, known=known, pattern=pattern, latest=latest, hashed=by_content,
        follow=follow_links,
    )  # fmt: skip


__all__ = ["zoo", "zoo_plan"]
