"""The kernel and the geometry: any box, any cut, any stride, any cast, against NumPy's plain ways and torch."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from kit import examples, safetensors, same

import ckptconv
from ckptconv import ConversionError
from ckptconv.checkpoint import held
from ckptconv.dtypes import DTYPES, DType
from ckptconv.moves.cast import cast
from ckptconv.moves.copy import copy, packed, strided
from ckptconv.moves.log import Loss
from ckptconv.moves.part import Held, Part, c_strides, clip, slabs

F32 = DTYPES["float32"]


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """A part that fills a box of a larger tensor from any source strides."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    pads = [draw(st.integers(0, 2)) for _ in shape]
    outer = c_strides([n + p for n, p in zip(shape, pads, strict=True)])
    order = draw(st.permutations(range(len(shape))))  # the axes of the target in another order than the part's
    steps = [0] * len(shape)
    for axis, step in zip(order, c_strides([shape[i] + pads[i] for i in order]), strict=True):
        steps[axis] = draw(st.sampled_from([step, 0, 7, 100])) if shape[axis] == 1 else step  # which leads nowhere
    strides = draw(st.sampled_from([outer, tuple(draw(st.integers(0, 9)) for _ in shape)]))
    start = draw(st.integers(0, 5))
    return Part(Held(None), F32, tuple(shape), draw(st.integers(0, 3)), tuple(strides), start, tuple(steps))


def pairs(part: Part) -> list[tuple[int, int]]:
    """Every element of a part: where it goes and where it comes from."""
    return [
        (
            part.start + sum(i * s for i, s in zip(index, part.steps, strict=True)),
            part.offset + sum(i * s for i, s in zip(index, part.strides, strict=True)),
        )
        for index in np.ndindex(*part.shape)
    ]


@examples(300)
@given(parts(), st.integers(0, 200), st.integers(0, 200))
def test_clip_keeps_exactly_what_lies_in_the_range(part: Part, a: int, b: int) -> None:
    lo, hi = sorted((a, b))
    got = sorted(pair for p in clip(part, lo, hi) for pair in pairs(p))
    assert got == sorted(pair for pair in pairs(part) if lo <= pair[0] < hi)


@examples(200)
@given(parts(), st.integers(4, 200))
def test_slabs_are_small_and_lose_nothing(part: Part, limit: int) -> None:
    cut = list(slabs(part, limit))
    assert sorted(pair for p in cut for pair in pairs(p)) == sorted(pairs(part))
    assert all(prod(p.shape) * 4 <= limit for p in cut)


@examples(200)
@given(st.data())
def test_copy_equals_numpy(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["u1", "<u2", "<u4", "<u8", "<c16"]))
    rank = data.draw(st.integers(1, 5))
    shape = [data.draw(st.sampled_from([1, 2, 3, 5, 17, 64, 65])) for _ in range(rank)]
    while prod(shape) > 60000:
        shape[shape.index(max(shape))] //= 2
    axes = data.draw(st.permutations(range(rank)))
    steps = [data.draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in range(rank)]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, prod(n * s for n, s in zip(shape, steps, strict=True)) * np.dtype(kind).itemsize, "u1")
    src = raw.view(kind).reshape([n * s for n, s in zip(shape, steps, strict=True)])
    src = src[tuple(slice(None, None, s) for s in steps)].transpose(axes)
    if np.dtype(kind).kind == "c":  # bits, not values
        src = src.view("<u8") if src.flags.c_contiguous else src
    target = np.zeros(src.shape, src.dtype)
    back = data.draw(st.permutations(range(src.ndim)))
    dst = np.zeros([src.shape[i] for i in back], src.dtype).transpose(np.argsort(back))
    copy(target, src)
    copy(dst, src)
    want = src.copy(order="C")
    assert target.tobytes() == want.tobytes() == dst.copy(order="C").tobytes() == packed(src).tobytes()


@pytest.mark.parametrize("kind", ["u1", "u2", "f4", "f8"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((512, 512), (1, 0)),
        ((4099, 7), (1, 0)),
        ((7, 12, 10, 16, 33), (0, 4, 3, 1, 2)),
        ((2,) * 14, tuple(range(13, -1, -1))),
    ],
)
def test_large_transposes(kind: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    src = np.random.default_rng(0).integers(0, 256, prod(shape) * np.dtype(kind).itemsize, "u1").view(kind)
    view = src.reshape(shape).transpose(axes)
    out = np.empty(view.shape, kind)
    copy(out, view)
    assert same(out, np.ascontiguousarray(view))


def test_a_view_past_its_buffer_is_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        strided(bytearray(16), "u4", 1, (4,), (1,))


# --- casts ------------------------------------------------------------------------------------------------------


def everything(kind: str) -> np.ndarray[Any, Any]:
    """Bit patterns of all sorts: subnormals, ties, infinities, NaNs, neighbours of the 16-bit limits."""
    rng = np.random.default_rng(3)
    halves = np.arange(65536, dtype="u2").view("f2").astype(kind)
    wide = rng.integers(0, 256, 2**20, "u1").view(kind)
    with np.errstate(all="ignore"):
        near = [halves * (1 + s * 2.0**-e) for s in (1, -1) for e in (10, 11, 12, 23)]
        ties = (np.arange(65536, dtype="u4") << 16 | 0x8000).view("f4").astype(kind)
    return np.concatenate([halves, wide, *near, ties]).astype(kind)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("to", ["float16", "bfloat16", "float8_e5m2", "float64"])
def test_casts_of_float32_equal_torch(to: str) -> None:
    torch = pytest.importorskip("torch")
    array = everything("f4")
    out, _ = cast(array, F32, DTYPES[to])
    want = torch.from_numpy(array).to(getattr(torch, to))
    bits = {1: torch.uint8, 2: torch.int16, 8: torch.int64}[DTYPES[to].itemsize]
    number = ~np.isnan(array)
    assert np.array_equal(out.view(f"i{out.itemsize}").astype("i8")[number],
                          want.view(bits).numpy().view(f"i{out.itemsize}").astype("i8")[number])  # fmt: skip
    assert np.isnan(out[~number].astype("f8")).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("below", [65520, np.inf], ids=["fast", "with infinities"])
def test_halves_equal_numpy(below: float) -> None:
    """In blocks, as the engine casts; the passes that NumPy's conversion is compared with take no infinities."""
    array = everything("f4")
    array = array[np.abs(array) < below]
    assert len(array) > 10**5
    for at in range(0, len(array), 2**16):
        out, _ = cast(array[at : at + 2**16], F32, DTYPES["float16"])
        with np.errstate(all="ignore"):
            assert np.array_equal(out.view("u2"), array[at : at + 2**16].astype("f2").view("u2"))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("to", "bits"), [("float16", 10), ("bfloat16", 7)])
def test_float64_is_rounded_once(to: str, bits: int) -> None:
    """Against exact arithmetic on fractions, at the ties that rounding through float32 gets wrong."""
    from fractions import Fraction

    ones = [1 + Fraction(k, 2 ** (bits + 1)) + s * Fraction(1, 2**40) for k in range(1, 64, 2) for s in (-1, 0, 1)]
    array = np.array([float(x) for x in ones])
    out, loss = cast(array, DTYPES["float64"], DTYPES[to])
    step = Fraction(1, 2**bits)
    assert [Fraction(float(x)) for x in out] == [round(x / step) * step for x in ones]  # round() is half to even
    assert loss == Loss(0, 0)


REAL = [k for k in DTYPES.values() if k.kind in "fiub"]
EDGES = [
    float(x) * factor  # around which halves lose something
    for info in map(ml_dtypes.finfo, ("float16", ml_dtypes.bfloat16))
    for x in (info.smallest_subnormal, info.smallest_normal, info.max)
    for factor in (0.25, 0.49, 0.5, 0.51, 1 + 2**-12, 1.001, 1.01, 2)
]
EXTREMES = (0.0, -0.0, 1.0, -7.0, 300.0, 7e4, 1e30, -1e300, 1e-4, 1e-30, 1e-300, np.inf, np.nan, *EDGES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REAL, ids=str)
def test_losses_are_counted_whatever_the_widths(kind: DType) -> None:
    """Between any two dtypes, as the values in float64 tell; float16 and bfloat16 have the same width."""
    numbers = np.arange(2 if kind.kind == "b" else 4 if kind.name[-1] == "2" else 16).astype("u1")
    low_bits = kind.itemsize == 1 and kind.kind in "iub"
    whole = numbers.astype(kind.dtype) if low_bits else np.asarray([*EXTREMES, *numbers]).astype(kind.dtype)
    for to in DTYPES.values():
        if to.kind not in "fc" or to == kind:
            continue
        for array in (whole, whole[:0], *whole.reshape(-1, 1)):  # what is lost together, and by itself
            out, loss = cast(array, kind, to)
            before, after = array.astype("f8"), np.real(out).astype("f8")
            finite = np.abs(before) < 7 if to.name == "float4_e2m1fn" else np.isfinite(after)
            lost = ~finite & (np.isfinite(before) | (to.name == "float4_e2m1fn"))
            gone = (after == 0) & (before != 0) & ~lost
            assert loss == Loss(int(lost.sum()), int(gone.sum())), to


def test_parts_of_complex_numbers_are_counted() -> None:
    array = np.array([1e300 + 1e-300j, 1 - 1e300j], "c16")
    assert cast(array, DTYPES["complex128"], DTYPES["complex64"])[1] == Loss(2, 1)


@pytest.mark.parametrize(
    ("value", "kind", "to", "words"),
    [
        (-1, "int8", "uint8", "^values from -1 to -1 do not fit uint8$"),
        (256, "int32", "uint8", "^values from 256 to 256 do not fit uint8$"),
        (128, "int32", "int8", "^values from 128 to 128 do not fit int8$"),
        (-129, "int32", "int8", "^values from -129 to -129 do not fit int8$"),
        (8, "int8", "int4", "^values from 8 to 8 do not fit int4$"),
        (16, "int8", "uint4", "^values from 16 to 16 do not fit uint4$"),
        (0.5, "float32", "int8", "^float32 is not cast to int8: fractions would be lost$"),
    ],
)
def test_what_does_not_fit_an_integer_is_refused(value: float, kind: str, to: str, words: str) -> None:
    with pytest.raises(ConversionError, match=words):
        cast(np.array([value], DTYPES[kind].dtype), DTYPES[kind], DTYPES[to])


@pytest.mark.parametrize(
    ("values", "kind", "to"),
    [
        ([0, 255], "int32", "uint8"),
        ([-128, 127], "int32", "int8"),
        ([-8, 7], "int8", "int4"),
        ([0, 15], "int8", "uint4"),
    ],
)
def test_what_just_fits_an_integer(values: list[int], kind: str, to: str) -> None:
    out, loss = cast(np.array(values, DTYPES[kind].dtype), DTYPES[kind], DTYPES[to])
    assert out.astype("i4").tolist() == values
    assert loss == (0, 0)


def test_the_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    ckptconv.save({"fits": np.array([7], "i4"), "deep/w": np.array([1, 300], "i4")}, tmp_path / "a.npz")
    tensors = {n: replace(t, dtype=DTYPES["uint8"]) for n, t in ckptconv.open(tmp_path / "a.npz").items()}
    assert tensors["fits"].numpy().tolist() == [7]
    with pytest.raises(ConversionError, match="deep/w: values from 1 to 300 do not fit uint8"):
        ckptconv.save(tensors, tmp_path / "b.npz")
    assert not (tmp_path / "b.npz").exists()


DIRTY = [2, 0, 255, 1, 0x8E]
LOOSE_BYTES = {
    "bool": [1, 0, 1, 1, 1], "int4": [2, 0, 255, 1, 254], "uint4": [2, 0, 15, 1, 14], "int2": [254, 0, 255, 1, 254],
    "uint2": [2, 0, 3, 1, 2], "float4_e2m1fn": [2, 0, 15, 1, 14],
}  # fmt: skip


def _dirty(kind: str, folder: Path, suffix: str) -> Any:
    """An array whose bytes other programs could have written, in memory or in a file."""
    array = np.array(DIRTY, "u1").view(DTYPES[kind].dtype)
    path = folder / f"w{suffix}"
    if suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({"w": torch.tensor(DIRTY, dtype=torch.uint8).view(torch.bool)}, path)
    elif suffix == ".safetensors":
        header = b'{"w":{"dtype":"BOOL","shape":[5],"data_offsets":[0,5]}}'
        safetensors(path, header, bytes(DIRTY))
    elif suffix:
        np.save(path, array) if suffix == ".npy" else np.savez(path, w=array)
    return path if suffix else {"w": array}


@pytest.mark.parametrize("to", [".hdf5", ".ckpt", ".msgpack"])
@pytest.mark.parametrize(
    ("kind", "suffix"),
    [*((k, "") for k in LOOSE_BYTES), ("bool", ".npz"), ("bool", ".npy"), ("bool", ".safetensors"), ("bool", ".pt")],
)
def test_an_element_is_one_byte_whatever_is_stored(kind: str, suffix: str, to: str, tmp_path: Path) -> None:
    """Else what is written could not be read back, or its hash would be of other bytes than a reader gives."""
    source, out = _dirty(kind, tmp_path, suffix), tmp_path / f"o{to}"
    if suffix:
        ckptconv.convert(source, out, verify=True)
        ckptconv.verify(source, out)
    else:
        ckptconv.save(source, out, verify=True)
    assert ckptconv.verify(out).tensors == 1
    assert ckptconv.open(out)["w"].numpy().view("u1").tolist() == LOOSE_BYTES[kind]


def test_negative_numbers_of_less_than_a_byte_have_the_high_bits_of_their_sign(tmp_path: Path) -> None:
    """Which ml_dtypes clears, so that what was written was not what is read."""
    ones = held("filled", np.ones(1, ml_dtypes.int4))
    made = {
        "cast": replace(held("cast", np.array([-2], "i1")), dtype=DTYPES["int4"]),
        "filled": replace(ones, parts=(ones.parts[0]._replace(ops=("fill:-2",)),)),
    }
    ckptconv.save(made, tmp_path / "a.hdf5", verify=True)
    read = {n: t.numpy().tobytes() for n, t in ckptconv.open(tmp_path / "a.hdf5").items()}
    assert read == {"cast": b"\xfe", "filled": b"\xfe"}


def test_a_hash_is_of_elements_and_not_of_the_bytes_that_stand_for_them(tmp_path: Path) -> None:
    ckptconv.save({"w": np.array([True, False])}, tmp_path / "a.safetensors")
    raw = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(raw[:-2] + b"\x02\x00")
    assert ckptconv.verify(tmp_path / "b.safetensors").hashed == 1
    ckptconv.convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == raw
    (tmp_path / "b.safetensors").write_bytes(raw[:-2] + b"\x00\x00")
    with pytest.raises(ckptconv.CkptError, match="its content does not match its hash"):
        ckptconv.convert(tmp_path / "b.safetensors", tmp_path / "d.safetensors")
