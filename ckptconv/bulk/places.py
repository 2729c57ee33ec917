"""Where the outputs of a zoo go: their paths below the output folder, and what would meet there or leave it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ..errors import UnsafeCheckpoint, UsageError
from ..formats import table
from ..messages import redacted
from ..storage import files
from ..storage.paths import inside
from . import footprints
from .conversions import Conversions
from .found import repeated
from .manifest import FORMAT, Settings

# formats whose output is a folder; a TensorFlow checkpoint needs one of its own because of its state file
BARE = {"npy": "", "tf": "/model.ckpt", "hf": ""}
LEAVES = "a link in the output folder leads out of it; CKPTCONV_LINKS lists folders into which links may lead"


def ending(settings: Settings) -> str:
    """What the name of an output ends with."""
    row = table.get(settings.target.format or FORMAT)
    return BARE.get(row.name, row.suffixes[0] if row.suffixes else "." + row.name)


def tell_apart(items: Conversions) -> None:
    """Where several outputs would have the same path, let each keep the suffix of its source."""
    if meeting := repeated(lambda: map(footprints.key, items.paths())):
        for k, at in enumerate(items.paths()):
            if footprints.key(at) in meeting:
                items.lengthen(k)


def check(items: Conversions, folder: str, ledger: str, kept: Sequence[str] = ()) -> Iterator[str]:
    """Note the problems of where outputs go: two at one place, or one outside; gives what folders behind links hold.

    A stranger may have laid links in the output folder, if it came with the checkpoints. kept: files below the output
    folder that no output may replace.
    """
    moved = dict[str, str]()  # folders behind links: where they are, as seen from the output folder
    ours: list[tuple[str, str, str]] = []
    if not files.is_remote(folder):
        home = os.path.realpath(files.local(folder))
        for above in {at.rpartition("/")[0] for at in items.paths()}:
            plain = os.path.join(home, above).rstrip("/")
            if (real := os.path.realpath(plain)) != plain:
                moved[above] = os.path.relpath(real, home)
                yield from (os.path.join(above, name) for name in files.names(real))
        ours = [(os.path.relpath(os.path.realpath(ledger), home), "the ledger", "")] if ledger else []

    def place(at: str) -> str:
        above, base = os.path.split(at) if moved else ("", at)
        return os.path.normpath(os.path.join(moved[above], base)) if above in moved else at

    def places() -> Iterator[str]:
        return (place(at).casefold() for at in chain((at for at, _, _ in ours), items.paths()))

    meeting: dict[str, UsageError] = {}
    if twice := repeated(places):
        some = ((place(i.at), i.found.source, i.options) for i in items if place(i.at).casefold() in twice)
        meeting = clashes([*(row for row in ours if row[0].casefold() in twice), *some])
    for k, at in enumerate(items.paths()) if meeting or moved else ():
        if (to := place(at)).casefold() in meeting:
            items.fail(k, meeting[to.casefold()])
        elif to.startswith("../") and not inside(files.join(folder, os.path.dirname(at)), folder):
            items.fail(k, UnsafeCheckpoint(LEAVES, url=files.join(folder, at)))
    _tell_footprints(items, place, kept)


def _tell_footprints(items: Conversions, place: Callable[[str], str], kept: Sequence[str]) -> None:
    """Note outputs that would write, replace or remove files of one another, and those with names of our own files."""
    for k, at in enumerate(items.paths()):
        if footprints.reserved(at):
            items.fail(k, UsageError(f"{at} is a name of temporary files or ledgers of ckptconv; choose another"))
    files = [(name, "") for name in kept]
    for group in footprints.meeting(lambda: chain(((place(at), f) for at, f in items.outputs()), files)):
        new = [k for k in group if k < len(items)]
        some = [f"{redacted(i.found.source)} to {i.at}" for i in (items[k] for k in new[:2])]
        some += [f"{files[k - len(items)][0]} of an earlier run" for k in group[len(new) :][:1]]
        pair = " and ".join(some[:1] + some[-1:])
        why = UsageError(f"the outputs would meet, one replacing files of another: {pair}; give other destinations")
        for k in new:
            items.fail(k, why)


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


__all__ = ["check", "clashes", "ending", "tell_apart"]
