"""Documents that are run: the commands of a page's console blocks, and what they must print."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kit import ROOT

from ckptconv.cli.main import main


class Step(NamedTuple):
    command: str
    expected: str


def steps(block: str) -> Iterator[Step]:
    """Commands of a console block, each with what should follow."""
    for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
        first, *rest = piece.splitlines()
        while rest and rest[0].startswith("> "):
            first += "\n" + rest.pop(0)[2:]
        yield Step(first, "".join(f"{line}\n" for line in rest))


def run(command: str, home: Path) -> str:
    """What a terminal would show, and the exit code if it is not 0; `home` is the current folder."""
    if command.startswith("ckptconv ") and not re.search(r"[|&;<>$`#\n]", command):
        code, shown = inside(shlex.split(command)[1:])
    else:
        code, shown = in_shell(command, home)
    lines = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    return lines + (f"[{code}]\n" if code else "")


def inside(argv: list[str]) -> tuple[int, str]:
    """Most commands run in this process, which saves half a second each."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main(argv)
        except SystemExit as e:
            return int(e.code or 0), shown.getvalue()
    return 0, shown.getvalue()


def in_shell(command: str, home: Path) -> tuple[int, str]:
    """Pipes and the like, with `ckptconv` on the PATH."""
    shim = home.parent / "bin"
    shim.mkdir(exist_ok=True)
    program = shim / "ckptconv"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ckptconv "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {
        "PATH": f"{shim}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["sh", "-c", command], cwd=home, env=env, timeout=120, text=True, check=False, **streams)
    return done.returncode, done.stdout


RATE = re.compile(r"(?<= s) \([^()]*\)(?= -> )")  # shown only of what takes long enough to have one


def fits(expected: str, shown: str) -> bool:
    """Whether output is what a page shows, where `...` stands for anything, a line of it for any lines."""
    parts = []
    expected, shown = RATE.sub("", expected), RATE.sub("", shown)
    for line in expected.splitlines(keepends=True):
        parts.append(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*"))
    return re.fullmatch("".join(parts), shown) is not None


def session(text: str, name: str, space: dict[str, object]) -> list[str]:
    """Failures of a Python session; names stay for the sessions after it."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    test = doctest.DocTestParser().get_doctest(text, space, name, name, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
    space.update(test.globs)
    return said
