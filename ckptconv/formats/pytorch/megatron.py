"""Megatron-LM: one file for each tensor and pipeline rank, or a distributed checkpoint with the program's arguments.

    latest_checkpointed_iteration.txt                 text: 100, or release
    iter_0000100/mp_rank_01_002/model_optim_rng.pt    tensor rank 1, stage 2 of the pipeline: {"args": Namespace(...),
                                                      "model": {"decoder.layers.0.mlp.linear_fc1.weight": its rows}}
    iter_0000100/.metadata, __0_0.distcp, common.pt   torch_dist: whole tensors as in dcp.py, of all layers in one, and
                                                      what is not a tensor, "args" among it

Stages are joined: each counts its layers from 0, and so does each of its pieces model0, model1 ... of an interleaved
pipeline, which follow each other piece by piece. Tensors that tensor parallelism cut are called rank_0.NAME,
rank_1.NAME, as in ranks.py; with one tensor rank NAME. The arguments become settings, from which converters take
numbers. Specification: megatron/training/checkpointing.py, megatron/core/transformer/transformer_layer.py
(get_transformer_layer_offset).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ...checkpoint import Checkpoint, Details, Note, Tensor
from ...errors import CorruptCheckpoint
from ...messages import many, printable, shortened
from ...storage.files import Seen, exists, join, names, read_all
from ..detect import open_checkpoint
from ..table import DISTRIBUTED, Reading
from . import archive, dcp
from .ranks import refuse_incomplete

TRACKER, COMMON = "latest_checkpointed_iteration.txt", "common.pt"
MODELS = ("model_optim_rng.pt", "model_rng.pt")
SAVED = re.compile(r"iter_\d+|release")
RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(_\d{3,})?")
LAYER = re.compile(r"(?:model(\d+)\.)?((?:.*?\.)?layers\.)(\d+)(\..*)")
PIECE = re.compile(r"model\d+\.")
ARGS = "args."
Ranks = dict[tuple[int, int], str]  # files by tensor rank and stage


def sniff(seen: Seen) -> int:
    if not seen.is_dir:
        return 0
    if DISTRIBUTED in seen.files:
        return 4 if COMMON in seen.files else 0
    found = TRACKER in seen.files and any(map(SAVED.fullmatch, seen.files))  # else it is DeepSpeed's
    return 4 if found or any(_file(seen.url, n) for n in seen.files if RANK.fullmatch(n)) else 0


def _file(url: str, name: str) -> str:
    """The file of a rank's folder that has its part of the model, or ''."""
    return next((path for n in MODELS if exists(path := join(join(url, name), n))), "")


def open(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    if TRACKER in files:
        saved = read_all(join(url, TRACKER), 100).decode("utf-8", "replace").strip()
        folder = f"iter_{int(saved):07d}" if re.fullmatch(r"\d{1,9}", saved) else saved
        if folder not in files or not SAVED.fullmatch(folder):
            raise CorruptCheckpoint(f"{TRACKER} names {printable(saved)}, which is not there", url=url)
        url, files = join(url, folder), names(join(url, folder))
    if DISTRIBUTED in files:
        found = dcp.open(url, how)
        common = archive.open(join(url, COMMON), how)
        return replace(
            found, urls=(*found.urls, *common.urls), details={**found.details, "settings": _settings(common)}
        )
    ranks = _ranks(url, files)
    read = {rank: open_checkpoint(path, how) for rank, path in ranks.items()}
    first = read[min(read)]
    settings = _settings(first)
    _all_there(url, ranks, settings)
    text = f"tensors of {many(len(ranks), 'rank')}; the optimizer's and other states are left out"
    notes = (*(n for n in first.notes if n.kind != "skipped"), Note("assumed", text))
    details: Details = {"values": first.details.get("values", {}), "settings": settings}
    return Checkpoint(_joined(read, ranks), {}, (), "megatron", tuple(ranks.values()), notes, details)


def _ranks(url: str, files: list[str]) -> Ranks:
    found: Ranks = {}
    for name in files:
        if (m := RANK.fullmatch(name)) and (path := _file(url, name)):
            if m[3]:
                raise CorruptCheckpoint(f"experts are cut as well, which is not read ({name})", url=url)
            found[int(m[1]), int(m[2] or 0)] = path
    if not found:
        raise CorruptCheckpoint("holds no model of a rank", url=url)
    return dict(sorted(found.items()))


def _settings(found: Checkpoint) -> dict[str, Any]:
    """What the program was started with, as far as it is single values: 1 for what is true, nothing for what is not.

    Every head has keys of its own unless there are groups.
    """
    values = found.details.get("values", {})
    args = {k.removeprefix(ARGS): v for k, v in values.items() if k.startswith(ARGS) and not isinstance(v, list | dict)}
    made = {k: int(v) if v is True else v for k, v in args.items() if v is not False}
    if not made.get("group_query_attention"):
        made["num_query_groups"] = made.get("num_attention_heads")
    version = values.get("checkpoint_version")
    return made | {"checkpoint_version": int(version) if isinstance(version, int | float) else None}


def _all_there(url: str, ranks: Ranks, settings: Mapping[str, Any]) -> None:
    """CorruptCheckpoint if a rank is missing, or if experts are cut in another way."""
    counts = []
    for axis, key in enumerate(("tensor_model_parallel_size", "pipeline_model_parallel_size")):
        stated = settings.get(key)
        counts.append(stated if type(stated) is int and stated > 0 else max(rank[axis] for rank in ranks) + 1)
    if (settings.get("expert_model_parallel_size") or 1) > 1 or (
        settings.get("num_experts") and settings.get("expert_tensor_parallel_size") not in (None, counts[0])
    ):
        text = (
            "its experts are cut in another way than the rest, which is not read; save it with ckpt_format torch_dist"
        )
        raise CorruptCheckpoint(text, url=url)
    pairs = ((t, p) for t in range(counts[0]) for p in range(counts[1]))
    wanted = ((pair, "mp_rank_{:02d}_{:03d}".format(*pair)[: None if counts[1] > 1 else -4]) for pair in pairs)
    refuse_incomplete(url, ranks, prod(counts), wanted)


def _joined(read: Mapping[tuple[int, int], Checkpoint], ranks: Ranks) -> dict[str, Tensor]:
    """The tensors of all ranks under their names in the whole model, with the layers of all stages counted."""
    stages = sorted({p for _, p in read})
    weights = {rank: [n for n, t in found.items() if not t.role] for rank, found in read.items()}
    counts = defaultdict[str, dict[tuple[int, int], int]](dict)  # by what stands before their numbers, and by piece
    for p in stages:
        for one in filter(None, map(LAYER.fullmatch, weights[0, p])):
            own, place = counts[one[2]], (int(one[1] or 0), p)
            own[place] = max(own.get(place, 0), int(one[3]) + 1)
    for (t, p), there in weights.items():
        if odd := set(there) ^ set(weights[0, p]):
            text = f"it and rank 0 do not have the same tensors: {shortened(sorted(odd))}"
            raise CorruptCheckpoint(text, url=ranks[t, p])
    made: dict[str, Tensor] = {}
    for (t, p), there in weights.items():
        for name in there:
            whole = PIECE.sub("", name, count=1)
            if m := LAYER.fullmatch(name):
                before = sum(n for place, n in counts[m[2]].items() if place < (int(m[1] or 0), p))
                whole = f"{m[2]}{before + int(m[3])}{m[4]}"
            whole = f"rank_{t}.{whole}" if max(ranks)[0] else whole
            if whole in made:
                raise CorruptCheckpoint("two stages of the pipeline have it", url=ranks[t, p], tensor=whole)
            made[whole] = read[t, p][name].renamed(whole)
    return made
