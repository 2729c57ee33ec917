"""Tasks that were submitted to a Ray cluster and have not ended, and what becomes of each.

With 8,000 tasks in flight each question takes 15 ms, so the caller waits for a share of them and not for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import CkptError

RETRIES = 3
SHARE, PAUSE = 16, 0.1  # wait for one in 16 of the tasks in flight, or so many seconds
SLOW, SLOWER = 10.0, 4.0  # a task stands still after so many seconds, and so many times the mean of those that ended


class TaskLost(CkptError):
    """A task ended without a result, whatever it had done till then."""


class InFlight:
    """Tasks that were submitted and have not ended."""

    def __init__(self, ray: Any, submit: Callable[[Any], Any]) -> None:
        self._ray, self._submit = ray, submit
        self._flying: dict[Any, tuple[Any, float]] = {}  # by reference: the task, and when it was submitted
        self._twins: dict[Any, Any] = {}  # the two references of a task that runs twice
        self._ended, self._seconds = 0, 0.0

    def __len__(self) -> int:
        return len(self._flying)

    def start(self, task: Any) -> Any:
        reference = self._submit(task)
        self._flying[reference] = task, time.monotonic()
        return reference

    def landed(self) -> Iterator[tuple[Any, Any]]:
        """Wait for some tasks to end; nothing if none does within `PAUSE` seconds."""
        some = max(1, len(self._flying) // SHARE)
        done, _ = self._ray.wait(list(self._flying), num_returns=some, timeout=PAUSE, fetch_local=False)
        results = self._results(done)
        for reference in done:
            if reference not in self._flying:  # its twin is among them
                continue
            task, began = self._flying.pop(reference)
            self._ended, self._seconds = self._ended + 1, self._seconds + time.monotonic() - began
            if (twin := self._twins.pop(reference, None)) is not None:
                self._twins.pop(twin)
                self._flying.pop(twin)
                self._ray.cancel(twin, force=True)
            yield task, results[reference]

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
        for reference, (task, began) in list(self._flying.items()):
            if now - began > usual and reference not in self._twins:
                twin = self.start(task)
                self._twins |= {reference: twin, twin: reference}

    def cancel(self) -> None:
        for reference in self._flying:
            self._ray.cancel(reference)


def first_line(e: object) -> str:
    """An error as one line."""
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else 'no reason given'}"


__all__ = ["RETRIES", "InFlight", "TaskLost", "first_line"]
