"""Kernels and reads within one process, ours and a peer's in turn; prints one JSON object: {name: best seconds}.

    python benchmarks/inside.py transposes | casts | one TENSORS.safetensors | load TENSORS.safetensors

Names are "CASE ours" and "CASE PEER". What is compared runs on as many threads as its case says.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

import ckptconv

RUNS = 7
Ways = dict[str, Callable[[], Any]]


def best(ways: Ways) -> dict[str, float]:
    """The best time of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, do in ways.items():
            began = time.perf_counter()
            do()
            times[name].append(time.perf_counter() - began)
    return {name: min(got) for name, got in times.items()}


def transposes() -> dict[str, float]:
    """Square matrices of elements of 8 and 16 bytes, on one and on two threads."""
    from ckptconv.moves.copy import copy

    out = {}
    for kind, size in (("f8", 4096), ("c16", 2048)):
        src = np.random.default_rng(0).standard_normal((size, size)).astype(kind)
        dst, given = np.empty_like(src), torch.from_numpy(src)
        made = torch.empty_like(given)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            half = size // threads
            with ThreadPoolExecutor(threads) as pool:

                def ours(pool=pool, half=half, dst=dst, src=src) -> None:  # type: ignore[no-untyped-def]
                    rows = range(0, len(src), half)
                    list(pool.map(lambda at: copy(dst[at : at + half], src.T[at : at + half]), rows))

                ways: Ways = {"ours": ours, "torch": lambda made=made, given=given: made.copy_(given.t())}  # type: ignore[misc]
                case = f"transpose of {src.itemsize}-byte elements, threads: {threads}"
                out |= {f"{case} {who}": t for who, t in best(ways).items()}
    return out


def casts() -> dict[str, float]:
    """64 MB of float32 in blocks of 256 KiB, on one thread; ours counts losses."""
    from ckptconv.dtypes import DTYPES
    from ckptconv.moves.cast import transform

    torch.set_num_threads(1)
    src = np.random.default_rng(0).standard_normal(2**24).astype("f4")
    raw, given, out = src.view("u4"), torch.from_numpy(src), {}
    for kind in ("float16", "bfloat16"):
        to = DTYPES[kind]
        made = torch.empty(2**16, dtype=getattr(torch, kind))

        def ours(to=to) -> None:  # type: ignore[no-untyped-def]
            for at in range(0, len(raw), 2**16):
                transform(raw[at : at + 2**16], DTYPES["float32"], (), to)

        def theirs(made=made) -> None:  # type: ignore[no-untyped-def]
            for at in range(0, len(raw), 2**16):
                made.copy_(given[at : at + 2**16])

        out |= {f"cast to {kind} {who}": t for who, t in best({"ours": ours, "torch": theirs}).items()}
    return out


def one(path: str) -> dict[str, float]:
    """The largest tensor of a file, whose header is read already."""
    from safetensors import safe_open

    found = ckptconv.open(path)
    name = max(found, key=lambda n: found[n].nbytes)
    with safe_open(path, "np") as f:
        ways = {"ours": lambda: found[name].numpy(), "get_tensor": lambda: f.get_tensor(name)}
        return {f"one tensor {who}": t for who, t in best(ways).items()}


def load(path: str) -> dict[str, float]:
    """All of a file into a module."""
    from safetensors.torch import load_file

    import ckptconv.torch

    module = torch.nn.Module()
    for name, t in ckptconv.open(path).items():
        home = module
        *above, last = name.replace("/", ".").split(".")
        for word in above:
            if not hasattr(home, word):
                home.add_module(word, torch.nn.Module())
            home = getattr(home, word)
        home.register_buffer(last, torch.zeros(t.shape))
    named = {n.replace("/", "."): t for n, t in ckptconv.open(path).items()}
    given = ckptconv.Checkpoint({n: t.renamed(n) for n, t in named.items()})

    def loaded(state: dict[str, Any]) -> None:
        module.load_state_dict({n.replace("/", "."): t for n, t in state.items()})

    ways: Ways = {
        "ours": lambda: ckptconv.torch.load_into(module, given),
        "safetensors": lambda: loaded(load_file(path)),
    }
    return {f"load_into {who}": t for who, t in best(ways).items()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
