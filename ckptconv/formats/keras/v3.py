"""Keras 3 weights: `.weights.h5`, sharded `.weights.json`, and `.keras` archives, zipped or as a folder.

    layers/dense_1/vars/0             dataset: first variable of the second Dense; vars/@name = "enc" in newer files
    layers/lstm/cell/vars/2           attributes of a layer by their name; lists: attribute/class[_k]
    .../vars/0 @name                  the variable's own name: only in our files; without it naming.py knows
    @keras_version ...                metadata: only in our files
    vars/0                            variables of the model itself
    optimizer/vars/0, 1, 2 ...        iteration, learning rate, then the slots
    NAME.weights.json                 {"weight_map": {"/layers/dense/vars": "NAME_00000.weights.h5" or a list of them}}
    NAME.keras                        zip of metadata.json, config.json, model.weights.h5, assets/

A tensor's name is what Keras calls `variable.path`, without the model's own name: the names of the objects on the
way, from vars/@name or else from config.json, and the variable's name (naming.py): enc/inner/kernel. An object without
a name, or with a name that is not unique, keeps its path. A file without any names keeps all its paths,
layers/dense_1/vars/0, and a note says so. Optimizer variables keep theirs: optimizer/vars/2. `details["paths"]` maps
names to paths.

Nothing in config.json is evaluated; weights in the older model.weights.npz are pickles and refused.
Specification: keras/src/saving/saving_lib.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...checkpoint import Checkpoint, Details, Note, Role, Tensor
from ...errors import CorruptCheckpoint, UnsafeCheckpoint
from ...messages import listing, printable
from ...storage.files import Reader, Seen, exists, is_dir, read_all, sibling, within
from ..hdf5 import file as hdf5
from ..hdf5.file import Stored, Tree
from ..table import KERAS_WEIGHTS, Reading, is_hdf5
from ..zip import contents
from . import legacy, naming
from .naming import Listed
from .write import Keras3Writer

writer = Keras3Writer
PICKLED = "model.weights.npz"
INDEX = ".weights.json"
ABOUT: tuple[str, ...] = ("config.json", "metadata.json")
MAX_JSON = 256 << 20
STATES = ("seed_generator_state",)


class Shelf(NamedTuple):
    """The contents of the files of a checkpoint, however they are packed."""

    found: dict[str, tuple[Tree, Stored]]  # variables by path, and the files that hold them
    names: dict[str, str]  # of objects, by path: the attribute takes precedence over config.json
    trees: tuple[Tree, ...]
    listed: dict[str, Listed]  # layers that config.json lists, by path, in its order
    config: Any = None
    metadata: Mapping[str, str] = {}
    notes: tuple[Note, ...] = ()


def sniff(seen: Seen) -> int:
    if seen.is_dir:
        return 3 if {"config.json", KERAS_WEIGHTS} <= set(seen.files) else 0
    if seen.base.endswith(INDEX):
        return 3 if b'"weight_map"' in seen.head or b"weights.h5" in seen.head else 0
    if is_hdf5(seen):
        found = hdf5.look(seen.url)
        return 3 if legacy.layers_group(found) is None and any(map(is_vars, found.groups)) else 0
    return 3 if "config.json" in seen.members and {KERAS_WEIGHTS, PICKLED} & set(seen.members) else 0


def is_vars(path: str) -> bool:
    return path == "vars" or path.endswith("/vars")


def open(url: str, how: Reading) -> Checkpoint:
    """Open a checkpoint: every variable under the name from config.json or the name attributes."""
    shelf = load(url)
    labels, assumed = label(shelf)
    tensors: dict[str, Tensor] = {}
    for path, name in labels.items():
        tree, stored = shelf.found[path]
        tensors[name] = hdf5.tensor(tree, stored, name, role=role(path, name, stored))
    notes = [*shelf.notes, *(n for t in shelf.trees for n in t.notes)]
    if not shelf.names and shelf.config is None:
        notes.append(Note("hint", "no layer names are stored (no config.json, no name attributes): paths are kept"))
    if assumed:
        notes.append(Note("assumed", "called kernel and bias by their shapes alone", tuple(assumed)))
    urls = tuple(dict.fromkeys([url, *(t.url for t in shelf.trees)]))
    details: Details = {"paths": {name: path for path, name in labels.items()}}
    groups = [p for t in shelf.trees for p in t.groups if is_vars(p)]  # of variables, be they empty
    owners = (p.rpartition("vars")[0].rstrip("/") for p in groups)
    details["names"] = shelf.names | {o: "" for o in owners if o not in shelf.names}
    details |= _of_config(shelf, labels)
    weights = {path: tensors[name] for path, name in labels.items() if not tensors[name].role}
    if layers := _layers(shelf, weights):
        details["layers"] = layers
    made = Checkpoint(tensors, dict(shelf.metadata), (), "keras3", urls, tuple(notes), details)
    return legacy.scaled(made, how)


def _layers(shelf: Shelf, weights: Mapping[str, Tensor]) -> list[Any]:
    """The layers in the order of config.json, with their weights as a legacy file lists them; `weights` by path.

    Empty if it does not list all objects, or if several in a layer have weights: those that are trained come first, and
    which these are stands nowhere.
    """
    owners: dict[str, list[str]] = {}
    for path, t in weights.items():
        owners.setdefault(path.rpartition("vars/")[0].rstrip("/"), []).append(t.name)
    top = owners.pop("", [])
    rows = {"/".join(owner.split("/")[:2]): names for owner, names in owners.items()}  # layers/NAME
    layers = [(shelf.listed[path].name, rows[path]) for path in shelf.listed if path in rows]
    if not rows or len({name for name, _ in layers}) < len(owners):
        return []
    layers += [(naming.TOP, top)] if top else []
    return [[layer, [[n, n] for n in names]] for layer, names in layers]


def role(path: str, name: str, stored: Stored) -> Role:
    if path.startswith("optimizer/"):
        if path == "optimizer/vars/0" and stored.dtype == "int64":
            return "step"
        return "slot" if stored.shape else "state"
    return "state" if name.endswith(STATES) or re.match(r"_?(compile_)?(metrics|loss_tracker)", path) else ""


# --- files -----------------------------------------------------------------------------------------------------


def load(url: str) -> Shelf:
    """Read the directories of all files that belong to `url`."""
    if is_dir(url):
        return _folder(url)
    if url.endswith(".json"):
        return _shards(url)
    if Seen(url).members:
        return _archive(url)
    return _shelf([hdf5.look(url)])


def _shelf(trees: list[Tree], config: Any = None, **rest: Any) -> Shelf:
    """Sort the variables of all trees by path, numbers as numbers."""
    found = {s.path: (t, s) for t in trees for s in t.datasets.values()}
    if len(found) != sum(len(t.datasets) for t in trees):
        raise CorruptCheckpoint("one variable is in two shards", url=trees[0].url)
    names = {
        path.removesuffix("vars").rstrip("/"): attrs["name"]
        for t in trees
        for path, attrs in t.groups.items()
        if is_vars(path) and naming.is_name(attrs.get("name"))
    }
    order = sorted(found, key=_natural)
    rest.setdefault("metadata", {k: hdf5.text(v) for t in trees for k, v in t.groups[""].items()})
    groups: dict[str, set[str]] = {}
    for path in (p for t in trees for p in t.groups):
        above, _, last = path.rpartition("/")
        groups.setdefault(above, set()).add(last)
    listed = dict(naming.configured(config, groups))
    names = {path: layer.name for path, layer in listed.items()} | names
    return Shelf({p: found[p] for p in order}, names, tuple(trees), listed, config, **rest)


def _natural(path: str) -> tuple[Any, ...]:
    """Model variables, then layers, the optimizer last; 2 before 10."""
    words = [(int(n or 0), w) for w, n in re.findall(r"([^\d/]*)(\d{0,18})", path)]
    return path.startswith("optimizer/"), [(w, n) for n, w in words]


def _folder(url: str) -> Shelf:
    tree = hdf5.look(within(url, KERAS_WEIGHTS))
    parts = {n: read_all(sibling(tree.url, n), MAX_JSON) for n in ABOUT if exists(sibling(tree.url, n))}
    return _shelf([tree], **_about(parts, url))


def _archive(url: str) -> Shelf:
    inside = hdf5.members(url)
    if KERAS_WEIGHTS not in inside:
        if PICKLED in inside:
            raise UnsafeCheckpoint(f"keeps its weights in {PICKLED}, which are pickles; save it as HDF5", url=url)
        raise CorruptCheckpoint(f"has no {KERAS_WEIGHTS}", url=url)
    parts = {n: read_json(url, n) for n in ABOUT if n in inside}
    about = _about(parts, url)
    rest = tuple(n for n in inside if n not in (KERAS_WEIGHTS, *ABOUT) and not n.endswith("/"))
    notes = (Note("skipped", "files in the archive that are not weights", rest, tensors=False),) if rest else ()
    return _shelf([hdf5.look(url, KERAS_WEIGHTS)], notes=notes, **about)


def read_json(url: str, name: str) -> bytes:
    """Read a JSON member; UnsafeCheckpoint if what it says would be out of proportion to its size."""
    member = hdf5.members(url)[name]
    if member.size > MAX_JSON:
        raise CorruptCheckpoint(f"{name} has {member.size} bytes; at most {MAX_JSON} are allowed here", url=url)
    with Reader(url) as file:
        raw = b"".join(contents(file, member))
    if hdf5.weight(raw) > 64 * member.packed + 2**27:
        raise UnsafeCheckpoint(f"{name} would take some {hdf5.weight(raw) >> 20} MB of memory", url=url)
    return raw


def _about(parts: Mapping[str, bytes], url: str) -> dict[str, Any]:
    """The contents of config.json and metadata.json, which are kept as metadata."""
    config = _json(parts["config.json"], "config.json", url) if "config.json" in parts else None
    about = _json(parts["metadata.json"], "metadata.json", url) if "metadata.json" in parts else {}
    metadata = {str(k): hdf5.text(v) for k, v in about.items()} if isinstance(about, dict) else {}
    if config is not None:
        metadata["config"] = parts["config.json"].decode()
    return {"config": config, "metadata": metadata}


def _json(data: bytes, name: str, url: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise CorruptCheckpoint(f"{name} is not valid JSON: {e}", url=url) from e


def _shards(url: str) -> Shelf:
    index = _json(read_all(url, MAX_JSON), "the index", url)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict):
        raise CorruptCheckpoint("has no weight_map", url=url)
    wanted: dict[str, list[str]] = {}
    for path, files in places.items():
        files = [files] if isinstance(files, str) else files
        if not isinstance(files, list) or not all(isinstance(f, str) for f in files):
            raise CorruptCheckpoint(f"the entry {printable(path)} names no files", url=url)
        wanted[path.strip("/")] = files
    trees = {f: hdf5.look(sibling(url, f)) for f in dict.fromkeys(f for fs in wanted.values() for f in fs)}
    missing = [f"{p} in {f}" for p, fs in wanted.items() for f in fs if p not in trees[f].groups]
    if missing:
        raise CorruptCheckpoint(f"the index lists variables that do not exist:\n{listing(missing)}", url=url)
    return _shelf(list(trees.values()))


# --- names -----------------------------------------------------------------------------------------------------


def label(shelf: Shelf) -> tuple[dict[str, str], list[str]]:
    """Choose a unique name for every path; also return the names that are guesses."""
    names = shelf.names
    if not names and not naming.rows_of(shelf.config):
        return {path: path for path in shelf.found}, []
    owners: dict[str, list[str]] = {}
    for path in shelf.found:
        owner, inside, number = path.rpartition("vars/")
        owners.setdefault(owner.rstrip("/") if inside and number.isdigit() else "", []).append(path)
    labels: dict[str, str] = {}
    guessed: list[str] = []
    rank = {path: i for i, path in enumerate(shelf.listed)}

    def place(item: tuple[str, Any]) -> tuple[Any, ...]:  # by config.json, if that lists the layer or one above it
        return (*_natural(item[0] + "/")[:1], rank.get(naming.nearest(item[0], rank), -1), _natural(item[0]))

    for owner, held in sorted(owners.items(), key=place):
        if owner.startswith("optimizer") or not all(p.rpartition("vars/")[2].isdigit() for p in held):
            labels |= {p: p for p in held}
            continue
        stored = [shelf.found[p][1] for p in held]
        own, guess = [str(s.attrs.get("name", "")) for s in stored], False
        if not all(own):
            layer = naming.object_at(owner, names.get(owner, ""), shelf.listed)
            kind = layer.kind or ("lstm_cell" if owner.endswith("/cell") else "")  # all cells have the same variables
            own, guess = naming.variables(kind, [s.shape for s in stored], [s.dtype for s in stored], layer.config)
        prefix = called_path(owner, names)
        new = {p: f"{prefix}/{n}" if prefix else n for p, n in zip(held, own, strict=True)}
        labels |= new
        guessed += new.values() if guess else ()
    return _unique(labels), guessed


def _of_config(shelf: Shelf, labels: Mapping[str, str]) -> Details:
    """The class of the object that each tensor belongs to, if the file shows it, and what its layer takes."""
    taken = naming.layer_inputs(shelf.config)
    details: Details = {"kinds": {}, "inputs": {}}
    for path, name in labels.items():
        owner = path.rpartition("vars/")[0].rstrip("/")
        one = naming.object_at(owner, shelf.names.get(owner, ""), shelf.listed)
        if kind := (one.inner or one).kind:
            details["kinds"][name] = kind
        layer = shelf.listed.get(naming.nearest(owner, shelf.listed))
        if layer and id(layer.row) in taken:
            details["inputs"][name] = taken[id(layer.row)]
    return details


def called_path(owner: str, names: Mapping[str, str]) -> str:
    """Replace each object in a path by its name; an object without a name keeps its component."""
    out: list[str] = []
    pending: list[str] = []
    here = ""
    for word in owner.split("/") if owner else ():
        here = f"{here}/{word}" if here else word
        pending.append(word)
        if here in names:
            out.append(names[here])
            pending = []
    return "/".join([*out, *pending])


def _unique(labels: Mapping[str, str]) -> dict[str, str]:
    """Replace names that are not unique by their paths."""
    owners: dict[str, set[str]] = {}
    for path, name in labels.items():
        owners.setdefault(name.rpartition("/")[0], set()).add(path.rpartition("vars/")[0])
    apart = {prefix for prefix, of in owners.items() if len(of) > 1}
    out = {p: p if n.rpartition("/")[0] in apart else n for p, n in labels.items()}
    if len(set(out.values())) == len(out):
        return out
    return {p: p for p in labels}
