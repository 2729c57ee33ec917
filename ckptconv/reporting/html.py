"""A report: one self-contained HTML file, for one checkpoint, for two, for a conversion, or for a series.

    report(SRC)                   the content of SRC, as SRC.report.html in the working directory
    report([A, B])                how B differs from A
    report([A, B], change=...)    the conversion of A to B: rules, values, omitted tensors
    report([A, B, C ...])         a series: how each layer moved from one to the next

survey.py collects the data, page/ has the layout and the scripts that draw. Names are not trusted: the
slots of the page are escaped, data is JSON in which a tag cannot be closed, the script writes text only, and the page's
content security policy allows no other script, style or request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..api.comparing import sides, stripped
from ..api.options import CHANGE, SELECT, Options, Path, Source, path as text, takes
from ..api.reading import list_of, open_merged, prepare, url_of
from ..errors import UsageError
from ..formats.own_metadata import OPTIONS
from ..messages import Told, in_bytes, printable, redacted, version
from ..output.staging import write_whole
from ..storage import files
from ..storage.paths import beginning, refuse_remote
from . import checks, survey

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.keywords import MatchOptions

Spell = Callable[[str], str]
SHOWN = 20_000_000  # bytes of a page that a notebook shows
UNLIKE = {"only_a": "missing", "shape": "shape", "only_b": "new"}  # checks of what the conversion did not make


@dataclass(frozen=True, repr=False)
class Page(Told):
    """The result of `report`. A notebook shows the page itself.

    path: the file that was written. bytes: its size. findings: what the checks find, as JSON values; None if values
    were not read. before: the same in the first of two checkpoints.
    """

    path: str
    bytes: int
    findings: list[Any] | None = None
    before: list[Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {"output": self.path, "bytes": self.bytes, "findings": self.findings, "before": self.before}

    def sum(self) -> str:
        """One line: what was written."""
        return f"{printable(self.path)}: {in_bytes(self.bytes)}; open it in a browser"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which can reach neither the notebook nor a network."""
        if self.bytes > SHOWN:
            return f"<p>{escape(self.sum())}: it is too large for a notebook</p>"
        with open(self.path, encoding="utf-8") as f:
            page = escape(f.read())
        style = "width:100%;height:720px;border:1px solid #8888;border-radius:8px"
        return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{page}"></iframe>'


@takes(*SELECT, *CHANGE, "force", "jobs", "progress")
def report(
    sources: Source | Sequence[Source],
    destination: Path | None = None,
    *,
    values: bool = True,
    **given: Unpack[MatchOptions],
) -> Page:
    """Write one self-contained HTML file that shows a checkpoint, compares two, or follows a series.

    sources: a checkpoint; or two, which are compared: with the options of the conversion that made the second of the
    first, the page shows the rule that moved each tensor. With more, in order, it shows how each layer moved.
    destination: the file to write; by default a file in the working directory that is named after the last checkpoint,
    model.report.html for model.safetensors. values: read all values for statistics, checks and heat maps; if false,
    only headers are read.

    Returns a Page: its `path` and its size in `bytes`; a notebook shows the page. Raises any CkptError of reading.
    """
    return make_page(list_of(sources), destination, {**given, "values": values})


def make_page(
    sources: Sequence[Source], destination: Path | None, given: dict[str, Any], command: str = "", spell: Spell = str
) -> Page:
    """Write a report. command: the command line that the page shows; spell: how notes name options."""
    values = given.pop("values")
    how = Options(**given)
    path = text(destination or default_name(_named(sources[-1])))
    refuse_remote(path, "a report")
    if not path.lower().endswith((".html", ".htm")):
        raise UsageError(
            f"a page is an .html file, not {path}{'; several checkpoints are one list, [a, b]' * files.exists(path)}"
        )
    with files.record_stamps() as stamps:
        data = collect_data(sources, how, values=values)
        data["made"] = data.get("made", {}) | {"This page": command}
    page = render(data, spell).encode(errors="backslashreplace")  # a path may hold any bytes
    write_whole(path, page, stamps, force=how.force)
    return Page(path, len(page), data.get("findings"), data.get("before"))


def _named(source: Source) -> str:
    return redacted(url_of(source)) or "in memory"


def collect_data(sources: Sequence[Source], how: Options, *, values: bool) -> dict[str, Any]:
    """The data of a page: of one checkpoint, of two, or of a series."""
    names = [*map(_named, sources)]
    if len(sources) == 1:
        data = survey.survey(prepare(sources, how.without(*CHANGE)), how, values=values)
    elif len(sources) == 2:
        data = _pair(sources[0], sources[1], how, values=values)
    else:
        if how.changes:
            raise UsageError("a series is of checkpoints as they are: it takes no options of a conversion")
        plain = [open_merged([source], how.without("strip_prefix")) for source in sources]
        data = survey.series(stripped(plain, how.strip_prefix), names, how, values=values)
    return data | {"url": names[-1], "urls": names}


def _pair(source: Source, target: Source, how: Options, *, values: bool) -> dict[str, Any]:
    """The data of a conversion if the options ask for one, otherwise of a comparison."""
    converted = how.changes
    before, expected, after = sides(source, target, how)
    both = survey.Compared(expected, after, values=values, workers=how.workers)
    data = survey.survey(after if converted else both.both, how, values=values, both=both)
    data["compared"] = both.conversion(before) if converted else both.comparison()
    if values and converted:  # what the conversion itself does is new
        data["before"] = [f.to_json() for f in checks.check(before, checks.limits(), workers=how.workers)]
        data["findings"] += [
            checks.Finding(
                UNLIKE[p.kind], name, f"the conversion gives {checks.form(p.a) if p.a else 'no such tensor'}"
            ).to_json()
            for name, p in both.pairs.items()
            if p.kind in UNLIKE
        ]
    recorded, converter = after.hashes.get(OPTIONS, ""), how.converter
    return data | {
        "made": {"Converter": str(getattr(converter, "name", converter or "")), "Options in the file": recorded[:2000]},
        "formats": [before.format, after.format],
    }


def default_name(source: Path) -> str:
    """The name of a page that was not named: model.report.html for model.safetensors, folder/model/ or s3://x/model.pt."""
    last = re.split(r"[/\\]", redacted(os.fspath(source)).partition("?")[0].rstrip("/\\"))[-1]
    return f"{os.path.splitext(last)[0].lstrip('.') or 'checkpoint'}.report.html"


def render(data: dict[str, Any], spell: Spell = str) -> str:
    """Render the page. Slots are filled in one pass, so what fills one is not searched for others.

    With data["live"] it is a page that is served, which may ask its server for values. spell: how notes name options.
    """
    data = data | {"notes": [[kind, spell(words), *names] for kind, words, *names in data["notes"]]}
    tables = ["\n".join(map(printable, lines)) for lines in data.pop("text")]
    urls = data.get("urls", [data["url"]])
    folder = len(os.path.dirname(beginning(urls))) * (len(urls) > 1)
    ends = [url[folder:].lstrip("/\\") or url for url in urls[:: max(1, len(urls) - 1)]]
    live = "live" in data
    scripts = f"base map depth table export tensor series changes {'live ' * live}start"  # in this order
    style, parts = file("page.css"), "\n".join(file(f"{script}.js") for script in scripts.split())
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    words = {
        "title": (" … " if "moved" in data else " → ").join(ends),
        "version": version(),
        "policy": f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; base-uri 'none'"
        + ("; connect-src 'self'" if live else ""),
    }
    coded = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII, in which no tag and no entity may be
    slots = {k: escape(printable(v)) for k, v in words.items()} | {
        "script": script,
        "style": style,
        "json": coded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "text": escape(spell("\n\n".join(tables))),
    }
    return fill_slots("page.html", slots)


def fill_slots(template: str, slots: Mapping[str, str]) -> str:
    """A template of page/ with its slots filled, each of which is HTML."""
    return re.sub(r"\{\{ (\w+) \}\}", lambda slot: slots[slot[1]], file(template))


def file(name: str) -> str:
    """A file of page/."""
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The source expression of a content security policy for an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
