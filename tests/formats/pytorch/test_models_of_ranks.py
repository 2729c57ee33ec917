"""Models that training left in pieces, of Meta, Mistral and Megatron-LM, as what their converters make of them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptconv

torch = pytest.importorskip("torch")
LAYERS, SIZE, PADDED = 4, 4, 40
ARGS = {"kv_channels": SIZE, "num_layers": LAYERS, "num_attention_heads": 16, "group_query_attention": True}
Model = dict[str, Any]

# A tensor, the axis along which ranks cut it, and what it becomes: # is a layer, % an expert.
SHARED = """
embedding.word_embeddings.weight 0 model.embed_tokens.weight:40x64
output_layer.weight 0 lm_head.weight:40x64
decoder.layers.#.self_attention.linear_qkv.weight 0 model.layers.#.self_attn.q_proj.weight:64x64 \
model.layers.#.self_attn.k_proj.weight:16x64 model.layers.#.self_attn.v_proj.weight:16x64
decoder.layers.#.self_attention.linear_proj.weight 1 model.layers.#.self_attn.o_proj.weight:64x64
decoder.layers.#.self_attention.linear_qkv.layer_norm_weight - model.layers.#.input_layernorm.weight:64
decoder.final_layernorm.weight - model.norm.weight:64"""
LLAMA = """
decoder.layers.#.self_attention.linear_qkv.bias 0 model.layers.#.self_attn.q_proj.bias:64 \
model.layers.#.self_attn.k_proj.bias:16 model.layers.#.self_attn.v_proj.bias:16
decoder.layers.#.mlp.linear_fc1.weight 0 model.layers.#.mlp.gate_proj.weight:48x64 \
model.layers.#.mlp.up_proj.weight:48x64
decoder.layers.#.mlp.linear_fc2.weight 1 model.layers.#.mlp.down_proj.weight:64x48
decoder.layers.#.mlp.linear_fc1.layer_norm_weight - model.layers.#.post_attention_layernorm.weight:64"""
MIXTRAL = """
decoder.layers.#.mlp.experts.local_experts.%.linear_fc1.weight 0 \
model.layers.#.block_sparse_moe.experts.%.w1.weight:48x64 model.layers.#.block_sparse_moe.experts.%.w3.weight:48x64
decoder.layers.#.mlp.experts.local_experts.%.linear_fc2.weight 1 \
model.layers.#.block_sparse_moe.experts.%.w2.weight:64x48
decoder.layers.#.mlp.router.weight - model.layers.#.block_sparse_moe.gate.weight:3x64
decoder.layers.#.pre_mlp_layernorm.weight - model.layers.#.post_attention_layernorm.weight:64"""
GPT2 = """
embedding.word_embeddings.weight 0 transformer.wte.weight:40x64
output_layer.weight 0 lm_head.weight:40x64
embedding.position_embeddings.weight - transformer.wpe.weight:10x64
decoder.layers.#.self_attention.linear_qkv.weight 0 transformer.h.#.attn.c_attn.weight:64x192
decoder.layers.#.self_attention.linear_qkv.bias 0 transformer.h.#.attn.c_attn.bias:192
decoder.layers.#.self_attention.linear_proj.weight 1 transformer.h.#.attn.c_proj.weight:64x64
decoder.layers.#.self_attention.linear_proj.bias - transformer.h.#.attn.c_proj.bias:64
decoder.layers.#.mlp.linear_fc1.weight 0 transformer.h.#.mlp.c_fc.weight:64x48
decoder.layers.#.mlp.linear_fc1.bias 0 transformer.h.#.mlp.c_fc.bias:48
decoder.layers.#.mlp.linear_fc2.weight 1 transformer.h.#.mlp.c_proj.weight:48x64
decoder.layers.#.mlp.linear_fc2.bias - transformer.h.#.mlp.c_proj.bias:64
decoder.layers.#.input_layernorm.weight - transformer.h.#.ln_1.weight:64
decoder.layers.#.input_layernorm.bias - transformer.h.#.ln_1.bias:64
decoder.layers.#.pre_mlp_layernorm.weight - transformer.h.#.ln_2.weight:64
decoder.layers.#.pre_mlp_layernorm.bias - transformer.h.#.ln_2.bias:64
decoder.final_layernorm.weight - transformer.ln_f.weight:64
decoder.final_layernorm.bias - transformer.ln_f.bias:64"""
META = """
tok_embeddings.weight 0 model.embed_tokens.weight:40x64
output.weight 0 lm_head.weight:40x64
layers.#.attention.wq.weight 0 model.layers.#.self_attn.q_proj.weight:64x64
layers.#.attention.wk.weight 0 model.layers.#.self_attn.k_proj.weight:32x64
layers.#.attention.wv.weight 0 model.layers.#.self_attn.v_proj.weight:32x64
layers.#.attention.wo.weight 1 model.layers.#.self_attn.o_proj.weight:64x64
layers.#.attention_norm.weight - model.layers.#.input_layernorm.weight:64
layers.#.ffn_norm.weight - model.layers.#.post_attention_layernorm.weight:64
norm.weight - model.norm.weight:64"""
META_MLP = """
layers.#.feed_forward.w1.weight 0 model.layers.#.mlp.gate_proj.weight:48x64
layers.#.feed_forward.w2.weight 1 model.layers.#.mlp.down_proj.weight:64x48
layers.#.feed_forward.w3.weight 0 model.layers.#.mlp.up_proj.weight:48x64"""
META_MOE = """
layers.#.feed_forward.gate.weight 0 model.layers.#.block_sparse_moe.gate.weight:3x64
layers.#.feed_forward.experts.%.w1.weight 0 model.layers.#.block_sparse_moe.experts.%.w1.weight:48x64
layers.#.feed_forward.experts.%.w2.weight 1 model.layers.#.block_sparse_moe.experts.%.w2.weight:64x48
layers.#.feed_forward.experts.%.w3.weight 0 model.layers.#.block_sparse_moe.experts.%.w3.weight:48x64"""
MEGATRON = {"llama": SHARED + LLAMA, "mixtral": SHARED + MIXTRAL, "gpt2": GPT2}
FORMER = """decoder encoder|linear_qkv query_key_value|linear_fc1 dense_h_to_4h|linear_fc2 dense_4h_to_h|\
linear_proj dense|input_layernorm input_norm|pre_mlp_layernorm post_attention_norm|final_layernorm final_norm"""
GROUPED = "local_experts.0.linear_fc1.weight linear_fc1.weight0"


def made(table: str) -> tuple[Model, Callable[[int, int], Model]]:
    """A model as transformers holds it, and what each of some tensor ranks has of it."""
    generator, rows, whole = torch.Generator().manual_seed(5), list[tuple[str, str, list[str]]](), Model()
    for line in table.splitlines()[1:]:
        for layer in range(LAYERS if "#" in line else 1):
            for expert in range(3 if "%" in line else 1):
                name, axis, *parts = line.replace("#", str(layer)).replace("%", str(expert)).split()
                shapes = dict(p.split(":") for p in parts)
                whole |= {n: torch.randn(*map(int, s.split("x")), generator=generator) for n, s in shapes.items()}
                rows.append((name, axis, list(shapes)))

    def of_rank(rank: int, ranks: int) -> Model:
        out: Model = {}
        for name, axis, parts in rows:
            ws = [whole[n].T if ".h." in n and whole[n].ndim == 2 else whole[n] for n in parts]
            if "linear_qkv." in name and axis != "-":  # queries, keys and values of a group follow each other
                groups, three = (4, ws) if len(ws) > 1 else (16, ws[0].chunk(3))
                grouped = [w.reshape(groups, -1, SIZE, *w.shape[1:]) for w in three]
                ws = [torch.cat(grouped, 1).reshape(-1, *three[0].shape[1:])]
            if "wq" in name or "wk" in name:  # the halves of a head are pairs
                ws = [ws[0].reshape(-1, 2, SIZE // 2, 64).transpose(1, 2).reshape(-1, 64)]
            out[name] = ws[0] if axis == "-" else torch.cat([w.chunk(ranks, int(axis))[rank] for w in ws])
        return out

    return whole, of_rank


def staged(whole: Model, at: list[range]) -> list[Model]:
    """The tensors of each stage, whose layers it counts from 0."""
    parts: list[Model] = [{} for _ in at]
    for name, w in whole.items():
        head, _, rest = name.partition("layers.")
        number, _, tail = rest.partition(".")
        last = -1 if "output" in name or "final" in name else 0
        k = next(k for k, r in enumerate(at) if int(number) in r) if rest else last
        parts[k][f"{head}layers.{int(number) - at[k][0]}.{tail}" if rest else name] = w.clone()
    return parts


def save(folder: Path, kind: str, ranks: int, stages: int, pieces: int = 1, words: str = "") -> Model:
    """Write a checkpoint and return the model. pieces: of each stage, if interleaved. words: other names, in pairs."""
    whole, of_rank = made(MEGATRON[kind])
    each = LAYERS // (stages * pieces)
    groups = {"num_query_groups": 4, "group_query_attention": True} if kind != "gpt2" else {"num_query_groups": 1}
    args = ARGS | groups | {"tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": stages}
    for t in range(ranks):
        own = of_rank(t, ranks) | {"decoder.final_layernorm._extra_state": torch.zeros(3)}
        parts = staged(own, [range(k * each, k * each + each) for k in range(stages * pieces)])
        for pair in filter(None, words.split("|")):
            parts = [{n.replace(*pair.split()): w for n, w in part.items()} for part in parts]
        for p in range(stages):
            held = [{"language_model": part} if words == FORMER else part for part in parts[p::stages]]
            held = {f"model{c}" if pieces > 1 else "model": part for c, part in enumerate(held)}
            held |= {"args": argparse.Namespace(**args), "checkpoint_version": 3.0, "rng_state": [torch.ones(2)]}
            path = folder / "iter_0000100" / (f"mp_rank_{t:02d}" + f"_{p:03d}" * (stages > 1)) / "model_optim_rng.pt"
            path.parent.mkdir(parents=True)
            torch.save(held | {"optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}}, path)
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    return whole


def equal(path: Path, expected: Model) -> bool:
    got = torch.load(path)
    return got.keys() == expected.keys() and all(torch.equal(got[n], w) for n, w in expected.items())


@pytest.mark.parametrize(
    ("converter", "ranks", "axis"),
    [("meta-llama", 1, 0), ("meta-llama2", 2, 1), ("meta-llama3", 2, 0), ("meta-llama3", 4, 0), ("meta-llama2", 8, 1)],
)
def test_llama_of_meta(converter: str, ranks: int, axis: int, tmp_path: Path) -> None:
    whole, of_rank = made((META + META_MLP).replace("tok_embeddings.weight 0", f"tok_embeddings.weight {axis}"))
    for rank in range(ranks):
        freqs = {"rope.freqs": torch.ones(2)} if axis else {}
        torch.save(of_rank(rank, ranks) | freqs, tmp_path / f"consolidated.{rank:02d}.pth")
    settings = {} if axis else {"dim": 64, "n_heads": 16} if ranks > 2 else {"head_dim": 4}
    (tmp_path / "params.json").write_text(json.dumps(settings))
    ckptconv.convert(tmp_path, tmp_path / "out.pt", converter=converter)
    assert equal(tmp_path / "out.pt", whole)
    if ranks == 1:
        return
    back = {"converter": converter, "inverse": True, "param": {"half": 2}}
    torch.save(whole, tmp_path / "plain.pt")  # which records no sizes
    for file in ("out", "plain"):
        with pytest.raises(ckptconv.UsageError, match=r"needs param='ranks=NUMBER'\n.*$"):
            ckptconv.convert(tmp_path / f"{file}.pt", tmp_path / "no.pt", **back)
        ckptconv.convert(tmp_path / f"{file}.pt", tmp_path / file, ranks=ranks, **back)
        for rank in range(ranks):
            assert equal(tmp_path / f"{file}/consolidated.{rank:02d}.pth", of_rank(rank, ranks))
    # the embedding along the other axis
    other = {"meta-llama2": "meta-llama3", "meta-llama3": "meta-llama2"}[converter]
    with pytest.raises(ckptconv.LayoutError, match="tok_embeddings"):
        ckptconv.convert(tmp_path, tmp_path / "no.pt", converter=other, param={"half": 2})


def test_config_of_llama(tmp_path: Path) -> None:
    torch.save(made(META + META_MLP)[1](0, 1), tmp_path / "consolidated.00.pth")
    settings = {"dim": 64, "n_heads": 16, "n_kv_heads": 8, "n_layers": 4, "use_scaled_rope": True, "norm_eps": 1e-5}
    for n, given in enumerate((settings, {"dim": 64, "n_heads": 16})):
        (tmp_path / "params.json").write_text(json.dumps(given))
        report = ckptconv.convert(tmp_path, tmp_path / f"hf{n}", to="hf", converter="meta-llama")
    assert "config.json is not written, because this is not known: n_layers" in "".join(map(str, report.notes))
    assert not (tmp_path / "hf1/config.json").exists()
    config = json.loads((tmp_path / "hf0/config.json").read_text())
    expected = {
        "model_type": "llama",
        "vocab_size": 40,
        "intermediate_size": 48,
        "num_key_value_heads": 8,
        "head_dim": None,
    }
    assert config | expected == config
    assert config["rope_scaling"]["factor"] == 8.0
    assert config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("files", [1, 3])
def test_mixtral_of_mistral(files: int, tmp_path: Path) -> None:
    """As first published, with stacked experts in files that have no name in common, and as later."""
    whole, of_rank = made(META + META_MOE)
    held, converter, param = of_rank(0, 1), "meta-mixtral", {"half": 2}
    for name in [n for n in held if files > 1 and "feed_forward" in n]:
        w = held.pop(name)
        layer, _, expert = name.partition(".feed_forward.")
        key = f"{layer}.block_sparse_moe.{expert.split('.')[-2]}" + ".weight" * ("gate" in name)
        w = w.T if "w2" in name else w
        held[key] = torch.cat([held[key], w]) if key in held else w
        converter, param["experts"] = "meta-mixtral-stacked", 3
    for k in range(files):
        torch.save({n: held[n].clone() for n in list(held)[k::files]}, tmp_path / f"consolidated.{k:02d}.pt")
    ckptconv.convert(tmp_path, tmp_path / "out.pt", converter=converter, param=param)
    assert equal(tmp_path / "out.pt", whole)
    ckptconv.convert(tmp_path / "out.pt", tmp_path / "back.pt", converter=converter, inverse=True)
    assert equal(tmp_path / "back.pt", held)


@pytest.mark.parametrize(
    ("kind", "ranks", "stages", "pieces", "words"),
    [("llama", 1, 1, 1, ""), ("llama", 1, 4, 1, ""), ("llama", 2, 1, 1, ""), ("llama", 4, 2, 2, ""),
     ("mixtral", 1, 2, 1, GROUPED), ("mixtral", 4, 1, 1, ""), ("gpt2", 1, 1, 1, ""), ("gpt2", 8, 2, 1, FORMER)],
)  # fmt: skip
def test_ranks(kind: str, ranks: int, stages: int, pieces: int, words: str, tmp_path: Path) -> None:
    whole = save(tmp_path / "m", kind, ranks, stages, pieces, words)
    ckptconv.convert(tmp_path / "m", tmp_path / "out.pt", converter="auto")
    assert equal(tmp_path / "out.pt", whole)
    converter, words_of = f"megatron-{kind}" + "-ranks" * (ranks > 1), {n for n, w in whole.items() if len(w) == PADDED}
    ckptconv.zoo(tmp_path / "m", tmp_path / "cut", to="torch", converter=converter, param={"vocabulary": 37})
    assert equal(tmp_path / "cut/iter_0000100.pt", {n: w[:37] if n in words_of else w for n, w in whole.items()})
    if stages > 1:
        with pytest.raises(ckptconv.CkptError, match="the others have the rest: mp_rank_"):
            ckptconv.convert(tmp_path / "m" / FIRST, tmp_path / "no.pt")
    if ranks > 1:
        ckptconv.convert(tmp_path / "out.pt", tmp_path / "back", converter=converter, inverse=True, ranks=2)
        param = {"head_size": SIZE} | ({"queries": 4} if kind != "gpt2" else {})
        ckptconv.convert(tmp_path / "back", tmp_path / "again.pt", converter=converter, param=param)
        assert equal(tmp_path / "again.pt", whole)
    if kind != "gpt2":
        with pytest.raises(ckptconv.LayoutError, match=r"g would be|do not fit"):
            ckptconv.convert(tmp_path / "m", tmp_path / "no.pt", converter=converter, param={"queries": 2})


def stacked(flat: Model) -> Model:
    """All layers, and all experts, in one tensor, as Megatron's sharded tensors are called."""
    found: dict[str, dict[tuple[int, ...], Any]] = {}
    for name, w in flat.items():
        index = tuple(int(n) for n in name.split(".") if n.isdigit())
        key = ".".join(n for n in name.split(".") if not n.isdigit()).replace("local_experts", "experts")
        found.setdefault(key, {})[index] = w
    sizes = {key: [n + 1 for n in max(ws)] for key, ws in found.items()}
    return {
        k: torch.stack([*ws.values()]).reshape(*sizes[k], *next(iter(ws.values())).shape) for k, ws in found.items()
    }


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("kind", MEGATRON)
def test_distributed(kind: str, numbered: bool, tmp_path: Path) -> None:
    whole, of_rank = made(MEGATRON[kind])
    held = {n: w.clone() for n, w in of_rank(0, 1).items()}
    from torch.distributed import checkpoint

    at = tmp_path / "iter_0000100"
    checkpoint.save(held if numbered else stacked(held), checkpoint_id=at, no_dist=True)
    torch.save({"args": argparse.Namespace(**ARGS, num_query_groups=4), "checkpoint_version": 3.0}, at / "common.pt")
    ckptconv.convert(at, tmp_path / "out.pt", converter="auto")
    assert equal(tmp_path / "out.pt", whole)
    converter, param = f"megatron-{kind}" + "-dist" * (not numbered), {"head_size": SIZE}
    ckptconv.convert(tmp_path / "out.pt", tmp_path / "back.pt", converter=converter, inverse=True)
    assert not any("linear_fc1.weight_" in n for n in torch.load(tmp_path / "back.pt"))  # halves by themselves
    param |= {} if kind == "gpt2" else {"queries": 4}
    ckptconv.convert(tmp_path / "back.pt", tmp_path / "again.pt", converter=converter, param=param)
    assert equal(tmp_path / "again.pt", whole)


class Calls:
    def __reduce__(self) -> Any:
        return os.system, ("touch PWNED",)


TRACKER = "latest_checkpointed_iteration.txt"
FIRST, SECOND, LAST, EXPERT = (
    f"iter_0000100/mp_rank_{n}/model_optim_rng.pt" for n in ("00_000", "00_001", "01_001", "00_000_001")
)
REFUSED: list[tuple[str, str, Any, str]] = [  # what is changed, in which file, and what is said
    ("", LAST, b"", "0 bytes"),
    ("", EXPERT, b"", r"experts are cut as well, which is not read \(mp_rank_00_000_001\)"),
    ("", TRACKER, b"../x", r"names \.\./x, which is not there"),
    ("args", "tensor_model_parallel_size", 4, "files of 4 of 8 ranks; missing: mp_rank_{"),
    ("args", "pipeline_model_parallel_size", 1, "4 of 2 ranks; some are of another run"),
    ("args", "pipeline_model_parallel_size", 2**40, "files of 4 of 2,199,023,255,552 ranks"),
    ("args", "expert_model_parallel_size", 2, "experts are cut in another way"),
    ("args", "rotary_interleaved", True, "positions are interleaved"),
    ("args", "apply_layernorm_1p", True, "stored without 1"),
    ("args", "kv_channels", 3, "layouts? do"),
    ("args", "x", Calls(), r"posix\.system"),
    ("model", "decoder.final_layernorm.weight", torch.ones(64), "not the equal copies"),
    ("model", "output_layer.weight", torch.ones(1, 64), "output_layer"),
    ("model", "embedding.word_embeddings.weight", torch.ones(1, 64), "do not have the same tensors"),
    ("stage", "embedding.word_embeddings.weight", torch.ones(1, 64), "two stages of the pipeline have it"),
]


@pytest.mark.parametrize(("entry", "key", "value", "said"), REFUSED)
def test_refused(entry: str, key: str, value: Any, said: str, tmp_path: Path) -> None:
    save(tmp_path / "m", "llama", 2, 2)
    for file in {"args": [FIRST], "model": [LAST], "stage": [LAST, SECOND]}.get(entry, [key]):
        path = tmp_path / "m" / file
        path.parent.mkdir(exist_ok=True)
        held = torch.load(path, weights_only=False) if entry else value
        if entry:
            (vars(held["args"]) if entry == "args" else held["model"])[key] = value
        torch.save(held, path) if entry else path.write_bytes(value)
    with pytest.raises(ckptconv.CkptError, match=said):
        ckptconv.convert(tmp_path / "m", tmp_path / "out.pt", converter="megatron-llama-ranks")
