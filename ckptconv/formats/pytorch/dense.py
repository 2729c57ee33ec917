"""Compute dense tensors from sparse and quantised ones on request: they are read, and held in memory.

sparse_coo   indices (ndim, nnz), values (nnz, ...): duplicates add up
sparse_csr   crow_indices (rows + 1), col_indices (nnz), values (nnz, ...), as above; csc by columns; bsr, bsc in blocks
quantised    value = (q - zero_point) * scale, per tensor or along an axis
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, Note, Tensor, held
from ...errors import CkptError, CorruptCheckpoint, NameCollision, UnsafeCheckpoint
from ...messages import listing
from ...moves.part import Held, checked_count
from ..reading import Reading

MAX_DENSE = 2**33  # bytes; a sparse shape costs nothing to claim
MAX_REPEATED = 2**24  # bytes that the pieces of all tensors may have beyond what is stored


def densified(source: Checkpoint, how: Reading) -> Checkpoint:
    """Replace the pieces of each sparse or quantised tensor by the tensor, if that is asked for.

    With `salvage`, a tensor of which a piece cannot be read is left out with a note.
    """
    if not how.densify:
        return source
    wholes = {name: about for name, about in source.details.get("pieces", {}).items() if about["kind"] != "nested"}
    owner = {piece: name for name, about in wholes.items() for piece in _named(name, about).values()}
    if twice := [name for name in wholes if name in source and name not in owner]:
        raise NameCollision(f"tensors beside sparse tensors of the same names:\n{listing(twice)}")
    _check_repeated([source[piece] for piece in owner])
    notes = [n for n in source.notes if not n.text.endswith("densify=True computes them")]
    made: dict[str, Any] = {}
    for name in wholes:
        try:
            made[name] = _dense(source, name)
        except CkptError as e:
            if not how.salvage:
                raise
            notes.append(Note("damaged", " ".join(e.message.split()), (name,)))
    tensors: dict[str, Tensor] = {}
    for name, t in source.items():
        whole = owner.get(name)
        if whole is None:
            tensors[name] = t
        elif whole in made and whole not in tensors:
            tensors[whole] = replace(held(whole, made[whole]), role=t.role)
    if made:
        notes.append(Note("assumed", "sparse or quantised in the source, computed in full here", tuple(made)))
    ties = tuple(group for group in source.ties if not owner.keys() & {*group})  # equal pieces may be of other scales
    return replace(source, tensors={}, ties=ties, notes=tuple(notes)).with_tensors(tensors)


def _named(name: str, about: dict[str, Any]) -> dict[str, str]:
    """The name of each piece of a tensor."""
    return {part: f"{name}.{part}" if part else name for part in about["parts"]}


def _check_repeated(pieces: list[Tensor]) -> None:
    """Refuse pieces that repeat what is stored, a stride of 0: what is computed of them is held in memory."""
    room = MAX_REPEATED
    for t in pieces:
        stored = sum(p.data.array.nbytes if isinstance(p.data, Held) else p.data.size for p in t.parts)
        room -= max(0, t.nbytes - stored)
        if room < 0:
            raise UnsafeCheckpoint(f"the pieces of tensors repeat more than {MAX_REPEATED} bytes", tensor=t.name)


def _dense(source: Checkpoint, name: str) -> Any:
    about = source.details["pieces"][name]
    parts = {part: source[piece].numpy() for part, piece in _named(name, about).items()}
    if about["kind"] == "quantised":
        try:
            return _dequantised(about, parts)
        except (TypeError, ValueError) as e:
            text = f"its scales do not fit its shape {list(parts[''].shape)}: {e}"
            raise CorruptCheckpoint(text, tensor=name) from e
    shape, values = tuple(about["shape"]), parts["values"]
    if checked_count(shape) * values.itemsize > MAX_DENSE:
        raise UnsafeCheckpoint(f"sparse of shape {list(shape)}: more than {MAX_DENSE} bytes when dense", tensor=name)
    try:
        return _scattered(about["kind"], shape, values, parts)
    except (IndexError, ValueError, ZeroDivisionError) as e:
        raise CorruptCheckpoint(f"its sparse indices do not fit its shape {list(shape)}: {e}", tensor=name) from e


def _dequantised(about: dict[str, Any], parts: dict[str, Any]) -> Any:
    import numpy as np

    q, scale, zero = parts[""], *(np.asarray(parts.get(k, about.get(k))) for k in ("scale", "zero_point"))
    kind = np.float32 if zero.dtype.kind == "f" else np.float64  # torch subtracts numbers of the zero point's kind
    channels = about["scheme"].startswith("per_channel")
    wide = kind if channels else np.float32  # beside integers, the scales of channels are doubles; one alone is a float
    if channels:
        axis = about["axis"]
        if not 0 <= axis < q.ndim or {scale.shape, zero.shape} != {(q.shape[axis],)}:
            raise ValueError(f"{list(scale.shape)} scales, {list(zero.shape)} zero points along axis {axis}")
        across = [1] * q.ndim
        across[axis] = -1
        scale, zero = scale.reshape(across), zero.reshape(across)
    return ((q.astype(kind) - zero.astype(kind)).astype(wide) * scale.astype(wide)).astype(np.float32)


def _scattered(kind: str, shape: tuple[int, ...], values: Any, parts: dict[str, Any]) -> Any:
    import numpy as np

    from ...moves.cast import HALVES

    out = np.zeros(shape, values.dtype)
    if kind == "sparse_coo":
        indices = parts["indices"]
        if indices.size and (indices.min() < 0 or len(indices) > len(shape)):
            raise IndexError("negative or too many indices")
        np.add.at(out, tuple(indices), values)
        return out
    by_row = "crow_indices" in parts
    outer = parts["crow_indices" if by_row else "ccol_indices"]
    inner = parts["col_indices" if by_row else "row_indices"]
    if outer.ndim != 1 or values.ndim not in (1, 3) or len(shape) != 2:
        raise ValueError("batches of compressed sparse tensors are not computed")
    if (np.diff(outer) < 0).any() or outer[0] != 0 or outer[-1] != len(inner) or (inner < 0).any():
        raise IndexError("the compressed indices do not rise from 0 to the number of values")
    height, width = values.shape[1:] if values.ndim == 3 else (1, 1)
    blocks = values.reshape(-1, height, width)
    majors = np.repeat(np.arange(len(outer) - 1), np.diff(outer))
    rows, columns = (majors, inner) if by_row else (inner, majors)
    if values.ndim == 3 and values.dtype.name in HALVES:
        out = out.astype(np.float32)  # as torch adds up blocks, but not single numbers
    grid = out.reshape(shape[0] // height, height, shape[1] // width, width)
    np.add.at(grid.swapaxes(1, 2), (rows, columns), blocks)
    return out.astype(values.dtype, copy=False)
