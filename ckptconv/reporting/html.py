"""A report: one self-contained HTML file, for one checkpoint or for a conversion.

    report(SRC, output="report.html")                the content of SRC
    report(SRC, B, output="report.html", change=...) the conversion of SRC to B: rules, values, omitted tensors

survey.py collects the data, page.html has the layout, page.js draws. Names are not trusted: Jinja2 escapes the page,
data is JSON in which a tag cannot be closed, the script writes text only, and the page's content security policy allows
no other script, style or request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..api import Change, Path, Select, bundle, prepare
from ..api.options import CHANGE, SELECT, takes
from ..errors import MissingExtra
from ..messages import redacted
from ..output import own
from ..output.destination import OutputFile
from ..output.staging import Output
from ..storage import files
from . import survey

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import MatchOptions

REPORT = (*SELECT, *CHANGE, "force", "jobs", "progress")


@takes(*REPORT)
def report(
    source: Path, target: Path | None = None, *, output: Path, values: bool = True, **given: Unpack[MatchOptions]
) -> int:
    """Write one self-contained HTML file that shows a checkpoint, or a conversion; return its size in bytes.

    source: the checkpoint. target: the result of converting it; give the options of that conversion as well, and the
    page shows the rule that moved each tensor. output: the file to write. values: read all values for statistics and
    heat maps; if false, only headers are read. Raises MissingExtra without the extra `report`, and any CkptError of
    reading.
    """
    select, change, how, resources = bundle(given, *REPORT)
    with files.record_stamps() as stamps:
        shown = prepare(
            [target if target is not None else source], Select() if target is not None else select, Change()
        )
        data = survey.survey(shown, values=values, workers=resources.workers, progress=resources.progress)
        data["url"] = redacted(os.fspath(target if target is not None else source))
        if target is not None:
            before, expected = prepare([source], select, Change()), prepare([source], select, change)
            data["conversion"] = survey.conversion(before, expected, shown, values=values, workers=resources.workers)
            data["conversion"] |= {"source": redacted(os.fspath(source)), "converter": change.converter or ""}
    page = render(data).encode(errors="backslashreplace")  # a path may hold any bytes
    own.refuse_source(os.fspath(output), stamps)
    folder, name = files.split(os.fspath(output))
    with Output(folder, [OutputFile(name, len(page))], force=how.force, mode=own.shared(stamps)) as out:
        out.write(name, 0, page)
        out.publish()
    return len(page)


def render(data: dict[str, Any]) -> str:
    """Render the page; MissingExtra without Jinja2."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as e:
        raise MissingExtra("reports need Jinja2: pip install 'ckptconv[report]'") from e
    script, style = _file("page.js"), _file("page.css")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_file("page.html"))
    return page.render(
        data=data,
        json=Markup(_quoted(data)),
        script=Markup(script),
        style=Markup(style),
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'",
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _quoted(data: Any) -> str:
    """JSON that is safe in a script element: ASCII, without the characters of tags and entities."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


__all__ = ["render", "report"]
