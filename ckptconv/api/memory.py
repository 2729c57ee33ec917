"""What Python has in memory, as a checkpoint: arrays of any framework, state dicts with ties, modules.

Mappings may be nested, as JAX's parameters are: names are joined by '/'. An array is what `numpy.asarray` takes, torch
tensors of any dtype, and what has `__dlpack__`. Nothing is copied that is contiguous and on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, Tensor, contiguous, held
from ..errors import UsageError
from ..messages import listing
from .options import is_path

MAX_DEPTH = 100  # of mappings in mappings


def gathered(tensors: Any) -> Checkpoint:
    """A mapping of arrays or tensors, or a module that has a state dict; UsageError names all that is neither."""
    if isinstance(tensors, Checkpoint):
        return tensors
    found = list(_leaves(tensors if isinstance(tensors, Mapping) else _state_dict(tensors)))
    made: dict[str, Tensor] = {}
    bad: dict[str, str] = {}
    known: dict[object, str] = {}
    ties: dict[str, list[str]] = {}
    for name, value in found:
        try:
            if not isinstance(name, str):
                raise TypeError("a name is a text")
            if name in made:
                raise ValueError("two values have this name")
            shared = _storage(value)
            if shared is not None and shared in known:
                made[name] = replace(made[known[shared]], name=name)
                ties.setdefault(known[shared], [known[shared]]).append(name)
                continue
            made[name] = _tensor(name, value)
        except (TypeError, ValueError, RuntimeError, BufferError, UsageError) as e:
            bad[str(name)] = str(e)
        else:
            known[shared] = name
    if bad:
        lines = listing(f"{name}: {why}" for name, why in bad.items())
        raise UsageError(f"{len(bad)} of {len(found)} values are not arrays that a checkpoint can hold:\n{lines}")
    return Checkpoint(made, ties=tuple(map(tuple, ties.values())), format="memory")


def _leaves(found: Mapping[Any, Any], around: tuple[int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Names and values of a mapping and of those in it; a mapping that holds itself is left as it is."""
    around = (*around, id(found))
    for name, value in found.items():
        mapping = isinstance(value, Mapping) and isinstance(name, str)
        if not mapping or id(value) in around or len(around) == MAX_DEPTH:
            yield name, value
            continue
        for inner, leaf in _leaves(value, around):
            yield f"{name}/{inner}" if isinstance(inner, str) else (name, inner), leaf


def _state_dict(owner: Any) -> Mapping[str, Any]:
    give = getattr(owner, "state_dict", None)
    if not callable(give):
        hint = "; give it a name: {'NAME': array}" if hasattr(owner, "__array__") else ""
        hint = "; convert takes paths" if is_path(owner) else hint
        raise UsageError(f"a path, a mapping of arrays or a module is needed, not {type(owner).__name__}{hint}")
    found: Mapping[str, Any] = give()
    return found


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a torch tensor exists only where torch was imported
    return torch is not None and isinstance(value, torch.Tensor)


def _storage(value: Any) -> object:
    """What two torch tensors have in common that are views of the same elements, read alike; None for all else.

    Of a subclass only the class itself knows what its memory means; a tensor that is not on a device has none.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if value.layout != torch.strided or value.is_nested or not value.numel() or not value.data_ptr():
        return None
    seen = value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    return *seen, value.is_conj(), value.is_neg()


def _tensor(name: str, value: Any) -> Tensor:
    """A value as a tensor of its own dtype, which of torch's NumPy does not always have."""
    if isinstance(value, Tensor):
        return replace(value, name=name)
    if not _is_torch(value):
        return held(name, _array(value))
    from ..moves.part import Held
    from ..moves.torch import kind_of, to_array

    if why := _valueless(value):
        raise TypeError(why)
    kind = kind_of(value)
    try:
        return contiguous(name, kind, tuple(value.shape), Held(to_array(value)))
    except (RuntimeError, TypeError) as e:
        what = type(value).__name__
        raise TypeError(f"torch gives no array of this {what}: {str(e).partition(chr(10))[0]}") from e


def _valueless(value: Any) -> str:
    """Why a torch tensor is not one array of values, and what is; '' if it is one. Torch names its own internals."""
    if value.is_meta or hasattr(value, "materialize"):
        return "it has no values yet: load some, or run its module once, then save it"
    if value.is_nested or value.is_quantized or (layout := str(value.layout).removeprefix("torch.")) != "strided":
        kind = "nested" if value.is_nested else "quantised" if value.is_quantized else layout.removeprefix("_")
        return f"it is {kind}; save a dense tensor of it (to_padded_tensor, dequantize, to_dense), or its parts by name"
    return ""


def _array(value: Any) -> Any:
    import numpy as np

    if isinstance(value, Mapping):
        raise TypeError("it is a mapping that holds itself or is nested too deeply")
    if isinstance(value, (str, bytes)) or value is None:
        raise TypeError(f"it is {'None' if value is None else f'of type {type(value).__name__}'}")
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    if np.ma.is_masked(value):
        raise TypeError("it is a masked array, whose mask no checkpoint holds; its filled() is an array")
    array = np.asarray(value)
    if array.dtype == object and not all(isinstance(item, (bytes, str)) for item in array.flat):
        raise TypeError("it is an array of Python objects; checkpoints hold numbers and bytes")
    for item in array.flat if array.dtype == object else ():
        try:
            item if isinstance(item, bytes) else item.encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half a surrogate pair, which UTF-8 cannot hold") from None
    return array
