"""Pauses between the tries of a request are short here."""

from __future__ import annotations

import pytest

from ckptconv.storage import web


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "FIRST", 0.01)
