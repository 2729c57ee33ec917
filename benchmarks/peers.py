"""The other ways, as people write them: one job with the frameworks themselves.

    python benchmarks/peers.py WAY SOURCE TARGET
    python benchmarks/peers.py dcp | variants | orbax | gguf | odd FOLDER STEM   from its STEM.pt and STEM.safetensors

Run by run.py and comparison.py, each in a process of its own: its imports are a part of what it costs.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path
from typing import Any


def _variables(source: str) -> Iterator[tuple[str, Any]]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(source)
    for name in reader.get_variable_to_shape_map():
        yield name, reader.get_tensor(name)


def tf_safetensors(source: str, target: str) -> None:
    """TensorFlow + safetensors."""
    from safetensors.numpy import save_file

    save_file(dict(_variables(source)), target)


def tf_torch(source: str, target: str) -> None:
    """TensorFlow + torch, kernels transposed, as the scripts in transformers do."""
    import torch

    state = {}
    for name, array in _variables(source):
        tensor = torch.from_numpy(array)
        if name.endswith("/kernel"):
            tensor = tensor.t().contiguous()
        state[name.replace("/", ".").replace("kernel", "weight")] = tensor
    torch.save(state, target)


def torch_safetensors(source: str, target: str) -> None:
    """torch (mapped) + safetensors."""
    import torch
    from safetensors.torch import save_file

    save_file(torch.load(source, map_location="cpu", mmap=True, weights_only=True), target)


def _datasets(source: str) -> dict[str, Any]:
    import h5py

    arrays = {}
    with h5py.File(source, "r") as f:
        f.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


def h5_safetensors(source: str, target: str) -> None:
    """h5py + safetensors."""
    from safetensors.numpy import save_file

    save_file(_datasets(source), target)


def safetensors_torch(source: str, target: str) -> None:
    """safetensors + torch."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(source), target)


def shards(source: str, target: str) -> None:
    """safetensors: load, split by size, save each."""
    from safetensors.torch import load_file, save_file

    folder, parts, size = Path(target), list[dict[str, Any]]([{}]), 0
    folder.mkdir()
    for name, tensor in load_file(source).items():
        if size + tensor.nbytes > 300e6 and parts[-1]:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    for i, part in enumerate(parts):
        save_file(part, folder / f"model-{i + 1:05}-of-{len(parts):05}.safetensors")


def joined(source: str, target: str) -> None:
    """safetensors: load all shards, save one file."""
    from safetensors.torch import load_file, save_file

    state = {}
    for path in sorted(Path(source).parent.glob("*.safetensors")):
        state.update(load_file(path))
    save_file(state, target)


def _cast(source: str, target: str, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    save_file({name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(source).items()}, target)


def bfloat16(source: str, target: str) -> None:
    """safetensors + torch: load, cast, save."""
    _cast(source, target, "bfloat16")


def float16(source: str, target: str) -> None:
    """safetensors + torch: load, cast, save."""
    _cast(source, target, "float16")


def inspect_tf(source: str, target: str) -> None:
    """tf.train.list_variables."""
    import tensorflow as tf

    for name, shape in tf.train.list_variables(source):
        print(name, shape)


def inspect_safetensors(source: str, target: str) -> None:
    """safe_open: every name and shape."""
    from safetensors import safe_open

    with safe_open(source, "np") as f:
        for name in f.keys():  # noqa: SIM118 - it is not a mapping
            print(name, f.get_slice(name).get_shape())


def groups(source: str, target: str) -> None:
    """20,000 datasets by h5py's own calls, each in a group, and all opened again: the bound."""
    import h5py

    p = h5py.h5p
    plan, group = p.create(p.DATASET_CREATE), p.create(p.GROUP_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    group.set_link_creation_order(p.CRT_ORDER_TRACKED | p.CRT_ORDER_INDEXED)
    space, kind = h5py.h5s.create_simple((16,)), h5py.h5t.py_create("<f4")
    with h5py.File(source, "w") as f:
        for i in range(20_000):
            above = h5py.h5g.create(f.id, b"layer_%d" % i, gcpl=group)
            h5py.h5d.create(above, b"weight", kind, space, dcpl=plan).get_offset()
    with h5py.File(source) as f:
        for i in range(20_000):
            found = h5py.h5d.open(h5py.h5g.open(f.id, b"layer_%d" % i), b"weight")
            found.get_offset(), found.get_space().shape, found.get_type(), found.get_create_plist().get_layout()


def h5_torch(source: str, target: str) -> None:
    """h5py + torch."""
    import torch

    torch.save({name: torch.from_numpy(a) for name, a in _datasets(source).items()}, target)


def dcp_safetensors(source: str, target: str) -> None:
    """torch.distributed.checkpoint.format_utils, then safetensors."""
    import torch
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(source, f"{target}.pt")
    save_file(torch.load(f"{target}.pt", mmap=True, weights_only=True), target)
    Path(f"{target}.pt").unlink()


def orbax_safetensors(source: str, target: str) -> None:
    """orbax-checkpoint + safetensors."""
    import numpy as np
    import orbax.checkpoint as ocp
    from safetensors.numpy import save_file

    arrays: dict[str, Any] = {}

    def flat(tree: dict[str, Any], at: str) -> None:
        for key, value in tree.items():
            if isinstance(value, dict):
                flat(value, f"{at}{key}/")
            else:
                arrays[at + key] = np.asarray(value)

    flat(ocp.PyTreeCheckpointer().restore(source), "")
    save_file(arrays, target)


def bert_transformers(source: str, target: str) -> None:
    """transformers 4: its own loader of TensorFlow's BERT, as its convert script calls it."""
    import torch
    from transformers import BertConfig, BertForPreTraining
    from transformers.models.bert.modeling_bert import load_tf_weights_in_bert

    config = BertConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=16)
    model = BertForPreTraining(config)
    load_tf_weights_in_bert(model, config, source)
    torch.save(model.state_dict(), target)


def pt_loader(source: str, target: str) -> None:
    """pt-safe-loader."""
    from pt_loader import PtCheckpoint

    PtCheckpoint.load(source, strict_contiguous=False).export(Path(target).name, dir=Path(target).parent)


def zero_to_fp32(source: str, target: str) -> None:
    """DeepSpeed's own script."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    convert_zero_checkpoint_to_fp32_state_dict(source, target, safe_serialization=True)


def nan_torch(source: str, target: str) -> None:
    """safetensors + torch: isfinite and all-equal."""
    from safetensors import safe_open

    with safe_open(source, "pt") as f:
        for name in f.keys():  # noqa: SIM118 - it is not a mapping
            t = f.get_tensor(name)
            if not t.isfinite().all():
                print(name, "NaN or Inf, first at", (~t.isfinite()).nonzero()[0].tolist())
            elif (t == t.flatten()[0]).all():
                print(name, "all", t.flatten()[0].item())


def diff_torch(source: str, target: str) -> None:
    """safetensors + torch: max |d| of each tensor."""
    from safetensors import safe_open

    with safe_open(source, "pt") as a, safe_open(target, "pt") as b:
        for name in a.keys():  # noqa: SIM118 - it is not a mapping
            apart = (a.get_tensor(name) - b.get_tensor(name)).abs().max().item()
            if apart:
                print(name, apart)


def one_torch(source: str, target: str) -> None:
    """torch.load (mapped), one tensor."""
    import torch

    print(torch.load(source, map_location="cpu", mmap=True, weights_only=True)[target].double().sum().item())


def one_ours(source: str, target: str) -> None:
    """ckptconv.open, one tensor."""
    import ckptconv

    print(ckptconv.open(source)[target].numpy().sum(dtype="f8"))


def load_torch(source: str, target: str) -> None:
    """torch.load with weights_only, which is its default."""
    import torch

    print(len(torch.load(source, map_location="cpu")))


def load_trusting(source: str, target: str) -> None:
    """torch.load with weights_only=False."""
    import torch

    print(len(torch.load(source, map_location="cpu", weights_only=False)))


def make_million(path: Path) -> None:
    """Write 1,000,000 tensors of 16 bytes, all zero."""
    entries = (
        f'"layer_{i // 8}/block_{i % 8}/w":{{"dtype":"F32","shape":[4],"data_offsets":[{16 * i},{16 * i + 16}]}}'
        for i in range(1_000_000)
    )
    raw = ("{" + ",".join(entries) + "}").encode()
    with path.open("wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        f.truncate(8 + len(raw) + 16_000_000)


# --- what the jobs of comparison.py read, beside the files of make_files.py ------------------------------------------

NAN, ZERO = "bert/encoder/layer_2/output/dense/kernel", "bert/encoder/layer_1/attention/self/key/bias"
TUNED = tuple(f"bert/encoder/layer_{i}/attention/self/query/kernel" for i in (1, 3))


def make_dcp(folder: Path, stem: str) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save(torch.load(folder / f"{stem}.pt", mmap=True), checkpoint_id=folder / "dcp", no_dist=True)


def make_variants(folder: Path, stem: str) -> None:
    """One that was tuned, the average of both, one with a NaN and zeros; as folders of the Hub."""
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


def make_orbax(folder: Path, stem: str) -> None:
    import orbax.checkpoint as ocp
    from safetensors.numpy import load_file

    tree: dict[str, Any] = {}
    for name, array in load_file(folder / f"{stem}.safetensors").items():
        at = tree
        for word in name.split("/")[:-1]:
            at = at.setdefault(word, {})
        at[name.rpartition("/")[2]] = array
    ocp.PyTreeCheckpointer().save(str((folder / "orbax").absolute()), tree, force=True)


def make_gguf(folder: Path, stem: str) -> None:
    from gguf import GGUFWriter
    from safetensors.numpy import load_file

    writer = GGUFWriter(str(folder / "model.gguf"), "llama")
    for name, array in load_file(folder / f"{stem}.safetensors").items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_odd(folder: Path, stem: str) -> None:
    """A million names; a payload, a torn file, a flipped bit; a recipe of mergekit."""
    make_million(folder / "million.safetensors")
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


WAYS = {name: f for name, f in vars().items() if isfunction(f) and f.__module__ == __name__ and name[0] != "_"}

if __name__ == "__main__":
    way, source, target = [*sys.argv[1:], ""][:3]
    if way in WAYS:
        WAYS[way](source, target)
    else:
        WAYS[f"make_{way}"](Path(source), target)
