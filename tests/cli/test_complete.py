"""What the shell offers on TAB, with and without the verb that may be left out; and when there is colour."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.cli import options, show
from ckptconv.cli.main import VERBS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ["net/layer_1/kernel", "net/layer_1/bias", "net/layer_10/bias", "step", "net/$(touch pwned)", "net/a b"]
    ckptconv.save({n: np.ones(2, "f4") for n in names}, tmp_path / "model.safetensors")
    (tmp_path / "rules.toml").write_text("")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ckptconv ins", ["inspect"]),
        ("ckptconv model.safetensors --to npz", ["npz"]),
        ("ckptconv convert model.safetensors --to safet", ["safetensors"]),
        ("ckptconv inspect x --from keras", ["keras", "keras3"]),
        ("ckptconv model.safetensors -c rul", ["rules.toml"]),
        ("ckptconv diff a b --dtype bf", ["bfloat16"]),
        ("ckptconv inspect model.safetensors --sort s", ["size", "shape"]),
    ],
)
def test_offers(cli: Run, folder: Path, line: str, offered: list[str]) -> None:
    words = line.split(" ")
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = cli(env={**os.environ, **asked, "_CKPTCONV_COMPLETE": "complete_bash"}, cwd=folder)
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == sorted(offered)


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "a\\$(touch pwned)",  # what quotes `$` and not the backslash before it
    "a\\`touch pwned\\`",
    "a;touch pwned",
    'a"b',
    "a'b",
    "a b",
    "a|b",
    "a&b",
    "-rf",
    "a\\b",
    "a>b",
    "{a,b}",
]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_no_shell_is_offered_what_it_may_run(shell: str, cli: Run, folder: Path) -> None:
    for name in HOSTILE:
        (folder / f"{name}.toml").write_text("")
    words = ["ckptconv", "model.safetensors", "-c", ""]
    typed = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": "3"}
    if shell != "bash":
        typed = {"_TYPER_COMPLETE_ARGS": " ".join(words), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        typed |= {"_TYPER_COMPLETE_WORD_TO_COMPLETE": ""}
    env = {**os.environ, "_CKPTCONV_COMPLETE": f"complete_{shell}", **typed}
    offered = cli(env=env, cwd=folder).stdout
    assert "rules.toml" in offered
    assert "pwned" not in offered
    assert not any(f"{name}.toml" in offered.replace("rules.toml", "") for name in HOSTILE)


SHELLS = {
    "bash": (
        "bash --norc --noprofile -i",
        'bind "set page-completions off"; bind "set completion-query-items -1"; '
        'eval "$(_CKPTCONV_COMPLETE=source_bash ckptconv)"',
    ),
    "zsh": ("zsh -f -i", 'autoload -U compinit; compinit -u; eval "$(_CKPTCONV_COMPLETE=source_zsh ckptconv)"'),
    "fish": ("fish --no-config -i", "_CKPTCONV_COMPLETE=source_fish ckptconv | source"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_at_a_terminal_runs_nothing_at_tab(shell: str, folder: Path) -> None:
    """Nor at the Enter that follows: bash put names of files in the place of a `*` that was offered."""
    if not which(shell):
        pytest.skip(f"{shell} is not installed")
    for name in HOSTILE:
        (folder / f"{name}.toml").write_text("")
    (folder / "net").mkdir()
    (folder / "net" / "$(touch pwned)").write_text("")
    asked, program, (command, completion) = folder / "asked", folder / "bin" / "ckptconv", SHELLS[shell]
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n"{sys.executable}" -m ckptconv "$@"\ntouch "{asked}"\n')
    program.chmod(0o755)
    env = {"HOME": str(folder / "bin"), "PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    env["PYTHONPATH"] = str(Path(ckptconv.__file__).parents[1])
    process, terminal = pty.fork()  # a terminal of its own, which fish insists on
    if not process:
        try:
            os.chdir(folder)
            os.execvpe(command.split()[0], command.split(), env)
        finally:
            os._exit(127)
    try:
        os.write(terminal, completion.encode() + b"\n")
        until(terminal, lambda _: asked.exists())
        os.write(terminal, b"ckptconv model.safetensors -c \t\t")
        until(terminal, lambda shown: b"albert" in shown)  # the first converter
        os.write(terminal, b"\x15ckptconv inspect model.safetensors --include ne\t")
        until(terminal, lambda shown: b"--include net/" in shown)
        os.write(terminal, b"\r\r")
        until(terminal, lambda shown: b"layer_10" in shown)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    assert sorted(p.name for p in folder.rglob("pwned")) == []


def until(terminal: int, done: Callable[[bytes], bool]) -> None:
    """Read what a terminal shows until something is done."""
    shown, began = b"", time.monotonic()
    while not done(shown):
        assert time.monotonic() - began < 60, shown
        if select.select([terminal], [], [], 0.1)[0]:
            with suppress(OSError):  # the other side is closed
                shown += os.read(terminal, 65536)


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ("ckptconv a.ckpt ", "ckptconv convert a.ckpt "),
        ("ckptconv inspect a", None),
        ("ckptconv a", None),
        ("ckptconv --to n", "ckptconv convert --to n"),
        ("ckptconv", None),
    ],
)
def test_the_default_verb_is_put_in_front(typed: str, changed: str | None) -> None:
    found = options.with_verb({"_TYPER_COMPLETE_ARGS": typed}, VERBS)
    assert found == ({"_TYPER_COMPLETE_ARGS": changed} if changed else {})


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),  # https://no-color.org: present and not empty
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour(terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    assert show.paint("text", "red") == ("\x1b[31mtext\x1b[0m" if coloured else "text")
