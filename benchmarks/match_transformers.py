"""Classes of Hugging Face transformers, tiny and freshly initialised, from weights as their originals store them.

    python benchmarks/match_transformers.py [CLASS ...]     needs transformers

Each class is built from a configuration with random weights, which stand for trained ones; the same weights are written
with the names and orders of axes of the original release. `match` sees those and a fresh module of the class.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from match_ports import table
from nets.common import Array, Arrays, Port, State, kernel
from torch import Tensor

try:
    import transformers
except ImportError as e:
    raise SystemExit(f"skipped: {e}") from None

TABLE = re.compile(r"(embed(ding)?s?|embed_(tokens|positions)|_embeddings|shared|wte|wpe)$")
Renames = Sequence[tuple[str, str]]


class Words(NamedTuple):
    """What a framework calls the weights of layers, of normalisations and of tables; '' if only by their module."""

    kernel: str = "kernel"
    scale: str = "gamma"
    shift: str = "beta"
    table: str = ""
    bias: str = "bias"


TF1, FLAX, MESH = Words(), Words(scale="scale", shift="bias", table="embedding"), Words(scale="scale", shift="bias")


def stored(s: State, words: Words, renames: Renames = (), turn: Callable[[Array], Array] = kernel) -> Arrays:
    """The weights with another framework's words; `renames` are regular expressions over the names of modules."""
    out: Arrays = {}
    for name, x in s.items():
        home, _, leaf = name.rpartition(".")
        norm = s.get(f"{home}.weight", np.zeros((1, 1))).ndim == 1
        if leaf == "weight":
            table = x.ndim == 2 and bool(TABLE.search(home))
            leaf = words.table if table else words.scale if norm else words.kernel
            x = x if table or norm else turn(x)
        elif leaf == "bias":
            leaf = words.shift if norm else words.bias
        for old, new in renames:
            home = re.sub(old, new, home)
        out["/".join(filter(None, (home.replace(".", "/"), leaf)))] = x
    return dict(sorted(out.items()))


def bert(s: State) -> Arrays:
    return stored(s, TF1, [(r"^", "bert."), (r"encoder\.layer\.", "encoder.layer_"), (r"pooler$", "pooler")])


ALBERT = (
    (r"encoder\.albert_layer_groups\.0\.albert_layers\.0", "encoder.transformer.group_0.inner_group_0"),
    (r"full_layer_layer_norm", "LayerNorm_1"), (r"attention\.LayerNorm", "LayerNorm"),
    (r"attention\.(query|key|value)", r"attention_1.self.\1"), (r"attention\.dense", "attention_1.output.dense"),
    (r"ffn_output", "ffn_1.intermediate.output.dense"), (r"ffn$", "ffn_1.intermediate.dense"),
    (r"pooler$", "pooler.dense"), (r"^", "bert."),
)  # fmt: skip


def gpt2(s: State) -> Arrays:
    """OpenAI's: convolutions of width one."""
    words = Words("w", "g", "b", "", "b")
    return stored(s, words, [(r"^h\.(\d+)", r"h\1"), (r"^", "model.")], lambda w: w[None])


def t5(s: State) -> Arrays:
    """Mesh TensorFlow's: layers are numbered with three digits, kernels stand under the layer's own name."""
    part = {n: x for n, x in s.items() if not n.endswith("embed_tokens.weight")}
    found = stored(part, MESH, [(r"\.(block|layer)\.(\d+)", r".\1_00\2"), (r"lm_head", "decoder.logits")])
    return {re.sub(r"(Attention/[qkvo])/kernel$", r"\1", n): x for n, x in found.items()}


def vit(s: State) -> Arrays:
    """The JAX release: heads are axes."""
    home = "Transformer.encoderblock_"
    names = (
        (r"encoder\.layer\.", home), (r"attention\.attention", "MultiHeadDotProductAttention_1"),
        (r"attention\.output\.dense", "MultiHeadDotProductAttention_1.out"), (r"layernorm_before", "LayerNorm_0"),
        (r"layernorm_after", "LayerNorm_2"), (r"intermediate\.dense", "MlpBlock_3.Dense_0"),
        (r"(\d)\.output\.dense", r"\1.MlpBlock_3.Dense_1"), (r"^layernorm", "Transformer.encoder_norm"),
        (r"embeddings\.patch_embeddings\.projection", "embedding"), (r"pooler\.dense", "pre_logits"),
    )  # fmt: skip
    out = {}
    for name, x in stored(s, FLAX, names).items():
        if re.search(r"1/(query|key|value)/", name):
            x = x.reshape(*x.shape[:-1], 4, 6)
        elif name.endswith("1/out/kernel"):
            x = x.reshape(4, 6, -1)
        out[name.replace("embeddings/cls_token", "cls").replace("embeddings/position", "Transformer/pos")] = x
    return out


def resnet(s: State) -> Arrays:
    """Flax' class: statistics stand beside the parameters."""
    own = {n: x for n, x in s.items() if "running" not in n}
    out = {f"params/{n}": x for n, x in stored(own, FLAX).items()}
    words = {"running_mean": "mean", "running_var": "var"}
    for n, x in s.items():
        home, _, leaf = n.rpartition(".")
        out |= {f"batch_stats/{home.replace('.', '/')}/{words[leaf]}": x} if leaf in words else {}
    return dict(sorted(out.items()))


def keras(s: State) -> Arrays:
    names = [(r"transformer\.layer\.", "transformer.layer_._"), (r"^", "tf_distil_bert_model.distilbert.")]
    return stored(s, Words(table="embeddings"), names)


def flax(s: State) -> Arrays:
    return {f"params/{n}": x for n, x in stored(s, FLAX).items()}


class Case(NamedTuple):
    """What the original is, the sizes of the class, and inputs: the shape, and the vocabulary or 0 for floats."""

    title: str
    store: Callable[[State], Arrays]
    sizes: dict[str, Any]
    inputs: dict[str, tuple[tuple[int, ...], int]]


SMALL = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
WHISPER = {
    "vocab_size": 60, "d_model": 24, "num_mel_bins": 10, "max_source_positions": 20, "max_target_positions": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))},
    **{f"{side}_ffn_dim": 40 for side in ("encoder", "decoder")},
}  # fmt: skip
WAV2VEC = {
    **SMALL, "conv_dim": (8, 8, 8), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0,
}  # fmt: skip
IDS, IMAGE = {"input_ids": ((4, 9), 60)}, {"pixel_values": ((2, 3, 64, 64), 0)}
CASES: dict[str, Case] = {
    "BertModel": Case("BERT of TF1", bert, {**SMALL, "max_position_embeddings": 32}, IDS),
    "AlbertModel": Case("ALBERT of TF1", lambda s: stored(s, TF1, ALBERT), {**SMALL, "embedding_size": 12}, IDS),
    "GPT2Model": Case("GPT-2 of OpenAI", gpt2, {"vocab_size": 60, "n_embd": 24, "n_layer": 3, "n_head": 4}, IDS),
    "T5ForConditionalGeneration": Case(
        "T5 1.1 of Mesh TensorFlow", t5,
        {"vocab_size": 60, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4,
         "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
        {**IDS, "decoder_input_ids": ((4, 6), 60)},
    ),
    "DistilBertModel": Case(
        "DistilBERT of Keras", keras, {"vocab_size": 60, "dim": 24, "hidden_dim": 40, "n_layers": 3, "n_heads": 4}, IDS
    ),
    "ViTModel": Case("ViT of JAX", vit, {**SMALL, "image_size": 64, "patch_size": 16}, IMAGE),
    "ResNetModel": Case(
        "ResNet of Flax", resnet, {"embedding_size": 8, "hidden_sizes": [16, 16, 24, 24], "depths": [2, 2, 2, 2]}, IMAGE
    ),
    "Wav2Vec2Model": Case("Wav2Vec2 of Flax", flax, WAV2VEC, {"input_values": ((2, 800), 0)}),
    "WhisperModel": Case(
        "Whisper of Flax", flax, WHISPER, {"input_features": ((2, 10, 40), 0), "decoder_input_ids": ((2, 6), 60)}
    ),
}  # fmt: skip


def port(name: str) -> Port:
    case, kind = CASES[name], getattr(transformers, name)

    def inputs() -> dict[str, Tensor]:
        return {
            n: torch.randint(1, words, shape) if words else torch.randn(shape)
            for n, (shape, words) in case.inputs.items()
        }

    return Port(f"{case.title} into {name}", lambda: kind(kind.config_class(**case.sizes)), inputs, case.store)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    wrong = table({name: port(name) for name in sys.argv[1:] or CASES})
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}.")
    raise SystemExit(wrong)
