"""Convert between arrays and torch tensors that share memory, and read and fill the memory of modules.

Dtypes that NumPy lacks are passed as integers of the same width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, MissingExtra, UsageError
from ..messages import listing
from .log import Loss
from .part import Held, Stored, reach
from .read import fill_array, read_array

if TYPE_CHECKING:
    import torch

    from .copy import Array
    from .sources import Sources


def to_torch(array: Array, kind: DType, name: str = "") -> torch.Tensor:
    """Make a tensor that shares the array's memory; ConversionError if torch lacks the dtype."""
    wanted = dtype_of(kind, name)
    import torch

    flat = torch.from_numpy(array.reshape(-1).view("u1" if kind.kind != "b" else "?"))
    return (flat if kind.kind == "b" else flat.view(wanted)).reshape(array.shape)


def dtype_of(kind: DType, name: str = "") -> torch.dtype:
    """Return torch's dtype; ConversionError, with the tensor's name, if there is none."""
    try:
        import torch
    except ImportError as e:
        raise MissingExtra("this needs torch; pip install 'ckptconv[torch]'") from e
    wanted = getattr(torch, kind.name, None)
    if not isinstance(wanted, torch.dtype):
        raise ConversionError(f"torch has no dtype {kind}", tensor=name or None)
    return wanted


def kind_of(tensor: torch.Tensor) -> DType:
    """Return the dtype of a tensor; UsageError if we lack it."""
    if (name := str(tensor.dtype).removeprefix("torch.")) not in DTYPES:
        raise UsageError(f"torch's dtype {name} is not supported")
    return DTYPES[name]


def to_array(tensor: torch.Tensor) -> Array:
    """Convert a tensor to an array, which shares its memory if it is contiguous and on the CPU."""
    import torch

    kind = kind_of(tensor)
    contiguous = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    narrow: Any = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    flat = contiguous.reshape(-1).view(narrow[contiguous.element_size()]).numpy()
    shaped: Array = flat.view(kind.dtype).reshape(tuple(tensor.shape))
    return shaped


# --- the memory of modules --------------------------------------------------------------------------------------------


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a module's state dict by name; names that share a tensor map to the same object."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    return {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}


def memory(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Return the tensors of a module's state that are or view its parameters and buffers, and the names of the others.

    Hooks, a state_dict method of the module or get_extra_state make the others; writing to them has no effect.
    """
    found, homes = state(module), {_home(t) for t in chain(module.parameters(), module.buffers())}
    own = {n: t for n, t in found.items() if _home(t) in homes and n.rpartition(".")[2] != "_extra_state"}
    return own, tuple(n for n in found if n not in own)


def _home(t: torch.Tensor) -> tuple[str, int]:
    """Identify the storage that a tensor views, or the tensor if it has none: if it is sparse, or lazy."""
    try:
        return "storage", t.untyped_storage()._cdata
    except (RuntimeError, ValueError):
        return "tensor", id(t)


def spot(t: torch.Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors with the same elements in the same memory."""
    extent = _extent(t)
    if extent is None or not t.numel():
        return (id(t),)
    shape = tuple(t.shape)
    strides = tuple(s if n > 1 else 1 for s, n in zip(t.stride(), shape, strict=True))
    return (*extent, strides, t.dtype, shape, t.is_conj(), t.is_neg())


def _extent(t: torch.Tensor) -> tuple[str, int, int] | None:
    """Return an address space, and a tensor's first and last byte there; None if its elements have no addresses."""
    import torch

    try:
        if t.layout != torch.strided or not (t.is_meta or t.data_ptr()):
            return None
        space = f"meta {t.untyped_storage()._cdata}" if t.is_meta else str(t.device)
        start = int(t.storage_offset()) * t.element_size() if t.is_meta else t.data_ptr()
    except RuntimeError:  # a subclass that keeps its elements in other tensors
        return None
    return space, start, start + t.element_size() * reach(t.shape, t.stride()) if t.numel() else start


def refuse_overlaps(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise UsageError for tensors that share memory but not all elements in one order: slices, transposes."""
    last: tuple[str, int, int, str] = ("", 0, 0, "")
    for space, start, end, name in sorted((*extent, n) for n, t in tensors.items() if (extent := _extent(t))):
        if space == last[0] and start < last[2] and spot(tensors[name]) != spot(tensors[last[3]]):
            text = "these share memory in different ways; convert to a .pt file for load_state_dict"
            raise UsageError(f"{text}, nothing was loaded:\n{listing([last[3], name])}")
        last = max((space, start, end, name), last, key=lambda r: (r[0] == space, r[2]))


def place(module: torch.nn.Module, names: Collection[str], device: torch.device | str) -> None:
    """Move a module's tensors to a device; those of the meta device get memory there if they are among `names`.

    Tensors that share memory still share it afterwards.
    """
    import torch

    bare: dict[object, torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    for name, t in memory(module)[0].items():
        if t.is_meta and name in names and id(t) not in made:
            own = bare.setdefault(spot(t), torch.empty_like(t.detach(), device=device))
            made[id(t)] = torch.nn.Parameter(own, t.requires_grad) if isinstance(t, torch.nn.Parameter) else own
    moved: dict[object, torch.Tensor] = {}
    for part in module.modules():
        groups: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for kept in groups:
            for key, t in kept.items():
                if t is not None and t.is_meta:
                    kept[key] = made.get(id(t), t)
                elif t is not None:
                    at = spot(t)
                    t.data = moved[at] if at in moved else moved.setdefault(at, t.data.to(device))


# --- filling it -------------------------------------------------------------------------------------------------------


def fill(own: Mapping[str, torch.Tensor], given: Mapping[str, Stored], sources: Sources) -> dict[str, Loss]:
    """Read into tensors, by name, and return the losses of casts; shared memory is filled once.

    The caller has called `checkpoint.torch.refuse_unwritable`.
    """
    import torch

    from .cast import lost

    done, losses = dict[object, str](), dict[str, Loss]()
    with torch.no_grad():
        for name, source in given.items():
            target = own[name]
            first = done.setdefault(spot(target), name) == name
            if first and _is_plain(target, source):
                # tell autograd about this change in place, as `copy_` does
                fill_array(source, to_array(target).reshape(-1).view("u1"), sources)
                torch.autograd.graph.increment_version(target)
                continue
            if not first and kind_of(target) == source.dtype:
                continue
            array = read_array(source, sources)
            value = to_torch(array, source.dtype, name).to(target.dtype)
            if kind_of(target) != source.dtype:  # count the losses of each source, also if the memory is filled already
                losses[name] = lost(array, to_array(value), kind_of(target))
            if first:
                target.copy_(value)
    return {name: loss for name, loss in losses.items() if any(loss)}


def _is_plain(target: torch.Tensor, source: Stored) -> bool:
    """Tell whether the source can be read straight into the memory of a module's tensor.

    Not if the source is in memory, which could be the module's own, in another order.
    """
    import torch

    own = type(target) in (torch.Tensor, torch.nn.Parameter) and target.device.type == "cpu" and target.is_contiguous()
    as_they_are = own and not (target.is_conj() or target.is_neg() or target.is_inference())
    return as_they_are and kind_of(target) == source.dtype and not any(isinstance(p.data, Held) for p in source.parts)
