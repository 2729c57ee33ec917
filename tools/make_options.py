"""Fill the tables of options in docs/: every verb has a page, and every option a row with its keyword in Python.

`make docs` runs this; a test fails if a page is stale.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

import ckptconv
from ckptconv.api.options import KNOWN
from ckptconv.cli.main import app

DOCS = Path(__file__).parent.parent / "docs"
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


def pages() -> dict[Path, str]:
    """Every page with its tables made anew."""
    made: dict[Path, str] = {}
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
