"""What the library says is in the words of Python; the command line spells options in its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import CodeType

import pytest
from kit import ROOT

from ckptconv.api.options import KNOWN
from ckptconv.cli.options import ALSO

FLAG = re.compile(r"(?<![\w<!`-])`?--[a-z][a-z-]+")
OF_OTHERS = ("ray start --head", "torch.load(weights_only=True, mmap=True)")  # commands and calls of other programs


@cache
def literals() -> list[tuple[str, str]]:
    """Each string outside the command line and where it is; docstrings and the parts of f-strings are among them."""
    found = []
    for path in sorted((ROOT / "ckptconv").rglob("*.py")):
        if "cli" not in path.parts:
            for line, value in constants(compile(path.read_text("utf-8"), path, "exec", optimize=0)):
                text = value
                for quoted in OF_OTHERS:
                    text = text.replace(quoted, "")
                found.append((f"{path.relative_to(ROOT)}:{line}", text))
    return found


def constants(code: CodeType) -> Iterator[tuple[int, str]]:
    """Strings in compiled code, each with the line where its function begins: a third of the time of a walk."""
    todo: list[object] = [*code.co_consts]
    while todo:
        match todo.pop():
            case str(text):
                yield code.co_firstlineno, text
            case tuple(several) | frozenset(several):
                todo += several
            case CodeType() as inner:
                yield from constants(inner)


@pytest.mark.slow
def test_the_library_names_no_option_of_the_command_line() -> None:
    """But where the options are declared."""
    assert [
        f"{where}: {flag}" for where, text in literals() for flag in FLAG.findall(text) if "options.py:" not in where
    ] == []


@pytest.mark.slow
def test_the_command_line_can_spell_every_keyword_that_a_message_names() -> None:
    """`force=True` becomes `--force` where cli.options knows the keyword."""
    named = {
        m[1] for _, text in literals() for m in re.finditer(r"(?<![^\s(`])([a-z_]+)=(?:True|'|[A-Z]+|[ ;,:])", text)
    }
    assert {"force", "converter", "scope"} <= named
    assert named - {*KNOWN, *ALSO} == set()
