"""Outputs of earlier runs among what was found, so that a zoo does not convert its own outputs, more with each run.

They are found where the output folder is itself searched, or by a glob or a row of a manifest that reaches into it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import numpy as np

from ..formats import shard_index
from ..formats.tensorflow.locate import STATE_FILE
from ..storage import files
from .ledger import LEDGERS, Ledger, LedgerEntry

FOLDERS = 1000  # whose real paths are kept


def is_output(folder: str, known: Mapping[str, LedgerEntry] | None, ledger: str) -> Callable[[str], bool]:
    """Gives whether a source is in the output folder and written by a zoo, as its ledgers say, those of all shares.

    known: the entries of this run's ledger; without them they are read from its path, `ledger`.
    """
    real = lru_cache(FOLDERS)(lambda path: path if files.is_remote(path) else os.path.realpath(files.local(path)))
    home = real(folder.rstrip("/") or folder).rstrip("/")

    @cache
    def books() -> list[Mapping[str, LedgerEntry]]:
        there = {files.join(folder, n) for n in files.names(folder) if fnmatchcase(n, LEDGERS)}
        there |= {ledger} if ledger and files.exists(ledger) else set()
        read = (Ledger.read(path) for path in sorted(there) if known is None or path != ledger)
        return [*read] if known is None else [known, *read]

    def fits(source: str) -> bool:
        above, base = files.split(source)
        at = f"{real(above)}/{base}"
        return at.startswith(f"{home}/") and any(
            (entry := book.get(name)) is not None and entry.ours and (entry.state != "failed" or entry.written)
            for name in _names(at[len(home) + 1 :])
            for book in books()
        )

    return fits


def left(planned: Iterable[str], folder: str, known: Mapping[str, LedgerEntry]) -> Iterator[str]:
    """The files that are there of outputs of earlier runs that are not planned now: force=True is not about these.

    TensorFlow's state file is not one of them: the checkpoints of a folder share it.
    """
    now = np.sort(np.fromiter(map(hash, planned), np.int64))
    for at in known:
        k = np.searchsorted(now, hash(at))
        if k == len(now) or now[k] != hash(at):
            names = (name for name, _, _ in known[at].written if files.split(name)[1] != STATE_FILE)
            yield from (name for name in names if files.stat(files.join(folder, name)))


def _names(at: str) -> Iterable[str]:
    """The outputs that a file or folder may belong to: itself, its index, or a folder above it."""
    yield at
    if at.endswith(shard_index.SUFFIX):
        yield at.removesuffix(shard_index.SUFFIX)
    while at := at.rpartition("/")[0]:
        yield at


__all__ = ["is_output", "left"]
