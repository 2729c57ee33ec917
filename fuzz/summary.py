"""Print, as a Markdown table, what the runs of run.sh did: `summary.py LOGS FINDINGS`.

target.py writes its clock into the log, between libFuzzer's lines:

    #1768  NEW    cov: 719 ft: 2669 corp: 65/70Kb ...
    clock 60.0 31.2 12.9        seconds since the start; of processor time: its own, its children's
"""

from __future__ import annotations

import re
import sys
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

STATUS = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
CLOCK = re.compile(r"^clock ([\d.]+) ([\d.]+) ([\d.]+)$")


class Run(NamedTuple):
    """What one process did; `edge` and `feature` are the seconds at which the last new one was seen."""

    executions: int = 0
    edges: int = 0
    features: int = 0
    corpus: int = 0
    edge: float = 0
    feature: float = 0
    wall: float = 0
    own: float = 0
    children: float = 0


def run(text: str) -> Run:
    now, begun = Run(), False
    for line in text.splitlines():
        if found := CLOCK.match(line):
            wall, own, children = map(float, found.groups())
            now = now._replace(wall=wall, own=own, children=children)
        elif found := STATUS.match(line):
            executions, edges, features, corpus = (int(found[i]) for i in (1, 3, 4, 5))
            if begun and edges > now.edges:
                now = now._replace(edge=now.wall)
            if begun and features > now.features:
                now = now._replace(feature=now.wall)
            begun = begun or found[2] == "INITED"
            now = now._replace(executions=executions, edges=edges, features=features, corpus=corpus)
    return now


def row(log: Path, findings: list[str]) -> str:
    runs = [run(part) for part in re.split(r"^start .*$", log.read_text(errors="replace"), flags=re.MULTILINE)[1:]]
    wall, own, children = (sum(getattr(r, k) for r in runs) / 60 for k in ("wall", "own", "children"))
    starts = list(accumulate((r.wall for r in runs), initial=0.0))
    edge = max((s + r.edge for s, r in zip(starts, runs, strict=False) if r.edge), default=0)
    feature = max((s + r.feature for s, r in zip(starts, runs, strict=False) if r.feature), default=0)
    cells = (
        log.name, f"{wall:.0f}", f"{own:.1f}", f"{children:.1f}", f"{sum(r.executions for r in runs):,}",
        *(max((getattr(r, k) for r in runs), default=0) for k in ("edges", "features", "corpus")),
        f"{(starts[-1] - edge) / 60:.0f}", f"{(starts[-1] - feature) / 60:.0f}", len(findings),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main(logs: Path, findings: Path) -> None:
    print("| family | minutes | of processor time | of its children | executions | edges | features | inputs kept "
          "| last new edge, minutes before the end | last new feature | findings |")  # fmt: skip
    print("|---" + "|---:" * 10 + "|")
    found = [p.name for p in sorted(findings.iterdir()) if p.suffix != ".txt"]
    for log in sorted(logs.iterdir()):
        print(row(log, [f for f in found if f.startswith(log.name + "-")]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
