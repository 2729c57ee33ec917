"""What one run knows, and what it may replace: a `Session`, which everything below a call of the API shares.

    with session(written=...) as now: ...      a changed copy, in here
    current()                                  the session of this thread

Formats and plug-ins open files at any depth, so that the session is not an argument of theirs but the one context
variable of the package. A thread that is to share it enters `using(session)`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

Stamp = tuple[int, ...]  # equal as long as a file is the same one and unchanged


@dataclass(frozen=True)
class Session:
    """Caches and policy of one run; None where nothing is kept.

    stamps: of each file, when it was first opened. lookups: what remote file systems said. listings: the names in long
    local folders, of a worker that writes thousands of outputs into them. written: the size and time of the files, by
    path, that a batch wrote before; these alone are replaced. spared: where nothing is replaced or removed, whatever
    path names it; left: what is there and nowhere else, in words.
    """

    stamps: dict[str, Stamp] | None = None
    lookups: Any = None  # a lookups.Lookups
    listings: dict[str, list[str]] | None = None
    written: Mapping[str, tuple[int, int]] | None = None
    spared: Collection[str] = ()
    left: Sequence[str] = ()


_CURRENT: ContextVar[Session] = ContextVar("session")
NOTHING = Session()  # is kept, and nothing is forbidden


def current() -> Session:
    """The session of this thread."""
    return _CURRENT.get(NOTHING)


@contextmanager
def session(**changes: Any) -> Iterator[Session]:
    """Change the current session, in here."""
    with using(replace(current(), **changes)) as changed:
        yield changed


@contextmanager
def using(shared: Session) -> Iterator[Session]:
    """Use a session of another thread, in here."""
    token = _CURRENT.set(shared)
    try:
        yield shared
    finally:
        _CURRENT.reset(token)
