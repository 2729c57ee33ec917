"""A report: one self-contained HTML file, for one checkpoint or for a conversion.

    report(SRC)                   the content of SRC, as SRC.report.html in the working directory
    report(SRC, B, change=...)    the conversion of SRC to B: rules, values, omitted tensors

survey.py collects the data, page.html has the layout, page.js draws. Names are not trusted: the slots of the page are
escaped, data is JSON in which a tag cannot be closed, the script writes text only, and the page's content security
policy allows no other script, style or request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..api import Change, Path, Select, bundle, prepare
from ..api.options import CHANGE, SELECT, takes
from ..messages import redacted, version
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
    source: Path,
    target: Path | None = None,
    *,
    output: Path | None = None,
    values: bool = True,
    **given: Unpack[MatchOptions],
) -> int:
    """Write one self-contained HTML file that shows a checkpoint, or a conversion; return its size in bytes.

    source: the checkpoint. target: the result of converting it; give the options of that conversion as well, and the
    page shows the rule that moved each tensor. output: the file to write; by default a file in the working directory
    that is named after the checkpoint, model.report.html for model.safetensors. values: read all values for statistics
    and heat maps; if false, only headers are read. Raises any CkptError of reading.
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
    path = os.fspath(output or default_name(target if target is not None else source))
    own.refuse_source(path, stamps)
    folder, name = files.split(path)
    with Output(folder, [OutputFile(name, len(page))], force=how.force, mode=own.shared(stamps)) as out:
        out.write(name, 0, page)
        out.publish()
    return len(page)


def default_name(source: Path) -> str:
    """The name of a page that was not named: model.report.html for model.safetensors, folder/model/ or s3://x/model.pt."""
    last = re.split(r"[/\\]", redacted(os.fspath(source)).partition("?")[0].rstrip("/\\"))[-1]
    return f"{os.path.splitext(last)[0].lstrip('.') or 'checkpoint'}.report.html"


def render(data: dict[str, Any]) -> str:
    """Render the page. Slots are filled in one pass, so what fills one is not searched for others."""
    script, style = _file("page.js"), _file("page.css")
    conversion = data.get("conversion") or {}
    converter = f" by the converter {conversion['converter']}" if conversion.get("converter") else ""
    words = {
        "title": data["url"],
        "kind": f"{'Conversion' if conversion else 'Checkpoint'} · {data['format']}",
        "from": f"from {conversion['source']}{converter}" if "source" in conversion else "",
        "version": version(),
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'",
    }
    slots = {k: escape(v) for k, v in words.items()} | {"script": script, "style": style, "json": _quoted(data)}
    return re.sub(r"\{\{ (\w+) \}\}", lambda slot: slots[slot[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _quoted(data: Any) -> str:
    """JSON that is safe in a script element: ASCII, without the characters of tags and entities."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


__all__ = ["default_name", "render", "report"]
