"""Which tensors are stored scaled: quantised weights, and the numbers without which nobody can read them.

    l.weight   float8, int8    l.weight_scale, l.weight_scale_inv, l.weight_scale_2     named after the weight
    l.weight   uint8           l.weight.absmax, l.weight.quant_map, l.weight.nested_absmax
    l.weight   int8            l.SCB, l.scale, l.zero_point, l.input_scale, l.k_scale   or of its layer
    l.qweight  int32           l.scales, l.qzeros
    l.var_0    int8, float8    l.var_1, l.var_2       variables of a layer of Keras that have numbers, not names
    l.kernel   float32         l.kernel_scale, l.kernel_amax_history       brought to float8 in use: the scale stays

Cast alone, such a weight is another number than it stands for, and a scale loses what it has beyond the other dtype.
The names are those of DeepSeek, compressed-tensors, ModelOpt, GPTQ, AWQ, bitsandbytes, MLX, HQQ, torchao, quanto, AQT,
Keras, Flax and PyTorch's own quantisation. A tensor of 8 bits without a scale beside it is a plain number, and so is
an integer of more bits (an index, a counter), unless it is called as those are that hold several numbers each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ..checkpoint import Checkpoint, Tensor

WHY = (
    "quantised weights and their scales, which would then stand for other numbers. Dequantise them first, with the "
    "library that quantised them; densify=True does it for PyTorch's own"
)
ALONE = f"{WHY}. Without dtype= they stay as they are"

WEIGHT = re.compile(
    r"_?weights?(_(?!mask|i(?:nde)?x|indices|shape|format).+)?"
    r"|q_?weight|.*kernel|.*embeddings?|.*_packed|qvalue|codes|Qidxs|W_q|w\d*|B|state[12]"
)
PACKED = re.compile(r"q_?weight|.*_packed|codes|Qidxs|W_q|qvalue|q_?kernel|.*qdata")  # several numbers in an integer
INDEX = re.compile(r"(?:.*_)?ids?|.*(?:mask|index|idx|indices|shape|format)")
STEM = re.compile(r"(.+?)(?:[._](?:packed|quantized|q?data|blocks|q|_data|_packed))?", re.DOTALL)  # of a weight's name
_NUMBER = (
    r"(?:(?:input|output|weight|act|global|inner|nested|awq)_)*"
    r"(?:scales?|scaling_factors?|scaled_zeros|q?zeros?|zero_points?|shift|offset|absmax|quant_map|amax|codebooks?)"
    r"(?:_inv|_max|_ub|_\d)?(?:[./]\d+)?"
)
OF_NAME = re.compile(rf"_?(?:{_NUMBER}|nested_.+|quant_state\..+)")  # after the name of the weight
OF_LAYER = re.compile(
    rf"{_NUMBER}|q_scale_max|biases|SCB|g_idx|scale_(?:weight|input|output)|(?:absmax|qmap|(?:new_)?max)[12]"
)
CACHE = re.compile(r"(?:[qkv]|kv|prob)_scale")  # of the cache of keys and values; a layer holds several weights
NUMBERED = re.compile(r"((?:.*/)?)(?:var_|vars/)\d+", re.DOTALL)  # the layer of a variable without a name
HISTORY = "_amax_history"  # of what is brought to float8 while it is used
LONGEST = 80  # characters of what follows the name of a weight or a layer
_PACKED = "._packed_params"  # of torch.ao, between a layer and its weights


def scaled(checkpoint: Checkpoint) -> set[str]:
    """The quantised tensors and their scales, by their names here or in the source.

    A weight is quantised also if its scale was left out on the way, by a selection or a converter.
    """
    left = [n for note in checkpoint.notes if note.kind in ("dropped", "skipped") for n in note.names]
    found = _scaled(checkpoint.tensors, left)
    if checkpoint.moved:
        now = {source: n for n in checkpoint for source in checkpoint.sources(n)}
        known = _scaled({source: checkpoint[n] for source, n in now.items()}, left)
        found |= {n for n in checkpoint if not known.isdisjoint(checkpoint.sources(n))}
    return found


def _scaled(tensors: Mapping[str, Tensor], left: Iterable[str]) -> set[str]:
    of_name, of_layer, above = _quantised(tensors)
    found, weights = _numbered(tensors) | _float8(tensors), dict[int, list[str]]()
    for name in (*tensors, *left) if of_name else ():
        for start, rest in _splits(name):
            for there, of in (of_name.get(start, ()), OF_NAME), (of_layer.get(start, ()), OF_LAYER):
                if there and (len(there) > 1 or there[0] != name) and of.fullmatch(rest):
                    found.add(name)
                    weights[id(there)] = there
            if (start in above and CACHE.fullmatch(rest)) or (rest == "scale" and _is_zero(tensors, start)):
                found.add(name)
    return found.union(*weights.values())


def _numbered(tensors: Mapping[str, Tensor]) -> set[str]:
    """All variables of layers that have a number of 8 bits among those without names: which is a scale is not known."""
    layers = dict[str, list[str]]()
    for name in tensors:
        if m := NUMBERED.fullmatch(name):
            layers.setdefault(m[1], []).append(name)
    several = (names for names in layers.values() if len(names) > 1)
    return {n for names in several if any(_small(tensors[n]) and tensors[n].shape for n in names) for n in names}


def _float8(tensors: Mapping[str, Tensor]) -> set[str]:
    """The scales and the largest values of late, from which they are computed, of layers that compute in float8."""
    stems = (n.removesuffix(HISTORY) for n in tensors if n.endswith(HISTORY))
    return {n for stem in stems if f"{stem}_scale" in tensors for n in (f"{stem}_scale", stem + HISTORY)}


def _small(t: Tensor) -> bool:
    return t.dtype.itemsize == 1 and t.dtype.kind in "iuxf"


def _quantised(tensors: Mapping[str, Tensor]) -> tuple[dict[str, list[str]], dict[str, list[str]], set[str]]:
    """What may be quantised: by the name that a scale is named after, and by layer; and layers of those of 8 bits."""
    stems, layers, above = dict[str, list[str]](), dict[str, list[str]](), set[str]()
    for name, t in tensors.items():
        layer, leaf = _cut(name)
        small = _small(t)
        packed = t.dtype.kind in "iu" and PACKED.fullmatch(leaf) is not None
        if not (t.shape and (small or packed or _is_word(t, leaf))):
            continue
        m = STEM.fullmatch(name)
        stems.setdefault(m[1] if m else name, []).append(name)
        stems.setdefault(name, []).append(name)
        if (small or packed or t.dtype == "uint32") and (WEIGHT.fullmatch(leaf) or packed or _PACKED in name):
            layers.setdefault(name.partition(_PACKED)[0] if _PACKED in name else layer, []).append(name)
            above |= {layer, _cut(layer)[0]} if small else set()
    return stems, layers, above


def _is_word(t: Tensor, leaf: str) -> bool:
    """Whether an integer of 16 or 32 bits may be one that a scale is named after: no index."""
    return t.dtype.kind in "iu" and t.dtype.itemsize < 8 and not INDEX.fullmatch(leaf)


def _is_zero(tensors: Mapping[str, Tensor], layer: str) -> bool:
    """Whether a layer has a zero point as PyTorch's quantised modules have one, for their output."""
    return any(z in tensors and tensors[z].dtype == "int64" for z in (f"{layer}.zero_point", f"{layer}/zero_point"))


def _cut(name: str) -> tuple[str, str]:
    """The layer that a name belongs to, and the rest."""
    at = max(name.rfind("."), name.rfind("/"))
    return name[: max(at, 0)], name[at + 1 :]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """A name in two, at each of its last separators, and as a whole."""
    if len(name) <= LONGEST:
        yield "", name
    for at in range(max(0, len(name) - LONGEST), len(name)):
        if name[at] in "._/":
            yield name[:at], name[at + 1 :]


__all__ = ["scaled"]
