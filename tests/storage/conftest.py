"""Servers of a test end with it; pauses between the tries of a request are short here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from webserver import Serve, served

from ckptconv.storage import web


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda *given, **attributes: stack.enter_context(served(*given, **attributes))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST", 0.01)
