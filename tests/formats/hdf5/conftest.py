from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _hdf5_is_forked() -> None:
    """It is not: see tests/conftest.py."""
