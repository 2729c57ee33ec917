"""Plan the conversion of many checkpoints: where each output goes, and which are already up to date.

plan(sources, folder, settings) -> [Conversion]   from folders, globs, files and manifests, and from a ledger
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, lru_cache, partial
from hashlib import blake2b
from itertools import chain, islice
from zlib import crc32

from ..errors import CkptError, UsageError
from ..formats import table
from ..messages import many, redacted, version
from ..rules.library import texts
from ..storage import files
from ..storage.lookups import kept, once
from ..storage.paths import file_name
from . import earlier, footprints, places
from .breaker import Breaker
from .conversions import Conversion, Conversions, State, Way
from .discover import discover, fits, packed
from .found import FoundCheckpoint, Packed, pack, parts
from .identity import asked, content, identity, written
from .ledger import NAME, Ledger, LedgerEntry
from .manifest import FORMAT, Row, Settings, is_manifest
from .manifest import read as read_manifest

DEFAULT = Settings()
ASKING = 16  # threads that look for remote rows of a manifest
BATCH = 1000  # sources that are waited for together
FOLDERS = 100  # whose names are kept for the next rows of a manifest
OURS = "is an output of this zoo, which does not convert its own; copy it, or choose another output folder"
HASHING = 4  # threads that hash files when sources are compared by content


@once()
def plan(
    sources: Sequence[str],
    folder: str,
    settings: Settings = DEFAULT,
    *,
    pattern: str = "",
    latest: bool = False,
    known: Mapping[str, LedgerEntry] | None = None,
    hashed: bool = False,
    follow: bool = False,
    ledger: str = "",
    shard: str = "",
) -> Conversions:
    """Find all checkpoints and decide for each whether it has to be converted.

    known: the entries of the ledger. ledger: its local path, where no output goes. hashed: compare sources by a hash of
    their content, not by size and time. shard: "2/8" for the second of eight shares, on one of eight machines. With
    `verify="full"` in its target, an output counts as done only if its bytes are those that were written. Raises
    UsageError and StorageError as `discover` does.
    """
    if not sources:
        raise UsageError("no source was given")
    items = Conversions()
    ours = earlier.is_output(folder, known, ledger or files.join(folder, ledger_name(shard)))
    for row, way in _found(sources, folder, settings, pattern, follow, ours):
        items.append(row, way)
    items = items.distinct() if any(map(is_manifest, sources)) else items
    items = items.newest() if latest else items
    places.tell_apart(items)
    known = known or {}
    kept = list(earlier.left(items.paths(), folder, known)) if settings.target.force else []
    linked = list(places.check(items, folder, ledger, kept))
    items = _share(items, *share_of(shard)) if shard else items
    there = cache(lambda: sorted([*_occupied(folder), *linked]))
    if files.is_remote(folder):  # a store says of all at once what would be asked of each
        there()
    state = partial(_state, known=known, folder=folder, there=there, hashed=hashed)
    sources_are_read = hashed or any(s.target.verify == "full" for s in items.settings())
    with ThreadPoolExecutor(HASHING) as pool:
        for at in range(0, len(items), BATCH):
            some = items[at : at + BATCH]
            for k, marks in enumerate(pool.map(state, some) if sources_are_read else map(state, some), at):
                items.mark(k, *marks)
    return items


def _found(
    sources: Sequence[str], folder: str, settings: Settings, pattern: str, follow: bool, ours: Callable[[str], bool]
) -> Iterator[tuple[Packed, Way]]:
    """The checkpoints of all sources, those of manifests last; `ours`: whether one is an output of a zoo."""

    @cache
    def way(number: int, named: bool) -> Way | CkptError:
        try:
            return _way(used[number], named=named)
        except CkptError as e:
            return e

    used, usual = {id(settings): settings}, _way(settings)
    plain = [s for s in sources if not is_manifest(s)]
    for row in packed(plain, pattern, skip=folder, follow=follow) if plain else ():
        if not ours(parts(row)[0]):
            yield row, usual
    lines = chain.from_iterable(read_manifest(s, settings) for s in sources if is_manifest(s))
    count, none = 0, bool(pattern) and not plain
    for line, found in _looked_up(lines):
        count += 1
        if not pattern or fits(pack(found), pattern):
            used[id(line.settings)], none = line.settings, False
            how = way(id(line.settings), bool(line.destination) and table.is_said(line.destination))
            if isinstance(how, CkptError):  # a format or a converter that cannot be: of this row alone
                found, how = found._replace(problem=found.problem or how), usual
            if not found.problem and ours(found.source):
                found = found._replace(problem=UsageError(OURS, url=found.source))
            yield pack(found, line.destination), how
    if count and none:
        raise UsageError(f"none of {many(count, 'row')} matches pattern={pattern!r}")


def _way(settings: Settings, *, named: bool = False) -> Way:
    """How to convert what has these settings; `named`: the suffix of its destination says a format, if they do not."""
    if settings.target.format is None and not named:
        settings = settings._replace(target=replace(settings.target, format=FORMAT))
    return Way(places.ending(settings), settings, options=options(settings))


def _looked_up(lines: Iterator[Row]) -> Iterator[tuple[Row, FoundCheckpoint]]:
    """Rows with their checkpoints; many remote ones are asked for at a time."""
    listed, run, breaker = lru_cache(FOLDERS)(files.names), kept(), Breaker(ASKING)

    def look(line: Row) -> FoundCheckpoint:
        if e := line.problem or breaker.refusal(line.source):
            return _of_row(line, listed, e)
        with once(run):
            found = _of_row(line, listed)
        breaker.note(found.problem, line.source)
        return found

    with ThreadPoolExecutor(ASKING) as pool:
        while some := list(islice(lines, BATCH)):
            far = any(files.is_remote(line.source) for line in some)
            yield from zip(some, pool.map(look, some) if far else map(look, some), strict=True)


def share_of(shard: str) -> tuple[int, int]:
    """The number of a share, from 1, and of all shares, of "2/8"."""
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and shard.isascii()):
        raise UsageError(f"shard= is like '2/8', for the second of eight shares, not {shard!r}")
    if not 1 <= int(number) <= int(count):
        shares = f"the shares are 1 to {int(count)}" if int(count) else "there is at least one share"
        raise UsageError(f"shard={shard!r}: {shares}")
    return int(number), int(count)


def _share(items: Conversions, number: int, count: int) -> Conversions:
    """The share of one of several machines: the path of an output decides it, so that no machine asks another."""
    return items.where(lambda i: crc32(i.at.encode("utf-8", "surrogatepass")) % count == number - 1)


def _of_row(row: Row, listed: Callable[[str], Sequence[str]], problem: CkptError | None = None) -> FoundCheckpoint:
    """The checkpoint that a row of a manifest names; nothing is asked if it has a problem."""
    source = row.source
    try:
        found = discover([source], listed=listed) if not problem else []
        if len(found) > 1:
            raise UsageError(f"a row is one checkpoint, and {many(len(found), 'checkpoint')} are there", url=source)
    except CkptError as e:
        found, problem = [], e
    f = found[0] if found else FoundCheckpoint(source, file_name(source), "", (), problem)
    return f._replace(name=f"{row.folder}/{f.name}") if row.folder else f


def ledger_name(shard: str) -> str:
    """The name of the ledger in an output folder; each share has one of its own."""
    return NAME.replace(".jsonl", ".{}-of-{}.jsonl".format(*share_of(shard))) if shard else NAME


def read_ledger(place: str, shard: str = "", *, force: bool = False) -> Mapping[str, LedgerEntry]:
    """Read the ledger of an output folder, or at its own path, without changing it; {} if there is none.

    StorageError for one that was not written here, which with `force` counts as none.
    """
    path = files.join(place, ledger_name(shard)) if files.is_dir(place) else place
    if not files.exists(path):
        return {}
    found = Ledger.read(path)
    if not (strange := found.strange):
        return found
    if not force:
        raise strange
    return {}


def _occupied(folder: str) -> Iterator[str]:
    """The paths of all files in the output folder, relative to it; not of those that a run is writing there."""
    for _, at, folders, inside in files.walk(folder, lambda *_: None) if files.is_dir(folder) else ():
        folders[:] = [name for name in folders if not footprints.reserved(name)]
        yield from (f"{at}/{name}" if at else name for name in inside)


def _state(
    item: Conversion, *, known: Mapping[str, LedgerEntry], folder: str, there: Callable[[], list[str]], hashed: bool
) -> tuple[State, bool]:
    """The state of a conversion, and whether its output is ours; `there` gives the sorted paths of all outputs."""
    if item.found.problem:
        return "problem", False
    old = known.get(item.at)
    if old is None:
        k = bisect_left(there(), item.at)
        return "convert", not any(path.startswith(item.at) for path in there()[k : k + 1])
    if old.state != "done":
        return "retry" if old.state == "failed" else "convert", old.ours
    fresh = (
        old.options == item.options
        and (old.source, old.asked) == (redacted(item.found.source), asked(item.found.source))
        and all((s := files.stat(files.join(folder, n))) and s.size == size for n, size, _ in old.written)
        and (old.hash == content(item.found) if hashed else old.files == identity(item.found))
        and (item.settings.target.verify != "full" or old.proof == written(folder, (n for n, _, _ in old.written)))
    )
    return "done" if fresh else "changed", old.ours


def options(settings: Settings) -> str:
    """A hash of what an output depends on besides its source: options, the converter's text, ckptconv's version."""
    target = replace(settings.target, force=False, sync=True, verify="none")
    name = settings.change.converter
    rules = texts(name) if name and name != "auto" else ()
    key = repr((version(), settings.select, settings.change, target, rules))
    return blake2b(key.encode(), digest_size=8).hexdigest()


__all__ = [
    "DEFAULT",
    "ledger_name",
    "options",
    "plan",
    "read_ledger",
]
