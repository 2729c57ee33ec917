"""Tasks that were submitted to a Ray cluster and have not ended, and what becomes of each.

Neighbours are submitted as one, a pack, if each is short. A pack that fails is taken apart, so that a task fails alone;
so is what a worker gives back of one that lasts long. With 8,000 packs in flight each question takes 15 ms, so the
caller waits for a share of them and not for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..errors import CkptError

RETRIES = 3
SHARE, PAUSE = 16, 0.1  # wait for one in 16 of the packs in flight, or so many seconds
SLOW, SLOWER = 10.0, 4.0  # a pack stands still after so many seconds, and so many times the mean of those that ended
SUBMISSION = 1 / 1500  # seconds that the caller needs to submit one
SHORT = 0.1  # seconds that a pack lasts at least, if its tasks are enough: each costs all processes 0.001
TOGETHER, SMALL = 64, 64 * 2**20  # tasks of a pack, and bytes of theirs: it may be lost, and is then repeated
LATELY = 1 / 8  # what a pack that ended counts in how long a task lasts: first ones wait for imports
Task = TypeVar("Task")


class TaskLost(CkptError):
    """A task ended without a result, whatever it had done till then."""


class InFlight:
    """Packs of tasks that were submitted and have not ended.

    submit: starts a pack; what it returns is a reference to the results of its first tasks, and the seconds they took.
    """

    def __init__(self, ray: Any, submit: Callable[[Sequence[Any]], Any], workers: int) -> None:
        self._ray, self._submit, self.workers = ray, submit, workers
        self._flying: dict[Any, tuple[Sequence[Any], float]] = {}  # by reference: the pack, and when it was submitted
        self._twins: dict[Any, Any] = {}  # the two references of a pack that runs twice
        self._ended, self._seconds = 0, 0.0
        self._each: float | None = None  # seconds that one task lasts on its worker, of late
        self._apart = deque[Any]()  # tasks of packs that were taken apart, before others

    def __len__(self) -> int:
        return len(self._flying)

    def start(self, pack: Sequence[Any]) -> Any:
        reference = self._submit(pack)
        self._flying[reference] = pack, time.monotonic()
        return reference

    def landed(self, patience: float = PAUSE) -> Iterator[tuple[Any, Any]]:
        """Wait for some packs to end, and yield (task, result) of theirs; nothing if none does within those seconds."""
        some = max(1, len(self._flying) // SHARE)
        done, _ = self._ray.wait(list(self._flying), num_returns=some, timeout=patience, fetch_local=False)
        results = self._results(done)
        for reference in done:
            if reference not in self._flying:  # its twin is among them
                continue
            pack, began = self._flying.pop(reference)
            self._ended, self._seconds = self._ended + 1, self._seconds + time.monotonic() - began
            if (twin := self._twins.pop(reference, None)) is not None:
                self._twins.pop(twin)
                self._flying.pop(twin)
                self._ray.cancel(twin, force=True)
            yield from self._of_each(pack, results[reference])
        while self._apart and len(self._flying) < self.limit:
            self.start([self._apart.popleft()])

    @property
    def limit(self) -> int:
        """So many packs are in flight that no worker waits for the next one."""
        return 2 * self.workers

    def together(self) -> int:
        """How many tasks are one pack; at first, when nobody knows how long they last, each is its own.

        A pack lasts as long as the caller needs to submit one to each worker: if it were shorter, workers would wait
        for the caller, and if it were longer, some of them would end long after the others.
        """
        if self._each is None:
            return 1
        return min(TOGETHER, max(1, int(max(SHORT, self.workers * SUBMISSION) / max(self._each, 1e-9))))

    def _of_each(self, pack: Sequence[Any], result: Any) -> Iterator[tuple[Any, Any]]:
        done = 0
        if not isinstance(result, CkptError):
            found, seconds = result
            done, mean = len(found), seconds / len(found)
            self._each = mean if self._each is None else self._each + LATELY * (mean - self._each)
            yield from zip(pack, found, strict=False)
        elif len(pack) == 1:
            yield pack[0], result
            done = 1
        self._apart.extend(pack[done:])

    def _results(self, done: list[Any]) -> dict[Any, Any]:
        try:
            return dict(zip(done, self._ray.get(done), strict=True))
        except self._ray.exceptions.RayError:  # of one of them
            return {reference: self._result(reference) for reference in done}

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as e:
            cause = e.cause
            return cause if isinstance(cause, CkptError) else TaskLost(f"a worker failed: {first_line(cause)}")
        except errors.RayError as e:
            return TaskLost(f"the cluster lost a task {RETRIES + 1} times: {first_line(e)}")

    def overtake(self) -> None:
        """Run what has been going on for much longer than usual a second time."""
        usual = max(SLOW, SLOWER * self._seconds / max(1, self._ended))
        now = time.monotonic()
        for reference, (pack, began) in list(self._flying.items()):
            if now - began > usual and reference not in self._twins:
                twin = self.start(pack)
                self._twins |= {reference: twin, twin: reference}

    def cancel(self) -> None:
        for reference in self._flying:
            self._ray.cancel(reference)


def packs(tasks: Iterable[Task], size: Callable[[Task], int], most: Callable[[], int]) -> Iterator[list[Task]]:
    """Neighbours that are submitted as one: so many at most, and `SMALL` bytes unless one alone has more."""
    some, total = list[Task](), 0
    for task in tasks:
        if some and total + size(task) > SMALL:
            yield some
            some, total = [], 0
        some.append(task)
        total += size(task)
        if len(some) >= most():
            yield some
            some, total = [], 0
    if some:
        yield some


def first_line(e: object) -> str:
    """An error as one line."""
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no reason given'}"


__all__ = ["RETRIES", "InFlight", "TaskLost", "first_line", "packs"]
