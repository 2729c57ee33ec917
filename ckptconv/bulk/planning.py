"""What a zoo's conversion will do: where each checkpoint goes, and what need not be done again.

plan(sources, folder, settings) -> [Conversion]   from folders, globs, files and manifests, and what a ledger remembers
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Literal, NamedTuple

from ..errors import CkptError, UsageError
from ..formats import table
from ..messages import redacted, version
from ..rules.library import texts
from ..storage import files
from ..storage.paths import file_name
from .discover import FoundCheckpoint, discover
from .ledger import NAME, Ledger, LedgerEntry
from .manifest import Settings, is_manifest
from .manifest import read as read_manifest

DEFAULT = Settings()
# formats whose output is a folder; the state file of a TensorFlow checkpoint wants one to itself
BARE = {"npy": "", "tf": "/model.ckpt", "hf": "/model.safetensors"}


State = Literal["convert", "retry", "changed", "done", "problem"]
HASHING = 4  # threads that hash files, where content is what counts


class Conversion(NamedTuple):
    """One checkpoint to convert, its path below the zoo, and what is to be done or was known of it."""

    found: FoundCheckpoint
    at: str
    settings: Settings
    state: State = "convert"
    ours: bool = False
    options: str = ""  # a hash of the settings, the converter's text and our own version


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
) -> list[Conversion]:
    """Find everything and say what is to be done; `known` is what the ledger says.

    hashed: sources count as unchanged by the hash of their content, not by size and time.
    With `verify="full"` in an item's target an output counts as done only if its bytes are those that were written.
    """
    if not sources:
        raise UsageError("no source was given")
    plain = [s for s in sources if not is_manifest(s)]
    found = (
        [(f, "", settings) for f in discover(plain, pattern, latest=latest, skip=folder, follow=follow)]
        if plain
        else []
    )
    for source in sources:
        if is_manifest(source):
            for row in read_manifest(source, settings):
                found.append((_of_row(row.source), row.destination, row.settings))
    items = _named(found)
    meeting = clashes((i.at, i.found.source) for i in items)
    items = [i._replace(found=i.found._replace(problem=i.found.problem or meeting.get(i.at.casefold()))) for i in items]
    known = known or {}
    there = sorted(_occupied(folder)) if any(i.at not in known for i in items) else []
    digests = {id(s): options(s) for s in {id(i.settings): i.settings for i in items}.values()}
    items = [i._replace(options=digests[id(i.settings)]) for i in items]
    state = partial(_stated, known=known, folder=folder, there=there, hashed=hashed)
    if not hashed and not any(i.settings.target.verify == "full" for i in items):
        return list(map(state, items))
    with ThreadPoolExecutor(HASHING) as pool:
        return list(pool.map(state, items))


def clashes(pairs: Iterable[tuple[str, str]]) -> dict[str, UsageError]:
    """Outputs that would meet, by destination in one case of letters: pairs of (destination, source)."""
    sources: dict[str, dict[str, str]] = {}
    for destination, source in pairs:
        sources.setdefault(destination.casefold(), {})[source] = destination
    return {
        key: UsageError(f"{' and '.join(sorted(map(redacted, found)))} would both become {min(found.values())}")
        for key, found in sources.items()
        if len(found) > 1
    }


def _of_row(source: str) -> FoundCheckpoint:
    """The checkpoint that a row of a manifest names."""
    try:
        return discover([source])[0]
    except CkptError as e:
        return FoundCheckpoint(source, file_name(source), "", (), e)


def remembered(place: str) -> Mapping[str, LedgerEntry]:
    """What the ledger of an output folder (or a ledger itself) says, without touching it."""
    path = files.join(place, NAME) if files.is_dir(place) else place
    return Ledger.read(path) if files.stat(path) else {}


def _named(found: Sequence[tuple[FoundCheckpoint, str, Settings]]) -> list[Conversion]:
    """Give each its place below the zoo."""
    short = [at or _output(f.name, "", s) for f, at, s in found]
    often = Counter(name.casefold() for name in short)
    return [
        Conversion(f, name if at or often[name.casefold()] == 1 else _output(f.name, f.suffix, s), s)
        for (f, at, s), name in zip(found, short, strict=True)
    ]


def _output(name: str, suffix: str, settings: Settings) -> str:
    """The path of an output below the zoo."""
    row = table.get(settings.target.format or "safetensors")
    if row.name in BARE:
        return name + suffix + BARE[row.name]
    return name + suffix + (row.suffixes[0] if row.suffixes else "." + row.name)


def _occupied(folder: str) -> set[str]:
    """All that is in the output folder, by paths below it."""
    if not files.is_dir(folder):
        return set()
    root = folder.rstrip("/")
    return {
        files.join(at, name)[len(root) + 1 :] for at, _, inside in files.walk(folder) for name in inside
    }  # fmt: skip


def _stated(
    item: Conversion, *, known: Mapping[str, LedgerEntry], folder: str, there: Sequence[str], hashed: bool
) -> Conversion:
    """Compare with what the ledger says was done; `there` is what lies in the output folder, sorted."""
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
            h.update(f.size.to_bytes(8, "little"))  # the same bytes cut into files elsewhere are another content
            for at in range(0, f.size, 2**22):
                h.update(f.read(at, min(2**22, f.size - at)))
    return h.hexdigest()


def options(settings: Settings) -> str:
    """A hash of all that an output depends on beside its source: options, the converter's text, our own version."""
    target = replace(settings.target, force=False, sync=True, verify="none")
    name = settings.change.converter
    rules = texts(name) if name and name != "auto" else ()
    said = repr((version(), settings.select, settings.change, target, rules))
    return blake2b(said.encode(), digest_size=8).hexdigest()


__all__ = ["DEFAULT", "Conversion", "State", "content", "identity", "options", "plan", "remembered", "written"]
