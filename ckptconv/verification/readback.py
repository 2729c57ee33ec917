"""Before publication: open the output with the format's own reader and compare it with the plan.

    confirm(plan, outcome, ...)     headers always; with `full` every byte, by the digests that the jobs computed

Separate from compare.py because it always runs, and does not need numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..checkpoint import Checkpoint, Tensor
from ..engine.plan import Plan
from ..engine.run import Outcome
from ..errors import FormatError, StorageError, VerifyError
from ..formats import detect
from ..formats.table import Format
from ..messages import fold, listing, many
from ..moves.read import hash_tensor
from ..moves.sources import Sources


def unlike(expected: Mapping[str, Tensor], got: Checkpoint) -> dict[str, str]:
    """The tensors whose name, dtype or shape is not as expected, with a description."""
    wrong = {}
    for name, t in expected.items():
        back = got.tensors.get(name)
        if back is None:
            wrong[name] = "missing"
        elif (back.dtype, back.shape) != (t.dtype, t.shape):
            wrong[name] = f"{back.dtype}{list(back.shape)} instead of {t.dtype}{list(t.shape)}"
    return wrong


def listed(wrong: Mapping[str, str]) -> str:
    """A listing of tensors with reasons, folded by pattern."""
    alike = defaultdict(list)
    for name, why in wrong.items():
        alike[" ".join(why.split())].append(name)  # a reason may be several lines
    return listing(f"{line}: {why}" for why, names in alike.items() for line in fold(names))


def confirm(made: Plan, outcome: Outcome, url: str, row: Format, *, full: bool, at: str = "") -> None:
    """Open the output with the format's own reader and check names, dtypes and shapes, and with `full` every byte.

    at: the location of the output until it is published at `url`. VerifyError lists all tensors that differ.
    """
    if not row.reads:
        return
    state = "; nothing is published" if at else ""
    try:
        got = detect.open_checkpoint(at or url, format=row.name)
        if row.proves:
            row.load().prove(got)
        wrong = _wrong(made, outcome, got, full=full)
    except (FormatError, StorageError) as e:
        # what the system refuses is no fault of the output; a name in it that leads nowhere is
        kind = StorageError if isinstance(e.__cause__, OSError) else VerifyError
        raise kind(f"the output cannot be read back{state}: {e.message}", url=url) from e
    if wrong:
        text = f"does not read back as written in {many(len(wrong), 'tensor')}{state}:\n{listed(wrong)}"
        raise VerifyError(text, url=url)


def _wrong(made: Plan, outcome: Outcome, got: Checkpoint, *, full: bool) -> dict[str, str]:
    got = made.placement.named(got)
    wrong = unlike(made.tensors, got)
    if not wrong and full:
        slots = made.placement.slots
        owner = {slots[n]: n for n in outcome.digests if slots[n].size}  # tied tensors are written once
        with Sources() as sources:
            for name, slot in slots.items():
                digest = outcome.digests.get(name) or outcome.digests.get(owner.get(slot, name))
                if digest and hash_tensor(got.tensors[name], sources) != digest:
                    wrong[name] = "its bytes differ from those that were written"
    return wrong
