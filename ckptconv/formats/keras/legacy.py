"""Keras legacy HDF5, weights or whole models, of Keras 1, 2 and 3 and TF-Keras; Hugging Face's tf_model.h5 too.

    /                            @keras_version @backend, of a whole model @model_config @training_config (JSON)
    [model_weights/]             @layer_names = ["enc", "dense", ...]         in order; absent group: weights only
        enc/                     @weight_names = ["enc/inner/kernel:0", ...]  in order
            enc/inner/kernel:0   dataset, at layer + "/" + weight name
        top_level_model_weights/ @weight_names    variables of the model itself
    [optimizer_weights/]         @weight_names

An attribute over 64512 bytes is split into layer_names0, layer_names1, ... The lists define the order.

A tensor is named, here and in rule files, by its weight name without a final ":0", as in the framework:

    tf_bert_for_pre_training/bert/encoder/layer_._0/attention/self/query/kernel      (listed by the layer "bert")
    dense/kernel                                                                     (listed by "dense")

- A variable that several layers list (a shared embedding: T5's shared/shared/embeddings in "shared", "encoder" and
  "decoder") is stored once per layer. If all weights that two layers share are equal bit for bit, each is one tensor.
- Otherwise two layers hold different variables with the same name (two inner models built alike); each is then named
  layer/weight name, unless its name already begins with the layer: enc_a/inner/kernel, enc_b/inner/kernel.
- Optimizer weights come last, under optimizer_weights/, with the role slot, step or state.
- Shards of a Hugging Face model list datasets instead of layers; huggingface.py reads their index.

Specification: keras/src/legacy/saving/legacy_h5_format.py. `details["layers"]` keeps the lists for writing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, Role, Tensor, contiguous
from ...checkpoint.details import LayerInput
from ...dtypes import DTYPES
from ...errors import CorruptCheckpoint
from ...messages import listing, printable
from ...moves import derived
from ...storage.files import Seen
from ..hdf5 import file as hdf5
from ..hdf5.file import Stored, Tree
from ..table import KERAS_LISTS, Reading, is_hdf5
from . import naming
from .naming import OPTIMIZER, TOP, join
from .write import LegacyWriter

writer = LegacyWriter
MAX_WORDS = 8  # at the end of a weight's name, which may be those of its layer
THEANO = (
    "written under Theano, where Keras convolves with flipped kernels: -c keras-torch flips them, and so did Keras 2 "
    "when it loaded the file under another backend, but for depthwise ones; all else leaves them as they are"
)
KERAS1 = re.compile(r"[^/]+_(?:(?:W|U|b)(?:_[a-z])?|running_std)(?:_\d+)?")
STEPS = {"iteration", "iterations", "iter"}


class Listed(NamedTuple):
    """One entry of a weight_names list, and the dataset that is stored for it."""

    layer: str
    name: str
    stored: Stored


def sniff(seen: Seen) -> int:
    return 3 if is_hdf5(seen) and layers_group(hdf5.look(seen.url)) is not None else 0


def layers_group(found: Tree) -> str | None:
    """The path of the group that lists the layers, or None if this is not such a file."""
    groups = (p for p in ("model_weights", "") if _list_of(found.groups.get(p, {}), "layer_names") is not None)
    return next(groups, None)


def _list_of(attrs: Mapping[str, Any], key: str) -> list[str] | None:
    """Join a list attribute that may be split into key0, key1, ...; None if it is absent."""
    if key in attrs:
        values = attrs[key]
    elif key + "0" in attrs:
        values, i = [], 0
        while f"{key}{i}" in attrs:
            values += attrs[f"{key}{i}"]
            i += 1
    else:
        return None
    return [str(v) for v in values] if isinstance(values, list) else [str(values)]


def open(url: str, how: Reading) -> Checkpoint:
    """Open a file: the listed weights in their order, then those of the optimizer."""
    found = hdf5.look(url)
    base = layers_group(found)
    if base is None:
        raise CorruptCheckpoint("no group has the attribute layer_names: this is not a legacy Keras file", url=url)
    layers = _weights(found, base)
    listed = [e for entries in layers.values() for e in entries]
    if twice := [path for path, n in Counter(e.stored.path for e in listed).items() if n > 1]:
        raise CorruptCheckpoint(f"layers list datasets more than once:\n{listing(twice)}", url=url)
    labels, tied = _label_all(found, listed)
    slots = _slots(found)
    tensors: dict[str, Tensor] = {}
    for e in listed:
        if (label := labels[e.stored.path]) not in tensors:
            tensors[label] = hdf5.tensor(found, e.stored, label)
    tensors |= {label: hdf5.tensor(found, e.stored, label, role=_role(e)) for label, e in slots.items()}
    notes, used = [*tied, *found.notes], {e.stored.path for e in (*listed, *slots.values())}
    if unread := tuple(p for p in found.datasets if p not in used):  # Keras does not load them either
        notes.append(Note("unread", "datasets that no layer lists", unread, tensors=False))
    attrs = found.groups[""] | found.groups[base]
    metadata = {k: hdf5.text(v) for k, v in attrs.items() if not KERAS_LISTS.fullmatch(k)}
    under_theano = metadata.get("backend") == "theano" and metadata.get("keras_version", "").startswith("2")
    if under_theano and any(len(t.shape) > 2 for t in tensors.values() if not t.role):
        notes.append(Note("hint", THEANO))
    rows = [[layer, [(labels[e.stored.path], e.name) for e in es if e.layer]] for layer, es in layers.items() if layer]
    details = Details(layers=rows) | _of_config(metadata.get("model_config", ""), rows)
    _of_keras1(tensors, metadata, details["kinds"], any(e.name.endswith(":0") for e in listed))
    return scaled(Checkpoint(tensors, metadata, (), "keras", (url,), tuple(notes), details), how)


ATTENTION = re.compile(r"_?(?:query|key|value|(?:attention_)?output)(?:_dense)?")
SCALED = "int8 in the source, divided by its scales (Keras may also round to int8 what a layer takes)"


def scaled(checkpoint: Checkpoint, how: Reading) -> Checkpoint:
    """With densify=True, the weights of int8 layers as floats, without their scales.

    The scales belong to the last axes, of an Embedding to the first; of an EinsumDense only if its equation is usual.
    """
    if not how.densify:
        return checkpoint
    tensors, done = {**checkpoint}, list[str]()
    for name, kind in checkpoint.details["kinds"].items():
        q, scale = checkpoint[name], checkpoint.get(f"{name}_scale")
        if kind not in naming.SCALED or q.dtype.name != "int8" or not scale or scale.dtype.kind != "f":
            continue
        taken, shape = checkpoint.details["inputs"].get(name), [n for n in scale.shape if n != 1]
        usual = taken and taken.state != "unknown"
        if kind == "einsum_dense" and not usual and not ATTENTION.fullmatch(f"/{name}".split("/")[-2]):
            continue
        ends = [q.shape[:1]] if kind == "embedding" else [q.shape[i:] for i in range(1, len(q.shape))]
        if any(shape == [n for n in end if n != 1] for end in ends):
            axis = 0 if kind == "embedding" else len(q.shape) - 1
            data = derived.dense(name, q.shape, DTYPES["float32"], {"": q, "scale": scale}, axis)
            tensors[name] = contiguous(name, DTYPES["float32"], q.shape, data)
            del tensors[scale.name]
            done.append(name)
    left = [n for n, t in tensors.items() if t.dtype.name in ("int8", "uint8") and not t.role]  # of int4 without names
    notes = Note("assumed", SCALED, tuple(done)), Note("hint", "stay quantised: their layout is unknown", tuple(left))
    return checkpoint.with_tensors(tensors, *(n for n in notes if n.names))


def _of_keras1(tensors: Mapping[str, Tensor], metadata: dict[str, str], kinds: dict[str, str], by_tf: bool) -> None:
    """Put down what rules need to know of a file with the names of Keras 1.

    That is the order of its kernels, by its config or its biases, and which layers are recurrent.
    """
    if metadata.get("keras_version", "1")[:1] != "1" or not any(KERAS1.fullmatch(n) for n in tensors):
        return
    told = set(re.findall(r'"dim_ordering": "(t[fh])"', metadata.get("model_config", "")))
    orders = set(told)
    for name, t in tensors.items():
        bias = tensors.get("_b".join(name.rsplit("_W", 1)), t)
        if len(t.shape) in (4, 5) and len(bias.shape) == 1 and t.shape[0] != t.shape[-1] and not told:
            orders |= {order for order, axis in (("th", 0), ("tf", -1)) if t.shape[axis] == bias.shape[0]}
        if len(t.shape) == 2 and (m := re.fullmatch(r"(.+)_U(_\d+)?", name)):
            cell = {1: "simple_rnn", 3: "gru", 4: "lstm"}.get(t.shape[1] // (t.shape[0] or 1), "")
            kinds |= {f"{m[1]}_{v}{m[2] or ''}": cell for v in "WUb"}
    if by_tf:  # Theano names a variable without :0
        metadata.setdefault("backend", "tensorflow")
    metadata |= {"keras_names": "1", "dim_ordering": orders.pop() if len(orders) == 1 else "unknown"}


def _slots(found: Tree) -> dict[str, Listed]:
    """The optimizer's weights by the names of their tensors."""
    slots: dict[str, Listed] = {}
    for e in _entries(found, OPTIMIZER, OPTIMIZER):
        short = f"{OPTIMIZER}/{_bare(e.name)}"
        slots[e.stored.path if short in slots else short] = e
    return slots


class Owner(NamedTuple):
    """The class of a weight's layer, '' if nobody knows, and what the layer takes."""

    kind: str
    input: LayerInput | None


def _of_config(text: str, layers: Iterable[Any]) -> Details:
    """The class of the layer that each tensor belongs to, and what it takes, if the model's config tells.

    A weight's name ends with that of its layer, or of what is in it: fc/kernel:0, bi/forward_lstm/lstm_cell/kernel:0.
    """
    known, owners = dict[str, Owner](), dict[str, Owner]()
    try:
        config = json.loads(text) if text else None
        inputs = naming.layer_inputs(config)
    except (ValueError, RecursionError):
        config, inputs = None, {}
    for row in naming.all_rows(config, wrapped=False):
        layer = naming.Listed(naming.snake(row["class_name"]), row["config"]["name"], row["config"], row)
        if "layers" not in layer.config:
            _agree(known, layer.name, Owner((layer.inner or layer).kind, inputs.get(id(row))))
    for listed_by, weights in layers:
        for tensor, weight in weights:
            words = [listed_by, *weight.rsplit("/", MAX_WORDS)[:-1]]
            if word := next((word for word in reversed(words) if word in known), ""):
                owner = known[word]
                whole = word == words[-1] or owner.kind in naming.VARIABLES or owner.kind in naming.RECURRENT
                _agree(owners, tensor, owner if whole else owner._replace(kind=""))
    return {
        "kinds": {tensor: o.kind for tensor, o in owners.items() if o.kind},
        "inputs": {tensor: o.input for tensor, o in owners.items() if o.input},
    }


def _agree(known: dict[str, Owner], key: str, owner: Owner) -> None:
    """Put an owner down; of several, what they have in common."""
    before = known.setdefault(key, owner)
    taken = {before.input, owner.input}
    if len(taken) > 1:
        doubtful = any(one and one.follows_flatten for one in taken)
        owner = owner._replace(input=LayerInput("unknown") if doubtful else None)
    known[key] = owner._replace(kind=owner.kind if owner.kind == before.kind else "")


def _weights(found: Tree, base: str) -> dict[str, list[Listed]]:
    """The entries of each layer's list, in order; CorruptCheckpoint names those without a stored dataset."""
    out: dict[str, list[Listed]] = {}
    for layer in dict.fromkeys(_list_of(found.groups[base], "layer_names") or ()):
        path = join(base, layer)
        if path in found.datasets:  # in a shard of Hugging Face
            out[layer] = [Listed("", layer, found.datasets[path])]
        elif path in found.groups:
            out[layer] = _entries(found, path, layer)
        else:
            raise CorruptCheckpoint(f"layer_names lists {layer!r}, but there is no such group", url=found.url)
    top = out.pop(TOP, None) or _entries(found, join(base, TOP), TOP)
    return out | ({TOP: top} if top else {})


def _entries(found: Tree, path: str, layer: str) -> list[Listed]:
    """The entries of one group's weight_names."""
    listed = dict.fromkeys(_list_of(found.groups.get(path, {}), "weight_names") or ())
    missing = [n for n in listed if join(path, n) not in found.datasets]
    if missing:
        raise CorruptCheckpoint(
            f"{printable(path)} lists weights that are not stored:\n{listing(missing)}", url=found.url
        )
    return [Listed(layer, n, found.datasets[join(path, n)]) for n in listed]


def _bare(weight: str) -> str:
    return weight.removesuffix(":0")


def _role(entry: Listed) -> Role:
    last = _bare(entry.name).rpartition("/")[2]
    if entry.name.split("/")[1:2] == ["average"]:
        return "average"
    if last in STEPS:
        return "step"
    return "slot" if entry.stored.shape else "state"


def _label_all(found: Tree, listed: list[Listed]) -> tuple[dict[str, str], list[Note]]:
    """The tensor's name by each path (see the module's docstring), and a note on what is stored more than once."""
    first: dict[str, Listed] = {}
    again: dict[str, list[Listed]] = {}  # by layer: what an earlier layer listed
    for e in listed:
        if first.setdefault(_bare(e.name), e).layer != e.layer:
            again.setdefault(e.layer, []).append(e)
    digest = cache(partial(_digest, found))

    def is_first(e: Listed) -> bool:
        """Whether this is bit for bit the variable that was met first; hard links are not read."""
        a, b = e.stored, first[_bare(e.name)].stored
        one, other = a.same or a.path, b.same or b.path
        alike = (a.dtype, a.shape, a.swap) == (b.dtype, b.shape, b.swap)
        return one == other or (alike and digest(one) == digest(other))

    alone = {layer for layer, entries in again.items() if not all(map(is_first, entries))}
    apart = {_bare(e.name) for layer in alone for e in again[layer]}
    twins = [e.stored.path for es in again.values() for e in es if e.layer not in alone and _bare(e.name) not in apart]
    labels = dict[str, str]()
    for e in listed:
        label = _bare(e.name)
        if label in apart and not label.startswith(f"{e.layer}/"):
            label = f"{e.layer}/{label}"
        labels[e.stored.path] = label
    once = set(twins)
    count = Counter(label for path, label in labels.items() if path not in once)
    labels = {path: path if count[label] > 1 else label for path, label in labels.items()}
    text = "stored again under a layer that shares the variable, bit for bit the same; read once"
    return labels, [Note("tied", text, tuple(twins))] if twins else []


def _digest(found: Tree, path: str) -> str:
    """Hash a dataset's elements."""
    from ...moves.read import hash_tensor
    from ...moves.sources import Sources

    with Sources() as sources:
        return hash_tensor(hdf5.tensor(found, found.datasets[path], path), sources)
