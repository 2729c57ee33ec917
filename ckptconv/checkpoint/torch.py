"""View a torch module as a checkpoint, and refuse tensors that cannot be loaded into it.

outline(module)    names, dtypes, shapes            snapshot(module)   the module's memory as tensors
refuse_...         before any value is changed      copy_shared        sources that would be overwritten
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ..dtypes import DTYPES, castable
from ..errors import ConversionError, UsageError
from ..messages import listing
from ..moves.cast import limits
from ..moves.part import Held
from ..moves.read import read_array
from ..moves.sources import Sources
from ..moves.torch import dtype_of, kind_of, refuse_overlaps, spot, state, to_array, to_torch
from . import Checkpoint
from .tensor import Tensor, contiguous, origin

# --- what it holds ----------------------------------------------------------------------------------------------------


def ties(module: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return groups of names that share a tensor of the module or its memory."""
    return tied(shaped(state(module)))


def tied(found: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Return groups of names of tensors with the same elements in the same memory."""
    groups: dict[object, list[str]] = {}
    for name, tensor in found.items():
        groups.setdefault(spot(tensor), []).append(name)
    return tuple(tuple(g) for g in groups.values() if len(g) > 1)


class Undrawn(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Skip drawing random values for meta tensors: torch imports its compiler for that, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = args[0] if args else (kwargs or {}).get("tensor")
        if (
            getattr(func, "__name__", "") in ("normal_", "uniform_")
            and isinstance(drawn, torch.Tensor)
            and drawn.is_meta
        ):
            return drawn
        return func(*args, **(kwargs or {}))


def bodiless(make: Callable[[], Any]) -> Any:
    """Call a function on torch's meta device; None if it needs values, or its result does."""
    try:
        with torch.device("meta"), Undrawn():
            made = make()
    except RuntimeError:  # its constructor computes with values
        return None
    of_keras = isinstance(made, torch.nn.Module) and hasattr(made, "save_weights")  # Keras modules save values
    return None if of_keras or isinstance(made, Mapping) else made


def prefix_hint(missing: Iterable[str], unexpected: Sequence[str]) -> list[str]:
    """Name the prefix that a module around, such as a Sequential, leaves before names of the source or the module."""
    for u, m in product(unexpected[:1], missing):
        if u.endswith(f".{m}"):
            return [f"strip_prefix={u.removesuffix(m)!r} makes {u} the module's {m}"]
        if m.endswith(f".{u}"):
            return [f"load into module.{m.removesuffix(f'.{u}')}, which has {u}"]
    return []


def outline(module: torch.nn.Module) -> Checkpoint:
    """Return the names, dtypes and shapes of a module, without values."""
    found = shaped(state(module))
    made = {n: Tensor(n, kind_of(t), tuple(t.shape), ()) for n, t in found.items()}
    return Checkpoint(made, ties=tied(found), format="torch module", details={"kinds": _classes(module)})


def shaped(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors; UsageError if one of them has no single shape."""
    if odd := [n for n, t in found.items() if not is_shaped(t)]:
        text = "these tensors have no single shape: run the module once if they are lazy; nested ones are not supported"
        raise UsageError(f"{text}:\n{listing(odd)}")
    return found


def is_shaped(t: torch.Tensor) -> bool:
    """Tell whether a tensor has one shape: it is not lazy and not nested."""
    return not (torch.nn.parameter.is_lazy(t) or t.is_nested)


def _classes(module: torch.nn.Module) -> dict[str, str]:
    """Return the class of the module that holds each tensor, in lower case; '' if the class is not torch's own."""
    out = {}
    for home, part in module.named_modules():
        own = type(part).__name__.lower() if type(part).__module__.startswith("torch.nn.modules") else ""
        for name in (*part._parameters, *part._buffers):
            out[f"{home}.{name}" if home else name] = own
    return out


def snapshot(module: torch.nn.Module) -> Checkpoint:
    """Return the module's state as a checkpoint that shares its memory, except tensors that state_dict computes."""
    made, seen, found = {}, dict[object, Held](), shaped(state(module))
    for name, t in found.items():
        at = spot(t)
        if at not in seen:
            seen[at] = Held(to_array(t))
        made[name] = contiguous(name, kind_of(t), tuple(t.shape), seen[at])
    return Checkpoint(made, ties=tied(found), format="torch module")


# --- what cannot be loaded --------------------------------------------------------------------------------------------


def refuse_unwritable(targets: Mapping[str, torch.Tensor], *, placed: bool) -> None:
    """Raise UsageError for tensors into which nothing can be read.

    placed: tensors on the meta device get memory before.
    """
    if not placed and (bare := next((n for n, t in targets.items() if t.is_meta), "")):
        raise UsageError(f"{bare} has no memory (device meta); give load_into a device=")
    if odd := [f"{n}: {why}" for n, t in targets.items() if (why := _unwritable(t))]:
        raise UsageError(f"nothing can be loaded into these, and nothing was:\n{listing(odd)}")
    refuse_overlaps(targets)


def _unwritable(t: torch.Tensor) -> str:
    """Say why elements cannot be written into a tensor's memory one by one; '' if they can."""
    if t.layout != torch.strided:
        return f"its layout is {str(t.layout).removeprefix('torch.')}; give the module its to_dense()"
    if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not t.is_meta:
        return f"a {type(t).__name__} is not plain memory; load before it is made of a plain tensor"
    if t.is_inference() and not t.is_meta and not torch.is_inference_mode_enabled():
        return "it was made in inference mode; load under torch.inference_mode()"
    if t.numel() and not t.is_meta and any(n > 1 and not s for n, s in zip(t.shape, t.stride(), strict=True)):
        return "it is expanded, many elements in one place of memory; give the module its clone()"
    return ""


def refuse_other_values(own: Mapping[str, torch.Tensor], given: Mapping[str, Tensor], sources: Sources) -> None:
    """Raise ConversionError if torch would drop fractions or imaginary parts, wrap integers, or make numbers true."""
    for name, source in given.items():
        kind, to = source.dtype, kind_of(own[name])
        if not castable(kind, to if to.kind != "b" else DTYPES["uint8"]):
            raise ConversionError(f"{kind} cannot be cast to {to}; nothing was loaded", tensor=name)
        if kind == to or to.kind not in "iub":
            continue
        a = read_array(source, sources)
        low, high = limits(to) if to.kind != "b" else (0, 1)
        if kind.kind in "iu":
            held = (a >= low) & (a <= high)
        else:  # high + 1 is a power of two, which is a float
            a = a.astype("f8")
            held = (a >= low) & (a < high + 1) & (a == np.floor(a))
        if odd := np.count_nonzero(~held):
            text = f"{odd} of {source.count} values do not fit {to}, the module's dtype; nothing was loaded"
            raise ConversionError(text, tensor=name)


def copy_shared(given: Mapping[str, Tensor], sources: Sources) -> dict[str, Tensor]:
    """Replace sources in memory by copies, since the module may use the same arrays."""
    in_memory = [n for n, t in given.items() if any(isinstance(p.data, Held) for p in t.parts)]
    copies = {n: contiguous(n, given[n].dtype, given[n].shape, Held(read_array(given[n], sources))) for n in in_memory}
    return {**given, **copies}


def refuse_conflicts(own: Mapping[str, torch.Tensor], given: Mapping[str, Tensor], sources: Sources) -> None:
    """Raise ConversionError for tied tensors with two values in the source, and for dtypes that torch lacks.

    Sources with the same stored elements are not read.
    """
    for name, source in given.items():
        dtype_of(source.dtype, name)
    for names in tied({n: own[n] for n in given}):
        kinds = {origin(given[n]): n for n in names}
        if len(kinds) > 1:
            first, *others = (_stored(given[n], own[n], sources) for n in kinds.values())
            if not all(np.array_equal(first, other) for other in others):
                text = "the module ties these, which share memory, but the source has two values"
                raise ConversionError(f"{text}:\n{listing(names)}")


def _stored(source: Tensor, target: torch.Tensor, sources: Sources) -> Any:
    """Return the bytes that the target's memory would have after loading the source."""
    value = to_torch(read_array(source, sources), source.dtype, source.name).to(target.dtype)
    return to_array(value).reshape(-1).view("u1")
