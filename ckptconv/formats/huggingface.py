"""Hugging Face layouts: a folder, and an index that maps tensors to files.

    model.safetensors.index.json       the shard of each tensor (shard_index.py)
    model-00001-of-00002.safetensors   a complete checkpoint of its own (also .bin, .msgpack)
    model-00002-of-00002.safetensors

The model is read from the index, from any of its shards, or from the folder; a folder can also hold one file instead.
Tensors in the weight map must be present; tensors that are not in it are left out with a note.
Specification: transformers, modeling_utils.py (load_sharded_checkpoint); huggingface_hub, serialization.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..checkpoint import Checkpoint, Details, Note, Tensor
from ..errors import AmbiguousFormat, CkptError, CorruptCheckpoint, StorageError, UnknownFormat
from ..messages import listing, many, printable
from ..output.destination import OutputFile
from ..storage.files import Reader, Seen, Stamp, exists, is_dir, is_remote, join, local, names, sibling, split, stat
from ..storage.paths import beginning, beside
from ..storage.remote import peek
from . import safetensors, shard_index
from .detect import detect, open_checkpoint
from .placement import Patch, Placement, Slot
from .safetensors import SafetensorsWriter, prove
from .table import Reading

PEEKED = 32  # remote shards whose headers are fetched before the first of them is opened
SHARD_SIZE = 5_000_000_000  # bytes, by default, of the shards in a new folder
NUMBERED = r"-\d{5,}-of-\d{5,}"
SHARD = re.compile(rf"(.+){NUMBERED}(\.safetensors|\.bin|\.msgpack)")
# In the order in which transformers looks for them.
MODELS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "flax_model.msgpack", "flax_model.msgpack.index.json", "tf_model.h5", "tf_model.h5.index.json",
)  # fmt: skip
OTHERS = (".pt", ".pth", ".h5", ".npz", ".keras", ".index")  # files that can be checkpoints of their own
STATE = re.compile(r"optimizer|scheduler|scaler|rng_state|random_states|training_args\.bin$")
WEIGHTS = re.compile(r".+\.(safetensors|bin|msgpack)(\.index\.json)?")


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if set(MODELS) & set(seen.files) else 2 * bool(_candidates(seen.files))
    if seen.size < 0 and seen.base + shard_index.SUFFIX in seen.files:
        return 3  # the name under which the shards were written
    if seen.base.endswith(shard_index.SUFFIX) and seen.head.lstrip()[:1] == b"{":
        return 3
    return 4 if seen.size >= 0 and index_of(seen.url) else 0


def index_of(url: str) -> str:
    """The index beside a shard, or ''."""
    folder, base = split(url)
    shard = SHARD.fullmatch(base)
    index = join(folder, f"{shard[1]}{shard[2]}{shard_index.SUFFIX}") if shard else ""
    return index if index and exists(index) else ""


def open(url: str, how: Reading) -> Checkpoint:
    if is_dir(url):
        return _open_folder(url, how)
    base = split(url)[1]
    if index := index_of(url):
        if base not in shard_index.read(beside(url, index))[0].values():
            text = "is not a shard of the index beside it; from_='safetensors' with partial=True reads it alone"
            raise CorruptCheckpoint(text, url=url)
        text = "a shard was given, and its whole index is read; from_= with partial=True reads the shard alone"
        return _noted(open_index(index, how), text, (base,))
    return open_index(url if exists(url) else beside(url, url + shard_index.SUFFIX), how)


def _noted(whole: Checkpoint, text: str, files: Sequence[str]) -> Checkpoint:
    return replace(whole, notes=(Note("hint", text, tuple(files)), *whole.notes)) if files else whole


def _candidates(files: Sequence[str]) -> list[str]:
    """Files of a folder that could be its model, the most likely first; shards are represented by their index."""
    known = [n for n in MODELS if n in files]
    return known or [n for n in files if WEIGHTS.fullmatch(n) and not SHARD.fullmatch(n) and not STATE.match(n)]


def _others(files: Sequence[str]) -> list[str]:
    """Files of a folder that can be checkpoints by their names; an index stands for its shards."""
    ends = [n for n in files if n.lower().endswith(OTHERS) or WEIGHTS.fullmatch(n)]
    return [n for n in ends if not re.search(rf"{NUMBERED}\.", n)]


def _open_folder(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    candidates, others = _candidates(files), _others(files)
    if not candidates:
        shards = [n for n in files if SHARD.fullmatch(n)]
        what = f"holds shards ({shards[0]}, ...) but not their index" if shards else "holds no known model"
        raise UnknownFormat(f"{what}; give a file", url=url)
    if candidates[0] not in MODELS and len(several := [n for n in others if not STATE.match(n)]) > 1:
        raise AmbiguousFormat(f"holds several models; give one of them:\n{listing(several)}", url=url)
    path = sibling(join(url, "."), candidates[0])
    # the Keras format handles its own spelling of names in shards
    ours = path.endswith(shard_index.SUFFIX) and not path.endswith(".h5" + shard_index.SUFFIX)
    whole = open_index(path, how) if ours else open_checkpoint(path, how)
    known = {candidates[0], *(split(u)[1] for u in whole.urls)}
    more = [n for n in others if n not in known]
    return _noted(whole, f"{candidates[0]} is read; give another file to read that one", more)


def open_index(url: str, how: Reading) -> Checkpoint:
    """Open all shards that an index names and take from each the tensors that the weight map assigns to it.

    With `how.salvage`, tensors in missing or unreadable shards are listed in notes of the kind `damaged`.
    """
    weight_map, metadata = shard_index.read(url)
    wanted: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        wanted.setdefault(file, []).append(name)
    paths = {file: sibling(url, file) for file in sorted(wanted)}
    if len(paths) > 1:
        names(split(url)[0], beginning(list(paths)))  # all sizes in one request, not one for each
    missing = [file for file in paths if not exists(paths[file])]
    if missing and not how.salvage and not how.partial:
        text = f"{len(missing)} of {many(len(paths), 'shard')} missing; partial=True goes on without"
        raise StorageError(f"{text}:\n{listing(missing)}", url=url)
    present = {file: path for file, path in paths.items() if file not in missing}
    damage = {file: f"the shard {printable(file)} is missing" for file in missing}
    shards: dict[str, Checkpoint] = {}
    for i, (file, path) in enumerate(present.items()):
        if i % PEEKED == 0:  # one request for the headers of several remote shards
            peek([*present.values()][i : i + PEEKED])
        try:  # `hf` would claim a shard for its index
            shards[file] = open_checkpoint(path, how, format=detect(path, but="hf").name)
        except CkptError as e:
            if not how.salvage:
                raise
            damage[file] = f"the shard {printable(file)} cannot be opened: {' '.join(e.message.split())}"
    if not shards:
        raise CorruptCheckpoint(f"none of {many(len(paths), 'shard')} can be opened", url=url)
    skipped = missing if how.partial else []
    notes = [Note("skipped" if f in skipped else "damaged", why, tuple(wanted[f])) for f, why in damage.items()]
    lost = {file: lost for file in shards if (lost := [n for n in wanted[file] if n not in shards[file]])}
    if lost and not how.salvage:
        rows = [f"{name} (in {file})" for file, names in lost.items() for name in names]
        text = f"{many(len(rows), 'tensor')} not in the file that the index names:\n{listing(rows)}"
        raise CorruptCheckpoint(text, url=url)
    for file, names_ in lost.items():
        notes.append(Note("damaged", f"not in {printable(file)}, which the index names", tuple(names_)))
    whole = _joined(url, weight_map, shards)
    metadata = {} if notes else metadata  # its hashes are of the complete set
    return replace(whole, metadata=whole.metadata | metadata, notes=(*whole.notes, *notes))


def _joined(url: str, weight_map: Mapping[str, str], shards: Mapping[str, Checkpoint]) -> Checkpoint:
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    details: Details = {"shards": {file: len(shard) for file, shard in shards.items()}}
    extra: list[str] = []
    notes: dict[Note, None] = {}
    ties: list[tuple[str, ...]] = []
    urls = [url]
    for file, shard in shards.items():
        taken = {name: t for name, t in shard.items() if weight_map.get(name) == file}
        extra += [f"{name} (in {file})" for name in shard if name not in taken]
        tensors |= taken
        for key, value in shard.metadata.items():
            if key not in safetensors.KEYS:  # torch says so of shards of whole tensors, too
                metadata.setdefault(key, value)
        part = shard.with_tensors(taken)
        ties += part.ties
        notes |= dict.fromkeys(n for n in part.notes if n != safetensors.ALONE)
        urls += shard.urls
    if extra:
        # tensors, but not of this checkpoint: what loads it by its index does not load them either
        text = "tensors that the index does not take from this shard"
        notes[Note("unread", text, tuple(extra), tensors=False)] = None
    first = next(iter(shards.values()))
    return Checkpoint(tensors, metadata, tuple(ties), first.format, tuple(urls), tuple(notes), details)


# --- writing ----------------------------------------------------------------------------------------------------
#
# The small files beside a model's weights in a folder of Hugging Face are copied, so that the result can be loaded:
#
#     config.json  generation_config.json  tokenizer.json  vocab.txt  ...        by name: no code, no unknown files
#
# Existing files are not replaced. Links out of the source's folder, files that are not regular, and files larger than
# `MAX_SIZE` are left out with a note.

MAX_SIZE = 64 * 2**20  # bytes of a file; the largest known tokenizer.json has 35 MB
KNOWN = frozenset({
    "config.json", "generation_config.json", "adapter_config.json", "preprocessor_config.json", "processor_config.json",
    "image_processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json",
    "vocab.json", "vocab.txt", "merges.txt", "normalizer.json", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
})  # fmt: skip


class Companion(NamedTuple):
    """A small file to copy, as it was when it was checked."""

    url: str
    size: int  # in bytes
    stamp: Stamp

    def content(self) -> bytes:
        with Reader(self.url) as f:
            if f.stamp != self.stamp:  # also where a link took the place of the file
                raise CorruptCheckpoint("changed while it was read; nothing was written", url=self.url)
            return f.read(0, self.size)


def writer(url: str, max_shard_size: int | None = None) -> FolderWriter:
    return FolderWriter(url, SafetensorsWriter("model" + safetensors.SUFFIX, max_shard_size or SHARD_SIZE))


@dataclass(frozen=True)
class FolderWriter:
    """A folder with model.safetensors, or with shards and their index, and what is copied beside them."""

    url: str
    inside: SafetensorsWriter
    beside: Mapping[str, Companion] = field(default_factory=dict)
    notes: Sequence[Note] = ()

    @property
    def at(self) -> str:
        return split(self.url.rstrip("/"))[1] + "/"

    def cannot_hold(self, tensor: Tensor) -> str:
        return self.inside.cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        placed, at = self.inside.place(checkpoint), self.at
        copies = [OutputFile(at + name, c.size, shared=True) for name, c in self.beside.items()]
        return placed._replace(
            files=[*copies, *(OutputFile(at + f.name, f.size) for f in placed.files)],
            slots={name: Slot(at + s.file, s.start, s.size) for name, s in placed.slots.items()},
            patches=[Patch(at + p.file, p.start, p.data) for p in placed.patches],
            stale=re.escape(at) + f"({placed.stale})",
            notes=(*placed.notes, *self.notes),
            copied=[c.url for c in self.beside.values()],
        )

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        copies = [Patch(self.at + name, 0, c.content()) for name, c in self.beside.items()]
        return [*copies, *(p._replace(file=self.at + p.file) for p in self.inside.seal(checks, metadata))]


def along(url: str, source: str, max_shard_size: int | None = None) -> FolderWriter:
    """The writer of the folder `url` that also copies the small files of the folder `source`."""
    copied: dict[str, Companion] = {}
    wanted = {name for name in names(source) if name in KNOWN}
    there = wanted & set(names(url)) if wanted else set[str]()
    left: list[str] = []
    for name in sorted(wanted - there):
        try:
            path = sibling(join(source, "."), name)
            status = stat(path)
            regular = is_remote(path) or os.path.isfile(local(path))
        except CkptError:
            status, regular = None, False
        if status is None or not regular or status.size > MAX_SIZE:
            left.append(name)
            continue
        with Reader(path) as f:
            copied[name] = Companion(path, f.size, f.stamp)
    text = "not copied: a link that leads out of the folder or nowhere, not a regular file, or too large"
    notes = (
        Note("hint", "copied beside the weights as they are", tuple(copied)),
        Note("hint", "there already, and not replaced", tuple(sorted(there))),
        Note("skipped", text, tuple(left)),
    )
    return replace(writer(url, max_shard_size), beside=copied, notes=tuple(note for note in notes if note.names))


__all__ = ["along", "open", "open_index", "prove", "sniff", "writer"]
