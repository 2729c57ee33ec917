"""What the jobs of comparison.py read, beside the files of make_files.py: written with the real frameworks.

    python benchmarks/comparison_files.py DIR STEM KIND ...

STEM.pt and STEM.safetensors are there. Each kind needs its own framework: dcp and variants torch, orbax
orbax-checkpoint, gguf gguf, odd none.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAN, ZERO = "bert/encoder/layer_2/output/dense/kernel", "bert/encoder/layer_1/attention/self/key/bias"
RANKS = """title = "Two ranks"
separators = ["/", "/"]
[[rule]]
from = ["r0/{x...}", "r1/{x...}"]
to = "{x...}"
layout = "a ..., b ... -> (a + b) ..."
rank = [1, 2]
"""
TUNED = tuple(f"bert/encoder/layer_{i}/attention/self/query/kernel" for i in (1, 3))


def dcp(folder: Path, stem: str) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save(torch.load(folder / f"{stem}.pt", mmap=True), checkpoint_id=folder / "dcp", no_dist=True)


def variants(folder: Path, stem: str) -> None:
    """One that was tuned, the average of both, one with a NaN and zeros, one in two ranks; as folders of the Hub."""
    import torch
    from safetensors.torch import load_file, save_file

    good = load_file(folder / f"{stem}.safetensors")
    tuned = good | {name: 1.01 * good[name] for name in TUNED}
    sick = good | {NAN: good[NAN].clone(), ZERO: torch.zeros_like(good[ZERO])}
    sick[NAN][5, 7] = float("nan")
    average = {name: (t + tuned[name]) / 2 for name, t in good.items()}
    for name, tensors in (("base", good), ("tuned", tuned), ("sick", sick), ("average", average)):
        (folder / name).mkdir(exist_ok=True)
        save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt", "licence": "none"})
        shape = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
        config = {"model_type": "bert", "architectures": ["BertModel"], **shape}
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save(good, folder / "base" / "model.pt")
    torch.save(tuned, folder / "tuned" / "model.pt")
    even = {name: t for name, t in good.items() if len(t) % 2 == 0}
    (folder / "ranks").mkdir(exist_ok=True)
    save_file(even, folder / "ranks" / "whole.safetensors")
    for rank in (0, 1):
        half = {name: t.chunk(2)[rank].contiguous() for name, t in even.items()}
        save_file(half, folder / "ranks" / f"rank{rank}.safetensors")


def orbax(folder: Path, stem: str) -> None:
    import orbax.checkpoint as ocp
    from safetensors.numpy import load_file

    tree: dict[str, Any] = {}
    for name, array in load_file(folder / f"{stem}.safetensors").items():
        at = tree
        for word in name.split("/")[:-1]:
            at = at.setdefault(word, {})
        at[name.rpartition("/")[2]] = array
    ocp.PyTreeCheckpointer().save(str((folder / "orbax").absolute()), tree, force=True)


def gguf(folder: Path, stem: str) -> None:
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    writer = GGUFWriter(str(folder / "model.gguf"), "llama")
    for name, array in load_file(folder / f"{stem}.safetensors").items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def odd(folder: Path, stem: str) -> None:
    """A million names; a payload, a torn file, a flipped bit; rules that join two ranks; a recipe of mergekit."""
    entries = (
        f'"layer_{i // 8}/block_{i % 8}/w":{{"dtype":"F32","shape":[4],"data_offsets":[{16 * i},{16 * i + 16}]}}'
        for i in range(1_000_000)
    )
    raw = ("{" + ",".join(entries) + "}").encode()
    with (folder / "million.safetensors").open("wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        f.truncate(8 + len(raw) + 16_000_000)
    whole = (folder / f"{stem}.safetensors").read_bytes()
    (folder / "torn.safetensors").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray((folder / f"{stem}.pt").read_bytes())
    flipped[len(flipped) // 2] ^= 4
    (folder / "flipped.pt").write_bytes(flipped)
    payload = b"\x80\x02cposix\nsystem\nX\x0b\x00\x00\x00touch PWNED\x85R."  # names a function and calls it
    with zipfile.ZipFile(folder / "evil.pt", "w") as file:
        file.writestr("evil/data.pkl", payload)
        file.writestr("evil/version", "3\n")
    models = "".join(
        f"  - model: {folder.absolute() / name / 'model.pt'}\n    parameters: {{weight: 0.5}}\n"
        for name in ("base", "tuned")
    )
    (folder / "average.yml").write_text(f"merge_method: linear\nmodels:\n{models}", encoding="utf-8")
    (folder / "ranks.toml").write_text(RANKS, encoding="utf-8")


KINDS: dict[str, Callable[[Path, str], None]] = {f.__name__: f for f in (dcp, variants, orbax, gguf, odd)}

if __name__ == "__main__":
    for kind in sys.argv[3:]:
        KINDS[kind](Path(sys.argv[1]), sys.argv[2])
