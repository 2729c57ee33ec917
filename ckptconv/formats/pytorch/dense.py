"""Sparse and quantised tensors: what they are made of beside stored tensors, and on request what they amount to.

sparse_coo   indices (ndim, nnz), values (nnz, ...): duplicates add up
sparse_csr   crow_indices (rows + 1), col_indices (nnz), values (nnz, ...), as above; csc by columns; bsr, bsc in blocks
quantised    value = (q - zero_point) * scale, per tensor or along an axis

Numbers without a tensor of their own (the scale of a whole tensor, the dense shape) become tensors, so that no writer
loses them and no comparison overlooks them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ...checkpoint import Role, Tensor, contiguous, held, view
from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...moves import dense
from ...moves.part import FILL_RATIO, MAX_FILL, c_strides
from .views import Pieces, View

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_LISTED = 2**24  # bytes of numbers that dense tensors carry with them


class Numbers:
    """The numbers of pieces as arrays in memory, each once, however many tensors have it."""

    def __init__(self) -> None:
        self.known: dict[object, Tensor] = {}
        self.lists: list[Any] = []  # whose ids must not become those of others

    def of(self, p: Pieces) -> dict[str, Tensor]:
        """By the name that a tensor in their place would have; of the dtypes that torch makes of them."""
        if p.kind == "nested":  # its pieces hold all there is
            return {}
        if p.kind != "quantised":
            return {"shape": self.held(p.shape, "int64")}
        listed = "float32" if p.details["scheme"].endswith("float_qparams") else ""
        kinds = {"scale": listed or "float64", "zero_point": listed or "int64", "axis": "int64"}
        return {part: self.held(p.details[part], kind) for part, kind in kinds.items() if part in p.details}

    def held(self, value: Any, kind: str) -> Tensor:
        import numpy as np

        listed = type(value) is list
        key: object = (id(value), kind)
        if not listed or key not in self.known:
            try:
                array = np.array(value, kind)
            except OverflowError as e:
                raise CorruptCheckpoint(f"a number of a quantised tensor does not fit {kind}") from e
            key = key if listed else (array.shape, array.tobytes(), kind)
            self.lists += [value] if listed else []
            if key not in self.known:
                self.known[key] = held("", array)
        return self.known[key]


class Wholes:
    """Dense tensors in place of pieces. What they amount to is bounded, as a shape costs nothing to claim."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.room, self.listed = MAX_FILL, MAX_LISTED
        self.storages: set[int] = set()

    def tensor(self, name: str, p: Pieces, role: Role) -> Tensor:
        """The dense tensor, which is computed when it is read."""
        pieces = {part: stored("", v) for part, v in p.parts.items()}
        kind = DTYPES["float32"] if p.kind == "quantised" else pieces["values"].dtype
        self.take(name, p, max(prod(p.shape) * kind.itemsize, sum(t.nbytes for t in pieces.values())))
        if p.kind == "quantised":
            pieces |= self.numbers.of(p)
            axis = p.details.get("axis")
            pieces.pop("axis", None)
            numbers = sum(t.nbytes for part, t in pieces.items() if part not in p.parts)
            if numbers > self.listed:
                raise UnsafeCheckpoint(
                    f"the scales of its tensors are lists of more than {MAX_LISTED} bytes", tensor=name
                )
            self.listed -= numbers
            data = dense.quantised(name, pieces, axis)
        else:
            data = dense.sparse(name, p.shape, pieces)
        return contiguous(name, kind, p.shape, data, role=role)

    def take(self, name: str, p: Pieces, size: int) -> None:
        """Count the bytes of a dense tensor, or of its pieces if they are more."""
        for v in p.parts.values():
            if id(v.storage) not in self.storages:
                self.storages.add(id(v.storage))
                self.room += FILL_RATIO * v.storage.size
        if size > self.room:
            raise UnsafeCheckpoint(
                f"its tensors are more than {FILL_RATIO} times what is stored and {MAX_FILL} bytes when dense; "
                f"without densify=True they are given as their pieces", tensor=name,
            )  # fmt: skip
        self.room -= size


def stored(name: str, v: View, role: Role = "") -> Tensor:
    """A view as a tensor; its dtype and its data are known."""
    if v.row is None or v.storage.data is None:
        raise TypeError("a tensor of a dtype that nothing else can hold")
    if 0 in v.shape:
        return view(name, v.row, v.shape, v.storage.data, offset=0, strides=c_strides(v.shape), role=role)
    return view(name, v.row, v.shape, v.storage.data, offset=v.offset, strides=v.strides, ops=v.ops, role=role)


__all__ = ["Numbers", "Wholes", "stored"]
