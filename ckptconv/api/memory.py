"""What Python has in memory, as a checkpoint: arrays of any framework, state dicts with ties, modules.

Mappings may be nested, as JAX's parameters are: names are joined by '/', or all by '.' if a value is a torch tensor. An
array is what `numpy.asarray` takes, torch tensors of any dtype, and what has `__dlpack__`. Nothing is copied that is
contiguous and on the CPU. A Keras model is what it saves itself.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..checkpoint import Checkpoint, Tensor, contiguous, held
from ..errors import UsageError
from ..messages import reasons
from .options import is_path, names_code

MAX_DEPTH = 100  # of mappings in mappings
FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "flax")


def to_checkpoint(tensors: Any) -> Checkpoint:
    """A mapping of arrays or tensors, or a module or model of them; UsageError names all that is neither."""
    if isinstance(tensors, Checkpoint):
        return tensors
    if callable(getattr(tensors, "save_weights", None)):
        return _of_keras(tensors)
    found = list(_leaves(tensors if isinstance(tensors, Mapping) else _state_dict(tensors)))
    # as in a state dict, or as in JAX
    separator = "." if any(type(leaf).__module__.startswith("torch") for _, leaf in found) else "/"
    made: dict[str, Tensor] = {}
    bad: dict[str, str] = {}
    known: dict[object, str] = {}
    ties: dict[str, list[str]] = {}
    for path, value in found:
        name = separator.join(map(str, path))
        try:
            if not all(isinstance(key, str) for key in path):
                raise TypeError("a key is not a text")
            if name in made:
                raise ValueError("two values have this name")
            shared = _storage(value)
            if shared is not None and shared in known:
                made[name] = replace(made[known[shared]], name=name)
                ties.setdefault(known[shared], [known[shared]]).append(name)
                continue
            made[name] = _tensor(name, value)
        except (TypeError, ValueError, RuntimeError, BufferError, UsageError) as e:
            bad[name] = str(e)
        else:
            known[shared] = name
    if bad:
        text = f"{len(bad)} of {len(found)} values are not arrays that a checkpoint can hold"
        raise UsageError(f"{text}:\n{reasons(bad)}")
    return Checkpoint(made, ties=tuple(map(tuple, ties.values())), format="memory")


def _leaves(found: Mapping[Any, Any], around: tuple[int, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Values of a mapping and of those in it, with their keys; a mapping that holds itself is left as it is."""
    around = (*around, id(found))
    for name, value in found.items():
        if not isinstance(value, Mapping) or id(value) in around or len(around) == MAX_DEPTH:
            yield (name,), value
            continue
        for inner, leaf in _leaves(value, around):
            yield (name, *inner), leaf


def _state_dict(owner: Any) -> Mapping[str, Any]:
    nnx = sys.modules.get("flax.nnx")
    if nnx and isinstance(owner, nnx.Module):
        flat = nnx.to_flat_state(nnx.state(owner, nnx.Not(nnx.RngState)))
        return {"/".join(map(str, path)): variable.get_value() for path, variable in flat}
    give = getattr(owner, "state_dict", None)
    if not callable(give):
        hint = "; give it a name: {'NAME': array}" if hasattr(owner, "__array__") else ""
        hint = "; convert takes paths" if is_path(owner) else hint
        raise UsageError(f"a path, a mapping of arrays or a module is needed, not {type(owner).__name__}{hint}")
    found: Mapping[str, Any] = give()
    return found


def _of_keras(model: Any) -> Checkpoint:
    """What a Keras model saves, read into memory: with its config, if it can save that."""
    import tempfile

    from ..formats import detect
    from ..formats.table import Reading

    old = any(".engine." in kind.__module__ for kind in type(model).__mro__)  # Keras 2
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that .h5 is old
        path = os.path.join(folder, "model.h5" if old else "model.keras")
        try:
            try:
                model.save(path)
            except Exception:  # its code may not allow that
                path = os.path.join(folder, "weights.h5" if old else "model.weights.h5")
                model.save_weights(path)
        except Exception as e:
            raise UsageError(f"the Keras model does not save its weights: {describe_error(e)}") from e
        found = detect.open_checkpoint(path, Reading())
        if not found.tensors:
            raise UsageError("the Keras model has no weights yet: build it, or call it once")
        read = {n: replace(held(n, t.numpy()), role=t.role) for n, t in found.items()}
        return replace(found, tensors=read, urls=(), hashes={})


def _storage(value: Any) -> object:
    """What two torch tensors have in common that are views of the same elements, read alike; None for all else.

    Of a subclass only the class itself knows what its memory means; a tensor that is not on a device has none.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if value.layout != torch.strided or value.is_nested or not value.numel() or not value.data_ptr():
        return None
    where = value.device, value.data_ptr(), value.stride()
    return *where, value.dtype, tuple(value.shape), value.is_conj(), value.is_neg()


def _tensor(name: str, value: Any) -> Tensor:
    """A value as a tensor of its own dtype, which of torch's NumPy does not always have."""
    if isinstance(value, Tensor):
        return replace(value, name=name)
    torch = sys.modules.get("torch")  # a torch tensor exists only where torch was imported
    if torch is None or not isinstance(value, torch.Tensor):
        return held(name, _array(value))
    from ..moves.part import Held
    from ..moves.torch import kind_of, to_array

    if why := _valueless(value):
        raise TypeError(why)
    kind = kind_of(value)
    try:
        return contiguous(name, kind, tuple(value.shape), Held(to_array(value)))
    except (RuntimeError, TypeError) as e:
        raise TypeError(f"torch gives no array of this {type(value).__name__}: {str(e).partition(chr(10))[0]}") from e


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
    if isinstance(value, list | tuple) and any(getattr(item, "ndim", 0) for item in value):
        raise TypeError("it is a list of arrays, which have no names: make it a dict, {'0': array, ...}")
    array = np.asarray(value)
    if array.dtype == object and not all(isinstance(item, (bytes, str)) for item in array.flat):
        raise TypeError("it is an array of Python objects; checkpoints hold numbers and bytes")
    for item in array.flat if array.dtype == object else ():
        try:
            item if isinstance(item, bytes) else item.encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half a surrogate pair, which UTF-8 cannot hold") from None
    return array


# --- code that makes it -----------------------------------------------------------------------------------------------


def build_if_named(value: Any, *, meta: bool = False) -> Any:
    """What package.module:callable makes, if a value is such a name; else the value."""
    return build_named(os.fspath(value), meta=meta) if is_path(value) and names_code(os.fspath(value)) else value


def build_named(name: str, *, meta: bool = False) -> Any:
    """Import `package.module:callable`, and call it without arguments; `meta` makes torch modules without memory.

    UsageError if the name is malformed, the code raises, or it needs arguments.
    """
    made = import_named(name)
    if not callable(made) or (hasattr(made, "state_dict") and not isinstance(made, type)):
        return made
    try:
        inspect.signature(made).bind()
    except TypeError as e:
        raise UsageError(f"{name} is called without arguments: {e}; name a function that needs none") from e
    except ValueError:  # written in C, it has no signature
        pass
    try:
        bare = None
        keras: Any = sys.modules.get("keras")  # whose models on torch need values, and are counted in their names
        if meta and "torch" in sys.modules and not (keras and keras.backend.backend() == "torch"):
            from ..checkpoint.torch import bodiless

            bare = bodiless(made)
        return made() if bare is None else bare
    except (Exception, SystemExit) as e:
        raise UsageError(f"{name} raised {describe_error(e)}") from e


def import_named(name: str) -> Any:
    """What `package.module:callable` names; UsageError if it cannot be imported. What is installed goes first."""
    where, _, attribute = name.partition(":")
    where = where.removesuffix(".py")
    try:
        top = where.partition(".")[0]  # of one that is installed, no module is sought in a folder of strangers
        if top not in sys.modules and not importlib.util.find_spec(top) and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        made: Any = attrgetter(attribute)(importlib.import_module(where))
    except (Exception, SystemExit) as e:  # importing can run any code
        if isinstance(e, (ImportError, AttributeError)) and not where_raised(e):
            raise UsageError(f"{name}: {e}") from e
        raise UsageError(f"{name} raised {describe_error(e)}") from e
    return made


def describe_error(e: BaseException) -> str:
    """An exception of the user's code as one line, with the place in that code."""
    message, where = str(e.msg if isinstance(e, SyntaxError) else e).strip().split("\n")[0], where_raised(e)
    return f"{type(e).__name__}: {message}" + (f" ({where})" if where else "")


def where_raised(e: BaseException) -> str:
    """The file and line that raised; '' if that is our code or the import system's."""
    if isinstance(e, SyntaxError):
        return f"{os.path.relpath(e.filename or '?')}:{e.lineno}"
    frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith("<frozen")]
    frameworks = (vars(m)["__file__"] for n in FRAMEWORKS if (m := sys.modules.get(n)))
    others = tuple(os.path.dirname(file) for file in (os.path.dirname(__file__), os.__file__, *frameworks))
    own = [f for f in frames if not f.filename.startswith(others)]
    return f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
