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

WIDE = 1000  # units of the bar's width

Data = Mapping[str, Any]


def default_name(output: str) -> str:
    """The name of a page that was not named: out.zoo.html for the folder out."""
    return f"{os.path.basename(os.path.abspath(redacted(output)))}.zoo.html"


def page(data: Data, running: float) -> str:
    """The page of what bulk.progress says; running: seconds without an entry after which a run seems to have ended."""
    style = html.stylesheet()
    done, failed, planned = (sum(share[k] for share in data["shares"]) for k in ("done", "failed", "planned"))
    total = done + failed + planned
    quiet = min(share["quiet"] for share in data["shares"])
    words = {
        "policy": f"default-src 'none'; style-src {html.digest(style)}; base-uri 'none'",
        "percent": f"{100 * (done + failed) // max(1, total)} %",
        "url": _shown(data["url"]),
        "when": f"{_date(data['now'])}, the last entry is {_span(quiet)} old",
        "headline": f"{done:,} of {many(total, 'checkpoint')} converted",
        "version": version(),
    }
    slots = {k: escape(v) for k, v in words.items()} | {
        "style": style,
        "bar": _bar([(done, "done"), (failed, "odd"), (planned, "left")]),
        "cards": _cards(data, failed, planned, quiet <= running),
        "sections": "\n".join(filter(None, _sections(data))),
    }
    return html.filled("zoo.html", slots)


def _cards(data: Data, failed: int, planned: int, running: bool) -> str:
    rate = data["rate"]
    speed = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
    cards = [
        ("failed", f"{failed:,}"),
        *[("damaged", f"{data['damaged']:,}")] * bool(data["damaged"]),
        ("to come" if running or not planned else "to come; no run seems to be at work", f"{planned:,}"),
        *[("to read", in_bytes(int(data["waiting"])))] * bool(planned),
        ("written", in_bytes(int(data["bytes"]))),
        ("read", in_bytes(int(data["read"]))),
        ("lately", speed if rate else "not known"),
        ("left at this rate", _span(planned / rate) if rate and planned and running else "-"),
    ]
    warned = {"damaged", "failed" if failed else ""}
    return "".join(
        f"<div{' class=warned' if what in warned else ''}><b>{escape(value)}</b>{escape(what)}</div>"
        for what, value in cards
    )


def _sections(data: Data) -> Iterable[str]:
    yield _causes("Failures by cause", data["causes"])
    yield _causes("Left out or changed, by cause", data["remarks"])
    rows: list[tuple[str, ...]] = []
    for name, (n, size, s) in sorted(data["formats"].items(), key=lambda i: (-i[1][0], i[0])):
        rate = f"{in_bytes(int(size / s))}/s" if s else "-"
        rows.append((name or "-", f"{int(n):,}", in_bytes(int(size)), _each(s / n), rate))
    yield _table("By format of the source", ("format", "converted", "read", "each", "per worker"), rows)
    if len(data["shares"]) > 1:
        rows = [
            (s["ledger"], str(s["done"]), str(s["failed"]), str(s["planned"]), _span(s["quiet"]))
            for s in data["shares"]
        ]
        yield _table("Shares", ("ledger", "converted", "failed", "to come", "last entry"), rows)


def _causes(title: str, causes: Sequence[tuple[int, str, str, list[str]]]) -> str:
    items = "".join(
        f"<details><summary><b>{count:,}</b> {_text(message)} <span class=soft>{_text(error)}</span></summary>"
        f"<ul>{''.join(f'<li>{_text(s)}</li>' for s in sources)}{_more(count - len(sources))}</ul></details>"
        for count, error, message, sources in causes
    )
    return f"<h2>{escape(title)}</h2>{items}" if causes else ""


def _more(count: int) -> str:
    return f"<li>and {count} more, which the ledger names</li>" if count > 0 else ""


def _bar(parts: Sequence[tuple[int, str]]) -> str:
    """One bar, divided in proportion."""
    total, at, drawn = max(1, sum(n for n, _ in parts)), 0.0, []
    for count, kind in parts:
        width = WIDE * count / total
        drawn.append(f'<rect class="{kind}" x="{at:.1f}" width="{width:.1f}" height="14"/>')
        at += width
    return (
        f'<figure class="bars"><svg class="thin" viewBox="0 0 {WIDE} 14" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(drawn)}</svg></figure>'
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f'<th scope="col"{" class=num" if k else ""}>{escape(c)}</th>' for k, c in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(f"<td{' class=num' if k else ''}>{_text(c)}</td>" for k, c in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    table = f'<table class="list"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f'<h2>{escape(title)}</h2><div class="fit">{table}</div>'


def _text(text: str) -> str:
    """What came from a file or a ledger, as HTML."""
    return escape(_shown(text))


def _shown(text: str) -> str:
    return printable(brief(redacted(text)))


def _each(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(min(max(0.0, seconds), 2**36)))


def _span(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3.5 h, 2.1 days."""
    for unit, size in (("days", 86400), ("h", 3600)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
