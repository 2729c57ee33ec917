"""Load what installed packages contribute: the entry points of a group, each by itself.

    [project.entry-points."ckptconv.formats"]     mine = "mine:ROW"
    [project.entry-points."ckptconv.converters"]  mine = "mine:PATH"

A broken package (half updated, or lacking a dependency) does not affect the others: its contribution is left out, the
logger `ckptconv.plugins` warns once, and the error for an unknown name repeats the warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ..messages import cut, listing, printable

LOG = logging.getLogger("ckptconv.plugins")


class Installed(NamedTuple):
    """The contributions to a group, as (name of the entry point, object), and why the broken ones cannot be used."""

    found: tuple[tuple[str, Any], ...]
    broken: tuple[str, ...]

    def hint(self) -> str:
        """End the message for an unknown name by listing what is broken, since the name may belong to that."""
        return f"; of what packages bring this cannot be used:\n{listing(self.broken)}" if self.broken else ""


@cache
def installed(group: str, check: Callable[[str, Any], object]) -> Installed:
    """Load all entry points of a group; `check` converts each, or raises an error that says what is wrong with it."""
    from importlib.metadata import entry_points

    found, broken = list[tuple[str, Any]](), list[str]()
    try:
        points = list(entry_points(group=group))
    except Exception as e:  # the metadata of some package cannot be parsed
        points, broken = [], [f"the list of installed packages: {_said(e)}"]
    for point in points:
        try:
            found.append((point.name, check(point.name, point.load())))
        except Exception as e:  # third-party code may raise anything
            package = f"{point.dist.name} {point.dist.version}: " if point.dist else ""
            broken.append(f"{package}{group}: {point.name} = {point.value}: {_said(e)}")
    for text in broken:
        leave_out(text)
    return Installed(tuple(found), tuple(broken))


@cache
def leave_out(text: str) -> None:
    """Warn once that something broken is left out."""
    LOG.warning("left out, since it cannot be used: %s", printable(text))


def _said(e: Exception) -> str:
    return cut(f"{type(e).__name__}: {e}".partition("\n")[0])
