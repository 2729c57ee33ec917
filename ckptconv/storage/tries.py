"""Ask again where a failure may pass, after longer and longer pauses and for a bounded time.

CKPTCONV_TIMEOUT      seconds that a request may take, plus one for each 64 KiB requested; 60

A failure may pass if a server is busy or restarts, if a connection breaks, and if no answer comes in time. All else is
final: that a file is not there, that access is forbidden. All tries of a request together take at most three times as
long as one may. A request that is repeated begins anew: of an answer that broke off nothing is used.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import CkptError, UsageError
from ..messages import printable, redacted
from .faults import causes, failure, network, status, wished

LIMIT = 10**7  # seconds of CKPTCONV_TIMEOUT, a quarter of a year
RATE = 2**16  # bytes a second: what is slower has stalled
TRIES, TIMES = 6, 3  # tries of a request, and how many times the limit of one they may take together
FIRST, LONGEST = 0.25, 8.0  # seconds of a pause
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
LOG = logging.getLogger("ckptconv")
T = TypeVar("T")


def seconds(size: int) -> float:
    """The time in seconds that a request for `size` bytes may take."""
    given = os.environ.get("CKPTCONV_TIMEOUT", "60")
    try:
        limit = float(given)
    except ValueError:
        limit = 0.0
    if not 0 < limit < LIMIT:  # also of NaN; clocks and sockets take no endless times
        raise UsageError(f"CKPTCONV_TIMEOUT is a number of seconds above 0 and below {LIMIT}, not {given!r}")
    return max(1.0, limit) + size / RATE


def passes(e: Exception, *, known: bool) -> bool:
    """Whether a failure may pass; a server that refuses connections may only if it is known to have accepted some."""
    if isinstance(e, CkptError):
        return False
    chain = list(causes(e))
    if said := next(filter(None, map(status, chain)), 0):
        return said in PASSING
    ways = set(map(failure, chain))
    if "host" in ways:
        return False
    return known if "refused" in ways else bool(ways & {"time", "broken"})


class Tries:
    """The tries of one request for `size` bytes; known: the server has answered before."""

    def __init__(self, url: str, size: int, *, known: bool) -> None:
        self._url, self._known, self._left, self._pause = url, known, TRIES - 1, FIRST
        self._end = time.monotonic() + TIMES * seconds(size)

    def pause(self, e: Exception) -> float:
        """Seconds to wait before the next try; if there is to be none, the error is raised."""
        import random

        wait = max(self._pause * random.uniform(0.5, 1.0), wished(e))  # not all at once, if many were refused at once
        if not self._left or time.monotonic() + wait > self._end or not passes(e, known=self._known):
            raise e
        self._left -= 1
        self._pause = min(2 * self._pause, LONGEST)
        LOG.info("%s: %s; asking again in %.1f s", printable(redacted(self._url)), network(e) or type(e).__name__, wait)
        return wait


def again(url: str, size: int, request: Callable[[], T], *, known: bool = False) -> T:
    """What a request brings that is repeated where its failure may pass."""
    tries = Tries(url, size, known=known)
    while True:
        try:
            return request()
        except Exception as e:
            time.sleep(tries.pause(e))


__all__ = ["TIMES", "Tries", "again", "passes", "seconds"]
