"""Propose a converter for a source and a target: by values, else by names and modules, with shapes as constraints.

    match(source, target)       two paths, or a path and a torch module -> Match, for people, and a rule file
    propose(source, target)     Checkpoint, Checkpoint -> Proposal         pairs.py: the result
        values.py               equal elements and their order of axes, proved bit for bit; pieces that add up
        modules/match.py        modules whose names mean the same, as no others do; their tensors; paddings
        modules/bundles.py      pieces on one side that are one tensor on the other: stacked layers, fused QKV, gates
        modules/solve.py        modules of one signature, by words, blocks and order
        orders/choose.py        how axes move, by conventions or shapes; images, cells, and doubts about them
    toml(proposal, ...)         rules.py: rules over indices, with evidence; `-c` takes the file as it is
    prove(module, propose ...)  check/: run the module, compare its outputs, try what is marked

Each stage gets the unmatched tensors of both sides and returns pairs. No guess is silent: a pair that is not proved by
values, or by equal names and a convention, is `assumed`, and it is `real` if another answer is likely.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..api import reading
from ..api.memory import build_if_named, import_named
from ..api.options import SELECT, Options, Path, Source, is_path, names_code, takes
from ..checkpoint import Checkpoint
from ..dtypes import DTYPES
from ..errors import ConversionError, UnsafeCheckpoint, UsageError
from ..messages import fold, listing, paragraph, printable, redacted, shortened
from ..output.destination import check_replaced
from ..output.staging import write_whole
from ..rules import passes
from ..rules.converter import GUESSED, Converter
from ..rules.toml import parse
from ..storage import files
from ..storage.paths import refuse_remote
from .check.prove import Proof, arrays, outputs_of, prove
from .likeness import in_segments
from .modules.bundles import parsed
from .modules.match import by_length, by_modules
from .modules.units import place, units
from .orders.choose import FLAT, TABLE, Judge, in_front, vectors, voted
from .pairs import JAX, Pair, Proposal, Side, Sides, leaf, left, weights
from .rules import summary, toml
from .values import Found, find

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.keywords import MatchOptions


Arrays = Path | Mapping[str, Any]
Original = Arrays | Callable[..., Any]
MATCH = (*SELECT, "force", "jobs")
UNEQUAL = "no tensor values are equal: the two were probably trained separately, so pairs rest on names and shapes"
HOPE = 0.5  # share of the smaller side that must be paired
LEFT_OVER = "a tensor that is left over in the source could be its scale or offset, so no constants are filled in"
TORN = "tensors of this module go to several modules, which take tensors of other modules too"
APART = "the names of one side do not say which tensors belong to one module"
CHANGED = "the values differ, although those of other tensors are equal"
FOLDED = "batch normalisation seems to be folded into other layers of the target"
UNFOLDED = (
    "the target lacks batch normalisation of the source. If it was folded into other layers, no rule computes that: "
    "it rounds and needs an epsilon. Convert into a module that has it, and torch.nn.utils.fusion.fuse_conv_bn_eval "
    "folds it: docs/match.md has the steps"
)
UNPACKED, SMALL = 64, 2**26  # limits for arrays of a check: bytes per byte of the file, and bytes


@dataclass(frozen=True, repr=False)
class Match:
    """The result of `match`: a proposed converter; print() shows how its pairs were found and which to review.

    proposal: the pairs with their evidence, and tensors without a counterpart. rules: the converter as the text of a
    rule file. proof: whether the module computes the outputs that were given with `check`, and which changes were
    needed; None without `check`.
    """

    proposal: Proposal
    rules: str
    proof: Proof | None = None

    @property
    def converter(self) -> Converter:
        """Parse the rules into a converter with notes on what to review; `converter=` also takes the Match itself."""
        flat = [n for p in self.proposal.assumed if FLAT in p.why and not p.real for n in p.targets]
        said = [f"assumed: {FLAT} ({shortened(flat)}); the rules of `match` show the other order"] * bool(flat)
        # without the texts: the notes repeat their marks
        return replace(parse(self.rules, "match"), notes=(*self.review(), *said), texts=())

    @property
    def doubt(self) -> str:
        """Why the two may not be the same model; '' if there is no doubt."""
        return self.proposal.doubt

    def __str__(self) -> str:
        return "\n".join(map(paragraph, [*self.lines(), *self.review()]))

    def review(self) -> list[str]:
        """List the pairs to look at, and why."""
        return [f"{GUESSED}: {why} ({shortened(names)})" for why, names in self.proposal.review().items()]

    def lines(self) -> Iterator[str]:
        """Yield what the command line prints: a summary, assumptions, pairs to review, and unmatched tensors."""
        found = self.proposal
        yield summary(found)
        for names, where in ((found.target_only, "source"), (found.source_only, "target")):
            if names:
                yield f"no counterpart in the {where}:\n{listing(map(str, fold(names)))}"
        yield from (f"note: {note}" for note in found.notes)
        if self.proof:
            yield from self.proof.lines()

    def __repr__(self) -> str:
        return f"<Match: {next(self.lines())}>"

    def to_json(self) -> dict[str, Any]:
        """The pairs as JSON values."""
        return self.proposal.to_json()


@takes(*MATCH)
def match(
    source: Source,
    target: Any,
    destination: Path | None = None,
    *,
    values: bool = True,
    check: tuple[Arrays, Original] | None = None,
    **given: Unpack[MatchOptions],
) -> Match:
    """Propose a converter from a source to a target: rules with evidence, for review, and then for `converter=`.

    source: a path or URL, an open checkpoint or a dict of arrays. target: the same, a model of torch, Keras or Flax
    (nnx), or the name package.module:callable of a function that builds one, or its parameters. If both hold the same
    values, these decide, bit for bit; otherwise names, shapes and the order of modules decide, and doubts are marked.
    `include` and `exclude` apply to both. destination: a .toml file to write the rules to. values: whether to compare
    values, or only names and shapes. check: the inputs of the module and the original's outputs for them, each as
    arrays by name or an .npz file; instead of outputs, the original itself: a function or its name
    package.module:callable. The module is run with alternatives to the marked pairs until it computes the same
    (`Match.proof`).

    Returns a Match; `Match.doubt` says why the two may not be the same model. Raises ConversionError if nothing can be
    proposed, UsageError if a name leads to no module, StorageError if `destination` exists and `force` is not given,
    MissingExtra for a package that the search needs, and what `open` raises.
    """
    how = Options(**given)
    path = os.fspath(destination or "")
    refuse_remote(path, "a rule file")
    if path and not path.endswith(".toml"):
        raise UsageError("rules are written to a .toml file", url=path)
    if path and os.path.lexists(path):
        check_replaced([path], (), force=how.force)
    every = how.without("include", "exclude")
    names = [*map(_name, (source, target))]
    if check:
        if isinstance(target, Mapping) or (is_path(target) and not names_code(os.fspath(target))):
            raise UsageError("check needs a torch module as the target (or package.module:callable), not a file")
        from ..torch import build

        target = build(target) if isinstance(target, str) else target
    with files.record_stamps() as stamps:
        b = _opened(target, every.without("from_", "at", "strip_prefix", "ema"))
        a = passes.unflatten(reading.open_merged([source], every), b)

    def proposed(order: Iterable[str]) -> Proposal:
        side = b.with_tensors({n: b[n] for n in order if n in b})
        return propose(a, side, values=values, workers=how.workers, include=how.include, exclude=how.exclude)

    proof = prove(target, proposed, a, *_arrays(*check)) if check else None
    found = proof.proposal if proof else proposed(b)
    text = toml(found, *names)
    if path:
        read = {*stamps, *a.urls, *b.urls}  # also of checkpoints that were already open
        write_whole(path, text.encode(), read, force=how.force)
    return Match(found, text, proof)


def _arrays(given: Arrays, original: Original) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the inputs of a check and the expected outputs, if need be by running the original."""
    inputs = arrays(_read(given), "input")
    if isinstance(original, str) and names_code(original):
        original = import_named(original)
    return inputs, outputs_of(original, inputs) if callable(original) else _read(original)


def _read(given: Any) -> Any:
    """Read arrays by name if a file is given; its unpacked size is limited, since it may be untrusted."""
    if not is_path(given):
        return given
    found = reading.open(given)
    size, packed = found.nbytes, sum(s.size for u in found.urls if (s := files.stat(u)))
    if size > max(UNPACKED * packed, SMALL):
        raise UnsafeCheckpoint(
            f"its {packed:,} bytes hold arrays of {size:,}, more than {UNPACKED} times as much", url=os.fspath(given)
        )
    return {n: t.numpy() for n, t in found.items()}


def _opened(target: Any, how: Options) -> Checkpoint:
    """Open the target, or take the names and shapes of a module; ignore options that concern only the source."""
    if isinstance(target, Checkpoint):
        return target
    target = build_if_named(target, meta=True)
    if not callable(getattr(target, "state_dict", None)) or hasattr(target, "save_weights"):
        return reading.open_source(target, how)
    from ..torch import outline

    return outline(target)


def _name(side: Any) -> str:
    path = redacted(os.fspath(side)) if is_path(side) else type(side).__name__
    return printable(os.path.basename(path.rstrip("/")) or path)


# --- the search -------------------------------------------------------------------------------------------------------


def propose(
    source: Checkpoint, target: Checkpoint, *, values: bool = True, workers: int = 1,
    include: Sequence[str] = (), exclude: Sequence[str] = (),
) -> Proposal:  # fmt: skip
    """Propose which tensors of two checkpoints belong together.

    values: compare contents first; otherwise, or if the target is not trained, names, shapes and the order of modules
    decide, and every pair that these do not settle is marked. workers: threads. include, exclude: globs for either.
    Raises CkptError if no pair can be proposed. `Proposal.doubt` says why the two may not be the same model.
    """
    chosen = passes.select_either(source, target, include, exclude)
    aside = [f"no glob fits a name of the {'source' if chosen[0] is source else 'target'}: all of it is matched"] * (
        (chosen[0] is source) != (chosen[1] is target)
    )
    spelled = [*map(_spelled, chosen)]
    source, target = map(lambda c, new: passes.renamed(c, lambda n: new.get(n, n), ""), chosen, spelled)
    source_cast, notes = _of_one_dtype(source, target)
    sides = weights(source_cast), weights(target)
    read = values and all(any(t.parts for t in side.tensors.values()) for side in sides)
    found = find(sides[0].tensors, sides[1].tensors, workers) if read else Found()
    notes += aside + found.notes + [UNEQUAL] * (read and not found.trained and not found.pairs)
    ours, theirs = found.prints
    known = (replace(sides[0], prints=ours), replace(sides[1], prints=theirs)) if found.trained else sides
    back = Judge(sides[1], in_front(*sides[::-1]), module=True)
    judge = Judge(sides[0], in_front(*sides), module=bool(sides[1].kinds), target=back)
    done = set(found.copies), {n for t in found.ties for n in t}
    pairs = [*found.pairs, *by_modules(left(known, found.pairs, done), judge, found.pairs, known)]
    if source.ties:  # the target may hold each of two tied tensors
        sides = weights(source_cast, tied=True), sides[1]
    free = [side.tensors.keys() for side in left(sides, pairs, done)]
    late = by_modules(sides, judge, (), sides) if all(free) and (found.trained or source.ties) else []
    late = [p for p in late if not p.real and free[0] >= {*p.sources} and free[1] >= {*p.targets, *dict(p.fills)}]
    pairs += [p._replace(sure=False, real=True, why=(*p.why, CHANGED)) if found.trained else p for p in late]
    pairs += by_length(left(sides, pairs, done), judge)
    pairs = pairs if found.trained else vectors(voted(pairs, sides), sides)
    if not pairs:
        raise ConversionError(f"{_unlike(sides, 0)}: nothing can be proposed")
    ties = [*found.ties, *_tied(target.ties, {n for p in pairs for n in p.targets}, done[1])]
    again = _tied(source.ties, {n for p in pairs for n in p.sources}, set())
    copies = found.copies | {n: first for first, *rest in again for n in rest}
    settled = set(copies), {n for t in ties for n in t}
    rest = left(sides, pairs, settled)
    means = [{u.members["running_mean"].name for u in units(side) if u.kind == "batch norm"} for side in sides]
    unpaired = means[0] - {n for p in pairs if means[1] & {*p.targets} for n in p.sources}
    lacking = bool(unpaired and (rest[1].tensors or not found.trained))
    order = {n: k for k, n in enumerate(sides[0].tensors)}
    pairs = sorted(_in_doubt(pairs, sides, rest[0], lacking), key=lambda p: order[p.sources[0]])
    rest = left(sides, pairs, settled)
    old = [{new: name for name, new in names.items()} for names in spelled]

    def of(side: int, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(old[side].get(n, n) for n in names)

    return Proposal(
        tuple(p._replace(sources=of(0, p.sources), targets=of(1, p.targets), rivals=of(1, p.rivals),
                         fills=tuple((old[1].get(n, n), v) for n, v in p.fills)) for p in pairs),
        tuple(of(1, names) for names in ties), dict(zip(of(0, copies), of(0, copies.values()), strict=True)),
        of(0, rest[0].tensors), of(1, rest[1].tensors), (*notes, *[UNFOLDED] * lacking),
        of(0, (n for n, t in source.items() if not t.role)), _unlike(sides, sum(len(p.targets) for p in pairs)),
    )  # fmt: skip


def _spelled(checkpoint: Checkpoint) -> dict[str, str]:
    """Split the module and variable of each name into segments; in TensorFlow and JAX, a tensor of several axes
    without a variable's name is a kernel."""
    names = in_segments([n for n, t in checkpoint.items() if not t.role])
    for n, new in names.items() if checkpoint.format in {"tf", "tf-v1", "tf-graph", *JAX} else ():
        nameless = place(new, set()) == (new, "weight") and not parsed(new)
        if nameless and sum(k > 1 for k in checkpoint[n].shape) > 1 and not TABLE.search(new):
            names[n] = f"{new}/kernel"
    return names


def _in_doubt(pairs: Sequence[Pair], sides: Sides, free: Side, lacking: bool) -> Iterator[Pair]:
    """Mark pairs as doubtful if an unmatched source tensor could be meant instead, or if a module is torn apart.

    A target that could be such a tensor is not filled with constants. A batch normalisation that the target lacks was
    probably folded if a layer has a bias only in the target.
    """
    shapes = {tuple(sorted(t.shape)) for t in free.tensors.values()}
    homes, ends = ({t.name: u for u in units(side) for t in u.members.values()} for side in sides)
    ways = {(homes[n], ends[m]) for p in pairs for n in p.sources for m in p.targets}
    out, into = (Counter(names) for names in zip(*ways, strict=True))
    gone = {homes[n]: n for n, t in free.tensors.items() if t.shape and t.dtype.kind == "f"}
    torn = {x for x, y in ways if out[x] > 1 and into[y] > 1}
    biased = any(x.kind == y.kind == "weight" and "bias" in y.members.keys() - x.members.keys() for x, y in ways)
    apart = [len(set(of.values())) == len(of) for of in (homes, ends)]  # no module has two tensors
    for p in pairs:
        kept = tuple((n, v) for n, v in p.fills if tuple(sorted(sides[1].tensors[n].shape)) not in shapes)
        why = [LEFT_OVER] * (kept != p.fills)
        if p.evidence == "names":
            home = homes[p.sources[0]]
            why += [f"{leaf(gone[home])} of the same module is left over"] if home in gone else []
            why += [TORN] * (home in torn) + [APART] * (apart[0] != apart[1]) + [FOLDED] * (lacking and biased)
        yield p._replace(fills=kept, sure=False, real=True, why=(*p.why, *why)) if why else p


def _of_one_dtype(source: Checkpoint, target: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """Cast the source to the target's dtype, if each has only one."""
    kinds = [{t.dtype.name for t in c.values() if t.dtype.kind == "f" and not t.role} for c in (source, target)]
    if len(kinds[0]) == len(kinds[1]) == 1 and kinds[0] != kinds[1]:
        (other,) = kinds[1]
        with suppress(UsageError):  # scales are not cast
            return passes.cast(source, DTYPES[other]), [f"the target is {other}: convert with dtype={other!r}"]
    return source, []


def _tied(groups: Iterable[Sequence[str]], paired: set[str], known: set[str]) -> list[tuple[str, ...]]:
    """Return ties as one paired name and the names that are neither paired nor known."""
    both = [([n for n in g if n in paired], [n for n in g if n not in paired | known]) for g in groups]
    return [(inside[0], *rest) for inside, rest in both if inside and rest]


def _unlike(sides: Sides, paired: int) -> str:
    """Say why the two may not be the same model; '' if enough tensors are paired."""
    if paired >= HOPE * max(1, min(len(side.tensors) for side in sides)):
        return ""
    counts = " and ".join(f"{len(side.tensors)} tensors" for side in sides)
    return f"these do not look like the same model: they have {counts}, of which {paired} could be paired"
