"""Checkpoints of a zoo are converted in this process: to start others takes longer than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ckptconv.bulk import run
from ckptconv.errors import CkptError


@pytest.fixture
def in_processes() -> None:
    """Ask for it to have them converted by worker processes, as they are outside of tests."""


@pytest.fixture(autouse=True)
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def each(do: Callable[[Any], Any], todo: Iterable[Any], *_: object) -> Iterator[tuple[Any, Any]]:
        for item in todo:
            try:
                yield item, do(item)
            except CkptError as e:
                yield item, e

    if "in_processes" not in request.fixturenames:
        monkeypatch.setattr(run.pool, "run", each)
