"""Print, as a Markdown table, what the runs of run.sh did: executions, coverage, time, findings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# libFuzzer's line:  #1768 DONE cov: 719 ft: 2669 corp: 65/70Kb ...
STATUS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)
TIME = re.compile(r"^cpu ([\d.]+) ([\d.]+) wall ([\d.]+)", re.MULTILINE)
START = re.compile(r"^start .*$", re.MULTILINE)


def row(log: Path, findings: list[str]) -> str:
    text = log.read_text(errors="replace")
    runs = [found for part in START.split(text) if (found := STATUS.findall(part))]
    executions = sum(int(r[-1][0]) for r in runs)
    edges = max((int(r[-1][1]) for r in runs), default=0)
    features = max((int(r[-1][2]) for r in runs), default=0)
    corpus = max((int(r[-1][3]) for r in runs), default=0)
    wall = sum(float(w) for _, _, w in TIME.findall(text)) / 60
    cpu = sum(float(u) + float(s) for u, s, _ in TIME.findall(text)) / 60
    cells = (log.name, f"{wall:.0f}", f"{cpu:.0f}", f"{executions:,}", edges, features, corpus, len(findings))
    return f"| {' | '.join(map(str, cells))} |"


def main(work: Path) -> None:
    print("| family | minutes | of processor time | executions | edges | features | inputs kept | findings |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    found = [p.name for p in sorted((work / "findings").iterdir()) if p.suffix != ".txt"]
    for log in sorted((work / "logs").iterdir()):
        print(row(log, [f for f in found if f.startswith(log.name + "-")]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
