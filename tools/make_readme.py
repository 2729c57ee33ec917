"""Fill the generated parts of README.md and docs/converters.md: the formats in two sentences, and all converters.

python tools/make_readme.py; a test says when a page is stale.
"""

from __future__ import annotations

from pathlib import Path

from ckptconv.formats import table
from ckptconv.rules import library

ROOT = Path(__file__).parents[1]


def known_formats() -> str:
    """What is written as well as read, and what is only read."""
    both = ", ".join(f.title for f in table.TABLE if f.writes)
    rest = ", ".join(f.title for f in table.TABLE if not f.writes)
    return f"**Read and written:** {both}.\n\n**Only read:** {rest}.\n"


def known_converters() -> str:
    found = [library.load(name) for name in library.names()]
    found.sort(key=lambda c: c.name)
    rows = [[f"`{c.name}`", c.title, c.target, "`--like`" if c.one_way else "yes"] for c in found]
    lines = [["converter", "what", "target", "backwards"], [":--"] * 4, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


PLACES = {"README.md": ("formats", known_formats), "docs/converters.md": ("converters", known_converters)}


def pages() -> dict[Path, str]:
    """Each page with its generated part made anew."""
    made = {}
    for place, (name, make) in PLACES.items():
        text = (ROOT / place).read_text(encoding="utf-8")
        head, start, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        if not (start and end):
            raise SystemExit(f"{place} has no place for {name}")
        made[ROOT / place] = f"{head}{start}\n{make()}\n{end}{tail}"
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
