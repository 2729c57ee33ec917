"""ckptconv formats · ckptconv converters [show NAME | lint FILE]"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..messages import printable
from . import show
from .options import Json

EXAMPLES = """Examples:

\b
  ckptconv formats
  ckptconv formats --json | jq '.[] | select(.writes) | .name'
"""


def formats(as_json: Json = False) -> None:
    """List the formats that can be read and written.

    The suffix of an output selects its format.
    """
    from ..formats import table as known

    rows = known.table().values()
    if as_json:
        show.as_json([f._asdict() for f in rows])
        return
    yes = {True: "yes", False: "-"}
    show.table(
        ("format", "reads", "writes", "suffixes", "what"),
        [[f.name, yes[f.reads], yes[f.writes], " ".join(f.suffixes), f.title] for f in rows],
    )


# --- converters -------------------------------------------------------------------------------------------------------

CONVERTERS_EXAMPLES = """Examples:

\b
  ckptconv converters                   list all
  ckptconv converters show t5           the rules of one
  ckptconv converters lint rules.toml   check a file of your own
"""
converters_app = typer.Typer(
    name="converters",
    invoke_without_command=True,
    rich_markup_mode=None,
    help="List the converters, show one, or check a rule file. Apply one with -c: `ckptconv SRC -o DST -c NAME`.",
)


@converters_app.callback()
def converters(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand:
        return
    from ..rules import library

    found = [library.load(name) for name in library.names()]
    if as_json:
        show.as_json([{"name": c.name, "title": c.title, "source": c.source, "target": c.target} for c in found])
        return
    show.table(("converter", "what", "target"), [[c.name, c.title, c.target] for c in found])


@converters_app.command("show")
def show_one(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A converter's name or a .toml file.")],
    inverse: Annotated[bool, typer.Option("--inverse", help="Show the inverse.")] = False,
    as_json: Json = False,
) -> None:
    """Show the rules of a converter, in the order in which they are tried.

    For each: the names that it takes, those that it makes, and how axes move.
    """
    from ..rules import library

    found = library.load(name)
    found = found.inverse if inverse else found
    rows: list[dict[str, Any]] = [
        {
            "from": [t.text for t in rule.sources],
            "to": [t.text for t in rule.targets],
            "layout": rule.layout,
            "ops": list(rule.op),
        }
        for rule in found.rules
    ]
    if as_json:
        show.as_json({"name": found.name, "title": found.title, "rules": rows, "notes": list(found.notes)})
        return
    lines = f"{found.name}: {found.title}", f"{found.source} -> {found.target}", ""
    show.tell(*map(printable, lines))
    show.table(("from", "to", "layout"), [[", ".join(r["from"]), ", ".join(r["to"]) or "-", r["layout"]] for r in rows])
    for note in found.notes:
        show.talk(f"note: {printable(note)}")


@converters_app.command("lint")
def lint(
    file: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A .toml file or a converter's name.")],
    as_json: Json = False,
) -> None:
    """Check a rule file without weights.

    Prints each problem, and exits with 1 if there is one.
    """
    from ..rules import library

    problems = library.lint(library.load(file))
    if as_json:
        show.as_json({"name": file, "problems": problems})
    else:
        show.tell(*problems)
    if problems:
        raise typer.Exit(1)
    if not as_json:
        show.talk(f"{printable(file)}: sound")
