"""What the conversions of a zoo left out or changed: said by cause, kept in the ledger, and bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import Run

import ckptconv
from ckptconv.api import result
from ckptconv.bulk import summary
from ckptconv.bulk.ledger import LONGEST, MOST, LedgerEntry
from ckptconv.checkpoint import Note

LEFT_OUT = {  # options, and what is said: kind, cause, what
    "damage": (["--keep-going"], 1, "damaged", "does not match the file's own checksums", "good"),
    "a cast": (["--dtype", "float16"], 0, "lossy", "values did not survive the cast",
               "in 1 tensor, 1 value became infinite or NaN and 1 became zero: big"),
    "strings": (["--to", "safetensors", "--skip-unrepresentable"], 0, "dropped", "", "words"),
}  # fmt: skip


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_is_left_out_or_changed_is_said(what: str, cli: Run, tmp_path: Path) -> None:
    options, code, kind, cause, concerned = LEFT_OUT[what]
    made: dict[str, Any] = {"good": np.arange(50, dtype="f4"), "other": np.ones(3, "f4")}
    made |= {"big": np.array([1e6, 1, 1e-9], "f4")} if what == "a cast" else {}
    made |= {"words": np.array([b"a", b"bc"], object)} if what == "strings" else {}
    (tmp_path / "in").mkdir()
    ckptconv.save(made, tmp_path / "in" / ("m.ckpt" if what == "strings" else "m.npz"))
    if what == "damage":
        raw = bytearray((tmp_path / "in" / "m.npz").read_bytes())
        raw[raw.find(made["good"].tobytes()) + 5] ^= 0xFF
        (tmp_path / "in" / "m.npz").write_bytes(raw)
    line = ["zoo", "in", "-o", "out", "-j", "1", *options]
    done = cli(*line)
    assert done.returncode == code, done.stderr
    first, *rest = done.stderr.split("\n")
    assert first.startswith(f"{kind}: 1 checkpoint: {cause}")
    assert rest[0] == f"  in/m.npz: {concerned}" if code else first.endswith(f": {concerned})")
    assert (", 0 failed, 1 damaged; " in done.stderr) == bool(code)
    for again in (cli(*line, "--resume", "--json"), cli("zoo", "status", "out", "--json")):
        told = json.loads(again.stdout)
        assert told["damaged"] == code
        if code or "ledgers" in told:
            assert [(r["kind"], r["checkpoints"]) for r in told["remarks"]] == [(kind, 1)]
    assert cli(*line, "--resume", "--quiet").returncode == code
    assert first in cli("zoo", "status", "out").stderr


def test_remarks_are_few_and_brief() -> None:
    notes = [Note("damaged", f"{'why ' * 200} {n}", (f"{'n' * 999}{n}",)) for n in range(99)]  # type: ignore[arg-type]
    notes += [Note("skipped", chr(97 + n) * 3, ("x",)) for n in range(20)] + [Note("hint", "no", ("y",))]
    report = result.Report(("a",), "b", "npz", "npz", 1, 1, 1.0, (), tuple(notes), {"x": (1, 2)}, 0, "none")
    found = summary.remarks_of(report)
    assert [r.kind for r in found] == ["damaged", "lossy", *["skipped"] * (MOST - 2)]
    assert max(len(text) for r in found for text in r) <= LONGEST
    entry = LedgerEntry("a", "done", "/in/a", (), "o", remarks=found)
    assert LedgerEntry.of(json.loads(entry.line())) == entry
    damaged, causes = summary.counted([entry._replace(source=f"/in/{n}") for n in range(1000)])
    assert (damaged, {c.checkpoints for c in causes}) == (1000, {1000})
    assert str(causes[0]).endswith("\n  ... and 995 more")
