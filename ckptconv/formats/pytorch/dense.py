"""Compute dense tensors from sparse and quantised ones on request: they are read, and held in memory.

sparse_coo   indices (ndim, nnz), values (nnz, ...): duplicates add up
sparse_csr   crow_indices (rows + 1), col_indices (nnz), values (nnz, ...); csc by columns; bsr, bsc in blocks
quantised    value = (q - zero_point) * scale, per tensor or along an axis
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, Note, Tensor, held
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves.part import checked_count

MAX_DENSE = 2**33  # bytes; a sparse shape costs nothing to claim


def densified(source: Checkpoint) -> Checkpoint:
    """Replace the pieces of each sparse or quantised tensor by the tensor."""
    pieces = source.details.get("pieces", {})
    tensors: dict[str, Tensor] = {}
    done: list[str] = []
    owner = {f"{name}.{part}" if part else name: name for name in pieces for part in PARTS}
    for name, t in source.items():
        whole = owner.get(name, "")
        kind = pieces.get(whole, {}).get("kind", "")
        if kind in ("", "nested"):
            tensors[name] = t
        elif whole not in done:
            done.append(whole)
            tensors[whole] = replace(held(whole, _dense(source, whole)), role=t.role)
    notes = [n for n in source.notes if not n.text.endswith("densify=True computes them")]
    if done:
        notes.append(Note("assumed", "sparse or quantised in the source, computed in full here", tuple(done)))
    return replace(source, tensors={}, notes=tuple(notes)).with_tensors(tensors)


PARTS = (
    "", "scale", "zero_point", "indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices",
)  # fmt: skip


def _dense(source: Checkpoint, name: str) -> Any:
    about = source.details["pieces"][name]
    parts = {p: source[f"{name}.{p}" if p else name].numpy() for p in PARTS if (f"{name}.{p}" if p else name) in source}
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

    q = parts[""].astype(np.float32)
    scale, zero = (np.asarray(parts.get(k, about.get(k)), np.float64) for k in ("scale", "zero_point"))
    if about["scheme"].startswith("per_channel"):
        axis = about["axis"]
        if not 0 <= axis < q.ndim or {scale.shape, zero.shape} != {(q.shape[axis],)}:
            raise ValueError(f"{list(scale.shape)} scales, {list(zero.shape)} zero points along axis {axis}")
        across = [1] * q.ndim
        across[axis] = -1
        scale, zero = scale.reshape(across), zero.reshape(across)
    if about["scheme"].endswith("float_qparams"):
        return (q * scale + zero).astype(np.float32)
    return ((q - zero).astype(np.float32) * scale.astype(np.float32)).astype(np.float32)


def _scattered(kind: str, shape: tuple[int, ...], values: Any, parts: dict[str, Any]) -> Any:
    import numpy as np

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
    grid = out.reshape(shape[0] // height, height, shape[1] // width, width)
    grid[rows, :, columns, :] = blocks
    return out
