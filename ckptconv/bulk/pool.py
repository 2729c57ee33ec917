"""A pool of reusable worker processes; a worker that dies is replaced.

    run(do, tasks, workers) -> (task, result or the error)      as they finish

`concurrent.futures` stops the whole pool when one process dies; here only the current task of that process is lost.
Workers are started fresh, not forked from this process, because they would inherit its threads and locks; where the
system supports it, they are forked from a server with all imports done. A worker ends when its parent does. (The HDF5
library runs in processes of another kind, without rights: see formats/hdf5/sandbox.py.)
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ..errors import CkptError

Task = TypeVar("Task")
PRELOAD = ["ckptconv.formats.detect", "ckptconv.bulk.run"]


class WorkerDied(CkptError):
    """A worker process ended during a task."""


@contextmanager
def contained(url: str) -> Iterator[None]:
    """Turn a bug in a worker into an error of this url's task, so that others go on."""
    try:
        yield
    except CkptError:
        raise
    except Exception as e:
        raise CkptError(f"unexpected {type(e).__name__}: {e}", url=url) from e


def run(
    do: Callable[[Task], Any], tasks: Iterable[Task], workers: int, patience: float | None = None
) -> Iterator[tuple[Task, Any] | None]:
    """Apply `do` to all tasks, yielding each result as it arrives, and None after `patience` seconds without one."""
    queue = iter(tasks)
    busy: dict[_Worker, Task] = {}
    try:
        for task in queue:
            busy[_Worker(do, task)] = task
            if len(busy) == workers:
                break
        while busy:
            ready = wait([w.pipe for w in busy], patience)
            if not ready:
                yield None
            for worker in [w for w in busy if w.pipe in ready]:
                task, result = busy.pop(worker), worker.result()
                following = next(queue, None)
                if following is None:
                    worker.end()
                elif worker.give(following):
                    busy[worker] = following
                else:
                    busy[_Worker(do, following)] = following
                yield task, result
    finally:
        for worker in busy:
            worker.kill()


def _context() -> Any:
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        return context
    return multiprocessing.get_context("spawn")


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep a worker from running the caller's script again: it needs only our own modules."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {n: main.__dict__[n] for n in ("__file__", "__spec__") if n in main.__dict__}
    main.__dict__.pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


@contextmanager
def _apart() -> Iterator[None]:
    """Keep the processes of multiprocessing, also servers and trackers, from importing from the working folder, which
    may be untrusted. The parent's `sys.path` is passed on later. Python 3.10 only has -I, which omits more."""
    util: Any = multiprocessing.util
    flags = util._args_from_interpreter_flags
    util._args_from_interpreter_flags = lambda: [*flags(), "-P" if sys.version_info >= (3, 11) else "-I"]
    try:
        yield
    finally:
        util._args_from_interpreter_flags = flags


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, do: Callable[[Any], Any], task: Any) -> None:
        context = _context()
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, do, dict(os.environ)), daemon=True)
        with _main_hidden(), _apart():
            self._process.start()
        theirs.close()
        self.give(task)

    def give(self, task: Any) -> bool:
        """Send a task; False if the process is gone."""
        try:
            self.pipe.send(task)
        except OSError:
            self.kill()
            return False
        return True

    def result(self) -> Any:
        """Receive the result of the task; WorkerDied if the process ended during it."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            how = f"by signal {signal.Signals(-code).name}" if code and code < 0 else f"with status {code}"
            self.kill()
            return WorkerDied(f"the worker process ended {how} during this conversion (out of memory?)")

    def end(self) -> None:
        self.pipe.close()
        self._process.join(5)
        self.kill()

    def kill(self) -> None:
        """Terminate the process, and kill it if it does not end within five seconds."""
        self.pipe.close()
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, do: Callable[[Any], Any], environment: dict[str, str]) -> None:
    """Receive tasks and send results, in the worker, until the pipe is closed.

    The server that forks workers keeps its first environment; credentials may have been set later, so `environment` is
    passed on.
    """
    os.environ.clear()
    os.environ.update(environment)
    for name in ("SIGINT", "SIGHUP"):  # the parent receives them too, and ends its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result = do(task)
        except CkptError as e:
            result = e
        try:
            pipe.send(result)
        except OSError:
            return


def _leave(*_: object) -> None:
    raise SystemExit(1)  # unwinding removes temporary files


def _watch() -> None:
    """End this worker when the parent is killed, because nobody would receive the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
