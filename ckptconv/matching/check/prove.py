"""Prove a proposal by outputs: load it, run it, compare, and try what is marked until the outputs agree.

    proof = prove(module, proposal, source, inputs, wanted)

An alternative is kept if the outputs then agree, or come nearer. Where the outputs of submodules are known the search
goes by layers: an alternative counts that lets more of them agree. It is bounded in tries and in time, and says so.
A mark becomes `proved` only if the outputs depend on the tensor and no other alternative to it gives them too.
Settings that no weight holds (an epsilon) are not searched: where outputs depart, `advice` says which ones are often
other ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checkpoint import Checkpoint
from ...errors import CkptError, UsageError
from ...messages import many, paragraphs, printable
from ...rules import toml as rules
from ...rules.apply import apply
from ...verification.outputs import Comparison, Step, departure
from ..pairs import Alternative, Pair, Proposal, parent
from ..rules import toml
from .alternatives import IMAGES, alternatives
from .inputs import arguments, arrays, places

if TYPE_CHECKING:
    from ...torch import Runner
    from ...verification.outputs import Array, Outputs


TRIES = 400
SECONDS = 300.0
# Float error of two frameworks over some hundred layers: of each element, or of the largest. Probabilities of a large
# vocabulary are all less than 1e-4, so that no fixed number would do.
RTOL, ATOL = 1e-3, 1e-4
ROUNDING = 1e-5  # two runs of one module differ by no more
EXACT = 1e-12  # squared: outputs that are nearer differ by rounding
BETTER = 1e-4  # squared: an alternative counts that is so much nearer where outputs agree already
NEARER = 0.999  # of the distance that must be left for an alternative to be kept
FLOAT = 10  # bits of a float that is compared to one in a thousand
ENOUGH = 25  # bits: those of 400 tries, and 16 more, so that none of them agrees by chance in 60,000 checks

FEW = (
    "the outputs hold too little to prove weights, as others give them by chance, so that none are tried; give more "
    "rows, or what comes before a last argmax or threshold"
)
RANDOM = (
    "the module computes something else when it runs again: its outputs cannot prove anything; switch off what is "
    "random in evaluation, or give outputs of submodules before that"
)
CHANGED = "changed by the check, as the outputs are nearer so"
AS_RUN = "the modules in the order in which they run"
SETTINGS = {  # by a word in the name of a class: what other frameworks have that no weight holds
    "BatchNorm": "batch normalisation: epsilon is 1e-5 in torch and Flax, 1e-3 in Keras, TensorFlow and TF-Slim",
    "LayerNorm": "layer normalisation: epsilon is 1e-5 in torch, 1e-3 in Keras, 1e-6 in Flax, 1e-12 in BERT",
    "GroupNorm": "group normalisation: epsilon is 1e-5 in torch, 1e-3 in Keras, 1e-6 in Flax",
    "RMSNorm": "RMS normalisation: epsilon is 1e-6 in T5, Llama and Flax; torch takes that of the dtype",
    "Conv": "convolutions with strides: 'SAME' of TensorFlow and JAX pads one more at the end than at the beginning",
    "Pool": "pooling: 'SAME' of TensorFlow pads one more at the end; its averages leave padding out",
    "GELU": "GELU: by tanh in Flax and GPT-2, exact in torch and Keras",
    "LeakyReLU": "leaky ReLU: the slope is 0.01 in torch and Flax, 0.3 in Keras, 0.2 in TensorFlow",
    "Upsample": "resizing: align_corners; TensorFlow 1 has no half pixels",
}


class Distance(NamedTuple):
    """How far outputs are from what they should be: submodules that depart, then the relative error."""

    departing: int
    error: float


@dataclass(frozen=True)
class Proof:
    """The proposal as it is after the search, whether the outputs agree, and what was tried."""

    proposal: Proposal
    found: Comparison
    tried: int
    kept: tuple[str, ...] = ()  # alternatives that were taken
    open: tuple[str, ...] = ()  # targets that the outputs do not settle
    why: str = ""  # the search was cut short
    notes: tuple[str, ...] = ()  # what was assumed about inputs and outputs
    hints: tuple[str, ...] = ()  # settings of the module that may be other ones

    @property
    def agrees(self) -> bool:
        """Whether the weights are proved."""
        return self.found.same

    def __str__(self) -> str:
        return paragraphs(self.lines())

    def lines(self) -> list[str]:
        """What was found, what was tried, and what stays open."""
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"checked against outputs: {self.found}"]
        lines += [f"{many(self.tried, 'alternative')} tried{self.why}"] if self.tried else []
        lines += [f"changed: {text}" for text in self.kept]
        if self.hints:
            head = "hint: no weight holds these settings of the module, which other frameworks have otherwise:"
            lines.append("\n  ".join([head, *self.hints]))
        if self.agrees and self.open:
            lines.append(f"{len(self.open)} tensors stay marked, as these outputs do not settle them")
        return lines


def prove(
    module: Any,
    proposal: Proposal,
    source: Checkpoint,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    *,
    propose: Callable[[Sequence[str]], Proposal] | None = None,
    tries: int = TRIES,
    seconds: float = SECONDS,
) -> Proof:
    """Load a proposal of matching, compare the module's outputs, and try what is marked until they agree.

    `inputs` are the arguments of `forward`, by its names or in order; where it cannot be run with them, they are cast
    as its weights are, or turned if their channels come last. `wanted` are the outputs (inputs.places says whose). The
    search ends after so many tries or seconds. The module keeps what is found. `propose` matches again with the
    module's tensors in another order: that in which its modules run, which is tried if the outputs do not agree at
    once; the search begins with the one that comes nearer.

    Raises UsageError if the module cannot be run with the inputs, if it is random, and for outputs of other shapes.
    """
    from ...torch import Runner, blamed

    given = arguments(module.forward, arrays(inputs, "input"))
    wanted = arrays(wanted, "output")
    runner = Runner(module, given.args, given.named)
    try:
        changed = runner.start()
    except Exception as e:  # the code is the user's, and can raise anything
        have = {n: "None" if x is None else f"{x.dtype} {list(x.shape)}" for n, x in arrays(inputs, "input").items()}
        shapes = ", ".join(f"{printable(n)} {what}" for n, what in have.items())
        raise UsageError(f"the module cannot be run with these inputs: {blamed(e)}; the inputs are {shapes}") from e
    got = runner.outputs()
    placed = places(proposal, got, runner.labels, wanted)
    if not bits(placed.wanted, ROUNDING):
        raise UsageError("all outputs are the same number, which proves nothing; give others, or those before them")
    runner.picked = placed.picked
    order = _as_run(list(runner.state), list(got))
    got = {n: [got[n][k] for k in at] for n, at in placed.picked.items()}
    if not departure(runner.outputs(), got, ROUNDING, ROUNDING, scaled=True).same:
        raise UsageError(RANDOM)
    search = Search(proposal, source, runner, placed.wanted)
    search.tries, search.until = tries, time.monotonic() + seconds
    few = bits(placed.wanted, ATOL) < ENOUGH  # no search, which would find something by chance
    if not search.comparison.same and not few:
        as_run = propose(order) if propose and order != list(runner.state) else None
        search = _searched(search, as_run)
    settled, undecided = search.settled() if search.comparison.same and not few else (set[int](), ())
    pairs = tuple(
        p._replace(evidence="proved", sure=True, real=False, why=(), rivals=()) if k in settled else _said(p, before)
        for k, (p, before) in enumerate(zip(search.pairs, search.proposal.pairs, strict=True))
    )
    notes = (*([given.note] if given.note else ()), *changed, *placed.notes, *([FEW] if few else []))
    return Proof(
        replace(search.proposal, pairs=pairs), search.comparison, search.tried, tuple(search.kept), undecided,
        search.why, notes, () if search.comparison.same else advice(module),
    )  # fmt: skip


def _searched(search: Search, as_run: Proposal | None) -> Search:
    """Search from the proposal and, if it differs, from the one in the order of running, the nearer one first."""
    starts = [search]
    if as_run and _loads(as_run.pairs) != _loads(search.pairs):
        starts.append(Search(as_run, search.source, search.runner, search.wanted, AS_RUN))
        starts.sort(key=lambda s: s.distance)
    tries, until = search.tries // len(starts), search.until
    for k, start in enumerate(starts):
        start.tries, start.until = tries, until - (until - time.monotonic()) / 2 * (k + 1 < len(starts))
        start.improve_all()
        if start.comparison.same:
            break
    best = min(starts, key=lambda s: (not s.comparison.same, s.distance))
    best.tried = sum(s.tried for s in starts) + len(starts) - 1
    best.load(range(len(best.pairs)))
    return best


def _loads(pairs: Iterable[Pair]) -> set[object]:
    """What pairs would load."""
    return {(p.sources, p.targets, p.order, p.fills) for p in pairs}


def _said(p: Pair, before: Pair) -> Pair:
    """The pair with a reason that says what it does now, if the check changed it."""
    if _loads([p]) == _loads([before]):
        return p
    return p._replace(why=tuple(w for w in p.why if w in IMAGES) or (CHANGED,))


def _as_run(names: Sequence[str], ran: Sequence[str]) -> list[str]:
    """The tensors of a module in the order in which its submodules ran; those of what did not run stay at the end."""
    at = {home: k for k, home in enumerate(ran) if home}
    return sorted(names, key=lambda n: at.get(parent(n), len(at)))


def advice(module: Any) -> tuple[str, ...]:
    """What is often another setting in other frameworks, for the kinds of submodules that a module has."""
    kinds = Counter(type(m).__name__ for m in module.modules())
    return tuple(text for word, text in SETTINGS.items() if any(word in kind for kind in kinds))


def outputs_of(original: Callable[..., Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the original computes for the inputs, given by the names of its parameters or in order, as arrays by name.

    It returns an array of any framework, several in order, or a mapping from names of modules. UsageError if it raises.
    """
    try:
        given = arguments(original, inputs)
        found = original(*given.args, **given.named)
        if not isinstance(found, Mapping):
            several = found if isinstance(found, tuple | list) else [found]
            found = {f"number {k}": x for k, x in enumerate(several, 1)}
        return arrays(found, "output")
    except UsageError:
        raise
    except Exception as e:  # the code is the user's, and can raise anything
        said = str(e).strip().splitlines() or ["no reason given"]
        raise UsageError(f"the original cannot be run with these inputs: {type(e).__name__}: {said[0]}") from e


def bits(outputs: Outputs, tolerance: float) -> float:
    """What outputs hold at a tolerance relative to the largest, in bits; none if all are the same number.

    Whole numbers, such as classes and what is 0 or 1, count as one of those that occur; other floats as floats.
    """
    import numpy as np

    total = 0.0
    for array in (a for several in outputs.values() for a in several):
        flat = array.reshape(-1).astype("f8")
        step = float(np.max(np.abs(flat), initial=0.0)) * tolerance
        rounded = np.round(flat / step) if step else flat
        distinct = len(np.unique(rounded))
        whole = np.abs(flat - np.round(flat)) <= step
        if distinct > 1 or flat.size == 1:
            total += FLOAT * len(np.unique(rounded[~whole])) + np.count_nonzero(whole) * log2(distinct)
    return total


class Search:
    """The pairs as they are now, and how near their outputs are."""

    def __init__(self, proposal: Proposal, source: Checkpoint, runner: Runner, wanted: Outputs, *kept: str) -> None:
        self.proposal, self.pairs = proposal, list(proposal.pairs)
        self.source, self.runner, self.wanted = source, runner, wanted
        self.tries, self.tried, self.until, self.why = TRIES, 0, 0.0, ""
        self.kept = list(kept)
        self.arrays: dict[object, list[Array]] = {}
        self.load(range(len(self.pairs)))

    def load(self, places: Iterable[int]) -> None:
        """Load these pairs and see what the outputs are."""
        self._write(self.pairs[k] for k in places)
        self.comparison, self.distance = self._run()

    def improve_all(self) -> None:
        """Keep alternatives as long as the outputs come nearer and do not agree."""
        self.load(range(len(self.pairs)))
        while not self.comparison.same and self._improve():
            pass

    def _improve(self) -> bool:
        """Keep the first alternative that agrees, else the one that comes nearest; False if none comes nearer."""
        best: tuple[Distance, Alternative | None] = (self.distance, None)
        for option in self._alternatives():
            if self._spent():
                break
            comparison, distance = self._attempt(option)
            fewer = distance.departing < best[0].departing
            if comparison.same or fewer or (distance < best[0] and distance.error < best[0].error * NEARER):
                best = distance, option
            if comparison.same:
                break
        if best[1] is not None:
            self._keep(best[1])
        return best[1] is not None

    def _keep(self, option: Alternative) -> None:
        for k, p in option.pairs.items():
            self.pairs[k] = p
        self.kept.append(option.text)
        self.load(option.pairs)

    def settled(self) -> tuple[set[int], tuple[str, ...]]:
        """The places of pairs that the outputs prove, and the targets of those that they do not.

        An alternative with which they agree much better, by more than rounding, is kept.
        """
        unsure = {k: p for k, p in enumerate(self.pairs) if not p.sure}
        names = [n for p in unsure.values() for n in (*p.targets, *(f for f, _ in p.fills))]
        used = self.runner.used(names)
        bad = {k for k, p in unsure.items() if not set(p.targets) <= used}
        for option in self._alternatives():
            if set(option.pairs) <= bad and self.distance.error <= EXACT:
                continue
            comparison, distance = (self.comparison, self.distance) if self._spent() else self._attempt(option)
            if self.distance.error > EXACT and distance.error < self.distance.error * BETTER:
                self._keep(option)
                return self.settled()
            if comparison.same:
                bad |= set(option.pairs)
        return set(unsure) - bad, tuple(n for k in sorted(bad) for n in self.pairs[k].targets)

    def _alternatives(self) -> list[Alternative]:
        shapes = {n: tuple(t.shape) for n, t in self.runner.state.items()}
        options = list(alternatives(self.pairs, self.source.tensors, shapes))
        first = self.comparison.first
        if first is not None and first.name:  # what stands in the first layer that departs goes first
            options.sort(key=lambda a: not any(t.startswith(first.name) for p in a.pairs.values() for t in p.targets))
        return options

    def _spent(self) -> bool:
        if self.tried >= self.tries or time.monotonic() > self.until:
            self.why = f"; the search ended after {'that many' if self.tried >= self.tries else 'the time allowed'}"
        return bool(self.why)

    def _attempt(self, option: Alternative) -> tuple[Comparison, Distance]:
        """What the outputs would be; the weights are put back."""
        self.tried += 1
        try:
            self._write(option.pairs.values())
            return self._run()
        except CkptError as e:  # a layout that does not fit after all
            return self._failed(e.message)
        finally:
            self._write(self.pairs[k] for k in option.pairs)

    def _write(self, pairs: Iterable[Pair]) -> None:
        """Load pairs; what was once made of the same tensors in the same way is kept."""
        for p in pairs:
            names = (*p.targets, *(n for n, _ in p.fills))
            key = (p.sources, p.order, p.length, p.axis, p.each, len(p.targets), tuple(f for _, f in p.fills))
            if key not in self.arrays:
                made = _made(p, self.source)
                self.arrays[key] = [made[n] for n in names]
            self.runner.load(dict(zip(names, self.arrays[key], strict=True)))

    def _run(self) -> tuple[Comparison, Distance]:
        try:
            got = self.runner.outputs()
        except Exception as e:  # with these weights: an index that leads out of a table; too little memory
            return self._failed(": ".join((type(e).__name__, *str(e).strip().splitlines()[:1])))
        comparison = departure(got, self.wanted, RTOL, ATOL, scaled=True)
        errors = [_error(got[n], self.wanted[n]) for n in self.wanted if n in got]
        departing = sum(not s.same for s in comparison.steps)
        return comparison, Distance(departing, sum(errors) / max(1, len(errors)))

    def _failed(self, why: str) -> tuple[Comparison, Distance]:
        step = Step("", float("inf"), False, f"it cannot be run: {why}")
        return Comparison((step,)), Distance(len(self.wanted) + 1, float("inf"))


def _made(p: Pair, source: Checkpoint) -> dict[str, Array]:
    """The arrays that a pair makes of the source, by the target's names: its rule is written and applied."""
    converter = rules.parse(toml(Proposal((p,), every=p.sources)), "proposed")
    part = source.with_tensors({n: source[n] for n in p.sources})
    return {n: t.numpy() for n, t in apply(converter, replace(part, ties=())).items()}


def _error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The relative distance of outputs; infinite for other shapes or what is not finite."""
    import numpy as np

    if [x.shape for x in got] != [x.shape for x in want]:
        return float("inf")
    above = sum(float(np.sum(np.abs(x.astype("f8") - y.astype("f8")) ** 2)) for x, y in zip(got, want, strict=True))
    below = sum(float(np.sum(np.abs(y.astype("f8")) ** 2)) for y in want)
    error = above / max(below, 1e-30)
    return error if error == error else float("inf")
