"""Arrays and torch tensors that share memory; dtypes that NumPy lacks are passed as integers of the same width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES, DType
from ..errors import ConversionError, MissingExtra, UsageError

if TYPE_CHECKING:
    import torch

    from .copy import Array


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


__all__ = ["to_array", "to_torch"]
