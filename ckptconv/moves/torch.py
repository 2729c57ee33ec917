"""Arrays and torch tensors that share memory; dtypes that NumPy lacks are passed as integers of the same width."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, MissingExtra, UsageError

if TYPE_CHECKING:
    import torch

    from .copy import Array
    from .part import Stored
    from .sources import Sources


def to_torch(array: Array, kind: DType, name: str = "") -> torch.Tensor:
    """The array as a tensor that shares its memory; ConversionError if torch lacks the dtype."""
    try:
        import torch
    except ImportError as e:
        raise MissingExtra("this needs torch; pip install 'ckptconv[torch]'") from e
    wanted = getattr(torch, kind.name, None)
    if not isinstance(wanted, torch.dtype):
        raise ConversionError(f"torch has no dtype {kind}", tensor=name or None)
    flat = torch.from_numpy(array.reshape(-1).view("u1" if kind.kind != "b" else "?"))
    return (flat if kind.kind == "b" else flat.view(wanted)).reshape(array.shape)


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor as an array, which shares its memory if it is contiguous and on the CPU."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise UsageError(f"torch's dtype {kind} is not supported")
    contiguous = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    narrow: Any = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    flat = contiguous.reshape(-1).view(narrow[contiguous.element_size()]).numpy()
    shaped: Array = flat.view(DTYPES[kind].np).reshape(tuple(tensor.shape))
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

        from .read import fill_array

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


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers by name; names that share a tensor map to the same object."""
    import torch

    return {n: t for n, t in module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}


def place(module: torch.nn.Module, names: Collection[str], device: torch.device | str) -> None:
    """Move a module's tensors to a device; those of the meta device get memory there if they are among `names`."""
    import torch

    made: dict[int, torch.Tensor] = {}
    for name, t in state(module).items():
        if t.is_meta and name in names and id(t) not in made:
            bare = torch.empty_like(t.detach(), device=device)
            made[id(t)] = torch.nn.Parameter(bare, t.requires_grad) if isinstance(t, torch.nn.Parameter) else bare
    for part in module.modules():
        groups: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for kept in groups:
            for key, t in kept.items():
                if t is not None and t.is_meta:
                    kept[key] = made.get(id(t), t)
                elif t is not None:
                    t.data = t.data.to(device)


__all__ = ["Staged", "place", "state", "to_array", "to_torch"]
