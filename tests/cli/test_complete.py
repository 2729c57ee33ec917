"""What the shell offers on TAB, with and without the verb that may be left out; and when there is colour."""

from __future__ import annotations

import os

import pytest
from kit import Run

from ckptconv.cli import options
from ckptconv.cli.main import VERBS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ckptconv ins", ["inspect"]),
        ("ckptconv model.safetensors --weights", ["--weights-only"]),
    ],
)
def test_offers(cli: Run, line: str, offered: list[str]) -> None:
    words = line.split(" ")
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = cli(env={**os.environ, **asked, "_CKPTCONV_COMPLETE": "complete_bash"})
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == sorted(offered)


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
