"""Open sources: detect, read headers, select, and apply what is to change. No tensor is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import checkpoint
from ..checkpoint import Checkpoint, Note
from ..dtypes import dtype
from ..errors import UsageError, VerifyError
from ..formats import detect
from ..formats.table import Reading
from ..messages import listing, printable
from ..moves.read import Opened, stamps_of
from ..rules import names, passes
from ..storage import files
from .options import SELECT, Change, Path, Select, bundle, takes
from .options import path as text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import SelectOptions


@takes(*(k for k in SELECT if k != "from_"))
def open(path: Path, *, format: str | None = None, **select: Unpack[SelectOptions]) -> Checkpoint:
    """Open a checkpoint of any known format: a lazy mapping from names to tensors.

    path: a file, a folder, a TensorFlow prefix or a URL. format: its format, if several fit. Only headers are read;
    `checkpoint[name].numpy()` reads a tensor, and compares it with the hash and checksums that the checkpoint carries.

    Raises StorageError (nothing is there, or it cannot be read), UnknownFormat, AmbiguousFormat, CorruptCheckpoint,
    UnsafeCheckpoint, MissingExtra (the format needs an optional package) and UsageError (options).
    """
    chosen = bundle(select, *SELECT).select
    with files.record_stamps() as stamps:
        found = whole(text(path), chosen if format is None else replace(chosen, format=format))
    if found.hashes:
        from ..verification.hashes import watched

        with suppress(VerifyError):  # hashes of other tensors: whoever verifies or converts the file is told
            found = watched(found)
    taken = selected(found, chosen)
    _since(taken, stamps)
    return names.hinted(taken if taken.keys() == found.keys() else replace(taken, hashes={}))


def _since(found: Checkpoint, stamps: Mapping[str, files.Stamp]) -> None:
    """Say to each tensor, which was just made, how the stamps of the files begin that were opened for it."""
    lasting = {url: stamp[: files.LASTING] for url, stamp in stamps.items()}
    plain = Opened(lasting)
    for t in found.values():
        t.since(replace(t.opened, stamps=lasting) if t.opened else plain)


def seen(found: Checkpoint) -> dict[str, files.Stamp]:
    """The files that a checkpoint was read from, each with how its stamp began, () if that is not known.

    CorruptCheckpoint if one was opened before and after it was changed.
    """
    return {**dict.fromkeys(found.urls, ()), **stamps_of(t.opened for t in found.values() if t.opened)}


def opened(source: Path | Checkpoint, select: Select, *, guard: bool = False) -> Checkpoint:
    """Open one source and select from it; with `guard`, what is read later is compared with the source's hashes.

    An open checkpoint stays as it is open: options that are about the file do nothing to it.
    """
    found = source if isinstance(source, Checkpoint) else whole(text(source), select)
    if guard and found.hashes:
        from ..verification.hashes import guarded, watched

        # what differs is an error, or is left out by `selected`, which reads everything then
        found = replace(watched(found), hashes={}) if select.keep_going else guarded(found)
    return selected(found, select)


def whole(url: str, select: Select) -> Checkpoint:
    """Open one source with all its tensors."""
    refuse_nameless(url)
    return detect.open_checkpoint(url, Reading(select.opaque, select.keep_going, select.densify), format=select.format)


def refuse_nameless(url: str) -> None:
    """Refuse standard input and output, since a checkpoint is read and written at many places, and impossible names."""
    if url in ("-", "/dev/stdin", "/dev/stdout"):
        raise UsageError(f"{url} is a stream; a checkpoint is read and written at many places, so name a file")
    try:
        possible = b"\0" not in os.fsencode(url)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise UsageError(f"{printable(url)} holds a NUL or half a surrogate pair, which the name of no file does")


def selected(found: Checkpoint, select: Select) -> Checkpoint:
    """Take what was selected."""
    if not found.tensors:
        found = replace(found, notes=(*found.notes, Note("hint", "this checkpoint holds no tensors")))
    if select.at:
        found = names.at(found, select.at)
    found = passes.roles(found)
    if select.ema:
        found = names.averages(found, passes.wanted(exclude=select.exclude))
    if select.strip_prefix:
        found = names.strip(found, select.strip_prefix)
    found = passes.select(found, select.include, select.exclude)
    found = passes.weights_only(found) if select.weights_only else found
    if select.keep_going:
        from ..verification.hashes import salvaged

        return salvaged(found)
    return found


@checkpoint.uncollected()
def prepare(sources: Sequence[Path | Checkpoint], select: Select, change: Change, *, guard: bool = False) -> Checkpoint:
    """Open the sources and apply all passes: what the target shall hold, still without reading a tensor.

    guard: what is read later is compared with the hashes that the sources carry; VerifyError if they are of others.
    """
    return changed(merged(sources, select, change, guard=guard), change)


@checkpoint.uncollected()
def merged(sources: Sequence[Path | Checkpoint], select: Select, change: Change, *, guard: bool = False) -> Checkpoint:
    """Open the sources, and select from them: one checkpoint of all, before rules and casts."""
    if not sources:
        raise UsageError("no source was given")
    if change.scopes and len(change.scopes) != len(sources):
        count = len(sources)
        raise UsageError(f"{count} sources need {count} scope=NAME, one for each; given are {len(change.scopes)}")
    found = [opened(s, select, guard=guard) for s in sources]
    if change.scopes:
        found = [passes.scope(c, name) for c, name in zip(found, change.scopes, strict=True)]
    made = passes.merge(found)
    if not made.tensors and made.notes:  # a file of settings, for example
        raise UsageError(f"no tensor was found:\n{listing(map(str, made.notes))}", url=url_of(sources[0]))
    return made


@checkpoint.uncollected()
def changed(made: Checkpoint, change: Change) -> Checkpoint:
    """Apply rules, renames and a cast."""
    if change.converter or change.renames or change.inverse or change.params:
        from ..rules import library

        made = library.change(made, change.converter, change.renames, inverse=change.inverse, params=change.params)
    if change.regexes:
        made = names.replaced(made, change.regexes)
    return names.hinted(passes.cast(made, dtype(change.dtype)) if change.dtype else made)


def dated(
    sources: Sequence[Path | Checkpoint], select: Select, change: Change, *, guard: bool = False
) -> tuple[Checkpoint, dict[str, files.Stamp]]:
    """The same, and the stamps of all files that were opened for it, whose beginnings its tensors know."""
    with files.record_stamps() as stamps:
        found = prepare(sources, select, change, guard=guard)
    _since(found, stamps)
    return found, stamps


def url_of(source: Path | Checkpoint) -> str:
    """The path of a source; of an open checkpoint the first file, or '' if it is in memory."""
    return "".join(source.urls[:1]) if isinstance(source, Checkpoint) else text(source)


def list_of(sources: Path | Sequence[Path]) -> list[Path]:
    """One path, or many."""
    several = isinstance(sources, Iterable) and not isinstance(sources, (str, os.PathLike, Mapping))
    return [text(s) for s in sources] if several else [text(sources)]  # type: ignore[union-attr]
