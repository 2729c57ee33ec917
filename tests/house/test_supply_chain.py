"""What builds, checks and releases is pinned: actions by commit, packages by digest, permissions to what is needed."""

from __future__ import annotations

import re

import pytest
from kit import ROOT

WORKFLOWS = {p.name: p.read_text(encoding="utf-8") for p in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCKED = re.search(r"for group in ([a-z ]+); do \$\(COMPILE\)", MAKEFILE)[1].split()  # type: ignore[index]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_is_pinned_and_may_do_little(name: str) -> None:
    text = WORKFLOWS[name]
    actions = re.findall(r"uses: (\S+)", text)
    ours = [a for a in actions if a.startswith("./.github/workflows/")]
    assert [a for a in actions if a not in ours and not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", a)] == []
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert re.search(r"^permissions:(?: \{\}|\n  contents: read)\n(?! )", text, re.M)
    assert "pull_request_target" not in text
    assert not re.search(r"\$\{\{[^}]*github\.event\.", text)


@pytest.mark.parametrize("group", LOCKED)
def test_a_lock_has_a_digest_for_each_package(group: str) -> None:
    lines = (ROOT / "requirements" / f"{group}.txt").read_text().replace("\\\n", "").splitlines()
    assert len(lines) > 5
    assert [line for line in lines if not re.match(r"[\w.-]+==\S+.*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_changes_and_releases_use_the_locks() -> None:
    """The full tests and those of stores do not: their frameworks are installed as users install them."""
    for group in LOCKED:
        name = "publish.yml" if group == "build" else "ci.yml"
        assert re.search(rf"make {group} PYTHON=python LOCKED=1\n", WORKFLOWS[name]), group
    locked = MAKEFILE.split("ifdef LOCKED")[1].split("\nelse\n")[0]
    assert "--require-hashes -r requirements/" in locked
    assert "--no-deps --no-build-isolation" in locked
    assert WORKFLOWS["publish.yml"].count("pip install") == 2  # the wheel, as a user does, and what is locked:
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


def test_a_release_says_what_it_is_made_of_and_where() -> None:
    text = WORKFLOWS["publish.yml"]
    jobs = re.findall(r"^  (\w+):\n(?:    .*\n)*?    needs: (.*)$", text, re.M)
    assert dict(jobs) == {"attest": "[ci, full, build]", "pypi": "attest", "release": "pypi"}
    assert text.count("actions/attest@") == 2
    assert "sbom-path: sbom/ckptconv.cdx.json" in text
    assert "cyclonedx-py environment" in text
