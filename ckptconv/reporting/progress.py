"""The progress page of a zoo: what is done, what failed and why, how fast it goes, and what is left.

One HTML file without scripts. Names and messages come from strangers' files: all text is escaped, and the content
security policy allows nothing but the style.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..messages import brief, in_bytes, many, printable, redacted, version
from . import html

CAUSES, EXAMPLES = 1000, 20  # causes on a page, and checkpoints of each
RUNNING = 600  # seconds without an entry after which a run seems to have ended

Data = Mapping[str, Any]


def default_name(output: str) -> str:
    """The name of a page that was not named: out.zoo.html for the folder out."""
    return f"{os.path.basename(os.path.abspath(redacted(output)))}.zoo.html"


def page(url: str, data: Data) -> str:
    """The page of a zoo. url: of its output folder. data: its status, as JSON."""
    style = html.stylesheet()
    done, failed, planned, quiet = (data[k] for k in ("done", "failed", "planned", "seconds_since_last_entry"))
    total = done + failed + planned
    words = {
        "policy": f"default-src 'none'; style-src {html.digest(style)}; base-uri 'none'",
        "percent": f"{100 * (done + failed) // max(1, total)} %",
        "url": _shown(url),
        "when": f"{time.strftime('%Y-%m-%d %H:%M')}, the last entry is {_span(quiet)} old",
        "headline": f"{done:,} of {many(total, 'checkpoint')} converted",
        "version": version(),
    }
    causes = [(len(c["sources"]), c["error"], c["message"], c["sources"]) for c in data["causes"]]
    remarks = [(c["checkpoints"], c["kind"], c["text"], c["examples"]) for c in data["remarks"]]
    formats = [f"{n:,} {name or 'unknown'}" for name, n in sorted(data["formats"].items(), key=lambda i: (-i[1], i[0]))]
    slots = {k: escape(v) for k, v in words.items()} | {
        "style": style,
        "bar": f'<progress max="{max(1, total)}" value="{done + failed}"></progress>',
        "cards": _cards(data),
        "sections": _causes("Failures by cause", causes)
        + _causes("Left out or changed, by cause", remarks)
        + (f"<h2>By format of the source</h2><p>{_text(', '.join(formats))}</p>" if formats else ""),
    }
    return html.filled("zoo.html", slots)


def _cards(data: Data) -> str:
    rate, planned = data["per_second"], data["planned"]
    running = data["seconds_since_last_entry"] <= RUNNING
    speed = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
    cards = [
        ("failed", f"{data['failed']:,}"),
        *[("damaged", f"{data['damaged']:,}")] * bool(data["damaged"]),
        ("to come" if running or not planned else "to come; no run seems to be at work", f"{planned:,}"),
        ("written", in_bytes(data["bytes"])),
        ("lately", speed if rate else "not known"),
        ("left at this rate", _span(planned / rate) if rate and planned and running else "-"),
    ]
    warned = {"damaged", "failed" if data["failed"] else ""}
    return "".join(
        f"<div{' class=warned' if what in warned else ''}><b>{escape(value)}</b>{escape(what)}</div>"
        for what, value in cards
    )


def _causes(title: str, causes: Sequence[tuple[int, str, str, list[str]]]) -> str:
    items = "".join(
        f"<details><summary><b>{count:,}</b> {_text(message)} <span class=soft>{_text(error)}</span></summary>"
        f"<ul>{_items(sources[:EXAMPLES], count)}</ul></details>"
        for count, error, message, sources in causes[:CAUSES]
    )
    more = f"<p>{many(len(causes) - CAUSES, 'more cause')}</p>" if len(causes) > CAUSES else ""
    return f"<h2>{escape(title)}</h2>{items}{more}\n" if causes else ""


def _items(shown: Iterable[str], count: int) -> str:
    lines = [_text(s) for s in shown]
    if count > len(lines):
        lines.append(f"and {count - len(lines):,} more, which the ledger names")
    return "".join(f"<li>{line}</li>" for line in lines)


def _text(text: str) -> str:
    """What came from a file or a ledger, as HTML."""
    return escape(_shown(text))


def _shown(text: str) -> str:
    return printable(brief(redacted(text)))


def _span(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3.5 h, 2.1 days."""
    for unit, size in (("days", 86400), ("h", 3600)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
