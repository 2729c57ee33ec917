"""Tensors that are stacked and fused at once, by values: modules propose them, every bit of them is compared.

    layers/qkv/kernel [12, 768, 2304]  =  layers.{0..11}.{q,k,v}.weight [768, 768]

Fingerprints find what is stacked and what is fused, but not both: too many tensors could add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..checkpoint import Checkpoint, Tensor
from ..errors import CkptError
from ..moves.sources import Sources
from ..rules import toml as rules
from ..rules.apply import apply
from .bits import Bits
from .check.alternatives import interleaved
from .named import Sides
from .pairs import Pair, Proposal
from .toml import toml


def proved(pairs: Iterable[Pair], sides: Sides) -> Iterator[Pair]:
    """Those of the pairs that are stacked and fused at once, as far as the values are equal bit for bit."""
    source, target = sides[0].tensors, sides[1].tensors
    shapes = {n: t.shape for n, t in target.items()}
    with Sources() as sources:
        bits = Bits(sources)
        for p in pairs:
            others = (
                (q for found in interleaved({0: p}, source, shapes) for q in found.pairs.values()) if p.each else ()
            )
            for q in (p, *others) if p.each else ():
                if _equal(q, source, target, bits):
                    yield q._replace(evidence="values", sure=True, real=False, why=(), rivals=())
                    break


def _equal(p: Pair, source: Mapping[str, Tensor], target: Mapping[str, Tensor], bits: Bits) -> bool:
    converter = rules.parse(toml(Proposal((p,), every=p.sources)), "proposed")
    try:
        found = apply(converter, Checkpoint({n: source[n] for n in p.sources}))
    except CkptError:  # a layout that does not fit
        return False
    return all(n in found and found[n].shape == target[n].shape and bits.same(found[n], target[n]) for n in p.targets)


__all__ = ["proved"]
