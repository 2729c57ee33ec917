"""zoo(sources, output): many checkpoints with the options of one conversion, flat."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..api import Path, bundle
from ..api.options import CHANGE, RESOURCES, SELECT, takes
from ..api.reading import list_of
from ..storage.paths import refuse_remote
from .conversions import Conversions
from .ledger import LedgerEntry
from .run import Settings, Summary, convert, plan, read_ledger

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
    to: str | None = None,
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    by_content: bool = False,
    follow_links: bool = False,
    ledger: str = "",
    shard: str = "",
    each: Callable[[LedgerEntry], None] | None = None,
    **given: Unpack[ZooOptions],
) -> Summary:
    """Convert many checkpoints into an output tree that mirrors the sources, and record each result in a ledger.

    sources: one or several folders, globs, files and manifests. output: the folder to write to. to: the target format
    (default: safetensors; in a manifest, that of the destination's suffix). pattern: a glob; only checkpoints whose
    path or name matches. latest: only the newest of each training series. resume: continue after an earlier run;
    convert only what is not done or has changed. by_content: compare sources by a hash of their bytes, not by time and
    size. follow_links: read files that links outside the source folders lead to; otherwise those are failures. ledger:
    the path of the ledger, if not in `output`. shard: "2/8" converts the second of eight shares, for eight machines
    that each convert one; each share has a ledger of its own. each: a function that is called with each ledger entry.
    The other options are those of `convert`, for every checkpoint.

    Returns a Summary: counts, bytes, seconds, and in `failed` the ledger entries of the failures; one checkpoint that
    fails does not stop the others. Raises what concerns all of them: UsageError (an option, a manifest, a pattern that
    matches nothing), StorageError (the output folder, an existing ledger without `resume`), CorruptCheckpoint (a
    damaged ledger).
    """
    refuse_remote(ledger := os.fspath(ledger), "a ledger")
    select, change, target, resources = bundle({**given, "to": to}, *ZOO, "to")
    return convert(
        [os.fspath(s) for s in list_of(sources)], os.fspath(output), Settings(select, change, target), pattern=pattern,
        latest=latest, resume=resume, hashed=by_content, follow=follow_links, ledger=ledger, shard=shard,
        resources=resources, each=each,
    )  # fmt: skip


@takes(*ZOO)
def zoo_plan(
    sources: Path | Sequence[Path],
    output: Path,
    *,
    to: str | None = None,
    pattern: str = "",
    latest: bool = False,
    resume: bool = False,
    by_content: bool = False,
    follow_links: bool = False,
    ledger: str = "",
    shard: str = "",
    **given: Unpack[ZooOptions],
) -> Conversions:
    """List the conversions that `zoo` would do with the same arguments, without writing anything.

    Returns a sequence with a Conversion for each checkpoint, sorted by name, rows of manifests last: `found`
    (the checkpoint and its files), `at` (the path of the output below `output`), `settings`, and `state`: convert,
    retry, changed, done or problem. Raises UsageError, StorageError and CorruptCheckpoint, as `zoo` does.
    """
    refuse_remote(ledger := os.fspath(ledger), "a ledger")
    settings = Settings(*bundle({**given, "to": to}, *ZOO, "to")[:3])
    force = settings.target.force
    known = read_ledger(ledger or os.fspath(output), shard, force=force) if resume or force else None
    many = [os.fspath(s) for s in list_of(sources)]
    items = plan(
        many, os.fspath(output), settings, known=known, pattern=pattern, latest=latest, hashed=by_content,
        follow=follow_links, ledger=ledger, shard=shard,
    )  # fmt: skip
    if force and not resume:
        items.do_again()
    return items


__all__ = ["zoo", "zoo_plan"]
