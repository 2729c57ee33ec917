"""The index of a sharded checkpoint, as Hugging Face writes it, and the names of its shards.

    model.safetensors.index.json       {"metadata": {"total_size": N},
                                        "weight_map": {"name": "model-00001-of-00002.safetensors", ...}}
    model-00001-of-00002.safetensors   model-00002-of-00002.safetensors

The checkpoint is called model.safetensors. Keras writes such an index as well, for tf_model.h5.
Specification: transformers, modeling_utils.py; huggingface_hub, serialization.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..checkpoint import Checkpoint, Tensor
from ..errors import CorruptCheckpoint
from ..output.destination import OutputFile
from ..storage.files import read_all
from ..storage.json import parse_json
from .own_metadata import hashes_of, without_hashes
from .placement import Patch, Placement, Slot, together

SUFFIX = ".index.json"
MAX_SIZE = 200_000_000  # bytes


def read(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """The file of each tensor, and the hashes of all tensors (own_metadata.py), if the index has any.

    CorruptCheckpoint unless it has a weight_map with at least one tensor.
    """
    root = parse_json(read_all(url, MAX_SIZE), url)
    files = root.get("weight_map") if isinstance(root, dict) else None
    if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
        raise CorruptCheckpoint("has no weight_map from tensors to files", url=url)
    metadata = root.get("metadata")
    texts = {k: v for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {}
    return files, hashes_of(texts)


# --- writing ----------------------------------------------------------------------------------------------------


def place(
    whole: str,
    suffix: str,
    checkpoint: Checkpoint,
    limit: int | None,
    lay_out: Callable[[str, Checkpoint], Placement],
    owners: Mapping[str, str] = {},
) -> Placement:
    """Place a checkpoint in order in files of at most `limit` bytes of tensors, with an index if there are several.

    whole: the name of a single file. lay_out: places one file. owners: the first of names that stay in one file and
    count once.
    """
    shards = cut(checkpoint, limit, owners)
    stem, count = whole.removesuffix(suffix), len(shards)
    names = [f"{stem}-{i:05d}-of-{count:05d}{suffix}" for i in range(1, count + 1)] if count > 1 else [whole]
    files, slots, patches, check, *_ = together([lay_out(*each) for each in zip(names, shards, strict=True)])
    if count > 1:
        patches = [*patches, index(whole, slots, checkpoint.metadata)]
        files = [*files, OutputFile(whole + SUFFIX, len(patches[-1].data))]
    stale = rf"{re.escape(whole)}({re.escape(SUFFIX)})?|{re.escape(stem)}-\d{{5}}-of-\d{{5}}{re.escape(suffix)}"
    return Placement(files, {name: slots[name] for name in checkpoint}, patches, check, stale)


def cut(checkpoint: Checkpoint, limit: int | None, owners: Mapping[str, str]) -> list[Checkpoint]:
    """The checkpoint in order, as several of at most `limit` bytes of tensors."""
    groups, homes, size = [dict[str, Tensor]()], dict[str, dict[str, Tensor]](), 0
    for name, t in checkpoint.items():
        owner = owners.get(name, name)
        if owner not in homes:
            if groups[-1] and limit is not None and size + t.nbytes > limit:
                groups.append({})
                size = 0
            homes[owner] = groups[-1]
            size += t.nbytes
        homes[owner][name] = t
    metadata = checkpoint.metadata
    if len(groups) > 1:  # the index has the hashes
        metadata = without_hashes(metadata)
    return [replace(checkpoint, metadata=metadata).with_tensors(group) for group in groups]


def index(whole: str, slots: Mapping[str, Slot], metadata: Mapping[str, str]) -> Patch:
    """The index, JSON as transformers writes it, with the hashes among the metadata; tied tensors count once."""
    total = sum(size for _, _, size in {(s.file, s.start, s.size) for s in slots.values()})
    files = {name: slots[name].file.rpartition("/")[2] for name in sorted(slots)}
    made = {"metadata": {"total_size": total, **hashes_of(metadata)}, "weight_map": files}
    return Patch(whole + SUFFIX, 0, (json.dumps(made, indent=2) + "\n").encode())
