"""A torch module as a checkpoint, and what of a checkpoint cannot be loaded into it.

outline(module)    names, dtypes, shapes            snapshot(module)   the module's memory as tensors
refuse_...         before any value is changed      apart              sources that would be overwritten
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..dtypes import DTYPES, castable
from ..errors import ConversionError, UsageError
from ..messages import listing
from ..moves.cast import limits
from ..moves.part import Held
from ..moves.read import read_array
from ..moves.sources import Sources
from ..moves.torch import areas, box, dtype_of, kind_of, spot, state, to_array, to_torch
from . import Checkpoint
from .tensor import Tensor, contiguous, origin

# What is tried on tensors of classes of other packages: values that rounding, bounds or a table would change
FRACTIONS = (1 / 3, -5.25, 100.0, 0.0, -1 / 64, 1.0, 7.0)
WHOLE = (3, -5, 100, 0, -1, 1, 7)

# --- what it holds ----------------------------------------------------------------------------------------------------


def ties(module: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names that share one tensor of the module, or tensors that are the same memory."""
    return tied(shaped(state(module)))


def tied(found: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Groups of names of tensors that are the same elements of the same memory."""
    groups: dict[object, list[str]] = {}
    for name, tensor in found.items():
        groups.setdefault(spot(tensor), []).append(name)
    return tuple(tuple(g) for g in groups.values() if len(g) > 1)


def outline(module: torch.nn.Module) -> Checkpoint:
    """Names, dtypes and shapes of a module, without values."""
    found = shaped(state(module))
    made = {n: Tensor(n, kind_of(t), tuple(t.shape), ()) for n, t in found.items()}
    return Checkpoint(made, ties=tied(found), format="torch module", details={"kinds": _classes(module)})


def shaped(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a module, which all have a shape; UsageError if not."""
    if all(map(is_shaped, found.values())):
        return found
    if lazy := [n for n, t in found.items() if torch.nn.parameter.is_lazy(t)]:
        raise UsageError(f"run the module once, so that these tensors get their shapes:\n{listing(lazy)}")
    nested = [n for n, t in found.items() if t.is_nested]
    raise UsageError(f"these tensors are nested, and have no one shape:\n{listing(nested)}")


def is_shaped(t: torch.Tensor) -> bool:
    """Whether a tensor has one shape: neither one that a first run gives it, nor several."""
    return not (torch.nn.parameter.is_lazy(t) or t.is_nested)


def _classes(module: torch.nn.Module) -> dict[str, str]:
    """The class of the module that holds each tensor, in small letters; '' for one that is not torch's own."""
    out = {}
    for home, part in module.named_modules():
        own = type(part).__name__.lower() if type(part).__module__.startswith("torch.nn.modules") else ""
        for name in (*part._parameters, *part._buffers):
            out[f"{home}.{name}" if home else name] = own
    return out


def snapshot(module: torch.nn.Module) -> Checkpoint:
    """The module's state as a checkpoint that shares its memory, but for what the module's state_dict computes."""
    made, seen, found = {}, dict[object, Held](), shaped(state(module))
    for name, t in found.items():
        at = spot(t)
        if at not in seen:
            seen[at] = Held(to_array(t))
        made[name] = contiguous(name, kind_of(t), tuple(t.shape), seen[at])
    return Checkpoint(made, ties=tied(found), format="torch module")


# --- what cannot be loaded --------------------------------------------------------------------------------------------


def refuse_unwritable(targets: Mapping[str, torch.Tensor], *, placed: bool) -> None:
    """Refuse tensors into which nothing can be read: UsageError, or ConversionError for expanded ones.

    placed: those of the meta device get memory first.
    """
    if not placed and (bare := next((n for n, t in targets.items() if t.is_meta), "")):
        raise UsageError(f"{bare} has no memory (device meta); give load_into a device=")
    if odd := [f"{n}: {why}" for n, t in targets.items() if (why := _unwritable(t))]:
        raise UsageError(f"nothing can be loaded into these, and nothing was:\n{listing(odd)}")
    if wide := [n for n, t in targets.items() if t.numel() and not t.is_meta and 0 in box(t).strides]:
        raise ConversionError(
            "these are expanded: what are many elements is one in memory, which cannot hold them; nothing was loaded, "
            f"give the module a clone() of each:\n{listing(wide)}"
        )


def _unwritable(t: torch.Tensor) -> str:
    """Why elements cannot be written into a tensor's memory one by one; '' if they can."""
    if t.layout != torch.strided:
        return f"its layout is {str(t.layout).removeprefix('torch.')}; give the module its to_dense()"
    if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not (t.is_meta or _takes_values(t)):
        return f"a {type(t).__name__} takes no values of a plain tensor; load before it is made of one"
    if t.is_inference() and not t.is_meta and not torch.is_inference_mode_enabled():
        return "it was made in inference mode; load under torch.inference_mode()"
    return ""


def _takes_values(t: torch.Tensor) -> bool:
    """Whether what is copied into a tensor of a class with operations of its own is what all its memory holds then.

    DTensor takes nothing of a plain tensor; others quantise it, round it or cut it off.
    """
    tried = torch.tensor(FRACTIONS if t.is_floating_point() or t.is_complex() else WHOLE).to(t.dtype).to(t.device)
    try:
        probe: Any = t.detach().clone()
        probe.copy_(tried[0].expand(t.shape))  # a class that takes nothing says so before there is memory for more
        values = tried.repeat(t.numel() // len(tried) + 1)[: t.numel()].reshape(tuple(t.shape))
        probe.copy_(values)
        names = probe.__tensor_flatten__()[0] if hasattr(probe, "__tensor_flatten__") else ()
        inner = [getattr(probe, n) for n in names] or [probe.as_subclass(torch.Tensor)]
        return all(torch.equal(i, values) for i in inner)
    except Exception:  # it is code of others: anything can be raised
        return False


def refuse_other_values(own: Mapping[str, torch.Tensor], given: Mapping[str, Tensor], sources: Sources) -> None:
    """ConversionError if torch would cut off fractions or imaginary parts, wrap integers, or take a number for true."""
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
            text = f"{odd} of {source.count} values are none that {to}, the module's dtype, has; nothing was loaded"
            raise ConversionError(text, tensor=name)


def apart(own: Mapping[str, torch.Tensor], given: Mapping[str, Tensor], sources: Sources) -> dict[str, Tensor]:
    """The sources, with a copy of each that is an array where another tensor will be filled."""
    if not any(isinstance(p.data, Held) for t in given.values() for p in t.parts):
        return dict(given)
    filled = [a for a in areas({n: own[n] for n in given}) if a.space == "cpu"]
    starts = [a.start for a in filled]

    def is_overwritten(name: str, array: Any) -> bool:
        start = array.ctypes.data
        first, last = (bisect_right(starts, at) for at in (start, start + array.nbytes - 1))
        return any(a.end > start and a.names != (name,) for a in filled[max(first - 1, 0) : last])

    out = dict(given)
    for name, t in given.items():
        if any(isinstance(p.data, Held) and is_overwritten(name, p.data.array) for p in t.parts):
            out[name] = contiguous(name, t.dtype, t.shape, Held(read_array(t, sources)))
    return out


def refuse_conflicts(own: Mapping[str, torch.Tensor], given: Mapping[str, Tensor], sources: Sources) -> None:
    """Refuse values that tensors cannot hold: those for the same memory are first written to other memory.

    Sources of the same stored elements are not read. ConversionError names all tensors that share memory if one of
    them would not hold its value, and tensors of a dtype that torch lacks.
    """
    for name, source in given.items():
        dtype_of(source.dtype, name)
    for area in areas({n: own[n] for n in given}):
        if len({(spot(own[n]), origin(given[n])) for n in area.names}) == 1:
            continue
        first, *others = area.names
        if len({spot(own[n]) for n in area.names}) == 1:  # in no need of other memory
            views = dict.fromkeys(others, _stored(given[first], own[first], sources))
        else:
            room, views = np.empty(area.end - area.start, "u1"), {}
            for n in area.names:
                where, value = box(own[n]), _stored(given[n], own[n], sources)
                steps = tuple(s * value.itemsize for s in where.strides)
                views[n] = np.ndarray(value.shape, value.dtype, room, where.start - area.start, steps)
                views[n][...] = value
        if any(not np.array_equal(view, _stored(given[n], own[n], sources)) for n, view in views.items()):
            text = "the module ties these, which share memory, but the source has two values"
            raise ConversionError(f"{text}:\n{listing(area.names)}")


def _stored(source: Tensor, target: torch.Tensor, sources: Sources) -> Any:
    """The elements that memory has once a tensor there holds the source's values, as integers."""
    value = to_torch(read_array(source, sources), source.dtype, source.name).to(target.dtype)
    value = value.conj().resolve_conj() if target.is_conj() else value
    word: Any = f"u{size}" if (size := target.element_size()) <= 8 else [("low", "u8"), ("high", "u8")]
    return to_array(value.neg() if target.is_neg() else value).view(word)
