"""Prove a proposal by outputs: load it, run it, compare, and try alternatives until the outputs agree.

    proof = prove(module, propose, source, inputs, wanted)

An alternative is kept if the outputs then agree, or come nearer. If the outputs of submodules are known, the search
goes by layers: an alternative counts if more of them agree. Tries and time are limited, and the proof says if the limit
was reached. A marked pair becomes `proved` only if the outputs depend on the tensor and no other alternative gives them
too. Settings that no weight holds (an epsilon) are not searched: if outputs depart, `advice` lists those that often
differ.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...api.memory import describe_error
from ...checkpoint import Checkpoint
from ...errors import CkptError, UsageError
from ...messages import many, paragraph, printable
from ...moves.copy import Array
from ...rules import toml as rules
from ...rules.apply import apply
from ...verification.compare import Comparison, Outputs, Step, compare_outputs
from ..pairs import Alternative, Pair, Proposal, parent
from ..rules import toml
from .alternatives import IMAGES, alternatives

if TYPE_CHECKING:
    from .torch import Runner


TRIES = 400
SECONDS = 300.0
# Float error of two frameworks over some hundred layers, relative to each element or to the largest. Probabilities of a
# large vocabulary are all less than 1e-4, so an absolute tolerance would not do.
RTOL, ATOL = 1e-3, 1e-4
ROUNDING = 1e-5  # two runs of one module differ by no more
EXACT = 1e-12  # squared; nearer outputs differ only by rounding
BETTER = 1e-4  # squared; if outputs agree already, an alternative must be nearer by this factor
NEARER = 0.999  # an alternative is kept if it reduces the distance to less than this share
FLOAT = 10  # bits of a float that is compared to one in a thousand
ENOUGH = 25  # bits: 9 for 400 tries, and 16 more, so that a chance agreement happens in one of 60,000 checks

FEW = (
    "the outputs hold too little to prove weights, as others give them by chance, so that none are tried; give more "
    "rows, or what comes before a last argmax or threshold"
)
RANDOM = (
    "the module computes something else when it runs again: its outputs cannot prove anything; switch off "
    "randomness in evaluation, or give outputs of submodules before that"
)
CHANGED = "changed by the check: the outputs are nearer this way"
SETTINGS = {  # by a word in the name of a class: settings that no weight holds and that frameworks choose differently
    "BatchNorm": "batch normalisation: epsilon is 1e-5 in torch and Flax, 1e-3 in Keras, TensorFlow and TF-Slim",
    "LayerNorm": "layer normalisation: epsilon is 1e-5 in torch, 1e-3 in Keras, 1e-6 in Flax, 1e-12 in BERT",
    "GroupNorm": "group normalisation: epsilon is 1e-5 in torch, 1e-3 in Keras, 1e-6 in Flax",
    "RMSNorm": "RMS normalisation: epsilon is 1e-6 in T5, Llama and Flax; torch takes that of the dtype",
    "Conv": "convolutions with strides: 'SAME' of TensorFlow and JAX pads one more at the end than at the beginning",
    "Pool": "pooling: 'SAME' of TensorFlow pads one more at the end; its averages leave padding out",
    "LSTM": "LSTM: TensorFlow 1 adds a forget_bias when it runs: 1.0, as `fill` has it, unless its code says otherwise",
    "GELU": "GELU: by tanh in Flax and GPT-2, exact in torch and Keras",
    "LeakyReLU": "leaky ReLU: the slope is 0.01 in torch and Flax, 0.3 in Keras, 0.2 in TensorFlow",
    "Upsample": "resizing: align_corners; TensorFlow 1 has no half pixels",
}


Distance = tuple[int, float]  # distance from the wanted outputs: number of submodules that depart, relative error


@dataclass(frozen=True)
class Proof:
    """The proposal after the search, whether the outputs agree, and the alternatives that were tried."""

    proposal: Proposal
    found: Comparison
    tried: int
    kept: tuple[str, ...] = ()  # alternatives that were taken
    open: tuple[str, ...] = ()  # targets that the outputs do not settle
    why: str = ""  # the search was cut short
    notes: tuple[str, ...] = ()  # assumptions about inputs and outputs
    hints: tuple[str, ...] = ()  # settings of the module that may differ
    apart: float = 0.0  # the difference of the outputs relative to their size, as a root mean square

    def __str__(self) -> str:
        return "\n".join(map(paragraph, self.lines()))

    def lines(self) -> list[str]:
        """Return the result, the alternatives that were tried, and the open questions."""
        lines = [f"note: {note}" for note in self.notes]
        size = f"; relative to the size of the outputs: {self.apart:.3g}"
        lines += [f"checked against outputs: {self.found}{size if self.apart < float('inf') else ''}"]
        lines += [f"{many(self.tried, 'alternative')} tried{self.why}"] if self.tried else []
        lines += [f"changed: {text}" for text in self.kept]
        if self.hints:
            head = "hint: no weight holds these settings of the module, which other frameworks have otherwise:"
            lines.append("\n  ".join([head, *self.hints]))
        text = f"{many(len(self.open), 'tensor stays', 'tensors stay')} marked, which these outputs do not settle"
        return [*lines, text] if self.found.same and self.open else lines


def prove(
    module: Any,
    propose: Callable[[Sequence[str]], Proposal],
    source: Checkpoint,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    *,
    seconds: float = SECONDS,
) -> Proof:
    """Load a proposal, compare the module's outputs, and try alternatives until they agree.

    propose: matches the source with the module's tensors, given in the order in which its modules run. inputs: the
    arguments of `forward`, by name or in order; if it cannot be run with them, they are cast to the dtype of the
    weights, or moved from channels last to first. wanted: the outputs (`places` finds out whose). The search ends after
    TRIES or `seconds`. The module keeps the weights of the result.

    Raises UsageError if the module cannot be run with the inputs, if it is random, and for outputs of other shapes.
    """
    from .torch import Runner

    inputs, wanted = arrays(inputs, "input"), arrays(wanted, "output")
    args, named, note = arguments(module.forward, inputs)
    runner = Runner(module, args, named)
    try:
        changed = runner.start()
    except Exception as e:  # the code is the user's, and can raise anything
        shapes = (f"{printable(n)} {'None' if x is None else f'{x.dtype} {list(x.shape)}'}" for n, x in inputs.items())
        text = f"the module cannot be run with these inputs: {describe_error(e)}; the inputs are {', '.join(shapes)}"
        raise UsageError(text) from e
    got = runner.outputs()
    at = {home: k for k, home in enumerate(got) if home}
    proposal = propose(sorted(runner.state, key=lambda n: at.get(parent(n), len(at))))  # not run: last
    placed = places(proposal, got, runner.labels, wanted)
    if not bits(placed.wanted, ROUNDING):
        raise UsageError("all outputs are the same number, which proves nothing; give others, or those before them")
    runner.picked = placed.picked
    got = {n: [got[n][k] for k in at] for n, at in placed.picked.items()}
    if not compare_outputs(runner.outputs(), got, ROUNDING, ROUNDING, scaled=True).same:
        raise UsageError(RANDOM)
    search = Search(proposal, source, runner, placed.wanted, time.monotonic() + seconds)
    few = bits(placed.wanted, ATOL) < ENOUGH  # a search would find something by chance
    if not few:
        search.improve()
    settled, undecided = search.settled() if search.comparison.same and not few else (set[int](), ())
    pairs = tuple(
        p._replace(evidence="proved", sure=True, real=False, why=(), rivals=()) if k in settled else _said(p, before)
        for k, (p, before) in enumerate(zip(search.pairs, proposal.pairs, strict=True))
    )
    notes = (*([note] if note else ()), *changed, *placed.notes, *([FEW] if few else []))
    return Proof(
        replace(proposal, pairs=pairs), search.comparison, search.tried, tuple(search.kept), undecided,
        search.why, notes, advice(module) if search.distance[1] > ROUNDING**2 else (), search.distance[1] ** 0.5,
    )  # fmt: skip


def _said(p: Pair, before: Pair) -> Pair:
    """Give a pair a new reason if the check changed it."""
    if p[:3] == before[:3] and p.fills == before.fills:
        return p
    return p._replace(why=tuple(w for w in p.why if w in IMAGES) or (CHANGED,))


def advice(module: Any) -> tuple[str, ...]:
    """List settings that often differ between frameworks, for the kinds of submodules that a module has."""
    kinds = " ".join(type(m).__name__ for m in module.modules())
    return tuple(text for word, text in SETTINGS.items() if word in kinds)


def outputs_of(original: Callable[..., Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the original with the inputs, by the names of its parameters or in order, and return its outputs by name.

    It returns an array of any framework, several in order, or a mapping from names of modules. UsageError if it raises.
    """
    try:
        args, named, _ = arguments(original, inputs)
        found = original(*args, **named)
        if not isinstance(found, Mapping):
            several = found if isinstance(found, tuple | list) else [found]
            found = {f"number {k}": x for k, x in enumerate(several, 1)}
        return arrays(found, "output")
    except UsageError:
        raise
    except Exception as e:  # the code is the user's, and can raise anything
        raise UsageError(f"the original cannot be run with these inputs: {describe_error(e)}") from e


def bits(outputs: Outputs, tolerance: float) -> float:
    """Return the information in outputs, in bits, at a tolerance relative to the largest; 0 if all numbers are equal.

    Whole numbers, such as classes or 0 and 1, count as a choice among those that occur; other floats as floats.
    """
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
    """The current pairs, and the distance of their outputs."""

    def __init__(
        self, proposal: Proposal, source: Checkpoint, runner: Runner, wanted: Outputs, until: float
    ) -> None:  # fmt: skip
        self.pairs, self.source, self.runner, self.wanted = list(proposal.pairs), source, runner, wanted
        self.tried, self.until, self.why = 0, until, ""
        self.kept: list[str] = []
        self._load(range(len(self.pairs)))

    def _load(self, places: Iterable[int]) -> None:
        """Load these pairs and compare the outputs."""
        self._write([self.pairs[k] for k in places])
        self.comparison, self.distance = self._run()

    def improve(self) -> None:
        """Keep an alternative that agrees, else the nearest one, as long as one comes nearer."""
        while not self.comparison.same:
            nearest, best = self.distance, None
            for option in self._alternatives():
                if self._spent():
                    break
                comparison, distance = self._attempt(option)
                nearer = distance < nearest and distance[1] < nearest[1] * NEARER
                if comparison.same or nearer or distance[0] < nearest[0]:
                    nearest, best = distance, option
                if comparison.same:
                    break
            if best is None:
                return
            self._keep(best)

    def _keep(self, option: Alternative) -> None:
        for k, p in option.pairs.items():
            self.pairs[k] = p
        self.kept.append(option.text)
        self._load(option.pairs)

    def settled(self) -> tuple[set[int], tuple[str, ...]]:
        """Return the places of pairs that the outputs prove, and the targets of those that they do not.

        An alternative that agrees much better, by more than rounding, is kept.
        """
        unsure = {k: p for k, p in enumerate(self.pairs) if not p.sure}
        names = [n for p in unsure.values() for n in (*p.targets, *(f for f, _ in p.fills))]
        used = self.runner.used(names)
        bad = {k for k, p in unsure.items() if not set(p.targets) <= used}
        for option in self._alternatives():
            if set(option.pairs) <= bad and self.distance[1] <= EXACT:
                continue
            comparison, distance = (self.comparison, self.distance) if self._spent() else self._attempt(option)
            if self.distance[1] > EXACT and distance[1] < self.distance[1] * BETTER:
                self._keep(option)
                return self.settled()
            if comparison.same:
                bad |= set(option.pairs)
        return set(unsure) - bad, tuple(n for k in sorted(bad) for n in self.pairs[k].targets)

    def _alternatives(self) -> list[Alternative]:
        shapes = {n: tuple(t.shape) for n, t in self.runner.state.items()}
        options = list(alternatives(self.pairs, self.source.tensors, shapes))
        first = self.comparison.first
        if first is not None and first.name:  # begin with the first layer that departs
            options.sort(key=lambda a: not any(t.startswith(first.name) for p in a.pairs.values() for t in p.targets))
        return options

    def _spent(self) -> bool:
        if self.tried >= TRIES or time.monotonic() > self.until:
            self.why = f"; the search ended after {'that many' if self.tried >= TRIES else 'the time allowed'}"
        return bool(self.why)

    def _attempt(self, option: Alternative) -> tuple[Comparison, Distance]:
        """Compare the outputs of an alternative; restore the weights."""
        self.tried += 1
        try:
            self._write([*option.pairs.values()])
            return self._run()
        except CkptError as e:  # a layout that does not fit after all
            return self._failed(e.message)
        finally:
            self._write([self.pairs[k] for k in option.pairs])

    def _write(self, pairs: Sequence[Pair]) -> None:
        """Convert the source by the rules of these pairs, and load the result."""
        names = tuple(n for p in pairs for n in p.sources)
        converter = rules.parse(toml(Proposal(tuple(pairs), every=names)), "proposed")
        part = replace(self.source.with_tensors({n: self.source[n] for n in names}), ties=())
        self.runner.load({n: t.numpy() for n, t in apply(converter, part).items()})

    def _run(self) -> tuple[Comparison, Distance]:
        try:
            got = self.runner.outputs()
        except Exception as e:  # with these weights: an index that leads out of a table; too little memory
            return self._failed(f"{type(e).__name__}: {e}".splitlines()[0])
        comparison = compare_outputs(got, self.wanted, RTOL, ATOL, scaled=True)
        errors = [_error(got[n], self.wanted[n]) for n in self.wanted if n in got]
        departing = sum(not s.same for s in comparison.steps)
        return comparison, (departing, sum(errors) / max(1, len(errors)))

    def _failed(self, why: str) -> tuple[Comparison, Distance]:
        step = Step("", float("inf"), False, f"it cannot be run: {why}")
        return Comparison((step,)), (len(self.wanted) + 1, float("inf"))


def _error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """Compute the relative distance of outputs; infinite for other shapes or numbers that are not finite."""
    if [x.shape for x in got] != [x.shape for x in want]:
        return float("inf")
    x, y = (np.concatenate([a.reshape(-1).astype("f8") for a in side]) for side in (got, want))
    error = float(np.sum((x - y) ** 2) / max(np.sum(y**2), 1e-30))
    return error if error == error else float("inf")


# --- the arrays of a check: which input is which argument, which output is whose, and what proves nothing ---


def arrays(given: Any, what: str) -> dict[str, Any]:
    """Convert arrays of any framework, by name, to NumPy; UsageError for anything else. An input may be None."""
    from ...verification.torch import numbers

    if not isinstance(given, Mapping):
        raise UsageError(f"{what}s are arrays by name, or an .npz file, not {type(given).__name__}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        why, array = "", None
        try:
            array = found[str(name)] = None if value is None and what == "input" else numbers(value)
        except UsageError:
            why = f"holds {getattr(value, 'dtype', type(value).__name__)}, not numbers"
        if array is not None and (array != array).any():
            why = "has NaN: it proves nothing"
        elif array is not None and what == "output" and not array.size:
            why = "has no element: it proves nothing"
        if why:
            raise UsageError(f"{what} {printable(str(name))} {why}; give others")
    if what == "output" and not found:
        raise UsageError("the outputs are empty: there is nothing to compare with")
    return found


def arguments(function: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Return inputs as positional and named arguments, and a note; by name if one name is a parameter's."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a function in C
        parameters = []
    if any(p.name in inputs and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return (), dict(inputs), ""
    order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = ", ".join(f"{printable(n)} as {p}" for n, p in zip(inputs, order, strict=False))
    return tuple(inputs.values()), {}, f"inputs in order: {taken}" if taken else ""


class Placed(NamedTuple):
    """The wanted outputs of each submodule ('' is the whole), their numbers among its outputs, and assumptions."""

    wanted: dict[str, list[Array]]
    picked: dict[str, list[int]]
    notes: tuple[str, ...]


def places(proposal: Proposal, got: Outputs, labels: Sequence[str], wanted: Mapping[str, Array]) -> Placed:
    """Find out whose outputs the arrays are.

    An array has the name of one of the whole's outputs (`labels`, '' for those without a name), of a submodule, or of a
    source module that is paired with one; all others are the outputs of the whole, in order. If these do not fit, they
    are taken for layers without a counterpart (an activation, a flattened image): the last array is then the output and
    the others are left out. Arrays with channels last are moved to channels first if only that fits.

    UsageError, with all shapes, if no array fits.
    """
    homes = {parent(p.sources[0]): parent(p.targets[0]) for p in proposal.pairs}
    out, odd, rest = Placed({}, {}, ()), list[str](), list[str]()
    for n, array in wanted.items():
        place = "" if n in labels else n if n in got else homes.get(n, "")
        at = len(out.picked.get(place, []))
        if not place or place not in got:
            rest.append(n)
        elif _fits([array], got[place][at : at + 1]):
            _put(out, place, at, array, got)
        else:
            gives = f"{printable(place)} gives {_shapes(got[place])}"
            odd.append(f"output {printable(n)} is left out: its shape is {_shapes([array])}, but {gives}")
    whole, names = got.get("", []), rest
    numbers = [labels.index(n) if n and {*rest} <= {*labels} else k for k, n in enumerate(rest)]
    if not _fits([wanted[n] for n in rest], [whole[k] for k in numbers if k < len(whole)]):
        last = [n for n in [*wanted][-1:] if n in rest and len(rest) < len(wanted)]
        names, numbers = last if _fits([wanted[n] for n in last], whole) else [], [0]
    if left := [f"{printable(n)} {_shapes([wanted[n]])}" for n in rest if n not in names]:
        odd.append(f"outputs left out, as no module gives them: {', '.join(left)}")
    for n, k in zip(names, numbers, strict=False):
        _put(out, "", k, wanted[n], got)
        if len(whole) > 1 and labels[k] != n:
            label = f", {printable(labels[k])}" if labels[k] else ""
            odd.append(f"output {printable(n)} is taken for number {k + 1} of the module's {len(whole)}{label}")
    if not out.wanted:
        raise UsageError("\n  ".join([*odd, f"the whole module gives {_shapes(whole)}"]))
    return out._replace(notes=tuple(odd))


def _put(out: Placed, place: str, at: int, array: Array, got: Outputs) -> None:
    """Want the array as output number `at` of a place, with channels first if only that fits."""
    out.picked.setdefault(place, []).append(at)
    turned = array if array.shape == got[place][at].shape else channels_first(array)
    out.wanted.setdefault(place, []).append(turned)


def _fits(arrays: Sequence[Array], outputs: Sequence[Array]) -> bool:
    """Tell whether arrays can be these outputs, one by one."""
    both = zip(arrays, outputs, strict=False)
    return len(arrays) == len(outputs) and all(b.shape in (a.shape, channels_first(a).shape) for a, b in both)


def channels_first(array: Any) -> Any:
    """Move the channels of an image or a sequence from last to first, as torch has them."""
    return array.transpose(0, -1, *range(1, array.ndim - 1)) if getattr(array, "ndim", 0) > 2 else array


def _shapes(many: Sequence[Array]) -> str:
    return ", ".join(str(list(x.shape)) for x in many) or "no tensor"
