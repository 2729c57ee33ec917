"""Fill the generated parts of README.md: formats and what a target cannot hold, asked of the writers; converters.

python tools/make_readme.py; a test says when the page is stale.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ckptconv.dtypes import DTYPES
from ckptconv.formats import table
from ckptconv.rules import library

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
_formats = runpy.run_path(str(HERE / "make_formats.py"))


def lacks(row: table.Format) -> str:
    """The dtypes that a target has not."""
    if not row.writes:
        return ""
    missing = [name for name in DTYPES if not _formats["holds"](row, _formats["empty"]("layers/a/vars/0", name))]
    return " ".join(f"`{name}`" for name in missing) or "nothing"


def known_formats() -> str:
    head = ["format", "name", "read", "write", "cannot hold"]
    mark = _formats["mark"]
    rows = [[f.title, f"`{f.name}`", mark(f.reads), mark(f.writes), lacks(f)] for f in table.TABLE]
    return str(_formats["table"](head, rows))


def known_converters() -> str:
    found = [library.load(name) for name in library.names()]
    rows = [[f"`{c.name}`", c.title, c.target] for c in sorted(found, key=lambda c: c.name)]
    lines = [["converter", "what", "target"], [":--", ":--", ":--"], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page() -> str:
    """The README with its generated parts made anew."""
    text = README.read_text()
    for name, made in (("formats", known_formats()), ("converters", known_converters())):
        pattern = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, lambda m, made=made: m[1] + made + m[2], text, flags=re.S)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"README.md has no place for {name}")
    return text


if __name__ == "__main__":
    README.write_text(page())
