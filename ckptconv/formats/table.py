"""The table of formats, how its rows are found, and what formats share: options of reading, and signatures of files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal, NamedTuple

from ..errors import MissingExtra, UsageError
from ..messages import did_you_mean, nearest
from ..storage import plugins
from ..storage.files import Seen, is_dir

# Suffixes of files that are read, if at all, but never written, with the reason.
UNWRITTEN = {
    ".gguf": "llama.cpp's convert_hf_to_gguf.py makes them of a Hugging Face folder",
    **dict.fromkeys(
        (".onnx", ".tflite", ".pte", ".mlmodel", ".mlpackage", ".pb", ".pbtxt"),
        "they hold a program beside the weights",
    ),
}  # fmt: skip

# Signatures of files, and names that a folder is known by. Detection needs them before it imports a format.
HDF5 = b"\x89HDF\r\n\x1a\n"
HDF5_AT = (0, 512, 1024, 2048)  # bytes of a user block before it, of which only some sizes are allowed
NPY = b"\x93NUMPY"
TF_TABLE = bytes.fromhex("57fb808b247547db")  # at the end
TF_DATA = re.compile(r"(.*)\.data-(\d{5})-of-(\d{5})", re.DOTALL)
SAVED_MODEL = "saved_model.pb"
DISTRIBUTED = ".metadata"  # of PyTorch's distributed checkpoints
KERAS_WEIGHTS = "model.weights.h5"
KERAS_LISTS = re.compile(r"(?:layer|weight)_names\d*")  # attributes of HDF5 that make a file one of Keras
OPAQUE = "opaque=True reads the tensors without them"  # said where it does


def is_hdf5(seen: Seen) -> bool:
    return any(seen.head.startswith(HDF5, at) for at in HDF5_AT)


class Reading(NamedTuple):
    """The options that every format's `open(url, how)` receives; it ignores those without a meaning for it.

    opaque: keep objects of unknown classes as inert placeholders instead of refusing them, and read all constants.
    salvage: open the complete tensors of a truncated file or an incomplete set, with notes of the kind `damaged`.
    densify: compute sparse and quantised tensors instead of returning their pieces.
    partial: leave out, with a note, tensors of which there is only a part, and shards that an index names and are not.
    """

    opaque: bool = False
    salvage: bool = False
    densify: bool = False
    partial: bool = False


class Format(NamedTuple):
    """A row of the table of formats.

    name: as users spell it. title: for people. module: the full name of the module that implements it. suffixes: of its
    files, in lower case. reads, writes: what it can do. hashes: whether output carries content hashes in its metadata:
    always (a format with metadata but without checksums), asked (with `hash=True`) or never. proves: whether the module
    has prove(found), which opens the output with the format's own implementation. detect.py describes the functions of
    the module.
    """

    name: str
    title: str
    module: str
    suffixes: tuple[str, ...]
    reads: bool
    writes: bool
    hashes: Literal["always", "asked", "never"] = "never"
    proves: bool = False

    def load(self) -> Any:
        """Import the module that implements the format.

        MissingExtra if a package is missing; UsageError if the module, which may be another package's, is broken.
        """
        try:
            return import_module(self.module)
        except ImportError as e:
            raise MissingExtra(f"the format {self.name} needs a package that is not installed: {e}") from e
        except Exception as e:
            raise UsageError(
                f"the format {self.name} cannot be used: importing {self.module}: {type(e).__name__}: {e}"
            ) from e


_HERE = "ckptconv.formats."
TABLE: tuple[Format, ...] = (
    Format("tf", "TensorFlow V2 checkpoint", _HERE + "tensorflow.bundle", (".ckpt", ".index"), True, True),
    Format("tf-v1", "TensorFlow V1 checkpoint", _HERE + "tensorflow.v1", (), True, False),
    Format("tf-graph", "TensorFlow SavedModel or graph", _HERE + "tensorflow.graph", (".pb",), True, False),
    Format("safetensors", "safetensors", _HERE + "safetensors", (".safetensors",), True, True, "always", True),
    Format("hf", "Hugging Face folder or index", _HERE + "huggingface", (), True, True, "always", True),
    Format("torch", "PyTorch", _HERE + "pytorch.archive", (".pt", ".pth", ".bin"), True, True, "asked"),
    Format("torch-legacy", "PyTorch before 1.6", _HERE + "pytorch.legacy", (), True, False),
    Format("pickle", "pickled dict of arrays", _HERE + "pytorch.bare", (), True, False),
    Format("orbax", "Orbax or zarr folder of JAX", _HERE + "orbax.folder", (".orbax",), True, True, "always"),
    Format("dcp", "PyTorch distributed checkpoint", _HERE + "pytorch.dcp", (), True, True, "asked"),
    Format("ranks", "PyTorch files of parallel ranks", _HERE + "pytorch.ranks", (), True, False),
    Format("megatron", "Megatron-LM checkpoint", _HERE + "pytorch.megatron", (), True, False),
    Format("deepspeed", "DeepSpeed ZeRO checkpoint", _HERE + "pytorch.zero", (), True, False),
    Format("pt2", "torch.export", _HERE + "pytorch.export", (), True, False),
    Format("torchscript", "TorchScript", _HERE + "pytorch.torchscript", (), True, False),
    Format("npz", "NumPy .npz", _HERE + "npz", (".npz",), True, True),
    Format("flax", "Flax msgpack", _HERE + "flax", (".msgpack",), True, True),
    Format("gpt", "GPT of 2018: .npy files end to end", _HERE + "gpt", (), True, False),
    Format("npy", "NumPy .npy file or folder", _HERE + "npy", (".npy",), True, True),
    Format(
        "keras3",
        "Keras 3 (.keras is only read)",
        _HERE + "keras.v3",
        (".weights.h5", ".weights.json", ".keras"),
        True,
        True,
        "always",
    ),
    Format("hdf5", "HDF5", _HERE + "hdf5.file", (".hdf5", ".h5"), True, True, "always"),
    Format("keras", "Keras legacy HDF5", _HERE + "keras.legacy", ("tf_model.h5", ".h5", ".hdf5"), True, True, "always"),
)


# Other names of these formats.
ALIASES = {
    "pytorch": "torch", "pt": "torch", "pth": "torch", "tensorflow": "tf", "huggingface": "hf", "transformers": "hf",
    "numpy": "npz", "st": "safetensors", "h5": "hdf5", "msgpack": "flax", "keras-v3": "keras3",
}  # fmt: skip


def table() -> dict[str, Format]:
    """All formats by name: ours and those of installed packages."""
    rows = {f.name: f for f in TABLE}
    for _, row in _installed().found:
        rows.setdefault(row.name, row)
    return rows


def missing() -> str:
    """The end of a message that a format is unknown: those of broken packages are."""
    return _installed().hint()


def _installed() -> plugins.Installed:
    return plugins.installed("ckptconv.formats", _checked)


def _checked(_: str, row: Any) -> Format:
    """The row of a package; TypeError if it is not one, or if its suffixes are not a tuple of texts."""
    if not isinstance(row, Format):
        raise TypeError(f"it gives a {type(row).__name__}, not a Format")
    if not isinstance(row.suffixes, tuple) or not all(isinstance(s, str) and s for s in row.suffixes):
        raise TypeError(f"its Format has the suffixes {row.suffixes!r}")  # every name ends with an empty one
    return row


def get(name: str) -> Format:
    """Look up a format by name; UsageError suggests a similar name or lists all."""
    name = ALIASES.get(name, name)
    for row in TABLE:  # installed packages are searched only if this fails, because that is slow
        if row.name == name:
            return row
    try:
        return table()[name]
    except KeyError:
        raise UsageError(f"unknown format {name!r}{did_you_mean(name, table(), 'formats')}{missing()}") from None


def target(url: str, name: str | None = None, source: str = "") -> Format:
    """The format to write at `url`: the one named `name`, or that of its suffix; if several fit, the source's."""
    if name:
        row = get(name)
        if not row.writes:
            raise UsageError(f"the format {name} can be read but not written")
        return row
    if not url:
        raise UsageError("the path to write is empty")
    if fits := _fitting(TABLE, url) or _fitting(table().values(), url):
        return max(fits, key=lambda pair: (pair[0], pair[1].name == source))[1]
    if url.endswith("/") or is_dir(url):
        raise UsageError(f"{url!r} is a folder; give a file in it, or use to='hf' or to='npy', which write folders")
    for suffix, why in UNWRITTEN.items():
        if url.lower().endswith(suffix):
            raise UsageError(f"{url!r}: {suffix} files are not written: {why}")
    written = [f for f in table().values() if f.writes]
    text = f"the name {url!r} does not determine the format"
    _, dot, tail = url.rpartition(".")
    if dot and (near := nearest("." + tail, [s for f in written for s in f.suffixes])):
        raise UsageError(f"{text}; did you mean {near[0]}?")
    known = ", ".join(f"{f.name} ({' '.join(f.suffixes) or '-'})" for f in written)
    raise UsageError(f"{text}; use to= with one of: {known}{missing()}")


def by_suffix(url: str) -> set[str]:
    """The names of the formats that a destination's suffix stands for."""
    return {f.name for _, f in _fitting(TABLE, url)}


def of_another(url: str, name: str) -> str:
    """What to say of a destination whose suffix stands for another format than the one that is written, or ''."""
    named = by_suffix(url)
    if not named or name in named:
        return ""
    return f"the name's suffix stands for {' or '.join(sorted(named))}; what is written is {name}"


def is_said(url: str) -> bool:
    """Whether a destination's suffix says a format, ours or another package's, also one that is not written."""
    return bool(url.lower().endswith(tuple(UNWRITTEN)) or _fitting(table().values(), url))


def _fitting(rows: Iterable[Format], url: str) -> list[tuple[int, Format]]:
    """Formats whose suffix the name has, with the length of the suffix."""
    return [(len(s), f) for f in rows if f.writes for s in f.suffixes if url.lower().endswith(s)]
