"""Before it is published: open what was written with the format's own reader, and compare it with what was meant.

    confirm(plan, outcome, ...)     headers always; with `full` every byte, by the digests that the jobs took

Apart from verify.py because it runs always, and needs no numpy.
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
from ..messages import fold, listing
from ..moves.read import hash_tensor
from ..moves.sources import Sources


def unlike(expected: Mapping[str, Tensor], got: Checkpoint) -> dict[str, str]:
    """Names, dtypes and shapes that are not as expected, and how they are."""
    wrong = {}
    for name, t in expected.items():
        back = got.tensors.get(name)
        if back is None:
            wrong[name] = "missing"
        elif (back.dtype, back.shape) != (t.dtype, t.shape):
            wrong[name] = f"{back.dtype}{list(back.shape)} instead of {t.dtype}{list(t.shape)}"
    return wrong


def listed(wrong: Mapping[str, str]) -> str:
    """What is wrong, folded by pattern."""
    alike = defaultdict(list)
    for name, why in wrong.items():
        alike[why].append(name)
    return listing(f"{line}: {why}" for why, names in alike.items() for line in fold(names))


def confirm(made: Plan, outcome: Outcome, url: str, row: Format, *, full: bool, at: str = "") -> None:
    """Open what was written with the format's own reader: names, dtypes and shapes, and with `full` every byte.

    at: where it lies until it is published at `url`.
    """
    if not row.reads:
        return
    kept = "; nothing was published" if at else ""
    try:
        got = detect.open_checkpoint(at or url, format=row.name)
        if row.proves:
            row.load().prove(got)
        wrong = _wrong(made, outcome, got, full=full)
    except FormatError as e:
        raise VerifyError(f"what was written cannot be read back{kept}: {e.message}", url=url) from e
    except StorageError as e:
        raise StorageError(f"what was written cannot be read back{kept}: {e.message}", url=url) from e
    if wrong:
        raise VerifyError(f"{len(wrong)} tensors do not read back as written{kept}:\n{listed(wrong)}", url=url)


def _wrong(made: Plan, outcome: Outcome, got: Checkpoint, *, full: bool) -> dict[str, str]:
    got = made.placement.named(got)
    wrong = unlike(made.tensors, got)
    if not wrong and full:
        slots = made.placement.slots
        owner = {slots[n]: n for n in outcome.digests if slots[n].size}  # what is tied was written once
        with Sources() as sources:
            for name, slot in slots.items():
                digest = outcome.digests.get(name) or outcome.digests.get(owner.get(slot, name))
                if digest and hash_tensor(got.tensors[name], sources) != digest:
                    wrong[name] = "other bytes than were written"
    return wrong
