"""What a zoo's conversion will do: where each checkpoint goes, and what need not be done again.

plan(sources, folder, settings) -> [Item]      from folders, globs, files and manifests, and what a ledger remembers
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from ..errors import UsageError
from ..formats import table
from ..messages import redacted
from ..storage import files
from .discover import Found, clashes, discover
from .ledger import NAME, Entry, Ledger
from .manifest import Settings, is_manifest
from .manifest import read as read_manifest

DEFAULT = Settings()
# formats whose output is a folder; the state file of a TensorFlow checkpoint wants one to itself
BARE = {"npy": "", "tf": "/model.ckpt", "hf": "/model.safetensors"}


class Item(NamedTuple):
    """One checkpoint to convert, its path below the zoo, and what was known of it: convert, retry, changed, done."""

    found: Found
    at: str
    settings: Settings
    state: str = "convert"
    ours: bool = False


def plan(
    sources: Sequence[str],
    folder: str,
    settings: Settings = DEFAULT,
    *,
    pattern: str = "",
    latest: bool = False,
    known: Mapping[str, Entry] | None = None,
    hashed: bool = False,
) -> list[Item]:
    """Find everything and say what is to be done; `known` is what the ledger says."""
    if not sources:
        raise UsageError("no source was given")
    plain = [s for s in sources if not is_manifest(s)]
    found = [(f, "", settings) for f in discover(plain, pattern, latest=latest, skip=folder)] if plain else []
    for source in sources:
        if is_manifest(source):
            for row in read_manifest(source, settings):
                found.append((discover([row.source])[0], row.destination, row.settings))
    items = _named(found)
    clashes((i.at, i.found.source) for i in items)
    there = _occupied(folder) if any(i.at not in (known or {}) for i in items) else set()
    return [_stated(i, (known or {}).get(i.at), folder, there, hashed) for i in items]


def remembered(place: str) -> Mapping[str, Entry]:
    """What the ledger of an output folder (or a ledger itself) says, without touching it."""
    path = files.join(place, NAME) if files.is_dir(place) else place
    return Ledger.read(path) if files.stat(path) else {}


def _named(found: Sequence[tuple[Found, str, Settings]]) -> list[Item]:
    """Give each its place below the zoo."""
    short = [at or _output(f.name, "", s) for f, at, s in found]
    often = Counter(name.casefold() for name in short)
    return [
        Item(f, name if at or often[name.casefold()] == 1 else _output(f.name, f.suffix, s), s)
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


def _stated(item: Item, old: Entry | None, folder: str, there: set[str], hashed: bool) -> Item:
    """Compare with what the ledger says was done."""
    if old is None:
        return item._replace(ours=not any(path.startswith(item.at) for path in there))
    item = item._replace(ours=old.ours)
    if old.state != "done":
        return item._replace(state="retry" if old.state == "failed" else "convert")
    same = old.files == identity(item.found) or (hashed and bool(old.hash) and old.hash == content(item.found))
    whole = all((s := files.stat(files.join(folder, n))) and s.size == size for n, size in old.written)
    fresh = same and whole and old.options == options(item.settings) and old.source == redacted(item.found.source)
    return item._replace(state="done" if fresh else "changed")


def identity(found: Found) -> tuple[tuple[str, int, int], ...]:
    return tuple((files.split(url)[1], status.size, status.mtime) for url, status in found.files)


def content(found: Found) -> str:
    """A hash of all bytes of all files of a checkpoint."""
    h = blake2b(digest_size=16)
    for url, status in found.files:
        with files.Reader(url) as f:
            for at in range(0, status.size, 2**22):
                h.update(f.read(at, min(2**22, status.size - at)))
    return h.hexdigest()


@lru_cache(maxsize=64)
def _rules(converter: str) -> bytes:
    """A converter's own text, so that an edited one counts as a change."""
    return files.read_all(converter, 2**24) if files.stat(converter) else b""


def options(settings: Settings) -> str:
    target = replace(settings.target, force=False, sync=True)
    rules = _rules(settings.change.converter) if settings.change.converter else b""
    return blake2b(repr((settings.select, settings.change, target)).encode() + rules, digest_size=8).hexdigest()


__all__ = ["DEFAULT", "Item", "content", "identity", "options", "plan", "remembered"]
