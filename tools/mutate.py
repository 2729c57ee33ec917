"""Break the package on purpose, one small change at a time, and see whether the tests notice.

    python tools/mutate.py --count 90 --seed 7             90 mutants, each against the tests of its module and its room
    python tools/mutate.py --count 90 --seed 7 --whole     survivors then face the rest of the suite
    python tools/mutate.py --covered FILE                  first the tests that reach the very line, as .coverage says
    python tools/mutate.py --only 'ckptconv/rules/*' --list
    python tools/mutate.py --id ckptconv/rules/axes.py:88:11:comparison:0

A mutant is one change of one module; mutants.py lists the kinds. A seed decides which are tried, one of each kind in
turn, so `--count 30` tries the first 30 of `--count 90`. The test files named for the module run first, then those that
import it, then those in the folder of its room (tests/formats/hdf5/ for ckptconv/formats/hdf5/file.py, or the nearest
folder above it that exists), until one fails. A test file counts only if it passes on the unchanged package, and the
time it takes there sets its limit.

With --covered, which takes what `pytest --cov=ckptconv --cov-branch --cov-context=test` wrote, single tests that reach
the line come before all files, the most specific ones first. Only what survives them meets the files,
which can kill what only processes of their own run; --no-files leaves it at the single tests.

The working tree is only read. Each worker has a copy of the files that git tracks (and of new files that git does not
ignore), reached through PYTHONPATH, and a temporary folder of its own; all of it is removed at the end. Some survivors
are equivalent to the original. Only a person can tell, which is why this is not part of CI. POSIX only.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import queue
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from covered import Covered
from mutants import KINDS, PACKAGE, ROOT, Mutant, drawn, made, modules, mutants

MEMORY = 16 << 30  # bytes of address space of a test process: torch reserves much of it, a mutant may want all there is
PATIENCE = 4.0  # times as long as on the unchanged package ...
LEAST = 20.0  # ... and this many seconds more, is a hang
HANG = 240.0  # seconds that tests chosen by coverage may take
FIRST = 900.0  # seconds that a test file may take on the unchanged package
MOST = 16  # tests that are chosen by coverage for one mutant

Thing = TypeVar("Thing")
Result = TypeVar("Result")


# --- which tests ------------------------------------------------------------------------------------------------


class Tests:
    """The test files, and which of them are for a module."""

    def __init__(self, skip: Sequence[str]) -> None:
        paths = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py"))
        self.all = [p for p in paths if not any(fnmatch.fnmatch(p, pattern) for pattern in skip)]
        self._imports = {p: _imports((ROOT / p).read_text()) for p in self.all}

    def of(self, path: str) -> list[str]:
        """Files named for the module, those that import it, then those of its room."""
        parts = path.removesuffix(".py").split("/")
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        dotted, stem, rooms = ".".join(parts), parts[-1], path.split("/")[1:-1]
        named = [p for p in self.all if stem in _words(p) and (not rooms or rooms[-1] in _words(p))]
        users = [p for p in self.all if any(n == dotted or n.startswith(f"{dotted}.") for n in self._imports[p])]
        return list(dict.fromkeys([*named, *users, *self._room(rooms)]))

    def _room(self, rooms: list[str]) -> list[str]:
        """Files in the folder of a room, or of the nearest room around it that has one; else those named for it."""
        for end in range(len(rooms), 0, -1):
            folder = "/".join(["tests", *rooms[:end], ""])
            if found := [p for p in self.all if p.startswith(folder)]:
                return found
        return [p for p in self.all if rooms and rooms[-1] in _words(p)]


def _imports(text: str) -> set[str]:
    out = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out |= {f"{node.module}.{alias.name}" for alias in node.names}
    return out


def _words(path: str) -> set[str]:
    """The folders in a test file's path, the words in its name, and the name: tests/cli/test_dry_run.py has dry_run."""
    *folders, name = path.removesuffix(".py").split("/")
    name = name.removeprefix("test_")
    return {*folders, name, *name.split("_")}


# --- running ----------------------------------------------------------------------------------------------------


class Tree:
    """A copy of the working tree, and tests that run in it."""

    def __init__(self, home: Path, python: str, arguments: Sequence[str]) -> None:
        self.root, self._temporary = home / "tree", home / "tmp"
        self._command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._clock, self._stopped = int(time.time()), threading.Event()
        listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
        for name in filter(None, subprocess.run(listed, capture_output=True, check=True).stdout.decode().split("\0")):
            if os.path.lexists(ROOT / name):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        self._is_imported(python)

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        return kept | {"PYTHONPATH": str(self.root), "TMPDIR": str(self._temporary), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def _is_imported(self, python: str) -> None:
        """Make sure that a process anywhere imports this copy, not a package that is installed."""
        command = [python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
        done = subprocess.run(command, env=self._environment(), cwd="/", capture_output=True, text=True, check=True)
        if not done.stdout.startswith(f"{self.root}/"):
            raise SystemExit(f"{python} imports {done.stdout.strip()} where it should import the copy in {self.root}")

    def write(self, path: str, text: str) -> None:
        """Replace a module; each time under another date, so that no compiled one is taken for it."""
        self._clock += 2
        (self.root / path).write_text(text)
        os.utime(self.root / path, (self._clock, self._clock))

    def run(self, tests: Sequence[str], limit: float, output: int = subprocess.DEVNULL) -> tuple[int | None, float]:
        """Run tests; return the exit status (None: they took too long) and the seconds they took."""
        if self._stopped.is_set():
            raise KeyboardInterrupt
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir()
        began = time.monotonic()
        self._process = process = subprocess.Popen(
            [*self._command, *tests], cwd=self.root, env=self._environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if hasattr(resource, "prlimit"):
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        self.kill()
        process.wait()
        return status, time.monotonic() - began

    def stop(self) -> None:
        """End the running test, and each that would follow."""
        self._stopped.set()
        self.kill()

    def kill(self) -> None:
        """End the running test and what it started."""
        if self._process:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Verdict(NamedTuple):
    """How a mutant fared: killed, hung (which counts as killed), survived or untested; and by which test file."""

    mutant: Mutant
    word: str
    by: str
    ran: tuple[str, ...]
    seconds: float


class Bench:
    """Trees, one for each worker, and what the test files do on the unchanged package."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = trees
        self._free: queue.Queue[Tree] = queue.Queue()
        for tree in trees:
            self._free.put(tree)
        self.seconds: dict[str, float] = {}  # of the test files that pass
        self.failing: list[str] = []

    def all(self, do: Callable[[Tree, Thing], Result], things: Iterable[Thing]) -> Iterator[Result]:
        """Apply a function to a tree and each thing, as many at once as there are trees; yield results as they come."""

        def one(thing: Thing) -> Result:
            tree = self._free.get()
            try:
                return do(tree, thing)
            finally:
                self._free.put(tree)

        with ThreadPoolExecutor(len(self.trees)) as pool:
            futures = [pool.submit(one, thing) for thing in things]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for tree in self.trees:
                    tree.stop()
                raise

    def there(self, tests: Iterable[str]) -> set[str]:
        """Those of single tests that are still there."""
        wanted = set(tests)
        files = sorted({f for test in wanted if (ROOT / (f := test.partition("::")[0])).is_file()})
        return wanted & set(self._said(self.trees[0], ["--collect-only", *files], FIRST)[1].splitlines())

    def _said(self, tree: Tree, arguments: Sequence[str], limit: float) -> tuple[int | None, str]:
        """The exit status of pytest, and what it prints."""
        with tempfile.TemporaryFile() as output:
            status, _ = tree.run(arguments, limit, output.fileno())
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def judge_by_line(self, tree: Tree, case: tuple[Mutant, Sequence[str]]) -> Verdict:
        """Put a mutant to the tests that reach its line; the one that fails must pass on the unchanged package."""
        mutant, tests = case
        began, word, by = time.monotonic(), "survived" if tests else "untested", ""
        while tests and not by:
            tree.write(mutant.path, mutant.after)
            try:
                status, said = self._said(tree, ["-rfE", *tests], HANG)
            finally:
                tree.write(mutant.path, mutant.before)
            if status == 0:
                break
            failed = [t for t in tests if re.search(rf"^(FAILED|ERROR) {re.escape(t)}( - |$)", said, re.MULTILINE)]
            if failed and self._said(tree, failed[:1], HANG)[0] != 0:
                self.failing.append(failed[0])
                tests = [t for t in tests if t != failed[0]]
                continue
            word, by = "hung" if status is None else "killed", failed[0] if failed else "a test that cannot even begin"
        return Verdict(mutant, word, by, tuple(tests), time.monotonic() - began)

    def measure(self, tests: Iterable[str]) -> None:
        """Run test files on the unchanged package; those that fail there prove nothing about mutants."""

        def one(tree: Tree, test: str) -> tuple[str, int | None, float]:
            return (test, *tree.run([test], FIRST))

        for test, status, seconds in self.all(one, sorted(set(tests) - {*self.seconds, *self.failing})):
            if status == 0:
                self.seconds[test] = seconds
            elif status != 5:  # 5: it has no test that can run here
                self.failing.append(test)
                say(f"left out, it fails on the unchanged package: {test}")

    def judge(self, tree: Tree, case: tuple[Mutant, Sequence[Sequence[str]]]) -> Verdict:
        """Put a mutant to tests, some at a time, until one fails."""
        mutant, groups = case
        began, ran = time.monotonic(), []
        tree.write(mutant.path, mutant.after)
        try:
            for group in groups:
                if tests := sorted(self.seconds.keys() & group, key=lambda t: self.seconds[t]):
                    ran += tests
                    status, _ = tree.run(tests, PATIENCE * sum(self.seconds[t] for t in tests) + LEAST)
                    if status != 0:
                        word = "hung" if status is None else "killed"
                        by = f"one of {len(tests)} tests that reach it" if len(tests) > 1 else tests[0]
                        return Verdict(mutant, word, by, tuple(ran), time.monotonic() - began)
        finally:
            tree.write(mutant.path, mutant.before)
        return Verdict(mutant, "survived" if ran else "untested", "", tuple(ran), time.monotonic() - began)


# --- the command ------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def line(v: Verdict) -> str:
    place = f"{v.mutant.path}:{v.mutant.line}"
    return f"{v.word:<9} {v.mutant.kind:<11} {place:<52} {v.seconds:6.1f} s  {v.by}".rstrip()


def summary(verdicts: Sequence[Verdict]) -> str:
    """A table of kinds, and the diffs of what no test noticed."""
    rows = [f"{'kind':<11} {'mutants':>7} {'killed':>7} {'':>6}"]
    for kind in (*KINDS, "all"):
        of_kind = [v for v in verdicts if kind in (v.mutant.kind, "all")]
        killed = sum(v.word in {"killed", "hung"} for v in of_kind)
        if of_kind:
            rows.append(f"{kind:<11} {len(of_kind):>7} {killed:>7} {killed / len(of_kind):>6.0%}")
    alive = [v for v in verdicts if v.word in {"survived", "untested"}]
    rows += [f"\n{v.word}: {v.mutant.key}\n{v.mutant.diff()}" for v in alive]
    return "\n".join(rows)


def as_json(verdicts: Sequence[Verdict], seed: int, failing: Sequence[str]) -> str:
    rows = [
        {
            "id": v.mutant.key, "path": v.mutant.path, "line": v.mutant.line, "kind": v.mutant.kind, "verdict": v.word,
            "by": v.by, "ran": v.ran, "seconds": round(v.seconds, 1), "diff": v.mutant.diff(),
        }
        for v in verdicts
    ]  # fmt: skip
    counts = Counter(v.word for v in verdicts)
    return json.dumps({"seed": seed, "counts": counts, "left_out": failing, "mutants": rows}, indent=1) + "\n"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mutation test: do the tests notice when the package is changed?")
    parser.add_argument("--count", type=int, default=30, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="modules, as ckptconv/rules/*")
    parser.add_argument("--id", action="append", default=[], help="this mutant, as an earlier run named it")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--whole", action="store_true", help="run all other test files on survivors, fastest first")
    parser.add_argument("--covered", type=Path, metavar="FILE", help="what coverage.py recorded, with contexts")
    parser.add_argument("--no-files", action="store_true", help="run nothing but the tests that --covered chooses")
    parser.add_argument("--skip", action="append", default=[], metavar="GLOB", help="test files to leave out")
    parser.add_argument("--pytest", default="", metavar="ARGUMENTS", help="more arguments for pytest, in one word")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--least", type=float, default=0, metavar="PERCENT", help="exit with 1 if fewer are killed")
    return parser.parse_args()


def chosen(o: argparse.Namespace) -> list[Mutant]:
    if o.id:
        known = dict(mutant for path in sorted({key.split(":")[0] for key in o.id}) for mutant in mutants(path))
        return [m for key in o.id if key in known and (m := made(key, known[key]))]
    return list(islice(drawn(modules(o.only), o.seed), o.count))


def tested(o: argparse.Namespace, picked: Sequence[Mutant], bench: Bench) -> list[Verdict]:
    """Run the tests that reach each mutant, then those near it, then all; each, if it is wanted, on what survived."""
    tests, done = Tests(o.skip), {m.key: Verdict(m, "untested", "", (), 0.0) for m in picked}

    def stage(groups: dict[str, list[tuple[str, ...]]]) -> None:
        for verdict in bench.all(bench.judge, [(done[key].mutant, wanted) for key, wanted in groups.items()]):
            before = done[verdict.mutant.key]
            if verdict.ran:
                done[verdict.mutant.key] = verdict._replace(ran=(*before.ran, *verdict.ran))
                say(line(verdict))

    def alive() -> list[Mutant]:
        return [v.mutant for v in done.values() if v.by == ""]

    say(f"{len(picked)} mutants; tests are run on the unchanged package first")
    if o.covered:
        covered = Covered(o.covered)
        reach = {m.key: [t for t in covered.of(m.path, m.telling) if t.partition("::")[0] in tests.all] for m in picked}
        there = bench.there(test for group in reach.values() for test in group[: 3 * MOST])
        cases = [(m, [test for test in reach[m.key] if test in there][:MOST]) for m in picked]
        for verdict in bench.all(bench.judge_by_line, cases):
            done[verdict.mutant.key] = verdict
            say(line(verdict))
        if o.no_files:
            return list(done.values())
    near = {m.key: tests.of(m.path) for m in picked}
    bench.measure(t for m in alive() for t in near[m.key])
    stage({m.key: [(t,) for t in near[m.key]] for m in alive()})
    if o.whole and alive():
        bench.measure(tests.all)
        quickest = sorted(tests.all, key=lambda t: bench.seconds.get(t, 0))
        stage({m.key: [(t,) for t in quickest if t not in near[m.key]] for m in alive()})
    return [done[m.key] for m in picked]


def main() -> int:
    o = options()
    picked = chosen(o)
    if o.list or not picked:
        print("\n".join(f"{m.key}\n{m.diff()}" for m in picked) or "no such mutant")
        return 0 if picked else 2
    with tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as home:
        count = min(o.jobs, len(picked))
        trees = [Tree(Path(home).resolve() / str(i), o.python, shlex.split(o.pytest)) for i in range(count)]
        bench = Bench(trees)
        verdicts = tested(o, picked, bench)
    print(summary(verdicts))
    if o.json:
        o.json.write_text(as_json(verdicts, o.seed, bench.failing))
    killed = sum(v.word in {"killed", "hung"} for v in verdicts)
    return int(100 * killed < o.least * len(verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
