"""Copy the small files beside a model's weights in a Hugging Face folder, so that the result can be loaded.

    config.json  generation_config.json  tokenizer.json  vocab.txt  ...        by name: no code, no unknown files

Existing files are not replaced. Links out of the source's folder, files that are not regular, and files larger than
`MAX_SIZE` are left out with a note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..checkpoint import Checkpoint, Note, Tensor
from ..errors import CkptError, CorruptCheckpoint
from ..output.destination import OutputFile
from ..storage.files import Reader, Stamp, is_remote, join, local, names, sibling, split, stat
from .placement import Patch, Placement, Writer

MAX_SIZE = 64 * 2**20  # bytes of a file; the largest known tokenizer.json has 35 MB
KNOWN = frozenset({
    "config.json", "generation_config.json", "adapter_config.json", "preprocessor_config.json", "processor_config.json",
    "image_processor_config.json", "video_preprocessor_config.json", "feature_extractor_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json",
    "vocab.json", "vocab.txt", "merges.txt", "normalizer.json", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
})  # fmt: skip


class Companion(NamedTuple):
    url: str
    size: int  # in bytes
    stamp: Stamp


@dataclass(frozen=True)
class Along:
    """A folder writer that also copies other files, given by name as they were when they were checked."""

    inside: Writer
    at: str
    found: Mapping[str, Companion]
    notes: Sequence[Note]

    def cannot_hold(self, tensor: Tensor) -> str:
        return self.inside.cannot_hold(tensor)

    def place(self, checkpoint: Checkpoint) -> Placement:
        placed = self.inside.place(checkpoint)
        beside = [OutputFile(self.at + name, c.size, shared=True) for name, c in self.found.items()]
        notes, copied = (*placed.notes, *self.notes), [c.url for c in self.found.values()]
        return placed._replace(files=[*beside, *placed.files], notes=notes, copied=copied)

    def seal(self, checks: Mapping[str, int], metadata: Mapping[str, str]) -> Sequence[Patch]:
        copied = [Patch(self.at + name, 0, _content(c)) for name, c in self.found.items()]
        return [*copied, *self.inside.seal(checks, metadata)]


def along(writer: Writer, url: str, source: str) -> Writer:
    """Extend the writer of the folder `url` by the small files of the folder `source`."""
    found: dict[str, Companion] = {}
    left: list[str] = []
    wanted = [name for name in names(source) if name in KNOWN]
    present = frozenset(names(url)) if wanted else ()
    there = tuple(name for name in wanted if name in present)
    for name in sorted(set(wanted) - set(there)):
        try:
            path = sibling(join(source, "."), name)
        except CkptError:
            left.append(name)
            continue
        status = stat(path)
        regular = status is not None and (is_remote(path) or os.path.isfile(local(path)))
        if status is None or not regular or status.size > MAX_SIZE:
            left.append(name)
        else:
            with Reader(path) as f:
                found[name] = Companion(path, f.size, f.stamp)
    notes = [Note("hint", "copied beside the weights as they are", tuple(found))] if found else []
    if there:
        notes.append(Note("hint", "there already, and not replaced", there))
    if left:
        text = "not copied: a link that leads out of the folder or nowhere, not a regular file, or too large"
        notes.append(Note("skipped", text, tuple(left)))
    return Along(writer, split(url.rstrip("/"))[1] + "/", found, notes) if notes else writer


def _content(of: Companion) -> bytes:
    with Reader(of.url) as f:
        if f.stamp != of.stamp:  # also where a link took the place of the file
            raise CorruptCheckpoint("changed while it was read; nothing was written", url=of.url)
        return f.read(0, of.size)


__all__ = ["along"]
