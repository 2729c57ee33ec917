"""Hugging Face layouts: a folder, and an index that maps tensors to files.

    model.safetensors.index.json       the shard of each tensor (shard_index.py)
    model-00001-of-00002.safetensors   a complete checkpoint of its own (also .bin, .msgpack)
    model-00002-of-00002.safetensors
    tf_model.h5.index.json             "bert_model/bert/w:0" is the dataset bert/w:0, or of the full name, in its shard

The model is read from the index, from any of its shards, or from the folder; a folder can also hold one file instead.
Tensors in the weight map must be present; tensors that are not in it are left out with a note.
Specification: transformers, modeling_utils.py (load_sharded_checkpoint); huggingface_hub, serialization.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint, Details, Note, Tensor
from ..errors import AmbiguousFormat, CkptError, CorruptCheckpoint, StorageError, UnknownFormat, UnsafeCheckpoint
from ..messages import listing, many, printable
from ..storage.files import Seen, exists, is_dir, is_remote, join, local, names, read_all, sibling, split, within
from ..storage.paths import beginning, beside
from ..storage.remote import peek
from . import safetensors, shard_index
from .complete import counted
from .detect import detect, open_checkpoint
from .safetensors import SafetensorsWriter, prove as prove
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
KERAS = ".h5.index.json"
WEIGHTS = re.compile(r".+\.(safetensors|bin|msgpack)(\.index\.json)?")


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if set(MODELS) & set(seen.files) else 2 if _candidates(seen.files) else 0
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
    if index := index_of(url):
        base = split(url)[1]
        if base not in shard_index.read(beside(url, index))[0].values():
            text = "is not a shard of the index beside it; from_='safetensors' with partial=True reads it alone"
            raise CorruptCheckpoint(text, url=url)
        text = "a shard was given, and its whole index is read; from_=FORMAT and partial=True read it alone"
        return _noted(open_index(index, how), text, (base,))
    return open_index(url if exists(url) else beside(url, url + shard_index.SUFFIX), how)


def _noted(whole: Checkpoint, text: str, files: Sequence[str]) -> Checkpoint:
    return replace(whole, notes=(Note("hint", text, tuple(files)), *whole.notes)) if files else whole


def _candidates(files: Sequence[str]) -> list[str]:
    """Files of a folder that could be its model, the most likely first; shards are represented by their index."""
    known = [n for n in MODELS if n in files]
    return known or [n for n in files if WEIGHTS.fullmatch(n) and not SHARD.fullmatch(n) and not STATE.match(n)]


def _open_folder(url: str, how: Reading) -> Checkpoint:
    files = names(url)
    candidates, ends = _candidates(files), [n for n in files if n.lower().endswith(OTHERS) or WEIGHTS.fullmatch(n)]
    others = [n for n in ends if not re.search(rf"{NUMBERED}\.", n)]  # may be checkpoints; an index stands for shards
    if not candidates:
        shards = [n for n in files if SHARD.fullmatch(n)]
        what = f"holds shards ({shards[0]}, ...) but not their index" if shards else "holds no known model"
        raise UnknownFormat(f"{what}; give a file", url=url)
    if candidates[0] not in MODELS and len(several := [n for n in others if not STATE.match(n)]) > 1:
        raise AmbiguousFormat(f"holds several models; give one of them:\n{listing(several)}", url=url)
    first = candidates[0]
    path = within(url, first)
    whole = open_index(path, how) if path.endswith(shard_index.SUFFIX) else open_checkpoint(path, how)
    known = {first, *(split(u)[1] for u in whole.urls)}
    more = [n for n in others if n not in known]
    return _noted(whole, f"only {first} is read; name another file to read that", more)


def open_index(url: str, how: Reading) -> Checkpoint:
    """Open all shards that an index names and take from each the tensors that the weight map assigns to it.

    With `how.salvage`, tensors in missing or unreadable shards are listed in notes of the kind `damaged`.
    """
    weight_map, metadata = shard_index.read(url)
    if keras := url.endswith(KERAS):
        weight_map = {name.removesuffix(":0"): file for name, file in weight_map.items()}
    wanted: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        wanted.setdefault(file, []).append(name)
    paths = {file: sibling(url, file) for file in sorted(wanted)}
    if len(paths) > 1:
        names(split(url)[0], beginning(list(paths)))  # all sizes in one request, not one for each
    every = dict.fromkeys((*paths, *counted(next(iter(paths)))))
    lacking = {file: f"{printable(file)} is missing" for file in paths if not exists(paths[file])}
    lacking |= {file: f"{printable(file)} is not named by the index" for file in every if file not in paths}
    if lacking and not how.salvage and not how.partial:
        kind = StorageError if lacking.keys() & paths else CorruptCheckpoint
        text = f"{len(lacking)} of {many(len(every), 'shard')} cannot be read; partial=True goes on without"
        raise kind(f"{text}:\n{listing(lacking.values())}", url=url)
    notes = [
        Note("skipped" if how.partial else "damaged", f"the shard {why}", tuple(wanted.get(file, ())))
        for file, why in lacking.items()
    ]
    shards: dict[str, Checkpoint] = {}
    for file, path in _peeked({file: path for file, path in paths.items() if file not in lacking}):
        try:  # `hf` would claim a shard for its index
            shard = open_checkpoint(path, how, format=detect(path, but="hf").name)
            shards[file] = _with_model(shard, wanted[file]) if keras else shard
        except CkptError as e:
            if not how.salvage:
                raise
            why = f"the shard {printable(file)} cannot be opened: {' '.join(e.message.split())}"
            notes.append(Note("damaged", why, tuple(wanted[file])))
    if not shards:
        raise CorruptCheckpoint(f"none of {many(len(paths), 'shard')} can be opened", url=url)
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


def _peeked(paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The shards by their names, after a request for the headers of several remote ones at a time."""
    for i, (file, path) in enumerate(paths.items()):
        if i % PEEKED == 0:
            peek([*paths.values()][i : i + PEEKED])
        yield file, path


def _with_model(shard: Checkpoint, names_: Sequence[str]) -> Checkpoint:
    """A shard of Keras under the names of its index, which begin with that of the model."""
    names_of = {name if name in shard else name.partition("/")[2]: name for name in names_}
    return shard.with_tensors({new: t.renamed(new) for n, t in shard.items() for new in [names_of.get(n, n)]})


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

MAX_SIZE = 64 * 2**20  # bytes of a file, which is held in memory; the largest known tokenizer.json has 35 MB
CONFIG = "config.json"
KNOWN = frozenset({
    "config.json", "generation_config.json", "adapter_config.json", "preprocessor_config.json", "processor_config.json",
    "image_processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json",
    "vocab.json", "vocab.txt", "merges.txt", "normalizer.json", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
})  # fmt: skip


def writer(url: str, max_shard_size: int | None = None) -> SafetensorsWriter:
    base = f"{split(url.rstrip('/'))[1]}/model{safetensors.SUFFIX}"
    return SafetensorsWriter(base, max_shard_size or SHARD_SIZE)


def along(url: str, source: str, max_shard_size: int | None = None) -> SafetensorsWriter:
    """The writer of the folder `url` that also copies the small files of the folder `source`."""
    copied, urls = dict[str, bytes](), list[str]()
    wanted = {name for name in names(source) if name in KNOWN}
    there = wanted & set(names(url)) if wanted else set[str]()
    left: list[str] = []
    for name in sorted(wanted - there):
        try:
            path = within(source, name)
            if is_remote(path) or os.path.isfile(local(path)):
                copied[name] = read_all(path, MAX_SIZE)
                urls.append(path)
        except (UnsafeCheckpoint, CorruptCheckpoint):
            pass  # a link out of the folder, or too large; it is named in the note
        if name not in copied:
            left.append(name)
    text = "not copied: a link that leads out of the folder or nowhere, not a regular file, or too large"
    every = (
        Note("hint", "copied unchanged", tuple(copied)),
        Note("hint", "already there, not replaced", tuple(sorted(there))),
        Note("skipped", text, tuple(left)),
    )
    notes = tuple(note for note in every if note.names)
    return replace(writer(url, max_shard_size), beside=copied, copied=urls, notes=notes)


def configured(made: SafetensorsWriter, url: str, details: Details) -> SafetensorsWriter:
    """The writer that also writes the config.json that a converter made, unless one is copied, or there already."""
    if CONFIG in made.beside:
        return made
    raw = json.dumps(details["config"], indent=2).encode() + b"\n"
    written, note = {CONFIG: raw}, Note("hint", "written as far as the converter knows; check it", (CONFIG,))
    if exists(join(url, CONFIG)):
        written, note = {}, Note("hint", "already there, not replaced", (CONFIG,))
    elif lacking := details["lacking"]:
        text = f"{CONFIG} is not written, because this is not known: {', '.join(lacking)}"
        written, note = {}, Note("hint", text)
    return replace(made, beside={**made.beside, **written}, notes=(*made.notes, note))
