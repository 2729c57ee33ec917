"""What the command line and Python list and refuse without reading a tensor, in the tests' own process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import Run

from ckptconv.api.options import names_code
from ckptconv.formats import table
from ckptconv.rules import library


def test_formats_are_listed(cli: Run) -> None:
    rows = {r["name"]: r for r in json.loads(cli("formats", "--json").stdout)}
    assert set(rows) == set(table.table())
    assert (rows["tf-v1"]["reads"], rows["tf-v1"]["writes"]) == (True, False)
    said = cli("formats").stdout.splitlines()
    (line,) = [row for row in said if row.split()[:1] == ["tf-v1"]]
    assert line.split().count("yes") == 1
    assert "-" in line.split()


def test_converters_are_listed_and_shown(cli: Run) -> None:
    rows = json.loads(cli("converters", "--json").stdout)
    assert [r["name"] for r in rows] == library.names()
    name = rows[0]["name"]
    assert any(line.startswith(name) for line in cli("converters").stdout.splitlines())
    there = json.loads(cli("converters", "show", name, "--json").stdout)
    back = json.loads(cli("converters", "show", name, "--inverse", "--json").stdout)
    assert there["rules"]
    assert {tuple(r["to"]) for r in back["rules"]} <= {tuple(r["from"]) for r in there["rules"]} | {()}
    said = cli("converters", "show", name).stdout
    assert said.startswith(f"{name}: {there['title']}\n")
    assert there["rules"][0]["from"][0] in said


def test_lint_says_what_is_wrong(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[rule]]\nfrom = '{x}/a'\nto = 'b'\n")
    done = cli("converters", "lint", "bad.toml")
    assert (done.returncode, "{x} is on one side only" in done.stdout) == (1, True)
    (tmp_path / "good.toml").write_text("[[rule]]\nfrom = '{x}/a'\nto = '{x}.b'\n")
    done = cli("converters", "lint", "good.toml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "good.toml: sound\n")


# --- Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a:b", True), ("a.b:c.d", True), ("_a1:B_2", True), ("a", False), ("a/b:c", False), ("gs://a", False),
        ("a:b:c", False), ("1a:b", False), ("a.:b", False), ("", False),
    ],
)  # fmt: skip
def test_what_names_code(text: str, code: bool) -> None:
    assert names_code(text) is code
