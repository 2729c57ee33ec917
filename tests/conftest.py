"""What tests share: where fixtures lie, how to run the command line, and which cases are tried."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import pytest
import typer
from forked import Forked
from hypothesis import HealthCheck, settings
from kit import EFFORT, FIXTURES, Run, examples

from ckptconv.checkpoint import Checkpoint, NoteKind
from ckptconv.cli.main import main
from ckptconv.formats.hdf5 import sandbox

settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=examples(50).max_examples,
)  # fmt: skip
settings.load_profile("unhurried")  # a busy machine is no failure
FEW = 2  # cases of a table that are run with less effort


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser that the tests of a module share; they are skipped where there is none."""
    from browser import CHROMIUM, Browser

    if CHROMIUM is None:
        pytest.skip("no chromium or chrome on the PATH to open pages with")
    with Browser() as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """With less effort, run a share of the cases of a test that is marked `many`, and two of each other table: evenly
    spread, from another one on in each. An item of each case, to be left out, would cost each worker seconds."""
    yield
    cases, first = metafunc._calls, crc32(metafunc.definition.name.encode())
    if cases and EFFORT < 1:
        many = [*metafunc.definition.iter_markers("many")]
        kept = ceil(len(cases) * EFFORT) if many else min(len(cases), FEW)
        cases[:] = [cases[(first + i * len(cases) // kept) % len(cases)] for i in range(kept)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker runs whole modules; one runs those that import TensorFlow. pytest-xdist 3.8 does not see groups with
    pytest 9.2 (pytest-dev/pytest-xdist#1386)."""
    from xdist.scheduler import LoadScopeScheduling

    class Modules(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(config.rootpath / nodeid.partition("::")[0])

    @cache
    def group(module: Path) -> str:
        return "tensorflow" if 'xdist_group("tensorflow")' in module.read_text("utf-8") else str(module)

    return Modules(config, log)


@pytest.fixture(autouse=True, scope="session")
def _notes_are_of_the_known_kinds() -> Iterator[None]:
    """Refuse other kinds in whatever a test opens or makes."""
    made: Any = Checkpoint.__init__

    def checked(self: Checkpoint, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        assert {note.kind for note in self.notes} <= {*get_args(NoteKind)}, self.notes

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Checkpoint, "__init__", checked)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_time_is_wasted() -> Iterator[None]:
    """What a test writes need not outlive the machine. What is synced, and when, is what some tests watch. Commands of
    the command line are made once: a process makes them once. What was imported so far is here to stay."""
    gc.freeze()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(typer.main, "get_command", cache(typer.main.get_command))
        for name in ("fsync", "sync"):
            m.setattr(os, name, lambda *_: None, raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _hdf5_is_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of what HDF5 holds does not start Python for it; one of the process does."""
    with pytest.MonkeyPatch.context() as m:
        if hasattr(signal, "pidfd_send_signal") and request.path.stem not in ("test_jail", "test_sandbox"):
            m.setattr(sandbox, "_start", Forked)
            m.setattr(sandbox, "_idle", {})
        yield


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in an empty folder: in this process, which saves a third of a second, or, if any option of
    `subprocess.run` is given, in one of its own."""

    def run(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ckptconv", *map(str, args)]
        if options:
            settings = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120} | options
            return subprocess.run(command, check=False, **settings)  # type: ignore[call-overload, no-any-return]
        heard = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        out, err, code = io.StringIO(), io.StringIO(), 0
        with monkeypatch.context() as m, redirect_stdout(out), redirect_stderr(err):
            m.chdir(tmp_path)
            try:
                main(command[3:])
            except SystemExit as e:
                code = int(e.code or 0)
        for number, handler in heard.items():
            signal.signal(number, handler)
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    return run
