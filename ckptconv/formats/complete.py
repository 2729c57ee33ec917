"""Is this all of the model? One question about every source, by the names of its files and by its tensors.

    model-00001-of-00003.safetensors                    one of three files, which together are the model
    model_world_size_4_rank_0.pt  x_rank_0_of_4.pt      what one of four ranks wrote
    mp_rank_00_model_states.pt  consolidated.00.pth     one of those that differ in this number only
    x.rank0.pt  model_weights_tp_0.ckpt                 the same, if 0 and another are there
    layer_01-model_00-model_states.pt                   the same, of a pipeline of DeepSpeed
    "fc.weight": shape [0]                              a placeholder, whose values another file has

Files that an index names are looked for by its reader. Sources: torch.distributed (fsdp), deepspeed/runtime/engine.py
(_get_ckpt_name, _get_zero_ckpt_name), transformers' modeling_utils.py, Meta's llama.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ..checkpoint import Checkpoint
from ..messages import many, shortened
from ..storage.files import join, names, split

# The number of a file, and of how many: of a model in several files, and of the ranks of a run.
SHARDED = (
    re.compile(r"(?P<before>.*[-_])(?P<part>\d{5,})(?P<after>-of-(?P<all>\d{5,})[.\w]+)"),
    re.compile(r"(?P<before>.*(?:model|part|shard|weights)[-_]?)(?P<part>\d+)(?P<after>[-_]?of[-_]?(?P<all>\d+)\.\w+)"),
)
RANKED = (
    re.compile(r"(?P<before>.*_rank_)(?P<part>\d+)(?P<after>_of_(?P<all>\d+)\.\w+)"),
    re.compile(r"(?P<before>.*world_size_(?P<all>\d+)_rank_)(?P<part>\d+)(?P<after>\.\w+)"),
)
RANK = re.compile(r"(?:^rank_?|^consolidated\.|^layer_(?=\d+-model_)|[cdempt]p_rank_)(\d+)")
STAGE = re.compile(r"mp_rank_\d+_(\d{3,})$")  # of a pipeline of Megatron-LM
WEAK = re.compile(r"(?:(?:^|[._-])(?:rank|model_part)[_-]?|_[mpt]p_)(\d+)")  # if 0 is there: not LoRA's
KERAS = re.compile(r"_\d{5}(\.weights)\.h5$")  # not the number of an epoch: only if its index is there
STEP = re.compile(r"global_step(\d+)")  # a folder of DeepSpeed
OWN = ("tf", "tf-v1", "keras3")  # whose readers know the files of a set
PART = "is what one rank of a parallel run wrote; the others have the rest: "
MOST = 10_000  # files of a set that are named
FILLED = re.compile(r"(.*[./])?weight")  # what no module of torch leaves without any element


def missing(found: Checkpoint, url: str, given: Collection[str] = ()) -> str:
    """What a source lacks of its model, and which files have it; '' if nothing tells that it lacks anything.

    found: what was opened at `url`. given: the urls of the other sources, which may be the other files of its set.
    """
    folder, base = split(url.rstrip("/"))
    if found.format not in OWN:
        read = {split(u)[1] for u in (*found.urls, *given)}
        if lacking := [n for n in counted(base) if n not in read]:
            return f"is only a part of a model; the rest is in {_some(lacking)}"
        for path in (url.rstrip("/"), folder):
            if others := _ranks(*split(path)):
                return PART + _some(others)
    elif (index := KERAS.sub(r"\1.json", base)) != base and index in names(folder):
        return f"is only a part of a model; convert {index}, which names all of it"
    empty = [n for n, t in found.items() if t.shape == (0,) and not t.role]
    if any(FILLED.fullmatch(n) for n in empty):
        what = "each rank (FSDP, ZeRO-3) saved only its own piece; save the gathered model"
        return f"holds {many(len(empty), 'placeholder')} without any element ({shortened(empty)}): {what}"
    return ""


def pieces(url: str, files: Sequence[str]) -> str:
    """What a folder holds that is no checkpoint itself but the parts of one, and what to do; '' if it is not so."""
    if steps := {n: int(m[1]) for n in files if (m := STEP.fullmatch(n))}:
        last = max(steps, key=lambda n: steps[n])
        found = pieces(join(url, last), names(join(url, last)))
        found = found or "has its weights in mp_rank_00_model_states.pt, which is not there"
        return f"is a DeepSpeed checkpoint, whose {last} {found}"
    if others := _ranks(*split(url)):
        return PART + _some(others)
    every, present = next(filter(None, map(counted, files)), []), set(files)
    if lacking := [n for n in every if n not in present]:
        count = len(every) - len(lacking)
        return f"holds {count} of the {len(every)} files of a model; these are missing: {_some(lacking)}"
    if every and any(p.fullmatch(every[0]) for p in SHARDED):
        return f"holds the files of a model without their index; give all of them as sources: {_some(every)}"
    ranks = every or [n for n in files if RANK.search(n)]
    states = [n for n in ranks if n.endswith("model_states.pt")]
    if len(alone := states if len(states) == 1 else ranks) == 1:
        return f"has its weights in {alone[0]}"
    return f"holds what the ranks of a parallel run wrote ({_some(ranks)}); take the gathered model" if ranks else ""


def _some(files: Collection[str]) -> str:
    return shortened(sorted(files))


def counted(base: str) -> list[str]:
    """The names of all files of a set, if the name of one tells its number and how many there are."""
    for pattern in (*SHARDED, *RANKED):
        if m := pattern.fullmatch(base):
            count, width = min(int(m["all"]), MOST), len(m["part"])
            first = 1 if pattern in SHARDED and int(m["part"]) else 0
            return [f"{m['before']}{i:0{width}d}{m['after']}" for i in range(first, first + count)]
    return []


def _ranks(folder: str, base: str) -> list[str]:
    """The names of other ranks' files or folders, if a name tells a rank."""
    others: set[str] = set()
    for m in (*RANK.finditer(base), *STAGE.finditer(base), *WEAK.finditer(base)):
        start, end = m.span(1)
        alike = re.compile(re.escape(base[:start]) + r"(\d+)" + re.escape(base[end:]))
        beside = {n: int(found[1]) for n in names(folder) if n != base and (found := alike.fullmatch(n))}
        if m.re is not WEAK or 0 in (int(m[1]), *beside.values()):
            others.update(beside)
        if m.re is not WEAK and not others and int(m[1]):
            others.add(f"{base[:start]}{0:0{end - start}d}{base[end:]}")
    return sorted(others)
