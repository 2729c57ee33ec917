"""Prove a proposal with a torch module and the arrays that a user gives: run it, and search until the outputs agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..errors import UsageError
from ..messages import printable
from ..verification.outputs import departure
from .evidence import bits
from .given import arguments, arrays, places
from .pairs import Proposal, parent
from .proof import SECONDS, Proof
from .proof import prove as search

if TYPE_CHECKING:
    from ..verification.outputs import Array
    from .torch import Adjustable

ROUNDING = 1e-5  # two runs of one module differ by no more


def prove(
    module: Any,
    proposal: Proposal,
    source: Checkpoint,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    *,
    propose: Callable[[Sequence[str]], Proposal] | None = None,
    seconds: float = SECONDS,
) -> Proof:
    """Load a proposal of matching, compare the module's outputs, and try what is marked until they agree.

    `inputs` are the arguments of `forward`, by its names or in order; where it cannot be run with them, they are cast
    as its weights are, or turned if their channels come last. `wanted` are the outputs (given.places says whose). The
    search ends after so many seconds. The module keeps what is found. `propose` matches again with the module's
    tensors in another order: that in which its modules run, which is tried if the outputs do not agree at once.

    Raises UsageError if the module cannot be run with the inputs, if it is random, and for outputs of other shapes.
    """
    from ..torch import blamed
    from .torch import Adjustable

    given = arguments(module.forward, arrays(inputs, "input"))
    wanted = arrays(wanted, "output")
    runner = Adjustable(module, given.args, given.named)
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
        raise UsageError(_random(runner))
    as_run = propose(order) if propose and order != list(runner.state) else None
    proof = search(proposal, source, runner, placed.wanted, as_run=as_run, seconds=seconds)
    notes = (*([given.note] if given.note else ()), *changed, *placed.notes, *proof.notes)
    return replace(proof, notes=notes)


def _random(runner: Adjustable) -> str:
    """That nothing can be proved, as a second run gives other outputs, and the first submodule where it does."""
    runner.picked = {}
    first = departure(runner.outputs(), runner.outputs(), ROUNDING, ROUNDING, scaled=True).first
    where = f", beginning with {printable(first.name)}" if first and first.name else ""
    return (
        f"the module computes something else when it runs again{where}: its outputs cannot prove anything; "
        "switch off what is random in evaluation, or give outputs of submodules before that"
    )


def _as_run(names: Sequence[str], ran: Sequence[str]) -> list[str]:
    """The tensors of a module in the order in which its submodules ran; those of what did not run stay at the end."""
    at = {home: k for k, home in enumerate(ran) if home}
    return sorted(names, key=lambda n: at.get(parent(n), len(at)))


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


__all__ = ["outputs_of", "prove"]
