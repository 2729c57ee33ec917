"""A result of a search on the Hugging Face Hub as a manifest: what its API says of models, saved as a file.

    curl 'https://huggingface.co/api/models?search=bert&full=true' > models.json

    [{"id": "org/name", "sha": "5f1a...", "siblings": [{"rfilename": "model.safetensors"}, ...]}, ...]

Each checkpoint in a repository is one to convert, of the revision `sha` if it is there. Strangers name these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..messages import brief, printable
from ..storage.files import Stat
from .groups import INDEXES, sets, suffixes

ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
REVISION = re.compile(r"[0-9a-f]{40}")
PIECE = re.compile(r"(.+)-\d{5}-of-\d{5}(\.[^.]+)")  # of a checkpoint with an index
UNSAFE = re.compile(r"[\0-\x1f\\@?#:*\[\ud800-\udfff]|(^|/)\.{0,2}(/|$)")


def is_model(line: Mapping[str, Any]) -> bool:
    return "siblings" in line and "source" not in line


def checkpoints(model: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The source of each checkpoint of a model, its folder below the root, and why it cannot be read, or ''.

    ValueError if this does not describe a model.
    """
    name, revision = model.get("id") or model.get("modelId"), model.get("sha")
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ValueError(f"{name!r} is not the id of a model")
    if not isinstance(model["siblings"], list):
        raise ValueError("its siblings must be a list")
    at = f"@{revision}" if isinstance(revision, str) and REVISION.fullmatch(revision) else ""
    folders: dict[str, list[str]] = {}
    for sibling in model["siblings"]:
        path = sibling.get("rfilename") if isinstance(sibling, dict) else None
        if not isinstance(path, str):
            raise ValueError("each of its siblings must be an object with an rfilename")
        if UNSAFE.search(path):
            if path.lower().endswith(suffixes()):
                yield f"hf://{name}{at}/{printable(brief(path))}", name, "is not a plain path in its repository"
            continue
        above, _, base = path.rpartition("/")
        folders.setdefault(above, []).append(base)
    for above, names in folders.items():
        folder = f"{name}/{above}" if above else name
        for base in _chosen(names):
            yield f"hf://{name}{at}/{above}/{base}" if above else f"hf://{name}{at}/{base}", folder, ""


def _chosen(names: Iterable[str]) -> list[str]:
    """Of the names in a folder those that stand for a checkpoint; which files belong to it shows when it is read."""
    left = {n: Stat(0, 0) for n in names if not n.startswith(".")}
    indexes = [n for n in left if n.endswith(INDEXES)]
    for n in [*indexes, *(n for n in left if (m := PIECE.fullmatch(n)) and f"{m[1]}{m[2]}.index.json" in indexes)]:
        del left[n]
    several = [f.source for f in sets("", left, "", [*left, *indexes])]
    return sorted([*indexes, *several, *(n for n in left if n.lower().endswith(suffixes()))])


__all__ = ["checkpoints", "is_model"]
