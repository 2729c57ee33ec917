"""Fill the tables of options in docs/: every verb has a page, and every option a row with its keyword in Python.

Also ckptconv/api/keywords.pyi, from which editors and type checkers know the keywords. `make docs` runs this; a test
fails if a file is stale.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

import ckptconv
from ckptconv.api import options
from ckptconv.api.options import KNOWN
from ckptconv.cli.main import app

DOCS = Path(__file__).parent.parent / "docs"
STUB = Path(options.__file__).with_name("keywords.pyi")
HEAD = """\
# Made by tools/make_options.py from options.py.

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from ..engine.run import Map, Progress
from ..matching.proposal import Match
from ..rules.converter import Converter
from .options import Pair, Path
"""
GROUPS = {  # the keywords of functions
    "SelectOptions(TypedDict": options.SELECT,
    "InspectOptions(SelectOptions": ["jobs"],
    "ReadOptions(SelectOptions": [*options.CHANGE, *options.RESOURCES],
    "ConvertOptions(ReadOptions": options.TARGET,
    "MatchOptions(ReadOptions": ["force"],
    "ZooOptions(MatchOptions": ["skip_unrepresentable", "verify", "hash"],
}
PLAIN = ("formats", "converters")  # verbs with no other options than --json and --inverse


def rows(verb: str, command: Any) -> list[list[str]]:
    """The flags, keyword and help of each option of a command; those that verbs share stand on the page of convert."""
    out = []
    for p in command.params:
        if p.param_type_name != "option" or p.name == "help" or (verb != "convert" and p.name in KNOWN):
            continue
        takes = "" if p.is_flag else f" {p.metavar or p.type.name.upper()}"
        names = ", ".join(f"`{n}`" for n in (*p.opts, *p.secondary_opts))
        names = names[:-1] + f"{takes}`" if takes else names
        out.append([names.replace("|", "\\|"), keyword(verb, p.name), p.help.replace("|", "\\|")])
    return out


def keyword(verb: str, name: str) -> str:
    """What an option is called in Python, if the function of that name has it."""
    name = "destination" if name == "output" else name
    for function in (verb, *["check"] * (verb == "inspect")):
        if function in ckptconv.__all__ and name in inspect.signature(getattr(ckptconv, function)).parameters:
            return f"`{name}`" + " of `check`" * (function != verb)
    return ""


def tables(verb: str, command: Any) -> str:
    """The options of a verb."""
    lines = [["option", "in Python", ""], [":--", ":--", ":--"], *rows(verb, command)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    if shared := [f"`{p.opts[0]}`" for p in command.params if verb != "convert" and p.name in KNOWN]:
        text += f"\nAs in [convert](convert.md#options): {', '.join(shared)}.\n"
    return text


def stub() -> str:
    """The classes of keywords."""
    text = HEAD
    for head, keywords in GROUPS.items():
        text += f"\nclass {head}, total=False):\n"
        for known in map(KNOWN.__getitem__, keywords):
            text += f"    {known.keyword}: {options.ACCEPTED.get(known.clean, known.kind)}\n"
    return text


def pages() -> dict[Path, str]:
    """Every page with its tables made anew, and the stub."""
    made = {STUB: stub()}
    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if verb in PLAIN:
            continue
        path = DOCS / f"{verb}.md"
        pattern = rf"(<!-- generated: options of {verb} -->\n\n).*?(\n<!-- end -->)"
        text = path.read_text(encoding="utf-8")
        table = tables(verb, command).replace("\\", "\\\\")
        made[path], found = re.subn(pattern, rf"\g<1>{table}\g<2>", text, flags=re.S)
        if found != 1:
            raise SystemExit(f"{path.name} has no place for the options of {verb}")
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
