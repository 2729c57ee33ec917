"""The journal of a conversion by itself: what it takes up, refuses and forgets, and which plans it tells apart."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ckptconv
from ckptconv.checkpoint import Checkpoint, contiguous
from ckptconv.dtypes import DTYPES
from ckptconv.engine import journal
from ckptconv.engine.job import Receipt
from ckptconv.engine.journal import Journal, fingerprint
from ckptconv.engine.plan import Budget, Plan, compile_plan
from ckptconv.errors import CkptError, StorageError
from ckptconv.formats import safetensors
from ckptconv.formats.placement import Patch
from ckptconv.moves.log import Loss, Read, Written
from ckptconv.moves.part import Coded, Part, Piece, Span
from ckptconv.moves.sources import Sources

BUDGET = Budget(limit=1 << 20, workers=1, window=64, whole=96)
JOURNAL, STAGE = ".m.safetensors.resume.journal", ".m.safetensors.resume.part"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Three jobs, one for each tensor of a file."""
    (tmp_path / "source").write_bytes(bytes(range(180)))
    spans = [Span(str(tmp_path / "source"), 60 * i, 60, f"crc32:{i:08x}") for i in range(3)]
    tensors = {f"t{i}": contiguous(f"t{i}", DTYPES["float32"], (15,), span) for i, span in enumerate(spans)}
    folder, checkpoint = tmp_path / "out", Checkpoint(tensors)
    folder.mkdir()
    made = compile_plan(checkpoint, safetensors.writer("m.safetensors").place(checkpoint), str(folder), BUDGET)
    assert len(made.jobs) == 3
    return made


@pytest.fixture
def sources() -> Iterator[Sources]:
    with Sources() as s:
        yield s


class Out:
    """A destination that records what becomes durable, and how many lines the journal has by then."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[int]()

    def fsync(self) -> None:
        self.lines.append(self.path.read_bytes().count(b"\n"))


def receipts(plan: Plan) -> list[Receipt]:
    """Receipts with all that there can be: several ranges, digests, what was read, what was lost."""
    out = []
    for i, job in enumerate(plan.jobs):
        (piece,) = job.pieces
        span = piece.parts[0].data
        assert isinstance(span, Span)
        written = (Written(piece.tensor, 0, 28, 2**32 - 1 - i, (b"\0" * 16, b"\xff" * 16)), Written("t", 28, 32, 7, ()))
        read = (Read(span, 4 * i, 56, 11 + i, ()), Read(span, 8, 16, 0, (b"\x01\x80" * 8,)))
        out.append(Receipt(job, written, read[: i + 1], {piece.tensor: Loss(i, 3)} if i else {}))
    return out


def marked(stage: Path) -> None:
    """A temporary folder as a run makes it, which has written half of its file."""
    stage.mkdir()
    (stage / "m.safetensors").write_bytes(b"half")


def stopped(plan: Plan, sources: Sources, *, publish: bool = False) -> Path:
    """A run that did two jobs of three and was stopped; its journal."""
    path = Path(plan.folder, JOURNAL)
    stage = Path(plan.folder, STAGE)
    with Journal(plan, sources, digest=False) as j:
        marked(stage)
        for receipt in receipts(plan)[:2]:
            j.add(receipt, Out(path))  # type: ignore[arg-type]
        j.commit(Out(path))  # type: ignore[arg-type]
        if publish:
            j.publish(Out(path))  # type: ignore[arg-type]
            (stage / "m.safetensors").unlink()  # it was renamed
    return path


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMMIT", 0.0)


def test_the_journal_of_a_run_is_as_documented(plan: Plan, sources: Sources) -> None:
    path = stopped(plan, sources, publish=True)
    head, one, two, last = map(json.loads, path.read_bytes().splitlines())
    assert head == {"plan": fingerprint(plan, sources, False), "file": [path.stat().st_dev, path.stat().st_ino]}
    job = plan.jobs[0]
    digests = ["00" * 16, "ff" * 16]
    assert one == {"jobs": [[
        job.file, job.start, [["t0", 0, 28, 2**32 - 1, digests], ["t", 28, 32, 7, []]], [[0, 0, 56, 11, []]], {},
    ]]}  # fmt: skip
    assert [row[-1] for row in two["jobs"]] == [{"t1": [1, 3]}]
    assert last == {"publish": True}
    assert os.stat(path).st_mode & 0o777 == 0o600


TAIL = [
    # what is done to the lines, receipts that are taken up, whether only renaming is left, lines that stay
    (lambda raw: raw, 2, False, 3),
    (lambda raw: [*raw, b'{"publish":true}\n'], 2, True, 4),
    (lambda raw: [raw[0], b'{"publish":true}\n', *raw[1:]], 2, True, 4),
    (lambda raw: [*raw, b'{"publish":true}\n', b'{"publish":false}\n'], 2, True, 5),
    (lambda raw: [*raw, b'{"publish":false}\n'], 2, False, 4),
    (lambda raw: [*raw, b'{"other":1}\n'], 2, False, 4),
    (lambda raw: [*raw[:2], raw[2][:-1]], 1, False, 2),
    (lambda raw: [*raw[:2], raw[2][:9]], 1, False, 2),
    (lambda raw: [*raw, b'{"jobs":[['], 2, False, 3),
    (lambda raw: [*raw[:2], b"\xff\n", raw[2]], 1, False, 2),
    (lambda raw: [*raw[:2], b"[1]\n", raw[2]], 1, False, 2),
    (lambda raw: [*raw[:2], b"[" * 100_000 + b"\n", raw[2]], 1, False, 2),
    (lambda raw: raw[:1], 0, False, 1),
    (lambda raw: [raw[0][:-1]], 0, False, 1),  # the head has no end: written again
    (lambda raw: [], 0, False, 1),
    (lambda raw: [b'{"pl'], 0, False, 1),
    (lambda raw: [b'{"plan":"0123","files":["m.safetensors"]}\n', *raw[1:]], 0, False, 1),
    (lambda raw: [b'{"plan":"0123"}\n', b'{"publish":true}\n'], 0, False, 1),
    (lambda raw: [b'{"plan":"0123","files":["a/../../b","\\u0000",{},["a"]]}\n'], 0, False, 1),
]  # fmt: skip


@pytest.mark.parametrize(("change", "count", "publishing", "lines"), TAIL)
def test_what_is_taken_up(plan: Plan, sources: Sources, change: Any, count: int, publishing: bool, lines: int) -> None:
    path = stopped(plan, sources)
    before = path.read_bytes().splitlines(keepends=True)
    changed = change(before)
    path.write_bytes(b"".join(changed))
    if publishing:  # it was renamed
        Path(plan.folder, STAGE, "m.safetensors").unlink()
    with Journal(plan, sources, digest=False) as j:
        assert j.receipts == receipts(plan)[:count]
        assert j.publishing is publishing
    assert path.read_bytes().splitlines(keepends=True) == [before[0], *changed[1:lines]]


@pytest.mark.parametrize("text", [b"precious", b'{"plan": "', b"\n", b'{"PLAN":"x"}\n', b'[]\n{"plan":"'])
def test_a_file_that_is_no_journal_stays(plan: Plan, sources: Sources, text: bytes) -> None:
    path = Path(plan.folder, JOURNAL)
    path.write_bytes(text)
    for force in (False, True, False):  # again: the first let the lock go
        with pytest.raises(StorageError, match="is not a journal of ckptconv, which belongs here; move it away") as e:
            Journal(plan, sources, digest=False, force=force)
        assert e.value.url == str(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("there", "journal_of", "publish", "force", "free"),
    [
        (False, "none", False, False, True),
        (True, "none", False, False, False),
        (True, "none", False, True, True),
        (True, "this", False, False, False),
        (True, "this", False, True, True),
        (True, "this", True, False, True),  # it was renamed, and what follows failed
        (True, "other", True, False, False),
        (True, "other", True, True, True),
        (False, "this", False, False, True),
        (False, "other", False, False, True),
    ],
)
def test_a_destination_that_is_taken(
    plan: Plan, sources: Sources, there: bool, journal_of: str, publish: bool, force: bool, free: bool
) -> None:
    path, final = Path(plan.folder, JOURNAL), Path(plan.folder, "m.safetensors")
    if journal_of != "none":
        stopped(plan, sources, publish=publish)
    if there:
        final.write_bytes(b"old")
    mine = plan if journal_of != "other" else replace(plan, memory=replace(BUDGET, whole=97))
    before = path.read_bytes() if path.exists() else None
    if not free:
        with pytest.raises(StorageError, match="already exists; force=True replaces it"):
            Journal(mine, sources, digest=False, force=force)
        assert (path.read_bytes() if path.exists() else None) == before
        return
    with Journal(mine, sources, digest=False, force=force) as j:
        assert len(j.receipts) == (2 if journal_of == "this" else 0)
        assert j.publishing is (publish and journal_of == "this")
    assert not there or final.read_bytes() == b"old"


@pytest.mark.parametrize("publish", [False, True])
def test_without_its_parts_a_run_starts_over_unless_they_were_renamed(
    plan: Plan, sources: Sources, publish: bool
) -> None:
    stopped(plan, sources, publish=publish)
    Path(plan.folder, STAGE, "m.safetensors").unlink(missing_ok=True)
    with Journal(plan, sources, digest=False) as j:
        assert (len(j.receipts), j.publishing) == ((2, True) if publish else (0, False))


def copied(stage: Path, path: Path) -> None:
    """What a tar or cp makes of it: the same bytes in other files."""
    os.replace(path, f"{path}.was")
    shutil.copyfile(f"{path}.was", path)


def renumbered(stage: Path, path: Path) -> None:
    head, *rest = path.read_bytes().splitlines(keepends=True)
    made = json.loads(head)
    made["file"][1] += 1
    path.write_bytes(b"".join([json.dumps(made, separators=(",", ":")).encode() + b"\n", *rest]))


STRANGERS: dict[str, Any] = {
    "a copy of the journal": copied,
    "another number": renumbered,
}


@pytest.mark.parametrize("publish", [False, True])
@pytest.mark.parametrize("how", STRANGERS)
def test_what_is_not_proved_to_be_ours_is_done_again(plan: Plan, sources: Sources, how: str, publish: bool) -> None:
    """A stranger may know the plan, and so its fingerprint: the source is his, or on a server that anybody can ask."""
    path, stage = stopped(plan, sources, publish=publish), Path(plan.folder, STAGE)
    (stage / "m.safetensors").write_bytes(b"his")
    STRANGERS[how](stage, path)
    with Journal(plan, sources, digest=False) as j:
        assert (list(j.receipts), j.publishing) == ([], False)


def test_one_run_at_a_time(plan: Plan, sources: Sources, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    busy = pytest.raises(StorageError, match="another run is writing this destination")
    with Journal(plan, sources, digest=False), busy:
        Journal(plan, sources, digest=False)
    Journal(plan, sources, digest=False).close()
    (tmp_path / "source").unlink()
    for _ in range(2):
        with pytest.raises(CkptError, match="source"):
            Journal(plan, sources_again := Sources(), digest=False)
        sources_again.close()


def test_a_destination_that_cannot_be_is_refused_even_by_force(plan: Plan, sources: Sources) -> None:
    Path(plan.folder, "m.safetensors").mkdir()
    with pytest.raises(StorageError, match="is a folder; only a regular file is replaced"):
        Journal(plan, sources, digest=False, force=True)
    assert not Path(plan.folder, JOURNAL).exists()


# --- fingerprints -------------------------------------------------------------------------------------------------


def first(plan: Plan, **changed: Any) -> Plan:
    """The plan with something else in the only part of its first job."""
    job, *rest = plan.jobs
    piece: Piece = job.pieces[0]
    part = piece.parts[0]._replace(**{k: v for k, v in changed.items() if k in Part._fields})
    piece = piece._replace(parts=(part,), **{k: v for k, v in changed.items() if k in Piece._fields})
    job = job._replace(pieces=(piece,), **{k[4:]: v for k, v in changed.items() if k.startswith("job_")})
    return replace(plan, jobs=(job, *rest))


def test_plans_that_write_other_bytes_have_other_fingerprints(
    plan: Plan, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, span = plan.placement, plan.jobs[0].pieces[0].parts[0].data
    slot = place.slots["t0"]
    plans = {
        "the plan": plan, "offset": first(plan, offset=1), "operation": first(plan, ops=("swap",)),
        "tensor": first(plan, tensor="\ud800"), "check": first(plan, data=span._replace(check="")),
        "coded": first(plan, data=Coded("m", span.url, "\ud800", 60)),
        "payload": replace(plan, placement=place._replace(slots=place.slots | {"t0": slot._replace(payload=b"a")})),
        "patches": replace(plan, placement=place._replace(patches=[*place.patches, Patch("m.safetensors", 0, b"")])),
        "metadata": replace(plan, metadata={"a": "b"}), "memory": replace(plan, memory=replace(BUDGET, window=65)),
    }  # fmt: skip
    prints = {name: fingerprint(p, sources, False) for name, p in plans.items()}
    assert fingerprint(plan, sources, False) == prints["the plan"]
    prints["digest"] = fingerprint(plan, sources, True)
    os.utime(tmp_path / "source", (1, 1))
    with Sources() as now:
        prints["another date"] = fingerprint(plan, now, False)
        monkeypatch.setattr(ckptconv, "__version__", "0.0.1")
        prints["another version"] = fingerprint(plan, now, False)
    assert len(set(prints.values())) == len(prints)
