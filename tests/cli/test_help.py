"""Commands that pages only name are at least commands that exist; the examples of the help are run by help.md."""

from __future__ import annotations

import re
import shlex

import typer
from kit import ROOT

from ckptconv.cli.main import HELP, app, with_verb
from ckptconv.errors import UsageError

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "converters").glob("*.md")]
COMMAND = typer.main.get_command(app)
COMMANDS = COMMAND.commands  # type: ignore[attr-defined]
HELPS = [HELP, *(c.epilog for c in COMMANDS.values())]
USAGE = typer.BadParameter.__mro__[1]


def named(text: str) -> list[str]:
    """Commands in backquotes, in blocks that are not run, and in lines that are indented."""
    lines = re.sub(r"\\\n>? *", " ", text)
    found = re.findall(r"`(ckptconv [^`\n]+)`", lines) + re.findall(r"^ *(?:\$ )?(ckptconv .*?)(?:  .*)?$", lines, re.M)
    return [re.split(r" #| \| | && | 2>| \[", c)[0] for c in found]


def fault(line: str) -> str:
    """Why a command line is refused before anything is opened; '' if it is not, or if it only lacks something."""
    argv = shlex.split(line)[1:]
    if not argv or "..." in argv or {"VERB", "--help", "--version"} & {*argv}:
        return ""
    try:
        verb, *rest = with_verb(argv)
        command = COMMANDS[verb]
        if rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(verb, rest)
    except UsageError as e:
        return f"{line}: {e}"
    except USAGE as e:
        what = e.format_message()  # type: ignore[attr-defined]
        return "" if what.startswith("Missing") else f"{line}: {what}"
    return ""


def test_commands_that_are_named_exist() -> None:
    found = [(page.name, line) for page in PAGES for line in named(page.read_text(encoding="utf-8"))]
    assert [f"{where}: {why}" for where, line in found if (why := fault(line))] == []
    assert len(found) > 200


def test_each_example_of_a_help_text_is_run() -> None:
    """But for code of one's own, the browser and the server."""
    examples = {e for text in HELPS for e in named(text) if not re.search("mypackage|--open|--help| serve |SRC", e)}
    assert len(examples) > 40
    assert examples - {*named((ROOT / "tests/cli/help.md").read_text(encoding="utf-8"))} == set()


def test_what_does_not_exist_is_found() -> None:
    assert "No such option" in fault("ckptconv a -o b --wieghts-only")
    assert "a verb" in fault("ckptconv inspekt a") or "no verb" in fault("ckptconv inspekt a")
    assert named("`ckptconv a -o b`\n\n    ckptconv c  what\n") == ["ckptconv a -o b", "ckptconv c"]
