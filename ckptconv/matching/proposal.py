"""match(source, target): the proposal for two paths (or a torch module), as a person sees it and as a rule file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import api
from ..api.options import SELECT, names_code, takes
from ..checkpoint import Checkpoint
from ..errors import StorageError, UnsafeCheckpoint, UsageError
from ..messages import fold, listing, many, paragraphs, printable, redacted
from ..output import own
from ..output.destination import OutputFile
from ..output.staging import Output
from ..rules.library import MAX_FILE
from ..storage import files
from ..storage.paths import refuse_remote
from . import search
from .check.inputs import arrays
from .check.prove import Proof, outputs_of, prove
from .pairs import Proposal
from .rules import toml

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.options import MatchOptions


Arrays = api.Path | Mapping[str, Any]
Original = Arrays | Callable[..., Any]
MATCH = (*SELECT, "force", "jobs")
UNPACKED, SMALL = 64, 2**26  # of arrays to check with: their bytes for each byte of the file, and bytes that are few


@dataclass(frozen=True, repr=False)
class Match:
    """The result of `match`: a proposed converter; print() shows how its pairs were found and what to review.

    proposal: the pairs with their evidence, and what has no counterpart. rules: the converter as the text of a rule
    file. proof: whether the module computes the outputs that were given with `check`, and what was changed for that;
    None without `check`.
    """

    proposal: Proposal
    rules: str
    proof: Proof | None = None

    @property
    def doubt(self) -> str:
        """Why the two may not be one model; '' if they are."""
        return self.proposal.doubt

    def __str__(self) -> str:
        return paragraphs(self.lines())

    def lines(self) -> Iterator[str]:
        """What the command line prints: what is known, what is assumed, what to look at and what is left."""
        found = self.proposal
        kinds: Counter[str] = Counter()
        for p in found.pairs:
            evidence = "proved" if p.evidence == "proved" else f"by {p.evidence}"
            kind = evidence if p.sure else "to look at" if p.real else "assumed"
            kinds[kind] += len(p.targets) + len(p.fills)
        found_by = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        yield f"{many(sum(kinds.values()), 'tensor')} of the target found: {found_by}"
        for names, where in ((found.target_only, "source"), (found.source_only, "target")):
            if names:
                yield f"no counterpart in the {where}:\n{listing([str(f) for f in fold(names)])}"
        yield from (f"note: {note}" for note in found.notes)
        if len(self.rules.encode()) > MAX_FILE:
            yield "note: the rules are longer than a rule file may be; match parts of the model with include="
        if self.proof:
            yield from self.proof.lines()

    def __repr__(self) -> str:
        return f"<Match: {next(self.lines())}>"

    def to_json(self) -> dict[str, Any]:
        """The pairs as JSON values."""
        return self.proposal.to_json()


@takes(*MATCH)
def match(
    source: api.Path | Checkpoint,
    target: Any,
    output: api.Path | None = None,
    *,
    values: bool = True,
    check: tuple[Arrays, Original] | None = None,
    **given: Unpack[MatchOptions],
) -> Match:
    """Propose a converter from a source to a target: rules with evidence, for review, and then for `converter=`.

    source: a path or URL, or an open checkpoint. target: the same, a torch module, or the name package.module:callable
    of a function that builds one. If both hold the same values, these decide, bit for bit; otherwise names, shapes and
    the order of modules decide, and what they leave open is marked. `include` and `exclude` apply to both. output: a
    .toml file to write the rules to. values: whether to compare values, or only names and shapes. check: the inputs of
    the module and the outputs of the original for them, each as arrays by name or an .npz file, or as outputs the
    original itself, a function or its name package.module:callable; the module is run, and what is marked is tried
    until it computes the same (`Match.proof`).

    Returns a Match; `Match.doubt` says why the two may not be the same model. Raises UsageError if nothing can be
    proposed or a name leads to no module, StorageError if `output` exists and `force` is not given, MissingExtra for a
    package that the search needs, and what `open` raises.
    """
    how = api.parse_options(given, *MATCH)
    refuse_remote(os.fspath(output or ""), "a rule file")
    if output and os.path.lexists(output) and not how.force:
        raise StorageError("already exists; force=True replaces it", url=os.fspath(output))
    every = how.without("include", "exclude")
    with files.record_stamps() as stamps:
        a = api.prepare([source], every)
        b = _opened(target, every.without("from_", "at", "strip_prefix", "ema"))
    found = search.match(a, b, values=values, workers=how.workers, include=how.include, exclude=how.exclude)

    def propose(order: Sequence[str]) -> Proposal:
        reordered = b.with_tensors({n: b[n] for n in order if n in b})
        return search.match(a, reordered, values=False, include=how.include, exclude=how.exclude)

    proof = _proof(found, a, target, check, propose) if check else None
    found = proof.proposal if proof else found
    names = [printable(_name(side)) for side in (source, target)]
    text = toml(found, " to ".join(names), source=names[0], target=names[1])
    if output:
        read = {*stamps, *a.urls, *b.urls}  # also of what was open before
        own.refuse_source(os.fspath(output), read)
        folder, name = files.split(os.fspath(output))
        raw = text.encode()
        with Output(folder, [OutputFile(name, len(raw))], force=how.force, mode=own.permissions(read)) as out:
            out.write(name, 0, raw)
            out.publish()
    return Match(found, text, proof)


def _proof(
    found: Proposal, source: Checkpoint, target: Any, check: tuple[Arrays, Original],
    propose: Callable[[Sequence[str]], Proposal],
) -> Proof:  # fmt: skip
    """Run the module with the proposal and compare; try alternatives until the outputs agree."""
    if isinstance(target, Checkpoint) or (isinstance(target, str | os.PathLike) and not names_code(os.fspath(target))):
        raise UsageError("check runs a module: the target must be one, or name package.module:callable")
    from ..torch import build, imported

    inputs, original = arrays(_read(check[0]), "input"), check[1]
    if isinstance(original, str) and names_code(original):
        original = imported(original)
    outputs = outputs_of(original, inputs) if callable(original) else _read(original)
    return prove(build(target) if isinstance(target, str) else target, found, source, inputs, outputs, propose=propose)


def _read(given: Any) -> Any:
    """Arrays by name, read if they are a file, which may be a stranger's: what it holds packed is bounded."""
    if not isinstance(given, str | os.PathLike):
        return given
    found = api.open(given)
    size, packed = sum(t.nbytes for t in found.values()), sum(s.size for u in found.urls if (s := files.stat(u)))
    if size > max(UNPACKED * packed, SMALL):
        text = f"its {packed:,} bytes hold arrays of {size:,}, more than {UNPACKED} times as much"
        raise UnsafeCheckpoint(text, url=os.fspath(given))
    return {n: t.numpy() for n, t in found.items()}


def _opened(target: Any, how: api.Options) -> Checkpoint:
    """A checkpoint, or the names and shapes of a module; options that are about the source alone are left out."""
    if isinstance(target, Checkpoint):
        return target
    if isinstance(target, str | os.PathLike) and not names_code(os.fspath(target)):
        return api.opened(os.fspath(target), how)
    if not isinstance(target, str) and not callable(getattr(target, "state_dict", None)):
        raise UsageError(f"target is a path, an open checkpoint or a torch module, not {type(target).__name__}")
    from ..torch import build, outline

    return outline(build(target, meta=True) if isinstance(target, str) else target)


def _name(side: Any) -> str:
    if isinstance(side, str | os.PathLike):
        path = os.fspath(side)
        return os.path.basename(redacted(path).rstrip("/")) or redacted(path)
    return type(side).__name__
