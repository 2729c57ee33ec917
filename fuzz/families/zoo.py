"""Folders of many checkpoints, and manifests of conversions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ckptconv.formats.table import Reading

from .common import JSON, Laid, Way, folder, of_ways

CSV = b"""source,destination,to,converter,dtype,include,options
a/model.ckpt,b.safetensors,,hf-bert,float16,"[""*""]","{""exclude"": [""*/adam_*""], ""max_shard_size"": 5}"
"""
LINES = b"""{"source": "s3://zoo/bert/model.ckpt", "to": "npz", "converter": "hf-bert", "options": {"opaque": true}}
{"source": "x.pt", "weights_only": "true", "rename": ["a=b"], "params": {"heads": 2}}
"""


def read(path: Path, format: str | None, how: Reading) -> int:
    """Read a manifest, or find the checkpoints in a folder and open a few of what they say they are."""
    from ckptconv.bulk import manifest
    from ckptconv.bulk.discover import discover
    from ckptconv.errors import CkptError
    from ckptconv.formats.detect import open_checkpoint

    if format == "manifest":
        from ckptconv.api.options import Options

        return sum(1 for _ in manifest.read(str(path), Options()))
    count = 0
    for found in discover([str(path)])[:4]:
        with suppress(CkptError):
            count += len(open_checkpoint(found.source))
    return count


def text(name: str, seed: bytes) -> Way:
    """The bytes are a manifest."""

    def lay(data: bytes, folder: Path) -> Laid:
        (folder / name).write_bytes(data)
        return folder / name, "manifest"

    return Way(lay, lambda: iter([seed]))


WAYS = (
    folder("zoo", "tf/tf1", "tf/saved", "torch/dcp", "flax", "hostile/sharded/good", "originals/openai-gpt--release",
           any_name=True),
    text("x.csv", CSV),
    text("x.jsonl", LINES),
)  # fmt: skip
CONSTANTS = ("huggingface.MODELS",)
SPELLED = b"source destination to from include exclude options dtype params ../ :// .index -00000-of-00002 " + JSON
FAMILY = of_ways(WAYS, SPELLED, CONSTANTS, read=read, options=(Reading(),))
