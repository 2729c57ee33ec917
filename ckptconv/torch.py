"""Load weights into a torch module, after checks and in place, and compare its outputs with a reference.

    loaded = ckptconv.torch.load_into(module, "model.ckpt", converter="rules.toml")
    found = ckptconv.torch.compare(module, {"encoder.0": array, "": logits}, inputs)

Names, shapes and coverage are checked against the module before any element is read. Tensors are then read one after
another, directly into the memory of the parameters if possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

try:
    import torch
except ImportError as e:
    from .errors import MissingExtra

    raise MissingExtra("this needs torch; pip install 'ckptconv[torch]'") from e

from .api.memory import build_named
from .api.options import CHANGE, SELECT, Options, Source, takes
from .api.reading import list_of, prepare_with_stamps
from .api.result import Loaded
from .checkpoint import Checkpoint, Tensor
from .checkpoint.torch import (
    copy_shared,
    is_shaped,
    outline,
    prefix_hint,
    refuse_conflicts,
    refuse_other_values,
    refuse_unwritable,
    shaped,
    snapshot,
    tied,
    ties,
)
from .checkpoint.training import counters
from .errors import CkptError, ConversionError, UsageError
from .messages import indented
from .moves.read import refuse_changed
from .moves.sources import Sources
from .moves.torch import fill, kind_of, memory, place, refuse_overlaps, state
from .rules import library, passes
from .storage.files import Stamp
from .verification.compare import Comparison, Step
from .verification.readback import drop_hashes
from .verification.torch import compare, outputs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .api.keywords import ReadOptions


# --- modules ----------------------------------------------------------------------------------------------------------


def build(name: str, *, meta: bool = False) -> torch.nn.Module:
    """Import `package.module:callable`, call it without arguments, and return the torch module that it makes.

    meta: build on torch's meta device, which allocates no memory, if the code allows that. The named code is imported
    and run; modules that are not installed are looked up in the working directory. UsageError if the name is malformed,
    the code raises, it needs arguments, or the result is not a torch.nn.Module.
    """
    module = build_named(name, meta=meta)
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{name} returns {type(module).__name__}, not a torch.nn.Module")
    return module


# --- loading ----------------------------------------------------------------------------------------------------------


@takes(*SELECT, *CHANGE)
def load_into(
    module: torch.nn.Module,
    source: Source | Sequence[Source],
    *,
    strict: bool = True,
    device: torch.device | str | None = None,
    verify: bool = True,
    **given: Unpack[ReadOptions],
) -> Loaded:
    """Load a checkpoint of any format into a module, in place, and report what was loaded.

    source: a path, an open checkpoint or a dict of arrays, or several of these. The options select from it and lead to
    the module's names and layouts, as in `convert`; weights_only is True unless it is given. Values are cast to the
    module's dtypes by torch's rules; the report counts values that became infinite, NaN or zero. verify: compare with
    the source's hashes, which may be stale after an edit; checksums are always compared. device: where to put the
    module, such as "cuda"; tensors on the meta device get memory there if they are loaded.

    With `strict`, ConversionError if a tensor is unexpected, has another shape or is one that the module's state
    dict computes, or if a parameter is missing; otherwise these are reported, as missing buffers (counters, tables)
    always are, and it is an error if nothing fits. ConversionError also for tied parameters with two values in the
    source, a dtype that torch lacks, complex numbers for real ones, and values that the module's integers or bools
    do not have, such as 0.5. UsageError for a module on the meta device, tensors that are sparse, expanded,
    distributed or share a part of their memory, an unknown converter. No value is changed then. Also raises what
    reading raises, such as VerifyError for hashes of other tensors; damage leaves the module partly loaded.
    """
    found, stamps = _opened(source, memory(module)[0], given, verify=verify)
    report = fitted(module, found, strict)
    taken = {n: found[n] for n in report.loaded}
    own = memory(module)[0]  # last: a module may have its tensors placed anew each time it is asked for them
    refuse_changed(taken.values(), stamps)
    with Sources(stamps=stamps) as sources:
        refuse_unwritable({n: own[n] for n in taken}, placed=device is not None)
        refuse_other_values(own, taken, sources)
        refuse_conflicts(own, taken, sources)
        if device is not None:
            refuse_overlaps(own)
            shared = {n: group for group in ties(module) for n in group}
            place(module, {m for n in taken for m in shared.get(n, (n,))}, device)
            own = memory(module)[0]
        loss = fill(own, copy_shared(taken, sources), sources)
    refuse_changed(taken.values(), stamps)  # while it was read
    return replace(report, loss=loss, notes=found.notes)


def _opened(
    source: Source | Sequence[Source], own: Mapping[str, torch.Tensor], given: Any, *, verify: bool
) -> tuple[Checkpoint, Mapping[str, Stamp]]:
    """Open the source, with or without the hashes of its files as checks, and return the stamps of these files, too.

    own: the tensors of the module.
    """
    how, several = Options(**{"weights_only": True, **given}), list_of(source)
    if not given and len(several) == 1 and (counters([own]) or any(map(passes.COUNTED.fullmatch, own))):
        how = how.without("weights_only")  # `check` takes weights, and counters of the module itself
    found, stamps = prepare_with_stamps(several, how, guard=verify)
    return found if verify else drop_hashes(found)[0], stamps


def fitted(module: torch.nn.Module, found: Checkpoint, strict: bool) -> Loaded:
    """Report what `load_into` would load; ConversionError if that is nothing, or too little for `strict`."""
    report = check(module, found)
    lacking = dict(module.named_parameters(remove_duplicate=False)).keys() & report.missing
    odd = report.unexpected or report.mismatched or report.computed or lacking
    if odd if strict else not (report.loaded or report.computed):
        name = "" if found.moved else library.suggestion(found, conventions=True)
        hints = [n.text for n in found.notes if n.kind == "hint"] or prefix_hint(report.missing, report.unexpected)
        with suppress(CkptError):  # such as a parameter that is asked for
            name = name if check(module, library.change(found, name)).loaded else ""
        if name:
            hints.append(f"converter={name!r} takes all tensors of the checkpoint")
        elif not (report.loaded or (hints and not found.moved)):
            hints.append("ckptconv.match(source, module) proposes a converter; give it as converter=")
        why = "\n".join([report.described("would fit"), *hints])
        raise ConversionError(f"the checkpoint does not fit the module; nothing is loaded:\n{indented(why)}")
    return report


def check(module: torch.nn.Module, found: Checkpoint) -> Loaded:
    """Report what `load_into` would load, and what does not fit, from names, dtypes and shapes alone."""
    own, computed = memory(module)
    kept = counters([own])
    taken = (n for n, t in found.items() if (n in kept and t.role == "step") or _is_own(t, own.get(n), found))
    given = {n: found[n] for n in (*(n for n, t in found.items() if not t.role), *taken)}
    known = shaped({n: t for n, t in own.items() if n in given or is_shaped(t)})
    shared = {n: g for g in tied(known) for n in g}
    both = [n for n in own if n in given]
    mismatched = {
        n: f"{n}: {list(given[n].shape)} in the source, {list(own[n].shape)} in the module"
        for n in both
        if given[n].shape != tuple(own[n].shape)
    }
    fitting = [n for n in both if n not in mismatched]
    filled = {m for n in both for m in shared.get(n, (n,))}
    return Loaded(
        tuple(fitting),
        (*(n for n in own if n not in filled), *(n for n in computed if n not in given)),
        tuple(n for n in given if n not in own and n not in computed),
        tuple(mismatched.values()),
        tuple(n for n in fitting if given[n].dtype != kind_of(own[n])),
        tuple(n for n in computed if n in given),
    )


def _is_own(t: Tensor, buffer: torch.Tensor | None, found: Checkpoint) -> bool:
    """Tell whether a counter is a buffer of the module from its state dict, not one of a training state next to it."""
    if t.role not in ("step", "state") or not passes.COUNTED.fullmatch(t.name):
        return False
    if t.name in found.details.get("entry", {}).get("beside", ()) and f"beside.{t.name}" not in found:
        return False
    if buffer is None or isinstance(buffer, torch.nn.Parameter):
        return False
    return is_shaped(buffer) and t.shape == tuple(buffer.shape)


__all__ = [
    "Comparison", "Loaded", "Step", "build", "check", "compare", "load_into", "outline", "outputs", "snapshot",
    "state", "ties",
]  # fmt: skip
