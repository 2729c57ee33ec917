"""mistakes.md: what a rule file is told about its mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest

from ckptconv.checkpoint import Checkpoint, Tensor, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.errors import CkptError
from ckptconv.moves.part import Held
from ckptconv.rules import library
from ckptconv.rules.apply import apply

PAGE = Path(__file__).with_name("mistakes.md")


def cases() -> Iterator[tuple[str, str, str]]:
    """The TOML, the tensors and the words of each mistake."""
    for block in re.findall(r"((?:    \S.*\n)+)      (.*)\n", PAGE.read_text()):
        lines = [line.removeprefix("    ") for line in block[0].splitlines()]
        toml, tensors = ([line for line in lines if line.startswith("<-") is given] for given in (False, True))
        yield "\n".join(toml), " ".join(tensors), block[1]


def tensor(name: str, shape: str, kind: str) -> Tensor:
    row, sizes = DTYPES[kind or "float32"], tuple(map(int, shape.split()))
    return contiguous(name, row, sizes, Held(np.zeros(prod(sizes), row.carrier)))


def faults(toml: str, tensors: str) -> list[str]:
    """What parsing, linting, or an application to some tensors finds."""
    found = re.findall(r"(\S+) \[([0-9 ]+)\] ?(\w*)", tensors)
    try:
        converter = library.parse(toml, "test")
        if not tensors:
            return library.lint(converter)
        apply(converter, Checkpoint({name: tensor(name, shape, kind) for name, shape, kind in found}))
    except CkptError as e:
        return [e.message]
    return []


@pytest.mark.parametrize(("toml", "tensors", "words"), list(cases()))
def test_mistakes(toml: str, tensors: str, words: str) -> None:
    assert any(words.replace("\\n", "\n") in fault for fault in faults(toml, tensors))
