"""Arrays and torch tensors that share memory, and the memory of modules.

Dtypes that NumPy lacks are passed as integers of the same width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, MissingExtra, UsageError
from ..messages import listing
from .log import Loss
from .part import Held, Stored, c_strides
from .read import fill_array, read_array

if TYPE_CHECKING:
    import torch

    from .copy import Array
    from .sources import Sources


class Box(NamedTuple):
    """Where a tensor's elements are: bytes [start, end) of one space of addresses, and the strides in elements."""

    space: str
    start: int
    end: int
    strides: tuple[int, ...]


class Area(NamedTuple):
    """Bytes [start, end) of one space of addresses, and the names of the tensors that are there."""

    space: str
    start: int
    end: int
    names: tuple[str, ...]


def to_torch(array: Array, kind: DType, name: str = "") -> torch.Tensor:
    """The array as a tensor that shares its memory; ConversionError if torch lacks the dtype."""
    wanted = dtype_of(kind, name)
    import torch

    flat = torch.from_numpy(array.reshape(-1).view("u1" if kind.kind != "b" else "?"))
    return (flat if kind.kind == "b" else flat.view(wanted)).reshape(array.shape)


def dtype_of(kind: DType, name: str = "") -> torch.dtype:
    """Torch's dtype; ConversionError, with the tensor's name, if it has none."""
    try:
        import torch
    except ImportError as e:
        raise MissingExtra("this needs torch; pip install 'ckptconv[torch]'") from e
    wanted = getattr(torch, kind.name, None)
    if not isinstance(wanted, torch.dtype):
        raise ConversionError(f"torch has no dtype {kind}", tensor=name or None)
    return wanted


def kind_of(tensor: torch.Tensor) -> DType:
    """The dtype of a tensor; UsageError if it is one that we lack."""
    if (name := str(tensor.dtype).removeprefix("torch.")) not in DTYPES:
        raise UsageError(f"torch's dtype {name} is not supported")
    return DTYPES[name]


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor as an array, which shares its memory if it is contiguous and on the CPU."""
    import torch

    kind = kind_of(tensor)
    contiguous = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    narrow: Any = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    flat = contiguous.reshape(-1).view(narrow[contiguous.element_size()]).numpy()
    shaped: Array = flat.view(kind.np).reshape(tuple(tensor.shape))
    return shaped


class Staged:
    """Tensors on their way to memory that cannot be read into: to a device, or in another order of elements.

    They pass through two buffers in turn, so that one is read while the other is copied. For a GPU the buffers are
    pinned, which lets its copies run beside the reading; leaving the context waits for the last of them.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._buffers: list[tuple[torch.Tensor, Any]] = []

    def send(self, source: Stored, target: torch.Tensor) -> None:
        """Read a tensor of the same dtype and shape and copy it; checksums are verified before it is copied."""
        import torch

        there = target.device.type == "cuda"
        buffer = self._buffer(source.nbytes, there)[: source.nbytes]
        fill_array(source, buffer.numpy(), self._sources)
        target.copy_(buffer.view(target.dtype).reshape(target.shape), non_blocking=there)
        if there:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(target.device))
            self._buffers[-1] = (self._buffers[-1][0], event)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the copies that still run."""
        for pair in self._buffers:
            if pair[1] is not None:
                pair[1].synchronize()

    def _buffer(self, size: int, pinned: bool) -> torch.Tensor:
        """The buffer that was used least recently, once its copy is done; a larger one if it is too small."""
        import torch

        buffer, event = self._buffers.pop(0) if len(self._buffers) > 1 else (torch.empty(0), None)
        if event is not None:
            event.synchronize()
        if len(buffer) < max(size, 1) or buffer.is_pinned() != pinned:
            buffer = torch.empty(max(size, 1), dtype=torch.uint8, pin_memory=pinned)
        self._buffers.append((buffer, None))
        return buffer


# --- the memory of modules --------------------------------------------------------------------------------------------


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a module's state dict by name; names that share a tensor map to the same object."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"a torch.nn.Module is needed, not {type(module).__name__}")
    return {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}


def memory(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The tensors of a module's state that are its parameters, its buffers or views of them; the names of all others.

    The others are made by hooks, by a state_dict method of its own or by get_extra_state: the module never sees what is
    written there.
    """
    found, homes = state(module), {_home(t) for t in chain(module.parameters(), module.buffers())}
    own = {n: t for n, t in found.items() if _home(t) in homes and n.rpartition(".")[2] != "_extra_state"}
    return own, tuple(n for n in found if n not in own)


def _home(t: torch.Tensor) -> tuple[str, int]:
    """The storage that a tensor views; the tensor itself if it has none, as one that is sparse or has no shape yet."""
    try:
        return "storage", t.untyped_storage()._cdata
    except (RuntimeError, ValueError):
        return "tensor", id(t)


def box(t: torch.Tensor) -> Box:
    """Where a tensor's elements are. What has no addresses is a space of its own.

    Steps that are never taken, along axes of one element, are the same in boxes of the same memory.
    """
    shape, item, strided = tuple(t.shape), t.element_size(), _address(t)
    space, start = strided or (f"tensor {id(t)}", 0)
    if not strided or t.is_contiguous():
        return Box(space, start, start + t.numel() * item, c_strides(shape))
    steps = tuple(s if n > 1 else 1 for s, n in zip(t.stride(), shape, strict=True))
    return Box(space, start, start + item * (1 + sum((n - 1) * s for s, n in zip(steps, shape, strict=True))), steps)


def _address(t: torch.Tensor) -> tuple[str, int] | None:
    """A space of addresses and the first byte there, where a tensor has such: one of elements, on a device."""
    import torch

    try:
        if t.is_meta:
            return f"meta {t.untyped_storage()._cdata}", int(t.storage_offset()) * t.element_size()
        if t.layout == torch.strided and (start := t.data_ptr()):
            return str(t.device), start
    except RuntimeError:  # a subclass that keeps its elements in other tensors
        pass
    return None


def spot(t: torch.Tensor) -> tuple[object, ...]:
    """The same for tensors that are the same elements of the same memory; else it differs."""
    return (*box(t), t.dtype, tuple(t.shape), t.is_conj(), t.is_neg()) if t.numel() else (id(t),)


def areas(tensors: Mapping[str, torch.Tensor]) -> list[Area]:
    """The memory of tensors, in order; those of which one begins before another ends are in one area."""
    out: list[Area] = []
    for where, name in sorted((box(t)[:3], n) for n, t in tensors.items()):
        space, start, end = where
        if out and out[-1].space == space and start < out[-1].end:
            out[-1] = Area(space, out[-1].start, max(end, out[-1].end), (*out[-1].names, name))
        else:
            out.append(Area(space, start, end, (name,)))
    return out


def place(module: torch.nn.Module, names: Collection[str], device: torch.device | str) -> None:
    """Move a module's tensors to a device; those of the meta device get memory there if they are among `names`.

    Tensors that are the same memory stay that; UsageError if some share only a part of theirs.
    """
    import torch

    _refuse_parting(module, names, torch.empty(0, device=device).device)
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


def _refuse_parting(module: torch.nn.Module, names: Collection[str], device: torch.device) -> None:
    """UsageError if tensors that share a part of their memory would each get memory of its own."""
    kept = dict(chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)))
    bare = {n: t for n, t in memory(module)[0].items() if t.is_meta}  # others get none
    moved = {n: t for n, t in kept.items() if not t.is_meta and t.device != device}
    filled, both = set(names), bare | moved
    for area in (*areas(moved), *(a for a in areas(bare) if not filled.isdisjoint(a.names))):
        if len({spot(both[n]) for n in area.names}) > 1:
            text = f"these share a part of their memory, and would not on {device}; nothing was loaded, make the module"
            raise UsageError(f"{text} there and leave out the device:\n{listing(area.names)}")


# --- filling it -------------------------------------------------------------------------------------------------------


def fill(own: Mapping[str, torch.Tensor], given: Mapping[str, Stored], sources: Sources) -> dict[str, Loss]:
    """Read into tensors, by name, and return what casts lost; the same memory is filled once, see `refuse_conflicts`.

    No target is one of those that `checkpoint.torch.refuse_unwritable` refuses.
    """
    import torch

    from .cast import lost

    done, losses = dict[object, str](), dict[str, Loss]()
    with torch.no_grad(), Staged(sources) as staged:
        for name, source in given.items():
            target = own[name]
            first = done.setdefault(spot(target), name) == name
            if kind_of(target) != source.dtype:  # the losses are those of each source, the memory is filled once
                array = read_array(source, sources)
                cast = to_torch(array, source.dtype, name).to(target.dtype)
                losses[name] = lost(array, to_array(cast), kind_of(target))
                if first:
                    target.copy_(cast)
            elif not first:
                continue
            elif _is_plain(target, source):
                # a change in place, which autograd counts as it counts that of `copy_`
                fill_array(source, to_array(target).reshape(-1).view("u1"), sources)
                torch.autograd.graph.increment_version(target)
            else:
                staged.send(source, target)
    return {name: loss for name, loss in losses.items() if any(loss)}


def _is_plain(target: torch.Tensor, source: Stored) -> bool:
    """Whether the memory of a module's tensor holds exactly the bytes that a read of the source gives.

    Not where the source is in memory: it could be the module's own, in another order.
    """
    import torch

    own = type(target) in (torch.Tensor, torch.nn.Parameter) and target.device.type == "cpu" and target.is_contiguous()
    as_they_are = own and not (target.is_conj() or target.is_neg() or target.is_inference())
    return as_they_are and kind_of(target) == source.dtype and not any(isinstance(p.data, Held) for p in source.parts)
