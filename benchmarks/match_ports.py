"""How often a port loads: original weights into freshly initialised modules written by another hand.

    python benchmarks/match_ports.py [--only NAME,NAME] [--every]     the figures of docs/match.md

Each port is a torch module of our own with weights that stand for trained ones, the same weights as the original's
framework stores them (its names, orders of axes and of gates, its fused tensors), and a fresh module of the same class.
A check begins by comparing, so a port that loads by names alone passes it; `--every` runs it all the same.
`match` sees the stored weights and the fresh module only. A tensor is right if the fresh module then holds the trained
bits; the port loads if its outputs are the trained module's. Nobody edits the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from nets import flax, flax_text, haiku, keras_images, keras_other, keras_sequences, tensorflow_images, tensorflow_text
from nets.common import Arrays, Port, stored
from torch import Tensor, nn

from ckptconv.checkpoint import Checkpoint, held
from ckptconv.errors import CkptError
from ckptconv.matching.check.prove import prove
from ckptconv.matching.pairs import Proposal
from ckptconv.matching.proposal import propose as match
from ckptconv.matching.rules import toml
from ckptconv.torch import load_into, outline

SECONDS = 120.0  # of a search that does not end; a person would wait five minutes

MODULES = (
    keras_images,
    keras_other,
    keras_sequences,
    tensorflow_images,
    tensorflow_text,
    flax,
    flax_text,
    haiku,
)
PORTS = {n: port._replace(store=stored(n)) for module in MODULES for n, port in module.PORTS.items()}


def trained(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose weights are all different, as those of a trained one."""
    torch.manual_seed(seed)
    module = build().eval()
    with torch.no_grad():
        for name, t in module.state_dict().items():
            if t.is_floating_point() and "bias_hh" not in name and "running_var" not in name:
                t += 0.05 * torch.randn_like(t)
            elif "running_var" in name:
                t.copy_(torch.rand_like(t) + 0.5)
    return module


class Row(NamedTuple):
    """What came of a port."""

    total: int
    right: int
    unmarked: int  # wrong and not marked
    doubts: int
    names: bool  # the outputs are the original's, by names alone
    checked: bool  # after --check
    seconds: float
    note: str


def state(module: nn.Module) -> Arrays:
    return {n: t.detach().numpy().copy() for n, t in module.state_dict().items() if t.is_floating_point()}


def output(module: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    """The first output, and its name."""
    with torch.no_grad():
        outputs = module(**inputs)
    return ("output", outputs) if isinstance(outputs, Tensor) else next(iter(outputs.items()))


def same(module: nn.Module, other: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
    return torch.allclose(output(module, inputs)[1], output(other, inputs)[1], rtol=1e-3, atol=1e-4)


def run(port: Port, folder: Path, *, check: bool = True, every: bool = False) -> Row:
    original, fresh = trained(port.build, 1), trained(port.build, 2)
    assert port.store
    source = Checkpoint({n: held(n, np.ascontiguousarray(x)) for n, x in port.store(state(original)).items()})
    given = port.inputs()
    inputs = {"x": given[0]} if isinstance(given, tuple) else given
    began = time.perf_counter()
    try:
        found = match(source, outline(fresh))
    except CkptError as e:
        return Row(len(state(original)), 0, 0, 0, False, False, time.perf_counter() - began, e.message[:60])
    rules = folder / "rules.toml"
    rules.write_text(toml(found))
    note = ""
    try:
        load_into(fresh, source, converter=str(rules), strict=False)
    except CkptError as e:
        note = e.message.splitlines()[0][:70]
    want, have = state(original), state(fresh)
    wrong = {n for n in want if want[n].tobytes() != have[n].tobytes()}
    owner = {t: p for p in found.pairs for t in p.targets}
    unmarked = sum(owner[n].sure for n in wrong if n in owner)
    names = same(original, fresh, inputs)
    checked = proved(port, original, source, inputs) if check and (every or not names) else names
    doubts = sum(not p.sure for p in found.pairs)
    return Row(len(want), len(want) - len(wrong), unmarked, doubts, names, checked, time.perf_counter() - began, note)


def proved(port: Port, original: nn.Module, source: Checkpoint, inputs: Mapping[str, Tensor]) -> bool:
    """Whether --check, given the original's outputs only, ends with a module that computes the same."""
    fresh = trained(port.build, 3)
    name, wanted = output(original, inputs)
    target = outline(fresh)

    def propose(order: Sequence[str]) -> Proposal:
        return match(source, target.with_tensors({n: target[n] for n in order if n in target}), values=False)

    arrays = {n: x.numpy() for n, x in inputs.items()}, {name: wanted.numpy()}
    proof = prove(fresh, propose, source, *arrays, seconds=SECONDS)
    wrong = {n for n, x in state(original).items() if x.tobytes() != state(fresh)[n].tobytes()}
    if any(p.sure and wrong & set(p.targets) for p in proof.proposal.pairs):
        raise SystemExit(f"{port.title}: a wrong pair is not marked")
    return proof.found.same and same(original, fresh, inputs)


def table(ports: Mapping[str, Port], every: bool = False) -> int:
    """Print the table; 1 if a wrong pair is not marked."""
    torch.set_num_threads(1)  # the modules are tiny
    print(
        "| port | tensors right by names | wrong, not marked | loads by names alone | after `--check` | then a person |"
    )
    print("|---|---|---|---|---|---|")
    done: list[Row] = []
    for name, port in ports.items():
        with TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            row = run(port, Path(folder), every=every)
        done.append(row)
        names, checked = ("yes" if f else "no" for f in (row.names, row.checked))
        right = f"{row.right} of {row.total}"
        told = "nothing" if row.names or row.checked else "edit the rules"
        print(f"| {port.title} | {right} | {row.unmarked} | {names} | {checked} | {told} |", flush=True)
        print(f"{name}: {row.doubts} pairs marked, {row.seconds:.1f} s {row.note}", file=sys.stderr)
    loaded, proved_ = sum(r.names for r in done), sum(r.checked for r in done)
    tensors = sum(r.right for r in done), sum(r.total for r in done)
    print(f"\n{loaded} of {len(done)} by names alone, {proved_} after `--check`; {tensors[0]} of {tensors[1]} tensors.")
    return int(any(r.unmarked for r in done))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of ports, with commas")
    parser.add_argument("--every", action="store_true", help="check ports that load by names alone, too")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else PORTS
    raise SystemExit(table({name: PORTS[name] for name in only}, args.every))
