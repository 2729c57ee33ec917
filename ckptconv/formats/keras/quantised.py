"""The variables of layers that Keras 3 quantised, which it stores by number: their names follow from their dtypes.

    int8, int4   kernel i8, bias, kernel_scale                        a scale for each channel
                 kernel i8, bias, kernel_scale, kernel_zero i8, g_idx      for each group of channels
    float8       kernel, bias, inputs_scale, inputs_amax_history ...       the kernel stays a float
    gptq, awq    bias, kernel u8, kernel_scale, kernel_zero u8, awq_scales, g_idx

The bias may be absent. Embeddings have such rows with `embeddings`, without a bias, and a reversible one that is not
tied a second set. g_idx, the number of each group, is a float. Specification: `variable_serialization_spec` and the
methods `_int8_build` and so on in keras/src/layers/core/{dense,einsum_dense,embedding,reversible_embedding}.py.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[tuple[str, ...], str]  # names, and of each dtype a letter: i for int8, u for uint8, f for any float

FLOAT8 = tuple(f"{of}_{what}" for of in ("inputs", "kernel", "outputs_grad") for what in ("scale", "amax_history"))


def _of_kernels(zero: str) -> tuple[Row, ...]:
    """The rows of layers with a kernel. zero: what zero points are called by GPTQ and AWQ."""
    rows: list[Row] = []
    for bias, f in ((), ""), (("bias",), "f"):
        rows += [
            (("kernel", *bias, "kernel_scale"), f"i{f}f"),
            (("kernel", *bias, "kernel_scale", "kernel_zero", "g_idx"), f"i{f}fif"),
            (("kernel", *bias, *FLOAT8), f"f{f}ffffff"),
        ]
        for zeros, u in ((zero,), "u"), ((), ""):  # Keras 3.15 does not store them
            rows += [
                ((*bias, "kernel", "kernel_scale", *zeros, "g_idx"), f"{f}uf{u}f"),
                ((*bias, "kernel", "kernel_scale", *zeros, "awq_scales", "g_idx"), f"{f}uf{u}ff"),
            ]
    return tuple(rows)


_EMBEDDING = ("embeddings", "embeddings_scale")
_GROUPED = (*_EMBEDDING, "embeddings_zero", "g_idx")
_BACK = ("reverse_embeddings", "reverse_embeddings_scale")
_SIMPLE: tuple[Row, ...] = ((_EMBEDDING, "if"), (_GROUPED, "ifif"))
ROWS: dict[str, tuple[Row, ...]] = {
    "dense": _of_kernels("kernel_zero"),
    "einsum_dense": _of_kernels("zero_point"),
    "embedding": _SIMPLE,
    "reversible_embedding": (
        *_SIMPLE,
        (("embeddings", "reverse_embeddings"), "ff"),
        ((*_EMBEDDING, *_BACK), "ifif"),
        ((*_GROUPED, *_BACK, "reverse_embeddings_zero"), "ifififi"),
        ((*_GROUPED, *_BACK, "reverse_embeddings_zero"), "ifififf"),
    ),
}
# Without the float8 scales, which are trained, in an order that varies.
NAMES = {name for rows in ROWS.values() for names, _ in rows if FLOAT8[0] not in names for name in names}
FIXED = NAMES - {"kernel", "bias", "embeddings", "reverse_embeddings"}  # never trained


def variables(kind: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> list[str]:
    """The names of the variables of a quantised layer; [] if it is none that Keras makes."""
    letters = "".join({"int8": "i", "uint8": "u"}.get(d, "f" if "float" in d else "?") for d in dtypes)
    found = [names for names, row in ROWS.get(kind, ()) if row == letters]
    if len(found) > 1:  # one embedding in groups, or two without: only a zero point has the shape of its scale
        found = [names for names in found if ("g_idx" in names) is (shapes[2] == shapes[1])]
    return list(found[0]) if found else []
