"""Write the benchmark files with the real frameworks: BERT-large's names and shapes, cut or repeated to a size.

    python benchmarks/make_files.py DIR [GB ...]

Needs tensorflow, torch, safetensors and h5py. For each size: N.ckpt (TensorFlow bundle), N.pt, N.safetensors, N.h5, and
N-zero2 and N-zero3, which are what four ranks of DeepSpeed's ZeRO leave.
"""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

NAMES = Path(__file__).parents[1] / "fixtures" / "names" / "bert.txt"
LARGE = {768: 1024, 3072: 4096}  # the widths of BERT-base, and of BERT-large


def names_and_shapes(size: float) -> dict[str, tuple[int, ...]]:
    """BERT's TensorFlow names, with layers until `size` bytes of float32 are reached."""
    out, layer = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for line in NAMES.read_text().splitlines():
        name, _, shape = line.partition(" ")
        if name.startswith("bert/") and "/layer_" not in name.replace("/layer_0/", "/"):
            into = layer if "/layer_0/" in name else out
            into[name] = tuple(LARGE.get(n, n) for n in json.loads(shape))
    count = 0
    while 4 * sum(map(prod, out.values())) < size:
        out |= {name.replace("/layer_0/", f"/layer_{count}/"): shape for name, shape in layer.items()}
        count += 1
    return out


def write(folder: Path, gigabytes: float) -> None:
    """Write one size in every format."""
    import h5py
    import tensorflow as tf
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(0)
    shapes = names_and_shapes(gigabytes * 1e9)
    arrays = {n: rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    stem = folder / f"{gigabytes:g}"
    tf.raw_ops.SaveV2(
        prefix=f"{stem}.ckpt",
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.constant(a) for a in arrays.values()],
    )
    tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
    torch.save(tensors, f"{stem}.pt")
    save_file(tensors, f"{stem}.safetensors")
    with h5py.File(f"{stem}.h5", "w") as f:
        for n, a in arrays.items():
            f[n] = a
    for stage in (2, 3):
        write_zero(Path(f"{stem}-zero{stage}"), tensors, stage)


def write_zero(folder: Path, tensors: dict[str, Any], stage: int, world: int = 4) -> None:
    """Write the optimizer's weights in partitions: of all tensors end to end, in stage 3 of each tensor."""
    import torch
    from torch.nn.functional import pad

    flat = [t.reshape(-1) for t in tensors.values()]
    whole = flat if stage == 3 else [torch.cat(flat)]
    cut = [pad(f, (0, -len(f) % (2 * world))).chunk(world) for f in whole]
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    model = {
        "module": {},
        "buffer_names": [],
        "shared_params": {},
        "param_shapes": [{n: t.shape for n, t in tensors.items()}],
    }
    (folder / "global_step1").mkdir(parents=True, exist_ok=True)
    (folder / "latest").write_text("global_step1")
    for rank in range(world):
        state = {"zero_stage": stage, "partition_count": world, key: [torch.cat([c[rank] for c in cut])]}
        name = f"{folder}/global_step1/zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": state}, f"{name}_optim_states.pt")
        torch.save(model, f"{name if stage == 3 else name.replace(f'zero_pp_rank_{rank}_', '')}_model_states.pt")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for text in sys.argv[2:] or ["0.4", "1.3", "5"]:
        write(target, float(text))
