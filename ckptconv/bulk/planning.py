"""Plan the conversion of many checkpoints: the path of each output, and which are already up to date.

plan(sources, folder, options) -> [Conversion]   from folders, globs, files and manifests, and from a ledger

Outputs mirror the tree: IN/a/model.h5 becomes OUT/a/model.safetensors. If two outputs would have the same path, both
keep their suffix: OUT/a/model.h5.safetensors. A TensorFlow prefix is not shortened: OUT/a/model.ckpt-100.safetensors.
An output of several files has a folder of its own: OUT/a/model/model.ckpt.
"""

from __future__ import annotations

import os
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Literal
from zlib import crc32

from ..api.options import Options, Path, path as text
from ..api.reading import list_of
from ..errors import CkptError, StorageError, UnsafeCheckpoint, UsageError
from ..formats import table
from ..messages import many, printable, redacted, version
from ..output.destination import place
from ..output.staging import TEMPORARY
from ..rules.library import load
from ..storage import files
from ..storage.faults import MissingFile
from ..storage.lookups import cached_lookups, current
from ..storage.paths import file_name, inside
from .discover import FoundCheckpoint, discover
from .ledger import NAME, STRANGE, LedgerEntry, read
from .manifest import FORMAT, Row, is_manifest, read as read_manifest

State = Literal["convert", "retry", "changed", "done", "problem"]
ASKING = 16  # threads that look for remote rows of a manifest
HASHING = 4  # threads that look at outputs, and hash files when sources are compared by content
SHOWN = 5  # conflicting outputs in a message
FOLDERS = 1000  # folders whose names and real paths are cached
# formats whose output is a folder; a TensorFlow checkpoint needs one of its own because of its state file
BARE = {"npy": "", "tf": "/model.ckpt", "hf": ""}
RESERVED = re.compile(rf"{TEMPORARY}|\.ckptconv.*", re.DOTALL | re.IGNORECASE)
LEAVES = "a link in the output folder leads out of it; CKPTCONV_LINKS lists folders into which links may lead"


@dataclass(frozen=True)
class ZooOptions:
    """The options of `zoo`, which describes them.

    settings: the options of each conversion, except `resources`: memory, threads and progress of all together.
    """

    settings: Options = field(default_factory=Options)
    resources: Options = field(default_factory=Options)
    pattern: str = ""
    latest: bool = False
    resume: bool = False
    by_content: bool = False
    follow_links: bool = False
    ledger: str = ""
    shard: str = ""


@dataclass(slots=True)
class Conversion:
    """One checkpoint to convert, the path of its output below the output folder, and its state.

    state: convert (new, or interrupted), retry (it failed before), changed (the source, the options or the output
    changed), done (up to date), problem (it cannot be converted). ours: the output may be replaced, because ckptconv
    wrote it or it did not exist. options: a hash of the settings, the converter's text and the version of ckptconv.
    written: what an earlier run wrote: path, size, time.
    """

    found: FoundCheckpoint
    destination: str
    settings: Options
    options: str = ""
    state: State = "convert"
    ours: bool = False
    written: tuple[tuple[str, int, int], ...] = ()

    def fail(self, problem: CkptError) -> None:
        """Record why it cannot be converted, unless that is known."""
        self.found = self.found._replace(problem=self.found.problem or problem)
        self.state = "problem"


@cached_lookups()
def plan(
    sources: Path | Sequence[Path], folder: str, options: ZooOptions, known: Mapping[str, LedgerEntry]
) -> list[Conversion]:
    """Find all checkpoints and decide for each whether it has to be converted. known: the entries of the ledger.

    With `verify=True` in its settings, an output counts as done only if its bytes are still those that were written.
    Raises UsageError and StorageError as `discover` does.
    """
    given = [*map(text, list_of(sources))]
    if not given:
        raise UsageError("no source was given")
    _refuse_inside(given, folder)
    rows = _conversions(given, folder, options)
    distinct = list({(i.found.source, i.found.name, i.destination, id(i.settings)): i for i in rows}.values())
    items = _newest(distinct) if options.latest else distinct
    _name_outputs(items)
    _check_destinations(items, folder)
    if options.shard:  # decided by the output's path, so machines need not communicate
        number, count = share_of(options.shard)
        items = [i for i in items if crc32(i.destination.encode("utf-8", "surrogatepass")) % count == number - 1]
    if files.is_remote(folder) and known and files.is_dir(folder):
        list(files.walk(folder, lambda *_: None))  # one listing instead of a request for each
    names = lru_cache(FOLDERS)(files.names) if files.is_dir(folder) else lambda _: list[str]()
    run = current().lookups

    def decide(item: Conversion) -> None:
        try:
            with cached_lookups(run):
                _decide(item, known.get(item.destination), folder, options, names)
        except CkptError as e:  # such as a name that is too long
            item.fail(e)

    with ThreadPoolExecutor(HASHING) as pool:
        list(pool.map(decide, (i for i in items if i.state != "problem")))
    return items


# --- what is to be converted ---


def _conversions(sources: Sequence[str], folder: str, options: ZooOptions) -> Iterator[Conversion]:
    """Yield the checkpoints of all sources, those of manifests last; a destination is '' unless a row gives it."""
    prepared: dict[tuple[int, bool], tuple[Options, Options, str]] = {}

    def conversion(found: FoundCheckpoint, row: Row) -> Conversion:
        """Make a conversion; raise errors in the format or the converter of its settings."""
        key = id(row.settings), bool(row.destination) and table.is_said(row.destination)
        if key not in prepared:
            named = row.settings.to is not None or key[1]
            settings = row.settings if named else replace(row.settings, to=FORMAT)
            ending(settings)
            prepared[key] = row.settings, settings, options_hash(settings)
        return Conversion(found, row.destination, *prepared[key][1:], "problem" if found.problem else "convert")

    pattern, default = options.pattern, Row("", "", options.settings)
    conversion(FoundCheckpoint("", "", "", ()), default)  # an error in the options concerns all
    plain = [s for s in sources if not is_manifest(s)]
    found = discover(plain, pattern, skip=folder, follow=options.follow_links) if plain else []
    rows = [row for s in sources if is_manifest(s) for row in read_manifest(s, options.settings)]
    if not found and not rows:
        raise MissingFile("no checkpoint was found", url=sources[0])
    yield from (conversion(f, default) for f in found)
    listed = [(row, f) for row, f in zip(rows, _looked_up(rows), strict=True) if not pattern or f.matches(pattern)]
    if rows and not listed and not plain:
        raise UsageError(f"none of {many(len(rows), 'row')} matches pattern={pattern!r}")
    for row, f in listed:
        try:
            item = conversion(f, row)
        except CkptError as e:
            item = Conversion(f, row.destination, Options())
            item.fail(e)
        yield item


def _looked_up(rows: Sequence[Row]) -> Iterator[FoundCheckpoint]:
    """Look up the checkpoints of rows, many at a time."""
    names, run = lru_cache(FOLDERS)(files.names), current().lookups

    def look(row: Row) -> FoundCheckpoint:
        try:
            with cached_lookups(run):
                found = discover([row.source], listed=names)
            if len(found) > 1:
                text = f"a row is one checkpoint, and {many(len(found), 'checkpoint')} are there"
                raise UsageError(text, url=row.source)
            problem = None
        except CkptError as e:
            found, problem = [], e
        return found[0] if found else FoundCheckpoint(row.source, file_name(row.source), "", (), problem)

    with ThreadPoolExecutor(ASKING) as pool:
        yield from pool.map(look, rows)


def _refuse_inside(sources: Sequence[str], folder: str) -> None:
    """Raise UsageError if the output folder is in a searched folder: the next run would convert its outputs."""
    for source in sources:
        if files.is_dir(source) and f"{place(folder)}/".startswith(f"{place(source).rstrip('/')}/"):
            text = f"the output folder lies in the source {printable(source)}; choose one outside"
            raise UsageError(text, url=folder)


def _newest(items: Sequence[Conversion]) -> list[Conversion]:
    """Keep the highest readable step of each training series, unreadable ones above it, and all that are not steps."""
    steps = [i.found.step for i in items]
    best = dict(sorted(step for step, i in zip(steps, items, strict=True) if not i.found.problem))
    return [i for i, (series, step) in zip(items, steps, strict=True) if not step or step >= best.get(series, ())]


# --- destinations ---


def ending(settings: Options) -> str:
    """Return the suffix of an output."""
    row = table.get(settings.to or FORMAT)
    return BARE.get(row.name, row.suffixes[0] if row.suffixes else "." + row.name)


def folded(path: str) -> str:
    """Return a key that is equal for names that some file system takes for one: ignore case and Unicode forms."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def _name_outputs(items: Iterable[Conversion]) -> None:
    """Name the outputs that no row names; if several would have the same path, each keeps its source's suffix."""
    unnamed = [i for i in items if not i.destination]
    for i in unnamed:
        i.destination = i.found.name + ending(i.settings)
    often = Counter(folded(i.destination) for i in items)
    for i in unnamed:
        if often[folded(i.destination)] > 1:
            i.destination = i.found.name + i.found.suffix + ending(i.settings)


def _check_destinations(items: Sequence[Conversion], folder: str) -> None:
    """Fail outputs that leave the folder, are named like temporary files, or have the same path or one below another.

    Other conflicts, such as a shard and a file with its name, are found when the files are written.
    """
    stays = lru_cache(FOLDERS)(lambda above: files.is_remote(folder) or inside(files.join(folder, above), folder))
    owners: dict[str, list[Conversion]] = {}
    for i in items:
        owners.setdefault(folded(i.destination), []).append(i)
        if any(RESERVED.fullmatch(name) for name in i.destination.split("/")):
            i.fail(UsageError(f"{i.destination} is a name of temporary files or ledgers of ckptconv; choose another"))
        if not stays(os.path.dirname(i.destination)):
            i.fail(UnsafeCheckpoint(LEAVES, url=files.join(folder, i.destination)))
    for name, here in owners.items():
        above = [name[:end] for end, c in enumerate(name) if c == "/"]
        meeting = [*here, *(i for folder_name in above for i in owners.get(folder_name, ()))]
        if len(meeting) > 1:
            shown = ", ".join(sorted(f"{redacted(i.found.source)} to {i.destination}" for i in meeting[:SHOWN]))
            for i in meeting:
                i.fail(UsageError(f"these outputs would meet, give other destinations: {shown}"))


# --- what is already done ---


def _decide(
    item: Conversion, old: LedgerEntry | None, folder: str, options: ZooOptions, names: Callable[[str], Sequence[str]]
) -> None:  # fmt: skip
    """Set the state of a conversion, and whether its output is ours. names: returns the sorted names in a folder."""
    if old is None:
        above, base = files.split(files.join(folder, item.destination))
        there = names(above)
        k = bisect_left(there, base)
        item.ours = not any(name.startswith(base) for name in there[k : k + 1])
        return
    item.ours, item.written = old.ours, old.written
    if options.settings.force and not options.resume:
        return
    if old.state != "done":
        item.state = "retry" if old.state == "failed" else "convert"
    else:
        item.state = "done" if _is_current(item, old, folder, options.by_content) else "changed"


def _is_current(item: Conversion, old: LedgerEntry, folder: str, by_content: bool) -> bool:
    """Tell whether the output was made from this source with these options."""
    return (
        old.options == item.options
        and old.source == redacted(item.found.source)
        and all((s := files.stat(files.join(folder, n))) and s.size == size for n, size, _ in old.written)
        and (old.hash == content_hash(item.found.urls) if by_content else old.files == identity(item.found))
        and (not item.settings.verify or old.proof == content_hash(files.join(folder, n) for n, _, _ in old.written))
    )


def identity(found: FoundCheckpoint) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of each file; a hash of the ETag instead of the time if there is one."""
    return tuple((file_name(url), s.size, _number(s.etag) if s.etag else s.mtime) for url, s in found.files)


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest(), "little")


def content_hash(urls: Iterable[str]) -> str:
    """Hash all bytes of all files of a checkpoint."""
    h = blake2b(digest_size=16)
    for url in urls:
        with files.Reader(url) as f:
            h.update(f.size.to_bytes(8, "little"))  # so that the same bytes, divided differently, differ
            for start in range(0, f.size, 2**22):
                h.update(f.read(start, min(2**22, f.size - start)))
    return h.hexdigest()


def options_hash(settings: Options) -> str:
    """Hash everything besides the source that decides an output: options, the converter's text, our version."""
    name = settings.converter
    rules = load(name).texts if name and name != "auto" else ()
    key = repr((version(), settings.without("force", "sync", "verify"), rules))
    return blake2b(key.encode(), digest_size=8).hexdigest()


# --- shares and ledgers ---


def share_of(shard: str) -> tuple[int, int]:
    """Parse "2/8" into the number of a share, from 1, and the number of shares."""
    m = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
    number, count = map(int, m.groups()) if m else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"shard= is like '2/8', for the second of eight shares, not {shard!r}")
    return number, count


def ledger_name(shard: str) -> str:
    """Return the name of the ledger in an output folder; each share has its own."""
    return NAME.replace(".jsonl", ".{}-of-{}.jsonl".format(*share_of(shard))) if shard else NAME


def read_ledger(place: str, shard: str = "", *, force: bool = False) -> Mapping[str, LedgerEntry]:
    """Read the ledger of an output folder, or at its own path, without changing it; {} if there is none.

    StorageError if it was not written here; with `force` it then counts as missing.
    """
    path = files.join(place, ledger_name(shard)) if files.is_dir(place) else place
    if not files.exists(path):
        return {}
    entries, is_ours = read(path)
    if not is_ours and not force:
        raise StorageError(STRANGE, url=path)
    return entries if is_ours else {}
