"""Compare two checkpoints, or a result with what it should be, or a checkpoint with its own checksums."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint, Note
from ..errors import UsageError, VerifyError
from ..formats import detect, table
from ..formats.keras import order
from ..formats.own_metadata import OPTIONS, verified_hashes
from ..messages import brief, listing, printable
from ..rules import names, passes
from .options import CHANGE, SELECT, Options, Path, Source, non_default, path as text, takes
from .reading import apply_changes, apply_selection, list_of, open_merged, open_source, open_whole, prepare
from .result import Verified
from .writing import MADE_WITH, without_unheld

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..verification.difference import Diff
    from .keywords import ConvertOptions, ReadOptions

READ = (*SELECT, *CHANGE, "jobs")
VERIFY = (*MADE_WITH, "jobs")


@takes(*READ)
def diff(
    a: Source,
    b: Source,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    **given: Unpack[ReadOptions],
) -> Diff:
    """Compare two checkpoints of any formats: bit for bit, or within a tolerance.

    a, b: paths, URLs, open checkpoints or dicts of arrays. Options that change names, layouts and dtypes are applied to
    `a` before the comparison, as are `at` and `ema`; strip_prefix to the side that has such names, or both. Without a
    converter, `include` and `exclude` select from both; with one, they select from `a`, and tensors that only `b` has
    are not differences. rtol, atol: values are equal if |a - b| <= atol + rtol |b|; a different dtype alone is then not
    a difference. Without them, values are compared bit for bit.

    Returns a Diff: `same`, `equal` (the number of equal tensors), `pairs` (the differences), `damaged` (what
    `keep_going` left out) and `unread` (tensors that no reader looks at, in files that are not the same byte for byte):
    with either they are not the same. `beside` is what the files have that is not a tensor, and is not compared.
    print() shows it as a table, and `by("layer")` sums the changes of layers. Raises UsageError for a negative
    tolerance, and what `open` and the conversion raise.
    """
    from ..verification import compare, difference

    how = Options(**given)
    source, left, right = sides(a, b, how)
    found = compare.diff(left, right, difference.Tolerance(rtol, atol), workers=how.workers)
    told = sided(left.notes, right.notes)
    tensors, others = compare.unread_notes(source, right)
    return replace(
        found,
        damaged=tuple(n for n in told if n.kind == "damaged"),
        unread=tensors,
        beside=(*others, *advice(found, told, how)),
    )


def sides(a: Source, b: Source, how: Options) -> tuple[Checkpoint, Checkpoint, Checkpoint]:
    """What `a` holds, what the options make of it, and what of `b` is compared with that."""
    source = open_merged([a], how.without("strip_prefix"))
    right = open_source(b, how.without("from_", "at", "strip_prefix", "include", "exclude", "ema"))
    source, right = stripped([source, right], how.strip_prefix)
    left = apply_changes(source, how)
    if how.include or how.exclude:
        renames = how.converter or how.rename or how.rename_regex or how.strip_prefix
        wanted = (lambda n: n in left) if renames else passes.selector(how.include, how.exclude)
        notes = passes.notes_after_renaming(right.notes, lambda n: n * wanted(n), some=bool(how.include))
        right = replace(right, notes=notes).with_tensors({n: t for n, t in right.items() if wanted(n)})
    return source, left, right


def sided(left: Iterable[Note], right: Iterable[Note]) -> list[Note]:
    """The notes of both, which say of which they are."""
    return [n._replace(text=f"in {side}: {n.text}") for side, notes in (("A", left), ("B", right)) for n in notes]


def advice(found: Diff, told: Iterable[Note], how: Options) -> Iterator[Note]:
    """What tells more of names that differ: the hints among the notes on both, or one on how to compare them."""
    kinds = {p.kind for p in found.pairs}
    hints = [n for n in told if n.kind == "hint" and kinds & {"only_a", "only_b", "renamed"}]
    if kinds and (how.at or how.ema):
        yield Note("hint", "at= and ema= are applied to A alone; to apply them to B, convert B with them first")
    if hints:
        yield from hints
    elif kinds == {"renamed"}:
        yield Note("hint", "only names differ; `match` proposes the rules that lead from A to B")
    elif kinds >= {"only_a", "only_b"} and not how.converter and not found.equal:
        yield Note("hint", "if these are other names, `match` proposes rules; converter='auto' needs one that fits A")


def stripped(checkpoints: Sequence[Checkpoint], prefixes: Sequence[str]) -> list[Checkpoint]:
    """Checkpoints without these prefixes, which some may lack, the last with hints; UsageError if all lack them."""
    made, wrong = [*checkpoints], list[UsageError]()
    for i, side in enumerate(checkpoints if prefixes else ()):
        try:
            made[i] = names.strip_prefixes(side, prefixes)
        except UsageError as e:
            wrong.append(e)
    if len(wrong) == len(made):
        raise wrong[0]
    return [*made[:-1], names.add_hints(made[-1])]


@takes(*VERIFY, listed=False)
def verify(
    sources: Source | Sequence[Source], destination: Path | None = None, **given: Unpack[ConvertOptions]
) -> Verified:
    """Derive a conversion again and compare its result with the destination, bit for bit.

    sources, destination: as in `convert`; give the options of that conversion. Without a destination, the source is
    read completely and compared with its own checksums and hashes; then only options that select apply.

    Returns a Verified: the numbers of tensors, hashes and checksums, and notes on what was not compared. VerifyError
    lists the tensors that differ, and the first index. UsageError for options of a conversion without a destination,
    and what reading raises.
    """
    from ..verification import readback

    how, many = Options(**given), list_of(sources)
    if destination is not None:
        return _derived(many, text(destination), how)
    if unused := [k for k in given if k in CHANGE or k == "skip_unrepresentable"]:
        raise UsageError(f"only a conversion has {', '.join(f'{k}=' for k in unused)}; give its source and its result")
    if len(many) != 1:
        raise UsageError("several sources are verified with the result of their conversion: verify(sources, result)")
    source = text(many[0])
    found = open_whole(source, how)
    chosen = apply_selection(found, how.without("keep_going"))  # which only opens what is cut: nothing is left out here
    lost = listing(str(n) for n in chosen.notes if n.kind == "damaged")
    try:
        counts = readback.check(chosen, verified_hashes(found), workers=how.workers)
    except VerifyError as e:
        e.message += f"\n{lost}" * bool(lost)
        raise
    if lost:
        raise VerifyError(f"is damaged:\n{lost}", url=source)
    return Verified(len(chosen), chosen.nbytes, _left(chosen), *counts)


def _left(made: Checkpoint) -> tuple[Note, ...]:
    return tuple(n for n in made.notes if n.kind in ("damaged", "skipped", "unread"))


def _derived(sources: list[Source], url: str, how: Options) -> Verified:
    from ..verification.compare import same

    row = table.get(how.to) if how.to else detect.detect(url)
    expected = order.fit_to_target(prepare(sources, how), row.name)
    if how.skip_unrepresentable and row.writes:
        expected = without_unheld(expected, row.load().writer(url))
    got = detect.open_checkpoint(url, format=row.name)
    if len(expected) == 1 and row.writes:  # alone, it may be called by the file
        got = row.load().writer(url).place(expected).named(got)
    try:
        same(expected, got, url, workers=how.workers)
    except VerifyError as e:
        made = got.hashes.get(OPTIONS, "")
        if made not in ("", json.dumps(non_default(how, *MADE_WITH))):
            e.message += f"\n  its metadata says that it was made with these options: {printable(brief(made))}"
        raise
    if row.name == "keras":
        order.refuse_misplaced(expected, got, url)
    return Verified(len(expected), expected.nbytes, _left(expected))
