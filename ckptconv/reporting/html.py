"""A report: one self-contained HTML file, for one checkpoint, for two, or for a conversion.

    report(SRC)                   the content of SRC, as SRC.report.html in the working directory
    report(SRC, B)                how B differs from SRC
    report(SRC, B, change=...)    the conversion of SRC to B: rules, values, omitted tensors

survey.py and compared.py collect the data, page/ has the layout and the scripts that draw. Names are not trusted: the
slots of the page are escaped, data is JSON in which a tag cannot be closed, the script writes text only, and the page's
content security policy allows no other script, style or request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..api import Change, Path, Select, bundle, prepare
from ..api.options import CHANGE, SELECT, takes
from ..api.values import path as text
from ..messages import redacted, version
from ..output import own
from ..output.destination import OutputFile
from ..output.staging import Output
from ..storage import files
from . import compared, outline, survey

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import MatchOptions

SCRIPTS = ("base.js", "map.js", "depth.js", "table.js", "tensor.js", "start.js")  # one scope, in this order
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
    """Write one self-contained HTML file that shows a checkpoint or compares two; return its size in bytes.

    source: the checkpoint. target: another, which is compared with it. With the options of the conversion that made it,
    the page shows the rule that moved each tensor. output: the file to write; by default a file in the working
    directory that is named after the checkpoint, model.report.html for model.safetensors. values: read all values for
    statistics, checks and heat maps; if false, only headers are read. Raises any CkptError of reading.
    """
    select, change, how, resources = bundle(given, *REPORT)
    source, target = text(source), text(target) if target is not None else None
    given_values: dict[str, Any] = {
        "values": values, "workers": resources.workers, "progress": resources.progress
    }  # fmt: skip
    with files.record_stamps() as stamps:
        if target is None:
            data = survey.survey(prepare([source], select, Change()), **given_values)
        else:
            data = _pair(source, target, select, change, given_values)
        data["url"] = redacted(os.fspath(target if target is not None else source))
    page = render(data).encode(errors="backslashreplace")  # a path may hold any bytes
    path = os.fspath(output or default_name(target if target is not None else source))
    own.refuse_source(path, stamps)
    folder, name = files.split(path)
    with Output(folder, [OutputFile(name, len(page))], force=how.force, mode=own.shared(stamps)) as out:
        out.write(name, 0, page)
        out.publish()
    return len(page)


def _pair(source: Path, target: Path, select: Select, change: Change, how: dict[str, Any]) -> dict[str, Any]:
    """The data of a conversion if `change` asks for one, otherwise of a comparison."""
    before, converted = prepare([source], select, Change()), change != Change()
    expected = prepare([source], select, change) if converted else before
    after = prepare([target], Select() if converted else replace(select, format=None, at=None), Change())
    both = compared.Compared(expected, after, values=how["values"], workers=how["workers"])
    data = survey.survey(after if converted else both.both, before=both.changed(), **how)
    data["totals"] = outline.totals(after)._asdict()
    data["compared"] = (both.conversion(before) if converted else both.comparison()) | {
        "source": redacted(os.fspath(source)),
        "converter": change.converter or "",
    }
    return data


def default_name(source: Path) -> str:
    """The name of a page that was not named: model.report.html for model.safetensors, folder/model/ or s3://x/model.pt."""
    last = re.split(r"[/\\]", redacted(os.fspath(source)).partition("?")[0].rstrip("/\\"))[-1]
    return f"{os.path.splitext(last)[0].lstrip('.') or 'checkpoint'}.report.html"


def render(data: dict[str, Any]) -> str:
    """Render the page. Slots are filled in one pass, so what fills one is not searched for others."""
    style, parts = _file("page.css"), "\n".join(map(_file, SCRIPTS))
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    other = data.get("compared") or {}
    converter = f" by the converter {other['converter']}" if other.get("converter") else ""
    words = {
        "title": data["url"],
        "kind": f"{other.get('mode', 'checkpoint').capitalize()} · {data['format']}",
        "from": f"{'from' if other['mode'] == 'conversion' else 'compared with'} {other['source']}{converter}"
        if other
        else "",
        "mode": other.get("mode", "checkpoint"),
        "version": version(),
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'",
    }
    slots = {k: escape(v) for k, v in words.items()} | {"script": script, "style": style, "json": _quoted(data)}
    return re.sub(r"\{\{ (\w+) \}\}", lambda slot: slots[slot[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _quoted(data: Any) -> str:
    """JSON that is safe in a script element: ASCII, without the characters of tags and entities."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


__all__ = ["default_name", "render", "report"]
