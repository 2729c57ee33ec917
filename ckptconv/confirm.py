"""After every conversion: open what was written with the format's own reader, and compare it with what was meant.

    confirm(plan, outcome, ...)     headers always; with `full` every byte, by the digests that the jobs took

Apart from verify.py because it runs always, and needs no numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from . import formats
from .errors import VerifyError, listing
from .formats import Format
from .job import Sources
from .names import fold
from .plan import Plan
from .run import Outcome, hash_tensor
from .tensor import Checkpoint, Tensor


def written(row: Format, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The names that tensors have when the format reads them back, where these are others."""
    module = row.load()
    return dict(module.names_written(tensors)) if hasattr(module, "names_written") else {}


def unlike(expected: Mapping[str, Tensor], got: Checkpoint, names: Mapping[str, str]) -> dict[str, str]:
    """Names, dtypes and shapes that are not as expected, and how they are."""
    wrong = {}
    for name, t in expected.items():
        back = got.tensors.get(names.get(name, name))
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


def confirm(made: Plan, outcome: Outcome, url: str, row: Format, *, full: bool) -> None:
    """Open what was written with the format's own reader: names, dtypes and shapes, and with `full` every byte."""
    if not row.reads:
        return
    got = formats.open_checkpoint(url, format=row.name)
    names = written(row, made.tensors)
    wrong = unlike(made.tensors, got, names)
    if not wrong and full:
        with Sources() as sources:
            for name, digest in outcome.digests.items():
                if hash_tensor(got.tensors[names.get(name, name)], sources) != digest:
                    wrong[name] = "other bytes than were written"
    if wrong:
        raise VerifyError(f"{len(wrong)} tensors do not read back as written:\n{listed(wrong)}", url=url)
