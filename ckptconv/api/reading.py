"""Open sources: detect, read headers, select, and apply what is to change. No tensor is read."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import checkpoint
from ..checkpoint import Checkpoint, Note
from ..dtypes import dtype
from ..errors import CkptError, CorruptCheckpoint, FormatError, UsageError, VerifyError
from ..formats import complete, detect
from ..formats.table import Reading
from ..messages import listing, printable
from ..moves.read import Opened, stamps_of
from ..rules import names, passes
from ..storage import files
from .memory import build_if_named, to_checkpoint
from .options import SELECT, Options, Source, is_path, path as text, takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import SelectOptions


@takes(*SELECT)
def open(path: Source, **select: Unpack[SelectOptions]) -> Checkpoint:
    """Open a checkpoint of any known format: a lazy mapping from names to tensors.

    path: a file, a folder, a TensorFlow prefix or a URL; or an open checkpoint, from which the options select. Only
    headers are read; `checkpoint[name].numpy()` reads a tensor, and compares it with the hash and checksums that the
    checkpoint carries.

    Raises StorageError (nothing is there, or it cannot be read), UnknownFormat, AmbiguousFormat, CorruptCheckpoint,
    UnsafeCheckpoint, MissingExtra (the format needs an optional package) and UsageError (options).
    """
    how = Options(**select)
    if not is_path(path):
        return open_source(path, how)
    with files.record_stamps() as stamps:
        found = open_whole(text(path), how)
    if found.hashes:
        from ..verification.readback import watch_reads

        with suppress(VerifyError):  # hashes of other tensors: whoever verifies or converts the file is told
            found = watch_reads(found)
    taken = apply_selection(found, how)
    lasting = {url: stamp[: files.LASTING] for url, stamp in stamps.items()}
    plain = Opened(lasting)
    for t in taken.values():  # each was just made
        t.since(replace(t.opened, stamps=lasting) if t.opened else plain)
    return names.add_hints(taken if taken.keys() == found.keys() else replace(taken, hashes={}))


def open_source(source: Source, how: Options, *, guard: bool = False, given: Collection[str] = ()) -> Checkpoint:
    """Open one source and select from it; with `guard`, what is read later is compared with the source's hashes.

    An open checkpoint stays as it is open: options that are about the file do nothing to it. given: as in `open_whole`.
    """
    path = is_path(source)
    found = open_whole(text(source), how, given) if path else to_checkpoint(source)
    if how.from_ and not path:
        raise UsageError("from_= is the format of a file, and this checkpoint is open already")
    if guard and (found.hashes or not path):
        from ..verification.readback import guard_reads, watch_reads

        # what differs is an error, or is left out by `apply_selection`, which reads everything then
        found = replace(watch_reads(found), hashes={}) if how.keep_going else guard_reads(found)
    return apply_selection(found, how)


def open_whole(url: str, how: Options, given: Collection[str] = ()) -> Checkpoint:
    """Open one source with all its tensors; CorruptCheckpoint if it is a part of a model, unless `partial` is set.

    given: the urls of all sources, which together can be the model.
    """
    refuse_nameless(url)
    reading = Reading(how.opaque, how.keep_going, how.densify, how.partial)
    try:
        found = detect.open_checkpoint(url, reading, format=how.from_)
    except FormatError as e:
        with suppress(CkptError):
            if how.from_ and (other := detect.detect(url).name) != how.from_:
                e.message = f"without from_= it is read as {other}; as {how.from_}: {e.message}"
        raise
    lacks, sure = complete.missing(found, url, given)
    if sure and not how.partial:
        raise CorruptCheckpoint(f"{lacks}; partial=True goes on without", url=url)
    note = Note("skipped", f"{passes.PART}: it {lacks}") if sure else Note("assumed", lacks)
    return found.with_tensors(found.tensors, note) if lacks else found


def refuse_nameless(url: str) -> None:
    """Refuse standard input and output, since a checkpoint is read and written at many places, and impossible names."""
    if url in ("-", "/dev/stdin", "/dev/stdout"):
        raise UsageError(f"{url} is a stream; a checkpoint is read and written at many places, so name a file")
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(url):
            return
    raise UsageError(f"{printable(url)} holds a NUL or half a surrogate pair, which the name of no file does")


def apply_selection(found: Checkpoint, how: Options) -> Checkpoint:
    """Take what was selected."""
    if not found.tensors:
        found = found.with_tensors({}, Note("hint", "this checkpoint holds no tensors"))
    if how.at:
        found = names.take_entry(found, how.at)
    found = passes.roles(found)
    if how.ema:
        found = names.take_averages(found, passes.selector(exclude=how.exclude))
    found = passes.select(found, how.include, how.exclude)
    if how.strip_prefix:
        found = names.strip_prefixes(found, how.strip_prefix)
    if how.weights_only:
        found = passes.weights_only(found)
    if how.keep_going:
        from ..verification.readback import salvage

        return salvage(found)
    return found


@checkpoint.uncollected()
def prepare(sources: Sequence[Source], how: Options, *, guard: bool = False) -> Checkpoint:
    """Open the sources and apply all passes: what the target shall hold, still without reading a tensor.

    guard: what is read later is compared with the hashes that the sources carry; VerifyError if they are of others.
    """
    made = apply_changes(open_merged(sources, how, guard=guard), how)
    # a template records its order and paths by its own names, which must not be looked up as names of the source
    return made if how.like is None else replace(made, moved={})


@checkpoint.uncollected()
def open_merged(sources: Sequence[Source], how: Options, *, guard: bool = False) -> Checkpoint:
    """Open the sources, and select from them: one checkpoint of all, before rules and casts."""
    if not sources:
        raise UsageError("no source was given")
    if how.scope and len(how.scope) != len(sources):
        count = len(sources)
        raise UsageError(f"{count} sources need {count} scope=NAME, one for each; given are {len(how.scope)}")
    urls = [text(s) for s in sources if is_path(s)]
    found = [open_source(s, how, guard=guard, given=urls) for s in sources]
    if how.scope:
        found = [*map(passes.scope, found, how.scope)]
    made = passes.merge(found)
    if urls and not made.tensors and made.notes:  # a file of settings, for example
        raise UsageError(f"no tensor was found:\n{listing(map(str, made.notes))}", url=url_of(sources[0]))
    return made


@checkpoint.uncollected()
def apply_changes(made: Checkpoint, how: Options) -> Checkpoint:
    """Apply rules, renames and a cast."""
    like = None if how.like is None else open_source(build_if_named(how.like), Options())
    made = passes.unflatten(made, like)
    params = {**how.param, **({"ranks": how.ranks} if how.ranks else {})}
    if how.converter or how.rename or how.inverse or params:
        from ..rules import library

        made = library.change(made, how.converter, how.rename, inverse=how.inverse, params=params, template=like)
    if how.rename_regex:
        made = names.rename_by_regex(made, how.rename_regex)
    made = names.add_hints(passes.cast(made, dtype(how.dtype)) if how.dtype else made)
    return made if like is None else passes.fill_template(made, like, partial=how.partial)


def prepare_with_stamps(
    sources: Sequence[Source], how: Options, *, guard: bool = False
) -> tuple[Checkpoint, dict[str, files.Stamp]]:
    """The same, and the stamps of all files that were opened for it, now or earlier.

    CorruptCheckpoint if one was opened before and after it was changed.
    """
    sources = [s if is_path(s) else to_checkpoint(s) for s in sources]
    with files.record_stamps() as stamps:
        found = prepare(sources, how, guard=guard)
    known = (t.opened for s in sources if isinstance(s, Checkpoint) for t in s.values() if t.opened)
    return found, {**dict.fromkeys(found.urls, ()), **stamps, **stamps_of(known)}


def url_of(source: Source) -> str:
    """The path of a source; of an open checkpoint the first file, or '' if it is in memory."""
    return text(source) if is_path(source) else "".join(getattr(source, "urls", ())[:1])


def list_of(sources: Source | Sequence[Source]) -> list[Source]:
    """One source, or many."""
    single = isinstance(sources, (str, bytes, os.PathLike, Mapping)) or hasattr(sources, "state_dict")
    return list(sources) if isinstance(sources, Iterable) and not single else [sources]  # type: ignore[list-item]
