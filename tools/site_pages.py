"""A hook of mkdocs: pages that lie outside docs/ become pages of the site, and links to other files lead to GitHub.

The pages themselves are written for a reader on GitHub: their links are paths in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
GITHUB = "https://github.com/ckptconv/ckptconv/blob/main/"
OUTSIDE = {
    "README.md": "index.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md", "RELEASING.md": "releasing.md", "CODE_OF_CONDUCT.md": "conduct.md",
    "converters/README.md": "rules.md",
}  # fmt: skip
LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs/."""
    for source, place in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn each link to a file of the repository into one that the site has."""
    place = page.file.src_uri
    source = next((path for path, at in OUTSIDE.items() if at == place), f"docs/{place}")

    def led(m: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), m[2]))
        inside = OUTSIDE.get(target) or (target[5:] if target.startswith("docs/") else "")
        file = files.get_file_from_path(inside)
        if file and file.inclusion.is_included():
            return m[1] + posixpath.relpath(inside, posixpath.dirname(place) or ".") + m[3]
        if (ROOT / target).exists():
            return m[1] + GITHUB + target + m[3]
        return m[0]  # which is reported as broken

    return LINK.sub(led, markdown)
