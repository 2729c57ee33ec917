"""What became of a job of comparison.py: nothing if it is done wholly, otherwise what is missing, or "no" and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ckptconv
from ckptconv.checkpoint import Checkpoint

LIMIT = 40  # seconds of a run


class Done(NamedTuple):
    """A run. code: of the process, None if it took too long; peak in MB; folder: in which it worked."""

    code: int | None
    wall: float
    peak: float
    folder: Path

    @property
    def text(self) -> str:
        """What it printed."""
        return (self.folder / "printed").read_text(encoding="utf-8", errors="replace")

    @property
    def out(self) -> Path:
        """The only thing that was written; a name that does not exist if there is none."""
        return next((p for p in sorted(self.folder.iterdir()) if p.name not in ("PWNED", "printed")), Path("nothing"))


Judge = Callable[[Done, Path], str]  # of a run, and the folder of the files


def failed(done: Done) -> str:
    """Why a run gave nothing: its line that begins with error, or its last words."""
    if done.code is None:
        return f"no: not done after {LIMIT} s"
    lines = [line for line in done.text.splitlines() if line.strip(" │╰╯─")] or [f"exit code {done.code}"]
    line = next((line for line in lines if line.startswith("error: ")), lines[-1]).removeprefix("error: ")
    return f"no: {re.sub(r'/[^ :]*/', '', line).strip()[:90]}"


def lost(expected: Checkpoint, got: Checkpoint, rtol: float | None = None) -> str:
    """What the result lacks."""
    kinds: dict[str, int] = {}
    for pair in ckptconv.diff(expected, got, rtol=rtol).pairs:
        kinds[pair.kind] = kinds.get(pair.kind, 0) + 1
    words = [f"{n} {what}" for kind, n in kinds.items() if (what := WRONG[kind])]
    if not kinds and list(got) != list(expected) and expected.format in ("safetensors", "torch"):
        words.append("order of the tensors")
    if missing := [key for key in ("format", "licence") if key in expected.metadata and key not in got.metadata]:
        words.append(f"metadata ({', '.join(missing)})")
    return ", ".join(words)


WRONG = {
    "only_a": "tensors", "only_b": "tensors too many", "renamed": "tensors with other names", "shape": "shapes",
    "dtype": "dtypes", "values": "tensors with other values",
}  # fmt: skip


def joined(folder: Path) -> Checkpoint:
    """All shards of a folder without an index."""
    shards = [ckptconv.open(p) for p in sorted(folder.glob("*.safetensors"))]
    return shards[0].with_tensors({n: t for c in shards for n, t in c.items()})


def gives(source: str, dtype: str = "", rtol: float | None = None) -> Judge:
    """The output holds what the source holds; in another dtype, or within a tolerance."""

    def judge(done: Done, folder: Path) -> str:
        if done.code or done.code is None or not done.out.exists():
            return failed(done)
        expected = ckptconv.open(folder / source)
        whole = done.out.is_file() or any(done.out.glob("*.index.json"))
        index = "" if whole or len([*done.out.glob("*.safetensors")]) == 1 else "the index of the shards"
        got = ckptconv.open(done.out) if whole else joined(done.out)
        if not dtype:
            return ", ".join(filter(None, (index, lost(expected, got, rtol))))
        wrong = [
            n for n, t in expected.items() if n not in got or str(got[n].dtype) != dtype or got[n].shape != t.shape
        ]
        order = "" if list(got) == list(expected) else "order of the tensors"
        return f"{len(wrong)} tensors" if wrong else order

    return judge


def bert(done: Done, folder: Path) -> str:
    """Every tensor of the source is there, as it is or transposed, under the names that transformers has."""
    if done.code or done.code is None or not done.out.exists():
        return failed(done)
    source, got = ckptconv.open(folder / "0.3.ckpt"), ckptconv.open(done.out)
    named = "bert.encoder.layer.0.attention.self.query.weight" in got
    have = {t.numpy().tobytes() for n, t in got.items() if n.startswith("bert.")}
    missing = sum(not {a.tobytes(), a.T.tobytes()} & have for t in source.values() for a in [t.numpy()])
    more = len(got) - len(source)
    words = [
        f"{missing} tensors" * bool(missing),
        "" if named else "names",
        f"{more} tensors that were not there" * (more > 0),
    ]
    return ", ".join(filter(None, words))


def says(*words: str) -> Judge:
    """What is printed has these words. An exit code of 1 tells that something was found."""

    def judge(done: Done, folder: Path) -> str:
        if done.code not in (0, 1):
            return failed(done)
        printed = done.text
        missing = [w for w in words if w not in printed]
        if missing == list(words):
            return "no: does not say it" if done.code == 0 else failed(done)
        return ("does not say " + ", ".join(missing)) if missing else ""

    return judge


def sums_to(source: str, tensor: str) -> Judge:
    """The last thing printed is the sum of a tensor."""

    def judge(done: Done, folder: Path) -> str:
        if done.code != 0:
            return failed(done)
        expected = float(ckptconv.open(folder / source)[tensor].numpy().sum(dtype="f8"))
        return "" if abs(float(done.text.split()[-1]) - expected) < 1e-6 * abs(expected) else "no: another sum"

    return judge


def refuses(*words: str) -> Judge:
    """An exit code other than 0 and one of these words, nothing written, and no code of the file was run."""

    def judge(done: Done, folder: Path) -> str:
        if (done.folder / "PWNED").exists():
            return "no: **runs the code in the file**"
        if done.code == 0 and not any(w in done.text for w in words):
            return "no: accepts it"
        if done.out.exists():
            return f"no: leaves {done.out.stat().st_size / 1e6:.0f} MB that look like a result"
        if not any(w in done.text for w in words):
            return "does not say why"
        return "" if done.code else "exit code 0"

    return judge
