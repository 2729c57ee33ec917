"""A cast of quantised checkpoints: weights that are stored scaled, and their scales, are not plain numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit import in_memory

import ckptconv
from ckptconv.checkpoint import Checkpoint, Tensor, contiguous
from ckptconv.dtypes import DTYPES, dtype
from ckptconv.errors import UsageError
from ckptconv.moves.part import Held
from ckptconv.rules import library, names, passes

SHORT = {"f8": "float8_e4m3fn", "e8": "float8_e8m0fnu", "bf": "bfloat16", "f16": "float16", "f32": "float32",
         "f64": "float64", "i8": "int8", "i16": "int16", "u8": "uint8", "i32": "int32", "u32": "uint32",
         "i64": "int64"}  # fmt: skip


def checkpoint(text: str) -> Checkpoint:
    """A checkpoint of 'name:dtype' words."""

    def one(name: str, kind: str) -> Tensor:
        row = DTYPES[SHORT[kind]]
        return contiguous(name, row, (2,), Held(np.zeros(2 * row.itemsize, np.uint8)))

    return Checkpoint({name: one(name, kind) for name, _, kind in (word.rpartition(":") for word in text.split())})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("l.weight:f8 l.weight_scale_inv:f32", "l.weight l.weight_scale_inv"),  # DeepSeek
        ("l.w1.weight:f8 l.w1.scale:e8", "l.w1.weight l.w1.scale"),
        ("experts.up_proj:f8 experts.up_proj_scale_inv:f32", "experts.up_proj experts.up_proj_scale_inv"),
        ("l.weight:f8 l.weight_scale:f32 l.input_scale:f32 l.bias:f32", "l.weight l.weight_scale l.input_scale"),
        ("l.weight:u8 l.weight_scale:f8 l.weight_scale_2:f32 l.input_scale:f32",  # ModelOpt, NVFP4
         "l.weight_scale l.weight_scale_2 l.input_scale"),
        ("l.weight_packed:u8 l.weight_scale:f8 l.weight_global_scale:f32 l.input_global_scale:f32",
         "l.weight_scale l.weight_global_scale l.input_global_scale"),
        ("l.weight_packed:i32 l.weight_scale:f32 l.weight_zero_point:i32 l.weight_shape:i64", "l.weight_scale"),
        ("l.weight:i8 l.weight_scale:f32", "l.weight_scale"),
        ("l.weight:i8 l.SCB:f32 l.weight_format:u8", "l.SCB"),  # bitsandbytes
        ("l.weight:u8 l.weight.absmax:f32 l.weight.quant_map:f32 l.weight.quant_state.bitsandbytes__nf4:u8",
         "l.weight.absmax l.weight.quant_map"),
        ("w:u8 w.absmax:u8 w.quant_map:f32 w.nested_absmax:f32 w.nested_quant_map:f32",
         "w.quant_map w.nested_absmax w.nested_quant_map"),
        ("state.0.state1:u8 state.0.qmap1:f32 state.0.absmax1:f32", "state.0.qmap1 state.0.absmax1"),
        ("l.qweight:i32 l.qzeros:i32 l.scales:f32 l.g_idx:i32", "l.scales"),  # GPTQ, AWQ
        ("l.weight:u32 l.scales:f32 l.biases:f32", "l.scales l.biases"),  # MLX
        ("l.W_q:u8 l.scale:f32 l.zero:f32", "l.scale l.zero"),  # HQQ
        ("l.weight._data:i8 l.weight._scale:f32", "l.weight._scale"),  # quanto
        ("l._weight_qdata:i8 l._weight_scale:f32", "l._weight_scale"),  # torchao
        ("l/qrhs/frozen/qvalue:i8 l/qrhs/frozen/scale/0:f32", "l/qrhs/frozen/scale/0"),  # AQT
        ("dense/kernel:i8 dense/kernel_scale:f32", "dense/kernel_scale"),  # Keras
        ("e/embeddings:i8 e/embeddings_scale:f32 e/embeddings_zero:i8 e/g_idx:f32", "e/embeddings_scale e/g_idx"),
        ("d/kernel:u8 d/bias:f32 d/kernel_scale:f32 d/kernel_zero:u8 d/awq_scales:f32 d/g_idx:f32",
         "d/kernel_scale d/awq_scales d/g_idx"),
        ("dense_kernel_quantized:i8 dense_kernel_scale:f32", "dense_kernel_scale"),  # ONNX
        ("l.weight:f8 l.scale_weight:f32 l.scale_input:f32", "l.weight l.scale_weight l.scale_input"),  # ComfyUI
        ("c.weight:i8 c.weight.scale:f64 c.weight.zero_point:i64 c.scale:f64", "c.weight.scale c.scale"),  # PyTorch
        ("w:i8 scale:f32", "scale"),
        ("l.W_q:i32 l.scale:f32", "l.scale"),  # HQQ, 3 bits
        ("l.weight:i16 l.weight_scale:f32 m.weight_qdata:i32 m.weight_scale:f32", "l.weight_scale m.weight_scale"),
        ("l.centroids:i16 l.centroids_scale:f32", "l.centroids_scale"),
        ("l.codes:i64 l.codebooks:f32 l.scales:f32", "l.codebooks l.scales"),  # AQLM
        # plain numbers, of which a cast is what it says
        ("mine/var_0:f32 mine/var_1:f32 d/var_2:i32 d/var_3:f32 e/var_0:f8", ""),
        ("d/kernel:f32 d/kernel_scale:f32 e/loss_amax_history:f32 e/g_idx:f32", ""),
        ("a.k_proj.weight:f16 a.k_scale:f32 a.k_proj.k_scale:f32", ""),
        ("l.weight:f8 l.bias:f8 l.norm.scale:f8", ""),
        ("ln/scale:f8 ln/bias:f8", ""),
        ("ln.weight:f32 ln.scale:f32 logit_scale:f32", ""),
        ("attn.bias:u8 attn.logit_scale:f32 attn.scale:f32", ""),
        ("l.weight:f32 l.weight_fake_quant.scale:f32 l.weight_fake_quant.zero_point:i32", ""),
        ("step:i64 loss_scale:f32", ""),
        ("time:i64 time_scale:f32 time_offset:f32", ""),
        ("fc.weight:f32 fc.weight_mask:u8 fc.scale:f32 fc.shift:f32", ""),
        ("B:i64 scale:f32 a.B:i32 a.scale:f32", ""),
        ("blur.kernel:i32 blur.scale:f32 w:i64 scale:f32 shift:f32 mlp.w1:i64 mlp.shift:f32", ""),
    ],
)  # fmt: skip
def test_what_is_stored_scaled_is_not_cast(text: str, kept: str) -> None:
    before, names = checkpoint(text), tuple(kept.split())
    floats = tuple(n for n, t in before.items() if t.dtype.kind == "f" and t.dtype != "float16")
    found = passes.cast(checkpoint(text + " norm.weight:f64"), dtype("float16"))
    assert {n: found[n].dtype == "float16" for n in floats} == {n: n not in names for n in floats}
    assert [(n.kind, n.text[:20], n.names) for n in found.notes] == [("lossy", "not cast to float16:", names)] * bool(
        kept
    )
    assert found["norm.weight"].dtype == "float16"
    if names == floats:
        with pytest.raises(
            UsageError, match=r"dtype='float16' would cast nothing but quantised weights and their scale"
        ):
            passes.cast(before, dtype("float16"))


FP8 = "l.weight:f8 l.weight_scale_inv:f32 norm.weight:f32"


def test_what_is_stored_scaled_is_known_under_other_names() -> None:
    """Of a converter or a rename, and if the scales were left out."""
    renamed = library.change(checkpoint(FP8), None, ["l.weight=a", "l.weight_scale_inv=b", "norm.weight=c"])
    again = names.rename_by_regex(renamed, ["^a$=d"])
    alone = passes.select(checkpoint(FP8), exclude=["*_scale_inv"])
    for found, kept in (renamed, "ab"), (again, "db"), (alone, ["l.weight"]):
        assert {n for n, t in passes.cast(found, dtype("bfloat16")).items() if t.dtype != "bfloat16"} == set(kept)


def test_a_number_alone_is_no_weight() -> None:
    before = {"B": np.int8(3), "scale": np.ones(2, "f4"), "net.w": np.ones(2, "f4")}
    made = passes.cast(in_memory(before), dtype("float16"))
    assert not made.notes


def test_dtype_says_what_it_leaves_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "b.npz"
    tensors = {"l.weight": np.ones((4, 4), "i1"), "l.weight_scale": np.full((4, 1), 1e-9, "f4")}
    ckptconv.save(tensors, source)
    with pytest.raises(UsageError, match="would cast nothing but quantised weights"):
        ckptconv.convert(source, out, dtype="float16")
    ckptconv.save(tensors | {"norm.weight": np.ones(4, "f4")}, source, force=True)
    plain = ckptconv.convert(source, tmp_path / "c.npz")
    assert [n.names for n in plain.notes if "stay as they are" in n.text] == [("l.weight", "l.weight_scale")]
    done = ckptconv.convert(source, out, dtype="float16")
    assert [n.names for n in done.notes if n.kind == "lossy"] == [("l.weight_scale",)]
    assert {n: t.dtype.name for n, t in ckptconv.open(out).items()} == {
        "l.weight": "int8", "l.weight_scale": "float32", "norm.weight": "float16",
    }  # fmt: skip
    assert ckptconv.open(out)["l.weight_scale"].numpy().max() == np.float32(1e-9)
    assert ckptconv.verify(source, out, dtype="float16").tensors == 3
