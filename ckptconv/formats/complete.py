"""Is this all of the model? One question about every source, by the names of its files and by its tensors.

    model-00001-of-00003.safetensors                    one of three files, which together are the model
    model_world_size_4_rank_0.pt  x_rank_0_of_4.pt      what one of four ranks wrote
    mp_rank_00_model_states.pt  consolidated.00.pth     one of those that differ in this number only
    x-model_part-1.pt  x-tp01.pt  x-rank-1-shard1.pt    the same
    x.rank0.pt  model_weights_tp_0.ckpt                 the same, if 0 and another are there; else in doubt
    layer_01-model_00-model_states.pt                   the same, of a pipeline of DeepSpeed
    zero_pp_rank_0_mp_rank_00_optim_states.pt           a piece of the weights, by DeepSpeed's ZeRO
    layer_0_expert_1_mp_rank_00_model_states.pt         experts of mp_rank_00_model_states.pt
    args.tensor_model_parallel_size: 2                  one of two ranks of Megatron-LM
    "fc.weight": shape [0]                              a placeholder, whose values another file has

Files that an index names are looked for by its reader. Sources: torch.distributed (fsdp), deepspeed/runtime/engine.py
(_get_ckpt_name, _get_zero_ckpt_name), transformers' modeling_utils.py, Meta's llama, fairseq/checkpoint_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ..checkpoint import Checkpoint
from ..messages import many, shortened
from ..storage.files import join, names, split

# The number of a file, and of how many: of a model in several files, and of the ranks of a run.
SHARDED = (
    re.compile(r"(?P<before>.*[-_](?<!\.data-))(?P<part>\d{5,})(?P<after>-of-(?P<all>\d{5,})[.\w]*)"),
    re.compile(r"(?P<before>.*(?:model|part|shard|weights)[-_]?)(?P<part>\d+)(?P<after>[-_]?of[-_]?(?P<all>\d+)\.\w+)"),
)
RANKED = (
    re.compile(r"(?P<before>(?:.*[._-])?rank[_-]?)(?P<part>\d+)(?P<after>[_-]of[_-](?P<all>\d+)\.\w+)"),
    re.compile(r"(?P<before>.*world_size_(?P<all>\d+)_rank_)(?P<part>\d+)(?P<after>\.\w+)"),
)
RANK = re.compile(  # a number of several; `sure`: that ranks write; `whole`: of which 0 alone can be the model
    r"(?P<word>(?P<sure>(?P<whole>^consolidated\.|[cdempt]p_rank_)"
    r"|^rank_?|^layer_(?=\d+-model_)|-model_(?=\d+-model_states)|^model-rank-(?=\d+-part-)|expert_(?=\d+_mp_rank_)"
    r"|(?:^|[._-])(?:model_part-|(?:rank|shard|[mpt]p)[_-]?(?=0\d)))"
    r"|(?:^|[._-])(?:rank|shard|model[._-]?part|pipeline_stage|[mpt]p)[_-]?)"
    r"(?!\d+(?:-model-|[-_]?of[-_]?\d))(?P<number>\d+(?:_\d{3,}$)?)"  # also the stage of a pipeline of Megatron-LM
)
LORA = re.compile(r"(?i)(?:^|[^a-z])(?:q?lora|dora|adapter|loha|lokr|lycoris|hada|svd|low.?rank)")  # have a rank
KERAS = re.compile(r"_\d{5}(\.weights)\.h5$")  # not the number of an epoch: only if its index is there
CUT = ("mp_world_size", "model_parallel_size")  # values of DeepSpeed, and of Megatron-LM and fairseq
FLAT = re.compile(r"(.*\.)?_?flat_param(_\d+)?")  # of FSDP, where each rank has its own part
STEP = re.compile(r"global_step(\d+)")  # a folder of DeepSpeed
SHAPES = re.compile(r"(?:frozen_param_shapes|param_shapes(?:\.\d+)?)\.(.+)")  # values of DeepSpeed: of the whole model
OWN = ("tf", "tf-v1", "keras3")  # whose readers know the files of a set
PART = "is what one rank of a parallel run wrote; the others have the rest: "
DOUBT = "the name may be that of one part of several; the source is taken for all of the model"
MOST = 10_000  # files of a set that are named
FILLED = re.compile(r"(.*[./])?weight")  # what no module of torch leaves without any element


def missing(found: Checkpoint, url: str, given: Collection[str] = ()) -> tuple[str, bool]:
    """What a source lacks of its model, and which files have it; whether that is sure. '' if nothing tells it.

    found: what was opened at `url`. given: the urls of the other sources, which may be the other files of its set.
    """
    folder, base = split(url.rstrip("/"))
    doubt, files = False, {*found.urls, *given}
    values = found.details.get("values", {}) if found.format.startswith("torch") else {}
    if "zero_pp_rank_" in base:
        return "is what one rank of DeepSpeed's ZeRO wrote, a piece of the weights; give the folder of all ranks", True
    if lacking := {*counted(base)} - {base, *(split(u)[1] for u in files)}:
        return f"is only a part of a model; the rest is in {_some(lacking)}", True
    if found.format not in OWN:
        for path in (url.rstrip("/"), folder):
            others, told = _ranks(*split(path), found)
            if others:
                return PART + _some(others), True
            doubt |= told
        cut = [f"{k} = {n}" for k, n in values.items() if k.endswith(CUT) and type(n) is int and n > len(files)]
        if says := cut or [n for n in found if FLAT.fullmatch(n) and len(files) == 1]:
            return f"has {shortened(says)}: it is what one of several ranks wrote; save the gathered model", True
    elif (index := KERAS.sub(r"\1.json", base)) != base and index in names(folder):
        return f"is only a part of a model; convert {index}, which names all of it", True
    empty = [n for n, t in found.items() if t.shape == (0,) and not t.role]
    shapes = {m[1]: shape for key, shape in values.items() if (m := SHAPES.fullmatch(key))}
    if any(FILLED.fullmatch(n) or shapes.get(n, [0]) != [0] for n in empty):
        what = "each rank (FSDP, ZeRO-3) saved only its own piece; save the gathered model"
        return f"holds {many(len(empty), 'placeholder')} without any element ({shortened(empty)}): {what}", True
    return DOUBT * doubt, False


def pieces(url: str, files: Sequence[str]) -> str:
    """What a folder holds that is no checkpoint itself but the parts of one, and what to do; '' if it is not so."""
    if steps := {n: int(m[1]) for n in files if (m := STEP.fullmatch(n))}:
        last = max(steps, key=steps.__getitem__)
        found = pieces(join(url, last), names(join(url, last)))
        return (
            f"is a DeepSpeed checkpoint, whose {last} "
            f"{found or 'has its weights in mp_rank_00_model_states.pt, which is not there'}"
        )
    if others := _ranks(*split(url))[0]:
        return PART + _some(others)
    every = next(filter(None, map(counted, files)), [])
    if lacking := {*every} - {*files}:
        return f"holds {len(every) - len(lacking)} of the {len(every)} files of a model; missing are {_some(lacking)}"
    if every and any(p.fullmatch(every[0]) for p in SHARDED):
        return f"holds the files of a model without their index; give all of them as sources: {_some(every)}"
    ranks = every or [n for n in files if (m := RANK.search(n)) and m["sure"]]
    states = [n for n in ranks if n.endswith("model_states.pt")]
    if len(alone := states if len(states) == 1 else ranks) == 1 and not _ranks(url, alone[0])[0]:
        return f"has its weights in {alone[0]}"
    return f"holds what the ranks of a parallel run wrote ({_some(ranks)}); take the gathered model" if ranks else ""


def _some(files: Collection[str]) -> str:
    return shortened(sorted(files))


def counted(base: str) -> list[str]:
    """The names of all files of a set, if the name of one tells its number and how many there are."""
    for pattern in (*SHARDED, *RANKED):
        if m := pattern.fullmatch(base):
            count, width = min(int(m["all"]), MOST), len(m["part"])
            first = 1 if pattern in SHARDED and int(m["part"]) and "." in m["after"] else 0  # TensorFlow's from 0
            return [f"{m['before']}{i:0{width}d}{m['after']}" for i in range(first, first + count)]
    return []


def _ranks(folder: str, base: str, found: Iterable[str] = ()) -> tuple[set[str], bool]:
    """The names of other ranks' files or folders, if a name tells a rank; without any, whether it may tell one.

    found: the names of tensors; those of a LoRA, which has a rank of its own, say that it is none of several.
    """
    if not (told := [*RANK.finditer(base)]):
        return set(), False
    lora = any(map(LORA.search, (base, *found)))
    first = RANK.sub(lambda m: m["word"] + re.sub(r"\d", "0", m["number"]), base)
    kind = RANK.sub(r"\g<word>", base)
    files = names(folder)
    alike = {n for n in files if RANK.sub(r"\g<word>", n) == kind or (n.endswith(f"_{base}") and "expert_" in n)}
    if first in alike or (not lora and (len(told) > 1 or any(m["sure"] for m in told))):
        return (others := alike - {base} or {first} - {base}), not others and not all(m["whole"] for m in told)
    return set(), not lora
