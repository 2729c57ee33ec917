"""What builds and releases is locked, and the oldest that users may have is audited."""

from __future__ import annotations

import re

from kit import ROOT

WORKFLOWS = {p.name: p.read_text(encoding="utf-8") for p in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCKED = sorted(p.stem for p in (ROOT / "requirements").glob("*.txt") if p.stem != "oldest")


def test_changes_and_releases_use_the_locks() -> None:
    """The full tests and those of stores do not: their frameworks are installed as users install them."""
    for group in LOCKED:
        name = "publish.yml" if group == "build" else "ci.yml"
        assert re.search(rf"make {group} PYTHON=python LOCKED=1\n", WORKFLOWS[name]), group
    locked = MAKEFILE.split("ifdef LOCKED")[1].split("\nelse\n")[0]
    assert "--require-hashes -r requirements/" in locked
    assert "--no-deps --no-build-isolation" in locked
    assert "--require-hashes -r requirements/audit.txt" in WORKFLOWS["publish.yml"]


def test_what_is_allowed_at_least_is_audited() -> None:
    """Bounds from below: the oldest versions that pyproject.toml allows are asked about, like those of the locks."""
    assert "for file in requirements/*.txt; do $(BIN)/pip-audit" in MAKEFILE
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.M | re.S)[1]  # type: ignore[index]
    oldest = (ROOT / "requirements" / "oldest.txt").read_text().lower()
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)', needed.replace("_", "-"))
    assert len(bounds) > 3
    assert [f"{n}=={v}" for n, v in bounds if not re.search(rf"^{n}=={re.escape(v)}(?:\.0)*\b", oldest, re.M)] == []
