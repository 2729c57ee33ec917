"""The table of dtypes, column by column, against the programs whose spellings it has, and the look-up by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ckptconv.dtypes import DTYPES, DType, castable, dtype, of_numpy
from ckptconv.errors import UsageError
from ckptconv.formats import safetensors


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
def test_sizes_and_kinds_are_those_of_numpy(row: DType) -> None:
    """ml_dtypes has no kinds that tell its types apart, but limits of floats and of whole numbers."""
    import ml_dtypes

    assert row.dtype.name == row.numpy_name
    if row.kind in "sx":
        assert (row.name, row.itemsize, row.numpy_name) in {("string", 0, "object"), ("float4_e2m1fn_x2", 1, "uint8")}
        return
    assert row.dtype.itemsize == row.itemsize
    assert row.name == row.numpy_name
    if row.kind == "f":
        assert ml_dtypes.finfo(row.dtype).bits == int(re.search(r"\d+", row.name)[0])  # type: ignore[index]
    elif row.kind in "iu":
        assert (ml_dtypes.iinfo(row.dtype).min < 0) is (row.kind == "i")
        assert ml_dtypes.iinfo(row.dtype).bits == int(row.name.strip("uint"))
    else:
        assert row.kind == row.dtype.kind


@pytest.mark.xdist_group("tensorflow")
def test_numbers_are_those_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    for row in DTYPES.values():
        if row.tf:
            assert tf.dtypes.as_dtype(row.tf).name == row.name
    lacking = {row.name for row in DTYPES.values() if not row.tf}
    assert lacking == {"float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn_x2"}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_names_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for row in DTYPES.values():
        if row.torch_name:
            assert getattr(torch, row.torch_name).itemsize == row.itemsize
            assert row.torch_name == row.name
        elif row.name not in {"int2", "int4", "uint2", "uint4"}:  # of which torch has hollow ones, without operations
            assert not hasattr(torch, row.name)
        if row.storage:
            assert getattr(torch, f"{row.storage}Storage").dtype is getattr(torch, row.torch_name)


def test_spellings_are_those_of_safetensors() -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    for spelling, kind in theirs._TYPES.items():
        (row,) = [row for row in DTYPES.values() if row.safetensors == spelling]
        assert kind is getattr(torch, row.torch_name or row.name)
    assert {row.safetensors for row in DTYPES.values()} <= {*safetensors.ORDER, ""}


NAMES = {
    "float32": "f32 fp32 float torch.float32 tf.float32 FLOAT32 F32 jnp.float32 single Single",
    "float16": "half f16 fp16 torch.half np.float16",
    "float64": "double f64 fp64 torch.double",
    "bfloat16": "bf16 BF16 torch.bfloat16",
    "int32": "i32 int32 np.int32",
    "uint8": "u8 torch.uint8",
    "float8_e4m3fn": "float8_e4m3fn torch.float8_e4m3fn",
    "complex64": "complex64 tf.complex64",
    "bool": "bool torch.bool",
}


def test_names_of_other_programs() -> None:
    for name, others in NAMES.items():
        assert {dtype(other).name for other in others.split()} == {name}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flaot32", r"unknown dtype 'flaot32'\W* did you mean float32\?"),
        ("torch.flaot32", r"unknown dtype 'torch\.flaot32'\W* did you mean float32\?"),
        ("i33", "unknown dtype 'i33'"),
        ("", "unknown dtype ''"),
        ("16", "unknown dtype '16'"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dtype(name)


def test_casts() -> None:
    """Between numbers, except from complex to real; to nothing from and to strings, opaque bytes, and bool."""
    kinds = {"f": "float32", "i": "int8", "u": "uint16", "b": "bool", "c": "complex64", "s": "string",
             "x": "float4_e2m1fn_x2"}  # fmt: skip
    found = {a: "".join(b for b in kinds if castable(DTYPES[kinds[a]], DTYPES[kinds[b]])) for a in kinds}
    assert found == {"f": "fiuc", "i": "fiuc", "u": "fiuc", "b": "fiubc", "c": "c", "s": "s", "x": "x"}
    assert castable(DTYPES["float32"], DTYPES["float16"])
    assert castable(DTYPES["complex64"], DTYPES["complex128"])


def test_rows_of_numpy_dtypes() -> None:
    for row in DTYPES.values():
        if row.kind not in "sx":
            assert of_numpy(row.dtype) is row
    assert of_numpy(np.dtype(">f4")).name == "float32"
    for kind in ("O", "S3", "U2", "V4", "M8[s]"):
        with pytest.raises(UsageError, match=r"a NumPy array of dtype .* cannot be stored in a checkpoint"):
            of_numpy(np.dtype(kind))
