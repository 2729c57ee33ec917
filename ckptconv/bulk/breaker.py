"""A server that no longer answers: what is left of its checkpoints fails without a try, and a resumed run takes it up.

As many tries fail together as are under way when a connection is lost for a moment. A server counts as gone when BEYOND
more have failed in a row, which began later; one that succeeds meanwhile shows that it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from ..errors import CkptError
from ..storage.faults import Unreachable
from ..storage.paths import host
from .conversions import Conversion

BEYOND = 3


class Breaker:
    """Counts for each server the failures to reach it in a row; at_once: how many tries are under way at a time."""

    def __init__(self, at_once: int) -> None:
        self._most, self._row, self._lock = at_once + BEYOND, Counter[str](), Lock()
        self._errors: dict[str, CkptError] = {}  # one for each server, for all that is not tried

    def refusal(self, *urls: str) -> CkptError | None:
        """Why what needs these urls is not worth a try, if a server of them is gone."""
        for name in filter(None, map(host, urls)):
            if self._row[name] >= self._most:
                why = f"not tried: {name} did not answer; when it does, resume=True converts what is missing"
                return self._errors.setdefault(name, Unreachable(why))
        return None

    def note(self, result: object, *urls: str) -> None:
        """Take account of what came of a try that needs these urls: a result, or an error."""
        with self._lock:
            if isinstance(result, Unreachable):
                self._row[host(result.url or "")] += 1
            else:  # an error that a server sends is an answer, too
                for url in [result.url or ""] if isinstance(result, CkptError) else urls:
                    self._row.pop(host(url), None)


class Guard:
    """Picks the conversions that are worth a try, and watches what comes of them."""

    def __init__(self, todo: Sequence[Conversion], folder: str, at_once: int) -> None:
        self._todo, self._folder, self._breaker = todo, folder, Breaker(at_once)
        self._left = list[tuple[int, CkptError]]()

    def pick(self, fits: Callable[[Conversion], bool] = lambda _: True) -> Iterator[Conversion]:
        """Those that fit, except what is not worth a try when it is its turn."""
        for k, item in enumerate(self._todo):
            if not fits(item):
                continue
            if e := self._breaker.refusal(item.found.source, self._folder):
                self._left.append((k, e))
            else:
                yield item

    def watch(
        self, results: Iterable[tuple[Conversion, Any] | None]
    ) -> Generator[tuple[Conversion, Any] | None, None, None]:
        """Pass results on, and with them the failures of what was not picked."""
        for result in results:
            if result:
                self._breaker.note(result[1], result[0].found.source, self._folder)
            yield result
            yield from self._not_tried()
        yield from self._not_tried()

    def _not_tried(self) -> Iterator[tuple[Conversion, CkptError]]:
        left, self._left = self._left, []
        for k, e in left:
            yield self._todo[k], e


__all__ = ["Breaker", "Guard"]
