"""What the workflows may do: each action by its digest, few rights, no text of strangers in a script, and one build.

What is published is what the job `build` of publish.yml made, in which nothing but the build runs: the jobs that try it
install packages whose authors could otherwise change it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from kit import ROOT

yaml = pytest.importorskip("yaml")
FILES = {p.name: yaml.safe_load(p.read_text()) for p in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
JOBS: list[tuple[str, dict[str, Any]]] = [
    (f"{file}:{name}", job) for file, flow in FILES.items() for name, job in flow["jobs"].items()
]
STEPS: list[tuple[str, dict[str, Any]]] = [(where, step) for where, job in JOBS for step in job.get("steps", ())]
PUBLISH: dict[str, dict[str, Any]] = FILES["publish.yml"]["jobs"]
# The only rights beyond reading the repository.
RIGHTS = {
    "publish.yml:attest": {"id-token": "write", "attestations": "write"},
    "publish.yml:pypi": {"id-token": "write"},
    "publish.yml:release": {"contents": "write"},
}
TRUSTED = {"github.token", "github.workspace", "github.ref", "github.workflow", "github.run_id", "github.event_name"}


def used(step: dict[str, Any], action: str) -> bool:
    return str(step.get("uses", "")).partition("@")[0] == action


def test_actions_are_named_by_their_digest() -> None:
    named = [(where, str(uses)) for where, step in (*STEPS, *JOBS) if (uses := step.get("uses"))]
    assert len(named) > 20
    assert [(w, u) for w, u in named if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}|\./\.github/.*", u)] == []


def test_rights_are_few() -> None:
    reads = {"contents": "read"}
    for where, job in JOBS:
        rights = job.get("permissions", FILES[where.partition(":")[0]]["permissions"])
        assert rights == RIGHTS.get(where, reads), where
    kept = [w for w, s in STEPS if used(s, "actions/checkout") and s["with"]["persist-credentials"] is not False]
    assert kept == []


def test_no_script_contains_text_of_strangers() -> None:
    """An expression is put into a script before a shell sees it; in `env` it is a value."""
    scripts = [(where, str(step["run"])) for where, step in STEPS if "run" in step]
    found = {(w, e.strip()) for w, text in scripts for e in re.findall(r"\$\{\{(.*?)\}\}", text, re.S)}
    assert {e for _, e in found if not re.fullmatch(r"matrix\.\w+", e)} == set()  # lists in the workflow itself
    texts = "".join(p.read_text() for p in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert {*re.findall(r"\bgithub\.[\w.]+", texts)} <= TRUSTED
    # these run what a pull request holds with the rights of the repository; "on" is a boolean in YAML 1.1
    assert not {"pull_request_target", "workflow_run", "issue_comment"} & {on for f in FILES.values() for on in f[True]}


def test_a_release_takes_nothing_from_a_cache() -> None:
    """Other runs, of other branches, write what is in it."""
    for name, job in PUBLISH.items():
        for step in job.get("steps", ()):
            assert not used(step, "actions/cache"), name
            assert "cache" not in step.get("with", {}), name


def test_what_releases_are_made_with_is_locked_by_digest() -> None:
    for name in ("audit", "build", "docs", "lint", "quick"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
        locked = re.compile(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}")
        assert [line for line in text.splitlines() if not locked.match(line)] == []
