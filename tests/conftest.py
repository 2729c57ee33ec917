"""What tests share: where fixtures lie, how to run the command line, and the skip for what only developers have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kit import FIXTURES, SHARED, Run


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def shared() -> Path:
    """Checkpoints too large to ship; absent outside the developers' workplace."""
    if not SHARED.is_dir():
        pytest.skip("the shared folder of real checkpoints is not here")
    return SHARED


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """Run the command line in a process of its own, in an empty folder."""

    def run(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ckptconv", *map(str, args)]
        settings = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120} | options
        return subprocess.run(command, check=False, **settings)  # type: ignore[call-overload, no-any-return]

    return run
