"""Write fixtures/MANIFEST.sha256: the digest of every fixture, and where each symbolic link leads.

python tools/manifest.py; a test says when it is stale. `cd fixtures && sha256sum -c MANIFEST.sha256` checks it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"
MANIFEST = FIXTURES / "MANIFEST.sha256"
SOURCES = {"make", "README.md", MANIFEST.name}  # not fixtures


def lines() -> Iterator[str]:
    """One line for each file, in the order of the paths; links are comments to sha256sum."""
    for path in sorted(FIXTURES.rglob("*"), key=lambda p: p.relative_to(FIXTURES).as_posix()):
        name = path.relative_to(FIXTURES)
        if name.parts[0] in SOURCES or "__pycache__" in name.parts:
            continue
        if path.is_symlink():
            yield f"# {name.as_posix()} -> {path.readlink().as_posix()}\n"
        elif path.is_file():
            yield f"{sha256(path.read_bytes()).hexdigest()}  {name.as_posix()}\n"


if __name__ == "__main__":
    MANIFEST.write_text("".join(lines()))
