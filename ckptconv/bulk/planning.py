"""Plan the conversion of many checkpoints: where each output goes, and which are already up to date.

plan(sources, folder, settings) -> [Conversion]   from folders, globs, files and manifests, and from a ledger
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from typing import Literal, NamedTuple
from zlib import crc32

from ..errors import CkptError, UnsafeCheckpoint, UsageError
from ..formats import table
from ..messages import many, redacted, version
from ..rules.library import texts
from ..storage import files
from ..storage.lookups import once
from ..storage.paths import file_name, inside
from .discover import FoundCheckpoint, discover
from .ledger import NAME, Ledger, LedgerEntry
from .manifest import Settings, is_manifest
from .manifest import read as read_manifest

DEFAULT = Settings()
# formats whose output is a folder; a TensorFlow checkpoint needs one of its own because of its state file
BARE = {"npy": "", "tf": "/model.ckpt", "hf": "/model.safetensors"}


State = Literal["convert", "retry", "changed", "done", "problem"]
HASHING = 4  # threads that hash files when sources are compared by content


class Conversion(NamedTuple):
    """One checkpoint to convert, the path of its output below the output folder, and its state.

    state: convert (new, or interrupted), retry (it failed before), changed (the source, the options or the output
    changed), done (up to date), problem (it cannot be converted). ours: the output may be replaced, because ckptconv
    wrote it or it did not exist.
    """

    found: FoundCheckpoint
    at: str
    settings: Settings
    state: State = "convert"
    ours: bool = False
    options: str = ""  # a hash of the settings, the converter's text and the version of ckptconv


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
) -> list[Conversion]:
    """Find all checkpoints and decide for each whether it has to be converted.

    known: the entries of the ledger. ledger: its local path, where no output goes. hashed: compare sources by a hash of
    their content, not by size and time. shard: "2/8" for the second of eight shares, on one of eight machines. With
    `verify="full"` in its target, an output counts as done only if its bytes are those that were written. Raises
    UsageError and StorageError as `discover` does.
    """
    if not sources:
        raise UsageError("no source was given")
    plain = [s for s in sources if not is_manifest(s)]
    found = (
        [(f, "", settings) for f in discover(plain, pattern, latest=latest, skip=folder, follow=follow)]
        if plain
        else []
    )
    listed = cache(files.names)
    for source in sources:
        if is_manifest(source):
            for row in read_manifest(source, settings):
                found.append((_of_row(row.source, listed), row.destination, row.settings))
    items = _named(found)
    digests = {id(s): options(s) for s in {id(i.settings): i.settings for i in items}.values()}
    items = [i._replace(options=digests[id(i.settings)]) for i in items]
    items, linked = _placed(items, folder, ledger)
    items = _share(items, *parts(shard)) if shard else items
    known = known or {}
    new = any(i.at not in known for i in items)
    there = sorted(_occupied(folder) | linked) if new or files.is_remote(folder) else []  # a store lists all at once
    state = partial(_with_state, known=known, folder=folder, there=there, hashed=hashed)
    if not hashed and not any(i.settings.target.verify == "full" for i in items):
        return list(map(state, items))
    with ThreadPoolExecutor(HASHING) as pool:
        return list(pool.map(state, items))


def parts(shard: str) -> tuple[int, int]:
    """The number of a share, from 1, and of all shares, of "2/8"."""
    number, slash, count = shard.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and shard.isascii()):
        raise UsageError(f"shard= is like '2/8', for the second of eight shares, not {shard!r}")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"shard={shard!r}: the shares are 1 to {int(count)}")
    return int(number), int(count)


def _share(items: Sequence[Conversion], number: int, count: int) -> list[Conversion]:
    """The share of one of several machines: the path of an output decides it, so that no machine asks another."""
    return [i for i in items if crc32(i.at.encode("utf-8", "surrogatepass")) % count == number - 1]


def _placed(items: Sequence[Conversion], folder: str, ledger: str) -> tuple[list[Conversion], set[str]]:
    """Note the problems of where outputs go: two at one place, or one outside; also, what folders behind links hold.

    A stranger may have laid links in the output folder, if it came with the checkpoints.
    """
    moved, linked = dict[str, str](), set[str]()  # folders behind links: where they are, as seen from the output folder
    ours: list[tuple[str, str, str]] = []
    if not files.is_remote(folder):
        home = os.path.realpath(files.local(folder))
        for above in {os.path.dirname(i.at) for i in items}:
            plain = os.path.join(home, above).rstrip("/")
            if (real := os.path.realpath(plain)) != plain:
                moved[above] = os.path.relpath(real, home)
                linked |= {os.path.join(above, name) for name in files.names(real)}
        ours = [(os.path.relpath(os.path.realpath(ledger), home), "the ledger", "")] if ledger else []

    def place(at: str) -> str:
        above, base = os.path.split(at)
        return os.path.normpath(os.path.join(moved[above], base)) if above in moved else at

    meeting = clashes([*ours, *((place(i.at), i.found.source, i.options) for i in items)])
    out = []
    for i in items:
        at = place(i.at)
        problem: CkptError | None = meeting.get(at.casefold()) if meeting else None
        if at.startswith("../") and not inside(files.join(folder, os.path.dirname(i.at)), folder):
            problem = UnsafeCheckpoint(LEAVES, url=files.join(folder, i.at))
        out.append(i._replace(found=i.found._replace(problem=problem)) if problem and not i.found.problem else i)
    return out, linked


LEAVES = "a link in the output folder leads out of it; CKPTCONV_LINKS lists folders into which links may lead"


def clashes(rows: Sequence[tuple[str, str, str]]) -> dict[str, UsageError]:
    """Find several outputs at one path; letter case is ignored. `rows`: (destination, source, options)."""
    often = Counter(destination.casefold() for destination, _, _ in rows)
    sources: dict[str, dict[tuple[str, str], str]] = {}
    for destination, source, how in rows:
        if often[key := destination.casefold()] > 1:
            sources.setdefault(key, {})[source, how] = destination
    return {
        key: UsageError(
            f"{' and '.join(sorted(redacted(s) for s, _ in found))} would both become {min(found.values())}"
        )
        for key, found in sources.items()
        if len(found) > 1
    }


def _of_row(source: str, listed: Callable[[str], Sequence[str]]) -> FoundCheckpoint:
    """The checkpoint that a row of a manifest names."""
    try:
        found = discover([source], listed=listed)
        if len(found) > 1:
            raise UsageError(f"a row is one checkpoint, and {many(len(found), 'checkpoint')} are there", url=source)
        return found[0] if found else FoundCheckpoint(source, file_name(source), "", ())
    except CkptError as e:
        return FoundCheckpoint(source, file_name(source), "", (), e)


def ledger_name(shard: str) -> str:
    """The name of the ledger in an output folder; each share has one of its own."""
    return NAME.replace(".jsonl", ".{}-of-{}.jsonl".format(*parts(shard))) if shard else NAME


def read_ledger(place: str, shard: str = "") -> Mapping[str, LedgerEntry]:
    """Read the ledger of an output folder, or at its own path, without changing it; {} if there is none."""
    path = files.join(place, ledger_name(shard)) if files.is_dir(place) else place
    return Ledger.read(path) if files.stat(path) else {}


def _named(found: Sequence[tuple[FoundCheckpoint, str, Settings]]) -> list[Conversion]:
    """Give each checkpoint the path of its output below the output folder."""
    short = [at or _output(f.name, "", s) for f, at, s in found]
    often = Counter(name.casefold() for name in short)
    return [
        Conversion(f, name if at or often[name.casefold()] == 1 else _output(f.name, f.suffix, s), s)
        for (f, at, s), name in zip(found, short, strict=True)
    ]


def _output(name: str, suffix: str, settings: Settings) -> str:
    """The path of an output below the output folder."""
    row = table.get(settings.target.format or "safetensors")
    if row.name in BARE:
        return name + suffix + BARE[row.name]
    return name + suffix + (row.suffixes[0] if row.suffixes else "." + row.name)


def _occupied(folder: str) -> set[str]:
    """The paths of all files in the output folder, relative to it."""
    if not files.is_dir(folder):
        return set()
    root = folder.rstrip("/")
    return {
        files.join(at, name)[len(root) + 1 :] for at, _, inside in files.walk(folder) for name in inside
    }  # fmt: skip


def _with_state(
    item: Conversion, *, known: Mapping[str, LedgerEntry], folder: str, there: Sequence[str], hashed: bool
) -> Conversion:
    """Set the state of a conversion from the ledger; `there`: the sorted paths in the output folder."""
    if item.found.problem:
        return item._replace(state="problem")
    old = known.get(item.at)
    if old is None:
        at = bisect_left(there, item.at)
        return item._replace(ours=not (at < len(there) and there[at].startswith(item.at)))
    item = item._replace(ours=old.ours)
    if old.state != "done":
        return item._replace(state="retry" if old.state == "failed" else "convert")
    fresh = (
        old.options == item.options
        and old.source == redacted(item.found.source)
        and all((s := files.stat(files.join(folder, n))) and s.size == size for n, size in old.written)
        and (old.hash == content(item.found) if hashed else old.files == identity(item.found))
        and (item.settings.target.verify != "full" or old.proof == written(folder, (n for n, _ in old.written)))
    )
    return item._replace(state="done" if fresh else "changed")


def identity(found: FoundCheckpoint) -> tuple[tuple[str, int, int], ...]:
    return tuple((file_name(url), status.size, status.mtime) for url, status in found.files)


def content(found: FoundCheckpoint) -> str:
    """A hash of all bytes of all files of a checkpoint."""
    return _hash(url for url, _ in found.files)


def written(folder: str, names: Iterable[str]) -> str:
    """A hash of all bytes of the files of an output."""
    return _hash(files.join(folder, name) for name in names)


def _hash(urls: Iterable[str]) -> str:
    h = blake2b(digest_size=16)
    for url in urls:
        with files.Reader(url) as f:
            h.update(f.size.to_bytes(8, "little"))  # the same bytes in files of other sizes: other content
            for at in range(0, f.size, 2**22):
                h.update(f.read(at, min(2**22, f.size - at)))
    return h.hexdigest()


def options(settings: Settings) -> str:
    """A hash of what an output depends on besides its source: options, the converter's text, ckptconv's version."""
    target = replace(settings.target, force=False, sync=True, verify="none")
    name = settings.change.converter
    rules = texts(name) if name and name != "auto" else ()
    key = repr((version(), settings.select, settings.change, target, rules))
    return blake2b(key.encode(), digest_size=8).hexdigest()


__all__ = [
    "DEFAULT",
    "Conversion",
    "State",
    "content",
    "identity",
    "ledger_name",
    "options",
    "plan",
    "read_ledger",
    "written",
]
