"""inspect(path): the tensors of a checkpoint with their properties, in a chosen order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import api
from ..api.options import SELECT, Path, takes
from ..api.reading import url_of
from ..checkpoint import Checkpoint, Tensor, in_size, uncollected
from ..errors import UsageError
from ..messages import brief, in_digits, in_shape, many, redacted, table
from ..moves.read import each, hash_tensor
from ..rules import passes
from ..storage.lookups import once
from . import outline
from .outline import GraphVariables, Totals

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import ReadOptions, Select
    from .checks import Finding


@dataclass(frozen=True, repr=False)
class Inspection:
    """The result of `inspect`; print() shows it as a table.

    url: the path. checkpoint: what was opened. tensors: in the requested order. totals: `tensors`, `bytes`,
    `parameters` (of weights), `all` (elements of all tensors), `roles` (tensors by role) and `dtypes` (bytes by dtype).
    extra: the columns of `stats` and `hashes`, by tensor name and column. graph: the variables that a graph or Keras
    configuration lists, compared with the tensors; None if there is none, or it was not requested. findings: what the
    checks found, the most serious first; None if they were not requested.
    """

    url: str
    checkpoint: Checkpoint
    tensors: tuple[Tensor, ...]
    totals: Totals
    extra: Mapping[str, Mapping[str, Any]]
    graph: GraphVariables | None = None
    findings: tuple[Finding, ...] | None = None

    @property
    def sound(self) -> bool:
        """True if the checks found nothing but notes."""
        return all(f.severity == "note" for f in self.findings or ())

    def __str__(self) -> str:
        """The tensors with their columns, and the sum; of checks, the findings."""
        if self.findings is not None:
            found = [(f.severity, f.check, f.tensor, f.text) for f in self.findings]
            head = [*table(("severity", "check", "name", "what"), found, "llll")] if found else []
            return "\n".join([*head, self._counts()])
        more = list(next(iter(self.extra.values()), ()))
        rows = [
            (t.name, t.dtype.name, in_shape(t.shape), f"{t.count:,}", in_size([t]), t.role,
             *(in_digits(self.extra[t.name][k]) for k in more))
            for t in self.tensors
        ]  # fmt: skip
        titles = ("name", "dtype", "shape", "parameters", "size", "role", *more)
        return "\n".join([*table(titles, rows, "lllrrl" + "r" * len(more)), self._sum()])

    def __repr__(self) -> str:
        return f"<Inspection {self._sum()}>"

    def _counts(self) -> str:
        kinds = Counter(f.severity for f in self.findings or ())
        counts = ", ".join(many(n, kind) for kind, n in kinds.items())
        return f"{many(self.totals.tensors, 'tensor')} checked: {counts or 'nothing found'}"

    def _sum(self) -> str:
        return f"{self.checkpoint.format}: {self.totals.size}, {self.totals.parameters:,} parameters in weights"

    def to_json(self) -> dict[str, Any]:
        """The inspection as JSON values."""
        rows = [
            {
                "name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "parameters": t.count, "bytes": t.nbytes,
                "role": t.role, **self.extra.get(t.name, {}),
            }
            for t in self.tensors
        ]  # fmt: skip
        c = self.checkpoint
        found = None if self.findings is None else [{"severity": f.severity, **asdict(f)} for f in self.findings]
        return {
            "url": redacted(self.url), "format": c.format, "totals": self.totals._asdict(), "tensors": rows,
            "metadata": c.metadata, "ties": c.ties,
            "notes": [n.to_json() for n in c.notes if n.kind != "dropped"],
            **({} if found is None else {"findings": found}),
        }  # fmt: skip


@takes(*SELECT, "jobs")
@once()
@uncollected()
def inspect(
    path: Path | Checkpoint,
    *,
    stats: bool = False,
    hashes: bool = False,
    graph: bool = False,
    check: bool = False,
    limit: str | Sequence[str] = (),
    reference: Path | Checkpoint | None = None,
    sort: str | None = None,
    **given: Unpack[ReadOptions],
) -> Inspection:
    """List the tensors of a checkpoint: names, dtypes, shapes, sizes in bytes and roles. Only headers are read.

    path: a path or URL, or an open checkpoint. stats: also minimum, maximum, mean, standard deviation, zeros, NaN and
    infinities of each tensor; hashes: also a content hash, which is the same for equal tensors in any format; both read
    all values. graph: also the variables that a graph or a Keras configuration lists. check: also look for NaN,
    outliers, dead and equal tensors and the like (docs/inspect.md); limit: the limits of the checks, as in
    ["outliers=20", "spike=off"]; reference: a checkpoint, such as an earlier one of the same run, against which names,
    shapes, steps and standard deviations are checked too. sort: name, size, parameters, dtype, shape or role; a leading
    `-`, as in `-size`, reverses the order. The other options select tensors, as in `open`.

    Raises UsageError for an unknown `sort` or `limit`, and what `open` raises.
    """
    select, _, _, resources = api.bundle(given, *SELECT, "jobs")
    checkpoint = api.opened(path, select)
    tensors = outline.ordered(checkpoint.tensors.values(), sort) if sort else list(checkpoint.tensors.values())
    extra = _extra(tensors, stats, hashes, resources.workers)
    variables = outline.graph(checkpoint) if graph else None
    checked = check or limit or reference is not None
    other = _reference(reference, select) if reference is not None else None
    found = _found(checkpoint, limit, resources.workers, other) if checked else None
    return Inspection(url_of(path), checkpoint, tuple(tensors), outline.totals(checkpoint), extra, variables, found)


def _reference(path: Path | Checkpoint, select: Select) -> Checkpoint:
    """The selected tensors of the reference, which may lack all of them."""
    whole = api.opened(path, replace(select, format=None, at=None, include=(), exclude=()))
    wanted = passes.wanted(select.include, select.exclude)
    return replace(whole, tensors={n: t for n, t in whole.items() if wanted(n)})


def _extra(tensors: list[Tensor], stats: bool, hashes: bool, workers: int) -> dict[str, dict[str, Any]]:
    """The columns that need the values, by tensor name."""
    if not stats and not hashes:
        return {}
    from .stats import stats as measured

    out: dict[str, dict[str, Any]] = {t.name: {} for t in tensors}
    if stats:
        for t, row in zip(tensors, each(tensors, measured, workers), strict=True):
            out[t.name] |= row._asdict()
    if hashes:
        for t, digest in zip(tensors, each(tensors, hash_tensor, workers), strict=True):
            out[t.name]["hash"] = digest
    return out


def _found(
    c: Checkpoint, limit: str | Sequence[str], workers: int, reference: Checkpoint | None
) -> tuple[Finding, ...]:
    from . import checks

    wanted = [limit] if isinstance(limit, str) else limit
    if not (isinstance(wanted, Iterable) and all(isinstance(text, str) for text in wanted)):
        raise UsageError(f"a limit is a text such as 'outliers=20', not {brief(repr(limit), 100)}")
    known = checks.limits(wanted)
    return tuple(checks.check(c, known, workers=workers, reference=reference))


@takes(*SELECT, "jobs")
def check(
    path: Path | Checkpoint,
    *,
    limit: str | Sequence[str] = (),
    reference: Path | Checkpoint | None = None,
    **given: Unpack[ReadOptions],
) -> Inspection:
    """Read all values and look for what is wrong, as `inspect` does if it is asked to check.

    path: a path or URL, or an open checkpoint. limit: the limits of the checks, as in ["outliers=20", "spike=off"].
    reference: an earlier checkpoint of the same run. The other options select tensors, as in `open`.

    Returns an Inspection: `findings`, the most serious first, and `sound`, true if there are only notes; print() shows
    them. Raises UsageError for an unknown `limit`, and what `open` raises.
    """
    return inspect(path, check=True, limit=limit, reference=reference, **given)


__all__ = ["Inspection", "check", "inspect"]
